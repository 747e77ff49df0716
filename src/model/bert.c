/* bert.c - what BERT and its kin share. */
#include "model/bert.h"

#include "base/base.h"

fv_status fv__bert_check(const fv__bert_config *k, fv_err *e)
{
    if (k->hidden_size % k->num_attention_heads == 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d",
                   k->hidden_size, k->num_attention_heads);
}

static fv_layer_opt layer_opt(const fv__bert_config *k)
{
    float std = k->initializer_range;
    return (fv_layer_opt){
        .mha = {.width = k->hidden_size,
                .n_head = k->num_attention_heads,
                .dropout = k->attention_probs_dropout_prob,
                .std = std,
                .q_name = "self.query",
                .k_name = "self.key",
                .v_name = "self.value",
                .out_name = "output.dense"},
        .hidden = k->intermediate_size,
        .mlp = {.act = fv_act_of(k->hidden_act),
                .std = std,
                .up_name = "intermediate.dense",
                .down_name = "output.dense"},
        .norm = {.eps = k->layer_norm_eps},
        .dropout = k->hidden_dropout_prob,
        .names = {.self = "attention",
                  .self_norm = "attention.output.LayerNorm",
                  .mlp_norm = "output.LayerNorm"},
    };
}

fv_encoder_layer *fv__bert_layers(fv_params *p, const fv__bert_config *k, const char *at)
{
    fv_encoder_layer *l = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *l);
    for (int i = 0; l && i < k->num_hidden_layers; i++)
        fv_encoder_layer_init(p, &l[i], layer_opt(k), "%sencoder.layer.%d", at, i);
    return l;
}

float fv__bert_dropout(const fv__bert_config *k)
{
    return k->classifier_dropout >= 0 ? k->classifier_dropout : k->hidden_dropout_prob;
}

fv_status fv__bert_pooler_ready(fv_params *p, fv_lin *pooler, fv_err *e)
{
    int64_t n = fv_len(pooler->w);
    size_t bytes = (size_t)n * sizeof(float);
    float *x = fv__alloc(NULL, bytes);
    fv_status st = x ? fv_params_get(p, pooler->w, x, n, e)
                     : fv_fail(e, FV_ENOMEM, "out of memory for %zu bytes of the pooler", bytes);
    bool any = false;
    for (int64_t i = 0; !st && !any && i < n; i++) any = x[i] != 0;
    if (!st && !any) pooler->w = NULL;
    fv__free(NULL, x, bytes);
    return st;
}

/* ---- masked words ---- */

void fv__word_head_init(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                        const char *dense, const char *norm, const char *scores)
{
    fv_lin_opt lin = {.std = k->initializer_range};
    l->act = fv_act_of(k->hidden_act);
    fv_lin_init(p, &l->dense, k->hidden_size, k->hidden_size, lin, "%s", dense);
    fv_norm_init(p, &l->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps}, "%s", norm);
    l->scores = words;
    l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size), "%s.bias",
                       scores);
    if (k->tie_word_embeddings) return;
    fv_lin apart; /* then the bias above is in the file and serves nothing */
    fv_lin_init(p, &apart, k->hidden_size, k->vocab_size, lin, "%s.decoder", scores);
    l->scores = apart.w;
    l->bias = apart.b;
}

fv_tensor *fv__word_head_fwd(fv_ctx *c, const fv__word_head *l, fv_tensor *x)
{
    return fv_linear(c, fv_norm_fwd(c, &l->norm, fv_lin_act(c, &l->dense, x, l->act)), l->scores,
                     l->bias, FV_ACT_NONE);
}

void fv__word_head_pack(fv_params *p, fv__word_head *l, fv_dtype dtype)
{
    if (l->dense.w) fv_lin_pack(p, &l->dense, dtype);
    l->scores = fv__packed(p, l->scores, dtype);
}
