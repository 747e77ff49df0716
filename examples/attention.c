/* attention.c - the smallest program: attention of four tokens, with the exact weights of the first
 * row.
 *
 * Build it against an installed fovea:  cc attention.c $(pkg-config --cflags --libs fovea) -o
 * attention */
#include <stdio.h>
#include <string.h>

#include <fovea/fovea.h>

/* Called by the operator in passing: `what` is the view from which weights can be asked. */
static void look(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    (void)name;
    if (!strcmp(site, "attention")) fv_attn_view_weights(c, what, 0, 0, 0, 1, user);
}

int main(void)
{
    static const float x[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f,
                              0.7f, 0.8f, 0.9f, 1.0f, 1.1f, 1.2f};
    static const float shift = 0.9f;
    float weights[4], y[12];
    fv_device *device = NULL;
    fv_ctx *c = NULL;
    fv_err e;
    if (fv_device_open(&device, "cpu", (fv_device_opt){0}, &e) ||
        fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    fv_ctx_set_tap(c, look, weights);

    /* No checks on the way: after a failure everything passes NULL on, and the status says what was
     * wrong. */
    fv_tensor *qk = fv_floats(c, x, FV_SHAPE(1, 4, 3));
    fv_tensor *v = fv_add(c, qk, fv_floats(c, &shift, FV_SHAPE(1)));
    fv_read(c, fv_attention(c, qk, qk, v, (fv_attn){.n_head = 1}), y, 12);

    fv_status failed = fv_ctx_status(c);
    if (failed)
        fprintf(stderr, "%s\n", fv_ctx_err(c)->text);
    else
        printf("weights %.4f %.4f %.4f %.4f\noutput  %.4f %.4f %.4f\n", (double)weights[0],
               (double)weights[1], (double)weights[2], (double)weights[3], (double)y[0],
               (double)y[1], (double)y[2]);
    fv_ctx_free(c);
    fv_device_close(device);
    return failed ? 1 : 0;
}
