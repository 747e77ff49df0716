/* test_attention_op.c - attention as an op: the worked example, PyTorch's numbers, the op table,
 * masks and caches. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "helper/golden.h"
#include "helper/optable.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"

static fv_device *dev;

static fv_ctx *context(bool record)
{
    fv_ctx *c = NULL;
    assert_int_equal(fv_ctx_new(&c, dev, (fv_ctx_opt){.record = record}, NULL), FV_OK);
    return c;
}

/* ---- the worked example ---- */

typedef struct seen {
    float weights[16];
    int calls;
    char name[32];
} seen;

static void look(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    seen *s = user;
    if (!strcmp(site, "attention_output")) {
        assert_true(fv_shape_same(((const fv_tensor *)what)->shape, FV_SHAPE(1, 4, 3)));
        return;
    }
    assert_string_equal(site, "attention");
    assert_true(fv_shape_same(fv_attn_view_shape(what), FV_SHAPE(1, 1, 4, 4)));
    assert_int_equal(fv_attn_view_weights(c, what, 0, 0, 0, 4, s->weights), FV_OK);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->calls++;
}

static void worked_example(void **state)
{
    static const float weights[4] = {0.2125f, 0.2357f, 0.2616f, 0.2902f},
                       output[3] = {1.4889f, 1.5889f, 1.6889f};
    float q[12], v[12], y[12];
    seen s = {0};
    fv_ctx *c = context(false);
    (void)state;
    for (int i = 0; i < 12; i++) q[i] = (float)(i + 1) / 10, v[i] = (float)(i + 10) / 10;
    fv_ctx_set_tap(c, look, &s);
    fv_tensor *x = fv_floats(c, q, FV_SHAPE(1, 4, 3));
    fv_read(c,
            fv_attention(c, x, x, fv_floats(c, v, FV_SHAPE(1, 4, 3)),
                         (fv_attn){.n_head = 1, .name = "example"}),
            y, 12);
    assert_int_equal(fv_ctx_status(c), FV_OK);
    assert_int_equal(s.calls, 1);
    assert_string_equal(s.name, "example");
    for (int i = 0; i < 4; i++) assert_true(fabsf(s.weights[i] - weights[i]) < 5e-5f);
    for (int i = 0; i < 3; i++) assert_true(fabsf(y[i] - output[i]) < 5e-5f);
    fv_ctx_free(c);
}

/* ---- whole multi-head attention as PyTorch has it ---- */

#define GOLDEN FOVEA_TESTS "/golden/attention.safetensors"

enum { CAUSAL = 1, PADDING = 2, MASK = 4, BIAS = 8, CROSS = 16 };

typedef struct {
    const char *name;
    int with;
} mha;

typedef struct taken {
    const golden *g;
    const mha *m;
} taken;

static void take_weights(void *user, fv_ctx *c, const char *site, const char *name,
                         const void *what)
{
    const taken *t = user;
    if (strcmp(site, "attention")) return;
    fv_shape s = fv_attn_view_shape(what);
    fv_array want = golden_array(t->g, "%s.weights", t->m->name);
    int64_t n = s.d[2] * s.d[3];
    float *w = malloc((size_t)n * sizeof *w);
    (void)name;
    assert_true(fv_shape_same(s, want.shape));
    for (int64_t h = 0; h < s.d[0] * s.d[1]; h++) {
        assert_int_equal(fv_attn_view_weights(c, what, h / s.d[1], h % s.d[1], 0, s.d[2], w),
                         FV_OK);
        for (int64_t i = 0; i < n; i++)
            if (fabsf(w[i] - want.data[h * n + i]) > 3e-6f)
                fail_msg("%s: weight %g, not %g", t->m->name, (double)w[i],
                         (double)want.data[h * n + i]);
    }
    free(w);
    fv_array_close(&want);
}

static void one_mha(const mha *m)
{
    fv_ctx *c = context(true);
    golden g = {GOLDEN, c};
    taken t = {&g, m};
    fv_tensor *x = fv_watch(c, golden_floats(&g, "%s.x", m->name));
    fv_tensor *memory = m->with & CROSS ? fv_watch(c, golden_floats(&g, "%s.memory", m->name)) : x;
    fv_tensor *w_in = fv_watch(c, golden_floats(&g, "%s.w_in", m->name)),
              *b_in = fv_watch(c, golden_floats(&g, "%s.b_in", m->name));
    fv_tensor *w_out = fv_watch(c, golden_floats(&g, "%s.w_out", m->name)),
              *b_out = golden_floats(&g, "%s.b_out", m->name);
    fv_attn how = {.n_head = 3, .causal = m->with & CAUSAL};
    if (m->with & PADDING) how.key_mask = golden_mask(&g, "%s.padding", m->name);
    if (m->with & MASK) how.mask = golden_mask(&g, "%s.mask", m->name);
    if (m->with & BIAS) how.bias = fv_watch(c, golden_floats(&g, "%s.bias", m->name));
    fv_ctx_set_tap(c, take_weights, &t);

    fv_tensor *y;
    if (m->with & CROSS) {
        fv_tensor *w[3], *b[3];
        assert_true(fv_split(c, w, w_in, 3, 0) && fv_split(c, b, b_in, 3, 0));
        y = fv_attention(c, fv_linear(c, x, w[0], b[0], FV_ACT_NONE),
                         fv_linear(c, memory, w[1], b[1], FV_ACT_NONE),
                         fv_linear(c, memory, w[2], b[2], FV_ACT_NONE), how);
    } else {
        y = fv_attention_packed(c, fv_linear(c, x, w_in, b_in, FV_ACT_NONE), how);
    }
    y = fv_hold(c, fv_linear(c, y, w_out, b_out, FV_ACT_NONE));
    fv_array dy = golden_array(&g, "%s.dy", m->name);
    fv_backward_from(c, y, dy.data);
    fv_array_close(&dy);
    assert_int_equal(fv_ctx_status(c), FV_OK);
    /* f32 on CUDA rounds a score once more, before the maximum is subtracted */
    golden_near(&g, y, test_on_cpu() ? 1e-6 : 2e-6, "%s.y", m->name);
    golden_grad_near(&g, x, 1e-5, "%s.dx", m->name);
    if (m->with & CROSS) golden_grad_near(&g, memory, 1e-5, "%s.dmemory", m->name);
    if (m->with & BIAS) golden_grad_near(&g, how.bias, 1e-5, "%s.dbias", m->name);
    golden_grad_near(&g, w_in, 1e-5, "%s.dw_in", m->name);
    golden_grad_near(&g, b_in, 1e-5, "%s.db_in", m->name);
    golden_grad_near(&g, w_out, 1e-5, "%s.dw_out", m->name);
    fv_ctx_free(c);
}

static void multi_head_attention_with_every_mask(void **state)
{
    static const mha all[] = {
        {"full", 0},           {"causal", CAUSAL},
        {"padding", PADDING},  {"mask", MASK},
        {"head_mask", MASK},   {"bias", BIAS},
        {"shared_bias", BIAS}, {"causal_padding", CAUSAL | PADDING},
        {"cross", CROSS},      {"cross_padding", CROSS | PADDING},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) one_mha(&all[i]);
}

static void scaled_dot_product_attention(void **state)
{
    static const struct {
        const char *name;
        fv_attn how;
        bool mask, rel;
    } all[] = {
        {"grouped", {.n_head = 4, .n_kv_head = 2, .causal = true}, false, false},
        {"wide_values", {.n_head = 2}, false, false},
        /* the mask of the file, as options */
        {"window", {.n_head = 2, .causal = true, .window = 4}, false, false},
        {"window", {.n_head = 2}, true, false},
        {"scale", {.n_head = 2, .n_kv_head = 1, .scale = 0.7f}, false, false},
        {"rel", {.n_head = 3, .rel_zero = 5}, false, true},
        {"rel_cross", {.n_head = 2, .rel_zero = 3}, false, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        fv_ctx *c = context(true);
        golden g = {GOLDEN, c};
        fv_attn how = all[i].how;
        const char *name = all[i].name;
        fv_tensor *q = fv_watch(c, golden_floats(&g, "%s.q", name)),
                  *k = fv_watch(c, golden_floats(&g, "%s.k", name));
        fv_tensor *v = fv_watch(c, golden_floats(&g, "%s.v", name));
        if (all[i].mask) how.mask = golden_mask(&g, "%s.mask", name);
        if (all[i].rel) how.rel = fv_watch(c, golden_floats(&g, "%s.rel", name));
        fv_tensor *y = fv_hold(c, fv_attention(c, q, k, v, how));
        fv_array dy = golden_array(&g, "%s.dy", name);
        fv_backward_from(c, y, dy.data);
        fv_array_close(&dy);
        assert_int_equal(fv_ctx_status(c), FV_OK);
        golden_near(&g, y, 1e-6, "%s.y", name);
        golden_grad_near(&g, q, 1e-5, "%s.dq", name);
        golden_grad_near(&g, k, 1e-5, "%s.dk", name);
        golden_grad_near(&g, v, 1e-5, "%s.dv", name);
        if (all[i].rel) golden_grad_near(&g, how.rel, 1e-5, "%s.drel", name);
        fv_ctx_free(c);
    }
}

/* ---- refusals ---- */

static void refused(fv_status code, const char *word, fv_attn how, fv_dtype mask_type)
{
    static const float zeros[256];
    static const uint8_t ones[256];
    static const int32_t ints[256];
    fv_ctx *c = context(false);
    fv_tensor *x = fv_floats(c, zeros, FV_SHAPE(2, 3, 8));
    fv_shape wrong = FV_SHAPE(2, 4);
    fv_tensor *bad = mask_type == FV_U8    ? fv_bytes(c, ones, wrong)
                     : mask_type == FV_I32 ? fv_ints(c, ints, wrong)
                                           : fv_floats(c, zeros, wrong);
    if (!strcmp(word, "key_mask")) how.key_mask = bad;
    if (!strcmp(word, "mask")) how.mask = bad;
    if (!strcmp(word, "bias")) how.bias = bad;
    if (!strcmp(word, "lens")) how.lens = bad;
    if (!strcmp(word, "rel")) how.rel = bad;
    assert_null(fv_attention(c, x, x, x, how));
    assert_int_equal(fv_ctx_status(c), code);
    if (!strstr(fv_ctx_err(c)->text, word))
        fail_msg("\"%s\" does not speak of %s", fv_ctx_err(c)->text, word);
    fv_ctx_free(c);
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    refused(FV_ESHAPE, "key_mask", (fv_attn){.n_head = 2}, FV_U8);
    refused(FV_ESHAPE, "mask", (fv_attn){.n_head = 2}, FV_U8);
    refused(FV_ESHAPE, "mask", (fv_attn){.n_head = 2}, FV_F32);
    refused(FV_ESHAPE, "bias", (fv_attn){.n_head = 2}, FV_F32);
    refused(FV_ESHAPE, "bias", (fv_attn){.n_head = 2}, FV_U8);
    refused(FV_ESHAPE, "lens", (fv_attn){.n_head = 2}, FV_I32);
    refused(FV_ESHAPE, "rel", (fv_attn){.n_head = 4}, FV_F32);
    refused(FV_ESHAPE, "rel", (fv_attn){.n_head = 2, .rel_zero = 4}, FV_F32);
    refused(FV_EARG, "dropout", (fv_attn){.n_head = 2, .dropout = 1}, FV_F32);
    refused(FV_EARG, "window", (fv_attn){.n_head = 2, .window = -1}, FV_F32);
    refused(FV_EARG, "scale", (fv_attn){.n_head = 2, .scale = NAN}, FV_F32);
    refused(FV_EARG, "heads", (fv_attn){0}, FV_F32);
    refused(FV_EARG, "heads", (fv_attn){.n_head = 3, .n_kv_head = 2}, FV_F32);
    refused(FV_ESHAPE, "(2,3,8)", (fv_attn){.n_head = 3}, FV_F32);
}

/* ---- a cache, filled step by step, gives what the whole sequence gives ---- */

static void decoding_equals_the_whole(void **state)
{
    enum { BATCH = 2, LEN = 20, CAP = 32, WIDTH = 16 };
    static float x[3][BATCH * LEN * WIDTH], whole[BATCH * LEN * WIDTH], step[BATCH * WIDTH],
        zeros[BATCH * CAP * WIDTH];
    fv_attn how = {.n_head = 4, .causal = true};
    fv_ctx *c = context(false);
    (void)state;
    for (int i = 0; i < 3 * BATCH * LEN * WIDTH; i++)
        (&x[0][0])[i] = (float)(i * 37 % 101) / 50 - 1;
    fv_tensor *t[3];
    for (int i = 0; i < 3; i++) t[i] = fv_floats(c, x[i], FV_SHAPE(BATCH, LEN, WIDTH));
    fv_read(c, fv_attention(c, t[0], t[1], t[2], how), whole, BATCH * LEN * WIDTH);

    fv_tensor *keys = fv_floats(c, zeros, FV_SHAPE(BATCH, CAP, WIDTH)),
              *values = fv_floats(c, zeros, FV_SHAPE(BATCH, CAP, WIDTH));
    for (int32_t i = 0; i < LEN; i++) {
        fv_tensor *pos = fv_ints(c, (int32_t[]){i, i}, FV_SHAPE(BATCH));
        fv_tensor *now[3];
        for (int k = 0; k < 3; k++) now[k] = fv_slice(c, t[k], 1, i, i + 1);
        how.lens = fv_ints(c, (int32_t[]){i + 1, i + 1}, FV_SHAPE(BATCH));
        fv_tensor *y = fv_attention(c, now[0], fv_cache_write(c, keys, now[1], pos),
                                    fv_cache_write(c, values, now[2], pos), how);
        assert_int_equal(fv_read(c, y, step, BATCH * WIDTH), FV_OK);
        for (int b = 0; b < BATCH; b++)
            assert_memory_equal(step + b * WIDTH, whole + (b * LEN + i) * WIDTH,
                                WIDTH * sizeof *step);
    }
    fv_ctx_free(c);
}

/* ---- what is at the border ---- */

/* Gradients of the three and a table by distance, of the sum of squares of y; behind a step that
 * left other numbers there. */
static void gradients(double *g[4], fv_ctx *c, const float *x, int64_t Tq, int64_t Tk, fv_attn how)
{
    for (int64_t keys = Tq; keys >= 0; keys = keys == Tk ? -1 : Tk) {
        fv_ctx_reset(c, 0);
        fv_shape s[] = {FV_SHAPE(2, Tq, 16), FV_SHAPE(2, keys, 16), FV_SHAPE(2, keys, 16),
                        FV_SHAPE(2, 5)};
        fv_tensor *t[4];
        for (int i = 0; i < 4; i++) t[i] = fv_watch(c, fv_floats(c, x, s[i]));
        how.rel = t[3];
        fv_tensor *y = fv_attention(c, t[0], t[1], t[2], how);
        assert_int_equal(fv_backward(c, fv_sum_all(c, fv_mul(c, y, y))), FV_OK);
        for (int i = 0; i < 4; i++)
            assert_int_equal(fv_read_grad(c, t[i], g[i], fv_len(t[i])), FV_OK);
    }
}

static void without_keys_there_is_no_gradient(void **state)
{
    enum { ROWS = 7, N = 2 * ROWS * 16 };
    float x[N];
    double dq[N], dk[N], dv[N], drel[10], *g[4] = {dq, dk, dv, drel};
    fv_ctx *c = context(true);
    (void)state;
    for (int i = 0; i < N; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    gradients(g, c, x, ROWS, 0, (fv_attn){.n_head = 2, .rel_zero = 2});
    for (int i = 0; i < N; i++) assert_true(dq[i] == 0);
    for (int i = 0; i < 10; i++) assert_true(drel[i] == 0);
    fv_ctx_free(c);
}

static void a_window_of_everything_is_none(void **state)
{
    enum { ROWS = 70, N = 2 * ROWS * 16 };
    static float x[N];
    static double got[2][3][N], drel[2][10];
    fv_ctx *c = context(true);
    (void)state;
    for (int i = 0; i < N; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int k = 0; k < 2; k++) {
        double *g[4] = {got[k][0], got[k][1], got[k][2], drel[k]};
        gradients(
            g, c, x, ROWS, ROWS,
            (fv_attn){.n_head = 2, .rel_zero = 2, .causal = true, .window = k ? INT32_MAX : 0});
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_equal(drel[0], drel[1], sizeof drel[0]);
    fv_ctx_free(c);
}

/* Of one query as of many: it must not turn into zeros that nobody notices. */
static void what_is_no_number_stays_so(void **state)
{
    static float q[2 * 32], kv[5 * 32], y[2 * 32];
    fv_ctx *c = context(false);
    (void)state;
    for (int i = 0; i < 5 * 32; i++) kv[i] = (float)(i % 7);
    for (int i = 0; i < 2 * 32; i++) q[i] = NAN;
    for (int64_t rows = 1; rows <= 2; rows++) {
        fv_tensor *k = fv_floats(c, kv, FV_SHAPE(1, 5, 32));
        fv_tensor *out = fv_attention(c, fv_floats(c, q, FV_SHAPE(1, rows, 32)), k, k,
                                      (fv_attn){.n_head = 2});
        assert_int_equal(fv_read(c, out, y, rows * 32), FV_OK);
        for (int64_t i = 0; i < rows * 32; i++) assert_true(isnan(y[i]));
    }
    fv_ctx_free(c);
}

/* ---- the op table ---- */

#define X (fv_ctx * c, fv_tensor *const *x)

static fv_tensor *full X { return fv_attention(c, x[0], x[1], x[2], (fv_attn){.n_head = 2}); }
static fv_tensor *causal X
{
    return fv_attention(c, x[0], x[1], x[2],
                        (fv_attn){.n_head = 2, .n_kv_head = 1, .causal = true});
}
static fv_tensor *packed X
{
    return fv_attention_packed(c, x[0],
                               (fv_attn){.n_head = 2, .n_kv_head = 1, .causal = true, .window = 3});
}
static fv_tensor *biased X
{
    return fv_attention(c, x[0], x[1], x[2], (fv_attn){.n_head = 2, .bias = x[3]});
}
static fv_tensor *relative X
{
    return fv_attention(c, x[0], x[1], x[2], (fv_attn){.n_head = 2, .rel = x[3], .rel_zero = 2});
}
static fv_tensor *itself X
{
    return fv_attention(c, x[0], x[0], x[0], (fv_attn){.n_head = 2, .scale = 0.5f});
}
static fv_tensor *dropped X
{
    return fv_attention(c, x[0], x[1], x[2], (fv_attn){.n_head = 2, .dropout = 0.3f});
}

static fv_tensor *masked X
{
    static const uint8_t key[2 * 7] = {1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1};
    static const uint8_t grid[5 * 7] = {1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1,
                                        1, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 1};
    return fv_attention(c, x[0], x[1], x[2],
                        (fv_attn){.n_head = 2,
                                  .key_mask = fv_bytes(c, key, FV_SHAPE(2, 7)),
                                  .mask = fv_bytes(c, grid, FV_SHAPE(5, 7)),
                                  .lens = fv_ints(c, (int32_t[]){7, 6}, FV_SHAPE(2))});
}

static fv_tensor *written X
{
    return fv_cache_write(c, x[0], x[1], fv_ints(c, (int32_t[]){1, 3}, FV_SHAPE(2)));
}

#define QKV                                                                                        \
    {FV_SHAPE(2, 5, 6)}, {FV_SHAPE(2, 7, 6)}, { FV_SHAPE(2, 7, 10) }

static fv_tensor *broad(fv_ctx *c, fv_tensor *const *x)
{
    return fv_attention(c, x[0], x[1], x[2], (fv_attn){.n_head = 4, .n_kv_head = 2});
}

static fv_tensor *broad_packed(fv_ctx *c, fv_tensor *const *x)
{
    return fv_attention_packed(c, x[0], (fv_attn){.n_head = 2, .causal = true});
}

static const op_case cases[] = {
    {.name = "full", .build = full, .in = {QKV}, .bad = {{0}, FV_SHAPE(2, 7, 8)}},
    {.name = "grouped, causal",
     .build = causal,
     .in = {{FV_SHAPE(2, 5, 6)}, {FV_SHAPE(2, 7, 3)}, {FV_SHAPE(2, 7, 5)}},
     .bad = {FV_SHAPE(3, 5, 6)}},
    {.name = "packed, causal, window",
     .build = packed,
     .in = {{FV_SHAPE(3, 6, 12)}},
     .flags = OP_BY_ROW,
     .bad = {FV_SHAPE(3, 6, 10)}},
    {.name = "many rows, packed",
     .build = packed,
     .in = {{FV_SHAPE(3, 70, 24)}},
     .flags = OP_BY_ROW},
    /* what a library's fused kernels take, in memory too */
    {.name = "broad, grouped",
     .build = broad,
     .in = {{FV_SHAPE(2, 64, 128)}, {FV_SHAPE(2, 128, 64)}, {FV_SHAPE(2, 128, 64)}}},
    {.name = "broad, packed, causal", .build = broad_packed, .in = {{FV_SHAPE(1, 128, 384)}}},
    {.name = "bias of each head",
     .build = biased,
     .in = {QKV, {FV_SHAPE(2, 5, 7), .optional = true}},
     .bad = {{0}, {0}, {0}, FV_SHAPE(2, 7, 5)}},
    {.name = "bias of all", .build = biased, .in = {QKV, {FV_SHAPE(5, 7), .optional = true}}},
    {.name = "bias of keys",
     .build = biased,
     .in = {QKV, {FV_SHAPE(2, 1, 1, 7), .optional = true}}},
    {.name = "bias by distance",
     .build = relative,
     .in = {QKV, {FV_SHAPE(2, 6), .optional = true}},
     .bad = {{0}, {0}, {0}, FV_SHAPE(3, 6)}},
    {.name = "masks", .build = masked, .in = {QKV}},
    {.name = "one tensor for all", .build = itself, .in = {{FV_SHAPE(2, 5, 6)}}},
    {.name = "dropout", .build = dropped, .in = {QKV}, .flags = OP_TRAIN},
    {.name = "cache",
     .build = written,
     .in = {{FV_SHAPE(2, 5, 4)}, {FV_SHAPE(2, 2, 4)}},
     .flags = OP_NO_GRAD,
     .bad = {{0}, FV_SHAPE(2, 6, 4)}},
};

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(multi_head_attention_with_every_mask),
        cmocka_unit_test(scaled_dot_product_attention),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(decoding_equals_the_whole),
        cmocka_unit_test(without_keys_there_is_no_gradient),
        cmocka_unit_test(a_window_of_everything_is_none),
        cmocka_unit_test(what_is_no_number_stays_so),
    };
    fv_err e;
    if (fv_device_open(&dev, test_device(), (fv_device_opt){0}, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fv_device_close(dev);
    return failed + op_table_run("attention", cases, sizeof cases / sizeof *cases);
}
