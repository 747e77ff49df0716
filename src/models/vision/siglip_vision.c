/* siglip_vision.c - SigLIP's encoder of images by itself: patches without a token in front, pooled
 * by an attention that one learned vector asks.
 *
 * Paper: Zhai et al. 2023 (arXiv:2303.15343). The pooling attention keeps q, k and v in one
 * in_proj, as torch's MultiheadAttention stores them. It opens the image half of a SigLIP
 * directory too. */
#include <stddef.h>

#include "model/siglip.h"

static const fv_family_head heads[] = {
    {"SiglipVisionModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct config {
    fv__clip_config vision;
} config;

static const fv_field fields[] = {
    FV__SIGLIP_VISION_FIELDS("", config, vision),
    {0},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {0},
};

typedef struct siglip_vision {
    config cfg;
    fv__siglip_vision vision;
} siglip_vision;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__clip_check_vision(&((const config *)config_)->vision, e);
}

static void declare(void *self, const fv_setup *s)
{
    siglip_vision *m = self;
    m->cfg = *(const config *)s->config;
    fv__siglip_vision_init(s->params, &m->vision, &m->cfg.vision, "");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids", "text_model.*", "logit_*", NULL};
    return (fv_load_opt){.prefix = "vision_model.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__siglip_vision_pack(p, &((siglip_vision *)self)->vision, dtype);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const siglip_vision *m = self;
    fv_tensor *x;
    fv_tensor *pooled = fv__siglip_vision_fwd(c, &m->vision, fv_items_get(in, "pixel_values"), &x,
                                              "hidden_states");
    fv_items_put(out, "last_hidden_state", x);
    if (m->cfg.vision.vision_use_head) fv_items_put(out, "pooler_output", pooled);
}

const fv_family fv__family_siglip_vision = {
    .type = "siglip_vision_model",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(siglip_vision),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
