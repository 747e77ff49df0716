/* siglip_text.c - SigLIP's encoder of texts by itself: tokens look both ways, and the last
 * position, be it padding, stands for the text.
 *
 * Paper: Zhai et al. 2023 (arXiv:2303.15343). Texts are padded to one length in training, so
 * padding is attended to and read: the last position is a summary of its own. A linear head maps
 * it into the space shared with images. */
#include <stddef.h>

#include "model/siglip.h"

static const fv_family_head heads[] = {
    {"SiglipTextModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct config {
    fv__clip_config text;
} config;

static const fv_field fields[] = {
    FV__SIGLIP_TEXT_FIELDS("", config, text),
    {0},
};

typedef struct siglip_text {
    config cfg;
    fv__siglip_text text;
} siglip_text;

static fv_status check(const void *config_, fv_err *e)
{
    return fv__clip_check_text(&((const config *)config_)->text, e);
}

static void declare(void *self, const fv_setup *s)
{
    siglip_text *m = self;
    m->cfg = *(const config *)s->config;
    fv__siglip_text_init(s->params, &m->text, &m->cfg.text, "");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*position_ids", "vision_model.*", "logit_*", NULL};
    return (fv_load_opt){.prefix = "text_model.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__siglip_text_pack(p, &((siglip_text *)self)->text, dtype);
}

static int64_t longest(const void *self)
{
    return ((const siglip_text *)self)->cfg.text.max_position_embeddings;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const siglip_text *m = self;
    fv_tensor *x;
    fv_tensor *pooled = fv__siglip_text_fwd(c, &m->text, in, &x, "hidden_states");
    fv_items_put(out, "last_hidden_state", x);
    fv_items_put(out, "pooler_output", pooled);
}

const fv_family fv__family_siglip_text = {FV__CLIP_PARTS(siglip_text),
                                          .inputs = fv__clip_text_inputs,
                                          .type = "siglip_text_model"};
