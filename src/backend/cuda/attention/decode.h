/* decode.h - attention of one query in each sequence, as a step of writing has it: a walk through a
 * cache.
 *
 * L neighbouring threads share a key, V numbers each, and keep the largest score, the sum of
 * exp(score - largest) and the weighted sum of values of the keys they saw.  A warp joins its
 * groups, a block its warps, and where there are few heads and many keys the last of several blocks
 * joins theirs, always in the same order.  How many keys there are is read from memory. */
#ifndef FV_CUDA_ATTENTION_DECODE_H
#define FV_CUDA_ATTENTION_DECODE_H

#include "attention.h"

#define DECODE_THREADS 256
#define PART_KEYS 256 /* a block takes at least so many */
#define MAX_PARTS 16
#define DECODE_MAX_WIDTH 256 /* head */

/* What some keys came to; (top, sum, y[W]) in memory. */
template <int V> struct partial_softmax {
    float top, sum, y[V];
    __device__ void rescale(float now)
    {
        float correction = now == -INFINITY ? 0 : exp2f(top - now);
        top = now;
        sum *= correction;
#pragma unroll
        for (int e = 0; e < V; e++) y[e] *= correction;
    }
};

/* V neighbours as they lie in memory, in as few registers. */
template <class T, int V> struct alignas(16) raw {
    unsigned w[V * sizeof(T) / 4];
    /* APART: so that the cache next to the threads, which is small beside a program, keeps what it
     * has. */
    template <bool APART> __device__ void read(const T *p)
    {
        if (!APART) *this = *(const raw *)p;
#pragma unroll
        for (int i = 0; APART && i < (int)(V * sizeof(T) / 16); i++)
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]),
                           "=r"(w[4 * i + 3])
                         : "l"((const uint4 *)p + i)
                         : "memory");
    }
    __device__ float at(int e) const
    {
        if constexpr (sizeof(T) == 4) return __uint_as_float(w[e]);
        if constexpr (kind<T>::dtype == FV_BF16)
            return __uint_as_float(e % 2 ? w[e / 2] & 0xffff0000u : w[e / 2] << 16);
        return __half2float(__ushort_as_half((unsigned short)(w[e / 2] >> e % 2 * 16)));
    }
};

/* Where the query is and where the result goes: in memory.  Another such (decode/mega_attention.h)
 * has both by mail, and a key and a value that are not in memory yet, those of `now`. */
template <class T> struct global_io {
    static constexpr bool late = false; /* the query is there */
    static constexpr int now = -1;
    template <int V> __device__ void query(float (&q)[V], const head<T> &at, int i, bool) const
    {
        load(q, at.o.q(at.b, at.h, 0), i);
    }
    template <int V> __device__ void pair(raw<T, V> &, raw<T, V> &, int) const {}
    __device__ void write_result(const head<T> &at, int c, float y) const
    {
        ((T *)at.o.a.y)[at.o.y_offset(at.b, at.h, 0) + c] = from_float<T>(y);
    }
};

/* By GROUPS groups of L threads, of which this thread's is the group-th.  What every key needs is
 * kept in registers.  The first keys are on their way before the query is there. */
template <class T, int V, int L, int GROUPS, int UNROLL, class P>
__device__ partial_softmax<V> scan_keys(const head<T> &at, int group, int from, int to,
                                        const P &post)
{
    const job<T> &o = at.o;
    int lane = threadIdx.x % L, g = at.h / ((int)o.a.H / (int)o.a.G); /* no division of 64 bits */
    int64_t k_row = o.a.k_row, v_row = o.a.v_row;
    const T *first_k = o.k(at.b, g, 0) + lane * V, *first_v = o.v(at.b, g, 0) + lane * V;
    bool plain = o.plain && !o.a.key_mask; /* which is looked at key by key */
    partial_softmax<V> mine = {-INFINITY, 0, {}};
    float q[V], scale = o.scale;
    if (!P::late) post.query(q, at, lane * V, false);
    for (int j0 = from + group; j0 - group < to;
         j0 += GROUPS * UNROLL) { /* all threads of a warp go along */
        raw<T, V> k[UNROLL], v[UNROLL];
        float s[UNROLL], most = -INFINITY;
        const T *at_k = first_k + j0 * k_row, *at_v = first_v + j0 * v_row;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int j = j0 + u * GROUPS;
            k[u] = v[u] = raw<T, V>{};
            if (j < to && !(P::late && j == post.now)) {
                k[u].template read<P::late>(at_k);
                v[u].template read<P::late>(at_v);
            }
            at_k += GROUPS * k_row, at_v += GROUPS * v_row;
        }
        if (P::late && j0 - group == from)
            post.query(q, at, lane * V,
                       post.now >= from && post.now < to && (post.now - from) % GROUPS == group);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int j = j0 + u * GROUPS;
            float dot = 0;
            if (P::late && j == post.now) post.pair(k[u], v[u], lane * V);
#pragma unroll
            for (int e = 0; e < V; e++) dot = fmaf(q[e], k[u].at(e), dot);
#pragma unroll
            for (int w = L / 2; w; w /= 2) dot += __shfl_xor_sync(~0u, dot, w);
            s[u] = j >= to ? -INFINITY : plain ? scale * dot : at.score(dot, 0, j);
            most = fmaxf(most, s[u]);
        }
        if (most > mine.top) mine.rescale(most);
        float base = mine.top == -INFINITY ? 0 : mine.top;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float w = exp2_fast(s[u] - base);
            mine.sum += w;
#pragma unroll
            for (int e = 0; e < V; e++) mine.y[e] = fmaf(w, v[u].at(e), mine.y[e]);
        }
    }
    return mine;
}

/* What the groups of a warp saw, for all of them. */
template <int V, int L> __device__ inline void merge_groups(partial_softmax<V> &mine)
{
#pragma unroll
    for (int w = L; w < 32; w *= 2) {
        float top = __shfl_xor_sync(~0u, mine.top, w), sum = __shfl_xor_sync(~0u, mine.sum, w),
              most = fmaxf(top, mine.top);
        float f = most == -INFINITY ? 0 : exp2_fast(mine.top - most),
              g = most == -INFINITY ? 0 : exp2_fast(top - most);
        mine.top = most;
        mine.sum = f * mine.sum + g * sum;
#pragma unroll
        for (int e = 0; e < V; e++)
            mine.y[e] = f * mine.y[e] + g * __shfl_xor_sync(~0u, mine.y[e], w);
    }
}

/* Column c of n records of W + 2 numbers, joined in order. */
__device__ inline void merge_partials(float &top, float &sum, float &y, const float *record, int n,
                                      int W, int c)
{
    top = -INFINITY, sum = 0, y = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) top = fmaxf(top, record[i * (W + 2)]);
    float base = top == -INFINITY ? 0 : top; /* no key was seen, or all scores are NaN */
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        const float *r = record + i * (W + 2);
        float f = exp2_fast(r[0] - base);
        sum = fmaf(f, r[1], sum);
        y = fmaf(f, r[2 + c], y);
    }
}

template <class T, class P>
__device__ inline void write_result(const head<T> &at, int c, float top, float sum, float y,
                                    const P &post)
{
    const job<T> &o = at.o;
    post.write_result(at, c, sum != 0 ? __fdividef(y, sum) : 0); /* NaN stays NaN */
    if (c == 0) o.lse(at.b, at.h, 0) = make_float2(top, sum);
}

/* Of the first DECODE_THREADS of a block, whatever the others do. */
__device__ inline void decode_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(DECODE_THREADS) : "memory");
}

/* One head of one sequence, or one of its parts.  record: decode_floats floats that all parts of a
 * block need. */
template <class T> struct decode_job {
    job<T> o;
    float *sums; /* (B,H,parts,W+2), where there are parts */
    unsigned *ticket;
    int parts;
    bool by_warp; /* in a program: a warp does a head by itself */
};
constexpr int decode_floats = DECODE_THREADS / 32 * (DECODE_MAX_WIDTH + 2) + 1;

template <class T, int L, class P>
__device__ void decode_attend(const decode_job<T> &j, int part, int h, int b, float *record,
                              const P &post)
{
    constexpr int V = 16 / sizeof(T), W = L * V, GROUPS = DECODE_THREADS / L;
    head<T> at(j.o, b, h);
    int first = at.first(0), end = at.end(0), parts = j.parts,
        each = (end - first + parts - 1) / parts;
    each = each < PART_KEYS ? PART_KEYS : each;
    int from = first + part * each, to = from + each < end ? from + each : end;
    partial_softmax<V> mine = scan_keys<T, V, L, GROUPS, 32 / V>(at, threadIdx.x / L, from, to,
                                                                 post);
    merge_groups<V, L>(mine);
    int lane = threadIdx.x % 32;
    float *to_record = record + threadIdx.x / 32 * (W + 2), top, sum, y;
    unsigned *last = (unsigned *)record + decode_floats - 1;
    if (lane == 0) to_record[0] = mine.top, to_record[1] = mine.sum;
#pragma unroll
    for (int e = 0; e < V; e++)
        if (lane < L) to_record[2 + lane * V + e] = mine.y[e];
    decode_sync();
    int c = threadIdx.x;
    if (c < W) merge_partials(top, sum, y, record, DECODE_THREADS / 32, W, c);
    if (parts == 1) {
        if (c < W) write_result(at, c, top, sum, y, post);
        return;
    }
    int64_t which = (int64_t)at.b * j.o.a.H + at.h;
    float *all = j.sums + which * parts * (W + 2), *own = all + part * (W + 2);
    if (c == 0) own[0] = top, own[1] = sum;
    if (c < W) own[2 + c] = y;
    __threadfence();
    decode_sync();
    if (threadIdx.x == 0) {
        *last = atomicAdd(&j.ticket[which], 1u) == (unsigned)parts - 1;
        if (*last) j.ticket[which] = 0;
    }
    decode_sync();
    if (!*last || c >= W) return;
    __threadfence();
    merge_partials(top, sum, y, all, parts, W, c);
    write_result(at, c, top, sum, y, post);
}

/* A head of one sequence by one warp.  The more numbers V a thread has of a key, the fewer are
 * exchanged about it, which pays where many warps are busy; for a block with a head of its own 16
 * bytes were faster. */
template <class T, int L, int V>
__device__ void decode_attend_by_warp(const job<T> &o, int h, int b)
{
    head<T> at(o, b, h);
    int lane = threadIdx.x % 32;
    constexpr int UNROLL = 128 /
                           (V * (int)sizeof(T)); /* so that a thread has 256 bytes on their way */
    partial_softmax<V> mine = scan_keys<T, V, L, 32 / L, UNROLL>(at, lane / L, at.first(0),
                                                                 at.end(0), global_io<T>());
    merge_groups<V, L>(mine);
    if (lane >= L) return;
    float y[V];
#pragma unroll
    for (int e = 0; e < V; e++) y[e] = mine.sum != 0 ? __fdividef(mine.y[e], mine.sum) : 0;
    store((T *)o.a.y, o.y_offset(b, h, 0) + lane * V, y);
    if (lane == 0) o.lse(b, h, 0) = make_float2(mine.top, mine.sum);
}

/* decode/mega_plan.cu.  True: written down, to be made before whatever is started next; only while
 * a step is being kept. */
bool fv_cuda_defer(fv_stream *s, const decode_job<float> &j);
bool fv_cuda_defer(fv_stream *s, const decode_job<bf16> &j);

#endif
