/* transducer.c - the Transformer transducer (Zhang et al. 2020): speech to text, as it is said.
 *
 *     h = encoder(W frames)                 pre-norm layers, rotary positions; a norm behind them
 *     g = label encoder(blank, y_1 .. y_u)  the same, causal, each label seeing label_context back
 *     z[t,u] = O tanh(A h_t + B g_u)        logits of the next label or the blank at (t,u)
 *     loss = -log sum over alignments, and ctc_weight times the CTC loss of C h
 *
 * A stream is encoded in chunks of chunk_size frames: a frame sees its chunk and left_context
 * frames before it, in every layer.  So the look-ahead is a chunk whatever the depth, where a band
 * of the same right context in each layer, the paper's choice, adds up over the layers.  Whole
 * recordings go through without a mask.  Whoever trains gives the mask (attention_mask (B,T,T)),
 * and may mix both, so that one model serves both ways.
 *
 * Rotary positions stand for the paper's relative encoding: both make scores depend on distances
 * alone, so a stream may be of any length, and keys are kept between chunks as they are.
 *
 * Inputs choose what is computed.  Of input_features (B,T,F) the encoder's states, and with "past"
 * (2 layers,rows,D), the keys and values of earlier frames, "present" likewise; of encoder states
 * ("encoder_hidden_states" (B,T,D)) and decoder_input_ids (B,U), the blank first, the logits
 * (B,T,U,V).  Names are our own: there is no published checkpoint format for this model. */
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"
#include "model/part.h"
#include "nn/joint.h"
#include "nn/part.h"

enum { MOST_LOGITS = 1 << 24 }; /* of the grid, kept from forward to backward: 64 MB */

typedef struct config {
    int vocab_size, num_features, hidden_size, intermediate_size, hidden_act, joint_size;
    int encoder_layers, encoder_attention_heads, decoder_layers, decoder_attention_heads;
    int chunk_size, left_context, label_context, pad_token_id;
    float dropout, attention_dropout, ctc_weight, layer_norm_eps, initializer_range, rope_theta;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32, 1 << 24, "tokens, the blank among them"),
    FV_INT(config, num_features, 1, 240, 1 << 14, "numbers of a frame"),
    FV_INT(config, hidden_size, 1, 144, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 576, 1 << 18, "width of the feed-forward parts"),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "activation of the feed-forward parts"),
    FV_INT(config, joint_size, 1, 144, 1 << 16, "width of the joint network"),
    FV_INT(config, encoder_layers, 1, 6, 256, "layers of the audio encoder"),
    FV_INT(config, encoder_attention_heads, 1, 4, 1024, "its attention heads"),
    FV_INT(config, decoder_layers, 1, 2, 256, "layers of the label encoder"),
    FV_INT(config, decoder_attention_heads, 1, 4, 1024, "its attention heads"),
    FV_INT(config, chunk_size, 1, 8, 1 << 16, "frames of a stream that are encoded together"),
    FV_INT(config, left_context, 0, 32, 1 << 16, "frames before a chunk that each layer sees"),
    FV_INT(config, label_context, 1, 4, 1 << 16,
           "labels that each layer of the label encoder sees"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "the blank, and padding of texts"),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, ctc_weight, 0, 0.3, 100, "of the CTC loss beside the transducer's"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    FV_FLOAT(config, initializer_range, 0, 0, 10, "deviation of first values; 0: Xavier"),
    FV_FLOAT(config, rope_theta, 1, 10000, 1e9, "base of the rotary positions"),
    {0},
};

static const fv_input inputs[] = {
    {"input_features", FV_F32, false},
    {"attention_mask", FV_U8, false}, /* (B,T) or (B,T,T) */
    {"position_ids", FV_I32, false},  /* (B,T), of a stream; else 0, 1, .. */
    {"past", FV_F32, false},          /* (2 layers,rows,D), of one stream */
    {"past_lengths", FV_I32, false},  /* (2): rows of past in use, and with this chunk */
    {"input_lengths", FV_I32, false}, /* (B): frames that count in the losses */
    {"encoder_hidden_states", FV_F32, false},
    {"decoder_input_ids", FV_I32, false}, /* (B,U+1) */
    {"labels", FV_I32, false},            /* (B,U), -100 behind the end */
    {"label_lengths", FV_I32, false},     /* (B) */
    {0},
};

static const fv_family_head heads[] = {
    {"TransducerForSpeechRecognition", FV_HEAD_TRANSDUCER, .base = "TransducerEncoder"},
    {"TransducerForCTC", FV_HEAD_CTC, .base = "TransducerEncoder", .encoder_only = true},
    {"TransducerEncoder", .job = FV_HEAD_BASE, .encoder_only = true},
    {0},
};

typedef fv__pre_norm block;

/* A stack of layers with a norm behind it. */
typedef struct stack {
    block *blocks;
    int n;
    fv_norm norm;
    fv_rotary rotary;
} stack;

typedef struct transducer {
    config cfg;
    fv_head_job job;
    fv_lin embed;
    stack encoder, decoder;
    fv_emb labels;
    fv_lin from_encoder, from_decoder, out, ctc;
} transducer;

/* Heads are even, as both stacks rotate their positions. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__heads_check(k->hidden_size, k->encoder_attention_heads, e);
    if (!st) st = fv__heads_check(k->hidden_size, k->decoder_attention_heads, e);
    if (st) return st;
    if (k->hidden_size / k->encoder_attention_heads % 2 ||
        k->hidden_size / k->decoder_attention_heads % 2)
        return fv_fail(e, FV_EFORMAT,
                       "heads of hidden_size %d are of odd width: rotation is of pairs",
                       k->hidden_size);
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return FV_OK;
}

/* ---- parameters ---- */

/* "encoder.layers.N" and "decoder.layers.N": pre-norm, names of our own. */
static void block_init(fv_params *p, block *b, const config *k, int n_head, const char *at, int i)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_lin_opt lin = {.std = k->initializer_range};
    b->dropout = k->dropout;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.layers.%d.attention_norm", at, i);
    fv_mha_init(p, &b->attn, k->hidden_size, n_head, (fv_mha_opt){.in = lin, .out = lin},
                "%s.layers.%d.attention", at, i);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.layers.%d.feed_forward_norm", at, i);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act), .lin = lin},
                "%s.layers.%d.feed_forward", at, i);
}

/* Both stacks are of one kind; they differ in layers, heads and what may be looked at. */
static void stack_init(fv_params *p, stack *s, const config *k, int n, int n_head, const char *at)
{
    s->n = n;
    s->rotary = (fv_rotary){.width = k->hidden_size / n_head, .base = k->rope_theta};
    s->blocks = fv_params_scratch(p, (size_t)n * sizeof *s->blocks);
    for (int i = 0; s->blocks && i < n; i++) block_init(p, &s->blocks[i], k, n_head, at, i);
    fv_norm_init(p, &s->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps}, "%s.norm",
                 at);
}

/* A CTC head is part of every trained model: the transducer's loss may be mixed with it
 * (ctc_weight). */
static void declare(void *self, const fv_setup *s)
{
    transducer *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    int64_t D = k->hidden_size;
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_lin_init(p, &m->embed, k->num_features, D, lin, "encoder.embed");
    stack_init(p, &m->encoder, k, k->encoder_layers, k->encoder_attention_heads, "encoder");
    if (m->job != FV_HEAD_BASE) fv_lin_init(p, &m->ctc, D, k->vocab_size, lin, "ctc");
    if (m->job != FV_HEAD_TRANSDUCER) return;
    fv_emb_init(p, &m->labels, k->vocab_size, D, k->initializer_range, "decoder.embed_tokens");
    stack_init(p, &m->decoder, k, k->decoder_layers, k->decoder_attention_heads, "decoder");
    for (int i = 0; m->decoder.blocks && i < m->decoder.n; i++)
        m->decoder.blocks[i].attn.window = k->label_context;
    fv_lin_init(p, &m->from_encoder, D, k->joint_size, lin, "joint.encoder");
    fv_lin_init(p, &m->from_decoder, D, k->joint_size,
                (fv_lin_opt){.std = lin.std, .no_bias = true}, "joint.decoder");
    fv_lin_init(p, &m->out, k->joint_size, k->vocab_size, lin, "joint.out");
}

/* A transducer's file opens as its CTC model or bare encoder. */
static fv_load_opt load(const void *self)
{
    static const char *const text[] = {"decoder.*", "joint.*", NULL}, *const heads_[] = {
                                                                          "decoder.*", "joint.*",
                                                                          "ctc.*", NULL};
    const transducer *m = self;
    fv_load_opt o = {0};
    if (m->job == FV_HEAD_CTC) o.ignore = text;
    if (m->job == FV_HEAD_BASE) o.ignore = heads_;
    return o;
}

static void stack_pack(fv_params *p, stack *s, fv_dtype dtype)
{
    for (int i = 0; i < s->n; i++) {
        fv_mha_pack(p, &s->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &s->blocks[i].mlp, dtype);
    }
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    transducer *m = self;
    stack_pack(p, &m->encoder, dtype);
    stack_pack(p, &m->decoder, dtype);
    fv_lin_pack(p, &m->embed, dtype);
}

/* ---- the audio encoder ---- */

/* A chunk of one stream: its keys go behind those of "past", and all are attended to.  No gradient;
 * what is kept for the next chunk comes out as "present". */
static fv_tensor *encode_chunk(fv_ctx *c, const transducer *m, fv_tensor *x, fv_rope_arg rope,
                               const fv_items *in, fv_items *out)
{
    const stack *s = &m->encoder;
    fv_tensor *past = fv_items_get(in, "past"), *lens = fv_items_get(in, "past_lengths"),
              *kept[512];
    int64_t rows = fv_dim(past, 1), D = m->cfg.hidden_size;
    if (!lens || past->shape.n != 3 || fv_dim(past, 0) != 2 * (int64_t)s->n ||
        fv_dim(past, 2) != D || fv_len(lens) != 2 || fv_dim(x, 0) != 1)
        return fv_raise(c, FV_ESHAPE,
                        "transducer: past %s, expected (%d,rows,%d), with past_lengths (2) and one "
                        "sequence",
                        fv_desc(past).s, 2 * s->n, m->cfg.hidden_size);
    fv_tensor *at = fv_slice(c, lens, 0, 0, 1), *until = fv_slice(c, lens, 0, 1, 2);
    for (int i = 0; i < s->n; i++) {
        for (int k = 2 * i; k < 2 * i + 2; k++)
            kept[k] = fv_reshape(c, fv_slice(c, past, 0, k, k + 1), FV_SHAPE(1, rows, D));
        fv_kv kv = {.k = kept[2 * i], .v = kept[2 * i + 1], .pos = at, .lens = until};
        x = fv__pre_norm_fwd(c, &s->blocks[i], x, (fv_mha_arg){.rope = rope, .kv = &kv},
                             (fv_mha_arg){0});
    }
    fv_items_put(out, "present", fv_concat(c, kept, 2 * s->n, 0));
    return x;
}

/* input_features (B,T,F) -> (B,T,D) */
static fv_tensor *encode(fv_ctx *c, const transducer *m, const fv_items *in, fv_items *out)
{
    const config *k = &m->cfg;
    const stack *s = &m->encoder;
    fv_tensor *x = fv_items_get(in, "input_features"), *pos = fv_items_get(in, "position_ids");
    if (!x) return NULL;
    if (x->shape.n != 3 || fv_dim(x, 2) != k->num_features)
        return fv_raise(c, FV_ESHAPE, "transducer: input_features %s, expected (B,T,%d)",
                        fv_desc(x).s, k->num_features);
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    x = fv_dropout(c, fv_lin_fwd(c, &m->embed, fv_cast(c, x, c->dtype)), k->dropout);
    fv_rope_arg rope = fv_rotary_at(c, &s->rotary, pos ? pos : fv_positions(c, B, T, 0), T);
    if (fv_items_get(in, "past")) {
        x = encode_chunk(c, m, x, rope, in, out);
    } else {
        fv__layers_arg how = {.self = fv_masked(c, fv_items_get(in, "attention_mask"))};
        how.self.rope = rope;
        x = fv__layers_run(c, fv__pre_norm_fwd, s->blocks, sizeof *s->blocks, s->n, x, how,
                           "encoder_hidden_states");
    }
    x = fv_norm_fwd(c, &s->norm, x);
    fv_tap(c, "hidden", "encoder_hidden_states", x);
    return x;
}

/* ---- the label encoder and the joint network ---- */

/* ids (B,U), the blank first -> (B,U,D) */
static fv_tensor *encode_labels(fv_ctx *c, const transducer *m, fv_tensor *ids)
{
    const stack *s = &m->decoder;
    if (!ids) return NULL;
    if (ids->shape.n != 2)
        return fv_raise(c, FV_ESHAPE, "transducer: decoder_input_ids %s, expected (B,U)",
                        fv_desc(ids).s);
    int64_t B = fv_dim(ids, 0), U = fv_dim(ids, 1);
    fv_tensor *x = fv_dropout(c, fv_emb_fwd(c, &m->labels, ids), m->cfg.dropout);
    fv__layers_arg how = {.self = {.causal = true}};
    how.self.rope = fv_rotary_at(c, &s->rotary, fv_positions(c, B, U, 0), U);
    x = fv__layers_run(c, fv__pre_norm_fwd, s->blocks, sizeof *s->blocks, s->n, x, how,
                       "decoder_hidden_states");
    x = fv_norm_fwd(c, &s->norm, x);
    fv_tap(c, "hidden", "decoder_hidden_states", x);
    return x;
}

/* h (B,T,J), g (B,U,J) -> (B,T,U,V) */
static fv_tensor *join(fv_ctx *c, const transducer *m, fv_tensor *h, fv_tensor *g)
{
    int64_t J = m->cfg.joint_size;
    if (!h || !g) return NULL;
    h = fv_reshape(c, h, FV_SHAPE(fv_dim(h, 0), fv_dim(h, 1), 1, J));
    g = fv_reshape(c, g, FV_SHAPE(fv_dim(g, 0), 1, fv_dim(g, 1), J));
    return fv_lin_fwd(c, &m->out, fv_tanh(c, fv_add(c, h, g)));
}

/* ---- forward ---- */

/* Frames of a slice whose logits are MOST_LOGITS at most; 0: all of them are, and stay. */
static int64_t slice_frames(const fv_ctx *c, const transducer *m, const fv_tensor *h,
                            const fv_tensor *g)
{
    int64_t of_frame = fv_dim(g, 0) * fv_dim(g, 1) * m->cfg.vocab_size;
    if (!c->train || !h || !g || of_frame * fv_dim(h, 1) <= MOST_LOGITS) return 0;
    return of_frame < MOST_LOGITS ? MOST_LOGITS / of_frame : 1;
}

/* Logits of the joint network are (B,T,U+1,V): frame t and u labels so far.  Where they are many, a
 * model that trains has none of them but in slices of frames. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const transducer *m = self;
    const config *k = &m->cfg;
    fv_tensor *h = encode(c, m, in, out), *ids = fv_items_get(in, "decoder_input_ids");
    fv_tensor *labels = fv_items_get(in, "labels"), *tlen = fv_items_get(in, "input_lengths"),
              *ulen = fv_items_get(in, "label_lengths"), *logits = NULL, *loss = NULL;
    fv_items_put(out, m->job == FV_HEAD_BASE ? "last_hidden_state" : "encoder_last_hidden_state",
                 h);
    if (m->job == FV_HEAD_BASE) return;
    fv_tensor *frames = h ? fv_lin_fwd(c, &m->ctc, h) : NULL;
    fv_items_put(out, m->job == FV_HEAD_CTC ? "logits" : "ctc_logits", frames);
    if (m->job == FV_HEAD_TRANSDUCER && ids) {
        if (!h) h = fv_items_get(in, "encoder_hidden_states");
        fv_tensor *g = encode_labels(c, m, ids);
        h = h ? fv_lin_fwd(c, &m->from_encoder, fv_cast(c, h, c->dtype)) : NULL;
        g = g ? fv_lin_fwd(c, &m->from_decoder, g) : NULL;
        int64_t slice = labels ? slice_frames(c, m, h, g) : 0;
        if (slice)
            loss = fv__joint_loss(c, &m->out, h, g, labels, tlen, ulen, k->pad_token_id, slice);
        else
            fv_items_put(out, "logits", logits = join(c, m, h, g));
    }
    if (!labels || !tlen || !ulen) return;
    if (logits) loss = fv_rnnt_loss(c, logits, labels, tlen, ulen, k->pad_token_id);
    if (loss) loss = fv_sum_all(c, loss);
    if (frames && (m->job == FV_HEAD_CTC || k->ctc_weight > 0)) {
        fv_tensor *ctc = fv_sum_all(c, fv_ctc_loss(c, frames, labels, tlen, ulen, k->pad_token_id));
        loss = loss ? fv_add(c, loss, fv_scale(c, ctc, k->ctc_weight)) : ctc;
    }
    fv_items_put(out, "loss", loss ? fv__per_label(c, loss, in) : NULL);
}

/* A label depends on label_context - 1 others in each layer. */
static fv_stream_shape stream(const void *self)
{
    const transducer *m = self;
    const config *k = &m->cfg;
    bool labels = m->job == FV_HEAD_TRANSDUCER;
    return (fv_stream_shape){.chunk = k->chunk_size,
                             .left = k->left_context,
                             .layers = k->encoder_layers,
                             .width = k->hidden_size,
                             .labels = labels ? k->decoder_layers * (k->label_context - 1) + 1 : 0};
}

const fv_family fv__family_transducer = {
    FV__FAMILY_PLAIN(transducer),
    .type = "transducer",
    .stream = stream,
};
