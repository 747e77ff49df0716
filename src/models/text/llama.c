/* llama.c - Llama, and Mistral and Qwen2, which differ from it by configuration alone.
 *
 *     x = E[ids];   x += attn(norm x), rotary positions;
 *     x += down(silu(gate n) * up n), n = norm x;   logits = norm(x) W'
 *
 * RMS norms, fewer key heads than query heads, no positions but the rotation.  A Mistral may see a
 * window of keys only, a Qwen2 in some of its layers; a Qwen2 has biases on q, k and v.
 *
 * Papers: Touvron et al. 2023 (arXiv:2302.13971), Jiang et al. 2023 (arXiv:2310.06825), Yang et
 * al. 2024 (arXiv:2407.10671). Names are those of transformers' LlamaModel, which Gemma, Qwen3
 * and many later families took over: embed_tokens, layers.N.self_attn.q_proj, mlp.gate_proj,
 * norm, lm_head (fv__causal_declare). Weights of q and k are in the order of Hugging Face's
 * conversion, for pairs half a head apart. */

#include "model/causal.h"

#define MAX_HEAD 512

enum { LLAMA, MISTRAL, QWEN2 };
static const char *const types[] = {"llama", "mistral", "qwen2", NULL};

typedef struct config {
    fv__causal_config head;
    int model_type;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings, sliding_window, max_window_layers;
    float rms_norm_eps, attention_dropout;
    bool attention_bias, mlp_bias, use_sliding_window;
    char layer_types[FV__LAYER_TYPES];
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_CHOICE(config, model_type, LLAMA, types, "which of them"),
    FV_INT(config, vocab_size, 1, 32000, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 4096, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 11008, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 32, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 32, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 0, 256, "heads of keys and values; as many if not said"),
    FV_INT(config, head_dim, 1, 0, MAX_HEAD,
           "width of a head; the model's divided by the heads if not said"),
    FV_CHOICE(config, hidden_act, 2, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 2048, 1 << 28, "longest sequence"),
    FV_INT(config, sliding_window, 1, 0, 1 << 28, "keys a row sees"),
    FV_BOOL(config, use_sliding_window, false, "Qwen2: whether it does"),
    FV_INT(config, max_window_layers, 0, 28, FV__MAX_LAYERS,
           "Qwen2: how many of the first layers have no window"),
    FV_WORDS(
        config, layer_types,
        "Qwen2: full_attention or sliding_attention for each layer, if not by max_window_layers"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV_BOOL(config, mlp_bias, false, "biases in the feed-forward part"),
    FV__CAUSAL_FIELDS(config, head, -1, false),
    FV__ROPE(config, rope),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"pretraining_tp", NULL}, /* splits sums, which changes rounding alone */
    FV__ROTATES_ALL,
    {"rope_interleaved", "false"},
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"LlamaForCausalLM", FV_HEAD_CAUSAL_LM, .base = "LlamaModel", .type = "llama"},
    {"MistralForCausalLM", FV_HEAD_CAUSAL_LM, .base = "MistralModel", .type = "mistral"},
    {"Qwen2ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Qwen2Model", .type = "qwen2"},
    {"LlamaModel", FV_HEAD_BASE, .type = "llama"},
    {"MistralModel", FV_HEAD_BASE, .type = "mistral"},
    {"Qwen2Model", FV_HEAD_BASE, .type = "qwen2"},
    {"LlamaForSequenceClassification", FV_HEAD_CLASSIFY, .base = "LlamaModel", .type = "llama"},
    {"MistralForSequenceClassification", FV_HEAD_CLASSIFY, .base = "MistralModel",
     .type = "mistral"},
    {"Qwen2ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Qwen2Model", .type = "qwen2"},
    {"LlamaForTokenClassification", FV_HEAD_TAG, .base = "LlamaModel", .type = "llama"},
    {"MistralForTokenClassification", FV_HEAD_TAG, .base = "MistralModel", .type = "mistral"},
    {"Qwen2ForTokenClassification", FV_HEAD_TAG, .base = "Qwen2Model", .type = "qwen2"},
    {"LlamaForQuestionAnswering", FV_HEAD_ANSWER, .base = "LlamaModel", .type = "llama"},
    {"MistralForQuestionAnswering", FV_HEAD_ANSWER, .base = "MistralModel", .type = "mistral"},
    {"Qwen2ForQuestionAnswering", FV_HEAD_ANSWER, .base = "Qwen2Model", .type = "qwen2"},
    {0},
};

/* x += attn(norm x), rotated;  x += down(act(gate n) * up n), n = norm x */
typedef fv__pre_norm block;

typedef struct llama {
    fv__causal base;
    config cfg;
} llama;

/* 0 in the table means "not said": as many as heads, as the first Llama has it. */
static int key_heads(const config *k)
{
    return k->num_key_value_heads ? k->num_key_value_heads : k->num_attention_heads;
}
/* Need not be hidden_size / heads: Mistral Nemo has 128, where 5120 / 32 is 160. */
static int head_dim(const config *k)
{
    return k->head_dim ? k->head_dim : k->hidden_size / k->num_attention_heads;
}

static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = head_dim(k), .positions = k->max_position_embeddings};
}

static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM, .eps = k->rms_norm_eps};
}

/* Qwen2 may have windows only where use_sliding_window is true; the two would contradict each
 * other. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = FV_OK;
    if (!k->head_dim) st = fv__heads_check(k->hidden_size, k->num_attention_heads, e);
    if (!st) st = fv__key_heads_check(k->num_attention_heads, key_heads(k), e);
    if (!st) st = fv__rope_check(&k->rope, rope_opt(k), e);
    if (st) return st;
    for (int i = 0; k->model_type == QWEN2 && i < k->num_hidden_layers; i++)
        if (fv__layer_is_local(k->layer_types, i, false) &&
            !(k->use_sliding_window && k->sliding_window))
            return fv_fail(
                e, FV_EFORMAT,
                "layer_types: layer %d has a sliding_attention, but the model no sliding_window",
                i);
    return fv__layer_types_check(k->layer_types, k->num_hidden_layers, e);
}

/* Keys that layer i sees; 0: all before. */
static int window(const config *k, int i)
{
    if (k->model_type == MISTRAL) return k->sliding_window;
    if (k->model_type != QWEN2 || !k->use_sliding_window) return 0;
    return fv__layer_is_local(k->layer_types, i, i >= k->max_window_layers) ? k->sliding_window : 0;
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    block *b = block_;
    const config *k = config_;
    bool biased = k->model_type == QWEN2 || (k->model_type == LLAMA && k->attention_bias);
    fv_norm_opt norm = norm_opt(k);
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.n_kv_head = key_heads(k),
                             .head = head_dim(k),
                             .in = {.no_bias = !biased, .std = k->head.initializer_range},
                             .out = {.no_bias = !biased || k->model_type == QWEN2,
                                     .std = k->head.initializer_range},
                             .names = "q_proj k_proj v_proj o_proj"},
                "%s.self_attn", at);
    b->attn.window = window(k, i);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.no_bias = !(k->mlp_bias && k->model_type == LLAMA),
                                     .std = k->head.initializer_range},
                             .names = "gate_proj up_proj down_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

/* What stands before the names of the layers.  transformers calls the model another name below
 * heads for spans, but for Mistral's. */
static const char *prefix(const config *k, fv_head_job job)
{
    if (job == FV_HEAD_BASE) return "";
    return job == FV_HEAD_ANSWER && k->model_type != MISTRAL ? "transformer." : "model.";
}

static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, fv__pre_norm_fwd};
    llama *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->base.rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    fv__causal_declare(s, &m->base, &type, k, &k->head, FV__CAUSAL_DIMS(k), norm_opt(k),
                       prefix(k, s->head->job));
}

/* Classifiers and the language model have "model." before the stack's names, which a bare model has
 * not. */
static fv_load_opt load(const void *self)
{
    const llama *m = self;
    fv_head_job job = m->base.head.job;
    fv_load_opt opt = fv__causal_load(self);
    if (job != FV_HEAD_BASE) opt.prefix = prefix(&m->cfg, job);
    return opt;
}

const fv_family fv__family_llama = {
    .type = "llama",
    .also = types + 1,
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_span_inputs,
    .config_size = sizeof(config),
    .size = sizeof(llama),
    .check = check,
    .declare = declare,
    .load = load,
    FV__CAUSAL_FAMILY,
};
