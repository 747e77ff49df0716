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
} fv_prefix;

/* Applies transformers' logits processors, in its order, to one row of V scores: repetition
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

bool fv__token_is_eos(int32_t token, const fv_gen_opt *o);

/* The k best of a row, best first, ties to the lower token; out: k entries. */
void fv__top_k(fv_candidate *out, int64_t k, const float *score, int64_t V);

/* Draws from softmax(score / temperature) cut to top_k, top_p, min_p and typical_p, by a uniform
 * number u; scratch: V entries. */
int32_t fv__sample_token(const float *score, int64_t V, const fv_gen_opt *o, double u,
                         fv_candidate *scratch);

/* The token a sequence of one beam goes on with, by the rules and perhaps drawn; its score is the
 * model's own log-probability.  logits: V, overwritten; number: which of all sequences it is, for
 * its random numbers; scratch: for f.n floats; candidates: for V. */
fv_candidate fv__next_token(float *logits, int64_t V, fv_prefix f, const fv_gen_opt *o,
                            int64_t number, float *scratch, fv_candidate *candidates);

#endif
