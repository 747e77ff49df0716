/* test_ops_layers.c - whole layers through the op table: gradients by differences, threads, memory,
 * every dtype.
 *
 * The table knows inputs, not parameters.  So each layer is put together by hand from one long
 * input that holds all of its weights, and the gradient of every weight is checked with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fovea/author/nn.h"
#include "helper/layer.h"
#include "helper/optable.h"

enum { D = 6, HIDDEN = 9, HEADS = 2 };

/* ---- weights, one after the other ---- */

typedef struct bag {
    fv_ctx *c;
    fv_tensor *all;
    int64_t at;
} bag;

static fv_tensor *take(bag *b, fv_shape s)
{
    int64_t n = fv_shape_len(s);
    fv_tensor *part = fv_slice(b->c, b->all, 0, b->at, b->at + n);
    b->at += n;
    return fv_reshape(b->c, part, s);
}

static fv_lin lin(bag *b, int64_t in, int64_t out)
{
    fv_tensor *w = take(b, FV_SHAPE(out, in));
    return (fv_lin){.w = w, .b = take(b, FV_SHAPE(out))};
}

/* Gains around 1, as they are in life. */
static fv_norm norm(bag *b, bool rms)
{
    fv_tensor *gain = fv_affine(b->c, take(b, FV_SHAPE(D)), 1, 1);
    return (
        fv_norm){.gain = gain, .bias = rms ? NULL : take(b, FV_SHAPE(D)), .eps = 1e-3f, .rms = rms};
}

static fv_mha mha(bag *b, int64_t kv_heads, int64_t head, float dropout)
{
    fv_mha l = {
        .n_head = HEADS, .n_kv_head = kv_heads, .head = head, .dropout = dropout, .name = "attn"};
    l.q = lin(b, D, HEADS * head);
    l.k = lin(b, D, kv_heads * head);
    l.v = lin(b, D, kv_heads * head);
    l.out = lin(b, HEADS * head, D);
    return l;
}

static fv_mlp mlp(bag *b, fv_act act, bool gated, float dropout)
{
    fv_mlp l = {.act = act, .dropout = dropout};
    l.up = lin(b, D, HIDDEN);
    if (gated) l.gate = lin(b, D, HIDDEN);
    l.down = lin(b, HIDDEN, D);
    return l;
}

#define LIN(in, out) ((in) * (out) + (out))
#define MHA(kv, head) (LIN(D, HEADS * (head)) + 2 * LIN(D, (kv) * (head)) + LIN(HEADS * (head), D))
#define MLP (LIN(D, HIDDEN) + LIN(HIDDEN, D))
#define GATED (MLP + LIN(D, HIDDEN))
#define NORM (2 * D)

/* ---- layers; in[0] is x, in[1] the weights, in[2] the memory ---- */

static const uint8_t keep[] = {1, 1, 1, 1, 1, 1, 1, 0}, keep_memory[] = {1, 1, 1, 1, 1, 0};

static fv_tensor *encoder(fv_ctx *c, fv_tensor *const *in, bool pre_norm, float dropout)
{
    bag b = {c, in[1], 0};
    fv_encoder_layer l = {.pre_norm = pre_norm, .dropout = dropout};
    l.self = mha(&b, HEADS, 3, dropout);
    l.mlp = mlp(&b, FV_GELU, false, dropout);
    l.self_norm = norm(&b, false);
    l.mlp_norm = norm(&b, false);
    return fv_encoder_layer_fwd(c, &l, in[0],
                                (fv_mha_arg){.key_mask = fv_bytes(c, keep, FV_SHAPE(2, 4))});
}

static fv_tensor *encoder_post(fv_ctx *c, fv_tensor *const *in) { return encoder(c, in, false, 0); }
static fv_tensor *encoder_pre(fv_ctx *c, fv_tensor *const *in) { return encoder(c, in, true, 0); }
static fv_tensor *encoder_dropout(fv_ctx *c, fv_tensor *const *in)
{
    return encoder(c, in, true, 0.25f);
}

static fv_tensor *decoder(fv_ctx *c, fv_tensor *const *in, bool pre_norm, float dropout)
{
    bag b = {c, in[1], 0};
    fv_decoder_layer l = {.pre_norm = pre_norm, .dropout = dropout};
    l.self = mha(&b, HEADS, 3, dropout);
    l.cross = mha(&b, HEADS, 3, dropout);
    l.mlp = mlp(&b, FV_SILU, false, dropout);
    l.self_norm = norm(&b, false);
    l.cross_norm = norm(&b, false);
    l.mlp_norm = norm(&b, false);
    fv_mha_arg cross = {.memory = in[2], .key_mask = fv_bytes(c, keep_memory, FV_SHAPE(2, 3))};
    if (!in[2]) return NULL; /* without a memory this would be self-attention */
    return fv_decoder_layer_fwd(c, &l, in[0], (fv_mha_arg){.causal = true}, cross);
}

static fv_tensor *decoder_post(fv_ctx *c, fv_tensor *const *in) { return decoder(c, in, false, 0); }
static fv_tensor *decoder_pre(fv_ctx *c, fv_tensor *const *in) { return decoder(c, in, true, 0); }
static fv_tensor *decoder_dropout(fv_ctx *c, fv_tensor *const *in)
{
    return decoder(c, in, false, 0.25f);
}

/* Grouped heads, rotary positions, RMS norm, a gate: a layer of Llama. */
static fv_tensor *causal_rotary(fv_ctx *c, fv_tensor *const *in)
{
    bag b = {c, in[1], 0};
    fv_encoder_layer l = {.pre_norm = true};
    l.self = mha(&b, 1, 4, 0);
    l.mlp = mlp(&b, FV_SILU, true, 0);
    l.self_norm = norm(&b, true);
    l.mlp_norm = norm(&b, true);
    fv_rope_arg rope = fv_rotary_at(c, &(fv_rotary){.width = 4, .adjacent = true},
                                    fv_positions(c, 2, 4, 3), 8);
    return fv_encoder_layer_fwd(c, &l, in[0], (fv_mha_arg){.causal = true, .rope = rope});
}

/* T5's bias by distance, whose table is an input too. */
static fv_tensor *biased(fv_ctx *c, fv_tensor *const *in)
{
    bag b = {c, in[1], 0};
    fv_mha l = mha(&b, HEADS, 3, 0);
    fv_rel_bias bias = {.table = in[2], .max_distance = 3};
    fv_mha_arg arg = {0};
    if (!in[2]) return NULL; /* no table would mean no bias */
    arg.rel = fv_rel_bias_fwd(c, &bias, &arg.rel_zero);
    return fv_mha_fwd(c, &l, in[0], arg);
}

/* Transformer-XL's attention over two earlier states and x. */
static fv_tensor *relative_dropout(fv_ctx *c, fv_tensor *const *in, float dropout, float weights)
{
    bag b = {c, in[1], 0};
    fv_rel_mha l = {.att = mha(&b, HEADS, 3, 0), .dropout = dropout, .dropconnect = weights};
    l.r = lin(&b, D, HEADS * 3);
    l.u = take(&b, FV_SHAPE(HEADS, 3));
    l.v = take(&b, FV_SHAPE(HEADS, 3));
    fv_tensor *all = fv_concat(c, (fv_tensor *[]){in[2], in[0]}, 2, 1);
    if (!all) return NULL;
    return fv_rel_mha_fwd(c, &l, in[0], in[3], (fv_mha_arg){.memory = all, .causal = true});
}

static fv_tensor *relative(fv_ctx *c, fv_tensor *const *in)
{
    return relative_dropout(c, in, 0, 0);
}
static fv_tensor *relative_dropped(fv_ctx *c, fv_tensor *const *in)
{
    return relative_dropout(c, in, 0.3f, 0);
}
static fv_tensor *relative_connect(fv_ctx *c, fv_tensor *const *in)
{
    return relative_dropout(c, in, 0, 0.3f);
}

#define SMALL .low = -0.5f, .high = 0.5f

#define RELATIVE                                                                                   \
    {                                                                                              \
        {FV_SHAPE(2, 4, D)}, {FV_SHAPE(MHA(2, 3) + LIN(D, 6) + 12), SMALL}, {FV_SHAPE(2, 2, D)},   \
            {FV_SHAPE(6, D)},                                                                      \
    }

static const op_case cases[] = {
    {.name = "encoder layer, norm behind",
     .build = encoder_post,
     .in = {{FV_SHAPE(2, 4, D)}, {FV_SHAPE(MHA(2, 3) + MLP + 2 * NORM), SMALL}},
     .loose = 8,
     .bad = {FV_SHAPE(2, 4, D + 1)}},
    {.name = "encoder layer, norm in front",
     .build = encoder_pre,
     .in = {{FV_SHAPE(2, 4, D)}, {FV_SHAPE(MHA(2, 3) + MLP + 2 * NORM), SMALL}},
     .loose = 8},
    {.name = "encoder layer with dropout",
     .build = encoder_dropout,
     .in = {{FV_SHAPE(2, 4, D)}, {FV_SHAPE(MHA(2, 3) + MLP + 2 * NORM), SMALL}},
     .loose = 8,
     .flags = OP_TRAIN},
    {.name = "decoder layer, norm behind",
     .build = decoder_post,
     .in = {{FV_SHAPE(2, 4, D)},
            {FV_SHAPE(2 * MHA(2, 3) + MLP + 3 * NORM), SMALL},
            {FV_SHAPE(2, 3, D)}},
     .loose = 8},
    {.name = "decoder layer, norm in front",
     .build = decoder_pre,
     .in = {{FV_SHAPE(2, 4, D)},
            {FV_SHAPE(2 * MHA(2, 3) + MLP + 3 * NORM), SMALL},
            {FV_SHAPE(2, 3, D)}},
     .loose = 8},
    {.name = "decoder layer with dropout",
     .build = decoder_dropout,
     .in = {{FV_SHAPE(2, 4, D)},
            {FV_SHAPE(2 * MHA(2, 3) + MLP + 3 * NORM), SMALL},
            {FV_SHAPE(2, 3, D)}},
     .loose = 8,
     .flags = OP_TRAIN},
    {.name = "causal layer with rotary positions",
     .build = causal_rotary,
     .in = {{FV_SHAPE(2, 4, D)}, {FV_SHAPE(MHA(1, 4) + GATED + NORM), SMALL}},
     .loose = 8},
    {.name = "attention with T5's bias",
     .build = biased,
     .in = {{FV_SHAPE(2, 5, D)}, {FV_SHAPE(MHA(2, 3)), SMALL}, {FV_SHAPE(8, HEADS)}},
     .loose = 8},
    {.name = "Transformer-XL's attention", .build = relative, .in = RELATIVE, .loose = 8},
    {.name = "relative attention, queries, keys and values with dropout",
     .build = relative_dropped,
     .in = RELATIVE,
     .loose = 8,
     .flags = OP_TRAIN},
    {.name = "relative attention, weights with dropout",
     .build = relative_connect,
     .in = RELATIVE,
     .loose = 8,
     .flags = OP_TRAIN},
};

int main(void) { return op_table_run("layers", cases, sizeof cases / sizeof *cases); }
