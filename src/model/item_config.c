/* item_config.c - the layer of models of items that attend both ways. */
#include "model/item_config.h"

static void layer_init(fv_params *p, fv__item_layer *b, const fv__item_config *k, int i)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_lin_opt lin = {.std = k->initializer_range};
    b->dropout = k->hidden_dropout_prob;
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = lin, .out = lin}, "layers.%d.attention", i);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "layers.%d.attention_norm", i);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act), .lin = lin}, "layers.%d.feed_forward",
                i);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "layers.%d.feed_forward_norm", i);
}

fv__item_layer *fv__item_layers(fv_params *p, const fv__item_config *k)
{
    fv__item_layer *all = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *all);
    for (int i = 0; all && i < k->num_hidden_layers; i++) layer_init(p, &all[i], k, i);
    return all;
}

fv_tensor *fv__item_layer_fwd(fv_ctx *c, const void *layer, fv_tensor *x, fv_mha_arg arg,
                              fv_mha_arg none)
{
    (void)none;
    const fv__item_layer *b = layer;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, arg), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}
