/* pegasus.c - PEGASUS: an encoder and a decoder that normalise before each part, with sinusoids.
 *
 *     x = sqrt(D) E[ids] + sinusoids;   pre-norm layers and one norm behind each stack;
 *     logits = y E' + bias
 *
 * It was trained to write sentences that were taken out of a text, and is used to summarise.
 *
 * Paper: Zhang et al. 2020 (arXiv:1912.08777). Next to mBART: sinusoids - all sines, then all
 * cosines - no norm on the embeddings, and a decoder that begins with padding. Names are those
 * of transformers' PegasusModel. */
#include <stddef.h>

#include "model/seq2seq.h"

typedef fv__seq2seq_config config;

static const fv_field fields[] = {
    FV__SEQ2SEQ_FIELDS(50265, 0, 0, false, 0, 1, 0),
    FV__SINUSOIDS_FIELD,
    {0},
};

static const fv_key_rule rules[] = {
    FV__SEQ2SEQ_RULES,
    {"classif_dropout", NULL}, /* these two belong to a classifier, which there is none of */
    {"classifier_dropout", NULL},
    {"add_bias_logits", NULL}, /* the bias is always there, and zero where it was never learnt */
    {"add_final_layer_norm", "true"}, /* these five say what a PEGASUS always is */
    {"normalize_before", "true"},
    {"normalize_embedding", "false"},
    {"static_position_embeddings", "true"},
    {"extra_pos_embeddings", NULL},
    {"force_bos_token_to_be_generated", NULL},
    {"gradient_checkpointing", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__SEQ2SEQ_INPUTS, {0}};

static const fv_family_head heads[] = {
    {"PegasusForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "PegasusModel"},
    {"PegasusModel", .job = FV_HEAD_BASE},
    {0},
};

static fv_status check(const void *config_, fv_err *e) { return fv__seq2seq_check(config_, e); }

static void declare(void *self, const fv_setup *s)
{
    fv__seq2seq *m = self;
    fv__seq2seq_init(m, s, "pegasus", fv__seq2seq_embed);
    fv__seq2seq_shared(m, s->params);
    fv__seq2seq_positions(m, s->params, FV_POS_HALVES, 0);
    fv__seq2seq_stacks(m, s->params, true);
    fv__seq2seq_head(m, s->params, true);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__seq2seq *m = self;
    fv_tensor *memory = fv__seq2seq_encode(c, m, in, out),
              *ids = fv__seq2seq_target(c, m, in, NULL);
    fv__seq2seq_put(c, m, in, out, memory, m->embed(c, m, true, ids, NULL));
}

const fv_family fv__family_pegasus = {FV__SEQ2SEQ_PARTS(fv__seq2seq), .type = "pegasus",
                                      .ready = fv__seq2seq_ready};
