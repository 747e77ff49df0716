/* gemma.c - Gemma: embeddings times the root of the width, norms by 1 + gain, wide heads.
 *
 *     x = E[ids] sqrt(D);   x += o(attn(norm x)), rotary positions;
 *     x += down(gelu(gate n) * up n), n = norm x;   logits = norm(x) E'
 *
 * norm(x) = (1 + gain) x / rms(x), so that a gain of 0 changes nothing.  A head's width is a key of
 * its own.  hidden_act "gelu" means its tanh approximation, as files of the first release have
 * it.
 *
 * Paper: Gemma Team 2024 (arXiv:2403.08295). Next to Llama: the scaled embeddings, the gain that
 * counts from 1, the tanh GELU in the gate, and an output weight that is the table. Names are
 * Llama's, those of transformers' GemmaModel. */
#include <math.h>

#include "model/causal.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings;
    float rms_norm_eps, attention_dropout;
    bool attention_bias;
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 256000, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 3072, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 24576, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 28, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 16, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 16, 256, "heads of keys and values"),
    FV_INT(config, head_dim, 1, 256, 512, "width of a head"),
    FV_CHOICE(config, hidden_act, 5, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 8192, 1 << 28, "longest sequence"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV__CAUSAL_FIELDS(config, head, 0, true),
    FV__ROPE(config, rope),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"use_bidirectional_attention", "false"},
    {"hidden_activation", "=hidden_act"}, /* the first releases have both */
    {"hidden_activation", "\"gelu_pytorch_tanh\""},
    FV__ROTATES_ALL,
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"GemmaForCausalLM", FV_HEAD_CAUSAL_LM, .base = "GemmaModel"},
    {"GemmaModel", .job = FV_HEAD_BASE},
    {"GemmaForSequenceClassification", FV_HEAD_CLASSIFY, .base = "GemmaModel"},
    {"GemmaForTokenClassification", FV_HEAD_TAG, .base = "GemmaModel"},
    {0},
};

/* x += attn(norm x), rotated;  x += down(act(gate n) * up n), n = norm x */
typedef fv__pre_norm block;

typedef struct gemma {
    fv__causal base;
    config cfg;
} gemma;

static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = k->head_dim, .positions = k->max_position_embeddings};
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__key_heads_check(k->num_attention_heads, k->num_key_value_heads, e);
    return st ? st : fv__rope_check(&k->rope, rope_opt(k), e);
}

static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM_PLUS_ONE, .eps = k->rms_norm_eps};
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    (void)i; /* layers are alike */
    block *b = block_;
    const config *k = config_;
    fv_norm_opt norm = norm_opt(k);
    fv_act act = fv_act_of(k->hidden_act);
    fv_lin_opt proj = fv__causal_lin(&k->head, k->attention_bias);
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                FV__GROUPED_HEADS(k->num_key_value_heads, k->head_dim, proj), "%s.self_attn", at);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                FV__GATED_MLP(act == FV_GELU ? FV_GELU_TANH : act, fv__causal_lin(&k->head, false)),
                "%s.mlp", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, fv__pre_norm_fwd};
    gemma *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->base.rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    fv__causal_declare(s, &m->base, &type, k, &k->head, FV__CAUSAL_DIMS(k), norm_opt(k),
                       s->head->job == FV_HEAD_BASE ? "" : "model.");
    m->base.tokens.scale = (float)sqrt((double)k->hidden_size);
}

const fv_family fv__family_gemma = {
    .type = "gemma",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_inputs,
    .config_size = sizeof(config),
    .size = sizeof(gemma),
    .check = check,
    .declare = declare,
    .load = fv__causal_load,
    FV__CAUSAL_FAMILY,
};
