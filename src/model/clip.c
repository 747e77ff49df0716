/* clip.c - the two encoders of CLIP and SigLIP: layers of one kind, for tokens and for patches.
 *
 * First values are CLIP's: what a layer adds begins smaller the more layers there are. */
#include "model/clip.h"

#include <math.h>
#include <stdio.h>

const fv_input fv__clip_text_inputs[] = {{"input_ids", FV_I32, true},
                                         {"attention_mask", FV_U8, false},
                                         {"position_ids", FV_I32, false},
                                         {0}};

const fv_input fv__clip_inputs[] = {{"input_ids", FV_I32, false},
                                    {"attention_mask", FV_U8, false},
                                    {"position_ids", FV_I32, false},
                                    {"pixel_values", FV_F32, false},
                                    {0}};

/* which: the half that the message is about. */
static fv_status check_layers(const fv__clip_config *k, const char *which, fv_err *e)
{
    if (k->hidden_size % k->num_attention_heads == 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: hidden_size %d is no multiple of num_attention_heads %d",
                   which, k->hidden_size, k->num_attention_heads);
}

fv_status fv__clip_check_text(const fv__clip_config *k, fv_err *e)
{
    return check_layers(k, "text", e);
}

fv_status fv__clip_check_vision(const fv__clip_config *k, fv_err *e)
{
    fv__vit_config v = {.hidden_size = k->hidden_size,
                        .num_attention_heads = k->num_attention_heads,
                        .image_size = k->image_size,
                        .patch_size = k->patch_size};
    return fv__vit_check(&v, e);
}

/* ---- layers ---- */

/* First values as published: q, k, v and fc2 begin smaller the more layers there are. */
static void block_init(fv_params *p, fv__vit_block *b, const fv__clip_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    float width = (float)(1 / sqrt((double)k->hidden_size)),
          share = (float)(1 / sqrt(2.0 * k->num_hidden_layers));
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.layer_norm1", at);
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = {.std = width * share}, .out = {.std = width}}, "%s.self_attn",
                at);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.layer_norm2", at);
    fv_lin_opt up = {.std = (float)(1 / sqrt(2.0 * k->hidden_size))}, down = {.std = width * share};
    b->mlp = (fv_mlp){.act = fv_act_of(k->hidden_act)};
    fv_lin_init(p, &b->mlp.up, k->hidden_size, k->intermediate_size, up, "%s.mlp.fc1", at);
    fv_lin_init(p, &b->mlp.down, k->intermediate_size, k->hidden_size, down, "%s.mlp.fc2", at);
    fv_param_mark_end(b->mlp.down.w, FV_ENDS_MLP);
}

/* Below `at`: encoder.layers.N, with ViT's struct and names of CLIP's own. */
static fv__vit_block *blocks(fv_params *p, const fv__clip_config *k, const char *at)
{
    fv__vit_block *b = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *b);
    for (int i = 0; b && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layers.%d", at, i);
        block_init(p, &b[i], k, path);
    }
    return b;
}

/* ---- texts ---- */

/* at: "text_model." in a whole CLIP and by itself. */
void fv__clip_text_init(fv_params *p, fv__clip_text *l, const fv__clip_config *k, const char *at)
{
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = 0.02f};
    l->cfg = k;
    fv_emb_init(p, &l->tokens, k->vocab_size, k->hidden_size, 0.02f, "%sembeddings.token_embedding",
                at);
    l->positions = fv_param(p, normal, FV_SHAPE(k->max_position_embeddings, k->hidden_size),
                            "%sembeddings.position_embedding.weight", at);
    l->blocks = blocks(p, k, at);
    fv_norm_init(p, &l->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sfinal_layer_norm", at);
}

void fv__clip_text_pack(fv_params *p, fv__clip_text *l, fv_dtype dtype)
{
    fv__vit_pack(p, l->blocks, l->cfg->num_hidden_layers, dtype);
}

/* (B,T) -> (B,T,D) behind the last norm.  CLIP's tokens look back, SigLIP's both ways. */
fv_tensor *fv__clip_text_fwd(fv_ctx *c, const fv__clip_text *l, const fv_items *in, bool causal,
                             const char *hidden)
{
    fv_tensor *ids = fv_items_get(in, "input_ids"), *at = fv_items_get(in, "position_ids");
    int64_t T = fv_dim(ids, 1), longest = l->cfg->max_position_embeddings;
    if (!ids) return NULL;
    if (T > longest)
        return fv_raise(c, FV_ESHAPE, "input_ids %s, but max_position_embeddings is %lld",
                        fv_desc(ids).s, (long long)longest);
    fv_mha_arg arg = fv_masked(c, fv_items_get(in, "attention_mask"));
    arg.causal = causal;
    fv_tensor *where = at ? fv_gather(c, l->positions, at, -1) : fv_slice(c, l->positions, 0, 0, T);
    fv_tensor *x = fv_add(c, fv_emb_fwd(c, &l->tokens, ids), where);
    x = fv__vit_run(c, l->blocks, l->cfg->num_hidden_layers, x, arg, hidden);
    return fv_norm_fwd(c, &l->norm, x);
}

/* The token that stands for the text: the first eos, or the largest id where the file says 2, the
 * id that the first release wrote by mistake. */
fv_tensor *fv__clip_pool(fv_ctx *c, const fv__clip_text *l, fv_tensor *x, fv_tensor *ids)
{
    int32_t end = l->cfg->eos_token_id;
    return fv__position_of(c, x, ids, end, end == 2 ? FV_FIND_LARGEST : FV_FIND_FIRST);
}

/* ---- images ---- */

/* Patches along an axis of an image of the configured size. */
static int64_t grid(const fv__clip_config *k, int axis)
{
    return fv__side(&k->image_size, axis) / fv__side(&k->patch_size, axis);
}

/* With a class token (CLIP) there is a norm before the layers and no bias on the patches; without
 * (SigLIP) it is the other way round. */
void fv__clip_vision_init(fv_params *p, fv__clip_vision *l, const fv__clip_config *k,
                          bool class_token, const char *at)
{
    int64_t D = k->hidden_size, size = fv__side(&k->patch_size, 0),
            N = grid(k, 0) * grid(k, 1) + class_token;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    float width = (float)(1 / sqrt((double)D));
    l->cfg = k;
    if (class_token)
        l->class_token = fv_param(p, (fv_init){.kind = FV_INIT_NORMAL, .scale = width}, FV_SHAPE(D),
                                  "%sembeddings.class_embedding", at);
    fv_conv_init(p, &l->patches, k->num_channels, D, size,
                 (fv_conv_layer_opt){.conv = {.stride = size},
                                     .no_bias = class_token,
                                     .std = class_token ? 0.02f : 0},
                 "%sembeddings.patch_embedding", at);
    l->positions = fv_param(p,
                            (fv_init){.kind = FV_INIT_NORMAL, .scale = class_token ? 0.02f : width},
                            FV_SHAPE(N, D), "%sembeddings.position_embedding.weight", at);
    if (class_token) fv_norm_init(p, &l->before, D, norm, "%spre_layrnorm", at); /* as published */
    l->blocks = blocks(p, k, at);
    fv_norm_init(p, &l->after, D, norm, "%spost_layernorm", at);
}

void fv__clip_vision_pack(fv_params *p, fv__clip_vision *l, fv_dtype dtype)
{
    fv__vit_pack(p, l->blocks, l->cfg->num_hidden_layers, dtype);
}

/* (B,C,H,W) -> (B,[1+]N,D), before the last norm, which CLIP applies to the class token alone. */
fv_tensor *fv__clip_vision_fwd(fv_ctx *c, const fv__clip_vision *l, fv_tensor *image,
                               const char *hidden)
{
    const fv__clip_config *k = l->cfg;
    image = fv__image(c, "clip", image, k->num_channels);
    if (!image) return NULL;
    int64_t D = k->hidden_size, size = fv__side(&k->patch_size, 0);
    bool token = l->class_token;
    fv_tensor *x = fv_conv_patches(c, &l->patches, image);
    if (token) x = fv__prepend(c, fv_reshape(c, l->class_token, FV_SHAPE(1, 1, D)), x);
    fv_tensor *table = fv_reshape(c, l->positions, FV_SHAPE(1, fv_dim(l->positions, 0), D));
    x = fv_add(c, x,
               fv__vit_positions(c, table, token, grid(k, 0), grid(k, 1), fv_dim(image, 2) / size,
                                 fv_dim(image, 3) / size));
    if (token) x = fv_norm_fwd(c, &l->before, x);
    return fv__vit_run(c, l->blocks, k->num_hidden_layers, x, (fv_mha_arg){0}, hidden);
}

/* ---- similarities ---- */

/* x / |x|, by rows. */
fv_tensor *fv__unit(fv_ctx *c, fv_tensor *x)
{
    fv_tensor *norm = fv_sqrt(c, fv_sum(c, fv_square(c, x), -1));
    return fv_div(c, x, fv_reshape(c, norm, FV_SHAPE(fv_dim(x, 0), 1)));
}

void fv__put_embeds(fv_ctx *c, fv_items *out, fv_tensor **text, fv_tensor **image)
{
    if (*text) fv_items_put(out, "text_embeds", *text = fv__unit(c, *text));
    if (*image) fv_items_put(out, "image_embeds", *image = fv__unit(c, *image));
}
