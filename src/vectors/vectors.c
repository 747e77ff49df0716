/* vectors.c - a set of word vectors: making it, finding words, what is near.
 *
 * What is near is found by comparing with every row, which is exact: for the vocabularies that are
 * trained here an index of approximate neighbours would save less than the file takes to read. */
#include "vectors/vectors.h"

#include <math.h>
#include <time.h>

const char *const fv_vectors_models[] = {"skipgram", "cbow", "glove", NULL};

void fv_vectors_free(fv_vectors *v)
{
    if (!v) return;
    fv_env env = v->env;
    fv_labels_free(&v->words);
    fv__free(&env, v->rows, v->rows_bytes);
    fv__free(&env, v->length, v->length_bytes);
    fv__free(&env, v, sizeof *v);
}

int64_t fv_vectors_count(const fv_vectors *v) { return v->words.n; }
int64_t fv_vectors_width(const fv_vectors *v) { return v->width; }
const char *fv_vectors_word(const fv_vectors *v, int64_t i) { return v->words.name[i]; }
const float *fv_vectors_row(const fv_vectors *v, int64_t i) { return v->rows + i * v->stride; }
int64_t fv_vectors_find(const fv_vectors *v, const char *word)
{
    return fv_labels_find(&v->words, word, strlen(word));
}

/* Kept so that a cosine is one product. */
void fv__vectors_lengths(fv_vectors *v)
{
    for (int64_t i = 0; i < v->words.n; i++) {
        const float *x = fv_vectors_row(v, i);
        v->length[i] = sqrtf(fv__vectors_dot(x, x, v->stride));
    }
}

/* Takes the words of the corpus over. */
fv_status fv__vectors_new(fv_vectors **out, fv__corpus *c, int64_t width, fv_err *e)
{
    fv_vectors *v = *out = fv__alloc(c->env, sizeof *v);
    if (!v) return fv_fail(e, FV_ENOMEM, "vectors: out of memory");
    if (c->env) v->env = *c->env;
    v->words = c->words;
    v->words.env = &v->env;
    c->words = (fv_labels){.env = c->env};
    v->width = width;
    v->stride = fv__vectors_stride(width);
    v->rows_bytes = (size_t)(v->words.n * v->stride) * sizeof *v->rows;
    v->length_bytes = (size_t)v->words.n * sizeof *v->length;
    v->rows = fv__alloc(&v->env, v->rows_bytes);
    v->length = fv__alloc(&v->env, v->length_bytes);
    return v->rows && v->length ? FV_OK : fv_fail(e, FV_ENOMEM, "vectors: out of memory");
}

/* ---- what is near ---- */

static bool among(const int64_t *list, int64_t n, int64_t x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

/* By cosine, best first; words in `left` are left out. */
int64_t fv_vectors_nearest(const fv_vectors *v, const float *query, int64_t k, const int64_t *left,
                           int64_t n_left, fv_near *out)
{
    int64_t found = 0;
    double size = 0;
    for (int64_t i = 0; i < v->width; i++) size += (double)query[i] * (double)query[i];
    for (int64_t w = 0; w < v->words.n; w++) {
        const float *x = fv_vectors_row(v, w);
        double sum = 0, by = (double)v->length[w] * sqrt(size);
        if (among(left, n_left, w)) continue;
        for (int64_t i = 0; i < v->width; i++) sum += (double)x[i] * (double)query[i];
        fv_near near = {w, (float)(by > 0 ? sum / by : 0)};
        /* out stays sorted: a better one moves those behind it on */
        int64_t at = found;
        if (at == k && !(near.cosine > out[k - 1].cosine)) continue;
        if (at == k) at--;
        for (; at > 0 && out[at - 1].cosine < near.cosine; at--) out[at] = out[at - 1];
        out[at] = near;
        if (found < k) found++;
    }
    return found;
}

/* b - a + c of unit vectors: "a is to b as c is to ...". */
void fv_vectors_analogy(const fv_vectors *v, int64_t a, int64_t b, int64_t c, float *query)
{
    const int64_t of[] = {a, b, c};
    const float sign[] = {-1, 1, 1};
    memset(query, 0, (size_t)v->width * sizeof *query);
    for (int k = 0; k < 3; k++) {
        const float *x = fv_vectors_row(v, of[k]);
        float by = v->length[of[k]] > 0 ? sign[k] / v->length[of[k]] : 0;
        for (int64_t i = 0; i < v->width; i++) query[i] += by * x[i];
    }
}

/* ---- training ---- */

/* Zero means the default, which is that of word2vec or, for GloVe, of its paper. */
static fv_vectors_opt complete(fv_vectors_opt o)
{
    bool glove = o.model == FV_GLOVE;
    if (!o.width) o.width = 100;
    if (!o.window) o.window = glove ? 10 : 5;
    if (!o.negatives) o.negatives = 5;
    if (!o.epochs) o.epochs = glove ? 25 : 5;
    if (!o.least) o.least = 5;
    if (!o.buckets) o.buckets = 2000000;
    if (!(o.lr > 0)) o.lr = 0.05;
    if (!(o.sample > 0)) o.sample = 1e-3;
    if (o.ngram_least && !o.ngram_most) o.ngram_most = o.ngram_least > 6 ? o.ngram_least : 6;
    return o;
}

static fv_status check(const fv_vectors_opt *o, fv_err *e)
{
    bool fits = o->width > 0 && o->width <= 4096 && o->window > 0 && o->window <= 100 &&
                o->negatives > 0 && o->negatives <= 100 && o->epochs > 0 && o->least > 0 &&
                o->buckets > 0 && o->buckets < (1 << 30);
    if (!fits)
        return fv_fail(e, FV_EARG,
                       "vectors: width 1 to 4096, window and negatives 1 to 100, epochs, least and "
                       "buckets from 1 on are possible");
    if (o->ngram_least < 0 || o->ngram_most > 32 || o->ngram_most < o->ngram_least)
        return fv_fail(e, FV_EARG, "vectors: subwords have 1 to 32 letters, from %lld to %lld",
                       (long long)o->ngram_least, (long long)o->ngram_most);
    if (o->model == FV_GLOVE && o->ngram_least)
        return fv_fail(e, FV_EARG, "vectors: GloVe has no subwords");
    return FV_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

fv_status fv_vectors_train(fv_vectors **out, const fv_env *env, const char *const *files, int n,
                           fv_vectors_opt opt, double *words_per_s, fv_err *e)
{
    fv__corpus c = {.env = env};
    fv__thread_pool *pool = NULL;
    fv_vectors_opt o = complete(opt);
    *out = NULL;
    if (o.threads < 1) o.threads = fv__cores(env);
    fv_status st = check(&o, e);
    if (!st) st = fv__corpus_open(&c, env, files, n, o.least, o.lowercase, e);
    if (!st) st = fv__vectors_new(out, &c, o.width, e);
    if (!st && fv__thread_pool_new(&pool, env, o.threads, fv__cores(env)))
        st = fv_fail(e, FV_ENOMEM, "vectors: %d threads cannot be started", o.threads);
    double start = now();
    if (!st && o.model == FV_GLOVE) st = fv__vectors_glove(*out, &c, &o, pool, e);
    if (!st && o.model != FV_GLOVE) st = fv__vectors_predict(*out, &c, &o, pool, e);
    if (words_per_s) *words_per_s = (double)(c.kept * o.epochs) / (now() - start);
    fv__thread_pool_free(pool);
    fv__corpus_close(&c);
    if (!st) fv__vectors_lengths(*out);
    if (st) {
        fv_vectors_free(*out);
        *out = NULL;
    }
    return st;
}
