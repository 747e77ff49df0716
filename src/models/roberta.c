/* roberta.c - RoBERTa, XLM-R and CamemBERT: BERT's encoder without sentence pairs, positions counted behind the padding id.
 *
 *     position of a token = pad_token_id + how many that are no padding stand up to it; padding has pad_token_id
 *
 * The masked-word head and the two-layer classifier have names of their own. */
#include <stddef.h>
#include <string.h>

#include "fovea/heads.h"
#include "fovea/op.h"
#include "models/model_part.h"

#define MAX_LAYER 256

enum { BASE, MASKED, SEQUENCE, TOKEN, SPAN };
static const char *const heads[] = {"RobertaModel",
                                    "RobertaForMaskedLM",
                                    "RobertaForSequenceClassification",
                                    "RobertaForTokenClassification",
                                    "RobertaForQuestionAnswering",
                                    "XLMRobertaModel",
                                    "XLMRobertaForMaskedLM",
                                    "XLMRobertaForSequenceClassification",
                                    "XLMRobertaForTokenClassification",
                                    "XLMRobertaForQuestionAnswering",
                                    "CamembertModel",
                                    "CamembertForMaskedLM",
                                    "CamembertForSequenceClassification",
                                    "CamembertForTokenClassification",
                                    "CamembertForQuestionAnswering",
                                    NULL};
static const char *const others[] = {"xlm-roberta", "camembert", NULL}; /* trained on more languages; else the same */

typedef struct config {
    int vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int max_position_embeddings, type_vocab_size, pad_token_id, num_labels;
    int hidden_act, problem_type;
    float hidden_dropout_prob, attention_probs_dropout_prob, classifier_dropout;
    float initializer_range, layer_norm_eps;
    bool tie_word_embeddings;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50265, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 768, 1 << 16, "model width"),
    FV_INT(config, num_hidden_layers, 1, 12, MAX_LAYER, "layers"),
    FV_INT(config, num_attention_heads, 1, 12, 1024, "attention heads"),
    FV_INT(config, intermediate_size, 1, 3072, 1 << 18, "width of the feed-forward part"),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "activation of the feed-forward part and of the masked-word head"),
    FV_FLOAT(config, hidden_dropout_prob, 0, 0.1, 0.99, "on what each part of a layer adds, and on the embeddings"),
    FV_FLOAT(config, attention_probs_dropout_prob, 0, 0.1, 0.99, "on the attention weights"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 20,
           "rows of the position table: the longest sequence and the padding id"),
    FV_INT(config, type_vocab_size, 1, 2, 1 << 16, "kinds of token: first and second sentence"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10, "standard deviation of first values; 0: Xavier"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-12, 1, "under the square root of each norm"),
    FV_INT(config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV_FLOAT(config, classifier_dropout, 0, -1, 0.99, "before the classifier; not given: hidden_dropout_prob"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words, "what the labels of a sequence are; not given: as they look"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_BOOL(config, tie_word_embeddings, true, "the input table scores the words of the masked-word head"),
    {0},
};

static const fv_key_rule rules[] = {
    {"position_embedding_type", "\"absolute\""},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},       {"attention_mask", FV_U8, false},
    {"token_type_ids", FV_I32, false}, {"position_ids", FV_I32, false},
    {"labels", FV_I32, false},         {"start_positions", FV_I32, false},
    {"end_positions", FV_I32, false},  {0},
};

typedef struct roberta {
    config cfg;
    int head;
    fv_emb words, types, positions;
    fv_norm norm;
    fv_encoder_layer *layers;
    fv_lin dense, classifier; /* dense: the pooler, or the first layer of a head */
    fv_norm head_norm;
    fv_tensor *decoder, *bias; /* of the masked-word head */
} roberta;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->hidden_size % k->num_attention_heads)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d", k->hidden_size,
                       k->num_attention_heads);
    if (k->pad_token_id >= k->vocab_size || k->pad_token_id + 1 >= k->max_position_embeddings)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d does not fit vocab_size %d and max_position_embeddings %d",
                       k->pad_token_id, k->vocab_size, k->max_position_embeddings);
    return FV_OK;
}

static int head_of(const char *name)
{
    int i = 0;
    while (heads[i] && strcmp(heads[i], name)) i++;
    return i % (SPAN + 1); /* the same five under each name */
}

/* ---- parameters ---- */

static fv_layer_opt layer_opt(const config *k)
{
    float std = k->initializer_range;
    return (fv_layer_opt){
        .mha = {.width = k->hidden_size,
                .n_head = k->num_attention_heads,
                .dropout = k->attention_probs_dropout_prob,
                .std = std,
                .q_name = "self.query",
                .k_name = "self.key",
                .v_name = "self.value",
                .out_name = "output.dense"},
        .hidden = k->intermediate_size,
        .mlp = {.act = fv_act_of(k->hidden_act), .std = std, .up_name = "intermediate.dense", .down_name = "output.dense"},
        .norm = {.eps = k->layer_norm_eps},
        .dropout = k->hidden_dropout_prob,
        .names = {.self = "attention", .self_norm = "attention.output.LayerNorm", .mlp_norm = "output.LayerNorm"},
    };
}

static void declare_words_head(roberta *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_lin_init(p, &m->dense, k->hidden_size, k->hidden_size, lin, "lm_head.dense");
    fv_norm_init(p, &m->head_norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps}, "lm_head.layer_norm");
    m->decoder = m->words.table;
    m->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->vocab_size), "lm_head.bias");
    if (k->tie_word_embeddings) return;
    fv_lin apart; /* then the bias above is in the file and serves nothing */
    fv_lin_init(p, &apart, k->hidden_size, k->vocab_size, lin, "lm_head.decoder");
    m->decoder = apart.w;
    m->bias = apart.b;
}

static void declare_head(roberta *m, fv_params *p)
{
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    switch (m->head) {
    case BASE: fv_lin_init(p, &m->dense, D, D, lin, "pooler.dense"); break;
    case MASKED: declare_words_head(m, p); break;
    case SEQUENCE:
        fv_lin_init(p, &m->dense, D, D, lin, "classifier.dense");
        fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier.out_proj");
        break;
    case TOKEN: fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier"); break;
    default: fv_lin_init(p, &m->classifier, D, 2, lin, "qa_outputs"); break;
    }
}

static void declare(void *self, const fv_setup *s)
{
    roberta *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->head = head_of(s->head);
    const config *k = &m->cfg;
    const char *at = m->head == BASE ? "" : "roberta.";
    fv_emb_opt plain = {.std = k->initializer_range}, padded = {.has_pad = true, .pad = k->pad_token_id, .std = plain.std};
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, padded, "%sembeddings.word_embeddings", at);
    fv_emb_init(p, &m->positions, k->max_position_embeddings, k->hidden_size, padded, "%sembeddings.position_embeddings", at);
    fv_emb_init(p, &m->types, k->type_vocab_size, k->hidden_size, plain, "%sembeddings.token_type_embeddings", at);
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps}, "%sembeddings.LayerNorm", at);
    m->layers = fv_params_take(p, (size_t)k->num_hidden_layers * sizeof *m->layers);
    for (int i = 0; m->layers && i < k->num_hidden_layers; i++)
        fv_encoder_layer_init(p, &m->layers[i], layer_opt(k), "%sencoder.layer.%d", at, i);
    declare_head(m, p);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.decoder.bias", "lm_head.bias"},
                                  {"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    static const fv_tie bias_alone[] = {{"lm_head.decoder.bias", "lm_head.bias"}, {NULL, NULL}};
    /* Heads a checkpoint was pre-trained with and this one does not use. */
    static const char *const unused[] = {"*embeddings.position_ids", "*pooler.dense.*", NULL};
    static const char *const all[] = {
        "*embeddings.position_ids", "*pooler.dense.*", "lm_head.*", "classifier.*", "qa_outputs.*", NULL};
    const roberta *m = self;
    static const char *const pooler[] = {"pooler.dense.*", NULL}; /* of the bare encoder, which some leave out */
    return (fv_load_opt){.prefix = "roberta.",
                         .ties = m->cfg.tie_word_embeddings ? ties : bias_alone,
                         .ignore = m->head == MASKED ? unused : all,
                         .fresh = pooler};
}

/* An encoder taken from under another head has no pooler in its file: nothing comes out for it then. */
static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    roberta *m = self;
    if (m->head == BASE && !fv__any(p, m->dense.w, e)) m->dense.w = NULL;
    return fv_params_status(p, e);
}

/* The words' scores apart from the table they may share: rows of that are still looked up.  Classifiers stay: they are small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    roberta *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) fv_encoder_layer_pack(p, &m->layers[i], dtype);
    if (m->dense.w) fv_lin_pack(p, &m->dense, dtype);
    m->decoder = fv__packed(p, m->decoder, dtype);
}

static int64_t longest(const void *self)
{
    const config *k = &((const roberta *)self)->cfg;
    return k->max_position_embeddings - k->pad_token_id - 1;
}

/* ---- forward ---- */

static fv_tensor *embed(fv_ctx *c, const roberta *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *types = fv_items_get(in, "token_type_ids");
    fv_tensor *places = fv_items_get(in, "position_ids");
    if (!places && fv_dim(ids, 1) > longest(m))
        return fv_raise(c, FV_ESHAPE, "roberta: input_ids %s, but max_position_embeddings %d leaves room for %lld tokens",
                        fv_desc(ids).s, k->max_position_embeddings, (long long)longest(m));
    if (!places) places = fv_positions_unpadded(c, ids, k->pad_token_id);
    fv_tensor *type = types ? fv_emb_fwd(c, &m->types, types) : fv_slice(c, m->types.table, 0, 0, 1);
    fv_tensor *x = fv_add(c, fv_emb_fwd(c, &m->words, ids), type);
    x = fv_norm_fwd(c, &m->norm, fv_add(c, x, fv_emb_fwd(c, &m->positions, places)));
    return fv_dropout(c, x, k->hidden_dropout_prob);
}

static fv_tensor *encode(fv_ctx *c, const roberta *m, const fv_items *in)
{
    fv_mha_arg arg = fv_masked(c, fv_items_get(in, "attention_mask"));
    fv_tensor *x = embed(c, m, in);
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_tap(c, "hidden", "hidden_states", x);
        x = fv_keep(c, mark, fv_encoder_layer_fwd(c, &m->layers[i], x, arg));
    }
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* Always by erf, whatever hidden_act is. */
static fv_tensor *word_scores(fv_ctx *c, const roberta *m, fv_tensor *x)
{
    fv_tensor *h = fv_norm_fwd(c, &m->head_norm, fv_lin_act(c, &m->dense, x, FV_GELU));
    return fv_linear(c, h, m->decoder, m->bias, FV_ACT_NONE);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const roberta *m = self;
    const config *k = &m->cfg;
    fv_tensor *labels = fv_items_get(in, "labels"), *logits = NULL;
    float dropout = k->classifier_dropout >= 0 ? k->classifier_dropout : k->hidden_dropout_prob;
    fv_tensor *x = encode(c, m, in);
    switch (m->head) {
    case BASE:
        fv_items_put(out, "last_hidden_state", x);
        if (m->dense.w) fv_items_put(out, "pooler_output", fv_lin_act(c, &m->dense, fv_first(c, x), FV_TANH));
        return;
    case SPAN: fv_put_spans(c, fv_lin_fwd(c, &m->classifier, x), in, out); return;
    case MASKED: logits = word_scores(c, m, x); break;
    case SEQUENCE:
        x = fv_lin_act(c, &m->dense, fv_dropout(c, fv_first(c, x), dropout), FV_TANH);
        logits = fv_lin_fwd(c, &m->classifier, fv_dropout(c, x, dropout));
        break;
    default: logits = fv_lin_fwd(c, &m->classifier, fv_dropout(c, x, dropout)); break;
    }
    fv_items_put(out, "logits", logits);
    if (!labels) return;
    fv_problem problem = m->head == SEQUENCE ? (fv_problem)k->problem_type : FV_PROBLEM_SINGLE;
    fv_items_put(out, "loss", fv_loss_classes(c, logits, labels, problem, in));
}

const fv_family fv__family_roberta = {
    .type = "roberta",
    .also = others,
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(roberta),
    .check = check,
    .declare = declare,
    .longest = longest,
    .load = load,
    .ready = ready,
    .pack = pack,
    .forward = forward,
};
