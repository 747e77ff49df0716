/* fused_linear_many.cu - y = act(norm(x) W' + bias) (+ y) for more rows than the kernels of few are
 * good at: the norm, a product of gemm/ and what follows it as kernels of their own.
 *
 *     n = norm(x) in bf16;   sums (rows,columns) = n W' in f32, or y += n W';   y = finish(sums)
 *
 * The megakernel reads weights once for each ROWS_BLOCK rows, through L2, and multiplies by small
 * mma; a product of its own reads them once and uses the tensor cores' widest instructions.  For
 * wide models that is worth two or three kernels more; at a width of 768 the megakernel is a fifth
 * faster with 16 to 128 rows, so a layer must be wide in both directions. */
#include "fused_linear.h"
#include "backend/cuda/gemm/quant.h"

namespace
{

/* Of a layer that is worth it: rows, both of n and k, elements of W and U together; and the rows
 * and the width from which a product that reads quantised weights as they are is worth it, too.
 * Measured on an H200 (docs/log.md). */
#define FEWEST_ROWS 9
#define LEAST_WIDTH 1024
#define LEAST_WEIGHTS (3 << 19)
#define FEWEST_QUANTISED_ROWS 2
#define LEAST_QUANTISED_WIDTH 2048

/* Elements of a quantised weight that are widened to bf16 at a time, as many as L2 holds: for more
 * rows than gemm/quant_sm90.cu takes, or on another GPU. */
#define WIDENED (16 << 20)

#define PARTS 4 /* a row's first PARTS * 4 * THREADS elements stay in registers */

/* Rows of k elements and their norm. */
struct normed_rows {
    const float *x, *gain, *shift;
    int64_t rows;
    int k;
    fv_norm_kind norm;
    float eps;
};

/* A row of y = norm(x), as `normalise` does it for a warp, by one block. */
template <class T>
__global__ void __launch_bounds__(THREADS) normalise_rows(T *y, const normed_rows a)
{
    int k = a.k, first = (int)threadIdx.x * 4;
    const float *gain = a.gain, *shift = a.shift, *x = a.x + (int64_t)blockIdx.x * k;
    float v[PARTS][4] = {}, mean = 0, sum = 0, scale = 1;
    pdl_launch_dependents();
    pdl_wait();
#pragma unroll
    for (int j = 0; j < PARTS; j++)
        if (j * 4 * THREADS + first < k) load(v[j], x, j * 4 * THREADS + first);
    auto each_of = [&](auto f) {
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            if (j * 4 * THREADS + first < k) f(v[j], j * 4 * THREADS + first);
        for (int i = PARTS * 4 * THREADS + first; i < k; i += 4 * THREADS) {
            float u[4];
            load(u, x, i);
            f(u, i);
        }
    };
    if (a.norm == FV_NORM_LAYER) {
        each_of([&](const float(&u)[4], int) { sum += (u[0] + u[1]) + (u[2] + u[3]); });
        mean = block_allreduce(sum, sum_op()) / (float)k;
    }
    if (a.norm) {
        sum = 0;
        each_of([&](const float(&u)[4], int) {
#pragma unroll
            for (int e = 0; e < 4; e++) sum += (u[e] - mean) * (u[e] - mean);
        });
        scale = 1 / sqrtf(block_allreduce(sum, sum_op()) / (float)k + a.eps);
    }
    each_of([&](const float(&u)[4], int i) {
        float r[4], g[4], t[4];
        if (gain) load(g, gain, i);
        if (shift) load(t, shift, i);
#pragma unroll
        for (int e = 0; e < 4; e++)
            r[e] = (u[e] - mean) * scale * (gain ? g[e] : 1) + (shift ? t[e] : 0);
        store(y, (int64_t)blockIdx.x * k + i, r);
    });
}

/* Sums of the product: those of W and, where the layer is gated, of U; rows ld apart.  They may be
 * in parts, `apart` elements from one to the next. */
struct layer_sums {
    const float *w, *up;
    int64_t ld, apart;
    int parts;

    /* A whole sum, `at` elements behind p. */
    __device__ float element(const float *p, int64_t at) const
    {
        float x = p[at];
        for (int i = 1; i < parts; i++) x += p[at + i * apart];
        return x;
    }
    __device__ void four(float (&x)[4], const float *p, int64_t at) const
    {
        load(x, p, at);
        for (int i = 1; i < parts; i++) {
            float y[4];
            load(y, p, at + i * apart);
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] += y[e];
        }
    }
};

/* One element of the result, to y or a cache. */
__device__ inline void store_element(const row_job &f, int64_t r, int64_t n, float v, int at)
{
    const fv_fused_linear &a = f.a;
    if (a.residual) v += ((const float *)a.residual)[r * a.n + n];
    target p = result_target(f, r, n, at);
    if (p.to && a.yt == FV_BF16)
        ((bf16 *)p.to)[p.i] = __float2bfloat16_rn(v);
    else if (p.to)
        ((float *)p.to)[p.i] = v;
}

/* A layer whose columns follow one another in y: a thread has four. */
__global__ void finish_quads(const __grid_constant__ row_job f, const layer_sums sums)
{
    const fv_fused_linear &a = f.a;
    int64_t quads = a.n / 4, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, r = i / quads;
    int n = (int)(i % quads) * 4;
    if (r >= a.rows) return;
    float v[4], up[4], b[4] = {}, c[4] = {}, y[4] = {};
    pdl_launch_dependents();
    if (a.bias) load(b, (const float *)a.bias, n);
    if (a.bias && a.up) load(c, (const float *)a.up_bias, n);
    pdl_wait();
    sums.four(v, sums.w, r * sums.ld + n);
    if (a.up) sums.four(up, sums.up, r * sums.ld + n);
    if (a.residual) load(y, (const float *)a.residual, r * a.n + n);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float x = activate(a.act, v[e] + b[e]);
        v[e] = a.up ? x * (up[e] + c[e]) : x + y[e];
    }
    if (a.yt == FV_BF16)
        store((bf16 *)a.y, r * a.n + n, v);
    else
        store((float *)a.y, r * a.n + n, v);
}

/* Any other layer, with rotations and a cache: a pair of columns. */
__global__ void finish_sums(const __grid_constant__ row_job f, const layer_sums sums)
{
    const fv_fused_linear &a = f.a;
    int64_t pairs = ceil_div(f.columns, 8) * 4, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
            r = i / pairs;
    if (r >= a.rows) return;
    pdl_launch_dependents();
    pdl_wait();
    const tile_columns c(a, (int)(i % pairs / 4));
    int pair = (int)(i % 4), n = c.column(pair);
    if (n >= a.n) return;
    bool both = n + c.apart < a.n;
    int64_t at = r * sums.ld + n;
    float2 v = make_float2(sums.element(sums.w, at), both ? sums.element(sums.w, at + c.apart) : 0),
           b = pair_bias((const float *)a.bias, NULL, c, pair, both);
    v = finish_pair(a.act, c, make_float2(v.x + b.x, v.y + b.y), pair_turn(a.rope, c, pair, r));
    int place = a.k_cache && n + c.apart >= a.y_n ? a.pos[r] : 0;
    store_element(f, r, n, v.x, place);
    if (both) store_element(f, r, n + c.apart, v.y, place);
}

/* Rows of a quantised weight that are widened at a time. */
int64_t widened_rows(const fv_fused_linear &a)
{
    int64_t rows = WIDENED / a.k / 8 * 8;
    return rows < 8 ? 8 : rows < a.n ? rows : a.n;
}

/* c (rows,n) f32 = x W', or added to it; wide: scratch for widened_rows. */
void multiply(fv_stream *s, const fv_fused_linear &a, const void *w, int64_t n, float *c, bool add,
              bf16 *wide)
{
    fv_gemm g = {};
    g.m = a.rows, g.k = a.k, g.batch = 1;
    g.a = a.x;
    g.lda = a.k, g.ldc = n;
    g.bt = FV_BF16, g.ct = FV_F32;
    g.packed = true;
    g.add = add;
    int64_t most = wide ? widened_rows(a) : n;
    for (int64_t from = 0; from < n; from += most) {
        const char *part = (const char *)w +
                           (wide ? from / QUANT_ROWS * quant_tile_bytes(a.wt, a.k) : 0);
        g.n = n - from < most ? n - from : most;
        g.b = wide ? (const void *)wide : part, g.c = c + from;
        if (wide) fv_cuda_dequantise(s, wide, part, a.wt, g.n, a.k);
        s->dev->k[FV_BF16]->gemm(s, &g);
    }
}

/* Nothing follows the product, or a sum with what is in y. */
bool is_bare(const fv_fused_linear &a)
{
    return !a.bias && !a.act && !a.up && !a.k_cache && a.yt == FV_F32 &&
           (!a.residual || a.residual == a.y);
}

template <class T> void start_norm(fv_stream *s, T *y, const normed_rows &a)
{
    launch_pdl(s, "fused_linear", a.rows <= PDL_MAX_ROWS, normalise_rows<T>, dim3((unsigned)a.rows),
               THREADS, 0, y, a);
}
} // namespace

void fv_cuda_normalise_rows(fv_stream *s, bf16 *y, const fv_fused_linear &a)
{
    const normed_rows r = {(const float *)a.x,
                           (const float *)a.gain,
                           (const float *)a.shift,
                           a.rows,
                           (int)a.k,
                           a.norm,
                           a.eps};
    start_norm(s, y, r);
}

void fv_cuda_normalise_residual(fv_stream *s, fv_fused_linear *a)
{
    const normed_rows r = {(const float *)a->residual,
                           (const float *)a->residual_gain,
                           (const float *)a->residual_shift,
                           a->rows,
                           (int)a->n,
                           a->residual_norm,
                           a->residual_eps};
    start_norm(s, (float *)a->y, r);
    a->residual = a->y, a->residual_norm = FV_NORM_NONE;
}

bool fv_cuda_fused_linear_many(fv_stream *s, const row_job &j)
{
    row_job f = j;
    fv_fused_linear &a = f.a;
    bool quantised = is_quantised(a.wt);
    int64_t w_bytes = quantised ? a.n / QUANT_ROWS * quant_tile_bytes(a.wt, a.k) : 2 * a.n * a.k;
    bool joined = a.up == (const char *)a.w + w_bytes;
    int64_t n = joined ? 2 * a.n : a.n; /* of a product */
    int parts = quantised ? fv_cuda_quant_parts(s, a.wt, a.rows, n, a.k) : 0;
    int64_t width = a.n < a.k ? a.n : a.k,
            fewest = parts && width >= LEAST_QUANTISED_WIDTH ? FEWEST_QUANTISED_ROWS : FEWEST_ROWS;
    bool wide = width >= LEAST_WIDTH && f.columns * a.k >= LEAST_WEIGHTS;
    if (a.rows < fewest || !wide || (a.wt != FV_BF16 && !quantised) || a.n % 8 || a.k % 8 ||
        !aligned(a.y, a.bias, a.up_bias))
        return false;
    if (a.residual_norm) fv_cuda_normalise_residual(s, &a);
    bool in_place = is_bare(a) && (!parts || (parts == 1 && !a.residual));
    int64_t x = a.xt == FV_BF16 ? 0 : a.rows * a.k,
            sums = in_place ? 0 : (parts ? parts : 1) * a.rows * f.columns,
            widened = quantised && !parts ? widened_rows(a) * a.k : 0,
            all = 4 * sums + 2 * (x + widened);
    char *scratch = all ? alloc_scratch<char>(s, all) : NULL;
    if (all && !scratch) return true;
    bf16 *weights = widened ? (bf16 *)(scratch + 4 * sums) : NULL;
    if (x) {
        bf16 *rows = (bf16 *)(scratch + 4 * sums) + widened;
        fv_cuda_normalise_rows(s, rows, a);
        a.x = rows, a.xt = FV_BF16, a.norm = FV_NORM_NONE;
    }
    float *to = in_place ? (float *)a.y : (float *)scratch;
    layer_sums of = {to, to + (joined ? a.n : a.rows * a.n), n, a.rows * f.columns,
                     parts ? parts : 1};
    for (int i = 0; i < (a.up && !joined ? 2 : 1); i++) {
        const void *w = i ? a.up : a.w;
        float *c = to + i * a.rows * a.n;
        if (parts)
            fv_cuda_multiply_quantised(s, c, n, of.apart, (const bf16 *)a.x, w, a.wt, a.rows, n,
                                       a.k);
        else
            multiply(s, a, w, n, c, in_place && a.residual, weights);
    }
    if (in_place) return true;
    bool by_quads = !a.rope.freq && !a.k_cache && aligned(a.residual);
    int64_t threads = a.rows * (by_quads ? a.n / 4 : ceil_div(f.columns, 8) * 4);
    launch_pdl(s, "fused_linear", true, by_quads ? finish_quads : finish_sums,
               dim3((unsigned)ceil_div(threads, THREADS)), THREADS, 0, f, of);
    return true;
}
