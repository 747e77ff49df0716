/* numbers.h - numbers to begin with, those that come out, and how far these are from what was
 * expected. */
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
/* such ones become a parameter's */
void numbers_set(fv_params *p, fv_tensor *weight, uint32_t seed, float most);
numbers numbers_of(fv_ctx *c, const fv_tensor *t, bool grad);   /* its values, or its gradient */
numbers numbers_of_grad(fv_params *p, const fv_tensor *weight); /* of a parameter */
/* Back from y with a gradient that is drawn; nothing on the tape has failed. */
void numbers_backward(fv_ctx *c, fv_tensor *y, uint32_t seed);

/* The largest difference, held against the number itself and the root of the mean square of all;
 * NaN where there is one. */
typedef struct numbers_gap {
    double most, mean;
    int64_t at;
} numbers_gap;
numbers_gap numbers_apart(const numbers *got, const numbers *want);

/* Something that is tried at many sizes. */
typedef struct numbers_trial {
    int results;             /* that come out */
    const char *const *name; /* of each */
    size_t size;             /* bytes of one of the sizes */
    double f32, bf16, f16;   /* tolerances */
    /* Fills the results of one size; those that it leaves as they are, empty, are not looked at.
     * expected: the others are held against these. */
    void (*run)(numbers *to, fv_device *d, fv_dtype t, bool expected, const void *size);
    void (*on_skipped)(char *text, size_t capacity, const void *size); /* a size in words */
} numbers_trial;

/* Results first to last of n sizes on a device, in every dtype, against f32 on the CPU. */
void numbers_compare(const numbers_trial *of, fv_device *dev, fv_device *cpu, const void *all,
                     size_t n, int first, int last);
/* In bf16 a size has the same bits twice. */
void numbers_repeat(const numbers_trial *of, fv_device *dev, const void *size);

#endif
