/* program_attention.h - attention of one query in each sequence as an op of a program. */
#ifndef FV_CUDA_PROGRAM_ATTENTION_H
#define FV_CUDA_PROGRAM_ATTENTION_H

#include "program.h"

#define NEAR_KEYS 64
#define ASIDE ((one_floats<float> + 3) / 4 * 4) /* behind records: a key and a value */

/* Query, newest key and newest value come by mail (or, without a sender, from memory), and the result goes there. */
struct by_mail {
    static constexpr bool late = true;
    inbox in;
    int64_t row; /* of what came: q, k, v */
    int now, k_at, v_at;
    float *aside; /* in shared memory */
    word *to;
    unsigned turn;
    bool memory;

    __device__ by_mail(const few_attention &j, const receiver &receiver, float *aside_, int b, unsigned first_turn, int op)
        : in(j.from.at(first_turn)), row((int64_t)b * j.wide), now(j.pos ? j.pos[b] : -1), k_at((int)(j.o.a.H * j.o.a.Wk)),
          v_at(k_at + (int)(j.o.a.G * j.o.a.Wk)), aside(aside_), to(receiver.area), turn(first_turn + (unsigned)op),
          memory(receiver.memory)
    {
    }
    template <int V> __device__ void query(float (&q)[V], const head<float> &at, int i) const
    {
        if (in.area)
            in.numbers(q, row + at.h * (int)at.o.a.Wk + i);
        else
            load(q, at.o.q(at.b, at.h, 0), i);
    }
    /* The newest key and value wait where the thread that needs them can find them again. */
    template <int V> __device__ void ask(const head<float> &at, int i) const
    {
        int first = at.h / ((int)at.o.a.H / (int)at.o.a.G) * (int)at.o.a.Wk + i;
        float v[V];
        in.numbers(v, row + k_at + first);
        store(aside, i, v);
        in.numbers(v, row + v_at + first);
        store(aside, ONE_WIDEST + i, v);
    }
    template <int V> __device__ void pair(float (&k)[V], float (&v)[V], int i) const
    {
        load(k, aside, i);
        load(v, aside, ONE_WIDEST + i);
    }
    __device__ void give(const head<float> &at, int c, float y) const
    {
        int64_t i = at.o.at_y(at.b, at.h, 0) + c;
        if (to) post(to + i, __float_as_uint(y), turn);
        if (memory) ((float *)at.o.a.y)[i] = y;
    }
};

/* A warp for each head, where they are many. */
__device__ __noinline__ void attend_by_warps(const few_attention &j, team t)
{
    int heads = (int)j.o.a.H;
    for (int u = t.block + (int)threadIdx.x / 32 * t.wide; u < heads * t.rows; u += t.wide * MULTIPLIERS)
        attend_one_by_warp<float, PROGRAM_LANES / 4, 16>(j.o, u % heads, t.row + u / heads);
}

/* A block for each head, or for each part of one. */
__device__ __noinline__ void attend_by_blocks(const program_op &o, team t, float *record, unsigned turn, int op)
{
    const few_attention &j = o.attention;
    int heads = (int)j.o.a.H;
    for (int u = t.block; u < j.parts * heads * t.rows; u += t.wide) {
        int b = t.row + u / j.parts / heads;
        one_sync(); /* the memory of records is still being read, by this or by the op before */
        attend_one<float, PROGRAM_LANES>(j, u % j.parts, u / j.parts % heads, b, record,
                                         by_mail(j, o.to, record + ASIDE, b, turn, op));
    }
}

/* Keys and values that this block will read, brought nearer by one warp while others multiply and memory has little to do.
 * Those of this step are not there yet, which does not matter: this is a hint.  Of many heads it is the first keys of each, as
 * the cache between memory and the multiprocessors does not hold all. */
__device__ inline void bring_nearer(const one_job<float> &j, const team &t)
{
    const job<float> &o = j.o;
    int heads = (int)o.a.H, lines = ((int)o.a.Wk * 4 + 127) / 128;
    for (int u = t.block; u < j.parts * heads * t.rows; u += t.wide) {
        int b = t.row + u / j.parts / heads, g = u / j.parts % heads / (heads / (int)o.a.G), n = (int)o.a.Tk;
        if (o.a.lens && o.a.lens[b] < n) n = o.a.lens[b];
        if (j.by_warp) n = min(n, NEAR_KEYS);
        int each = (n + j.parts - 1) / j.parts, from = u % j.parts * each;
        for (int i = threadIdx.x % 32; i < 2 * lines * each; i += 32) {
            int key = from + i / (2 * lines), line = i / 2 % lines;
            if (key >= n) break;
            const float *p = (i & 1 ? o.v(b, g, key) : o.k(b, g, key)) + line * 32;
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
        }
    }
}

#endif
