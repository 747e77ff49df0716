/* whisper.c - Whisper: speech to text, or to English, from a log-mel spectrogram of 30 seconds.
 *
 *     x = gelu(conv2(gelu(conv1(mel)))) + sinusoids        3000 frames become 1500 positions
 *     encoder: x += attn(norm x), x += mlp(norm x);        norm behind the stack
 *     decoder: learned positions, causal attn, cross-attn, mlp, norms before each;   logits = y E'
 *
 * Keys have no bias.  The encoder always hears a whole window: a shorter clip is padded with
 * silence by its processor, so there is no mask.  What is asked of the model - language, task,
 * timestamps - are tokens the decoder begins with; src/task/transcribe_windows.c writes them.
 *
 * Paper: Radford et al. 2022, Robust Speech Recognition via Large-Scale Weak Supervision
 * (arXiv:2212.04356).  Names are those of transformers' WhisperForConditionalGeneration.  Unlike
 * Moonshine it hears features, not samples, and its blocks are those of the Transformer with norms
 * in front.  The sinusoids are not those of 2017: their wavelengths grow by equal factors from 1 to
 * exactly 10000, and files have them. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/base.h"
#include "core/core.h"
#include "model/seq2seq.h"
#include "model/speech.h"

typedef struct config {
    int vocab_size, num_mel_bins, d_model, max_source_positions, max_target_positions;
    int encoder_layers, encoder_attention_heads, encoder_ffn_dim;
    int decoder_layers, decoder_attention_heads, decoder_ffn_dim;
    int activation_function, classifier_proj_size, num_labels, problem_type;
    int pad_token_id, decoder_start_token_id;
    float dropout, attention_dropout, activation_dropout, init_std;
    bool tie_word_embeddings;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 51865, 1 << 24, "tokens"),
    FV_INT(config, num_mel_bins, 1, 80, 1 << 12, "mel bands of a frame"),
    FV_INT(config, d_model, 2, 384, 1 << 16, "model width"),
    FV_INT(config, max_source_positions, 1, 1500, 1 << 16,
           "positions of a window: half its frames"),
    FV_INT(config, max_target_positions, 1, 448, 1 << 16, "tokens of the longest text"),
    FV__STACK_FIELDS(config, 256, 4, 4, 6, 1536),
    FV_CHOICE(config, activation_function, 0, fv_act_words, "of the feed-forward parts"),
    FV_INT(config, classifier_proj_size, 1, 256, 1 << 16, "width before the labels of a clip"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    FV_INT(config, pad_token_id, 0, 50256, 1 << 24, "padding"),
    FV_INT(config, decoder_start_token_id, 0, 50257, 1 << 24, "what the decoder begins with"),
    FV_FLOAT(config, dropout, 0, 0, 0.99,
             "on what each part of a layer adds, and on the embeddings"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, activation_dropout, 0, 0, 0.99, "inside the feed-forward parts"),
    FV_FLOAT(config, init_std, 0, 0.02, 10, "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, tie_word_embeddings, true, "the table is the output weight too"),
    {0},
};

/* transformers scales no embedding of this family, whatever the key says; suppressed tokens are
 * read by whoever generates. */
static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "true"},
    {"encoder_layerdrop", NULL},
    {"decoder_layerdrop", NULL},
    {"num_key_value_heads", "=encoder_attention_heads"},
    {"scale_embedding", NULL},
    {"use_weighted_layer_sum", "false"},
    {"eos_token_id", NULL},
    {"suppress_tokens", NULL},
    {"begin_suppress_tokens", NULL},
    {"forced_decoder_ids", NULL},
    {"max_length", NULL},
    FV__SPEC_AUGMENT_RULES,
    {"median_filter_width", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_features", FV_F32, true},
    {"decoder_input_ids", FV_I32, false},
    {"decoder_attention_mask", FV_U8, false},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"WhisperForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "WhisperModel"},
    {"WhisperModel", .job = FV_HEAD_BASE},
    {"WhisperForAudioClassification", FV_HEAD_CLASSIFY, .base = "WhisperModel",
     .encoder_only = true},
    {0},
};

typedef struct whisper {
    config cfg;
    fv_head_job job;
    fv_conv conv1, conv2;
    fv_tensor *source_positions; /* (positions,D), sinusoids */
    bool fresh;                  /* there is no file: they are computed */
    fv_emb tokens;
    fv_pos target_positions;
    fv_tensor *out; /* (V,D) */
    fv__stacks stacks;
    fv_lin projector, classifier;
} whisper;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->d_model % k->encoder_attention_heads || k->d_model % k->decoder_attention_heads)
        return fv_fail(e, FV_EFORMAT, "d_model %d is no multiple of the attention heads, %d and %d",
                       k->d_model, k->encoder_attention_heads, k->decoder_attention_heads);
    if (k->d_model % 2)
        return fv_fail(e, FV_EFORMAT, "d_model %d is odd: sinusoids come in pairs", k->d_model);
    if (k->pad_token_id >= k->vocab_size || k->decoder_start_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "pad_token_id %d or decoder_start_token_id %d is outside the vocabulary",
                       k->pad_token_id, k->decoder_start_token_id);
    return FV_OK;
}

/* ---- parameters ---- */

/* q, v and the last product have biases, k has none: a constant added to all scores of a row
 * changes no weight.  So the four are declared one by one, not by fv_mha_init. */
static void attention_init(fv_params *p, fv_mha *l, const config *k, int n_head, const char *at,
                           const char *name)
{
    int64_t D = k->d_model;
    fv_lin_opt with = {.std = k->init_std}, without = {.std = k->init_std, .no_bias = true};
    fv_mha_bare(p, l, n_head, D / n_head, "%s.%s", at, name);
    fv_lin_init(p, &l->k, D, D, without, "%s.%s.k_proj", at, name);
    fv_lin_init(p, &l->v, D, D, with, "%s.%s.v_proj", at, name);
    fv_lin_init(p, &l->q, D, D, with, "%s.%s.q_proj", at, name);
    fv_lin_init(p, &l->out, D, D, with, "%s.%s.out_proj", at, name);
    fv_param_mark_end(l->out.w, FV_ENDS_ATTENTION);
    l->dropout = k->attention_dropout;
}

/* at and name: "model.encoder.layers.0" and ".final_layer_norm". */
static void norm_init(fv_params *p, fv_norm *l, const config *k, const char *at, const char *name)
{
    fv_norm_init(p, l, k->d_model, (fv_norm_opt){0}, "%s%s", at, name);
}

/* fc1 and fc2 stand in the layer itself, without a name of their own between. */
static void mlp_init(fv_params *p, fv_mlp *l, const config *k, int hidden, const char *at)
{
    fv_mlp_init(p, l, k->d_model, hidden,
                (fv_mlp_opt){.act = fv_act_of(k->activation_function), .lin = {.std = k->init_std}},
                "%s", at);
    l->dropout = k->activation_dropout;
}

/* x += attn(norm x);  x += mlp(norm x), as model/stacks.h computes it. */
static void encoder_init(fv_params *p, fv__encoder_block *b, const config *k, const char *at)
{
    attention_init(p, &b->attn, k, k->encoder_attention_heads, at, "self_attn");
    norm_init(p, &b->attn_norm, k, at, ".self_attn_layer_norm");
    mlp_init(p, &b->mlp, k, k->encoder_ffn_dim, at);
    norm_init(p, &b->mlp_norm, k, at, ".final_layer_norm");
    b->dropout = k->dropout;
}

/* The same with cross-attention in between, and a norm of its own before it. */
static void decoder_init(fv_params *p, fv__decoder_block *b, const config *k, const char *at)
{
    attention_init(p, &b->self, k, k->decoder_attention_heads, at, "self_attn");
    norm_init(p, &b->self_norm, k, at, ".self_attn_layer_norm");
    attention_init(p, &b->cross, k, k->decoder_attention_heads, at, "encoder_attn");
    norm_init(p, &b->cross_norm, k, at, ".encoder_attn_layer_norm");
    mlp_init(p, &b->mlp, k, k->decoder_ffn_dim, at);
    norm_init(p, &b->mlp_norm, k, at, ".final_layer_norm");
    b->dropout = k->dropout;
}

/* The table of sinusoids is a buffer: files have it, so it is loaded and saved, and no optimiser
 * changes it. */
static void declare_encoder(whisper *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    fv__stacks *t = &m->stacks;
    char path[64];
    fv_conv_layer_opt o = {.dims = 1, .std = k->init_std, .conv = {.pad = 1}};
    fv_conv_init(p, &m->conv1, k->num_mel_bins, k->d_model, 3, o, "%sencoder.conv1", at);
    o.conv.stride = 2;
    fv_conv_init(p, &m->conv2, k->d_model, k->d_model, 3, o, "%sencoder.conv2", at);
    m->source_positions = fv_param(p, (fv_init){.kind = FV_INIT_ZERO, .buffer = true},
                                   FV_SHAPE(k->max_source_positions, k->d_model),
                                   "%sencoder.embed_positions.weight", at);
    t->encoder_fn = fv__encoder_pre_norm;
    t->n_encoder = k->encoder_layers;
    t->encoder = fv_params_scratch(p, (size_t)t->n_encoder * sizeof *t->encoder);
    for (int i = 0; t->encoder && i < t->n_encoder; i++) {
        snprintf(path, sizeof path, "%sencoder.layers.%d", at, i);
        encoder_init(p, &t->encoder[i], k, path);
    }
    norm_init(p, &t->encoder_norm, k, at, "encoder.layer_norm");
}

/* Learned positions, max_target_positions of them: 448 tokens is all a window can have. */
static void declare_decoder(whisper *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    fv__stacks *t = &m->stacks;
    char path[64];
    fv_emb_init(p, &m->tokens, k->vocab_size, k->d_model, k->init_std, "%sdecoder.embed_tokens",
                at);
    m->tokens.skip = k->pad_token_id;
    fv_pos_init(p, &m->target_positions, k->max_target_positions, k->d_model, FV_POS_LEARNED, 0,
                k->init_std, "%sdecoder.embed_positions", at);
    t->decoder_fn = fv__decoder_pre_norm;
    t->n_decoder = k->decoder_layers;
    t->decoder = fv_params_scratch(p, (size_t)t->n_decoder * sizeof *t->decoder);
    for (int i = 0; t->decoder && i < t->n_decoder; i++) {
        snprintf(path, sizeof path, "%sdecoder.layers.%d", at, i);
        decoder_init(p, &t->decoder[i], k, path);
    }
    norm_init(p, &t->decoder_norm, k, at, "decoder.layer_norm");
}

/* A classifier of sounds has an encoder alone, a projection of each position and a classifier of
 * their mean; its names have no "model." in front. */
static void declare(void *self, const fv_setup *s)
{
    whisper *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    m->fresh = !s->file;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_SEQ2SEQ ? "model." : "";
    fv_lin_opt lin = {.std = k->init_std};
    declare_encoder(m, p, at);
    if (m->job == FV_HEAD_CLASSIFY) {
        fv_lin_init(p, &m->projector, k->d_model, k->classifier_proj_size, lin, "projector");
        fv_lin_init(p, &m->classifier, k->classifier_proj_size, k->num_labels, lin, "classifier");
        return;
    }
    declare_decoder(m, p, at);
    if (m->job == FV_HEAD_SEQ2SEQ)
        m->out = fv__output(p, m->tokens.table, k->tie_word_embeddings, k->init_std,
                            "proj_out.weight");
}

/* A file of another head: its output weight, or all of its decoder, is left unread. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"proj_out.weight", "model.decoder.embed_tokens.weight"},
                                  {NULL, NULL}};
    static const char *const others[] = {"proj_out.weight", NULL};
    static const char *const decoders[] = {"proj_out.weight", "decoder.*", "model.decoder.*", NULL};
    const whisper *m = self;
    fv_load_opt o = {.prefix = "model.", .ties = ties};
    if (m->job == FV_HEAD_BASE) o.ignore = others;
    if (m->job == FV_HEAD_CLASSIFY) o.ignore = decoders;
    return o;
}

/* P[t] = sin(t w_i), then cos(t w_i), w_i = 10000^(-i / (D/2 - 1)), i = 0 .. D/2 - 1 */
static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    const whisper *m = self;
    int64_t T = m->cfg.max_source_positions, D = m->cfg.d_model, half = D / 2;
    if (!m->fresh || !m->source_positions) return FV_OK;
    size_t bytes = (size_t)(T * D) * sizeof(float);
    float *host = fv__alloc(NULL, bytes);
    if (!host) return fv_fail(e, FV_ENOMEM, "whisper: out of memory for positions");
    for (int64_t i = 0; i < half; i++) {
        double w = half > 1 ? exp(-log(10000) * (double)i / (double)(half - 1)) : 1;
        for (int64_t t = 0; t < T; t++) {
            host[t * D + i] = (float)sin((double)t * w);
            host[t * D + half + i] = (float)cos((double)t * w);
        }
    }
    fv_status st = fv_params_set(p, m->source_positions, host, T * D, e);
    fv__free(NULL, host, bytes);
    return st;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    whisper *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* (B,mel,frames) -> (B,positions,D) */
static fv_tensor *encode(fv_ctx *c, const whisper *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *x = fv_items_get(in, "input_features");
    if (!x) return NULL;
    if (x->shape.n != 3 || fv_dim(x, 1) != k->num_mel_bins ||
        fv_dim(x, 2) != 2 * (int64_t)k->max_source_positions)
        return fv_raise(c, FV_ESHAPE, "whisper: input_features %s, expected (B,%d,%d)",
                        fv_desc(x).s, k->num_mel_bins, 2 * k->max_source_positions);
    x = fv_gelu(c, fv_conv_fwd(c, &m->conv1, fv_cast(c, x, c->dtype)));
    x = fv_permute(c, fv_gelu(c, fv_conv_fwd(c, &m->conv2, x)), (int[]){0, 2, 1});
    x = fv_dropout(c, fv_add(c, x, m->source_positions), k->dropout);
    return fv__encode(c, &m->stacks, x, (fv_mha_arg){0},
                      m->job == FV_HEAD_CLASSIFY ? "hidden_states" : "encoder_hidden_states");
}

/* Tokens and their positions, from 0 on or where the session's sequences stand. */
static fv_tensor *embed(fv_ctx *c, const whisper *m, fv_tensor *ids, fv_session *s)
{
    const config *k = &m->cfg;
    if (!ids) return NULL;
    if (fv_dim(ids, 1) > k->max_target_positions)
        return fv_raise(c, FV_EARG, "whisper: %lld tokens, and max_target_positions is %d",
                        (long long)fv_dim(ids, 1), k->max_target_positions);
    fv_tensor *rows = s ? fv_session_positions_from(c, s, 0) : NULL;
    return fv_dropout(c, fv_pos_fwd(c, &m->target_positions, fv_emb_fwd(c, &m->tokens, ids), rows),
                      k->dropout);
}

/* Labels moved by one where no decoder_input_ids are given, as in transformers. */
static fv_tensor *target(fv_ctx *c, const whisper *m, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"), *labels = fv_items_get(in, "labels");
    if (ids) return ids;
    if (!labels || m->job != FV_HEAD_SEQ2SEQ)
        return fv_raise(c, FV_EARG, "whisper: decoder_input_ids%s are missing",
                        m->job == FV_HEAD_SEQ2SEQ ? " or labels" : "");
    return fv__shift_right(c, labels, m->cfg.decoder_start_token_id, m->cfg.pad_token_id);
}

/* "encoder_last_hidden_state" comes out beside the logits: whoever aligns words with time needs
 * it. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const whisper *m = self;
    fv_tensor *memory = encode(c, m, in);
    if (m->job == FV_HEAD_CLASSIFY) {
        fv_tensor *x = fv_mean(c, fv_lin_fwd(c, &m->projector, memory), 1);
        fv__put_classes(c, in, out, fv_lin_fwd(c, &m->classifier, x), m->cfg.problem_type);
        return;
    }
    fv_items_put(out, "encoder_last_hidden_state", memory);
    fv_tensor *x = fv__decode(c, &m->stacks, embed(c, m, target(c, m, in), NULL),
                              (fv_mha_arg){.key_mask = fv_items_get(in, "decoder_attention_mask")},
                              (fv_mha_arg){.memory = memory});
    fv__put_decoded(c, in, out, x, m->out, m->job);
}

/* ---- generation: the encoder once, its keys and values kept; then token after token ---- */

/* No mask: every window is heard whole. */
static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const whisper *m = self;
    fv__source_begin(c, &m->stacks, s, encode(c, m, in), NULL);
}

/* One token of each sequence: ids (B,1) -> logits (B,1,V). */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const whisper *m = self;
    return fv__target_scores(c, &m->stacks, s, embed(c, m, ids, s), (fv_mha_arg){0}, m->out, NULL);
}

/* 0: a bare model or a classifier generates nothing. */
static int64_t vocabulary(const void *self)
{
    const whisper *m = self;
    return m->job == FV_HEAD_SEQ2SEQ ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    return ((const whisper *)self)->cfg.max_target_positions;
}

const fv_family fv__family_whisper = {
    FV__FAMILY_PARTS(whisper), .type = "whisper",  .ready = ready, .begin = begin,
    .vocabulary = vocabulary,  .context = context, .step = step,
};
