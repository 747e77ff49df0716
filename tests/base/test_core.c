/* test_core.c - contexts, arenas, the tape and parameters keep what tensor.h promises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

typedef struct fixture {
    fv_mem_counter mem;
    fv_env env;
    fv_device *dev;
    fv_ctx *ctx;
} fixture;

static void open_with(fixture *f, fv_ctx_opt opt)
{
    fv_err e;
    fv_mem_counter_init(&f->mem);
    f->env = (fv_env){.mem = &f->mem.mem};
    assert_int_equal(fv_device_open(&f->dev, "cpu", (fv_device_opt){.threads = 1, .env = &f->env},
                                    &e),
                     FV_OK);
    assert_int_equal(fv_ctx_new(&f->ctx, f->dev, opt, &e), FV_OK);
}

static void close_all(fixture *f)
{
    fv_ctx_free(f->ctx);
    fv_device_close(f->dev);
    assert_int_equal(f->mem.live, 0);
}

static const float six[] = {1, 2, 3, 4, 5, 6};

/* What a file holds may be quoted in a message: it moves no cursor and begins no line. */
static void an_error_is_one_printable_line(void **state)
{
    (void)state;
    fv_err e;
    assert_int_equal(fv_fail(&e, FV_EFORMAT, "x: \"%s\"", "a\033[2J\n\177\xc3\xa9"), FV_EFORMAT);
    assert_string_equal(e.text, "x: \"a?[2J??\xc3\xa9\"");
}

static void an_error_sticks_and_the_first_is_kept(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){0});
    fv_tensor *a = fv_floats(f.ctx, six, FV_SHAPE(2, 3)),
              *b = fv_floats(f.ctx, six, FV_SHAPE(3, 2));
    assert_null(fv_add(f.ctx, a, b));
    assert_non_null(strstr(fv_ctx_err(f.ctx)->text, "(2,3)"));
    assert_non_null(strstr(fv_ctx_err(f.ctx)->text, "(3,2)"));
    assert_null(fv_add(f.ctx, a, a));
    assert_null(fv_softmax(f.ctx, NULL));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ESHAPE);
    fv_ctx_reset(f.ctx, 0);
    assert_int_equal(fv_ctx_status(f.ctx), FV_OK);
    assert_non_null(fv_floats(f.ctx, six, FV_SHAPE(6)));
    close_all(&f);
}

static void a_shape_that_overflows_is_refused(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){0});
    assert_null(fv_zeros(f.ctx, FV_SHAPE(INT64_MAX / 2, 16)));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ESHAPE);
    fv_ctx_reset(f.ctx, 0);
    assert_null(fv_zeros(f.ctx, FV_SHAPE(2, -1)));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ESHAPE);
    close_all(&f);
}

static void a_memory_limit_is_an_error_with_sizes(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){0});
    f.mem.limit = 8 << 20;
    assert_null(fv_zeros(f.ctx, FV_SHAPE(64, 1 << 20)));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ENOMEM);
    assert_non_null(strstr(fv_ctx_err(f.ctx)->text, "268435456 bytes"));
    close_all(&f);
}

/* One step of something with branches, reuse, shapes and a reduction. */
static fv_tensor *step(fv_ctx *c, fv_tensor *x)
{
    fv_tensor *h = fv_gelu(c, fv_mul(c, x, x));
    fv_tensor *y = fv_add(c, fv_softmax(c, h),
                          fv_reshape(c, fv_reshape(c, x, FV_SHAPE(-1)), fv_shape_of(x)));
    return fv_mean_all(c, fv_square(c, fv_add(c, y, h)));
}

static void a_repeated_step_allocates_nothing_and_keeps_its_addresses(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.record = true, .train = true});
    static float big[64 * 1000];
    for (int i = 0; i < 64 * 1000; i++) big[i] = sinf((float)i);
    void *at = NULL, *grad = NULL;
    size_t count = 0;
    for (uint64_t i = 0; i < 4; i++) {
        fv_ctx_reset(f.ctx, i);
        fv_tensor *x = fv_watch(f.ctx, fv_floats(f.ctx, big, FV_SHAPE(64, 1000)));
        fv_tensor *loss = step(f.ctx, x);
        assert_int_equal(fv_backward(f.ctx, loss), FV_OK);
        if (i >= 2) {
            assert_int_equal(f.mem.count, count);
            assert_ptr_equal(loss->data, at);
            assert_ptr_equal(x->grad, grad);
        }
        count = f.mem.count, at = loss->data, grad = x->grad;
    }
    close_all(&f);
}

static void backward_reuses_memory_and_says_so(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.record = true});
    fv_tensor *x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(2, 3)));
    fv_tensor *gone = fv_exp(f.ctx, x), *kept = fv_hold(f.ctx, fv_exp(f.ctx, gone));
    float y[6];
    double dx[6];
    fv_tensor *loss = fv_sum_all(f.ctx, kept);
    assert_int_equal(fv_backward(f.ctx, loss), FV_OK);
    assert_int_equal(fv_read(f.ctx, kept, y, 6), FV_OK);
    assert_int_equal(fv_read_grad(f.ctx, x, dx, 6), FV_OK);
    assert_true(fabs(dx[0] - exp(exp(1)) * exp(1)) < 1e-4 * dx[0]);
    assert_int_equal(fv_read(f.ctx, gone, y, 6), FV_ESTATE);
    assert_non_null(strstr(fv_ctx_err(f.ctx)->text, "fv_hold"));
    close_all(&f);
}

static void a_chain_of_many_ops_needs_little_more_than_its_forward_pass(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.record = true});
    const int64_t n = 1 << 18, depth = 40;
    fv_tensor *x = fv_watch(f.ctx, fv_full(f.ctx, FV_SHAPE(n), 0.5f)), *y = x;
    for (int i = 0; i < depth; i++) y = fv_tanh(f.ctx, y);
    fv_tensor *loss = fv_sum_all(f.ctx, y);
    size_t forward = fv_ctx_bytes(f.ctx);
    assert_int_equal(fv_backward(f.ctx, loss), FV_OK);
    assert_in_range(fv_ctx_bytes(f.ctx), forward, forward + forward / 2 + (1 << 20));
    close_all(&f);
}

static void gradients_of_a_shared_input_add_up(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.record = true});
    fv_tensor *x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(6)));
    fv_tensor *y = fv_add(f.ctx, fv_add(f.ctx, x, x), fv_mul(f.ctx, x, x)); /* 2x + x^2 */
    assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, y)), FV_OK);
    double dx[6];
    assert_int_equal(fv_read_grad(f.ctx, x, dx, 6), FV_OK);
    for (int i = 0; i < 6; i++) assert_true(fabs(dx[i] - (2 + 2 * six[i])) < 1e-5);
    close_all(&f);
}

static void backward_without_a_tape_is_refused(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.record = true});
    fv_tensor *x = fv_floats(f.ctx, six, FV_SHAPE(6));
    assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, x)), FV_ESTATE);
    fv_ctx_reset(f.ctx, 0);
    x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(6)));
    assert_int_equal(fv_backward(f.ctx, fv_exp(f.ctx, x)), FV_ESHAPE);
    fv_ctx_reset(f.ctx, 0);
    x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(6)));
    assert_null(fv_argmax(f.ctx, x, 0));
    assert_int_equal(fv_ctx_status(f.ctx), FV_ESTATE);
    close_all(&f);
}

static void keep_gives_memory_back(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){0});
    static float big[1 << 16], got[1 << 16];
    for (int i = 0; i < 1 << 16; i++) big[i] = (float)(i % 97) / 97;
    fv_mark mark = fv_mark_here(f.ctx);
    fv_tensor *x = fv_floats(f.ctx, big, FV_SHAPE(1 << 16));
    size_t after_ten = 0;
    for (int i = 0; i < 500; i++) {
        x = fv_keep(f.ctx, mark, fv_scale(f.ctx, fv_scale(f.ctx, x, 2), 0.5f));
        if (i == 9) after_ten = fv_ctx_bytes(f.ctx);
    }
    assert_in_range(fv_ctx_bytes(f.ctx), 1, after_ten + (1 << 20));
    assert_int_equal(fv_read(f.ctx, x, got, 1 << 16), FV_OK);
    assert_memory_equal(got, big, sizeof big);
    close_all(&f);
}

static void parameters_are_named_flat_and_grouped(void **state)
{
    (void)state;
    fixture f;
    fv_err e;
    fv_params *p;
    open_with(&f, (fv_ctx_opt){.record = true});
    assert_int_equal(fv_params_new(&p, &f.env, &e), FV_OK);
    fv_tensor *w = fv_param(p, (fv_init){FV_INIT_NORMAL, 0.02f, false}, FV_SHAPE(3, 5),
                            "layer.%d.weight", 0);
    fv_tensor *b = fv_param(p, (fv_init){FV_INIT_ONE, 0, false}, FV_SHAPE(5), "layer.%d.bias", 0);
    fv_tensor *r = fv_param(p, (fv_init){FV_INIT_ZERO, 0, true}, FV_SHAPE(5), "running");
    assert_int_equal(fv_params_alloc(p, f.dev, FV_F32, true, &e), FV_OK);
    assert_int_equal(fv_params_randomize(p, 7, &e), FV_OK);
    assert_int_equal(fv_params_elements(p, "layer."), 20);
    assert_ptr_equal(fv_params_find(p, "layer.0.bias"), b);
    assert_true(w->wants_grad && b->wants_grad && !r->wants_grad);

    float one[5], before[15], again[15];
    assert_int_equal(fv_params_get(p, b, one, 5, &e), FV_OK);
    assert_true(one[0] == 1 && one[4] == 1);
    assert_int_equal(fv_params_get(p, w, before, 15, &e), FV_OK);
    assert_int_equal(fv_params_randomize(p, 7, &e), FV_OK);
    assert_int_equal(fv_params_get(p, w, again, 15, &e), FV_OK);
    assert_memory_equal(before, again, sizeof before);

    /* gradients add up over backward passes until cleared */
    for (int pass = 1; pass <= 2; pass++) {
        fv_ctx_reset(f.ctx, 0);
        assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, fv_add(f.ctx, w, b))), FV_OK);
        assert_int_equal(fv_params_get_grad(p, b, one, 5, &e), FV_OK);
        assert_true(one[2] == 3.0f * (float)pass);
    }
    fv_params_zero_grad(p);
    int64_t n;
    const float *flat = fv_params_grad(p, &n);
    for (int64_t i = 0; i < n; i++) assert_true(flat[i] == 0);

    assert_int_equal(fv_params_train(p, "layer.0.w", false), 1);
    assert_false(w->wants_grad);
    assert_int_equal(fv_params_set(p, w, before, 14, &e), FV_ESHAPE);
    assert_non_null(strstr(e.text, "layer.0.weight"));
    fv_params_free(p);
    close_all(&f);
}

static void bad_declarations_are_reported_when_allocating(void **state)
{
    (void)state;
    fixture f;
    fv_err e;
    fv_params *p;
    open_with(&f, (fv_ctx_opt){0});
    assert_int_equal(fv_params_new(&p, &f.env, &e), FV_OK);
    assert_non_null(fv_param(p, (fv_init){0}, FV_SHAPE(2), "a"));
    assert_null(fv_param(p, (fv_init){0}, FV_SHAPE(2), "a"));
    assert_null(fv_param(p, (fv_init){0}, FV_SHAPE(2), "b"));
    assert_int_equal(fv_params_alloc(p, f.dev, FV_F32, false, &e), FV_ESTATE);
    assert_non_null(strstr(e.text, "parameter a: declared twice"));
    fv_params_free(p);
    assert_int_equal(fv_params_new(&p, &f.env, &e), FV_OK);
    fv_param(p, (fv_init){0}, FV_SHAPE(2, 0), "a");
    assert_int_equal(fv_params_alloc(p, f.dev, FV_F32, false, &e), FV_ESHAPE);
    fv_params_free(p);
    close_all(&f);
}

static fv_tensor *block(fv_ctx *c, void *user, fv_tensor *x)
{
    fv_tensor *w = user;
    for (int i = 0; i < 4; i++) x = fv_dropout(c, fv_tanh(c, fv_add(c, fv_mul(c, x, w), x)), 0.1f);
    return x;
}

static void checkpointing_gives_the_same_gradient_in_less_memory(void **state)
{
    (void)state;
    enum { N = 1 << 16, BLOCKS = 12 };
    static double dx[2][N], dw[2][N];
    size_t bytes[2];
    for (int keep = 0; keep < 2; keep++) {
        fixture f;
        open_with(&f, (fv_ctx_opt){.record = true, .train = true, .seed = 5});
        fv_tensor *x = fv_watch(f.ctx, fv_full(f.ctx, FV_SHAPE(N), 0.3f)),
                  *w = fv_watch(f.ctx, fv_full(f.ctx, FV_SHAPE(N), 0.7f));
        fv_tensor *y = x;
        for (int i = 0; i < BLOCKS; i++)
            y = keep ? fv_checkpoint(f.ctx, block, w, y) : block(f.ctx, w, y);
        assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, y)), FV_OK);
        bytes[keep] = fv_ctx_bytes(f.ctx);
        assert_int_equal(fv_read_grad(f.ctx, x, dx[keep], N), FV_OK);
        assert_int_equal(fv_read_grad(f.ctx, w, dw[keep], N), FV_OK);
        close_all(&f);
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(dw[0], dw[1], sizeof dw[0]);
    int reached = 0;
    for (int i = 0; i < N; i++) reached += dw[0][i] != 0;
    assert_true(reached > 0);
    assert_true(bytes[1] * 2 < bytes[0]);
}

static void the_seed_and_step_decide_dropout(void **state)
{
    (void)state;
    fixture f;
    open_with(&f, (fv_ctx_opt){.train = true, .seed = 11});
    enum { N = 5000 };
    float a[N], b[N], d[N];
    float *out[] = {a, b, d};
    const uint64_t steps[] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        fv_ctx_reset(f.ctx, steps[i]);
        assert_int_equal(fv_read(f.ctx, fv_dropout(f.ctx, fv_full(f.ctx, FV_SHAPE(N), 1), 0.25f),
                                 out[i], N),
                         FV_OK);
    }
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, d, sizeof a);
    int kept = 0;
    for (int i = 0; i < N; i++) {
        assert_true(a[i] == 0 || fabsf(a[i] - 1 / 0.75f) < 1e-6f);
        kept += a[i] != 0;
    }
    assert_in_range(kept, N * 0.72, N * 0.78);
    close_all(&f);
}

/* A pass that only looks, in the middle of training. */
static void training_and_recording_can_be_switched_off(void **state)
{
    (void)state;
    fixture f;
    float y[6];
    open_with(&f, (fv_ctx_opt){.record = true, .train = true, .seed = 3});
    fv_ctx_set_train(f.ctx, false);
    fv_ctx_set_record(f.ctx, false);
    fv_tensor *x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(6))),
              *still = fv_dropout(f.ctx, x, 0.5f);
    assert_false(fv_ctx_training(f.ctx));
    assert_int_equal(fv_read(f.ctx, still, y, 6), FV_OK);
    assert_memory_equal(y, six, sizeof six);
    /* nothing was recorded */
    assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, still)), FV_ESTATE);
    fv_ctx_reset(f.ctx, 1);
    fv_ctx_set_train(f.ctx, true);
    fv_ctx_set_record(f.ctx, true);
    x = fv_watch(f.ctx, fv_floats(f.ctx, six, FV_SHAPE(6)));
    assert_int_equal(fv_backward(f.ctx, fv_sum_all(f.ctx, fv_mul(f.ctx, x, x))), FV_OK);
    close_all(&f);
}

static void devices_and_levels_are_refused_by_name(void **state)
{
    (void)state;
    fv_device *d;
    fv_err e;
    assert_int_equal(fv_device_open(&d, "tpu", (fv_device_opt){0}, &e), FV_EDEVICE);
    assert_non_null(strstr(e.text, "tpu"));
    assert_int_equal(fv_device_open(&d, "cpu", (fv_device_opt){.level = "sse9"}, &e), FV_EDEVICE);
    assert_non_null(strstr(e.text, "sse9"));
    assert_non_null(strstr(e.text, "generic"));
    const char *names[8];
    int n = fv_cpu_levels(names, 8);
    assert_true(n >= 1);
    for (int i = 0; i < n; i++) {
        assert_int_equal(fv_device_open(&d, "cpu", (fv_device_opt){.level = names[i]}, &e), FV_OK);
        assert_string_equal(fv_device_level(d), names[i]);
        fv_device_close(d);
    }
}

static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    for (size_t fail = 1;; fail++) {
        fv_err e = {0};
        fv_device *d = NULL;
        fv_ctx *c = NULL;
        fv_params *p = NULL;
        mem.fail_at = fail;
        mem.count = 0;
        fv_status st = fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e);
        if (!st) st = fv_ctx_new(&c, d, (fv_ctx_opt){.record = true, .train = true}, &e);
        if (!st) st = fv_params_new(&p, &env, &e);
        fv_tensor *w = st ? NULL
                          : fv_param(p, (fv_init){FV_INIT_XAVIER, 1, false}, FV_SHAPE(8, 8), "w");
        if (!st) st = fv_params_alloc(p, d, FV_F32, true, &e);
        if (!st) st = fv_params_randomize(p, 1, &e);
        if (!st) st = fv_backward(c, step(c, fv_add(c, fv_full(c, FV_SHAPE(8, 8), 0.5f), w)));
        bool reached = mem.count >= fail;
        fv_params_free(p);
        fv_ctx_free(c);
        fv_device_close(d);
        assert_int_equal(mem.live, 0);
        if (!reached) {
            assert_int_equal(st, FV_OK);
            break;
        }
        /* OK: growing the list of spare blocks may fail harmlessly */
        assert_true(st == FV_ENOMEM || st == FV_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_is_one_printable_line),
        cmocka_unit_test(an_error_sticks_and_the_first_is_kept),
        cmocka_unit_test(a_shape_that_overflows_is_refused),
        cmocka_unit_test(a_memory_limit_is_an_error_with_sizes),
        cmocka_unit_test(a_repeated_step_allocates_nothing_and_keeps_its_addresses),
        cmocka_unit_test(backward_reuses_memory_and_says_so),
        cmocka_unit_test(a_chain_of_many_ops_needs_little_more_than_its_forward_pass),
        cmocka_unit_test(gradients_of_a_shared_input_add_up),
        cmocka_unit_test(backward_without_a_tape_is_refused),
        cmocka_unit_test(keep_gives_memory_back),
        cmocka_unit_test(parameters_are_named_flat_and_grouped),
        cmocka_unit_test(bad_declarations_are_reported_when_allocating),
        cmocka_unit_test(checkpointing_gives_the_same_gradient_in_less_memory),
        cmocka_unit_test(the_seed_and_step_decide_dropout),
        cmocka_unit_test(training_and_recording_can_be_switched_off),
        cmocka_unit_test(devices_and_levels_are_refused_by_name),
        cmocka_unit_test(every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
