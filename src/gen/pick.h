/* pick.h - the next token: what may be chosen, and choosing it. */
#ifndef FV_PICK_H
#define FV_PICK_H

#include "fovea/gen.h"

typedef struct fv_pick {
    float score;
    int32_t token;
} fv_pick;

/* A sequence on its way. */
typedef struct fv_so_far {
    const int32_t *ids;
    int64_t n;      /* tokens, the prompt included */
    int64_t prompt; /* of these, how many were given */
    int64_t most;   /* n when it must end */
} fv_so_far;

/* Applies what transformers calls logits processors, in its order, to one row of V scores: the
 * penalty for repeating, n-grams and words that must not come, no end before its time, the first
 * and the last token where they are forced.  room: for f.n floats. */
void fv__pick_rules(float *score, int64_t V, fv_so_far f, const fv_gen_opt *o, float *room);

/* The same for one token: whether the rules take it out.  Penalties, n-grams and words are not
 * looked at. */
bool fv__pick_ruled_out(const fv_gen_opt *o, fv_so_far f, int32_t token);
/* The one token that may come, or -1. */
int32_t fv__pick_forced(const fv_gen_opt *o, fv_so_far f);

/* log(sum of exp(score)), and score less that. */
double fv__pick_log_sum(const float *score, int64_t V);
void fv__pick_renormalise(float *score, int64_t V);

bool fv__pick_ends(int32_t token, const fv_gen_opt *o);

/* The k best of a row, best first, ties to the lower token; out has room for k. */
void fv__pick_best(fv_pick *out, int64_t k, const float *score, int64_t V);

/* Draws from softmax(score / temperature) cut to top_k, top_p, min_p and typical_p, by a uniform
 * number u; room: for V. */
int32_t fv__pick_sample(const float *score, int64_t V, const fv_gen_opt *o, double u,
                        fv_pick *room);

#endif
