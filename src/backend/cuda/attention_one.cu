/* attention_one.cu - attention of one query in each sequence, as a step of writing has it: a walk through a cache.
 *
 * L neighbouring threads share a key, 16 bytes each, and keep the largest score, the sum of exp(score - largest) and the
 * weighted sum of values of the keys they saw.  A block joins its groups, and where there are few heads and many keys the
 * last of several blocks joins theirs, always in the same order.  How many keys there are is read from memory. */
#include "attention.h"
#include "attention_ways.h"

#define ONE_THREADS 256
#define UNROLL 4      /* keys of a group that are on the way at once */
#define PART_KEYS 256 /* a block takes at least so many */
#define MOST_PARTS 16

/* What some keys came to; (top, sum, y[W]) in memory. */
template <int V> struct seen {
    float top, sum, y[V];
    __device__ void rescale(float now)
    {
        float shrink = now == -INFINITY ? 0 : exp2f(top - now);
        top = now;
        sum *= shrink;
#pragma unroll
        for (int e = 0; e < V; e++) y[e] *= shrink;
    }
};

template <class T, int V, int L> __device__ seen<V> walk(const head<T> &at, int from, int to)
{
    const job<T> &o = at.o;
    int lane = threadIdx.x % L, group = threadIdx.x / L, g = o.kv_head(at.h);
    seen<V> mine = {-INFINITY, 0, {}};
    float q[V];
    load(q, o.q(at.b, at.h, 0), lane * V);
    for (int j0 = from + group; j0 - group < to; j0 += ONE_THREADS / L * UNROLL) { /* all threads of a warp go along */
        float k[UNROLL][V], v[UNROLL][V], s[UNROLL], most = -INFINITY;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int j = j0 + u * (ONE_THREADS / L);
#pragma unroll
            for (int e = 0; e < V; e++) k[u][e] = v[u][e] = 0;
            if (j < to) {
                load(k[u], o.k(at.b, g, j), lane * V);
                load(v[u], o.v(at.b, g, j), lane * V);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int j = j0 + u * (ONE_THREADS / L);
            float dot = 0;
#pragma unroll
            for (int e = 0; e < V; e++) dot = fmaf(q[e], k[u][e], dot);
#pragma unroll
            for (int w = L / 2; w; w /= 2) dot += __shfl_xor_sync(~0u, dot, w);
            s[u] = j < to ? at.score(dot, 0, j) : -INFINITY;
            most = fmaxf(most, s[u]);
        }
        if (most > mine.top) mine.rescale(most);
        float base = mine.top == -INFINITY ? 0 : mine.top;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float w = exp2_fast(s[u] - base);
            mine.sum += w;
#pragma unroll
            for (int e = 0; e < V; e++) mine.y[e] = fmaf(w, v[u][e], mine.y[e]);
        }
    }
    return mine;
}

/* Column c of n records of W + 2 numbers, joined in order. */
__device__ inline void join(float &top, float &sum, float &y, const float *record, int n, int W, int c)
{
    top = -INFINITY, sum = 0, y = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) top = fmaxf(top, record[i * (W + 2)]);
    if (top == -INFINITY) return;
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        const float *r = record + i * (W + 2);
        float f = exp2_fast(r[0] - top);
        sum = fmaf(f, r[1], sum);
        y = fmaf(f, r[2 + c], y);
    }
}

template <class T> __device__ inline void give(const head<T> &at, int c, float top, float sum, float y)
{
    const job<T> &o = at.o;
    ((T *)o.a.y)[o.at_y(at.b, at.h, 0) + c] = down<T>(sum > 0 ? y / sum : 0);
    if (c == 0) ((float *)o.a.lse)[o.at_lse(at.b, at.h, 0)] = sum > 0 ? top * LN2 + logf(sum) : -INFINITY;
}

template <class T, int L>
__global__ void __launch_bounds__(ONE_THREADS) attention_one_part(const __grid_constant__ job<T> o, float *sums, unsigned *ticket)
{
    constexpr int V = 16 / sizeof(T), W = L * V, GROUPS = ONE_THREADS / L;
    __shared__ float record[GROUPS * (W + 2)];
    __shared__ bool last;
    let_others_start();
    wait_for_others();
    head<T> at(o, blockIdx.z, blockIdx.y);
    int first = at.first(0), end = at.end(0), parts = (int)gridDim.x, each = (end - first + parts - 1) / parts;
    each = each < PART_KEYS ? PART_KEYS : each;
    int from = first + (int)blockIdx.x * each, to = from + each < end ? from + each : end;
    seen<V> mine = walk<T, V, L>(at, from, to);
    int lane = threadIdx.x % L;
    float *to_record = record + threadIdx.x / L * (W + 2), top, sum, y;
    if (lane == 0) to_record[0] = mine.top, to_record[1] = mine.sum;
#pragma unroll
    for (int e = 0; e < V; e++) to_record[2 + lane * V + e] = mine.y[e];
    __syncthreads();
    int c = threadIdx.x;
    if (c < W) join(top, sum, y, record, GROUPS, W, c);
    if (parts == 1) {
        if (c < W) give(at, c, top, sum, y);
        return;
    }
    int64_t which = (int64_t)at.b * gridDim.y + at.h;
    float *all = sums + which * parts * (W + 2), *own = all + blockIdx.x * (W + 2);
    if (c == 0) own[0] = top, own[1] = sum;
    if (c < W) own[2 + c] = y;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&ticket[which], 1u) == (unsigned)parts - 1;
        if (last) ticket[which] = 0;
    }
    __syncthreads();
    if (!last || c >= W) return;
    __threadfence();
    join(top, sum, y, all, parts, W, c);
    give(at, c, top, sum, y);
}

template <class T, int L> static bool start(fv_stream *s, const job<T> &o)
{
    const device *d = device_of(s);
    int64_t heads = o.a.B * o.a.H, parts = ceil_div(o.a.Tk, PART_KEYS), spare = 2 * d->processors / heads;
    if (parts > spare) parts = spare;
    parts = parts < 1 || heads > TICKETS ? 1 : parts > MOST_PARTS ? MOST_PARTS : parts;
    float *sums = NULL;
    if (parts > 1 && !(sums = work<float>(s, heads * parts * (o.a.Wv + 2)))) return true;
    dim3 grid((unsigned)parts, (unsigned)o.a.H, (unsigned)o.a.B);
    launch_early(s, "attention", o.a.B <= EARLY_ROWS, attention_one_part<T, L>, grid, ONE_THREADS, 0, o, sums, d->tickets);
    return true;
}

/* False where this is another case. */
template <class T> bool fv_cuda_attention_one(fv_stream *s, const fv_attn_args *a)
{
    constexpr int V = 16 / sizeof(T);
    if (a->Tq != 1 || a->Wk != a->Wv || a->dropout > 0 || a->B > 65535 || !a->B) return false;
    job<T> o = prepare<T>(s, a);
    if (!o.quick_q || !o.quick_k || !o.quick_v) return false;
    switch (a->Wk / V) {
    case 4: return start<T, 4>(s, o);
    case 8: return start<T, 8>(s, o);
    case 16: return start<T, 16>(s, o);
    case 32: return start<T, 32>(s, o);
    }
    return false;
}
template bool fv_cuda_attention_one<float>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_one<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_one<f16>(fv_stream *, const fv_attn_args *);
