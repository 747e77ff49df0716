/* gemm_sm90.h - C = A W' or A W for many rows of bf16, on what only Hopper has; what ends a tile is
 * its user's.
 *
 * One block a processor stays there and takes tile after tile of 128 x 192.  One thread tells the
 * copy engine to bring 64 columns of A and W at a time, STAGES of them ahead; two groups of four
 * warps multiply, each a tile of its own, so that while one of them ends a tile the other keeps the
 * tensor cores busy.
 *
 * What ends a tile is not free though it runs beside the other's products, nor is what goes on
 * between products: each instruction takes about a cycle from the tensor cores, which need the
 * registers' ports themselves.  So places in shared memory are counted by what all of a warp have
 * in common, which has registers of its own.
 *
 * Tried and slower: two blocks as a cluster, each bringing half of A for both; tiles of 256 rows
 * that both groups share; five stages.
 *
 * The tensor cores leave a thread two neighbouring columns of every eight.  So rows of W are
 * brought in another order: of a run of 32 columns thread t of four gets 8t .. 8t+7, one access of
 * 16 bytes.  Where W is stored (K,N) that cannot be. */
#ifndef FV_CUDA_GEMM_GEMM_SM90_H
#define FV_CUDA_GEMM_GEMM_SM90_H

#include "backend/cuda/device/sm90.h"

#define TILE_M 128
#define TILE_N 192
#define STAGES 4
#define RUNS (TILE_N / 32)   /* of 32 columns */
#define QUARTER (TILE_N / 4) /* rows of W that one copy brings */
#define GROUP 128            /* threads that multiply together */

struct tiles {
    int m, n;
    int k_steps, columns, count; /* columns: tiles side by side */
};

struct stage {
    bf16 a[TILE_M * PANEL], w[TILE_N * PANEL];
};
struct alignas(16) gemm_smem { /* a bias follows */
    stage s[STAGES];
    uint64_t full[STAGES], empty[STAGES], pingpong[2];
};

__device__ inline gemm_smem *gemm_smem_at(uint8_t *memory)
{
    return (gemm_smem *)(((uintptr_t)memory + 1023) / 1024 * 1024);
}

/* By one thread, and others see it behind a barrier. */
__device__ inline void gemm_smem_init(gemm_smem *r)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(&r->full[i], 1);
        mbarrier_init(&r->empty[i], 4); /* each warp of a group */
    }
    for (int i = 0; i < 2; i++) mbarrier_init(&r->pingpong[i], 4);
    mbarrier_init_fence();
}

/* ---- one thread brings ---- */

/* IN_OUT: W is stored (K,N), and a panel has 64 of its rows. */
template <bool IN_OUT>
__device__ inline void produce_tiles(const tiles &t, gemm_smem *r, const CUtensorMap *a,
                                     const CUtensorMap *w)
{
    unsigned step = 0;
    for (int i = blockIdx.x; i < t.count; i += gridDim.x) {
        int row = i / t.columns * TILE_M, column = i % t.columns * TILE_N;
        for (int k = 0; k < t.k_steps; k++, step++) {
            stage *s = &r->s[step % STAGES];
            uint64_t *full = &r->full[step % STAGES];
            mbarrier_wait(&r->empty[step % STAGES], (step / STAGES & 1) ^ 1);
            mbarrier_arrive_expect_tx(full, sizeof *s);
            tma_load_2d(s->a, a, full, k * PANEL, row);
            if (IN_OUT) {
#pragma unroll
                for (int p = 0; p < TILE_N / PANEL; p++)
                    tma_load_2d(s->w + p * PANEL * PANEL, w, full, column + p * PANEL, k * PANEL);
            } else { /* rows 2q and 2q + 1 of every eight */
#pragma unroll
                for (int q = 0; q < 4; q++)
                    tma_load_3d(s->w + q * QUARTER * PANEL, w, full, k * PANEL, 2 * q, column / 8);
            }
        }
    }
}

/* ---- two groups multiply ---- */

/* What a thread has of a tile: 8 columns in each of six runs, of four rows: 0 and 8, 64 and 72 from
 * its first on.  sum_at is for W stored (N,K). */
typedef float sums[2][TILE_N / 8][4];
__device__ constexpr int row_at(int e) { return e / 2 * 64 + e % 2 * 8; }
__device__ inline float &sum_at(sums &c, int run, int e, int i)
{
    return c[e / 2][i / 2 * RUNS + run][e % 2 * 2 + i % 2];
}
__device__ inline int first_row() { return threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ inline int first_column() { return threadIdx.x % 4 * 8; }

/* a, w: the factors of the first stage */
template <bool IN_OUT, bool FIRST>
__device__ inline void multiply(sums &c, gemm_smem *r, uint64_t a, uint64_t w, unsigned step)
{
    unsigned at = step % STAGES * (unsigned)sizeof(stage);
    mbarrier_wait(&r->full[step % STAGES], step / STAGES & 1);
    wgmma_fence();
#pragma unroll
    for (unsigned k = 0; k < PANEL; k += 16)
#pragma unroll
        for (unsigned half = 0; half < 2; half++)
            wgmma<false, IN_OUT>(
                c[half],
                smem_desc_advance(a, at + (half * 64 * PANEL + k) * (unsigned)sizeof(bf16)),
                smem_desc_advance(w, at + (IN_OUT ? k * PANEL : k) * (unsigned)sizeof(bf16)),
                !FIRST || k > 0, bf16());
    wgmma_commit();
}

template <class END>
__device__ void consume_tiles(const tiles &t, gemm_smem *r, int group, END &end)
{
    bool is_lane0 = threadIdx.x % 32 == 0;
    uint64_t a = smem_desc(r->s[0].a), w = END::IN_OUT
                                               ? smem_desc(r->s[0].w, PANEL * PANEL * sizeof(bf16))
                                               : smem_desc(r->s[0].w);
    unsigned step = group * t.k_steps, parity = 0;
    sums c;
    for (int i = blockIdx.x + group * gridDim.x; i < t.count;
         i += 2 * gridDim.x, step += t.k_steps, parity ^= 1) {
        /* The groups take turns; else one could take a phase of a stage for the one after the
         * next. */
        mbarrier_wait(&r->pingpong[group], parity ^ (group == 0));
        multiply<END::IN_OUT, true>(c, r, a, w, step++);
        for (int k = 1; k < t.k_steps; k++, step++) {
            multiply<END::IN_OUT, false>(c, r, a, w, step);
            wgmma_wait<1>();
            if (is_lane0) mbarrier_arrive(&r->empty[(step - 1) % STAGES]);
        }
        if (is_lane0) mbarrier_arrive(&r->pingpong[1 - group]);
        wgmma_wait<0>();
        if (is_lane0) mbarrier_arrive(&r->empty[(step - 1) % STAGES]);
        end.epilogue(c, i / t.columns * TILE_M, i % t.columns * TILE_N);
    }
}

/* All of a block, three groups, once its room is ready.  Of the third group one thread brings the
 * factors; another runs end.brings(t), which may bring what ends need.  The others run
 * end.ends(sums, row, column) for each tile, each with a copy of its own.  END::IN_OUT: W is stored
 * (K,N). */
template <class END>
__device__ inline void run_block(const tiles &t, gemm_smem *r, const CUtensorMap *a,
                                 const CUtensorMap *w, END end)
{
    int group = warpgroup_index();
    if (group == 2) {
        setmaxnreg_dec<24>();
        if (threadIdx.x == 2 * GROUP) produce_tiles<END::IN_OUT>(t, r, a, w);
        if (threadIdx.x == 2 * GROUP + 32) end.produce(t);
    } else {
        setmaxnreg_inc<240>();
        consume_tiles(t, r, group, end);
    }
}

/* ---- for ends ---- */

/* From shared memory: 8 numbers as they are, 8 or 2 of them as f32. */
__device__ inline void load_smem(uint32_t (&w)[4], const bf16 *from)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(smem_addr(from))
                 : "memory");
}
__device__ inline void widen(float *v, uint32_t w)
{
    v[0] = __uint_as_float(w << 16), v[1] = __uint_as_float(w & 0xffff0000);
}
__device__ inline void load_smem(float (&v)[8], const bf16 *from)
{
    uint32_t w[4];
    load_smem(w, from);
#pragma unroll
    for (int i = 0; i < 4; i++) widen(v + 2 * i, w[i]);
}
__device__ inline void load_smem(float (&v)[2], const bf16 *from)
{
    uint32_t w;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w) : "r"(smem_addr(from)) : "memory");
    widen(v, w);
}

/* The bias beside the tiles, as wide as they are, by all of a block and behind a barrier.  Read
 * from memory at the end of each tile it would be waited for, with no other warp to run
 * meanwhile. */
#define MAX_BIAS 16384
__device__ inline const bf16 *load_bias(bf16 *bias_smem, const bf16 *bias, const tiles &t)
{
    for (int i = 8 * threadIdx.x; i < t.columns * TILE_N; i += 8 * blockDim.x)
        *(uint4 *)(bias_smem + i) = bias && i < t.n ? *(const uint4 *)(bias + i) : uint4{};
    return bias_smem;
}

/* All at once: left to itself the compiler may write number after number. */
__device__ inline void store_all(bf16 *to, const uint32_t (&w)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
}
__device__ inline void store_all(bf16 *to, const float (&v)[8])
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = pack2(v[2 * i], v[2 * i + 1], bf16());
    store_all(to, w);
}

/* ---- on the host ---- */

/* Whole accesses everywhere, sizes that fit, one product of A by W as linear maps have it. */
static inline bool fits_tiles(const fv_gemm *g)
{
    return g->batch == 1 && !g->ta && !g->add && g->bt == FV_BF16 && g->ct == FV_BF16 &&
           (g->alpha == 0 || g->alpha == 1) && g->n % 8 == 0 && g->k % 8 == 0 && g->lda % 8 == 0 &&
           g->ldb % 8 == 0 && g->ldc % 8 == 0 && aligned(g->a, g->b, g->c, g->bias) && g->k > 0 &&
           g->m < 1 << 24 && g->n < 1 << 24 && g->k < 1 << 24 && g->ldc < 1 << 24;
}

static inline tiles tiles_of(const fv_gemm *g)
{
    tiles t = {};
    t.m = (int)g->m, t.n = (int)g->n;
    t.k_steps = (int)ceil_div(g->k, PANEL);
    t.columns = (int)ceil_div(g->n, TILE_N);
    t.count = (int)ceil_div(g->m, TILE_M) * t.columns;
    return t;
}

static inline size_t bias_bytes(const tiles &t)
{
    return (size_t)(t.columns * TILE_N) * sizeof(bf16);
}

/* For most processors. */
static inline bool enough_tiles(const fv_stream *s, const fv_gemm *g)
{
    return ceil_div(g->m, TILE_M) * ceil_div(g->n, TILE_N) * 4 >= device_of(s)->sm_count * 3;
}

/* No more than are as busy as the busiest has to be: the others would only take from the chip's
 * power. */
static inline unsigned blocks_for(const fv_stream *s, const tiles &t)
{
    int64_t waves = ceil_div(t.count, device_of(s)->sm_count);
    return (unsigned)ceil_div(t.count, waves);
}

static inline bool describe(CUtensorMap *a, CUtensorMap *w, const fv_gemm *g)
{
    const cuuint64_t a_dim[] = {(cuuint64_t)g->k, (cuuint64_t)g->m},
                     a_step[] = {(cuuint64_t)g->lda * 2};
    const cuuint64_t w_dim[] = {(cuuint64_t)g->k, 8, (cuuint64_t)g->n / 8};
    const cuuint64_t w_step[] = {(cuuint64_t)g->ldb * 2, (cuuint64_t)g->ldb * 16},
                     kn_dim[] = {(cuuint64_t)g->n, (cuuint64_t)g->k};
    const cuuint32_t a_box[] = {PANEL, TILE_M}, w_box[] = {PANEL, 2, TILE_N / 8},
                     kn_box[] = {PANEL, PANEL};
    return fv_cuda_tensor_map_nd(a, g->a, FV_BF16, 2, a_dim, a_step, a_box) &&
           (g->tb ? fv_cuda_tensor_map_nd(w, g->b, FV_BF16, 3, w_dim, w_step, w_box)
                  : fv_cuda_tensor_map_nd(w, g->b, FV_BF16, 2, kn_dim, w_step, kn_box));
}

#endif
