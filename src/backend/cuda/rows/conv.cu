/* conv.cu - im2col, col2im and bilinear resizing.
 *
 * Backward passes gather: one thread per input pixel sums, in a fixed order, every output that read
 * it.  A scatter would need atomics and lose determinism. */
#include "index.h"

namespace
{

/* col (batch,channels,kh,kw,oh,ow), the layout a matrix product with the weights reads.
 * A thread has V elements of col along ow, all of one row of x: their index is taken apart once,
 * and they are written together.  It is bound by instructions otherwise: col has nine numbers for
 * every one of x. */
template <class T, int V> void unfold(fv_stream *s, T *col, const T *x, const fv_conv_geom &g)
{
    int64_t n = g.batch * g.channels * g.kh * g.kw * g.oh * g.ow / V;
    each_index(s, "im2col", n, [=] __device__(auto e) {
        typedef decltype(e) I;
        const I ow = (I)(g.ow / V), oh = (I)g.oh, kw = (I)g.kw, kh = (I)g.kh;
        I q = e % ow * V, p = e / ow % oh, k = e / ow / oh, kc = k % kw, kr = k / kw % kh,
          plane = k / kw / kh;
        I r = p * (I)g.sh - (I)g.ph + kr * (I)g.dh, c = q * (I)g.sw - (I)g.pw + kc * (I)g.dw;
        bool inside = r >= 0 && r < g.h;
        const T *row = x + (plane * g.h + r) * g.w;
        pack<T, V> out;
#pragma unroll
        for (int j = 0; j < V; j++, c += (I)g.sw)
            out.v[j] = inside && c >= 0 && c < g.w ? row[c] : from_float<T>(0);
        *(pack<T, V> *)(col + (int64_t)e * V) = out;
    });
}

template <class T> void im2col(fv_stream *s, void *col, const void *x, const fv_conv_geom *g)
{
    constexpr int V = 16 / sizeof(T);
    if (g->ow % V == 0 && aligned(col))
        unfold<T, V>(s, (T *)col, (const T *)x, *g);
    else
        unfold<T, 1>(s, (T *)col, (const T *)x, *g);
}

/* The same for strides of 1, V neighbours of x at a time: what they read of col are neighbours,
 * too. */
template <class T, int V> void fold(fv_stream *s, sink<T> x, const T *col, const fv_conv_geom &g)
{
    each_index(s, "col2im", g.batch * g.channels * g.h * g.w / V, [=] __device__(auto e) {
        typedef decltype(e) I;
        const I w = (I)(g.w / V), h = (I)g.h, kw = (I)g.kw, kh = (I)g.kh, ow = (I)g.ow;
        I c = e % w * V, r = e / w % h, plane = e / w / h;
        float sum[V] = {};
        for (I kr = 0; kr < kh; kr++) {
            I p = r + (I)(g.ph - kr * g.dh);
            if (p < 0 || p >= g.oh) continue;
            for (I kc = 0; kc < kw; kc++) {
                I q = c + (I)(g.pw - kc * g.dw);
                const T *row = col + (((int64_t)(plane * kh + kr) * kw + kc) * g.oh + p) * g.ow;
#pragma unroll
                for (int j = 0; j < V; j++)
                    if (q + j >= 0 && q + j < ow) sum[j] += to_float(row[q + j]);
            }
        }
        sink_store(x, (int64_t)e * V, sum);
    });
}

/* x[r,c] = the sum of every column element that im2col takes from it, in the order of the taps */
template <class T> void col2im(fv_stream *s, fv_sink x, const void *col_, const fv_conv_geom *geom)
{
    constexpr int V = 16 / sizeof(T);
    fv_conv_geom g = *geom;
    sink<T> to_x = to<T>(x);
    const T *col = (const T *)col_;
    if (!x.data) return;
    if (g.sh == 1 && g.sw == 1 && g.w % V == 0 && aligned(x.data)) {
        fold<T, V>(s, to_x, col, g);
        return;
    }
    each_index(s, "col2im", g.batch * g.channels * g.h * g.w, [=] __device__(auto e) {
        typedef decltype(e) I;
        I c = e % (I)g.w, r = e / (I)g.w % (I)g.h, plane = e / (I)g.w / (I)g.h;
        float sum = 0;
        for (I kr = 0; kr < g.kh; kr++)
            for (I kc = 0; kc < g.kw; kc++) {
                I p = r + (I)(g.ph - kr * g.dh), q = c + (I)(g.pw - kc * g.dw);
                if (p < 0 || q < 0 || p % (I)g.sh || q % (I)g.sw) continue;
                p /= (I)g.sh, q /= (I)g.sw;
                if (p >= g.oh || q >= g.ow) continue;
                sum += to_float(col[(((plane * g.kh + kr) * g.kw + kc) * g.oh + p) * g.ow + q]);
            }
        sink_put(to_x, e, sum);
    });
}

/* ---- bilinear ---- */

/* Output pixel o lies between input pixels low and high, at fraction `part` (half-pixel centres,
 * clamped at the border; PyTorch's align_corners = false). */
struct between {
    int64_t low, high;
    float part;
};

/* Where output pixel o samples an axis of `in` pixels resized to `out`. */
__device__ inline between find(int64_t o, int64_t in, int64_t out)
{
    float at = ((float)o + 0.5f) * (float)in / (float)out - 0.5f;
    if (at < 0) at = 0;
    int64_t low = (int64_t)at;
    if (low > in - 1) low = in - 1;
    return {low, low + 1 < in ? low + 1 : low, at - (float)low};
}

/* The weight of input pixel i in output pixel o. */
__device__ inline float share(int64_t i, int64_t o, int64_t in, int64_t out)
{
    between b = find(o, in, out);
    return (b.low == i ? 1 - b.part : 0) + (b.high == i ? b.part : 0);
}

/* Range of output pixels that may read input pixel i: centres less than one pixel away, plus one on
 * either side for rounding. */
__device__ inline int64_t first_output(int64_t i, int64_t in, int64_t out)
{
    int64_t o = (int64_t)floorf(((float)i - 0.5f) * (float)out / (float)in - 0.5f) - 1;
    return i == 0 || o < 0 ? 0 : o;
}
__device__ inline int64_t last_output(int64_t i, int64_t in, int64_t out)
{
    int64_t o = (int64_t)ceilf(((float)i + 1.5f) * (float)out / (float)in - 0.5f) + 1;
    return i == in - 1 || o > out - 1 ? out - 1 : o;
}

template <class T>
void bilinear(fv_stream *s, void *y, const void *x, int64_t planes, int64_t h, int64_t w,
              int64_t oh, int64_t ow)
{
    each_index(s, "bilinear", planes * oh * ow, [=] __device__(auto e) {
        typedef decltype(e) I;
        int64_t q = e % (I)ow, p = e / (I)ow % (I)oh, plane = e / (I)ow / (I)oh;
        between r = find(p, h, oh), c = find(q, w, ow);
        const T *upper = (const T *)x + (plane * h + r.low) * w,
                *lower = (const T *)x + (plane * h + r.high) * w;
        float a = to_float(upper[c.low]) * (1 - c.part) + to_float(upper[c.high]) * c.part;
        float b = to_float(lower[c.low]) * (1 - c.part) + to_float(lower[c.high]) * c.part;
        ((T *)y)[e] = from_float<T>(a * (1 - r.part) + b * r.part);
    });
}

template <class T>
void bilinear_bwd(fv_stream *s, fv_sink dx, const void *dy, int64_t planes, int64_t h, int64_t w,
                  int64_t oh, int64_t ow)
{
    sink<T> to_dx = to<T>(dx);
    if (!dx.data) return;
    each_index(s, "bilinear_bwd", planes * h * w, [=] __device__(auto e) {
        typedef decltype(e) I;
        int64_t c = e % (I)w, r = e / (I)w % (I)h, plane = e / (I)w / (I)h;
        float sum = 0;
        for (int64_t p = first_output(r, h, oh); p <= last_output(r, h, oh); p++) {
            const T *row = (const T *)dy + (plane * oh + p) * ow;
            float by_row = share(r, p, h, oh);
            for (int64_t q = first_output(c, w, ow); by_row != 0 && q <= last_output(c, w, ow); q++)
                sum += by_row * share(c, q, w, ow) * to_float(row[q]);
        }
        sink_put(to_dx, e, sum);
    });
}
} // namespace

template <class T> void fv_cuda_conv(fv_kernels *k)
{
    k->im2col = im2col<T>;
    k->col2im = col2im<T>;
    k->bilinear = bilinear<T>;
    k->bilinear_bwd = bilinear_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_conv)
