/* llama.c - Llama, and Mistral and Qwen2, which differ from it by configuration alone.
 *
 *     x = E[ids];   x += attn(norm x), rotary positions;
 *     x += down(silu(gate n) * up n), n = norm x;   logits = norm(x) W'
 *
 * RMS norms, fewer key heads than query heads, no positions but the rotation.  A Mistral may see a
 * window of keys only, a Qwen2 in some of its layers; a Qwen2 has biases on q, k and v. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/part.h"

#define MAX_LAYER 256
#define MAX_HEAD 512

enum { LLAMA, MISTRAL, QWEN2 };
static const char *const types[] = {"llama", "mistral", "qwen2", NULL};

static const char *const rope_words[] = {"default", "linear", "dynamic", "yarn", "llama3", NULL};
static const fv_rotary_kind rope_kinds[] = {FV_ROTARY_PLAIN, FV_ROTARY_LINEAR, FV_ROTARY_DYNAMIC,
                                            FV_ROTARY_YARN, FV_ROTARY_LLAMA3};

typedef struct rope {
    int type, original;
    float theta, factor, low, high, slow, fast, attention, mscale, mscale_all;
    bool truncate;
} rope;

typedef struct config {
    int model_type;
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings, sliding_window, max_window_layers, pad_token_id,
        num_labels, problem_type;
    float rms_norm_eps, attention_dropout, initializer_range;
    bool attention_bias, mlp_bias, tie_word_embeddings, use_sliding_window;
    char layer_types[FV__LAYER_TYPES];
    rope rope;
} config;

/* The rotation's keys stand in rope_parameters, in older files in rope_scaling with rope_theta
 * outside. */
#define ROPE(at)                                                                                   \
    FV_CHOICE_KEY(at ".rope_type", config, rope.type, 0, rope_words,                               \
                  "how positions beyond the trained ones are made"),                               \
        FV_CHOICE_KEY(at ".type", config, rope.type, 0, rope_words,                                \
                      "the same, as older files have it"),                                         \
        FV_FLOAT_KEY(at ".rope_theta", config, rope.theta, 1, 0, 1e12,                             \
                     "base of the frequencies; 10000 if not said"),                                \
        FV_FLOAT_KEY(at ".factor", config, rope.factor, 1e-3, 0, 1e6,                              \
                     "how much longer than trained"),                                              \
        FV_INT_KEY(at ".original_max_position_embeddings", config, rope.original, 1, 0, 1 << 28,   \
                   "positions trained on"),                                                        \
        FV_FLOAT_KEY(at ".low_freq_factor", config, rope.low, 1e-3, 0, 1e6, "llama3"),             \
        FV_FLOAT_KEY(at ".high_freq_factor", config, rope.high, 1e-3, 0, 1e6, "llama3"),           \
        FV_FLOAT_KEY(at ".beta_slow", config, rope.slow, 1e-3, 0, 1e6, "yarn; 1 if not said"),     \
        FV_FLOAT_KEY(at ".beta_fast", config, rope.fast, 1e-3, 0, 1e6, "yarn; 32 if not said"),    \
        FV_FLOAT_KEY(at ".attention_factor", config, rope.attention, 1e-3, 0, 1e6,                 \
                     "yarn; by the factor if not said"),                                           \
        FV_FLOAT_KEY(at ".mscale", config, rope.mscale, 1e-3, 0, 1e6, "yarn"),                     \
        FV_FLOAT_KEY(at ".mscale_all_dim", config, rope.mscale_all, 1e-3, 0, 1e6, "yarn"),         \
        FV_BOOL_KEY(at ".truncate", config, rope.truncate, true,                                   \
                    "yarn: the ramp's bounds are whole numbers")

static const fv_field fields[] = {
    FV_CHOICE(config, model_type, LLAMA, types, "which of them"),
    FV_INT(config, vocab_size, 1, 32000, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 4096, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 11008, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 32, MAX_LAYER, "layers"),
    FV_INT(config, num_attention_heads, 1, 32, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 0, 256, "heads of keys and values; as many if not said"),
    FV_INT(config, head_dim, 1, 0, MAX_HEAD,
           "width of a head; the model's divided by the heads if not said"),
    FV_CHOICE(config, hidden_act, 2, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 2048, 1 << 28, "longest sequence"),
    FV_INT(config, sliding_window, 1, 0, 1 << 28, "keys a row sees"),
    FV_BOOL(config, use_sliding_window, false, "Qwen2: whether it does"),
    FV_INT(config, max_window_layers, 0, 28, MAX_LAYER,
           "Qwen2: how many of the first layers have no window"),
    FV_WORDS(
        config, layer_types,
        "Qwen2: full_attention or sliding_attention for each layer, if not by max_window_layers"),
    FV_INT(config, pad_token_id, 0, -1, 1 << 24, "padding, which a classifier skips"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-6, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, attention_bias, false, "biases on q, k, v and the output"),
    FV_BOOL(config, mlp_bias, false, "biases in the feed-forward part"),
    FV_BOOL(config, tie_word_embeddings, false, "the table is the output weight too"),
    FV_FLOAT_KEY("rope_theta", config, rope.theta, 1, 0, 1e12,
                 "base of the rotation's frequencies; 10000 if not said"),
    ROPE("rope_scaling"),
    ROPE("rope_parameters"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"pretraining_tp", NULL}, /* splits sums, which changes rounding alone */
    {"partial_rotary_factor", "1.0"},
    {"rope_scaling.partial_rotary_factor", "1.0"},
    {"rope_parameters.partial_rotary_factor", "1.0"},
    {"rope_interleaved", "false"},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {0},
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
    {0},
};

typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
} block;

typedef struct llama {
    config cfg;
    fv_head_job job;
    fv_emb tokens;
    fv_rotary rotary;
    block *blocks;
    fv_norm norm;
    fv_tensor *out; /* (V,D) or, to classify, (labels,D); NULL: none */
} llama;

static int key_heads(const config *k)
{
    return k->num_key_value_heads ? k->num_key_value_heads : k->num_attention_heads;
}
static int head_dim(const config *k)
{
    return k->head_dim ? k->head_dim : k->hidden_size / k->num_attention_heads;
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (!k->head_dim && k->hidden_size % k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of the attention heads, %d",
                       k->hidden_size, k->num_attention_heads);
    if (head_dim(k) % 2 || head_dim(k) > MAX_HEAD)
        return fv_fail(e, FV_EFORMAT,
                       "head_dim %d: rotary positions need an even number of at most %d",
                       head_dim(k), MAX_HEAD);
    if (k->num_attention_heads % key_heads(k))
        return fv_fail(e, FV_EFORMAT, "%d attention heads cannot share %d key heads",
                       k->num_attention_heads, key_heads(k));
    if (k->rope.type && !(k->rope.factor > 0))
        return fv_fail(e, FV_EFORMAT, "rotary positions of type %s need a factor",
                       rope_words[k->rope.type]);
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

/* Keys of the file -> the rotation.  Yarn's bounds are named slow and fast there, llama3's low and
 * high; dynamic ones count from max_position_embeddings whatever the original length was. */
static fv_rotary rotary_of(const config *k)
{
    const rope *r = &k->rope;
    bool yarn = rope_kinds[r->type] == FV_ROTARY_YARN;
    fv_rotary y = {.kind = rope_kinds[r->type],
                   .width = head_dim(k),
                   .base = r->theta,
                   .factor = r->factor,
                   .trained = r->original ? r->original : k->max_position_embeddings,
                   .low = yarn ? r->slow : r->low,
                   .high = yarn ? r->fast : r->high,
                   .score_scale = r->attention,
                   .no_truncate = !r->truncate};
    if (y.kind == FV_ROTARY_DYNAMIC) y.trained = k->max_position_embeddings;
    if (!(r->attention > 0) && r->mscale > 0 && r->mscale_all > 0 && r->factor > 1)
        y.score_scale = (float)((0.1 * (double)r->mscale * log((double)r->factor) + 1) /
                                (0.1 * (double)r->mscale_all * log((double)r->factor) + 1));
    return y;
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, block *b, const config *k, int i, const char *at)
{
    bool biased = k->model_type == QWEN2 || (k->model_type == LLAMA && k->attention_bias);
    fv_norm_opt norm = {.rms = true, .eps = k->rms_norm_eps};
    fv_mha_init(p, &b->attn,
                (fv_mha_opt){.width = k->hidden_size,
                             .n_head = k->num_attention_heads,
                             .n_kv_head = key_heads(k),
                             .head = head_dim(k),
                             .window = window(k, i),
                             .no_bias = !biased,
                             .no_out_bias = !biased || k->model_type == QWEN2,
                             .dropout = k->attention_dropout,
                             .std = k->initializer_range,
                             .out_name = "o_proj"},
                "%s.self_attn", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .gated = true,
                             .no_bias = !(k->mlp_bias && k->model_type == LLAMA),
                             .std = k->initializer_range,
                             .up_name = "up_proj",
                             .gate_name = "gate_proj",
                             .down_name = "down_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

/* x += attn(norm x), rotated;  x += down(silu(gate n) * up n), n = norm x */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    if (fv_decode_block(c, &x, &b->attn_norm, &b->attn, &b->mlp_norm, &b->mlp, arg)) return x;
    fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
    h = fv_mha_add_norm(c, &b->attn, &x, h, arg, 0, &b->mlp_norm);
    return fv_mlp_add(c, &b->mlp, x, h, 0);
}

static void declare(void *self, const fv_setup *s)
{
    llama *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->job = s->head->job;
    m->rotary = rotary_of(k);
    const char *below = m->job == FV_HEAD_BASE ? "" : "model.";
    fv_emb_init(p, &m->tokens, k->vocab_size, k->hidden_size,
                (fv_emb_opt){.std = k->initializer_range}, "%sembed_tokens", below);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char at[64];
        snprintf(at, sizeof at, "%slayers.%d", below, i);
        block_init(p, &m->blocks[i], k, i, at);
    }
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.rms = true, .eps = k->rms_norm_eps},
                 "%snorm", below);
    m->out = fv__causal_output(p, m->job, m->tokens.table, k->tie_word_embeddings, k->num_labels,
                               k->initializer_range);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.weight", "model.embed_tokens.weight"}, {NULL, NULL}};
    static const char *const computed[] = {"*.rotary_emb.inv_freq", NULL};
    static const char *const computed_and_heads[] = {"*.rotary_emb.inv_freq", "lm_head.weight",
                                                     "score.weight", NULL};
    const llama *m = self;
    return (fv_load_opt){.prefix = "model.",
                         .ties = m->job == FV_HEAD_CAUSAL_LM && m->cfg.tie_word_embeddings ? ties
                                                                                           : NULL,
                         .ignore = m->job == FV_HEAD_BASE ? computed_and_heads : computed};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    llama *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* Rotary positions of a batch.  Those that grow with the length go by each row's own positions, so
 * that no row depends on those beside it; in training, where nothing is read back, by T. */
static fv_rope_arg rotations(fv_ctx *c, const llama *m, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "input_ids"), *pos = fv_items_get(in, "position_ids");
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1);
    bool grows = m->rotary.kind == FV_ROTARY_DYNAMIC && !fv_ctx_training(c) &&
                 (pos || T > m->rotary.trained);
    if (!pos) pos = fv_positions(c, B, T, 0);
    if (!grows) return fv_rotary_at(c, &m->rotary, pos, T);
    int64_t *len = fv__step_memory(c, (size_t)B * sizeof *len);
    bool ok = len && fv__row_lengths(c, pos, fv_items_get(in, "attention_mask"), len);
    return ok ? fv_rotary_rows(c, &m->rotary, pos, len, B) : (fv_rope_arg){0};
}

/* All blocks; in a session the keys and values of each are kept there. */
static fv_tensor *blocks(fv_ctx *c, const llama *m, fv_session *s, fv_tensor *x, fv_mha_arg arg)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_kv kv;
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
    const llama *m = self;
    fv_tensor *ids = fv_items_get(in, "input_ids");
    fv_tensor *next = m->job == FV_HEAD_CAUSAL_LM ? fv__next_labels(c, in) : NULL;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    fv_mha_arg arg = {.causal = true, .key_mask = fv_items_get(in, "attention_mask")};
    arg.rope = rotations(c, m, in);
    x = blocks(c, m, NULL, x, arg);
    x = fv_norm_fwd(c, &m->norm, x);
    fv_tap(c, "hidden", "hidden_states", x);
    fv__put_causal(c, in, out, m->job, x, m->out, next, m->cfg.pad_token_id, m->cfg.problem_type);
}

/* ---- generation ---- */

static fv_rope_arg step_rotations(fv_ctx *c, const llama *m, fv_session *s, fv_tensor *ids)
{
    fv_tensor *at = fv_session_positions(c, s);
    if (m->rotary.kind != FV_ROTARY_DYNAMIC) return fv_rotary_at(c, &m->rotary, at, 1);
    int64_t rows = fv_session_count(s), *len = fv__step_memory(c, (size_t)rows * sizeof *len);
    for (int64_t i = 0; len && i < rows; i++) len[i] = fv_session_span(s, i, fv_dim(ids, 1));
    return len ? fv_rotary_rows(c, &m->rotary, at, len, rows) : (fv_rope_arg){0};
}

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const llama *m = self;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    fv_mha_arg arg = {.causal = true, .rope = step_rotations(c, m, s, ids)};
    x = blocks(c, m, s, x, arg);
    return fv__last_scores(c, x, &m->norm, m->out);
}

static int64_t vocabulary(const void *self)
{
    const llama *m = self;
    return m->job == FV_HEAD_CAUSAL_LM ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    const llama *m = self;
    return m->rotary.kind == FV_ROTARY_DYNAMIC ? 0 : m->cfg.max_position_embeddings;
}

const fv_family fv__family_llama = {
    .type = "llama",
    .also = types + 1,
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(llama),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
