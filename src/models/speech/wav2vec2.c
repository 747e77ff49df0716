/* wav2vec2.c - wav2vec 2.0: speech to text by frames, from the samples themselves.
 *
 *     x = convolutions(samples)               seven of them: a frame each 320 samples, 400 long
 *     x = W norm(x);   x += gelu(conv(x))     a grouped convolution of 128 frames tells positions
 *     layers as BERT's (norms behind each part), or, do_stable_layer_norm, with norms in front
 *     logits = head(x), each frame's token or the blank
 *
 * The first convolution has a norm of each channel over time (feat_extract_norm "group"), or all of
 * them have a layer norm ("layer").  The weight of the convolution of positions is kept as
 * direction v and length g, w[k] = g[k] v[k] / |v[k]| for each of its taps.  Padding is the blank.
 *
 * Paper: Baevski et al. 2020 (arXiv:2006.11477).  Names are those of transformers' Wav2Vec2ForCTC;
 * weight_g and weight_v of older files are read.  Unlike Whisper and Moonshine there is no decoder:
 * a token has the frame it was heard at.  Samples behind the end of a clip of a batch are masked as
 * there: frames of them are 0 before positions, and are not attended to. */
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"
#include "model/seq2seq.h"

enum { MOST_CONVS = 16 };

typedef struct config {
    int vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int hidden_act, feat_extract_norm, feat_extract_activation, pad_token_id;
    int num_conv_pos_embeddings, num_conv_pos_embedding_groups;
    fv_int_list conv_dim, conv_stride, conv_kernel;
    bool conv_bias, do_stable_layer_norm, add_adapter;
    float hidden_dropout, activation_dropout, attention_dropout, feat_proj_dropout, final_dropout;
    float initializer_range, layer_norm_eps, mask_time_prob, mask_feature_prob;
} config;

static const char *const norms[] = {"group", "layer", NULL};

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32, 1 << 24, "tokens, the blank among them"),
    FV_INT(config, hidden_size, 1, 768, 1 << 16, "model width"),
    FV_INT(config, num_hidden_layers, 1, 12, 256, "layers"),
    FV_INT(config, num_attention_heads, 1, 12, 1024, "attention heads"),
    FV_INT(config, intermediate_size, 1, 3072, 1 << 18, "width of the feed-forward parts"),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "activation of the feed-forward parts"),
    FV_CHOICE(config, feat_extract_norm, 0, norms,
              "of the first convolution over time, or of each over its channels"),
    FV_CHOICE(config, feat_extract_activation, 0, fv_act_words, "behind each convolution"),
    FV_INTS(config, conv_dim, 1, "512 512 512 512 512 512 512", 1 << 14, "channels of each"),
    FV_INTS(config, conv_stride, 1, "5 2 2 2 2 2 2", 1 << 10, "strides of the convolutions"),
    FV_INTS(config, conv_kernel, 1, "10 3 3 3 3 2 2", 1 << 10, "their lengths"),
    FV_BOOL(config, conv_bias, false, "they have biases"),
    FV_INT(config, num_conv_pos_embeddings, 1, 128, 1 << 14,
           "frames of the convolution that tells positions"),
    FV_INT(config, num_conv_pos_embedding_groups, 1, 16, 1 << 14, "its groups of channels"),
    FV_BOOL(config, do_stable_layer_norm, false, "norms stand before each part of a layer"),
    FV_BOOL(config, add_adapter, false, "convolutions behind the layers: not here"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "the blank"),
    FV_FLOAT(config, hidden_dropout, 0, 0.1, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, activation_dropout, 0, 0.1, 0.99, "inside the feed-forward parts"),
    FV_FLOAT(config, attention_dropout, 0, 0.1, 0.99, "on the attention weights"),
    FV_FLOAT(config, feat_proj_dropout, 0, 0, 0.99, "on what enters the layers"),
    FV_FLOAT(config, final_dropout, 0, 0.1, 0.99, "before the head"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10, "deviation of first values; 0: Xavier"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    FV_FLOAT(config, mask_time_prob, 0, 0.05, 1, "a file with it has a vector for masked frames"),
    FV_FLOAT(config, mask_feature_prob, 0, 0, 1, "likewise"),
    {0},
};

/* Of pre-training, of masks in training, which are the objective's here, and of heads that are not
 * there. */
static const fv_key_rule rules[] = {
    {"ctc_loss_reduction", NULL},
    {"ctc_zero_infinity", NULL},
    {"layerdrop", NULL},
    {"apply_spec_augment", NULL},
    {"mask_time_length", NULL},
    {"mask_time_min_masks", NULL},
    {"mask_feature_length", NULL},
    {"mask_feature_min_masks", NULL},
    {"num_feat_extract_layers", NULL},
    {"feat_quantizer_dropout", NULL},
    {"num_codevectors_per_group", NULL},
    {"num_codevector_groups", NULL},
    {"contrastive_logits_temperature", NULL},
    {"num_negatives", NULL},
    {"codevector_dim", NULL},
    {"proj_codevector_dim", NULL},
    {"diversity_loss_weight", NULL},
    {"num_adapter_layers", NULL},
    {"adapter_kernel_size", NULL},
    {"adapter_stride", NULL},
    {"adapter_attn_dim", "null"},
    {"output_hidden_size", NULL},
    {"use_weighted_layer_sum", "false"},
    {"classifier_proj_size", NULL},
    {"tdnn_dim", NULL},
    {"tdnn_kernel", NULL},
    {"tdnn_dilation", NULL},
    {"xvector_output_dim", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_values", FV_F32, true},
    {"attention_mask", FV_U8, false},
    {"input_lengths", FV_I32, false}, /* samples; the mask says the same */
    {"labels", FV_I32, false},        /* (B,U), -100 behind the end */
    {"label_lengths", FV_I32, false}, /* (B) */
    {0},
};

static const fv_family_head heads[] = {
    {"Wav2Vec2ForCTC", FV_HEAD_CTC, .base = "Wav2Vec2Model"},
    {"Wav2Vec2Model", .job = FV_HEAD_BASE},
    {0},
};

typedef struct wav2vec2 {
    config cfg;
    fv_head_job job;
    fv_conv convs[MOST_CONVS];
    fv_norm conv_norms[MOST_CONVS];
    fv_norm norm; /* of what the convolutions give */
    fv_lin projection, head;
    fv_tensor *length, *direction, *bias; /* (1,1,K), (D,D/groups,K), (D) */
    fv__stacks stacks;                    /* an encoder alone */
    fv_norm stack_norm; /* before the layers; behind them where norms stand before each part */
} wav2vec2;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    int n = k->conv_dim.n;
    fv_status st = fv__heads_check(k->hidden_size, k->num_attention_heads, e);
    if (st) return st;
    if (n < 1 || n > MOST_CONVS || k->conv_stride.n != n || k->conv_kernel.n != n)
        return fv_fail(e, FV_EFORMAT,
                       "conv_dim, conv_stride and conv_kernel have %d, %d and %d numbers: expected "
                       "as many of each, 1 to %d",
                       n, k->conv_stride.n, k->conv_kernel.n, (int)MOST_CONVS);
    if (k->hidden_size % k->num_conv_pos_embedding_groups)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of %d groups", k->hidden_size,
                       k->num_conv_pos_embedding_groups);
    if (k->add_adapter) return fv_fail(e, FV_EMISSING, "add_adapter: only false is supported");
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return FV_OK;
}

/* ---- parameters ---- */

static void declare_convs(wav2vec2 *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    for (int i = 0; i < k->conv_dim.n; i++) {
        fv_conv_layer_opt o = {.dims = 1, .no_bias = !k->conv_bias, .std = k->initializer_range};
        o.conv.stride = k->conv_stride.at[i];
        fv_conv_init(p, &m->convs[i], i ? k->conv_dim.at[i - 1] : 1, k->conv_dim.at[i],
                     k->conv_kernel.at[i], o, "%sfeature_extractor.conv_layers.%d.conv", at, i);
        if (k->feat_extract_norm || !i)
            fv_norm_init(p, &m->conv_norms[i], k->conv_dim.at[i], (fv_norm_opt){0},
                         "%sfeature_extractor.conv_layers.%d.layer_norm", at, i);
    }
}

static void block_init(fv_params *p, fv__encoder_block *b, const config *k, const char *at, int i)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = lin, .out = lin}, "%sencoder.layers.%d.attention", at, i);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%sencoder.layers.%d.layer_norm", at, i);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = lin,
                             .names = "intermediate_dense output_dense"},
                "%sencoder.layers.%d.feed_forward", at, i);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%sencoder.layers.%d.final_layer_norm", at,
                 i);
    b->attn.dropout = k->attention_dropout;
    b->mlp.dropout = k->activation_dropout;
    b->dropout = k->hidden_dropout;
}

static void declare_positions(wav2vec2 *m, fv_params *p, const char *at)
{
    const config *k = &m->cfg;
    int64_t D = k->hidden_size, K = k->num_conv_pos_embeddings;
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = k->initializer_range};
    m->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(D),
                       "%sencoder.pos_conv_embed.conv.bias", at);
    m->length = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, FV_SHAPE(1, 1, K),
                         "%sencoder.pos_conv_embed.conv.parametrizations.weight.original0", at);
    m->direction = fv_param(p, normal, FV_SHAPE(D, D / k->num_conv_pos_embedding_groups, K),
                            "%sencoder.pos_conv_embed.conv.parametrizations.weight.original1", at);
}

static void declare(void *self, const fv_setup *s)
{
    wav2vec2 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "wav2vec2.";
    int64_t C = k->conv_dim.at[k->conv_dim.n - 1], D = k->hidden_size;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_lin_opt lin = {.std = k->initializer_range};
    fv__stacks *t = &m->stacks;
    declare_convs(m, p, at);
    fv_norm_init(p, &m->norm, C, norm, "%sfeature_projection.layer_norm", at);
    fv_lin_init(p, &m->projection, C, D, lin, "%sfeature_projection.projection", at);
    declare_positions(m, p, at);
    /* what stands for a masked frame in pre-training: kept, so that it is saved again */
    if ((k->mask_time_prob > 0 || k->mask_feature_prob > 0) &&
        fv__file_has(s, "wav2vec2.", "masked_spec_embed"))
        fv_param(p, (fv_init){.kind = FV_INIT_NORMAL, .scale = k->initializer_range}, FV_SHAPE(D),
                 "%smasked_spec_embed", at);
    t->encoder_fn = k->do_stable_layer_norm ? fv__encoder_pre_norm : fv__encoder_post_norm;
    t->n_encoder = k->num_hidden_layers;
    t->encoder = fv_params_scratch(p, (size_t)t->n_encoder * sizeof *t->encoder);
    for (int i = 0; t->encoder && i < t->n_encoder; i++) block_init(p, &t->encoder[i], k, at, i);
    fv_norm_init(p, &m->stack_norm, D, norm, "%sencoder.layer_norm", at);
    if (m->job == FV_HEAD_CTC) fv_lin_init(p, &m->head, D, k->vocab_size, lin, "lm_head");
}

static fv_load_opt load(const void *self)
{
    static const fv_tie endings[] = {{".parametrizations.weight.original0", ".weight_g"},
                                     {".parametrizations.weight.original1", ".weight_v"},
                                     {NULL, NULL}};
    /* heads of pre-training, and the CTC head where the bare model is opened */
    static const char *const others[] = {"quantizer.*", "project_q.*", "project_hid.*", "lm_head.*",
                                         NULL};
    const wav2vec2 *m = self;
    return (fv_load_opt){.prefix = "wav2vec2.",
                         .endings = endings,
                         .ignore = m->job == FV_HEAD_CTC ? NULL : others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    wav2vec2 *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
}

/* ---- the convolutions ---- */

/* Samples of a frame, and from one to the next. */
static void field_of(const config *k, int64_t *field, int64_t *stride)
{
    *field = *stride = 1;
    for (int i = 0; i < k->conv_kernel.n; i++) {
        *field += (k->conv_kernel.at[i] - 1) * *stride;
        *stride *= k->conv_stride.at[i];
    }
}

/* x (B,C,T): each channel over time where there is a norm of the first alone, else its channels. */
static fv_tensor *conv_norm(fv_ctx *c, const wav2vec2 *m, int i, fv_tensor *x)
{
    const fv_norm *n = &m->conv_norms[i];
    if (!n->gain || !x) return x;
    if (m->cfg.feat_extract_norm) {
        x = fv_norm_fwd(c, n, fv_permute(c, x, (int[]){0, 2, 1}));
        return fv_permute(c, x, (int[]){0, 2, 1});
    }
    fv_shape row = FV_SHAPE(fv_dim(x, 1), 1);
    x = fv_layernorm(c, x, NULL, NULL, 1e-5f);
    return fv_add(c, fv_mul(c, x, fv_reshape(c, n->gain, row)), fv_reshape(c, n->bias, row));
}

/* (B,N) samples -> (B,T,C) */
static fv_tensor *front_end(fv_ctx *c, const wav2vec2 *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    int64_t field, stride;
    field_of(k, &field, &stride);
    if (!x) return NULL;
    if (x->shape.n != 2 || fv_dim(x, 1) < field)
        return fv_raise(c, FV_ESHAPE,
                        "wav2vec2: input_values %s, expected (B,samples), %lld or more",
                        fv_desc(x).s, (long long)field);
    x = fv_reshape(c, fv_cast(c, x, c->dtype), FV_SHAPE(fv_dim(x, 0), 1, fv_dim(x, 1)));
    for (int i = 0; i < k->conv_dim.n; i++)
        x = fv_activate(c, conv_norm(c, m, i, fv_conv_fwd(c, &m->convs[i], x)),
                        fv_act_of(k->feat_extract_activation));
    return fv_permute(c, x, (int[]){0, 2, 1});
}

/* The mask of samples (B,N) at the last sample of each of T frames: a frame counts where all its
 * samples do, which is how many the convolutions make of that many samples. */
static fv_tensor *frame_mask(fv_ctx *c, const wav2vec2 *m, fv_tensor *mask, int64_t T)
{
    int64_t field, stride, B = fv_dim(mask, 0);
    field_of(&m->cfg, &field, &stride);
    if (!mask) return NULL;
    /* groups of `stride` samples, the last of which is the last of a frame */
    mask = fv_slice(c, mask, 1, field - stride, field - stride + T * stride);
    mask = fv_slice(c, fv_reshape(c, mask, FV_SHAPE(B, T, stride)), 2, stride - 1, stride);
    return fv_reshape(c, mask, FV_SHAPE(B, T));
}

/* ---- positions ---- */

/* x (B,T,D) -> the same: gelu of a convolution around each frame.  An even number of taps gives one
 * frame too many, at the end. */
static fv_tensor *positions(fv_ctx *c, const wav2vec2 *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    int64_t T = fv_dim(x, 1), K = k->num_conv_pos_embeddings;
    fv_tensor *v = fv_reshape(c, m->direction, FV_SHAPE(-1, K));
    fv_tensor *scale = fv_rsqrt(c, fv_sum(c, fv_square(c, v), 0));
    scale = fv_mul(c, scale, fv_reshape(c, m->length, FV_SHAPE(K)));
    fv_tensor *w = fv_reshape(c, fv_mul(c, v, scale), m->direction->shape);
    fv_conv_opt how = {.pad = K / 2, .groups = k->num_conv_pos_embedding_groups};
    x = fv_conv1d(c, fv_permute(c, x, (int[]){0, 2, 1}), w, m->bias, how);
    x = fv_permute(c, fv_slice(c, x, 2, 0, T), (int[]){0, 2, 1});
    return fv_activate(c, x, fv_act_of(k->feat_extract_activation));
}

/* ---- forward ---- */

static fv_tensor *encode(fv_ctx *c, const wav2vec2 *m, const fv_items *in, fv_items *out,
                         fv_tensor **mask)
{
    const config *k = &m->cfg;
    fv_tensor *x = front_end(c, m, fv_items_get(in, "input_values"));
    if (!x) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    *mask = frame_mask(c, m, fv_items_get(in, "attention_mask"), T);
    x = fv_norm_fwd(c, &m->norm, x);
    if (m->job == FV_HEAD_BASE) fv_items_put(out, "extract_features", x);
    x = fv_dropout(c, fv_lin_fwd(c, &m->projection, x), k->feat_proj_dropout);
    if (*mask) x = fv_masked_fill(c, x, fv_reshape(c, *mask, FV_SHAPE(B, T, 1)), 0);
    x = fv_add(c, x, positions(c, m, x));
    if (!k->do_stable_layer_norm) x = fv_norm_fwd(c, &m->stack_norm, x);
    x = fv_dropout(c, x, k->hidden_dropout);
    x = fv__encode(c, &m->stacks, x, (fv_mha_arg){.key_mask = *mask}, "hidden_states");
    return k->do_stable_layer_norm ? fv_norm_fwd(c, &m->stack_norm, x) : x;
}

/* I32 (B): frames of each row.  Sums of the mask so far, with 0 before them, are greatest first at
 * the number of frames. */
static fv_tensor *lengths(fv_ctx *c, fv_tensor *mask, int64_t B, int64_t T)
{
    fv_tensor *ones = fv_full(c, FV_SHAPE(B, T), 1);
    if (mask) ones = fv_masked_fill(c, ones, mask, 0);
    fv_tensor *both[] = {fv_zeros(c, FV_SHAPE(B, 1)), fv_cumsum(c, ones, 1)};
    return fv_argmax(c, fv_concat(c, both, 2, 1), 1);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const wav2vec2 *m = self;
    fv_tensor *mask = NULL, *x = encode(c, m, in, out, &mask), *labels = fv_items_get(in, "labels"),
              *ulen = fv_items_get(in, "label_lengths");
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        return;
    }
    fv_tensor *logits = fv_lin_fwd(c, &m->head, fv_dropout(c, x, m->cfg.final_dropout));
    fv_items_put(out, "logits", logits);
    if (!logits || !labels || !ulen) return;
    fv_tensor *tlen = lengths(c, mask, fv_dim(logits, 0), fv_dim(logits, 1));
    fv_tensor *loss = fv_ctc_loss(c, logits, labels, tlen, ulen, m->cfg.pad_token_id);
    fv_items_put(out, "loss", fv__per_label(c, fv_sum_all(c, loss), in));
}

const fv_family fv__family_wav2vec2 = {
    FV__FAMILY_PARTS(wav2vec2),
    .type = "wav2vec2",
};
