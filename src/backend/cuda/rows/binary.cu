/* binary.cu - y = a op b with broadcasting, and both gradients.
 *
 * Three access patterns, fastest first: flat (no broadcasting), a strided walk in 16-byte vectors,
 * a strided walk by elements.  In the backward an operand that was broadcast sums the gradients of
 * every element that read it, one thread or block per operand element: a gather, not atomics. */
#include "backend/cuda/device/cuda.h"

namespace
{

__device__ inline float value(fv_binary_op op, float a, float b)
{
    switch (op) {
    case FV_B_ADD: return a + b;
    case FV_B_SUB: return a - b;
    case FV_B_MUL: return a * b;
    case FV_B_DIV: return a / b;
    case FV_B_MAX: return a > b || a != a ? a : b;
    default: return 0;
    }
}

/* dy/da, or dy/db if !of_a; at a tie of max half each */
__device__ inline float binary_grad(fv_binary_op op, bool of_a, float a, float b)
{
    switch (op) {
    case FV_B_ADD: return 1;
    case FV_B_SUB: return of_a ? 1 : -1;
    case FV_B_MUL: return of_a ? b : a;
    case FV_B_DIV: return of_a ? 1 / b : -a / (b * b);
    case FV_B_MAX: return a == b ? 0.5f : (a > b) == of_a ? 1 : 0;
    default: return 0;
    }
}

/* ---- forward ---- */

template <class T> struct flat {
    static constexpr int wide = 16 / sizeof(T);
    fv_binary_op op;
    T *y;
    const T *a, *b;
    template <int V> __device__ void at(int64_t i) const
    {
        float u[V], v[V];
        load(u, a, i);
        load(v, b, i);
        for (int j = 0; j < V; j++) u[j] = value(op, u[j], v[j]);
        store(y, i, u);
    }
};

template <class T> struct walked {
    fv_binary_op op;
    T *y;
    const T *a, *b;
    fv_walk w;
    template <int V> __device__ void at(int64_t i) const
    {
        offsets o = locate(w, i);
        y[o.y] = from_float<T>(value(op, to_float(a[o.a]), to_float(b[o.b])));
    }
};

/* As walked, with a walk in units of 16-byte vectors. */
template <class T> struct walked_packs {
    static constexpr int packed = 16 / sizeof(T);
    fv_binary_op op;
    T *y;
    const T *a, *b;
    fv_walk w;
    template <int> __device__ void at(int64_t i) const
    {
        offsets o = locate(w, i);
        float u[packed], v[packed];
        load(u, a, o.a * packed);
        load(v, b, o.b * packed);
        for (int j = 0; j < packed; j++) u[j] = value(op, u[j], v[j]);
        store(y, o.y * packed, u);
    }
};

bool is_flat(const fv_walk *w) { return w->n == 1 && w->y[0] == 1 && w->a[0] == 1 && w->b[0] == 1; }

template <class T>
void binary(fv_stream *s, fv_binary_op op, void *y, const void *a, const void *b, const fv_walk *w)
{
    fv_walk packs = *w;
    if (is_flat(w))
        each(s, "binary", w->shape[0], aligned(y, a, b),
             flat<T>{op, (T *)y, (const T *)a, (const T *)b});
    else if (aligned(y, a, b) && walk_vectorise(&packs, walked_packs<T>::packed, true))
        each(s, "binary", walk_len(packs),
             walked_packs<T>{op, (T *)y, (const T *)a, (const T *)b, packs});
    else
        each(s, "binary", walk_len(*w), walked<T>{op, (T *)y, (const T *)a, (const T *)b, *w});
}

/* ---- backward ---- */

/* g[i] = sum over the broadcast axes of dy * dy/d(operand): `kept` walks the operand's own axes,
 * `summed` the ones it was broadcast along. */

template <class T> struct one_side {
    fv_binary_op op;
    bool of_a;
    sink<T> g;
    const T *dy, *a, *b;
    fv_walk kept, summed;
    int64_t n_summed;

    __device__ float term(offsets o, int64_t i) const
    {
        offsets t = locate(summed, i);
        return binary_grad(op, of_a, to_float(a[o.a + t.a]), to_float(b[o.b + t.b])) *
               to_float(dy[o.y + t.y]);
    }
    template <int V> __device__ void at(int64_t i) const
    {
        offsets o = locate(kept, i);
        float sum = 0;
        for (int64_t j = 0; j < n_summed; j++) sum += term(o, j);
        sink_put(g, of_a ? o.a : o.b, sum);
    }
};

/* One block per operand element, for long sums of few elements. */
template <class T> __global__ void one_side_block(one_side<T> f)
{
    offsets o = locate(f.kept, blockIdx.x);
    float sum = 0;
    for (int64_t j = threadIdx.x; j < f.n_summed; j += blockDim.x) sum += f.term(o, j);
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x == 0) sink_put(f.g, f.of_a ? o.a : o.b, sum);
}

/* y = a + b, b broadcast along the first of two axes (a bias): column sums of dy, vectorised. */
template <class T> struct over_first {
    static constexpr int wide = 16 / sizeof(T);
    sink<T> g;
    const T *dy;
    int64_t n, step;
    template <int V> __device__ void at(int64_t i) const
    {
        float sum[V] = {}, v[V];
#pragma unroll 4
        for (int64_t k = 0; k < n; k++) {
            load(v, dy, k * step + i);
            for (int j = 0; j < V; j++) sum[j] += v[j];
        }
        sink_store(g, i, sum);
    }
};

template <class T> struct flat_bwd {
    static constexpr int wide = 16 / sizeof(T);
    fv_binary_op op;
    bool of_a;
    sink<T> g;
    const T *dy, *a, *b;
    template <int V> __device__ void at(int64_t i) const
    {
        float d[V], u[V], v[V];
        load(d, dy, i);
        load(u, a, i);
        load(v, b, i);
        for (int j = 0; j < V; j++) d[j] *= binary_grad(op, of_a, u[j], v[j]);
        sink_store(g, i, d);
    }
};

template <class T>
void operand_grad(fv_stream *s, fv_binary_op op, bool of_a, fv_sink g, const T *dy, const T *a,
                  const T *b, const fv_walk *w)
{
    if (!g.data) return;
    if (is_flat(w)) {
        each(s, "binary_bwd", w->shape[0], aligned(g.data, dy, a, b),
             flat_bwd<T>{op, of_a, to<T>(g), dy, a, b});
        return;
    }
    const int64_t *by = of_a ? w->a : w->b;
    if (op == FV_B_ADD && w->n == 2 && !by[0] && by[1] == 1 && w->y[1] == 1) {
        bool wide = w->y[0] % over_first<T>::wide == 0 && aligned(g.data, dy);
        each(s, "binary_bwd", w->shape[1], wide, over_first<T>{to<T>(g), dy, w->shape[0], w->y[0]});
        return;
    }
    one_side<T> f{op, of_a, to<T>(g), dy, a, b, {}, {}, 1};
    for (int i = 0; i < w->n; i++) {
        fv_walk *half = (of_a ? w->a[i] : w->b[i]) ? &f.kept : &f.summed;
        int n = half->n++;
        half->shape[n] = w->shape[i];
        half->y[n] = w->y[i];
        half->a[n] = w->a[i];
        half->b[n] = w->b[i];
    }
    f.n_summed = walk_len(f.summed);
    int64_t kept = walk_len(f.kept);
    if (f.n_summed >= 256 && kept <= 65536)
        launch(s, "binary_bwd", one_side_block<T>, dim3((unsigned)kept), THREADS, 0, f);
    else
        each(s, "binary_bwd", kept, f);
}

template <class T>
void binary_bwd(fv_stream *s, fv_binary_op op, fv_sink da, fv_sink db, const void *dy,
                const void *a, const void *b, const fv_walk *w)
{
    operand_grad(s, op, true, da, (const T *)dy, (const T *)a, (const T *)b, w);
    operand_grad(s, op, false, db, (const T *)dy, (const T *)a, (const T *)b, w);
}
} // namespace

template <class T> void fv_cuda_binary(fv_kernels *k)
{
    k->binary = binary<T>;
    k->binary_bwd = binary_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_binary)
