/* modernbert.c - ModernBERT: BERT with rotary positions, gated feed-forward parts, norms first, and
 * layers that look near.
 *
 *     x = norm(words);   x += attn(norm x);   x += wo(act(a) * b), (a, b) = wi(norm x);   norm(x)
 *
 * The first layer finds its input normed already.  A local layer sees local_attention / 2 tokens to
 * either side and turns by frequencies of its own; which layers see everything, layer_types says,
 * or every n-th does.  Heads begin with norm(act(dense x)); a classifier of texts reads the first
 * token or the mean of all.
 *
 * Paper: Warner et al. 2024 (arXiv:2412.13663). The published code removes padding and packs
 * sequences; here key masks do that, with the same numbers. Names are those of transformers'
 * ModernBertModel: attn.Wqkv, mlp.Wi, and the two halves of Wi are input and gate in this order. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/bert.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"ModernBertModel", .job = FV_HEAD_BASE},
    {"ModernBertForMaskedLM", FV_HEAD_MASKED_LM, .base = "ModernBertModel"},
    {"ModernBertForSequenceClassification", FV_HEAD_CLASSIFY, .base = "ModernBertModel"},
    {"ModernBertForTokenClassification", FV_HEAD_TAG, .base = "ModernBertModel"},
    {"ModernBertForQuestionAnswering", FV_HEAD_ANSWER, .base = "ModernBertModel"},
    {0},
};

enum { CLS, MEAN };
static const char *const poolings[] = {"cls", "mean", NULL};

typedef struct config {
    int vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        max_position_embeddings;
    int hidden_activation, classifier_activation, classifier_pooling, global_attn_every_n_layers,
        local_attention;
    int pad_token_id, num_labels, problem_type;
    char layer_types[FV__LAYER_TYPES];
    float global_theta, local_theta, initializer_range, norm_eps;
    float attention_dropout, embedding_dropout, mlp_dropout, classifier_dropout;
    bool norm_bias, attention_bias, mlp_bias, decoder_bias, classifier_bias, tie_word_embeddings;
} config;

#define THETA(key, member, normal)                                                                 \
    FV_FLOAT_KEY(key, config, member, 1, normal, 1e12, "base of the rotation's frequencies")

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50368, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 768, 1 << 16, "model width"),
    FV_INT(config, intermediate_size, 1, 1152, 1 << 18,
           "width of the feed-forward part, behind its gate"),
    FV_INT(config, num_hidden_layers, 1, 22, 256, "layers"),
    FV_INT(config, num_attention_heads, 1, 12, 1024, "attention heads"),
    FV_INT(config, max_position_embeddings, 1, 8192, 1 << 20, "longest sequence"),
    FV_CHOICE(config, hidden_activation, 0, fv_act_words, "of the feed-forward part"),
    FV_WORDS(config, layer_types, "full_attention or sliding_attention for each layer"),
    FV_INT(config, global_attn_every_n_layers, 1, 3, 256,
           "the first layer and every n-th from there see everything"),
    FV_INT(config, local_attention, 1, 128, 1 << 20,
           "tokens that the other layers see, half to either side"),
    THETA("global_rope_theta", global_theta, 160000),
    THETA("rope_parameters.full_attention.rope_theta", global_theta, 160000),
    THETA("local_rope_theta", local_theta, 10000),
    THETA("rope_parameters.sliding_attention.rope_theta", local_theta, 10000),
    FV_FLOAT(config, norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    FV_BOOL(config, norm_bias, false, "biases in the norms"),
    FV_BOOL(config, attention_bias, false, "biases in the attention"),
    FV_BOOL(config, mlp_bias, false, "biases in the feed-forward part"),
    FV_BOOL(config, decoder_bias, true, "a bias on the scores of words"),
    FV_BOOL(config, classifier_bias, false, "a bias in the dense layer of heads"),
    FV_CHOICE(config, classifier_activation, 0, fv_act_words, "of that layer"),
    FV_CHOICE(config, classifier_pooling, CLS, poolings,
              "what a classifier of texts reads: the first token, or the mean"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99,
             "on the attention weights, and on what attention adds"),
    FV_FLOAT(config, embedding_dropout, 0, 0, 0.99, "on the embeddings"),
    FV_FLOAT(config, mlp_dropout, 0, 0, 0.99, "inside the feed-forward part"),
    FV_FLOAT(config, classifier_dropout, 0, 0, 0.99, "before the classifier"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_INT(config, pad_token_id, 0, 50283, 1 << 24, "padding"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels of a text are; not given: as they look"),
    FV_BOOL(config, tie_word_embeddings, true,
            "the input table scores the words of the masked-word head"),
    {0},
};

static const fv_key_rule rules[] = {
    {"rope_parameters.full_attention.rope_type", "\"default\""},
    {"rope_parameters.sliding_attention.rope_type", "\"default\""},
    {"sparse_prediction", "false"},
    {"sparse_pred_ignore_index", NULL}, /* for sparse_prediction alone */
    {"initializer_cutoff_factor", NULL},
    {"cls_token_id", NULL}, /* the tokenizer knows these two */
    {"sep_token_id", NULL},
    {"deterministic_flash_attn", NULL}, /* these four are about kernels */
    {"reference_compile", NULL},
    {"repad_logits_with_grad", NULL},
    {"gradient_checkpointing", NULL},
    {"position_embedding_type", NULL}, /* these two stand in the published files and are not read */
    {"layer_norm_eps", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__ENCODER_INPUTS, {0}};

typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    float dropout; /* on what the attention gives */
} block;

typedef struct modernbert {
    config cfg;
    fv_head_job job;
    fv_emb words;
    fv_norm norm, final_norm, head_norm;
    fv_rotary global, local;
    block *blocks;
    fv_lin dense, classifier;
    /* of words: (V,D), the input table where they are tied; (V) or NULL */
    fv_tensor *scores, *bias;
} modernbert;

/* layer_types decides where a file has it (transformers 5 writes it), else every n-th layer is
 * global, the first of all included. */
static bool is_local(const config *k, int i)
{
    return fv__layer_is_local(k->layer_types, i, i % k->global_attn_every_n_layers != 0);
}

/* A head's width is even because rotation takes its elements in pairs. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    int heads_ = k->num_attention_heads;
    if (k->hidden_size % heads_ || k->hidden_size / heads_ % 2 || k->hidden_size / heads_ > 512)
        return fv_fail(
            e, FV_EFORMAT,
            "hidden_size %d over num_attention_heads %d is no even number of at most 512",
            k->hidden_size, heads_);
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    return fv__layer_types_check(k->layer_types, k->num_hidden_layers, e);
}

/* ---- parameters ---- */

/* Norms have a gain and, in published models, no bias. */
static fv_norm_opt norm_opt(const config *k)
{
    return (fv_norm_opt){.type = k->norm_bias ? FV_LAYER_NORM : FV_LAYER_NORM_NO_BIAS,
                         .eps = k->norm_eps};
}

/* Below `at`, "model.layers.0".  The first block has no norm before its attention: that of the
 * embeddings stands just before it. */
static void block_init(fv_params *p, block *b, const config *k, int i, const char *at)
{
    b->dropout = k->attention_dropout;
    fv_lin_opt proj = {.no_bias = !k->attention_bias, .std = k->initializer_range};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj, .names = "Wqkv Wo"}, "%s.attn", at);
    b->attn.dropout = k->attention_dropout;
    if (i) fv_norm_init(p, &b->attn_norm, k->hidden_size, norm_opt(k), "%s.attn_norm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_activation),
                             .packed = true,
                             .lin = {.no_bias = !k->mlp_bias, .std = k->initializer_range},
                             .names = "Wi Wo"},
                "%s.mlp", at);
    b->mlp.dropout = k->mlp_dropout;
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm_opt(k), "%s.mlp_norm", at);
}

/* x += attn(norm x), rotated;  x += Wo(gelu(a) * b), (a, b) = Wi(norm x) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    fv_tensor *h = b->attn_norm.gain ? fv_norm_fwd(c, &b->attn_norm, x) : x;
    h = fv_mha_add_norm(c, &b->attn, &x, h, arg, b->dropout, &b->mlp_norm);
    return fv_mlp_add(c, &b->mlp, x, h, 0);
}

/* All heads begin alike, with norm(act(dense x)); only the masked-word head has it for every token,
 * and its output is the input table where they are tied. */
static void declare_head(modernbert *m, fv_params *p)
{
    const config *k = &m->cfg;
    int64_t D = k->hidden_size;
    fv_lin_opt dense = {.no_bias = !k->classifier_bias, .std = k->initializer_range};
    if (m->job == FV_HEAD_BASE) return;
    fv_lin_init(p, &m->dense, D, D, dense, "head.dense");
    fv_norm_init(p, &m->head_norm, D, norm_opt(k), "head.norm");
    if (m->job != FV_HEAD_MASKED_LM) {
        fv_lin_init(p, &m->classifier, D, k->num_labels, (fv_lin_opt){.std = k->initializer_range},
                    "classifier");
        return;
    }
    m->scores = fv__output(p, m->words.table, k->tie_word_embeddings, k->initializer_range,
                           "decoder.weight");
    if (k->decoder_bias)
        m->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size),
                           "decoder.bias");
}

static void declare(void *self, const fv_setup *s)
{
    modernbert *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *at = m->job == FV_HEAD_BASE ? "" : "model.";
    int64_t head = k->hidden_size / k->num_attention_heads;
    m->global = (fv_rotary){.width = head, .base = k->global_theta};
    m->local = (fv_rotary){.width = head, .base = k->local_theta};
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, k->initializer_range,
                "%sembeddings.tok_embeddings", at);
    m->words.skip = k->pad_token_id;
    fv_norm_init(p, &m->norm, k->hidden_size, norm_opt(k), "%sembeddings.norm", at);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%slayers.%d", at, i);
        block_init(p, &m->blocks[i], k, i, path);
    }
    fv_norm_init(p, &m->final_norm, k->hidden_size, norm_opt(k), "%sfinal_norm", at);
    declare_head(m, p);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"decoder.weight", "model.embeddings.tok_embeddings.weight"},
                                  {NULL, NULL}};
    /* heads of another model */
    static const char *const others[] = {"head.*", "decoder.*", "classifier.*", NULL};
    const modernbert *m = self;
    bool tied = m->job == FV_HEAD_MASKED_LM && m->cfg.tie_word_embeddings;
    return (fv_load_opt){.prefix = "model.",
                         .ties = tied ? ties : NULL,
                         .ignore = m->job == FV_HEAD_BASE ? others : NULL};
}

/* The dense layer of a classifier reads one row of a text and stays as it is. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    modernbert *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    if (m->job == FV_HEAD_MASKED_LM) fv_lin_pack(p, &m->dense, dtype);
    m->scores = fv__packed(p, m->scores, dtype);
}

static int64_t longest(const void *self)
{
    return ((const modernbert *)self)->cfg.max_position_embeddings;
}

/* ---- forward ---- */

typedef struct {
    int64_t T, reach;
} band;

/* Row i of the mask is 1 for keys at most `reach` to either side; rows are made where they are
 * needed, so no T x T table is kept on the host. */
static void local_bias(void *out, const void *user, int64_t from, int64_t n)
{
    const band *b = user;
    uint8_t *y = out;
    for (int64_t i = from; i < from + n; i++) {
        int64_t apart = i % b->T - i / b->T;
        *y++ = apart <= b->reach && -apart <= b->reach;
    }
}

/* (B,T) ids -> (B,T,D).  Global and local layers differ in two things, the mask and the base of the
 * rotation, which are made once for all layers of a kind. */
static fv_tensor *encode(fv_ctx *c, const modernbert *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"),
              *position_ids = fv_items_get(in, "position_ids");
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1), reach = k->local_attention / 2;
    if (T > k->max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "modernbert: input_ids %s, but max_position_embeddings is %d",
                        fv_desc(ids).s, k->max_position_embeddings);
    if (!position_ids) position_ids = fv_positions(c, B, T, 0);
    fv_mha_arg global = {.key_mask = fv_items_get(in, "attention_mask"),
                         .rope = fv_rotary_at(c, &m->global, position_ids, T)};
    fv_mha_arg local = {.key_mask = global.key_mask,
                        .rope = fv_rotary_at(c, &m->local, position_ids, T)};
    if (reach < T - 1)
        local.mask = fv__table(c, FV_U8, FV_SHAPE(T, T), local_bias, &(band){T, reach},
                               sizeof(band));
    fv_tensor *x = fv_dropout(c, fv_norm_fwd(c, &m->norm, fv_emb_fwd(c, &m->words, ids)),
                              k->embedding_dropout);
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < k->num_hidden_layers; i++) {
        fv_tap(c, "hidden", "hidden_states", x);
        x = fv_layer_run(c, block_fwd, &m->blocks[i], x, is_local(k, i) ? local : global,
                         (fv_mha_arg){0});
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    x = fv_norm_fwd(c, &m->final_norm, x);
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const modernbert *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = encode(c, m, in);
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        return;
    }
    if (m->job == FV_HEAD_CLASSIFY)
        x = k->classifier_pooling == MEAN
                ? fv__mean_tokens(c, x, fv_items_get(in, "attention_mask"))
                : fv_first(c, x);
    x = fv_norm_fwd(c, &m->head_norm,
                    fv_lin_act(c, &m->dense, x, fv_act_of(k->classifier_activation)));
    if (m->job == FV_HEAD_MASKED_LM) {
        fv__put_tokens(c, in, out, fv_linear(c, x, m->scores, m->bias, FV_ACT_NONE),
                       fv_items_get(in, "labels"));
        return;
    }
    fv_tensor *logits = fv_lin_fwd(c, &m->classifier, fv_dropout(c, x, k->classifier_dropout));
    if (m->job == FV_HEAD_ANSWER)
        fv_put_spans(c, logits, in, out);
    else
        fv__put_classes(c, in, out, logits,
                        m->job == FV_HEAD_CLASSIFY ? k->problem_type : FV_PROBLEM_SINGLE);
}

const fv_family fv__family_modernbert = {
    FV__FAMILY_PARTS(modernbert),
    .type = "modernbert",
    .longest = longest,
};
