/* in_out_sm90.cu - C = A W + bias with W stored (K,N), as in GPT-2's checkpoints; or p = A W + bias
 * and C = GELU_tanh(p), keeping p for the backward.
 *
 * wgmma leaves a thread two adjacent columns of every eight; each warp transposes a run of 32
 * columns through smem (stmatrix, then 16-byte loads) to store 16 bytes of a row at once.  A run is
 * computed, transposed and stored as a whole, so that its loads and stores are in flight together:
 * with one warp per scheduler no other warp hides their latency. */
#include "gemm_sm90.h"
#include "backend/cuda/rows/scalar.h"

namespace
{

#define MAX_K 1024 /* without GELU; beyond, cuBLASLt is faster */

struct transpose_buffer {
    bf16 of[2][4][8 * 32]; /* p and C, each four blocks of eight rows of 32 */
};
struct in_out_smem {
    gemm_smem gemm;
    transpose_buffer warp[8];
};

/* Eight rows of 32 elements: 16-byte chunk c of row r is stored as chunk c xor (r / 2 % 4). */
__device__ inline bf16 *swizzled(bf16 *of, int row, int c)
{
    return of + row * 32 + (c ^ row / 2 % 4) * 8;
}

template <bool GELU> struct in_out_epilogue {
    static constexpr bool IN_OUT = true;
    typedef in_out_smem smem;
    bf16 *c, *p;      /* p: the pre-activation, of C's shape; with GELU alone */
    const bf16 *bias; /* or NULL */
    int m, n, ldc;
    transpose_buffer *pingpong; /* this warp's; set in the kernel */

    __device__ void begin(smem *r) { pingpong = &r->warp[threadIdx.x / 32 % 8]; }
    __device__ void produce(const gemm_tiles &) const {}

    /* Per run of 32 columns: bias and GELU in registers; stmatrix writes 8x8 blocks to the warp's
     * buffer, 16-byte loads read rows back; both directions are free of bank conflicts. */
    __device__ void epilogue(gemm_acc &s, int row, int column) const
    {
        int lane = threadIdx.x % 32;
        int64_t at = (int64_t)(row + first_row()) * ldc + column + first_column();
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            float b[4][2];
            if (column + 32 * j >= n) break;
#pragma unroll
            for (int o = 0; o < 4; o++)
                load_smem(b[o], bias + column + 32 * j + 8 * o + lane % 4 * 2);
            uint32_t before[4][4], y[4][4];
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    const float *sum = &s[e / 2][4 * j + o][e % 2 * 2];
                    float u = sum[0] + b[o][0], v = sum[1] + b[o][1];
                    if (GELU) before[e][o] = pack2(u, v, bf16());
                    y[e][o] = GELU ? pack2(gelu_tanh_approx(u), gelu_tanh_approx(v), bf16())
                                   : pack2(u, v, bf16());
                }
            __syncwarp(); /* the previous run has been read */
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (GELU) stmatrix_x4(swizzled(pingpong->of[0][e], lane % 8, lane / 8), before[e]);
                stmatrix_x4(swizzled(pingpong->of[1][e], lane % 8, lane / 8), y[e]);
            }
            __syncwarp();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (GELU) load_smem(before[e], swizzled(pingpong->of[0][e], lane / 4, lane % 4));
                load_smem(y[e], swizzled(pingpong->of[1][e], lane / 4, lane % 4));
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool inside = row + first_row() + row_at(e) < m &&
                              column + 32 * j + first_column() < n;
                int64_t to = at + (int64_t)row_at(e) * ldc + 32 * j;
                if (GELU && inside) store_all(p + to, before[e]);
                if (inside) store_all(c + to, y[e]);
            }
        }
    }
};

} // namespace

bool fv_cuda_gemm_in_out(fv_stream *s, const fv_gemm *g)
{
    CUtensorMap a, w;
    bool gelu = g->act == FV_GELU_TANH && g->pre,
         none = g->act == FV_ACT_NONE && !g->pre && g->k <= MAX_K;
    if (!device_of(s)->hopper || g->tb || g->plus || !(gelu || none) || g->n > MAX_BIAS ||
        !aligned(g->pre) || !fits_tiles(g) || !enough_tiles(s, g) || !describe(&a, &w, g))
        return false;
    if (gelu) {
        in_out_epilogue<true> end = {};
        end.p = (bf16 *)g->pre;
        launch_tiles(s, g, a, w, end);
    } else {
        launch_tiles(s, g, a, w, in_out_epilogue<false>{});
    }
    return true;
}
