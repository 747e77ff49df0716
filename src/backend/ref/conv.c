/* conv.c - images unfolded into the columns of a matrix product and back, depthwise convolutions,
 * and bilinear resizing. */
#include "backend/ref/ref.h"

/* Calls visit order: image, channel, kernel row, kernel column, output row, output column; so
 * column element i of image b is the pixel at (p * sh - ph + kr * dh, q * sw - pw + kc * dw), or
 * lies in the padding. */
static bool inside(const fv_conv_geom *g, int64_t kr, int64_t kc, int64_t p, int64_t q,
                   int64_t *pixel)
{
    int64_t r = p * g->sh - g->ph + kr * g->dh, c = q * g->sw - g->pw + kc * g->dw;
    *pixel = r * g->w + c;
    return r >= 0 && r < g->h && c >= 0 && c < g->w;
}

static void im2col(fv_stream *s, void *col, const void *x, const fv_conv_geom *g)
{
    (void)s;
    int64_t at = 0;
    for (int64_t plane = 0; plane < g->batch * g->channels; plane++)
        for (int64_t kr = 0; kr < g->kh; kr++)
            for (int64_t kc = 0; kc < g->kw; kc++)
                for (int64_t p = 0; p < g->oh; p++)
                    for (int64_t q = 0, i; q < g->ow; q++, at++) {
                        bool in = inside(g, kr, kc, p, q, &i);
                        st(col, at, in ? ld(x, plane * g->h * g->w + i) : 0);
                    }
}

/* x[r,c] = the sum of every column element that im2col takes from it */
static void col2im(fv_stream *s, fv_sink x, const void *col, const fv_conv_geom *g)
{
    if (!x.data) return;
    acc *sum = fv_stream_scratch(s, (size_t)(g->h * g->w) * sizeof *sum);
    if (!sum) return;
    int64_t at = 0;
    for (int64_t plane = 0; plane < g->batch * g->channels; plane++) {
        for (int64_t i = 0; i < g->h * g->w; i++) sum[i] = 0;
        for (int64_t kr = 0; kr < g->kh; kr++)
            for (int64_t kc = 0; kc < g->kw; kc++)
                for (int64_t p = 0; p < g->oh; p++)
                    for (int64_t q = 0, i; q < g->ow; q++, at++)
                        if (inside(g, kr, kc, p, q, &i)) sum[i] += ld(col, at);
        for (int64_t i = 0; i < g->h * g->w; i++) sink_store(x, plane * g->h * g->w + i, sum[i]);
    }
}

/* y[p,q] = sum of w[i,j] x[p - ph + i dh, q - pw + j dw], each channel by its own taps */
static void depthwise(fv_stream *s, fv_sink y, const void *x, const void *w, const fv_conv_geom *g,
                      bool flip)
{
    (void)s;
    int64_t taps = g->kh * g->kw, at = 0;
    for (int64_t plane = 0; y.data && plane < g->batch * g->channels; plane++)
        for (int64_t p = 0; p < g->oh; p++)
            for (int64_t q = 0, i; q < g->ow; q++, at++) {
                acc sum = 0;
                for (int64_t t = 0; t < taps; t++)
                    if (inside(g, t / g->kw, t % g->kw, p, q, &i))
                        sum += ld(w, plane % g->channels * taps + (flip ? taps - 1 - t : t)) *
                               ld(x, plane * g->h * g->w + i);
                sink_store(y, at, sum);
            }
}

/* dw[c,i,j] = sum over b,p,q of dy[b,c,p,q] x[b,c,p - ph + i dh, q - pw + j dw] */
static void depthwise_dw(fv_stream *s, fv_sink dw, const void *dy, const void *x,
                         const fv_conv_geom *g)
{
    (void)s;
    int64_t taps = g->kh * g->kw, size = g->oh * g->ow;
    for (int64_t n = 0; dw.data && n < g->channels * taps; n++) {
        acc sum = 0;
        for (int64_t b = 0; b < g->batch; b++) {
            int64_t plane = b * g->channels + n / taps;
            for (int64_t o = 0, i; o < size; o++)
                if (inside(g, n % taps / g->kw, n % g->kw, o / g->ow, o % g->ow, &i))
                    sum += ld(dy, plane * size + o) * ld(x, plane * g->h * g->w + i);
        }
        sink_store(dw, n, sum);
    }
}

/* Output index o of `out` lies between low and high of `in`, at `part` of the way: pixel centres
 * are aligned, and what would lie before the first centre is the first pixel. */
typedef struct {
    int64_t low, high;
    acc part;
} between;

static between locate(int64_t o, int64_t in, int64_t out)
{
    acc at = ((acc)o + (acc)0.5) * (acc)in / (acc)out - (acc)0.5;
    if (at < 0) at = 0;
    int64_t low = (int64_t)at;
    if (low > in - 1) low = in - 1;
    return (between){low, low + 1 < in ? low + 1 : low, at - (acc)low};
}

/* x (planes,h,w) -> y (planes,oh,ow); PyTorch's interpolate with align_corners = false. */
static void bilinear(fv_stream *s, void *y, const void *x, int64_t planes, int64_t h, int64_t w,
                     int64_t oh, int64_t ow)
{
    (void)s;
    for (int64_t plane = 0; plane < planes; plane++)
        for (int64_t p = 0; p < oh; p++)
            for (int64_t q = 0; q < ow; q++) {
                between r = locate(p, h, oh), c = locate(q, w, ow);
                int64_t upper = (plane * h + r.low) * w, lower = (plane * h + r.high) * w;
                acc a = ld(x, upper + c.low) * (1 - c.part) + ld(x, upper + c.high) * c.part;
                acc b = ld(x, lower + c.low) * (1 - c.part) + ld(x, lower + c.high) * c.part;
                st(y, (plane * oh + p) * ow + q, a * (1 - r.part) + b * r.part);
            }
}

/* y is linear in x, so dx scatters each dy with the four weights that made y; summed in acc,
 * stored once. */
static void bilinear_bwd(fv_stream *s, fv_sink dx, const void *dy, int64_t planes, int64_t h,
                         int64_t w, int64_t oh, int64_t ow)
{
    if (!dx.data) return;
    acc *sum = fv_stream_scratch(s, (size_t)(h * w) * sizeof *sum);
    if (!sum) return;
    for (int64_t plane = 0; plane < planes; plane++) {
        for (int64_t i = 0; i < h * w; i++) sum[i] = 0;
        for (int64_t p = 0; p < oh; p++)
            for (int64_t q = 0; q < ow; q++) {
                between r = locate(p, h, oh), c = locate(q, w, ow);
                acc d = ld(dy, (plane * oh + p) * ow + q);
                sum[r.low * w + c.low] += d * (1 - r.part) * (1 - c.part);
                sum[r.low * w + c.high] += d * (1 - r.part) * c.part;
                sum[r.high * w + c.low] += d * r.part * (1 - c.part);
                sum[r.high * w + c.high] += d * r.part * c.part;
            }
        for (int64_t i = 0; i < h * w; i++) sink_store(dx, plane * h * w + i, sum[i]);
    }
}

void REF(conv)(fv_kernels *k);
void REF(conv)(fv_kernels *k)
{
    k->im2col = im2col;
    k->col2im = col2im;
    k->depthwise = depthwise;
    k->depthwise_dw = depthwise_dw;
    k->bilinear = bilinear;
    k->bilinear_bwd = bilinear_bwd;
}
