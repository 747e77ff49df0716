/* item_config.h - the keys of config.json that models of sequences of items share (SASRec,
 * BERT4Rec, BST), and the layer of those that attend both ways. */
#ifndef FV_MODEL_ITEM_CONFIG_H
#define FV_MODEL_ITEM_CONFIG_H

#include "model/part.h"

typedef struct fv__item_config {
    int hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act;
    int max_position_embeddings, num_labels;
    float hidden_dropout_prob, attention_probs_dropout_prob, initializer_range, layer_norm_eps;
} fv__item_config;

/* Their fields.  inner, act, dropout, eps: what the family means where a key is left out; least:
 * the fewest positions it can work with. */
#define FV__ITEM_FIELDS(inner, act, least, dropout, eps)                                           \
    FV_INT(fv__item_config, num_labels, 1, 2, 1 << 28, "items"),                                   \
        FV_INT(fv__item_config, hidden_size, 1, 64, 1 << 16, "model width"),                       \
        FV_INT(fv__item_config, num_hidden_layers, 1, 2, 256, "layers"),                           \
        FV_INT(fv__item_config, num_attention_heads, 1, 2, 1024, "attention heads"),               \
        FV_INT(fv__item_config, intermediate_size, 1, inner, 1 << 18,                              \
               "width of the feed-forward part"),                                                  \
        FV_CHOICE(fv__item_config, hidden_act, act, fv_act_words,                                  \
                  "activation of the feed-forward part"),                                          \
        FV_INT(fv__item_config, max_position_embeddings, least, 50, 1 << 16,                       \
               "items that are read"),                                                             \
        FV_FLOAT(fv__item_config, hidden_dropout_prob, 0, dropout, 0.99,                           \
                 "on what each part of a layer adds, and on the embeddings"),                      \
        FV_FLOAT(fv__item_config, attention_probs_dropout_prob, 0, dropout, 0.99,                  \
                 "on the attention weights"),                                                      \
        FV_FLOAT(fv__item_config, initializer_range, 0, 0.02, 10,                                  \
                 "standard deviation of first values"),                                            \
        FV_FLOAT(fv__item_config, layer_norm_eps, 1e-20, eps, 1,                                   \
                 "under the square root of each norm")

static inline fv_status fv__item_config_check(const void *config, fv_err *e)
{
    const fv__item_config *k = config;
    return fv__heads_check(k->hidden_size, k->num_attention_heads, e);
}

/* norm(x + attn(x)), norm(x + mlp(x)), as BERT's; names of our own. */
typedef struct fv__item_layer {
    fv_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    float dropout;
} fv__item_layer;

/* num_hidden_layers of them, at layers.0, layers.1, ..; NULL: out of memory */
fv__item_layer *fv__item_layers(fv_params *p, const fv__item_config *k);
/* x (B,T,D) -> (B,T,D), for fv__layers_run */
fv_tensor *fv__item_layer_fwd(fv_ctx *c, const void *layer, fv_tensor *x, fv_mha_arg arg,
                              fv_mha_arg none);

#endif
