/* binary.cu - y = a op b with broadcasting, and both gradients.
 *
 * Three access patterns, fastest first: flat (no broadcasting), a strided walk in 16-byte vectors,
 * in which an operand may be constant along the last axis, and a strided walk by elements.  In the
 * backward an operand that was broadcast sums the gradients of every element that read it, one
 * thread or block per operand element: a gather, not atomics.  Long sums are cut into pieces of a
 * fixed length, so that a scalar's gradient (a gate, a spectral norm) occupies the whole GPU and
 * its bits depend on the shape alone. */
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

bool is_flat(const fv_walk *w) { return w->n == 1 && w->y[0] == 1 && w->a[0] == 1 && w->b[0] == 1; }

/* A walk by V consecutive elements of y; an operand has as many, or one for all of them. */
struct vector_walk {
    fv_walk w; /* strides in elements */
    bool a_wide, b_wide;
};

/* False: rows or strides are no multiples of V, or an operand is neither contiguous nor constant
 * along the last axis. */
bool vectorise(vector_walk *v, const fv_walk *w, int64_t by)
{
    int last = w->n - 1;
    if (last < 0 || w->y[last] != 1 || w->shape[last] % by) return false;
    if ((w->a[last] | w->b[last]) & ~(int64_t)1) return false;
    *v = {*w, w->a[last] == 1, w->b[last] == 1};
    for (int i = 0; i < last; i++)
        if (w->y[i] % by || (v->a_wide && w->a[i] % by) || (v->b_wide && w->b[i] % by))
            return false;
    v->w.shape[last] /= by;
    v->w.y[last] *= by, v->w.a[last] *= by, v->w.b[last] *= by;
    return true;
}

template <int V, class T>
__device__ inline void load_operand(float (&x)[V], const T *p, int64_t i, bool wide)
{
    if (wide) {
        load(x, p, i);
        return;
    }
    float one = to_float(p[i]);
    for (int j = 0; j < V; j++) x[j] = one;
}

/* y = a op b over V consecutive elements. */
template <int V, class T>
__device__ inline void binary_at(fv_binary_op op, T *y, const T *a, const T *b, offsets o,
                                 bool a_wide, bool b_wide)
{
    float u[V], v[V];
    load_operand(u, a, o.a, a_wide);
    load_operand(v, b, o.b, b_wide);
    for (int j = 0; j < V; j++) u[j] = value(op, u[j], v[j]);
    store(y, o.y, u);
}

template <class T>
void binary(fv_stream *s, fv_binary_op op, void *y_, const void *a_, const void *b_,
            const fv_walk *walk)
{
    constexpr int V = vec<T>;
    T *y = (T *)y_;
    const T *a = (const T *)a_, *b = (const T *)b_;
    fv_walk w = *walk;
    vector_walk v;
    if (is_flat(&w)) {
        each_vec<V>(s, "binary", w.shape[0], aligned(y, a, b), [=] __device__(auto n, int64_t i) {
            binary_at<decltype(n)::value>(op, y, a, b, {i, i, i}, true, true);
        });
    } else if (aligned(y, a, b) && vectorise(&v, &w, V)) {
        each(s, "binary", walk_len(v.w), [=] __device__(int64_t i) {
            binary_at<V>(op, y, a, b, locate(v.w, i), v.a_wide, v.b_wide);
        });
    } else {
        each(s, "binary", walk_len(w),
             [=] __device__(int64_t i) { binary_at<1>(op, y, a, b, locate(w, i), true, true); });
    }
}

/* ---- backward ---- */

/* g[i] = sum over the broadcast axes of dy * dy/d(operand): `kept` walks the operand's own axes,
 * `summed` the ones it was broadcast along. */

/* A thread or block per element of the operand: each sum has one owner and one order. */
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
        float d = to_float(dy[o.y + t.y]);
        if (op == FV_B_ADD) return d; /* a bias: nothing else is read */
        return binary_grad(op, of_a, to_float(a[o.a + t.a]), to_float(b[o.b + t.b])) * d;
    }
    /* V terms side by side in dy; summed then walks by vectors. */
    template <int V> __device__ float terms(offsets o, int64_t i) const
    {
        if constexpr (V == 1) return term(o, i);
        float d[V], sum = 0;
        load(d, dy, o.y + locate(summed, i).y);
#pragma unroll
        for (int j = 0; j < V; j++) sum += d[j];
        return sum;
    }
    __device__ void operator()(int64_t i) const
    {
        offsets o = locate(kept, i);
        float sum = 0;
        for (int64_t j = 0; j < n_summed; j++) sum += term(o, j);
        sink_put(g, of_a ? o.a : o.b, sum);
    }
};

/* Block (operand element, piece of its sum), for long sums; part (pieces,elements) NULL: one piece,
 * and the result goes to g.  piece and n_summed count vectors of V terms. */
template <int V, class T>
__global__ void one_side_block(const __grid_constant__ one_side<T> f, float *part, int64_t piece)
{
    offsets o = locate(f.kept, blockIdx.x);
    int64_t from = blockIdx.y * piece, to = min(from + piece, f.n_summed);
    float sum = 0;
#pragma unroll 4
    for (int64_t j = from + threadIdx.x; j < to; j += blockDim.x) sum += f.template terms<V>(o, j);
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x) return;
    if (part)
        part[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
    else
        sink_put(f.g, f.of_a ? o.a : o.b, sum);
}

/* The pieces of each element, in an order that depends on their number alone. */
template <class T> __global__ void add_pieces(sink<T> g, const float *part, int64_t pieces)
{
    float sum = 0;
    for (int64_t p = threadIdx.x; p < pieces; p += blockDim.x)
        sum += part[p * gridDim.x + blockIdx.x];
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x == 0) sink_put(g, blockIdx.x, sum);
}

#define LONG_SUM 256       /* terms from which a block has a sum */
#define SUM_PIECE 8192     /* terms of a piece */
#define MAX_ELEMENTS 65536 /* operand elements that get blocks */
#define MAX_PIECES 65535   /* gridDim.y limit */

/* The bias of a map: its gradient sums dy alone, whole vectors of it.  True: the walk of what is
 * summed goes by vectors now. */
template <class T> bool sum_vectors(one_side<T> *f)
{
    constexpr int V = vec<T>;
    int last = f->summed.n - 1;
    if (f->op != FV_B_ADD || last < 0 || f->summed.y[last] != 1 || f->summed.shape[last] % V)
        return false;
    for (int i = 0; i < last; i++)
        if (f->summed.y[i] % V) return false;
    for (int i = 0; i < f->kept.n; i++)
        if (f->kept.y[i] % V) return false;
    if (!aligned(f->dy)) return false;
    f->summed.shape[last] /= V;
    f->summed.y[last] = V;
    f->n_summed /= V;
    return true;
}

/* An operand's elements are contiguous, so the i-th of the kept walk is element i of g. */
template <class T> void long_sums(fv_stream *s, one_side<T> f, int64_t elements)
{
    bool wide = sum_vectors(&f);
    int64_t piece = wide ? SUM_PIECE / vec<T> : SUM_PIECE;
    if (piece * MAX_PIECES < f.n_summed) piece = ceil_div(f.n_summed, MAX_PIECES);
    int64_t pieces = ceil_div(f.n_summed, piece);
    float *part = pieces > 1 ? alloc_scratch<float>(s, pieces * elements) : NULL;
    if (pieces > 1 && !part) return;
    launch(s, "binary_bwd", wide ? one_side_block<vec<T>, T> : one_side_block<1, T>,
           dim3((unsigned)elements, (unsigned)pieces), THREADS, 0, f, part, piece);
    if (part)
        launch(s, "binary_bwd", add_pieces<T>, dim3((unsigned)elements), row_threads(pieces), 0,
               f.g, part, pieces);
}

/* The gradient of an operand that was not broadcast: no sums, V elements at a time. */
template <class T>
void unsummed_grad(fv_stream *s, fv_binary_op op, bool of_a, sink<T> g, const T *dy, const T *a,
                   const T *b, const vector_walk &v)
{
    constexpr int V = vec<T>;
    each(s, "binary_bwd", walk_len(v.w), [=] __device__(int64_t i) {
        offsets o = locate(v.w, i);
        float d[V], x[V], z[V];
        load(d, dy, o.y);
        load_operand(x, a, o.a, v.a_wide);
        load_operand(z, b, o.b, v.b_wide);
        for (int j = 0; j < V; j++) d[j] *= binary_grad(op, of_a, x[j], z[j]);
        sink_store(g, of_a ? o.a : o.b, d);
    });
}

#define MANY_ROWS 64 /* from here on sums are taken in pieces */

template <class T>
void operand_grad(fv_stream *s, fv_binary_op op, bool of_a, fv_sink g, const T *dy, const T *a,
                  const T *b, const fv_walk *w)
{
    if (!g.data) return;
    sink<T> to_g = to<T>(g);
    if (is_flat(w)) {
        bool wide = aligned(g.data, dy, a, b);
        each_vec<vec<T>>(s, "binary_bwd", w->shape[0], wide, [=] __device__(auto n, int64_t i) {
            constexpr int V = decltype(n)::value;
            float d[V], u[V], v[V];
            load(d, dy, i);
            load(u, a, i);
            load(v, b, i);
            for (int j = 0; j < V; j++) d[j] *= binary_grad(op, of_a, u[j], v[j]);
            sink_store(to_g, i, d);
        });
        return;
    }
    const int64_t *by = of_a ? w->a : w->b;
    /* y = a + b, b broadcast along the first of two axes (a bias): column sums of dy, vectorised */
    if (op == FV_B_ADD && w->n == 2 && !by[0] && by[1] == 1 && w->y[1] == 1) {
        int64_t rows = w->shape[0], step = w->y[0];
        if (rows >= MANY_ROWS && step == w->shape[1]) { /* such as positions: too few threads */
            s->dev->k[kind<T>::dtype]->colsum(s, g, dy, rows, step);
            return;
        }
        bool wide = step % vec<T> == 0 && aligned(g.data, dy);
        each_vec<vec<T>>(s, "binary_bwd", w->shape[1], wide, [=] __device__(auto n, int64_t i) {
            constexpr int V = decltype(n)::value;
            float sum[V] = {}, v[V];
#pragma unroll 4
            for (int64_t k = 0; k < rows; k++) {
                load(v, dy, k * step + i);
                for (int j = 0; j < V; j++) sum[j] += v[j];
            }
            sink_store(to_g, i, sum);
        });
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
    vector_walk v;
    if (!f.summed.n && aligned(g.data, dy, a, b) && vectorise(&v, w, vec<T>))
        unsummed_grad(s, op, of_a, to_g, dy, a, b, v);
    else if (f.n_summed >= LONG_SUM && kept <= MAX_ELEMENTS)
        long_sums(s, f, kept);
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
