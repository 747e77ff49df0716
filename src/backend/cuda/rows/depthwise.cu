/* depthwise.cu - depthwise convolutions of stride 1: every channel has a kernel of its own.
 *
 *     y[b,c,p,q] = sum of w[c,i,j] x[b,c,p - ph + i dh, q - pw + j dw]
 *
 * As matrix products they would be one for each channel, a row times nine columns: all launches and
 * no arithmetic.  The gradient of x is the same sum over dy with w read backwards.  The gradient of
 * w is summed in pieces of a fixed number of images, then piece after piece, so its bits depend on
 * the shape alone.
 *
 * Kernels that are three wide with a padding of one (SegFormer's) have V neighbours to a thread:
 * one 16-byte load and two single ones serve all of their taps in a row. */
#include "index.h"

namespace
{

#define PIECE_POSITIONS 16384 /* of y that a block sums for the gradient of w */
#define TAPS 9                /* of a 3 x 3 kernel */

/* Elements at-1 .. at+V of a row of w, zeros outside; `at` is a multiple of V. */
template <int V, class T>
__device__ inline void window(float (&x)[V + 2], const T *row, int at, int w)
{
    float mid[V];
    load(mid, row, at);
#pragma unroll
    for (int j = 0; j < V; j++) x[j + 1] = mid[j];
    x[0] = at > 0 ? to_float(row[at - 1]) : 0;
    x[V + 1] = at + V < w ? to_float(row[at + V]) : 0;
}

/* Three taps wide, padded by one: rows are as long as they were. */
bool three_wide(const fv_conv_geom *g) { return g->kw == 3 && g->dw == 1 && g->pw == 1; }

template <class T, int V>
void three(fv_stream *s, sink<T> y, const T *x, const T *w, const fv_conv_geom &g, bool flip)
{
    each_index(s, "depthwise", g.batch * g.channels * g.oh * g.ow / V, [=] __device__(auto e) {
        typedef decltype(e) I;
        const I ow = (I)(g.ow / V), oh = (I)g.oh;
        I q = e % ow * V, p = e / ow % oh, plane = e / ow / oh;
        const T *taps = w + plane % (I)g.channels * (I)g.kh * 3;
        float sum[V] = {}, neighbours[V + 2];
        for (I i = 0; i < (I)g.kh; i++) {
            I r = p - (I)g.ph + i * (I)g.dh;
            if (r < 0 || r >= (I)g.h) continue;
            window<V>(neighbours, x + ((int64_t)plane * g.h + r) * g.w, (int)q, (int)g.w);
            const T *row = taps + (flip ? (I)g.kh - 1 - i : i) * 3;
            float left = to_float(row[flip ? 2 : 0]), mid = to_float(row[1]),
                  right = to_float(row[flip ? 0 : 2]);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += left * neighbours[j] + mid * neighbours[j + 1] +
                          right * neighbours[j + 2];
        }
        sink_store(y, (int64_t)e * V, sum);
    });
}

/* y as above; flip: the taps are read backwards. */
template <class T>
void depthwise(fv_stream *s, fv_sink y, const void *x_, const void *w_, const fv_conv_geom *geom,
               bool flip)
{
    constexpr int V = vec<T>;
    const T *x = (const T *)x_, *w = (const T *)w_;
    fv_conv_geom g = *geom;
    sink<T> to_y = to<T>(y);
    if (!y.data) return;
    if (three_wide(geom) && g.w % V == 0 && aligned(x, y.data)) {
        three<T, V>(s, to_y, x, w, g, flip);
        return;
    }
    each_index(s, "depthwise", g.batch * g.channels * g.oh * g.ow, [=] __device__(auto e) {
        typedef decltype(e) I;
        I q = e % (I)g.ow, p = e / (I)g.ow % (I)g.oh, plane = e / (I)g.ow / (I)g.oh,
          count = (I)(g.kh * g.kw);
        const T *taps = w + plane % (I)g.channels * count;
        float sum = 0;
        for (I t = 0; t < count; t++) {
            I r = p - (I)g.ph + t / (I)g.kw * (I)g.dh, c = q - (I)g.pw + t % (I)g.kw * (I)g.dw;
            if (r < 0 || r >= (I)g.h || c < 0 || c >= (I)g.w) continue;
            sum += to_float(taps[flip ? count - 1 - t : t]) *
                   to_float(x[((int64_t)plane * g.h + r) * g.w + c]);
        }
        sink_put(to_y, e, sum);
    });
}

/* ---- the gradient of w ---- */

/* Images [from, to) of a block's piece. */
struct images {
    int64_t from, to;
    __device__ images(int64_t piece, int64_t per, int64_t batch)
        : from(piece * per), to(from + per < batch ? from + per : batch)
    {
    }
};

/* part[piece,c,t] = sum over the piece of dy x under tap t.  Block (c, piece): 9 taps at once. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    three_by_three_dw(float *part, const T *dy, const T *x, fv_conv_geom g, int64_t per)
{
    images in(blockIdx.y, per, g.batch);
    const int across = (int)(g.w / V), size = (int)g.h * across;
    float sum[TAPS] = {}, d[V], neighbours[V + 2];
    for (int64_t i = threadIdx.x; i < (in.to - in.from) * size; i += blockDim.x) {
        int at = (int)(i % size), p = at / across, q = at % across * V;
        int64_t plane = (in.from + i / size) * g.channels + blockIdx.x;
        load(d, dy, (plane * g.h + p) * g.w + q);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            int r = p + k - 1;
            if (r < 0 || r >= (int)g.h) continue;
            window<V>(neighbours, x + (plane * g.h + r) * g.w, q, (int)g.w);
#pragma unroll
            for (int t = 0; t < 3; t++)
#pragma unroll
                for (int j = 0; j < V; j++) sum[k * 3 + t] += d[j] * neighbours[j + t];
        }
    }
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        float all = block_allreduce(sum[t], sum_op());
        if (threadIdx.x == 0) part[((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * TAPS + t] = all;
    }
}

/* The same for any kernel, a block (c, piece, tap). */
template <class T>
__global__ void __launch_bounds__(THREADS)
    any_dw(float *part, const T *dy, const T *x, fv_conv_geom g, int64_t per)
{
    images in(blockIdx.y, per, g.batch);
    int64_t size = g.oh * g.ow, down = blockIdx.z / g.kw * g.dh - g.ph,
            right = blockIdx.z % g.kw * g.dw - g.pw;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < (in.to - in.from) * size; i += blockDim.x) {
        int64_t plane = (in.from + i / size) * g.channels + blockIdx.x, at = i % size,
                r = at / g.ow + down, c = at % g.ow + right;
        if (r >= 0 && r < g.h && c >= 0 && c < g.w)
            sum += to_float(dy[plane * size + at]) * to_float(x[(plane * g.h + r) * g.w + c]);
    }
    sum = block_allreduce(sum, sum_op());
    if (threadIdx.x == 0)
        part[((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * gridDim.z + blockIdx.z] = sum;
}

/* dw[c,i,j] = sum over b,p,q of dy[b,c,p,q] x[b,c,p - ph + i dh, q - pw + j dw] */
template <class T>
void depthwise_dw(fv_stream *s, fv_sink dw, const void *dy_, const void *x_,
                  const fv_conv_geom *geom)
{
    constexpr int V = vec<T>;
    const T *dy = (const T *)dy_, *x = (const T *)x_;
    fv_conv_geom g = *geom;
    if (!dw.data) return;
    int64_t taps = g.kh * g.kw, n = g.channels * taps, per = PIECE_POSITIONS / (g.oh * g.ow);
    if (per < 1) per = 1;
    if (per < ceil_div(g.batch, 65535)) per = ceil_div(g.batch, 65535); /* gridDim.y */
    int64_t pieces = ceil_div(g.batch, per);
    float *part = alloc_scratch<float>(s, pieces * n);
    if (!part) return;
    dim3 grid((unsigned)g.channels, (unsigned)pieces);
    bool square = three_wide(geom) && g.kh == 3 && g.dh == 1 && g.ph == 1;
    if (square && g.w % V == 0 && aligned(x, dy)) {
        launch(s, "depthwise_dw", three_by_three_dw<T, V>, grid, THREADS, 0, part, dy, x, g, per);
    } else {
        grid.z = (unsigned)taps;
        launch(s, "depthwise_dw", any_dw<T>, grid, THREADS, 0, part, dy, x, g, per);
    }
    sink<T> to_dw = to<T>(dw);
    each_index(s, "depthwise_dw", n, [=] __device__(auto i) {
        float sum = 0;
        for (int64_t k = 0; k < pieces; k++) sum += part[k * n + i];
        sink_put(to_dw, i, sum);
    });
}
} // namespace

template <class T> void fv_cuda_depthwise(fv_kernels *k)
{
    k->depthwise = depthwise<T>;
    k->depthwise_dw = depthwise_dw<T>;
}
FOR_ALL_DTYPES(fv_cuda_depthwise)
