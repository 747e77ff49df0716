/* siglip.c - what SigLIP adds to the encoders of CLIP: a head on texts, pooling of images.
 *
 *     y = attention(probe, x, x);   pooled = y + mlp(norm(y))
 *
 * The pooling attention is torch.nn.MultiheadAttention, whose q, k and v are one weight. */
#include "model/siglip.h"

#include <stdio.h>
#include <string.h>

void fv__siglip_text_init(fv_params *p, fv__siglip_text *l, const fv__clip_config *k,
                          const char *at)
{
    fv__clip_text_init(p, &l->encoder, k, at);
    fv_lin_init(p, &l->head, k->hidden_size, k->projection_dim ? k->projection_dim : k->hidden_size,
                (fv_lin_opt){0}, "%shead", at);
}

void fv__siglip_text_pack(fv_params *p, fv__siglip_text *l, fv_dtype dtype)
{
    fv__clip_text_pack(p, &l->encoder, dtype);
    fv_lin_pack(p, &l->head, dtype);
}

fv_tensor *fv__siglip_text_fwd(fv_ctx *c, const fv__siglip_text *l, const fv_items *in,
                               fv_tensor **x, const char *hidden)
{
    *x = fv__clip_text_fwd(c, &l->encoder, in, false, hidden);
    return fv_lin_fwd(c, &l->head, fv__last_position(c, *x));
}

/* ---- images ---- */

void fv__siglip_vision_init(fv_params *p, fv__siglip_vision *l, const fv__clip_config *k,
                            const char *at)
{
    int64_t D = k->hidden_size;
    fv_init xavier = {.kind = FV_INIT_XAVIER}, zero = {.kind = FV_INIT_ZERO};
    fv__clip_vision_init(p, &l->encoder, k, false, at);
    if (!k->vision_use_head) return;
    l->probe = fv_param(p, xavier, FV_SHAPE(1, 1, D), "%shead.probe", at);
    l->in_w = fv_param(p, xavier, FV_SHAPE(3 * D, D), "%shead.attention.in_proj_weight", at);
    l->in_b = fv_param(p, zero, FV_SHAPE(3 * D), "%shead.attention.in_proj_bias", at);
    fv_lin_init(p, &l->out, D, D, (fv_lin_opt){0}, "%shead.attention.out_proj", at);
    fv_norm_init(p, &l->norm, D, (fv_norm_opt){.eps = k->layer_norm_eps}, "%shead.layernorm", at);
    fv_mlp_init(p, &l->mlp, D, k->intermediate_size, (fv_mlp_opt){.act = fv_act_of(k->hidden_act)},
                "%shead.mlp", at);
    char name[64];
    size_t n = (size_t)snprintf(name, sizeof name, "%shead.attention", at) + 1;
    char *kept = fv_params_scratch(p, n);
    if (kept) l->name = memcpy(kept, name, n);
}

void fv__siglip_vision_pack(fv_params *p, fv__siglip_vision *l, fv_dtype dtype)
{
    fv__clip_vision_pack(p, &l->encoder, dtype);
    if (l->probe) fv_mlp_pack(p, &l->mlp, dtype);
}

/* Part i of three of the weight that q, k and v share, on x (B,T,D). */
static fv_tensor *project(fv_ctx *c, const fv__siglip_vision *l, fv_tensor *x, int i)
{
    int64_t D = fv_dim(l->in_w, 1);
    return fv_linear(c, x, fv_slice(c, l->in_w, 0, i * D, (i + 1) * D),
                     fv_slice(c, l->in_b, 0, i * D, (i + 1) * D), FV_ACT_NONE);
}

static fv_tensor *pool(fv_ctx *c, const fv__siglip_vision *l, fv_tensor *x)
{
    fv_tensor *probe = fv_expand(c, l->probe, FV_SHAPE(fv_dim(x, 0), 1, fv_dim(x, 2)));
    fv_attn how = {.n_head = l->encoder.cfg->num_attention_heads, .name = l->name};
    fv_tensor *y = fv_attention(c, project(c, l, probe, 0), project(c, l, x, 1),
                                project(c, l, x, 2), how);
    y = fv_lin_fwd(c, &l->out, y);
    return fv_first(c, fv_mlp_add(c, &l->mlp, y, fv_norm_fwd(c, &l->norm, y), 0));
}

fv_tensor *fv__siglip_vision_fwd(fv_ctx *c, const fv__siglip_vision *l, fv_tensor *image,
                                 fv_tensor **x, const char *hidden)
{
    *x = fv_norm_fwd(c, &l->encoder.after, fv__clip_vision_fwd(c, &l->encoder, image, hidden));
    return l->probe ? pool(c, l, *x) : NULL;
}
