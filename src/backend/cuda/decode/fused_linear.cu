/* fused_linear.cu - y = act(norm(x) W' + bias) (+ residual) for the few rows of a decode step,
 * with optional append of keys and values to the KV caches.
 *
 * With few rows the layer is bound by reading W, so W shapes the kernel: a block computes COLUMNS
 * columns of y, its warps split K, and W goes from global memory straight into registers, several
 * steps ahead.  mma.m16n8k16 with W (bf16) as A, 16 columns of y, and x as B, 8 rows: up to 8 rows
 * cost what one does.  The order of K within an mma is free, so a lane takes 8 consecutive
 * elements of W and of x with one 16-byte load each.
 *
 * PDL: no kernel writes weights, so the first loads of W are issued before pdl_wait.  With few
 * columns and a long K, K is also split over blocks; the last block to finish adds the parts in
 * order.
 *
 * On Hopper a captured step runs these layers in the megakernel instead (fv_cuda_defer). */
#include "fused_linear.h"
#include "backend/cuda/gemm/quant.h"

namespace
{

#define WARPS 8
#define COLUMNS 16
#define STEP 32 /* K per warp and step: 8 elements for each of 4 lanes */
#define ROUND (STEP * WARPS)
#define MAX_ROWS 64       /* per block */
#define MAX_X (104 << 10) /* smem for rows of x, bytes: two blocks per SM */
#define SUM_STRIDE 20     /* floats per row of partial sums: no bank conflicts */

template <int NT> constexpr int ahead_of = NT <= 2 ? 6 : 4; /* steps of W in flight */

struct fused_linear_job : row_job {
    int chunk, part; /* K in smem at once; K per block; both multiples of ROUND */
    float *sums;     /* split-K partial sums (tiles, parts, rows * COLUMNS) */
    unsigned *ticket;
};

/* Elements from row to row of x in smem: 64 bytes of padding against bank conflicts. */
__device__ inline int stride_of(const fused_linear_job &f) { return f.chunk + 32; }

/* ---- x ---- */

/* K range [from, from + chunk) of all rows to smem as bf16; missing rows and columns are 0. */
template <class X, int NT>
__device__ void fetch_rows(const fused_linear_job &f, bf16 *to, int64_t row0, int rows, int from)
{
    int warp = threadIdx.x / 32;
    const X *x = (const X *)f.a.x + row0 * f.k + from;
    for (int at = threadIdx.x % 32 * 8; at < f.chunk; at += 256)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int r = warp + j * WARPS;
            bf16 *p = to + r * stride_of(f) + at;
            if (from + at >= f.k || r >= rows) {
                *(uint4 *)p = uint4{};
            } else if constexpr (sizeof(X) == 2) {
                cp_async16(p, x + (int64_t)r * f.k + at);
            } else {
                float v[8];
                load(v, x, (int64_t)r * f.k + at);
                *(uint4 *)p = rounded(v);
            }
        }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Up to 8 rows, normalised, one warp each; gain and shift have been staged behind them in smem. */
__device__ inline void fetch_normalised(const fused_linear_job &f, bf16 *to, const float *gain,
                                        int64_t row0, int rows)
{
    int r = threadIdx.x / 32, whole = f.chunk;
    const float *x = (const float *)f.a.x + (row0 + r) * f.k;
    bf16 *row = to + r * stride_of(f);
    if (r < rows) normalise(f.a, row, x, f.a.gain ? gain : NULL, f.a.shift ? gain + f.k : NULL);
    for (int i = (r < rows ? f.k : 0) + threadIdx.x % 32 * 8; i < whole; i += 256)
        *(uint4 *)(row + i) = uint4{};
}

/* ---- K loop ---- */

/* Register pipeline of W, bf16 or quantised (WT): rows n and n + 8 of the tile, 8 elements of each,
 * for the warp's next AHEAD steps.
 *    lane   0..3     4..7    ..    28..31            one warp, one step of 32 values of k
 *    row    n        n+1           n+7               of W (low), and n + 8 .. n + 15 (high)
 *    k      8 each: lane%4 * 8 ..                    16 bytes a load, AHEAD steps in flight
 *
 * Bytes in flight are what matters: 2 loads of 16 bytes * 32 lanes * 6 steps * 16 warps an SM
 * are 96 KiB, more than the latency-bandwidth product of HBM asks of one SM. */
template <int WT, int AHEAD> struct w_pipeline {
    weight_part<WT> low[AHEAD], high[AHEAD];
    const char *w_low, *w_high, *s_low, *s_high; /* values and scales at step 0 */
    int k, end; /* K of step 0, and the end of this block's range */
    bool has_low, has_high;

    __device__ void load_step(const fused_linear_job &f, int slot, int offset)
    {
        bool in = k + offset < end, block = k / QUANT_BLOCK * QUANT_BLOCK + offset < end;
        int blocks = offset / QUANT_BLOCK;
        low[slot].load(w_low, s_low, blocks, in && has_low, block && has_low);
        high[slot].load(w_high, s_high, blocks, in && has_high, block && has_high);
    }
    /* Where the lane's row of a tile has its values and scales of step 0. */
    __device__ void row_of(const fused_linear_job &f, int tile, const char *&value,
                           const char *&scale) const
    {
        const weight_row r = weight_row_of(f.a, tile_columns(f.a, tile), (int)threadIdx.x % 32 / 4);
        const row_start<const char> start(r.w, WT, r.row, f.k);
        int64_t on = k / QUANT_BLOCK * start.block_bytes;
        value = start.value + on + k % QUANT_BLOCK * weight_part<WT>::VALUE_BITS / 8;
        scale = start.scale + on;
    }
    /* The block's K range starts at `from`, this warp's at `at`; its steps are `by` apart. */
    __device__ void begin(const fused_linear_job &f, int64_t tile, int from, int at, int by)
    {
        int lane = threadIdx.x % 32, n = (int)tile * COLUMNS + lane / 4;
        k = at + lane % 4 * 8;
        end = from + f.part < f.k ? from + f.part : f.k;
        row_of(f, 2 * (int)tile, w_low, s_low);
        row_of(f, 2 * (int)tile + 1, w_high, s_high);
        has_low = n < f.columns;
        has_high = n + 8 < f.columns;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) load_step(f, j, j * by);
    }
};

/* A step is one block of a quantised row: its sum is scaled. */
template <int WT, int NT>
__device__ inline void multiply(float (&c)[NT][4], const weight_part<WT> &w_low,
                                const weight_part<WT> &w_high, const bf16 *x, int stride)
{
    uint4 low = w_low.bf16x8(), high = w_high.bf16x8();
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint4 b = *(const uint4 *)(x + t * 8 * stride);
        if constexpr (WT == FV_BF16) {
            mma(c[t], low.x, high.x, low.y, high.y, b.x, b.y);
            mma(c[t], low.z, high.z, low.w, high.w, b.z, b.w);
        } else {
            float d[4] = {};
            mma(d, low.x, high.x, low.y, high.y, b.x, b.y);
            mma(d, low.z, high.z, low.w, high.w, b.z, b.w);
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[t][e] = fmaf(e < 2 ? w_low.scale : w_high.scale, d[e], c[t][e]);
        }
    }
}

/* ---- epilogue ---- */

/* Epilogue inputs of four adjacent columns, where sizes allow one access each. */
struct quad_operands {
    float bias[4], old[4];
    int at;
    __device__ void prefetch(const fused_linear_job &f, int64_t r, int64_t n, bool now)
    {
        const fv_fused_linear &a = f.a;
#pragma unroll
        for (int e = 0; e < 4; e++) bias[e] = old[e] = 0;
        at = 0;
        if (!now || !f.quads || n >= a.n || r >= a.rows) return;
        if (a.bias) load(bias, (const float *)a.bias, n);
        if (a.residual) load(old, (const float *)a.residual, r * a.n + n);
        if (a.k_cache && n >= a.y_n) at = a.pos[r];
    }
};

/* Two pairs of a gated or rotated layer, from products n .. n + 3 of row r.
 * Four products are two pairs here: (gate, up) of two columns, or two rotated pairs of a head. */
__device__ inline void store_two_pairs(const fused_linear_job &f, int64_t r, int n,
                                       const float (&v)[4])
{
    const fv_fused_linear &a = f.a;
    tile_columns c(a, n / 8);
    int at = a.k_cache ? a.pos[r] : 0;
    auto put = [&](int column, float x) {
        target p = result_target(f, r, column, at);
        if (p.to && a.yt == FV_BF16)
            ((bf16 *)p.to)[p.i] = __float2bfloat16_rn(x);
        else if (p.to)
            ((float *)p.to)[p.i] = x;
    };
    for (int e = 0; e < 2; e++) {
        int pair = n % 8 / 2 + e;
        float2 b = pair_bias((const float *)a.bias, (const float *)a.up_bias, c, pair, true);
        float2 x = finish_pair(a.act, c, make_float2(v[2 * e] + b.x, v[2 * e + 1] + b.y),
                               pair_turn(a.rope, c, pair, r));
        put(c.column(pair), x.x);
        if (c.apart) put(c.column(pair) + c.apart, x.y);
    }
}

__device__ inline void store_four_results(const fused_linear_job &f, int64_t r, int64_t n,
                                          float (&v)[4], const quad_operands &b)
{
    const fv_fused_linear &a = f.a;
    if (a.up || a.rope.freq) {
        if (n < f.columns) store_two_pairs(f, r, (int)n, v);
        return;
    }
    if (!f.quads) {
        for (int e = 0; e < 4; e++) {
            epilogue_operands one;
            one.prefetch(f, r, n + e, true);
            store_result(f, r, n + e, v[e], one);
        }
        return;
    }
    if (n >= a.n) return;
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = activate(a.act, v[e] + b.bias[e]) + b.old[e];
    target p = result_target(f, r, n, b.at);
    if (p.to && a.yt == FV_BF16)
        store((bf16 *)p.to, p.i, v);
    else if (p.to)
        store((float *)p.to, p.i, v);
}

/* Adds the partial sums of the warps, then (split-K) of the blocks, in order, and stores four
 * columns of a row per thread. */
template <int NT>
__device__ void finish(const fused_linear_job &f, float *sums, const float (&c)[NT][4],
                       int64_t tile, int64_t row0, int rows)
{
    constexpr int SIZE = NT * 8 * SUM_STRIDE;
    __shared__ bool last;
    int lane = threadIdx.x % 32, column = threadIdx.x % (COLUMNS / 4) * 4,
        r = threadIdx.x / (COLUMNS / 4);
    float *mine = sums + threadIdx.x / 32 * SIZE, v[4] = {}, u[4];
    int64_t parts = gridDim.z, at = (blockIdx.y * ceil_div(f.columns, COLUMNS) + tile) * parts,
            n = tile * COLUMNS + column;
    float *part = f.sums + at * (NT * 8 * COLUMNS) + r * COLUMNS + column; /* of block z = 0 */
    quad_operands b;
    b.prefetch(f, row0 + r, n, r < rows && parts == 1);
    __syncthreads(); /* the sums reuse the smem of x */
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            mine[(t * 8 + lane % 4 * 2 + e % 2) * SUM_STRIDE + lane / 4 + e / 2 * 8] = c[t][e];
    __syncthreads();
    for (int w = 0; r < rows && w < WARPS; w++) {
        load(u, sums, w * SIZE + r * SUM_STRIDE + column);
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] += u[e];
    }
    if (parts == 1) {
        if (r < rows) store_four_results(f, row0 + r, n, v, b);
        return;
    }
    if (r < rows) store(part, (int64_t)blockIdx.z * (NT * 8 * COLUMNS), v);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&f.ticket[at / parts], 1u) == parts - 1;
        if (last) f.ticket[at / parts] = 0;
    }
    __syncthreads();
    if (!last || r >= rows) return;
    __threadfence();
    b.prefetch(f, row0 + r, n, true);
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = 0;
#pragma unroll 4
    for (int64_t p = 0; p < parts; p++) {
        float4 q = __ldcg((const float4 *)(part + p * (NT * 8 * COLUMNS)));
        v[0] += q.x, v[1] += q.y, v[2] += q.z, v[3] += q.w;
    }
    store_four_results(f, row0 + r, n, v, b);
}

/* One block per tile of COLUMNS columns (x) and part of K (z). */
template <class X, int NT, int WT>
__global__ void __launch_bounds__(32 * WARPS, 2)
    fused_linear_tile(const __grid_constant__ fused_linear_job f)
{
    constexpr int AHEAD = ahead_of<NT>;
    extern __shared__ __align__(16) unsigned char memory[];
    bf16 *x = (bf16 *)memory;
    float *gain = (float *)(memory + NT * 8 * stride_of(f) * sizeof(bf16));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, from = (int)blockIdx.z * f.part;
    int64_t row0 = (int64_t)blockIdx.y * MAX_ROWS;
    int rows = f.a.rows - row0 < MAX_ROWS ? (int)(f.a.rows - row0) : MAX_ROWS;
    int steps = ((f.k - from < f.part ? f.k - from : f.part) + ROUND - 1) / ROUND;
    bool normed = NT == 1 && sizeof(X) == 4 && f.a.norm;
    w_pipeline<WT, AHEAD> w;
    float c[NT][4] = {};
    pdl_launch_dependents();
    w.begin(f, blockIdx.x, from, from + warp * STEP, ROUND);
    if (normed) {
        for (int i = threadIdx.x; f.a.gain && i < f.k; i += 32 * WARPS)
            gain[i] = ((const float *)f.a.gain)[i];
        for (int i = threadIdx.x; f.a.shift && i < f.k; i += 32 * WARPS)
            gain[f.k + i] = ((const float *)f.a.shift)[i];
        __syncthreads();
    }
    pdl_wait();
    if (normed) fetch_normalised(f, x, gain, row0, rows);
    const bf16 *mine = x + lane / 4 * stride_of(f) + warp * STEP + lane % 4 * 8;
    for (int i0 = 0, within = 0; i0 < steps; i0 += AHEAD)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i0 + j >= steps) continue;
            if (within == 0) {
                if (i0 + j) __syncthreads(); /* the previous chunk has been read */
                if (!normed) fetch_rows<X, NT>(f, x, row0, rows, from + (i0 + j) * ROUND);
                __syncthreads();
            }
            multiply<WT, NT>(c, w.low[j], w.high[j], mine + within, stride_of(f));
            w.load_step(f, j, (i0 + j + AHEAD) * ROUND);
            within = within + ROUND < f.chunk ? within + ROUND : 0;
        }
    finish<NT>(f, (float *)memory, c, blockIdx.x, row0, rows);
}

/* Many columns (a vocabulary): x stays in smem, and each warp computes tile after tile over all of
 * K, without block barriers. */
template <class X, int NT>
__global__ void __launch_bounds__(32 * WARPS, 2)
    fused_linear_wide(const __grid_constant__ fused_linear_job f)
{
    constexpr int AHEAD = ahead_of<NT>;
    extern __shared__ __align__(16) unsigned char memory[];
    bf16 *x = (bf16 *)memory;
    int lane = threadIdx.x % 32, steps = (f.k + STEP - 1) / STEP;
    int64_t tiles = ceil_div(f.a.n, COLUMNS), row0 = (int64_t)blockIdx.y * MAX_ROWS,
            each = (int64_t)gridDim.x * WARPS;
    int64_t tile = threadIdx.x / 32 * (int64_t)gridDim.x + blockIdx.x;
    int rows = f.a.rows - row0 < MAX_ROWS ? (int)(f.a.rows - row0) : MAX_ROWS;
    const bf16 *mine = x + lane / 4 * stride_of(f) + lane % 4 * 8;
    w_pipeline<FV_BF16, AHEAD> w;
    pdl_launch_dependents();
    w.begin(f, tile, 0, 0, STEP);
    pdl_wait();
    fetch_rows<X, NT>(f, x, row0, rows, 0);
    __syncthreads();
    for (; tile < tiles; tile += each) {
        float c[NT][4] = {};
        for (int i0 = 0; i0 < steps; i0 += AHEAD)
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (i0 + j >= steps) continue;
                multiply<FV_BF16, NT>(c, w.low[j], w.high[j], mine + (i0 + j) * STEP, stride_of(f));
                w.load_step(f, j, (i0 + j + AHEAD) * STEP);
            }
        if (tile + each < tiles) w.begin(f, tile + each, 0, 0, STEP);
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t r = t * 8 + lane % 4 * 2 + e % 2, n = tile * COLUMNS + lane / 4 + e / 2 * 8;
                epilogue_operands b;
                b.prefetch(f, row0 + r, n, r < rows);
                if (r < rows) store_result(f, row0 + r, n, c[t][e], b);
            }
    }
}

/* ---- host ---- */

/* Split-K factor where tiles alone would leave SMs idle; at least two rounds per part.
 * Split-K costs a round trip through global memory, so only where less than one block an SM is
 * left. */
int parts_for(const device *d, int64_t blocks, int whole)
{
    int parts = 1;
    while (parts < 8 && blocks * parts <= d->sm_count && whole / (parts * 2) >= 2 * ROUND)
        parts *= 2;
    return blocks <= TICKETS ? parts : 1;
}

/* Chooses split-K, the chunk of K in smem, and the kernel.  NT: 8-row mma tiles. */
template <class X, int NT, int WT> void start(fv_stream *s, fused_linear_job f)
{
    const device *d = device_of(s);
    int64_t tiles = ceil_div(f.columns, COLUMNS), groups = ceil_div(f.a.rows, MAX_ROWS);
    bool paired = f.a.up || f.a.rope.freq;
    /* some GPUs have less than MAX_X */
    int whole = (int)ceil_div(f.k, ROUND) * ROUND, smem_bytes = (int)d->max_smem - 256;
    int fits = ((smem_bytes < MAX_X ? smem_bytes : MAX_X) / (NT * 8 * (int)sizeof(bf16)) - 32) /
               ROUND * ROUND;
    bool normed = f.a.norm != FV_NORM_NONE;
    int parts = normed ? 1 : parts_for(d, tiles * groups, whole);
    f.part = (int)ceil_div(whole / ROUND, parts) * ROUND;
    parts = (int)ceil_div(whole, f.part);
    f.chunk = f.part < fits ? f.part : fits;
    size_t rows = (size_t)(NT * 8 * (f.chunk + 32)) * sizeof(bf16),
           sums = (size_t)(WARPS * NT * 8 * SUM_STRIDE) * sizeof(float);
    bool wide = tiles >= 8 * d->sm_count && !normed && !paired && WT == FV_BF16;
    if (parts == 1 && f.chunk == f.part && wide) {
        int64_t blocks = 2 * (int64_t)d->sm_count;
        launch_pdl(s, "fused_linear", NT == 1, fused_linear_wide<X, NT>,
                   dim3((unsigned)blocks, (unsigned)groups), 32 * WARPS, rows, f);
        return;
    }
    size_t shared = rows + (normed ? 2 * (size_t)f.k * sizeof(float) : 0);
    dim3 grid((unsigned)tiles, (unsigned)groups, (unsigned)parts);
    launch_pdl(s, "fused_linear", NT == 1, fused_linear_tile<X, NT, WT>, grid, 32 * WARPS,
               shared > sums ? shared : sums, f);
}

template <int WT> void start_as(fv_stream *s, const fused_linear_job &f)
{
    if (f.a.xt == FV_F32)
        start<float, 1, WT>(s, f);
    else if (f.a.rows <= 8)
        start<bf16, 1, WT>(s, f);
    else if (f.a.rows <= 16)
        start<bf16, 2, WT>(s, f);
    else if (f.a.rows <= 32)
        start<bf16, 4, WT>(s, f);
    else
        start<bf16, 8, WT>(s, f);
}

void start_for(fv_stream *s, const fused_linear_job &f)
{
    if (f.a.wt == FV_Q8)
        start_as<FV_Q8>(s, f);
    else if (f.a.wt == FV_Q4)
        start_as<FV_Q4>(s, f);
    else
        start_as<FV_BF16>(s, f);
}

/* Scratch for split-K sums (at most two blocks per SM take part) and for normalised rows: a block
 * normalises up to 8 rows itself if they fit; more are normalised once by a kernel of their own.
 * Every block needs all rows normalised.  Up to 8 rows each block does it again: that is cheaper
 * than a launch, and x is in L2. */
bool prepare(fv_stream *s, fused_linear_job *f)
{
    if (f->a.residual_norm) fv_cuda_normalise_residual(s, &f->a);
    bool apart = f->a.xt == FV_F32 && (f->a.rows > 8 || (f->a.norm && f->k > 4096));
    int64_t sums = 2 * (int64_t)device_of(s)->sm_count * MAX_ROWS * COLUMNS,
            rows = apart ? f->a.rows * f->k : 0;
    f->sums = alloc_scratch<float>(s, sums + ceil_div(rows, 2));
    if (!f->sums || !apart) return f->sums != NULL;
    bf16 *y = (bf16 *)(f->sums + sums);
    fv_cuda_normalise_rows(s, y, f->a);
    f->a.x = y;
    f->a.xt = FV_BF16;
    f->a.norm = FV_NORM_NONE;
    return true;
}

/* What gated and rotated layers need so that no pair crosses a tile, a head or a cache. */
bool pairs_fit(const fv_fused_linear *a)
{
    const fv_fused_rope &o = a->rope;
    if (a->up && (a->residual || a->k_cache || o.freq || a->n % 4 || !aligned(a->up))) return false;
    if (!a->bias != !a->up_bias && a->up) return false;
    return !o.freq || (a->k_cache && !a->residual && !a->act && o.head > 0 && o.head % 8 == 0 &&
                       o.half % 4 == 0 && 2 * o.half <= o.head && a->y_n % o.head == 0 &&
                       (a->n - a->y_n) % (2 * o.head) == 0);
}

/* The kernel table's entry; false: another dtype, alignment or size. */
bool fused_linear(fv_stream *s, const fv_fused_linear *a)
{
    bool can = (a->wt == FV_BF16 || is_quantised(a->wt)) &&
               (a->xt == FV_F32 || (a->xt == FV_BF16 && !a->norm)) &&
               (a->yt == FV_F32 || (a->yt == FV_BF16 && !a->residual)) && a->k % 8 == 0 &&
               a->k > 0 && (!a->residual_norm || a->n % 4 == 0) &&
               aligned(a->x, a->w, a->gain, a->shift) &&
               aligned(a->residual, a->residual_gain, a->residual_shift) && a->k <= 1 << 24 &&
               a->rows <= 16 * MAX_ROWS && a->n < INT32_MAX / 2 && pairs_fit(a);
    if (!can || s->err.code || !a->rows || !a->n) return can;
    fused_linear_job f = {};
    f.a = *a;
    f.k = (int)a->k;
    f.columns = (int)(a->up ? 2 * a->n : a->n);
    f.quads = !a->up && !a->rope.freq && a->n % 4 == 0 &&
              aligned(a->y, a->bias, a->k_cache, a->v_cache) &&
              (!a->k_cache || (a->y_n % 4 == 0 && (a->n - a->y_n) % 8 == 0 &&
                               a->cache_row % 4 == 0 && a->cache_batch % 4 == 0));
    f.ticket = device_of(s)->tickets;
    f.bad = faults_of(s) + FAULT_CACHE;
    if (fv_cuda_fused_linear_many(s, f) || fv_cuda_defer(s, f)) return true;
    if (prepare(s, &f)) start_for(s, f);
    return true;
}
} // namespace

/* In the f32 table alone: x is f32, or bf16 on its way from an f32 op. */
template <class T> void fv_cuda_fused_linear(fv_kernels *k)
{
    if (kind<T>::dtype != FV_F32) return;
    k->fused_linear = fused_linear;
    k->fused_linear_gates = true;
}
FOR_ALL_DTYPES(fv_cuda_fused_linear)
