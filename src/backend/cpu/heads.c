/* heads.c - q, k and v of a decode step from one product to attention (fused_heads): by the kernels
 * of norm and rotation, so that a row has the bits that these ops would give it.
 *
 * A few thousand numbers a row, which one thread moves in less time than starting others takes. */
#include <string.h>

#include "norm.h"
#include "backend/stream.h"

/* n heads of q, k or v (which: 0, 1, 2) of row i, where the product has put the first of them. */
static const float *heads_of(const fv_fused_heads *a, int64_t i, int which, int64_t *apart)
{
    int64_t H = a->H, G = a->G, first = a->by_head ? which : which ? H + (which - 1) * G : 0;
    *apart = (int64_t)a->W * (a->by_head ? 3 : 1);
    return a->x + (i * (H + 2 * G) + first) * a->W;
}

static void copy_heads(float *to, const fv_fused_heads *a, int64_t i, int which, const float *gain)
{
    int64_t n = which ? a->G : a->H, W = a->W, apart;
    const float *from = heads_of(a, i, which, &apart);
    for (int64_t h = 0; h < n; h++)
        if (gain)
            NAME(norm_row)(to + h * W, from + h * apart, gain, NULL, W, false, a->eps);
        else
            memcpy(to + h * W, from + h * apart, (size_t)W * sizeof *to);
}

static void rotate(fv_stream *s, float *x, const fv_fused_heads *a, int64_t i, int64_t n)
{
    const fv_fused_rope *o = &a->rope;
    if (!o->freq) return;
    s->dev->k[FV_F32]->rope(s, (fv_sink){.data = x, .dtype = FV_F32}, x, o->pos + i,
                            o->freq + i * o->freq_row, 1, 1, n, a->W, o->half, o->adjacent, false);
    for (int64_t h = 0; h < n && a->factor != 1; h++)
        for (int64_t e = 0; e < 2 * o->half; e++) x[h * a->W + e] *= a->factor;
}

static bool fused_heads(fv_stream *s, const fv_fused_heads *a)
{
    if (a->yt != FV_F32) return false;
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t at = i * a->cache_batch + a->pos[i] * a->cache_row;
        float *q = (float *)a->y + i * a->H * a->W, *k = (float *)a->k_cache + at;
        copy_heads(q, a, i, 0, a->q_gain);
        copy_heads(k, a, i, 1, a->k_gain);
        copy_heads((float *)a->v_cache + at, a, i, 2, NULL);
        rotate(s, q, a, i, a->H);
        rotate(s, k, a, i, a->G);
    }
    return true;
}

void NAME(heads)(fv_kernels *k);
void NAME(heads)(fv_kernels *k)
{
    if (k->dtype == FV_F32) k->fused_heads = fused_heads;
}
