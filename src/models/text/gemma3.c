/* gemma3.c - Gemma 3, and the text part of those that see images too.
 *
 *     x = E[ids] sqrt(D);   x += norm o(attn(rot(norm q), rot(norm k), v)), (q, k, v) of norm x;
 *     x += norm down(gelu(gate n) * up n), n = norm x;   logits = norm(x) E'
 *
 * norm(x) = (1 + gain) x / rms(x): before and behind each part of a layer, and on each head's
 * queries and keys.  Most layers are local: they see a window of keys and rotate by frequencies of
 * their own; every sliding_window_pattern-th, or those that layer_types names, see everything.
 * Scores are divided by the root of query_pre_attn_scalar, whatever the width of a head is.
 *
 * Paper: Gemma Team 2025 (arXiv:2503.19786). Next to Gemma: norms behind the parts too and on q
 * and k, and local layers. The block is therefore its own and not the pre-norm one. Names are
 * those of transformers' Gemma3TextModel, below "language_model." in files that have a vision
 * tower. */
#include <math.h>

#include "model/causal.h"
#include "nn/part.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_activation, max_position_embeddings, query_pre_attn_scalar, sliding_window,
        sliding_window_pattern;
    char layer_types[FV__LAYER_TYPES];
    float rms_norm_eps, attention_dropout;
    bool attention_bias;
    fv__rope global, local;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 262208, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 2304, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 9216, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 26, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 8, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 4, 256, "heads of keys and values"),
    FV_INT(config, head_dim, 1, 256, 512, "width of a head"),
    FV_CHOICE(config, hidden_activation, 5, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 131072, 1 << 28, "longest sequence"),
    FV_INT(config, query_pre_attn_scalar, 1, 256, 1 << 20, "scores are divided by its square root"),
    FV_INT(config, sliding_window, 1, 4096, 1 << 28, "keys that a local layer sees"),
    FV_INT(config, sliding_window_pattern, 1, 6, FV__MAX_LAYERS,
           "every so many layers one sees everything"),
    FV_WORDS(config, layer_types, "full_attention or sliding_attention for each layer"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV__CAUSAL_FIELDS(config, head, 0, true),
    FV_FLOAT_KEY("rope_theta", config, global.theta, 1, 0, 1e12,
                 "base of the frequencies of layers that see everything; 1e6 if not said"),
    FV_FLOAT_KEY("rope_local_base_freq", config, local.theta, 1, 0, 1e12,
                 "base of the frequencies of local layers; 10000 if not said"),
    FV__ROPE_OBJECT("rope_scaling", config, global.scaling),
    FV__ROPE_OBJECT("rope_parameters.full_attention", config, global.parameters),
    FV__ROPE_OBJECT("rope_parameters.sliding_attention", config, local.parameters),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},      {"use_bidirectional_attention", "false"},
    {"final_logit_softcapping", "false"}, /* null alone is right: the cap of Gemma 2 */
    {"_sliding_window_pattern", NULL},    /* layer_types says it */
    {"partial_rotary_factor", "1.0"},     {NULL, NULL},
};

static const char *const also[] = {"gemma3", NULL};

static const fv_family_head heads[] = {
    {"Gemma3ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Gemma3TextModel"},
    {"Gemma3TextModel", .job = FV_HEAD_BASE},
    {"Gemma3TextForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Gemma3TextModel"},
    {"Gemma3ForConditionalGeneration", FV_HEAD_CAUSAL_LM, .type = "gemma3"}, /* its text part */
    {0},
};

typedef struct block {
    fv__pre_norm base;
    fv_norm attn_post, mlp_post; /* on what each part adds */
} block;

typedef struct gemma3 {
    fv__causal base;
    config cfg;
    bool with_images; /* the file has a model for images too, and names below "language_model." */
} gemma3;

/* Local layers rotate by 10000, global ones by 1e6 and with scaling, as published. */
static fv__rope_opt rope_opt(const config *k, bool local)
{
    return (fv__rope_opt){.head = k->head_dim,
                          .positions = k->max_position_embeddings,
                          .theta = local ? 10000 : 1e6f};
}

/* Five local layers, then a global one, where layer_types says nothing. */
static bool is_local(const config *k, int i)
{
    return fv__layer_is_local(k->layer_types, i, (i + 1) % k->sliding_window_pattern != 0);
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv_status st = fv__key_heads_check(k->num_attention_heads, k->num_key_value_heads, e);
    if (!st) st = fv__heads_check(k->hidden_size, k->num_attention_heads, e);
    if (st) return st;
    /* transformers would merge them: no file has both */
    if (fv__rope_is_given(&k->global.scaling) && fv__rope_is_given(&k->global.parameters))
        return fv_fail(e, FV_EFORMAT,
                       "rope_scaling and rope_parameters.full_attention are both given");
    st = fv__rope_check(&k->global, rope_opt(k, false), e);
    if (!st) st = fv__rope_check(&k->local, rope_opt(k, true), e);
    return st ? st : fv__layer_types_check(k->layer_types, k->num_hidden_layers, e);
}

static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = FV_RMS_NORM_PLUS_ONE, .eps = k->rms_norm_eps};
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    block *b = block_;
    const config *k = config_;
    fv_norm_opt norm = norm_opt(k);
    fv_lin_opt proj = fv__causal_lin(&k->head, k->attention_bias);
    fv_mha_init(p, &b->base.attn, k->hidden_size, k->num_attention_heads,
                FV__GROUPED_HEADS(k->num_key_value_heads, k->head_dim, proj), "%s.self_attn", at);
    b->base.attn.window = is_local(k, i) ? k->sliding_window : 0;
    b->base.attn.scale = (float)(1 / sqrt((double)k->query_pre_attn_scalar));
    b->base.attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->base.attn.q_norm, k->head_dim, norm, "%s.self_attn.q_norm", at);
    fv_norm_init(p, &b->base.attn.k_norm, k->head_dim, norm, "%s.self_attn.k_norm", at);
    fv_norm_init(p, &b->base.attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->base.mlp, k->hidden_size, k->intermediate_size,
                FV__GATED_MLP(fv_act_of(k->hidden_activation), fv__causal_lin(&k->head, false)),
                "%s.mlp", at);
    fv_norm_init(p, &b->attn_post, k->hidden_size, norm, "%s.post_attention_layernorm", at);
    fv_norm_init(p, &b->base.mlp_norm, k->hidden_size, norm, "%s.pre_feedforward_layernorm", at);
    fv_norm_init(p, &b->mlp_post, k->hidden_size, norm, "%s.post_feedforward_layernorm", at);
}

/* x += norm attn(norm x), q and k normed and rotated;
 * x += norm down(gelu(gate n) * up n), n = norm x */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    const fv__pre_norm *p = &b->base;
    fv_tensor *h;
    if (!p->attn_norm.plus_one && fv__mha_decode_supported(c, &p->attn, x, &arg) &&
        fv__mlp_decode_supported(c, &p->mlp, x)) {
        h = fv__mha_decode(c, &p->attn, &p->attn_norm, x, arg, (fv_residual){0});
        x = fv_add(c, x, fv_norm_fwd(c, &b->attn_post, h));
        h = fv__mlp_decode(c, &p->mlp, fv__mlp_decode_hidden(c, &p->mlp, &p->mlp_norm, x),
                           (fv_residual){0});
        return fv_add(c, x, fv_norm_fwd(c, &b->mlp_post, h));
    }
    h = fv_mha_fwd(c, &b->base.attn, fv_norm_fwd(c, &b->base.attn_norm, x), arg);
    h = fv_norm_add(c, &b->base.mlp_norm, &x, x, fv_norm_fwd(c, &b->attn_post, h));
    return fv_add(c, x, fv_norm_fwd(c, &b->mlp_post, fv_mlp_fwd(c, &b->base.mlp, h)));
}

/* Two rotations, and which layers have which. */
static void declare_rotations(gemma3 *m, fv_params *p)
{
    const config *k = &m->cfg;
    bool *is_local_ = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *is_local_);
    for (int i = 0; is_local_ && i < k->num_hidden_layers; i++) is_local_[i] = is_local(k, i);
    m->base.is_local = is_local_;
    m->base.rotary = fv__rope_rotary(&k->global, rope_opt(k, false));
    m->base.local = fv__rope_rotary(&k->local, rope_opt(k, true));
    /* transformers looks for yarn's truncate beside the objects of the two, where none has it */
    m->base.rotary.no_truncate = m->base.local.no_truncate = false;
}

/* A file with images has "language_model." before the names; its image tower is left unread. */
static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, block_fwd};
    gemma3 *m = self;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    declare_rotations(m, s->params);
    m->with_images = s->file && !fv_st_find(s->file, "language_model.model.norm.weight",
                                            &(fv_st_info){0}, NULL);
    fv__causal_declare(s, &m->base, &type, k, &k->head, FV__CAUSAL_DIMS(k), norm_opt(k),
                       s->head->job == FV_HEAD_BASE ? "" : "model.");
    m->base.tokens.scale = (float)sqrt((double)k->hidden_size);
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__causal *m = self;
    fv__causal_pack(m, p, dtype);
    for (int i = m->first; i < m->end; i++) {
        block *b = (block *)(void *)m->blocks + i;
        fv_norm_pack(p, &b->attn_post);
        fv_norm_pack(p, &b->mlp_post);
    }
}

static fv_load_opt load(const void *self)
{
    static const char *const images[] = {"vision_tower.*", "multi_modal_projector.*", NULL};
    const gemma3 *m = self;
    fv_load_opt opt = fv__causal_load(self);
    if (!m->with_images) return opt;
    opt.prefix = m->base.head.job == FV_HEAD_BASE ? "language_model.model." : "language_model.";
    opt.ignore = images;
    return opt;
}

const fv_family fv__family_gemma3 = {
    .type = "gemma3_text",
    .also = also,
    .part = "text_config",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_inputs,
    .config_size = sizeof(config),
    .size = sizeof(gemma3),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = fv__causal_forward,
    .step = fv__causal_step,
    FV__CAUSAL_SIZES,
};
