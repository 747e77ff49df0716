/* phi3.c - Phi-3, and Phi-4 of the same kind: a Llama with fused weights.
 *
 *     x = E[ids];   x += o(attn(rot q, rot k, v)), (q, k, v) = qkv(norm x);
 *     x += down(silu(g) * u), (g, u) = gate_up(norm x);   logits = norm(x) W'
 *
 * A part of each head may be rotated only, and frequencies may be those of longrope, which
 * rope_scaling calls su or yarn too; the length they were trained for stands beside it.
 *
 * Papers: Abdin et al. 2024 (arXiv:2404.14219); longrope is Ding et al. 2024 (arXiv:2402.13753).
 * Next to Llama: q, k and v in one weight, gate and up in another, and dropout on what each part
 * adds. Names are those of transformers' Phi3Model: qkv_proj, gate_up_proj. */

#include "model/causal.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings, original_max_position_embeddings, sliding_window;
    float rms_norm_eps, resid_pdrop, attention_dropout;
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32064, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 3072, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 8192, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 32, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 32, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 0, 256, "heads of keys and values; as many if not said"),
    FV_INT(config, head_dim, 1, 0, 512,
           "width of a head; the model's divided by the heads if not said"),
    FV_CHOICE(config, hidden_act, 2, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 4096, 1 << 28, "longest sequence"),
    FV_INT(config, original_max_position_embeddings, 1, 4096, 1 << 28,
           "longrope: positions trained on"),
    FV_INT(config, sliding_window, 1, 0, 1 << 28, "keys a row sees"),
    FV_FLOAT(config, resid_pdrop, 0, 0, 0.99, "dropout on what each part of a layer adds"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-5, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV__CAUSAL_FIELDS(config, head, 32000, false),
    FV__ROPE(config, rope),
    FV__ROPE_PARTIAL(config, rope),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"attention_bias", "false"},
    {"embd_pdrop", NULL}, /* these two are not read */
    {"lm_head_bias", "false"},
    {"mlp_bias", "false"},
    {"full_attn_mod", "1"},
    {"interpolate_factor", "1"},
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"Phi3ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Phi3Model"},
    {"Phi3Model", .job = FV_HEAD_BASE},
    {"Phi3ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Phi3Model"},
    {"Phi3ForTokenClassification", FV_HEAD_TAG, .base = "Phi3Model"},
    {0},
};

/* x += attn(norm x), rotated;  x += down(act(g) * u), (g, u) = gate_up(norm x) */
typedef fv__pre_norm block;

typedef struct phi3 {
    fv__causal base;
    config cfg;
} phi3;

static int key_heads(const config *k)
{
    return k->num_key_value_heads ? k->num_key_value_heads : k->num_attention_heads;
}
static int head_dim(const config *k)
{
    return k->head_dim ? k->head_dim : k->hidden_size / k->num_attention_heads;
}

/* original_max_position_embeddings decides between the short and the long factors of longrope. */
static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = head_dim(k),
                          .positions = k->max_position_embeddings,
                          .original = k->original_max_position_embeddings,
                          .yarn_is_long = true,
                          .rotates_partly = true};
}

/* Other kinds of scaling are not in the published code of this family. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (!k->head_dim && k->hidden_size < k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is less than the attention heads, %d",
                       k->hidden_size, k->num_attention_heads);
    fv_status st = fv__key_heads_check(k->num_attention_heads, key_heads(k), e);
    if (!st) st = fv__rope_check(&k->rope, rope_opt(k), e);
    if (st) return st;
    fv_rotary_kind kind = fv__rope_rotary(&k->rope, rope_opt(k)).kind;
    if (kind != FV_ROTARY_PLAIN && kind != FV_ROTARY_LONG)
        return fv_fail(e, FV_EFORMAT, "rotary positions of a phi3 are default or longrope");
    return FV_OK;
}

static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM, .eps = k->rms_norm_eps};
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    (void)i; /* layers are alike */
    block *b = block_;
    const config *k = config_;
    b->dropout = k->resid_pdrop;
    fv_norm_opt norm = norm_opt(k);
    fv_lin_opt proj = {.no_bias = true, .std = k->head.initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.n_kv_head = key_heads(k),
                             .head = head_dim(k),
                             .in = proj,
                             .out = proj,
                             .names = "qkv_proj o_proj"},
                "%s.self_attn", at);
    b->attn.window = k->sliding_window;
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .packed = true,
                             .lin = {.no_bias = true, .std = k->head.initializer_range},
                             .names = "gate_up_proj down_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, fv__pre_norm_fwd};
    phi3 *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->base.rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    fv__causal_declare(s, &m->base, &type, k, &k->head, FV__CAUSAL_DIMS(k), norm_opt(k),
                       s->head->job == FV_HEAD_BASE ? "" : "model.");
}

const fv_family fv__family_phi3 = {
    .type = "phi3",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_inputs,
    .config_size = sizeof(config),
    .size = sizeof(phi3),
    .check = check,
    .declare = declare,
    .load = fv__causal_load,
    FV__CAUSAL_FAMILY,
};
