/* reversal.c - an op of one's own: gradient reversal (Ganin and Lempitsky 2015).
 *
 *     y = x;   dx = -strength dy
 *
 * A domain classifier behind it learns to tell domains apart, while what is before it learns to
 * make that impossible.  An op is one function that computes and records, and one that goes back;
 * it runs on every device whose kernels it calls. */
#include <stdio.h>

#include <fovea/author/op.h>
#include <fovea/fovea.h>

typedef struct {
    fv_node node;
    float strength;
} reversal;

/* dx = -strength dy: the gradient of -strength x, for which there is a kernel. */
static void backward(fv_ctx *c, fv_node *n)
{
    fv_tensor *x = n->in[0];
    const fv_kernels *k = fv_kernels_of(c, x->dtype);
    if (!k || !fv_need(c, k->unary_bwd, "unary_bwd", x->dtype)) return;
    k->unary_bwd(fv_ctx_stream(c), FV_U_SCALE, fv_grad(c, x), n->y->grad, x->data, n->y->data,
                 fv_len(x), -((reversal *)n)->strength, 0);
}

static fv_tensor *reverse_gradient(fv_ctx *c, fv_tensor *x, float strength)
{
    if (!x) return NULL; /* an earlier op has failed, and the context knows why */
    fv_tensor *y = fv_alias(c, x, x->shape);
    reversal *r = fv_record(c, sizeof *r, backward, y, x);
    if (r) r->strength = strength;
    return y;
}

int main(void)
{
    static const float values[] = {1, -2, 3};
    double grad[3];
    fv_device *device = NULL;
    fv_ctx *c = NULL;
    fv_err e;
    if (fv_device_open(&device, "cpu", (fv_device_opt){0}, &e) ||
        fv_ctx_new(&c, device, (fv_ctx_opt){.record = true}, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    /* d/dx of sum(y^2) is 2 y; behind the reversal it arrives as -0.5 * 2 x. */
    fv_tensor *x = fv_watch(c, fv_floats(c, values, FV_SHAPE(3)));
    fv_tensor *y = reverse_gradient(c, x, 0.5f);
    fv_backward(c, fv_sum_all(c, fv_mul(c, y, y)));
    fv_read_grad(c, x, grad, 3);

    fv_status failed = fv_ctx_status(c);
    if (failed)
        fprintf(stderr, "%s\n", fv_ctx_err(c)->text);
    else
        printf("dx %g %g %g\n", grad[0], grad[1], grad[2]);
    fv_ctx_free(c);
    fv_device_close(device);
    return failed ? 1 : 0;
}
