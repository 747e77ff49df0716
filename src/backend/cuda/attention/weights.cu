/* weights.cu - exact attention weights of some rows of a head, recomputed from the log-sum-exp;
 * and writes to the KV cache.
 *
 *     w_ij = 2^(scale q_i.k_j (+ bias_ij) - max_i) / sum_i,  lse_i = (max_i, sum_i)
 *
 * The exponent is the forward kernels' own expression (exponent): at scores of 1e3 it is worth 4e-6
 * of a weight whether scale s is rounded, and the rows would not sum to 1. */
#include "decode.h"

#define KEYS 64          /* keys of a tile */
#define MAX_TILES 8      /* most tiles of one block */
#define MANY_BLOCKS 1024 /* above so many blocks, each takes several tiles */

/* weights_sm90.cu: the same on Hopper.  False where TMA cannot address these tensors. */
template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, fv_sink w, const attn_params<T> *attn, int64_t b,
                            int64_t h, int64_t i0, int64_t i1);

namespace
{

/* Rows [i0, i1) of a head, written from w[at] on, their first `keys` keys each. */
struct head_rows {
    int b, h, i0, i1, keys, at;
};

/* Rows of one head, or of a list one of each: a block has TILE_ROWS rows and `tiles` tiles of keys,
 * double-buffered by cp.async; blocks of a row of tiles follow one another, `across` of them.
 * Each block loads its q once; rows and tiles of keys are independent of one another, so there
 * is no sum over tiles and no order to keep. */
template <class T, int W>
__global__ void __launch_bounds__(32 * WARPS)
    weights_tile(sink<T> w, const __grid_constant__ attn_params<T> attn, head_rows of,
                 const fv_weights_job *jobs, int tiles, int across)
{
    constexpr int S = stride_of<T, W>;
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T *)memory, *k = q + TILE_ROWS * S;
    int col0 = (int)blockIdx.x % across * KEYS * tiles;
    if (jobs) {
        const fv_weights_job job = jobs[(int)blockIdx.x / across];
        if (col0 >= job.n) return;
        of = {job.b, job.head, job.query, job.query + 1, job.n, job.at};
    }
    const int b = of.b, h = of.h, i1 = of.i1, keys = of.keys;
    head_view<T> head(attn, b, h);
    int tile = of.i0 + (int)blockIdx.y * TILE_ROWS, warp = threadIdx.x / 32,
        row0 = tile + warp * 16, last = col0 + KEYS * tiles < keys ? col0 + KEYS * tiles : keys;
    bool pairs = keys % 2 == 0 && of.at % 2 == 0;
    auto load_tiles = [&](int j) {
        load_tile_async<KEYS, W>(k + j / KEYS % 2 * KEYS * S, attn.k(b, attn.kv_head(h), j),
                                 attn.a.k_row, keys - j, (int)attn.a.Wk, attn.vector_k);
    };
    row_stat stat[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = tile_row(row0, r * 2);
        stat[r] = weight_stat(i < i1 ? attn.lse(b, h, i) : make_float2(0, 0));
    }
    load_tile_async<TILE_ROWS, W>(q, attn.q(b, h, tile), attn.a.q_row, i1 - tile, (int)attn.a.Wk,
                                  attn.vector_q);
    load_tiles(col0);
    for (int j0 = col0; j0 < last; j0 += KEYS) {
        float s[KEYS / 8][4];
        clear(s);
        cp_async_wait<0>();
        __syncthreads(); /* this tile is here, and the one before is not needed any more */
        if (j0 + KEYS < last) load_tiles(j0 + KEYS);
        mul_nt<KEYS / 8, W, S, S>(s, q + warp * 16 * S, k + j0 / KEYS % 2 * KEYS * S);
        exp_scores<false, ANY>(s, head, row0, j0, head.all_visible(tile, TILE_ROWS, j0, KEYS),
                               [&](int e, int) { return stat[e / 2]; });
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = tile_row(row0, r * 2);
            int64_t to = of.at + (int64_t)(i - of.i0) * keys;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                int j = tile_col(j0, n, 0);
                /* another forward kernel (wgmma, cuDNN) may round a product otherwise */
                const float v[2] = {fminf(s[n][r * 2], 1), fminf(s[n][r * 2 + 1], 1)};
                if (i < i1 && pairs && j < keys)
                    sink_store(w, to + j, v);
                else
                    for (int e = 0; e < 2; e++)
                        if (i < i1 && j + e < keys) sink_put(w, to + j + e, v[e]);
            }
        }
    }
}

/* jobs: n of them, in place of `of`. */
template <class T, int W>
void launch_tiles_of(fv_stream *s, sink<T> w, const attn_params<T> &attn, const head_rows &of,
                     const fv_weights_job *jobs, int64_t n)
{
    int64_t a_fragments = jobs ? 1 : ceil_div(of.i1 - of.i0, TILE_ROWS),
            all = n * a_fragments * ceil_div(attn.a.Tk, KEYS), tiles = all / MANY_BLOCKS;
    tiles = tiles < 1 ? 1 : tiles > MAX_TILES ? MAX_TILES : tiles;
    int64_t across = ceil_div(attn.a.Tk, KEYS * tiles);
    dim3 grid((unsigned)(n * across), (unsigned)a_fragments);
    size_t bytes = (size_t)(TILE_ROWS + 2 * KEYS) * stride_of<T, W> * sizeof(T);
    launch(s, "attention_weights", weights_tile<T, W>, grid, 32 * WARPS, bytes, w, attn, of, jobs,
           (int)tiles, (int)across);
}

template <class T>
void launch_tiles(fv_stream *s, sink<T> w, const attn_params<T> &attn, const head_rows &of,
                  const fv_weights_job *jobs, int64_t n)
{
    switch (tile_width(s, &attn.a)) {
    case 32: launch_tiles_of<T, 32>(s, w, attn, of, jobs, n); break;
    case 64: launch_tiles_of<T, 64>(s, w, attn, of, jobs, n); break;
    case 128: launch_tiles_of<T, 128>(s, w, attn, of, jobs, n); break;
    case 256: launch_tiles_of<T, 256>(s, w, attn, of, jobs, n); break;
    }
}

/* The only row of a head, as in decoding: a softmax of its own.  The decode kernels sum a
 * product in several orders, and beside a large maximum each has other last bits than a tile.
 * Scores wait in w until their maximum and sum are known: each thread reads back what it wrote. */
template <class T, class W>
__device__ void weights_of_row(W w, const attn_params<T> &attn, int b, int h, int keys)
{
    head_view<T> head(attn, b, h);
    int first = head.first_key(0), end = head.end_key(0);
    const T *q = attn.q(b, h, 0);
    auto score = [&](int j) {
        const T *k = attn.k(b, attn.kv_head(h), j);
        float dot = 0;
        if (attn.vector_q && attn.vector_k) { /* the same sum, 16 bytes at a time */
            constexpr int V = 16 / sizeof(T);
#pragma unroll 8 /* loads in flight together: a step of few rows waits for their latency */
            for (int c = 0; c < attn.a.Wk; c += V) {
                float x[V], y[V];
                load(x, q, c);
                load(y, k, c);
#pragma unroll
                for (int e = 0; e < V; e++) dot = fmaf(x[e], y[e], dot);
            }
        } else {
            for (int c = 0; c < attn.a.Wk; c++) dot = fmaf(to_float(q[c]), to_float(k[c]), dot);
        }
        return j >= first && j < end ? head.score(dot, 0, j) : -INFINITY;
    };
    float top = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < keys; j += THREADS) top = fmaxf(top, w.put(j, score(j)));
    top = block_allreduce(top, [](float x, float y) { return fmaxf(x, y); });
    float base = top == -INFINITY ? 0 : top;
    for (int j = threadIdx.x; j < keys; j += THREADS) sum += exp2_fast(w.get(j, score) - base);
    sum = block_allreduce(sum, [](float x, float y) { return x + y; });
    for (int j = threadIdx.x; j < keys; j += THREADS)
        w.end(j, sum == 0 ? 0 : exp2_fast(w.get(j, score) - base) / sum);
}

/* Into a sink of any type, which may round: there scores are computed again instead. */
template <class T> struct row_sink {
    sink<T> to;
    __device__ float put(int, float x) const { return x; }
    template <class F> __device__ float get(int j, F score) const { return score(j); }
    __device__ void end(int j, float x) const { sink_put(to, j, x); }
};

struct row_floats {
    float *to;
    __device__ float put(int j, float x) const { return to[j] = x; }
    template <class F> __device__ float get(int j, F) const { return to[j]; }
    __device__ void end(int j, float x) const { to[j] = x; }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    weights_of_one_row(sink<T> w, const __grid_constant__ attn_params<T> attn, int b, int h)
{
    weights_of_row(row_sink<T>{w}, attn, b, h, (int)attn.a.Tk);
}

/* Block i has job i: who asks is read from memory, so a captured step serves whoever asks next. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    weights_of_jobs(float *out, const __grid_constant__ attn_params<T> attn,
                    const fv_weights_job *jobs)
{
    const fv_weights_job job = jobs[blockIdx.x];
    if (job.n) weights_of_row(row_floats{out + job.at}, attn, job.b, job.head, job.n);
}

template <class T>
void attention_rows(fv_stream *s, float *out, const fv_attn_args *a, const fv_weights_job *jobs,
                    int64_t n)
{
    attn_params<T> attn = make_params<T>(s, a);
    attn.a.dropout = 0;
    if (a->Tq > 1) { /* prompts */
        launch_tiles<T>(s, to<T>(fv_sink{out, FV_F32, false}), attn, {}, jobs, n);
        return;
    }
    if constexpr (kind<T>::dtype == FV_BF16)
        if (fv_cuda_defer(s, weights_rows{attn, out, jobs, n})) return;
    launch(s, "attention_rows", weights_of_jobs<T>, dim3((unsigned)n), THREADS, 0, out, attn, jobs);
}

template <class T>
void attention_weights(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                       int64_t i0, int64_t i1)
{
    attn_params<T> attn = make_params<T>(s, a);
    attn.a.dropout = 0; /* weights are those before dropout */
    if (a->Tq == 1) {
        if (i1 > i0)
            launch(s, "attention_weights", weights_of_one_row<T>, 1, THREADS, 0, to<T>(w), attn,
                   (int)b, (int)h);
        return;
    }
    if constexpr (sizeof(T) == 2)
        if (device_of(s)->hopper && attn.vector_q && attn.vector_k && a->Wk > 32 && a->Wk <= 128 &&
            i1 - i0 >= TILE_ROWS && fv_cuda_weights_hopper<T>(s, w, &attn, b, h, i0, i1))
            return;
    launch_tiles<T>(s, to<T>(w), attn, {(int)b, (int)h, (int)i0, (int)i1, (int)a->Tk, 0}, NULL, 1);
}

/* cache (B, cap, D), with positions `row` elements apart and sequences `batch`: row pos[b] + t of
 * sequence b becomes x[b, t] */
template <class T> struct to_cache {
    T *cache;
    const T *x;
    const int32_t *pos;
    int64_t T_, cap, D, row, batch;
    fault *bad;
    template <int V> __device__ void operator()(width<V>, int64_t i) const
    {
        int64_t b = i / (T_ * D), rest = i % (T_ * D), from = pos[b];
        if (from < 0 || from + T_ > cap) {
            if (!rest) report_fault(bad, b, from, cap, T_);
            return;
        }
        int64_t to = b * batch + (from + rest / D) * row + rest % D;
        *(pack<T, V> *)(cache + to) = *(const pack<T, V> *)(x + i);
    }
};

template <class T>
void cache_write(fv_stream *s, void *cache, const void *x, const int32_t *pos, int64_t B,
                 int64_t T_, int64_t cap, int64_t D, int64_t row, int64_t batch)
{
    constexpr int64_t V = 16 / sizeof(T);
    bool vectorised = D % V == 0 && row % V == 0 && batch % V == 0 && aligned(cache, x);
    each_vec<16 / sizeof(T)>(s, "cache_write", B * T_ * D, vectorised,
                             to_cache<T>{(T *)cache, (const T *)x, pos, T_, cap, D, row, batch,
                                         faults_of(s) + FAULT_CACHE});
}

} // namespace

void fv_cuda_weights_launch(fv_stream *s, const weights_rows &w)
{
    launch(s, "attention_rows", weights_of_jobs<bf16>, dim3((unsigned)w.n), THREADS, 0, w.out,
           w.attn, w.jobs);
}

template <class T> void fv_cuda_attention_rows(fv_kernels *k)
{
    k->attention_weights = attention_weights<T>;
    k->attention_rows = attention_rows<T>;
    k->cache_write = cache_write<T>;
}
FOR_ALL_DTYPES(fv_cuda_attention_rows)
