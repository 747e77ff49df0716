/* mega_attention.h - attention of one query per sequence as an op of the megakernel.
 *
 * The algorithm is attention/decode.h's; here are its inputs and outputs.  The newest key and value
 * are taken from the flagged words of the QKV projection rather than from the cache: the projection
 * writes both, but only the words say when they have arrived. */
#ifndef FV_CUDA_DECODE_MEGA_ATTENTION_H
#define FV_CUDA_DECODE_MEGA_ATTENTION_H

#include "mega_attention_warp.h"

#define PREFETCH_PIECE 4096
#define PREFETCH_BYTES (24 << 20)               /* of keys and values of one layer: half of L2 */
#define NEW_KV_AT ((decode_floats + 3) / 4 * 4) /* the newest key and value, behind the records */

/* decode_attend's input and output policy: flagged words, or global memory where `in` has none.
 *    flagged words of the QKV projection, a row:  [ q: H * W | k: G * W | v: G * W ]
 *                                                 0          k_at       v_at */
template <class T> struct flagged_io {
    static constexpr bool late = true, words = true, pieces = false;
    static constexpr bool plain_only = sizeof(T) == 2; /* see attention_defer */
    flagged_reader in;
    int64_t row;         /* first element of this sequence's q, k, v in the words */
    int now, k_at, v_at; /* now: position of the newest key, or -1 */
    T *new_kv;           /* smem */
    flagged_word *to;
    unsigned epoch;
    bool memory;

    __device__ flagged_io(const decode_attention<T> &j, const mk_output &out, T *new_kv_, int b,
                          unsigned first_epoch, int op)
        : in(j.in.reader(first_epoch)), row((int64_t)b * j.row_width), now(j.pos ? j.pos[b] : -1),
          k_at((int)(j.attn.a.H * j.attn.a.Wk)), v_at(k_at + (int)(j.attn.a.G * j.attn.a.Wk)),
          new_kv(new_kv_), to(out.area), epoch(first_epoch + (unsigned)op), memory(out.to_global)
    {
    }
    /* Elements i .. i+V-1 of the query and, if `newest`, of the newest key and value, which the
     * same thread reads back from smem later (pair).  All loads are in flight together: each spin
     * is a round trip to L2. */
    template <int V>
    __device__ void query(float (&q)[V], const head_view<T> &head, int i, bool newest) const
    {
        /* pairs of words to load; elements per word */
        constexpr int LOOKS = V * (int)sizeof(T) / 8, EACH = 4 / (int)sizeof(T);
        int mine = head.attn.kv_head(head.h) * (int)head.attn.a.Wk + i, all;
        const flagged_word *where[3] = {in.area + (row + head.h * (int)head.attn.a.Wk + i) / EACH,
                                        in.area + (row + k_at + mine) / EACH,
                                        in.area + (row + v_at + mine) / EACH};
        flagged_word w[3][LOOKS][2];
        if (!in.area) {
            load(q, head.attn.q(head.b, head.h, 0), i);
            return;
        }
        do {
            all = true;
#pragma unroll
            for (int s = 0; s < 3; s++)
#pragma unroll
                for (int u = 0; u < LOOKS; u++)
                    if (s == 0 || newest) load_flagged2(w[s][u][0], w[s][u][1], where[s] + 2 * u);
#pragma unroll
            for (int s = 0; s < 3; s++)
#pragma unroll
                for (int u = 0; u < 2 * LOOKS; u++)
                    if (s == 0 || newest)
                        all = all && (unsigned)(w[s][u / 2][u % 2] >> 32) == in.epoch;
        } while (!all);
        raw<T, V> r[3];
#pragma unroll
        for (int s = 0; s < 3; s++)
#pragma unroll
            for (int u = 0; u < 2 * LOOKS; u++) r[s].w[u] = (unsigned)w[s][u / 2][u % 2];
#pragma unroll
        for (int e = 0; e < V; e++) q[e] = r[0].at(e);
        if (!newest) return;
        *(raw<T, V> *)(new_kv + i) = r[1];
        *(raw<T, V> *)(new_kv + DECODE_MAX_WIDTH + i) = r[2];
    }
    template <int V> __device__ void pair(raw<T, V> &k, raw<T, V> &v, int i) const
    {
        k = *(const raw<T, V> *)(new_kv + i);
        v = *(const raw<T, V> *)(new_kv + DECODE_MAX_WIDTH + i);
    }
    /* Called by whole warps with consecutive c. */
    __device__ void write_result(const head_view<T> &head, int c, float y) const
    {
        int64_t i = head.attn.y_offset(head.b, head.h, 0) + c;
        if constexpr (sizeof(T) == 2) {
            __nv_bfloat162 both = __floats2bfloat162_rn(y, __shfl_down_sync(~0u, y, 1));
            if (to && c % 2 == 0) store_flagged(to + i / 2, *(const unsigned *)&both, epoch);
        } else if (to) {
            store_flagged(to + i, __float_as_uint(y), epoch);
        }
        if (memory) ((T *)head.attn.a.y)[i] = from_float<T>(y);
    }
};

/* The same of many sequences with f32 caches, in global memory behind a barrier of blocks.  All
 * keys but the newest were there before this launch: the first of them are loaded before the
 * barrier is waited for.
 *
 * A thread's V elements are not neighbours but pieces of 16 bytes, L * 16 bytes apart: each load of
 * a warp then reads whole sectors.  With 32 bytes a thread as neighbours, every sector was read
 * twice. */
template <int L> struct early_io {
    static constexpr bool late = true, words = false, pieces = true, plain_only = false;
    static constexpr int PIECE = 4;
    block_barrier *barrier;
    const float *new_k, *new_v;
    int now;

    __device__ early_io(const head_view<float> &head, block_barrier *barrier_)
        : barrier(barrier_), now(head.end_key(0) - 1)
    {
        int g = head.attn.kv_head(head.h);
        new_k = head.attn.k(head.b, g, now);
        new_v = head.attn.v(head.b, g, now);
    }
    template <int V>
    __device__ void query(float (&q)[V], const head_view<float> &head, int i, bool) const
    {
        barrier->wait();
#pragma unroll
        for (int p = 0; p < V / PIECE; p++) {
            float part[PIECE];
            load(part, head.attn.q(head.b, head.h, 0), i + p * L * PIECE);
#pragma unroll
            for (int e = 0; e < PIECE; e++) q[p * PIECE + e] = part[e];
        }
    }
    template <int V> __device__ void pair(raw<float, V> &k, raw<float, V> &v, int i) const
    {
        k.template read<true>(new_k + i, 16 * L);
        v.template read<true>(new_v + i, 16 * L);
    }
};

/* One head of one sequence by one warp.  The more elements V a thread has of a key, the fewer
 * shuffles it takes, which pays where many warps are busy; for a block with a head of its own 16
 * bytes were faster. */
template <int L, int V>
__device__ inline void attend_by_warp(const attn_params<float> &attn, int h, int b,
                                      block_barrier *barrier)
{
    /* 128 bytes of k and v in flight per thread: with 256 it waited longer for each */
    constexpr int UNROLL = 64 / (V * 4), PIECE = 4;
    head_view<float> head(attn, b, h);
    int lane = threadIdx.x % 32;
    partial_softmax<V> part_softmax =
        scan_keys<float, V, L, 32 / L, UNROLL>(head, lane / L, head.first_key(0), head.end_key(0),
                                               early_io<L>(head, barrier));
    merge_groups<V, L>(part_softmax);
    if (lane >= L) return;
#pragma unroll
    for (int p = 0; p < V / PIECE; p++) {
        float y[PIECE];
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            y[e] = part_softmax.sum != 0
                       ? __fdividef(part_softmax.y[p * PIECE + e], part_softmax.sum)
                       : 0;
        store((float *)attn.a.y, attn.y_offset(b, h, 0) + (p * L + lane) * PIECE, y);
    }
    if (lane == 0) attn.lse(b, h, 0) = make_float2(part_softmax.row_max, part_softmax.sum);
}

/* One warp per head, where there are more heads than warps can share. */
template <int W, class T>
__device__ inline void attend_by_warps(const decode_attention<T> &j, block_group t,
                                       block_barrier &barrier)
{
    int heads = (int)j.attn.a.H;
    for (int u = t.block + (int)threadIdx.x / 32 * t.blocks; u < heads * t.rows;
         u += t.blocks * MMA_WARPS)
        if constexpr (sizeof(T) == 2)
            attend_by_mma<W>(j.attn, u % heads, t.row + u / heads, &barrier);
        else
            attend_by_warp<W / 16, 16>(j.attn, u % heads, t.row + u / heads, &barrier);
}

/* One block per head, or per part of its keys. */
template <int W, class T>
__device__ inline void attend_by_blocks(const mk_op &o, const decode_attention<T> &j, block_group t,
                                        float *record, unsigned epoch, int op)
{
    int heads = (int)j.attn.a.H;
    for (int u = t.block; u < j.parts * heads * t.rows; u += t.blocks) {
        int part = 0, h = u, b = t.row;
        if (j.parts > 1 || t.rows > 1) /* not for one row: divisions would delay its query */
            part = u % j.parts, h = u / j.parts % heads, b += u / j.parts / heads;
        decode_sync(); /* the records may still be read by the previous head or op */
        decode_attend<T, W *(int)sizeof(T) / 16>(j, part, h, b, record,
                                                 flagged_io<T>(j, o.out, (T *)(record + NEW_KV_AT),
                                                               b, epoch, op));
    }
}

/* The queries of the group's rows: the next layer writes over them. */
template <class T>
__device__ inline void keep_queries(const decode_attention<T> &j, const block_group &t)
{
    int pieces = (int)(j.attn.a.H * j.attn.a.Wk) * (int)sizeof(T) / 16;
    for (int i = t.block * DECODE_THREADS + (int)threadIdx.x; i < t.rows * pieces;
         i += t.blocks * DECODE_THREADS) {
        int b = t.row + i / pieces, c = i % pieces;
        ((uint4 *)j.kept)[b * pieces + c] = ((const uint4 *)j.attn.q(b, 0, 0))[c];
    }
}

/* by_warp was decided by the planner: many sequences and more heads than two per SM. */
template <bool MANY, int W, class T>
__device__ inline void attend(const mk_op &o, const decode_attention<T> &j, const block_group &t,
                              float *record, unsigned epoch, int op, block_barrier &barrier)
{
    if (MANY && j.by_warp) {
        if constexpr (MANY) attend_by_warps<W>(j, t, barrier);
    } else {
        barrier.wait();
        attend_by_blocks<W>(o, j, t, record, epoch, op);
    }
    if (MANY && j.kept) {
        barrier.wait();
        keep_queries(j, t);
    }
}

/* Prefetches the group's keys and values into L2, each block its share, while the MMA warps are in
 * the GEMMs before: DRAM is idle there, and attention would wait for it.  Where the positions of a
 * sequence are contiguous a few bulk prefetches of PIECE bytes do; in a paged cache each position
 * is one, its key and its value, which lie side by side.  The first keys in the window of each
 * sequence, as many as L2 holds.  The newest are not written yet, which does not matter to a hint.
 * Prefetching line by line was as fast, with more instructions. */
template <class T> __device__ inline void prefetch_kv(const decode_job<T> &j, const block_group &t)
{
    const attn_params<T> &attn = j.attn;
    int64_t width = attn.a.G * attn.a.Wk;
    bool rows_alike = attn.a.k_row == attn.a.v_row && attn.a.Wk == attn.a.Wv &&
                      width * sizeof(T) % 16 == 0,
         contiguous = attn.a.k_row == width,
         paired = (const T *)attn.a.v == (const T *)attn.a.k + width;
    if (threadIdx.x % 32 || !rows_alike || !(contiguous || paired)) return;
    int key_bytes = (int)width * (int)sizeof(T),
        most = PREFETCH_BYTES / ((int)attn.a.B * 2 * key_bytes);
    for (int b = t.row; b < t.row + t.rows; b++) {
        int n = (int)attn.a.Tk;
        if (attn.a.lens && attn.a.lens[b] < n) n = attn.a.lens[b];
        int first = attn.a.window > 0 ? max(n - (int)attn.a.window, 0) : 0,
            keys = min(n - first - 1, most), bytes = keys * key_bytes,
            pieces = (bytes + PREFETCH_PIECE - 1) / PREFETCH_PIECE;
        for (int i = t.block; !contiguous && i < keys; i += t.blocks)
            bulk_prefetch(attn.k(b, 0, first + i), 2 * key_bytes);
        for (int i = t.block; contiguous && i < 2 * pieces; i += t.blocks) {
            int from = i % pieces * PREFETCH_PIECE;
            const T *p = i < pieces ? attn.k(b, 0, first) : attn.v(b, 0, first);
            bulk_prefetch(p + from / (int)sizeof(T), min(PREFETCH_PIECE, bytes - from));
        }
    }
}

#endif
