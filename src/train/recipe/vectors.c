/* vectors.c - [model] vectors: word vectors as first values of a new model's embeddings.
 *
 * They go into the parameter that `vectors_into` names, or else the first with a row for each
 * token and the width of the vectors.  A token's row is the vector of its text, or of its text
 * in lower case; tokens without one keep what they began as.  All are scaled alike, to the mean
 * square that the family's own first values have: a family's other parameters are drawn to suit
 * those, and vectors of one trainer are ten times as long as those of another.
 *
 * A model of items reads no text: its rows are its labels, the names of the items, and its vectors
 * those of a trainer that read histories as sentences (item2vec). */
#include <math.h>

#include "fovea/author/tok.h"
#include "fovea/author/vectors.h"
#include "train/recipe/recipe.h"

static fv_tensor *find_table(fv_params *p, const char *into, int64_t rows, int64_t width)
{
    if (into) return fv_params_find(p, into);
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        fv_shape s = fv_shape_of(t);
        if (s.n == 2 && s.d[0] >= rows && s.d[1] == width) return t;
    }
    return NULL;
}

/* The vector of a token: without the sign that stands for a blank before it. */
static int64_t vector_of(const fv_vectors *v, const char *token)
{
    static const char *const before[] = {"\u2581", "\u0120"};
    char small[256];
    size_t n = 0;
    for (int i = 0; i < 2; i++)
        if (!strncmp(token, before[i], strlen(before[i]))) token += strlen(before[i]);
    int64_t at = fv_vectors_find(v, token);
    for (; at < 0 && token[n] && n < sizeof small - 1; n++)
        small[n] = (char)(token[n] >= 'A' && token[n] <= 'Z' ? token[n] - 'A' + 'a' : token[n]);
    small[n] = 0;
    return at < 0 ? fv_vectors_find(v, small) : at;
}

static double mean_square(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return n ? sum / (double)n : 0;
}

/* What the rows of the table stand for: tokens, or without a tokenizer labels. */
static int64_t row_count(const fv__input *in, const fv_tok *tok)
{
    return tok ? fv_tok_size(tok) : in->labels.n;
}

/* The vector of row id; -1: it has none. */
static int64_t vector_of_row(const fv_vectors *v, const fv__input *in, const fv_tok *tok,
                             int32_t id)
{
    if (!tok) return fv_vectors_find(v, in->labels.name[id]);
    const char *token = fv_tok_token(tok, id);
    return token && !fv_tok_special(tok, id) ? vector_of(v, token) : -1;
}

/* table (rows,width): rows of tokens that have a vector are replaced; returns how many. */
static int64_t replace(float *table, int64_t rows, const fv_vectors *v, const fv__input *in,
                       const fv_tok *tok)
{
    int64_t width = fv_vectors_width(v), n = 0;
    double all = 0, own = mean_square(table, rows * width);
    for (int64_t i = 0; i < fv_vectors_count(v); i++)
        all += mean_square(fv_vectors_row(v, i), width) / (double)fv_vectors_count(v);
    float by = all > 0 ? (float)sqrt(own / all) : 1;
    for (int32_t id = 0; id < row_count(in, tok) && id < rows; id++) {
        int64_t w = vector_of_row(v, in, tok, id);
        if (w < 0) continue;
        for (int64_t k = 0; k < width; k++) table[id * width + k] = by * fv_vectors_row(v, w)[k];
        n++;
    }
    return n;
}

fv_status fv__recipe_vectors(fv_model *model, const fv_recipe *r, const fv__input *in,
                             const fv__messages *m, fv_err *e)
{
    const char *path = fv__late_get(&r->model, "vectors"),
               *into = fv__late_get(&r->model, "vectors_into");
    const fv_tok *tok = in->processor ? fv_processor_tok(in->processor) : NULL;
    fv_vectors *v;
    if (!path || !*path) return FV_OK;
    int64_t rows = row_count(in, tok);
    if (!rows) return fv_fail(e, FV_EARG, "%s: the model reads neither text nor items", path);
    fv_status st = fv_vectors_open(&v, in->env, path, FV_VECTORS_AUTO, e);
    if (st) return st;
    fv_params *p = fv_model_params(model);
    int64_t width = fv_vectors_width(v);
    fv_tensor *t = find_table(p, into, rows, width);
    fv_shape s = t ? fv_shape_of(t) : FV_SHAPE(0);
    if (!t || s.n != 2 || s.d[1] != width)
        st = fv_fail(e, FV_EARG, "%s: vectors of %lld numbers fit no embedding%s%s", path,
                     (long long)width, into ? " called " : " of the model", into ? into : "");
    size_t bytes = st ? 0 : (size_t)fv_len(t) * sizeof(float);
    float *table = st ? NULL : fv__alloc(in->env, bytes);
    if (!st && !table) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (!st) st = fv_params_get(p, t, table, fv_len(t), e);
    if (!st) {
        int64_t n = replace(table, s.d[0], v, in, tok);
        st = fv_params_set(p, t, table, fv_len(t), e);
        fv__message(m, "%lld of %lld %s begin as vectors of %s", (long long)n, (long long)rows,
                    tok ? "tokens" : "items", path);
    }
    fv__free(in->env, table, bytes);
    fv_vectors_free(v);
    return st;
}
