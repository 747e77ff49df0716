/* test_ops_golden.c - norms, losses, convolutions, rotary positions and the optimiser do what
 * PyTorch does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"
#include "helper/golden.h"

#define MAX_IN 3

/* One entry of the golden file: inputs by name, the result y, and for a given dy the gradients
 * d<input>. */
typedef struct entry {
    const char *name;
    const char *in[MAX_IN];
    fv_tensor *(*build)(const golden *g, fv_tensor *const *x);
    bool train;
} entry;

static fv_tensor *layernorm(const golden *g, fv_tensor *const *x)
{
    return fv_layernorm(g->ctx, x[0], x[1], x[2], 1e-3f);
}
static fv_tensor *rmsnorm(const golden *g, fv_tensor *const *x)
{
    return fv_rmsnorm(g->ctx, x[0], x[1], 1e-3f);
}

static fv_tensor *batchnorm(const golden *g, fv_tensor *const *x)
{
    fv_tensor *mean = golden_floats(g, "batchnorm.mean"), *var = golden_floats(g, "batchnorm.var");
    fv_tensor *y = fv_batchnorm(g->ctx, x[0], x[1], x[2], mean, var, 0.1f, 1e-3f);
    bool train = fv_ctx_training(g->ctx);
    golden_near(g, mean, 1e-5, "batchnorm.mean%s", train ? "_after" : "");
    golden_near(g, var, 1e-5, "batchnorm.var%s", train ? "_after" : "");
    return y;
}

static fv_tensor *spectral(const golden *g, fv_tensor *const *x)
{
    fv_tensor *u = golden_floats(g, "spectral.u"), *v = golden_floats(g, "spectral.v");
    fv_tensor *y = fv_spectral_norm(g->ctx, x[0], u, v, 1e-6f);
    golden_near(g, u, 1e-5, "spectral.u_after");
    golden_near(g, v, 1e-5, "spectral.v_after");
    return y;
}

static fv_tensor *conv1d(const golden *g, fv_tensor *const *x)
{
    return fv_conv1d(g->ctx, x[0], x[1], x[2],
                     (fv_conv_opt){.stride = 2, .pad = 1, .dilation = 2, .groups = 2});
}

static fv_tensor *conv2d(const golden *g, fv_tensor *const *x)
{
    return fv_conv2d(g->ctx, x[0], x[1], x[2], (fv_conv_opt){.stride = 2, .pad = 1});
}

static fv_tensor *conv2d_depth(const golden *g, fv_tensor *const *x)
{
    return fv_conv2d(g->ctx, x[0], x[1], x[2], (fv_conv_opt){.pad = 1, .groups = 4});
}

static fv_tensor *conv2d_point(const golden *g, fv_tensor *const *x)
{
    return fv_conv2d(g->ctx, x[0], x[1], x[2], (fv_conv_opt){0});
}

static fv_tensor *conv1d_t(const golden *g, fv_tensor *const *x)
{
    return fv_conv1d_transpose(g->ctx, x[0], x[1], x[2],
                               (fv_conv_opt){.stride = 3, .pad = 1, .groups = 2, .out_pad = 2});
}

static fv_tensor *conv2d_t(const golden *g, fv_tensor *const *x)
{
    return fv_conv2d_transpose(g->ctx, x[0], x[1], x[2],
                               (fv_conv_opt){.stride = 2, .pad = 1, .out_pad = 1});
}

static fv_tensor *conv2d_td(const golden *g, fv_tensor *const *x)
{
    return fv_conv2d_transpose(g->ctx, x[0], x[1], x[2],
                               (fv_conv_opt){.stride = 2, .dilation = 3, .out_pad = 2});
}

static fv_tensor *bilinear7(const golden *g, fv_tensor *const *x)
{
    return fv_upsample_bilinear(g->ctx, x[0], 7, 9);
}
static fv_tensor *bilinear3(const golden *g, fv_tensor *const *x)
{
    return fv_upsample_bilinear(g->ctx, x[0], 3, 2);
}
static fv_tensor *nearest(const golden *g, fv_tensor *const *x)
{
    return fv_upsample_nearest(g->ctx, x[0], 3);
}

static fv_tensor *entropy(const golden *g, fv_tensor *const *x)
{
    return fv_cross_entropy(g->ctx, x[0], golden_ints(g, "entropy.labels"),
                            (fv_ce_opt){.smooth = 0.1f, .ignore = -100});
}

static fv_tensor *bce(const golden *g, fv_tensor *const *x) { return fv_bce(g->ctx, x[0], x[1]); }
static fv_tensor *mse(const golden *g, fv_tensor *const *x) { return fv_mse(g->ctx, x[0], x[1]); }
static fv_tensor *mae(const golden *g, fv_tensor *const *x) { return fv_mae(g->ctx, x[0], x[1]); }
static fv_tensor *hinge(const golden *g, fv_tensor *const *x)
{
    return fv_hinge(g->ctx, x[0], golden_floats(g, "hinge.sign"));
}

static fv_tensor *turned(const golden *g, fv_tensor *x, bool adjacent)
{
    fv_tensor *pos = golden_ints(g, "rope.pos"),
              *freq = fv_cast(g->ctx, golden_floats(g, "rope.freq"), FV_F32);
    x = fv_reshape(g->ctx, x, FV_SHAPE(2, 3, 16)); /* two heads of eight */
    return fv_rope(g->ctx, x, pos, freq, (fv_rope_opt){.n_head = 2, .adjacent = adjacent});
}

static fv_tensor *rope_half(const golden *g, fv_tensor *const *x) { return turned(g, x[0], false); }
static fv_tensor *rope_adjacent(const golden *g, fv_tensor *const *x)
{
    return turned(g, x[0], true);
}

static const entry entries[] = {
    {"layernorm", {"x", "gain", "bias"}, layernorm, false},
    {"rmsnorm", {"x", "gain"}, rmsnorm, false},
    {"batchnorm", {"x", "gain", "bias"}, batchnorm, true},
    {"batchnorm_eval", {"x", "gain", "bias"}, batchnorm, false},
    {"spectral", {"w"}, spectral, true},
    {"conv1d", {"x", "w", "b"}, conv1d, false},
    {"conv2d", {"x", "w", "b"}, conv2d, false},
    {"conv2d_depth", {"x", "w", "b"}, conv2d_depth, false},
    {"conv2d_point", {"x", "w", "b"}, conv2d_point, false},
    {"conv1d_t", {"x", "w", "b"}, conv1d_t, false},
    {"conv2d_t", {"x", "w", "b"}, conv2d_t, false},
    {"conv2d_td", {"x", "w", "b"}, conv2d_td, false},
    {"bilinear7", {"x"}, bilinear7, false},
    {"bilinear3", {"x"}, bilinear3, false},
    {"nearest", {"x"}, nearest, false},
    {"entropy", {"x"}, entropy, false},
    {"bce", {"x", "t"}, bce, false},
    {"mse", {"x", "t"}, mse, false},
    {"mae", {"x", "t"}, mae, false},
    {"hinge", {"x"}, hinge, false},
    {"rope_half", {"x"}, rope_half, false},
    {"rope_adjacent", {"x"}, rope_adjacent, false},
};
#define ENTRIES (sizeof entries / sizeof *entries)

/* In f64 the file's own rounding to f32 is all that is left. */
static void compare(const entry *k, fv_device *d, fv_dtype t, double tolerance)
{
    golden g = {.file = FOVEA_TESTS "/golden/nn_ops.safetensors"};
    fv_tensor *x[MAX_IN] = {0};
    assert_int_equal(fv_ctx_new(&g.ctx, d,
                                (fv_ctx_opt){.dtype = t, .record = true, .train = k->train}, NULL),
                     FV_OK);
    for (int i = 0; i < MAX_IN && k->in[i]; i++)
        x[i] = fv_watch(g.ctx, golden_floats(&g, "%s.%s", k->name, k->in[i]));
    fv_tensor *y = fv_hold(g.ctx, k->build(&g, x));
    golden_near(&g, y, tolerance, "%s.y", k->name);

    fv_array dy = golden_array(&g, "%s.dy", k->name);
    assert_int_equal(fv_backward_from(g.ctx, y, dy.data), FV_OK);
    fv_array_close(&dy);
    for (int i = 0; i < MAX_IN && k->in[i]; i++)
        golden_grad_near(&g, x[i], 2 * tolerance, "%s.d%s", k->name, k->in[i]);
    fv_ctx_free(g.ctx);
}

static void agrees(void **state)
{
    fv_device *d;
    assert_int_equal(fv_device_open(&d, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    if (test_on_cpu()) compare(*state, d, FV_F64, 2e-7);
    compare(*state, d, FV_F32, 1e-5);
    fv_device_close(d);
}

/* w, m, v and grad as tensors of a context: the kernel asks only for their memory. */
static void adamw_agrees(void **state)
{
    (void)state;
    fv_device *d;
    golden g = {.file = FOVEA_TESTS "/golden/nn_ops.safetensors"};
    assert_int_equal(fv_device_open(&d, test_device(), (fv_device_opt){0}, NULL), FV_OK);
    assert_int_equal(fv_ctx_new(&g.ctx, d, (fv_ctx_opt){0}, NULL), FV_OK);
    fv_tensor *w = golden_floats(&g, "adamw.before"), *grads = golden_floats(&g, "adamw.grads");
    fv_tensor *m = fv_zeros(g.ctx, FV_SHAPE(20)), *v = fv_zeros(g.ctx, FV_SHAPE(20));
    const fv_kernels *k = fv_kernels_of(g.ctx, FV_F32);
    float left1 = 1, left2 = 1;
    for (int t = 0; t < 3; t++) {
        left1 *= 0.9f;
        left2 *= 0.95f;
        const fv_update now = {.lr = 0.05f,
                               .bias_correction1 = 1 - left1,
                               .bias_correction2 = 1 - left2,
                               .grad_scale = 0.5f};
        fv_tensor *u = fv_bytes(g.ctx, (const uint8_t *)&now, FV_SHAPE((int64_t)sizeof now));
        fv_adamw o = {
            .lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .decay = 0.1f, .now = u->data};
        k->adamw(fv_ctx_stream(g.ctx), w->data, m->data, v->data, NULL, NULL,
                 (float *)grads->data + 20 * t, 20, &o);
    }
    golden_near(&g, w, 2e-6, "adamw.after");
    fv_ctx_free(g.ctx);
    fv_device_close(d);
}

int main(void)
{
    struct CMUnitTest tests[ENTRIES + 1] = {[ENTRIES] = cmocka_unit_test(adamw_agrees)};
    for (size_t i = 0; i < ENTRIES; i++)
        tests[i] = (struct CMUnitTest){entries[i].name, agrees, NULL, NULL,
                                       (void *)(uintptr_t)&entries[i]};
    return cmocka_run_group_tests_name("ops beside PyTorch", tests, NULL, NULL);
}
