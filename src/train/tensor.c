/* tensor.c - see tensor.h. */
#include "train/tensor.h"

#include "core/params.h"
#include "fovea/author/comm.h"
#include "store/checkpoint.h"
#include "train/options.h"
#include "train/sharded.h"

typedef struct options {
    int64_t tensor_parallel;
} options;

static const fv_field fields[] = {
    FV_INT(options, tensor_parallel, 1, 1, 64,
           "ranks that share the model: attention heads and feed-forward parts are divided among "
           "them",
           FV_ON_RESUME),
    {0},
};

const fv__own_keys fv__own_tensor = {"train", fields, sizeof(options)};

fv_status fv__tensor_open(fv__tensor *out, const fv_train_opt *o, fv_comm *c, fv_err *e)
{
    options own;
    int ranks = fv_comm_size(c), rank = fv_comm_rank(c);
    fv__own_get(&own, &fv__own_tensor, o->own);
    int n = (int)own.tensor_parallel;
    *out = (fv__tensor){0};
    if (n == 1) return FV_OK;
    if (ranks % n)
        return fv_fail(e, FV_EUSAGE,
                       "train.tensor_parallel = %d: %d rank%s cannot be put into groups of %d", n,
                       ranks, ranks == 1 ? "" : "s", n);
    out->model = c;
    if (n == ranks) return FV_OK;
    fv_status st = fv_comm_split(&out->model, c, rank / n, e);
    out->own_model = !st;
    if (!st) st = fv_comm_split(&out->copies, c, rank % n, e);
    return st;
}

void fv__tensor_close(fv__tensor *t)
{
    fv_comm_close(t->copies);
    if (t->own_model) fv_comm_close(t->model);
    *t = (fv__tensor){0};
}

fv_comm *fv__tensor_ranks(const fv_params *p) { return p->ranks; }

uint64_t fv__tensor_hash(const fv_params *p)
{
    bool host = fv__device_is_host(p->dev);
    uint64_t hash = fv__ckpt_hash(&p->elements, sizeof p->elements);
    for (size_t i = 0; host && i < p->n; i++) {
        const fv_tensor *t = &p->list[i]->tensor;
        uint64_t of = p->list[i]->ranks
                          ? 0
                          : fv__ckpt_hash(t->data, (size_t)fv_len(t) * fv_dtype_size(t->dtype));
        hash = hash * 0x9E3779B97F4A7C15u + of;
    }
    return hash;
}

fv_comm *fv__data_ranks(const fv_train_job *j)
{
    return fv_model_params(j->model)->ranks ? j->copies : j->comm;
}

fv_status fv__check_tensor(const fv_train_job *j, fv_err *e)
{
    if (!fv_model_params(j->model)->ranks) return FV_OK;
    if (fv__sharded_wanted(&j->opt, j->comm))
        return fv_fail(e, FV_EUSAGE,
                       "train.tensor_parallel and train.shard_parameters both divide the weights; "
                       "only one of them can");
    if (j->train->adjust || j->train->end_epoch)
        return fv_fail(e, FV_EUSAGE,
                       "train.tensor_parallel: this objective looks at all parameters itself");
    return FV_OK;
}

/* ---- the norm ---- */

/* Parameter t, as far as this rank owns it in bucket b: [*from, *from + *n) of the block. */
static bool owned(const fv__tensor_sum *x, const fv_entry *t, int64_t b, int64_t *from, int64_t *n)
{
    int64_t lo, hi, at = t->offset, end = at + fv_len(&t->tensor);
    bool counts = !t->frozen && (t->ranks || !fv_comm_rank(x->params->ranks));
    fv__share(x->shares, b, x->shares->rank, &lo, &hi);
    *from = lo > at ? lo : at;
    *n = (hi < end ? hi : end) - *from;
    return counts && *n > 0;
}

/* One sum for each piece, made by the device; returns how many, writes where `sums` is not NULL. */
static int64_t sum_pieces(const fv__tensor_sum *x, const float *grad, float *sums)
{
    const fv_params *p = x->params;
    int64_t pieces = 0, from, n;
    for (size_t i = 0; i < p->n; i++)
        for (int64_t b = 0; b < x->shares->buckets; b++) {
            if (!owned(x, p->list[i], b, &from, &n)) continue;
            if (sums) p->dev->k[FV_F32]->sumsq(x->stream, sums + pieces, grad + from, n);
            pieces++;
        }
    return pieces;
}

/* This rank's squares. */
static fv_status own_squares(const fv__tensor_sum *x, const float *grad, double *out, fv_err *e)
{
    fv_device *d = x->params->dev;
    const fv_backend *b = d->backend;
    int64_t n = sum_pieces(x, NULL, NULL);
    size_t bytes = (size_t)(n + 1) * sizeof(float);
    float *sums = b->alloc(d, bytes), *host = fv__alloc_raw(&d->env, bytes);
    fv_status st = sums && host ? FV_OK : fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    *out = 0;
    if (!st) {
        sum_pieces(x, grad, sums);
        b->download(x->stream, host, sums, (size_t)n * sizeof *host);
        for (int64_t i = 0; i < n; i++) *out += (double)host[i];
    }
    if (sums) b->release(d, sums, bytes);
    fv__free(&d->env, host, bytes);
    return st;
}

/* of[0..1] becomes the sum over the ranks of c, in their order. */
static fv_status sum_ranks(fv_comm *c, const fv_env *env, double of[2], fv_err *e)
{
    int ranks = fv_comm_size(c);
    size_t bytes = (size_t)ranks * (2 * sizeof(double) + sizeof(fv_comm_part));
    if (ranks == 1) return FV_OK;
    double *all = fv__alloc(env, bytes);
    if (!all) return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    fv_comm_part *part = (fv_comm_part *)(void *)(all + 2 * ranks);
    for (int r = 0; r < ranks; r++) part[r] = (fv_comm_part){r, all + 2 * r, 2 * sizeof *all};
    memcpy(all + 2 * fv_comm_rank(c), of, 2 * sizeof *of);
    fv_status st = fv_comm_all_gather(c, part, e);
    of[0] = of[1] = 0;
    for (int r = 0; r < ranks; r++) of[0] += all[2 * r], of[1] += all[2 * r + 1];
    fv__free(env, all, bytes);
    return st;
}

fv_status fv__tensor_squares(const fv__tensor_sum *x, const float *grad, float *sumsq, bool *stop,
                             fv_err *e)
{
    const fv_env *env = &x->params->dev->env;
    double of[2] = {0, *stop};
    fv_status st = own_squares(x, grad, &of[0], e);
    if (!st) st = sum_ranks(x->copies, env, of, e);
    if (!st) st = sum_ranks(x->params->ranks, env, of, e);
    *sumsq = (float)of[0];
    *stop = of[1] > 0;
    return st;
}
