/* sample.h - the next token on the host: logits processors, greedy choice, sampling. */
#ifndef FV_LOGITS_H
#define FV_LOGITS_H

#include "fovea/gen.h"

typedef struct fv_candidate {
    float score;
    int32_t token;
} fv_candidate;

/* A sequence that is being generated, as the processors see it. */
typedef struct fv_prefix {
    const int32_t *ids;
    int64_t n;      /* tokens, the prompt included */
    int64_t prompt; /* of these, how many were given */
    int64_t most;   /* n when it must end */
    /* what an encoder read; NULL: the prompt counts instead */
    const int32_t *source;
    int64_t n_source;
} fv_prefix;

/* Applies transformers' logits processors, in its order, to one row of V scores: biases, repetition
 * penalty, banned n-grams, bad words and suppressed tokens, no end token before the minimal
 * length, the first and the last token where they are forced.  scratch: f.n floats. */
void fv__process_logits(float *score, int64_t V, fv_prefix f, const fv_gen_opt *o, float *scratch);

/* Whether the processors that need no other score ban this token: minimal length, suppressed and
 * forced tokens; not penalties, n-grams and bad words. */
bool fv__token_is_banned(const fv_gen_opt *o, fv_prefix f, int32_t token);
/* The token that is forced at this position (bos, or eos at the greatest length), or -1. */
int32_t fv__forced_token(const fv_gen_opt *o, fv_prefix f);

/* log(sum of exp(score)), and score less that. */
double fv__log_sum_exp(const float *score, int64_t V);
void fv__log_softmax_row(float *score, int64_t V);

/* Whether processors need every score, or the tokens before: what a device that chooses by itself
 * does not have. */
static inline bool fv__looks_back(const fv_gen_opt *o)
{
    return o->repetition_penalty != 1 || o->no_repeat_ngram_size > 0 ||
           o->encoder_no_repeat_ngram_size > 0 || o->n_bad_words > 0 || o->n_biased > 0 ||
           o->logits;
}

bool fv__token_is_eos(int32_t token, const fv_gen_opt *o);

/* The k best of a row, best first, ties to the lower token; out: k entries. */
void fv__top_k(fv_candidate *out, int64_t k, const float *score, int64_t V);

/* Draws from softmax(score / temperature) cut to top_k, top_p, min_p and typical_p, by a uniform
 * number u; scratch: V entries. */
int32_t fv__sample_token(const float *score, int64_t V, const fv_gen_opt *o, double u,
                         fv_candidate *scratch);

/* The tokens that such a draw can give, at least `least` of them, in *c with softmax weights that
 * are not normalised; scratch: V entries.  Returns how many. */
int64_t fv__sample_from(fv_candidate **c, const float *score, int64_t V, const fv_gen_opt *o,
                        int64_t least, fv_candidate *scratch);

/* The token a sequence of one beam goes on with, by the rules and perhaps drawn.  logits: V,
 * overwritten; number: which of all sequences it is, for its random numbers; scratch: for f.n
 * floats; candidates: for V. */
int32_t fv__choose_token(float *logits, int64_t V, fv_prefix f, const fv_gen_opt *o, int64_t number,
                         float *scratch, fv_candidate *candidates);
/* The same with its score behind the rules: against all of the model's own logits or, with
 * renormalize_logits, against what the rules (and a draw's cuts) leave, as transformers' scores. */
fv_candidate fv__next_token(float *logits, int64_t V, fv_prefix f, const fv_gen_opt *o,
                            int64_t number, float *scratch, fv_candidate *candidates);

#endif
