/* contrast.c - losses between images, and between texts that have words in common. */
#include "objective/part/contrast.h"

#include "fovea/author/op.h"
#include "fovea/author/ops.h"
#include "ops/stat.h"

/* Cross entropy over rows of logits (n,n) whose right answer is the diagonal, without smoothing: a
 * view is nothing but its image. */
static fv_tensor *entropy(fv_ctx *c, fv_tensor *logits, const fv_items *in)
{
    fv_items rows = {.n_labels = in->n_rows > 0 ? in->n_rows : (double)fv_dim(logits, 0),
                     .per_label = in->per_row};
    return fv_loss_tokens(c, logits, fv_items_get(in, "view_of"), &rows);
}

fv_tensor *fv__view_loss(fv_ctx *c, const fv_model *m, fv_tensor *a, fv_tensor *other,
                         const fv_items *in)
{
    fv_items second = {.n_rows = in->n_rows, .per_row = in->per_row}, seen = {0};
    fv_items_put(&second, "pixel_values", other);
    fv_model_forward(c, m, &second, &seen);
    fv_tensor *b = fv_items_get(&seen, "image_embeds");
    if (!a || !b)
        return fv_raise(c, FV_EMISSING, "image_weight: the family gives no vectors of images");
    int64_t n = fv_dim(a, 0);
    if (fv_dim(b, 0) > n) {
        a = fv_slice(c, b, 0, 0, n);
        b = fv_slice(c, b, 0, n, 2 * n);
    }
    fv_tensor *logits = fv_matmul(c, a, b, (fv_mm){.tb = true, .alpha = 1 / 0.07f});
    return fv_add(c, entropy(c, logits, in), entropy(c, fv_transpose(c, logits), in));
}

/* The sum over rows of -share . log softmax(logits), divided by the rows of the whole batch. */
static fv_tensor *shared_entropy(fv_ctx *c, fv_tensor *logits, fv_tensor *share, const fv_items *in)
{
    float rows = (float)(in->n_rows > 0 ? in->n_rows : (double)fv_dim(logits, 0));
    fv_tensor *sum = fv_sum_all(c, fv_mul(c, fv_log_softmax(c, fv__widen(c, logits)), share));
    if (!in->per_row) return fv_scale(c, sum, -1 / rows);
    return fv_scale(c, fv_sum_all(c, fv_mul(c, sum, in->per_row)), -1);
}

fv_tensor *fv__overlap_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *share, const fv_items *in)
{
    if (!logits)
        return fv_raise(c, FV_EMISSING, "text_overlap: the family gives no logits of texts");
    return fv_add(c, shared_entropy(c, logits, share, in),
                  shared_entropy(c, fv_transpose(c, logits), share, in));
}
