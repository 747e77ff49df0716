/* embed.cu - y = layernorm(table0[id0] + table1[id1] + table2[id2]), or the sum alone, in one pass.
 *
 * With the norm, a warp holds a row in registers.  Partial sums are rounded to T as if each were
 * stored, so the result has the bits of gather, add, add and layernorm. */
#include "norm_warp.h"

namespace
{

/* One warp per row: the sum in registers, then norm_held.  Without ids, table i contributes row
 * first + r % count (positions). */
template <class T, int P, int V>
__global__ void __launch_bounds__(32 * NORM_WARPS)
    embed_by_warp(norm_args<T> n, fv_embed a, fault *bad)
{
    int lane = threadIdx.x % 32;
    int64_t r = (int64_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;
    float v[P][V] = {};
    pdl_wait();
    pdl_launch_dependents();
    if (r >= a.rows) return;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (i >= a.n) break;
        int64_t id = a.of[i].ids ? a.of[i].ids[r] : a.of[i].first + r % a.of[i].count;
        if (id < 0 || id >= a.of[i].vocab) {
            if (lane == 0) report_fault(bad, r, id, a.of[i].vocab);
            continue;
        }
#pragma unroll
        for (int p = 0; p < P; p++) {
            float x[V];
            load(x, (const T *)a.of[i].table, id * a.cols + (p * 32 + lane) * V);
            for (int j = 0; j < V; j++)
                v[p][j] = i ? to_float(from_float<T>(v[p][j] + x[j])) : x[j];
        }
    }
    norm_held(v, n, r);
}

/* Columns c .. c+V-1 of row r of the sum.
 * An id out of range is reported once, by the thread of column 0, and counts as a row of zeros. */
template <class T, int V>
__device__ inline void rows_sum(float (&sum)[V], const fv_embed &a, int64_t r, int64_t c,
                                fault *bad)
{
    for (int j = 0; j < V; j++) sum[j] = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (i >= a.n) break;
        int64_t id = a.of[i].ids ? a.of[i].ids[r] : a.of[i].first + r % a.of[i].count;
        float x[V];
        if (id < 0 || id >= a.of[i].vocab) {
            if (c == 0) report_fault(bad, r, id, a.of[i].vocab);
            continue;
        }
        load(x, (const T *)a.of[i].table, id * a.cols + c);
        for (int j = 0; j < V; j++) sum[j] = i ? to_float(from_float<T>(sum[j] + x[j])) : x[j];
    }
}

/* The sum without a norm. */
template <class T> void embed_bare(fv_stream *s, const fv_embed &e)
{
    fv_embed a = e;
    fault *bad = faults_of(s) + FAULT_GATHER;
    bool wide = a.cols % vec<T> == 0 && aligned(a.y, a.of[0].table, a.of[1].table, a.of[2].table);
    each_vec<vec<T>>(s, "embed", a.rows * a.cols, wide, [=] __device__(auto w, int64_t i) {
        float sum[decltype(w)::value];
        rows_sum<T>(sum, a, i / a.cols, i % a.cols, bad);
        store((T *)a.y, i, sum);
    });
}

template <class T> bool embed(fv_stream *s, const fv_embed *a)
{
    if (a->eps < 0) {
        embed_bare<T>(s, *a);
        return true;
    }
    norm_shape shape = shape_of<T>(a->cols);
    if (!shape.packs ||
        !aligned(a->y, a->of[0].table, a->of[1].table, a->of[2].table, a->gain, a->bias))
        return false;
    float *stats = alloc_scratch<float>(s, 2 * a->rows); /* mean and rstd, unused in inference */
    if (!stats) return true;
    norm_args<T> n = {};
    n.y = (T *)a->y, n.gain = (const T *)a->gain, n.bias = (const T *)a->bias;
    n.mean = stats, n.rstd = stats + a->rows;
    n.cols = a->cols, n.eps = a->eps;
    with_shape<T>(shape, [&](auto p, auto v) {
        launch_pdl(s, "embed", true, embed_by_warp<T, decltype(p)::value, decltype(v)::value>,
                   dim3((unsigned)ceil_div(a->rows, NORM_WARPS)), 32 * NORM_WARPS, 0, n, *a,
                   faults_of(s) + FAULT_GATHER);
    });
    return true;
}
} // namespace

template <class T> void fv_cuda_embed(fv_kernels *k) { k->embed = embed<T>; }
FOR_ALL_DTYPES(fv_cuda_embed)
