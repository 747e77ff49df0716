/* elementwise.cu - unary functions y = f(x), their gradients dx = f'(x) dy, and dropout. */
#include "backend/cuda/device/cuda.h"
#include "scalar.h"

namespace
{

template <class T>
void unary(fv_stream *s, fv_unary_op op, void *y, const void *x, int64_t n, float p0, float p1)
{
    each_vec<vec<T>>(s, "unary", n, aligned(x, y), [=] __device__(auto w, int64_t i) {
        float v[decltype(w)::value];
        load(v, (const T *)x, i);
        for (float &e : v) e = unary_value(op, e, p0, p1);
        store((T *)y, i, v);
    });
}

template <class T>
void unary_bwd(fv_stream *s, fv_unary_op op, fv_sink dx, const void *dy, const void *x,
               const void *y, int64_t n, float p0, float p1)
{
    sink<T> g = to<T>(dx);
    if (!dx.data) return;
    bool wide = aligned(dx.data, dy, x, y);
    each_vec<vec<T>>(s, "unary_bwd", n, wide, [=] __device__(auto w, int64_t i) {
        /* each derivative is a function of x or of y, never of both: read one of them */
        constexpr int V = decltype(w)::value;
        float d[V], v[V];
        load(d, (const T *)dy, i);
        load(v, (const T *)(grad_uses_y(op) ? y : x), i);
        for (int j = 0; j < V; j++) d[j] *= unary_grad(op, v[j], v[j], p0, p1);
        sink_store(g, i, d);
    });
}

/* y = x / (1 - p) where element i is kept, else 0.  Kept: Philox word i % 4 of counter i / 4 (of
 * this op's seed, site and step) is at least the threshold; the backward recomputes the mask. */
template <class T>
void dropout(fv_stream *s, fv_sink y, const void *x, int64_t n, float p, fv_rng rng)
{
    sink<T> to_y = to<T>(y);
    uint32_t from = fv_drop_threshold(p);
    float scale = 1 / (1 - p);
    if (!y.data) return;
    each_vec<4>(s, "dropout", n, aligned(y.data, x), [=] __device__(auto w, int64_t i) {
        constexpr int V = decltype(w)::value;
        float v[V];
        uint32_t word[4];
        load(v, (const T *)x, i);
        philox(word, rng.seed, rng.site, *rng.step, (uint64_t)i / 4);
        for (int j = 0; j < V; j++) v[j] = word[(i + j) % 4] >= from ? v[j] * scale : 0.0f;
        sink_store(to_y, i, v);
    });
}
} // namespace

template <class T> void fv_cuda_elementwise(fv_kernels *k)
{
    k->unary = unary<T>;
    k->unary_bwd = unary_bwd<T>;
    k->dropout = dropout<T>;
}
FOR_ALL_DTYPES(fv_cuda_elementwise)
