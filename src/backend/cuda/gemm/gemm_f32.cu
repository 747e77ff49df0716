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
 * ones leave most SMs idle at a decode step.  An order of sums that two very different kernels can
 * keep costs less:
 *   few rows:   a warp per column (or two or four) of C, a chunk per lane; rows of A in shared
 *               memory
 *   many rows:  tiles of 64 or 128, 8 by 8 elements a thread, two sums for each: of the chunk,
 *               and of all chunks before
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

/* The chunk of this lane for R rows and C columns, half a chunk in registers at a time.  A load of
 * x serves C products of 4: shared memory is what limits this kernel. */
template <int R, int C>
__device__ inline void multiply_chunk(float (&sum)[C][R], const float *const (&w)[C],
                                      const float *x, int x_row, int n)
{
    constexpr int AHEAD = C == 1 ? CHUNK / 4 : CHUNK / 8;
#pragma unroll
    for (int i0 = 0; i0 < CHUNK / 4; i0 += AHEAD) {
        float4 b[C][AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int c = 0; c < C; c++)
                b[c][i] = 4 * (i0 + i) < n ? __ldg((const float4 *)w[c] + i0 + i) : float4{};
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                /* behind the end both factors must be 0, not what smem held */
                float4 a = 4 * (i0 + i) < n ? load4(x + r * x_row + 4 * (i0 + i)) : float4{};
#pragma unroll
                for (int c = 0; c < C; c++) sum[c][r] = dot4(a, b[c][i], sum[c][r]);
            }
    }
}

/* Blocks (x) share the columns, groups of R rows are apart (y).  A lane's chunk sums go through
 * shared memory to lane c R + r, which adds those of column c and row r in order. */
template <int R, int C>
__global__ void __launch_bounds__(32 * WARPS) few_rows(const __grid_constant__ product p)
{
    static_assert(R * C <= 32, "a lane per result");
    extern __shared__ __align__(16) float x[];
    __shared__ float sums[WARPS][ROUND][R * C + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = (int)p.g.k,
        chunks = (k + CHUNK - 1) / CHUNK;
    int64_t row0 = (int64_t)blockIdx.y * R, step = (int64_t)gridDim.x * WARPS * C;
    pdl_launch_dependents();
    pdl_wait();
    stage_rows<R>(x, p, row0);
    for (int64_t j = ((int64_t)blockIdx.x * WARPS + warp) * C; j < p.g.n; j += step) {
        float total = 0;
        for (int c0 = 0; c0 < chunks; c0 += ROUND) {
            float sum[C][R] = {};
            int at = c0 + lane;
            const float *w[C]; /* columns that do not exist: the last again */
#pragma unroll
            for (int c = 0; c < C; c++) w[c] = p.w(min(j + c, p.g.n - 1)) + at * CHUNK;
            if (at < chunks)
                multiply_chunk<R, C>(sum, w, x + at * CHUNK_STRIDE, chunks * CHUNK_STRIDE,
                                     k - at * CHUNK);
            __syncwarp(); /* the sums before have been read */
#pragma unroll
            for (int i = 0; i < R * C; i++) sums[warp][lane][i] = sum[i / R][i % R];
            __syncwarp();
            for (int i = 0; lane < R * C && i < ROUND && c0 + i < chunks; i++)
                total += sums[warp][i][lane];
        }
        if (lane < R * C && row0 + lane % R < p.g.m && j + lane / R < p.g.n)
            put(p.g, row0 + lane % R, j + lane / R, total);
    }
}

/* ---- many rows ---- */

#define SLICE 8   /* of k in shared memory */
#define PER_ROW 8 /* elements of a thread, in each direction: two runs of 4, half a tile apart */

/* A slice of TILE rows of a matrix (rows,k), loaded to registers and stored with k as rows. */
template <int TILE> struct slice_loader {
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
template <int TILE>
__device__ inline void load_run(float (&v)[PER_ROW], const float *row, int first)
{
    float4 low = load4(row + first), high = load4(row + TILE / 2 + first);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

template <int TILE>
__global__ void __launch_bounds__(slice_loader<TILE>::THREADS)
    many_rows(const __grid_constant__ product p)
{
    __shared__ __align__(16) float a[2][SLICE][TILE + 4], b[2][SLICE][TILE + 4];
    constexpr int ACROSS = TILE / PER_ROW;
    int column = (int)threadIdx.x % ACROSS * 4, row = (int)threadIdx.x / ACROSS * 4;
    int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
    slice_loader<TILE> of_a, of_w;
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
            load_run<TILE>(u, a[stage][k], row), load_run<TILE>(v, b[stage][k], column);
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

template <int TILE> int64_t tiles_of(const fv_gemm *g)
{
    return ceil_div(g->m, TILE) * ceil_div(g->n, TILE);
}

template <int TILE> void start_tiles(fv_stream *s, const product &p)
{
    launch(s, "gemm", many_rows<TILE>,
           dim3((unsigned)ceil_div(p.g.n, TILE), (unsigned)ceil_div(p.g.m, TILE)),
           slice_loader<TILE>::THREADS, 0, p);
}

size_t row_bytes(int64_t k) { return (size_t)(ceil_div(k, CHUNK) * CHUNK_STRIDE) * sizeof(float); }

template <int R, int C> void start_few_by(fv_stream *s, const product &p)
{
    int64_t groups = ceil_div(p.g.m, R), most = 2 * (int64_t)device_of(s)->sm_count,
            blocks = ceil_div(p.g.n, WARPS * C);
    most = most > groups ? most / groups : 1;
    launch_pdl(s, "gemm", p.g.m <= PDL_MAX_ROWS, few_rows<R, C>,
               dim3((unsigned)(blocks < most ? blocks : most), (unsigned)groups), 32 * WARPS,
               R * row_bytes(p.g.k), p);
}

/* The more columns for a warp, as long as each SM has eight of them. */
void start_eight(fv_stream *s, const product &p)
{
    int64_t warps = ceil_div(p.g.m, MAX_ROWS) * p.g.n, enough = 8 * (int64_t)device_of(s)->sm_count;
    if (warps >= 4 * enough)
        start_few_by<MAX_ROWS, 4>(s, p);
    else if (warps >= 2 * enough)
        start_few_by<MAX_ROWS, 2>(s, p);
    else
        start_few_by<MAX_ROWS, 1>(s, p);
}
} // namespace

/* Tiles where there are enough for all SMs.  False: odd sizes or strides. */
bool fv_cuda_gemm_f32(fv_stream *s, const fv_gemm *g)
{
    const device *d = device_of(s);
    product p = {*g};
    size_t one = row_bytes(g->k), most = d->max_smem - (40 << 10);
    bool plain = g->batch == 1 && !g->ta && !g->add && !g->pre && (g->alpha == 0 || g->alpha == 1);
    if (!plain || g->k % 4 || g->lda % 4 || !g->k || !aligned(g->a, g->b) || one > most ||
        g->ct != FV_F32 || ceil_div(g->m, 64) > 65535)
        return false;
    if (g->m >= 256 && tiles_of<128>(g) >= d->sm_count)
        start_tiles<128>(s, p);
    else if (tiles_of<64>(g) >= d->sm_count)
        start_tiles<64>(s, p);
    else if (g->m > 2 && MAX_ROWS * one <= most)
        start_eight(s, p);
    else if (g->m > 1 && 2 * one <= most)
        start_few_by<2, 1>(s, p);
    else
        start_few_by<1, 1>(s, p);
    return true;
}
