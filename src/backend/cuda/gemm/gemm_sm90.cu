/* gemm_sm90.cu - C = A W' + bias, or the gelu of it, for many rows of bf16 on Hopper.
 *
 * The library has no kernel for this gelu (its own is the tanh one), and a pass over the result
 * costs a tenth of a BERT layer.  And where a sum is short the ends of tiles weigh: the library
 * lets the tensor cores wait there. */
#include "gemm_sm90.h"
#include "backend/cuda/rows/scalar.h"

/* Of a product without gelu: where it was seen to be faster than the library. */
#define MAX_K 1024
#define MAX_N 4096

template <bool GELU> struct finish {
    static constexpr bool IN_OUT = false;
    bf16 *c;
    const bf16 *bias; /* or NULL; once a kernel runs, its own copy, as wide as tiles are */
    int m, n, ldc;

    __device__ void produce(const tiles &) const {}
    __device__ void epilogue(sums &s, int row, int column) const
    {
        row += first_row(), column += first_column();
        bf16 *to = c + (int64_t)row * ldc + column;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            float b[8];
            if (column + 32 * j >= n) break;
            load_smem(b, bias + column + 32 * j);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float v[8];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (GELU)
                        v[i] = gelu_scaled(
                            fmaf(sum_at(s, j, e, i), 1 / GELU_REACH, b[i] * (1 / GELU_REACH)));
                    else
                        v[i] = sum_at(s, j, e, i) + b[i];
                if (row + row_at(e) < m) store_all(to + (int64_t)row_at(e) * ldc + 32 * j, v);
            }
        }
    }
};

template <class END>
__global__ void __launch_bounds__(3 * GROUP, 1)
    by_tiles(const __grid_constant__ tiles t, const __grid_constant__ CUtensorMap a,
             const __grid_constant__ CUtensorMap w, const __grid_constant__ END end)
{
    extern __shared__ uint8_t memory[];
    gemm_smem *r = gemm_smem_at(memory);
    END mine = end;
    if (threadIdx.x == 0) gemm_smem_init(r);
    pdl_wait();
    pdl_launch_dependents();
    mine.bias = load_bias((bf16 *)(r + 1), end.bias, t);
    __syncthreads();
    run_block(t, r, &a, &w, mine);
}

/* Tiles for most processors.  A long sum without gelu is the library's. */
static bool preferred(const fv_stream *s, const fv_gemm *g)
{
    bool ours = g->act == FV_GELU || (g->act == FV_ACT_NONE && g->k <= MAX_K && g->n <= MAX_N);
    return ours && g->n <= MAX_BIAS && enough_tiles(s, g);
}

template <bool GELU>
static void start(fv_stream *s, const fv_gemm *g, const CUtensorMap &a, const CUtensorMap &w)
{
    tiles t = tiles_of(g);
    finish<GELU> end = {(bf16 *)g->c, (const bf16 *)g->bias, t.m, t.n, (int)g->ldc};
    size_t shared = sizeof(gemm_smem) + 1024 + bias_bytes(t);
    launch_pdl(s, "gemm", true, by_tiles<finish<GELU>>, dim3(blocks_for(s, t)), 3 * GROUP, shared,
               t, a, w, end);
}

bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g)
{
    CUtensorMap a, w;
    if (!device_of(s)->hopper || !g->tb || g->pre || g->plus || !fits_tiles(g) ||
        !preferred(s, g) || !describe(&a, &w, g))
        return false;
    if (g->act == FV_GELU)
        start<true>(s, g, a, w);
    else
        start<false>(s, g, a, w);
    return true;
}
