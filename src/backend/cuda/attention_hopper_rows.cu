/* attention_hopper_rows.cu - exact weights of some rows of a head on Hopper, from the log-sum-exp.
 *
 * What counts is how fast weights reach memory, 4 bytes for every pair: products are quick, keys are read once for 192 rows,
 * and three groups of four warps are at different places, so that there is always one that writes. */
#include "attention.h"
#include "attention_ways.h"
#include "hopper.h"

namespace {
enum { GROUPS = 3, QUERIES = 64 * GROUPS, KEYS = 128, STAGES = 2, ALL_THREADS = 128 * (GROUPS + 1), BLOCKS_EACH = 6 };

template <class T, int W> constexpr size_t room_of = 1024 + (QUERIES + STAGES * KEYS) * W * sizeof(T);

struct span { /* rows [from, to) of one head; keys in shares of so many tiles */
    int b, h, from, to, tiles;
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
                                     int col0, bool whole, const float (&lse)[2])
{
    int keys = (int)at.o.a.Tk;
    keys_seen<false, KEYS / 8> seen(at, row0, col0);
    whole = whole && at.o.plain && seen.all;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2), first = at.first(i), end = i < of.to ? at.end(i) : 0;
        float *to = w + (int64_t)(i - of.from) * keys;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            float v[2][2];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int j = tile_col(col0, n + e / 2, e % 2);
                float dot = s[n + e / 2][r * 2 + e % 2], x = at.o.scale * dot;
                if (!whole) x = j >= first && j < end ? at.score(dot, i, j) : -INFINITY;
                v[e / 2][e % 2] = x == -INFINITY ? 0 : exp2_fast(x - lse[r]);
            }
            float4 four = join_pairs(v[0], v[1]);
            int j = col0 + (n + (int)threadIdx.x % 2) * 8 + (int)threadIdx.x % 4 / 2 * 4;
            if (i >= of.to) continue;
            if (keys % 4 == 0 && j < keys) {
                __stcs((float4 *)(to + j), four);
            } else {
                const float each[4] = {four.x, four.y, four.z, four.w};
                for (int e = 0; e < 4; e++)
                    if (j + e < keys) to[j + e] = each[e];
            }
        }
    }
}

template <class T, int W>
__global__ void __launch_bounds__(ALL_THREADS, 1)
    weights_wgmma(float *w, const __grid_constant__ job<T> o, const __grid_constant__ CUtensorMap qmap,
                  const __grid_constant__ CUtensorMap kmap, span of)
{
    extern __shared__ unsigned char memory[];
    __shared__ uint64_t q_full, full[STAGES], free_[STAGES];
    T *q = (T *)(memory + (1024 - shared_at(memory) % 1024) % 1024), *k = q + QUERIES * W;
    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free_ + i, 4 * GROUPS);
        }
        barriers_ready();
    }
    __syncthreads();
    head<T> at(o, of.b, of.h);
    int tile = of.from + (int)blockIdx.y * QUERIES, col0 = (int)blockIdx.x * KEYS * of.tiles, group = (int)threadIdx.x / 128 - 1;
    int count = ((int)o.a.Tk - col0 + KEYS - 1) / KEYS;
    count = count < of.tiles ? count : of.tiles;
    if (group < 0) {
        registers_down<32>();
        if (threadIdx.x > 0) return;
        arrive_expecting(&q_full, QUERIES * W * sizeof(T));
        for (int c = 0; c < W; c += PANEL) bring_panel(q + c * QUERIES, &qmap, &q_full, c, of.h, tile, of.b);
        for (int t = 0; t < count; t++) {
            int stage = t % STAGES;
            if (t >= STAGES) wait_for(free_ + stage, (unsigned)(t / STAGES + 1) & 1);
            arrive_expecting(full + stage, KEYS * W * sizeof(T));
            for (int c = 0; c < W; c += PANEL)
                bring_panel(k + stage * KEYS * W + c * KEYS, &kmap, full + stage, c, o.kv_head(of.h), col0 + t * KEYS, of.b);
        }
        return;
    }
    registers_up<160>();
    int rows = tile + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
    float s[KEYS / 8][4], lse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2);
        lse[r] = i < of.to ? LOG2E * ((const float *)o.a.lse)[o.at_lse(of.b, of.h, i)] : 0;
    }
    wait_for(&q_full, 0);
    for (int t = 0; t < count; t++) {
        int stage = t % STAGES, j = col0 + t * KEYS;
        wait_for(full + stage, (unsigned)(t / STAGES) & 1);
        products_begin();
        multiply_rows<W, QUERIES, KEYS>(s, q + group * 64 * PANEL, k + stage * KEYS * W);
        products_end();
        products_done<0>();
        release(free_ + stage);
        write_weights(w, s, at, of, row0, j, rows + 64 <= of.to && at.whole(rows, 64, j, KEYS), lse);
    }
}

template <class T, int W> static bool start(fv_stream *s, float *w, const job<T> &o, span of)
{
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    CUtensorMap q, k;
    if (!fv_cuda_map(&q, a.q, t, a.B, a.Tq, a.H, a.Wk, a.q_row, a.q_batch, QUERIES) ||
        !fv_cuda_map(&k, a.k, t, a.B, a.Tk, a.G, a.Wk, a.k_row, a.k_batch, KEYS))
        return false;
    int64_t strips = ceil_div(of.to - of.from, QUERIES), all = ceil_div(a.Tk, KEYS);
    of.tiles = (int)ceil_div(all * strips, (int64_t)device_of(s)->processors * BLOCKS_EACH);
    dim3 grid((unsigned)ceil_div(all, of.tiles), (unsigned)strips);
    launch(s, "attention_weights", weights_wgmma<T, W>, grid, ALL_THREADS, room_of<T, W>, w, o, q, k, of);
    return true;
}

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, float *w, const job<T> *o, int64_t b, int64_t h, int64_t i0, int64_t i1)
{
    span of = {(int)b, (int)h, (int)i0, (int)i1, 0};
    return o->a.Wk <= 64 ? start<T, 64>(s, w, *o, of) : start<T, 128>(s, w, *o, of);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, float *, const job<bf16> *, int64_t, int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, float *, const job<f16> *, int64_t, int64_t, int64_t, int64_t);
