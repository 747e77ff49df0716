/* reduce.cu - reductions along one axis (sum, mean), cumulative sums, masked fill; and the
 * activation gradient with its column sums.
 *
 * Short sums belong to a thread each: a block a sum kept a GPU busy with launching blocks, for 200
 * ms of every update of a SAGAN, whose discriminator halves maps by means of two.  Long sums take
 * two steps: pieces of a fixed length, then the pieces in order.  The GPU is busy even with a
 * single sum, and the order of addition depends on the shape alone. */
#include "index.h"
#include "scalar.h"

namespace
{

#define ROW_PIECE 16384  /* elements per piece along a contiguous axis */
#define COLUMN_PIECE 128 /* and along a strided one */
#define SHORT_SUM 32     /* terms up to which a thread has a whole sum */
#define COLUMNS 32
#define LANES 8          /* threads that share the sum of a column */
#define MAX_BLOCKS 65535 /* gridDim.y and .z limit */

/* ---- sums of x (outer,n,inner) -> y (outer,inner), times scale ---- */

/* inner = 1; block (piece, outer). */
template <class E, class T, int V>
__global__ void row_sums(sink<T> y, float *part, const E *x, int64_t n, float scale)
{
    int64_t from = (int64_t)blockIdx.x * ROW_PIECE,
            to = from + ROW_PIECE < n ? from + ROW_PIECE : n, row = blockIdx.y;
    float sum = 0;
    for (int64_t i = from + threadIdx.x * V; i < to; i += blockDim.x * V) {
        float v[V];
        load(v, x, row * n + i);
        for (int j = 0; j < V; j++) sum += v[j];
    }
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x) return;
    if (part)
        part[row * gridDim.x + blockIdx.x] = sum;
    else
        sink_put(y, row, sum * scale);
}

/* Adds the LANES partial sums of each column; the result is valid in lane 0, if `wanted`. */
template <int V>
__device__ inline void add_lanes(float (&sum)[V], int lane, int column, bool wanted)
{
    __shared__ float lanes[LANES][COLUMNS * V];
    for (int j = 0; j < V; j++) lanes[lane][column + j] = sum[j];
    __syncthreads();
    if (lane || !wanted) return;
    for (int i = 1; i < LANES; i++)
        for (int j = 0; j < V; j++) sum[j] += lanes[i][column + j];
}

/* Block (columns, piece, outer): a thread sums V columns of every LANES-th row of the piece. */
template <class E, class T, int V>
__global__ void column_sums(sink<T> y, float *part, const E *x, int64_t n, int64_t inner,
                            int64_t piece, float scale)
{
    int column = threadIdx.x % COLUMNS * V, lane = threadIdx.x / COLUMNS;
    int64_t c = (int64_t)blockIdx.x * COLUMNS * V + column, from = blockIdx.y * piece,
            to = from + piece < n ? from + piece : n;
    float sum[V] = {}, v[V];
    if (c < inner)
#pragma unroll 4
        for (int64_t i = from + lane; i < to; i += LANES) {
            load(v, x, (blockIdx.z * n + i) * inner + c);
            for (int j = 0; j < V; j++) sum[j] += v[j];
        }
    add_lanes(sum, lane, column, c < inner);
    if (lane || c >= inner) return;
    for (int j = 0; j < V; j++) {
        if (part)
            part[((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * inner + c + j] = sum[j];
        else
            sink_put(y, blockIdx.z * inner + c + j, sum[j] * scale);
    }
}

/* Launches column_sums; part NULL: one piece, the result goes to y. */
template <class E, class T>
void columns(fv_stream *s, sink<T> y, float *part, const E *x, int64_t outer, int64_t n,
             int64_t inner, int64_t piece, float scale)
{
    unsigned pieces = (unsigned)ceil_div(n > 0 ? n : 1, piece);
    with_width<E>(inner % vec<E> == 0 && aligned(x), [&](auto w) {
        constexpr int V = decltype(w)::value;
        dim3 grid((unsigned)ceil_div(inner, COLUMNS * V), pieces, (unsigned)outer);
        launch(s, "sum", column_sums<E, T, V>, grid, COLUMNS * LANES, 0, y, part, x, n, inner,
               piece, scale);
    });
}

/* One thread per sum, in order. */
template <class E, class T>
void short_sums(fv_stream *s, sink<T> y, const E *x, int64_t outer, int64_t n, int64_t inner,
                float scale)
{
    each_index(s, "sum", outer * inner, [=] __device__(auto i) {
        typedef decltype(i) I;
        const E *at = x + (inner == 1 ? i * n : i / (I)inner * n * inner + i % (I)inner);
        float sum = 0;
        for (int64_t k = 0; k < n; k++) sum += to_float(at[k * inner]);
        sink_put(y, i, sum * scale);
    });
}

/* Both stages of a sum of x (outer,n,inner) over n.  Scratch holds the pieces; grids are cut at
 * MAX_BLOCKS. */
template <class E, class T>
void sums_of_pieces(fv_stream *s, sink<T> y, const E *x, int64_t outer, int64_t n, int64_t inner,
                    float scale)
{
    int64_t piece = inner == 1 ? ROW_PIECE : COLUMN_PIECE;
    if (n <= SHORT_SUM) {
        short_sums<E, T>(s, y, x, outer, n, inner, scale);
        return;
    }
    if (inner > 1 && piece * MAX_BLOCKS < n) piece = ceil_div(n, MAX_BLOCKS);
    int64_t pieces = ceil_div(n > 0 ? n : 1, piece);
    float *part = NULL;
    if (pieces > 1 && !(part = alloc_scratch<float>(s, outer * pieces * inner))) return;
    for (int64_t o = 0; o < outer; o += MAX_BLOCKS) {
        unsigned some = (unsigned)(outer - o < MAX_BLOCKS ? outer - o : MAX_BLOCKS);
        const E *from = x + o * n * inner;
        sink<T> at = y;
        at.p = (char *)y.p + o * inner * (int64_t)(y.wide ? 4 : sizeof(T));
        float *p = part ? part + o * pieces * inner : NULL; /* (outer,pieces,inner) */
        if (inner == 1)
            with_width<E>(n % vec<E> == 0 && aligned(x), [&](auto w) {
                constexpr int V = decltype(w)::value;
                launch(s, "sum", row_sums<E, T, V>, dim3((unsigned)pieces, some),
                       row_threads(n / V), 0, at, p, from, n, scale);
            });
        else
            columns<E, T>(s, at, p, from, some, n, inner, piece, scale);
        if (p) columns<float, T>(s, at, NULL, p, some, pieces, inner, pieces, scale);
    }
}

template <class T> void colsum(fv_stream *s, fv_sink y, const void *x, int64_t rows, int64_t cols)
{
    if (y.data) sums_of_pieces<T, T>(s, to<T>(y), (const T *)x, 1, rows, cols, 1);
}

} // namespace

void fv_cuda_sum_pieces(fv_stream *s, fv_sink y, const float *part, int64_t pieces, int64_t cols)
{
    columns<float, float>(s, to<float>(y), NULL, part, 1, pieces, cols, pieces, 1);
}

/* rows/topk.cu */
template <class T>
void fv_cuda_argmax(fv_stream *s, T *y, int32_t *arg, const T *x, int64_t outer, int64_t n,
                    int64_t inner);

namespace
{

/* ---- the gradient of y = act(p): dp = act'(p) dy, and its column sums (the gradient of the bias
 * in p) in the same pass; block (columns, piece) ---- */

template <class T, int V, fv_unary_op OP>
__global__ void dact_and_sums(T *dp, float *part, const T *dy, const T *p, int64_t rows,
                              int64_t cols, fv_unary_op op)
{
    int column = threadIdx.x % COLUMNS * V, lane = threadIdx.x / COLUMNS;
    int64_t c = (int64_t)blockIdx.x * COLUMNS * V + column,
            from = (int64_t)blockIdx.y * COLUMN_PIECE;
    int64_t to = from + COLUMN_PIECE < rows ? from + COLUMN_PIECE : rows;
    float sum[V] = {}, d[V], v[V];
    if (c < cols)
#pragma unroll 4
        for (int64_t i = from + lane; i < to; i += LANES) {
            load(d, dy, i * cols + c);
            load(v, p, i * cols + c);
            for (int j = 0; j < V; j++) {
                if (OP == FV_U_GELU_TANH && sizeof(T) == 2)
                    d[j] *= gelu_tanh_grad_approx(v[j]);
                else if (OP == FV_U_GELU && sizeof(T) == 2)
                    d[j] *= gelu_grad_approx(v[j]);
                else
                    d[j] *= unary_grad(OP == FV_U_COUNT ? op : OP, v[j], v[j], 0, 0);
                sum[j] += d[j];
            }
            store(dp, i * cols + c, d);
        }
    add_lanes(sum, lane, column, c < cols);
    if (lane || c >= cols) return;
    store(part, blockIdx.y * cols + c, sum);
}

/* Vectorised shapes in one pass; others as unary_bwd and colsum. */
template <class T>
void unary_bwd_sums(fv_stream *s, fv_unary_op op, void *dp, fv_sink sums, const void *dy,
                    const void *p, int64_t rows, int64_t cols)
{
    constexpr int V = 16 / sizeof(T);
    int64_t pieces = ceil_div(rows, COLUMN_PIECE);
    if (cols % V || !aligned(dp, dy, p) || pieces > MAX_BLOCKS) {
        s->dev->k[kind<T>::dtype]->unary_bwd(s, op, fv_sink{dp, kind<T>::dtype, false}, dy, p, p,
                                             rows * cols, 0, 0);
        colsum<T>(s, sums, dp, rows, cols);
        return;
    }
    float *part = alloc_scratch<float>(s, pieces * cols);
    if (!part) return;
    dim3 grid((unsigned)ceil_div(cols, COLUMNS * V), (unsigned)pieces);
    auto kernel = op == FV_U_GELU_TANH ? dact_and_sums<T, V, FV_U_GELU_TANH>
                  : op == FV_U_GELU    ? dact_and_sums<T, V, FV_U_GELU>
                  : op == FV_U_RELU    ? dact_and_sums<T, V, FV_U_RELU>
                                       : dact_and_sums<T, V, FV_U_COUNT>;
    launch(s, "unary_bwd", kernel, grid, COLUMNS * LANES, 0, (T *)dp, part, (const T *)dy,
           (const T *)p, rows, cols, op);
    columns<float, T>(s, to<T>(sums), NULL, part, 1, pieces, cols, pieces, 1);
}

/* ---- sum, mean, max ---- */

template <class T>
void reduce(fv_stream *s, fv_reduce_op op, void *y, int32_t *arg, const void *x, int64_t outer,
            int64_t n, int64_t inner)
{
    if (op == FV_R_MAX)
        fv_cuda_argmax<T>(s, (T *)y, arg, (const T *)x, outer, n, inner);
    else
        sums_of_pieces<T, T>(s, to<T>((T *)y), (const T *)x, outer, n, inner,
                             op == FV_R_MEAN ? 1.0f / (float)n : 1.0f);
}

/* sum: dx = dy;  mean: dx = dy / n;  max: dx = dy at arg, else 0 */
template <class T>
void reduce_bwd(fv_stream *s, fv_reduce_op op, fv_sink dx, const void *dy, const int32_t *arg,
                int64_t outer, int64_t n, int64_t inner)
{
    sink<T> to_dx = to<T>(dx);
    if (!dx.data) return;
    each_index(s, "reduce_bwd", outer * n * inner, [=] __device__(auto e) {
        typedef decltype(e) I;
        I q = e / (I)inner, i = q % (I)n;
        int64_t o = q / (I)n * inner + e % (I)inner;
        float g = to_float(((const T *)dy)[o]);
        if (op == FV_R_MEAN) g /= (float)n;
        if (op == FV_R_MAX && arg[o] != i) g = 0;
        sink_put(to_dx, e, g);
    });
}

/* ---- cumulative sums: one thread per line ---- */

template <class T>
void cumsum(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n, int64_t inner,
            bool reverse)
{
    sink<T> to_y = to<T>(y);
    if (!y.data) return;
    each(s, "cumsum", outer * inner, [=] __device__(int64_t e) {
        float t = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t p = (e / inner * n + (reverse ? n - 1 - i : i)) * inner + e % inner;
            t += to_float(((const T *)x)[p]);
            sink_put(to_y, p, t);
        }
    });
}

/* y[w.y] (+)= mask[w.b] ? x[w.a] : value */
template <class T>
void masked_fill(fv_stream *s, fv_sink y, const void *x, const uint8_t *mask, float value,
                 const fv_walk *walk)
{
    sink<T> to_y = to<T>(y);
    fv_walk w = *walk;
    if (!y.data) return;
    each(s, "masked_fill", walk_len(w), [=] __device__(int64_t i) {
        offsets o = locate(w, i);
        sink_put(to_y, o.y, mask[o.b] ? to_float(((const T *)x)[o.a]) : value);
    });
}
} // namespace

template <class T> void fv_cuda_reduce(fv_kernels *k)
{
    k->colsum = colsum<T>;
    k->unary_bwd_sums = unary_bwd_sums<T>;
    k->reduce = reduce<T>;
    k->reduce_bwd = reduce_bwd<T>;
    k->cumsum = cumsum<T>;
    k->masked_fill = masked_fill<T>;
}
FOR_ALL_DTYPES(fv_cuda_reduce)
