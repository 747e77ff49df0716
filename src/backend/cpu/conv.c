/* conv.c - images unfolded into the columns of a matrix product, and back.
 *
 *    col (batch, channels * kh * kw, oh * ow):  row (channel, kr, kc), column (p, q)
 *    col = x[channel, p sh - ph + kr dh, q sw - pw + kc dw], or 0 in the padding
 *
 * so that a convolution is one matrix product of the weight (out, channels * kh * kw) with col.
 * It costs kh * kw times the image in memory, and in exchange runs at the speed of gemm for every
 * stride, padding and dilation. */
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

static void OF(table)(fv_kernels *k)
{
    k->im2col = OF(im2col);
    k->col2im = OF(col2im);
}
#endif
