/* mpnet.c - MPNet: BERT's layers with a bias for each distance, shared by all of them.
 *
 *     x = norm(words + positions);   layers as BERT's, their scores with bias[bucket(key - query)]
 *
 * Distances fall into 32 buckets, as T5's of an encoder; positions count what is no padding, as
 * RoBERTa's, and the padding is token 1 whatever the configuration says.
 *
 * Paper: Song et al. 2020 (arXiv:2004.09297). It is known as the encoder under many sentence
 * embeddings. Names are those of transformers' MPNetModel: attention.attn.q, and one
 * relative_attention_bias of the encoder. */
#include <stddef.h>
#include <stdio.h>

#include "model/bert.h"

enum { PAD = 1, BUCKETS = 32, FARTHEST = 128 };

static const fv_family_head heads[] = {
    {"MPNetModel", .job = FV_HEAD_BASE},
    {"MPNetForMaskedLM", FV_HEAD_MASKED_LM, .base = "MPNetModel"},
    {"MPNetForSequenceClassification", FV_HEAD_CLASSIFY, .base = "MPNetModel"},
    {"MPNetForTokenClassification", FV_HEAD_TAG, .base = "MPNetModel"},
    {"MPNetForQuestionAnswering", FV_HEAD_ANSWER, .base = "MPNetModel"},
    {"MPNetForMultipleChoice", FV_HEAD_CHOICE, .base = "MPNetModel"},
    {0},
};

typedef fv__bert_config config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 2, 30527, 1 << 24, "tokens"),
    FV_INT(config, max_position_embeddings, PAD + 2, 512, 1 << 20,
           "rows of the position table: the longest sequence and two"),
    FV__ENCODER_FIELDS(768, 12, 12, 3072, 0, 0.1, 1e-12),
    {0},
};

static const fv_key_rule rules[] = {
    /* the published code counts 32 whatever this says, and fails with fewer */
    {"relative_attention_num_buckets", "32"},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {0}};

typedef struct mpnet {
    config cfg;
    fv_head_job job;
    fv_emb words, positions;
    fv_norm norm;
    fv_rel_bias rel;
    fv__bert_block *blocks;
    fv_lin dense, classifier; /* dense: the pooler, or the first layer of a classifier */
    fv__word_head masked;
} mpnet;

static fv_status check(const void *config_, fv_err *e) { return fv__bert_check(config_, e); }

/* ---- parameters ---- */

/* Below `at`, "mpnet.encoder.layer.0". */
static void block_init(fv_params *p, fv__bert_block *b, const config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->attn_dropout = b->mlp_dropout = k->hidden_dropout_prob;
    fv_lin_opt proj = {.std = k->initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj, .names = "q k v o"}, "%s.attention.attn", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.attention.LayerNorm", at);
    fv__bert_mlp_init(p, b, k, at);
}

/* A pooler (BERT's) for the bare encoder and choices; RoBERTa's two layers for classes. */
static void declare_head(mpnet *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    if (m->job == FV_HEAD_BASE || m->job == FV_HEAD_CHOICE)
        fv_lin_init(p, &m->dense, D, D, lin, "%spooler.dense",
                    m->job == FV_HEAD_BASE ? "" : "mpnet.");
    if (m->job == FV_HEAD_MASKED_LM) {
        fv__word_head_init(p, &m->masked, k, m->words.table, "lm_head.dense", "lm_head.layer_norm",
                           "lm_head");
        m->masked.act = FV_GELU; /* always by erf, whatever hidden_act is */
    }
    if (m->job == FV_HEAD_CLASSIFY) fv__two_layers_init(p, &m->dense, &m->classifier, k);
    if (m->job == FV_HEAD_TAG) fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_CHOICE) fv_lin_init(p, &m->classifier, D, 1, lin, "classifier");
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs");
}

static void declare(void *self, const fv_setup *s)
{
    mpnet *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "mpnet.";
    float std = k->initializer_range;
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, std, "%sembeddings.word_embeddings",
                at);
    fv_emb_init(p, &m->positions, k->max_position_embeddings, k->hidden_size, std,
                "%sembeddings.position_embeddings", at);
    m->words.skip = m->positions.skip = PAD;
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps},
                 "%sembeddings.LayerNorm", at);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layer.%d", at, i);
        block_init(p, &m->blocks[i], k, path);
    }
    fv_rel_bias_init(p, &m->rel, BUCKETS, k->num_attention_heads, FARTHEST, false,
                     "%sencoder.relative_attention_bias", at);
    declare_head(m, p);
}

/* Names that RoBERTa's files leave unread are the same here. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.decoder.bias", "lm_head.bias"},
                                  {"lm_head.decoder.weight",
                                   "mpnet.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"lm_head.decoder.bias", "lm_head.bias"}, {NULL, NULL}};
    static const char *const pooler[] = {"pooler.dense.*", NULL};
    const mpnet *m = self;
    bool words = m->job == FV_HEAD_MASKED_LM;
    return (fv_load_opt){.prefix = "mpnet.",
                         .ties = m->cfg.tie_word_embeddings ? ties : bias_alone,
                         .fresh = pooler,
                         .ignore = words ? fv__roberta_unread_words : fv__roberta_unread};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    mpnet *m = self;
    return m->job == FV_HEAD_BASE ? fv__bert_pooler_ready(p, &m->dense, e) : FV_OK;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    mpnet *m = self;
    fv__bert_pack(p, m->blocks, m->cfg.num_hidden_layers, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

/* Positions begin behind the padding's row. */
static int64_t longest(const void *self)
{
    return ((const mpnet *)self)->cfg.max_position_embeddings - PAD - 1;
}

/* ---- forward ---- */

/* (B,T) -> (B,T,D).  The bias by distance is one tensor for all layers. */
static fv_tensor *encode(fv_ctx *c, const mpnet *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *at = fv_items_get(in, "position_ids");
    if (!at && fv_dim(ids, 1) > longest(m))
        return fv_raise(c, FV_ESHAPE, "mpnet: input_ids %s, but the longest sequence has %lld",
                        fv_desc(ids).s, (long long)longest(m));
    if (!at) at = fv_positions_unpadded(c, ids, PAD);
    fv_some_rows of[] = {{m->words.table, .ids = ids, .skip = PAD},
                         {m->positions.table, .ids = at, .skip = PAD}};
    fv__layers_arg arg = {.self = fv_masked(c, fv_items_get(in, "attention_mask"))};
    arg.self.rel = fv_rel_bias_fwd(c, &m->rel, &arg.self.rel_zero);
    fv_tensor *x = at ? fv__embed(c, of, 2, m->norm.gain, m->norm.bias, m->norm.eps) : NULL;
    x = fv__layers_run(c, fv__bert_block_fwd, m->blocks, sizeof *m->blocks, k->num_hidden_layers,
                       fv_dropout(c, x, k->hidden_dropout_prob), arg, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* Dropout of the classifiers is the layers': there is no key of their own. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const mpnet *m = self;
    float dropout = m->job == FV_HEAD_ANSWER ? 0 : m->cfg.hidden_dropout_prob;
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *x = encode(c, m, &flat), *first = m->dense.w ? fv_first(c, x) : NULL;
    if (m->job == FV_HEAD_CLASSIFY) first = fv_dropout(c, first, dropout);
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked, dropout,
                                       m->cfg.problem_type},
                    x, first ? fv_lin_act(c, &m->dense, first, FV_TANH) : NULL);
}

const fv_family fv__family_mpnet = {
    FV__FAMILY_PARTS(mpnet),
    .type = "mpnet",
    .longest = longest,
    .ready = ready,
};
