/* evaluate.c - see evaluate.h.
 *
 * What a batch comes to is kept for each batch, gathered from the ranks that computed it, and
 * added up in the order of the batches: the sums of one rank, whatever their number. */
#include "train/evaluate.h"

#include <math.h>

#include "core/core.h"
#include "train/sharded.h"
#include "train/tensor.h"
#include "train/update.h"
#include "fovea/author/comm.h"

static fv_status context_failed(fv_ctx *c, fv_err *e)
{
    const fv_err *why = fv_ctx_err(c);
    return fv_fail(e, why->code, "%s", why->text);
}

typedef struct sums {
    double loss, labels, hits, of;
} sums;

/* What one batch comes to: its mean loss weighs as much as it has labels. */
static fv_status evaluate_batch(const fv_train_job *j, const fv_feed *feed, fv_ctx *c,
                                const fv_batch *b, sums *to, fv_err *e)
{
    float value = 0;
    fv_items in = fv_batch_items(c, b), out = {0};
    fv__train_forward(feed, c, j->model, &in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    if (!y && !fv_ctx_status(c))
        return fv_fail(e, FV_EARG, "%s computes no loss from these data", fv_model_head(j->model));
    if (fv_read(c, y, &value, 1)) return context_failed(c, e);
    if (feed->count_correct && feed->count_correct(feed->self, c, b, &out, &to->hits, &to->of))
        return context_failed(c, e);
    to->loss = (double)value * b->labels;
    to->labels = b->labels;
    return FV_OK;
}

/* Batches [from, to) of the plan; at least so many, for ranks that read shared parameters in
 * step. */
static fv_status evaluate_batches(const fv_train_job *j, const fv_feed *feed, const fv_plan *plan,
                                  sums *of, int64_t from, int64_t to, int64_t least, fv_err *e)
{
    const fv_data_rng rng = {.epoch = -1};
    fv_dtype dtype = fv_params_at(fv_model_params(j->model), 0)->dtype;
    fv_ctx *c = NULL;
    fv_batch b = {.env = fv_device_env(j->device)};
    fv_status st = fv_ctx_new(&c, j->device, (fv_ctx_opt){.dtype = dtype}, e);
    for (int64_t i = from; !st && i < to; i++) {
        int64_t n;
        const int32_t *rows = fv_plan_batch(plan, i, &n);
        fv_ctx_reset(c, (uint64_t)i);
        fv_batch_clear(&b);
        st = feed->make(feed->self, &b, rows, n, rng, e);
        if (!st) st = evaluate_batch(j, feed, c, &b, &of[i], e);
    }
    for (int64_t i = to; !st && i < from + least; i++) {
        int64_t n;
        sums none;
        const int32_t *rows = fv_plan_batch(plan, 0, &n);
        fv_ctx_reset(c, 0);
        fv_batch_clear(&b);
        st = feed->make(feed->self, &b, rows, n, rng, e);
        if (!st) st = evaluate_batch(j, feed, c, &b, &none, e);
    }
    fv_batch_free(&b);
    fv_ctx_free(c);
    return st;
}

/* Each rank evaluates a range of the batches; a feed whose batches follow one another is
 * evaluated by each rank as a whole. */
static fv_status share_batches(const fv_train_job *j, const fv_feed *feed, const fv_plan *plan,
                               sums *of, fv_err *e)
{
    int64_t n = fv_plan_count(plan);
    fv_comm *c = fv__data_ranks(j);
    int rank = fv_comm_rank(c), ranks = fv_comm_size(c);
    if (ranks == 1 || feed->ordered) return evaluate_batches(j, feed, plan, of, 0, n, 0, e);
    fv_comm_part part[1024];
    if (ranks > 1024) return fv_fail(e, FV_EARG, "evaluation: more than 1024 ranks");
    for (int r = 0; r < ranks; r++) {
        int64_t from = n * r / ranks, to = n * (r + 1) / ranks;
        part[r] = (fv_comm_part){r, of + from, (size_t)(to - from) * sizeof *of};
    }
    int64_t least = fv__sharded_of(fv_model_params(j->model)) ? (n + ranks - 1) / ranks : 0;
    fv_status st = evaluate_batches(j, feed, plan, of, n * rank / ranks, n * (rank + 1) / ranks,
                                    least, e);
    st = fv_comm_agree(c, st, e);
    return st ? st : fv_comm_all_gather(c, part, e);
}

/* Ranks share the batches; sums are added in the order of the batches, so the loss has the same
 * bits for any number of them. */
fv_status fv__evaluate(const fv_train_job *j, const fv_feed *feed, double *loss, double *metric,
                       fv_err *e)
{
    const fv_env *env = fv_device_env(j->device);
    fv_plan_opt how = {.tokens = j->opt.batch_tokens,
                       .rows = j->opt.batch_rows,
                       .rng = {.epoch = -1}};
    fv_plan *plan = NULL;
    sums all = {0}, *of = NULL;
    fv_status st = fv_plan_make(&plan, env, feed, how, e);
    int64_t n = st ? 0 : fv_plan_count(plan);
    size_t bytes = (size_t)n * sizeof *of;
    if (!st && !(of = fv__alloc(env, bytes)))
        st = fv_fail(e, FV_ENOMEM, "evaluation: out of memory");
    if (!st) st = share_batches(j, feed, plan, of, e);
    for (int64_t i = 0; !st && i < n; i++) {
        all.loss += of[i].loss;
        all.labels += of[i].labels;
        all.hits += of[i].hits;
        all.of += of[i].of;
    }
    *loss = all.labels > 0 ? all.loss / all.labels : NAN;
    *metric = all.of > 0 ? all.hits / all.of : NAN;
    fv__free(env, of, bytes);
    fv_plan_free(plan);
    return st;
}
