/* learn.c - what is done against forgetting: penalties, projections, scores of the model as it was.
 *
 *     EWC (Kirkpatrick et al. 2017)   loss + strength / 2 sum_k F_k (x - x_k)^2, F_k the diagonal
 *                                     of the Fisher information after task k: the mean over its
 *                                     examples of g^2, g the gradient of the log-probability of a
 *                                     label drawn from the model
 *     online (Schwarz et al. 2018)    F = gamma F + F_k, and x_k the last alone
 *     SI (Zenke et al. 2017)          the same with w / (d^2 + xi) for F / 2: w = sum of -g dx
 *                                     along the way, d how far the parameter went in the task
 *     LwF (Li and Hoiem 2016)         loss + strength T^2 KL(old scores / T, scores / T) on the
 *                                     new examples, over the labels of the tasks before
 *     A-GEM (Chaudhry et al. 2019)    g - min(0, g r) / (r r) r, r the gradient on remembered ones
 *
 * The gradient of every quadratic penalty is strength (A x - B), A = sum F_k, B = sum F_k x_k: two
 * flat arrays however many tasks there were.  They, and all else, live in device memory and are
 * changed by ops, so any backend can, and a captured update reads them where they are. */
#include <math.h>

#include "fovea/author/backend.h"
#include "fovea/author/ops.h"
#include "fovea/author/params.h"
#include "model/part.h"
#include "train/continual/continual.h"

/* ---- a pass ---- */

static bool ours(const char *name)
{
    static const char *const names[] = {"labels",  "logit_bias", "old_bias", "old_share",
                                        "example", "remembered", NULL};
    int i = 0;
    while (names[i] && strcmp(names[i], name)) i++;
    return names[i];
}

/* Rows [from, to) of every array. */
static fv_items rows_of(fv_ctx *c, const fv_items *in, int64_t from, int64_t to, int64_t all)
{
    fv_items out = *in;
    for (int i = 0; i < out.n && to - from < all; i++)
        if (fv_dim(out.at[i].value, 0) == all)
            out.at[i].value = fv_slice(c, out.at[i].value, 0, from, to);
    return out;
}

/* The family's scores under the scenario's mask, and the sum of their cross entropy. */
static fv_tensor *scores(fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out,
                         fv_tensor **raw)
{
    fv_items plain = *in;
    plain.n = 0;
    for (int i = 0; i < in->n; i++)
        if (!ours(in->at[i].name)) plain.at[plain.n++] = in->at[i];
    fv_model_forward(c, m, &plain, out);
    *raw = fv_items_get(out, "logits");
    fv_tensor *masked = fv_add(c, *raw, fv_items_get(in, "logit_bias"));
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->at[i].name, "logits")) out->at[i].value = masked;
    return fv_sum_all(c, fv_cross_entropy(c, masked, fv_items_get(in, "labels"),
                                          (fv_ce_opt){.smooth = in->smooth, .ignore = -100}));
}

/* T^2 sum over rows of KL(softmax(old / T), softmax(new / T)), less what does not depend on the
 * parameters. */
static fv_tensor *lwf(const fv__continual *s, fv_ctx *c, fv_tensor *raw, const fv_items *in)
{
    float by = 1 / s->opt.temperature;
    fv_tensor *bias = fv_items_get(in, "old_bias"), *table = fv__step_memory(c, sizeof *table);
    if (!table) return NULL;
    *table = s->old;
    fv_tensor *old = fv_gather(c, table, fv_items_get(in, "example"), -1),
              *p = fv_softmax(c, fv_scale(c, fv_add(c, old, bias), by)),
              *q = fv_log_softmax(c, fv_scale(c, fv_add(c, raw, bias), by)),
              *rows = fv_sum(c, fv_mul(c, p, q), 1);
    rows = fv_mul(c, rows, fv_items_get(in, "old_share"));
    return fv_scale(c, fv_sum_all(c, rows),
                    -s->opt.strength * s->opt.temperature * s->opt.temperature);
}

/* The gradient on the remembered rows, into FV__FLAT_REFERENCE; the parameters' own is empty
 * again. */
static void reference_gradient(fv__continual *s, fv_ctx *c, const fv_model *m, const fv_items *in,
                               int64_t n, int64_t all)
{
    fv_params *p = fv_model_params(m);
    fv_items out = {0}, rows = rows_of(c, in, n, all, all);
    fv_tensor *raw, *loss = fv_scale(c, scores(c, m, &rows, &out, &raw), 1 / (float)(all - n));
    if (!loss || fv_backward(c, loss)) return;
    fv_tensor g = fv__flat(fv__params_grad_on(p, &c->stream), s->n_flat);
    fv__flat_set(c, &s->flat[FV__FLAT_REFERENCE], &g);
    fv_params_zero_grad(p);
}

void fv__continual_forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                           fv_items *out)
{
    fv__continual *s = (fv__continual *)(uintptr_t)self; /* device memory of its own changes */
    const fv_tensor *remembered = fv_items_get(in, "remembered");
    int64_t all = fv_dim(fv_items_get(in, "labels"), 0),
            n = remembered ? all - (fv_len(remembered) - 1) : all;
    fv_tensor *raw;
    if (n < all) reference_gradient(s, c, m, in, n, all);
    fv_items own = rows_of(c, in, 0, n, all);
    fv_tensor *sum = scores(c, m, &own, out, &raw);
    if (s->old.data && c->record) sum = fv_add(c, sum, lwf(s, c, raw, &own));
    fv_items_put(out, "loss", fv__per_label(c, sum, in));
}

/* ---- gradients ---- */

/* w += -g dx of the update before; g and x are kept for the next. */
static void follow_path(fv__continual *s, fv_ctx *c, fv_tensor *x, fv_tensor *g)
{
    fv_tensor *f = s->flat, *dx = fv_sub(c, x, &f[FV__FLAT_BEFORE]);
    fv__flat_set(c, &f[FV__FLAT_PATH],
                 fv_sub(c, &f[FV__FLAT_PATH], fv_mul(c, &f[FV__FLAT_GRADIENT], dx)));
    fv__flat_set(c, &f[FV__FLAT_GRADIENT], g);
    fv__flat_set(c, &f[FV__FLAT_BEFORE], x);
}

void fv__continual_adjust(void *self, fv_ctx *c, fv_params *p)
{
    fv__continual *s = self;
    int64_t n;
    fv_tensor x = fv__flat(fv_params_data(p, &n), s->n_flat),
              g = fv__flat(fv__params_grad_on(p, &c->stream), s->n_flat), *f = s->flat;
    bool record = c->record;
    c->record = false;
    if (s->opt.method == FV__METHOD_SI) follow_path(s, c, &x, &g);
    if (fv__continual_quadratic(s)) {
        fv_tensor *pull = fv_sub(c, fv_mul(c, &f[FV__FLAT_CURVATURE], &x), &f[FV__FLAT_PULL]);
        fv__flat_set(c, &g, fv_add(c, &g, fv_scale(c, pull, s->opt.strength)));
    }
    if (s->opt.method == FV__METHOD_AGEM) {
        fv_tensor *r = &f[FV__FLAT_REFERENCE],
                  *against = fv_clamp(c, fv_sum_all(c, fv_mul(c, &g, r)), -1e30f, 0),
                  *length = fv_affine(c, fv_sum_all(c, fv_square(c, r)), 1, 1e-30f);
        fv__flat_set(c, &g, fv_sub(c, &g, fv_mul(c, r, fv_div(c, against, length))));
    }
    c->record = record;
}

/* ---- the end of a task ---- */

/* A label drawn from softmax(row). */
static int32_t draw(const float *row, int32_t n, const uint32_t w[4])
{
    double most = -INFINITY, sum = 0, u = ((double)w[0] + 0.5) * 0x1p-32;
    for (int32_t i = 0; i < n; i++)
        if ((double)row[i] > most) most = (double)row[i];
    for (int32_t i = 0; i < n; i++) sum += exp((double)row[i] - most);
    u *= sum;
    for (int32_t i = 0; i < n; i++)
        if ((u -= exp((double)row[i] - most)) < 0) return i;
    return n - 1;
}

/* sum += g^2 of one example of task t. */
static fv_status add_fisher(fv__continual *s, fv_ctx *c, const fv_model *m, fv_batch *b, int t,
                            int64_t i, fv_tensor *sum, float *host, fv_err *e)
{
    fv_params *p = fv_model_params(m);
    const fv__task *k = &s->task[t];
    fv__example of = k->train[i * k->n_train / s->opt.fisher_samples];
    fv_items out = {0};
    fv_tensor *raw;
    uint32_t w[4];
    fv_ctx_reset(c, 0);
    fv_batch_clear(b);
    fv_status st = fv__continual_make(s, 0, b, &of, 1, t + 1, (fv_data_rng){.epoch = -1}, e);
    if (st) return st;
    fv_items in = fv_batch_items(c, b);
    scores(c, m, &in, &out, &raw);
    fv_tensor *masked = fv_items_get(&out, "logits");
    if (fv_read(c, masked, host, s->n_labels)) return fv__continual_failed(c, e);
    fv_philox(w, s->seed, 0x66697368, (uint64_t)t, (uint64_t)i);
    int32_t label = draw(host, s->n_labels, w);
    fv_tensor *loss = fv_sum_all(c, fv_cross_entropy(c, masked, fv_ints(c, &label, FV_SHAPE(1)),
                                                     (fv_ce_opt){.ignore = -100}));
    fv_params_zero_grad(p);
    if (!loss || fv_backward(c, loss)) return fv__continual_failed(c, e);
    fv_tensor g = fv__flat(fv__params_grad_on(p, &c->stream), s->n_flat);
    c->record = false;
    fv__flat_set(c, sum, fv_add(c, sum, fv_square(c, &g)));
    c->record = true;
    return fv_ctx_status(c) ? fv__continual_failed(c, e) : FV_OK;
}

/* A = gamma A + F, B likewise with F x; or of the online form B = A x. */
static void add_curvature(fv__continual *s, fv_ctx *c, fv_tensor *f, fv_tensor *x, float gamma,
                          bool last_alone)
{
    fv_tensor *a = &s->flat[FV__FLAT_CURVATURE], *b = &s->flat[FV__FLAT_PULL];
    fv_tensor *fx = fv_mul(c, f, x);
    fv__flat_set(c, a, fv_add(c, fv_scale(c, a, gamma), f));
    fv__flat_set(c, b, last_alone ? fv_mul(c, a, x) : fv_add(c, b, fx));
}

static fv_status consolidate_ewc(fv__continual *s, const fv_model *m, int t, fv_err *e)
{
    fv_ctx *c = NULL;
    fv_batch b = {.env = s->env};
    int64_t n;
    size_t bytes = (size_t)s->n_flat * sizeof(float), row = (size_t)s->n_labels * sizeof(float);
    float *host = fv__alloc(s->env, row);
    fv_tensor sum = fv__flat(s->dev->backend->alloc(s->dev, bytes), s->n_flat),
              x = fv__flat(fv_params_data(fv_model_params(m), &n), s->n_flat);
    fv_status st = host && sum.data ? fv_ctx_new(&c, s->dev, (fv_ctx_opt){.record = true}, e)
                                    : fv_fail(e, FV_ENOMEM, "continual: out of memory");
    if (!st) s->dev->backend->zero(fv_ctx_stream(c), sum.data, bytes);
    for (int64_t i = 0; !st && i < s->opt.fisher_samples; i++)
        st = add_fisher(s, c, m, &b, t, i, &sum, host, e);
    if (!st) {
        bool online = s->opt.method == FV__METHOD_ONLINE_EWC;
        fv_ctx_reset(c, 0);
        c->record = false;
        add_curvature(s, c, fv_scale(c, &sum, 1 / (float)s->opt.fisher_samples), &x,
                      online ? s->opt.gamma : 1, online);
        if (fv_ctx_status(c)) st = fv__continual_failed(c, e);
    }
    fv_params_zero_grad(fv_model_params(m));
    fv_batch_free(&b);
    fv_ctx_free(c);
    if (sum.data) s->dev->backend->release(s->dev, sum.data, bytes);
    fv__free(s->env, host, row);
    return st;
}

/* Omega = max(w, 0) / ((x - start)^2 + xi), twice of which is the penalty's curvature. */
static fv_status consolidate_si(fv__continual *s, const fv_model *m, fv_err *e)
{
    fv_ctx *c = NULL;
    int64_t n;
    fv_tensor x = fv__flat(fv_params_data(fv_model_params(m), &n), s->n_flat), *f = s->flat;
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    if (st) return st;
    fv_tensor *zero = fv_scale(c, &x, 0);
    follow_path(s, c, &x, zero);
    fv_tensor *far = fv_square(c, fv_sub(c, &x, &f[FV__FLAT_START])),
              *omega = fv_div(c, fv_clamp(c, &f[FV__FLAT_PATH], 0, 1e30f),
                              fv_affine(c, far, 1, s->opt.xi));
    add_curvature(s, c, fv_scale(c, omega, 2), &x, 1, true);
    fv__flat_set(c, &f[FV__FLAT_PATH], zero);
    fv__flat_set(c, &f[FV__FLAT_START], &x);
    st = fv_ctx_status(c) ? fv__continual_failed(c, e) : FV_OK;
    fv_ctx_free(c);
    return st;
}

enum { AT_ONCE = 64 };

/* Scores of the model as it is for all examples of the next task. */
static fv_status keep_scores(fv__continual *s, const fv_model *m, int t, fv_err *e)
{
    fv_ctx *c = NULL;
    fv_batch b = {.env = s->env};
    int64_t L = s->n_labels;
    size_t row_bytes = (size_t)(AT_ONCE * L) * sizeof(float);
    float *host = fv__alloc(s->env, s->old_bytes), *row = fv__alloc(s->env, row_bytes);
    fv_status st = host && row ? fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e)
                               : fv_fail(e, FV_ENOMEM, "continual: out of memory");
    const fv__task *k = &s->task[t];
    if (host) memset(host, 0, s->old_bytes);
    for (int64_t i = 0; !st && i < k->n_train; i += AT_ONCE) {
        int64_t n = k->n_train - i < AT_ONCE ? k->n_train - i : AT_ONCE;
        fv_items out = {0};
        fv_tensor *raw = NULL;
        fv_ctx_reset(c, 0);
        fv_batch_clear(&b);
        st = fv__continual_make(s, 0, &b, k->train + i, n, t + 1, (fv_data_rng){.epoch = -1}, e);
        fv_items in = {0};
        if (!st) in = fv_batch_items(c, &b);
        if (!st) scores(c, m, &in, &out, &raw);
        if (!st && fv_read(c, raw, row, n * L)) st = fv__continual_failed(c, e);
        for (int64_t r = 0; !st && r < n; r++)
            memcpy(host + k->train[i + r].row * L, row + r * L, (size_t)L * sizeof *row);
    }
    if (!st && fv_write(c, &s->old, host, s->n_rows[0] * L)) st = fv__continual_failed(c, e);
    fv_batch_free(&b);
    fv_ctx_free(c);
    fv__free(s->env, host, s->old_bytes);
    fv__free(s->env, row, row_bytes);
    return st;
}

/* The share of right answers to task t, when `seen` tasks are known. */
static fv_status accuracy_of(fv__continual *s, const fv_model *m, int t, int seen, float *out,
                             fv_err *e)
{
    fv_ctx *c = NULL;
    fv_batch b = {.env = s->env};
    double hits = 0, of = 0;
    const fv__task *k = &s->task[t];
    const fv_feed *f = &s->inner[1];
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    for (int64_t i = 0; !st && i < k->n_valid; i += AT_ONCE) {
        int64_t n = k->n_valid - i < AT_ONCE ? k->n_valid - i : AT_ONCE;
        fv_items res = {0};
        fv_tensor *raw;
        fv_ctx_reset(c, 0);
        fv_batch_clear(&b);
        st = fv__continual_make(s, 1, &b, k->valid + i, n, seen, (fv_data_rng){.epoch = -1}, e);
        fv_items in = {0};
        if (!st) in = fv_batch_items(c, &b);
        if (!st) scores(c, m, &in, &res, &raw);
        if (!st && (fv_ctx_status(c) || f->count_correct(f->self, c, &b, &res, &hits, &of)))
            st = fv__continual_failed(c, e);
    }
    *out = of > 0 ? (float)(hits / of) : NAN;
    fv_batch_free(&b);
    fv_ctx_free(c);
    return st;
}

/* Of all tasks, each with its own adapter where it has one; next: the task that is learnt then. */
static fv_status measure(fv__continual *s, const fv_model *m, int after, int next, fv_err *e)
{
    fv_status st = FV_OK;
    for (int t = 0; !st && t < s->n_tasks; t++) {
        int seen = t + 1 > after ? t + 1 : after; /* a task is always asked among its own labels */
        st = fv__own_use(s, m, t, e);
        if (!st) st = accuracy_of(s, m, t, seen, &s->accuracy[after][t], e);
    }
    return st ? st : fv__own_use(s, m, next, e);
}

fv_status fv__continual_prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    fv__continual *s = self;
    s->dev = d;
    if (fv_model_dtype(m) != FV_F32)
        return fv_fail(e, FV_EMISSING, "[continual]: only with train.dtype = f32");
    fv_status st = fv__continual_reserve(s, m, e);
    if (!st) st = fv__own_reserve(s, m, e);
    return st ? st : measure(s, m, 0, 0, e);
}

fv_status fv__continual_end_epoch(void *self, const fv_model *m, int64_t epoch, fv_err *e)
{
    fv__continual *s = self;
    fv_status st = FV_OK;
    if ((epoch + 1) % s->opt.epochs) return FV_OK;
    int t = fv__continual_task_of(s, epoch);
    bool last = t == s->n_tasks - 1;
    if (s->opt.method == FV__METHOD_SI)
        st = consolidate_si(s, m, e);
    else if (fv__continual_quadratic(s) && !last)
        st = consolidate_ewc(s, m, t, e);
    if (!st && s->old.data && !last) st = keep_scores(s, m, t + 1, e);
    if (!st) st = fv__own_keep(s, m, t, e);
    s->done = t + 1;
    return st ? st : measure(s, m, t + 1, last ? t : t + 1, e);
}
