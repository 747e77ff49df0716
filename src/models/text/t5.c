/* t5.c - T5 and mT5: an encoder and a decoder that know where a token stands by distance alone.
 *
 *     x += attn(norm x) with a bias for each distance;   x += wo(relu(wi n)), n = norm x;
 *     logits = norm(y) E' / sqrt(D)
 *
 * RMS norms first, no biases, scores are not scaled, and the width of all heads together need not
 * be the model's.  The first block of a stack holds the table of distances for all.  Version 1.1
 * has a gate in the feed-forward part and an output weight of its own, which is not scaled; mT5 is
 * version 1.1 on a hundred languages, and never scaled whatever its configuration says.
 *
 * A classifier and spans read the decoder, which reads the source once more; tokens are tagged by
 * the encoder alone.
 *
 * Papers: Raffel et al. 2020 (arXiv:1910.10683), Xue et al. 2021 (arXiv:2010.11934). Names are
 * those of transformers' T5Model: block.N.layer.0.SelfAttention, layer.1.EncDecAttention in the
 * decoder, layer.2.DenseReluDense. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/seq2seq.h"

#define MAX_LAYER 96

typedef struct config {
    int vocab_size, d_model, d_kv, d_ff, num_layers, num_decoder_layers, num_heads;
    int relative_attention_num_buckets, relative_attention_max_distance;
    int feed_forward_proj, dense_act_fn, is_gated_act, scale_decoder_outputs;
    float dropout_rate, classifier_dropout, layer_norm_epsilon, initializer_factor;
    bool tie_word_embeddings;
    int pad_token_id, eos_token_id, decoder_start_token_id, num_labels, problem_type;
} config;

static const char *const feeds[] = {"relu", "gated-gelu", "gated-silu",     "gated-relu", "gelu",
                                    "silu", "gelu_new",   "gated-gelu_new", NULL};
/* "gated-gelu" is the tanh form in T5's files whatever gelu means elsewhere: transformers renames
 * it gelu_new when it reads them. */
static const struct {
    fv_act act;
    bool gated;
} feed_of[] = {
    {FV_RELU, false}, {FV_GELU_TANH, true}, /* so named, it means the tanh form */
    {FV_SILU, true},  {FV_RELU, true},       {FV_GELU, false},
    {FV_SILU, false}, {FV_GELU_TANH, false}, {FV_GELU_TANH, true},
};

/* transformers writes what follows from feed_forward_proj beside it, and believes that where it
 * reads a file: here they must agree. */
static const char *const dense_words[] = {"", "relu", "gelu_new", "silu", "gelu", NULL};
static const fv_act dense_of[] = {FV_ACT_NONE, FV_RELU, FV_GELU_TANH, FV_SILU, FV_GELU};

enum { AS_TIED, SCALED, PLAIN };
static const char *const scaled_words[] = {"", "true", "false", NULL};

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32128, 1 << 24, "tokens"),
    FV_INT(config, d_model, 1, 512, 1 << 16, "model width"),
    FV_INT(config, d_kv, 1, 64, 4096, "width of a head"),
    FV_INT(config, d_ff, 1, 2048, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_layers, 1, 6, MAX_LAYER, "layers of the encoder"),
    FV_INT(config, num_decoder_layers, 1, 0, MAX_LAYER,
           "layers of the decoder; as many if not said"),
    FV_INT(config, num_heads, 1, 8, 256, "attention heads"),
    FV_INT(config, relative_attention_num_buckets, 4, 32, 4096, "distances that are told apart"),
    FV_INT(config, relative_attention_max_distance, 2, 128, 1 << 16,
           "distances from there on are one"),
    FV_CHOICE(config, feed_forward_proj, 0, feeds, "activation of the feed-forward part"),
    FV_CHOICE(config, dense_act_fn, 0, dense_words, "the same, as feed_forward_proj says it"),
    FV_CHOICE(config, is_gated_act, 0, scaled_words, "whether that is gated"),
    FV_CHOICE(config, scale_decoder_outputs, AS_TIED, scaled_words,
              "divide what the output weight reads by the root of the width"),
    FV_FLOAT(config, dropout_rate, 0, 0.1, 0.99, "dropout, everywhere"),
    FV_FLOAT(config, classifier_dropout, 0, 0, 0.99, "before the classifier"),
    FV_FLOAT(config, layer_norm_epsilon, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, initializer_factor, 0, 1, 100, "first values are so many times wider"),
    FV_BOOL(config, tie_word_embeddings, true, "the table is the output weight too"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV_INT(config, decoder_start_token_id, 0, 0, 1 << 24, "what the decoder begins with"),
    FV_INT(config, eos_token_id, 0, 1, 1 << 24, "end of a sequence, where a classifier reads"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels of a sequence are; not given: as they look"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", NULL}, /* false in encoders that were saved alone */
    {"is_decoder", NULL},         /* of a stack, not of the whole */
    {"n_positions", NULL},        {"output_past", NULL}, {NULL, NULL},
};

static const fv_input inputs[] = {
    FV__SEQ2SEQ_INPUTS,
    {"start_positions", FV_I32, false},
    {"end_positions", FV_I32, false},
    {0},
};

#define HEADS(name, type_)                                                                         \
    {name "ForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = name "Model", .type = type_},       \
        {name "Model", .job = FV_HEAD_BASE, .type = type_},                                        \
        {name "EncoderModel", FV_HEAD_ENCODER, .encoder_only = true, .type = type_},               \
        {name "ForTokenClassification", FV_HEAD_TAG, .base = name "EncoderModel",                  \
         .encoder_only = true, .type = type_},                                                     \
        {name "ForSequenceClassification", FV_HEAD_CLASSIFY, .base = name "Model", .type = type_}, \
    {                                                                                              \
        name "ForQuestionAnswering", FV_HEAD_ANSWER, .base = name "Model", .type = type_           \
    }

static const fv_family_head heads[] = {HEADS("T5", "t5"), HEADS("MT5", "mt5"), {0}};
static const char *const others[] = {"mt5", NULL};

/* encoder_rel and decoder_rel: one table of distances for all layers of a stack, which files keep
 * in its first block. */
typedef struct t5 {
    config cfg;
    fv_head_job job;
    fv_emb tokens;
    fv_rel_bias encoder_rel, decoder_rel;
    fv__stacks stacks;
    fv_tensor *out; /* (V,D) */
    float scale;    /* of what out reads */
    fv_lin dense, classifier;
} t5;

/* The decoder may be shallower or deeper than the encoder. */
static int decoder_layers(const config *k)
{
    return k->num_decoder_layers ? k->num_decoder_layers : k->num_layers;
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    int proj = k->feed_forward_proj;
    if ((k->dense_act_fn && dense_of[k->dense_act_fn] != feed_of[proj].act) ||
        (k->is_gated_act && (k->is_gated_act == 1) != feed_of[proj].gated))
        return fv_fail(e, FV_EFORMAT,
                       "dense_act_fn or is_gated_act is not what feed_forward_proj %s means",
                       feeds[proj]);
    if (k->relative_attention_max_distance <= k->relative_attention_num_buckets / 2)
        return fv_fail(e, FV_EFORMAT,
                       "relative_attention_max_distance %d must be more than half of %d buckets",
                       k->relative_attention_max_distance, k->relative_attention_num_buckets);
    if (k->pad_token_id >= k->vocab_size || k->decoder_start_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "pad_token_id %d or decoder_start_token_id %d is outside the vocabulary",
                       k->pad_token_id, k->decoder_start_token_id);
    return FV_OK;
}

/* Scores are not divided by the root of the head's width: q begins so much smaller instead. */
static void mha_init(fv_params *p, fv_mha *l, const config *k, const char *path)
{
    int64_t D = k->d_model, all = (int64_t)k->num_heads * k->d_kv;
    fv_lin_opt lin = {.no_bias = true, .std = k->initializer_factor / sqrtf((float)D)}, ask = lin;
    ask.std = (float)((double)lin.std / sqrt((double)k->d_kv));
    fv_mha_bare(p, l, k->num_heads, k->d_kv, "%s", path);
    l->scale = 1;
    l->dropout = k->dropout_rate;
    fv_lin_init(p, &l->q, D, all, ask, "%s.q", path);
    fv_lin_init(p, &l->k, D, all, lin, "%s.k", path);
    fv_lin_init(p, &l->v, D, all, lin, "%s.v", path);
    fv_lin_init(p, &l->out, all, D, lin, "%s.o", path);
    fv_param_mark_end(l->out.w, FV_ENDS_ATTENTION);
}

/* wi and wo, or the gate wi_0 and wi_1 with wo; none has a bias. */
static void mlp_init(fv_params *p, fv_mlp *l, const config *k, const char *path)
{
    bool gated = feed_of[k->feed_forward_proj].gated;
    fv_mlp_init(p, l, k->d_model, k->d_ff,
                (fv_mlp_opt){.act = feed_of[k->feed_forward_proj].act,
                             .lin = {.no_bias = true,
                                     .std = k->initializer_factor / sqrtf((float)k->d_model)},
                             .names = gated ? "wi_0 wi_1 wo" : "wi wo"},
                "%s", path);
    l->dropout = k->dropout_rate;
}

/* T5 calls it a layer norm; it subtracts no mean and has no bias. */
static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM, .eps = k->layer_norm_epsilon};
}

/* "encoder.block.0" and below it: part 0 is the attention, part 1 the feed-forward part. */
static void encoder_block_init(fv_params *p, fv__encoder_block *b, const config *k, const char *at,
                               int i)
{
    char path[96];
    b->dropout = k->dropout_rate;
    snprintf(path, sizeof path, "%sencoder.block.%d.layer.0.SelfAttention", at, i);
    mha_init(p, &b->attn, k, path);
    fv_norm_init(p, &b->attn_norm, k->d_model, norm_opt(k), "%sencoder.block.%d.layer.0.layer_norm",
                 at, i);
    snprintf(path, sizeof path, "%sencoder.block.%d.layer.1.DenseReluDense", at, i);
    mlp_init(p, &b->mlp, k, path);
    fv_norm_init(p, &b->mlp_norm, k->d_model, norm_opt(k), "%sencoder.block.%d.layer.1.layer_norm",
                 at, i);
}

/* "decoder.block.0": part 0 looks back, part 1 at the source, part 2 is the feed-forward part. */
static void decoder_block_init(fv_params *p, fv__decoder_block *b, const config *k, const char *at,
                               int i)
{
    char path[96];
    b->dropout = k->dropout_rate;
    snprintf(path, sizeof path, "%sdecoder.block.%d.layer.0.SelfAttention", at, i);
    mha_init(p, &b->self, k, path);
    fv_norm_init(p, &b->self_norm, k->d_model, norm_opt(k), "%sdecoder.block.%d.layer.0.layer_norm",
                 at, i);
    snprintf(path, sizeof path, "%sdecoder.block.%d.layer.1.EncDecAttention", at, i);
    mha_init(p, &b->cross, k, path);
    fv_norm_init(p, &b->cross_norm, k->d_model, norm_opt(k),
                 "%sdecoder.block.%d.layer.1.layer_norm", at, i);
    snprintf(path, sizeof path, "%sdecoder.block.%d.layer.2.DenseReluDense", at, i);
    mlp_init(p, &b->mlp, k, path);
    fv_norm_init(p, &b->mlp_norm, k->d_model, norm_opt(k), "%sdecoder.block.%d.layer.2.layer_norm",
                 at, i);
}

/* Whether the output weight is the table of tokens: where a file has none of its own it is, as in
 * transformers, whatever the configuration says. */
static bool tied(const config *k, const fv_setup *s, bool multilingual)
{
    fv_st_info found;
    if (s->file && fv_st_find(s->file, "lm_head.weight", &found, NULL)) return true;
    if (s->file && multilingual) return false;
    /* Files of version 1.1 say that nothing is tied; some written later say instead that nothing is
     * scaled. */
    return k->tie_word_embeddings && k->scale_decoder_outputs != PLAIN;
}

/* The scale goes with the tied table unless the configuration says otherwise; mT5 never has it. */
static void declare_output(t5 *m, fv_params *p, const fv_setup *s)
{
    const config *k = &m->cfg;
    bool multilingual = s->head->type && !strcmp(s->head->type, "mt5");
    bool scaled = k->scale_decoder_outputs == AS_TIED ? k->tie_word_embeddings
                                                      : k->scale_decoder_outputs == SCALED;
    m->scale = scaled && !multilingual ? 1 / sqrtf((float)k->d_model) : 1;
    m->out = fv__output(p, m->tokens.table, tied(k, s, multilingual), k->initializer_factor,
                        "lm_head.weight");
}

/* Distances of the decoder are all to the past, so its buckets cover one side only. */
static void declare_decoder(t5 *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    fv__stacks *s = &m->stacks;
    s->n_decoder = decoder_layers(k);
    s->decoder_fn = fv__decoder_pre_norm;
    s->decoder = fv_params_scratch(p, (size_t)s->n_decoder * sizeof *s->decoder);
    for (int i = 0; s->decoder && i < s->n_decoder; i++)
        decoder_block_init(p, &s->decoder[i], k, at, i);
    fv_rel_bias_init(p, &m->decoder_rel, k->relative_attention_num_buckets, k->num_heads,
                     k->relative_attention_max_distance, true,
                     "%sdecoder.block.0.layer.0.SelfAttention.relative_attention_bias", at);
    fv_norm_init(p, &s->decoder_norm, k->d_model, norm_opt(k), "%sdecoder.final_layer_norm", at);
}

/* Half of the buckets are for keys behind the query, half for those before it. */
static void declare_encoder(t5 *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    fv__stacks *s = &m->stacks;
    s->n_encoder = k->num_layers;
    s->encoder_fn = fv__encoder_pre_norm;
    s->encoder = fv_params_scratch(p, (size_t)s->n_encoder * sizeof *s->encoder);
    for (int i = 0; s->encoder && i < s->n_encoder; i++)
        encoder_block_init(p, &s->encoder[i], k, at, i);
    fv_rel_bias_init(p, &m->encoder_rel, k->relative_attention_num_buckets, k->num_heads,
                     k->relative_attention_max_distance, false,
                     "%sencoder.block.0.layer.0.SelfAttention.relative_attention_bias", at);
    fv_norm_init(p, &s->encoder_norm, k->d_model, norm_opt(k), "%sencoder.final_layer_norm", at);
}

/* Classifiers have "transformer." before all names but their own. */
static void declare(void *self, const fv_setup *s)
{
    t5 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->job = s->head->job;
    const char *at = m->job == FV_HEAD_TAG || m->job == FV_HEAD_CLASSIFY ? "transformer." : "";
    fv_lin_opt lin = {.std = k->initializer_factor / sqrtf((float)k->d_model)};
    fv_emb_init(p, &m->tokens, k->vocab_size, k->d_model, k->initializer_factor, "%sshared", at);
    declare_encoder(m, p, at);
    if (m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, k->d_model, k->num_labels, lin, "classifier");
    if (s->head->encoder_only) return;
    declare_decoder(m, p, at);
    if (m->job == FV_HEAD_SEQ2SEQ) declare_output(m, p, s);
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, k->d_model, 2, lin, "qa_outputs");
    if (m->job != FV_HEAD_CLASSIFY) return;
    fv_lin_init(p, &m->dense, k->d_model, k->d_model, lin, "classification_head.dense");
    fv_lin_init(p, &m->classifier, k->d_model, k->num_labels, lin, "classification_head.out_proj");
}

/* One table serves both stacks and, where tied, the output; files repeat it under up to four
 * names. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {
        {"lm_head.weight", "shared.weight"},
        {"encoder.embed_tokens.weight", "shared.weight"},
        {"decoder.embed_tokens.weight", "shared.weight"},
        {"shared.weight", "encoder.embed_tokens.weight"},
        {NULL, NULL},
    };
    /* An old mistake: the first decoder block once had distances for cross-attention, which were
     * never used. */
    static const char *const unused[] = {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", NULL};
    static const fv_tie below_ties[] = {
        {"transformer.encoder.embed_tokens.weight", "transformer.shared.weight"},
        {"transformer.decoder.embed_tokens.weight", "transformer.shared.weight"},
        {NULL, NULL},
    };
    static const char *const beyond[] = {"decoder.*", "lm_head.weight", "classifier.*", NULL};
    static const char *const head[] = {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", "lm_head.weight",
        NULL};
    const t5 *m = self;
    if (m->job == FV_HEAD_TAG || m->job == FV_HEAD_CLASSIFY)
        return (fv_load_opt){.prefix = "transformer.", .ties = below_ties};
    return (fv_load_opt){.ties = ties,
                         .prefix = m->job == FV_HEAD_ENCODER ? "transformer." : NULL,
                         .ignore = m->job == FV_HEAD_ENCODER   ? beyond
                                   : m->job == FV_HEAD_SEQ2SEQ ? unused
                                                               : head};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    t5 *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* Tokens alone: there are no positions in the input. */
static fv_tensor *embed(fv_ctx *c, const t5 *m, fv_tensor *ids)
{
    return fv_dropout(c, fv_emb_fwd(c, &m->tokens, ids), m->cfg.dropout_rate);
}

/* (B,T) -> (B,T,D).  Bias and mask enter the scores as they are: nothing is scaled. */
static fv_tensor *encode(fv_ctx *c, const t5 *m, fv_tensor *ids, fv_tensor *mask, const char *shown)
{
    fv_mha_arg arg = {.key_mask = mask};
    fv_tensor *x = embed(c, m, ids);
    arg.rel = fv_rel_bias_fwd(c, &m->encoder_rel, &arg.rel_zero);
    return fv_dropout(c, fv__encode(c, &m->stacks, x, arg, shown), m->cfg.dropout_rate);
}

/* (B,T) -> (B,T,D).  Cross-attention has no bias by distance. */
static fv_tensor *decode(fv_ctx *c, const t5 *m, fv_tensor *ids, fv_mha_arg self, fv_mha_arg cross)
{
    fv_tensor *x = embed(c, m, ids);
    self.rel = fv_rel_bias_fwd(c, &m->decoder_rel, &self.rel_zero);
    return fv_dropout(c, fv__decode(c, &m->stacks, x, self, cross), m->cfg.dropout_rate);
}

/* The first T5 divides by the root of the width before its tied table, which is as large as first
 * values of an embedding are; version 1.1 has an output weight of its own scale. */
static fv_tensor *logits(fv_ctx *c, const t5 *m, fv_tensor *x)
{
    return fv_linear(c, m->scale != 1 ? fv_scale(c, x, m->scale) : x, m->out, NULL, FV_ACT_NONE);
}

/* What the decoder reads: decoder_input_ids, else labels shifted or, for a classifier and for
 * spans, the source. */
static fv_tensor *target(fv_ctx *c, const t5 *m, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"), *from = NULL;
    if (ids) return ids;
    if (m->job == FV_HEAD_SEQ2SEQ) from = fv_items_get(in, "labels");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_ANSWER)
        from = fv_items_get(in, "input_ids");
    return from ? fv__shift_right(c, from, m->cfg.decoder_start_token_id, m->cfg.pad_token_id)
                : fv_raise(c, FV_EARG, "t5: decoder_input_ids%s are missing",
                           m->job == FV_HEAD_SEQ2SEQ ? " or labels" : "");
}

static void put_decoded(fv_ctx *c, const t5 *m, const fv_items *in, fv_items *out, fv_tensor *x)
{
    const config *k = &m->cfg;
    if (m->job == FV_HEAD_BASE) fv_items_put(out, "last_hidden_state", x);
    if (m->job == FV_HEAD_SEQ2SEQ)
        fv__put_tokens(c, in, out, logits(c, m, x), fv_items_get(in, "labels"));
    if (m->job == FV_HEAD_ANSWER) fv_put_spans(c, fv_lin_fwd(c, &m->classifier, x), in, out);
    if (m->job != FV_HEAD_CLASSIFY) return;
    x = fv__at_end(c, x, fv_items_get(in, "input_ids"), k->eos_token_id);
    x = fv__end_scores(c, x, &m->dense, &m->classifier, k->classifier_dropout);
    fv__put_classes(c, in, out, x, k->problem_type);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const t5 *m = self;
    bool both = m->stacks.decoder != NULL;
    fv_tensor *mask = fv_items_get(in, "attention_mask");
    fv_tensor *memory = encode(c, m, fv_items_get(in, "input_ids"), mask,
                               both ? "encoder_hidden_states" : "hidden_states");
    if (m->job == FV_HEAD_TAG) {
        memory = fv_dropout(c, memory, m->cfg.classifier_dropout);
        fv__put_tokens(c, in, out, fv_lin_fwd(c, &m->classifier, memory),
                       fv_items_get(in, "labels"));
        return;
    }
    fv_items_put(out, both ? "encoder_last_hidden_state" : "last_hidden_state", memory);
    if (!both) return;
    fv_tensor *x = decode(c, m, target(c, m, in),
                          (fv_mha_arg){.key_mask = fv_items_get(in, "decoder_attention_mask")},
                          (fv_mha_arg){.memory = memory, .key_mask = mask});
    put_decoded(c, m, in, out, x);
}

/* ---- generation: the encoder once, its keys and values kept; then token after token ---- */

static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const t5 *m = self;
    fv_tensor *mask = fv_items_get(in, "attention_mask");
    fv__source_begin(c, &m->stacks, s,
                     encode(c, m, fv_items_get(in, "input_ids"), mask, "encoder_hidden_states"),
                     mask);
}

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const t5 *m = self;
    fv_mha_arg arg = {0};
    arg.rel = fv_rel_bias_fwd(c, &m->decoder_rel, &arg.rel_zero);
    fv_tensor *x = embed(c, m, ids);
    if (m->scale != 1) return logits(c, m, fv__target_step(c, &m->stacks, s, x, arg));
    return fv__target_scores(c, &m->stacks, s, x, arg, m->out, NULL);
}

static int64_t vocabulary(const void *self)
{
    const t5 *m = self;
    return m->job == FV_HEAD_SEQ2SEQ ? m->cfg.vocab_size : 0;
}

const fv_family fv__family_t5 = {
    FV__FAMILY_PARTS(t5),     .type = "t5", .also = others, .begin = begin,
    .vocabulary = vocabulary, .step = step,
};
