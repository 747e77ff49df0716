/* bart.c - BART: the Transformer of 2017 with learned positions and a norm on the embeddings.
 *
 *     x = norm(E[ids] + P[positions + 2]);   encoder layers;   decoder layers with cross-attention;
 *     logits = y E' + bias
 *
 * Norms come after each part.  A classifier reads the decoder where the source, given to it once
 * more, ends. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/part.h"

#define MAX_LAYER 96
#define OFFSET 2 /* the first rows of the table of positions were never used */

typedef struct config {
    int vocab_size, d_model, max_position_embeddings;
    int encoder_layers, encoder_attention_heads, encoder_ffn_dim;
    int decoder_layers, decoder_attention_heads, decoder_ffn_dim;
    int activation_function;
    float dropout, attention_dropout, activation_dropout, classifier_dropout, init_std;
    bool scale_embedding, tie_word_embeddings;
    int pad_token_id, eos_token_id, decoder_start_token_id, num_labels, problem_type;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50265, 1 << 24, "tokens"),
    FV_INT(config, d_model, 1, 1024, 1 << 16, "model width"),
    FV_INT(config, max_position_embeddings, 1, 1024, 1 << 20, "longest sequence"),
    FV_INT(config, encoder_layers, 1, 12, MAX_LAYER, "layers of the encoder"),
    FV_INT(config, encoder_attention_heads, 1, 16, 256, "its attention heads"),
    FV_INT(config, encoder_ffn_dim, 1, 4096, 1 << 18, "width of its feed-forward part"),
    FV_INT(config, decoder_layers, 1, 12, MAX_LAYER, "layers of the decoder"),
    FV_INT(config, decoder_attention_heads, 1, 16, 256, "its attention heads"),
    FV_INT(config, decoder_ffn_dim, 1, 4096, 1 << 18, "width of its feed-forward part"),
    FV_CHOICE(config, activation_function, 0, fv_act_words, "of the feed-forward part"),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99,
             "on what each part of a layer adds, and on the embeddings"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, activation_dropout, 0, 0, 0.99, "inside the feed-forward part"),
    FV_FLOAT(config, classifier_dropout, 0, 0, 0.99, "in the classifier"),
    FV_FLOAT_KEY("classif_dropout", config, classifier_dropout, 0, 0, 0.99,
                 "the same, as older files have it"),
    FV_FLOAT(config, init_std, 0, 0.02, 10, "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, scale_embedding, false, "multiply embeddings by the square root of the width"),
    FV_BOOL(config, tie_word_embeddings, true, "the table is the output weight too"),
    FV_INT(config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV_INT(config, eos_token_id, 0, 2, 1 << 24, "end of a sequence, where a classifier reads"),
    FV_INT(config, decoder_start_token_id, 0, 2, 1 << 24, "what the decoder begins with"),
    FV_INT(config, num_labels, 1, 3, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "true"},
    {"encoder_layerdrop", NULL},
    {"decoder_layerdrop", NULL},
    {"num_hidden_layers", NULL},
    {"add_bias_logits", NULL}, /* the bias is always there, and zero where it was never learnt */
    {"add_final_layer_norm", "false"},
    {"normalize_before", "false"},
    {"normalize_embedding", "true"},
    {"static_position_embeddings", "false"},
    {"extra_pos_embeddings", "2"},
    {"force_bos_token_to_be_generated", NULL},
    {"output_past", NULL},
    {"save_step", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"decoder_input_ids", FV_I32, false},
    {"decoder_attention_mask", FV_U8, false},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"BartForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "BartModel"},
    {"BartModel", .job = FV_HEAD_BASE},
    {"BartForSequenceClassification", FV_HEAD_CLASSIFY, .base = "BartModel"},
    {0},
};

typedef struct encoder_block {
    fv_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    float dropout;
} encoder_block;

typedef struct decoder_block {
    fv_mha self, cross;
    fv_norm self_norm, cross_norm, mlp_norm;
    fv_mlp mlp;
    float dropout;
} decoder_block;

typedef struct bart {
    config cfg;
    fv_head_job job;
    fv_emb tokens;
    fv_pos encoder_pos, decoder_pos;
    fv_norm encoder_norm, decoder_norm; /* of the embeddings */
    encoder_block *encoder;
    decoder_block *decoder;
    fv_tensor *out;      /* (V,D) */
    fv_tensor *bias;     /* (1,V) */
    fv_lin dense, label; /* of the classifier */
} bart;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->d_model % k->encoder_attention_heads || k->d_model % k->decoder_attention_heads)
        return fv_fail(e, FV_EFORMAT, "d_model %d is no multiple of the attention heads, %d and %d",
                       k->d_model, k->encoder_attention_heads, k->decoder_attention_heads);
    if (k->pad_token_id >= k->vocab_size || k->decoder_start_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "pad_token_id %d or decoder_start_token_id %d is outside the vocabulary",
                       k->pad_token_id, k->decoder_start_token_id);
    return FV_OK;
}

static fv_mha_opt mha_opt(const config *k, int n_head)
{
    return (fv_mha_opt){.width = k->d_model,
                        .n_head = n_head,
                        .dropout = k->attention_dropout,
                        .std = k->init_std};
}

static fv_mlp_opt mlp_opt(const config *k)
{
    return (fv_mlp_opt){.act = fv_act_of(k->activation_function),
                        .dropout = k->activation_dropout,
                        .std = k->init_std};
}

/* Below `at`, "model.encoder.layers.0". */
static void encoder_block_init(fv_params *p, encoder_block *b, const config *k, const char *at)
{
    b->dropout = k->dropout;
    fv_mha_init(p, &b->attn, mha_opt(k, k->encoder_attention_heads), "%s.self_attn", at);
    fv_norm_init(p, &b->attn_norm, k->d_model, (fv_norm_opt){0}, "%s.self_attn_layer_norm", at);
    fv_mlp_init(p, &b->mlp, k->d_model, k->encoder_ffn_dim, mlp_opt(k), "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->d_model, (fv_norm_opt){0}, "%s.final_layer_norm", at);
}

static void decoder_block_init(fv_params *p, decoder_block *b, const config *k, const char *at)
{
    fv_mha_opt mha = mha_opt(k, k->decoder_attention_heads);
    b->dropout = k->dropout;
    fv_mha_init(p, &b->self, mha, "%s.self_attn", at);
    fv_norm_init(p, &b->self_norm, k->d_model, (fv_norm_opt){0}, "%s.self_attn_layer_norm", at);
    fv_mha_init(p, &b->cross, mha, "%s.encoder_attn", at);
    fv_norm_init(p, &b->cross_norm, k->d_model, (fv_norm_opt){0}, "%s.encoder_attn_layer_norm", at);
    fv_mlp_init(p, &b->mlp, k->d_model, k->decoder_ffn_dim, mlp_opt(k), "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->d_model, (fv_norm_opt){0}, "%s.final_layer_norm", at);
}

/* x = norm(x + attn(x));  x = norm(x + mlp(x)) */
static fv_tensor *encoder_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                                    fv_mha_arg none)
{
    (void)none;
    const encoder_block *b = block;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, arg), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

/* x = norm(x + self(x));  x = norm(x + cross(x, memory));  x = norm(x + mlp(x)) */
static fv_tensor *decoder_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                    fv_mha_arg cross)
{
    const decoder_block *b = block;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->self, x, self), b->dropout);
    x = fv_norm_add(c, &b->self_norm, NULL, x, a);
    a = fv_dropout(c, fv_mha_fwd(c, &b->cross, x, cross), b->dropout);
    x = fv_norm_add(c, &b->cross_norm, NULL, x, a);
    a = fv_dropout(c, fv_mlp_fwd(c, &b->mlp, x), b->dropout);
    return fv_norm_add(c, &b->mlp_norm, NULL, x, a);
}

static void declare_stacks(bart *m, fv_params *p, const char *below)
{
    const config *k = &m->cfg;
    int64_t n_positions = k->max_position_embeddings + OFFSET;
    fv_pos_init(p, &m->encoder_pos, n_positions, k->d_model, FV_POS_LEARNED, OFFSET, k->init_std,
                "%sencoder.embed_positions", below);
    fv_pos_init(p, &m->decoder_pos, n_positions, k->d_model, FV_POS_LEARNED, OFFSET, k->init_std,
                "%sdecoder.embed_positions", below);
    fv_norm_init(p, &m->encoder_norm, k->d_model, (fv_norm_opt){0}, "%sencoder.layernorm_embedding",
                 below);
    fv_norm_init(p, &m->decoder_norm, k->d_model, (fv_norm_opt){0}, "%sdecoder.layernorm_embedding",
                 below);
    m->encoder = fv_params_scratch(p, (size_t)k->encoder_layers * sizeof *m->encoder);
    m->decoder = fv_params_scratch(p, (size_t)k->decoder_layers * sizeof *m->decoder);
    char at[64];
    for (int i = 0; m->encoder && i < k->encoder_layers; i++) {
        snprintf(at, sizeof at, "%sencoder.layers.%d", below, i);
        encoder_block_init(p, &m->encoder[i], k, at);
    }
    for (int i = 0; m->decoder && i < k->decoder_layers; i++) {
        snprintf(at, sizeof at, "%sdecoder.layers.%d", below, i);
        decoder_block_init(p, &m->decoder[i], k, at);
    }
}

static void declare(void *self, const fv_setup *s)
{
    bart *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->job = s->head->job;
    const char *below = m->job == FV_HEAD_BASE ? "" : "model.";
    fv_emb_opt opt = {.scale = k->scale_embedding ? sqrtf((float)k->d_model) : 1,
                      .has_pad = true,
                      .pad = k->pad_token_id,
                      .std = k->init_std};
    fv_emb_init(p, &m->tokens, k->vocab_size, k->d_model, opt, "%sshared", below);
    declare_stacks(m, p, below);
    if (m->job == FV_HEAD_SEQ2SEQ) {
        m->out = fv__output(p, m->tokens.table, k->tie_word_embeddings, k->init_std,
                            "lm_head.weight");
        m->bias = fv_param(p, (fv_init){FV_INIT_ZERO, 0, true}, FV_SHAPE(1, k->vocab_size),
                           "final_logits_bias");
    }
    if (m->job == FV_HEAD_CLASSIFY) {
        fv_lin_init(p, &m->dense, k->d_model, k->d_model, (fv_lin_opt){.std = k->init_std},
                    "classification_head.dense");
        fv_lin_init(p, &m->label, k->d_model, k->num_labels, (fv_lin_opt){.std = k->init_std},
                    "classification_head.out_proj");
    }
}

static fv_load_opt load(const void *self)
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
    static const char *const version[] = {"*encoder.version", "*decoder.version", NULL};
    static const char *const others[] = {"*encoder.version",      "*decoder.version",
                                         "lm_head.weight",        "final_logits_bias",
                                         "classification_head.*", NULL};
    const bart *m = self;
    return (fv_load_opt){.prefix = "model.",
                         .ties = ties,
                         .fresh = fresh,
                         .ignore = m->job == FV_HEAD_SEQ2SEQ ? version : others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    bart *m = self;
    for (int i = 0; i < m->cfg.encoder_layers; i++) {
        fv_mha_pack(p, &m->encoder[i].attn, dtype, true);
        fv_mlp_pack(p, &m->encoder[i].mlp, dtype);
    }
    for (int i = 0; i < m->cfg.decoder_layers; i++) {
        fv_mha_pack(p, &m->decoder[i].self, dtype, true);
        fv_mha_pack(p, &m->decoder[i].cross, dtype, false);
        fv_mlp_pack(p, &m->decoder[i].mlp, dtype);
    }
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

static fv_tensor *run_encoder(fv_ctx *c, const bart *m, fv_tensor *x, fv_mha_arg arg)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.encoder_layers; i++) {
        fv_tap(c, "hidden", "encoder_hidden_states", x);
        x = fv_layer_run(c, encoder_block_fwd, &m->encoder[i], x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

static fv_tensor *run_decoder(fv_ctx *c, const bart *m, fv_tensor *x, fv_mha_arg self,
                              fv_mha_arg cross)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.decoder_layers; i++) {
        fv_tap(c, "hidden", "decoder_hidden_states", x);
        x = fv_layer_run(c, decoder_block_fwd, &m->decoder[i], x, self, cross);
        x = fv_keep(c, mark, x);
    }
    return x;
}

/* The same for the next tokens of a session, which has the keys and values of both sides. */
static fv_tensor *step_decoder(fv_ctx *c, const bart *m, fv_session *s, fv_tensor *x,
                               fv_mha_arg self)
{
    for (int i = 0; i < m->cfg.decoder_layers; i++) {
        const decoder_block *b = &m->decoder[i];
        fv_kv own = fv__own_cache(c, s, i, &b->self), source = fv__source_cache(c, s, i);
        self.kv = &own;
        x = decoder_block_fwd(c, b, x, self,
                              (fv_mha_arg){.kv = &source, .key_mask = fv__source_mask(c, s)});
    }
    return x;
}

static fv_tensor *embed(fv_ctx *c, const bart *m, const fv_pos *pos, const fv_norm *norm,
                        fv_tensor *ids, fv_tensor *rows)
{
    if (fv_dim(ids, 1) > m->cfg.max_position_embeddings)
        return fv_raise(c, FV_EARG, "bart: %lld tokens, and max_position_embeddings is %d",
                        (long long)fv_dim(ids, 1), m->cfg.max_position_embeddings);
    fv_tensor *x = fv_pos_fwd(c, pos, fv_emb_fwd(c, &m->tokens, ids), rows);
    return fv_dropout(c, fv_norm_fwd(c, norm, x), m->cfg.dropout);
}

static fv_tensor *encode(fv_ctx *c, const bart *m, fv_tensor *ids, fv_tensor *mask)
{
    fv_tensor *x = embed(c, m, &m->encoder_pos, &m->encoder_norm, ids, NULL);
    x = run_encoder(c, m, x, (fv_mha_arg){.key_mask = mask});
    fv_tap(c, "hidden", "encoder_hidden_states", x);
    return x;
}

static fv_tensor *decode(fv_ctx *c, const bart *m, fv_tensor *ids, fv_tensor *mask,
                         fv_tensor *memory, fv_tensor *memory_mask)
{
    fv_tensor *x = embed(c, m, &m->decoder_pos, &m->decoder_norm, ids, NULL);
    x = run_decoder(c, m, x, (fv_mha_arg){.causal = true, .key_mask = mask},
                    (fv_mha_arg){.memory = memory, .key_mask = memory_mask});
    fv_tap(c, "hidden", "decoder_hidden_states", x);
    return x;
}

static fv_tensor *logits(fv_ctx *c, const bart *m, fv_tensor *x)
{
    return fv_linear(c, x, m->out, fv_reshape(c, m->bias, FV_SHAPE(-1)), FV_ACT_NONE);
}

static void classify(fv_ctx *c, const bart *m, const fv_items *in, fv_items *out, fv_tensor *x)
{
    x = fv__last_of(c, x, fv_items_get(in, "input_ids"), m->cfg.eos_token_id);
    x = fv_lin_act(c, &m->dense, fv_dropout(c, x, m->cfg.classifier_dropout), FV_TANH);
    x = fv_lin_fwd(c, &m->label, fv_dropout(c, x, m->cfg.classifier_dropout));
    fv__put_classes(c, in, out, x, m->cfg.problem_type);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const bart *m = self;
    fv_tensor *source = fv_items_get(in, "input_ids"), *mask = fv_items_get(in, "attention_mask");
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"),
              *labels = m->job == FV_HEAD_SEQ2SEQ ? fv_items_get(in, "labels") : NULL;
    fv_tensor *memory = encode(c, m, source, mask);
    fv_items_put(out, "encoder_last_hidden_state", memory);
    if (!ids)
        ids = fv__shift_right(c, labels ? labels : source, m->cfg.decoder_start_token_id,
                              m->cfg.pad_token_id);
    fv_tensor *x = decode(c, m, ids, fv_items_get(in, "decoder_attention_mask"), memory, mask);
    if (m->job == FV_HEAD_BASE) fv_items_put(out, "last_hidden_state", x);
    if (m->job == FV_HEAD_SEQ2SEQ)
        fv__put_tokens(c, in, out, logits(c, m, x), fv_items_get(in, "labels"));
    if (m->job == FV_HEAD_CLASSIFY) classify(c, m, in, out, x);
}

/* ---- generation: the encoder once, its keys and values kept; then token after token ---- */

static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const bart *m = self;
    fv_tensor *mask = fv_items_get(in, "attention_mask"),
              *memory = encode(c, m, fv_items_get(in, "input_ids"), mask);
    fv__source_mask_keep(c, s, mask);
    for (int i = 0; i < m->cfg.decoder_layers; i++)
        fv__source_keep(c, s, i, fv_mha_keys(c, &m->decoder[i].cross, memory));
}

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const bart *m = self;
    fv_tensor *x = embed(c, m, &m->decoder_pos, &m->decoder_norm, ids,
                         fv_session_positions_from(c, s, OFFSET));
    x = step_decoder(c, m, s, x, (fv_mha_arg){.causal = true});
    return logits(c, m, fv__last_position(c, x));
}

static int64_t vocabulary(const void *self)
{
    const bart *m = self;
    return m->job == FV_HEAD_SEQ2SEQ ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    return ((const bart *)self)->cfg.max_position_embeddings;
}

const fv_family fv__family_bart = {
    .type = "bart",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(bart),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .begin = begin,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
