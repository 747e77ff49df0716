/* speecht5.c - SpeechT5: text to speech, as a log-mel spectrogram.
 *
 *     encoder: E[text] + alpha sinusoids; norm; layers with norms behind each part, whose scores
 *              have a term by distance, scale q_i . R[i - j]
 *     decoder: frames through a few dense layers of which units are dropped always (the prenet),
 *              + alpha sinusoids; relu(W [x, speaker]); causal attention, cross-attention, mlp
 *     before = A y, r frames a step;  spectrogram = before + convolutions(before);  stop = B y
 *     loss = |spectrogram - labels| + |before - labels| + cross-entropy of stop
 *            + 10 mean of (cross-attention far from the diagonal)
 *
 * A step of the decoder reads the last of the r frames (reduction_factor) that the step before it
 * made.  Dropout in the prenet keeps the decoder from copying frames instead of reading the text,
 * and makes what is said vary; it is one mask for all rows.  Here it comes as an input,
 * prenet_mask (layers,T,units), so that whoever speaks chooses it by a seed; without that input it
 * is drawn where a context trains and absent elsewhere.
 *
 * Guided attention (Tachibana et al. 2018) needs weights with a gradient, which the attention
 * operator does not keep: those of the guided heads, a text's length by a clip's, are computed a
 * second time by plain ops, where there are labels.
 *
 * Inputs choose what is computed: of outputs_before_postnet alone, the spectrogram behind the
 * convolutions, for whoever made frames one after the other.
 *
 * Paper: Ao et al. 2021 (arXiv:2110.07205).  Names are those of transformers'
 * SpeechT5ForTextToSpeech.  Unlike Whisper, its sequences of the decoder are frames. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "model/seq2seq.h"
#include "model/speech.h"
#include "nn/part.h"

typedef struct config {
    int vocab_size, hidden_size, encoder_layers, encoder_attention_heads, encoder_ffn_dim;
    int decoder_layers, decoder_attention_heads, decoder_ffn_dim, hidden_act, pad_token_id;
    int num_mel_bins, reduction_factor, speaker_embedding_dim;
    int speech_decoder_prenet_layers, speech_decoder_prenet_units;
    int speech_decoder_postnet_layers, speech_decoder_postnet_units, speech_decoder_postnet_kernel;
    int max_speech_positions, max_text_positions, encoder_max_relative_position;
    int guided_attention_loss_num_heads;
    bool use_guided_attention_loss;
    float guided_attention_loss_sigma, guided_attention_loss_scale;
    float positional_dropout, hidden_dropout, attention_dropout, activation_dropout;
    float speech_decoder_prenet_dropout, speech_decoder_postnet_dropout;
    float initializer_range, layer_norm_eps;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 81, 1 << 24, "tokens, most of them letters"),
    FV_INT(config, hidden_size, 2, 768, 1 << 16, "model width"),
    FV__STACK_FIELDS(config, 250, 12, 6, 12, 3072),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "activation of the feed-forward parts"),
    FV_INT(config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV_INT(config, num_mel_bins, 1, 80, 1 << 12, "mel bands of a frame"),
    FV_INT(config, reduction_factor, 1, 2, 64, "frames that a step of the decoder makes"),
    FV_INT(config, speaker_embedding_dim, 1, 512, 1 << 16, "numbers that say who speaks"),
    FV_INT(config, speech_decoder_prenet_layers, 1, 2, FV__MOST_NETS, "dense layers of the prenet"),
    FV_INT(config, speech_decoder_prenet_units, 1, 256, 1 << 16, "their width"),
    FV_FLOAT(config, speech_decoder_prenet_dropout, 0, 0.5, 0.99,
             "share of their units that is dropped, always"),
    FV_INT(config, speech_decoder_postnet_layers, 1, 5, FV__MOST_NETS,
           "convolutions of the postnet"),
    FV_INT(config, speech_decoder_postnet_units, 1, 256, 1 << 16, "their channels"),
    FV_INT(config, speech_decoder_postnet_kernel, 1, 5, 1 << 10, "their length: an odd number"),
    FV_FLOAT(config, speech_decoder_postnet_dropout, 0, 0.5, 0.99, "behind each of them"),
    FV_INT(config, max_speech_positions, 1, 4000, 1 << 20, "steps of the decoder, at most"),
    FV_INT(config, max_text_positions, 1, 450, 1 << 20, "tokens of a text, at most"),
    FV_INT(config, encoder_max_relative_position, 1, 160, 1 << 20,
           "distances from there on count as one"),
    FV_BOOL(config, use_guided_attention_loss, true, "cross-attention is drawn to the diagonal"),
    FV_INT(config, guided_attention_loss_num_heads, -1, 2, 1024,
           "the first so many heads of each layer; -1: all but the last"),
    FV_FLOAT(config, guided_attention_loss_sigma, 1e-3, 0.4, 100, "how wide the diagonal is"),
    FV_FLOAT(config, guided_attention_loss_scale, 0, 10, 1e6, "weight of that loss"),
    FV_FLOAT(config, positional_dropout, 0, 0.1, 0.99, "behind the positions"),
    FV_FLOAT(config, hidden_dropout, 0, 0.1, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, attention_dropout, 0, 0.1, 0.99, "on the attention weights"),
    FV_FLOAT(config, activation_dropout, 0, 0.1, 0.99, "inside the feed-forward parts"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10, "deviation of first values; 0: Xavier"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    {0},
};

/* Of the speech encoder and the text decoder, which this model has not; of masks and dropped layers
 * in training. */
static const fv_key_rule rules[] = {{"is_encoder_decoder", "true"},
                                    {"encoder_layerdrop", NULL},
                                    {"decoder_layerdrop", NULL},
                                    {"scale_embedding", NULL},
                                    {"num_hidden_layers", "=encoder_layers"},
                                    {"num_attention_heads", "=encoder_attention_heads"},
                                    {"bos_token_id", NULL},
                                    {"eos_token_id", NULL},
                                    {"decoder_start_token_id", NULL},
                                    {"feat_extract_norm", NULL},
                                    {"feat_extract_activation", NULL},
                                    {"feat_proj_dropout", NULL},
                                    {"num_feat_extract_layers", NULL},
                                    {"conv_dim", NULL},
                                    {"conv_stride", NULL},
                                    {"conv_kernel", NULL},
                                    {"conv_bias", NULL},
                                    {"num_conv_pos_embeddings", NULL},
                                    {"num_conv_pos_embedding_groups", NULL},
                                    FV__SPEC_AUGMENT_RULES,
                                    {"tie_word_embeddings", NULL},
                                    {"max_length", NULL},
                                    {NULL, NULL}};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, false},
    {"attention_mask", FV_U8, false},
    {"decoder_input_values", FV_F32, false},   /* (B,T,mel): zeros, then each step's last frame */
    {"decoder_attention_mask", FV_U8, false},  /* (B,T), or of all frames beside labels */
    {"speaker_embeddings", FV_F32, false},     /* (B,dim) */
    {"prenet_mask", FV_F32, false},            /* (layers,T,units): 0 or 1 / (1 - p) */
    {"labels", FV_F32, false},                 /* (B,frames,mel), -100 behind the end */
    {"outputs_before_postnet", FV_F32, false}, /* (B,frames,mel) */
    {0},
};

static const fv_family_head heads[] = {
    {"SpeechT5ForTextToSpeech", .job = FV_HEAD_SPEECH},
    {0},
};

typedef struct speecht5 {
    config cfg;
    fv_emb tokens;
    fv_tensor *alpha; /* a scalar: how much positions count */
    fv_norm encoder_norm;
    fv_tensor *distances; /* (2 max,head width) */
    fv__encoder_block *encoder;
    fv__prenet prenet;
    fv__decoder_block *decoder;
    fv_lin frames, stop;
    fv__postnet postnet;
} speecht5;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__heads_check(k->hidden_size, k->encoder_attention_heads, e);
    if (!st) st = fv__heads_check(k->hidden_size, k->decoder_attention_heads, e);
    if (st) return st;
    if (k->hidden_size % 2)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is odd: sinusoids come in pairs",
                       k->hidden_size);
    if (k->speech_decoder_postnet_kernel % 2 == 0)
        return fv_fail(e, FV_EFORMAT, "speech_decoder_postnet_kernel %d is even: it has no middle",
                       k->speech_decoder_postnet_kernel);
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return FV_OK;
}

/* ---- parameters ---- */

static void mlp_init(fv_params *p, fv_mlp *l, const config *k, int hidden, const char *at)
{
    fv_mlp_init(p, l, k->hidden_size, hidden,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.std = k->initializer_range},
                             .names = "intermediate_dense output_dense"},
                "%s.feed_forward", at);
    l->dropout = k->activation_dropout;
}

static void attention_init(fv_params *p, fv_mha *l, const config *k, int n_head, const char *at,
                           const char *name)
{
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_mha_init(p, l, k->hidden_size, n_head, (fv_mha_opt){.in = lin, .out = lin}, "%s.%s", at,
                name);
    l->dropout = k->attention_dropout;
}

static void declare_encoder(speecht5 *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    char at[80];
    fv_emb_init(p, &m->tokens, k->vocab_size, k->hidden_size, k->initializer_range,
                "speecht5.encoder.prenet.embed_tokens");
    m->tokens.skip = k->pad_token_id;
    m->alpha = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, (fv_shape){0},
                        "speecht5.encoder.prenet.encode_positions.alpha");
    fv_norm_init(p, &m->encoder_norm, k->hidden_size, norm,
                 "speecht5.encoder.wrapped_encoder.layer_norm");
    m->encoder = fv_params_scratch(p, (size_t)k->encoder_layers * sizeof *m->encoder);
    for (int i = 0; m->encoder && i < k->encoder_layers; i++) {
        fv__encoder_block *b = &m->encoder[i];
        snprintf(at, sizeof at, "speecht5.encoder.wrapped_encoder.layers.%d", i);
        attention_init(p, &b->attn, k, k->encoder_attention_heads, at, "attention");
        fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.layer_norm", at);
        mlp_init(p, &b->mlp, k, k->encoder_ffn_dim, at);
        fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.final_layer_norm", at);
        b->dropout = k->hidden_dropout;
    }
    m->distances = fv_param(p, fv__weight(k->initializer_range),
                            FV_SHAPE(2 * (int64_t)k->encoder_max_relative_position,
                                     k->hidden_size / k->encoder_attention_heads),
                            "speecht5.encoder.wrapped_encoder.embed_positions.pe_k.weight");
}

static void declare_decoder(speecht5 *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    int64_t D = k->hidden_size;
    char at[80];
    fv__prenet_init(p, &m->prenet, k->num_mel_bins, k->speech_decoder_prenet_units, D,
                    k->speaker_embedding_dim, k->speech_decoder_prenet_layers, k->initializer_range,
                    "speecht5.decoder.prenet");
    m->prenet.dropout = k->speech_decoder_prenet_dropout;
    m->prenet.positional_dropout = k->positional_dropout;
    m->prenet.most = k->max_speech_positions;
    m->decoder = fv_params_scratch(p, (size_t)k->decoder_layers * sizeof *m->decoder);
    for (int i = 0; m->decoder && i < k->decoder_layers; i++) {
        fv__decoder_block *b = &m->decoder[i];
        snprintf(at, sizeof at, "speecht5.decoder.wrapped_decoder.layers.%d", i);
        attention_init(p, &b->self, k, k->decoder_attention_heads, at, "self_attn");
        fv_norm_init(p, &b->self_norm, D, norm, "%s.self_attn_layer_norm", at);
        attention_init(p, &b->cross, k, k->decoder_attention_heads, at, "encoder_attn");
        fv_norm_init(p, &b->cross_norm, D, norm, "%s.encoder_attn_layer_norm", at);
        mlp_init(p, &b->mlp, k, k->decoder_ffn_dim, at);
        fv_norm_init(p, &b->mlp_norm, D, norm, "%s.final_layer_norm", at);
        b->dropout = k->hidden_dropout;
    }
}

static void declare_postnet(speecht5 *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t mel = k->num_mel_bins;
    fv_lin_init(p, &m->frames, k->hidden_size, mel * k->reduction_factor, lin,
                "speech_decoder_postnet.feat_out");
    fv_lin_init(p, &m->stop, k->hidden_size, k->reduction_factor, lin,
                "speech_decoder_postnet.prob_out");
    fv__postnet_init(p, &m->postnet, mel, k->speech_decoder_postnet_units,
                     k->speech_decoder_postnet_layers, k->speech_decoder_postnet_kernel,
                     "speech_decoder_postnet");
    m->postnet.dropout = k->speech_decoder_postnet_dropout;
}

static void declare(void *self, const fv_setup *s)
{
    speecht5 *m = self;
    m->cfg = *(const config *)s->config;
    declare_encoder(m, s->params);
    declare_decoder(m, s->params);
    declare_postnet(m, s->params);
}

/* Older files hold the sinusoids; PyTorch counts the batches of a norm. */
static fv_load_opt load(const void *self)
{
    static const char *const others[] = {"*num_batches_tracked", "*encode_positions.pe", NULL};
    (void)self;
    return (fv_load_opt){.ignore = others};
}

/* The encoder's q stays apart from k and v: distances are multiplied by it too. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    speecht5 *m = self;
    fv__stacks decoder = {.decoder = m->decoder, .n_decoder = m->cfg.decoder_layers};
    for (int i = 0; m->encoder && i < m->cfg.encoder_layers; i++) {
        fv_mha_pack(p, &m->encoder[i].attn, dtype, false);
        fv_mlp_pack(p, &m->encoder[i].mlp, dtype);
    }
    fv__stacks_pack(p, &decoder, dtype);
}

/* ---- encoder ---- */

/* x = norm(x + attn(x));  x = norm(x + mlp(x)) */
static fv_tensor *encoder_layer(fv_ctx *c, const speecht5 *m, const fv__encoder_block *b,
                                fv_tensor *x, fv_tensor *mask)
{
    fv_tensor *q = fv_lin_fwd(c, &b->attn.q, x);
    fv_attn how = {.n_head = b->attn.n_head,
                   .dropout = b->attn.dropout,
                   .key_mask = mask,
                   .bias = fv__distance_scores(c, q, m->distances, b->attn.n_head),
                   .name = b->attn.name};
    fv_tensor *a = fv_attention(c, q, fv_lin_fwd(c, &b->attn.k, x), fv_lin_fwd(c, &b->attn.v, x),
                                how);
    a = fv_dropout(c, fv_lin_fwd(c, &b->attn.out, a), b->dropout);
    x = fv_norm_add(c, &b->attn_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

/* input_ids (B,T) -> (B,T,D) */
static fv_tensor *encode(fv_ctx *c, const speecht5 *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids");
    if (!ids) return fv_raise(c, FV_EARG, "speecht5: input_ids are missing");
    fv_tensor *x = fv__scaled_positions(c, fv_emb_fwd(c, &m->tokens, ids), m->alpha,
                                        k->max_text_positions, NULL, "tokens");
    x = fv_dropout(c, x, k->positional_dropout);
    x = fv_dropout(c, fv_norm_fwd(c, &m->encoder_norm, x), k->hidden_dropout);
    for (int i = 0; i < k->encoder_layers; i++) {
        fv_tap(c, "hidden", "encoder_hidden_states", x);
        x = encoder_layer(c, m, &m->encoder[i], x, fv_items_get(in, "attention_mask"));
    }
    fv_tap(c, "hidden", "encoder_hidden_states", x);
    return x;
}

/* ---- decoder ---- */

/* What a layer attends to: the text's states, or their keys and values; whether it is guided. */
typedef struct source {
    fv_tensor *memory, *mask;
    fv_kv kv;
    fv__guide *guide; /* NULL: nothing is */
} source;

static fv_tensor *cross(fv_ctx *c, const fv_mha *l, fv_tensor *x, source from)
{
    fv_tensor *q = fv_lin_fwd(c, &l->q, x),
              *k = from.kv.k ? from.kv.k : fv_lin_fwd(c, &l->k, from.memory),
              *v = from.kv.v ? from.kv.v : fv_lin_fwd(c, &l->v, from.memory);
    if (from.guide) fv__guide_add(c, from.guide, q, k, l->n_head);
    fv_attn how = {.n_head = l->n_head,
                   .dropout = l->dropout,
                   .key_mask = from.mask,
                   .role = FV_ATTN_CROSS,
                   .name = l->name};
    return fv_lin_fwd(c, &l->out, fv_attention(c, q, k, v, how));
}

/* x = norm(x + self(x));  x = norm(x + cross(x, memory));  x = norm(x + mlp(x)) */
static fv_tensor *decoder_layer(fv_ctx *c, const fv__decoder_block *b, fv_tensor *x,
                                fv_mha_arg self, source from)
{
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->self, x, self), b->dropout);
    x = fv_norm_add(c, &b->self_norm, NULL, x, a);
    a = fv_dropout(c, cross(c, &b->cross, x, from), b->dropout);
    x = fv_norm_add(c, &b->cross_norm, NULL, x, a);
    return fv_mlp_norm(c, &b->mlp, x, b->dropout, &b->mlp_norm);
}

/* x (B,T,D) -> the same */
static fv_tensor *decode(fv_ctx *c, const speecht5 *m, fv_tensor *x, fv_tensor *mask, source from)
{
    fv_mha_arg self = {.causal = true, .key_mask = mask};
    for (int i = 0; i < m->cfg.decoder_layers; i++) {
        fv_tap(c, "hidden", "decoder_hidden_states", x);
        x = decoder_layer(c, &m->decoder[i], x, self, from);
    }
    fv_tap(c, "hidden", "decoder_hidden_states", x);
    return x;
}

/* ---- forward ---- */

/* Frames that the decoder reads: given, or the last of each step of the labels, moved by one behind
 * zeros; the mask of all frames then counts at these. */
static fv_tensor *decoder_frames(fv_ctx *c, const speecht5 *m, const fv_items *in, fv_tensor **mask)
{
    fv_tensor *x = fv_items_get(in, "decoder_input_values"), *labels = fv_items_get(in, "labels");
    int64_t r = m->cfg.reduction_factor, B = fv_dim(labels, 0), T = fv_dim(labels, 1) / r;
    if (x) return x;
    if (!labels)
        return fv_raise(c, FV_EARG, "speecht5: decoder_input_values or labels are missing");
    if (labels->shape.n != 3 || fv_dim(labels, 1) % r || T < 1)
        return fv_raise(c, FV_ESHAPE, "speecht5: labels %s, expected a multiple of %d frames",
                        fv_desc(labels).s, (int)r);
    if (*mask) {
        *mask = fv_slice(c, fv_reshape(c, *mask, FV_SHAPE(B, T, r)), 2, r - 1, r);
        *mask = fv_reshape(c, *mask, FV_SHAPE(B, T));
    }
    x = fv_mul(c, labels, fv__speech_known(c, labels)); /* padding as 0 */
    x = fv_slice(c, fv_reshape(c, x, FV_SHAPE(B, T, r, -1)), 2, r - 1, r);
    return fv_pad(c, fv_slice(c, fv_reshape(c, x, FV_SHAPE(B, T, -1)), 1, 0, T - 1), 1, 1, 0, 0);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const speecht5 *m = self;
    const config *k = &m->cfg;
    fv_tensor *made = fv_items_get(in, "outputs_before_postnet"),
              *labels = fv_items_get(in, "labels"), *mask = fv_items_get(in, "attention_mask"),
              *target_mask = fv_items_get(in, "decoder_attention_mask");
    if (made && !fv_items_get(in, "input_ids")) {
        fv_items_put(out, "spectrogram",
                     fv__postnet_fwd(c, &m->postnet, fv_cast(c, made, c->dtype)));
        return;
    }
    fv_tensor *frames = decoder_frames(c, m, in, &target_mask), *memory = encode(c, m, in);
    if (!frames || !memory) return;
    int64_t B = fv_dim(memory, 0), T = fv_dim(frames, 1);
    fv__guide guide = {.sigma = k->guided_attention_loss_sigma,
                       .heads = k->guided_attention_loss_num_heads,
                       .mask = mask,
                       .step = k->reduction_factor};
    source from = {.memory = memory, .mask = mask};
    if (labels && k->use_guided_attention_loss) {
        from.guide = &guide;
        fv__guide_open(c, &guide, labels, fv_dim(memory, 1));
    }
    fv_tensor *x = fv__prenet_fwd(c, &m->prenet, frames, fv_items_get(in, "prenet_mask"),
                                  fv_items_get(in, "speaker_embeddings"), NULL);
    x = decode(c, m, x, target_mask, from);
    fv__speech_out y = {.before = fv_reshape(c, fv_lin_fwd(c, &m->frames, x),
                                             FV_SHAPE(B, T * k->reduction_factor, k->num_mel_bins)),
                        .stop = fv_reshape(c, fv_lin_fwd(c, &m->stop, x),
                                           FV_SHAPE(B, T * k->reduction_factor))};
    y.after = fv__postnet_fwd(c, &m->postnet, y.before);
    fv_items_put(out, "encoder_last_hidden_state", memory);
    fv_items_put(out, "spectrogram", y.after);
    fv_items_put(out, "outputs_before_postnet", y.before);
    fv_items_put(out, "stop_logits", y.stop);
    if (labels)
        fv_items_put(out, "loss",
                     fv__speech_loss(c, in, &y, from.guide, k->guided_attention_loss_scale));
}

/* ---- generation: the text once, then step after step, each of r frames ---- */

/* Where a session keeps the speaker: behind mask, keys and values of the source. */
static int speaker_slot(const speecht5 *m) { return 1 + 2 * m->cfg.decoder_layers; }

static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const speecht5 *m = self;
    fv__stacks decoder = {.decoder = m->decoder, .n_decoder = m->cfg.decoder_layers};
    fv__source_begin(c, &decoder, s, encode(c, m, in), fv_items_get(in, "attention_mask"));
    fv_session_save_state(c, s, speaker_slot(m), fv_items_get(in, "speaker_embeddings"));
}

/* decoder_input_values (rows,1,mel), the last frame so far, zeros at first, and perhaps prenet_mask
 * (layers,1,units): outputs_before_postnet (rows,r,mel) and stop_logits (rows,r). */
static void advance(fv_ctx *c, const void *self, fv_session *s, const fv_items *in, fv_items *out)
{
    const speecht5 *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = fv__prenet_fwd(c, &m->prenet, fv_items_get(in, "decoder_input_values"),
                                  fv_items_get(in, "prenet_mask"),
                                  fv_session_state(c, s, speaker_slot(m)),
                                  fv_session_positions(c, s));
    int64_t B = fv_dim(x, 0);
    for (int i = 0; i < k->decoder_layers; i++) {
        const fv__decoder_block *b = &m->decoder[i];
        fv_kv own = fv__own_cache(c, s, i, &b->self);
        x = decoder_layer(c, b, x, (fv_mha_arg){.causal = true, .kv = &own},
                          (source){.mask = fv__source_mask(c, s), .kv = fv__source_cache(c, s, i)});
    }
    fv_items_put(out, "outputs_before_postnet",
                 fv_reshape(c, fv_lin_fwd(c, &m->frames, x),
                            FV_SHAPE(B, k->reduction_factor, k->num_mel_bins)));
    fv_items_put(out, "stop_logits",
                 fv_reshape(c, fv_lin_fwd(c, &m->stop, x), FV_SHAPE(B, k->reduction_factor)));
}

static int64_t longest(const void *self)
{
    return ((const speecht5 *)self)->cfg.max_text_positions;
}
static int64_t context(const void *self)
{
    return ((const speecht5 *)self)->cfg.max_speech_positions;
}

static fv_voice_shape voice(const void *self)
{
    const config *k = &((const speecht5 *)self)->cfg;
    return (fv_voice_shape){.frames = k->reduction_factor,
                            .mels = k->num_mel_bins,
                            .speaker = k->speaker_embedding_dim,
                            .prenet_layers = k->speech_decoder_prenet_layers,
                            .prenet_units = k->speech_decoder_prenet_units,
                            .prenet_dropout = k->speech_decoder_prenet_dropout};
}

const fv_family fv__family_speecht5 = {
    FV__FAMILY_PARTS(speecht5), .type = "speecht5", .longest = longest, .begin = begin,
    .context = context,         .advance = advance, .voice = voice,
};
