/* decode.h - attention of one query per sequence, as each step of decoding has it, over the KV
 * cache.
 *
 *     m = max_j s_j;  l = sum_j 2^(s_j - m);  y = sum_j 2^(s_j - m) v_j / l
 *
 * L neighbouring threads share a key, V elements each, and keep max, sum and weighted values of
 * the keys they have seen.  The groups of a warp are merged by shuffles, the warps of a block
 * through shared memory, and where heads are few and keys many the last of several blocks merges
 * their partial results, always in the same order.  The number of keys is read from device
 * memory, so that a captured graph serves every step. */
#ifndef FV_CUDA_ATTENTION_DECODE_H
#define FV_CUDA_ATTENTION_DECODE_H

#include "attention.h"

#define DECODE_THREADS 256
#define PART_KEYS 256 /* fewest keys of a block */
#define MAX_PARTS 16
#define DECODE_MAX_WIDTH 256 /* widest head */

/* The softmax over some keys; stored as (max, sum, y[W]).
 * Two such results merge by m = max(m1, m2), l = l1 2^(m1 - m) + l2 2^(m2 - m), y likewise:
 * associative up to rounding, so the order of merging is fixed (lanes, warps, parts) to keep the
 * bits.
 *
 *    thread: V elements of a key     L threads: one key     block: 256 / L keys, UNROLL deep
 */
template <int V> struct partial_softmax {
    float row_max, sum, y[V];
    __device__ void rescale(float now)
    {
        float correction = now == -INFINITY ? 0 : exp2f(row_max - now);
        row_max = now;
        sum *= correction;
#pragma unroll
        for (int e = 0; e < V; e++) y[e] *= correction;
    }
};

/* V elements as they are in memory. */
template <class T, int V> struct alignas(16) raw {
    unsigned w[V * sizeof(T) / 4];
    /* NO_ALLOCATE: past L1, which is small beside the shared memory of the megakernel and has
     * better uses.  Pieces of 16 bytes lie `apart` bytes from one another. */
    template <bool NO_ALLOCATE> __device__ void read(const T *p, int apart)
    {
#pragma unroll
        for (int i = 0; !NO_ALLOCATE && i < (int)(V * sizeof(T) / 16); i++)
            ((uint4 *)w)[i] = *(const uint4 *)((const char *)p + i * apart);
#pragma unroll
        for (int i = 0; NO_ALLOCATE && i < (int)(V * sizeof(T) / 16); i++)
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]),
                           "=r"(w[4 * i + 3])
                         : "l"((const char *)p + i * apart)
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

/* Where the query comes from and the result goes to: global memory.  decode/mega_attention.h has
 * another, which receives both through flagged words, and k and v of key `now` before they are
 * in the cache. */
template <class T> struct global_io {
    static constexpr bool late = false;       /* the query is in memory when the kernel begins */
    static constexpr bool plain_only = false; /* no mask by pairs, nothing added to scores */
    static constexpr bool pieces = false;     /* see early_io in decode/mega_attention.h */
    static constexpr bool words = false;      /* the newest key is not in memory */
    static constexpr int now = -1;
    template <int V>
    __device__ void query(float (&q)[V], const head_view<T> &head, int i, bool) const
    {
        load(q, head.attn.q(head.b, head.h, 0), i);
    }
    template <int V> __device__ void pair(raw<T, V> &, raw<T, V> &, int) const {}
    __device__ void write_result(const head_view<T> &head, int c, float y) const
    {
        ((T *)head.attn.a.y)[head.attn.y_offset(head.b, head.h, 0) + c] = from_float<T>(y);
    }
};

/* The keys [from, to) of this thread's group, one of GROUPS groups of L threads.  UNROLL keys
 * are in flight per group, and their sums are formed side by side; the next keys are loaded as soon
 * as these have been multiplied.  With P::late the first of them are loaded before the query has
 * arrived.  Threads beyond a head W wide (96 of 128) have zeros. */
template <class T, int V, int L, int GROUPS, int UNROLL, int W = L *V, class P>
__device__ partial_softmax<V> scan_keys(const head_view<T> &head, int group, int from, int to,
                                        const P &io)
{
    const attn_params<T> &attn = head.attn;
    int lane = threadIdx.x % L, g = attn.kv_head(head.h);
    constexpr int FIRST = P::pieces ? 16 / sizeof(T) : V, APART = P::pieces ? 16 * L : 16;
    const T *first_k = attn.k(head.b, g, 0) + lane * FIRST,
            *first_v = attn.v(head.b, g, 0) + lane * FIRST;
    const bool in_head = W == L * V || lane * V < W;
    bool plain = attn.plain && !attn.a.key_mask; /* else the score tests masks key by key */
    partial_softmax<V> part_softmax = {-INFINITY, 0, {}};
    float q[V] = {}, scale = attn.scale;
    raw<T, V> k[UNROLL], v[UNROLL];
    auto is_newest = [&](int j, int j0) {
        return P::late && j == io.now && (P::words || j0 - group == from);
    };
    auto load_keys = [&](raw<T, V>(&r)[UNROLL], const T *first, int64_t row, int j0) {
        const T *at = first + j0 * row;
#pragma unroll
        for (int u = 0; u < UNROLL; u++, at += GROUPS * row) {
            int j = j0 + u * GROUPS;
            r[u] = raw<T, V>{};
            if (j < to && in_head && !is_newest(j, j0)) r[u].template read<P::late>(at, APART);
        }
    };
    load_keys(k, first_k, attn.a.k_row, from + group);
    load_keys(v, first_v, attn.a.v_row, from + group);
    if (!P::late && in_head) io.query(q, head, lane * FIRST, false);
    for (int j0 = from + group, next; j0 - group < to;
         j0 = next) { /* the whole warp iterates, for the shuffles */
        float s[UNROLL] = {}, tile_max = -INFINITY;
        next = j0 + GROUPS * UNROLL;
        if (P::late && j0 - group == from)
            io.query(q, head, lane * FIRST,
                     io.now >= from && io.now < to && (io.now - from) % GROUPS == group);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (is_newest(j0 + u * GROUPS, j0)) io.pair(k[u], v[u], lane * FIRST);
#pragma unroll
        for (int e = 0; e < V; e++)
#pragma unroll
            for (int u = 0; u < UNROLL; u++) s[u] = fmaf(q[e], k[u].at(e), s[u]);
        load_keys(k, first_k, attn.a.k_row, next);
#pragma unroll
        for (int w = L / 2; w; w /= 2)
#pragma unroll
            for (int u = 0; u < UNROLL; u++) s[u] += __shfl_xor_sync(~0u, s[u], w);
        if (plain) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) s[u] = j0 + u * GROUPS < to ? scale * s[u] : -INFINITY;
        } else {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int j = j0 + u * GROUPS;
                if (j >= to)
                    s[u] = -INFINITY;
                else if (P::plain_only)
                    s[u] = attn.a.key_mask[head.b * attn.a.Tk + j] ? scale * s[u] : -INFINITY;
                else
                    s[u] = head.score(s[u], 0, j);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) tile_max = fmaxf(tile_max, s[u]);
        if (tile_max > part_softmax.row_max) part_softmax.rescale(tile_max);
        float base = part_softmax.row_max == -INFINITY ? 0 : part_softmax.row_max;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float w = exp2_fast(s[u] - base);
            part_softmax.sum += w;
#pragma unroll
            for (int e = 0; e < V; e++) part_softmax.y[e] = fmaf(w, v[u].at(e), part_softmax.y[e]);
        }
        load_keys(v, first_v, attn.a.v_row, next);
    }
    return part_softmax;
}

/* Merges the groups of a warp; all of them get the result. */
template <int V, int L> __device__ inline void merge_groups(partial_softmax<V> &part_softmax)
{
#pragma unroll
    for (int w = L; w < 32; w *= 2) {
        float row_max = __shfl_xor_sync(~0u, part_softmax.row_max, w),
              sum = __shfl_xor_sync(~0u, part_softmax.sum, w),
              tile_max = fmaxf(row_max, part_softmax.row_max);
        float f = tile_max == -INFINITY ? 0 : exp2_fast(part_softmax.row_max - tile_max),
              g = tile_max == -INFINITY ? 0 : exp2_fast(row_max - tile_max);
        part_softmax.row_max = tile_max;
        part_softmax.sum = f * part_softmax.sum + g * sum;
#pragma unroll
        for (int e = 0; e < V; e++)
            part_softmax.y[e] = f * part_softmax.y[e] +
                                g * __shfl_xor_sync(~0u, part_softmax.y[e], w);
    }
}

/* Column c of n partial results of W + 2 floats, merged in order. */
__device__ inline void merge_partials(float &row_max, float &sum, float &y, const float *record,
                                      int n, int W, int c)
{
    row_max = -INFINITY, sum = 0, y = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) row_max = fmaxf(row_max, record[i * (W + 2)]);
    float base = row_max == -INFINITY ? 0 : row_max; /* no visible key, or all scores NaN */
#pragma unroll 8
    for (int i = 0; i < n; i++) {
        const float *r = record + i * (W + 2);
        float f = exp2_fast(r[0] - base);
        sum = fmaf(f, r[1], sum);
        y = fmaf(f, r[2 + c], y);
    }
}

template <class T, class P>
__device__ inline void write_result(const head_view<T> &head, int c, float row_max, float sum,
                                    float y, const P &io)
{
    const attn_params<T> &attn = head.attn;
    io.write_result(head, c, sum != 0 ? __fdividef(y, sum) : 0); /* NaN stays NaN */
    if (c == 0) attn.lse(head.b, head.h, 0) = make_float2(row_max, sum);
}

/* The first DECODE_THREADS threads of a block; others may be busy elsewhere. */
__device__ inline void decode_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(DECODE_THREADS) : "memory");
}

/* One decode attention.  Of record, shared memory of a block, it needs decode_floats floats. */
template <class T> struct decode_job {
    attn_params<T> attn;
    float *sums; /* (B, H, parts, W + 2), where parts > 1 */
    unsigned *ticket;
    int parts;
    bool by_warp; /* in the megakernel: one warp per head */
};
constexpr int decode_floats = DECODE_THREADS / 32 * (DECODE_MAX_WIDTH + 2) + 1;

/* Heads W wide; L: a power of two of threads. */
template <class T, int L, int W = 16 / sizeof(T) * L, class P>
__device__ void decode_attend(const decode_job<T> &j, int part, int h, int b, float *record,
                              const P &io)
{
    constexpr int V = 16 / sizeof(T), GROUPS = DECODE_THREADS / L;
    head_view<T> head(j.attn, b, h);
    int first = head.first_key(0), end = head.end_key(0), parts = j.parts,
        each = (end - first + parts - 1) / parts;
    each = each < PART_KEYS ? PART_KEYS : each;
    int from = first + part * each, to = from + each < end ? from + each : end;
    partial_softmax<V> part_softmax = scan_keys<T, V, L, GROUPS, 32 / V, W>(head, threadIdx.x / L,
                                                                            from, to, io);
    merge_groups<V, L>(part_softmax);
    int lane = threadIdx.x % 32;
    float *to_record = record + threadIdx.x / 32 * (W + 2), row_max, sum, y;
    unsigned *last = (unsigned *)record + decode_floats - 1;
    if (lane == 0) to_record[0] = part_softmax.row_max, to_record[1] = part_softmax.sum;
#pragma unroll
    for (int e = 0; e < V; e++)
        if (lane < L && lane * V < W) to_record[2 + lane * V + e] = part_softmax.y[e];
    decode_sync();
    int c = threadIdx.x;
    if (c < W) merge_partials(row_max, sum, y, record, DECODE_THREADS / 32, W, c);
    if (parts == 1) {
        if (c < W) write_result(head, c, row_max, sum, y, io);
        return;
    }
    int64_t which = (int64_t)head.b * j.attn.a.H + head.h;
    float *all = j.sums + which * parts * (W + 2), *own = all + part * (W + 2);
    if (c == 0) own[0] = row_max, own[1] = sum;
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
    merge_partials(row_max, sum, y, all, parts, W, c);
    write_result(head, c, row_max, sum, y, io);
}

/* Weights of the only query of sequences and heads, as jobs in device memory name them. */
struct weights_rows {
    attn_params<bf16> attn;
    float *out;
    const fv_weights_job *jobs;
    int64_t n;
};
void fv_cuda_weights_launch(fv_stream *s, const weights_rows &w); /* attention/weights.cu */

/* decode/mega_plan.cu: appends to the megakernel's plan while a step is captured.  False: not
 * captured, launch it now. */
bool fv_cuda_defer(fv_stream *s, const weights_rows &w);
bool fv_cuda_defer(fv_stream *s, const decode_job<float> &j);
bool fv_cuda_defer(fv_stream *s, const decode_job<bf16> &j);

#endif
