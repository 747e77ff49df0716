/* marian.c - the Transformer of 2017 as Marian and Hugging Face's "marian" family have it.
 *
 *     x = sqrt(D) E[ids] + sinusoids;   encoder layers;   decoder layers with cross-attention;
 *     logits = y E' + bias
 *
 * Post-norm, as published; with normalize_before the layers normalise first, and one norm follows
 * each stack.  Parameters have the names of model.safetensors.  One table serves both sides and the
 * output unless the configuration says otherwise. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/part.h"

#define MAX_LAYER 64

typedef struct config {
    int vocab_size, decoder_vocab_size, d_model;
    int encoder_layers, encoder_attention_heads, encoder_ffn_dim;
    int decoder_layers, decoder_attention_heads, decoder_ffn_dim;
    int max_position_embeddings;
    int activation_function;
    float dropout, attention_dropout, activation_dropout, init_std;
    bool scale_embedding, share_encoder_decoder_embeddings, tie_word_embeddings;
    bool normalize_before, add_final_layer_norm;
    int pad_token_id, eos_token_id, decoder_start_token_id;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 58101, 1 << 24, "tokens of the source"),
    FV_INT(config, decoder_vocab_size, 0, 0, 1 << 24,
           "tokens of the target; 0: as many as the source has"),
    FV_INT(config, d_model, 1, 1024, 1 << 16, "model width"),
    FV_INT(config, encoder_layers, 1, 12, MAX_LAYER, "layers of the encoder"),
    FV_INT(config, encoder_attention_heads, 1, 16, 256, "its attention heads"),
    FV_INT(config, encoder_ffn_dim, 1, 4096, 1 << 18, "width of its feed-forward part"),
    FV_INT(config, decoder_layers, 1, 12, MAX_LAYER, "layers of the decoder"),
    FV_INT(config, decoder_attention_heads, 1, 16, 256, "its attention heads"),
    FV_INT(config, decoder_ffn_dim, 1, 4096, 1 << 18, "width of its feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 1024, 1 << 14,
           "longest sequence: so many sinusoids are computed"),
    FV_CHOICE(config, activation_function, 0, fv_act_words, "of the feed-forward part"),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99,
             "on what each part of a layer adds, and on the embeddings"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, activation_dropout, 0, 0, 0.99, "inside the feed-forward part"),
    FV_FLOAT(config, init_std, 0, 0.02, 10, "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, scale_embedding, false, "multiply embeddings by the square root of the width"),
    FV_BOOL(config, share_encoder_decoder_embeddings, true, "one table for both sides"),
    FV_BOOL(config, tie_word_embeddings, true, "the decoder's table is the output weight too"),
    FV_BOOL(config, normalize_before, false, "norm before each part of a layer, not after"),
    FV_BOOL(config, add_final_layer_norm, false, "a norm after each stack of layers"),
    FV_INT(config, pad_token_id, 0, 58100, 1 << 24, "padding"),
    FV_INT(config, eos_token_id, 0, 0, 1 << 24, "end of a sentence"),
    FV_INT(config, decoder_start_token_id, 0, 58100, 1 << 24, "what the decoder begins with"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "true"},
    {"is_decoder", "false"},
    {"static_position_embeddings", "true"},
    {"encoder_layerdrop", NULL},
    {"decoder_layerdrop", NULL},
    {"use_cache", NULL},
    {"normalize_embedding", "false"},
    {"add_bias_logits", "false"},
    {"extra_pos_embeddings", NULL},
    {"num_hidden_layers", NULL},
    {"bad_words_ids", NULL},
    {"forced_eos_token_id", NULL},
    {"bos_token_id", NULL},
    {"classif_dropout", NULL},
    {"classifier_dropout", NULL},
    {"num_beams", NULL},
    {"max_length", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},         {"attention_mask", FV_U8, false},
    {"decoder_input_ids", FV_I32, true}, {"decoder_attention_mask", FV_U8, false},
    {"labels", FV_I32, false},           {0},
};

typedef struct encoder_block {
    fv_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    bool pre_norm;
    float dropout;
} encoder_block;

typedef struct decoder_block {
    fv_mha self, cross;
    fv_norm self_norm, cross_norm, mlp_norm;
    fv_mlp mlp;
    bool pre_norm;
    float dropout;
} decoder_block;

typedef struct marian {
    config cfg;
    fv_emb source, target; /* the same table where shared */
    fv_pos source_pos, target_pos;
    encoder_block *encoder;
    decoder_block *decoder;
    fv_norm encoder_norm, decoder_norm;
    fv_tensor *out;  /* (V,D) */
    fv_tensor *bias; /* (1,V) */
} marian;

static int target_vocab(const config *k)
{
    return k->decoder_vocab_size ? k->decoder_vocab_size : k->vocab_size;
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->d_model % k->encoder_attention_heads || k->d_model % k->decoder_attention_heads)
        return fv_fail(e, FV_EFORMAT, "d_model %d is no multiple of the attention heads, %d and %d",
                       k->d_model, k->encoder_attention_heads, k->decoder_attention_heads);
    if (k->d_model % 2)
        return fv_fail(e, FV_EFORMAT, "d_model %d is odd: sines and cosines need pairs",
                       k->d_model);
    if (k->share_encoder_decoder_embeddings && target_vocab(k) != k->vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "one table cannot hold vocab_size %d and decoder_vocab_size %d",
                       k->vocab_size, target_vocab(k));
    if (k->pad_token_id >= k->vocab_size || k->decoder_start_token_id >= target_vocab(k))
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
    b->pre_norm = k->normalize_before;
    b->dropout = k->dropout;
    fv_mha_init(p, &b->attn, mha_opt(k, k->encoder_attention_heads), "%s.self_attn", at);
    fv_norm_init(p, &b->attn_norm, k->d_model, (fv_norm_opt){0}, "%s.self_attn_layer_norm", at);
    fv_mlp_init(p, &b->mlp, k->d_model, k->encoder_ffn_dim, mlp_opt(k), "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->d_model, (fv_norm_opt){0}, "%s.final_layer_norm", at);
}

static void decoder_block_init(fv_params *p, decoder_block *b, const config *k, const char *at)
{
    fv_mha_opt mha = mha_opt(k, k->decoder_attention_heads);
    b->pre_norm = k->normalize_before;
    b->dropout = k->dropout;
    fv_mha_init(p, &b->self, mha, "%s.self_attn", at);
    fv_norm_init(p, &b->self_norm, k->d_model, (fv_norm_opt){0}, "%s.self_attn_layer_norm", at);
    fv_mha_init(p, &b->cross, mha, "%s.encoder_attn", at);
    fv_norm_init(p, &b->cross_norm, k->d_model, (fv_norm_opt){0}, "%s.encoder_attn_layer_norm", at);
    fv_mlp_init(p, &b->mlp, k->d_model, k->decoder_ffn_dim, mlp_opt(k), "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->d_model, (fv_norm_opt){0}, "%s.final_layer_norm", at);
}

/* norm(x + f(x)) for each part or, with normalize_before, x + f(norm x) */
static fv_tensor *encoder_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                                    fv_mha_arg none)
{
    (void)none;
    const encoder_block *b = block;
    if (b->pre_norm) {
        fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
        h = fv_mha_add_norm(c, &b->attn, &x, h, arg, b->dropout, &b->mlp_norm);
        return fv_mlp_add(c, &b->mlp, x, h, b->dropout);
    }
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->attn, x, arg), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

static fv_tensor *decoder_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                    fv_mha_arg cross)
{
    const decoder_block *b = block;
    if (b->pre_norm) {
        fv_tensor *h = fv_norm_fwd(c, &b->self_norm, x),
                  *a = fv_dropout(c, fv_mha_fwd(c, &b->self, h, self), b->dropout);
        h = fv_norm_add(c, &b->cross_norm, &x, x, a); /* x += a, h = norm(x) */
        a = fv_dropout(c, fv_mha_fwd(c, &b->cross, h, cross), b->dropout);
        h = fv_norm_add(c, &b->mlp_norm, &x, x, a);
        return fv_add(c, x, fv_dropout(c, fv_mlp_fwd(c, &b->mlp, h), b->dropout));
    }
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->self, x, self), b->dropout);
    x = fv_norm_add(c, &b->self_norm, NULL, x, a);
    a = fv_dropout(c, fv_mha_fwd(c, &b->cross, x, cross), b->dropout);
    x = fv_norm_add(c, &b->cross_norm, NULL, x, a);
    a = fv_dropout(c, fv_mlp_fwd(c, &b->mlp, x), b->dropout);
    return fv_norm_add(c, &b->mlp_norm, NULL, x, a);
}

static void declare_embeddings(marian *m, fv_params *p)
{
    const config *k = &m->cfg;
    int vocab = target_vocab(k);
    fv_emb_opt opt = {.scale = k->scale_embedding ? sqrtf((float)k->d_model) : 1,
                      .has_pad = true,
                      .pad = k->pad_token_id,
                      .std = k->init_std};
    if (k->share_encoder_decoder_embeddings) {
        fv_emb_init(p, &m->source, vocab, k->d_model, opt, "model.shared");
        m->target = m->source;
    } else {
        fv_emb_init(p, &m->source, k->vocab_size, k->d_model, opt, "model.encoder.embed_tokens");
        fv_emb_init(p, &m->target, vocab, k->d_model, opt, "model.decoder.embed_tokens");
    }
    m->out = fv__output(p, m->target.table, k->tie_word_embeddings, k->init_std, "lm_head.weight");
    m->bias = fv_param(p, (fv_init){FV_INIT_ZERO, 0, true}, FV_SHAPE(1, vocab),
                       "final_logits_bias");
    fv_pos_init(p, &m->source_pos, k->max_position_embeddings, k->d_model, FV_POS_HALVES, 0, 0,
                "model.encoder.embed_positions");
    fv_pos_init(p, &m->target_pos, k->max_position_embeddings, k->d_model, FV_POS_HALVES, 0, 0,
                "model.decoder.embed_positions");
}

static void declare(void *self, const fv_setup *s)
{
    marian *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    declare_embeddings(m, p);
    m->encoder = fv_params_scratch(p, (size_t)k->encoder_layers * sizeof *m->encoder);
    m->decoder = fv_params_scratch(p, (size_t)k->decoder_layers * sizeof *m->decoder);
    char at[64];
    for (int i = 0; m->encoder && i < k->encoder_layers; i++) {
        snprintf(at, sizeof at, "model.encoder.layers.%d", i);
        encoder_block_init(p, &m->encoder[i], k, at);
    }
    for (int i = 0; m->decoder && i < k->decoder_layers; i++) {
        snprintf(at, sizeof at, "model.decoder.layers.%d", i);
        decoder_block_init(p, &m->decoder[i], k, at);
    }
    if (!k->add_final_layer_norm) return;
    fv_norm_init(p, &m->encoder_norm, k->d_model, (fv_norm_opt){0}, "model.encoder.layer_norm");
    fv_norm_init(p, &m->decoder_norm, k->d_model, (fv_norm_opt){0}, "model.decoder.layer_norm");
}

static fv_load_opt load(const void *self)
{
    static const fv_tie shared[] = {
        {"lm_head.weight", "model.shared.weight"},
        {"model.encoder.embed_tokens.weight", "model.shared.weight"},
        {"model.decoder.embed_tokens.weight", "model.shared.weight"},
        {NULL, NULL},
    };
    static const fv_tie apart[] = {{"lm_head.weight", "model.decoder.embed_tokens.weight"},
                                   {NULL, NULL}};
    static const char *const fresh[] = {"final_logits_bias", "model.encoder.embed_positions.weight",
                                        "model.decoder.embed_positions.weight", NULL};
    const config *k = &((const marian *)self)->cfg;
    const fv_tie *ties = !k->tie_word_embeddings               ? NULL
                         : k->share_encoder_decoder_embeddings ? shared
                                                               : apart;
    return (fv_load_opt){.ties = ties, .fresh = fresh};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    const marian *m = self;
    fv_status st = fv_pos_fill(p, &m->source_pos, e);
    return st ? st : fv_pos_fill(p, &m->target_pos, e);
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    marian *m = self;
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

static fv_tensor *run_encoder(fv_ctx *c, const marian *m, fv_tensor *x, fv_mha_arg arg)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.encoder_layers; i++) {
        fv_tap(c, "hidden", "encoder_hidden_states", x);
        x = fv_layer_run(c, encoder_block_fwd, &m->encoder[i], x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

static fv_tensor *run_decoder(fv_ctx *c, const marian *m, fv_tensor *x, fv_mha_arg self,
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
static fv_tensor *step_decoder(fv_ctx *c, const marian *m, fv_session *s, fv_tensor *x,
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

static fv_tensor *embed(fv_ctx *c, const marian *m, const fv_emb *table, const fv_pos *pos,
                        fv_tensor *ids, fv_tensor *rows)
{
    return fv_dropout(c, fv_pos_fwd(c, pos, fv_emb_fwd(c, table, ids), rows), m->cfg.dropout);
}

static fv_tensor *encode(fv_ctx *c, const marian *m, fv_tensor *ids, fv_tensor *mask)
{
    fv_tensor *x = embed(c, m, &m->source, &m->source_pos, ids, NULL);
    x = run_encoder(c, m, x, (fv_mha_arg){.key_mask = mask});
    if (m->cfg.add_final_layer_norm) x = fv_norm_fwd(c, &m->encoder_norm, x);
    fv_tap(c, "hidden", "encoder_hidden_states", x);
    return x;
}

static fv_tensor *logits(fv_ctx *c, const marian *m, fv_tensor *x)
{
    return fv_linear(c, x, m->out, fv_reshape(c, m->bias, FV_SHAPE(-1)), FV_ACT_NONE);
}

static fv_tensor *decode(fv_ctx *c, const marian *m, fv_tensor *ids, fv_tensor *mask,
                         fv_tensor *memory, fv_tensor *memory_mask)
{
    fv_tensor *x = embed(c, m, &m->target, &m->target_pos, ids, NULL);
    x = run_decoder(c, m, x, (fv_mha_arg){.causal = true, .key_mask = mask},
                    (fv_mha_arg){.memory = memory, .key_mask = memory_mask});
    if (m->cfg.add_final_layer_norm) x = fv_norm_fwd(c, &m->decoder_norm, x);
    fv_tap(c, "hidden", "decoder_hidden_states", x);
    return x;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const marian *m = self;
    fv_tensor *mask = fv_items_get(in, "attention_mask");
    fv_tensor *memory = encode(c, m, fv_items_get(in, "input_ids"), mask);
    fv_items_put(out, "encoder_last_hidden_state", memory);
    fv_tensor *y = decode(c, m, fv_items_get(in, "decoder_input_ids"),
                          fv_items_get(in, "decoder_attention_mask"), memory, mask);
    fv__put_tokens(c, in, out, logits(c, m, y), fv_items_get(in, "labels"));
}

/* ---- generation: the encoder once, its keys and values kept; then token after token ---- */

static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const marian *m = self;
    fv_tensor *mask = fv_items_get(in, "attention_mask"),
              *memory = encode(c, m, fv_items_get(in, "input_ids"), mask);
    fv__source_mask_keep(c, s, mask);
    for (int i = 0; i < m->cfg.decoder_layers; i++)
        fv__source_keep(c, s, i, fv_mha_keys(c, &m->decoder[i].cross, memory));
}

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const marian *m = self;
    fv_tensor *x = embed(c, m, &m->target, &m->target_pos, ids, fv_session_positions(c, s));
    x = fv__last_position(c, step_decoder(c, m, s, x, (fv_mha_arg){.causal = true}));
    if (m->cfg.add_final_layer_norm) x = fv_norm_fwd(c, &m->decoder_norm, x);
    return logits(c, m, x);
}

static int64_t context(const void *self)
{
    return ((const marian *)self)->cfg.max_position_embeddings;
}
static int64_t vocabulary(const void *self) { return target_vocab(&((const marian *)self)->cfg); }

static const fv_family_head heads[] = {
    {"MarianMTModel", .job = FV_HEAD_SEQ2SEQ},
    {0},
};

const fv_family fv__family_marian = {
    .type = "marian",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(marian),
    .check = check,
    .declare = declare,
    .load = load,
    .ready = ready,
    .pack = pack,
    .forward = forward,
    .begin = begin,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
