/* clip.c - CLIP: texts and images as vectors of one space, in which a text lies near its image.
 *
 *     logits[t,i] = exp(logit_scale) cos(text t, image i)
 *     loss = (cross entropy of the rows + of the columns) / 2, the t-th text belonging to image t
 *
 * Texts or images may also come alone: then their vectors are all that comes out.  There is a loss
 * where there are as many texts as images, as with transformers' return_loss.
 *
 * Paper: Radford et al. 2021, Learning Transferable Visual Models From Natural Language
 * Supervision (arXiv:2103.00020). Both towers are pre-norm stacks of one kind (model/clip.h):
 * the text tower is causal and is read at the end-of-text token, the image tower is a ViT with a
 * norm before its first layer. Names are those of transformers' CLIPModel: text_model.*,
 * vision_model.*, and the two projections. */
#include <math.h>
#include <stddef.h>

#include "model/clip.h"

static const fv_family_head heads[] = {
    {"CLIPModel", .job = FV_HEAD_CONTRASTIVE},
    {0},
};

typedef struct config {
    fv__clip_config text, vision;
    int projection_dim;
    float logit_scale_init_value;
} config;

/* The keys of both halves, which old files have twice: what *_config_dict says counts there. */
#define TEXT(at)                                                                                   \
    FV__CLIP_LAYER_FIELDS(at, config, text, 512, 8, FV__ACT_QUICK_GELU, 1e-5),                     \
        FV__CLIP_TEXT_FIELDS(at, config, text, 49408, 77),                                         \
        FV_INT_KEY(at "eos_token_id", config, text.eos_token_id, 0, 49407, 1 << 24,                \
                   "end of a text")
#define VISION(at)                                                                                 \
    FV__CLIP_LAYER_FIELDS(at, config, vision, 768, 12, FV__ACT_QUICK_GELU, 1e-5),                  \
        FV__CLIP_VISION_FIELDS(at, config, vision, "32")

static const fv_field fields[] = {
    TEXT("text_config."),
    TEXT("text_config_dict."),
    VISION("vision_config."),
    VISION("vision_config_dict."),
    FV_INT(config, projection_dim, 1, 512, 1 << 16, "of the space that texts and images share"),
    FV_FLOAT(config, logit_scale_init_value, -20, 2.6592, 20, "first value of logit_scale"),
    {0},
};

static const fv_key_rule rules[] = {
    {"text_config.*", NULL},
    {"text_config_dict.*", NULL},
    {"vision_config.*", NULL},
    {"vision_config_dict.*", NULL},
    {"projection_dim", NULL}, /* of a half, which its own model uses */
    {NULL, NULL},
};

typedef struct clip {
    config cfg;
    fv__clip_text text;
    fv__clip_vision vision;
    fv_lin text_projection, visual_projection;
    fv_tensor *logit_scale; /* a scalar */
} clip;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__clip_check_text(&k->text, e);
    return st ? st : fv__clip_check_vision(&k->vision, e);
}

/* ---- parameters ---- */

static void declare(void *self, const fv_setup *s)
{
    clip *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    fv_lin_opt text = {.no_bias = true, .std = (float)(1 / sqrt((double)k->text.hidden_size))};
    fv_lin_opt vision = {.no_bias = true, .std = (float)(1 / sqrt((double)k->vision.hidden_size))};
    fv__clip_text_init(p, &m->text, &k->text, "text_model.");
    fv__clip_vision_init(p, &m->vision, &k->vision, true, "vision_model.");
    fv_lin_init(p, &m->visual_projection, k->vision.hidden_size, k->projection_dim, vision,
                "visual_projection");
    fv_lin_init(p, &m->text_projection, k->text.hidden_size, k->projection_dim, text,
                "text_projection");
    m->logit_scale = fv_param(p, (fv_init){.kind = FV_INIT_ONE, .scale = k->logit_scale_init_value},
                              (fv_shape){0}, "logit_scale");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids", NULL};
    return (fv_load_opt){.ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    clip *m = self;
    fv__clip_text_pack(p, &m->text, dtype);
    fv__clip_vision_pack(p, &m->vision, dtype);
    fv_lin_pack(p, &m->text_projection, dtype);
    fv_lin_pack(p, &m->visual_projection, dtype);
}

static int64_t longest(const void *self)
{
    return ((const clip *)self)->cfg.text.max_position_embeddings;
}

/* ---- forward ---- */

static fv_tensor *embed_texts(fv_ctx *c, const clip *m, const fv_items *in, fv_items *out)
{
    fv_tensor *ids = fv_items_get(in, "input_ids");
    if (!ids) return NULL;
    fv_tensor *x = fv__clip_text_fwd(c, &m->text, in, true, "text_model_output.hidden_states");
    fv_tensor *y = fv_lin_fwd(c, &m->text_projection, fv__clip_pool(c, &m->text, x, ids));
    fv_items_put(out, "text_model_output.last_hidden_state", x);
    fv_items_put(out, "text_model_output.pooler_output", y);
    return y;
}

static fv_tensor *embed_images(fv_ctx *c, const clip *m, const fv_items *in, fv_items *out)
{
    fv_tensor *image = fv_items_get(in, "pixel_values");
    if (!image) return NULL;
    fv_tensor *x = fv__clip_vision_fwd(c, &m->vision, image, "vision_model_output.hidden_states");
    fv_tensor *y = fv_lin_fwd(c, &m->visual_projection,
                              fv_norm_fwd(c, &m->vision.after, fv_first(c, x)));
    fv_items_put(out, "vision_model_output.last_hidden_state", x);
    fv_items_put(out, "vision_model_output.pooler_output", y);
    return y;
}

/* Row t of the logits belongs to t: the mean over rows of their cross entropies. */
static fv_tensor *contrast(fv_ctx *c, fv_tensor *logits, const fv_items *in)
{
    int64_t n = fv_dim(logits, 0);
    fv_items rows = {.n_labels = in->n_rows > 0 ? in->n_rows : (double)n,
                     .per_label = in->per_row,
                     .smooth = in->smooth};
    fv_tensor *own = fv_reshape(c, fv_positions(c, 1, n, 0), FV_SHAPE(n));
    return fv_loss_tokens(c, logits, own, &rows);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const clip *m = self;
    fv_tensor *text = embed_texts(c, m, in, out), *image = embed_images(c, m, in, out);
    if (!fv_items_get(in, "input_ids") && !fv_items_get(in, "pixel_values"))
        fv_raise(c, FV_EARG, "clip: neither input_ids nor pixel_values");
    fv__put_embeds(c, out, &text, &image);
    if (!text || !image) return;
    fv_tensor *per_text = fv_matmul(c, text, image, (fv_mm){.tb = true});
    per_text = fv_mul(c, per_text, fv_exp(c, m->logit_scale));
    fv_tensor *per_image = fv_transpose(c, per_text);
    fv_items_put(out, "logits_per_text", per_text);
    fv_items_put(out, "logits_per_image", per_image);
    if (fv_dim(text, 0) != fv_dim(image, 0)) return;
    fv_items_put(out, "loss",
                 fv_scale(c, fv_add(c, contrast(c, per_text, in), contrast(c, per_image, in)),
                          0.5f));
}

const fv_family fv__family_clip = {FV__CLIP_PARTS(clip), .rules = rules, .inputs = fv__clip_inputs,
                                   .type = "clip"};
