/* flags.h - numbers that blocks of one kernel hand to one another.
 *
 * A number travels in a word of 8 bytes together with the turn it belongs to, and a word is written
 * and read as a whole.  So whoever reads it sees whether it has come: nobody waits for a barrier,
 * nothing is fenced, and what would be the meeting of all blocks and then a read is the read alone.
 * A pair of words is moved at once. */
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

/* What has come to one place: an area of words, and the turn that they must have.  area NULL:
 * nothing comes by mail. */
struct flagged_reader {
    const flagged_word *area;
    unsigned epoch;

    /* Pairs first, first + by, .. below n, N at a time: f(which of the N, number of the pair, bits,
     * bits). */
    template <int N, class F>
    __device__ void pairs(int64_t from, int first, int n, int by, F f) const
    {
        for (int i0 = first; i0 < n; i0 += N * by) {
            flagged_word a[N], b[N];
            bool all;
            do {
                all = true;
#pragma unroll
                for (int u = 0; u < N; u++) /* the last once more where there are fewer */
                    load_flagged2(a[u], b[u], area + from + 2 * min(i0 + u * by, n - 1));
#pragma unroll
                for (int u = 0; u < N; u++)
                    all = all && (unsigned)(a[u] >> 32) == epoch && (unsigned)(b[u] >> 32) == epoch;
            } while (!all);
#pragma unroll
            for (int u = 0; u < N; u++)
                if (i0 + u * by < n) f(u, i0 + u * by, (unsigned)a[u], (unsigned)b[u]);
        }
    }

    /* A pair that may have come already: asked for by look, and by take asked for again until it is
     * there. */
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
