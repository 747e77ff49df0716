/* gemm_hopper.cu - C = gelu(A W' + bias) for many rows of bf16, on what only Hopper has.
 *
 * The library has no kernel for this gelu (its own is the tanh one), and a pass over the result costs a tenth of a BERT layer.
 * One block a processor stays there and takes tile after tile of 128 x 192.  One thread tells the copy engine to bring 64
 * columns of A and W at a time, STAGES of them ahead; two groups of four warps multiply, each a tile of its own, so that
 * while one of them ends a tile the other keeps the tensor cores busy.  Two blocks side by side are a cluster: they have the
 * same rows, and each brings half of A for both.
 *
 * The tensor cores leave a thread two neighbouring columns of every eight.  So rows of W are brought in another order: of a
 * run of 32 columns thread t of four gets 8t .. 8t+7, one access of 16 bytes. */
#include "hopper.h"
#include "scalar.h"

#define CLUSTER 2
#define TILE_M 128
#define TILE_N 192
#define STAGES 5
#define RUNS (TILE_N / 32)   /* of 32 columns */
#define QUARTER (TILE_N / 4) /* rows of W that one copy brings */
#define GROUP 128            /* threads that multiply together */
#define MOST_N (22 * TILE_N) /* columns whose bias there is room for, whole clusters */

struct tiles {
    int m, n, ldc;
    int k_steps, columns, count; /* columns: clusters side by side; count: tiles of a cluster */
    bf16 *c;
    const bf16 *bias; /* or NULL */
};

struct stage {
    bf16 a[TILE_M * PANEL], w[TILE_N * PANEL];
};
struct room {
    stage s[STAGES];
    float bias[MOST_N];
    uint64_t full[STAGES], empty[STAGES], turn[2];
};

/* ---- blocks of a cluster ---- */

__device__ inline unsigned rank_in_cluster()
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* At the same barrier of another block.  Nothing was written: this says that something was read. */
__device__ inline void arrive_at(uint64_t *b, unsigned block)
{
    asm volatile(
        "{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [far];\n}" ::"r"(
            shared_at(b)),
        "r"(block)
        : "memory");
}

/* ---- one thread brings ---- */

/* Rows of A, to all blocks of the cluster, at the same place in each. */
__device__ inline void bring_a(void *to, const CUtensorMap *map, uint64_t *b, int k, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_at(to)),
                 "l"((uint64_t)map), "r"(shared_at(b)), "r"(k), "r"(row), "h"((uint16_t)((1 << CLUSTER) - 1))
                 : "memory");
}

/* Rows `two` and two + 1 of every eight rows of W, from an octet on. */
__device__ inline void bring_w(void *to, const CUtensorMap *map, uint64_t *b, int k, int two, int octet)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
                 "[%2];" ::"r"(shared_at(to)),
                 "l"((uint64_t)map), "r"(shared_at(b)), "r"(k), "r"(two), "r"(octet)
                 : "memory");
}

__device__ void bring(const tiles &t, room *r, const CUtensorMap *a, const CUtensorMap *w, unsigned rank)
{
    constexpr int SHARE = TILE_M / CLUSTER; /* rows of A that this block brings */
    int step = 0, clusters = gridDim.x / CLUSTER;
    for (int i = blockIdx.x / CLUSTER; i < t.count; i += clusters) {
        int row = i / t.columns * TILE_M + rank * SHARE, octet = (i % t.columns * CLUSTER + rank) * (TILE_N / 8);
        for (int k = 0; k < t.k_steps; k++, step++) {
            stage *s = &r->s[step % STAGES];
            uint64_t *full = &r->full[step % STAGES];
            wait_for(&r->empty[step % STAGES], (step / STAGES & 1) ^ 1);
            arrive_expecting(full, sizeof *s);
            bring_a(s->a + rank * SHARE * PANEL, a, full, k * PANEL, row);
#pragma unroll
            for (int q = 0; q < 4; q++) bring_w(s->w + q * QUARTER * PANEL, w, full, k * PANEL, 2 * q, octet);
        }
    }
}

/* ---- two groups multiply ---- */

/* What a thread has of a tile: 8 columns in each of six runs, of four rows: 0 and 8, 64 and 72 from its first on. */
typedef float sums[2][TILE_N / 8][4];
struct place {
    int64_t first;     /* element of C */
    int rows, columns; /* how many there are from it on */
};
__device__ constexpr int row_at(int e) { return e / 2 * 64 + e % 2 * 8; }
__device__ inline float &sum_at(sums &c, int run, int e, int i) { return c[e / 2][i / 2 * RUNS + run][e % 2 * 2 + i % 2]; }
__device__ inline bool inside(const place &p, int run, int e) { return 32 * run < p.columns && row_at(e) < p.rows; }
__device__ inline int64_t element(const tiles &t, const place &p, int run, int e)
{
    return p.first + row_at(e) * t.ldc + 32 * run;
}

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

__device__ inline void end_tile(const tiles &t, sums &c, const place &p, const float *bias)
{
#pragma unroll
    for (int j = 0; j < RUNS; j++) {
        float b[8];
        load(b, bias, 32 * j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = gelu_quick(sum_at(c, j, e, i) + b[i]);
            if (inside(p, j, e)) store_all(t.c + element(t, p, j, e), v);
        }
    }
}

__device__ void multiply_tiles(const tiles &t, room *r, int group, unsigned rank)
{
    int lane = threadIdx.x % 32, in_tile = threadIdx.x % GROUP / 32 * 16 + lane / 4, clusters = gridDim.x / CLUSTER;
    int step = group * t.k_steps;
    unsigned parity = 0;
    sums c;
    for (int i = blockIdx.x / CLUSTER + group * clusters; i < t.count; i += 2 * clusters, step += t.k_steps, parity ^= 1) {
        int row = i / t.columns * TILE_M + in_tile, column = (i % t.columns * CLUSTER + rank) * TILE_N + lane % 4 * 8;
        place p = {(int64_t)row * t.ldc + column, t.m - row, t.n - column};
        /* The groups take turns; else one could take a phase of a stage for the one after the next. */
        wait_for(&r->turn[group], parity ^ (group == 0));
        multiply<true>(c, r, step++);
        for (int k = 1; k < t.k_steps; k++, step++) {
            multiply<false>(c, r, step);
            products_done<1>();
            if (lane < CLUSTER) arrive_at(&r->empty[(step - 1) % STAGES], lane);
        }
        if (lane == 0) arrive(&r->turn[1 - group]);
        products_done<0>();
        if (lane < CLUSTER) arrive_at(&r->empty[(step - 1) % STAGES], lane);
        end_tile(t, c, p, r->bias + column);
    }
}

__global__ void __launch_bounds__(3 * GROUP, 1)
    by_tiles(tiles t, const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap w)
{
    extern __shared__ uint8_t memory[];
    room *r = (room *)(((uintptr_t)memory + 1023) / 1024 * 1024);
    unsigned rank = rank_in_cluster();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&r->full[i], 1);
            barrier_init(&r->empty[i], 4 * CLUSTER); /* each warp of a group, in each block */
        }
        for (int i = 0; i < 2; i++) barrier_init(&r->turn[i], 4);
        barriers_ready();
    }
    cluster_sync();
    wait_for_others();
    let_others_start();
    int group = threadIdx.x / GROUP;
    if (group == 2) {
        registers_down<24>();
        if (threadIdx.x == 2 * GROUP) bring(t, r, &a, &w, rank);
        __syncwarp();
    } else {
        registers_up<240>();
        for (int i = threadIdx.x; i < t.n; i += 2 * GROUP) r->bias[i] = t.bias ? up(t.bias[i]) : 0;
        asm volatile("bar.sync 1, %0;" ::"n"(2 * GROUP) : "memory"); /* both groups, while the first stages come */
        multiply_tiles(t, r, group, rank);
    }
    cluster_sync(); /* nobody leaves while another still writes to it */
}

/* ---- on the host ---- */

/* A product as it is asked for. */
struct product {
    int64_t m, n, k, lda, ldb;
    const void *a, *w;
};

static bool describe(CUtensorMap *a, CUtensorMap *w, const product &p)
{
    const cuuint64_t a_dim[] = {(cuuint64_t)p.k, (cuuint64_t)p.m}, a_step[] = {(cuuint64_t)p.lda * 2};
    const cuuint64_t w_dim[] = {(cuuint64_t)p.k, 8, (cuuint64_t)p.n / 8};
    const cuuint64_t w_step[] = {(cuuint64_t)p.ldb * 2, (cuuint64_t)p.ldb * 16};
    const cuuint32_t a_box[] = {PANEL, TILE_M / CLUSTER}, w_box[] = {PANEL, 2, TILE_N / 8};
    return fv_cuda_map_axes(a, p.a, FV_BF16, 2, a_dim, a_step, a_box) &&
           fv_cuda_map_axes(w, p.w, FV_BF16, 3, w_dim, w_step, w_box);
}

static bool start(fv_stream *s, const product &p, tiles t)
{
    CUtensorMap a, w;
    if (!describe(&a, &w, p)) return false;
    int64_t most = device_of(s)->processors / CLUSTER;
    t.m = (int)p.m, t.n = (int)p.n;
    t.k_steps = (int)ceil_div(p.k, PANEL);
    t.columns = (int)ceil_div(p.n, TILE_N * CLUSTER);
    t.count = (int)ceil_div(p.m, TILE_M) * t.columns;
    size_t shared = sizeof(room) + 1024;
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute attr[2] = {};
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributeClusterDimension;
    attr[1].val.clusterDim.x = CLUSTER;
    attr[1].val.clusterDim.y = attr[1].val.clusterDim.z = 1;
    how.gridDim = dim3((unsigned)((t.count < most ? t.count : most) * CLUSTER));
    how.blockDim = dim3(3 * GROUP);
    how.dynamicSmemBytes = shared;
    how.stream = stream_of(s);
    how.attrs = attr;
    how.numAttrs = 2;
    cudaSetDevice(device_of(s)->number);
    cudaFuncSetAttribute(by_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&how, by_tiles, t, a, w);
    fv_cuda_started(s, "gemm");
    return true;
}

/* Whole accesses everywhere, sizes that fit, and tiles for most processors. */
static bool pays(const fv_stream *s, const product &p, int64_t ldc)
{
    bool whole = p.n % 8 == 0 && p.k % 8 == 0 && p.lda % 8 == 0 && p.ldb % 8 == 0 && ldc % 8 == 0 && aligned(p.a, p.w);
    return whole && p.k > 0 && p.n <= MOST_N && p.m < 1 << 24 && p.k < 1 << 24 && ldc < 1 << 24 &&
           ceil_div(p.m, TILE_M) * ceil_div(p.n, TILE_N) * 4 >= device_of(s)->processors * 3;
}

bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g)
{
    product p = {g->m, g->n, g->k, g->lda, g->ldb, g->a, g->b};
    bool plain = g->batch == 1 && !g->ta && g->tb && !g->add && !g->plus && !g->pre && g->bt == FV_BF16 && g->ct == FV_BF16 &&
                 (g->alpha == 0 || g->alpha == 1) && g->act == FV_GELU;
    if (!plain || !device_of(s)->hopper || !aligned(g->c) || !pays(s, p, g->ldc)) return false;
    tiles t = {};
    t.ldc = (int)g->ldc;
    t.c = (bf16 *)g->c;
    t.bias = (const bf16 *)g->bias;
    return start(s, p, t);
}
