/* test_ctc.c - the CTC loss and its gradient beside torch.nn.functional.ctc_loss, and labels that
 * do not fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "helper/device.h"
#include "helper/golden.h"

static void compare(fv_dtype t, double tolerance)
{
    golden g = {.file = FOVEA_TESTS "/golden/ctc.safetensors"};
    assert_int_equal(fv_ctx_new(&g.ctx, device, (fv_ctx_opt){.dtype = t, .record = true}, NULL),
                     FV_OK);
    fv_tensor *x = fv_watch(g.ctx, golden_floats(&g, "ctc.x")),
              *labels = golden_ints(&g, "ctc.labels"), *tlen = golden_ints(&g, "ctc.tlen"),
              *ulen = golden_ints(&g, "ctc.ulen");
    fv_tensor *y = fv_hold(g.ctx, fv_ctc_loss(g.ctx, x, labels, tlen, ulen, 0));
    golden_near(&g, y, tolerance, "ctc.y");
    fv_array dy = golden_array(&g, "ctc.dy");
    assert_int_equal(fv_backward_from(g.ctx, y, dy.data), FV_OK);
    fv_array_close(&dy);
    golden_grad_near(&g, x, tolerance, "ctc.dx");
    fv_ctx_free(g.ctx);
}

static void losses_and_gradients_are_those_of_torch(void **state)
{
    (void)state;
    if (test_on_cpu()) compare(FV_F64, 5e-7); /* the file holds f32 */
    /* alpha is a logarithm of some tens: an ulp of it is 1e-6, of a probability 1e-5 */
    compare(FV_F32, 3e-5);
}

/* Two equal labels need a blank between them: three frames. */
static void labels_that_do_not_fit_are_infinitely_unlikely(void **state)
{
    (void)state;
    fv_ctx *c;
    float loss[1];
    double dx[8];
    assert_int_equal(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = FV_F32, .record = true}, NULL),
                     FV_OK);
    fv_tensor *x = fv_watch(c, fv_zeros(c, FV_SHAPE(1, 2, 4)));
    fv_tensor *y = fv_hold(c, fv_ctc_loss(c, x, fv_ints(c, (int32_t[]){1, 1}, FV_SHAPE(1, 2)),
                                          fv_ints(c, (int32_t[]){2}, FV_SHAPE(1)),
                                          fv_ints(c, (int32_t[]){2}, FV_SHAPE(1)), 0));
    assert_int_equal(fv_read(c, y, loss, 1), FV_OK);
    assert_true(isinf(loss[0]) && loss[0] > 0);
    assert_int_equal(fv_backward_from(c, y, (float[]){1}), FV_OK);
    assert_int_equal(fv_read_grad(c, x, dx, 8), FV_OK);
    for (int i = 0; i < 8; i++) assert_true(dx[i] == 0);
    fv_ctx_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_are_those_of_torch),
        cmocka_unit_test(labels_that_do_not_fit_are_infinitely_unlikely),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
