/* array.h - small arrays in host memory, read from and written to files people have at hand.
 *
 * A source is named by one word:
 *   numbers.csv           text: one row a line; comma, semicolon, tab or blanks between numbers
 *   array.npy             NumPy, versions 1 to 3, C or Fortran order, little endian
 *   file.safetensors:name one tensor of a safetensors file
 * Whatever is stored arrives as row-major f32.  A value f32 cannot hold (beyond its range, or an
 * integer it would round) is refused with its position; so are NaN and infinity unless asked
 * for. */
#ifndef FOVEA_ARRAY_H
#define FOVEA_ARRAY_H

#include "fovea/tensor.h"

typedef struct fv_array {
    fv_shape shape;    /* of text: (rows, columns) */
    float *data;       /* the product of shape of them; NULL when that is 0 */
    char stored[16];   /* what the file held: "text", "f16", "i64", "bool", ... */
    const fv_env *env; /* whose memory data is */
} fv_array;

typedef struct fv_array_opt {
    bool nonfinite; /* let NaN and infinity pass: a mask of 0 and -inf needs it */
} fv_array_opt;

/* Reads the array from a source.  On failure *a is empty, and closing it is allowed. */
FV_API fv_status fv_array_open(fv_array *a, const fv_env *env, const char *source, fv_array_opt opt,
                               fv_err *e);
FV_API void fv_array_close(fv_array *a);

/* Writes a .npy (f32) or a .csv (at most two axes; digits enough to read the same bits back), by
 * its ending.  Only shape and data are looked at, so an fv_array around memory of one's own is
 * fine.  The file is there whole or not at all. */
FV_API fv_status fv_array_save(const fv_array *a, const fv_env *env, const char *path, fv_err *e);

#endif
