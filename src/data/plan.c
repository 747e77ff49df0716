/* plan.c - which examples share a batch.
 *
 * Examples are shuffled, sorted by length within windows of about 64 batches, cut into batches, and
 * the batches are shuffled: little padding, yet a batch's examples differ from epoch to epoch.
 * (Sorting the whole epoch would pad least, but examples of one length would meet in every epoch.)
 * Random numbers come from Philox by (seed, epoch, position), and ties are broken by the shuffle,
 * not by qsort: the same feed and options give the same plan on every machine.  Of an ordered feed
 * every example is a batch, and nothing is shuffled. */
#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/feed.h"
#include "fovea/author/op.h"

#define WINDOW 64 /* batches a window is worth */

struct fv_plan {
    const fv_env *env;
    int32_t *row;  /* example numbers, batch after batch */
    int64_t *from; /* where each batch begins, and one more */
    size_t row_bytes, from_bytes;
    int64_t n;
};

/* A number in [0, n) for step i of a Fisher-Yates shuffle; stream 0 shuffles examples, 1
 * batches. */
static int64_t below(fv_data_rng rng, uint64_t stream, int64_t i, int64_t n)
{
    uint32_t w[4];
    fv_philox(w, rng.seed, stream, (uint64_t)rng.epoch, (uint64_t)i);
    uint64_t r = (uint64_t)w[0] << 32 | w[1];
    return (int64_t)(r % (uint64_t)n);
}

typedef struct sized {
    int32_t row, at; /* at: where the shuffle put it, which decides between equals */
    int32_t source, target;
} sized;

/* By target first: the decoder is the larger part of the work. */
static int by_length(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    if (x->source != y->source) return x->source < y->source ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static int64_t longer(const sized *s) { return s->source > s->target ? s->source : s->target; }

/* Cuts `all` into batches, in order: a new one starts where one more example would make the padded
 * tokens of either side, or the rows, too many.  Returns how many there are. */
static int64_t cut(fv_plan *p, const sized *all, int64_t n, const fv_plan_opt *o)
{
    int64_t longest = 0, rows = 0, batches = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len = longer(&all[i]), most = len > longest ? len : longest;
        if (rows && (most * (rows + 1) > o->tokens || rows == o->rows)) {
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

/* Permutes whole batches; row and from are scratch. */
static void shuffle_batches(fv_plan *p, int32_t *row, int64_t *from, fv_data_rng rng)
{
    for (int64_t i = 0; i < p->n; i++) row[i] = (int32_t)i;
    for (int64_t i = p->n - 1; i > 0; i--) {
        int64_t j = below(rng, 1, i, i + 1);
        int32_t t = row[i];
        row[i] = row[j];
        row[j] = t;
    }
    int64_t at = 0;
    int32_t *examples = row + p->n;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t b = row[i], len = p->from[b + 1] - p->from[b];
        from[i] = at;
        memcpy(examples + at, p->row + p->from[b], (size_t)len * sizeof *examples);
        at += len;
    }
    from[p->n] = at;
    memcpy(p->from, from, (size_t)(p->n + 1) * sizeof *from);
    memcpy(p->row, examples, (size_t)at * sizeof *examples);
}

/* Shuffles, then sorts within windows.  An evaluation (epoch -1) is one window: sorted by length,
 * not shuffled. */
static void order(sized *all, const fv_feed *f, int64_t n, const fv_plan_opt *o)
{
    int64_t sum = 0, window = n;
    for (int64_t i = 0; i < n; i++) {
        int64_t s = 0, t = 0;
        f->size(f->self, i, &s, &t);
        all[i] = (sized){.row = (int32_t)i, .source = (int32_t)s, .target = (int32_t)t};
        sum += longer(&all[i]);
    }
    if (o->rng.epoch >= 0 && !f->ordered) {
        for (int64_t i = n - 1; i > 0; i--) {
            int64_t j = below(o->rng, 0, i, i + 1);
            sized t = all[i];
            all[i] = all[j];
            all[j] = t;
        }
        window = WINDOW * (o->tokens / (sum / n + 1) + 1);
        if (o->rows && window > WINDOW * o->rows) window = WINDOW * o->rows;
    }
    for (int64_t i = 0; i < n; i++) all[i].at = (int32_t)i;
    for (int64_t i = 0; i < n; i += window)
        qsort(all + i, (size_t)(n - i < window ? n - i : window), sizeof *all, by_length);
}

/* Sorts examples by length with random ties, cuts batches, then shuffles whole batches: rows of a
 * batch are alike, and epochs differ. An ordered feed (running text) keeps its order, one row after
 * the other. */
fv_status fv_plan_make(fv_plan **out, const fv_env *env, const fv_feed *f, fv_plan_opt o, fv_err *e)
{
    *out = NULL;
    int64_t n = f->count(f->self, o.rng.epoch);
    if (n < 1 || n > INT32_MAX)
        return fv_fail(e, FV_EARG, "batches: %lld examples cannot be planned", (long long)n);
    size_t all_bytes = (size_t)n * sizeof(sized), row_bytes = (size_t)n * sizeof(int32_t),
           from_bytes = (size_t)(n + 1) * sizeof(int64_t), tmp_bytes = 2 * row_bytes;
    fv_plan *p = fv__alloc(env, sizeof *p);
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
        if (f->ordered) o.rows = 1;
        order(all, f, n, &o);
        p->n = cut(p, all, n, &o);
        if (o.rng.epoch >= 0 && !f->ordered) shuffle_batches(p, row, from, o.rng);
        *out = p;
    } else {
        fv_plan_free(p);
    }
    fv__free(env, all, all_bytes);
    fv__free(env, row, tmp_bytes);
    fv__free(env, from, from_bytes);
    return ok ? FV_OK
              : fv_fail(e, FV_ENOMEM, "batches: out of memory for %lld examples", (long long)n);
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
