/* attention_rows.cu - exact weights of some rows of a head, computed again from the log-sum-exp; and the key/value cache. */
#include "attention.h"

/* A warp for each pair: its threads share the dot product. */
template <class T> __global__ void weights_of_rows(float *w, job<T> o, int64_t b, int64_t h, int64_t i0, int64_t pairs)
{
    int64_t e = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (e >= pairs) return;
    int64_t i = i0 + e / o.a.Tk, j = e % o.a.Tk;
    head<T> at(o, (int)b, (int)h);
    const T *q = o.q(b, h, i), *k = o.k(b, o.kv_head(at.h), j);
    float dot = 0;
    for (int64_t c = threadIdx.x % 32; c < o.a.Wk; c += 32) dot += up(q[c]) * up(k[c]);
    dot = warp_all(dot, add_up());
    float x = j >= at.first((int)i) && j < at.end((int)i) ? at.score(dot, (int)i, (int)j) : -INFINITY;
    if (threadIdx.x % 32 == 0) w[e] = x == -INFINITY ? 0 : exp2f(x - LOG2E * ((const float *)o.a.lse)[o.at_lse(b, h, i)]);
}

template <class T>
static void attention_weights(fv_stream *s, fv_stat *w, const fv_attn_args *a, int64_t b, int64_t h, int64_t i0, int64_t i1)
{
    int64_t pairs = (i1 - i0) * a->Tk;
    job<T> o = prepare<T>(s, a);
    launch(s, "attention_weights", weights_of_rows<T>, dim3((unsigned)ceil_div(pairs, WARPS)), 32 * WARPS, 0, (float *)w, o, b, h,
           i0, pairs);
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
            if (!rest) report(bad, b, from, cap, T_);
            return;
        }
        *(pack<T, V> *)(cache + (b * cap + from) * D + rest) = *(const pack<T, V> *)(x + i);
    }
};

template <class T>
static void cache_write(fv_stream *s, void *cache, const void *x, const int32_t *pos, int64_t B, int64_t T_, int64_t cap,
                        int64_t D)
{
    bool wide = D % (16 / (int64_t)sizeof(T)) == 0 && aligned(cache, x);
    each(s, "cache_write", B * T_ * D, wide, to_cache<T>{(T *)cache, (const T *)x, pos, T_, cap, D, faults_of(s) + FAULT_CACHE});
}

template <class T> void fv_cuda_attention_rows(fv_kernels *k)
{
    k->attention_weights = attention_weights<T>;
    k->cache_write = cache_write<T>;
}
FOR_ALL_DTYPES(fv_cuda_attention_rows)
