/* causal.c - everything of a decoder-only model but its block: tokens, the stack, heads, steps.
 *
 * A batch and a step of a session run the same layers.  A step appends keys and values to the
 * session's caches and computes the logits of the last position alone; a batch has no cache, shows
 * its hidden states and computes all positions. */
#include "model/causal.h"

#include <stdio.h>

#include "core/params.h"
#include "fovea/author/comm.h"
#include "nn/part.h"
#include "ops/stage.h"

#define TOKEN_INPUTS                                                                               \
    {"input_ids", FV_I32, true}, {"attention_mask", FV_U8, false},                                 \
        {"position_ids", FV_I32, false},                                                           \
    {                                                                                              \
        "labels", FV_I32, false                                                                    \
    }

const fv_input fv__causal_inputs[] = {TOKEN_INPUTS, {0}};
const fv_input fv__causal_span_inputs[] = {TOKEN_INPUTS,
                                           {"start_positions", FV_I32, false},
                                           {"end_positions", FV_I32, false},
                                           {0}};

/* ---- parameters ---- */

/* Blocks of a family begin with fv__pre_norm and may be larger. */
static fv__pre_norm *block_at(const fv__causal *m, int i)
{
    return (fv__pre_norm *)(void *)(m->blocks + (size_t)i * m->type->size);
}

/* The padding's row gets no gradient; -1: there is no padding. */
void fv__causal_tokens(fv_params *p, fv__causal *m, const fv__causal_config *k, int vocabulary,
                       int width, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_emb_init(p, &m->tokens, vocabulary, width, k->initializer_range, "%s", at.s);
    m->tokens.skip = k->pad_token_id;
}

/* The first layer of a stage. */
static int stage_from(const fv__causal *m, int stage)
{
    return m->n_layer * stage / fv_comm_size(m->stages);
}

static bool take_stage(fv_params *p, fv__causal *m)
{
    fv_err e;
    int stage = fv_comm_rank(p->stages);
    m->stages = p->stages;
    m->first = stage_from(m, stage);
    m->end = stage_from(m, stage + 1);
    p->in_stages = true;
    if (m->n_layer >= fv_comm_size(p->stages)) return true;
    fv_fail(&e, FV_EARG, "%d layers cannot be divided among %d ranks", m->n_layer,
            fv_comm_size(p->stages));
    fv__params_fail(p, &e);
    return false;
}

/* The family's init is called with the path of each layer: path.0, path.1, ... */
void fv__causal_blocks(fv_params *p, fv__causal *m, const fv__block_type *type, int n,
                       const void *config, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path below = fv__path(path, ap), at;
    va_end(ap);
    m->type = type;
    m->n_layer = n;
    m->blocks = fv_params_scratch(p, (size_t)n * type->size);
    if (!take_stage(p, m)) return;
    for (int i = m->first; m->blocks && i < m->end; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        at = fv__below(&below, number, number);
        type->init(p, block_at(m, i), config, i, at.s);
    }
}

/* Labels of a text have no bias, those of tokens and the ends of a span have one. */
void fv__causal_head_init(fv_params *p, fv__causal *m, fv_head_job job, const fv__causal_config *k,
                          const char *words, const char *tag)
{
    fv_tensor *table = m->tokens.table;
    m->tied = job == FV_HEAD_CAUSAL_LM && k->tie_word_embeddings;
    m->head = (fv__causal_head){.job = job,
                                .problem = k->problem_type,
                                .pad = k->pad_token_id,
                                .dropout = k->classifier_dropout};
    if (job == FV_HEAD_BASE || !table) return;
    int64_t D = fv_dim(table, 1);
    fv_path name = {""};
    fv_lin out = {0};
    fv_lin_opt how = {.std = k->initializer_range};
    switch (job) {
    case FV_HEAD_CAUSAL_LM:
        snprintf(name.s, sizeof name.s, "%s.weight", words ? words : "lm_head");
        out.w = fv__output(p, table, m->tied, how.std, name.s);
        break;
    case FV_HEAD_TAG: fv_lin_init(p, &out, D, k->num_labels, how, "%s", tag ? tag : "score"); break;
    case FV_HEAD_ANSWER: fv_lin_init(p, &out, D, 2, how, "qa_outputs"); break;
    default:
        how.no_bias = true;
        fv_lin_init(p, &out, D, k->num_labels, how, "score");
        break;
    }
    m->head.w = out.w;
    m->head.b = out.b;
}

void fv__causal_declare(const fv_setup *s, fv__causal *m, const fv__block_type *type,
                        const void *config, const fv__causal_config *k, fv__causal_dims d,
                        fv_norm_opt norm, const char *prefix)
{
    fv_params *p = s->params;
    m->context = d.positions;
    fv__causal_tokens(p, m, k, d.vocabulary, d.width, "%sembed_tokens", prefix);
    fv__causal_blocks(p, m, type, d.layers, config, "%slayers", prefix);
    fv_norm_init(p, &m->norm, d.width, norm, "%snorm", prefix);
    fv__causal_head_init(p, m, s->head->job, k, NULL, NULL);
}

/* Frequencies in old files are computed here; a bare model leaves heads unread. */
fv_load_opt fv__causal_load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.weight", "model.embed_tokens.weight"}, {NULL, NULL}};
    static const char *const computed[] = {"*.rotary_emb.inv_freq", NULL};
    static const char *const computed_and_heads[] = {"*.rotary_emb.inv_freq",
                                                     "lm_head.weight",
                                                     "embed_out.weight",
                                                     "score.*",
                                                     "classifier.*",
                                                     "qa_outputs.*",
                                                     NULL};
    const fv__causal *m = self;
    return (fv_load_opt){.prefix = "model.",
                         .ties = m->tied ? ties : NULL,
                         .ignore = m->head.job == FV_HEAD_BASE ? computed_and_heads : computed};
}

/* The table of tokens stays as it is, as rows are read of it; where it is the output weight too,
 * its packed copy is the head's. */
void fv__causal_pack(void *self, fv_params *p, fv_dtype dtype)
{
    fv__causal *m = self;
    for (int i = m->first; i < m->end; i++) {
        fv__pre_norm *block = block_at(m, i);
        fv_norm_pack(p, &block->attn_norm);
        fv_mha_pack(p, &block->attn, dtype, true);
        fv_norm_pack(p, &block->mlp_norm);
        fv_mlp_pack(p, &block->mlp, dtype);
    }
    fv_norm_pack(p, &m->norm);
    m->head.w = fv__packed(p, m->head.w, dtype);
}

/* ---- the stack ---- */

/* s: a session that has the keys of earlier tokens, NULL in a batch.  A layer that recomputes in
 * the backward pass has no session. */
static fv_tensor *run_layer(fv_ctx *c, const fv__causal *m, fv_session *s, int i, fv_tensor *x,
                            fv_mha_arg arg, fv_mha_arg cross)
{
    const fv__pre_norm *block = block_at(m, i);
    fv_kv kv;
    if (s) {
        kv = fv__self_cache(c, s, i, &block->attn, &arg);
        arg.kv = &kv;
    } else {
        fv_tap(c, "hidden", "hidden_states", x);
    }
    return fv_layer_run(c, m->type->fwd, block, x, arg, cross);
}

/* All ranks go through all layers, so they meet behind the last layer of each stage. */
static fv_tensor *leave_stage(fv_ctx *c, const fv__causal *m, int i, fv_tensor *x)
{
    int stage = 0, last = fv_comm_size(m->stages) - 1;
    while (stage_from(m, stage + 1) <= i) stage++;
    if (stage_from(m, stage + 1) > i + 1) return x;
    return fv__stage_pass(c, x, m->stages, stage, stage == last ? -1 : stage + 1);
}

fv_tensor *fv__causal_layer(fv_ctx *c, const fv__causal *m, fv_session *s, int i, fv_tensor *x,
                            fv_mha_arg arg, fv_mha_arg cross)
{
    if (fv__causal_has(m, i)) x = run_layer(c, m, s, i, x, arg, cross);
    return m->stages ? leave_stage(c, m, i, x) : x;
}

/* Layers that are local rotate by frequencies of their own (Gemma 3); all else is one loop. */
fv_tensor *fv__causal_run(fv_ctx *c, const fv__causal *m, fv_session *s, fv_tensor *x,
                          fv_mha_arg arg, fv_rope_arg local)
{
    fv_mark mark = fv_mark_here(c);
    fv_rope_arg global = arg.rope;
    for (int i = 0; i < m->n_layer; i++) {
        arg.rope = m->is_local && m->is_local[i] ? local : global;
        x = fv__causal_layer(c, m, s, i, x, arg, (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

/* ---- a batch ---- */

fv_tensor *fv__causal_labels(fv_ctx *c, const fv__causal *m, const fv_items *in)
{
    return m->head.job == FV_HEAD_CAUSAL_LM ? fv__next_labels(c, in) : NULL;
}

/* x (B,T,D) behind the last norm.  A classifier of texts reads the last token that is no
 * padding. */
void fv__causal_put(fv_ctx *c, const fv__causal *m, const fv_items *in, fv_items *out, fv_tensor *x,
                    fv_tensor *labels)
{
    const fv__causal_head *h = &m->head;
    fv_tensor *last;
    fv_tap(c, "hidden", "hidden_states", x);
    switch (h->job) {
    case FV_HEAD_BASE: fv_items_put(out, "last_hidden_state", x); break;
    case FV_HEAD_CAUSAL_LM: fv__put_words(c, in, out, x, h->w, labels); break;
    case FV_HEAD_TAG:
        x = fv_linear(c, fv_dropout(c, x, h->dropout), h->w, h->b, FV_ACT_NONE);
        fv__put_tokens(c, in, out, x, fv_items_get(in, "labels"));
        break;
    case FV_HEAD_ANSWER: fv_put_spans(c, fv_linear(c, x, h->w, h->b, FV_ACT_NONE), in, out); break;
    default:
        last = fv__last_but(c, x, fv_items_get(in, "input_ids"), h->pad);
        fv__put_classes(c, in, out, fv_linear(c, last, h->w, NULL, FV_ACT_NONE), h->problem);
    }
}

void fv__causal_forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__causal *m = self;
    fv_tensor *labels = fv__causal_labels(c, m, in);
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, fv_items_get(in, "input_ids"));
    fv_mha_arg arg = {.causal = true, .key_mask = fv_items_get(in, "attention_mask")};
    fv_rope_arg local = {0};
    arg.rope = fv__rope_batch(c, &m->rotary, in);
    if (m->is_local) local = fv__rope_batch(c, &m->local, in);
    x = fv__causal_run(c, m, NULL, fv_dropout(c, x, m->dropout), arg, local);
    fv__causal_put(c, m, in, out, fv_norm_fwd(c, &m->norm, x), labels);
}

/* ---- a step ---- */

fv_tensor *fv__causal_step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const fv__causal *m = self;
    fv_tensor *x = fv_emb_fwd(c, &m->tokens, ids);
    fv_mha_arg arg = {.causal = true, .rope = fv__rope_step(c, &m->rotary, s, ids)};
    fv_rope_arg local = {0};
    if (m->is_local) local = fv__rope_step(c, &m->local, s, ids);
    return fv__last_scores(c, fv__causal_run(c, m, s, x, arg, local), &m->norm, m->head.w, NULL);
}

int64_t fv__causal_vocabulary(const void *self)
{
    const fv__causal *m = self;
    return m->head.job == FV_HEAD_CAUSAL_LM ? fv_dim(m->tokens.table, 0) : 0;
}

/* Frequencies that grow with the length set no limit. */
int64_t fv__causal_context(const void *self)
{
    const fv__causal *m = self;
    bool grows = m->rotary.kind == FV_ROTARY_DYNAMIC &&
                 (!m->is_local || m->local.kind == FV_ROTARY_DYNAMIC);
    return grows ? 0 : m->context;
}
