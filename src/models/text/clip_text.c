/* clip_text.c - CLIP's encoder of texts by itself: tokens look back, the last one stands for all.
 *
 * With a projection its vector lies in the space of the images'.
 *
 * Paper: Radford et al. 2021 (arXiv:2103.00020).  The text stands where its first eos_token_id is,
 * or its largest id in files of the first release, which say 2 there.  It opens the text half of a
 * CLIP directory too: names of the other half are left unread. */
#include <stddef.h>

#include "model/clip.h"

static const fv_family_head heads[] = {
    {"CLIPTextModel", .job = FV_HEAD_BASE},
    {"CLIPTextModelWithProjection", FV_HEAD_PROJECT, .base = "CLIPTextModel"},
    {0},
};

typedef struct config {
    fv__clip_config text;
} config;

static const fv_field fields[] = {
    FV__CLIP_LAYER_FIELDS("", config, text, 512, 8, FV__ACT_QUICK_GELU, 1e-5),
    FV__CLIP_TEXT_FIELDS("", config, text, 49408, 77),
    FV_INT_KEY("eos_token_id", config, text.eos_token_id, 0, 49407, 1 << 24, "end of a text"),
    FV_INT_KEY("projection_dim", config, text.projection_dim, 1, 512, 1 << 16,
               "of the space shared with images"),
    {0},
};

typedef struct clip_text {
    config cfg;
    fv__clip_text text;
    fv_lin projection;
} clip_text;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__clip_check_text(&((const config *)config_)->text, e);
}

/* A bare encoder has no "text_model." before its names. */
static void declare(void *self, const fv_setup *s)
{
    clip_text *m = self;
    m->cfg = *(const config *)s->config;
    bool bare = s->head->job == FV_HEAD_BASE;
    fv__clip_text_init(s->params, &m->text, &m->cfg.text, bare ? "" : "text_model.");
    if (!bare)
        fv_lin_init(s->params, &m->projection, m->cfg.text.hidden_size, m->cfg.text.projection_dim,
                    (fv_lin_opt){.no_bias = true}, "text_projection");
}

/* Of a whole CLIP the other half is left unread. */
static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids",       "vision_model.*",
                                         "visual_projection.*", "text_projection.*",
                                         "logit_scale",         NULL};
    return (fv_load_opt){.prefix = "text_model.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__clip_text_pack(p, &((clip_text *)self)->text, dtype);
}

static int64_t longest(const void *self)
{
    return ((const clip_text *)self)->cfg.text.max_position_embeddings;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const clip_text *m = self;
    fv_tensor *x = fv__clip_text_fwd(c, &m->text, in, true, "hidden_states"),
              *pooled = fv__clip_pool(c, &m->text, x, fv_items_get(in, "input_ids"));
    fv_items_put(out, "last_hidden_state", x);
    if (m->projection.w)
        fv_items_put(out, "text_embeds", fv_lin_fwd(c, &m->projection, pooled));
    else
        fv_items_put(out, "pooler_output", pooled);
}

const fv_family fv__family_clip_text = {FV__CLIP_PARTS(clip_text), .inputs = fv__clip_text_inputs,
                                        .type = "clip_text_model"};
