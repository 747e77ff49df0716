/* gemm_hopper.cu - C = A W' + bias, or the gelu of it, for many rows of bf16, on what only Hopper has.
 *
 * The library has no kernel for this gelu (its own is the tanh one), and a pass over the result costs a tenth of a BERT layer.
 * And where a sum is short the ends of tiles weigh: the library lets the tensor cores wait there.  One block a processor stays
 * there and takes tile after tile of 128 x 192.  One thread tells the copy engine to bring 64 columns of A and W at a time,
 * STAGES of them ahead; two groups of four warps multiply, each a tile of its own, so that while one of them ends a tile the
 * other keeps the tensor cores busy.
 *
 * Tried and slower: two blocks as a cluster, each bringing half of A for both; tiles of 256 rows that both groups share; five
 * stages.  What ends a tile is not free though it runs beside the other's products: each of its instructions takes about a
 * cycle from them.
 *
 * The tensor cores leave a thread two neighbouring columns of every eight.  So rows of W are brought in another order: of a
 * run of 32 columns thread t of four gets 8t .. 8t+7, one access of 16 bytes. */
#include "hopper.h"
#include "scalar.h"

#define TILE_M 128
#define TILE_N 192
#define STAGES 4
#define RUNS (TILE_N / 32)   /* of 32 columns */
#define QUARTER (TILE_N / 4) /* rows of W that one copy brings */
#define GROUP 128            /* threads that multiply together */

/* Of a product without gelu: where it was seen to be faster than the library. */
#define MOST_K 1024
#define MOST_N 4096

struct tiles {
    int m, n, ldc;
    int k_steps, columns, count; /* columns: tiles side by side */
    bf16 *c;
    const bf16 *bias; /* or NULL */
};

struct stage {
    bf16 a[TILE_M * PANEL], w[TILE_N * PANEL];
};
struct room {
    stage s[STAGES];
    uint64_t full[STAGES], empty[STAGES], turn[2];
};

/* ---- one thread brings ---- */

__device__ void bring(const tiles &t, room *r, const CUtensorMap *a, const CUtensorMap *w)
{
    int step = 0;
    for (int i = blockIdx.x; i < t.count; i += gridDim.x) {
        int row = i / t.columns * TILE_M, octet = i % t.columns * (TILE_N / 8);
        for (int k = 0; k < t.k_steps; k++, step++) {
            stage *s = &r->s[step % STAGES];
            uint64_t *full = &r->full[step % STAGES];
            wait_for(&r->empty[step % STAGES], (step / STAGES & 1) ^ 1);
            arrive_expecting(full, sizeof *s);
            bring_rows(s->a, a, full, k * PANEL, row);
            /* rows 2q and 2q + 1 of every eight */
#pragma unroll
            for (int q = 0; q < 4; q++) bring_some_rows(s->w + q * QUARTER * PANEL, w, full, k * PANEL, 2 * q, octet);
        }
    }
}

/* ---- two groups multiply ---- */

/* What a thread has of a tile: 8 columns in each of six runs, of four rows: 0 and 8, 64 and 72 from its first on. */
typedef float sums[2][TILE_N / 8][4];
__device__ constexpr int row_at(int e) { return e / 2 * 64 + e % 2 * 8; }
__device__ inline float &sum_at(sums &c, int run, int e, int i) { return c[e / 2][i / 2 * RUNS + run][e % 2 * 2 + i % 2]; }

template <bool FIRST> __device__ inline void multiply(sums &c, room *r, int step)
{
    const stage *s = &r->s[step % STAGES];
    wait_for(&r->full[step % STAGES], step / STAGES & 1);
    products_begin();
#pragma unroll
    for (int k = 0; k < PANEL; k += 16)
#pragma unroll
        for (int half = 0; half < 2; half++)
            wgmma<false, false>(c[half], factor(s->a + half * 64 * PANEL + k), factor(s->w + k), !FIRST || k > 0, bf16());
    products_end();
}

/* All at once: left to itself the compiler may write number after number. */
__device__ inline void store_all(bf16 *to, const float (&v)[8])
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = two(v[2 * i], v[2 * i + 1], bf16());
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}

template <bool GELU> __device__ inline void end_tile(const tiles &t, sums &c, int row, int column)
{
    bf16 *to = t.c + (int64_t)row * t.ldc + column;
    float b[8] = {};
#pragma unroll
    for (int j = 0; j < RUNS; j++) {
        if (column + 32 * j >= t.n) break;
        if (t.bias) load(b, t.bias, column + 32 * j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = sum_at(c, j, e, i) + b[i];
                if (GELU) v[i] = gelu_quick(v[i]);
            }
            if (row + row_at(e) < t.m) store_all(to + (int64_t)row_at(e) * t.ldc + 32 * j, v);
        }
    }
}

template <bool GELU> __device__ void multiply_tiles(const tiles &t, room *r, int group)
{
    int lane = threadIdx.x % 32, in_tile = threadIdx.x % GROUP / 32 * 16 + lane / 4;
    int step = group * t.k_steps;
    unsigned parity = 0;
    sums c;
    for (int i = blockIdx.x + group * gridDim.x; i < t.count; i += 2 * gridDim.x, step += t.k_steps, parity ^= 1) {
        /* The groups take turns; else one could take a phase of a stage for the one after the next. */
        wait_for(&r->turn[group], parity ^ (group == 0));
        multiply<true>(c, r, step++);
        for (int k = 1; k < t.k_steps; k++, step++) {
            multiply<false>(c, r, step);
            products_done<1>();
            if (lane == 0) arrive(&r->empty[(step - 1) % STAGES]);
        }
        if (lane == 0) arrive(&r->turn[1 - group]);
        products_done<0>();
        if (lane == 0) arrive(&r->empty[(step - 1) % STAGES]);
        end_tile<GELU>(t, c, i / t.columns * TILE_M + in_tile, i % t.columns * TILE_N + lane % 4 * 8);
    }
}

template <bool GELU>
__global__ void __launch_bounds__(3 * GROUP, 1)
    by_tiles(const __grid_constant__ tiles t, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap w)
{
    extern __shared__ uint8_t memory[];
    room *r = (room *)(((uintptr_t)memory + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&r->full[i], 1);
            barrier_init(&r->empty[i], 4); /* each warp of a group */
        }
        for (int i = 0; i < 2; i++) barrier_init(&r->turn[i], 4);
        barriers_ready();
    }
    __syncthreads();
    wait_for_others();
    let_others_start();
    int group = threadIdx.x / GROUP;
    if (group == 2) {
        registers_down<24>();
        if (threadIdx.x == 2 * GROUP) bring(t, r, &a, &w);
    } else {
        registers_up<240>();
        multiply_tiles<GELU>(t, r, group);
    }
}

/* ---- on the host ---- */

static bool describe(CUtensorMap *a, CUtensorMap *w, const fv_gemm *g)
{
    const cuuint64_t a_dim[] = {(cuuint64_t)g->k, (cuuint64_t)g->m}, a_step[] = {(cuuint64_t)g->lda * 2};
    const cuuint64_t w_dim[] = {(cuuint64_t)g->k, 8, (cuuint64_t)g->n / 8};
    const cuuint64_t w_step[] = {(cuuint64_t)g->ldb * 2, (cuuint64_t)g->ldb * 16};
    const cuuint32_t a_box[] = {PANEL, TILE_M}, w_box[] = {PANEL, 2, TILE_N / 8};
    return fv_cuda_map_axes(a, g->a, FV_BF16, 2, a_dim, a_step, a_box) &&
           fv_cuda_map_axes(w, g->b, FV_BF16, 3, w_dim, w_step, w_box);
}

/* Whole accesses everywhere, sizes that fit, and tiles for most processors.  A long sum without gelu is the library's. */
static bool pays(const fv_stream *s, const fv_gemm *g)
{
    bool whole = g->n % 8 == 0 && g->k % 8 == 0 && g->lda % 8 == 0 && g->ldb % 8 == 0 && g->ldc % 8 == 0 &&
                 aligned(g->a, g->b, g->c, g->bias);
    bool ours = g->act == FV_GELU || (g->act == FV_ACT_NONE && g->k <= MOST_K && g->n <= MOST_N);
    return whole && ours && g->k > 0 && g->m < 1 << 24 && g->n < 1 << 24 && g->k < 1 << 24 && g->ldc < 1 << 24 &&
           ceil_div(g->m, TILE_M) * ceil_div(g->n, TILE_N) * 4 >= device_of(s)->processors * 3;
}

bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && g->tb && !g->add && !g->plus && !g->pre && g->bt == FV_BF16 && g->ct == FV_BF16 &&
                 (g->alpha == 0 || g->alpha == 1);
    CUtensorMap a, w;
    if (!plain || !device_of(s)->hopper || !pays(s, g) || !describe(&a, &w, g)) return false;
    tiles t = {};
    t.m = (int)g->m, t.n = (int)g->n, t.ldc = (int)g->ldc;
    t.k_steps = (int)ceil_div(g->k, PANEL);
    t.columns = (int)ceil_div(g->n, TILE_N);
    t.count = (int)ceil_div(g->m, TILE_M) * t.columns;
    t.c = (bf16 *)g->c;
    t.bias = (const bf16 *)g->bias;
    int most = device_of(s)->processors;
    launch_early(s, "gemm", true, g->act == FV_GELU ? by_tiles<true> : by_tiles<false>,
                 dim3((unsigned)(t.count < most ? t.count : most)), 3 * GROUP, sizeof(room) + 1024, t, a, w);
    return true;
}
