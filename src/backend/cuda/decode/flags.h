/* flags.h - flagged words: values that blocks of one kernel exchange without a barrier.
 *
 * A flagged word is 8 bytes: 32 bits of payload (an f32, or two bf16) and a 32-bit epoch tag.  An
 * aligned 8-byte access is single-copy atomic, so a reader that sees the expected tag has the
 * payload too: relaxed accesses suffice, no fence, no separate flag.  Instead of "barrier, then
 * load" (two trips to L2) a reader spins on the load itself (one).  Words are moved in pairs, 16
 * bytes.  The price is twice the bytes and spinning on all of them, which pays up to
 * FLAGGED_MAX_ROWS rows.
 *
 * The tag is the running number of the op that wrote the word, over all launches.  So words need no
 * reset, and a stale word is never taken for a new one until the counter wraps after 2^32 ops. */
#ifndef FV_CUDA_DECODE_FLAGS_H
#define FV_CUDA_DECODE_FLAGS_H

#include "backend/cuda/device/cuda.h"

typedef unsigned long long flagged_word;

__device__ inline void store_flagged(flagged_word *to, unsigned bits, unsigned epoch)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to),
                 "l"((flagged_word)epoch << 32 | bits)
                 : "memory");
}

__device__ inline void store_flagged2(flagged_word *to, float a, float b, unsigned epoch)
{
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to),
                 "l"((flagged_word)epoch << 32 | __float_as_uint(a)),
                 "l"((flagged_word)epoch << 32 | __float_as_uint(b))
                 : "memory");
}

__device__ inline void load_flagged2(flagged_word &a, flagged_word &b, const flagged_word *from)
{
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(from)
                 : "memory");
}

/* N pairs from where at(u) says, with all loads in flight, until every word carries the tag. */
template <int N, class F>
__device__ inline void wait_pairs(flagged_word (&a)[N], flagged_word (&b)[N], unsigned epoch, F at)
{
    bool all;
    do {
        all = true;
#pragma unroll
        for (int u = 0; u < N; u++) load_flagged2(a[u], b[u], at(u));
#pragma unroll
        for (int u = 0; u < N; u++)
            all = all && (unsigned)(a[u] >> 32) == epoch && (unsigned)(b[u] >> 32) == epoch;
    } while (!all);
}

/* The same for a whole warp, until all lanes have their pairs, pair u of those lanes where has(u):
 * lanes that leave the loop one by one stay diverged, and every shuffle behind it is slow. */
template <int N, class H, class F>
__device__ inline void wait_pairs_warp(flagged_word (&a)[N], flagged_word (&b)[N], unsigned epoch,
                                       H has, F at)
{
    bool all;
    do {
        all = true;
#pragma unroll
        for (int u = 0; u < N; u++)
            if (has(u)) load_flagged2(a[u], b[u], at(u));
#pragma unroll
        for (int u = 0; u < N; u++)
            all &= !has(u) | ((unsigned)(a[u] >> 32) == epoch & (unsigned)(b[u] >> 32) == epoch);
    } while (!__all_sync(~0u, all));
}

/* An area of words and the tag they must carry; area NULL: the input is in global memory. */
struct flagged_reader {
    const flagged_word *area;
    unsigned epoch;

    /* Pairs first, first + by, .. below n, N loads in flight: f(u, pair, low bits, high bits). */
    template <int N, class F>
    __device__ void pairs(int64_t from, int first, int n, int by, F f) const
    {
        for (int i0 = first; i0 < n; i0 += N * by) {
            flagged_word a[N], b[N];
            wait_pairs(a, b, epoch, [&](int u) { /* past the end: the last pair again */
                                                 return area + from + 2 * min(i0 + u * by, n - 1);
            });
#pragma unroll
            for (int u = 0; u < N; u++)
                if (i0 + u * by < n) f(u, i0 + u * by, (unsigned)a[u], (unsigned)b[u]);
        }
    }

    /* A pair loaded ahead of its use: load_flagged issues the load, wait_flagged repeats it until
     * the tags match. */
    __device__ void load_flagged(flagged_word (&w)[2], int64_t from) const
    {
        load_flagged2(w[0], w[1], area + from);
    }
    __device__ float2 wait_flagged(flagged_word (&w)[2], int64_t from) const
    {
        while ((unsigned)(w[0] >> 32) != epoch || (unsigned)(w[1] >> 32) != epoch)
            load_flagged(w, from);
        return make_float2(__uint_as_float((unsigned)w[0]), __uint_as_float((unsigned)w[1]));
    }
};

#endif
