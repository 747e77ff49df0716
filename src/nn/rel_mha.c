/* rel_mha.c - Transformer-XL's attention: score_ij = scale * ((q_i + u).k_j + (q_i + v).r_(i-j)).
 *
 * The first term is plain attention with q + u.  The second is one product of all queries with all
 * distances, shifted so that column j of row i is the distance between them, and handed to the
 * operator as a bias: its gradient comes back the same way.  Memory grows with T * L, as it does in
 * the published model. */
#include "nn/part.h"
#include "ops/rel_shift.h"

#include <math.h>

void fv_rel_mha_init(fv_params *p, fv_rel_mha *l, int64_t width, int64_t n_head, fv_mha_opt opt,
                     const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_mha_init(p, &l->att, width, n_head, opt, "%s", at.s);
    int64_t H = l->att.n_head, W = l->att.head;
    fv_lin_init(p, &l->r, width, H * W, (fv_lin_opt){.no_bias = true, .std = opt.in.std},
                "%s.r_net", at.s);
    l->u = fv_param(p, fv__weight(opt.in.std), FV_SHAPE(H, W), "%s.r_w_bias", at.s);
    l->v = fv_param(p, fv__weight(opt.in.std), FV_SHAPE(H, W), "%s.r_r_bias", at.s);
}

/* (B,T,H,W) with (L,D) -> (B,H,T,L): every query by every distance, then shifted.  Zeros behind
 * the distances are what the shift moves in. */
static fv_tensor *by_distance(fv_ctx *c, const fv_rel_mha *l, fv_tensor *q, fv_tensor *positions,
                              float scale)
{
    if (!q) return NULL;
    int64_t B = q->shape.d[0], T = q->shape.d[1], H = q->shape.d[2], W = q->shape.d[3],
            L = fv_rows(positions);
    fv_tensor *r = fv_reshape(c, fv_lin_fwd(c, &l->r, positions), FV_SHAPE(L, H, W));
    r = fv_pad(c, fv_permute(c, r, (int[]){1, 0, 2}), 1, 0, T, 0);
    q = fv_reshape(c, fv_permute(c, q, (int[]){2, 0, 1, 3}), FV_SHAPE(H, B * T, W));
    fv_tensor *s = fv_matmul(c, q, r, (fv_mm){.tb = true, .alpha = scale});
    return fv__rel_bias(c, fv_reshape(c, s, FV_SHAPE(H, B, T, L + T)));
}

/* q of x (B,T,D), the end of memory (B,L,D), and k and v of all of memory.  Where one weight makes
 * all three, memory goes through it as a whole: the queries of earlier states are not used. */
static void project(fv_ctx *c, const fv_mha *m, fv_tensor *x, fv_tensor *memory, fv_tensor *qkv[3])
{
    qkv[0] = qkv[1] = qkv[2] = NULL;
    if (m->qkv.w) {
        int64_t T = fv_dim(x, 1), L = fv_dim(memory, 1);
        fv_split(c, qkv, fv_lin_fwd(c, &m->qkv, memory), 3, -1);
        if (L > T) qkv[0] = fv_slice(c, qkv[0], 1, L - T, L);
        return;
    }
    qkv[0] = fv_lin_fwd(c, &m->q, x);
    qkv[1] = fv_lin_fwd(c, &m->k, memory);
    qkv[2] = fv_lin_fwd(c, &m->v, memory);
}

fv_tensor *fv_rel_mha_fwd(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *positions,
                          fv_mha_arg arg)
{
    const fv_mha *m = &l->att;
    fv_tensor *memory = arg.memory ? arg.memory : x, *qkv[3], *q;
    project(c, m, x, memory, qkv);
    q = qkv[0];
    if (!q || !memory || !positions) return NULL;
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
    how.bias = by_distance(c, l, fv_add(c, q, l->v), positions, scale);
    fv_tensor *qu = fv_reshape(c, fv_add(c, q, l->u), FV_SHAPE(B, T, m->n_head * m->head));
    return fv_lin_fwd(c, &m->out, fv_attention(c, qu, qkv[1], qkv[2], how));
}
