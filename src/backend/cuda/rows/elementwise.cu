/* elementwise.cu - unary functions y = f(x), their gradients dx = f'(x) dy, and dropout. */
#include "backend/cuda/device/cuda.h"
#include "scalar.h"

namespace
{

template <class T> struct apply {
    static constexpr int wide = 16 / sizeof(T);
    fv_unary_op op;
    T *y;
    const T *x;
    float p0, p1;
    template <int V> __device__ void at(int64_t i) const
    {
        float v[V];
        load(v, x, i);
        for (int j = 0; j < V; j++) v[j] = unary_value(op, v[j], p0, p1);
        store(y, i, v);
    }
};

template <class T> struct apply_bwd {
    static constexpr int wide = 16 / sizeof(T);
    fv_unary_op op;
    sink<T> dx;
    const T *dy, *x, *y;
    float p0, p1;
    template <int V> __device__ void at(int64_t i) const
    {
        /* each derivative is a function of x or of y, never of both: read one of them */
        float d[V], v[V];
        load(d, dy, i);
        load(v, grad_uses_y(op) ? y : x, i);
        for (int j = 0; j < V; j++) d[j] *= unary_grad(op, v[j], v[j], p0, p1);
        sink_store(dx, i, d);
    }
};

template <class T>
void unary(fv_stream *s, fv_unary_op op, void *y, const void *x, int64_t n, float p0, float p1)
{
    each(s, "unary", n, aligned(x, y), apply<T>{op, (T *)y, (const T *)x, p0, p1});
}

template <class T>
void unary_bwd(fv_stream *s, fv_unary_op op, fv_sink dx, const void *dy, const void *x,
               const void *y, int64_t n, float p0, float p1)
{
    if (!dx.data) return;
    apply_bwd<T> f{op, to<T>(dx), (const T *)dy, (const T *)x, (const T *)y, p0, p1};
    each(s, "unary_bwd", n, aligned(dx.data, dy, x, y), f);
}

/* y = x / (1 - p) where element i is kept, else 0.  Kept: Philox word i % 4 of counter i / 4 (of
 * this op's seed, site and step) is at least the threshold; the backward recomputes the mask. */
template <class T> struct drop {
    static constexpr int wide = 4;
    sink<T> y;
    const T *x;
    fv_rng rng;
    uint32_t from;
    float scale;
    template <int V> __device__ void at(int64_t i) const
    {
        float v[V];
        uint32_t word[4];
        load(v, x, i);
        philox(word, rng.seed, rng.site, *rng.step, (uint64_t)i / 4);
        for (int j = 0; j < V; j++) v[j] = word[(i + j) % 4] >= from ? v[j] * scale : 0.0f;
        sink_store(y, i, v);
    }
};

template <class T>
void dropout(fv_stream *s, fv_sink y, const void *x, int64_t n, float p, fv_rng rng)
{
    if (!y.data) return;
    each(s, "dropout", n, aligned(y.data, x),
         drop<T>{to<T>(y), (const T *)x, rng, fv_drop_threshold(p), 1 / (1 - p)});
}
} // namespace

template <class T> void fv_cuda_elementwise(fv_kernels *k)
{
    k->unary = unary<T>;
    k->unary_bwd = unary_bwd<T>;
    k->dropout = dropout<T>;
}
FOR_ALL_DTYPES(fv_cuda_elementwise)
