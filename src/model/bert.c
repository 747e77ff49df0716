/* bert.c - the block of BERT, which RoBERTa has too, and the masked-word head of both.
 *
 *     x = norm(x + attn(x));   x = norm(x + mlp(x))
 *
 * The two differ in embeddings, positions and heads: those are in their own files. */
#include "model/bert.h"

#include <stdio.h>

#include "base/base.h"

fv_status fv__bert_check(const fv__bert_config *k, fv_err *e)
{
    if (k->hidden_size % k->num_attention_heads == 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d",
                   k->hidden_size, k->num_attention_heads);
}

/* Below `at`, "bert.encoder.layer.0". */
static void block_init(fv_params *p, fv__bert_block *b, const fv__bert_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->dropout = k->hidden_dropout_prob;
    fv_mha_init(p, &b->attn,
                (fv_mha_opt){.width = k->hidden_size,
                             .n_head = k->num_attention_heads,
                             .dropout = k->attention_probs_dropout_prob,
                             .std = k->initializer_range,
                             .q_name = "self.query",
                             .k_name = "self.key",
                             .v_name = "self.value",
                             .out_name = "output.dense"},
                "%s.attention", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.attention.output.LayerNorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .std = k->initializer_range,
                             .up_name = "intermediate.dense",
                             .down_name = "output.dense"},
                "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.output.LayerNorm", at);
}

fv__bert_block *fv__bert_blocks(fv_params *p, const fv__bert_config *k, const char *at)
{
    fv__bert_block *b = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *b);
    for (int i = 0; b && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layer.%d", at, i);
        block_init(p, &b[i], k, path);
    }
    return b;
}

/* x = norm(x + attn(x));  x = norm(x + mlp(x)) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const fv__bert_block *b = self;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, arg), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

fv_tensor *fv__bert_encode(fv_ctx *c, const fv__bert_block *b, const fv__bert_config *k,
                           fv_tensor *x, fv_tensor *mask)
{
    fv_mha_arg arg = fv_masked(c, mask);
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < k->num_hidden_layers; i++) {
        fv_tap(c, "hidden", "hidden_states", x);
        x = fv_layer_run(c, block_fwd, &b[i], x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

void fv__bert_pack(fv_params *p, fv__bert_block *b, const fv__bert_config *k, fv_dtype dtype)
{
    for (int i = 0; i < k->num_hidden_layers; i++) {
        fv_mha_pack(p, &b[i].attn, dtype, true);
        fv_mlp_pack(p, &b[i].mlp, dtype);
    }
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
