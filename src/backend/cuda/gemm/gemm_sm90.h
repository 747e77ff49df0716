/* gemm_sm90.h - C = A W' or A W for many rows of bf16 on Hopper, with the epilogue as a functor.
 *
 * Persistent, warp-specialised, ping-pong: one block per SM walks over tiles of 128 x 192.  A
 * producer thread loads 64 columns of A and W at a time by TMA into a ring of STAGES; two consumer
 * warpgroups each own a whole tile (wgmma), so that one's epilogue overlaps the other's main loop.
 *
 * The epilogue is not free although it overlaps: its instructions compete with wgmma for the
 * register file's ports, about a cycle each.  The same holds for address arithmetic between
 * wgmmas, so stage offsets are warp-uniform (uniform registers).
 *
 * Tried and slower: clusters of two blocks with A multicast; tiles of 256 rows shared by both
 * warpgroups; five stages.
 *
 * Output layout.  wgmma leaves a thread two adjacent columns of every eight.  For W stored (N,K)
 * the TMA box permutes the rows of W instead: of a run of 32 columns lane t of four gets 8t ..
 * 8t+7, one 16-byte store.  W stored (K,N) cannot be permuted that way: in_out_sm90.cu transposes
 * in smem. */
#ifndef FV_CUDA_GEMM_GEMM_SM90_H
#define FV_CUDA_GEMM_GEMM_SM90_H

#include "backend/cuda/device/sm90_pipeline.h"

#define TILE_M 128
#define TILE_N 192
#define STAGES 4
#define RUNS (TILE_N / 32)   /* runs of 32 columns */
#define QUARTER (TILE_N / 4) /* rows of W per TMA box */
#define GROUP 128            /* threads of a warpgroup */

/*    warpgroup 0   | main loop tile 0 | epilogue 0 | main loop tile 2 | epilogue 2 |
 *    warpgroup 1                      | main loop tile 1 | epilogue 1 | main loop tile 3 |
 *    producer      | TMA of tile 0    | tile 1           | tile 2           | ..
 *
 * A stage is 64 columns of k: 128 x 64 of A (16 KiB) and 192 x 64 of W (24 KiB), four of them
 * 160 KiB of shared memory.  Accumulators are 128 x 192 f32 over 128 threads: 192 registers
 * each, which is why the producer gives its own away (setmaxnreg). */
struct gemm_tiles {
    int m, n;
    int k_steps, columns, count; /* columns: tiles per row of tiles; count: all */
};

struct gemm_stage {
    bf16 a[TILE_M * PANEL], w[TILE_N * PANEL];
};
struct alignas(16) gemm_smem {
    gemm_stage s[STAGES];
    uint64_t full[STAGES], empty[STAGES], pingpong[2];

    __device__ stage_ring<STAGES> ring() { return {full, empty}; }
};

/* The 128-byte swizzle of TMA and wgmma repeats every 1024 bytes: panels must start at a
 * multiple. */
__device__ inline gemm_smem *gemm_smem_at(uint8_t *memory)
{
    return (gemm_smem *)(((uintptr_t)memory + 1023) / 1024 * 1024);
}

/* By one thread; a __syncthreads must follow. */
__device__ inline void gemm_smem_init(gemm_smem *r)
{
    r->ring().init(1, 4); /* empty: one arrival per consumer warp */
    for (int i = 0; i < 2; i++) mbarrier_init(&r->pingpong[i], 4);
    mbarrier_init_fence();
}

/* ---- producer ---- */

/* IN_OUT: W is stored (K,N); a panel is 64 rows of it.
 * full[s]: armed with the bytes of a stage by the producer, completed by TMA.  empty[s]: one
 * arrival of each of the four warps that read it.  Both are reused by phase parity, never reset. */
template <bool IN_OUT>
__device__ inline void produce_tiles(const gemm_tiles &t, gemm_smem *r, const CUtensorMap *a,
                                     const CUtensorMap *w)
{
    unsigned step = 0;
    for (int i = blockIdx.x; i < t.count; i += gridDim.x) {
        int row = i / t.columns * TILE_M, column = i % t.columns * TILE_N;
        for (int k = 0; k < t.k_steps; k++, step++) {
            gemm_stage *s = &r->s[step % STAGES];
            uint64_t *full = &r->full[step % STAGES];
            r->ring().wait_empty(step);
            mbarrier_arrive_expect_tx(full, sizeof *s);
            tma_load_2d(s->a, a, full, k * PANEL, row);
            if (IN_OUT) {
#pragma unroll
                for (int p = 0; p < TILE_N / PANEL; p++)
                    tma_load_2d(s->w + p * PANEL * PANEL, w, full, column + p * PANEL, k * PANEL);
            } else { /* rows 2q and 2q + 1 of every eight: the permutation above */
#pragma unroll
                for (int q = 0; q < 4; q++)
                    tma_load_3d(s->w + q * QUARTER * PANEL, w, full, k * PANEL, 2 * q, column / 8);
            }
        }
    }
}

/* ---- consumers ---- */

/* What a thread has of a tile: 8 columns in each of six runs, of four rows: 0 and 8, 64 and 72 from
 * its first on.  sum_at is for W stored (N,K). */
typedef float gemm_acc[2][TILE_N / 8][4];
__device__ constexpr int row_at(int e) { return e / 2 * 64 + e % 2 * 8; }
__device__ inline float &acc_at(gemm_acc &c, int run, int e, int i)
{
    return c[e / 2][i / 2 * RUNS + run][e % 2 * 2 + i % 2];
}
__device__ inline int first_row() { return threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ inline int first_column() { return threadIdx.x % 4 * 8; }

/* One stage: c (+)= A W'.  a, w: smem descriptors of stage 0. */
template <bool IN_OUT, bool FIRST>
__device__ inline void mma_step(gemm_acc &c, gemm_smem *r, uint64_t a, uint64_t w, unsigned step)
{
    unsigned at = step % STAGES * (unsigned)sizeof(gemm_stage);
    r->ring().wait_full(step);
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

/* The main loop of a warpgroup.  wgmma is asynchronous: the wait leaves one stage in flight, so a
 * stage is released one step after its wgmmas were issued.  The next warpgroup may start when this
 * one has issued its last wgmma, before they are complete. */
template <class END>
__device__ void consume_tiles(const gemm_tiles &t, gemm_smem *r, int group, END &end)
{
    bool is_lane0 = threadIdx.x % 32 == 0;
    uint64_t a = smem_desc(r->s[0].a), w = END::IN_OUT
                                               ? smem_desc(r->s[0].w, PANEL * PANEL * sizeof(bf16))
                                               : smem_desc(r->s[0].w);
    unsigned step = group * t.k_steps, parity = 0;
    gemm_acc c;
    for (int i = blockIdx.x + group * gridDim.x; i < t.count;
         i += 2 * gridDim.x, step += t.k_steps, parity ^= 1) {
        /* Ping-pong: the main loops of the warpgroups alternate.  Without it one could be a whole
         * lap behind, and parity cannot tell such phases apart. */
        mbarrier_wait(&r->pingpong[group], parity ^ (group == 0));
        mma_step<END::IN_OUT, true>(c, r, a, w, step++);
        for (int k = 1; k < t.k_steps; k++, step++) {
            mma_step<END::IN_OUT, false>(c, r, a, w, step);
            wgmma_wait<1>();
            if (is_lane0) mbarrier_arrive(&r->empty[(step - 1) % STAGES]);
        }
        if (is_lane0) mbarrier_arrive(&r->pingpong[1 - group]);
        wgmma_wait<0>();
        if (is_lane0) mbarrier_arrive(&r->empty[(step - 1) % STAGES]);
        end.epilogue(c, i / t.columns * TILE_M, i % t.columns * TILE_N);
    }
}

/* Roles of a block's three warpgroups, once smem is initialised: in the third one thread is the
 * producer and another runs end.produce(t), which may load what the epilogue needs; the others run
 * the main loop and end.epilogue(acc, row, column) for each tile. */
template <class END>
__device__ inline void run_block(const gemm_tiles &t, gemm_smem *r, const CUtensorMap *a,
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

/* ---- for epilogues ---- */

/* From smem: 8 elements as they are, 8 or 2 as f32. */
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

/* The bias in smem, padded to whole tiles, for the kernel's lifetime.  Loaded from global memory in
 * each epilogue its latency would be exposed: there is one warp per scheduler. */
#define MAX_BIAS 16384
__device__ inline const bf16 *load_bias(bf16 *bias_smem, const bf16 *bias, const gemm_tiles &t)
{
    for (int i = 8 * threadIdx.x; i < t.columns * TILE_N; i += 8 * blockDim.x)
        *(uint4 *)(bias_smem + i) = bias && i < t.n ? *(const uint4 *)(bias + i) : uint4{};
    return bias_smem;
}

/* One 16-byte store: left to itself the compiler may split it into element stores. */
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

/* ---- the kernel, for epilogues with a bias ----
 *
 * END has the members
 *   IN_OUT             W is stored (K,N)
 *   smem               type of its shared memory; member `gemm` is the pipeline's, a bias follows
 *   c, bias, m, n, ldc set by launch_tiles; in the kernel bias points to smem
 *   begin(smem *)      prepares a thread's copy
 *   produce(t), epilogue(acc, row, column)   see run_block */
template <class END>
__global__ void __launch_bounds__(3 * GROUP, 1)
    gemm_by_tiles(const __grid_constant__ gemm_tiles t, const __grid_constant__ CUtensorMap a,
                  const __grid_constant__ CUtensorMap w, const __grid_constant__ END end)
{
    extern __shared__ uint8_t memory[];
    typename END::smem *r = (typename END::smem *)gemm_smem_at(memory);
    END mine = end;
    if (threadIdx.x == 0) gemm_smem_init(&r->gemm);
    pdl_wait();
    pdl_launch_dependents();
    mine.bias = load_bias((bf16 *)(r + 1), end.bias, t);
    mine.begin(r);
    __syncthreads();
    run_block(t, &r->gemm, &a, &w, mine);
}

/* ---- host ---- */

/* A linear layer's product in bf16 with sizes and alignment that TMA and 16-byte stores need. */
static inline bool fits_tiles(const fv_gemm *g)
{
    return g->batch == 1 && !g->ta && !g->add && g->bt == FV_BF16 && g->ct == FV_BF16 &&
           (g->alpha == 0 || g->alpha == 1) && g->n % 8 == 0 && g->k % 8 == 0 && g->lda % 8 == 0 &&
           g->ldb % 8 == 0 && g->ldc % 8 == 0 && aligned(g->a, g->b, g->c, g->bias) && g->k > 0 &&
           g->m < 1 << 24 && g->n < 1 << 24 && g->k < 1 << 24 && g->ldc < 1 << 24;
}

static inline gemm_tiles tiles_of(const fv_gemm *g)
{
    gemm_tiles t = {};
    t.m = (int)g->m, t.n = (int)g->n;
    t.k_steps = (int)ceil_div(g->k, PANEL);
    t.columns = (int)ceil_div(g->n, TILE_N);
    t.count = (int)ceil_div(g->m, TILE_M) * t.columns;
    return t;
}

static inline size_t bias_bytes(const gemm_tiles &t)
{
    return (size_t)(t.columns * TILE_N) * sizeof(bf16);
}

/* Tiles for three quarters of the SMs at least. */
static inline bool enough_tiles(const fv_stream *s, const fv_gemm *g)
{
    return ceil_div(g->m, TILE_M) * ceil_div(g->n, TILE_N) * 4 >= device_of(s)->sm_count * 3;
}

/* The fewest blocks with the same makespan: more would only draw power, which lowers the clock. */
static inline unsigned blocks_for(const fv_stream *s, const gemm_tiles &t)
{
    int64_t waves = ceil_div(t.count, device_of(s)->sm_count);
    return (unsigned)ceil_div(t.count, waves);
}

template <class END>
static void launch_tiles(fv_stream *s, const fv_gemm *g, const CUtensorMap &a, const CUtensorMap &w,
                         END end)
{
    gemm_tiles t = tiles_of(g);
    end.c = (bf16 *)g->c, end.bias = (const bf16 *)g->bias;
    end.m = t.m, end.n = t.n, end.ldc = (int)g->ldc;
    launch_pdl(s, "gemm", true, gemm_by_tiles<END>, dim3(blocks_for(s, t)), 3 * GROUP,
               sizeof(typename END::smem) + 1024 + bias_bytes(t), t, a, w, end);
}

/* Tensor maps of A and W; false: TMA cannot address them. */
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
