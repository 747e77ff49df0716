/* backends.h - the entry points of the backends; each opens a device whose env is set. */
#ifndef FV_BACKENDS_H
#define FV_BACKENDS_H

#include "fovea/author/backend.h"

fv_status fv__cpu_open(fv_device *d, fv_device_opt opt, fv_err *e);

/* name: "cuda" or "cuda:N" */
fv_status fv__cuda_open(fv_device *d, const char *name, fv_err *e);
/* Describes each CUDA device in a line; returns their number, or -1 with the reason in e. */
int fv__cuda_list(char (*lines)[128], int most, fv_err *e);
/* The cudaStream_t of a stream of such a device, which becomes the thread's current one; NULL: the
 * backend has none to give. */
void *fv__cuda_stream(fv_stream *s);

#endif
