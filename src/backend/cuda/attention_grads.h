/* attention_grads.h - how the kernels of attention's gradients write them. */
#ifndef FV_CUDA_ATTENTION_GRADS_H
#define FV_CUDA_ATTENTION_GRADS_H

#include "attention.h"

/* Rows of a strip of sums to a gradient that is laid out as x is. */
template <int N, class T>
__device__ inline void write_rows(sink<T> to, int64_t base, int64_t step, const float (&c)[N][4], int row0, int rows, int width,
                                  float scale)
{
    bool pairs = width % 2 == 0 && step % 2 == 0 && base % 2 == 0 &&
                 ((uintptr_t)to.p & 7) == 0; /* then two neighbours go together */
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int r = tile_row(row0, i * 2), col = tile_col(0, n, 0);
            const float v[2] = {c[n][i * 2] * scale, c[n][i * 2 + 1] * scale};
            if (r >= rows) continue;
            if (pairs && col < width)
                deliver(to, base + r * step + col, v);
            else
                for (int e = 0; e < 2; e++)
                    if (col + e < width) put(to, base + r * step + col + e, v[e]);
        }
}

/* Sums of dq that many blocks add to, in any order: whole numbers, in units of each query.  No number of dq_i is larger than
 *
 *     sum_j |ds_ij| max |k|  <=  2 keep |dy_i| max_j |v_j| max |k|,
 *
 * and that, of its head, is less than 2^30 units.  The bound is some thousand times too large as a rule, which leaves twice the
 * bits that a result of 16 bits has.  Where a few keys or values are far larger than the others it is looser by as much; such
 * heads add what is left of each part in units of 2^-20, too. */
struct whole_sums {
    uint32_t *top; /* for each head of keys TOPS numbers */
    float *unit;   /* for each query units in 1, a power of 2; 0 where dy is 0, NaN where there is no bound */
    int4 *sum;     /* attention_hopper_bwd.cu */
    int4 *rest;    /* of loose heads */
    int parts;     /* of a head */
    int *next;     /* items that were taken */
};
int64_t fv_cuda_hopper_sums(const fv_attn_args *a); /* how many numbers of each */
#define PART 4096                                   /* that are added at a time: 64 queries by 64 numbers */
#define REST_UNITS 1048576.f
#define MOST_KEYS (1 << 18) /* 2048 blocks' rests are 2^30 such units at most */

/* The greatest |k| and the square of the greatest |v_j| of a head; and, inverted, the least that these are among some dozen keys.
 * Bits of positive floats are in their order. */
enum { TOP_K, TOP_V, LOW_K, LOW_V, TOPS };
#define LOOSE 16.f

__device__ inline bool is_loose(const uint32_t *top)
{
    float k = __uint_as_float(top[TOP_K]) / __uint_as_float(~top[LOW_K]);
    float v = sqrtf(__uint_as_float(top[TOP_V]) / __uint_as_float(~top[LOW_V]));
    return !(k * v <= LOOSE);
}

/* attention_hopper_bwd.cu: gradients of queries, keys and values.  False where this is another case. */
template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const job<T> *o, const fv_attn_grads *g, const float2 *stat, whole_sums sums);
template <>
inline bool fv_cuda_attention_hopper_bwd<float>(fv_stream *, const job<float> *, const fv_attn_grads *, const float2 *,
                                                whole_sums)
{
    return false;
}

/* attention_hopper_bias.cu: the gradient of a bias by pairs.  False likewise. */
template <class T> bool fv_cuda_bias_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat);
template <> inline bool fv_cuda_bias_hopper<float>(fv_stream *, const job<float> &, const fv_attn_grads *, const float2 *)
{
    return false;
}

#endif
