/* clip.h - the two encoders of CLIP, which SigLIP has too: layers, embeddings, similarities. */
#ifndef FV_MODEL_CLIP_H
#define FV_MODEL_CLIP_H

#include "model/vit.h"

/* Of one encoder: what both have, then what texts and images need. */
typedef struct fv__clip_config {
    int hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, hidden_act;
    int projection_dim;
    float layer_norm_eps, attention_dropout, initializer_range, initializer_factor;
    int vocab_size, max_position_embeddings, eos_token_id;
    int num_channels;
    fv_int_list image_size, patch_size;
    bool vision_use_head; /* of SigLIP */
} fv__clip_config;

/* Keys of a layer, below the path `at` ("" or "text_config."), into the member `m` of the struct
 * `type`; the defaults differ. */
#define FV__CLIP_LAYER_FIELDS(at, type, m, width, heads, act, eps)                                 \
    FV_INT_KEY(at "hidden_size", type, m.hidden_size, 1, width, 1 << 16, "model width"),           \
        FV_INT_KEY(at "intermediate_size", type, m.intermediate_size, 1, 4 * (width), 1 << 18,     \
                   "width of the feed-forward part"),                                              \
        FV_INT_KEY(at "num_hidden_layers", type, m.num_hidden_layers, 1, 12, 256, "layers"),       \
        FV_INT_KEY(at "num_attention_heads", type, m.num_attention_heads, 1, heads, 1024,          \
                   "attention heads"),                                                             \
        FV_CHOICE_KEY(at "hidden_act", type, m.hidden_act, act, fv_act_words,                      \
                      "activation of the feed-forward part"),                                      \
        FV_FLOAT_KEY(at "layer_norm_eps", type, m.layer_norm_eps, 1e-20, eps, 1,                   \
                     "under the square root of each norm"),                                        \
        FV_FLOAT_KEY(at "attention_dropout", type, m.attention_dropout, 0, 0, 0.99,                \
                     "on the attention weights")

#define FV__CLIP_TEXT_FIELDS(at, type, m, vocabulary, longest)                                     \
    FV_INT_KEY(at "vocab_size", type, m.vocab_size, 1, vocabulary, 1 << 24, "tokens"),             \
        FV_INT_KEY(at "max_position_embeddings", type, m.max_position_embeddings, 1, longest,      \
                   1 << 20, "longest text")

#define FV__CLIP_VISION_FIELDS(at, type, m, patch)                                                 \
    FV_INT_KEY(at "num_channels", type, m.num_channels, 1, 3, 1024, "channels of an image"),       \
        FV_INTS_KEY(at "image_size", type, m.image_size, 1, "224", 1 << 14,                        \
                    "pixels of a side; or height and width"),                                      \
        FV_INTS_KEY(at "patch_size", type, m.patch_size, 1, patch, 1 << 12,                        \
                    "pixels of a patch's side")

/* input_ids, attention_mask, position_ids of a text; of both, where either may be missing, with
 * pixel_values. */
extern const fv_input fv__clip_text_inputs[], fv__clip_inputs[];

/* What tables of models of texts, and of texts and images, name alike. */
#define FV__CLIP_PARTS(T)                                                                          \
    .heads = heads, .config = fields, .config_size = sizeof(config), .size = sizeof(T),            \
    .check = check, .declare = declare, .longest = longest, .load = load, .pack = pack,            \
    .forward = forward

/* Indices of fv_act_words. */
enum { FV__ACT_GELU_TANH = 5, FV__ACT_QUICK_GELU = 10 };

/* That the heads divide the width and an image holds a patch. */
fv_status fv__clip_check_text(const fv__clip_config *k, fv_err *e);
fv_status fv__clip_check_vision(const fv__clip_config *k, fv_err *e);

typedef struct fv__clip_text {
    fv_emb tokens;
    fv_tensor *positions; /* (max_position_embeddings,D) */
    fv__vit_block *blocks;
    fv_norm norm;
    const fv__clip_config *cfg;
} fv__clip_text;

typedef struct fv__clip_vision {
    fv_tensor *class_token, *positions; /* (D) or NULL, (1+N,D) or (N,D) */
    fv_conv patches;
    fv__vit_block *blocks;
    fv_norm before, after; /* before: of the embeddings, in CLIP alone */
    const fv__clip_config *cfg;
} fv__clip_vision;

/* Below `at`, which is empty or ends in a dot; the configuration is kept and must stay. */
void fv__clip_text_init(fv_params *p, fv__clip_text *l, const fv__clip_config *k, const char *at);
/* class_token: a token in front, patches without bias and a norm before the layers, as in CLIP. */
void fv__clip_vision_init(fv_params *p, fv__clip_vision *l, const fv__clip_config *k,
                          bool class_token, const char *at);
void fv__clip_text_pack(fv_params *p, fv__clip_text *l, fv_dtype dtype);
void fv__clip_vision_pack(fv_params *p, fv__clip_vision *l, fv_dtype dtype);

/* input_ids, attention_mask and position_ids of `in` -> (B,T,D), behind the last norm. */
fv_tensor *fv__clip_text_fwd(fv_ctx *c, const fv__clip_text *l, const fv_items *in, bool causal,
                             const char *hidden);
/* (B,C,H,W) -> (B,T,D), before the last norm. */
fv_tensor *fv__clip_vision_fwd(fv_ctx *c, const fv__clip_vision *l, fv_tensor *image,
                               const char *hidden);
/* x (B,T,D) at the end of each text: the first eos_token_id, or the largest id where that is 2, as
 * in configurations from before it was put right. */
fv_tensor *fv__clip_pool(fv_ctx *c, const fv__clip_text *l, fv_tensor *x, fv_tensor *ids);

/* x / |x|, row by row. */
fv_tensor *fv__unit(fv_ctx *c, fv_tensor *x);
/* Puts text_embeds and image_embeds, both of length 1, as far as they are there. */
void fv__put_embeds(fv_ctx *c, fv_items *out, fv_tensor **text, fv_tensor **image);

#endif
