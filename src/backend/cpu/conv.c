/* conv.c - images unfolded into the columns of a matrix product, and back; depthwise convolutions.
 *
 *    col (batch, channels * kh * kw, oh * ow):  row (channel, kr, kc), column (p, q)
 *    col = x[channel, p sh - ph + kr dh, q sw - pw + kc dw], or 0 in the padding
 *
 * so that a convolution is one matrix product of the weight (out, channels * kh * kw) with col.
 * It costs kh * kw times the image in memory, and in exchange runs at the speed of gemm for every
 * stride, padding and dilation.  Depthwise convolutions would be a product of one row for every
 * channel; they add shifted rows instead, a tap at a time. */
#ifndef DTYPE
#include "stage.h"

/* Column row (kr, kc), output row p reads row r of the image: outputs [from, to) lie inside it, the
 * others in the padding. */
typedef struct {
    int64_t r, c, from, to;
} span;

/* a/b rounded up, 0 for what is negative */
static int64_t up(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

/* Bounds are found once per output row, so that its inside is a copy without tests. */
static span span_of(const fv_conv_geom *g, int64_t kr, int64_t kc, int64_t p)
{
    span s = {.r = p * g->sh - g->ph + kr * g->dh, .c = kc * g->dw - g->pw};
    s.to = least(g->ow, up(g->w - s.c, g->sw));
    s.from = least(s.to, up(-s.c, g->sw));
    if (s.r < 0 || s.r >= g->h) s.from = s.to = 0;
    return s;
}

#define BY_DTYPE "conv.c"
#include "by_dtype.h"

void NAME(conv)(fv_kernels *k);
void NAME(conv)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernels of dtype DTYPE */

typedef struct {
    void *col;
    const void *x;
    const fv_conv_geom *g;
    int64_t kernel, size;
} OF(im2col_args);

static void OF(im2col_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(im2col_args) *l = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) {
        const REAL *plane = (const REAL *)l->x + i / l->kernel * l->g->h * l->g->w;
        for (int64_t p = 0; p < l->g->oh; p++) {
            REAL *to = (REAL *)l->col + i * l->size + p * l->g->ow;
            span in = span_of(l->g, i % l->kernel / l->g->kw, i % l->g->kw, p);
            int64_t at = in.r * l->g->w +
                         in.c; /* of the pixel under output 0, which may be outside */
            memset(to, 0, (size_t)in.from * sizeof *to);
            if (l->g->sw == 1 && in.to > in.from)
                memcpy(to + in.from, plane + at + in.from, (size_t)(in.to - in.from) * sizeof *to);
            else
                for (int64_t q = in.from; q < in.to; q++) to[q] = plane[at + q * l->g->sw];
            memset(to + in.to, 0, (size_t)(l->g->ow - in.to) * sizeof *to);
        }
    }
}

static void OF(im2col)(fv_stream *s, void *col, const void *x, const fv_conv_geom *g)
{
    int64_t kernel = g->kh * g->kw, rows = g->batch * g->channels * kernel, size = g->oh * g->ow;
    fv__cpu_parallel(s, threads_for_rows(s, rows, size), rows, 0, OF(im2col_part),
                     &(OF(im2col_args)){col, x, g, kernel, size});
}

typedef struct {
    fv_sink x;
    const void *col;
    const fv_conv_geom *g;
    float *work;
    int64_t kernel, image;
} OF(col2im_args);

static void OF(col2im_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(col2im_args) *l = arg;
    for (int64_t i = lo; i < hi; i++) {
        float *tmp = l->work + slot * (l->image + l->g->ow),
              *sum = sink_target(l->x, i * l->image, tmp + l->g->ow);
        memset(sum, 0, (size_t)l->image * sizeof *sum);
        for (int64_t k = 0; k < l->kernel * l->g->oh; k++) {
            span in = span_of(l->g, k / l->g->oh / l->g->kw, k / l->g->oh % l->g->kw, k % l->g->oh);
            if (in.from >= in.to) continue;
            const float *row = fetch(tmp, l->col, (i * l->kernel * l->g->oh + k) * l->g->ow,
                                     l->g->ow, DTYPE);
            int64_t at = in.r * l->g->w + in.c;
            if (l->g->sw == 1)
                for (int64_t q = in.from; q < in.to; q++) sum[at + q] += row[q];
            else
                for (int64_t q = in.from; q < in.to; q++) sum[at + q * l->g->sw] += row[q];
        }
        sink_store(l->x, i * l->image, sum, l->image);
    }
}

/* x[r,c] = the sum of every column element that im2col takes from it, in the order of the kernel's
 * elements */
static void OF(col2im)(fv_stream *s, fv_sink x, const void *col, const fv_conv_geom *g)
{
    if (!x.data) return;
    int64_t kernel = g->kh * g->kw, size = g->oh * g->ow, image = g->h * g->w,
            planes = g->batch * g->channels;
    int threads = threads_for(s, planes * kernel * size);
    float *work = fv_stream_scratch(s, (size_t)(threads * (image + g->ow)) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, planes, 1, OF(col2im_part),
                     &(OF(col2im_args)){x, col, g, work, kernel, image});
}

/* work: for each thread a row of x, one of y and the taps of a channel */
typedef struct {
    fv_sink y;
    const void *x, *w;
    const fv_conv_geom *g;
    float *work;
    int64_t taps, each; /* floats of work of one thread */
    bool flip;
} OF(depthwise_args);

static void OF(depthwise_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(depthwise_args) *l = arg;
    const fv_conv_geom *g = l->g;
    float *row_x = l->work + slot * l->each, *row_y = row_x + g->w, *taps_w = row_y + g->ow;
    for (int64_t i = lo; i < hi; i++) {
        const float *w = fetch(taps_w, l->w, i % g->channels * l->taps, l->taps, DTYPE);
        for (int64_t p = 0; p < g->oh; p++) {
            int64_t at = (i * g->oh + p) * g->ow;
            float *sum = sink_target(l->y, at, row_y);
            memset(sum, 0, (size_t)g->ow * sizeof *sum);
            for (int64_t kr = 0; kr < g->kh; kr++) {
                int64_t r = p - g->ph + kr * g->dh;
                if (r < 0 || r >= g->h) continue;
                const float *x = fetch(row_x, l->x, (i * g->h + r) * g->w, g->w, DTYPE);
                for (int64_t kc = 0; kc < g->kw; kc++) {
                    int64_t t = kr * g->kw + kc;
                    float by = w[l->flip ? l->taps - 1 - t : t];
                    span in = span_of(g, kr, kc, p);
                    for (int64_t q = in.from; q < in.to; q++) sum[q] += by * x[in.c + q];
                }
            }
            sink_store(l->y, at, sum, g->ow);
        }
    }
}

static void OF(depthwise)(fv_stream *s, fv_sink y, const void *x, const void *w,
                          const fv_conv_geom *g, bool flip)
{
    if (!y.data) return;
    int64_t planes = g->batch * g->channels, taps = g->kh * g->kw, each = g->w + g->ow + taps;
    int threads = threads_for(s, planes * g->oh * g->ow * taps);
    float *work = fv_stream_scratch(s, (size_t)(threads * each) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, planes, 1, OF(depthwise_part),
                     &(OF(depthwise_args)){y, x, w, g, work, taps, each, flip});
}

typedef struct {
    fv_sink dw;
    const void *dy, *x;
    const fv_conv_geom *g;
    float *work;
    int64_t taps, each;
} OF(depthwise_dw_args);

/* Products are summed for each tap and column of y, over rows and images, and the columns at the
 * end: additions side by side make vectors, a sum along the row would not. */
static void OF(depthwise_dw_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(depthwise_dw_args) *l = arg;
    const fv_conv_geom *g = l->g;
    float *row_x = l->work + slot * l->each, *row_dy = row_x + g->w, *sums = row_dy + g->ow,
          *dw = sums + l->taps * g->ow;
    for (int64_t ch = lo; ch < hi; ch++) {
        memset(sums, 0, (size_t)(l->taps * g->ow) * sizeof *sums);
        for (int64_t i = 0; i < g->batch * g->oh * g->kh; i++) {
            int64_t kr = i % g->kh, p = i / g->kh % g->oh, r = p - g->ph + kr * g->dh,
                    plane = i / g->kh / g->oh * g->channels + ch;
            if (r < 0 || r >= g->h) continue;
            const float *dy = fetch(row_dy, l->dy, (plane * g->oh + p) * g->ow, g->ow, DTYPE),
                        *x = fetch(row_x, l->x, (plane * g->h + r) * g->w, g->w, DTYPE);
            for (int64_t kc = 0; kc < g->kw; kc++) {
                float *sum = sums + (kr * g->kw + kc) * g->ow;
                span in = span_of(g, kr, kc, p);
                for (int64_t q = in.from; q < in.to; q++) sum[q] += dy[q] * x[in.c + q];
            }
        }
        for (int64_t t = 0; t < l->taps; t++) {
            dw[t] = 0;
            for (int64_t q = 0; q < g->ow; q++) dw[t] += sums[t * g->ow + q];
        }
        sink_store(l->dw, ch * l->taps, dw, l->taps);
    }
}

static void OF(depthwise_dw)(fv_stream *s, fv_sink dw, const void *dy, const void *x,
                             const fv_conv_geom *g)
{
    if (!dw.data) return;
    int64_t taps = g->kh * g->kw, each = g->w + g->ow + taps * (g->ow + 1);
    int threads = threads_for(s, g->batch * g->channels * g->oh * g->ow * taps);
    float *work = fv_stream_scratch(s, (size_t)(threads * each) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, g->channels, 1, OF(depthwise_dw_part),
                     &(OF(depthwise_dw_args)){dw, dy, x, g, work, taps, each});
}

static void OF(table)(fv_kernels *k)
{
    k->im2col = OF(im2col);
    k->col2im = OF(col2im);
    k->depthwise = OF(depthwise);
    k->depthwise_dw = OF(depthwise_dw);
}
#endif
