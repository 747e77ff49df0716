/* test_nn.c - whole layers give the values and gradients of PyTorch and transformers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/author/nn.h"
#include "helper/golden.h"
#include "helper/layer.h"

/* Entries of the golden file, whose parameters have our names. */

typedef struct layer {
    union {
        fv_mha mha;
        fv_rel_mha rel_mha;
        fv_encoder_layer encoder;
        fv_decoder_layer decoder;
    };
    fv_rel_bias bias;
} layer;

typedef struct entry {
    const char *name;
    void (*init)(fv_params *p, layer *l, const char *name);
    fv_tensor *(*fwd)(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory);
    bool memory; /* has an input of that name */
} entry;

static fv_tensor *keep(const golden *g) { return golden_mask(g, "masks.keep"); }
static fv_tensor *keep_memory(const golden *g) { return golden_mask(g, "masks.memory"); }

static void mha_init(fv_params *p, layer *l, const char *name)
{
    fv_mha_init(p, &l->mha, 8, 2, (fv_mha_opt){0}, "%s", name);
}

static void mha_packed_init(fv_params *p, layer *l, const char *name)
{
    fv_mha_init(p, &l->mha, 8, 2, (fv_mha_opt){.names = "in_proj out_proj"}, "%s", name);
}

/* Keys and values of something that is narrower: its products are declared one by one. */
static void mha_cross_init(fv_params *p, layer *l, const char *name)
{
    fv_lin_opt lin = {0};
    fv_mha_bare(p, &l->mha, 2, 4, "%s", name);
    fv_lin_init(p, &l->mha.q, 8, 8, lin, "%s.q_proj", name);
    fv_lin_init(p, &l->mha.k, 6, 8, lin, "%s.k_proj", name);
    fv_lin_init(p, &l->mha.v, 6, 8, lin, "%s.v_proj", name);
    fv_lin_init(p, &l->mha.out, 8, 8, lin, "%s.out_proj", name);
}

static fv_tensor *mha_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)memory;
    return fv_mha_fwd(g->ctx, &l->mha, x, (fv_mha_arg){.causal = true, .key_mask = keep(g)});
}

static fv_tensor *mha_cross_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    return fv_mha_fwd(g->ctx, &l->mha, x,
                      (fv_mha_arg){.memory = memory, .key_mask = keep_memory(g)});
}

static fv_layer_opt transformer(bool pre_norm)
{
    return (fv_layer_opt){.width = 8,
                          .n_head = 2,
                          .hidden = 12,
                          .pre_norm = pre_norm,
                          .norm = {.eps = 1e-3f},
                          .mlp = {.act = pre_norm ? FV_GELU : FV_RELU}};
}

static void encoder_post_init(fv_params *p, layer *l, const char *name)
{
    fv_encoder_layer_init(p, &l->encoder, transformer(false), "%s", name);
}
static void encoder_pre_init(fv_params *p, layer *l, const char *name)
{
    fv_encoder_layer_init(p, &l->encoder, transformer(true), "%s", name);
}
static void decoder_post_init(fv_params *p, layer *l, const char *name)
{
    fv_decoder_layer_init(p, &l->decoder, transformer(false), "%s", name);
}
static void decoder_pre_init(fv_params *p, layer *l, const char *name)
{
    fv_decoder_layer_init(p, &l->decoder, transformer(true), "%s", name);
}

static fv_tensor *encoder_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)memory;
    return fv_encoder_layer_fwd(g->ctx, &l->encoder, x, (fv_mha_arg){.key_mask = keep(g)});
}

static fv_tensor *decoder_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    fv_mha_arg cross = {.memory = memory, .key_mask = keep_memory(g)};
    return fv_decoder_layer_fwd(g->ctx, &l->decoder, x, (fv_mha_arg){.causal = true}, cross);
}

/* RMS norm in front, grouped heads wider than the model, rotary positions, a gate, no biases. */
static void llama_init(fv_params *p, layer *l, const char *name)
{
    fv_lin_opt lin = {.no_bias = true};
    fv_layer_opt o = {.width = 8,
                      .n_head = 4,
                      .mha = {.n_kv_head = 2,
                              .head = 4,
                              .in = lin,
                              .out = lin,
                              .names = "q_proj k_proj v_proj o_proj"},
                      .hidden = 12,
                      .mlp = {.act = FV_SILU, .lin = lin, .names = "gate_proj up_proj down_proj"},
                      .norm = {.type = FV_RMS_NORM, .eps = 1e-3f},
                      .pre_norm = true,
                      .names = {.self_norm = "input_layernorm",
                                .mlp = "mlp",
                                .mlp_norm = "post_attention_layernorm"}};
    fv_encoder_layer_init(p, &l->encoder, o, "%s", name);
}

static fv_tensor *llama_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)memory;
    fv_rope_arg rope = fv_rotary_at(g->ctx, &(fv_rotary){.width = 4}, fv_positions(g->ctx, 2, 5, 0),
                                    5);
    return fv_encoder_layer_fwd(g->ctx, &l->encoder, x, (fv_mha_arg){.causal = true, .rope = rope});
}

/* Bias by bucket of the distance, scores not scaled, heads narrower than the model. */
static void t5_init(fv_params *p, layer *l, const char *name)
{
    fv_lin_opt lin = {.no_bias = true};
    fv_layer_opt o = {.width = 8,
                      .n_head = 2,
                      .mha = {.head = 3, .in = lin, .out = lin, .names = "q k v o"},
                      .hidden = 12,
                      .mlp = {.act = FV_GELU_TANH, .lin = lin, .names = "wi_0 wi_1 wo"},
                      .norm = {.type = FV_RMS_NORM, .eps = 1e-3f},
                      .pre_norm = true,
                      .names = {"layer.0.SelfAttention", "layer.0.layer_norm", NULL, NULL,
                                "layer.1.DenseReluDense", "layer.1.layer_norm"}};
    fv_encoder_layer_init(p, &l->encoder, o, "%s", name);
    l->encoder.self.scale = 1;
    fv_rel_bias_init(p, &l->bias, 8, 2, 6, false,
                     "%s.layer.0.SelfAttention.relative_attention_bias", name);
}

static fv_tensor *t5_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)memory;
    fv_mha_arg self = {0};
    self.rel = fv_rel_bias_fwd(g->ctx, &l->bias, &self.rel_zero);
    return fv_encoder_layer_fwd(g->ctx, &l->encoder, x, self);
}

/* One weight for q, k and v, all weights stored the other way around. */
static void gpt2_init(fv_params *p, layer *l, const char *name)
{
    fv_layer_opt o = {
        .width = 8,
        .n_head = 2,
        .mha = {.in = {.in_out = true}, .out = {.in_out = true}, .names = "c_attn c_proj"},
        .hidden = 12,
        .mlp = {.act = FV_GELU_TANH, .lin = {.in_out = true}, .names = "c_fc c_proj"},
        .norm = {.eps = 1e-3f},
        .pre_norm = true,
        .names = {.self = "attn", .self_norm = "ln_1", .mlp = "mlp", .mlp_norm = "ln_2"}};
    fv_encoder_layer_init(p, &l->encoder, o, "%s", name);
}

static fv_tensor *gpt2_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)memory;
    return fv_encoder_layer_fwd(g->ctx, &l->encoder, x, (fv_mha_arg){.causal = true});
}

static void xl_init(fv_params *p, layer *l, const char *name)
{
    fv_lin_opt proj = {.no_bias = true};
    fv_rel_mha_init(p, &l->rel_mha, 5, 2, (fv_mha_opt){.head = 3, .in = proj, .out = proj}, "%s",
                    name);
}

static fv_tensor *xl_fwd(const golden *g, const layer *l, fv_tensor *x, fv_tensor *memory)
{
    (void)x;
    fv_tensor *last = fv_slice(g->ctx, memory, 1, 3, 7);
    return fv_rel_mha_fwd(g->ctx, &l->rel_mha, last, golden_floats(g, "xl.places"),
                          (fv_mha_arg){.memory = memory, .causal = true});
}

static const entry entries[] = {
    {"mha", mha_init, mha_fwd, false},
    {"mha_packed", mha_packed_init, mha_fwd, false},
    {"mha_cross", mha_cross_init, mha_cross_fwd, true},
    {"encoder_post", encoder_post_init, encoder_fwd, false},
    {"encoder_pre", encoder_pre_init, encoder_fwd, false},
    {"decoder_post", decoder_post_init, decoder_fwd, true},
    {"decoder_pre", decoder_pre_init, decoder_fwd, true},
    {"llama", llama_init, llama_fwd, false},
    {"t5", t5_init, t5_fwd, false},
    {"gpt2", gpt2_init, gpt2_fwd, false},
    {"xl", xl_init, xl_fwd, true},
};
#define ENTRIES (sizeof entries / sizeof *entries)

static void set_from_golden(const golden *g, fv_params *p)
{
    fv_err e;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        fv_array a = golden_array(g, "%s", t->name);
        if (fv_params_set(p, t, a.data, fv_shape_len(a.shape), &e)) fail_msg("%s", e.text);
        fv_array_close(&a);
    }
}

static void compare(const entry *k, fv_dtype t, double tolerance)
{
    golden g = {.file = FOVEA_TESTS "/golden/nn_layers.safetensors"};
    fv_params *p;
    layer l = {0};
    fv_err e;
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    k->init(p, &l, k->name);
    if (fv_params_alloc(p, device, t, true, &e)) fail_msg("%s", e.text);
    set_from_golden(&g, p);

    assert_int_equal(fv_ctx_new(&g.ctx, device,
                                (fv_ctx_opt){.dtype = t, .record = true, .train = true}, NULL),
                     FV_OK);
    bool has_x = strcmp(k->name, "xl") != 0;
    fv_tensor *x = has_x ? fv_watch(g.ctx, golden_floats(&g, "%s.x", k->name)) : NULL;
    fv_tensor *memory = k->memory ? fv_watch(g.ctx, golden_floats(&g, "%s.memory", k->name)) : NULL;
    fv_tensor *y = fv_hold(g.ctx, k->fwd(&g, &l, x, memory));
    golden_near(&g, y, tolerance, "%s.y", k->name);

    fv_array dy = golden_array(&g, "%s.dy", k->name);
    assert_int_equal(fv_backward_from(g.ctx, y, dy.data), FV_OK);
    fv_array_close(&dy);
    if (x) golden_grad_near(&g, x, 4 * tolerance, "%s.dx", k->name);
    if (memory) golden_grad_near(&g, memory, 4 * tolerance, "%s.dmemory", k->name);
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *w = fv_params_at(p, i);
        golden_grad_near(&g, w, 4 * tolerance, "%s.grad%s", k->name, strchr(w->name, '.'));
    }
    fv_ctx_free(g.ctx);
    fv_params_free(p);
}

static void layer_agrees(void **state)
{
    if (test_on_cpu()) compare(*state, FV_F64, 5e-7);
    compare(*state, FV_F32, test_on_cpu() ? 2e-5 : 4e-5);
}

int main(void)
{
    struct CMUnitTest tests[ENTRIES];
    for (size_t i = 0; i < ENTRIES; i++)
        tests[i] = (struct CMUnitTest){entries[i].name, layer_agrees, NULL, NULL,
                                       (void *)(uintptr_t)&entries[i]};
    return cmocka_run_group_tests_name("layers beside PyTorch and transformers", tests, open_device,
                                       close_device);
}
