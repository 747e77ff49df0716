/* distilbert.c - DistilBERT: BERT's encoder at half the depth, without token types and pooler,
 * under names of its own.
 *
 *     x = norm(words + positions);   x = norm(x + attn(x));   x = norm(x + mlp(x))
 *
 * Paper: Sanh et al. 2019 (arXiv:1910.01108). A classifier of texts puts a dense layer with ReLU
 * where BERT has the pooler with tanh, and the dropouts before heads are keys of their own.
 * Names are those of transformers' DistilBertModel: transformer.layer.N, q_lin, ffn.lin1. */
#include <stddef.h>

#include "model/bert.h"

#define MAX_LAYER 256
#define EPS 1e-12f /* under the square root of each norm; not configurable */

static const fv_family_head heads[] = {
    {"DistilBertModel", .job = FV_HEAD_BASE},
    {"DistilBertForMaskedLM", FV_HEAD_MASKED_LM, .base = "DistilBertModel"},
    {"DistilBertForSequenceClassification", FV_HEAD_CLASSIFY, .base = "DistilBertModel"},
    {"DistilBertForTokenClassification", FV_HEAD_TAG, .base = "DistilBertModel"},
    {"DistilBertForQuestionAnswering", FV_HEAD_ANSWER, .base = "DistilBertModel"},
    {"DistilBertForMultipleChoice", FV_HEAD_CHOICE, .base = "DistilBertModel"},
    {0},
};

typedef struct config {
    int vocab_size, dim, n_layers, n_heads, hidden_dim, max_position_embeddings, pad_token_id,
        num_labels;
    int activation, problem_type;
    float dropout, attention_dropout, qa_dropout, seq_classif_dropout, initializer_range;
    bool tie_word_embeddings;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 30522, 1 << 24, "tokens"),
    FV_INT(config, dim, 1, 768, 1 << 16, "model width"),
    FV_INT(config, n_layers, 1, 6, MAX_LAYER, "layers"),
    FV_INT(config, n_heads, 1, 12, 1024, "attention heads"),
    FV_INT(config, hidden_dim, 1, 3072, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20, "longest sequence"),
    FV_CHOICE(config, activation, 0, fv_act_words,
              "of the feed-forward part and of the masked-word head"),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99,
             "on the embeddings, the feed-forward part and before a token's classifier"),
    FV_FLOAT(config, attention_dropout, 0, 0.1, 0.99, "on the attention weights"),
    FV_FLOAT(config, qa_dropout, 0, 0.1, 0.99, "before the scores of spans"),
    FV_FLOAT(config, seq_classif_dropout, 0, 0.2, 0.99, "before a sequence's classifier"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels of a sequence are; not given: as they look"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_BOOL(config, tie_word_embeddings, true,
            "the input table scores the words of the masked-word head"),
    {0},
};

/* Sinusoids are what the positions of a new model may begin with, which are not made here. */
static const fv_key_rule rules[] = {
    {"sinusoidal_pos_embds", "false"},
    {"tie_weights_", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {0}};

/* A post-norm encoder block is BERT's (model/bert.h); what differs is that there are no types of
 * tokens, no pooler, and no dropout on what attention adds. */
typedef struct distilbert {
    config cfg;
    fv_head_job job;
    fv_emb words;
    fv_pos positions;
    fv_norm norm;
    fv__bert_block *layers;
    fv_lin dense, classifier; /* dense: the first layer of a sequence's classifier */
    fv__word_head masked;
} distilbert;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->dim % k->n_heads)
        return fv_fail(e, FV_EFORMAT, "dim %d is no multiple of n_heads %d", k->dim, k->n_heads);
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return FV_OK;
}

/* ---- parameters ---- */

/* "transformer.layer.0" and below it; a post-norm layer as BERT's, with names of its own. */
static void declare_layer(fv_params *p, fv__bert_block *l, const config *k, const char *at, int i)
{
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_mha_opt mha = {.in = lin, .out = lin, .names = "q_lin k_lin v_lin out_lin"};
    fv_mlp_opt mlp = {.act = fv_act_of(k->activation), .lin = lin, .names = "lin1 lin2"};
    l->mlp_dropout = k->dropout; /* there is none on what attention adds */
    fv_mha_init(p, &l->attn, k->dim, k->n_heads, mha, "%stransformer.layer.%d.attention", at, i);
    l->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &l->attn_norm, k->dim, (fv_norm_opt){.eps = EPS},
                 "%stransformer.layer.%d.sa_layer_norm", at, i);
    fv_mlp_init(p, &l->mlp, k->dim, k->hidden_dim, mlp, "%stransformer.layer.%d.ffn", at, i);
    fv_norm_init(p, &l->mlp_norm, k->dim, (fv_norm_opt){.eps = EPS},
                 "%stransformer.layer.%d.output_layer_norm", at, i);
}

/* Names of the heads as published: vocab_transform, vocab_layer_norm and vocab_projector make the
 * masked-word head, pre_classifier is what BERT calls its pooler, with relu for tanh. */
static void declare_head(distilbert *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    if (m->job == FV_HEAD_MASKED_LM) {
        fv__word_head *l = &m->masked;
        l->act = fv_act_of(k->activation);
        fv_lin_init(p, &l->dense, k->dim, k->dim, lin, "vocab_transform");
        fv_norm_init(p, &l->norm, k->dim, (fv_norm_opt){.eps = EPS}, "vocab_layer_norm");
        l->scores = fv__output(p, m->words.table, k->tie_word_embeddings, k->initializer_range,
                               "vocab_projector.weight");
        l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size),
                           "vocab_projector.bias");
    }
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_CHOICE)
        fv_lin_init(p, &m->dense, k->dim, k->dim, lin, "pre_classifier");
    if (m->job == FV_HEAD_CHOICE) fv_lin_init(p, &m->classifier, k->dim, 1, lin, "classifier");
    if (m->job == FV_HEAD_CLASSIFY || m->job == FV_HEAD_TAG)
        fv_lin_init(p, &m->classifier, k->dim, k->num_labels, lin, "classifier");
    if (m->job == FV_HEAD_ANSWER) fv_lin_init(p, &m->classifier, k->dim, 2, lin, "qa_outputs");
}

static void declare(void *self, const fv_setup *s)
{
    distilbert *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "distilbert.";
    fv_emb_init(p, &m->words, k->vocab_size, k->dim, k->initializer_range,
                "%sembeddings.word_embeddings", at);
    m->words.skip = k->pad_token_id;
    fv_pos_init(p, &m->positions, k->max_position_embeddings, k->dim, FV_POS_LEARNED, 0,
                k->initializer_range, "%sembeddings.position_embeddings", at);
    fv_norm_init(p, &m->norm, k->dim, (fv_norm_opt){.eps = EPS}, "%sembeddings.LayerNorm", at);
    m->layers = fv_params_scratch(p, (size_t)k->n_layers * sizeof *m->layers);
    for (int i = 0; m->layers && i < k->n_layers; i++) declare_layer(p, &m->layers[i], k, at, i);
    declare_head(m, p);
}

/* A file of one head opens as another: what belongs to other heads is left unread.  The masked-word
 * head shares the table of words, which files may hold twice. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"vocab_projector.weight",
                                   "distilbert.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const char *const own[] = {"*embeddings.position_ids", NULL};
    static const char *const others[] = {"*embeddings.position_ids",
                                         "vocab_*",
                                         "pre_classifier.*",
                                         "classifier.*",
                                         "qa_outputs.*",
                                         NULL};
    const distilbert *m = self;
    return (fv_load_opt){.prefix = "distilbert.",
                         .ties = m->cfg.tie_word_embeddings ? ties : NULL,
                         .ignore = m->job == FV_HEAD_MASKED_LM ? own : others};
}

/* The last layer of a classifier stays as it is: it is small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    distilbert *m = self;
    fv__bert_pack(p, m->layers, m->cfg.n_layers, dtype);
    if (m->dense.w) fv_lin_pack(p, &m->dense, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

static int64_t longest(const void *self)
{
    return ((const distilbert *)self)->cfg.max_position_embeddings;
}

/* ---- forward ---- */

/* (B,T) ids -> (B,T,dim).  Words and positions are looked up, added and normed in one pass over the
 * rows. */
static fv_tensor *encode(fv_ctx *c, const distilbert *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids");
    if (fv_dim(ids, 1) > k->max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "distilbert: input_ids %s, but max_position_embeddings is %d",
                        fv_desc(ids).s, k->max_position_embeddings);
    fv_some_rows of[] = {
        {m->words.table, .ids = ids, .skip = m->words.skip},
        {m->positions.table, .ids = fv_items_get(in, "position_ids"), .count = fv_dim(ids, 1),
         .skip = -1},
    };
    fv_tensor *x = fv_dropout(c, fv__embed(c, of, 2, m->norm.gain, m->norm.bias, m->norm.eps),
                              k->dropout);
    return fv__bert_encode(c, m->layers, k->n_layers, x, fv_items_get(in, "attention_mask"));
}

/* Each head has a rate of its own in the configuration. */
static float dropout(const config *k, fv_head_job job)
{
    if (job == FV_HEAD_ANSWER) return k->qa_dropout;
    return job == FV_HEAD_TAG ? k->dropout : k->seq_classif_dropout;
}

/* A choice among texts, (B,choices,T), is a batch of B * choices texts, each scored by one number.
 * The first token stands for the text. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const distilbert *m = self;
    fv_items flat = fv__flat_choices(c, in, m->job);
    fv_tensor *x = encode(c, m, &flat), *pooled = NULL;
    if (m->dense.w) pooled = fv_lin_act(c, &m->dense, fv_first(c, x), FV_RELU);
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked, dropout(&m->cfg, m->job),
                                       m->cfg.problem_type},
                    x, pooled);
}

const fv_family fv__family_distilbert = {
    FV__FAMILY_PARTS(distilbert),
    .type = "distilbert",
    .longest = longest,
};
