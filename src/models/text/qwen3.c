/* qwen3.c - Qwen3: as Qwen2, with a norm on each head's queries and keys and no biases.
 *
 *     x = E[ids];   x += o(attn(rot(norm q), rot(norm k), v)), (q, k, v) of norm x;
 *     x += down(silu(gate n) * up n), n = norm x;   logits = norm(x) W'
 *
 * A head's width is a key of its own and need not divide the model's.  Layers may see a window of
 * keys only: those that layer_types names, or all from max_window_layers on.
 *
 * Paper: Yang et al. 2025 (arXiv:2505.09388). The norms of heads stand before the rotation and
 * their gains are of a head's width, one for all heads. Names are Llama's, with self_attn.q_norm
 * and k_norm. */

#include "model/causal.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings, sliding_window, max_window_layers;
    float rms_norm_eps, attention_dropout;
    bool attention_bias, use_sliding_window;
    char layer_types[FV__LAYER_TYPES];
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 151936, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 4096, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 22016, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 32, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 32, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 32, 256, "heads of keys and values"),
    FV_INT(config, head_dim, 1, 128, 512, "width of a head"),
    FV_CHOICE(config, hidden_act, 2, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 32768, 1 << 28, "longest sequence"),
    FV_BOOL(config, use_sliding_window, false, "whether some layers see a window of keys only"),
    FV_INT(config, sliding_window, 1, 4096, 1 << 28, "keys that they see"),
    FV_INT(config, max_window_layers, 0, 28, FV__MAX_LAYERS,
           "how many of the first layers have no window"),
    FV_WORDS(config, layer_types,
             "full_attention or sliding_attention for each layer, if not by max_window_layers"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV__CAUSAL_FIELDS(config, head, -1, false),
    FV__ROPE(config, rope),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    FV__ROTATES_ALL,
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"Qwen3ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Qwen3Model"},
    {"Qwen3Model", .job = FV_HEAD_BASE},
    {"Qwen3ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Qwen3Model"},
    {"Qwen3ForTokenClassification", FV_HEAD_TAG, .base = "Qwen3Model"},
    {"Qwen3ForQuestionAnswering", FV_HEAD_ANSWER, .base = "Qwen3Model"},
    {0},
};

/* x += attn(norm x), rotated;  x += down(act(gate n) * up n), n = norm x */
typedef fv__pre_norm block;

typedef struct qwen3 {
    fv__causal base;
    config cfg;
} qwen3;

static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = k->head_dim, .positions = k->max_position_embeddings};
}

/* layer_types may name windows only where use_sliding_window is true. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__key_heads_check(k->num_attention_heads, k->num_key_value_heads, e);
    if (st) return st;
    for (int i = 0; !k->use_sliding_window && i < k->num_hidden_layers; i++)
        if (fv__layer_is_local(k->layer_types, i, false))
            return fv_fail(
                e, FV_EFORMAT,
                "layer_types: layer %d has a sliding_attention, but use_sliding_window is false",
                i);
    st = fv__rope_check(&k->rope, rope_opt(k), e);
    return st ? st : fv__layer_types_check(k->layer_types, k->num_hidden_layers, e);
}

/* Keys that layer i sees; 0: all before. */
static int window(const config *k, int i)
{
    if (!k->use_sliding_window) return 0;
    return fv__layer_is_local(k->layer_types, i, i >= k->max_window_layers) ? k->sliding_window : 0;
}

static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM, .eps = k->rms_norm_eps};
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    block *b = block_;
    const config *k = config_;
    fv_norm_opt norm = norm_opt(k);
    fv_lin_opt proj = fv__causal_lin(&k->head, k->attention_bias);
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                FV__GROUPED_HEADS(k->num_key_value_heads, k->head_dim, proj), "%s.self_attn", at);
    b->attn.window = window(k, i);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->attn.q_norm, k->head_dim, norm, "%s.self_attn.q_norm", at);
    fv_norm_init(p, &b->attn.k_norm, k->head_dim, norm, "%s.self_attn.k_norm", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                FV__GATED_MLP(fv_act_of(k->hidden_act), fv__causal_lin(&k->head, false)), "%s.mlp",
                at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

/* What stands before the names of the layers; heads for spans call the model another name. */
static const char *prefix(fv_head_job job)
{
    if (job == FV_HEAD_BASE) return "";
    return job == FV_HEAD_ANSWER ? "transformer." : "model.";
}

static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, fv__pre_norm_fwd};
    qwen3 *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->base.rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    fv__causal_declare(s, &m->base, &type, k, &k->head, FV__CAUSAL_DIMS(k), norm_opt(k),
                       prefix(s->head->job));
}

static fv_load_opt load(const void *self)
{
    const qwen3 *m = self;
    fv_head_job job = m->base.head.job;
    fv_load_opt opt = fv__causal_load(self);
    if (job != FV_HEAD_BASE) opt.prefix = prefix(job);
    return opt;
}

const fv_family fv__family_qwen3 = {
    .type = "qwen3",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_span_inputs,
    .config_size = sizeof(config),
    .size = sizeof(qwen3),
    .check = check,
    .declare = declare,
    .load = load,
    FV__CAUSAL_FAMILY,
};
