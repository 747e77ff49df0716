/* mbart.c - mBART: BART that normalises before each part, on texts of many languages.
 *
 *     x = norm(E[ids] + P[positions + 2]);   pre-norm layers and one norm behind each stack;
 *     logits = y E' + bias
 *
 * A text ends with the code of its language, and the decoder begins with that of the target: where
 * labels alone are given, the last of them that is no padding goes to the front.
 *
 * Paper: Liu et al. 2020 (arXiv:2001.08210). Next to BART: the norm stands first, so each stack
 * has one more behind it, and the decoder's first token is the language. Names are those of
 * transformers' MBartModel. */
#include <stddef.h>

#include "model/seq2seq.h"

#define OFFSET 2 /* the first rows of the table of positions were never used */

typedef fv__seq2seq_config config;

static const fv_field fields[] = {
    FV__SEQ2SEQ_FIELDS(50265, 0, 0, false, 1, 2, 0),
    FV__LEARNED_POSITIONS_FIELD,
    FV__SEQ2SEQ_LABEL_FIELDS(2),
    {0},
};

static const fv_key_rule rules[] = {
    FV__SEQ2SEQ_RULES,
    {"add_bias_logits", NULL}, /* the bias is always there, and zero where it was never learnt */
    {"add_final_layer_norm", "true"}, /* these five say what an mBART always is */
    {"normalize_before", "true"},
    {"normalize_embedding", "true"},
    {"static_position_embeddings", "false"},
    {"extra_pos_embeddings", "2"},
    {"tokenizer_class", NULL},
    {"save_step", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__SEQ2SEQ_INPUTS, FV__SPAN_INPUTS, {0}};

static const fv_family_head heads[] = {
    {"MBartForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "MBartModel"},
    {"MBartModel", .job = FV_HEAD_BASE},
    {"MBartForSequenceClassification", FV_HEAD_CLASSIFY, .base = "MBartModel"},
    {"MBartForQuestionAnswering", FV_HEAD_ANSWER, .base = "MBartModel"},
    {0},
};

static fv_status check(const void *config_, fv_err *e) { return fv__seq2seq_check(config_, e); }

/* E of labels, the row of the last that is no padding moved to the front: (B,T,D).  Rows are moved,
 * not ids, so that nothing is read back from a device. */
static fv_tensor *wrapped(fv_ctx *c, const fv__seq2seq *m, fv_tensor *ids)
{
    fv_tensor *x = fv_emb_fwd(c, &m->target, ids), *last;
    if (!x) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), D = fv_dim(x, 2);
    last = fv_reshape(c, fv__last_but(c, x, ids, m->cfg.pad_token_id), FV_SHAPE(B, 1, D));
    if (T == 1) return last;
    return fv_concat(c, (fv_tensor *[]){last, fv_slice(c, x, 1, 0, T - 1)}, 2, 1);
}

/* The decoder's embeddings of decoder_input_ids, else of labels or the source, wrapped. */
static fv_tensor *embed_target(fv_ctx *c, const fv__seq2seq *m, const fv_items *in)
{
    fv_tensor *ids = fv_items_get(in, "decoder_input_ids"),
              *labels = m->job == FV_HEAD_SEQ2SEQ ? fv_items_get(in, "labels") : NULL;
    if (ids) return m->embed(c, m, true, ids, NULL);
    ids = labels ? fv__labels_as_ids(c, labels, m->cfg.pad_token_id)
                 : fv_items_get(in, "input_ids");
    if (!ids || !fv__seq2seq_fits(c, m, ids)) return NULL;
    fv_tensor *x = fv_pos_fwd(c, &m->decoder_pos, wrapped(c, m, ids), NULL);
    return fv_dropout(c, fv_norm_fwd(c, &m->decoder_emb_norm, x), m->cfg.dropout);
}

static void declare(void *self, const fv_setup *s)
{
    fv__seq2seq *m = self;
    fv__seq2seq_init(m, s, "mbart", fv__seq2seq_embed);
    fv__seq2seq_shared(m, s->params);
    fv__seq2seq_positions(m, s->params, FV_POS_LEARNED, OFFSET);
    fv__seq2seq_emb_norms(m, s->params);
    fv__seq2seq_stacks(m, s->params, true);
    fv__seq2seq_head(m, s->params, true);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__seq2seq *m = self;
    fv_tensor *memory = fv__seq2seq_encode(c, m, in, out);
    fv__seq2seq_put(c, m, in, out, memory, embed_target(c, m, in));
}

const fv_family fv__family_mbart = {FV__SEQ2SEQ_PARTS(fv__seq2seq), .type = "mbart"};
