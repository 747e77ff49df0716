/* pick.h - the next token: what may be chosen, and choosing it. */
#ifndef FV_PICK_H
#define FV_PICK_H

#include "fovea/gen.h"

typedef struct fv_pick {
    float score;
    int32_t token;
} fv_pick;

/* Applies what transformers calls logits processors to one row of V scores: the repetition penalty for the n tokens so
 * far, banned tokens, no end before min_length, the forced end at max_length. */
void fv__pick_rules(float *score, int64_t V, const int32_t *so_far, int64_t n, const fv_gen_opt *o);

/* The same for one token: whether the rules take it out (the penalty never does).  With a forced end, all but that. */
bool fv__pick_ruled_out(const fv_gen_opt *o, int64_t n, int32_t token);
bool fv__pick_forced(const fv_gen_opt *o, int64_t n);

/* log(sum of exp(score)), and score less that. */
double fv__pick_log_sum(const float *score, int64_t V);
void fv__pick_renormalise(float *score, int64_t V);

/* The k best of a row, best first, ties to the lower token; out has room for k. */
void fv__pick_best(fv_pick *out, int64_t k, const float *score, int64_t V);

/* Draws from softmax(score / temperature) cut to top_k and top_p, by a uniform number u; scratch has room for V. */
int32_t fv__pick_sample(const float *score, int64_t V, const fv_gen_opt *o, double u, fv_pick *scratch);

#endif
