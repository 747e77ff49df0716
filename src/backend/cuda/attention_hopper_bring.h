/* attention_hopper_bring.h - what the gradients of attention on Hopper go through: items of work, tiles, the memory of a block,
 * and the warp that brings everything into it (attention_hopper_bwd.cu). */
#ifndef FV_CUDA_ATTENTION_HOPPER_BRING_H
#define FV_CUDA_ATTENTION_HOPPER_BRING_H

#include "attention_bias.h"
#include "attention_hopper_sums.h"

/* An item of the work: a block of keys, and the tiles of queries that can meet them. */
struct course {
    int b, g, from, to;      /* sequence, head of keys, heads that it serves; b < 0: there are no more */
    int tile;                /* first key */
    int first, count, start; /* first query, tiles of them, and which comes first, so that not all add to the same at a time */
    int len;                 /* keys of the sequence */
    bool loose, kept;        /* kept: the item before had tiles, so the last of them is */
    __device__ int place(int t, int queries) const
    {
        int at = t + start;
        return first + (at < count ? at : at - count) * queries;
    }
};

/* What there is to know of a tile: head, first query, the first of the parts its dq is made of, and which of these hold: it is
 * the last of its item; a dq is to be made with it, of BEHIND tiles before; that is of the item before; the head is loose; and
 * for each group, WHOLE << group: all pairs take part. */
enum { OF_OTHER = 1, LAST = 2, KEPT = 4, IS_LOOSE = 8, WHOLE = 16 };
struct note {
    int h, place, part, flags;
};

template <class T_, int W_, int KIND_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, KEYS = 64 * GROUPS, QUERIES = GROUPS * PART / W, STAGES = 2, NOTES = 3;
    static constexpr int KIND = KIND_;
    static constexpr bool BIAS = KIND == BIASED;
    static constexpr int BEHIND = BIAS ? 0 : 1; /* tiles that dq is made later; a bias is brought to where slopes would be kept */
    static_assert(STAGES == 2, "a tile of the bias lies where slopes will");
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 240, SPARE_REGISTERS = 24;
    static constexpr int TILE = QUERIES * W, SLOPES = QUERIES * KEYS;
    static constexpr size_t BYTES = (3 * KEYS * W + 2 * STAGES * TILE + 2 * SLOPES) * sizeof(T) + GROUPS * PART * sizeof(int) +
                                    2 * STAGES * QUERIES * sizeof(float) + NOTES * (QUERIES * sizeof(float) + sizeof(note)) +
                                    (12 + 2 * STAGES) * sizeof(uint64_t) + 2 * sizeof(course);
    static_assert(128 * (GROUPS * REGISTERS + SPARE_REGISTERS) <= 65536 / THREADS_ALL / 8 * 8 * THREADS_ALL, "what a block has");
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

template <class P> struct room {
    typedef typename P::T T;
    T *k, *v, *q, *dy, *slopes; /* keys of two items; slopes of two tiles: those of one are read while the next are laid */
    int4 *part;                 /* of dq, for each group */
    float *lse, *dy_y, *unit;   /* units and notes are there for a tile longer, as its dq is made with the next */
    uint64_t *k_full, *k_free, *v_full, *v_free, *laid, *read, *full, *free; /* laid, read: slopes */
    course *own;
    note *notes;

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
        own = (course *)(free + P::STAGES);
        notes = (note *)(own + 2);
    }
    __device__ void init()
    {
        for (int i = 0; i < 2; i++) {
            barrier_init(k_full + i, 1);
            barrier_init(k_free + i, 128 * P::GROUPS);
            barrier_init(v_full + i, 1);
            barrier_init(v_free + i, 4);
            barrier_init(laid + i, 4 * P::GROUPS);
            barrier_init(read + i, 4 * P::GROUPS);
        }
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, 33);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* The n-th head of keys.  Sequences that share a bias go together, so that memory is read once for all. */
template <class P> __device__ inline void where(const job<typename P::T> &o, int n, int *b, int *g)
{
    int heads = (int)o.a.G, sequences = (int)o.a.B;
    *b = P::BIAS ? n % sequences : n / heads;
    *g = P::BIAS ? n / sequences : n % heads;
}

/* Item i: the longest of a head first when causal. */
template <class P> __device__ inline course course_of(const job<typename P::T> &o, int i)
{
    int tiles = (int)ceil_div(o.a.Tk, P::KEYS), heads = (int)o.a.G, serves = (int)o.a.H / heads, n = i / tiles;
    course c;
    where<P>(o, n, &c.b, &c.g);
    c.from = c.g * serves;
    c.to = c.from + serves;
    c.tile = i % tiles * P::KEYS;
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
__device__ inline void bring_keys(typename P::T *to, const CUtensorMap *map, uint64_t *full, const course &c, int group)
{
#pragma unroll
    for (int w = 0; w < P::W; w += PANEL)
        bring_panel(to + w * P::KEYS + group * 64 * PANEL, map, full, w, c.g, c.tile + group * 64, c.b);
}

/* A tile of the bias to where its slopes will be laid, each group's to where that group will. */
template <class P>
__device__ inline void bring_bias(const room<P> &m, const job<typename P::T> &o, const maps *of, int stage, int h, int place,
                                  const course &c)
{
    for (int i = 0; i < P::QUERIES; i += 64)
        for (int j = 0; j < P::KEYS; j += 64)
            bring_panel(m.slopes + stage * P::SLOPES + i * P::KEYS + j * PANEL, &of->bias, m.full + stage, c.tile + j,
                        o.a.bias_s[1] ? h : 0, place + i, o.a.bias_s[0] ? c.b : 0);
}

template <class P>
__device__ inline note note_of(const job<typename P::T> &o, const whole_sums &sums, const course &c, int h, int t)
{
    head<typename P::T> at(o, c.b, h, c.len);
    bool first = h == c.from && t == 0, last = h == c.to - 1 && t == c.count - 1;
    int place = c.place(t, P::QUERIES), part = (c.b * (int)o.a.H + h) * sums.parts + place / P::QUERIES * P::GROUPS;
    int flags = (last ? LAST : 0) | (c.loose ? IS_LOOSE : 0);
    if (!P::BEHIND || !first || c.kept) flags |= KEPT;
    if (P::BEHIND && first) flags |= OF_OTHER;
    for (int i = 0; i < P::GROUPS; i++)
        if (at.whole(place, P::QUERIES, c.tile + i * 64, 64)) flags |= WHOLE << i;
    return {h, place, part, flags};
}

/* One warp brings everything, item by item: whichever is next when there is room for it. */
template <class P>
__device__ inline void bring_all(const room<P> &m, const job<typename P::T> &o, const maps *of, const whole_sums &sums, int items)
{
    typedef typename P::T T;
    int lane = threadIdx.x, turn = 0, item = blockIdx.x, next = 0;
    unsigned values = 0;
    bool kept = false;
    for (unsigned n = 0;; n++, item = __shfl_sync(~0u, next, 0)) {
        uint64_t *k_full = m.k_full + n % 2;
        if (n >= 2) wait_for(m.k_free + n % 2, (n / 2 + 1) & 1);
        if (item >= items) {
            if (lane == 0) m.own[n % 2].b = -1, m.own[n % 2].kept = kept;
            if (lane == 0) arrive(k_full);
            return;
        }
        course c = course_of<P>(o, item);
        bound limit = bound_of(sums, c.b * (int)o.a.G + c.g, o.keep_scale);
        c.loose = limit.loose;
        c.kept = kept;
        if (lane == 0) {
            m.own[n % 2] = c;
            arrive_expecting(k_full, P::KEYS * P::W * sizeof(T));
            for (int i = 0; i < P::GROUPS; i++) bring_keys<P>(m.k + n % 2 * P::W * P::KEYS, &of->in.k, k_full, c, i);
            next = (int)gridDim.x + atomicAdd(sums.next, 1);
        }
        for (int h = c.from; h < c.to; h++)
            for (int t = 0; t < c.count; t++, turn++) {
                int stage = turn % P::STAGES, place = c.place(t, P::QUERIES);
                if (turn >= P::STAGES) wait_for(m.free + stage, (unsigned)(turn / P::STAGES + 1) & 1);
                if (lane == 0) {
                    arrive_expecting(m.full + stage, (2 * P::TILE + (P::BIAS ? P::SLOPES : 0)) * sizeof(T));
#pragma unroll
                    for (int w = 0; w < P::W; w += PANEL) {
                        bring_panel(m.q + stage * P::TILE + w * P::QUERIES, &of->in.q, m.full + stage, w, h, place, c.b);
                        bring_panel(m.dy + stage * P::TILE + w * P::QUERIES, &of->dy, m.full + stage, w, h, place, c.b);
                    }
                }
                for (int i = lane; i < P::QUERIES; i += 32) {
                    float4 known = make_float4(INFINITY, 0, 0, 0);
                    if (place + i < o.a.Tq) known = sums.stat[o.at_lse(c.b, h, place + i)];
                    m.lse[stage * P::QUERIES + i] = known.x;
                    m.dy_y[stage * P::QUERIES + i] = known.y;
                    m.unit[turn % P::NOTES * P::QUERIES + i] = units(known.z * limit.most);
                }
                if (P::BIAS && turn >= 2) wait_for(m.read + turn % 2, (unsigned)(turn / 2 + 1) & 1);
                if (lane == 0) {
                    m.notes[turn % P::NOTES] = note_of<P>(o, sums, c, h, t);
                    if (P::BIAS) bring_bias(m, o, of, stage, h, place, c);
                }
                arrive(m.full + stage);
                if (h > c.from || t > 0) continue;
                for (int i = 0; i < P::GROUPS; i++) {
                    if (values > 0) wait_for(m.v_free + i, (values - 1) & 1);
                    if (lane == 0) arrive_expecting(m.v_full + i, 64 * P::W * sizeof(T));
                    if (lane == 0) bring_keys<P>(m.v, &of->in.v, m.v_full + i, c, i);
                }
                values++;
            }
        kept = P::BEHIND && c.count > 0;
    }
}

#endif
