/* batch.c - which pairs go together, and the tensors they become.
 *
 * Pairs are shuffled, then sorted by length within windows of some batches, cut, and the batches are shuffled again:
 * little padding, yet neighbours change from epoch to epoch. */
#include <stdlib.h>

#include "base/base.h"
#include "fovea/data.h"
#include "fovea/op.h"

#define WINDOW 64 /* batches a window is worth */

struct fv_plan {
    const fv_env *env;
    int32_t *row;  /* pair numbers, batch after batch */
    int64_t *from; /* where each batch begins, and one more */
    size_t row_bytes, from_bytes;
    int64_t n;
};

/* Fisher and Yates with numbers of a counter: stream 0 for pairs, 1 for batches. */
static int64_t below(uint64_t seed, uint64_t stream, int64_t epoch, int64_t i, int64_t n)
{
    uint32_t w[4];
    fv_philox(w, seed, stream, (uint64_t)epoch, (uint64_t)i);
    uint64_t r = (uint64_t)w[0] << 32 | w[1];
    return (int64_t)(r % (uint64_t)n);
}

typedef struct sized {
    int32_t row, source, target;
} sized;

static int by_length(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    if (x->source != y->source) return x->source < y->source ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

/* Batches of `all`, in order: a new one starts where one more pair would make either side too large. */
static int64_t cut(fv_plan *p, const sized *all, int64_t n, int64_t tokens)
{
    int64_t longest = 0, rows = 0, batches = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = all[i].source > all[i].target ? all[i].source : all[i].target, most = len > longest ? len : longest;
        if (rows && most * (rows + 1) > tokens) {
            p->from[++batches] = i;
            rows = 0;
            most = len;
        }
        longest = most;
        rows++;
        p->row[i] = all[i].row;
    }
    p->from[++batches] = n;
    return batches;
}

static void shuffle_batches(fv_plan *p, int32_t *row, int64_t *from, uint64_t seed, int64_t epoch)
{
    for (int64_t i = 0; i < p->n; i++) row[i] = (int32_t)i;
    for (int64_t i = p->n - 1; i > 0; i--) {
        int64_t j = below(seed, 1, epoch, i, i + 1);
        int32_t t = row[i];
        row[i] = row[j];
        row[j] = t;
    }
    int64_t at = 0;
    int32_t *pairs = row + p->n;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t b = row[i], len = p->from[b + 1] - p->from[b];
        from[i] = at;
        memcpy(pairs + at, p->row + p->from[b], (size_t)len * sizeof *pairs);
        at += len;
    }
    from[p->n] = at;
    memcpy(p->from, from, (size_t)(p->n + 1) * sizeof *from);
    memcpy(p->row, pairs, (size_t)at * sizeof *pairs);
}

static void order(sized *all, const fv_pairs *pairs, int64_t n, int64_t tokens, uint64_t seed, int64_t epoch)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t s, t;
        fv_pairs_source(pairs, i, &s);
        fv_pairs_target(pairs, i, &t);
        all[i] = (sized){(int32_t)i, (int32_t)s, (int32_t)t};
        sum += s > t ? s : t;
    }
    int64_t window = n;
    if (epoch >= 0) {
        for (int64_t i = n - 1; i > 0; i--) {
            int64_t j = below(seed, 0, epoch, i, i + 1);
            sized t = all[i];
            all[i] = all[j];
            all[j] = t;
        }
        window = WINDOW * tokens / (sum / n + 1) + 1;
    }
    for (int64_t i = 0; i < n; i += window) qsort(all + i, (size_t)(n - i < window ? n - i : window), sizeof *all, by_length);
}

fv_status fv_plan_make(fv_plan **out, const fv_env *env, const fv_pairs *pairs, int64_t tokens, uint64_t seed, int64_t epoch,
                       fv_err *e)
{
    int64_t n = fv_pairs_count(pairs);
    size_t all_bytes = (size_t)n * sizeof(sized), row_bytes = (size_t)n * sizeof(int32_t),
           from_bytes = (size_t)(n + 1) * sizeof(int64_t);
    size_t tmp_bytes = 2 * row_bytes;
    fv_plan *p = *out = fv__alloc(env, sizeof *p);
    sized *all = fv__alloc(env, all_bytes);
    int32_t *row = fv__alloc(env, tmp_bytes);
    int64_t *from = fv__alloc(env, from_bytes);
    if (p) {
        *p = (fv_plan){.env = env, .row_bytes = row_bytes, .from_bytes = from_bytes};
        p->row = fv__alloc(env, row_bytes);
        p->from = fv__alloc(env, from_bytes);
    }
    bool ok = p && p->row && p->from && all && row && from;
    if (ok) {
        order(all, pairs, n, tokens, seed, epoch);
        p->n = cut(p, all, n, tokens);
        if (epoch >= 0) shuffle_batches(p, row, from, seed, epoch);
    } else {
        fv_plan_free(p);
        *out = NULL;
    }
    fv__free(env, all, all_bytes);
    fv__free(env, row, tmp_bytes);
    fv__free(env, from, from_bytes);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "batches: out of memory for %lld pairs", (long long)n);
}

void fv_plan_free(fv_plan *p)
{
    if (!p) return;
    fv__free(p->env, p->row, p->row_bytes);
    fv__free(p->env, p->from, p->from_bytes);
    fv__free(p->env, p, sizeof *p);
}

int64_t fv_plan_count(const fv_plan *p) { return p->n; }

const int32_t *fv_plan_batch(const fv_plan *p, int64_t i, int64_t *n)
{
    *n = p->from[i + 1] - p->from[i];
    return p->row + p->from[i];
}

/* ---- tensors ---- */

static int64_t longest(const fv_pairs *p, const int32_t *rows, int64_t n,
                       const int32_t *(*side)(const fv_pairs *, int64_t, int64_t *))
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        side(p, rows[i], &len);
        if (len > most) most = len;
    }
    return most;
}

fv_items fv_pairs_items(fv_ctx *c, const fv_pairs *p, const int32_t *rows, int64_t n, int32_t pad, int32_t start)
{
    int64_t s = longest(p, rows, n, fv_pairs_source), t = longest(p, rows, n, fv_pairs_target);
    size_t bytes = (size_t)n * (size_t)(s + 2 * t) * sizeof(int32_t) + (size_t)(n * s);
    fv_items out = {0};
    int32_t *source = fv__alloc(fv_device_env(fv_ctx_device(c)), bytes);
    if (!source) {
        fv_raise(c, FV_ENOMEM, "batch: out of memory for %lld pairs", (long long)n);
        return out;
    }
    int32_t *input = source + n * s, *label = input + n * t;
    uint8_t *mask = (uint8_t *)(label + n * t);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *ids = fv_pairs_source(p, rows[i], &len);
        for (int64_t j = 0; j < s; j++) {
            source[i * s + j] = j < len ? ids[j] : pad;
            mask[i * s + j] = j < len;
        }
        ids = fv_pairs_target(p, rows[i], &len);
        for (int64_t j = 0; j < t; j++) {
            input[i * t + j] = j == 0 ? start : j <= len ? ids[j - 1] : pad;
            label[i * t + j] = j < len ? ids[j] : -100;
        }
        out.n_labels += (double)len;
    }
    fv_items_put(&out, "input_ids", fv_ints(c, source, FV_SHAPE(n, s)));
    fv_items_put(&out, "attention_mask", fv_bytes(c, mask, FV_SHAPE(n, s)));
    fv_items_put(&out, "decoder_input_ids", fv_ints(c, input, FV_SHAPE(n, t)));
    fv_items_put(&out, "labels", fv_ints(c, label, FV_SHAPE(n, t)));
    fv__free(fv_device_env(fv_ctx_device(c)), source, bytes);
    return out;
}
