/* helper_numbers.h - numbers to begin with, those that come out, and how far these are from what was expected. */
#ifndef HELPER_NUMBERS_H
#define HELPER_NUMBERS_H

#include <stdbool.h>

#include "fovea/fovea.h"

typedef struct numbers {
    float *x; /* the caller frees them */
    int64_t n;
} numbers;

/* Sixteenths of `most` from -most to most, which all dtypes hold exactly; the caller frees them. */
float *numbers_drawn(int64_t n, uint32_t seed, float most);
numbers numbers_of(fv_ctx *c, const fv_tensor *t, bool grad);   /* its values, or its gradient */
numbers numbers_of_grad(fv_params *p, const fv_tensor *weight); /* of a parameter */

/* The largest difference, held against the number itself and the root of the mean square of all; NaN where there is one. */
typedef struct numbers_gap {
    double most, mean;
    int64_t at;
} numbers_gap;
numbers_gap numbers_apart(const numbers *got, const numbers *want);

#endif
