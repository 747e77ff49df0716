/* in_out_sm90.cu - C = A W + bias, W stored (K,N) as GPT-2 has its weights, or the approximate gelu
 * of it with p kept beside.
 *
 * A warp turns what it has of a run of 32 columns in shared memory: the tensor cores leave a thread
 * two columns of every eight, and 16 bytes of a row are to be written at once.  A run is worked on,
 * turned and stored as a whole: one warp for each scheduler has no other to wait with. */
#include "gemm_sm90.h"
#include "backend/cuda/rows/scalar.h"

#define MAX_K 1024 /* a longer sum without gelu is the library's */

struct transpose_buffer {
    bf16 of[2][4][8 * 32]; /* of p and of C: eight rows of 32, four times */
};
struct in_out_smem {
    gemm_smem r;
    transpose_buffer warp[8];
};

/* Eight rows of 32 numbers: the 16 bytes numbered c of row r stand at place c xor (r / 2 % 4). */
__device__ inline bf16 *swizzled(bf16 *of, int row, int c)
{
    return of + row * 32 + (c ^ row / 2 % 4) * 8;
}

template <bool GELU> struct finish {
    static constexpr bool IN_OUT = true;
    bf16 *c, *p;      /* p: of C's shape, with GELU alone */
    const bf16 *bias; /* or NULL; once a kernel runs, its own copy, as wide as tiles are */
    int m, n, ldc;
    transpose_buffer *pingpong; /* in the kernel alone */

    __device__ void produce(const tiles &) const {}
    __device__ void epilogue(sums &s, int row, int column) const
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
            __syncwarp(); /* the run before has been read */
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

template <bool GELU>
__global__ void __launch_bounds__(3 * GROUP, 1)
    in_out_by_tiles(const __grid_constant__ tiles t, const __grid_constant__ CUtensorMap a,
                    const __grid_constant__ CUtensorMap w, const __grid_constant__ finish<GELU> end)
{
    extern __shared__ uint8_t memory[];
    in_out_smem *r = (in_out_smem *)gemm_smem_at(memory);
    finish<GELU> mine = end;
    if (threadIdx.x == 0) gemm_smem_init(&r->r);
    pdl_wait();
    pdl_launch_dependents();
    mine.bias = load_bias((bf16 *)(r + 1), end.bias, t);
    mine.pingpong = &r->warp[threadIdx.x / 32 % 8];
    __syncthreads();
    run_block(t, &r->r, &a, &w, mine);
}

/* ---- on the host ---- */

template <bool GELU>
static void start(fv_stream *s, const fv_gemm *g, const CUtensorMap &a, const CUtensorMap &w)
{
    tiles t = tiles_of(g);
    finish<GELU> end = {(bf16 *)g->c, (bf16 *)g->pre, (const bf16 *)g->bias, t.m, t.n, (int)g->ldc,
                        NULL};
    launch_pdl(s, "gemm", true, in_out_by_tiles<GELU>, dim3(blocks_for(s, t)), 3 * GROUP,
               sizeof(in_out_smem) + 1024 + bias_bytes(t), t, a, w, end);
}

bool fv_cuda_gemm_in_out(fv_stream *s, const fv_gemm *g)
{
    CUtensorMap a, w;
    bool gelu = g->act == FV_GELU_TANH && g->pre,
         none = g->act == FV_ACT_NONE && !g->pre && g->k <= MAX_K;
    if (!device_of(s)->hopper || g->tb || g->plus || !(gelu || none) || g->n > MAX_BIAS ||
        !aligned(g->pre) || !fits_tiles(g) || !enough_tiles(s, g) || !describe(&a, &w, g))
        return false;
    if (gelu)
        start<true>(s, g, a, w);
    else
        start<false>(s, g, a, w);
    return true;
}
