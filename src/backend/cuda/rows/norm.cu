/* norm.cu - LayerNorm and RMSNorm over the last axis, with the residual sum in the same pass.
 *
 * RMSNorm is LayerNorm with the mean left at 0, so one set of kernels serves both.  Rows of common
 * widths are held in a warp's registers (norm_warp.h), others as f32 in a block's shared memory;
 * either way global memory is read once.  dgain and dbias are column sums over all rows: each block
 * sums a fixed piece of rows, then the pieces are added in order. */
#include "norm_warp.h"

namespace
{

#define ROWS 32          /* per piece */
#define MAX_PIECES 65535 /* gridDim.y limit */
#define LANES 32

/* x, or x + a rounded to T as it is stored, into shared memory. */
template <class T, int V> __device__ void fetch_row(float *row, const norm_args<T> &n, int64_t from)
{
    for (int64_t i = threadIdx.x * V; i < n.cols; i += blockDim.x * V) {
        float v[V], r[V];
        load(v, n.x, from + i);
        if (n.a) {
            load(r, n.a, from + i);
            for (int j = 0; j < V; j++) v[j] = to_float(from_float<T>(v[j] + r[j]));
            if (n.sum != n.y) store(n.sum, from + i, v);
        }
        for (int j = 0; j < V; j++) row[i + j] = v[j];
    }
}

/* y = gain * (x - mean) * rstd + bias,  rstd = 1 / sqrt(var + eps)
 * One block per row.  The mean first, then the variance about it, both from shared memory:
 * E[x^2] - m^2 would cancel for rows far from 0. */
template <class T, int V> __global__ void norm_row(norm_args<T> n)
{
    extern __shared__ float row[];
    int64_t from = blockIdx.x * n.cols;
    float m = 0, var = 0, v[V], g[V], b[V];
    fetch_row<T, V>(row, n, from);
    if (n.mean) {
        for (int64_t i = threadIdx.x * V; i < n.cols; i += blockDim.x * V)
            for (int j = 0; j < V; j++) m += row[i + j];
        m = block_allreduce(m, sum_op()) / (float)n.cols;
    }
    for (int64_t i = threadIdx.x * V; i < n.cols; i += blockDim.x * V)
        for (int j = 0; j < V; j++) var += (row[i + j] - m) * (row[i + j] - m);
    float scale = 1 / sqrtf(block_allreduce(var, sum_op()) / (float)n.cols + n.eps);
    if (threadIdx.x == 0) {
        if (n.mean) n.mean[blockIdx.x] = m;
        n.rstd[blockIdx.x] = scale;
    }
    for (int64_t i = threadIdx.x * V; i < n.cols; i += blockDim.x * V) {
        if (n.gain) load(g, n.gain, i);
        if (n.bias) load(b, n.bias, i);
        for (int j = 0; j < V; j++)
            v[j] = (row[i + j] - m) * scale * (n.gain ? g[j] : 1) + (n.bias ? b[j] : 0);
        store(n.y, from + i, v);
    }
}

/* Gradient of y = gain * n + bias, n = (x - mean) * rstd, with g = dy * gain:
 * dx = rstd * (g - mean(g) - n * mean(g * n)); mean(g) drops out for RMSNorm.
 * Reads dy and x once where a row has at most one vector a thread, else twice, the second time
 * from L2. */
template <class T, int V> __global__ void norm_dx_row(back_args<T> a)
{
    int64_t from = blockIdx.x * a.cols;
    float m = a.mean ? a.mean[blockIdx.x] : 0, scale = a.rstd[blockIdx.x], gs = 0, gns = 0, d[V],
          x[V], g[V];
    for (int64_t i = threadIdx.x * V; i < a.cols; i += blockDim.x * V) {
        load(d, a.dy, from + i);
        load(x, a.x, from + i);
        if (a.gain) load(g, a.gain, i);
        for (int j = 0; j < V; j++) {
            float t = d[j] * (a.gain ? g[j] : 1);
            gs += t;
            gns += t * (x[j] - m) * scale;
        }
    }
    gs = a.mean ? block_allreduce(gs, sum_op()) / (float)a.cols : 0;
    gns = block_allreduce(gns, sum_op()) / (float)a.cols;
    bool once = a.cols <= (int64_t)blockDim.x * V; /* the thread still holds d, x and g */
    for (int64_t i = threadIdx.x * V; i < a.cols; i += blockDim.x * V) {
        if (!once) {
            load(d, a.dy, from + i);
            load(x, a.x, from + i);
            if (a.gain) load(g, a.gain, i);
        }
        for (int j = 0; j < V; j++)
            d[j] = scale * (d[j] * (a.gain ? g[j] : 1) - gs - (x[j] - m) * scale * gns);
        sink_store(a.dx, from + i, d);
    }
}

/* dgain = sum over rows of dy * n, dbias = sum of dy.  Block (columns, piece of rows): writes
 * part[0][piece] and part[1][piece].
 * A thread owns V columns: loads of a warp are contiguous, and no reduction across threads is
 * needed. */
template <class T, int V> __global__ void norm_columns(float *part, back_args<T> a, int64_t piece)
{
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, from = blockIdx.y * piece;
    int64_t to = from + piece < a.rows ? from + piece : a.rows;
    float dg[V] = {}, db[V] = {}, d[V], x[V];
    if (c >= a.cols) return;
#pragma unroll 4
    for (int64_t r = from; r < to; r++) {
        float m = a.mean ? a.mean[r] : 0, scale = a.rstd[r];
        load(d, a.dy, r * a.cols + c);
        load(x, a.x, r * a.cols + c);
        for (int j = 0; j < V; j++) {
            dg[j] += d[j] * (x[j] - m) * scale;
            db[j] += d[j];
        }
    }
    store(part, blockIdx.y * a.cols + c, dg);
    store(part, (gridDim.y + blockIdx.y) * a.cols + c, db);
}

/* Destinations of the column sums of dy * n, dy and dx. */
template <class T> struct column_sinks {
    sink<T> to[3];
};

/* Adds the pieces in order: LANES threads per column; block (columns, which sum). */
template <class T>
__global__ void sum_pieces(column_sinks<T> all, const float *part, int64_t pieces, int64_t cols)
{
    __shared__ float lanes[LANES][33];
    int column = threadIdx.x % 32, lane = threadIdx.x / 32;
    int64_t c = (int64_t)blockIdx.x * 32 + column;
    sink<T> to = all.to[blockIdx.y];
    const float *from = part + blockIdx.y * pieces * cols + c;
    float sum = 0;
    if (!to.p) return;
    for (int64_t p = lane; p < pieces && c < cols; p += LANES) sum += from[p * cols];
    lanes[lane][column] = sum;
    __syncthreads();
    if (lane || c >= cols) return;
    for (int i = 1; i < LANES; i++) sum += lanes[i][column];
    sink_put(to, c, sum);
}

template <class T>
void add_pieces(fv_stream *s, const char *name, const column_sinks<T> &all, int sums,
                const float *part, int64_t pieces, int64_t cols)
{
    launch(s, name, sum_pieces<T>, dim3((unsigned)ceil_div(cols, 32), (unsigned)sums), 32 * LANES,
           0, all, part, pieces, cols);
}

/* Dispatch of the forward: registers, else shared memory; a row that fits neither is refused.
 *    columns that fill 32 lanes with whole vectors (shape_of), aligned       a warp per row
 *    other widths up to the shared memory of a block (H100: 58 K columns)    a block per row */
template <class T> void norm(fv_stream *s, const char *name, norm_args<T> n, int64_t rows)
{
    size_t shared = (size_t)n.cols * sizeof(float);
    norm_shape shape = shape_of<T>(n.cols);
    bool wide = aligned(n.y, n.sum, n.x, n.a, n.gain, n.bias);
    if (shape.packs && wide) {
        norm_in_registers(s, name, n, rows, shape);
        return;
    }
    if (shared > device_of(s)->max_smem) {
        device_of(s)->host.fail(s, FV_EMISSING, "%s: rows of %lld numbers, cuda takes up to %lld",
                                name, (long long)n.cols,
                                (long long)(device_of(s)->max_smem / sizeof(float)));
        return;
    }
    with_width<T>(wide && n.cols % vec<T> == 0, [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, name, norm_row<T, V>, dim3((unsigned)rows), row_threads(n.cols / V), shared, n);
    });
}

/* of_dx: column sums of the final dx (the bias gradient of the linear layer in front), or none. */
template <class T>
void norm_bwd(fv_stream *s, const char *name, back_args<T> a, fv_sink dgain, fv_sink dbias,
              fv_sink of_dx)
{
    column_sinks<T> all = {{to<T>(dgain), to<T>(dbias), to<T>(of_dx)}};
    bool wide = a.cols % vec<T> == 0 && aligned(a.dx.p, a.dy, a.x, a.gain);
    norm_shape shape = shape_of<T>(a.cols);
    int sums = dgain.data || dbias.data ? 2 : 0;
    if (of_dx.data) sums = 3;
    if (wide && a.rows && shape.packs && back_bytes<T>(shape) <= device_of(s)->max_smem) {
        int64_t pieces = ceil_div(a.rows, rows_of_block(a.rows, shape.packs));
        float *part = sums ? alloc_scratch<float>(s, sums * pieces * a.cols) : NULL;
        if (sums && !part) return;
        norm_back_in_tiles(s, name, a, part, sums, shape);
        if (sums) add_pieces(s, name, all, sums, part, pieces, a.cols);
        return;
    }
    with_width<T>(wide, [&](auto w) {
        constexpr int V = decltype(w)::value;
        if (a.dx.p)
            launch(s, name, norm_dx_row<T, V>, dim3((unsigned)a.rows), row_threads(a.cols / V), 0,
                   a);
    });
    if (of_dx.data) s->dev->k[kind<T>::dtype]->colsum(s, of_dx, a.dx.p, a.rows, a.cols);
    if (!dgain.data && !dbias.data) return;
    int64_t piece = a.rows > ROWS * MAX_PIECES ? ceil_div(a.rows, MAX_PIECES) : ROWS;
    int64_t pieces = ceil_div(a.rows > 0 ? a.rows : 1, piece);
    float *part = alloc_scratch<float>(s, 2 * pieces * a.cols);
    if (!part) return;
    with_width<T>(wide, [&](auto w) {
        constexpr int V = decltype(w)::value;
        dim3 grid((unsigned)ceil_div(a.cols / V, 32), (unsigned)pieces);
        launch(s, name, norm_columns<T, V>, grid, 32, 0, part, a, piece);
    });
    add_pieces(s, name, all, 2, part, pieces, a.cols);
}

template <class T>
void layernorm(fv_stream *s, void *y, fv_stat *mean, fv_stat *rstd, void *sum, const void *x,
               const void *a, const void *gain, const void *bias, int64_t rows, int64_t cols,
               float eps)
{
    norm_args<T> n = {(T *)y,       (T *)sum,        (float *)mean,   (float *)rstd, (const T *)x,
                      (const T *)a, (const T *)gain, (const T *)bias, cols,          eps};
    norm(s, "layernorm", n, rows);
}

template <class T>
void layernorm_bwd_sums(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, fv_sink of_dx,
                        const void *dy, const void *x, const void *gain, const fv_stat *mean,
                        const fv_stat *rstd, int64_t rows, int64_t cols)
{
    back_args<T> a = {to<T>(dx),           (const T *)dy,       (const T *)x, (const T *)gain,
                      (const float *)mean, (const float *)rstd, rows,         cols};
    norm_bwd(s, "layernorm_bwd", a, dgain, dbias, of_dx);
}

template <class T>
void layernorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                   const void *x, const void *gain, const fv_stat *mean, const fv_stat *rstd,
                   int64_t rows, int64_t cols)
{
    layernorm_bwd_sums<T>(s, dx, dgain, dbias, fv_sink{}, dy, x, gain, mean, rstd, rows, cols);
}

template <class T>
void rmsnorm(fv_stream *s, void *y, fv_stat *rstd, void *sum, const void *x, const void *a,
             const void *gain, int64_t rows, int64_t cols, float eps)
{
    norm_args<T> n = {(T *)y,       (T *)sum,        NULL, (float *)rstd, (const T *)x,
                      (const T *)a, (const T *)gain, NULL, cols,          eps};
    norm(s, "rmsnorm", n, rows);
}

template <class T>
void rmsnorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, const void *dy, const void *x,
                 const void *gain, const fv_stat *rstd, int64_t rows, int64_t cols)
{
    back_args<T> a = {to<T>(dx), (const T *)dy,       (const T *)x, (const T *)gain,
                      NULL,      (const float *)rstd, rows,         cols};
    norm_bwd(s, "rmsnorm_bwd", a, dgain, fv_sink{}, fv_sink{});
}
} // namespace

template <class T> void fv_cuda_norm(fv_kernels *k)
{
    k->layernorm = layernorm<T>;
    k->layernorm_bwd = layernorm_bwd<T>;
    k->layernorm_bwd_sums = layernorm_bwd_sums<T>;
    k->rmsnorm = rmsnorm<T>;
    k->rmsnorm_bwd = rmsnorm_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_norm)
