/* rel_mha.c - Transformer-XL's attention: score_ij = scale * ((q_i + u).k_j + (q_i + v).r_(i-j)).
 *
 * The first term is plain attention with q + u.  The second is one product of all queries with all
 * distances, shifted so that column j of row i is the distance between them, and handed to the
 * operator as a bias: its gradient comes back the same way.  Memory grows with T * L, as it does in
 * the published model.
 *
 * Keys do not depend on distances, so segments that follow one another may carry keys and values
 * instead of states (fv_rel_past): then a segment costs what its own tokens cost, and the products
 * of attention, however long the memory is.  The projected distances are the same for all segments
 * of one length, and are carried too. */
#include "core/adapter.h"
#include "nn/part.h"
#include "ops/rel_shift.h"

#include <math.h>
#include <string.h>

void fv_rel_mha_init(fv_params *p, fv_rel_mha *l, int64_t width, int64_t n_head, fv_mha_opt opt,
                     const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_mha_init(p, &l->att, width, n_head, opt, "%s", at.s);
    int64_t H = l->att.n_head, W = l->att.head;
    l->dropout = l->dropconnect = 0;
    fv_lin_init(p, &l->r, width, H * W, (fv_lin_opt){.no_bias = true, .std = opt.in.std},
                "%s.r_net", at.s);
    l->u = fv_param(p, fv__weight(opt.in.std), FV_SHAPE(H, W), "%s.r_w_bias", at.s);
    l->v = fv_param(p, fv__weight(opt.in.std), FV_SHAPE(H, W), "%s.r_r_bias", at.s);
}

typedef struct waves {
    int32_t n, width, clamp;
} waves;

/* Row by row: sines of a distance, then cosines. */
static void fill_waves(void *out, const void *user, int64_t from, int64_t n)
{
    const waves *w = user;
    int64_t half = w->width / 2;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (from + i) / w->width, col = (from + i) % w->width;
        int64_t distance = w->n - 1 - row;
        if (w->clamp > 0 && distance > w->clamp) distance = w->clamp;
        double angle = (double)distance / pow(10000, (double)(2 * (col % half)) / (double)w->width);
        ((float *)out)[i] = (float)(col < half ? sin(angle) : cos(angle));
    }
}

fv_tensor *fv__distances(fv_ctx *c, int64_t n, int64_t width, int64_t clamp)
{
    waves w;
    memset(&w, 0, sizeof w); /* its bytes are compared */
    w.n = (int32_t)n;
    w.width = (int32_t)width;
    w.clamp = (int32_t)clamp;
    return fv__table(c, FV_F32, FV_SHAPE(n, width), fill_waves, &w, sizeof w);
}

/* q (B,T,H,W) with r (L,H W) -> (B,H,T,L): every query by every distance, then shifted.  Zeros
 * behind the distances are what the shift moves in. */
static fv_tensor *by_distance(fv_ctx *c, fv_tensor *q, fv_tensor *r, float scale)
{
    if (!q || !r) return NULL;
    int64_t B = q->shape.d[0], T = q->shape.d[1], H = q->shape.d[2], W = q->shape.d[3],
            L = fv_rows(r);
    r = fv_reshape(c, r, FV_SHAPE(L, H, W));
    r = fv_pad(c, fv_permute(c, r, (int[]){1, 0, 2}), 1, 0, T, 0);
    q = fv_reshape(c, fv_permute(c, q, (int[]){2, 0, 1, 3}), FV_SHAPE(H, B * T, W));
    fv_tensor *s = fv_matmul(c, q, r, (fv_mm){.tb = true, .alpha = scale});
    return fv__rel_bias(c, fv_reshape(c, s, FV_SHAPE(H, B, T, L + T)));
}

/* x through a projection of which some weights are dropped (Wan et al. 2013).  An adapter hangs on
 * the parameter itself, so weights that have one stay whole. */
static fv_tensor *projected(fv_ctx *c, const fv_rel_mha *l, const fv_lin *by, fv_tensor *x)
{
    fv_lin some = *by;
    if (l->dropconnect > 0 && fv_ctx_training(c) && !fv__param_adapter(by->w))
        some.w = fv_dropout(c, by->w, l->dropconnect);
    return fv__variational_dropout(c, fv_lin_fwd(c, &some, x), l->dropout);
}

/* q of x (B,T,D), the end of memory (B,L,D), and k and v of all of memory.  Where one weight makes
 * all three, memory goes through it as a whole: the queries of earlier states are not used. */
static void project(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *memory,
                    fv_tensor *qkv[3])
{
    const fv_mha *m = &l->att;
    qkv[0] = qkv[1] = qkv[2] = NULL;
    if (m->qkv.w) {
        int64_t T = fv_dim(x, 1), L = fv_dim(memory, 1);
        fv_split(c, qkv, projected(c, l, &m->qkv, memory), 3, -1);
        if (L > T) qkv[0] = fv_slice(c, qkv[0], 1, L - T, L);
        return;
    }
    qkv[0] = projected(c, l, &m->q, x);
    qkv[1] = projected(c, l, &m->k, memory);
    qkv[2] = projected(c, l, &m->v, memory);
}

/* What keys and values go on from: the past's in front of those of x (B,T,D), or without one those
 * of memory (B,L,D), whose end is x.  Then *past has all of them. */
static fv_tensor *queries(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *memory,
                          fv_tensor *positions, fv_rel_past *past)
{
    fv_tensor *qkv[3], *k = past->k, *v = past->v;
    project(c, l, x, k ? x : memory, qkv);
    past->k = k ? fv_concat(c, (fv_tensor *[]){k, qkv[1]}, 2, 1) : qkv[1];
    past->v = v ? fv_concat(c, (fv_tensor *[]){v, qkv[2]}, 2, 1) : qkv[2];
    if (!past->r) past->r = projected(c, l, &l->r, positions);
    return qkv[0];
}

fv_tensor *fv__rel_mha_past(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *positions,
                            fv_rel_past *past, fv_mha_arg arg)
{
    const fv_mha *m = &l->att;
    fv_tensor *memory = arg.memory ? arg.memory : x, *q = queries(c, l, x, memory, positions, past);
    if (!q || !memory || !past->r) return NULL;
    if (q->shape.n != 3 || memory->shape.n != 3 || arg.kv || arg.bias)
        return fv_raise(
            c, FV_EARG,
            "%s: x %s, memory %s; a cache or another bias does not go with relative positions",
            m->name, fv_desc(x).s, fv_desc(memory).s);
    int64_t B = q->shape.d[0], T = q->shape.d[1];
    float scale = m->scale != 0 ? m->scale : (float)(1 / sqrt((double)m->head));
    q = fv_reshape(c, q, FV_SHAPE(B, T, m->n_head, m->head));
    fv_attn how = {.n_head = m->n_head,
                   .n_kv_head = m->n_kv_head,
                   .causal = arg.causal,
                   .window = m->window,
                   .scale = scale,
                   .dropout = m->dropout,
                   .key_mask = arg.key_mask,
                   .mask = arg.mask,
                   .name = m->name};
    how.bias = by_distance(c, fv_add(c, q, l->v), past->r, scale);
    fv_tensor *qu = fv_reshape(c, fv_add(c, q, l->u), FV_SHAPE(B, T, m->n_head * m->head));
    return fv_lin_fwd(c, &m->out, fv_attention(c, qu, past->k, past->v, how));
}

fv_tensor *fv_rel_mha_fwd(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *positions,
                          fv_mha_arg arg)
{
    fv_rel_past none = {0};
    return positions ? fv__rel_mha_past(c, l, x, positions, &none, arg) : NULL;
}
