/* bart.c - BART: the Transformer of 2017 with learned positions and a norm on the embeddings.
 *
 *     x = norm(E[ids] + P[positions + 2]);   encoder layers;   decoder layers with cross-attention;
 *     logits = y E' + bias
 *
 * Norms come after each part.  A classifier reads the decoder where the source, given to it once
 * more, ends; spans are scored at its positions.
 *
 * Paper: Lewis et al. 2020, Denoising Sequence-to-Sequence Pre-training (arXiv:1910.13461). What
 * it shares with mBART, PEGASUS, M2M-100 and Marian - keys, names, stacks, steps of generation -
 * is model/seq2seq.h; this file says what a BART is among them. Names are those of transformers'
 * BartModel. */
#include <stddef.h>

#include "model/seq2seq.h"

#define OFFSET 2 /* the first rows of the table of positions were never used */

typedef fv__seq2seq_config config;

static const fv_field fields[] = {
    FV__SEQ2SEQ_FIELDS(50265, 0, 0, false, 1, 2, 2),
    FV__LEARNED_POSITIONS_FIELD,
    FV__SEQ2SEQ_LABEL_FIELDS(3),
    {0},
};

static const fv_key_rule rules[] = {
    FV__SEQ2SEQ_RULES,
    {"add_bias_logits", NULL}, /* the bias is always there, and zero where it was never learnt */
    {"add_final_layer_norm", "false"},
    {"normalize_before", "false"},
    {"normalize_embedding", "true"},
    {"static_position_embeddings", "false"},
    {"extra_pos_embeddings", "2"},
    {"force_bos_token_to_be_generated", NULL},
    {"output_past", NULL},
    {"save_step", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__SEQ2SEQ_INPUTS, FV__SPAN_INPUTS, {0}};

static const fv_family_head heads[] = {
    {"BartForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "BartModel"},
    {"BartModel", .job = FV_HEAD_BASE},
    {"BartForSequenceClassification", FV_HEAD_CLASSIFY, .base = "BartModel"},
    {"BartForQuestionAnswering", FV_HEAD_ANSWER, .base = "BartModel"},
    {0},
};

static fv_status check(const void *config_, fv_err *e) { return fv__seq2seq_check(config_, e); }

static void declare(void *self, const fv_setup *s)
{
    fv__seq2seq *m = self;
    fv__seq2seq_init(m, s, "bart", fv__seq2seq_embed);
    fv__seq2seq_shared(m, s->params);
    fv__seq2seq_positions(m, s->params, FV_POS_LEARNED, OFFSET);
    fv__seq2seq_emb_norms(m, s->params);
    fv__seq2seq_stacks(m, s->params, false);
    fv__seq2seq_head(m, s->params, true);
}

/* Without decoder_input_ids and labels the source itself is what the decoder reads. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__seq2seq *m = self;
    fv_tensor *memory = fv__seq2seq_encode(c, m, in, out);
    fv_tensor *ids = fv__seq2seq_target(c, m, in, fv_items_get(in, "input_ids"));
    fv__seq2seq_put(c, m, in, out, memory, m->embed(c, m, true, ids, NULL));
}

const fv_family fv__family_bart = {FV__SEQ2SEQ_PARTS(fv__seq2seq), .type = "bart"};
