/* produce_sm90.h - what the gradients of attention on Hopper go through: items of work, tiles, the
 * memory of a block, and the warps that bring everything into it and send dq on (bwd_sm90.cu). */
#ifndef FV_CUDA_ATTENTION_PRODUCE_SM90_H
#define FV_CUDA_ATTENTION_PRODUCE_SM90_H

#include "bias_sm90.h"
#include "dq_sm90.h"

/* An item of the work: a block of keys, and the tiles of queries that can meet them. */
struct course {
    int b, g, from, to; /* sequence, head of keys, heads that it serves; b < 0: there are no more */
    int tile;           /* first key */
    int first, count,
        /* first query, tiles of them, and which comes first, so that not all add to the same at a
         * time */
        start;
    int len;    /* keys of the sequence */
    float most; /* dq_sm90.h: times |dy_i|, the bound of dq_i */
    bool loose; /* its head is */
    bool kept,
        /* the item before had tiles, so the last of them is kept; the head of that was loose */
        after_loose;
    __device__ int place(int t, int queries) const
    {
        int at = t + start;
        return first + (at < count ? at : at - count) * queries;
    }
};

/* What there is to know of a tile: head, first query, the first of the parts its dq is made of, and
 * which of these hold: the head is loose; it is the last of its item; and for each group, WHOLE <<
 * group: all pairs take part. */
enum { IS_LOOSE = 1, LAST = 2, WHOLE = 4 };
struct note {
    int h, place, part, flags;
};

template <class T_, int W_, int KIND_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W,
                         STAGES = 2, NOTES = 4;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == BIASED;
    static constexpr int BEHIND =
        BIAS ? 0
             : 1; /* tiles that dq is made later; a bias is brought to where slopes would be kept */
    static_assert(STAGES == 2, "a tile of the bias lies where slopes will");
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 240, SPARE_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, SLOPES = QUERIES * KEYS;
    static constexpr size_t BYTES =
        (3 * KEYS * W + 2 * STAGES * TILE + 2 * SLOPES) * sizeof(T) + GROUPS * PART * sizeof(int) +
        2 * STAGES * QUERIES * sizeof(float) + NOTES * (QUERIES * sizeof(float) + sizeof(note)) +
        (16 + 2 * STAGES) * sizeof(uint64_t) + 2 * sizeof(course) + GROUPS * sizeof(int);
    static_assert(128 * (GROUPS * REGISTERS + SPARE_REGISTERS) <=
                      65536 / THREADS_ALL / 8 * 8 * THREADS_ALL,
                  "what a block has");
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

template <class P> struct room {
    typedef typename P::T T;
    T *k, *v, *q, *dy,
        /* keys of two items; slopes of two tiles: those of one are read while the next are laid */
        *slopes;
    int4 *part; /* of dq, for each group */
    float *lse, *dy_y,
        /* units and notes are there for longer, as a tile's dq is made with the next, and sent
         * later */
        *unit;
    uint64_t *k_full, *k_free, *v_full, *v_free, *laid, *read, *full,
        *free; /* laid, read: slopes */
    uint64_t *part_full, *part_free;
    course *own;
    note *notes;
    volatile int *ended; /* for each group: it has no more parts */

    __device__ room(unsigned char *memory)
    {
        k = (T *)memory;
        v = k + 2 * P::KEYS * P::W;
        q = v + P::KEYS * P::W;
        dy = q + P::STAGES * P::TILE;
        slopes = dy + P::STAGES * P::TILE;
        part = (int4 *)(slopes + 2 * P::SLOPES);
        lse = (float *)(part + P::GROUPS * PART / 4);
        dy_y = lse + P::STAGES * P::QUERIES;
        unit = dy_y + P::STAGES * P::QUERIES;
        k_full = (uint64_t *)(unit + P::NOTES * P::QUERIES);
        k_free = k_full + 2;
        v_full = k_free + 2;
        v_free = v_full + 2;
        laid = v_free + 2;
        read = laid + 2;
        full = read + 2;
        free = full + P::STAGES;
        part_full = free + P::STAGES;
        part_free = part_full + 2;
        own = (course *)(part_free + 2);
        notes = (note *)(own + 2);
        ended = (int *)(notes + P::NOTES);
    }
    __device__ void init()
    {
        for (int i = 0; i < 2; i++) {
            barrier_init(k_full + i, 1);
            barrier_init(k_free + i, 128 * P::GROUPS + 32);
            barrier_init(v_full + i, 1);
            barrier_init(v_free + i, 4);
            barrier_init(laid + i, 4 * P::GROUPS);
            barrier_init(read + i, 4 * P::GROUPS);
            barrier_init(part_full + i, 4);
            barrier_init(part_free + i, 1);
            ended[i] = 0;
        }
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, 33);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* The n-th head of keys.  Sequences that share a bias go together, so that memory is read once for
 * all. */
template <class P> __device__ inline void where(const job<typename P::T> &o, int n, int *b, int *g)
{
    int heads = (int)o.a.G, sequences = (int)o.a.B;
    *b = P::BIAS ? n % sequences : n / heads;
    *g = P::BIAS ? n / sequences : n % heads;
}

/* Item i: head by head, so that what is read and added to stays in the cache, the longest of a head
 * first when causal.  The last heads are dealt out together, the longest items of all of them
 * first, so that all multiprocessors end at about one time. */
template <class P>
__device__ inline course course_of(const job<typename P::T> &o, const whole_sums &sums, int i)
{
    int tiles = (int)ceil_div(o.a.Tk, P::KEYS), heads = (int)o.a.G, serves = (int)o.a.H / heads;
    int apart = (int)o.a.B * heads - sums.together, late = i - apart * tiles;
    int n = late < 0 ? i / tiles : apart + late % sums.together,
        tile = late < 0 ? i % tiles : late / sums.together;
    course c;
    where<P>(o, n, &c.b, &c.g);
    c.from = c.g * serves;
    c.to = c.from + serves;
    c.tile = tile * P::KEYS;
    head<typename P::T> at(o, c.b, c.from);
    int end = at.last_row(c.tile, P::KEYS);
    c.len = at.len;
    c.first = at.first_row(c.tile) / P::QUERIES * P::QUERIES;
    c.count = end > c.first ? (end - c.first + P::QUERIES - 1) / P::QUERIES : 0;
    c.start = c.count ? c.tile / P::QUERIES % c.count : 0;
    return c;
}

/* Keys or values, a group's 64 at a time. */
template <class P>
__device__ inline void bring_keys(typename P::T *to, const CUtensorMap *map, uint64_t *full,
                                  const course &c, int group)
{
#pragma unroll
    for (int w = 0; w < P::W; w += PANEL)
        bring_panel(to + w * P::KEYS + group * 64 * PANEL, map, full, w, c.g, c.tile + group * 64,
                    c.b);
}

/* A tile of the bias to where its slopes will be laid, each group's to where that group will. */
template <class P>
__device__ inline void bring_bias(const room<P> &m, const job<typename P::T> &o, const maps *of,
                                  int stage, int h, int place, const course &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            bring_panel(m.slopes + stage * P::SLOPES + i * P::KEYS + j * PANEL, &of->bias,
                        m.full + stage, c.tile + j, o.a.bias_s[1] ? h : 0, place + i,
                        o.a.bias_s[0] ? c.b : 0);
}

template <class P>
__device__ inline note note_of(const job<typename P::T> &o, const whole_sums &sums, const course &c,
                               int h, int t)
{
    head<typename P::T> at(o, c.b, h, c.len);
    int place = c.place(t, P::QUERIES),
        part = (c.b * (int)o.a.H + h) * sums.parts + place / P::QUERIES * P::GROUPS;
    bool last = h == c.to - 1 && t == c.count - 1;
    int flags = (c.loose ? IS_LOOSE : 0) | (last ? LAST : 0);
    for (int i = 0; i < P::GROUPS; i++)
        if (at.whole(place, P::QUERIES, c.tile + i * 64, 64)) flags |= WHOLE << i;
    return {h, place, part, flags};
}

/* Item number n of a block, which is `next` of all: its course and its keys, its values as far as
 * the cache.  The one after it is asked for, so as to be known when it is needed. */
template <class P>
__device__ inline void begin_item(const room<P> &m, const job<typename P::T> &o, const maps *of,
                                  const whole_sums &sums, int items, unsigned n, int *next)
{
    int item = __shfl_sync(~0u, *next, 0), lane = threadIdx.x;
    const course &before = m.own[(n + 1) % 2];
    course c = {};
    if (n > 0) c.kept = P::BEHIND && before.count > 0, c.after_loose = before.loose;
    c.b = -1;
    if (item < items) {
        bool kept = c.kept, after_loose = c.after_loose;
        c = course_of<P>(o, sums, item);
        bound limit = bound_of(sums, c.b * (int)o.a.G + c.g, o.keep_scale);
        c.loose = limit.loose, c.most = limit.most, c.kept = kept, c.after_loose = after_loose;
    }
    if (n >= 2) wait_for(m.k_free + n % 2, (n / 2 + 1) & 1);
    if (lane == 0) {
        m.own[n % 2] = c;
        if (c.b < 0)
            arrive(m.k_full + n % 2);
        else {
            arrive_expecting(m.k_full + n % 2, P::KEYS * P::W * sizeof(typename P::T));
            for (int i = 0; i < P::GROUPS; i++)
                bring_keys<P>(m.k + n % 2 * P::W * P::KEYS, &of->in.k, m.k_full + n % 2, c, i);
            for (int i = 0; i < P::GROUPS && c.count; i++)
                for (int w = 0; w < P::W; w += PANEL)
                    bring_nearer(&of->in.v, w, c.g, c.tile + i * 64, c.b);
            *next = (int)gridDim.x + atomicAdd(sums.next, 1);
            if (!c.count) atomicAdd(sums.done + c.b * (int)o.a.G + c.g, P::GROUPS);
        }
    }
    __syncwarp();
}

/* One warp brings keys, values and tiles, item by item: whichever is next when there is room for
 * it.  An item is begun with the third tile of the one before it, as then the keys before those are
 * not needed any more. */
template <class P>
__device__ inline void bring_all(const room<P> &m, const job<typename P::T> &o, const maps *of,
                                 const whole_sums &sums, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, next = blockIdx.x, tiles = 0;
    unsigned turn = 0, values = 0;
    for (unsigned n = ~0u;;) {
        const course &c = m.own[n % 2];
        int h = tiles ? c.from : 0, t = 0;
        for (int i = 0;; i++, turn++) {
            if (i == min(2, tiles)) begin_item(m, o, of, sums, items, n + 1, &next);
            if (i == tiles) break;
            unsigned stage = turn % P::STAGES;
            int place = c.place(t, P::QUERIES);
            if (turn >= P::STAGES) wait_for(m.free + stage, (turn / P::STAGES + 1) & 1);
            if (lane == 0) {
                arrive_expecting(m.full + stage,
                                 (2 * P::TILE + (P::BIAS ? P::SLOPES : 0)) * sizeof(T));
#pragma unroll
                for (int w = 0; w < P::W; w += PANEL) {
                    bring_panel(m.q + stage * P::TILE + w * P::QUERIES, &of->in.q, m.full + stage,
                                w, h, place, c.b);
                    bring_panel(m.dy + stage * P::TILE + w * P::QUERIES, &of->dy, m.full + stage, w,
                                h, place, c.b);
                }
            }
            if (P::BIAS && turn >= 2) wait_for(m.read + turn % 2, (turn / 2 + 1) & 1);
            if (P::BIAS && lane == 0) bring_bias(m, o, of, (int)stage, h, place, c);
            if (++t == c.count) t = 0, h++;
            for (int g = 0; g < P::GROUPS && i == 0; g++) {
                if (values > 0) wait_for(m.v_free + g, (values - 1) & 1);
                if (lane == 0) arrive_expecting(m.v_full + g, 64 * P::W * sizeof(T));
                if (lane == 0) bring_keys<P>(m.v, &of->in.v, m.v_full + g, c, g);
            }
            values += i == 0;
        }
        n++;
        if (m.own[n % 2].b < 0) return;
        tiles = m.own[n % 2].count * (m.own[n % 2].to - m.own[n % 2].from);
    }
}

/* Another adds what is known of a tile and its rows, which are read while there is no room for them
 * yet. */
template <class P>
__device__ inline void tell_all(const room<P> &m, const job<typename P::T> &o,
                                const whole_sums &sums)
{
    constexpr int ROWS_EACH = P::QUERIES / 32;
    int lane = threadIdx.x % 32, turn = 0;
    for (unsigned n = 0;; n++) {
        wait_for(m.k_full + n % 2, n / 2 & 1);
        course c = m.own[n % 2];
        if (c.b < 0) return;
        for (int h = c.from; h < c.to; h++)
            for (int t = 0; t < c.count; t++, turn++) {
                int stage = turn % P::STAGES, place = c.place(t, P::QUERIES);
                float4 known[ROWS_EACH];
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    int row = place + i * 32 + lane;
                    known[i] = row < o.a.Tq ? sums.stat[o.at_row(c.b, h, row)]
                                            : make_float4(INFINITY, 0, 0, 0);
                }
                note tile = note_of<P>(o, sums, c, h, t);
                if (turn >= P::STAGES)
                    wait_for(m.free + stage, (unsigned)(turn / P::STAGES + 1) & 1);
#pragma unroll
                for (int i = 0; i < ROWS_EACH; i++) {
                    m.lse[stage * P::QUERIES + i * 32 + lane] = known[i].x;
                    m.dy_y[stage * P::QUERIES + i * 32 + lane] = known[i].y;
                    m.unit[turn % P::NOTES * P::QUERIES + i * 32 + lane] = units(known[i].z *
                                                                                 c.most);
                }
                if (lane == 0) m.notes[turn % P::NOTES] = tile;
                arrive(m.full + stage);
            }
        arrive(m.k_free + n % 2);
    }
}

/* A thread for each group sends what that makes of dq, tile by tile, on its way to memory, and
 * counts items that are there. */
template <class P>
__device__ inline void send_all(const room<P> &m, const job<typename P::T> &o,
                                const whole_sums &sums, int group)
{
    unsigned sent = 0;
    for (unsigned turn = 0;; turn++) {
        wait_for(m.part_full + group, sent & 1);
        if (m.ended[group]) return;
        note to = m.notes[turn % P::NOTES];
        for (bool rest = false;; rest = true) {
            int4 *all = (rest ? sums.rest : sums.sum) + (int64_t)(to.part + group) * (PART / 4);
            if (sums.sum) add_whole(all, m.part + group * (PART / 4), PART * sizeof(int));
            added_read();
            arrive(m.part_free + group);
            sent++;
            if (rest || !(to.flags & IS_LOOSE)) break;
            wait_for(m.part_full + group, sent & 1);
        }
        if (!(to.flags & LAST)) continue;
        added();
        int head = to.part / sums.parts; /* of queries, of all sequences */
        asm volatile(
            "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(sums.done + head / (int)(o.a.H / o.a.G))
            : "memory");
    }
}

#endif
