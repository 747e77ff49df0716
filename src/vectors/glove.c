/* glove.c - GloVe (Pennington et al. 2014): vectors whose products are logarithms of how often
 * words stand near one another.
 *
 *     X_ij = sum over pairs of positions of 1 / distance,  up to `window` words apart
 *     loss = sum_ij f(X_ij) (w_i.v_j + a_i + b_j - log X_ij)^2,    f(x) = min(1, (x / 100)^(3/4))
 *
 * by AdaGrad over the pairs in random order; a word's vector is w_i + v_i.  X is symmetric, so
 * every pair of words is kept once in each order, as GloVe's own program does.
 *
 * Pairs go in blocks, as in predict.c: rows are copied and differences computed from what nobody
 * changes, then each row is changed by one thread alone in the order of the pairs.  Biases are
 * the last element of a row, whose partner in the other row is 1 and stays so. */
#include <math.h>

#include "vectors/vectors.h"

enum { BLOCK = 1024, LEAST_BLOCK = 8, WORDS_A_PAIR = 16 };
#define MOST_COUNT 100.0 /* of f */

typedef struct pair {
    int32_t i, j;
    float x;
} pair;

/* ---- counting: a table of pairs by a hash, open addressing ---- */

typedef struct counts {
    const fv_env *env;
    pair *at; /* x 0: free */
    int64_t n, capacity;
} counts;

/* Where a pair's search begins in the open-addressing table. */
static uint64_t slot_of(const counts *k, int32_t i, int32_t j)
{
    return fv__vectors_random((uint64_t)(uint32_t)i, (uint64_t)(uint32_t)j) &
           (uint64_t)(k->capacity - 1);
}

/* A slot is free while its count is 0. */
static void put(counts *k, int32_t i, int32_t j, float x)
{
    uint64_t s = slot_of(k, i, j);
    while (k->at[s].x > 0 && (k->at[s].i != i || k->at[s].j != j))
        s = (s + 1) & (uint64_t)(k->capacity - 1);
    if (!(k->at[s].x > 0)) k->n++;
    k->at[s] = (pair){i, j, k->at[s].x + x};
}

static bool grow(counts *k)
{
    counts more = {.env = k->env, .capacity = k->capacity ? 2 * k->capacity : 1 << 16};
    more.at = fv__alloc(k->env, (size_t)more.capacity * sizeof *more.at);
    if (!more.at) return false;
    for (int64_t i = 0; i < k->capacity; i++)
        if (k->at[i].x > 0) put(&more, k->at[i].i, k->at[i].j, k->at[i].x);
    fv__free(k->env, k->at, (size_t)k->capacity * sizeof *k->at);
    *k = more;
    return true;
}

/* Each pair within the window adds 1 / distance, both ways. */
static fv_status count(counts *k, const fv__corpus *c, int64_t window, fv_err *e)
{
    for (int64_t p = 0; p < c->n; p++) {
        for (int64_t q = p - 1; c->text[p] >= 0 && q >= 0 && p - q <= window; q--) {
            if (c->text[q] < 0) break;
            if (2 * (k->n + 2) > k->capacity && !grow(k))
                return fv_fail(e, FV_ENOMEM, "vectors: out of memory for %lld pairs",
                               (long long)k->n);
            float x = 1 / (float)(p - q);
            put(k, c->text[p], c->text[q], x);
            put(k, c->text[q], c->text[p], x);
        }
    }
    return FV_OK;
}

/* ---- training ---- */

typedef struct trainer {
    const pair *pairs;
    int64_t first, n;           /* the block */
    int64_t stride;             /* of rows with their bias */
    int64_t one[2];             /* which element of w is the constant 1, and of v */
    float *row[2], *squares[2]; /* w and v (words,stride), and AdaGrad's sums */
    float *copy[2];             /* (BLOCK,stride) */
    float g[BLOCK];
    float lr;
    int parts;
} trainer;

/* The error of each pair of a block, by the vectors as the block found them: threads read only. */
static void compute(void *arg, int64_t lo, int64_t hi, int slot)
{
    trainer *t = arg;
    int64_t D = t->stride;
    (void)slot;
    for (int64_t k = lo; k < hi; k++) {
        const pair *p = &t->pairs[t->first + k];
        memcpy(t->copy[0] + k * D, t->row[0] + p->i * D, (size_t)D * sizeof(float));
        memcpy(t->copy[1] + k * D, t->row[1] + p->j * D, (size_t)D * sizeof(float));
        double x = (double)p->x, f = x < MOST_COUNT ? pow(x / MOST_COUNT, 0.75) : 1;
        float off = fv__vectors_dot(t->copy[0] + k * D, t->copy[1] + k * D, D) - (float)log(x);
        t->g[k] = (float)f * off;
    }
}

/* d = lr g other;  row -= d / sqrt(squares), squares += d^2: the rate is in the squares too, as in
 * GloVe's own program */
static void step(const trainer *t, int side, int64_t r, float g, const float *other)
{
    float *w = t->row[side] + r * t->stride, *s = t->squares[side] + r * t->stride;
    float one = w[t->one[side]];
    for (int64_t i = 0; i < t->stride; i++) {
        float d = t->lr * g * other[i];
        w[i] -= d / sqrtf(s[i]);
        s[i] += d * d;
    }
    w[t->one[side]] = one;
}

/* Each part owns words and adds their changes in the order of the pairs: the same bits for any
 * number of threads. */
static void change(void *arg, int64_t lo, int64_t hi, int slot)
{
    trainer *t = arg;
    (void)slot;
    for (int64_t part = lo; part < hi; part++)
        for (int64_t k = 0; k < t->n; k++) {
            const pair *p = &t->pairs[t->first + k];
            if (p->i % t->parts == part) step(t, 0, p->i, t->g[k], t->copy[1] + k * t->stride);
            if (p->j % t->parts == part) step(t, 1, p->j, t->g[k], t->copy[0] + k * t->stride);
        }
}

static void shuffle(pair *p, int64_t n, uint64_t seed)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(fv__vectors_random(seed, (uint64_t)i) % (uint64_t)(i + 1));
        pair x = p[i];
        p[i] = p[j];
        p[j] = x;
    }
}

static void begin(trainer *t, int64_t words, int64_t width, uint64_t seed)
{
    for (int side = 0; side < 2; side++)
        for (int64_t w = 0; w < words; w++) {
            float *x = t->row[side] + w * t->stride, *s = t->squares[side] + w * t->stride;
            for (int64_t i = 0; i < t->stride; i++) s[i] = 1;
            for (int64_t i = 0; i < width; i++) {
                uint64_t at = (uint64_t)((2 * w + side) * width + i);
                x[i] = (float)((fv__vectors_unit(fv__vectors_random(seed, at)) - 0.5) /
                               (double)width);
            }
            x[t->one[side]] = 1;
        }
}

/* Blocks are small where words are few, since a block's pairs do not see each other's changes. */
static void run(trainer *t, pair *pairs, int64_t n, int64_t words, const fv_vectors_opt *o,
                fv__thread_pool *pool)
{
    t->pairs = pairs;
    t->lr = (float)o->lr;
    t->parts = o->threads;
    int64_t block = words / WORDS_A_PAIR; /* fewer where words are few: see predict.c */
    if (block < LEAST_BLOCK) block = LEAST_BLOCK;
    if (block > BLOCK) block = BLOCK;
    for (int64_t epoch = 0; epoch < o->epochs; epoch++) {
        shuffle(pairs, n, o->seed * 1000003 + (uint64_t)epoch);
        for (t->first = 0; t->first < n; t->first += block) {
            t->n = n - t->first < block ? n - t->first : block;
            fv__parallel_for(pool, o->threads, t->n, 0, compute, t);
            fv__parallel_for(pool, o->threads, t->parts, 1, change, t);
        }
        if (o->progress) o->progress(o->user, (double)(epoch + 1) / (double)o->epochs);
    }
}

fv_status fv__vectors_glove(fv_vectors *v, const fv__corpus *c, const fv_vectors_opt *o,
                            fv__thread_pool *pool, fv_err *e)
{
    const fv_env *env = c->env;
    counts k = {.env = env};
    int64_t words = v->words.n, stride = fv__vectors_stride(v->width + 2), n = 0;
    size_t bytes = (size_t)(words * stride) * sizeof(float),
           copies = (size_t)(BLOCK * stride) * sizeof(float);
    /* element width: the bias of w beside the 1 of v; the next: the other way round */
    trainer t = {.stride = stride, .one = {v->width + 1, v->width}};
    fv_status st = count(&k, c, o->window, e);
    float **const all[] = {&t.row[0], &t.row[1], &t.squares[0], &t.squares[1]};
    bool ok = true;
    for (int i = 0; i < 4; i++) ok = (*all[i] = fv__alloc(env, bytes)) && ok;
    for (int i = 0; i < 2; i++) ok = (t.copy[i] = fv__alloc(env, copies)) && ok;
    if (!st && !ok)
        st = fv_fail(e, FV_ENOMEM, "vectors: out of memory for %lld rows", (long long)words);
    if (!st) {
        for (int64_t i = 0; i < k.capacity; i++)
            if (k.at[i].x > 0) k.at[n++] = k.at[i];
        begin(&t, words, v->width, o->seed + 77);
        run(&t, k.at, n, words, o, pool);
        for (int64_t w = 0; w < words; w++)
            for (int64_t i = 0; i < v->width; i++)
                v->rows[w * v->stride + i] = t.row[0][w * stride + i] + t.row[1][w * stride + i];
    }
    for (int i = 0; i < 4; i++) fv__free(env, *all[i], bytes);
    for (int i = 0; i < 2; i++) fv__free(env, t.copy[i], copies);
    fv__free(env, k.at, (size_t)k.capacity * sizeof *k.at);
    return st;
}
