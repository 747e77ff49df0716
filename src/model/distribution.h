/* distribution.h - a distribution of each value that is forecast, in place of one number: Student's
 * t, normal or negative binomial, with the parameters of transformers' time-series models.
 *
 * A model gives unbounded numbers, one for each parameter; fv__distribution_of maps them to what a
 * parameter may be. */
#ifndef FV_MODEL_DISTRIBUTION_H
#define FV_MODEL_DISTRIBUTION_H

#include "model/series.h"

typedef enum fv__distribution_kind {
    FV__STUDENT_T,        /* degrees of freedom, location, scale */
    FV__NORMAL,           /* location, scale */
    FV__NEGATIVE_BINOMIAL /* total count, logits; of values 0, 1, 2, .. */
} fv__distribution_kind;
extern const char *const fv__distribution_words[]; /* ending in NULL */
enum { FV__DISTRIBUTION_MOST = 3 };                /* parameters */
int fv__distribution_count(int kind);              /* parameters of a kind */

/* Of values (B,..): parameters of that shape, of values that are scaled as a window was. */
typedef struct fv__distribution {
    int kind;
    fv_tensor *p[FV__DISTRIBUTION_MOST];
    fv_tensor *loc, *scale; /* (B,1,C), or NULL: values are as they are */
} fv__distribution;

/* y: what a head gave for each parameter; s: the window's scaling, or NULL. */
fv__distribution fv__distribution_of(fv_ctx *c, int kind, fv_tensor *const *y, const fv__scaled *s);
fv_tensor *fv__distribution_mean(fv_ctx *c, const fv__distribution *d);
/* -log p(x) of each value. */
fv_tensor *fv__distribution_nll(fv_ctx *c, const fv__distribution *d, fv_tensor *x);

/* Puts the mean as names[0], the parameters as names[1], .. and, where there are values (B,..), the
 * "loss": the sum of -log p over the last axis, mean over the others, as transformers has it. */
void fv__put_distribution(fv_ctx *c, const fv_items *in, fv_items *out, fv__distribution d,
                          const char *const *names, fv_tensor *values);

#endif
