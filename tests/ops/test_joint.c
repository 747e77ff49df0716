/* test_joint.c - the loss of a joint network in slices: the op table against all paths, and the
 * loss of the whole grid, its gradients and its memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "helper/device.h"
#include "helper/optable.h"
#include "nn/joint.h"

/* Three sequences of up to 4 frames and 3 labels, one of them without labels. */
enum { T = 4, U1 = 4, J = 3, V = 5 };
static const int32_t words[] = {2, 1, 4, 3, 3, 0, 0, 0, 0}, frames[] = {4, 3, 2},
                     lens[] = {3, 2, 0};

static fv_tensor *joint_loss(fv_ctx *c, fv_tensor *const *x)
{
    fv_lin out = {.w = x[2], .b = x[3]};
    return fv__joint_loss(c, &out, x[0], x[1], fv_ints(c, words, FV_SHAPE(3, 3)),
                          fv_ints(c, frames, FV_SHAPE(3)), fv_ints(c, lens, FV_SHAPE(3)), 0, 3);
}

/* log-probability of class k at (t,u): out(tanh(h_t + g_u)) */
static double log_p(const double *const *in, int b, int t, int u, int k)
{
    const double *h = in[0] + (b * T + t) * J, *g = in[1] + (b * U1 + u) * J;
    double all = 0, mine = 0;
    for (int v = 0; v < V; v++) {
        double y = in[3][v];
        for (int j = 0; j < J; j++) y += in[2][v * J + j] * tanh(h[j] + g[j]);
        all += exp(y);
        if (v == k) mine = y;
    }
    return mine - log(all);
}

/* The probability of every path from (t,u) on, one after the other. */
static double paths(const double *const *in, int b, int t, int u)
{
    double sum = 0;
    if (t == frames[b] - 1 && u == lens[b]) return exp(log_p(in, b, t, u, 0));
    if (t < frames[b] - 1) sum += exp(log_p(in, b, t, u, 0)) * paths(in, b, t + 1, u);
    if (u < lens[b]) sum += exp(log_p(in, b, t, u, words[b * 3 + u])) * paths(in, b, t, u + 1);
    return sum;
}

static void want(const op_case *k, double *y, const double *const *in)
{
    (void)k;
    for (int b = 0; b < 3; b++) y[b] = -log(paths(in, b, 0, 0));
}

static const op_case cases[] = {
    {.name = "joint_loss",
     .build = joint_loss,
     .in = {{FV_SHAPE(3, T, J)},
            {FV_SHAPE(3, U1, J)},
            {FV_SHAPE(V, J)},
            {FV_SHAPE(V), .optional = true}},
     .want = want,
     .bad = {FV_SHAPE(3, T, J), FV_SHAPE(3, U1 - 1, J), FV_SHAPE(V, J), FV_SHAPE(V)}},
};

/* ---- a grid that is large ---- */

enum { B = 2, LONG = 64, LABELS = 15, WIDE = 16, MANY = 512 };

typedef struct outcome {
    double loss, grad[LONG * WIDE];
    size_t peak;
} outcome;

static fv_tensor *numbers(fv_ctx *c, fv_shape s, uint32_t seed)
{
    int64_t n = fv_shape_len(s);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 24) - 0.5f;
    }
    fv_tensor *t = fv_floats(c, x, s);
    free(x);
    t->wants_grad = true;
    return t;
}

static fv_tensor *whole_grid(fv_ctx *c, const fv_lin *out, fv_tensor *h, fv_tensor *g,
                             fv_tensor *labels, fv_tensor *tlen, fv_tensor *ulen)
{
    fv_tensor *z = fv_tanh(c, fv_add(c, fv_reshape(c, h, FV_SHAPE(B, LONG, 1, WIDE)),
                                     fv_reshape(c, g, FV_SHAPE(B, 1, LABELS + 1, WIDE))));
    return fv_rnnt_loss(c, fv_lin_fwd(c, out, z), labels, tlen, ulen, 0);
}

/* One loss and the gradient of the first sequence's frames. */
static outcome examine(bool sliced)
{
    outcome y = {0};
    fv_mem_counter counter;
    fv_mem_counter_init(&counter);
    fv_env env = {.mem = &counter.mem};
    fv_device *d;
    fv_ctx *c;
    fv_err e;
    int32_t words_[B * LABELS], tlen[B] = {LONG, LONG - 7}, ulen[B] = {LABELS, LABELS - 4};
    for (int i = 0; i < B * LABELS; i++) words_[i] = 1 + i * 17 % (MANY - 1);
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){.record = true, .train = true}, &e), &e);
    fv_lin out = {.w = numbers(c, FV_SHAPE(MANY, WIDE), 1), .b = numbers(c, FV_SHAPE(MANY), 2)};
    fv_tensor *h = numbers(c, FV_SHAPE(B, LONG, WIDE), 3),
              *g = numbers(c, FV_SHAPE(B, LABELS + 1, WIDE), 4),
              *labels = fv_ints(c, words_, FV_SHAPE(B, LABELS)), *t = fv_ints(c, tlen, FV_SHAPE(B)),
              *u = fv_ints(c, ulen, FV_SHAPE(B));
    fv_tensor *loss = sliced ? fv__joint_loss(c, &out, h, g, labels, t, u, 0, 4)
                             : whole_grid(c, &out, h, g, labels, t, u);
    loss = fv_sum_all(c, loss);
    fv_hold(c, h);
    check(fv_read_f64(c, loss, &y.loss, 1), &e);
    check(fv_backward(c, loss), &e);
    double *grad = malloc(B * LONG * WIDE * sizeof *grad);
    check(fv_read_grad(c, h, grad, B * LONG * WIDE), &e);
    for (int i = 0; i < LONG * WIDE; i++) y.grad[i] = grad[i];
    free(grad);
    y.peak = counter.peak;
    fv_ctx_free(c);
    fv_device_close(d);
    return y;
}

static void slices_give_the_loss_of_the_grid(void **state)
{
    (void)state;
    outcome a = examine(true), b = examine(false);
    if (fabs(a.loss - b.loss) > 1e-5 * fabs(b.loss)) fail_msg("%.9g, not %.9g", a.loss, b.loss);
    /* posteriors are exponentials of f32 sums of some 500: the op table has them in f64 */
    for (int i = 0; i < LONG * WIDE; i++)
        if (fabs(a.grad[i] - b.grad[i]) > 1e-4) fail_msg("%d: %g, not %g", i, a.grad[i], b.grad[i]);
    /* the grid is 4 MiB of logits, as much of log-probabilities, and both gradients */
    print_message("peak %zu KiB in slices, %zu KiB at once\n", a.peak >> 10, b.peak >> 10);
    assert_true(a.peak < b.peak / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_give_the_loss_of_the_grid)};
    return cmocka_run_group_tests(tests, NULL, NULL) ||
           op_table_run("joint", cases, sizeof cases / sizeof *cases);
}
