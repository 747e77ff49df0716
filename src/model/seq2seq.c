/* seq2seq.c - blocks and stacks of an encoder and a decoder, and BART's way of putting them
 * together.
 *
 *     memory = encoder(embed(source));   y = decoder(embed(target), memory);   logits = y E' + bias
 *
 * BART, Marian, mBART, PEGASUS and M2M-100 descend from one program and differ in where norms
 * stand, in positions and in what the decoder begins with; T5 shares the stacks alone.  A block is
 * chosen by its function, not by a flag: what runs is what the family's file names. */
#include "model/seq2seq.h"

#include <math.h>
#include <stdio.h>

#include "core/core.h"
#include "nn/part.h"

/* ---- blocks ---- */

/* x = norm(x + attn(x));  x = norm(x + mlp(x)) */
fv_tensor *fv__encoder_post_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                 fv_mha_arg none)
{
    (void)none;
    const fv__encoder_block *b = block;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, self), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

/* x += attn(norm x);  x += mlp(norm x) */
fv_tensor *fv__encoder_pre_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg none)
{
    (void)none;
    const fv__encoder_block *b = block;
    fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
    h = fv_mha_add_norm(c, &b->attn, &x, h, self, b->dropout, &b->mlp_norm);
    return fv_mlp_add(c, &b->mlp, x, h, b->dropout);
}

/* x = norm(x + self(x));  x = norm(x + cross(x, memory));  x = norm(x + mlp(x)) */
fv_tensor *fv__decoder_post_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                 fv_mha_arg cross)
{
    const fv__decoder_block *b = block;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->self, x, self), b->dropout);
    x = fv_norm_add(c, &b->self_norm, NULL, x, a);
    a = fv_dropout(c, fv_mha_fwd(c, &b->cross, x, cross), b->dropout);
    x = fv_norm_add(c, &b->cross_norm, NULL, x, a);
    a = fv_dropout(c, fv_mlp_fwd(c, &b->mlp, x), b->dropout);
    return fv_norm_add(c, &b->mlp_norm, NULL, x, a);
}

/* x += self(norm x);  x += cross(norm x, memory);  x += mlp(norm x) */
fv_tensor *fv__decoder_pre_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg cross)
{
    const fv__decoder_block *b = block;
    return fv_pre_norm_cross(c, &b->self_norm, &b->self, &b->cross_norm, &b->cross, &b->mlp_norm,
                             &b->mlp, x, self, cross, b->dropout);
}

/* ---- stacks ---- */

/* Pre-norm stacks end in a norm; post-norm ones have none, and no parameters for it. */
static fv_tensor *norm_of_stack(fv_ctx *c, const fv_norm *norm, fv_tensor *x)
{
    return norm->gain ? fv_norm_fwd(c, norm, x) : x;
}

/* hidden_states are what enters each layer and, last, what leaves the stack behind its norm. */
fv_tensor *fv__encode(fv_ctx *c, const fv__stacks *s, fv_tensor *x, fv_mha_arg self,
                      const char *shown)
{
    x = fv__layers_run(c, s->encoder_fn, s->encoder, sizeof *s->encoder, s->n_encoder, x,
                       (fv__layers_arg){.self = self}, shown);
    x = norm_of_stack(c, &s->encoder_norm, x);
    fv_tap(c, "hidden", shown, x);
    return x;
}

fv_tensor *fv__decode(fv_ctx *c, const fv__stacks *s, fv_tensor *x, fv_mha_arg self,
                      fv_mha_arg cross)
{
    self.causal = true;
    x = fv__layers_run(c, s->decoder_fn, s->decoder, sizeof *s->decoder, s->n_decoder, x,
                       (fv__layers_arg){self, cross}, "decoder_hidden_states");
    x = norm_of_stack(c, &s->decoder_norm, x);
    fv_tap(c, "hidden", "decoder_hidden_states", x);
    return x;
}

/* q, k and v of self-attention become one product; those of cross-attention read two sequences. */
void fv__stacks_pack(fv_params *p, fv__stacks *s, fv_dtype dtype)
{
    for (int i = 0; i < s->n_encoder; i++) {
        fv_mha_pack(p, &s->encoder[i].attn, dtype, true);
        fv_mlp_pack(p, &s->encoder[i].mlp, dtype);
    }
    for (int i = 0; s->decoder && i < s->n_decoder; i++) {
        fv_mha_pack(p, &s->decoder[i].self, dtype, true);
        fv_mha_pack(p, &s->decoder[i].cross, dtype, false);
        fv_mlp_pack(p, &s->decoder[i].mlp, dtype);
    }
}

/* Keys and values of the source are computed once for all tokens and beams; a session owns them. */
void fv__source_begin(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *memory,
                      fv_tensor *mask)
{
    fv__source_mask_keep(c, session, mask);
    for (int i = 0; i < s->n_decoder; i++)
        fv__source_keep(c, session, i, fv_mha_keys(c, &s->decoder[i].cross, memory));
}

/* One layer of a step.  A post-norm one leaves its last norm to what comes next where it has fused
 * kernels. */
static fv_residual layer_step(fv_ctx *c, const fv__stacks *s, const fv__decoder_block *b,
                              fv_residual x, fv_mha_arg self, fv_mha_arg cross)
{
    if (s->decoder_fn == fv__decoder_post_norm &&
        fv__post_norm_decodes(c, &b->self, &b->cross, &b->mlp, x.x, &self, &cross)) {
        x.x = fv__post_norm_decode(c, &b->self, &b->self_norm, &b->cross, &b->cross_norm, &b->mlp,
                                   x, self, cross);
        return (fv_residual){x.x, &b->mlp_norm};
    }
    if (x.norm) x.x = fv_norm_fwd(c, x.norm, x.x);
    return (fv_residual){s->decoder_fn(c, b, x.x, self, cross), NULL};
}

/* x (B,T,D): new tokens behind those of the session, through all layers. */
static fv_residual layers_step(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *x,
                               fv_mha_arg self)
{
    fv_residual sum = {x, NULL};
    self.causal = true;
    for (int i = 0; i < s->n_decoder; i++) {
        const fv__decoder_block *b = &s->decoder[i];
        fv_kv own = fv__own_cache(c, session, i, &b->self),
              source = fv__source_cache(c, session, i);
        fv_mha_arg cross = {.kv = &source, .key_mask = fv__source_mask(c, session)};
        self.kv = &own;
        sum = layer_step(c, s, b, sum, self, cross);
    }
    if (!s->decoder_norm.gain) return sum;
    if (sum.norm) sum.x = fv_norm_fwd(c, sum.norm, sum.x);
    return (fv_residual){sum.x, &s->decoder_norm};
}

/* Only the last position goes through the norm and the output weight. */
fv_tensor *fv__target_step(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *x,
                           fv_mha_arg self)
{
    fv_residual sum = layers_step(c, s, session, x, self);
    x = fv__last_position(c, sum.x);
    return sum.norm ? fv_norm_fwd(c, sum.norm, x) : x;
}

fv_tensor *fv__target_scores(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *x,
                             fv_mha_arg self, fv_tensor *w, fv_tensor *b)
{
    fv_residual sum = layers_step(c, s, session, x, self);
    return fv__last_scores(c, sum.x, sum.norm, w, b);
}

/* ---- classifiers ---- */

/* Whether each row of ids (B,T) has `token`; raises where one has not. */
static bool each_row_has(fv_ctx *c, const fv_tensor *ids, int32_t token)
{
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1);
    int32_t *host = fv__step_memory(c, (size_t)(B * T) * sizeof *host);
    if (!host || fv_read_i32(c, ids, host, B * T)) return false;
    for (int64_t b = 0; b < B; b++) {
        int64_t t = 0;
        while (t < T && host[b * T + t] != token) t++;
        if (t == T) {
            fv_raise(c, FV_EARG,
                     "row %lld of input_ids has no eos_token_id %d, where the classifier reads",
                     (long long)b, token);
            return false;
        }
    }
    return true;
}

/* Ids are only looked at where that costs nothing: while a GPU records a step, reading them back
 * would end the capture. */
fv_tensor *fv__at_end(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t eos)
{
    bool readable = !c->record || fv__device_is_host(c->dev);
    if (!x || !ids || (readable && !each_row_has(c, ids, eos))) return NULL;
    return fv__last_of(c, x, ids, eos);
}

/* tanh(dense x) and a linear map, with dropout before both: BART's classification head. */
fv_tensor *fv__end_scores(fv_ctx *c, fv_tensor *x, const fv_lin *dense, const fv_lin *label,
                          float dropout)
{
    x = fv_lin_act(c, dense, fv_dropout(c, x, dropout), FV_TANH);
    return fv_lin_fwd(c, label, fv_dropout(c, x, dropout));
}

/* ---- BART and its kin: parameters ---- */

fv_status fv__seq2seq_check(const fv__seq2seq_config *k, fv_err *e)
{
    if (k->d_model % k->encoder_attention_heads || k->d_model % k->decoder_attention_heads)
        return fv_fail(e, FV_EFORMAT, "d_model %d is no multiple of the attention heads, %d and %d",
                       k->d_model, k->encoder_attention_heads, k->decoder_attention_heads);
    if (k->pad_token_id >= k->vocab_size || k->decoder_start_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "pad_token_id %d or decoder_start_token_id %d is outside the vocabulary",
                       k->pad_token_id, k->decoder_start_token_id);
    return FV_OK;
}

/* Below `at`, name: q_proj, k_proj, v_proj and out_proj, all with biases. */
static void mha_init(fv_params *p, fv_mha *l, const fv__seq2seq_config *k, int n_head,
                     const char *at, const char *name)
{
    fv_lin_opt proj = {.std = k->init_std};
    fv_mha_init(p, l, k->d_model, n_head, (fv_mha_opt){.in = proj, .out = proj}, "%s.%s", at, name);
    l->dropout = k->attention_dropout;
}

/* fc1 and fc2 stand in the layer itself. */
static void mlp_init(fv_params *p, fv_mlp *l, const fv__seq2seq_config *k, int hidden,
                     const char *at)
{
    fv_mlp_init(p, l, k->d_model, hidden,
                (fv_mlp_opt){.act = fv_act_of(k->activation_function), .lin = {.std = k->init_std}},
                "%s", at);
    l->dropout = k->activation_dropout;
}

static void norm_init(fv_params *p, fv_norm *l, const fv__seq2seq_config *k, const char *at,
                      const char *name)
{
    fv_norm_init(p, l, k->d_model, (fv_norm_opt){0}, "%s%s", at, name);
}

/* Below `at`, "model.encoder.layers.0". */
static void encoder_block_init(fv_params *p, fv__encoder_block *b, const fv__seq2seq_config *k,
                               const char *at)
{
    b->dropout = k->dropout;
    mha_init(p, &b->attn, k, k->encoder_attention_heads, at, "self_attn");
    norm_init(p, &b->attn_norm, k, at, ".self_attn_layer_norm");
    mlp_init(p, &b->mlp, k, k->encoder_ffn_dim, at);
    norm_init(p, &b->mlp_norm, k, at, ".final_layer_norm");
}

/* Below `at`, "model.decoder.layers.0". */
static void decoder_block_init(fv_params *p, fv__decoder_block *b, const fv__seq2seq_config *k,
                               const char *at)
{
    b->dropout = k->dropout;
    mha_init(p, &b->self, k, k->decoder_attention_heads, at, "self_attn");
    norm_init(p, &b->self_norm, k, at, ".self_attn_layer_norm");
    mha_init(p, &b->cross, k, k->decoder_attention_heads, at, "encoder_attn");
    norm_init(p, &b->cross_norm, k, at, ".encoder_attn_layer_norm");
    mlp_init(p, &b->mlp, k, k->decoder_ffn_dim, at);
    norm_init(p, &b->mlp_norm, k, at, ".final_layer_norm");
}

static const char *below(const fv__seq2seq *m) { return m->job == FV_HEAD_BASE ? "" : "model."; }

void fv__seq2seq_init(fv__seq2seq *m, const fv_setup *s, const char *family,
                      fv__seq2seq_embed_fn *embed)
{
    const fv__seq2seq_config *k = s->config;
    *m = (fv__seq2seq){.cfg = *k, .job = s->head->job, .family = family, .embed = embed};
}

void fv__seq2seq_shared(fv__seq2seq *m, fv_params *p)
{
    const fv__seq2seq_config *k = &m->cfg;
    fv_emb_init(p, &m->source, k->vocab_size, k->d_model, k->init_std, "%sshared", below(m));
    m->source.skip = k->pad_token_id;
    if (k->scale_embedding) m->source.scale = sqrtf((float)k->d_model);
    m->target = m->source;
}

void fv__seq2seq_positions(fv__seq2seq *m, fv_params *p, fv_pos_kind kind, int offset)
{
    const fv__seq2seq_config *k = &m->cfg;
    int64_t rows = k->max_position_embeddings + offset;
    fv_pos_init(p, &m->encoder_pos, rows, k->d_model, kind, offset, k->init_std,
                "%sencoder.embed_positions", below(m));
    fv_pos_init(p, &m->decoder_pos, rows, k->d_model, kind, offset, k->init_std,
                "%sdecoder.embed_positions", below(m));
}

void fv__seq2seq_emb_norms(fv__seq2seq *m, fv_params *p)
{
    norm_init(p, &m->encoder_emb_norm, &m->cfg, below(m), "encoder.layernorm_embedding");
    norm_init(p, &m->decoder_emb_norm, &m->cfg, below(m), "decoder.layernorm_embedding");
}

void fv__seq2seq_stacks(fv__seq2seq *m, fv_params *p, bool pre_norm)
{
    const fv__seq2seq_config *k = &m->cfg;
    fv__stacks *s = &m->stacks;
    const char *at = below(m);
    char path[64];
    s->encoder_fn = pre_norm ? fv__encoder_pre_norm : fv__encoder_post_norm;
    s->decoder_fn = pre_norm ? fv__decoder_pre_norm : fv__decoder_post_norm;
    s->n_encoder = k->encoder_layers;
    s->n_decoder = k->decoder_layers;
    s->encoder = fv_params_scratch(p, (size_t)s->n_encoder * sizeof *s->encoder);
    s->decoder = fv_params_scratch(p, (size_t)s->n_decoder * sizeof *s->decoder);
    for (int i = 0; s->encoder && i < s->n_encoder; i++) {
        snprintf(path, sizeof path, "%sencoder.layers.%d", at, i);
        encoder_block_init(p, &s->encoder[i], k, path);
    }
    for (int i = 0; s->decoder && i < s->n_decoder; i++) {
        snprintf(path, sizeof path, "%sdecoder.layers.%d", at, i);
        decoder_block_init(p, &s->decoder[i], k, path);
    }
    if (!pre_norm) return;
    norm_init(p, &s->encoder_norm, k, at, "encoder.layer_norm");
    norm_init(p, &s->decoder_norm, k, at, "decoder.layer_norm");
}

void fv__seq2seq_head(fv__seq2seq *m, fv_params *p, bool with_bias)
{
    const fv__seq2seq_config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->init_std};
    if (m->job == FV_HEAD_SEQ2SEQ) {
        m->out = fv__output(p, m->target.table, k->tie_word_embeddings, k->init_std,
                            "lm_head.weight");
        if (with_bias && m->out)
            m->bias = fv_param(p, (fv_init){FV_INIT_ZERO, 0, true}, FV_SHAPE(1, fv_dim(m->out, 0)),
                               "final_logits_bias");
    }
    if (m->job == FV_HEAD_CLASSIFY) {
        fv_lin_init(p, &m->dense, k->d_model, k->d_model, lin, "classification_head.dense");
        fv_lin_init(p, &m->label, k->d_model, k->num_labels, lin, "classification_head.out_proj");
    }
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->label, k->d_model, 2, lin, "qa_outputs");
}

fv_load_opt fv__seq2seq_load(const void *self)
{
    static const fv_tie ties[] = {
        {"lm_head.weight", "model.shared.weight"},
        {"model.encoder.embed_tokens.weight", "model.shared.weight"},
        {"model.decoder.embed_tokens.weight", "model.shared.weight"},
        {"model.shared.weight", "model.encoder.embed_tokens.weight"},
        {"encoder.embed_tokens.weight", "shared.weight"},
        {"decoder.embed_tokens.weight", "shared.weight"},
        {"shared.weight", "encoder.embed_tokens.weight"},
        {NULL, NULL},
    };
    static const char *const fresh[] = {"final_logits_bias", NULL};
    /* sinusoids, which are computed whatever the file has */
    static const char *const computed[] = {"final_logits_bias", "*encoder.embed_positions.weight",
                                           "*decoder.embed_positions.weight", NULL};
    static const char *const version[] = {"*encoder.version", "*decoder.version",
                                          "*embed_positions._float_tensor",
                                          "*embed_positions.weights", NULL};
    static const char *const others[] = {
        "*encoder.version",         "*decoder.version", "*embed_positions._float_tensor",
        "*embed_positions.weights", "lm_head.weight",   "final_logits_bias",
        "classification_head.*",    "qa_outputs.*",     NULL};
    const fv__seq2seq *m = self;
    return (fv_load_opt){.prefix = "model.",
                         .ties = ties,
                         .fresh = m->encoder_pos.kind == FV_POS_LEARNED ? fresh : computed,
                         .ignore = m->job == FV_HEAD_SEQ2SEQ ? version : others};
}

fv_status fv__seq2seq_ready(void *self, fv_params *p, fv_err *e)
{
    const fv__seq2seq *m = self;
    fv_status st = fv_pos_fill(p, &m->encoder_pos, e);
    return st ? st : fv_pos_fill(p, &m->decoder_pos, e);
}

void fv__seq2seq_pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__seq2seq *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

bool fv__seq2seq_fits(fv_ctx *c, const fv__seq2seq *m, const fv_tensor *ids)
{
    if (fv_dim(ids, 1) <= m->cfg.max_position_embeddings) return true;
    fv_raise(c, FV_EARG, "%s: %lld tokens, and max_position_embeddings is %d", m->family,
             (long long)fv_dim(ids, 1), m->cfg.max_position_embeddings);
    return false;
}

fv_tensor *fv__seq2seq_embed(fv_ctx *c, const fv__seq2seq *m, bool decoder, fv_tensor *ids,
                             fv_session *s)
{
    const fv_pos *pos = decoder ? &m->decoder_pos : &m->encoder_pos;
    const fv_norm *norm = decoder ? &m->decoder_emb_norm : &m->encoder_emb_norm;
    if (!ids || !fv__seq2seq_fits(c, m, ids)) return NULL;
    fv_tensor *rows = s ? fv_session_positions_from(c, s, (int32_t)pos->offset) : NULL;
    fv_tensor *x = fv_emb_fwd(c, decoder ? &m->target : &m->source, ids);
    return fv_dropout(c, norm_of_stack(c, norm, fv_pos_fwd(c, pos, x, rows)), m->cfg.dropout);
}

fv_tensor *fv__seq2seq_encode(fv_ctx *c, const fv__seq2seq *m, const fv_items *in, fv_items *out)
{
    fv_tensor *x = m->embed(c, m, false, fv_items_get(in, "input_ids"), NULL);
    x = fv__encode(c, &m->stacks, x, (fv_mha_arg){.key_mask = fv_items_get(in, "attention_mask")},
                   "encoder_hidden_states");
    if (out) fv_items_put(out, "encoder_last_hidden_state", x);
    return x;
}

fv_tensor *fv__seq2seq_target(fv_ctx *c, const fv__seq2seq *m, const fv_items *in,
                              fv_tensor *otherwise)
{
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"),
              *labels = m->job == FV_HEAD_SEQ2SEQ ? fv_items_get(in, "labels") : NULL;
    if (ids) return ids;
    if (!labels) labels = otherwise;
    if (!labels)
        return fv_raise(c, FV_EARG, "%s: decoder_input_ids%s are missing", m->family,
                        m->job == FV_HEAD_SEQ2SEQ ? " or labels" : "");
    return fv__shift_right(c, labels, m->cfg.decoder_start_token_id, m->cfg.pad_token_id);
}

/* (V) of (1,V), or NULL. */
static fv_tensor *logits_bias(fv_ctx *c, const fv__seq2seq *m)
{
    return m->bias ? fv_reshape(c, m->bias, FV_SHAPE(-1)) : NULL;
}

static fv_tensor *logits(fv_ctx *c, const fv__seq2seq *m, fv_tensor *x)
{
    return fv_linear(c, x, m->out, logits_bias(c, m), FV_ACT_NONE);
}

void fv__seq2seq_put(fv_ctx *c, const fv__seq2seq *m, const fv_items *in, fv_items *out,
                     fv_tensor *memory, fv_tensor *x)
{
    const fv__seq2seq_config *k = &m->cfg;
    x = fv__decode(c, &m->stacks, x,
                   (fv_mha_arg){.key_mask = fv_items_get(in, "decoder_attention_mask")},
                   (fv_mha_arg){.memory = memory, .key_mask = fv_items_get(in, "attention_mask")});
    if (m->job == FV_HEAD_BASE) fv_items_put(out, "last_hidden_state", x);
    if (m->job == FV_HEAD_SEQ2SEQ)
        fv__put_tokens(c, in, out, logits(c, m, x), fv_items_get(in, "labels"));
    if (m->job == FV_HEAD_ANSWER) fv_put_spans(c, fv_lin_fwd(c, &m->label, x), in, out);
    if (m->job != FV_HEAD_CLASSIFY) return;
    x = fv__at_end(c, x, fv_items_get(in, "input_ids"), k->eos_token_id);
    fv__put_classes(c, in, out, fv__end_scores(c, x, &m->dense, &m->label, k->classifier_dropout),
                    k->problem_type);
}

/* ---- generation: the encoder once, its keys and values kept; then token after token ---- */

void fv__seq2seq_begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const fv__seq2seq *m = self;
    fv__source_begin(c, &m->stacks, s, fv__seq2seq_encode(c, m, in, NULL),
                     fv_items_get(in, "attention_mask"));
}

fv_tensor *fv__seq2seq_step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const fv__seq2seq *m = self;
    return fv__target_scores(c, &m->stacks, s, m->embed(c, m, true, ids, s), (fv_mha_arg){0},
                             m->out, logits_bias(c, m));
}

int64_t fv__seq2seq_vocabulary(const void *self)
{
    const fv__seq2seq *m = self;
    return m->job == FV_HEAD_SEQ2SEQ && m->out ? fv_dim(m->target.table, 0) : 0;
}

int64_t fv__seq2seq_context(const void *self)
{
    return ((const fv__seq2seq *)self)->cfg.max_position_embeddings;
}
