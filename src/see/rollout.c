/* rollout.c - attention rollout: where the content of a token comes from, through all layers.
 *
 * Abnar and Zuidema (2020): a layer passes on (A + I) / 2, A the mean of its heads, rows made to
 * add up to 1; layers are
 * multiplied, R = A_L ... A_1.  The product is taken from the left, a few rows at a time,
 *
 *     v <- v A_l    from the last layer down,
 *
 * so that rows asked for alone are computed alone and no matrix is stored.  Their paper has no
 * cross-attention; we follow the paths on: at a decoder layer a token is half itself and half the
 * memory that it reads, and the memory is what the encoder's rollout says it is. */
#include "see.h"

/* What all steps of a rollout share. */
typedef struct roll {
    fv_see *s;
    int64_t n; /* rows carried at once */
    float *block, *scratch;
    int64_t size; /* of either, in rows of the widest map */
} roll;

/* One layer: of v (n,rows) the part that stays, in place, and the part that is read, added to
 * `read` (n,cols). */
static fv_status pass(roll *r, fv_see_kind k, int64_t layer, double *v, double *read, fv_err *e)
{
    const fv_see_map *m = &r->s->map[k];
    for (int64_t at = 0; at < m->rows; at += r->size) {
        int64_t end = at + r->size < m->rows ? at + r->size : m->rows;
        fv_status st = fv__see_layer_rows(r->s, k, layer, FV_SEE_ALL, at, end, r->block, r->scratch,
                                          e);
        if (st) return st;
        for (int64_t i = at; i < end; i++) {
            const float *a = r->block + (i - at) * m->cols;
            double sum = 1; /* itself; a row that sees nothing keeps all of it */
            for (int64_t j = 0; j < m->cols; j++) sum += (double)a[j];
            for (int64_t x = 0; x < r->n; x++) {
                double share = v[x * m->rows + i] /= sum, *to = read + x * m->cols;
                for (int64_t j = 0; j < m->cols; j++) to[j] += share * (double)a[j];
            }
        }
    }
    return FV_OK;
}

/* Self-attention: what is read joins what stays. */
static fv_status through(roll *r, fv_see_kind k, int64_t layer, double *v, double *temp, fv_err *e)
{
    int64_t n = r->n * r->s->map[k].rows;
    memset(temp, 0, (size_t)n * sizeof *temp);
    fv_status st = pass(r, k, layer, v, temp, e);
    for (int64_t i = 0; i < n; i++) v[i] += temp[i];
    return st;
}

/* Rows [from, from+n) of the rollout; v, temp, source hold n rows of the widest map each. */
static fv_status rows(roll *r, fv_see_kind k, int64_t layer, int64_t from, double *v, double *temp,
                      double *source, float *out, fv_err *e)
{
    const fv_see_map *map = r->s->map;
    bool cross = k == FV_SEE_CROSS;
    fv_see_kind self = cross ? FV_SEE_DECODER : k;
    fv_status st = FV_OK;
    memset(v, 0, (size_t)(r->n * map[k].rows) * sizeof *v);
    for (int64_t x = 0; x < r->n; x++) v[x * map[k].rows + from + x] = 1;
    if (cross) memset(source, 0, (size_t)(r->n * map[k].cols) * sizeof *source);
    for (int64_t l = layer; !st && l >= 0; l--) {
        if (cross) st = pass(r, FV_SEE_CROSS, l, v, source, e);
        if (!st) st = through(r, self, l, v, temp, e);
    }
    const double *result = cross ? source : v;
    for (int64_t l = map[FV_SEE_ENCODER].layers - 1; cross && !st && l >= 0; l--)
        st = through(r, FV_SEE_ENCODER, l, source, temp, e);
    for (int64_t i = 0; !st && i < r->n * map[k].cols; i++) out[i] = (float)result[i];
    return st;
}

/* For the page, which has all rows and wants the rollout after every layer: R_l = A_l R_(l-1) from
 * the right costs one product a layer, where v <- v A_l would start again for each. */
void fv__see_rollout_step(double *next, const double *r, const float *mean, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float *a = mean + i * n;
        double *to = next + i * n, sum = 1;
        memcpy(to, r + i * n, (size_t)n * sizeof *to);
        for (int64_t j = 0; j < n; j++) {
            double share = (double)a[j];
            const double *from = r + j * n;
            sum += share;
            if (share == 0) continue; /* half of a causal map */
            for (int64_t x = 0; x < n; x++) to[x] += share * from[x];
        }
        for (int64_t x = 0; x < n; x++) to[x] /= sum;
    }
}

/* Self-attention must be square, and the three maps of a translation must fit each other. */
static bool fits(const fv_see *s, fv_see_kind k)
{
    const fv_see_map *enc = &s->map[FV_SEE_ENCODER], *dec = &s->map[FV_SEE_DECODER],
                     *x = &s->map[k];
    if (k != FV_SEE_CROSS) return x->rows == x->cols;
    return dec->layers == x->layers && dec->rows == dec->cols && dec->rows == x->rows &&
           enc->rows == enc->cols && enc->rows == x->cols;
}

fv_status fv__see_rolls(const fv_see *s, fv_see_kind k, fv_err *e)
{
    if (fits(s, k)) return FV_OK;
    return fv_fail(
        e, FV_ESHAPE,
        "%s attention: layers do not follow one another token by token, so there is no rollout",
        fv_see_kind_name(k));
}

fv_status fv__see_rollout(fv_see *s, fv_see_kind k, int64_t layer, int64_t from, int64_t to,
                          float *out, fv_err *e)
{
    fv_status st = fv__see_rolls(s, k, e);
    if (st) return st;
    int64_t wide = 1, cols = s->map[k].cols;
    for (int i = 0; i < FV_SEE_KINDS; i++) {
        wide = s->map[i].rows > wide ? s->map[i].rows : wide;
        wide = s->map[i].cols > wide ? s->map[i].cols : wide;
    }
    /* as many rows at once as fit a block: each weight that is computed serves all of them */
    int64_t most = fv__see_block(wide), n = to - from < most ? to - from : most;
    roll r = {.s = s, .size = most < wide ? most : wide};
    size_t floats = (size_t)(2 * r.size * wide) * sizeof(float),
           doubles = (size_t)(3 * n * wide) * sizeof(double);
    r.block = fv__alloc(s->env, floats);
    double *v = fv__alloc(s->env, doubles);
    st = r.block && v ? FV_OK : fv_fail(e, FV_ENOMEM, "rollout: out of memory");
    if (!st) r.scratch = r.block + r.size * wide;
    for (int64_t at = from; !st && at < to; at += n) {
        r.n = to - at < n ? to - at : n;
        st = rows(&r, k, layer, at, v, v + n * wide, v + 2 * n * wide, out + (at - from) * cols, e);
    }
    fv__free(s->env, r.block, floats);
    fv__free(s->env, v, doubles);
    return st;
}
