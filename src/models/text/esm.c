/* esm.c - ESM-2 and ESM-1b: BERT for proteins, a token for each amino acid.
 *
 *     x = words, scaled by token dropout (+ positions);   x = norm(x) where emb_layer_norm_before
 *     layers, each x += attention(norm x), x += mlp(norm x);   norm(x)
 *
 * ESM-2 rotates queries and keys by position; ESM-1b has a table of positions, counted behind the
 * padding id.  Token dropout: the rows of mask tokens are 0, and all others are multiplied by the
 * share that was kept in pre-training (0.88) over the share that is kept here.
 *
 * Every architecture has a contact head: a logistic regression on the attention maps of all layers
 * and heads (Rao et al. 2021).  It is no part of the forward pass - maps of a sequence take
 * layers x heads x T x T numbers - so its parameters are buffers, and task/contacts.c applies them
 * to one map after the other as they pass the tap.
 *
 * Papers: Lin et al. 2023 (ESM-2), Rives et al. 2021 (ESM-1b). Names are those of transformers'
 * EsmModel. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "model/bert.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"EsmModel", .job = FV_HEAD_BASE},
    {"EsmForMaskedLM", FV_HEAD_MASKED_LM, .base = "EsmModel"},
    {"EsmForSequenceClassification", FV_HEAD_CLASSIFY, .base = "EsmModel"},
    {"EsmForTokenClassification", FV_HEAD_TAG, .base = "EsmModel"},
    {0},
};

enum { ABSOLUTE, ROTARY };
static const char *const position_types[] = {"absolute", "rotary", NULL};

#define KEPT_IN_PRETRAINING 0.88f /* of the tokens: 15 % were chosen, 80 % of those masked */

typedef struct config {
    fv__bert_config bert; /* first: what encoders share reads it */
    int mask_token_id, position_embedding_type;
    float rope_theta;
    bool emb_layer_norm_before, token_dropout;
} config;

static const fv_field fields[] = {
    FV_INT(fv__bert_config, vocab_size, 1, 33, 1 << 24, "tokens"),
    FV_INT(fv__bert_config, max_position_embeddings, 1, 1026, 1 << 20,
           "rows of the position table, where there is one"),
    FV_INT(fv__bert_config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV_INT(config, mask_token_id, 0, 32, 1 << 24, "the mask, for token dropout"),
    FV_CHOICE(config, position_embedding_type, ABSOLUTE, position_types,
              "a table of positions (ESM-1b), or queries and keys rotated by them (ESM-2)"),
    FV_FLOAT(config, rope_theta, 1, 10000, 1e12, "base of the rotation's frequencies"),
    FV_BOOL(config, emb_layer_norm_before, false, "a norm of the embeddings"),
    FV_BOOL(config, token_dropout, false, "masked tokens count as dropped"),
    FV__ENCODER_FIELDS(768, 12, 12, 3072, 0, 0.1, 1e-12),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_folding_model", "false"}, /* ESMFold is another model */
    {"esmfold_config", NULL},
    {"vocab_list", NULL},
    {"classifier_dropout", NULL}, /* stands in the published files and is not read */
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__TEXT_INPUTS, {0}};

/* Norms first, as in GPT-2, and nothing hidden: the encoder looks both ways. */
typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    float dropout;
} block;

typedef struct esm {
    config cfg;
    fv_head_job job;
    fv_emb words, positions;
    fv_norm norm, last_norm;
    fv_rotary rotary;
    const float *stored; /* (head / 2): the file's own frequencies, or NULL */
    block *blocks;
    fv_lin dense, classifier, contacts; /* dense: the pooler, or a classifier's first layer */
    fv__word_head masked;
} esm;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    const fv__bert_config *b = &k->bert;
    bool rotary = k->position_embedding_type == ROTARY;
    int head = b->hidden_size / b->num_attention_heads;
    if (rotary && (head % 2 || head > 512))
        return fv_fail(e, FV_EFORMAT,
                       "hidden_size %d over num_attention_heads %d is no even number of at most "
                       "512, which a rotation needs",
                       b->hidden_size, b->num_attention_heads);
    if (k->mask_token_id >= b->vocab_size && k->token_dropout)
        return fv_fail(e, FV_EFORMAT, "mask_token_id %d is outside the vocabulary of %d",
                       k->mask_token_id, b->vocab_size);
    if (!rotary && b->pad_token_id + 1 >= b->max_position_embeddings)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d leaves no room in %d positions",
                       b->pad_token_id, b->max_position_embeddings);
    return fv__bert_check(b, e);
}

/* ---- parameters ---- */

/* Below `at`, "esm.encoder.layer.0". */
static void block_init(fv_params *p, block *b, const fv__bert_config *k, const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_lin_opt lin = {.std = k->initializer_range};
    b->dropout = k->hidden_dropout_prob;
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = lin,
                             .out = lin,
                             .names = "self.query self.key self.value output.dense"},
                "%s.attention", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "%s.attention.LayerNorm", at);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = FV_GELU,
                             .lin = lin,
                             .names = "intermediate.dense output.dense"},
                "%s", at);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "%s.LayerNorm", at);
}

/* path.weight (1, layers * heads) and path.bias (1), which no loss here trains. */
static void contacts_init(fv_params *p, fv_lin *l, const fv__bert_config *k, const char *at)
{
    fv_init normal = {FV_INIT_NORMAL, k->initializer_range, .buffer = true};
    l->w = fv_param(p, normal, FV_SHAPE(1, k->num_hidden_layers * k->num_attention_heads),
                    "%scontact_head.regression.weight", at);
    l->b = fv_param(p, (fv_init){.kind = FV_INIT_ZERO, .buffer = true}, FV_SHAPE(1),
                    "%scontact_head.regression.bias", at);
}

/* The scores have one bias, lm_head.bias, whether or not their weight is the input table. */
static void masked_init(esm *m, fv_params *p)
{
    fv__bert_config tied = m->cfg.bert;
    tied.tie_word_embeddings = true;
    fv__word_head_init(p, &m->masked, &tied, m->words.table, "lm_head.dense", "lm_head.layer_norm",
                       "lm_head");
    m->masked.act = FV_GELU;
    m->masked.scores = fv__output(p, m->words.table, m->cfg.bert.tie_word_embeddings,
                                  tied.initializer_range, "lm_head.decoder.weight");
}

/* The bare encoder has a pooler; a classifier of sequences has two layers under names of RoBERTa's,
 * one of tokens has one. */
static void declare_head(esm *m, fv_params *p)
{
    const fv__bert_config *k = &m->cfg.bert;
    fv_lin_opt lin = {.std = k->initializer_range};
    int64_t D = k->hidden_size;
    switch (m->job) {
    case FV_HEAD_BASE: fv_lin_init(p, &m->dense, D, D, lin, "pooler.dense"); break;
    case FV_HEAD_MASKED_LM: masked_init(m, p); break;
    case FV_HEAD_CLASSIFY: fv__two_layers_init(p, &m->dense, &m->classifier, k); break;
    default: fv_lin_init(p, &m->classifier, D, k->num_labels, lin, "classifier"); break;
    }
}

/* Published files hold the frequencies, some rounded to 16 bits as they were in training: then
 * those are the model's. */
static const float *stored_freqs(const fv_setup *s, int64_t n)
{
    /* transformers 5 writes the star */
    static const char *const before[] = {"", "encoder.layer.0.attention.self.",
                                         "encoder.layer.*.attention.self."};
    for (int i = 0; s->file && i < 6; i++) {
        char name[96];
        fv_st_info t;
        snprintf(name, sizeof name, "%s%srotary_embeddings.inv_freq", i / 3 ? "esm." : "",
                 before[i % 3]);
        if (fv_st_find(s->file, name, &t, NULL) || t.count != n) continue;
        float *freq = fv_params_scratch(s->params, (size_t)n * sizeof *freq);
        bool read = freq && !fv_st_read(s->file, &t, freq, FV_F32, n, NULL);
        return read ? freq : NULL;
    }
    return NULL;
}

static void declare(void *self, const fv_setup *s)
{
    esm *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const fv__bert_config *k = &m->cfg.bert;
    const char *at = m->job == FV_HEAD_BASE ? "" : "esm.";
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    float std = k->initializer_range;
    fv_emb_init(p, &m->words, k->vocab_size, k->hidden_size, std, "%sembeddings.word_embeddings",
                at);
    m->rotary = (fv_rotary){.width = k->hidden_size / k->num_attention_heads,
                            .base = m->cfg.rope_theta};
    if (m->cfg.position_embedding_type == ROTARY)
        m->stored = stored_freqs(s, m->rotary.width / 2);
    else
        fv_emb_init(p, &m->positions, k->max_position_embeddings, k->hidden_size, std,
                    "%sembeddings.position_embeddings", at);
    m->words.skip = m->positions.skip = k->pad_token_id;
    if (m->cfg.emb_layer_norm_before)
        fv_norm_init(p, &m->norm, k->hidden_size, norm, "%sembeddings.layer_norm", at);
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.layer.%d", at, i);
        block_init(p, &m->blocks[i], k, path);
    }
    fv_norm_init(p, &m->last_norm, k->hidden_size, norm, "%sencoder.emb_layer_norm_after", at);
    contacts_init(p, &m->contacts, k, at);
    declare_head(m, p);
}

/* ESM-2's files hold tables and frequencies that nothing reads; a few norms have the names of
 * TensorFlow. */
static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.decoder.weight",
                                   "esm.embeddings.word_embeddings.weight"},
                                  {NULL, NULL}};
    /* Of ESM-2's files a table of positions that nothing reads, and heads of another model. */
    static const char *const words[] = {"*embeddings.position_ids", "*rotary_embeddings.inv_freq",
                                        "*pooler.dense.*", "*embeddings.position_embeddings.weight",
                                        NULL};
    static const char *const all[] = {"*embeddings.position_ids",
                                      "*rotary_embeddings.inv_freq",
                                      "*pooler.dense.*",
                                      "*embeddings.position_embeddings.weight",
                                      "lm_head.*",
                                      "classifier.*",
                                      NULL};
    /* The bare encoder of a file with another head has no pooler; few have a contact head. */
    static const char *const fresh[] = {"pooler.dense.*", "*contact_head.regression.*", NULL};
    static const fv_tie endings[] = {{".LayerNorm.weight", ".LayerNorm.gamma"},
                                     {".LayerNorm.bias", ".LayerNorm.beta"},
                                     {NULL, NULL}};
    const esm *m = self;
    bool masked = m->job == FV_HEAD_MASKED_LM;
    return (fv_load_opt){.prefix = "esm.",
                         .ties = masked && m->cfg.bert.tie_word_embeddings ? ties : NULL,
                         .endings = endings,
                         .ignore = masked ? words : all,
                         .fresh = fresh};
}

static fv_status ready(void *self, fv_params *p, fv_err *e)
{
    esm *m = self;
    return m->job == FV_HEAD_BASE ? fv__bert_pooler_ready(p, &m->dense, e) : FV_OK;
}

/* The last layer of a classifier stays as it is: it is small. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    esm *m = self;
    for (int i = 0; i < m->cfg.bert.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    if (m->dense.w) fv_lin_pack(p, &m->dense, dtype);
    fv__word_head_pack(p, &m->masked, dtype);
}

/* Rotation has no last position. */
static int64_t longest(const void *self)
{
    const config *k = &((const esm *)self)->cfg;
    if (k->position_embedding_type == ROTARY) return INT32_MAX;
    return k->bert.max_position_embeddings - k->bert.pad_token_id - 1;
}

/* ---- forward ---- */

/* 1 for every token but one. */
static void list_kept(void *out, const void *user, int64_t from, int64_t n)
{
    int32_t masked = *(const int32_t *)user;
    for (int64_t i = 0; i < n; i++) ((float *)out)[i] = from + i == masked ? 0 : 1;
}

/* x keep 0.88 / (sum keep / length): rows of x (B,T,D) times a number of their sequence, those of
 * masks times 0.  Of padding it does not matter what becomes: the mask makes it 0. */
static fv_tensor *token_dropout(fv_ctx *c, const esm *m, fv_tensor *x, fv_tensor *ids,
                                fv_tensor *mask)
{
    if (!x) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    int32_t masked = m->cfg.mask_token_id;
    fv_tensor *table = fv__table(c, FV_F32, FV_SHAPE(m->cfg.bert.vocab_size, 1), list_kept, &masked,
                                 sizeof masked);
    fv_tensor *keep = fv_gather(c, table, ids, -1); /* (B,T,1) */
    fv_tensor *one = fv_full(c, FV_SHAPE(B, T, 1), 1);
    if (!keep || !one) return NULL;
    one = fv_cast(c, one, FV_F32);
    fv_tensor *drop = fv_sum(c, fv_sub(c, one, keep), 1); /* (B,1): masks of each sequence */
    if (mask) one = fv_masked_fill(c, one, fv_reshape(c, mask, FV_SHAPE(B, T, 1)), 0);
    fv_tensor *len = fv_sum(c, one, 1);
    fv_tensor *scale = fv_affine(c, fv_div(c, len, fv_sub(c, len, drop)), KEPT_IN_PRETRAINING, 0);
    keep = fv_mul(c, keep, fv_reshape(c, scale, FV_SHAPE(B, 1, 1)));
    return fv_mul(c, x, fv_cast(c, keep, x->dtype));
}

static fv_tensor *embed(fv_ctx *c, const esm *m, const fv_items *in, fv_tensor *positions)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *mask = fv_items_get(in, "attention_mask");
    fv_tensor *x = fv_emb_fwd(c, &m->words, ids);
    if (k->token_dropout) x = token_dropout(c, m, x, ids, mask);
    if (k->position_embedding_type == ABSOLUTE) {
        if (!positions && fv_dim(ids, 1) > longest(m))
            return fv_raise(c, FV_ESHAPE,
                            "esm: input_ids %s, but max_position_embeddings %d leaves room for "
                            "%lld tokens",
                            fv_desc(ids).s, k->bert.max_position_embeddings, (long long)longest(m));
        if (!positions) positions = fv_positions_unpadded(c, ids, k->bert.pad_token_id);
        x = fv_add(c, x, fv_emb_fwd(c, &m->positions, positions));
    }
    if (m->norm.gain) x = fv_norm_fwd(c, &m->norm, x);
    if (!mask || !x) return x;
    return fv_masked_fill(c, x, fv_reshape(c, mask, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), 1)), 0);
}

/* The frequencies of the file as a table on the device. */
static void list_stored(void *out, const void *user, int64_t from, int64_t n)
{
    memcpy(out, (const float *)user + from, (size_t)n * sizeof(float));
}

/* x += attn(norm x);  x += mlp(norm x) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    return fv_pre_norm(c, &b->attn_norm, &b->attn, &b->mlp_norm, &b->mlp, x, arg, b->dropout);
}

/* (B,T) -> (B,T,D).  The last of hidden_states is behind the last norm, as transformers counts
 * them. */
static fv_tensor *encode(fv_ctx *c, const esm *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *positions = fv_items_get(in, "position_ids");
    int64_t T = fv_dim(ids, 1), half = m->rotary.width / 2;
    fv_mha_arg arg = fv_masked(c, fv_items_get(in, "attention_mask"));
    fv_tensor *x = embed(c, m, in, positions);
    if (k->position_embedding_type == ROTARY) {
        if (!positions) positions = fv_positions(c, fv_dim(ids, 0), T, 0);
        arg.rope = fv_rotary_at(c, &m->rotary, positions, T);
        if (m->stored)
            arg.rope.freq = fv__table(c, FV_F32, FV_SHAPE(half), list_stored, m->stored,
                                      (size_t)half * sizeof(float));
    }
    x = fv__layers_run(c, block_fwd, m->blocks, sizeof *m->blocks, k->bert.num_hidden_layers, x,
                       (fv__layers_arg){.self = arg}, "hidden_states");
    x = fv_norm_fwd(c, &m->last_norm, x);
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* What a classifier of sequences reads: the first token through a dense layer with tanh. */
static fv_tensor *pool(fv_ctx *c, const esm *m, fv_tensor *x)
{
    x = fv_first(c, x);
    if (m->job == FV_HEAD_CLASSIFY) x = fv_dropout(c, x, m->cfg.bert.hidden_dropout_prob);
    return fv_lin_act(c, &m->dense, x, FV_TANH);
}

/* Contacts are not part of it: they are computed of the maps of a forward pass, where somebody
 * asks. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const esm *m = self;
    const fv__bert_config *k = &m->cfg.bert;
    fv_tensor *x = encode(c, m, in);
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, &m->masked, k->hidden_dropout_prob,
                                       k->problem_type},
                    x, m->dense.w ? pool(c, m, x) : NULL);
}

const fv_family fv__family_esm = {
    FV__FAMILY_PARTS(esm),
    .type = "esm",
    .longest = longest,
    .ready = ready,
};
