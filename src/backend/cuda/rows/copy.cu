/* copy.cu - strided copies, transposition, fills, dtype conversion and lists of copies. */
#include "backend/cuda/device/cuda.h"

namespace
{

/* The walk by `by` elements of the last axis, its strides still in elements; false: that axis is
 * not contiguous in both, or no multiple. */
bool in_runs(fv_walk *w, const fv_walk *from, int64_t by)
{
    int last = from->n - 1;
    if (last < 0 || from->y[last] != 1 || from->a[last] != 1 || from->shape[last] % by)
        return false;
    *w = *from;
    w->shape[last] /= by;
    w->y[last] = w->a[last] = by;
    return true;
}

bool whole_vectors(const int64_t *stride, int n, int64_t by)
{
    for (int i = 0; i < n; i++)
        if (stride[i] % by) return false;
    return true;
}

/* y (+)= x, both in 16-byte vectors; y perhaps f32. */
template <class T> bool copy_vectors(fv_stream *s, sink<T> y, const T *x, const fv_walk *walk)
{
    constexpr int V = vec<T>;
    fv_walk w;
    if (!aligned(y.p, x) || !in_runs(&w, walk, V) || !whole_vectors(w.a, w.n, V) ||
        !whole_vectors(w.y, w.n, V))
        return false;
    each(s, "copy", walk_len(w), [=] __device__(int64_t i) {
        offsets o = locate(w, i);
        float v[V];
        load(v, x, o.a);
        sink_store(y, o.y, v);
    });
    return true;
}

/* Rows that begin anywhere (a relative shift, and its gradient): a warp has a run of N times its
 * width, so that accesses stay contiguous and an index is taken apart once for N elements. */
template <int N, class T> bool copy_runs(fv_stream *s, sink<T> y, const T *x, const fv_walk *walk)
{
    fv_walk w;
    if (!in_runs(&w, walk, 32 * N)) return false;
    each(s, "copy", walk_len(w) * 32, [=] __device__(int64_t i) {
        offsets o = locate(w, i / 32);
        int64_t lane = i % 32;
        float v[N];
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = to_float(x[o.a + lane + 32 * j]);
#pragma unroll
        for (int j = 0; j < N; j++) sink_put(y, o.y + lane + 32 * j, v[j]);
    });
    return true;
}

/* ---- transposition ---- */

enum { TILE = 64, PER_THREAD = TILE * TILE / THREADS }; /* a tile's side; its elements per thread */

/* Matrices (rows,cols) that become (cols,rows): x has cols side by side, y has rows.  `rest` walks
 * from matrix to matrix. */
struct transposition {
    int64_t rows, cols, x_row, y_col; /* x_row, y_col: from a row of x to the next, and so on */
    int64_t tiles_down, tiles_across;
    fv_walk rest;
};

/* False: one axis is contiguous in both or none in one, or matrices are too thin for tiles. */
bool as_transposition(transposition *t, const fv_walk *w)
{
    int of_x = -1, of_y = -1;
    for (int i = 0; i < w->n; i++) {
        if (w->a[i] == 1 && w->shape[i] > 1) of_x = i;
        if (w->y[i] == 1 && w->shape[i] > 1) of_y = i;
    }
    if (of_x < 0 || of_y < 0 || of_x == of_y) return false;
    *t = {};
    t->rows = w->shape[of_y], t->x_row = w->a[of_y];
    t->cols = w->shape[of_x], t->y_col = w->y[of_x];
    if (t->rows < TILE / 4 || t->cols < TILE / 4) return false;
    t->tiles_down = ceil_div(t->rows, TILE), t->tiles_across = ceil_div(t->cols, TILE);
    for (int i = 0; i < w->n; i++) {
        if (i == of_x || i == of_y) continue;
        int n = t->rest.n++;
        t->rest.shape[n] = w->shape[i], t->rest.a[n] = w->a[i], t->rest.y[n] = w->y[i];
    }
    return walk_len(t->rest) * t->tiles_down * t->tiles_across <= 0x7fffffff; /* gridDim.x */
}

/* A block has a tile, by way of shared memory: reads and writes are both contiguous.  Its rows are
 * an odd number of 4-byte words apart, so that a column meets every bank once. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    transpose_tiles(sink<T> y, const T *x, const __grid_constant__ transposition t)
{
    __shared__ T tile[TILE][TILE + 4 / sizeof(T)];
    unsigned across = (unsigned)t.tiles_across, down = (unsigned)t.tiles_down,
             matrix = blockIdx.x / across / down;
    offsets o = locate(t.rest, matrix);
    int64_t row = (int64_t)(blockIdx.x / across % down) * TILE,
            col = (int64_t)(blockIdx.x % across) * TILE;
    int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int r = first + i * (THREADS / TILE);
        if (row + r < t.rows && col + lane < t.cols)
            tile[r][lane] = x[o.a + (row + r) * t.x_row + col + lane];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int c = first + i * (THREADS / TILE);
        if (row + lane < t.rows && col + c < t.cols)
            sink_put(y, o.y + (col + c) * t.y_col + row + lane, to_float(tile[lane][c]));
    }
}

template <class T> bool transpose(fv_stream *s, sink<T> y, const T *x, const fv_walk *walk)
{
    transposition t;
    if (!as_transposition(&t, walk)) return false;
    int64_t blocks = walk_len(t.rest) * t.tiles_down * t.tiles_across;
    launch(s, "transpose", transpose_tiles<T>, dim3((unsigned)blocks), THREADS, 0, y, x, t);
    return true;
}

/* y[w.y] (+)= x[w.a]: in 16-byte vectors where the last axis of both is contiguous, by tiles where
 * different ones are, else element by element. */
template <class T> void copy(fv_stream *s, fv_sink y, const void *x, const fv_walk *walk)
{
    fv_walk w = *walk;
    if (!y.data) return;
    if (!y.add && y.dtype == kind<T>::dtype && aligned(y.data, x) &&
        walk_vectorise(&w, vec<T>, false)) { /* w is in 16-byte vectors now */
        each(s, "copy", walk_len(w), [=] __device__(int64_t i) {
            offsets o = locate(w, i);
            ((uint4 *)y.data)[o.y] = ((const uint4 *)x)[o.a];
        });
        return;
    }
    sink<T> to_y = to<T>(y);
    const T *from = (const T *)x;
    if (copy_vectors(s, to_y, from, walk) || copy_runs<8>(s, to_y, from, walk) ||
        copy_runs<2>(s, to_y, from, walk) || transpose(s, to_y, from, walk))
        return;
    w = *walk;
    each(s, "copy", walk_len(w), [=] __device__(int64_t i) {
        offsets o = locate(w, i);
        sink_put(to_y, o.y, to_float(((const T *)x)[o.a]));
    });
}

/* ---- fill ---- */

template <class T> void fill(fv_stream *s, void *y, float value, int64_t n)
{
    each_vec<vec<T>>(s, "fill", n, aligned(y), [=] __device__(auto w, int64_t i) {
        float v[decltype(w)::value];
        for (float &e : v) e = value;
        store((T *)y, i, v);
    });
}

/* ---- conversion ---- */

template <class E> __device__ inline E narrow(double v) { return from_float<E>((float)v); }
template <> __device__ inline double narrow<double>(double v) { return v; }
__device__ inline double widen(double v) { return v; }
template <class E> __device__ inline double widen(E v) { return (double)to_float(v); }

template <class E, class T> __device__ inline E cast_add(T x, E y, bool add)
{
    if constexpr (sizeof(E) == 8 || sizeof(T) == 8)
        return narrow<E>(widen(x) + (add ? widen(y) : 0.0));
    else
        return from_float<E>(add ? to_float(x) + to_float(y) : to_float(x));
}

/* y (+)= x.  Via f64 only where a side is f64; every other pair converts through f32 exactly. */
template <class E, class T> void convert(fv_stream *s, fv_sink to, const void *from, int64_t n)
{
    E *y = (E *)to.data;
    const T *x = (const T *)from;
    bool add = to.add;
    each_vec<4>(s, "cast", n, aligned(y, x), [=] __device__(auto w, int64_t i) {
        constexpr int V = decltype(w)::value;
        pack<T, V> in = *(const pack<T, V> *)(x + i);
        pack<E, V> out;
        if (add) out = *(const pack<E, V> *)(y + i);
        for (int j = 0; j < V; j++) out.v[j] = cast_add<E>(in.v[j], add ? out.v[j] : E(), add);
        *(pack<E, V> *)(y + i) = out;
    });
}

template <class T> void cast(fv_stream *s, fv_sink y, const void *x, int64_t n)
{
    if (!y.data) return;
    switch (y.dtype) {
    case FV_F64: convert<double, T>(s, y, x, n); break;
    case FV_BF16: convert<bf16, T>(s, y, x, n); break;
    case FV_F16: convert<f16, T>(s, y, x, n); break;
    default: convert<float, T>(s, y, x, n); break;
    }
}

/* ---- many copies in one launch: blocks of PIECE bytes of the longest each ---- */

#define PIECE 16384
#define MAX_PIECES 256

__global__ void __launch_bounds__(THREADS) copy_ranges(const fv_copy *list)
{
    const fv_copy c = list[blockIdx.x];
    uint4 *to = (uint4 *)c.to;
    const uint4 *from = (const uint4 *)c.from;
    for (size_t i = blockIdx.y * THREADS + threadIdx.x; i < c.bytes / 16; i += gridDim.y * THREADS)
        to[i] = from[i];
}

void copy_many(fv_stream *s, const fv_copy *list, int64_t n)
{
    fv_copy *there = n > 0 ? alloc_scratch<fv_copy>(s, n) : NULL;
    if (!there) return;
    s->dev->backend->upload(s, there, list, (size_t)n * sizeof *list);
    size_t longest = 1;
    for (int64_t i = 0; i < n; i++) longest = list[i].bytes > longest ? list[i].bytes : longest;
    unsigned pieces = (unsigned)(longest < PIECE * MAX_PIECES ? (longest + PIECE - 1) / PIECE
                                                              : MAX_PIECES);
    launch(s, "copy_many", copy_ranges, dim3((unsigned)n, pieces), THREADS, 0, there);
}
} // namespace

template <class T> void fv_cuda_copy(fv_kernels *k)
{
    k->copy = copy<T>;
    k->fill = fill<T>;
    k->cast = cast<T>;
    k->copy_many = copy_many;
}
FOR_ALL_DTYPES(fv_cuda_copy)

void fv_cuda_double(fv_kernels *k) { k->cast = cast<double>; }
