/* phi3.c - Phi-3, and Phi-4 of the same kind: a Llama with fused weights.
 *
 *     x = E[ids];   x += o(attn(rot q, rot k, v)), (q, k, v) = qkv(norm x);
 *     x += down(silu(g) * u), (g, u) = gate_up(norm x);   logits = norm(x) W'
 *
 * A part of each head may be rotated only, and frequencies may be those of longrope, which
 * rope_scaling calls su or yarn too; the length they were trained for stands beside it. */
#include <stddef.h>
#include <stdio.h>

#include "model/rope.h"

#define MAX_LAYER 256

typedef struct config {
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int hidden_act, max_position_embeddings, original_max_position_embeddings, sliding_window,
        pad_token_id, num_labels, problem_type;
    float rms_norm_eps, resid_pdrop, attention_dropout, classifier_dropout, initializer_range;
    bool tie_word_embeddings;
    fv__rope rope;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 32064, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 3072, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 8192, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 32, MAX_LAYER, "layers"),
    FV_INT(config, num_attention_heads, 1, 32, 256, "attention heads"),
    FV_INT(config, num_key_value_heads, 1, 0, 256, "heads of keys and values; as many if not said"),
    FV_INT(config, head_dim, 1, 0, 512,
           "width of a head; the model's divided by the heads if not said"),
    FV_CHOICE(config, hidden_act, 2, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 4096, 1 << 28, "longest sequence"),
    FV_INT(config, original_max_position_embeddings, 1, 4096, 1 << 28,
           "longrope: positions trained on"),
    FV_INT(config, sliding_window, 1, 0, 1 << 28, "keys a row sees"),
    FV_INT(config, pad_token_id, 0, 32000, 1 << 24, "padding, which a classifier skips"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    FV_FLOAT(config, resid_pdrop, 0, 0, 0.99, "dropout on what each part of a layer adds"),
    FV_FLOAT(config, rms_norm_eps, 1e-12, 1e-5, 1, "added to the mean of squares"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_FLOAT(config, classifier_dropout, 0, 0.1, 0.99, "dropout before labels of tokens"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, tie_word_embeddings, false, "the table is the output weight too"),
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

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"Phi3ForCausalLM", FV_HEAD_CAUSAL_LM, .base = "Phi3Model"},
    {"Phi3Model", .job = FV_HEAD_BASE},
    {"Phi3ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "Phi3Model"},
    {"Phi3ForTokenClassification", FV_HEAD_TAG, .base = "Phi3Model"},
    {0},
};

typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    float dropout;
} block;

typedef struct phi3 {
    config cfg;
    fv_emb tokens;
    fv_rotary rotary;
    block *blocks;
    fv_norm norm;
    fv__causal_head head;
} phi3;

static int key_heads(const config *k)
{
    return k->num_key_value_heads ? k->num_key_value_heads : k->num_attention_heads;
}
static int head_dim(const config *k)
{
    return k->head_dim ? k->head_dim : k->hidden_size / k->num_attention_heads;
}

static fv__rope_opt rope_opt(const config *k)
{
    return (fv__rope_opt){.head = head_dim(k),
                          .positions = k->max_position_embeddings,
                          .original = k->original_max_position_embeddings,
                          .yarn_is_long = true,
                          .rotates_partly = true};
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (!k->head_dim && k->hidden_size < k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is less than the attention heads, %d",
                       k->hidden_size, k->num_attention_heads);
    if (k->num_attention_heads % key_heads(k))
        return fv_fail(e, FV_EFORMAT, "%d attention heads cannot share %d key heads",
                       k->num_attention_heads, key_heads(k));
    fv_status st = fv__rope_check(&k->rope, rope_opt(k), e);
    if (st) return st;
    fv_rotary_kind kind = fv__rope_rotary(&k->rope, rope_opt(k)).kind;
    if (kind != FV_ROTARY_PLAIN && kind != FV_ROTARY_LONG)
        return fv_fail(e, FV_EFORMAT, "rotary positions of a phi3 are default or longrope");
    return FV_OK;
}

/* Below `at`, "model.layers.0". */
static void block_init(fv_params *p, block *b, const config *k, const char *at)
{
    b->dropout = k->resid_pdrop;
    fv_norm_opt norm = {.rms = true, .eps = k->rms_norm_eps};
    fv_mha_init(p, &b->attn,
                (fv_mha_opt){.width = k->hidden_size,
                             .n_head = k->num_attention_heads,
                             .n_kv_head = key_heads(k),
                             .head = head_dim(k),
                             .window = k->sliding_window,
                             .packed = true,
                             .no_bias = true,
                             .no_out_bias = true,
                             .dropout = k->attention_dropout,
                             .std = k->initializer_range,
                             .qkv_name = "qkv_proj",
                             .out_name = "o_proj"},
                "%s.self_attn", at);
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.input_layernorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act),
                             .gated = true,
                             .packed = true,
                             .no_bias = true,
                             .std = k->initializer_range,
                             .up_name = "gate_up_proj",
                             .down_name = "down_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.post_attention_layernorm", at);
}

/* x += attn(norm x), rotated;  x += down(silu(g) * u), (g, u) = gate_up(norm x) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
    h = fv_mha_add_norm(c, &b->attn, &x, h, arg, b->dropout, &b->mlp_norm);
    return fv_mlp_add(c, &b->mlp, x, h, b->dropout);
}

static void declare(void *self, const fv_setup *s)
{
    phi3 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    m->rotary = fv__rope_rotary(&k->rope, rope_opt(k));
    const char *below = s->head->job == FV_HEAD_BASE ? "" : "model.";
    fv_emb_init(p, &m->tokens, k->vocab_size, k->hidden_size,
                (fv_emb_opt){.has_pad = k->pad_token_id >= 0,
                             .pad = k->pad_token_id,
                             .std = k->initializer_range},
                "%sembed_tokens", below);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char at[64];
        snprintf(at, sizeof at, "%slayers.%d", below, i);
        block_init(p, &m->blocks[i], k, at);
    }
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.rms = true, .eps = k->rms_norm_eps},
                 "%snorm", below);
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
    const phi3 *m = self;
    fv_head_job job = m->head.job;
    bool tied = job == FV_HEAD_CAUSAL_LM && m->cfg.tie_word_embeddings;
    return (fv_load_opt){.prefix = "model.",
                         .ties = tied ? ties : NULL,
                         .ignore = fv__causal_ignored(job)};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    phi3 *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    m->head.w = fv__packed(p, m->head.w, dtype);
}

/* ---- forward ---- */

/* All blocks; in a session the keys and values of each are kept there. */
static fv_tensor *blocks(fv_ctx *c, const phi3 *m, fv_session *s, fv_tensor *x, fv_mha_arg arg)
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
    const phi3 *m = self;
    fv_tensor *next = m->head.job == FV_HEAD_CAUSAL_LM ? fv__next_labels(c, in) : NULL;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, fv_items_get(in, "input_ids"));
    fv_mha_arg arg = {.causal = true, .key_mask = fv_items_get(in, "attention_mask")};
    arg.rope = fv__rope_batch(c, &m->rotary, in);
    x = fv_norm_fwd(c, &m->norm, blocks(c, m, NULL, x, arg));
    fv_tap(c, "hidden", "hidden_states", x);
    fv__causal_put(c, &m->head, in, out, x, next);
}

/* ---- generation ---- */

static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const phi3 *m = self;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    fv_mha_arg arg = {.causal = true, .rope = fv__rope_step(c, &m->rotary, s, ids)};
    return fv__last_scores(c, blocks(c, m, s, x, arg), &m->norm, m->head.w);
}

static int64_t vocabulary(const void *self)
{
    const phi3 *m = self;
    return m->head.job == FV_HEAD_CAUSAL_LM ? m->cfg.vocab_size : 0;
}

static int64_t context(const void *self)
{
    return ((const phi3 *)self)->cfg.max_position_embeddings;
}

const fv_family fv__family_phi3 = {
    .type = "phi3",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(phi3),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .vocabulary = vocabulary,
    .context = context,
    .step = step,
};
