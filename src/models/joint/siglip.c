/* siglip.c - SigLIP: CLIP with a loss that asks of each pair by itself whether it belongs together.
 *
 *     logits[t,i] = exp(logit_scale) cos(text t, image i) + logit_bias
 *     loss = sum over pairs of -log sigmoid(+-logits), plus where t = i, divided by the texts
 *
 * Texts or images may also come alone.  There is a loss where there are as many texts as images, as
 * with transformers' return_loss.
 *
 * Paper: Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training (arXiv:2303.15343).
 * Unlike CLIP there are no projections, tokens of a text look both ways, and images are pooled
 * by attention. Every pair is a binary question, so the loss needs no softmax over the batch.
 * Names are those of transformers' SiglipModel. */
#include <math.h>
#include <stddef.h>

#include "model/siglip.h"
#include "ops/stat.h"

static const fv_family_head heads[] = {
    {"SiglipModel", .job = FV_HEAD_CONTRASTIVE},
    {0},
};

typedef struct config {
    fv__clip_config text, vision;
} config;

static const fv_field fields[] = {
    FV__SIGLIP_TEXT_FIELDS("text_config.", config, text),
    FV__SIGLIP_VISION_FIELDS("vision_config.", config, vision),
    {0},
};

static const fv_key_rule rules[] = {
    {"text_config.*", NULL},
    {"vision_config.*", NULL},
    {NULL, NULL},
};

typedef struct siglip {
    config cfg;
    fv__siglip_text text;
    fv__siglip_vision vision;
    fv_tensor *logit_scale, *logit_bias; /* (1) */
} siglip;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    int text = k->text.projection_dim ? k->text.projection_dim : k->text.hidden_size;
    fv_status st = fv__clip_check_text(&k->text, e);
    if (!st) st = fv__clip_check_vision(&k->vision, e);
    if (!st && !k->vision.vision_use_head)
        st = fv_fail(e, FV_EFORMAT, "vision_use_head is false, but images are compared to texts");
    if (!st && text != k->vision.hidden_size)
        st = fv_fail(e, FV_EFORMAT, "vectors of texts have %d numbers, those of images %d", text,
                     k->vision.hidden_size);
    return st;
}

static void declare(void *self, const fv_setup *s)
{
    siglip *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    fv__siglip_text_init(p, &m->text, &m->cfg.text, "text_model.");
    fv__siglip_vision_init(p, &m->vision, &m->cfg.vision, "vision_model.");
    /* as the paper begins: nearly all pairs do not belong together */
    m->logit_scale = fv_param(p, (fv_init){.kind = FV_INIT_ONE, .scale = (float)log(10)},
                              FV_SHAPE(1), "logit_scale");
    m->logit_bias = fv_param(p, (fv_init){.kind = FV_INIT_ONE, .scale = -10}, FV_SHAPE(1),
                             "logit_bias");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids", NULL};
    return (fv_load_opt){.ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    siglip *m = self;
    fv__siglip_text_pack(p, &m->text, dtype);
    fv__siglip_vision_pack(p, &m->vision, dtype);
}

static int64_t longest(const void *self)
{
    return ((const siglip *)self)->cfg.text.max_position_embeddings;
}

/* ---- forward ---- */

/* -log sigmoid(z) = softplus(-z); on the diagonal z is the logit, elsewhere minus the logit.
 * Summed: softplus(logits), and on the diagonal softplus(-x) = softplus(x) - x instead. */
static fv_tensor *sigmoid_loss(fv_ctx *c, fv_tensor *logits, fv_tensor *text, fv_tensor *image,
                               const siglip *m, const fv_items *in)
{
    fv_items rows = {.n_labels = in->n_rows > 0 ? in->n_rows : (double)fv_dim(text, 0),
                     .per_label = in->per_row};
    fv_tensor *own = fv_sum(c, fv_mul(c, text, image), 1); /* the cosines of the diagonal */
    own = fv_add(c, fv_mul(c, own, fv_exp(c, m->logit_scale)), m->logit_bias);
    fv_tensor *all = fv_sum_all(c, fv_softplus(c, fv__widen(c, logits)));
    return fv__per_label(c, fv_sub(c, all, fv_sum_all(c, fv__widen(c, own))), &rows);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const siglip *m = self;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *pixels = fv_items_get(in, "pixel_values"), *x,
              *text = NULL, *image = NULL;
    if (!ids && !pixels) fv_raise(c, FV_EARG, "siglip: neither input_ids nor pixel_values");
    if (ids) {
        text = fv__siglip_text_fwd(c, &m->text, in, &x, "text_model_output.hidden_states");
        fv_items_put(out, "text_model_output.last_hidden_state", x);
        fv_items_put(out, "text_model_output.pooler_output", text);
    }
    if (pixels) {
        image = fv__siglip_vision_fwd(c, &m->vision, pixels, &x,
                                      "vision_model_output.hidden_states");
        fv_items_put(out, "vision_model_output.last_hidden_state", x);
        fv_items_put(out, "vision_model_output.pooler_output", image);
    }
    fv__put_embeds(c, out, &text, &image);
    if (!text || !image) return;
    fv_tensor *per_text = fv_matmul(c, text, image, (fv_mm){.tb = true});
    per_text = fv_add(c, fv_mul(c, per_text, fv_exp(c, m->logit_scale)), m->logit_bias);
    fv_items_put(out, "logits_per_text", per_text);
    fv_items_put(out, "logits_per_image", fv_transpose(c, per_text));
    if (fv_dim(text, 0) == fv_dim(image, 0))
        fv_items_put(out, "loss", sigmoid_loss(c, per_text, text, image, m, in));
}

const fv_family fv__family_siglip = {FV__CLIP_PARTS(siglip), .rules = rules,
                                     .inputs = fv__clip_inputs, .type = "siglip"};
