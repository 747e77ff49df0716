/* update.c - one update after another: the gradient of its batches, clipping, AdamW.
 *
 * Nothing waits for the device.  Batches are uploaded by a context of their own, whose arena gives
 * the same addresses for the same shapes.  All that differs between updates of one shape is then in
 * device memory, so the work from the batch to the updated parameters is captured as a graph and
 * replayed where the device can (core.h).  Graphs of the last few shapes are kept; the least
 * recently used one is replaced.
 *
 * An update of several batches (gradient accumulation) divides every loss by the labels of all of
 * them, so that it equals one large batch: all batches must be there before the first is run. */
#include "train/update.h"

#include <math.h>

#include "fovea/author/family.h"
#include "fovea/ops.h"
#include "train/adam.h"
#include "train/ranks.h"
#include "train/sharded.h"
#include "train/tensor.h"

#define SHAPES 16

typedef struct kept {
    fv_graph graph;
    uint64_t key;
    int64_t used; /* when last */
} kept;

struct fv_updater {
    fv_device *dev;
    fv_model *model;
    fv_train_opt opt;
    fv_adam *adam;
    fv__trace *trace;
    fv__ranks *ranks;     /* where batches are cut into shards; else NULL */
    fv__sharded *sharded; /* where they share the parameters, too; else NULL */
    fv_comm *tensor;      /* ranks that share the model; else NULL */
    fv_comm *copies;      /* then: those that have the same part of it */
    const fv_feed *feed;  /* whose forward pass is run; NULL: the family's */
    fv_ctx *in, *ctx;     /* what goes in, and the work itself */
    kept kept[SHAPES];
    int64_t clock;
    int64_t first, done; /* updates: the first not read, and how many since */
};

/* Of the parameters, and so of the arithmetic. */
static fv_dtype dtype_of(const fv_updater *u)
{
    return fv_params_at(fv_model_params(u->model), 0)->dtype;
}

fv_status fv_updater_new(fv_updater **out, fv_model *m, fv_device *d, const fv_train_opt *o,
                         fv_err *e)
{
    return fv__updater_new(out, m, d, o, NULL, e);
}

/* c: the ranks; with o->shards their number does not change the bits. */
fv_status fv__updater_new(fv_updater **out, fv_model *m, fv_device *d, const fv_train_opt *o,
                          fv_comm *c, fv_err *e)
{
    *out = NULL;
    fv_updater *u = fv__alloc(fv_device_env(d), sizeof *u);
    if (!u) return fv_fail(e, FV_ENOMEM, "training: out of memory");
    *u = (fv_updater){.dev = d, .model = m, .opt = *o, .copies = c};
    u->tensor = fv__tensor_ranks(fv_model_params(m));
    if (u->tensor && !o->shards) u->opt.shards = 1; /* whose gradients wait for all ranks */
    fv_ctx_opt how = {.dtype = dtype_of(u),
                      .seed = (uint64_t)o->seed,
                      .record = true,
                      .train = true,
                      .recompute = o->recompute};
    fv_status st = fv_ctx_new(&u->ctx, d, how, e);
    if (!st)
        st = fv_ctx_new(&u->in, d, (fv_ctx_opt){.dtype = dtype_of(u) == FV_F64 ? FV_F64 : FV_F32},
                        e);
    if (!st && fv__sharded_wanted(o, c))
        st = fv__sharded_new(&u->sharded, fv_model_params(m), d, c, e);
    if (!st && u->opt.shards)
        st = fv__ranks_new(&u->ranks, fv_model_params(m), &u->ctx->stream, c, o->fast_sums, e);
    /* behind the ranks, who give back memory of gradients */
    if (!st) st = fv__adam_new(&u->adam, fv_model_params(m), d, o, c, e);
    if (!st && u->ranks) {
        float *loss, *sumsq;
        fv__adam_set_nccl(u->adam, fv__ranks_nccl(u->ranks));
        fv__adam_results(u->adam, &loss, &sumsq);
        fv__ranks_set_results(u->ranks, loss, sumsq);
    }
    if (st)
        fv_updater_free(u);
    else
        *out = u;
    return st;
}

void fv_updater_free(fv_updater *u)
{
    if (!u) return;
    const fv_env env = u->dev->env;
    for (int i = 0; i < SHAPES; i++) fv__graph_drop(&u->kept[i].graph);
    fv_adam_free(u->adam);
    fv__ranks_free(u->ranks);
    fv__sharded_free(u->sharded);
    fv_ctx_free(u->in);
    fv_ctx_free(u->ctx);
    fv__free(&env, u, sizeof *u);
}

void fv__updater_set_feed(fv_updater *u, const fv_feed *f) { u->feed = f; }

/* An objective may have a forward pass and loss of its own (distillation, preferences, continual
 * learning). */
void fv__train_forward(const fv_feed *f, fv_ctx *c, const fv_model *m, const fv_items *in,
                       fv_items *out)
{
    if (f && f->forward)
        f->forward(f->self, c, m, in, out);
    else if (f && f->pass)
        f->pass(f->self, c, m, in, out);
    else
        fv_model_forward(c, m, in, out);
}

void fv__updater_set_updates(fv_updater *u, int64_t updates) { u->opt.updates = updates; }

void fv__updater_set_trace(fv_updater *u, fv__trace *t)
{
    u->trace = t;
    if (u->ranks) fv__ranks_set_trace(u->ranks, t);
}

void fv__updater_spent(const fv_updater *u, double *all, double *exposed)
{
    *all = *exposed = 0;
    if (u->ranks) fv__ranks_spent(u->ranks, all, exposed);
    double seconds, bytes;
    fv_comm_spent(u->tensor, &seconds, &bytes); /* nothing is computed beside it */
    *all += seconds;
    *exposed += seconds;
}

fv_adam *fv__updater_adam(fv_updater *u) { return u->adam; }
size_t fv_updater_bytes(const fv_updater *u)
{
    return fv_ctx_bytes(u->in) + fv_ctx_bytes(u->ctx) + (u->ranks ? fv__ranks_bytes(u->ranks) : 0);
}
/* Updates that may be started before the first is read: a GPU runs ahead of the host, a CPU has
 * done each when the call returns, and several ranks meet at each. */
int64_t fv_updater_max_pending(const fv_updater *u)
{
    bool meets = u->tensor || (u->ranks && !fv__ranks_alone(u->ranks));
    return fv__device_is_host(u->dev) || meets ? 1 : FV__UPDATES;
}

/* ---- one batch ---- */

typedef struct part {
    fv_updater *u;
    fv_items in;
    bool first, last; /* of its update */
} part;

/* Floats that the family takes (pixel_values) in its own dtype; they were uploaded as f32. */
static fv_items as_model(fv_ctx *c, const fv_updater *u, const fv_items *uploaded)
{
    fv_items in = *uploaded;
    for (const fv_input *i = fv_model_family(u->model)->inputs; i->name; i++)
        for (int k = 0; i->dtype == FV_F32 && k < in.n; k++)
            if (!strcmp(in.at[k].name, i->name))
                in.at[k].value = fv_cast(c, in.at[k].value, dtype_of(u));
    return in;
}

/* Forward, backward and, after the last batch of the update, the optimiser: what is captured.  All
 * parameters have gradients afterwards, used or not, as a replay leaves them. */
static void run(fv_ctx *c, void *user)
{
    const part *p = user;
    fv_updater *u = p->u;
    fv_params *params = fv_model_params(u->model);
    fv_items in = as_model(c, u, &p->in), out = {0};
    if (p->first) fv_params_zero_grad(params);
    fv__train_forward(u->feed, c, u->model, &in, &out);
    fv_tensor *loss = fv_items_get(&out, "loss");
    if (!loss && !fv__failed(c))
        fv_raise(c, FV_EARG, "%s computes no loss from these data", fv_model_head(u->model));
    if (fv_backward(c, loss) || !loss) return;
    /* losses of leaves are added up by themselves */
    fv__adam_prepare_step(u->adam, &c->stream, loss->data, loss->dtype, !p->first && !u->ranks);
    fv__params_grad_on(params, &c->stream);
    if (p->last && u->feed && u->feed->adjust) u->feed->adjust(u->feed->self, c, params);
    if (p->last) fv__adam_run(u->adam, &c->stream, &u->opt);
}

/* One step of a multiplicative hash. */
static uint64_t mix(uint64_t key, uint64_t x) { return (key ^ x) * 0x9E3779B97F4A7C15u; }

/* A hash of everything that the captured work depends on: names, dtypes and shapes of the arrays,
 * and the position of the batch in its update. */
static uint64_t key_of(const fv_batch *b, bool first, bool last)
{
    uint64_t key = mix(mix(1, first), last);
    for (int i = 0; i < b->n; i++) {
        const fv_shape *s = &b->part[i].shape;
        for (const char *c = b->part[i].name; *c; c++) key = mix(key, (unsigned char)*c);
        key = mix(mix(key, (uint64_t)b->part[i].dtype), (uint64_t)s->n);
        for (int d = 0; d < s->n; d++) key = mix(key, (uint64_t)s->d[d]);
    }
    return key;
}

/* The graph with this key, else the least recently used slot, whose old graph fv__graph_run
 * drops. */
static fv_graph *graph_for(fv_updater *u, uint64_t key)
{
    kept *at = &u->kept[0];
    for (int i = 0; i < SHAPES; i++) {
        kept *k = &u->kept[i];
        if (k->key == key && k->used) {
            at = k;
            break;
        }
        if (k->used < at->used) at = k;
    }
    at->key = key;
    at->used = ++u->clock;
    return &at->graph;
}

static fv_status failed(const fv_ctx *c, fv_err *e)
{
    return fv_fail(e, c->err.code, "%s", c->err.text);
}

/* Uploads the batch, and on the device the factors 1 / labels and 1 / rows of the whole update: a
 * replayed graph reads them from there. */
static fv_status feed(fv_updater *u, part *p, const fv_batch *b, const fv__batch_counts *all,
                      fv_err *e)
{
    float per_label = all->labels > 0 ? (float)(1 / all->labels) : 1,
          per_row = all->rows > 0 ? (float)(1 / all->rows) : 1;
    fv_ctx_reset(u->in, 0);
    p->in = fv_batch_items(u->in, b);
    p->in.n_labels = all->labels;
    p->in.n_rows = all->rows;
    p->in.per_label = fv_floats(u->in, &per_label, FV_SHAPE(1));
    p->in.per_row = fv_floats(u->in, &per_row, FV_SHAPE(1));
    p->in.smooth = u->opt.smooth;
    return fv__failed(u->in) ? failed(u->in, e) : FV_OK;
}

/* Forward and backward of one batch, replayed where the device has captured a batch of these
 * shapes. */
static fv_status work(fv_updater *u, const fv_batch *b, const fv__batch_counts *all, int64_t number,
                      bool first, bool last, fv_err *e)
{
    part p = {.u = u, .first = first, .last = last};
    uint64_t key = key_of(b, first, last);
    fv_status st = feed(u, &p, b, all, e);
    if (st) return st;
    if (u->tensor) { /* sums over ranks pass through the host, which no graph can hold */
        fv_ctx_reset(u->ctx, (uint64_t)number);
        run(u->ctx, &p);
    } else {
        fv__graph_run(u->ctx, graph_for(u, key), key, (uint64_t)number, run, &p);
    }
    fv__params_have_grad(fv_model_params(u->model));
    return fv__failed(u->ctx) ? failed(u->ctx, e) : FV_OK;
}

/* ---- updates ---- */

fv__batch_counts fv__batch_counts_of(const fv_batch *const *batch, int64_t n)
{
    fv__batch_counts all = {0};
    for (int64_t i = 0; i < n; i++) {
        all.labels += batch[i]->labels;
        all.rows += (double)batch[i]->part[0].shape.d[0];
        all.tokens += batch[i]->tokens > 0 ? batch[i]->tokens : batch[i]->labels;
    }
    return all;
}

/* Updates come in order; how many may go unread is what the result array holds. */
static fv_status begin_step(fv_updater *u, int64_t step, fv_err *e)
{
    if (!u->done) u->first = step;
    if (step == u->first + u->done && u->done < FV__UPDATES) return FV_OK;
    return fv_fail(e, FV_ESTATE, "update %lld: %lld was expected, and at most %d may go unread",
                   (long long)step, (long long)(u->first + u->done), FV__UPDATES);
}

/* The number of a batch over the whole run seeds its dropout: a resumed run draws the same. */
fv_status fv_updater_step(fv_updater *u, int64_t step, const fv_batch *const *batch, int64_t n,
                          fv_err *e)
{
    fv__batch_counts all = fv__batch_counts_of(batch, n);
    fv_status st = begin_step(u, step, e);
    if (st) return st;
    fv__adam_upload(u->adam, &u->opt, step);
    for (int64_t i = 0; !st && i < n; i++)
        st = work(u, batch[i], &all, (step - 1) * u->opt.accumulate + i, i == 0, i == n - 1, e);
    if (!st) u->done++;
    return st;
}

/* ---- updates whose batches are cut into shards ---- */

/* A leaf without rows, where a batch has fewer than there are shards: gradients of zero. */
static void run_nothing(fv_updater *u)
{
    fv_params *params = fv_model_params(u->model);
    fv_params_zero_grad(params);
    fv__params_grad_on(params, &u->ctx->stream);
}

/* Its loss, where the device keeps it. */
static void zero_loss(fv_updater *u)
{
    float *loss, *sumsq;
    fv__adam_results(u->adam, &loss, &sumsq);
    u->dev->backend->zero(&u->ctx->stream, loss, sizeof *loss);
}

/* The same where ranks share the parameters: all read the weights in step, so this one does, too,
 * for a row of the data that counts nothing. */
static fv_status run_along(fv_updater *u, int64_t number, fv_err *e)
{
    const int32_t row = 0;
    fv__batch_counts none = {.labels = INFINITY, .rows = INFINITY}; /* losses are divided by them */
    fv_batch b = {.env = &u->dev->env};
    fv_status st = u->feed->make(u->feed->self, &b, &row, 1, (fv_data_rng){.epoch = -1}, e);
    if (!st) st = work(u, &b, &none, number, !fv__ranks_accumulates(u->ranks), false, e);
    fv_batch_free(&b);
    return st;
}

/* One leaf: its gradients into the parameters', its loss into *loss. */
static fv_status run_leaf(fv_updater *u, const fv_batch *b, const fv__batch_counts *all,
                          int64_t number, float *loss, fv_err *e)
{
    bool first = !fv__ranks_accumulates(u->ranks);
    *loss = 0;
    if (!b->n && u->sharded) return run_along(u, number, e);
    if (!b->n && first) run_nothing(u);
    if (!b->n && fv__ranks_alone(u->ranks)) zero_loss(u);
    if (!b->n) return FV_OK;
    fv_status st = work(u, b, all, number, first, false, e);
    if (!st && !fv__ranks_alone(u->ranks)) *loss = fv__adam_loss(u->adam);
    return st;
}

/* The norm of a model that ranks share, in place of that of this rank's part. */
static fv_status sum_parts(fv_updater *u, float *sumsq, bool *stop, fv_err *e)
{
    int64_t n;
    fv_params *p = fv_model_params(u->model);
    const float *grad = fv_params_grad(p, &n);
    fv__shares shares = fv__shares_of(n, u->copies);
    fv__tensor_sum of = {p, &shares, u->copies, &u->ctx->stream};
    float *loss, *on_device;
    if (!u->tensor) return FV_OK;
    fv_status st = fv__tensor_squares(&of, grad, sumsq, stop, e);
    fv__adam_results(u->adam, &loss, &on_device);
    u->dev->backend->upload(&u->ctx->stream, on_device, sumsq, sizeof *sumsq);
    return st;
}

/* The number of a leaf over the whole run seeds its dropout: it depends on neither the rank that
 * computes it nor on their number. */
fv_status fv__updater_step_shards(fv_updater *u, int64_t step, const fv__leaves *l,
                                  fv__batch_counts *all, bool *stop, fv_err *e)
{
    float loss, sumsq;
    int64_t before = (step - 1) * u->opt.accumulate * u->opt.shards;
    fv_status st = begin_step(u, step, e);
    if (!st) st = fv__ranks_count(u->ranks, all, l->leaf, l->all, l->from, l->n, stop, e);
    if (st) return st;
    fv__adam_upload(u->adam, &u->opt, step);
    fv__ranks_begin(u->ranks, step, l->all, l->from, l->n);
    for (int64_t i = 0; !st && i < l->n; i++) {
        double from = fv__trace_now(u->trace);
        st = fv__ranks_last(u->ranks, u->ctx, e);
        if (!st) st = run_leaf(u, l->leaf[i], all, before + l->from + i, &loss, e);
        u->ctx->on_final = NULL;
        if (!st) st = fv__ranks_add(u->ranks, &u->ctx->stream, loss, e);
        fv__trace_add(u->trace, FV__TRACK_MAIN, "forward and backward", step, from);
    }
    if (!st) st = fv__ranks_reduce(u->ranks, &u->ctx->stream, &loss, &sumsq, e);
    double from = fv__trace_now(u->trace);
    if (!st) st = sum_parts(u, &sumsq, stop, e);
    if (!st && fv__ranks_alone(u->ranks))
        st = fv__adam_run_alone(u->adam, &u->ctx->stream, &u->opt, e);
    else if (!st)
        st = fv__adam_run_shared(u->adam, &u->ctx->stream, &u->opt, loss, sumsq, e);
    fv__trace_add(u->trace, FV__TRACK_MAIN, "optimiser and gather", step, from);
    if (!st) u->done++;
    return st;
}

/* Updates behind one that was not finite have changed nothing, so only those before it count. */
fv_status fv_updater_read(fv_updater *u, fv_updated *out, int64_t *n, fv_err *e)
{
    float pair[FV__UPDATES][2];
    *n = 0;
    if (fv_ctx_status(u->ctx)) return failed(u->ctx, e);
    fv_status st = fv__adam_read(u->adam, u->first, u->done, pair, e);
    for (; *n < u->done && isfinite(pair[*n][0]) && isfinite(pair[*n][1]); ++*n)
        out[*n] = (fv_updated){.loss = (double)pair[*n][0], .norm = (double)pair[*n][1]};
    u->done = 0;
    return st;
}

/* Memory is taken as in an update; gradients are thrown away, parameters not touched. */
fv_status fv__updater_dry_run(fv_updater *u, const fv_batch *b, fv_err *e)
{
    fv__batch_counts all = fv__batch_counts_of(&b, 1);
    fv_status st = work(u, b, &all, 0, true, false, e);
    if (!st && fv_ctx_status(u->ctx)) st = failed(u->ctx, e);
    fv_params_zero_grad(fv_model_params(u->model));
    return st;
}
