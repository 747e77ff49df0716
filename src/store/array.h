/* array.h - what the readers of arrays share: one function per format, called by array.c. */
#ifndef FV_STORE_ARRAY_H
#define FV_STORE_ARRAY_H

#include "fovea/array.h"
#include "fovea/author/tensor.h"
#include "store/number.h"

#define FV_NPY_MAGIC "\x93NUMPY"
#define FV_NPY_MAGIC_LEN 6

/* Each gets a whole file and fills the empty *a; path is for messages.  What they leave on failure
 * array.c frees. */
fv_status fv__csv_read(fv_array *a, const fv_file *f, const char *path, fv_array_opt opt,
                       fv_err *e);
fv_status fv__npy_read(fv_array *a, const fv_file *f, const char *path, fv_err *e);

void fv__csv_write(fv_out *o, const fv_array *a);
void fv__npy_write(fv_out *o, const fv_array *a);

/* Memory for the elements of a->shape, which was checked to fit; the message names what. */
fv_status fv__array_alloc(fv_array *a, const char *what, fv_err *e);

/* Number of elements: false for a negative axis or more than fit in an int64. */
bool fv__shape_count(int64_t *n, const fv_shape *s);

/* The index of element i as "(1,2,0)", for messages. */
fv_desc_text fv__element(const fv_shape *s, int64_t i);

#endif
