/* clip_vision.c - CLIP's encoder of images by itself: ViT with a norm before its layers.
 *
 * With a projection its vector lies in the space of the texts'.
 *
 * Paper: Radford et al. 2021 (arXiv:2103.00020). The class token is read behind the last norm
 * (post_layernorm), which the other tokens do not pass. It opens the image half of a CLIP
 * directory too. */
#include <stddef.h>

#include "model/clip.h"

static const fv_family_head heads[] = {
    {"CLIPVisionModel", .job = FV_HEAD_BASE},
    {"CLIPVisionModelWithProjection", FV_HEAD_PROJECT, .base = "CLIPVisionModel"},
    {0},
};

typedef struct config {
    fv__clip_config vision;
} config;

static const fv_field fields[] = {
    FV__CLIP_LAYER_FIELDS("", config, vision, 768, 12, FV__ACT_QUICK_GELU, 1e-5),
    FV__CLIP_VISION_FIELDS("", config, vision, "32"),
    FV_INT_KEY("projection_dim", config, vision.projection_dim, 1, 512, 1 << 16,
               "of the space shared with texts"),
    {0},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {0},
};

typedef struct clip_vision {
    config cfg;
    fv__clip_vision vision;
    fv_lin projection;
} clip_vision;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__clip_check_vision(&((const config *)config_)->vision, e);
}

/* A bare encoder has no "vision_model." before its names. */
static void declare(void *self, const fv_setup *s)
{
    clip_vision *m = self;
    m->cfg = *(const config *)s->config;
    const fv__clip_config *k = &m->cfg.vision;
    bool bare = s->head->job == FV_HEAD_BASE;
    fv__clip_vision_init(s->params, &m->vision, k, true, bare ? "" : "vision_model.");
    if (!bare)
        fv_lin_init(s->params, &m->projection, k->hidden_size, k->projection_dim,
                    (fv_lin_opt){.no_bias = true}, "visual_projection");
}

/* Of a whole CLIP the other half is left unread. */
static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids",     "text_model.*", "visual_projection.*",
                                         "text_projection.*", "logit_scale",  NULL};
    return (fv_load_opt){.prefix = "vision_model.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__clip_vision_pack(p, &((clip_vision *)self)->vision, dtype);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const clip_vision *m = self;
    fv_tensor *x = fv__clip_vision_fwd(c, &m->vision, fv_items_get(in, "pixel_values"),
                                       "hidden_states"),
              *pooled = fv_norm_fwd(c, &m->vision.after, fv_first(c, x));
    fv_items_put(out, "last_hidden_state", x);
    if (m->projection.w)
        fv_items_put(out, "image_embeds", fv_lin_fwd(c, &m->projection, pooled));
    else
        fv_items_put(out, "pooler_output", pooled);
}

const fv_family fv__family_clip_vision = {
    .type = "clip_vision_model",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(clip_vision),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
