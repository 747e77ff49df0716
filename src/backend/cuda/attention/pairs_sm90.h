/* pairs_sm90.h - slopes of scores on Hopper, added up over all that read the same number: what the
 * gradients of a bias by pairs (bias_bwd_sm90.cu) and of a table by distance (table_bwd_sm90.cu)
 * have in common.
 *
 * A block has 128 rows, 64 for each of two groups of four warps, by 128 keys at a time, and keeps
 * their sums in registers while it goes through whatever is added up: sequences, heads, places.
 * Warps of its own bring what they need, ahead and into the next item: queries with keys, for the
 * scores, then dy with values.  Groups take turns in starting products, so that one's exponentials
 * fall into the other's products. */
#ifndef FV_CUDA_ATTENTION_PAIRS_SM90_H
#define FV_CUDA_ATTENTION_PAIRS_SM90_H

#include "bias_sm90.h"
#include "grads.h"

/* A slot has two factors of one product.  BIAS: a tile of a bias is brought for each item, and
 * added; else scores.h adds what there is. */
template <class T_, int W_, bool BIAS_> struct plan {
    typedef T_ T;
    static constexpr int W = W_;
    static constexpr bool BIAS = BIAS_;
    static constexpr int GROUPS = 2, QUERIES = 64 * GROUPS, KEYS = 128, SLOTS = W == 64 ? 4 : 3,
                         BIASES = W == 64 ? 2 : 1, NOTES = 2;
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 232, SPARE_REGISTERS = 40;
    static constexpr int SLOT = (QUERIES + KEYS) * W, PAIRS = QUERIES * KEYS;
    static constexpr size_t BYTES = (SLOTS * SLOT + BIASES * PAIRS) * sizeof(T) +
                                    NOTES * (QUERIES * sizeof(float2) + 32) +
                                    2 * (SLOTS + BIASES + NOTES) * sizeof(uint64_t);
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

/* What there is to know of a turn: which item, sequence, head, first row and key, and which of
 * these hold: slots come for it; all pairs take part; it is the first of its item, or comes after
 * the last; there are no more. */
enum { COMES = 1, WHOLE = 2, FIRST = 4, LAST = 8, NO_MORE = 16 };
struct note {
    int item, b, h, i, j, flags, len, none;
};
static_assert(sizeof(note) == 32, "two words of 16 bytes");

template <class P> struct room {
    typename P::T *slots, *bias;
    float2 *stat; /* of the rows of a turn */
    note *notes;
    uint64_t *full, *free, *bias_full, *bias_free, *note_full, *note_free;

    __device__ room(unsigned char *memory)
    {
        slots = (typename P::T *)memory;
        bias = slots + P::SLOTS * P::SLOT;
        stat = (float2 *)(bias + P::BIASES * P::PAIRS);
        notes = (note *)(stat + P::NOTES * P::QUERIES);
        full = (uint64_t *)(notes + P::NOTES);
        free = full + P::SLOTS;
        bias_full = free + P::SLOTS;
        bias_free = bias_full + P::BIASES;
        note_full = bias_free + P::BIASES;
        note_free = note_full + P::NOTES;
    }
    __device__ void init()
    {
        for (int i = 0; i < P::SLOTS; i++) {
            barrier_init(full + i, 1);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        for (int i = 0; i < P::BIASES; i++) {
            barrier_init(bias_full + i, 1);
            barrier_init(bias_free + i, 4 * P::GROUPS);
        }
        for (int i = 0; i < P::NOTES; i++) {
            barrier_init(note_full + i, 33);
            barrier_init(note_free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
};

/* 8 bytes, or zeros, on their own way; arrive_with_copies: this thread arrives once all that it
 * sent so has come. */
__device__ inline void copy_eight(void *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}
__device__ inline void arrive_with_copies(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(b))
                 : "memory");
}

/* Some pair of these takes part. */
template <class T> __device__ inline bool some(const head<T> &at, int i, int rows, int j, int keys)
{
    return i < at.rows && j < at.last_key(i, rows) && j + keys > at.first(i);
}

/* item(n) is the n-th; its each(f) calls f(head, i, j) for all that it adds up, with the first row
 * and key.  One thread brings the factors of one of the two products: rows, of queries or dy, and
 * keys or values.  first: 0 or 1, its first slot. */
template <class P, class I>
__device__ inline void bring_factors(const room<P> &m, const CUtensorMap *of_rows,
                                     const CUtensorMap *of_keys, const job<typename P::T> &o,
                                     int items, I item, unsigned first)
{
    typedef typename P::T T;
    unsigned slot = first, before = 1; /* the parity of its use before; that of none is 1 */
    int serves = (int)o.a.H / (int)o.a.G;
    for (int n = blockIdx.x; n < items; n += gridDim.x)
        item(n).each([&](const head<T> &at, int i, int j) {
            T *rows = m.slots + slot * P::SLOT, *keys = rows + P::QUERIES * P::W;
            int g = serves == 1 ? at.h : at.h / serves;
            wait_for(m.free + slot, before);
            arrive_expecting(m.full + slot, P::SLOT * sizeof(T));
#pragma unroll
            for (int w = 0; w < P::W; w += PANEL) {
                bring_panel(rows + w * P::QUERIES, of_rows, m.full + slot, w, at.h, i, at.b);
                bring_panel(keys + w * P::KEYS, of_keys, m.full + slot, w, g, j, at.b);
            }
            slot += 2;
            if (slot >= P::SLOTS) slot -= P::SLOTS, before ^= 1;
        });
}

/* A warp says what each turn is, brings what is known of its rows, and the tile of the bias. */
template <class P, class I>
__device__ inline void bring_notes(const room<P> &m, const CUtensorMap *bias,
                                   const job<typename P::T> &o, const float2 *stat, int items,
                                   I item)
{
    typedef typename P::T T;
    int lane = threadIdx.x % 32;
    unsigned turn = 0, tile = 0; /* so far, of turns and of the bias */
    note now = {};
    auto give = [&](const head<T> *at) {
        unsigned at_note = turn % P::NOTES;
        wait_for(m.note_free + at_note, (turn / P::NOTES + 1) & 1);
        if (at) {
            const float2 *from = stat + o.at_row(at->b, at->h, now.i + lane);
            float2 *known = m.stat + at_note * P::QUERIES + lane;
            int left = at->rows - now.i - lane;
#pragma unroll
            for (int r = 0; r < P::QUERIES; r += 32)
                copy_eight(known + r, r < left ? from + r : stat, r < left);
        }
        arrive_with_copies(m.note_full + at_note);
        if (lane == 0) {
            m.notes[at_note] = now;
            arrive(m.note_full + at_note);
        }
        turn++;
    };
    for (int n = blockIdx.x; n < items; n += gridDim.x) {
        bool begun = false;
        now.item = n;
        item(n).each([&](const head<T> &at, int i, int j) {
            bool all = at.whole(i, P::QUERIES, j, P::KEYS) && !o.a.key_mask;
            now.b = at.b, now.h = at.h, now.i = i, now.j = j, now.len = at.len;
            now.flags = COMES | (all ? WHOLE : 0) | (begun ? 0 : FIRST);
            give(&at);
            if (begun) return;
            begun = true;
            if (!P::BIAS) return;
            uint64_t *full = m.bias_full + tile % P::BIASES;
            wait_for(m.bias_free + tile % P::BIASES, (tile / P::BIASES + 1) & 1);
            if (lane == 0) {
                arrive_expecting(full, P::PAIRS * sizeof(T));
                for (int c = 0; c < P::KEYS; c += PANEL)
                    bring_panel(m.bias + tile % P::BIASES * P::PAIRS + c * P::QUERIES, bias, full,
                                j + c, o.a.bias_s[1] ? at.h : 0, i, o.a.bias_s[0] ? at.b : 0);
            }
        });
        tile += begun && P::BIAS;
        now.flags = LAST | (begun && P::BIAS ? COMES : 0);
        give(NULL);
    }
    now.flags = NO_MORE;
    give(NULL);
}

/* What a strip's slopes add to its sums where all pairs take part and nothing is dropped.  add(f)
 * calls f(k, x) with what is added to the products of columns 16 k and on.  Exponentials are to
 * fall between the rest, and the assembler would put all of them last: so what is known of a row
 * waits, from one 16 columns to the next but one, for a weight, of which `none`, 0, takes
 * nothing. */
template <int N, class A>
__device__ inline void add_slopes(float (&sum)[N][4], const float (&s)[N][4],
                                  const float (&d)[N][4], float times, float scale,
                                  const float2 (&known)[2], int none, A add)
{
    float lse[2][2] = {{known[0].x, known[1].x}, {known[0].x, known[1].x}};
    add([&](int k, const float(&x)[2][4]) {
        float w[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[n][e] = exp2_fast(
                    fmaf(fmaf(x[n][e], times, s[2 * k + n][e]), scale, -lse[k % 2][e / 2]));
                sum[2 * k + n][e] = fmaf(w[n][e], d[2 * k + n][e] - known[e / 2].y,
                                         sum[2 * k + n][e]);
            }
#pragma unroll
        for (int r = 0; r < 2; r++)
            lse[k % 2][r] = __int_as_float(__float_as_int(lse[k % 2][r]) |
                                           (__float_as_int(w[1][2 * r + 1]) & none));
    });
}

/* What one of the groups has to do; take(item, sums, bias) is given the sums of a strip of 16 rows
 * for each warp, and where the strip's bias was, or NULL: there was none. */
template <class P, class F>
__device__ inline void add_all(const room<P> &m, const job<typename P::T> &o, int group, F take)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::KEYS / 8;
    int strip = group * 64 + (int)threadIdx.x / 32 % 4 * 16;
    bool quick = o.a.dropout <= 0 && o.scale > 0 && (P::BIAS || (!o.a.mask && !o.a.bias));
    unsigned slot = 0, phase = 0, tile = 0;
    float s[N][4], d[N][4], sum[N][4];
    /* Known to be the same for all. */
    auto flags_of = [&](unsigned turn) {
        wait_for(m.note_full + turn % P::NOTES, turn / P::NOTES & 1);
        return __shfl_sync(~0u, m.notes[turn % P::NOTES].flags, 0);
    };
    clear(sum);
    int flags = flags_of(0);
    for (unsigned turn = 0; flags != NO_MORE; turn++) {
        unsigned at_note = turn % P::NOTES;
        if (flags & LAST) {
            int item = m.notes[at_note].item;
            release(m.note_free + at_note);
            take(item, sum,
                 flags & COMES ? m.bias + tile % P::BIASES * P::PAIRS + strip * PANEL : NULL);
            if (flags & COMES) release(m.bias_free + tile++ % P::BIASES);
            clear(sum);
            flags = flags_of(turn + 1);
            continue;
        }
        unsigned first = slot, first_phase = phase, second = slot + 1, second_phase = phase;
        if (second == P::SLOTS) second = 0, second_phase ^= 1;
        slot += 2;
        if (slot >= P::SLOTS) slot -= P::SLOTS, phase ^= 1;
        const T *q = m.slots + first * P::SLOT, *dy = m.slots + second * P::SLOT;
        turn_wait(1 + group);
        wait_for(m.full + first, first_phase);
        products_begin();
        multiply_rows<W, P::QUERIES, P::KEYS>(s, q + group * 64 * PANEL, q + P::QUERIES * W);
        products_end();
        wait_for(m.full + second, second_phase);
        products_begin();
        multiply_rows<W, P::QUERIES, P::KEYS>(d, dy + group * 64 * PANEL, dy + P::QUERIES * W);
        products_end();
        turn_give(2 - group);
        const float2 *stat = m.stat + at_note * P::QUERIES;
        const float2 known[2] = {stat[tile_row(strip, 0)], stat[tile_row(strip, 2)]};
        if (P::BIAS && flags & FIRST)
            wait_for(m.bias_full + tile % P::BIASES, tile / P::BIASES & 1);
        int next = flags_of(turn + 1);
        const T *bias = m.bias + tile % P::BIASES * P::PAIRS + strip * PANEL;
        auto over_bias = [&](auto f) {
#pragma unroll
            for (int c = 0; c < P::KEYS; c += PANEL)
                each_bias<PANEL / 8>(bias + c * P::QUERIES,
                                     [&](int k, const float(&x)[2][4]) { f(c / 16 + k, x); });
        };
        products_done<1>();
        release(m.free + first);
        const note &now = m.notes[at_note];
        if (quick && flags & WHOLE) {
            int none = now.none, b = now.b, h = now.h, len = now.len, row0 = now.i + strip,
                col0 = now.j;
            release(m.note_free + at_note);
            products_done<0>();
            release(m.free + second);
            if constexpr (P::BIAS)
                add_slopes(sum, s, d, o.bias_scale, o.scale, known, none, over_bias);
            else
                add_slopes(sum, s, d, o.bias_scale, o.scale, known, none, [&](auto f) {
                    each_distance<false, N>(head<T>(o, b, h, len), row0, col0, f);
                });
        } else {
            head<T> at(o, now.b, now.h, now.len);
            int row0 = now.i + strip, col0 = now.j;
            release(m.note_free + at_note);
            if (P::BIAS)
                over_bias([&](int k, const float(&x)[2][4]) {
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[2 * k + n][e] = fmaf(x[n][e], o.bias_scale, s[2 * k + n][e]);
                });
            weigh<false, P::BIAS ? BIASED : ANY>(s, at, row0, col0, flags & WHOLE,
                                                 [&](int e, int) { return known[e / 2].x; });
            products_done<0>();
            release(m.free + second);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[n][e] += slope_of<ANY>(s[n][e], d[n][e], known[e / 2].y);
        }
        flags = next;
    }
}

/* All that a block does. */
template <class P, class I, class F>
__device__ inline void run_block(unsigned char *memory, const maps *of, const job<typename P::T> &o,
                                 const float2 *stat, int items, I item, F take)
{
    room<P> m(memory);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    int group = group_of() - 1;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x == 0) bring_factors(m, &of->in.q, &of->in.k, o, items, item, 0);
        if (threadIdx.x == 32) bring_factors(m, &of->dy, &of->in.v, o, items, item, 1);
        if (threadIdx.x / 32 == 2) bring_notes(m, &of->bias, o, stat, items, item);
    } else {
        registers_up<P::REGISTERS>();
        if (group == 1) turn_give(1);
        add_all(m, o, group,
                [&](int n, auto &sum, typename P::T *bias) { take(n, sum, bias, group); });
        if (group == 0) turn_wait(1);
    }
}

/* ---- on the host ---- */

template <class P>
static bool map_pairs(maps *of, const job<typename P::T> &o, const fv_attn_grads *g)
{
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<typename P::T>::dtype;
    return fv_cuda_map_attention(&of->in, &a, t, P::QUERIES, P::KEYS) &&
           fv_cuda_map(&of->dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv,
                       P::QUERIES) &&
           (!P::BIAS || map_bias(&of->bias, o, P::QUERIES));
}

/* Blocks that stay, one to a multiprocessor. */
static inline dim3 grid_of(fv_stream *s, int64_t items)
{
    int64_t most = device_of(s)->processors;
    return dim3((unsigned)(items < most ? items : most));
}

#endif
