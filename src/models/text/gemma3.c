/* gemma3.c - Gemma 3, and the text part of those that see images too.
 *
 *     x = E[ids] sqrt(D);   x += norm o(attn(rot(norm q), rot(norm k), v)), (q, k, v) of norm x;
 *     x += norm down(gelu(gate n) * up n), n = norm x;   logits = norm(x) E'
 *
 * norm(x) = (1 + gain) x / rms(x): before and behind each part of a layer, and on each head's
 * queries and keys.  Most layers are local: they see a window of keys and rotate by frequencies of
 * their own; every sliding_window_pattern-th, or those that layer_types names, see everything.
 * Scores are divided by the root of query_pre_attn_scalar, whatever the width of a head is. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/rope.h"

#define MAX_LAYER 256

typedef struct config {
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_activation, max_position_embeddings, query_pre_attn_scalar, sliding_window,
        sliding_window_pattern, pad_token_id, num_labels, problem_type;
    char layer_types[FV__LAYER_TYPES];
    float rms_norm_eps, attention_dropout, classifier_dropout, initializer_range;
    bool attention_bias, tie_word_embeddings;
    fv__rope global, local;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 262208, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 2304, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 9216, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 26, MAX_LAYER, "layers"),
    FV_INT(config, num_attention_heads, 1, 8, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 4, 256, "heads of keys and values"),
    FV_INT(config, head_dim, 1, 256, 512, "width of a head"),
    FV_CHOICE(config, hidden_activation, 5, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 131072, 1 << 28, "longest sequence"),
    FV_INT(config, query_pre_attn_scalar, 1, 256, 1 << 20, "scores are divided by its square root"),
    FV_INT(config, sliding_window, 1, 4096, 1 << 28, "keys that a local layer sees"),
    FV_INT(config, sliding_window_pattern, 1, 6, MAX_LAYER,
           "every so many layers one sees everything"),
    FV_WORDS(config, layer_types, "full_attention or sliding_attention for each layer"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding, which a classifier skips"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_FLOAT(config, classifier_dropout, 0, 0.1, 0.99, "dropout before labels of tokens"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV_BOOL(config, tie_word_embeddings, true, "the table is the output weight too"),
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

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"Gemma3ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Gemma3TextModel"},
    {"Gemma3TextModel", .job = FV_HEAD_BASE},
    {"Gemma3TextForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Gemma3TextModel"},
    {"Gemma3ForConditionalGeneration", FV_HEAD_CAUSAL_LM, .type = "gemma3"}, /* its text part */
    {0},
};

typedef struct block {
    fv_norm attn_norm, attn_post, mlp_norm, mlp_post;
    fv_mha attn;
    fv_mlp mlp;
} block;

typedef struct gemma3 {
    config cfg;
    fv_emb tokens;
    fv_rotary global, local;
    block *blocks;
    fv_norm norm;
    fv__causal_head head;
    bool with_images; /* the file has a model for images too, and names below "language_model." */
} gemma3;

static fv__rope_opt rope_opt(const config *k, bool local)
{
    return (fv__rope_opt){.head = k->head_dim,
                          .positions = k->max_position_embeddings,
                          .theta = local ? 10000 : 1e6f};
}

static bool is_local(const config *k, int i)
{
    return fv__layer_is_local(k->layer_types, i, (i + 1) % k->sliding_window_pattern != 0);
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->num_attention_heads % k->num_key_value_heads)
        return fv_fail(e, FV_EFORMAT, "%d attention heads cannot share %d key heads",
                       k->num_attention_heads, k->num_key_value_heads);
    if (k->hidden_size % k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of the attention heads, %d",
                       k->hidden_size, k->num_attention_heads);
    /* transformers would merge them: no file has both */
    if (fv__rope_is_given(&k->global.scaling) && fv__rope_is_given(&k->global.parameters))
        return fv_fail(e, FV_EFORMAT,
                       "rope_scaling and rope_parameters.full_attention are both given");
    fv_status st = fv__rope_check(&k->global, rope_opt(k, false), e);
    if (!st) st = fv__rope_check(&k->local, rope_opt(k, true), e);
    return st ? st : fv__layer_types_check(k->layer_types, k->num_hidden_layers, e);
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, block *b, const config *k, int i, const char *at)
{
    fv_norm_opt norm = {.rms = true, .plus_one = true, .eps = k->rms_norm_eps};
    fv_mha_init(p, &b->attn,
                (fv_mha_opt){.width = k->hidden_size,
                             .n_head = k->num_attention_heads,
                             .n_kv_head = k->num_key_value_heads,
                             .head = k->head_dim,
                             .window = is_local(k, i) ? k->sliding_window : 0,
                             .norm_heads = true,
                             .head_norm = norm,
                             .scale = (float)(1 / sqrt((double)k->query_pre_attn_scalar)),
                             .no_bias = !k->attention_bias,
                             .no_out_bias = !k->attention_bias,
                             .dropout = k->attention_dropout,
                             .std = k->initializer_range,
                             .out_name = "o_proj"},
                "%s.self_attn", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_activation),
                             .gated = true,
                             .no_bias = true,
                             .std = k->initializer_range,
                             .up_name = "up_proj",
                             .gate_name = "gate_proj",
                             .down_name = "down_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->attn_post, k->hidden_size, norm, "%s.post_attention_layernorm", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.pre_feedforward_layernorm", at);
    fv_norm_init(p, &b->mlp_post, k->hidden_size, norm, "%s.post_feedforward_layernorm", at);
}

/* x += norm attn(norm x), q and k normed and rotated;
 * x += norm down(gelu(gate n) * up n), n = norm x */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    fv_tensor *h = fv_mha_fwd(c, &b->attn, fv_norm_fwd(c, &b->attn_norm, x), arg);
    h = fv_norm_add(c, &b->mlp_norm, &x, x, fv_norm_fwd(c, &b->attn_post, h));
    return fv_add(c, x, fv_norm_fwd(c, &b->mlp_post, fv_mlp_fwd(c, &b->mlp, h)));
}

static void declare(void *self, const fv_setup *s)
{
    gemma3 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->with_images = s->file && !fv_st_find(s->file, "language_model.model.norm.weight",
                                            &(fv_st_info){0}, NULL);
    m->global = fv__rope_rotary(&k->global, rope_opt(k, false));
    m->local = fv__rope_rotary(&k->local, rope_opt(k, true));
    /* transformers looks for yarn's truncate beside the objects of the two, where none has it */
    m->global.no_truncate = m->local.no_truncate = false;
    const char *below = s->head->job == FV_HEAD_BASE ? "" : "model.";
    fv_emb_init(p, &m->tokens, k->vocab_size, k->hidden_size,
                (fv_emb_opt){.scale = (float)sqrt((double)k->hidden_size),
                             .has_pad = k->pad_token_id >= 0,
                             .pad = k->pad_token_id,
                             .std = k->initializer_range},
                "%sembed_tokens", below);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char at[64];
        snprintf(at, sizeof at, "%slayers.%d", below, i);
        block_init(p, &m->blocks[i], k, i, at);
    }
    fv_norm_init(p, &m->norm, k->hidden_size,
                 (fv_norm_opt){.rms = true, .plus_one = true, .eps = k->rms_norm_eps}, "%snorm",
                 below);
    fv__causal_init(p, &m->head, s->head->job, m->tokens.table,
                    (fv__causal_opt){.tied = k->tie_word_embeddings,
                                     .labels = k->num_labels,
                                     .problem = k->problem_type,
                                     .pad = k->pad_token_id,
                                     .dropout = k->classifier_dropout,
                                     .std = k->initializer_range});
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.weight", "model.embed_tokens.weight"}, {NULL, NULL}};
    static const char *const images[] = {"vision_tower.*", "multi_modal_projector.*", NULL};
    const gemma3 *m = self;
    fv_head_job job = m->head.job;
    bool tied = job == FV_HEAD_CAUSAL_LM && m->cfg.tie_word_embeddings;
    if (m->with_images)
        return (fv_load_opt){.prefix = job == FV_HEAD_BASE ? "language_model.model."
                                                           : "language_model.",
                             .ties = tied ? ties : NULL,
                             .ignore = images};
    return (fv_load_opt){.prefix = "model.",
                         .ties = tied ? ties : NULL,
                         .ignore = fv__causal_ignored(job)};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    gemma3 *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    m->head.w = fv__packed(p, m->head.w, dtype);
}

/* ---- forward ---- */

/* All blocks, local ones by a rotation of their own; in a session the keys and values of each are
 * kept there. */
static fv_tensor *blocks(fv_ctx *c, const gemma3 *m, fv_session *s, fv_tensor *x, fv_mha_arg arg,
                         fv_rope_arg local)
{
    fv_mark mark = fv_mark_here(c);
    fv_rope_arg global = arg.rope;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_kv kv;
        arg.rope = is_local(&m->cfg, i) ? local : global;
        if (s) {
            kv = fv__self_cache(c, s, i, &m->blocks[i].attn, &arg);
            arg.kv = &kv;
        } else {
            fv_tap(c, "hidden", "hidden_states", x);
        }
        x = fv_layer_run(c, block_fwd, &m->blocks[i], x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const gemma3 *m = self;
    fv_tensor *next = m->head.job == FV_HEAD_CAUSAL_LM ? fv__next_labels(c, in) : NULL;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, fv_items_get(in, "input_ids"));
    fv_mha_arg arg = {.causal = true, .key_mask = fv_items_get(in, "attention_mask")};
    arg.rope = fv__rope_batch(c, &m->global, in);
    x = blocks(c, m, NULL, x, arg, fv__rope_batch(c, &m->local, in));
    x = fv_norm_fwd(c, &m->norm, x);
    fv_tap(c, "hidden", "hidden_states", x);
    fv__causal_put(c, &m->head, in, out, x, next);
}

/* ---- generation ---- */

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const gemma3 *m = self;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    fv_mha_arg arg = {.causal = true, .rope = fv__rope_step(c, &m->global, s, ids)};
    x = blocks(c, m, s, x, arg, fv__rope_step(c, &m->local, s, ids));
    return fv__last_scores(c, x, &m->norm, m->head.w);
}

static int64_t vocabulary(const void *self)
{
    const gemma3 *m = self;
    return m->head.job == FV_HEAD_CAUSAL_LM ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    const gemma3 *m = self;
    bool dynamic = m->global.kind == FV_ROTARY_DYNAMIC && m->local.kind == FV_ROTARY_DYNAMIC;
    return dynamic ? 0 : m->cfg.max_position_embeddings;
}

const fv_family fv__family_gemma3 = {
    .type = "gemma3_text",
    .also = also,
    .part = "text_config",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(gemma3),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
