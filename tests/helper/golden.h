/* golden.h - tensors that another implementation computed, from a safetensors file of
 * tests/golden. */
#ifndef HELPER_GOLDEN_H
#define HELPER_GOLDEN_H

#include "fovea/array.h"
#include "fovea/fovea.h"

typedef struct golden {
    const char *file; /* FOVEA_TESTS "/golden/nn_ops.safetensors" */
    fv_ctx *ctx;
} golden;

/* The array file:name; the test fails where it is missing. */
fv_array golden_array(const golden *g, const char *fmt, ...) FV_PRINTF(2, 3);

/* As tensors of the context: floats, ids, or a mask of zeros and ones. */
fv_tensor *golden_floats(const golden *g, const char *fmt, ...) FV_PRINTF(2, 3);
fv_tensor *golden_ints(const golden *g, const char *fmt, ...) FV_PRINTF(2, 3);
fv_tensor *golden_mask(const golden *g, const char *fmt, ...) FV_PRINTF(2, 3);

/* From a file that is open, by name: all floats of an array, which the caller frees; FV_I32 ids or
 * an FV_U8 mask. */
float *golden_numbers(const fv_st *file, const char *name, int64_t *n);
fv_tensor *golden_input(fv_ctx *c, const fv_st *file, const char *name, fv_dtype as);

/* The shape is the same and each number within tolerance * (its size + the size of all); fails the
 * test otherwise. */
void golden_near(const golden *g, const fv_tensor *t, double tolerance, const char *fmt, ...)
    FV_PRINTF(4, 5);
void golden_grad_near(const golden *g, const fv_tensor *t, double tolerance, const char *fmt, ...)
    FV_PRINTF(4, 5);

#endif
