/* gpt_neox.c - GPT-NeoX and Pythia: attention and feed-forward part side by side.
 *
 *     x = E[ids];   x += attn(norm x) + mlp(norm' x), a part of each head rotated;
 *     logits = norm(x) W'
 *
 * Where use_parallel_residual is false the feed-forward part reads what attention made, as
 * elsewhere.  One weight holds q, k and v of the first head, then of the second, ...  Files have
 * masks (attention.bias) among their weights, which are constants and are left unread.
 *
 * Papers: Black et al. 2022 (arXiv:2204.06745) and Biderman et al. 2023 (arXiv:2304.01373). Both
 * parts read x, as GPT-J's do, but through norms of their own: neither waits for the other.
 * Names are those of transformers' GPTNeoXModel; the output weight is embed_out. */

#include "model/causal.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int hidden_act, max_position_embeddings;
    float layer_norm_eps, hidden_dropout, attention_dropout;
    bool attention_bias, use_parallel_residual;
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50432, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 6144, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 24576, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 44, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 64, 256, "attention heads"),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 2048, 1 << 28, "longest sequence"),
    FV_FLOAT(config, layer_norm_eps, 1e-12, 1e-5, 1, "added to the variance"),
    FV_FLOAT(config, hidden_dropout, 0, 0, 0.99,
             "dropout on the embeddings and on what each part of a layer adds"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_BOOL(config, attention_bias, true, "biases on q, k, v and the output"),
    FV__CAUSAL_FIELDS(config, head, -1, false),
    FV_BOOL(config, use_parallel_residual, true, "both parts of a layer read the same input"),
    FV_FLOAT_KEY("rotary_emb_base", config, rope.theta, 1, 0, 1e12,
                 "base of the rotation's frequencies; 10000 if not said"),
    FV_FLOAT_KEY("rotary_pct", config, rope.partial, 0, -1, 1,
                 "how much of a head is rotated; 0.25 if not said"),
    FV__ROPE_OBJECT("rope_scaling", config, rope.scaling),
    FV__ROPE_OBJECT("rope_parameters", config, rope.parameters),
    FV_FLOAT_KEY("rope_scaling.partial_rotary_factor", config, rope.scaling.partial, 0, -1, 1,
                 "the same as rotary_pct"),
    FV_FLOAT_KEY("rope_parameters.partial_rotary_factor", config, rope.parameters.partial, 0, -1, 1,
                 "the same as rotary_pct"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"is_decoder", NULL}, /* it always is one */
    {"rope_theta", "=rotary_emb_base"},
    {"partial_rotary_factor", "=rotary_pct"},
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"GPTNeoXForCausalLM", FV_HEAD_CAUSAL_LM, .base = "GPTNeoXModel"},
    {"GPTNeoXModel", .job = FV_HEAD_BASE},
    {"GPTNeoXForSequenceClassification", FV_HEAD_CLASSIFY, .base = "GPTNeoXModel"},
    {"GPTNeoXForTokenClassification", FV_HEAD_TAG, .base = "GPTNeoXModel"},
    {"GPTNeoXForQuestionAnswering", FV_HEAD_ANSWER, .base = "GPTNeoXModel"},
    {0},
};

/* parallel: both parts read x itself, so neither waits for the other and one sum closes the
 * layer. */
typedef struct block {
    fv__pre_norm base;
    bool parallel;
} block;

typedef struct gpt_neox {
    fv__causal base;
    config cfg;
} gpt_neox;

/* A quarter of each head is rotated if the configuration says nothing. */
static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = k->hidden_size / k->num_attention_heads,
                          .positions = k->max_position_embeddings,
                          .partial = 0.25,
                          .rotates_partly = true};
}

/* The rotated part of a head must be even; fv__rope_check sees to it. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__heads_check(k->hidden_size, k->num_attention_heads, e);
    return st ? st : fv__rope_check(&k->rope, rope_opt(k), e);
}

/* Below `at`, "gpt_neox.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    (void)i; /* layers are alike */
    block *b = block_;
    const config *k = config_;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->base.dropout = k->hidden_dropout;
    b->parallel = k->use_parallel_residual;
    fv_norm_init(p, &b->base.attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_norm_init(p, &b->base.mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
    fv_lin_opt proj = {.no_bias = !k->attention_bias, .std = k->head.initializer_range};
    fv_mha_init(p, &b->base.attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj, .names = "query_key_value dense"},
                "%s.attention", at);
    b->base.attn.dropout = k->attention_dropout;
    b->base.attn.by_head = true;
    fv_mlp_init(p, &b->base.mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .lin = {.std = k->head.initializer_range},
                             .names = "dense_h_to_4h dense_4h_to_h"},
                "%s.mlp", at);
}

/* x += attn(norm x) + mlp(norm' x), or one after the other */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    if (!b->parallel) return fv__pre_norm_fwd(c, &b->base, x, arg, none);
    return fv_parallel(c, &b->base.attn_norm, &b->base.attn, &b->base.mlp_norm, &b->base.mlp, x,
                       arg, b->base.dropout);
}

/* embed_in and embed_out are the tables of tokens; they are tied in none of the published
 * models. */
static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, block_fwd};
    gpt_neox *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    const char *below = s->head->job == FV_HEAD_BASE ? "" : "gpt_neox.";
    m->base.context = k->max_position_embeddings;
    m->base.rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    m->base.dropout = k->hidden_dropout;
    fv_emb_init(p, &m->base.tokens, k->vocab_size, k->hidden_size, k->head.initializer_range,
                "%sembed_in", below);
    fv__causal_blocks(p, &m->base, &type, k->num_hidden_layers, k, "%slayers", below);
    fv_norm_init(p, &m->base.norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sfinal_layer_norm", below);
    fv__causal_head_init(p, &m->base, s->head->job, &k->head, "embed_out", "classifier");
}

/* Masks and frequencies that old files hold are constants. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"embed_out.weight", "gpt_neox.embed_in.weight"}, {NULL, NULL}};
    static const char *const constants[] = {"*.attention.bias", "*.attention.masked_bias",
                                            "*.rotary_emb.inv_freq", NULL};
    static const char *const constants_and_heads[] = {
        "*.attention.bias",      "*.attention.masked_bias",
        "*.rotary_emb.inv_freq", "embed_out.weight",
        "score.weight",          "classifier.*",
        "qa_outputs.*",          NULL};
    const fv__causal *m = self;
    return (fv_load_opt){.prefix = "gpt_neox.",
                         .ties = m->tied ? ties : NULL,
                         .ignore = m->head.job == FV_HEAD_BASE ? constants_and_heads : constants};
}

const fv_family fv__family_gpt_neox = {
    .type = "gpt_neox",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_span_inputs,
    .config_size = sizeof(config),
    .size = sizeof(gpt_neox),
    .check = check,
    .declare = declare,
    .load = load,
    FV__CAUSAL_FAMILY,
};
