/* attention_hopper_rows.cu - exact weights of some rows of a head on Hopper, from the log-sum-exp.
 *
 * What counts is how fast weights reach memory, 4 bytes for every pair: products are quick, keys are read once for 192 rows,
 * and three groups of four warps are at different places, so that there is always one that writes.  There is one block for each
 * processor, with an equal share of all tiles. */
#include "attention.h"
#include "attention_ways.h"
#include "hopper.h"

namespace {
enum { GROUPS = 3, QUERIES = 64 * GROUPS, KEYS = 128, STAGES = 2, ALL_THREADS = 128 * (GROUPS + 1) };

template <class T, int W> constexpr size_t room_of = 1024 + (QUERIES + STAGES * KEYS) * W * sizeof(T);

struct span { /* rows [from, to) of one head; tiles of keys across, and tiles in all */
    int b, h, from, to, across, tiles;
};

/* The tiles of a block, strip by strip. */
struct share {
    int next, end;
    __device__ share(const span &of)
        : next((int)((int64_t)of.tiles * blockIdx.x / gridDim.x)), end((int)((int64_t)of.tiles * (blockIdx.x + 1) / gridDim.x))
    {
    }
};
}

/* Four neighbours to one thread: of two column blocks side by side the first goes to even threads, the second to odd ones. */
__device__ inline float4 join_pairs(const float (&first)[2], const float (&second)[2])
{
    bool odd = threadIdx.x % 2;
    float u = __shfl_xor_sync(~0u, odd ? first[0] : second[0], 1), v = __shfl_xor_sync(~0u, odd ? first[1] : second[1], 1);
    return odd ? make_float4(u, v, second[0], second[1]) : make_float4(first[0], first[1], u, v);
}

template <class T>
__device__ inline void write_weights(float *w, const float (&s)[KEYS / 8][4], const head<T> &at, const span &of, int row0,
                                     int col0)
{
    int keys = (int)at.o.a.Tk;
    bool inside = keys % 4 == 0 && row0 + 16 <= of.to && col0 + KEYS <= keys;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2), odd = (int)threadIdx.x % 2;
        float *to = w + (int64_t)(i - of.from) * keys + col0 + odd * 8 + (int)threadIdx.x % 4 / 2 * 4;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            float first[2] = {s[n][r * 2], s[n][r * 2 + 1]}, second[2] = {s[n + 1][r * 2], s[n + 1][r * 2 + 1]};
            float4 four = join_pairs(first, second);
            if (inside) {
                __stcs((float4 *)(to + n * 8), four);
            } else if (i < of.to) {
                const float each[4] = {four.x, four.y, four.z, four.w};
                int left = w + (int64_t)(i - of.from + 1) * keys - (to + n * 8);
                for (int e = 0; e < 4; e++)
                    if (e < left) to[n * 8 + e] = each[e];
            }
        }
    }
}

template <class T, int W, int KIND>
__global__ void __launch_bounds__(ALL_THREADS, 1)
    weights_wgmma(float *w, const __grid_constant__ job<T> o, const __grid_constant__ attention_maps maps, span of)
{
    extern __shared__ unsigned char memory[];
    __shared__ uint64_t q_full, q_free, full[STAGES], free_[STAGES];
    T *q = (T *)(memory + (1024 - shared_at(memory) % 1024) % 1024), *k = q + QUERIES * W;
    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        barrier_init(&q_free, 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free_ + i, 4 * GROUPS);
        }
        barriers_ready();
    }
    __syncthreads();
    head<T> at(o, of.b, of.h);
    int group = group_of() - 1, strip = -1, strips = 0, g = o.kv_head(of.h);
    share mine(of);
    if (group < 0) {
        registers_down<32>();
        if (threadIdx.x > 0) return;
        for (int t = 0; t < mine.end - mine.next; t++) {
            int tile = mine.next + t, stage = t % STAGES;
            if (tile / of.across != strip) {
                strip = tile / of.across;
                if (strips > 0) wait_for(&q_free, (unsigned)(strips - 1) & 1);
                strips++;
                arrive_expecting(&q_full, QUERIES * W * sizeof(T));
                for (int c = 0; c < W; c += PANEL)
                    bring_panel(q + c * QUERIES, &maps.q, &q_full, c, of.h, of.from + strip * QUERIES, of.b);
            }
            if (t >= STAGES) wait_for(free_ + stage, (unsigned)(t / STAGES + 1) & 1);
            arrive_expecting(full + stage, KEYS * W * sizeof(T));
            for (int c = 0; c < W; c += PANEL)
                bring_panel(k + stage * KEYS * W + c * KEYS, &maps.k, full + stage, c, g, tile % of.across * KEYS, of.b);
        }
        return;
    }
    registers_up<160>();
    int row0 = 0;
    float s[KEYS / 8][4], lse[2];
    for (int t = 0; t < mine.end - mine.next; t++) {
        int tile = mine.next + t, stage = t % STAGES, j = tile % of.across * KEYS;
        if (tile / of.across != strip) {
            if (strip >= 0) release(&q_free);
            strip = tile / of.across;
            row0 = of.from + strip * QUERIES + group * 64 + (int)threadIdx.x / 32 % 4 * 16;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = tile_row(row0, r * 2);
                float known = i < of.to ? ((const float *)o.a.lse)[o.at_lse(of.b, of.h, i)] : -INFINITY;
                lse[r] = known == -INFINITY ? INFINITY : known * LOG2E; /* nothing seen: weights are 0 */
            }
            wait_for(&q_full, (unsigned)strips++ & 1);
        }
        wait_for(full + stage, (unsigned)(t / STAGES) & 1);
        products_begin();
        multiply_rows<W, QUERIES, KEYS>(s, q + group * 64 * PANEL, k + stage * KEYS * W);
        products_end();
        products_done<0>();
        release(free_ + stage);
        int rows = row0 - (int)threadIdx.x / 32 % 4 * 16;
        weigh<false, KIND>(s, at, row0, j, at.whole(rows, 64, j, KEYS), [&](int e, int) { return lse[e / 2]; });
        write_weights(w, s, at, of, row0, j);
    }
}

template <class T, int W, int KIND> static bool start(fv_stream *s, float *w, const job<T> &o, span of)
{
    const fv_attn_args &a = o.a;
    attention_maps maps;
    if (!fv_cuda_map_attention(&maps, &a, kind<T>::dtype, QUERIES, KEYS)) return false;
    int most = device_of(s)->processors;
    of.across = (int)ceil_div(a.Tk, KEYS);
    of.tiles = of.across * (int)ceil_div(of.to - of.from, QUERIES);
    dim3 grid((unsigned)(of.tiles < most ? of.tiles : most));
    launch(s, "attention_weights", weights_wgmma<T, W, KIND>, grid, ALL_THREADS, room_of<T, W>, w, o, maps, of);
    return true;
}

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, float *w, const job<T> *o, int64_t b, int64_t h, int64_t i0, int64_t i1)
{
    span of = {(int)b, (int)h, (int)i0, (int)i1, 0, 0};
    job<T> before = *o; /* weights are those before dropout */
    before.a.dropout = 0;
    if (o->a.Wk <= 64)
        return o->plain ? start<T, 64, PLAIN>(s, w, before, of) : start<T, 64, ANY>(s, w, before, of);
    return o->plain ? start<T, 128, PLAIN>(s, w, before, of) : start<T, 128, ANY>(s, w, before, of);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, float *, const job<bf16> *, int64_t, int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, float *, const job<f16> *, int64_t, int64_t, int64_t, int64_t);
