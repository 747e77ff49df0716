/* predict.c - skip-gram and CBOW with negative sampling (Mikolov et al. 2013), of words or of their
 * subwords (Bojanowski et al. 2017), on all cores, with the same bits whatever their number.
 *
 * A position of the text has a hidden vector h, the mean of input rows: of skip-gram the word's own
 * (and its subwords'), of CBOW those of the words around it.  Output rows o_j are scored against
 * it:
 *
 *     loss = - sum_j w_j log s(y_j h.o_j),    y = 1 for what is there, -1 for what was drawn
 *     g_j = lr w_j ([y_j = 1] - s(h.o_j)),    o_j += g_j h,    every input row += sum_j g_j o_j
 *
 * Of skip-gram what is there are the words around, and the words that are drawn are drawn once for
 * the position and count as often as there are such words (Ji et al. 2016 share them likewise): h
 * is read once for all of them.
 *
 * word2vec, gensim and fastText let threads write to the same rows at any time ("Hogwild"), so
 * no run repeats.  Here positions go in blocks of BLOCK.  First all positions of a block compute
 * h, g and the input's gradient, from rows that nobody changes; then rows are changed, each by
 * one thread alone, in the order of the positions.  So a row's sums have one order, and threads
 * share both loops.  The price is that a position does not see the others of its block, and that
 * gradients are written once and read once; blocks are small, and stay in the cache.  Of few
 * words a row would be changed many times in a block by gradients that know nothing of each
 * other, which diverges: blocks are smaller then.  Replicas of the model that are averaged, the
 * other way to be exact, learn rare words many times slower. */
#include <math.h>

#include "vectors/vectors.h"

enum {
    BLOCK = 256,
    LEAST_BLOCK = 4,
    WORDS_A_BLOCK = 64,
    CHUNK = 1 << 14,
    TABLE = 1 << 22,
    MOST_OUT = 300
};

/* What a position asks for and what came of it. */
typedef struct spot {
    int64_t from, to; /* indices in `kept`: its own, of CBOW those around */
    int64_t middle;   /* the index between that is left out, or -1 */
    int n_out;
    int32_t out[MOST_OUT];
    float g[MOST_OUT];
} spot;

typedef struct trainer {
    const fv__corpus *c;
    const fv_vectors_opt *o;
    fv__subwords sub;
    int64_t width, stride, n_in;
    float *in, *out; /* (words + buckets,stride), (words,stride) */
    int32_t *table;  /* (TABLE): words as often as they are drawn */
    float *keep;     /* (words): how likely one stays in the text */
    int32_t *kept;   /* a part of the text without what was left out; -1 at the ends of lines */
    int64_t *at;     /* the index of each in the text, for random numbers */
    int64_t n_kept;
    spot *spots;      /* (BLOCK) */
    float *h, *dh;    /* (BLOCK,stride) */
    int64_t first, n; /* the block: indices in kept */
    double lr;
    int64_t block; /* its positions at most */
    uint64_t seed; /* of the epoch */
    int parts;     /* rows r are changed by the thread of r modulo parts */
} trainer;

/* ---- tables ---- */

/* count^0.75, as the papers have it. */
static void fill_table(trainer *t, int32_t n)
{
    double all = 0, sum = 0;
    const int64_t *count = t->c->count;
    int32_t w = 0;
    for (int32_t i = 0; i < n; i++) all += pow((double)count[i], 0.75);
    for (int64_t i = 0; i < TABLE; i++) {
        t->table[i] = w;
        if (w < n - 1 && (double)(i + 1) / TABLE > (sum + pow((double)count[w], 0.75)) / all)
            sum += pow((double)count[w++], 0.75);
    }
}

/* word2vec's: min(1, sqrt(s/f) + s/f) of a word with share f. */
static void fill_keep(trainer *t, int64_t words)
{
    for (int64_t i = 0; i < words; i++) {
        double f = (double)t->c->count[i] / (double)t->c->kept, s = t->o->sample / f;
        t->keep[i] = (float)fmin(1, sqrt(s) + s);
    }
}

/* ---- a part of the text ---- */

/* Random numbers of a position of the text: 0 whether it stays, 1 its window, 2 .. what is
 * drawn. */
static uint64_t draw(const trainer *t, int64_t position, int what)
{
    return fv__vectors_random(t->seed, (uint64_t)position * 128 + (uint64_t)what);
}

/* Takes words from text[at] on until CHUNK are kept and a line ends; returns where it stopped. */
static int64_t take(trainer *t, int64_t at)
{
    const fv__corpus *c = t->c;
    t->n_kept = 0;
    for (; at < c->n; at++) {
        int32_t w = c->text[at];
        if (w >= 0 && fv__vectors_unit(draw(t, at, 0)) >= (double)t->keep[w]) continue;
        t->kept[t->n_kept] = w;
        t->at[t->n_kept++] = at;
        /* a line that is longer than all there is room for is cut */
        if (t->n_kept >= CHUNK && w < 0) return at + 1;
        if (t->n_kept >= 2 * CHUNK) return at + 1;
    }
    return at;
}

/* ---- one position ---- */

/* skip-gram: the middle word predicts each around it; CBOW: the mean around predicts the middle.
 * The window is drawn anew for each token. */
static void look(const trainer *t, spot *s, int64_t p)
{
    int64_t reach = 1 + (int64_t)(draw(t, t->at[p], 1) % (uint64_t)t->o->window);
    int64_t from = p, to = p;
    while (from > 0 && p - from < reach && t->kept[from - 1] >= 0) from--;
    while (to + 1 < t->n_kept && to - p < reach && t->kept[to + 1] >= 0) to++;
    int64_t around = to - from;
    bool cbow = t->o->model == FV_CBOW;
    s->n_out = 0;
    s->from = cbow ? from : p;
    s->to = cbow ? to + 1 : p + 1;
    s->middle = cbow ? p : -1;
    if (!around) return;
    if (cbow) s->out[s->n_out++] = t->kept[p];
    for (int64_t q = from; !cbow && q <= to; q++)
        if (q != p) s->out[s->n_out++] = t->kept[q];
    int right = s->n_out;
    for (int64_t i = 0; i < t->o->negatives; i++) {
        int32_t w = t->table[draw(t, t->at[p], 2 + (int)i) % TABLE];
        bool is = false;
        for (int j = 0; j < right; j++) is = is || s->out[j] == w;
        if (!is) s->out[s->n_out++] = w;
    }
    for (int j = 0; j < s->n_out; j++) s->g[j] = j < right ? 1 : -(float)right;
}

/* h = mean of input rows;  g_j;  dh = sum_j g_j o_j */
static void compute(const trainer *t, spot *s, float *h, float *dh)
{
    int64_t n = 0, D = t->stride;
    memset(h, 0, (size_t)D * sizeof *h);
    memset(dh, 0, (size_t)D * sizeof *dh);
    for (int64_t q = s->from; q < s->to; q++) {
        if (q == s->middle) continue;
        int32_t w = t->kept[q];
        for (int64_t r = t->sub.start[w]; r < t->sub.start[w + 1]; r++, n++)
            fv__vectors_add(h, 1, t->in + t->sub.rows[r] * D, D);
    }
    float by = n ? 1 / (float)n : 0, lr = (float)t->lr;
    for (int64_t i = 0; i < D; i++) h[i] *= by;
    for (int j = 0; j < s->n_out; j++) {
        const float *o = t->out + s->out[j] * D;
        float p = 1 / (1 + expf(-fv__vectors_dot(h, o, D)));
        s->g[j] = s->g[j] > 0 ? lr * (1 - p) : lr * s->g[j] * p;
        fv__vectors_add(dh, s->g[j], o, D);
    }
}

static void compute_some(void *arg, int64_t lo, int64_t hi, int slot)
{
    trainer *t = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        spot *s = &t->spots[i];
        s->n_out = 0;
        if (t->kept[t->first + i] < 0) continue;
        look(t, s, t->first + i);
        if (s->n_out) compute(t, s, t->h + i * t->stride, t->dh + i * t->stride);
    }
}

/* The rows of one part, through all positions in order. */
static void change_some(void *arg, int64_t lo, int64_t hi, int slot)
{
    trainer *t = arg;
    int64_t D = t->stride;
    (void)slot;
    for (int64_t part = lo; part < hi; part++)
        for (int64_t i = 0; i < t->n; i++) {
            const spot *s = &t->spots[i];
            if (!s->n_out) continue;
            for (int64_t q = s->from; q < s->to; q++) {
                if (q == s->middle) continue;
                int32_t w = t->kept[q];
                for (int64_t r = t->sub.start[w]; r < t->sub.start[w + 1]; r++)
                    if (t->sub.rows[r] % t->parts == part)
                        fv__vectors_add(t->in + t->sub.rows[r] * D, 1, t->dh + i * D, D);
            }
            for (int j = 0; j < s->n_out; j++)
                if (s->out[j] % t->parts == part)
                    fv__vectors_add(t->out + s->out[j] * D, s->g[j], t->h + i * D, D);
        }
}

/* First all gradients, then all changes: what a thread computes never depends on another's
 * progress. */
static void run_block(trainer *t, fv__thread_pool *pool, int threads, int64_t first)
{
    t->first = first;
    t->n = t->n_kept - first < t->block ? t->n_kept - first : t->block;
    fv__parallel_for(pool, threads, t->n, 0, compute_some, t);
    fv__parallel_for(pool, threads, t->parts, 1, change_some, t);
}

/* ---- all of it ---- */

static void run(trainer *t, fv__thread_pool *pool)
{
    const fv_vectors_opt *o = t->o;
    double all = (double)(t->c->n * o->epochs);
    for (int64_t epoch = 0; epoch < o->epochs; epoch++) {
        t->seed = o->seed * 1000003 + (uint64_t)epoch;
        for (int64_t at = 0; at < t->c->n;) {
            double done = ((double)epoch * (double)t->c->n + (double)at) / all;
            t->lr = o->lr * fmax(1 - done, 1e-4);
            at = take(t, at);
            for (int64_t i = 0; i < t->n_kept; i += t->block) run_block(t, pool, o->threads, i);
            if (o->progress) o->progress(o->user, done);
        }
    }
}

/* First values of fastText and word2vec: input rows even in +-1/width, output rows 0. */
static void begin(trainer *t)
{
    uint64_t seed = t->o->seed + 77;
    for (int64_t r = 0; r < t->n_in; r++)
        for (int64_t i = 0; i < t->width; i++) {
            double x = fv__vectors_unit(fv__vectors_random(seed, (uint64_t)(r * t->width + i)));
            t->in[r * t->stride + i] = (float)((2 * x - 1) / (double)t->width);
        }
}

/* A word's vector is the mean of its rows. */
static void finish(const trainer *t, fv_vectors *v)
{
    for (int64_t w = 0; w < v->words.n; w++) {
        float *y = v->rows + w * v->stride;
        int64_t n = t->sub.start[w + 1] - t->sub.start[w];
        for (int64_t r = t->sub.start[w]; r < t->sub.start[w + 1]; r++)
            fv__vectors_add(y, 1 / (float)n, t->in + t->sub.rows[r] * t->stride, t->stride);
    }
}

/* All memory is taken before the first block. */
fv_status fv__vectors_predict(fv_vectors *v, const fv__corpus *c, const fv_vectors_opt *o,
                              fv__thread_pool *pool, fv_err *e)
{
    const fv_env *env = c->env;
    int64_t words = v->words.n, n_in = words + (o->ngram_least ? o->buckets : 0), D = v->stride;
    int64_t block = words / WORDS_A_BLOCK;
    if (block < LEAST_BLOCK) block = LEAST_BLOCK;
    if (block > BLOCK) block = BLOCK;
    trainer t = {.c = c,
                 .o = o,
                 .block = block,
                 .width = v->width,
                 .stride = D,
                 .n_in = n_in,
                 .parts = o->threads};
    size_t in = (size_t)(n_in * D) * sizeof(float), out = (size_t)(words * D) * sizeof(float),
           table = TABLE * sizeof(int32_t), keep = (size_t)words * sizeof(float),
           kept = 2 * CHUNK * sizeof(int32_t), at = 2 * CHUNK * sizeof(int64_t),
           spots = BLOCK * sizeof(spot), hidden = (size_t)(BLOCK * D) * sizeof(float);
    fv_status st = fv__subwords_make(&t.sub, env, &v->words, o->ngram_least, o->ngram_most,
                                     o->buckets, e);
    t.in = fv__alloc(env, in);
    t.out = fv__alloc(env, out);
    t.table = fv__alloc(env, table);
    t.keep = fv__alloc(env, keep);
    t.kept = fv__alloc(env, kept);
    t.at = fv__alloc(env, at);
    t.spots = fv__alloc(env, spots);
    t.h = fv__alloc(env, hidden);
    t.dh = fv__alloc(env, hidden);
    bool ok = t.in && t.out && t.table && t.keep && t.kept && t.at && t.spots && t.h && t.dh;
    if (!st && !ok)
        st = fv_fail(e, FV_ENOMEM, "vectors: out of memory for %lld rows", (long long)n_in);
    if (!st) {
        begin(&t);
        fill_table(&t, v->words.n);
        fill_keep(&t, words);
        run(&t, pool);
        finish(&t, v);
    }
    fv__free(env, t.dh, hidden);
    fv__free(env, t.h, hidden);
    fv__free(env, t.spots, spots);
    fv__free(env, t.at, at);
    fv__free(env, t.kept, kept);
    fv__free(env, t.keep, keep);
    fv__free(env, t.table, table);
    fv__free(env, t.out, out);
    fv__free(env, t.in, in);
    fv__subwords_free(&t.sub, env);
    return st;
}
