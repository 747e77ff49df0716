/* test_ops_nn.c - norms, tables, losses, convolutions and positions through the op table. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "helper/optable.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"

/* ---- norms ---- */

static fv_tensor *layernorm(fv_ctx *c, fv_tensor *const *x)
{
    return fv_layernorm(c, x[0], x[1], x[2], 1e-3f);
}
static fv_tensor *layernorm_bare(fv_ctx *c, fv_tensor *const *x)
{
    return fv_layernorm(c, x[0], NULL, NULL, 1e-5f);
}
static fv_tensor *rmsnorm(fv_ctx *c, fv_tensor *const *x)
{
    return fv_rmsnorm(c, x[0], x[1], 1e-3f);
}
static fv_tensor *rmsnorm_bare(fv_ctx *c, fv_tensor *const *x)
{
    return fv_rmsnorm(c, x[0], NULL, 1e-5f);
}

/* Both results are used, as in a block with the norm in front. */
static fv_tensor *add_layernorm(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *sum, *y = fv_add_layernorm(c, &sum, x[0], x[1], x[2], x[3], 1e-3f);
    return fv_add(c, y, fv_scale(c, sum, 0.5f));
}

static fv_tensor *add_rmsnorm(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *sum, *y = fv_add_rmsnorm(c, &sum, x[0], x[1], x[2], 1e-3f);
    return fv_add(c, y, fv_scale(c, sum, 0.5f));
}

static fv_tensor *add_to_itself(fv_ctx *c, fv_tensor *const *x)
{
    return fv_add_layernorm(c, NULL, x[0], x[0], x[1], NULL, 1e-3f);
}

static void norm_row(double *y, const double *x, const double *gain, const double *bias, int64_t n,
                     double eps, bool rms)
{
    double mean = 0, var = 0;
    for (int64_t j = 0; j < n && !rms; j++) mean += x[j] / (double)n;
    for (int64_t j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean) / (double)n;
    for (int64_t j = 0; j < n; j++)
        y[j] = (x[j] - mean) / sqrt(var + eps) * (gain ? gain[j] : 1) + (bias ? bias[j] : 0);
}

static void want_layernorm(const op_case *k, double *y, const double *const *in)
{
    int64_t n = k->in[1].shape.d[0], all = fv_shape_len(k->in[0].shape);
    for (int64_t i = 0; i < all; i += n)
        norm_row(y + i, in[0] + i, in[1], in[2], n, (double)1e-3f, false);
}

static void want_rmsnorm(const op_case *k, double *y, const double *const *in)
{
    int64_t n = k->in[1].shape.d[0], all = fv_shape_len(k->in[0].shape);
    for (int64_t i = 0; i < all; i += n)
        norm_row(y + i, in[0] + i, in[1], NULL, n, (double)1e-3f, true);
}

static void want_add_layernorm(const op_case *k, double *y, const double *const *in)
{
    int64_t n = k->in[2].shape.d[0], all = fv_shape_len(k->in[0].shape);
    for (int64_t i = 0; i < all; i += n) {
        double sum[64] = {0};
        for (int64_t j = 0; j < n; j++) sum[j] = in[0][i + j] + in[1][i + j];
        norm_row(y + i, sum, in[2], in[3], n, (double)1e-3f, false);
        for (int64_t j = 0; j < n; j++) y[i + j] += 0.5 * sum[j];
    }
}

/* The running statistics are made afresh each time, since training moves them. */
static fv_tensor *batchnorm(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *mean = fv_full(c, FV_SHAPE(3), 0.25f), *var = fv_full(c, FV_SHAPE(3), 1.5f);
    return fv_batchnorm(c, x[0], x[1], x[2], mean, var, 0.1f, 1e-3f);
}

/* Without training u and v stay, so differences see the constants that the gradient takes them
 * for. */
static fv_tensor *spectral_norm(fv_ctx *c, fv_tensor *const *x)
{
    return fv_spectral_norm(c, x[0], x[1], x[2], 1e-6f);
}

/* ---- tables ---- */

static const int32_t ids[] = {4, 0, 4, 6, 1, 4};

static fv_tensor *gather(fv_ctx *c, fv_tensor *const *x)
{
    return fv_gather(c, x[0], fv_ints(c, ids, FV_SHAPE(2, 3)), -1);
}
static fv_tensor *scatter_add(fv_ctx *c, fv_tensor *const *x)
{
    return fv_scatter_add(c, x[0], fv_ints(c, ids, FV_SHAPE(2, 3)), 7);
}

static fv_tensor *gather_many(fv_ctx *c, fv_tensor *const *x)
{
    static int32_t many[600];
    for (int i = 0; i < 600; i++) many[i] = i * i % 37;
    return fv_gather(c, x[0], fv_ints(c, many, FV_SHAPE(600)), -1);
}

static void want_gather(const op_case *k, double *y, const double *const *in)
{
    int64_t d = k->in[0].shape.d[1];
    for (int64_t i = 0; i < 6 * d; i++) y[i] = in[0][ids[i / d] * d + i % d];
}

static void want_scatter(const op_case *k, double *y, const double *const *in)
{
    int64_t d = k->in[0].shape.d[2];
    for (int64_t i = 0; i < 7 * d; i++) y[i] = 0;
    for (int64_t i = 0; i < 6 * d; i++) y[ids[i / d] * d + i % d] += in[0][i];
}

/* ---- losses ---- */

static const int32_t labels[] = {3, -100, 0, 12, 7};

static fv_tensor *entropy(fv_ctx *c, fv_tensor *const *x)
{
    return fv_cross_entropy(c, x[0], fv_ints(c, labels, FV_SHAPE(5)),
                            (fv_ce_opt){.smooth = 0.125f, .ignore = -100});
}

static void want_entropy(const op_case *k, double *y, const double *const *in)
{
    int64_t n = k->in[0].shape.d[1];
    for (int64_t r = 0; r < 5; r++) {
        const double *x = in[0] + r * n;
        double sum = 0, mean = 0;
        for (int64_t j = 0; j < n; j++) sum += exp(x[j]), mean += x[j] / (double)n;
        y[r] = labels[r] < 0 ? 0 : log(sum) - 0.875 * x[labels[r]] - 0.125 * mean;
    }
}

static fv_tensor *entropy_of_product(fv_ctx *c, fv_tensor *const *x)
{
    fv_tensor *logits;
    fv_ce_opt how = {.smooth = 0.125f, .ignore = -100};
    return fv_linear_cross_entropy(c, &logits, x[0], x[1], fv_ints(c, labels, FV_SHAPE(5)), how);
}

static void want_entropy_of_product(const op_case *k, double *y, const double *const *in)
{
    int64_t d = k->in[0].shape.d[1], n = k->in[1].shape.d[0];
    double logits[5 * 128];
    const double *const made[] = {logits};
    const op_case rest = {.in = {{FV_SHAPE(5, n)}}};
    for (int64_t i = 0; i < 5 * n; i++) {
        logits[i] = 0;
        for (int64_t j = 0; j < d; j++) logits[i] += in[0][i / n * d + j] * in[1][i % n * d + j];
    }
    want_entropy(&rest, y, made);
}

static fv_tensor *bce(fv_ctx *c, fv_tensor *const *x) { return fv_bce(c, x[0], x[1]); }
static fv_tensor *hinge(fv_ctx *c, fv_tensor *const *x) { return fv_hinge(c, x[0], x[1]); }
static fv_tensor *mse(fv_ctx *c, fv_tensor *const *x) { return fv_mse(c, x[0], x[1]); }
static fv_tensor *mae(fv_ctx *c, fv_tensor *const *x) { return fv_mae(c, x[0], x[1]); }

/* Three sequences of up to 4 frames and 3 labels, one of them without labels. */
static const int32_t words[] = {2, 1, 4, 3, 3, 0, 0, 0, 0}, frames[] = {4, 3, 2},
                     lens[] = {3, 2, 0};

static fv_tensor *rnnt(fv_ctx *c, fv_tensor *const *x)
{
    return fv_rnnt_loss(c, x[0], fv_ints(c, words, FV_SHAPE(3, 3)), fv_ints(c, frames, FV_SHAPE(3)),
                        fv_ints(c, lens, FV_SHAPE(3)), 0);
}

/* The probability of every path from (t,u) on, one after the other. */
static double paths(const double *x, int b, int t, int u)
{
    const double *row = x + ((b * 4 + t) * 4 + u) * 5;
    double sum = 0, all = 0;
    for (int j = 0; j < 5; j++) all += exp(row[j]);
    if (t == frames[b] - 1 && u == lens[b]) return exp(row[0]) / all;
    if (t < frames[b] - 1) sum += exp(row[0]) / all * paths(x, b, t + 1, u);
    if (u < lens[b]) sum += exp(row[words[b * 3 + u]]) / all * paths(x, b, t, u + 1);
    return sum;
}

static void want_rnnt(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int b = 0; b < 3; b++) y[b] = -log(paths(in[0], b, 0, 0));
}

/* Conditional random field: a chain with a gap, one of a single position, one without labels. */
static const int32_t crf_labels[] = {0, -100, 2, 1, -100, 2, -100, -100, -100, -100, -100, -100};

static fv_tensor *crf(fv_ctx *c, fv_tensor *const *x)
{
    return fv_crf_loss(c, x[0], x[1], fv_ints(c, crf_labels, FV_SHAPE(3, 4)));
}

/* Every sequence of labels, one after the other. */
static void want_crf(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int b = 0; b < 3; b++) {
        double all = 0, right = 0;
        int at[4], n = 0, ways = 1;
        for (int t = 0; t < 4; t++)
            if (crf_labels[4 * b + t] >= 0) at[n++] = t, ways *= 3;
        for (int way = 0; way < ways; way++) {
            double score = 0;
            int before = 3, rest = way;
            bool is = true;
            for (int i = 0; i < n; i++, rest /= 3) {
                int label = rest % 3;
                score += in[0][(4 * b + at[i]) * 3 + label] + in[1][before * 3 + label];
                is = is && label == crf_labels[4 * b + at[i]];
                before = label;
            }
            if (n) score += in[1][4 * 3 + before];
            all += exp(score);
            if (is) right = score;
        }
        y[b] = log(all) - right;
    }
}

/* Three sequences of CTC: one label twice in a row, padding behind one, no label at all. */
static const int32_t ctc_frames[] = {4, 3, 2}, ctc_lens[] = {2, 2, 0},
                     ctc_labels[] = {2, 2, 1, 3, 0, 0};

static fv_tensor *ctc(fv_ctx *c, fv_tensor *const *x)
{
    return fv_ctc_loss(c, x[0], fv_ints(c, ctc_labels, FV_SHAPE(3, 2)),
                       fv_ints(c, ctc_frames, FV_SHAPE(3)), fv_ints(c, ctc_lens, FV_SHAPE(3)), 0);
}

/* Whether what the frames of a way say, without repeats and blanks, is the labels of sequence b. */
static bool spells(int way, int b)
{
    int before = 0, n = 0;
    for (int t = 0; t < ctc_frames[b]; t++, way /= 4) {
        int says = way % 4;
        if (says && says != before) {
            if (n == ctc_lens[b] || says != ctc_labels[2 * b + n]) return false;
            n++;
        }
        before = says;
    }
    return n == ctc_lens[b];
}

/* Every way there is, one after the other. */
static void want_ctc(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int b = 0; b < 3; b++) {
        int ways = 1 << 2 * ctc_frames[b];
        double sum = 0;
        for (int way = 0; way < ways; way++) {
            double p = spells(way, b) ? 1 : 0;
            for (int t = 0, rest = way; t < ctc_frames[b]; t++, rest /= 4) {
                const double *row = in[0] + (b * 4 + t) * 4;
                p *= exp(row[rest % 4]) / (exp(row[0]) + exp(row[1]) + exp(row[2]) + exp(row[3]));
            }
            sum += p;
        }
        y[b] = -log(sum);
    }
}

/* ---- convolutions ---- */

static fv_tensor *conv1d(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv1d(c, x[0], x[1], x[2],
                     (fv_conv_opt){.stride = 2, .pad = 1, .dilation = 2, .groups = 2});
}

static fv_tensor *conv2d(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv2d(c, x[0], x[1], x[2], (fv_conv_opt){.stride = 2, .pad = 1});
}
static fv_tensor *conv_depth(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv2d(c, x[0], x[1], NULL, (fv_conv_opt){.pad = 1, .groups = 4});
}
static fv_tensor *conv_point(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv2d(c, x[0], x[1], x[2], (fv_conv_opt){0});
}

static fv_tensor *conv1d_transpose(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv1d_transpose(c, x[0], x[1], x[2],
                               (fv_conv_opt){.stride = 3, .pad = 1, .groups = 2, .out_pad = 2});
}

static fv_tensor *conv2d_transpose(fv_ctx *c, fv_tensor *const *x)
{
    return fv_conv2d_transpose(c, x[0], x[1], x[2],
                               (fv_conv_opt){.stride = 2, .pad = 1, .out_pad = 1});
}

static fv_tensor *nearest(fv_ctx *c, fv_tensor *const *x)
{
    return fv_upsample_nearest(c, x[0], 3);
}
static fv_tensor *bilinear_up(fv_ctx *c, fv_tensor *const *x)
{
    return fv_upsample_bilinear(c, x[0], 7, 9);
}
static fv_tensor *bilinear_down(fv_ctx *c, fv_tensor *const *x)
{
    return fv_upsample_bilinear(c, x[0], 3, 2);
}

static void want_nearest(const op_case *k, double *y, const double *const *in)
{
    const int64_t *d = k->in[0].shape.d, h = d[2] * 3, w = d[3] * 3;
    for (int64_t i = 0; i < d[0] * d[1] * h * w; i++)
        y[i] = in[0][(i / (h * w) * d[2] + i / w % h / 3) * d[3] + i % w / 3];
}

/* ---- rotary positions: heads of 7, of which 6 turn ---- */

static const int32_t positions[] = {0, 1, 2, 9, 4, 3};
static const float freqs[] = {1, 0.3125f, 0.046875f};

/* Frequencies are f32 whatever the context computes in; these all dtypes hold exactly. */
static fv_tensor *turn(fv_ctx *c, fv_tensor *x, bool adjacent)
{
    fv_tensor *freq = fv_cast(c, fv_floats(c, freqs, FV_SHAPE(3)), FV_F32);
    return fv_rope(c, x, fv_ints(c, positions, FV_SHAPE(2, 3)), freq,
                   (fv_rope_opt){.n_head = 2, .adjacent = adjacent});
}

static fv_tensor *rope_half(fv_ctx *c, fv_tensor *const *x) { return turn(c, x[0], false); }
static fv_tensor *rope_adjacent(fv_ctx *c, fv_tensor *const *x) { return turn(c, x[0], true); }

static void want_rope(double *y, const double *x, bool adjacent)
{
    for (int i = 0; i < 6 * 14; i++) {
        int at = i % 7, pair = adjacent ? at / 2 : at % 3, second = adjacent ? at % 2 : at / 3;
        double angle = positions[i / 14] * (double)freqs[pair % 3];
        const double *head = x + i - at;
        double a = head[adjacent ? 2 * pair : pair],
               b = head[adjacent ? (2 * pair + 1) % 7 : (pair + 3) % 7];
        y[i] = at == 6  ? x[i]
               : second ? a * sin(angle) + b * cos(angle)
                        : a * cos(angle) - b * sin(angle);
    }
}

static void want_rope_half(const op_case *k, double *y, const double *const *in)
{
    (void)k, want_rope(y, in[0], false);
}
static void want_rope_adjacent(const op_case *k, double *y, const double *const *in)
{
    (void)k, want_rope(y, in[0], true);
}

#define WIDE .low = -4, .high = 4
#define OPTIONAL .optional = true

static const op_case cases[] = {
    {.name = "layernorm",
     .build = layernorm,
     .in = {{FV_SHAPE(3, 5, 13), WIDE}, {FV_SHAPE(13), OPTIONAL}, {FV_SHAPE(13), OPTIONAL}},
     .want = want_layernorm,
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(3, 5, 13), FV_SHAPE(12)}},
    {.name = "layernorm, many",
     .build = layernorm,
     .in = {{FV_SHAPE(300, 129), WIDE}, {FV_SHAPE(129), OPTIONAL}, {FV_SHAPE(129), OPTIONAL}},
     .want = want_layernorm,
     .flags = OP_BY_ROW},
    {.name = "layernorm, bare",
     .build = layernorm_bare,
     .in = {{FV_SHAPE(4, 9)}},
     .flags = OP_BY_ROW},
    {.name = "rmsnorm",
     .build = rmsnorm,
     .in = {{FV_SHAPE(3, 5, 13), WIDE}, {FV_SHAPE(13), OPTIONAL}},
     .want = want_rmsnorm,
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(3, 5, 13), FV_SHAPE(3, 5)}},
    {.name = "rmsnorm, many",
     .build = rmsnorm,
     .in = {{FV_SHAPE(300, 129), WIDE}, {FV_SHAPE(129), OPTIONAL}},
     .want = want_rmsnorm,
     .flags = OP_BY_ROW},
    {.name = "rmsnorm, bare", .build = rmsnorm_bare, .in = {{FV_SHAPE(4, 9)}}, .flags = OP_BY_ROW},
    {.name = "add_layernorm",
     .build = add_layernorm,
     .in = {{FV_SHAPE(6, 13), WIDE},
            {FV_SHAPE(6, 13), WIDE},
            {FV_SHAPE(13), OPTIONAL},
            {FV_SHAPE(13), OPTIONAL}},
     .want = want_add_layernorm,
     .bad = {FV_SHAPE(6, 13), FV_SHAPE(5, 13)}},
    {.name = "add_layernorm of x and x",
     .build = add_to_itself,
     .in = {{FV_SHAPE(6, 13), WIDE}, {FV_SHAPE(13), OPTIONAL}}},
    {.name = "add_rmsnorm",
     .build = add_rmsnorm,
     .in = {{FV_SHAPE(6, 13), WIDE}, {FV_SHAPE(6, 13), WIDE}, {FV_SHAPE(13), OPTIONAL}}},
    {.name = "batchnorm, training",
     .build = batchnorm,
     .in = {{FV_SHAPE(4, 3, 5), WIDE}, {FV_SHAPE(3), OPTIONAL}, {FV_SHAPE(3), OPTIONAL}},
     .flags = OP_TRAIN,
     .loose = 4,
     .bad = {FV_SHAPE(4, 2, 5)}},
    {.name = "batchnorm",
     .build = batchnorm,
     .in = {{FV_SHAPE(4, 3, 2, 5), WIDE}, {FV_SHAPE(3), OPTIONAL}, {FV_SHAPE(3), OPTIONAL}},
     .flags = OP_BY_ROW},
    {.name = "spectral_norm",
     .build = spectral_norm,
     .in = {{FV_SHAPE(4, 3, 2), .low = 0.1f, .high = 1},
            {FV_SHAPE(4), .low = 0.3f, .high = 0.6f, .fixed = true},
            {FV_SHAPE(6), .low = 0.3f, .high = 0.5f, .fixed = true}},
     .loose = 4,
     .bad = {FV_SHAPE(4, 3, 2), FV_SHAPE(3)}},
    /* more rows than a block has warps, vectors of 16 bytes */
    {.name = "spectral_norm, many",
     .build = spectral_norm,
     .in = {{FV_SHAPE(40, 2, 4, 3), .low = 0.1f, .high = 1},
            {FV_SHAPE(40), .low = 0.1f, .high = 0.3f, .fixed = true},
            {FV_SHAPE(24), .low = 0.1f, .high = 0.4f, .fixed = true}},
     .loose = 4},

    {.name = "gather",
     .build = gather,
     .in = {{FV_SHAPE(7, 5)}},
     .want = want_gather,
     .bad = {FV_SHAPE(7, 5, 2)}},
    {.name = "gather, many", .build = gather_many, .in = {{FV_SHAPE(37, 65)}}},
    {.name = "scatter_add",
     .build = scatter_add,
     .in = {{FV_SHAPE(2, 3, 5)}},
     .want = want_scatter,
     .bad = {FV_SHAPE(2, 4, 5)}},

    {.name = "cross_entropy",
     .build = entropy,
     .in = {{FV_SHAPE(5, 13), WIDE}},
     .want = want_entropy,
     .bad = {FV_SHAPE(4, 13)}},
    {.name = "cross_entropy of a product",
     .build = entropy_of_product,
     .in = {{FV_SHAPE(5, 6)}, {FV_SHAPE(13, 6)}},
     .want = want_entropy_of_product,
     .bad = {FV_SHAPE(4, 6), FV_SHAPE(13, 5)}},
    {.name = "cross_entropy of a product, in training",
     .build = entropy_of_product,
     .in = {{FV_SHAPE(5, 16)}, {FV_SHAPE(77, 16)}},
     .want = want_entropy_of_product,
     .flags = OP_TRAIN,
     .bad = {FV_SHAPE(4, 16), FV_SHAPE(77, 15)}},
    {.name = "bce",
     .build = bce,
     .in = {{FV_SHAPE(3, 7), WIDE}, {FV_SHAPE(3, 7), .low = 0.1f, .high = 0.9f}},
     .bad = {FV_SHAPE(3, 7), FV_SHAPE(7, 3)}},
    {.name = "hinge",
     .build = hinge,
     .in = {{FV_SHAPE(3, 7), WIDE}, {FV_SHAPE(3, 7)}},
     .bad = {FV_SHAPE(3, 7), FV_SHAPE(3, 1)}},
    {.name = "mse",
     .build = mse,
     .in = {{FV_SHAPE(3, 7)}, {FV_SHAPE(3, 7)}},
     .bad = {FV_SHAPE(3, 7), FV_SHAPE(7)}},
    {.name = "mae",
     .build = mae,
     .in = {{FV_SHAPE(3, 7)}, {FV_SHAPE(3, 7)}},
     .flags = OP_DISTINCT,
     .bad = {FV_SHAPE(3, 7), FV_SHAPE(7)}},
    {.name = "rnnt_loss",
     .build = rnnt,
     .in = {{FV_SHAPE(3, 4, 4, 5), WIDE}},
     .want = want_rnnt,
     .bad = {FV_SHAPE(3, 4, 3, 5)}},
    {.name = "crf_loss",
     .build = crf,
     .in = {{FV_SHAPE(3, 4, 3), WIDE}, {FV_SHAPE(5, 3), WIDE}},
     .want = want_crf,
     .bad = {FV_SHAPE(3, 4, 3), FV_SHAPE(3, 3)}},
    {.name = "ctc_loss",
     .build = ctc,
     .in = {{FV_SHAPE(3, 4, 4), WIDE}},
     .want = want_ctc,
     .bad = {FV_SHAPE(2, 4, 4)}},

    {.name = "conv1d",
     .build = conv1d,
     .in = {{FV_SHAPE(2, 4, 9)}, {FV_SHAPE(6, 2, 3)}, {FV_SHAPE(6), OPTIONAL}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 6, 9)}},
    {.name = "conv2d",
     .build = conv2d,
     .in = {{FV_SHAPE(2, 3, 6, 7)}, {FV_SHAPE(4, 3, 3, 2)}, {FV_SHAPE(4), OPTIONAL}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 3, 6, 7), FV_SHAPE(4, 3, 9, 2)}},
    {.name = "conv2d, many",
     .build = conv2d,
     .in = {{FV_SHAPE(3, 4, 24, 25)}, {FV_SHAPE(8, 4, 3, 3)}, {FV_SHAPE(8), OPTIONAL}},
     .flags = OP_BY_ROW},
    {.name = "conv2d by channel",
     .build = conv_depth,
     .in = {{FV_SHAPE(2, 4, 5, 5)}, {FV_SHAPE(4, 1, 3, 3)}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 6, 5, 5)}},
    {.name = "conv2d by channel, in vectors",
     .build = conv_depth,
     .in = {{FV_SHAPE(3, 4, 6, 16)}, {FV_SHAPE(4, 1, 3, 3)}},
     .flags = OP_BY_ROW},
    {.name = "conv2d by pixel",
     .build = conv_point,
     .in = {{FV_SHAPE(2, 3, 4, 3)}, {FV_SHAPE(5, 3, 1, 1)}, {FV_SHAPE(5), OPTIONAL}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 3, 4)}},
    {.name = "conv1d_transpose",
     .build = conv1d_transpose,
     .in = {{FV_SHAPE(2, 4, 5)}, {FV_SHAPE(4, 3, 3)}, {FV_SHAPE(6), OPTIONAL}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 4, 5), FV_SHAPE(3, 3, 3)}},
    {.name = "conv2d_transpose",
     .build = conv2d_transpose,
     .in = {{FV_SHAPE(2, 3, 4, 3)}, {FV_SHAPE(3, 4, 3, 2)}, {FV_SHAPE(4), OPTIONAL}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 3, 4, 3), FV_SHAPE(3, 4, 3, 2), FV_SHAPE(3)}},
    {.name = "upsample_nearest",
     .build = nearest,
     .in = {{FV_SHAPE(2, 2, 2, 3)}},
     .want = want_nearest,
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 2, 3)}},
    {.name = "upsample_bilinear",
     .build = bilinear_up,
     .in = {{FV_SHAPE(2, 2, 4, 5)}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(2, 2, 3)}},
    {.name = "upsample_bilinear, smaller",
     .build = bilinear_down,
     .in = {{FV_SHAPE(2, 2, 4, 5)}},
     .flags = OP_BY_ROW},

    {.name = "rope by halves",
     .build = rope_half,
     .in = {{FV_SHAPE(2, 3, 14)}},
     .want = want_rope_half,
     .bad = {FV_SHAPE(2, 3, 15)}},
    {.name = "rope by neighbours",
     .build = rope_adjacent,
     .in = {{FV_SHAPE(2, 3, 14)}},
     .want = want_rope_adjacent,
     .bad = {FV_SHAPE(2, 2, 14)}},
};

int main(void)
{
    return op_table_run("norms, tables, losses, convolutions, positions", cases,
                        sizeof cases / sizeof *cases);
}
