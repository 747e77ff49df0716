/* gpt2.c - GPT-2: a stack of causal layers with the norm first, learned positions, one table for
 * input and output.
 *
 *     x = E[ids] + P[positions];   x += attn(ln_1 x);   x += mlp(ln_2 x);   logits = ln_f(x) E'
 *
 * Its weights are stored (in,out), and one of them holds q, k and v.  With add_cross_attention a
 * layer also attends to what another model has encoded, x += cross(ln_cross x), in between: so it
 * writes captions (vision-encoder-decoder).  Files have the names below
 * "transformer." or, in the oldest ones, without it; their masks (attn.bias) are constants and are
 * left unread.
 *
 * Paper: Radford et al. 2019, Language Models are Unsupervised Multitask Learners. Names are
 * those of transformers' GPT2Model and of the files OpenAI published: h.N.attn.c_attn, mlp.c_fc.
 * Types of tokens, if given, are looked up in the table of words, as published. */
#include <math.h>
#include <stdio.h>

#include "model/causal.h"
#include "ops/embed.h"

typedef struct config {
    fv__causal_config head;
    int vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
    int activation_function;
    float resid_pdrop, embd_pdrop, attn_pdrop, layer_norm_epsilon;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx, add_cross_attention;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50257, 1 << 24, "tokens"),
    FV_INT(config, n_positions, 1, 1024, 1 << 20, "longest sequence"),
    FV_INT(config, n_embd, 1, 768, 1 << 16, "model width"),
    FV_INT(config, n_layer, 1, 12, FV__MAX_LAYERS, "layers"),
    FV_INT(config, n_head, 1, 12, 256, "attention heads"),
    FV_INT(config, n_inner, 1, 0, 1 << 18,
           "width of the feed-forward part; four times the model's if not said"),
    FV_CHOICE(config, activation_function, 4, fv_act_words, "of the feed-forward part"),
    FV_FLOAT(config, resid_pdrop, 0, 0.1, 0.99, "dropout on what each part of a layer adds"),
    FV_FLOAT(config, embd_pdrop, 0, 0.1, 0.99, "dropout on the embeddings"),
    FV_FLOAT(config, attn_pdrop, 0, 0.1, 0.99, "dropout on the attention weights"),
    FV_FLOAT(config, layer_norm_epsilon, 1e-12, 1e-5, 1, "added to the variance"),
    FV_BOOL(config, scale_attn_weights, true,
            "scores are divided by the square root of the head's width"),
    FV_BOOL(config, scale_attn_by_inverse_layer_idx, false, "and by the layer's number, from 1"),
    FV_BOOL(config, add_cross_attention, false, "layers attend to what another model encoded"),
    FV__CAUSAL_FIELDS(config, head, -1, true),
    {0},
};

/* summary_* belong to the head for multiple choice, which is not here. */
static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"is_decoder", "true"}, /* it always is one */
    {"n_ctx", NULL},
    {"reorder_and_upcast_attn", NULL}, /* a matter of half precision: sums are f32 here */
    {"summary_activation", NULL},
    {"summary_first_dropout", NULL},
    {"summary_proj_to_labels", NULL},
    {"summary_type", NULL},
    {"summary_use_proj", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"token_type_ids", FV_I32, false},
    {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {"start_positions", FV_I32, false},
    {"end_positions", FV_I32, false},
    {"encoder_hidden_states", FV_F32, false},
    {"encoder_attention_mask", FV_U8, false},
    {0},
};

static const fv_family_head heads[] = {
    {"GPT2LMHeadModel", FV_HEAD_CAUSAL_LM, .base = "GPT2Model"},
    {"GPT2Model", .job = FV_HEAD_BASE},
    {"GPT2ForSequenceClassification", FV_HEAD_CLASSIFY, .base = "GPT2Model"},
    {"GPT2ForTokenClassification", FV_HEAD_TAG, .base = "GPT2Model"},
    {"GPT2ForQuestionAnswering", FV_HEAD_ANSWER, .base = "GPT2Model"},
    {0},
};

typedef struct block {
    fv__pre_norm base;
    fv_norm ln_cross;
    fv_mha cross;
    fv_lin cross_kv; /* k and v in one; cross itself has q and the last product */
} block;

typedef struct gpt2 {
    fv__causal base;
    config cfg;
    fv_pos wpe;
} gpt2;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->n_embd % k->n_head)
        return fv_fail(e, FV_EFORMAT, "n_embd %d is no multiple of the attention heads, %d",
                       k->n_embd, k->n_head);
    return FV_OK;
}

/* Below `at`, "transformer.h.0.crossattention". */
static void cross_init(fv_params *p, block *b, const config *k, float scale, const char *at)
{
    fv_lin_opt lin = {.in_out = true, .std = k->head.initializer_range};
    int64_t D = k->n_embd;
    fv_mha_bare(p, &b->cross, k->n_head, D / k->n_head, "%s", at);
    b->cross.scale = scale;
    b->cross.dropout = k->attn_pdrop;
    fv_lin_init(p, &b->cross_kv, D, 2 * D, lin, "%s.c_attn", at);
    fv_lin_init(p, &b->cross.q, D, D, lin, "%s.q_attn", at);
    fv_lin_init(p, &b->cross.out, D, D, lin, "%s.c_proj", at);
    fv_param_mark_end(b->cross.out.w, FV_ENDS_ATTENTION);
}

/* Below `at`, "transformer.h.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    block *b = block_;
    const config *k = config_;
    double scale = k->scale_attn_weights ? 1 / sqrt((double)k->n_embd / k->n_head) : 1;
    if (k->scale_attn_by_inverse_layer_idx) scale /= i + 1;
    fv_norm_opt norm = {.eps = k->layer_norm_epsilon};
    b->base.dropout = k->resid_pdrop;
    fv_lin_opt proj = {.in_out = true, .std = k->head.initializer_range};
    fv_mha_init(p, &b->base.attn, k->n_embd, k->n_head,
                (fv_mha_opt){.in = proj, .out = proj, .names = "c_attn c_proj"}, "%s.attn", at);
    b->base.attn.scale = (float)scale;
    b->base.attn.dropout = k->attn_pdrop;
    fv_norm_init(p, &b->base.attn_norm, k->n_embd, norm, "%s.ln_1", at);
    fv_mlp_init(p, &b->base.mlp, k->n_embd, k->n_inner ? k->n_inner : 4 * k->n_embd,
                (fv_mlp_opt){.act = fv_act_of(k->activation_function),
                             .lin = {.in_out = true, .std = k->head.initializer_range},
                             .names = "c_fc c_proj"},
                "%s.mlp", at);
    fv_norm_init(p, &b->base.mlp_norm, k->n_embd, norm, "%s.ln_2", at);
    if (!k->add_cross_attention) return;
    char path[96];
    snprintf(path, sizeof path, "%s.crossattention", at);
    cross_init(p, b, k, (float)scale, path);
    fv_norm_init(p, &b->ln_cross, k->n_embd, norm, "%s.ln_cross_attn", at);
}

/* Keys and values of what is attended to (B,T,D), for one layer. */
static fv_kv cross_keys(fv_ctx *c, const block *b, fv_tensor *memory)
{
    fv_tensor *half[2] = {NULL, NULL};
    fv_split(c, half, fv_lin_fwd(c, &b->cross_kv, memory), 2, -1);
    return (fv_kv){.k = half[0], .v = half[1]};
}

/* x += attn(ln_1 x);  x += cross(ln_cross x), where there is something to see;  x += mlp(ln_2 x) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg cross)
{
    const block *b = self;
    const fv__pre_norm *p = &b->base;
    if (cross.kv)
        return fv_pre_norm_cross(c, &p->attn_norm, &p->attn, &b->ln_cross, &b->cross, &p->mlp_norm,
                                 &p->mlp, x, arg, cross, p->dropout);
    return fv__pre_norm_fwd(c, p, x, arg, cross);
}

/* The head of a file that has none is the table of tokens. */
static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, block_fwd};
    gpt2 *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    const char *below = s->head->job == FV_HEAD_BASE ? "" : "transformer.";
    m->base.context = k->n_positions;
    fv_emb_init(p, &m->base.tokens, k->vocab_size, k->n_embd, k->head.initializer_range, "%swte",
                below);
    fv_pos_init(p, &m->wpe, k->n_positions, k->n_embd, FV_POS_LEARNED, 0, k->head.initializer_range,
                "%swpe", below);
    fv__causal_blocks(p, &m->base, &type, k->n_layer, k, "%sh", below);
    fv_norm_init(p, &m->base.norm, k->n_embd, (fv_norm_opt){.eps = k->layer_norm_epsilon}, "%sln_f",
                 below);
    fv__causal_head_init(p, &m->base, s->head->job, &k->head, NULL, "classifier");
}

/* Masks in old files are constants of 1024 x 1024 for each layer. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.weight", "transformer.wte.weight"}, {NULL, NULL}};
    static const char *const masks[] = {"*.attn.bias", "*.attn.masked_bias",
                                        "*.crossattention.bias", "*.crossattention.masked_bias",
                                        NULL};
    static const char *const masks_and_heads[] = {"*.attn.bias",
                                                  "*.attn.masked_bias",
                                                  "lm_head.weight",
                                                  "score.weight",
                                                  "classifier.*",
                                                  "qa_outputs.*",
                                                  NULL};
    const fv__causal *m = self;
    return (fv_load_opt){.prefix = "transformer.",
                         .ties = m->tied ? ties : NULL,
                         .ignore = m->head.job == FV_HEAD_BASE ? masks_and_heads : masks};
}

/* Blocks lie as raw memory in the shared part (model/causal.h), whose stack knows their size
 * only. */
static block *block_at(const gpt2 *m, int i) { return (block *)(void *)m->base.blocks + i; }

/* Keys and values of cross-attention are computed once for a whole caption; its q and the last
 * product for every token. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    gpt2 *m = self;
    fv__causal_pack(self, p, dtype);
    for (int i = 0; i < m->cfg.n_layer; i++) {
        fv_lin_pack(p, &block_at(m, i)->cross_kv, dtype);
        fv_mha_pack(p, &block_at(m, i)->cross, dtype, false);
    }
}

/* ---- forward ---- */

/* Tokens and positions in one pass; types, where they are given, are looked up in the same table as
 * tokens. */
static fv_tensor *embed(fv_ctx *c, const gpt2 *m, fv_tensor *ids, fv_tensor *types, fv_tensor *rows)
{
    if (fv_dim(ids, 1) > m->cfg.n_positions)
        return fv_raise(c, FV_EARG, "gpt2: %lld tokens, and n_positions is %d",
                        (long long)fv_dim(ids, 1), m->cfg.n_positions);
    fv_some_rows of[] = {
        {m->base.tokens.table, .ids = ids, .skip = m->base.tokens.skip},
        {m->wpe.table, .ids = rows, .count = fv_dim(ids, 1), .skip = -1},
    };
    fv_tensor *x = fv__embed_bare(c, of, 2);
    if (types) x = fv_add(c, x, fv_emb_fwd(c, &m->base.tokens, types));
    return fv_dropout(c, x, m->cfg.embd_pdrop);
}

/* What a layer attends to beside its own sequence: a session's, or memory (B,T,D); kv NULL:
 * nothing.  The keys must live until the backward pass. */
static fv_mha_arg across(fv_ctx *c, const gpt2 *m, fv_session *s, int i, fv_tensor *memory,
                         fv_tensor *mask)
{
    bool crosses = m->cfg.add_cross_attention && fv__causal_has(&m->base, i);
    fv_kv *kv = crosses ? fv__step_memory(c, sizeof *kv) : NULL;
    if (!kv) return (fv_mha_arg){0};
    *kv = s        ? fv__source_cache(c, s, i)
          : memory ? cross_keys(c, block_at(m, i), memory)
                   : (fv_kv){0};
    return (fv_mha_arg){.kv = kv->k ? kv : NULL, .key_mask = s ? fv__source_mask(c, s) : mask};
}

/* x (B,T,D) through all layers; s: a session that has the keys of earlier tokens, or NULL. */
static fv_tensor *run(fv_ctx *c, const gpt2 *m, fv_session *s, fv_tensor *x, fv_mha_arg arg,
                      fv_tensor *memory, fv_tensor *mask)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.n_layer; i++) {
        x = fv__causal_layer(c, &m->base, s, i, x, arg, across(c, m, s, i, memory, mask));
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

/* With labels the loss is of the next token: model/causal.h moves them. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const gpt2 *m = self;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *mask = fv_items_get(in, "attention_mask");
    fv_tensor *labels = fv__causal_labels(c, &m->base, in);
    fv_tensor *x = embed(c, m, ids, fv_items_get(in, "token_type_ids"),
                         fv_items_get(in, "position_ids"));
    fv_tensor *memory = fv_items_get(in, "encoder_hidden_states");
    if (memory && !m->cfg.add_cross_attention) {
        fv_raise(c, FV_EARG, "gpt2: encoder_hidden_states, but add_cross_attention is false");
        return;
    }
    x = run(c, m, NULL, x, (fv_mha_arg){.causal = true, .key_mask = mask}, memory,
            fv_items_get(in, "encoder_attention_mask"));
    fv__causal_put(c, &m->base, in, out, fv_norm_fwd(c, &m->base.norm, x), labels);
}

/* ---- generation ---- */

/* New tokens of each sequence, (B,T), behind those of the session -> logits of the last (B,V). */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const gpt2 *m = self;
    fv_tensor *x = embed(c, m, ids, NULL, fv_session_positions(c, s));
    x = run(c, m, s, x, (fv_mha_arg){.causal = true}, NULL, NULL);
    return fv__last_scores(c, x, &m->base.norm, m->base.head.w, NULL);
}

/* Keys and values of what the decoder looks at, for every layer, into the session. */
static void attend(fv_ctx *c, const void *self, fv_session *s, fv_tensor *x, fv_tensor *mask)
{
    const gpt2 *m = self;
    if (!m->cfg.add_cross_attention)
        fv_raise(c, FV_EARG, "gpt2: add_cross_attention is false, so it attends to nothing else");
    fv__source_mask_keep(c, s, mask);
    for (int i = m->base.first; m->cfg.add_cross_attention && i < m->base.end; i++)
        fv__source_keep(c, s, i, cross_keys(c, block_at(m, i), x));
}

const fv_family fv__family_gpt2 = {
    .type = "gpt2",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(gpt2),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .attend = attend,
    .step = step,
    FV__CAUSAL_SIZES,
};
