/* gemm_f32.cu - C = act(A W' + bias) (+ plus) in f32 for weights packed to serve: an element has
 * the same bits whatever the number of rows.
 *
 *     p_c = sum of a_k w_k over the CHUNK of k from CHUNK * c on, one chain of fmaf;
 *     C = ((p_0 + p_1) + p_2) + ..
 *
 * A sequence is served alone or among others, its prompt read at once or in parts, so the same row
 * is multiplied beside any number of rows; and a reply must not depend on that.  cuBLASLt chooses
 * tiles and split-K by the number of rows, and has no setting against it.  One of its algorithms
 * for all sizes was the alternative: small tiles are three times slower at a long prompt, large
 * ones leave most SMs idle at a decode step.  An order of sums that very different kernels can keep
 * costs less:
 *   up to 8 rows:  a warp per column of C, a chunk per lane; rows of A in shared memory
 *   some rows:     a tile of 32 by 32 per block, a chunk per warp: chunks run in parallel where
 *                  tiles are few, and their sums are added in order
 *   many rows:     tiles of 128, 8 by 8 elements a thread, two sums for each: of the chunk, and of
 *                  all chunks before
 */
#include "backend/cuda/rows/scalar.h"

namespace
{

#define CHUNK 32
#define CHUNK_STRIDE 36 /* floats in smem: lanes that read a chunk each have no bank conflicts */
#define WARPS 8
#define MAX_ROWS 8 /* of a block of the kernel for few rows */
#define ROUND 32   /* chunks of a warp at a time, one per lane */

struct product {
    fv_gemm g;
    __device__ const float *a(int64_t i) const { return (const float *)g.a + i * g.lda; }
    __device__ const float *w(int64_t j) const { return (const float *)g.b + j * g.k; }
};

/* A call: inlined into 64 elements of a thread, the activations would be most of the kernel. */
__device__ __noinline__ float activate_call(fv_act act, float x) { return activate(act, x); }

__device__ inline void put(const fv_gemm &g, int64_t i, int64_t j, float v)
{
    int64_t at = i * g.ldc + j;
    if (g.bias) v += ((const float *)g.bias)[j];
    if (g.act) v = activate_call(g.act, v);
    if (g.plus) v += ((const float *)g.plus)[at];
    ((float *)g.c)[at] = v;
}

__device__ inline float4 load4(const float *p) { return *(const float4 *)p; }

__device__ inline float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* ---- few rows ---- */

/* Rows of A to shared memory, chunks CHUNK_STRIDE apart; rows that do not exist: the last again. */
template <int R> __device__ inline void stage_rows(float *x, const product &p, int64_t row0)
{
    int k = (int)p.g.k, chunks = (k + CHUNK - 1) / CHUNK;
    for (int e = threadIdx.x; e < R * (k / 4); e += 32 * WARPS) {
        int r = e / (k / 4), i = e % (k / 4) * 4;
        int64_t row = row0 + r < p.g.m ? row0 + r : p.g.m - 1;
        *(float4 *)(x + (r * chunks + i / CHUNK) * CHUNK_STRIDE + i % CHUNK) = load4(p.a(row) + i);
    }
    __syncthreads();
}

/* The chunk of this lane for R rows. */
template <int R>
__device__ inline void multiply_chunk(float (&sum)[R], const float *w, const float *x, int x_row,
                                      int n)
{
    float4 b[CHUNK / 4];
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) b[i] = 4 * i < n ? __ldg((const float4 *)w + i) : float4{};
#pragma unroll
    for (int i = 0; i < CHUNK / 4; i++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            /* behind the end both factors must be 0, not what smem held */
            float4 a = 4 * i < n ? load4(x + r * x_row + 4 * i) : float4{};
            sum[r] = dot4(a, b[i], sum[r]);
        }
}

/* Blocks (x) share the columns, groups of R rows are apart (y).  A lane's chunk sums go through
 * shared memory to lane r, which adds those of row r in order.
 *    smem:  [ R rows of A, in chunks ][ per warp: ROUND chunks of R + 1 sums ] */
template <int R>
__global__ void __launch_bounds__(32 * WARPS) few_rows(const __grid_constant__ product p)
{
    extern __shared__ __align__(16) float x[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = (int)p.g.k,
        chunks = (k + CHUNK - 1) / CHUNK;
    float(*sums)[R + 1] = (float(*)[R + 1])(x + R * chunks * CHUNK_STRIDE) + warp * ROUND;
    int64_t row0 = (int64_t)blockIdx.y * R, step = (int64_t)gridDim.x * WARPS;
    pdl_launch_dependents();
    pdl_wait();
    stage_rows<R>(x, p, row0);
    for (int64_t j = (int64_t)blockIdx.x * WARPS + warp; j < p.g.n; j += step) {
        float total = 0;
        for (int c0 = 0; c0 < chunks; c0 += ROUND) {
            float sum[R] = {};
            int c = c0 + lane;
            if (c < chunks)
                multiply_chunk<R>(sum, p.w(j) + c * CHUNK, x + c * CHUNK_STRIDE,
                                  chunks * CHUNK_STRIDE, k - c * CHUNK);
            __syncwarp(); /* the sums before have been read */
#pragma unroll
            for (int r = 0; r < R; r++) sums[lane][r] = sum[r];
            __syncwarp();
            for (int i = 0; lane < R && i < ROUND && c0 + i < chunks; i++) total += sums[i][lane];
        }
        if (lane < R && row0 + lane < p.g.m) put(p.g, row0 + lane, j, total);
    }
}

/* ---- some rows ---- */

#define SMALL 32        /* rows and columns of a tile */
#define SMALL_STRIDE 36 /* floats from one k to the next in smem */

/* A warp's chunk of SMALL rows of a matrix (rows,k), k as rows in smem.  A load has 64 bytes of 8
 * rows: whole sectors, and stores that meet in pairs. */
struct chunk_loader {
    float4 v[8];
    __device__ static int row_of(int i) { return (int)threadIdx.x % 32 / 4 + i / 2 * 8; }
    __device__ static int k_of(int i) { return (int)threadIdx.x % 4 * 4 + i % 2 * 16; }
    __device__ void load(const float *m, int64_t ld, int64_t row0, int64_t rows, int64_t from,
                         int64_t k)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int64_t row = row0 + row_of(i), at = from + k_of(i);
            v[i] = row < rows && at < k ? __ldg((const float4 *)(m + row * ld + at)) : float4{};
        }
    }
    __device__ void store(float *to) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *at = to + k_of(i) * SMALL_STRIDE + row_of(i);
            at[0] = v[i].x, at[SMALL_STRIDE] = v[i].y;
            at[2 * SMALL_STRIDE] = v[i].z, at[3 * SMALL_STRIDE] = v[i].w;
        }
    }
};

/* The product of a chunk: rows lane / 8 * 4 .. and the same + 16, columns lane % 8 * 4 .. */
__device__ inline void multiply_small(float (&sum)[8][4], const float *a, const float *b)
{
    int lane = threadIdx.x % 32;
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++) {
        float4 low = load4(a + k * SMALL_STRIDE + lane / 8 * 4),
               high = load4(a + k * SMALL_STRIDE + lane / 8 * 4 + 16),
               w = load4(b + k * SMALL_STRIDE + lane % 8 * 4);
        float u[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w},
              v[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
    }
}

/* Warp w has chunks w, w + WARPS, ..; after each round thread t adds those of its row t / 8 and its
 * four columns in order. */
__global__ void __launch_bounds__(32 * WARPS) some_rows(const __grid_constant__ product p)
{
    extern __shared__ __align__(16) float memory[];
    constexpr int SIZE = CHUNK * SMALL_STRIDE; /* of a matrix; a warp has two */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = (int)threadIdx.x / 8,
        column = (int)threadIdx.x % 8 * 4;
    int64_t row0 = (int64_t)blockIdx.y * SMALL, column0 = (int64_t)blockIdx.x * SMALL, k = p.g.k;
    float *mine = memory + warp * 2 * SIZE, total[4] = {};
    chunk_loader a, w;
    auto load = [&](int64_t from) {
        a.load(p.a(0), p.g.lda, row0, p.g.m, from, k);
        w.load(p.w(0), k, column0, p.g.n, from, k);
    };
    load(warp * CHUNK);
    for (int64_t round = 0; round < k; round += WARPS * CHUNK) {
        float sum[8][4] = {};
        a.store(mine), w.store(mine + SIZE);
        __syncwarp();
        if (round + WARPS * CHUNK < k) load(round + (WARPS + warp) * CHUNK);
        multiply_small(sum, mine, mine + SIZE);
        __syncwarp(); /* the sums overwrite a */
#pragma unroll
        for (int i = 0; i < 8; i++)
            *(float4 *)(mine + (lane / 8 * 4 + i % 4 + i / 4 * 16) * SMALL_STRIDE +
                        lane % 8 * 4) = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        __syncthreads();
        for (int c = 0; c < WARPS && round + c * CHUNK < k; c++) {
            float4 part = load4(memory + c * 2 * SIZE + row * SMALL_STRIDE + column);
            total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
        }
        __syncthreads();
    }
    for (int j = 0; j < 4; j++)
        if (row0 + row < p.g.m && column0 + column + j < p.g.n)
            put(p.g, row0 + row, column0 + column + j, total[j]);
}

/* ---- many rows ---- */

#define TILE 128  /* rows and columns */
#define SLICE 8   /* of k in shared memory */
#define PER_ROW 8 /* elements of a thread, in each direction: two runs of 4, half a tile apart */

/* A slice of TILE rows of a matrix (rows,k), loaded to registers and stored with k as rows. */
struct slice_loader {
    static constexpr int THREADS = TILE * TILE / (PER_ROW * PER_ROW), N = TILE * 2 / THREADS;
    float4 v[N];
    __device__ void load(const float *m, int64_t ld, int64_t row0, int64_t rows, int64_t from,
                         int64_t k)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int e = (int)threadIdx.x + i * THREADS;
            int64_t row = row0 + e / 2, at = from + e % 2 * 4;
            v[i] = row < rows && at < k ? __ldg((const float4 *)(m + row * ld + at)) : float4{};
        }
    }
    __device__ void store(float (*to)[TILE + 4]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int e = (int)threadIdx.x + i * THREADS, row = e / 2, at = e % 2 * 4;
            to[at][row] = v[i].x, to[at + 1][row] = v[i].y;
            to[at + 2][row] = v[i].z, to[at + 3][row] = v[i].w;
        }
    }
};

/* Eight values of a slice's row: first .. first + 3, and half a tile further. */
__device__ inline void load_run(float (&v)[PER_ROW], const float *row, int first)
{
    float4 low = load4(row + first), high = load4(row + TILE / 2 + first);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__global__ void __launch_bounds__(slice_loader::THREADS)
    many_rows(const __grid_constant__ product p)
{
    __shared__ __align__(16) float a[2][SLICE][TILE + 4], b[2][SLICE][TILE + 4];
    constexpr int ACROSS = TILE / PER_ROW;
    int column = (int)threadIdx.x % ACROSS * 4, row = (int)threadIdx.x / ACROSS * 4;
    int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
    slice_loader of_a, of_w;
    float sum[PER_ROW][PER_ROW] = {}, total[PER_ROW][PER_ROW] = {};
    auto load = [&](int64_t from) {
        of_a.load(p.a(0), p.g.lda, row0, p.g.m, from, p.g.k);
        of_w.load(p.w(0), p.g.k, column0, p.g.n, from, p.g.k);
    };
    auto flush = [&] {
#pragma unroll
        for (int i = 0; i < PER_ROW * PER_ROW; i++)
            (&total[0][0])[i] += (&sum[0][0])[i], (&sum[0][0])[i] = 0;
    };
    load(0);
    for (int64_t from = 0, stage = 0; from < p.g.k; from += SLICE, stage ^= 1) {
        of_a.store(a[stage]), of_w.store(b[stage]);
        __syncthreads(); /* two stages: the one before may still be read */
        if (from + SLICE < p.g.k) load(from + SLICE);
#pragma unroll
        for (int k = 0; k < SLICE; k++) {
            float u[PER_ROW], v[PER_ROW];
            load_run(u, a[stage][k], row), load_run(v, b[stage][k], column);
#pragma unroll
            for (int i = 0; i < PER_ROW; i++)
#pragma unroll
                for (int j = 0; j < PER_ROW; j++) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
        }
        if ((from + SLICE) % CHUNK == 0) flush();
    }
    if (p.g.k % CHUNK) flush();
#pragma unroll
    for (int i = 0; i < PER_ROW; i++)
#pragma unroll
        for (int j = 0; j < PER_ROW; j++) {
            int64_t r = row0 + row + i % 4 + i / 4 * (TILE / 2),
                    c = column0 + column + j % 4 + j / 4 * (TILE / 2);
            if (r < p.g.m && c < p.g.n) put(p.g, r, c, total[i][j]);
        }
}

/* ---- host ---- */

int64_t tiles_of(const fv_gemm *g, int64_t tile)
{
    return ceil_div(g->m, tile) * ceil_div(g->n, tile);
}

/* Of few_rows<r>. */
size_t few_bytes(int64_t k, int r)
{
    return (size_t)(r * ceil_div(k, CHUNK) * CHUNK_STRIDE + WARPS * ROUND * (r + 1)) *
           sizeof(float);
}

template <int R> void start_few(fv_stream *s, const product &p)
{
    int64_t groups = ceil_div(p.g.m, R), most = 2 * (int64_t)device_of(s)->sm_count,
            blocks = ceil_div(p.g.n, WARPS);
    most = most > groups ? most / groups : 1;
    launch_pdl(s, "gemm", p.g.m <= PDL_MAX_ROWS, few_rows<R>,
               dim3((unsigned)(blocks < most ? blocks : most), (unsigned)groups), 32 * WARPS,
               few_bytes(p.g.k, R), p);
}

dim3 grid_of(const fv_gemm &g, int64_t tile)
{
    return dim3((unsigned)ceil_div(g.n, tile), (unsigned)ceil_div(g.m, tile));
}
} // namespace

/* False: odd sizes or strides. */
bool fv_cuda_gemm_f32(fv_stream *s, const fv_gemm *g)
{
    const device *d = device_of(s);
    product p = {*g};
    bool plain = g->batch == 1 && !g->ta && !g->add && !g->pre && (g->alpha == 0 || g->alpha == 1);
    if (!plain || g->k % 4 || g->lda % 4 || !g->k || !aligned(g->a, g->b) || g->ct != FV_F32 ||
        ceil_div(g->m, SMALL) > 65535)
        return false;
    if (g->m == 1 && few_bytes(g->k, 1) <= d->max_smem)
        start_few<1>(s, p);
    else if (g->m == 2 && few_bytes(g->k, 2) <= d->max_smem)
        start_few<2>(s, p);
    else if (g->m <= MAX_ROWS && few_bytes(g->k, MAX_ROWS) <= d->max_smem)
        start_few<MAX_ROWS>(s, p);
    else if (g->m >= 256 && tiles_of(g, TILE) >= d->sm_count)
        launch(s, "gemm", many_rows, grid_of(*g, TILE), slice_loader::THREADS, 0, p);
    else
        launch(s, "gemm", some_rows, grid_of(*g, SMALL), 32 * WARPS,
               (size_t)(WARPS * 2 * CHUNK * SMALL_STRIDE) * sizeof(float), p);
    return true;
}
