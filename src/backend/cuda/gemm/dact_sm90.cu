/* dact_sm90.cu - products whose epilogue reads a second matrix p of C's shape:
 *
 *     dp = act'(p) * (dy W'), the backward through y = act(p) W with act GELU or its tanh form, and
 *     dp's column sums, the gradient of p's bias;      C = A W' + bias + p, p a residual stream
 *
 * A second producer warp loads p by TMA, panel by panel, during the main loop of its tile.  A run
 * of 32 columns is loaded, computed and stored as a whole, so that its accesses are in flight
 * together: with one warp per scheduler no other warp hides their latency.
 *
 * Where W' is stored (K,N) (IN_OUT: the weight of a linear layer stored (out,in)) a thread has two
 * adjacent columns of every eight.  dp then overwrites p in shared memory and is read back by
 * rows, so that the transposition needs no buffer of its own: there is no room for one. */
#include "gemm_sm90.h"
#include "backend/cuda/rows/scalar.h"

namespace
{

#define MAX_PLUS_BIAS 3072

/* 160 KiB of stages and 48 KiB of p: one buffer of p, refilled panel by panel behind its
 * readers. */
struct dact_smem {
    bf16 p[TILE_M * TILE_N]; /* panels */
    gemm_smem r;
    union {
        float part[2][4][TILE_N]; /* column sums of each warp */
        bf16 bias[MAX_PLUS_BIAS];
    };
    /* of p; full: one per warpgroup, as parity could not tell their phases apart */
    uint64_t full[2][TILE_N / PANEL], empty[TILE_N / PANEL];
};
static_assert(offsetof(dact_smem, r) % 1024 == 0, "panels begin at multiples of 1024 bytes");

/* Sums eight values over the eight lanes that hold the same columns; a lane gets the sum of column
 * column_of(lane) of the run.  Seven shuffles instead of 24: each step halves the values too. */
__device__ inline float reduce_rows(float (&v)[8], int lane)
{
#pragma unroll
    for (int n = 4; n; n /= 2) {
        bool upper = lane & 4 * n;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float kept = upper ? v[i + n] : v[i], given = upper ? v[i] : v[i + n];
            v[i] = kept + __shfl_xor_sync(~0u, given, 4 * n);
        }
    }
    return v[0];
}
/* Value i = lane / 4 of a thread's eight: of adjacent columns, or of two in every eight. */
template <bool IN_OUT> __device__ inline int column_of(int lane)
{
    int i = lane / 4;
    return IN_OUT ? i / 2 * 8 + lane % 4 * 2 + i % 2 : lane % 4 * 8 + i;
}

template <fv_unary_op OP> __device__ inline float act_grad(float x)
{
    return OP == FV_U_GELU ? gelu_grad_approx(x) : gelu_tanh_grad_approx(x);
}

__device__ inline uint32_t load_pair(const bf16 *from)
{
    uint32_t w;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(smem_addr(from)) : "memory");
    return w;
}
__device__ inline void store_pair(bf16 *to, uint32_t w)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem_addr(to)), "r"(w) : "memory");
}

/* What both epilogues are: p in shared memory. */
struct beside_p {
    bf16 *c;
    int m, n, ldc;
    dact_smem *r; /* from here on: set in the kernel */
    const CUtensorMap *p;
    int use; /* tiles that this thread's warpgroup has had */

    /* One buffer of p per block: panel q is refilled once the four warps that read it have left. */
    __device__ void produce(const gemm_tiles &t) const
    {
        int pingpong = 0;
        for (int i = blockIdx.x; i < t.count; i += gridDim.x, pingpong++) {
#pragma unroll
            for (int q = 0; q < TILE_N / PANEL; q++) {
                uint64_t *full = &r->full[pingpong & 1][q];
                mbarrier_wait(&r->empty[q], (pingpong & 1) ^ 1);
                mbarrier_arrive_expect_tx(full, TILE_M * PANEL * sizeof(bf16));
                tma_load_2d(r->p + q * TILE_M * PANEL, p, full, i % t.columns * TILE_N + q * PANEL,
                            i / t.columns * TILE_M);
            }
        }
    }

    /* Row first_row() of p, run j: this thread's eight columns where the swizzle has put them. */
    __device__ bf16 *eight_of_p(int j) const
    {
        int lane = threadIdx.x % 32;
        return r->p + j / 2 * TILE_M * PANEL + first_row() * PANEL +
               ((j % 2 * 4 + lane % 4) ^ lane / 4) * 8;
    }
};

template <bool LAYOUT, fv_unary_op OP> struct dact_epilogue : beside_p {
    static constexpr bool IN_OUT = LAYOUT;
    float *part; /* (rows of tiles,n) */

    __device__ void begin() {}

    /* (x, y) = two sums of the product -> two of dp, packed; total: their column sums so far. */
    __device__ static uint32_t two_of_dp(float x, float y, uint32_t p_pair, float *total)
    {
        float q[2];
        widen(q, p_pair);
        x *= act_grad<OP>(q[0]), y *= act_grad<OP>(q[1]);
        total[0] += x, total[1] += y;
        return pack2(x, y, bf16());
    }

    /* Run j of 32 columns: dp in w, eight columns of each of four rows, and the thread's sums. */
    __device__ void run_of_dp(gemm_acc &s, int j, uint32_t (&w)[4][4], float (&total)[8]) const
    {
        int lane = threadIdx.x % 32;
        bf16 *rows = r->p + j / 2 * TILE_M * PANEL + first_row() * PANEL, *by_eight = eight_of_p(j);
        if constexpr (!IN_OUT) {
#pragma unroll
            for (int e = 0; e < 4; e++) load_smem(w[e], by_eight + row_at(e) * PANEL);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[e][i] = two_of_dp(acc_at(s, j, e, 2 * i), acc_at(s, j, e, 2 * i + 1), w[e][i],
                                        total + 2 * i);
        } else {
            bf16 *by_two[4]; /* chunk o of a row, where the swizzle has put it */
#pragma unroll
            for (int o = 0; o < 4; o++)
                by_two[o] = rows + ((j % 2 * 4 + o) ^ lane / 4) * 8 + lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int o = 0; o < 4; o++) w[e][o] = load_pair(by_two[o] + row_at(e) * PANEL);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int o = 0; o < 4; o++) {
                    const float *sum = &s[e / 2][4 * j + o][e % 2 * 2];
                    store_pair(by_two[o] + row_at(e) * PANEL,
                               two_of_dp(sum[0], sum[1], w[e][o], total + 2 * o));
                }
            __syncwarp(); /* a warp's rows are its own */
#pragma unroll
            for (int e = 0; e < 4; e++) load_smem(w[e], by_eight + row_at(e) * PANEL);
            fence_async_proxy(); /* TMA will write where this warp has written */
        }
    }

    /* dp = acc * act'(p), stored; column sums: over a thread's rows, then over lanes
     * (reduce_rows), then over the four warps through smem, in that order. */
    __device__ void epilogue(gemm_acc &s, int row, int column)
    {
        int lane = threadIdx.x % 32, group = warpgroup_index(), warp = threadIdx.x % GROUP / 32;
        bf16 *to = c + (int64_t)(row + first_row()) * ldc + column + first_column();
        warpgroup_sync(1 + group); /* the previous tile's sums have been read */
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            float total[8] = {};
            uint32_t w[4][4];
            if (j % 2 == 0) mbarrier_wait(&r->full[group][j / 2], use & 1);
            run_of_dp(s, j, w, total);
            if (j % 2) warp_arrive(&r->empty[j / 2]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool inside = row + first_row() + row_at(e) < m &&
                              column + 32 * j + first_column() < n;
                if (inside) store_all(to + (int64_t)row_at(e) * ldc + 32 * j, w[e]);
            }
            r->part[group][warp][32 * j + column_of<IN_OUT>(lane)] = reduce_rows(total, lane);
        }
        use++;
        warpgroup_sync(1 + group);
        for (int i = threadIdx.x % GROUP; i < TILE_N && column + i < n; i += GROUP) {
            const float(&of)[4][TILE_N] = r->part[group];
            part[(int64_t)(row / TILE_M) * n + column + i] = of[0][i] + of[1][i] + of[2][i] +
                                                             of[3][i];
        }
    }
};

struct plus_epilogue : beside_p {
    static constexpr bool IN_OUT = false;
    const bf16 *bias; /* or NULL */

    /* As load_bias of gemm_sm90.h, into memory that is there. */
    __device__ void begin()
    {
        for (int i = 8 * threadIdx.x; i < MAX_PLUS_BIAS; i += 8 * blockDim.x)
            *(uint4 *)(r->bias + i) = bias && i < n ? *(const uint4 *)(bias + i) : uint4{};
    }

    __device__ void epilogue(gemm_acc &s, int row, int column)
    {
        int group = warpgroup_index();
        bf16 *to = c + (int64_t)(row + first_row()) * ldc + column + first_column();
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            uint32_t w[4][4];
            float b[8];
            if (j % 2 == 0) mbarrier_wait(&r->full[group][j / 2], use & 1);
            load_smem(b, r->bias + column + 32 * j + first_column());
#pragma unroll
            for (int e = 0; e < 4; e++) load_smem(w[e], eight_of_p(j) + row_at(e) * PANEL);
            if (j % 2) warp_arrive(&r->empty[j / 2]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool inside = row + first_row() + row_at(e) < m &&
                              column + 32 * j + first_column() < n;
                float v[8], q[8];
#pragma unroll
                for (int i = 0; i < 4; i++) widen(q + 2 * i, w[e][i]);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = acc_at(s, j, e, i) + b[i] + q[i];
                if (inside) store_all(to + (int64_t)row_at(e) * ldc + 32 * j, v);
            }
        }
        use++;
    }
};

template <class END>
__global__ void __launch_bounds__(3 * GROUP, 1)
    dact_by_tiles(const __grid_constant__ gemm_tiles t, const __grid_constant__ CUtensorMap a,
                  const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap p,
                  const __grid_constant__ END end)
{
    extern __shared__ uint8_t memory[];
    dact_smem *r = (dact_smem *)gemm_smem_at(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE_N / PANEL; i++) {
            for (int group = 0; group < 2; group++) mbarrier_init(&r->full[group][i], 1);
            mbarrier_init(&r->empty[i], 4);
        }
        gemm_smem_init(&r->r);
    }
    pdl_wait();
    pdl_launch_dependents();
    END mine = end;
    mine.r = r, mine.p = &p, mine.use = 0;
    mine.begin();
    __syncthreads();
    run_block(t, &r->r, &a, &w, mine);
}

/* p (m,n) with C's rows. */
bool describe_p(CUtensorMap *of_p, const fv_gemm *g, const void *p)
{
    const cuuint64_t dim[] = {(cuuint64_t)g->n, (cuuint64_t)g->m},
                     step[] = {(cuuint64_t)g->ldc * 2};
    const cuuint32_t box[] = {PANEL, TILE_M};
    return aligned(p) && fv_cuda_tensor_map_nd(of_p, p, FV_BF16, 2, dim, step, box);
}

template <class END>
void launch_beside_p(fv_stream *s, const fv_gemm *g, const CUtensorMap &a, const CUtensorMap &w,
                     const CUtensorMap &p, END end)
{
    gemm_tiles t = tiles_of(g);
    end.c = (bf16 *)g->c;
    end.m = t.m, end.n = t.n, end.ldc = (int)g->ldc;
    launch_pdl(s, "gemm", true, dact_by_tiles<END>, dim3(blocks_for(s, t)), 3 * GROUP,
               sizeof(dact_smem) + 1024, t, a, w, p, end);
}

template <class END>
void launch_dact(fv_stream *s, const fv_gemm *g, const CUtensorMap &a, const CUtensorMap &w,
                 const CUtensorMap &p, fv_sink sums)
{
    int64_t pieces = ceil_div(g->m, TILE_M);
    END end = {};
    end.part = alloc_scratch<float>(s, pieces * g->n);
    if (!end.part) return;
    launch_beside_p(s, g, a, w, p, end);
    if (sums.data) fv_cuda_sum_pieces(s, sums, end.part, pieces, g->n);
}

} // namespace

bool fv_cuda_gemm_dact(fv_stream *s, const fv_gemm *g, fv_unary_op op, const void *p, fv_sink sums)
{
    CUtensorMap a, w, of_p;
    bool tanh_form = op == FV_U_GELU_TANH, ours = tanh_form || (op == FV_U_GELU && !g->tb);
    if (!device_of(s)->hopper || !ours || (sums.data && sums.dtype != FV_F32) || g->bias ||
        g->act || g->pre || g->plus || !fits_tiles(g) || !enough_tiles(s, g) ||
        !describe(&a, &w, g) || !describe_p(&of_p, g, p))
        return false;
    if (g->tb)
        launch_dact<dact_epilogue<false, FV_U_GELU_TANH>>(s, g, a, w, of_p, sums);
    else if (tanh_form)
        launch_dact<dact_epilogue<true, FV_U_GELU_TANH>>(s, g, a, w, of_p, sums);
    else
        launch_dact<dact_epilogue<true, FV_U_GELU>>(s, g, a, w, of_p, sums);
    return true;
}

/* Where tiles of 256 columns, cuBLASLt's fastest, would leave a part of the last one empty and ours
 * do not: 384 columns. */
bool fv_cuda_gemm_plus(fv_stream *s, const fv_gemm *g)
{
    CUtensorMap a, w, of_p;
    bool fills = g->n % TILE_N == 0 && g->n % 256 && g->n <= MAX_PLUS_BIAS;
    if (!device_of(s)->hopper || !fills || !g->plus || !g->tb || g->act || g->pre ||
        !fits_tiles(g) || !enough_tiles(s, g) || !describe(&a, &w, g) ||
        !describe_p(&of_p, g, g->plus))
        return false;
    plus_epilogue end = {};
    end.bias = (const bf16 *)g->bias;
    launch_beside_p(s, g, a, w, of_p, end);
    return true;
}
