/* binary.cu - y = a op b with broadcasting, and both gradients. */
#include "backend/cuda/device/cuda.h"

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

/* dy / da, or with of_a false dy / db */
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
#pragma unroll
        for (int j = 0; j < V; j++) u[j] = value(op, u[j], v[j]);
        store(y, i, u);
    }
};

template <class T> struct walked {
    static constexpr int wide = 1;
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

/* As walked, V neighbours at a time; strides are in packs of V. */
template <class T> struct walked_packs {
    static constexpr int wide = 1, packed = 16 / sizeof(T);
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
#pragma unroll
        for (int j = 0; j < packed; j++) u[j] = value(op, u[j], v[j]);
        store(y, o.y * packed, u);
    }
};

/* The walk in packs of `by` elements; false if one would be torn. */
static bool in_packs(fv_walk *w, int64_t by)
{
    int last = w->n - 1;
    if (last < 0 || w->y[last] != 1 || w->a[last] != 1 || w->b[last] != 1 || w->shape[last] % by)
        return false;
    for (int i = 0; i < last; i++) {
        if (w->y[i] % by || w->a[i] % by || w->b[i] % by) return false;
        w->y[i] /= by, w->a[i] /= by, w->b[i] /= by;
    }
    w->shape[last] /= by;
    return true;
}

static bool is_flat(const fv_walk *w)
{
    return w->n == 1 && w->y[0] == 1 && w->a[0] == 1 && w->b[0] == 1;
}

template <class T>
static void binary(fv_stream *s, fv_binary_op op, void *y, const void *a, const void *b,
                   const fv_walk *w)
{
    fv_walk packs = *w;
    if (is_flat(w))
        each(s, "binary", w->shape[0], aligned(y, a, b),
             flat<T>{op, (T *)y, (const T *)a, (const T *)b});
    else if (aligned(y, a, b) && in_packs(&packs, walked_packs<T>::packed))
        each(s, "binary", walk_len(packs), false,
             walked_packs<T>{op, (T *)y, (const T *)a, (const T *)b, packs});
    else
        each(s, "binary", walk_len(*w), false,
             walked<T>{op, (T *)y, (const T *)a, (const T *)b, *w});
}

/* ---- backward: an operand's element collects from every place that read it ---- */

template <class T> struct one_side {
    static constexpr int wide = 1;
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

/* A block for each element, where few elements collect much. */
template <class T> __global__ void one_side_block(one_side<T> f)
{
    offsets o = locate(f.kept, blockIdx.x);
    float sum = 0;
    for (int64_t j = threadIdx.x; j < f.n_summed; j += blockDim.x) sum += f.term(o, j);
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x == 0) sink_put(f.g, f.of_a ? o.a : o.b, sum);
}

/* A sum whose operand is repeated along the first axis: what every place of it reads is dense. */
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
#pragma unroll
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
#pragma unroll
        for (int j = 0; j < V; j++) d[j] *= binary_grad(op, of_a, u[j], v[j]);
        sink_store(g, i, d);
    }
};

template <class T>
static void side(fv_stream *s, fv_binary_op op, bool of_a, fv_sink g, const T *dy, const T *a,
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
        each(s, "binary_bwd", kept, false, f);
}

template <class T>
static void binary_bwd(fv_stream *s, fv_binary_op op, fv_sink da, fv_sink db, const void *dy,
                       const void *a, const void *b, const fv_walk *w)
{
    side(s, op, true, da, (const T *)dy, (const T *)a, (const T *)b, w);
    side(s, op, false, db, (const T *)dy, (const T *)a, (const T *)b, w);
}

template <class T> void fv_cuda_binary(fv_kernels *k)
{
    k->binary = binary<T>;
    k->binary_bwd = binary_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_binary)
