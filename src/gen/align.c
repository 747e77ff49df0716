/* align.c - when each token of a transcription was spoken, from the cross-attention of the decoder
 * that wrote it.
 *
 * Some heads look at the sound of the word they write (openai's Whisper names its own, found by
 * measuring).  One pass over the tokens shows their weights:
 *
 *     z[h,i,t] = (w[h,i,t] - mean_i w[h,i,t]) / std_i w[h,i,t]     a frame that all rows look at
 *                                                                  tells nothing about any
 *     m[i,t]   = mean over heads of the median of z[h,i,t-3 .. t+3]
 *
 * and dynamic time warping finds the way from (first token, first frame) to (last, last) that never
 * goes back and has the greatest sum of m.  A token begins where the way enters its row.  These are
 * transformers' steps (_extract_token_timestamps), in its order and with its ties, so that times
 * are equal to its own; where no row differs at a frame it divides 0 by 0, and here z is 0.
 *
 * Rows are recomputed from queries and keys in the tap of each attention, so the pass records
 * nothing and one map is held at a time.  Keeping the weights while tokens are generated lost,
 * since it slows down everybody who wants no times. */
#include <math.h>

#include "base/base.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"

enum { WIDEST = 63, USUAL_WIDTH = 7 };

/* ---- the weights, made comparable ---- */

/* Subtracts each column's mean over the rows and divides by its deviation. */
static void normalise(float *w, int64_t rows, int64_t cols)
{
    for (int64_t t = 0; t < cols; t++) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < rows; i++) mean += (double)w[i * cols + t];
        mean /= (double)rows;
        for (int64_t i = 0; i < rows; i++) {
            double d = (double)w[i * cols + t] - mean;
            square += d * d;
        }
        double std = sqrt(square / (double)rows);
        for (int64_t i = 0; i < rows; i++) {
            double d = (double)w[i * cols + t] - mean;
            w[i * cols + t] = std > 0 ? (float)(d / std) : 0;
        }
    }
}

/* sum[i] += the median of x[i - width/2 .. i + width/2], reflected at both ends; a row that is not
 * longer than half the width stays as it is. */
static void add_medians(float *sum, const float *x, int64_t n, int width)
{
    float sorted[WIDEST];
    int64_t half = width / 2;
    for (int64_t i = 0; i < n; i++) {
        if (n <= half) {
            sum[i] += x[i];
            continue;
        }
        for (int k = 0; k < width; k++) {
            int64_t at = i + k - half;
            at = at < 0 ? -at : at;
            float v = x[at < n ? at : 2 * (n - 1) - at];
            int j = k; /* by insertion: seven of them */
            for (; j > 0 && sorted[j - 1] > v; j--) sorted[j] = sorted[j - 1];
            sorted[j] = v;
        }
        sum[i] += sorted[half];
    }
}

/* ---- the way through them ---- */

/* cost[i,j] = least cost[i-1,j-1], cost[i-1,j], cost[i,j-1] less m[i-1,j-1]; ties as transformers
 * breaks them, costs in single precision as there.  Then back from the end: at[i] is the first
 * column of row i on the way.  cost: 2 (rows+1); step: (rows+1) (cols+1). */
static void warp(int64_t *at, const float *m, int64_t rows, int64_t cols, float *cost,
                 uint8_t *step)
{
    int64_t wide = cols + 1;
    float *before = cost, *here = cost + rows + 1;
    for (int64_t i = 0; i <= rows; i++) before[i] = i ? INFINITY : 0;
    for (int64_t j = 1; j <= cols; j++) {
        here[0] = INFINITY;
        for (int64_t i = 1; i <= rows; i++) {
            float both = before[i - 1], down = here[i - 1], across = before[i], least = across;
            uint8_t by = 2;
            if (both < down && both < across)
                least = both, by = 0;
            else if (down < both && down < across)
                least = down, by = 1;
            here[i] = (float)((double)least - (double)m[(i - 1) * cols + j - 1]);
            step[i * wide + j] = by;
        }
        float *swap = before;
        before = here;
        here = swap;
    }
    for (int64_t i = rows, j = cols; i > 0 && j > 0;) {
        at[i - 1] = j - 1;
        uint8_t by = step[i * wide + j];
        i -= by != 2;
        j -= by != 1;
    }
}

/* ---- a pass ---- */

typedef struct aligner {
    const fv_env *env;
    fv_align_opt o;
    int64_t n, from;     /* tokens, and the first row that counts */
    int64_t cols, all;   /* positions that are sound, and those there are */
    int64_t layer;       /* cross-attentions that ran */
    int64_t heads;       /* that were added up */
    float *w, *m, *cost; /* rows of a head; their mean; costs of two columns */
    uint8_t *step;
    size_t bytes;
    fv_err e; /* of the tap, which cannot return one */
} aligner;

static bool is_chosen(const aligner *a, int64_t head)
{
    for (int i = 0; i < a->o.n_heads; i++)
        if (a->o.heads[2 * i] == a->layer &&
            (a->o.heads[2 * i + 1] == head || a->o.heads[2 * i + 1] < 0))
            return true;
    return !a->o.n_heads;
}

/* Memory for maps of the first attention's shape; all layers have it. */
static bool open_maps(aligner *a, const fv_shape *s)
{
    int64_t rows = a->n - a->from;
    a->all = s->d[3];
    if (a->cols < 1 || a->cols > a->all) a->cols = a->all;
    size_t w = (size_t)(rows * a->all), m = (size_t)(rows * a->cols), cost = 2 * (size_t)(rows + 1);
    a->bytes = (w + m + cost) * sizeof(float) + (size_t)((rows + 1) * (a->cols + 1));
    a->w = fv__alloc(a->env, a->bytes);
    if (!a->w) {
        fv_fail(&a->e, FV_ENOMEM, "token times: out of memory for %zu bytes", a->bytes);
        return false;
    }
    a->m = a->w + w;
    a->cost = a->m + m;
    a->step = (uint8_t *)(a->cost + cost);
    memset(a->m, 0, m * sizeof(float));
    return true;
}

/* Adds a head's rows, made comparable, to the sum. */
static void add_head(aligner *a, fv_ctx *c, const fv_attn_view *v, int64_t head)
{
    int64_t rows = a->n - a->from, cols = a->cols;
    int width = a->o.width ? a->o.width : USUAL_WIDTH;
    if (fv_attn_view_weights(c, v, 0, head, a->from, a->n, a->w)) {
        a->e = *fv_ctx_err(c);
        return;
    }
    for (int64_t i = 1; i < rows && cols < a->all; i++)
        memmove(a->w + i * cols, a->w + i * a->all, (size_t)cols * sizeof *a->w);
    normalise(a->w, rows, cols);
    for (int64_t i = 0; i < rows; i++) add_medians(a->m + i * cols, a->w + i * cols, cols, width);
    a->heads++;
}

static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    aligner *a = user;
    (void)name;
    if (strcmp(site, "attention") || fv_attn_view_role(what) != FV_ATTN_CROSS || a->e.code) return;
    fv_shape s = fv_attn_view_shape(what);
    if (s.d[2] != a->n || (a->w && s.d[3] != a->all)) {
        fv_fail(&a->e, FV_ESHAPE, "token times: an attention of %lld rows, expected %lld",
                (long long)s.d[2], (long long)a->n);
        return;
    }
    if (!a->w && !open_maps(a, &s)) return;
    for (int64_t head = 0; head < s.d[1] && !a->e.code; head++)
        if (is_chosen(a, head)) add_head(a, c, what, head);
    a->layer++;
}

static fv_status finish(aligner *a, fv_ctx *c, int64_t *at, fv_err *e)
{
    if (fv_ctx_status(c)) return fv_fail(e, fv_ctx_status(c), "%s", fv_ctx_err(c)->text);
    if (a->e.code) return fv_fail(e, a->e.code, "%s", a->e.text);
    if (!a->layer) return fv_fail(e, FV_EMISSING, "token times: the model has no cross-attention");
    if (!a->heads)
        return fv_fail(e, FV_EFORMAT,
                       "alignment_heads: the decoder's %lld layers have none of them",
                       (long long)a->layer);
    for (int64_t i = 0; i < (a->n - a->from) * a->cols; i++) a->m[i] /= (float)a->heads;
    warp(at, a->m, a->n - a->from, a->cols, a->cost, a->step);
    return FV_OK;
}

fv_status fv_align(int64_t *at, fv_device *d, const fv_model *m, fv_source_fn *fill, void *user,
                   const int32_t *ids, int64_t n, int64_t from, fv_align_opt o, int64_t *columns,
                   fv_err *e)
{
    fv_items in = {0}, out = {0};
    aligner a = {.env = fv_device_env(d), .o = o, .n = n, .from = from, .cols = *columns};
    fv_ctx *c;
    if (n <= from || from < 0 || o.width < 0 || o.width > WIDEST || (o.width && o.width % 2 == 0))
        return fv_fail(e, FV_EARG, "token times: row %lld of %lld, a median of %d (odd, up to %d)",
                       (long long)from, (long long)n, o.width, (int)WIDEST);
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (st) return st;
    fv_ctx_set_tap(c, on_tap, &a);
    fill(user, c, &in);
    fv_items_put(&in, "decoder_input_ids", fv_ints(c, ids, FV_SHAPE(1, n)));
    fv_model_forward(c, m, &in, &out);
    st = finish(&a, c, at, e);
    *columns = a.all;
    fv__free(a.env, a.w, a.bytes);
    fv_ctx_free(c);
    return st;
}
