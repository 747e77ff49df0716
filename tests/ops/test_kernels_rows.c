/* test_kernels_rows.c - fast kernels beside the reference: along an axis, by rows, and the rest. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/kernels.h"

/* ---- along an axis ---- */

typedef struct {
    const void *x, *dy;
    int32_t *arg;
    int64_t outer, n, inner;
    fv_reduce_op op;
    bool reverse;
} axis_case;

static void run_colsum(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->colsum(s, y[0], c->x, c->n, c->inner);
}

static void run_reduce(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->reduce(s, c->op, y[0].data, y[1].data, c->x, c->outer, c->n, c->inner);
}

static void run_reduce_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->reduce_bwd(s, c->op, y[0], c->dy, c->arg, c->outer, c->n, c->inner);
}

static void run_cumsum(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->cumsum(s, y[0], c->x, c->outer, c->n, c->inner, c->reverse);
}

static void reductions_and_their_gradients(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {3, 7, 1},    {5, 1025, 1}, {1, 70001, 1},
                                        {1, 600, 131}, {2, 300, 65}, {9, 4, 5},    {4, 33, 300}};
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            axis_case c = {.outer = shapes[i][0], .n = shapes[i][1], .inner = shapes[i][2]};
            int64_t all = c.outer * c.n * c.inner, kept = c.outer * c.inner;
            void *x = numbers(kinds[t], all, -1, 1), *dy = numbers(kinds[t], kept, -1, 1);
            int32_t *arg = integers(kept, (int32_t)c.n);
            c.x = x, c.dy = dy, c.arg = arg;
            double tol = 16 + sqrt((double)c.n) * 4;
            for (c.op = 0; c.op < FV_R_COUNT; c.op++) {
                out o[2] = {{kinds[t], kept, false, false},
                            {FV_I32, kept, false, c.op != FV_R_MAX}};
                compare("reduce", kinds[t], run_reduce, &c, o, 2, tol);
                compare_sinks("reduce_bwd", kinds[t], run_reduce_bwd, &c, all, 2);
            }
            for (int mode = 0; mode < MODES; mode++) {
                out sums = sink_out(kinds[t], c.inner, mode),
                    running = sink_out(kinds[t], all, mode);
                if (c.outer == 1) compare("colsum", kinds[t], run_colsum, &c, &sums, 1, tol);
                c.reverse = mode & 1;
                compare("cumsum", kinds[t], run_cumsum, &c, &running, 1, tol * 4);
            }
            free(x), free(dy), free(arg);
        }
}

/* NaN counts as the largest, equal ones go to the first. */
static void the_largest_is_the_first_and_nan_is_not_lost(void **state)
{
    (void)state;
    float x[] = {-INFINITY, 2, 7, 7, -1, 3, NAN, 7, 9, NAN, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (int l = 0; l < n_level; l++)
        for (int64_t n = 1; n <= 21; n++) {
            fv_stream s = {.dev = at_level[l], .threads = 1};
            float y;
            int32_t arg;
            at_level[l]->k[FV_F32]->reduce(&s, FV_R_MAX, &y, &arg, x, 1, n, 1);
            assert_int_equal(arg, n < 3 ? n - 1 : n < 7 ? 2 : 6);
            assert_true(isnan(y) == (n >= 7));
            if (s.scratch) at_level[l]->backend->release(at_level[l], s.scratch, s.scratch_bytes);
        }
}

/* ---- by rows ---- */

typedef struct {
    const void *x, *a, *dy, *y, *gain, *bias;
    const float *mean, *rstd, *dloss;
    const int32_t *labels;
    int64_t rows, cols;
    bool log;
    float smooth;
} row_case;

static void run_softmax(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->softmax(s, y->data, c->x, c->rows, c->cols, c->log);
}

static void run_softmax_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->softmax_bwd(s, y[0], c->dy, c->y, c->rows, c->cols, c->log);
}

static const int64_t row_shapes[][2] = {{1, 1}, {3, 5}, {7, 16}, {2, 1027}, {70, 768}, {9, 5003}};
#define ROW_SHAPES (int)(sizeof row_shapes / sizeof *row_shapes)

static void softmax_and_its_gradient(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++)
            for (int as_log = 0; as_log < 2; as_log++) {
                row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1], .log = as_log};
                int64_t n = c.rows * c.cols;
                void *x = numbers(kinds[t], n, -9, 9), *dy = numbers(kinds[t], n, -1, 1),
                     *y = memory((size_t)n * 4);
                reference[kinds[t]].softmax(NULL, y, x, c.rows, c.cols, as_log);
                c.x = x, c.dy = dy, c.y = y;
                compare("softmax", kinds[t], run_softmax, &c, &(out){kinds[t], n, false, false}, 1,
                        16);
                compare_sinks("softmax_bwd", kinds[t], run_softmax_bwd, &c, n, 64);
                free(x), free(dy), free(y);
            }
}

static void run_cross_entropy(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->cross_entropy(s, y[0].data, y[1].data, c->x, c->labels, c->rows, c->cols, c->smooth, -100);
}

static void run_cross_entropy_bwd(const fv_kernels *k, fv_stream *s, const void *in,
                                  const fv_sink *y)
{
    const row_case *c = in;
    k->cross_entropy_bwd(s, y[0], c->dloss, c->rstd, c->x, c->labels, c->rows, c->cols, c->smooth,
                         -100);
}

static void cross_entropy_and_its_gradient(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++)
            for (int smoothed = 0; smoothed < 2; smoothed++) {
                row_case c = {.rows = row_shapes[i][0],
                              .cols = row_shapes[i][1],
                              .smooth = smoothed ? 0.1f : 0};
                int64_t n = c.rows * c.cols;
                void *x = numbers(kinds[t], n, -9, 9);
                float *dloss = numbers(FV_F32, c.rows, -1, 1), *loss = memory((size_t)c.rows * 4),
                      *lse = memory((size_t)c.rows * 4);
                int32_t *labels = integers(c.rows, (int32_t)c.cols);
                if (c.rows > 2) labels[1] = -100;
                reference[kinds[t]].cross_entropy(NULL, loss, lse, x, labels, c.rows, c.cols,
                                                  c.smooth, -100);
                c.x = x, c.dloss = dloss, c.labels = labels, c.rstd = lse;
                out o[2] = {{FV_F32, c.rows, false, false}, {FV_F32, c.rows, false, false}};
                compare("cross_entropy", kinds[t], run_cross_entropy, &c, o, 2, 64);
                compare_sinks("cross_entropy_bwd", kinds[t], run_cross_entropy_bwd, &c, n, 16);
                free(x), free(dloss), free(loss), free(lse), free(labels);
            }
}

static void run_symmetric_kl(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->symmetric_kl(s, y[0].data, y[1].data, c->x, c->rows, c->cols);
}

static void run_symmetric_kl_bwd(const fv_kernels *k, fv_stream *s, const void *in,
                                 const fv_sink *y)
{
    const row_case *c = in;
    k->symmetric_kl_bwd(s, y[0], c->dloss, c->rstd, c->x, c->rows, c->cols);
}

static void symmetric_kl_and_its_gradient(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++) {
            row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1]};
            int64_t n = 2 * c.rows * c.cols;
            void *x = numbers(kinds[t], n, -3, 3);
            float *dloss = numbers(FV_F32, c.rows, -1, 1), *y = memory((size_t)c.rows * 4),
                  *kept = memory((size_t)c.rows * 16);
            if (c.rows > 2) dloss[1] = 0;
            reference[kinds[t]].symmetric_kl(NULL, y, kept, x, c.rows, c.cols);
            c.x = x, c.dloss = dloss, c.rstd = kept;
            out o[2] = {{FV_F32, c.rows, false, false}, {FV_F32, 4 * c.rows, false, false}};
            compare("symmetric_kl", kinds[t], run_symmetric_kl, &c, o, 2, 64);
            compare_sinks("symmetric_kl_bwd", kinds[t], run_symmetric_kl_bwd, &c, n, 64);
            free(x), free(dloss), free(y), free(kept);
        }
}

/* Logits of -inf, as masks make them, count as nothing, also where they fill whole pieces of the
 * row. */
static void masked_logits_count_as_nothing(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = i >= 3000 && i < 3004 ? 1.0f : -INFINITY;
    int32_t label = 3001;
    for (int l = 0; l < n_level; l++) {
        fv_stream s = {.dev = at_level[l], .threads = 1};
        float loss, lse;
        at_level[l]->k[FV_F32]->cross_entropy(&s, &loss, &lse, x, &label, 1, N, 0, -100);
        assert_true(fabsf(loss - logf(4)) < 1e-6f && fabsf(lse - 1 - logf(4)) < 1e-6f);
    }
}

static void run_layernorm(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->layernorm(s, y[0].data, y[1].data, y[2].data, y[3].data, c->x, c->a, c->gain, c->bias,
                 c->rows, c->cols, 1e-5f);
}

static void run_rmsnorm(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->rmsnorm(s, y[0].data, y[2].data, y[3].data, c->x, c->a, c->gain, c->rows, c->cols, 1e-5f);
}

static void run_layernorm_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->layernorm_bwd(s, y[0], y[1], y[2], c->dy, c->x, c->gain, c->mean, c->rstd, c->rows, c->cols);
}

static void run_rmsnorm_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->rmsnorm_bwd(s, y[0], y[1], c->dy, c->x, c->gain, c->rstd, c->rows, c->cols);
}

static void norms_and_their_gradients(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++) /* with a residual, with a gain, with a bias */
            for (int parts = 0; parts < 8; parts++) {
                row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1]};
                int64_t n = c.rows * c.cols;
                fv_dtype k = kinds[t];
                void *x = numbers(k, n, -1, 2), *a = numbers(k, n, -1, 1),
                     *dy = numbers(k, n, -1, 1);
                void *gain = numbers(k, c.cols, 0.5f, 1.5f), *bias = numbers(k, c.cols, -1, 1);
                float *mean = numbers(FV_F32, c.rows, 0.4f, 0.6f),
                      *rstd = numbers(FV_F32, c.rows, 0.9f, 1.2f);
                c.x = x, c.a = parts & 1 ? a : NULL, c.gain = parts & 2 ? gain : NULL,
                c.bias = parts & 4 ? bias : NULL;
                c.dy = dy, c.mean = mean, c.rstd = rstd;
                out o[4] = {{k, n, false, false},
                            {FV_F32, c.rows, false, false},
                            {FV_F32, c.rows, false, false},
                            {k, n, false, false}};
                compare("layernorm", k, run_layernorm, &c, o, 4, 256);
                compare("rmsnorm", k, run_rmsnorm, &c, o, 4, 256);
                for (int mode = 0; mode < MODES; mode++) {
                    out d[3] = {sink_out(k, n, mode), sink_out(k, c.cols, (mode + 1) % MODES),
                                sink_out(k, c.cols, (mode + 2) % MODES)};
                    compare("layernorm_bwd", k, run_layernorm_bwd, &c, d, 3, 128);
                    compare("rmsnorm_bwd", k, run_rmsnorm_bwd, &c, d, 2, 128);
                }
                free(x), free(a), free(dy), free(gain), free(bias), free(mean), free(rstd);
            }
}

/* A row alone gives the bits it gives among others. */
static void a_row_does_not_depend_on_its_batch(void **state)
{
    (void)state;
    enum { ROWS = 50, COLS = 1003 };
    float *x = numbers(FV_F32, ROWS * COLS, -2, 2), *all = memory(ROWS * COLS * 4),
          *one = memory(COLS * 4), stat[2 * ROWS];
    for (int l = 0; l < n_level; l++) {
        const fv_kernels *k = at_level[l]->k[FV_F32];
        fv_stream s = {.dev = at_level[l], .threads = 2};
        for (int r = 0; r < ROWS; r += 7) {
            k->softmax(&s, all, x, ROWS, COLS, false);
            k->softmax(&s, one, x + r * COLS, 1, COLS, false);
            assert_memory_equal(all + r * COLS, one, COLS * 4);
            k->layernorm(&s, all, stat, stat + ROWS, NULL, x, NULL, NULL, NULL, ROWS, COLS, 1e-5f);
            k->layernorm(&s, one, stat, stat + ROWS, NULL, x + r * COLS, NULL, NULL, NULL, 1, COLS,
                         1e-5f);
            assert_memory_equal(all + r * COLS, one, COLS * 4);
        }
        if (s.scratch) at_level[l]->backend->release(at_level[l], s.scratch, s.scratch_bytes);
    }
    free(x), free(all), free(one);
}

/* ---- the rest ---- */

typedef struct {
    const void *x;
    int64_t n;
    float p;
    fv_rng rng;
} drop_case;

static void run_dropout(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const drop_case *c = in;
    k->dropout(s, y[0], c->x, c->n, c->p, c->rng);
}

static void dropout_keeps_the_same_elements_everywhere(void **state)
{
    (void)state;
    uint64_t step = 0x123456789abcdefu;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++)
            for (int mode = 0; mode < MODES; mode++) {
                drop_case c = {.n = lengths[l], .p = 0.3f, .rng = {0xfedcba9876543210u, 77, &step}};
                void *x = numbers(kinds[t], c.n, 1, 2);
                out o = sink_out(kinds[t], c.n, mode);
                c.x = x;
                compare("dropout", kinds[t], run_dropout, &c, &o, 1, 1);
                free(x);
            }
}

typedef struct {
    const void *x;
    fv_conv_geom g;
} conv_case;

static void run_im2col(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const conv_case *c = in;
    k->im2col(s, y->data, c->x, &c->g);
}

static void run_col2im(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const conv_case *c = in;
    k->col2im(s, y[0], c->x, &c->g);
}

typedef struct {
    const void *x, *w, *dy;
    fv_conv_geom g;
    bool flip;
} depthwise_case;

static void run_depthwise(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const depthwise_case *c = in;
    k->depthwise(s, y[0], c->x, c->w, &c->g, c->flip);
}

static void run_depthwise_dw(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const depthwise_case *c = in;
    k->depthwise_dw(s, y[0], c->dy, c->x, &c->g);
}

/* batch, channels, h, w, kh, kw, ph, pw, dh, dw: rows of a vector's multiple and others, a piece of
 * the gradient and several, one dimension, a dilated kernel, padding beyond the kernel. */
static void channels_are_convolved_apart(void **state)
{
    (void)state;
    static const int sizes[][10] = {{2, 3, 9, 11, 3, 3, 1, 1, 1, 1},
                                    {5, 4, 8, 16, 3, 3, 1, 1, 1, 1},
                                    {3, 2, 24, 32, 3, 3, 1, 1, 1, 1},
                                    {2, 3, 7, 6, 3, 2, 2, 4, 2, 3},
                                    {2, 5, 1, 64, 1, 31, 0, 15, 1, 1},
                                    {2, 2, 5, 8, 2, 3, 3, 1, 1, 1}};
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int *n = sizes[i];
            fv_conv_geom g = {
                .batch = n[0], .channels = n[1], .h = n[2], .w = n[3], .kh = n[4], .kw = n[5]};
            g.sh = g.sw = 1, g.ph = n[6], g.pw = n[7], g.dh = n[8], g.dw = n[9];
            g.oh = g.h + 2 * g.ph - g.dh * (g.kh - 1);
            g.ow = g.w + 2 * g.pw - g.dw * (g.kw - 1);
            int64_t planes = g.batch * g.channels, taps = g.channels * g.kh * g.kw,
                    size = planes * g.oh * g.ow;
            depthwise_case c = {numbers(kinds[t], planes * g.h * g.w, -1, 1),
                                numbers(kinds[t], taps, -1, 1), numbers(kinds[t], size, -1, 1), g,
                                false};
            compare_sinks("depthwise", kinds[t], run_depthwise, &c, size, 8);
            c.flip = true;
            compare_sinks("depthwise, flipped", kinds[t], run_depthwise, &c, size, 8);
            /* hundreds of terms in another order: f32 sinks are what tells */
            compare_sinks("depthwise_dw", kinds[t], run_depthwise_dw, &c, taps, 128);
            free((void *)c.x), free((void *)c.w), free((void *)c.dy);
        }
}

static void images_are_unfolded_and_folded(void **state)
{
    (void)state;
    fv_conv_geom geoms[] = {
        {.batch = 2,
         .channels = 3,
         .h = 9,
         .w = 11,
         .kh = 3,
         .kw = 3,
         .sh = 1,
         .sw = 1,
         .ph = 1,
         .pw = 1,
         .dh = 1,
         .dw = 1},
        {.batch = 1,
         .channels = 2,
         .h = 32,
         .w = 48,
         .kh = 16,
         .kw = 16,
         .sh = 16,
         .sw = 16,
         .ph = 0,
         .pw = 0,
         .dh = 1,
         .dw = 1},
        {.batch = 2,
         .channels = 5,
         .h = 7,
         .w = 6,
         .kh = 3,
         .kw = 2,
         .sh = 2,
         .sw = 3,
         .ph = 2,
         .pw = 4,
         .dh = 2,
         .dw = 3},
        {.batch = 3,
         .channels = 40,
         .h = 1,
         .w = 300,
         .kh = 1,
         .kw = 5,
         .sh = 1,
         .sw = 1,
         .ph = 0,
         .pw = 2,
         .dh = 1,
         .dw = 1},
    };
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof geoms / sizeof *geoms; i++) {
            fv_conv_geom g = geoms[i];
            g.oh = (g.h + 2 * g.ph - g.dh * (g.kh - 1) - 1) / g.sh + 1;
            g.ow = (g.w + 2 * g.pw - g.dw * (g.kw - 1) - 1) / g.sw + 1;
            int64_t image = g.batch * g.channels * g.h * g.w,
                    col = g.batch * g.channels * g.kh * g.kw * g.oh * g.ow;
            conv_case in = {numbers(kinds[t], image, -1, 1), g},
                      back = {numbers(kinds[t], col, -1, 1), g};
            compare("im2col", kinds[t], run_im2col, &in, &(out){kinds[t], col, false, false}, 1, 0);
            compare_sinks("col2im", kinds[t], run_col2im, &back, image, 8);
            free((void *)in.x), free((void *)back.x);
        }
}

typedef struct {
    const void *x;
    const int32_t *pos;
    const float *freq;
    int64_t B, T, H, W, half;
    bool adjacent, back;
} rope_case;

static void run_rope(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const rope_case *c = in;
    k->rope(s, y[0], c->x, c->pos, c->freq, c->B, c->T, c->H, c->W, c->half, c->adjacent, c->back);
}

static void rotary_positions(void **state)
{
    (void)state;
    float freq[32];
    for (int i = 0; i < 32; i++) freq[i] = powf(10000, -(float)i / 32);
    for (int t = 0; t < KINDS; t++)
        for (int form = 0; form < 8; form++) {
            rope_case c = {
                .B = 2, .T = 50, .H = 6, .W = 64, .half = form & 1 ? 32 : 13, .freq = freq};
            c.adjacent = form & 2, c.back = form & 4;
            int64_t n = c.B * c.T * c.H * c.W;
            int32_t *pos = integers(c.B * c.T, 5000);
            void *x = numbers(kinds[t], n, -1, 1);
            c.x = x, c.pos = pos;
            compare_sinks("rope", kinds[t], run_rope, &c, n, 8);
            free(x), free(pos);
        }
}

typedef struct {
    const float *grad;
    const void *x;
    int64_t n;
    bool copy;
    fv_adamw o;
} optim_case;

static void run_adamw(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const optim_case *c = in;
    float *v = y[2].data;
    for (int64_t i = 0; i < c->n; i++) v[i] = fabsf(v[i]);
    k->adamw(s, y[0].data, y[1].data, v, y[4].data, c->copy ? y[3].data : NULL, c->grad, c->n,
             &c->o);
}

static void run_sumsq(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const optim_case *c = in;
    k->sumsq(s, y->data, c->x, c->n);
}

static void optimiser_steps(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++)
            for (int form = 0; form < 4; form++) {
                optim_case c = {.n = lengths[l], .copy = form & 1};
                fv_update now = {1e-2f, 0.3f, 0.05f, 0.8f, 0, 0, form & 2 ? 0.7f : 1, 0};
                c.o = (fv_adamw){0.5f, 0.9f, 0.99f, 1e-8f, 0.1f, &now};
                float *grad = numbers(FV_F32, c.n, -1, 1);
                void *x = numbers(kinds[t], c.n, -1, 1);
                c.grad = grad, c.x = x;
                out o[5] = {{FV_F32, c.n, 0, 0},
                            {FV_F32, c.n, 0, 0},
                            {FV_F32, c.n, 0, 0},
                            {kinds[t], c.n, 0, 0},
                            {FV_F32, c.n, 0, 0}};
                compare("adamw", kinds[t], run_adamw, &c, o, 5, 8);
                compare("sumsq", kinds[t], run_sumsq, &c, &(out){FV_F32, 1, 0, 0}, 1, 2);
                free(grad), free(x);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_and_their_gradients),
        cmocka_unit_test(the_largest_is_the_first_and_nan_is_not_lost),
        cmocka_unit_test(softmax_and_its_gradient),
        cmocka_unit_test(cross_entropy_and_its_gradient),
        cmocka_unit_test(symmetric_kl_and_its_gradient),
        cmocka_unit_test(masked_logits_count_as_nothing),
        cmocka_unit_test(norms_and_their_gradients),
        cmocka_unit_test(a_row_does_not_depend_on_its_batch),
        cmocka_unit_test(dropout_keeps_the_same_elements_everywhere),
        cmocka_unit_test(images_are_unfolded_and_folded),
        cmocka_unit_test(channels_are_convolved_apart),
        cmocka_unit_test(rotary_positions),
        cmocka_unit_test(optimiser_steps),
    };
    return cmocka_run_group_tests(tests, open_levels, close_levels);
}
