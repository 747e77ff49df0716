/* bert.c - what BERT and its kin share: embeddings, the post-norm block, masked words, heads.
 *
 *     x = norm(words + types + positions);   x = norm(x + attn(x));   x = norm(x + mlp(x))
 *
 * Where a family differs (positions, names, what a classifier reads) its own file says so. */
#include "model/bert.h"

#include <stdio.h>

#include "base/base.h"
#include "core/core.h"

fv_status fv__bert_check(const fv__bert_config *k, fv_err *e)
{
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return fv__heads_check(k->hidden_size, k->num_attention_heads, e);
}

/* What files of other heads hold and these leave unread. */
const char *const fv__roberta_unread_words[] = {"*embeddings.position_ids", "*pooler.dense.*",
                                                NULL};
const char *const fv__roberta_unread[] = {"*embeddings.position_ids",
                                          "*pooler.dense.*",
                                          "lm_head.*",
                                          "classifier.*",
                                          "qa_outputs.*",
                                          NULL};

/* RoBERTa's classifier of sequences, which ESM and MPNet have too. */
void fv__two_layers_init(fv_params *p, fv_lin *dense, fv_lin *out, const fv__bert_config *k)
{
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_lin_init(p, dense, k->hidden_size, k->hidden_size, lin, "classifier.dense");
    fv_lin_init(p, out, k->hidden_size, k->num_labels, lin, "classifier.out_proj");
}

/* ---- embeddings ---- */

/* width: of the embeddings, which ELECTRA and ALBERT have narrower than the layers. */
void fv__bert_emb_init(fv_params *p, fv__bert_emb *l, const fv__bert_config *k, int64_t width,
                       const char *at)
{
    float std = k->initializer_range;
    fv_emb_init(p, &l->words, k->vocab_size, width, std, "%sembeddings.word_embeddings", at);
    l->words.skip = k->pad_token_id;
    fv_pos_init(p, &l->positions, k->max_position_embeddings, width, FV_POS_LEARNED, 0, std,
                "%sembeddings.position_embeddings", at);
    fv_emb_init(p, &l->types, k->type_vocab_size, width, std, "%sembeddings.token_type_embeddings",
                at);
    fv_norm_init(p, &l->norm, width, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sembeddings.LayerNorm", at);
}

/* (B,T) -> (B,T,width).  Types that are not given are all 0, positions count from 0. */
fv_tensor *fv__bert_embed(fv_ctx *c, const fv__bert_emb *l, const fv__bert_config *k,
                          const fv_items *in, const char *family)
{
    fv_tensor *ids = fv_items_get(in, "input_ids"), *types = fv_items_get(in, "token_type_ids");
    if (fv_dim(ids, 1) > k->max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "%s: input_ids %s, but max_position_embeddings is %d", family,
                        fv_desc(ids).s, k->max_position_embeddings);
    fv_some_rows of[] = {
        {l->words.table, .ids = ids, .skip = l->words.skip},
        {l->types.table, .ids = types, .count = 1, .skip = -1},
        {l->positions.table, .ids = fv_items_get(in, "position_ids"), .count = fv_dim(ids, 1),
         .skip = -1},
    };
    fv_tensor *x = fv__embed(c, of, 3, l->norm.gain, l->norm.bias, l->norm.eps);
    return fv_dropout(c, x, k->hidden_dropout_prob);
}

/* ---- layers ---- */

/* intermediate.dense and output.dense, and the norm behind them. */
void fv__bert_mlp_init(fv_params *p, fv__bert_block *b, const fv__bert_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.std = k->initializer_range},
                             .names = "intermediate.dense output.dense"},
                "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.output.LayerNorm", at);
}

/* Below `at`, "bert.encoder.layer.0". */
static void block_init(fv_params *p, fv__bert_block *b, const fv__bert_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->attn_dropout = b->mlp_dropout = k->hidden_dropout_prob;
    fv_lin_opt proj = {.std = k->initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj,
                             .out = proj,
                             .names = "self.query self.key self.value output.dense"},
                "%s.attention", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.attention.output.LayerNorm", at);
    fv__bert_mlp_init(p, b, k, at);
}

/* Blocks live as long as the parameters. */
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
fv_tensor *fv__bert_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                              fv_mha_arg none)
{
    (void)none;
    const fv__bert_block *b = block;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, arg), b->attn_dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->mlp_dropout, &b->mlp_norm);
}

/* mask: (B,T) of keys, or (B,T,T) of pairs. */
fv_tensor *fv__bert_encode(fv_ctx *c, const fv__bert_block *b, int n, fv_tensor *x, fv_tensor *mask)
{
    x = fv__layers_run(c, fv__bert_block_fwd, b, sizeof *b, n, x,
                       (fv__layers_arg){.self = fv_masked(c, mask)}, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

void fv__bert_pack(fv_params *p, fv__bert_block *b, int n, fv_dtype dtype)
{
    for (int i = 0; i < n; i++) {
        fv_mha_pack(p, &b[i].attn, dtype, true);
        fv_mlp_pack(p, &b[i].mlp, dtype);
    }
}

/* Of a head: spans have none, others classifier_dropout or, where that is not given, the
 * layers'. */
float fv__bert_dropout(const fv__bert_config *k, fv_head_job job)
{
    if (job == FV_HEAD_ANSWER) return 0;
    return k->classifier_dropout >= 0 ? k->classifier_dropout : k->hidden_dropout_prob;
}

/* A file without a pooler leaves its weight at zero: then the encoder has none, and pooler_output
 * is not made of noise. */
fv_status fv__bert_pooler_ready(fv_params *p, fv_lin *pooler, fv_err *e)
{
    /* a weight that is not multiplied would not have been quantised */
    if (!fv_dtype_size(pooler->w->dtype)) return FV_OK;
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

/* The dense layer and its norm, hidden_size -> the width of `words`, which score. */
static void word_head(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                      const char *dense, const char *norm)
{
    int64_t width = fv_dim(words, 1);
    *l = (fv__word_head){.act = fv_act_of(k->hidden_act), .scores = words};
    fv_lin_init(p, &l->dense, k->hidden_size, width, (fv_lin_opt){.std = k->initializer_range},
                "%s", dense);
    fv_norm_init(p, &l->norm, width, (fv_norm_opt){.eps = k->layer_norm_eps}, "%s", norm);
}

/* The bias of the scores stays apart from their weight, which may be the input table. */
void fv__word_head_init(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                        const char *dense, const char *norm, const char *scores)
{
    if (!words) return;
    word_head(p, l, k, words, dense, norm);
    l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size), "%s.bias",
                       scores);
    if (k->tie_word_embeddings) return;
    fv_lin apart; /* then the bias above is in the file and serves nothing */
    fv_lin_init(p, &apart, fv_dim(words, 1), k->vocab_size,
                (fv_lin_opt){.std = k->initializer_range}, "%s.decoder", scores);
    l->scores = apart.w;
    l->bias = apart.b;
}

/* The same where files have weight and bias under one name. */
void fv__word_head_plain(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                         const char *dense, const char *norm, const char *scores)
{
    char weight[64];
    if (!words) return;
    word_head(p, l, k, words, dense, norm);
    snprintf(weight, sizeof weight, "%s.weight", scores);
    l->scores = fv__output(p, words, k->tie_word_embeddings, k->initializer_range, weight);
    l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size), "%s.bias",
                       scores);
}

/* scores norm(act(dense x)) + bias: (B,T,D) -> (B,T,V). */
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

/* ---- what heads make of an encoder's states ---- */

/* (B*N,1) -> (B,N), N being the second axis of input_ids (B,N,T). */
static void put_choices(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *scores)
{
    const fv_tensor *ids = fv_items_get(in, "input_ids");
    fv_tensor *logits = fv_reshape(c, scores, FV_SHAPE(fv_dim(ids, 0), fv_dim(ids, 1)));
    fv__put_classes(c, in, out, logits, FV_PROBLEM_SINGLE);
}

fv_tensor *fv__mean_tokens(fv_ctx *c, fv_tensor *x, fv_tensor *mask)
{
    const fv__prompt *p = c->prompt;
    if (p && p->behind && x) { /* a prefix has keys and values, and no states to be averaged */
        int64_t own = fv_dim(x, 1) - p->n;
        x = fv_slice(c, x, 1, 0, own);
        if (mask) mask = fv_slice(c, mask, 1, 0, own);
    }
    if (!mask || !x) return fv_mean(c, x, 1);
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    fv_tensor *column = fv_reshape(c, mask, FV_SHAPE(B, T, 1));
    fv_tensor *n = fv_sum(c, fv_masked_fill(c, fv_full(c, FV_SHAPE(B, T, 1), 1), column, 0), 1);
    return fv_div(c, fv_sum(c, fv_masked_fill(c, x, column, 0), 1), n);
}

/* x (B,T,D), pooled (B,D) or NULL -> the outputs of the head, and its loss where there are
 * labels. */
void fv__put_encoded(fv_ctx *c, const fv_items *in, fv_items *out, fv__encoder_head e, fv_tensor *x,
                     fv_tensor *pooled)
{
    bool of_sequence = e.job == FV_HEAD_CLASSIFY || e.job == FV_HEAD_CHOICE;
    if (e.job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        fv_items_put(out, "pooler_output", pooled);
        return;
    }
    if (e.job == FV_HEAD_MASKED_LM) {
        fv__put_tokens(c, in, out, fv__word_head_fwd(c, e.masked, x), fv_items_get(in, "labels"));
        return;
    }
    fv_tensor *scores = fv_lin_fwd(c, e.classifier,
                                   fv_dropout(c, of_sequence ? pooled : x, e.dropout));
    if (e.job == FV_HEAD_ANSWER)
        fv_put_spans(c, scores, in, out);
    else if (e.job == FV_HEAD_CHOICE)
        put_choices(c, in, out, scores);
    else
        fv__put_classes(c, in, out, scores,
                        e.job == FV_HEAD_CLASSIFY ? e.problem : FV_PROBLEM_SINGLE);
}

/* (B,N,T) -> (B*N,T) for every input of a choice among N texts; of other heads the items as they
 * are. */
fv_items fv__flat_choices(fv_ctx *c, const fv_items *in, fv_head_job job)
{
    fv_items flat = *in;
    const fv_tensor *ids = fv_items_get(in, "input_ids");
    if (job != FV_HEAD_CHOICE) return flat;
    if (ids && ids->shape.n != 3)
        fv_raise(c, FV_ESHAPE, "multiple choice: input_ids %s, expected (B,N,T)", fv_desc(ids).s);
    for (int i = 0; i < flat.n; i++) {
        fv_tensor *x = flat.at[i].value;
        if (x && x->shape.n == 3) flat.at[i].value = fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, 2)));
    }
    return flat;
}

void fv__put_pretraining(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *words,
                         fv_tensor *relation, const char *name, fv_tensor *next)
{
    fv_tensor *labels = fv_items_get(in, "labels");
    fv_items_put(out, "prediction_logits", words);
    fv_items_put(out, name, relation);
    if (!labels || !next) return;
    fv_items rows = {.n_labels = in->n_rows > 0 ? in->n_rows : (double)fv_len(next),
                     .smooth = in->smooth,
                     .per_label = in->per_row};
    fv_items_put(out, "loss",
                 fv_add(c, fv_loss_tokens(c, words, labels, in),
                        fv_loss_tokens(c, relation, next, &rows)));
}
