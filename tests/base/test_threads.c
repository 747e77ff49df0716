/* test_threads.c - one set of parameters, read by four threads at once, each in a context of its
 * own.
 *
 * Run under ThreadSanitizer (make test-tsan) this shows that nothing is written behind the caller's
 * back; in any build it shows that all threads get the same bits. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/ops.h"
#include "fovea/author/params.h"

enum { B = 2, T = 24, D = 32, H = 4, STEPS = 8, THREADS = 4, N = B * T * D };

typedef struct model {
    fv_device *dev;
    fv_params *params;
    fv_tensor *gain, *shift, *qkv, *out, *up, *up_bias, *down;
} model;

static fv_tensor *weight(fv_params *p, int64_t rows, int64_t cols, const char *name)
{
    return fv_param(p, (fv_init){FV_INIT_XAVIER, 1, false}, FV_SHAPE(rows, cols), "%s", name);
}

static void model_open(model *m)
{
    fv_err e;
    assert_int_equal(fv_device_open(&m->dev, "cpu", (fv_device_opt){.threads = 1}, &e), FV_OK);
    assert_int_equal(fv_params_new(&m->params, NULL, &e), FV_OK);
    m->gain = fv_param(m->params, (fv_init){FV_INIT_ONE, 0, false}, FV_SHAPE(D), "gain");
    m->shift = fv_param(m->params, (fv_init){0}, FV_SHAPE(D), "shift");
    m->qkv = weight(m->params, 3 * D, D, "qkv");
    m->out = weight(m->params, D, D, "out");
    m->up = weight(m->params, 4 * D, D, "up");
    m->up_bias = fv_param(m->params, (fv_init){FV_INIT_UNIFORM, 0.1f, false}, FV_SHAPE(4 * D),
                          "up_bias");
    m->down = weight(m->params, D, 4 * D, "down");
    assert_int_equal(fv_params_alloc(m->params, m->dev, FV_F32, false, &e), FV_OK);
    assert_int_equal(fv_params_randomize(m->params, 3, &e), FV_OK);
}

static fv_tensor *forward(fv_ctx *c, const model *m, fv_tensor *x)
{
    fv_tensor *h = fv_linear(c, fv_layernorm(c, x, m->gain, m->shift, 1e-5f), m->qkv, NULL,
                             FV_ACT_NONE);
    x = fv_add(c, x,
               fv_linear(c, fv_attention_packed(c, h, (fv_attn){.n_head = H, .causal = true}),
                         m->out, NULL, FV_ACT_NONE));
    h = fv_linear(c, fv_layernorm(c, x, m->gain, m->shift, 1e-5f), m->up, m->up_bias, FV_GELU);
    return fv_add(c, x, fv_linear(c, h, m->down, NULL, FV_ACT_NONE));
}

typedef struct job {
    const model *m;
    float y[N];
    fv_status status;
} job;

static void *serve(void *arg)
{
    job *j = arg;
    fv_ctx *c;
    float x[N];
    for (int i = 0; i < N; i++) x[i] = sinf(0.1f * (float)i);
    if ((j->status = fv_ctx_new(&c, j->m->dev, (fv_ctx_opt){0}, NULL))) return NULL;
    for (int i = 0; i < STEPS && !j->status; i++) {
        fv_ctx_reset(c, (uint64_t)i);
        j->status = fv_read(c, forward(c, j->m, fv_floats(c, x, FV_SHAPE(B, T, D))), j->y, N);
    }
    fv_ctx_free(c);
    return NULL;
}

static void four_threads_share_a_model(void **state)
{
    (void)state;
    static job jobs[THREADS];
    pthread_t id[THREADS];
    model m;
    model_open(&m);
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){.m = &m};
        assert_int_equal(pthread_create(&id[i], NULL, serve, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(jobs[i].status, FV_OK);
        assert_memory_equal(jobs[i].y, jobs[0].y, sizeof jobs[0].y);
    }
    for (int i = 0; i < N; i++) assert_true(isfinite(jobs[0].y[i]));
    fv_params_free(m.params);
    fv_device_close(m.dev);
}

/* The same rows alone, in a batch, and with 1 to 4 threads inside one context. */
static void a_row_does_not_depend_on_its_batch_or_on_threads(void **state)
{
    (void)state;
    model m;
    static float x[N], whole[N], part[N];
    model_open(&m);
    for (int i = 0; i < N; i++) x[i] = cosf(0.37f * (float)i);
    for (int threads = 1; threads <= 4; threads++) {
        fv_ctx *c;
        assert_int_equal(fv_ctx_new(&c, m.dev, (fv_ctx_opt){.threads = threads}, NULL), FV_OK);
        assert_int_equal(fv_read(c, forward(c, &m, fv_floats(c, x, FV_SHAPE(B, T, D))), part, N),
                         FV_OK);
        if (threads == 1) memcpy(whole, part, sizeof whole);
        assert_memory_equal(part, whole, sizeof whole);
        for (int b = 0; b < B; b++) {
            fv_tensor *one = fv_floats(c, x + b * T * D, FV_SHAPE(1, T, D));
            assert_int_equal(fv_read(c, forward(c, &m, one), part, T * D), FV_OK);
            assert_memory_equal(part, whole + b * T * D, T * D * sizeof(float));
        }
        fv_ctx_free(c);
    }
    fv_params_free(m.params);
    fv_device_close(m.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_threads_share_a_model),
        cmocka_unit_test(a_row_does_not_depend_on_its_batch_or_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
