/* m2m_100.c - M2M-100 and NLLB-200: translation between many languages by pre-norm layers.
 *
 *     x = sqrt(D) E[ids] + sinusoids[position];   pre-norm layers and one norm behind each stack;
 *     logits = y E'
 *     sinusoids: sin and cos of p exp(-i ln(10000) / (D/2 - 1)), all sines and then all cosines
 *
 * A position counts tokens that are no padding, from pad_token_id + 1, as RoBERTa's; padding has
 * none. The sinusoids are in no file, so they are a table of the context and no parameter.  A
 * source begins with the code of its language; the target's is the first token generated
 * (forced_bos_token_id).
 *
 * Papers: Fan et al. 2021 (arXiv:2010.11125), NLLB Team 2022 (arXiv:2207.04672). Next to mBART:
 * no norm on the embeddings, no bias on the logits, sinusoids in place of learned positions.
 * Names are those of transformers' M2M100Model. */
#include <math.h>
#include <stddef.h>

#include "model/seq2seq.h"
#include "nn/part.h"

typedef fv__seq2seq_config config;

enum { RELU = 1 }; /* of fv_act_words */

static const fv_field fields[] = {
    FV__SEQ2SEQ_FIELDS(128112, RELU, 0.1, true, 1, 2, 2),
    FV__SINUSOIDS_FIELD,
    {0},
};

static const fv_key_rule rules[] = {
    FV__SEQ2SEQ_RULES,
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__SEQ2SEQ_INPUTS, {0}};

static const fv_family_head heads[] = {
    {"M2M100ForConditionalGeneration", FV_HEAD_SEQ2SEQ, .base = "M2M100Model"},
    {"M2M100Model", .job = FV_HEAD_BASE},
    {0},
};

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->d_model < 4)
        return fv_fail(e, FV_EFORMAT, "d_model %d leaves no frequencies for sinusoids", k->d_model);
    return fv__seq2seq_check(k, e);
}

/* ---- positions ---- */

typedef struct {
    int64_t width, pad;
} waves;

/* In single precision and this order, as the published models compute them: far down a sequence the
 * rounding of an angle can be seen. */
static void sinusoids(void *out, const void *user, int64_t from, int64_t n)
{
    const waves *w = user;
    float *y = out;
    int64_t half = w->width / 2;
    float step = -(float)(log(10000) / (double)(half - 1));
    for (int64_t i = from; i < from + n; i++) {
        int64_t row = i / w->width, j = i % w->width;
        float angle = (float)row * expf((float)(j < half ? j : j - half) * step);
        bool none = row == w->pad || j == 2 * half; /* the last of an odd width */
        *y++ = none ? 0 : j < half ? sinf(angle) : cosf(angle);
    }
}

/* 0 for the padding's row, else 1: what a session's positions, which count padding too, are
 * multiplied by. */
static void no_padding(void *out, const void *user, int64_t from, int64_t n)
{
    const waves *w = user;
    float *y = out;
    for (int64_t i = from; i < from + n; i++) *y++ = i != w->pad;
}

/* The sinusoids of ids (B,T): (B,T,D). */
static fv_tensor *positions(fv_ctx *c, const config *k, fv_tensor *ids, fv_session *s)
{
    waves w = {k->d_model, k->pad_token_id};
    int64_t rows = k->max_position_embeddings + w.pad + 1;
    fv_tensor *table = fv__table(c, FV_F32, FV_SHAPE(rows, w.width), sinusoids, &w, sizeof w);
    fv_tensor *unpadded = fv_positions_unpadded(c, ids, k->pad_token_id);
    if (!s) return fv_gather(c, table, unpadded, -1);
    fv_tensor *some = fv__table(c, FV_F32, FV_SHAPE(rows, 1), no_padding, &w, sizeof w);
    fv_tensor *at = fv_session_positions_from(c, s, k->pad_token_id + 1);
    return fv_mul(c, fv_gather(c, table, at, -1), fv_gather(c, some, unpadded, -1));
}

static fv_tensor *embed(fv_ctx *c, const fv__seq2seq *m, bool decoder, fv_tensor *ids,
                        fv_session *s)
{
    if (!ids || !fv__seq2seq_fits(c, m, ids)) return NULL;
    fv_tensor *x = fv_emb_fwd(c, decoder ? &m->target : &m->source, ids),
              *at = positions(c, &m->cfg, ids, s);
    if (!x || !at) return NULL;
    return fv_dropout(c, fv_add(c, x, fv_cast(c, at, x->dtype)), m->cfg.dropout);
}

/* ---- the model ---- */

static void declare(void *self, const fv_setup *s)
{
    fv__seq2seq *m = self;
    fv__seq2seq_init(m, s, "m2m_100", embed);
    fv__seq2seq_shared(m, s->params);
    fv__seq2seq_stacks(m, s->params, true);
    fv__seq2seq_head(m, s->params, false);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__seq2seq *m = self;
    fv_tensor *memory = fv__seq2seq_encode(c, m, in, out);
    fv_tensor *ids = fv__seq2seq_target(c, m, in, NULL);
    fv__seq2seq_put(c, m, in, out, memory, embed(c, m, true, ids, NULL));
}

const fv_family fv__family_m2m_100 = {FV__SEQ2SEQ_PARTS(fv__seq2seq), .type = "m2m_100"};
