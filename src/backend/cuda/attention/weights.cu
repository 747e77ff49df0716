/* weights.cu - exact weights of some rows of a head, computed again from the log-sum-exp; and the
 * key/value cache. */
#include "attention.h"

#define KEYS 64          /* of a tile */
#define MAX_TILES 8      /* that one block goes through */
#define MANY_BLOCKS 1024 /* from so many on: fewer, longer ones */

/* weights_sm90.cu: the same on the chip's own instructions.  False where the copy engine cannot
 * read these tensors. */
template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, fv_sink w, const job<T> *o, int64_t b, int64_t h,
                            int64_t i0, int64_t i1);

/* w = 2^(score - lse) for rows [i0,i1) of one head: a block has ROWS rows and goes through some
 * tiles of keys, the next of which is on its way while one is worked on. */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    weights_tile(sink<T> w, const __grid_constant__ job<T> o, int b, int h, int i0, int i1,
                 int tiles)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T *)memory, *k = q + ROWS * S;
    head<T> at(o, b, h);
    int keys = (int)o.a.Tk, tile = i0 + (int)blockIdx.y * ROWS, warp = threadIdx.x / 32,
        row0 = tile + warp * 16;
    int col0 = (int)blockIdx.x * KEYS * tiles,
        last = col0 + KEYS * tiles < keys ? col0 + KEYS * tiles : keys;
    auto bring = [&](int j) {
        fetch<KEYS, W>(k + j / KEYS % 2 * KEYS * S, o.k(b, o.kv_head(h), j), o.a.k_row, keys - j,
                       (int)o.a.Wk, o.vector_k);
    };
    row_stat stat[2];
    int first[2], end[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2);
        first[r] = at.first(i), end[r] = i < i1 ? at.end(i) : 0;
        stat[r] = weight_stat(i < i1 ? o.lse(b, h, i) : make_float2(0, 0));
    }
    fetch<ROWS, W>(q, o.q(b, h, tile), o.a.q_row, i1 - tile, (int)o.a.Wk, o.vector_q);
    bring(col0);
    for (int j0 = col0; j0 < last; j0 += KEYS) {
        float s[KEYS / 8][4];
        clear(s);
        arrived<0>();
        __syncthreads(); /* this tile is here, and the one before is done with */
        if (j0 + KEYS < last) bring(j0 + KEYS);
        mul_nt<KEYS / 8, W, S, S>(s, q + warp * 16 * S, k + j0 / KEYS % 2 * KEYS * S);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = tile_row(row0, r * 2);
            int64_t to = (int64_t)(i - i0) * keys;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                int j = tile_col(j0, n, 0);
                float v[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    bool in_range = j + e >= first[r] && j + e < end[r];
                    float x = in_range ? at.score(s[n][r * 2 + e], i, j + e) : -INFINITY;
                    v[e] = fminf(weight_of(x, 1, stat[r]),
                                 1); /* the forward pass may add up its products otherwise */
                }
                if (i < i1 && keys % 2 == 0 && j < keys)
                    sink_store(w, to + j, v);
                else
                    for (int e = 0; e < 2; e++)
                        if (i < i1 && j + e < keys) sink_put(w, to + j + e, v[e]);
            }
        }
    }
}

template <class T, int W>
static void weights_as(fv_stream *s, sink<T> w, const job<T> &o, int64_t b, int64_t h, int64_t i0,
                       int64_t i1)
{
    int64_t strips = ceil_div(i1 - i0, ROWS), all = strips * ceil_div(o.a.Tk, KEYS),
            tiles = all / MANY_BLOCKS;
    tiles = tiles < 1 ? 1 : tiles > MAX_TILES ? MAX_TILES : tiles;
    dim3 grid((unsigned)ceil_div(o.a.Tk, KEYS * tiles), (unsigned)strips);
    size_t bytes = (size_t)(ROWS + 2 * KEYS) * stride_of<T, W> * sizeof(T);
    launch(s, "attention_weights", weights_tile<T, W>, grid, 32 * WARPS, bytes, w, o, b, h, i0, i1,
           tiles);
}

/* The only row of a head, as decoding has it: a softmax of its own.  The kernels that decode add up
 * a product in several orders, and beside a large maximum each has other last bits than a tile. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    weights_of_one(sink<T> w, const __grid_constant__ job<T> o, int b, int h)
{
    head<T> at(o, b, h);
    int first = at.first(0), end = at.end(0), keys = (int)o.a.Tk;
    const T *q = o.q(b, h, 0);
    auto score = [&](int j) {
        const T *k = o.k(b, o.kv_head(h), j);
        float dot = 0;
        for (int c = 0; c < o.a.Wk; c++) dot = fmaf(to_float(q[c]), to_float(k[c]), dot);
        return j >= first && j < end ? at.score(dot, 0, j) : -INFINITY;
    };
    float top = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < keys; j += THREADS) top = fmaxf(top, score(j));
    top = block_allreduce(top, [](float x, float y) { return fmaxf(x, y); });
    float base = top == -INFINITY ? 0 : top;
    for (int j = threadIdx.x; j < keys; j += THREADS) sum += exp2_fast(score(j) - base);
    sum = block_allreduce(sum, [](float x, float y) { return x + y; });
    for (int j = threadIdx.x; j < keys; j += THREADS)
        sink_put(w, j, sum == 0 ? 0 : exp2_fast(score(j) - base) / sum);
}

template <class T>
static void attention_weights(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                              int64_t i0, int64_t i1)
{
    job<T> o = prepare<T>(s, a);
    if (a->Tq == 1) {
        if (i1 > i0)
            launch(s, "attention_weights", weights_of_one<T>, 1, THREADS, 0, to<T>(w), o, (int)b,
                   (int)h);
        return;
    }
    if constexpr (sizeof(T) == 2)
        if (device_of(s)->hopper && o.vector_q && o.vector_k && a->Wk > 32 && a->Wk <= 128 &&
            i1 - i0 >= ROWS && fv_cuda_weights_hopper<T>(s, w, &o, b, h, i0, i1))
            return;
    switch (tile_width(s, a)) {
    case 32: weights_as<T, 32>(s, to<T>(w), o, b, h, i0, i1); break;
    case 64: weights_as<T, 64>(s, to<T>(w), o, b, h, i0, i1); break;
    case 128: weights_as<T, 128>(s, to<T>(w), o, b, h, i0, i1); break;
    case 256: weights_as<T, 256>(s, to<T>(w), o, b, h, i0, i1); break;
    }
}

/* cache (B,cap,D): row pos[b]+t of sequence b becomes x[b,t] */
template <class T> struct to_cache {
    static constexpr int wide = 16 / sizeof(T);
    T *cache;
    const T *x;
    const int32_t *pos;
    int64_t T_, cap, D;
    fault *bad;
    template <int V> __device__ void at(int64_t i) const
    {
        int64_t b = i / (T_ * D), rest = i % (T_ * D), from = pos[b];
        if (from < 0 || from + T_ > cap) {
            if (!rest) report_fault(bad, b, from, cap, T_);
            return;
        }
        *(pack<T, V> *)(cache + (b * cap + from) * D + rest) = *(const pack<T, V> *)(x + i);
    }
};

template <class T>
static void cache_write(fv_stream *s, void *cache, const void *x, const int32_t *pos, int64_t B,
                        int64_t T_, int64_t cap, int64_t D)
{
    bool wide = D % (16 / (int64_t)sizeof(T)) == 0 && aligned(cache, x);
    each(s, "cache_write", B * T_ * D, wide,
         to_cache<T>{(T *)cache, (const T *)x, pos, T_, cap, D, faults_of(s) + FAULT_CACHE});
}

template <class T> void fv_cuda_attention_rows(fv_kernels *k)
{
    k->attention_weights = attention_weights<T>;
    k->cache_write = cache_write<T>;
}
FOR_ALL_DTYPES(fv_cuda_attention_rows)
