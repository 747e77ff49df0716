/* moonshine.c - Moonshine (Jeffries et al. 2024): speech to text, from the samples themselves.
 *
 *     x = gelu(conv3(gelu(conv2(groupnorm(tanh(conv1(samples)))))))     384 samples a frame
 *     encoder: x += attn(norm x), x += mlp(norm x)                      rotary positions
 *     decoder: causal attn, cross-attn, x += W2 (silu(g) * u), [u, g] = W1 norm(x);   logits = y E'
 *
 * Only a part of each head is rotated, in adjacent pairs, and cross-attention is not.  A clip of
 * any length is one sequence: nothing is padded to 30 seconds.  Norms have no bias.
 *
 * Names are those of transformers' MoonshineForConditionalGeneration. Unlike Whisper it reads
 * samples, not a log-mel spectrogram, so the first convolutions are a part of the model and no
 * processor computes features. */
#include <stddef.h>
#include <stdio.h>

#include "model/rope.h"
#include "core/core.h"
#include "model/seq2seq.h"

enum {
    STRIDE = 64 * 3 * 2,
    LEAST = 127 + 64 * (7 - 1) + 64 * 3 * (3 - 1)
}; /* of the convolutions */

typedef struct config {
    int vocab_size, hidden_size, intermediate_size, max_position_embeddings;
    int encoder_layers, encoder_heads, encoder_kv_heads, encoder_act;
    int decoder_layers, decoder_heads, decoder_kv_heads, decoder_act;
    int decoder_start_token_id, eos_token_id, pad_token_id;
    bool attention_bias, tie_word_embeddings;
    float attention_dropout, initializer_range;
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32768, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 288, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 1152, 1 << 18, "width of the feed-forward parts"),
    FV_INT_KEY("encoder_num_hidden_layers", config, encoder_layers, 1, 6, 256,
               "layers of the encoder"),
    FV_INT_KEY("encoder_num_attention_heads", config, encoder_heads, 1, 8, 1024,
               "its attention heads"),
    FV_INT_KEY("encoder_num_key_value_heads", config, encoder_kv_heads, 1, 0, 1024,
               "heads of its keys: as many"),
    FV_CHOICE_KEY("encoder_hidden_act", config, encoder_act, 0, fv_act_words, "its activation"),
    FV_INT_KEY("decoder_num_hidden_layers", config, decoder_layers, 1, 6, 256,
               "layers of the decoder"),
    FV_INT_KEY("decoder_num_attention_heads", config, decoder_heads, 1, 8, 1024,
               "its attention heads"),
    FV_INT_KEY("decoder_num_key_value_heads", config, decoder_kv_heads, 1, 0, 1024,
               "heads of its keys: as many"),
    FV_CHOICE_KEY("decoder_hidden_act", config, decoder_act, 2, fv_act_words,
                  "activation of its gate"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20, "tokens of the longest text"),
    FV_INT(config, decoder_start_token_id, 0, 1, 1 << 24, "what the decoder begins with"),
    FV_INT(config, eos_token_id, 0, 2, 1 << 24, "end of a text"),
    FV_INT(config, pad_token_id, 0, -1, 1 << 24, "padding; not given: eos_token_id"),
    FV_BOOL(config, attention_bias, false, "queries, keys and values have biases"),
    FV_BOOL(config, tie_word_embeddings, true, "the table is the output weight too"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV__ROPE(config, rope),
    FV__ROPE_PARTIAL(config, rope),
    {0},
};

/* The heads' padding is inside transformers' kernels and changes no result; names without a stack's
 * are other names of the decoder's. */
static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "true"},
    {"pad_head_dim_to_multiple_of", NULL},
    {"num_attention_heads", "=decoder_num_attention_heads"},
    {"num_key_value_heads", "=decoder_num_key_value_heads"},
    {"num_hidden_layers", "=decoder_num_hidden_layers"},
    {"hidden_act", "=decoder_hidden_act"},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_values", FV_F32, true},
    {"attention_mask", FV_U8, false},
    {"decoder_input_ids", FV_I32, false},
    {"decoder_attention_mask", FV_U8, false},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"MoonshineForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "MoonshineModel"},
    {"MoonshineModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct moonshine {
    config cfg;
    fv_head_job job;
    fv_conv conv1, conv2, conv3;
    fv_tensor *group_gain, *group_bias; /* (D) */
    fv_emb tokens;
    fv_tensor *out; /* (V,D) */
    fv__stacks stacks;
    fv_rotary encoder_rotary, decoder_rotary;
} moonshine;

/* Heads of encoder and decoder may differ in number and so in width; a share of 0.9 is rotated if
 * the configuration says nothing. */
static fv__rope_opt rope_opt(const config *k, int n_head)
{
    return (fv__rope_opt){.head = k->hidden_size / n_head,
                          .positions = k->max_position_embeddings,
                          .partial = 0.9,
                          .rotates_partly = true};
}

/* The kernels have grouped heads; this family refuses them, as no published model has any to be
 * compared with. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->hidden_size % k->encoder_heads || k->hidden_size % k->decoder_heads)
        return fv_fail(e, FV_EFORMAT,
                       "hidden_size %d is no multiple of the attention heads, %d, %d",
                       k->hidden_size, k->encoder_heads, k->decoder_heads);
    if ((k->encoder_kv_heads && k->encoder_kv_heads != k->encoder_heads) ||
        (k->decoder_kv_heads && k->decoder_kv_heads != k->decoder_heads))
        return fv_fail(e, FV_EMISSING, "grouped heads: num_key_value_heads must be all heads");
    if (k->decoder_start_token_id >= k->vocab_size || k->eos_token_id >= k->vocab_size ||
        k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "a special token is outside the vocabulary of %d",
                       k->vocab_size);
    fv_status st = fv__rope_check(&k->rope, rope_opt(k, k->encoder_heads), e);
    return st ? st : fv__rope_check(&k->rope, rope_opt(k, k->decoder_heads), e);
}

/* ---- parameters ---- */

/* Biases of q, k and v are an option; the last product never has one. */
static void attention_init(fv_params *p, fv_mha *l, const config *k, int n_head, const char *at,
                           const char *name)
{
    fv_mha_init(p, l, k->hidden_size, n_head,
                (fv_mha_opt){.in = {.no_bias = !k->attention_bias, .std = k->initializer_range},
                             .out = {.no_bias = true, .std = k->initializer_range},
                             .names = "q_proj k_proj v_proj o_proj"},
                "%s.%s", at, name);
    l->dropout = k->attention_dropout;
}

/* Layer norms with a gain alone, all of them. */
static void norm_init(fv_params *p, fv_norm *l, const config *k, const char *at, const char *name)
{
    fv_norm_init(p, l, k->hidden_size, (fv_norm_opt){.type = FV_LAYER_NORM_NO_BIAS}, "%s%s", at,
                 name);
}

/* Below `at`, "model.encoder.layers.0". */
static void encoder_init(fv_params *p, fv__encoder_block *b, const config *k, const char *at)
{
    attention_init(p, &b->attn, k, k->encoder_heads, at, "self_attn");
    norm_init(p, &b->attn_norm, k, at, ".input_layernorm");
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->encoder_act),
                             .lin = {.std = k->initializer_range}},
                "%s.mlp", at);
    norm_init(p, &b->mlp_norm, k, at, ".post_attention_layernorm");
}

/* Below `at`, "model.decoder.layers.0". */
static void decoder_init(fv_params *p, fv__decoder_block *b, const config *k, const char *at)
{
    fv_lin_opt lin = {.std = k->initializer_range};
    attention_init(p, &b->self, k, k->decoder_heads, at, "self_attn");
    norm_init(p, &b->self_norm, k, at, ".input_layernorm");
    attention_init(p, &b->cross, k, k->decoder_heads, at, "encoder_attn");
    norm_init(p, &b->cross_norm, k, at, ".post_attention_layernorm");
    /* the rows of the value stand before those of the gate, unlike in fv_mlp's packed form */
    fv_lin_init(p, &b->mlp.up, k->hidden_size, 2 * (int64_t)k->intermediate_size, lin, "%s.mlp.fc1",
                at);
    fv_lin_init(p, &b->mlp.down, k->intermediate_size, k->hidden_size, lin, "%s.mlp.fc2", at);
    b->mlp.act = fv_act_of(k->decoder_act);
    norm_init(p, &b->mlp_norm, k, at, ".final_layernorm");
}

/* Three convolutions without padding: 127 wide with stride 64, 7 with 3, 3 with 2, so 384 samples
 * make a frame and LEAST samples the first. */
static void front_end_init(fv_params *p, moonshine *m, const char *at)
{
    const config *k = &m->cfg;
    int64_t D = k->hidden_size;
    fv_conv_layer_opt o = {.dims = 1, .std = k->initializer_range, .no_bias = true};
    o.conv.stride = 64;
    fv_conv_init(p, &m->conv1, 1, D, 127, o, "%sencoder.conv1", at);
    o.no_bias = false;
    o.conv.stride = 3;
    fv_conv_init(p, &m->conv2, D, 2 * D, 7, o, "%sencoder.conv2", at);
    o.conv.stride = 2;
    fv_conv_init(p, &m->conv3, 2 * D, D, 3, o, "%sencoder.conv3", at);
    m->group_gain = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, FV_SHAPE(D),
                             "%sencoder.groupnorm.weight", at);
    m->group_bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(D),
                             "%sencoder.groupnorm.bias", at);
}

static fv_layer_fn decoder_block;

/* Both stacks are those of model/stacks.h; the decoder's block is this file's, because of its
 * gate. */
static void declare(void *self, const fv_setup *s)
{
    moonshine *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "model.";
    fv__stacks *t = &m->stacks;
    char path[64];
    m->encoder_rotary = fv__rope_rotary(&k->rope, rope_opt(k, k->encoder_heads));
    m->decoder_rotary = fv__rope_rotary(&k->rope, rope_opt(k, k->decoder_heads));
    m->encoder_rotary.adjacent = m->decoder_rotary.adjacent = true;
    front_end_init(p, m, at);
    t->encoder_fn = fv__encoder_pre_norm;
    t->decoder_fn = decoder_block;
    t->n_encoder = k->encoder_layers;
    t->n_decoder = k->decoder_layers;
    t->encoder = fv_params_scratch(p, (size_t)t->n_encoder * sizeof *t->encoder);
    t->decoder = fv_params_scratch(p, (size_t)t->n_decoder * sizeof *t->decoder);
    for (int i = 0; t->encoder && i < t->n_encoder; i++) {
        snprintf(path, sizeof path, "%sencoder.layers.%d", at, i);
        encoder_init(p, &t->encoder[i], k, path);
    }
    norm_init(p, &t->encoder_norm, k, at, "encoder.layer_norm");
    fv_emb_init(p, &m->tokens, k->vocab_size, k->hidden_size, k->initializer_range,
                "%sdecoder.embed_tokens", at);
    m->tokens.skip = k->pad_token_id;
    for (int i = 0; t->decoder && i < t->n_decoder; i++) {
        snprintf(path, sizeof path, "%sdecoder.layers.%d", at, i);
        decoder_init(p, &t->decoder[i], k, path);
    }
    norm_init(p, &t->decoder_norm, k, at, "decoder.norm");
    if (m->job == FV_HEAD_SEQ2SEQ)
        m->out = fv__output(p, m->tokens.table, k->tie_word_embeddings, k->initializer_range,
                            "proj_out.weight");
}

/* Of a bare model the output weight of a file is left unread. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"proj_out.weight", "model.decoder.embed_tokens.weight"},
                                  {NULL, NULL}};
    static const char *const others[] = {"proj_out.weight", NULL};
    const moonshine *m = self;
    return (fv_load_opt){.prefix = "model.",
                         .ties = ties,
                         .ignore = m->job == FV_HEAD_SEQ2SEQ ? NULL : others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    moonshine *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* x += self(norm x);  x += cross(norm x, memory);  x += W2 (act(g) * u), [u, g] = W1 norm(x) */
static fv_tensor *decoder_block(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg cross)
{
    const fv__decoder_block *b = block;
    fv_tensor *h = fv_norm_fwd(c, &b->self_norm, x), *half[2];
    h = fv_norm_add(c, &b->cross_norm, &x, x, fv_mha_fwd(c, &b->self, h, self));
    h = fv_norm_add(c, &b->mlp_norm, &x, x, fv_mha_fwd(c, &b->cross, h, cross));
    h = fv_lin_fwd(c, &b->mlp.up, h);
    if (!fv_split(c, half, h, 2, -1)) return NULL;
    h = fv_mul(c, fv_activate(c, half[1], b->mlp.act), half[0]);
    return fv_add(c, x, fv_lin_fwd(c, &b->mlp.down, h));
}

/* One group: mean and variance of all channels and times of a clip, x (B,D,T). */
static fv_tensor *group_norm(fv_ctx *c, const moonshine *m, fv_tensor *x)
{
    if (!x) return NULL;
    fv_shape s = x->shape, flat = FV_SHAPE(s.d[0], s.d[1] * s.d[2]), row = FV_SHAPE(s.d[1], 1);
    x = fv_reshape(c, fv_layernorm(c, fv_reshape(c, x, flat), NULL, NULL, 1e-5f), s);
    return fv_add(c, fv_mul(c, x, fv_reshape(c, m->group_gain, row)),
                  fv_reshape(c, m->group_bias, row));
}

/* (B,N) samples -> (B,T,D) */
static fv_tensor *front_end(fv_ctx *c, const moonshine *m, fv_tensor *x)
{
    if (!x) return NULL;
    if (x->shape.n != 2 || fv_dim(x, 1) < LEAST)
        return fv_raise(c, FV_ESHAPE,
                        "moonshine: input_values %s, expected (B,samples), %d or more",
                        fv_desc(x).s, (int)LEAST);
    x = fv_reshape(c, fv_cast(c, x, c->dtype), FV_SHAPE(fv_dim(x, 0), 1, fv_dim(x, 1)));
    x = group_norm(c, m, fv_tanh(c, fv_conv_fwd(c, &m->conv1, x)));
    x = fv_gelu(c, fv_conv_fwd(c, &m->conv2, x));
    x = fv_gelu(c, fv_conv_fwd(c, &m->conv3, x));
    return fv_permute(c, x, (int[]){0, 2, 1});
}

/* The mask of samples (B,N) at the first sample of each of T frames, as transformers takes it. */
static fv_tensor *frame_mask(fv_ctx *c, fv_tensor *mask, int64_t T)
{
    if (!mask) return NULL;
    int64_t B = fv_dim(mask, 0);
    mask = fv_reshape(c, fv_slice(c, mask, 1, 0, T * STRIDE), FV_SHAPE(B, T, STRIDE));
    return fv_reshape(c, fv_slice(c, mask, 2, 0, 1), FV_SHAPE(B, T));
}

/* (B,N) samples -> (B,T,D); *mask gets the mask of frames, or NULL without one of samples. */
static fv_tensor *encode(fv_ctx *c, const moonshine *m, const fv_items *in, fv_tensor **mask)
{
    fv_tensor *x = front_end(c, m, fv_items_get(in, "input_values"));
    if (!x) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    *mask = frame_mask(c, fv_items_get(in, "attention_mask"), T);
    fv_mha_arg arg = {.key_mask = *mask};
    arg.rope = fv_rotary_at(c, &m->encoder_rotary, fv_positions(c, B, T, 0), T);
    return fv__encode(c, &m->stacks, x, arg, "encoder_hidden_states");
}

/* What the decoder reads: as given, or labels moved by one, with the start token in front and
 * padding for -100. */
static fv_tensor *target(fv_ctx *c, const moonshine *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"), *labels = fv_items_get(in, "labels");
    if (ids) return ids;
    if (!labels) return fv_raise(c, FV_EARG, "moonshine: decoder_input_ids or labels are missing");
    return fv__shift_right(c, labels, k->decoder_start_token_id,
                           k->pad_token_id < 0 ? k->eos_token_id : k->pad_token_id);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const moonshine *m = self;
    fv_tensor *mask = NULL, *memory = encode(c, m, in, &mask), *ids = target(c, m, in);
    if (!memory || !ids) return;
    fv_items_put(out, "encoder_last_hidden_state", memory);
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1);
    fv_mha_arg arg = {.key_mask = fv_items_get(in, "decoder_attention_mask")};
    arg.rope = fv_rotary_at(c, &m->decoder_rotary, fv_positions(c, B, T, 0), T);
    fv_tensor *x = fv__decode(c, &m->stacks, fv_emb_fwd(c, &m->tokens, ids), arg,
                              (fv_mha_arg){.memory = memory, .key_mask = mask});
    fv__put_decoded(c, in, out, x, m->out, m->job);
}

/* ---- generation ---- */

/* A session keeps the encoder's keys and values of each layer, and its mask. */
static void begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in)
{
    const moonshine *m = self;
    fv_tensor *mask = NULL, *memory = encode(c, m, in, &mask);
    fv__source_begin(c, &m->stacks, s, memory, mask);
}

/* One token of each sequence: ids (B,1) -> logits (B,1,V). */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const moonshine *m = self;
    fv_mha_arg arg = {.rope = fv__rope_step(c, &m->decoder_rotary, s, ids)};
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    return fv__target_scores(c, &m->stacks, s, x, arg, m->out, NULL);
}

/* 0: a bare model generates nothing. */
static int64_t vocabulary(const void *self)
{
    const moonshine *m = self;
    return m->job == FV_HEAD_SEQ2SEQ ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    return ((const moonshine *)self)->cfg.max_position_embeddings;
}

const fv_family fv__family_moonshine = {
    FV__FAMILY_PARTS(moonshine), .type = "moonshine", .begin = begin,
    .vocabulary = vocabulary,    .context = context,  .step = step,
};
