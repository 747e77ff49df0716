/* cuda_host.h - what the library and its CUDA backend, a shared object of its own, say to each
 * other.
 *
 * The backend is opened when a CUDA device is asked for, and the program may hold the library
 * without exporting it.  So nothing is resolved by name but two entries, and what the backend needs
 * of the library is handed to it. */
#ifndef FV_CUDA_HOST_H
#define FV_CUDA_HOST_H

#include "fovea/author/backend.h"

typedef struct fv_cuda_host {
    void *(*work)(fv_stream *s, size_t bytes); /* fv_stream_scratch */
    void (*fail)(fv_stream *s, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);
    /* fv_fail */
    fv_status (*refuse)(fv_err *e, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);
} fv_cuda_host;

/* Both sides must have been compiled from the same headers.  FV_CUDA_ABI (cmake/cuda.cmake) is a
 * sum over their text: a version number could be forgotten, and sizes of tables do not see that an
 * argument has become another. */

/* Fills a device whose env is set; number counts CUDA devices from 0. */
typedef fv_status fv_cuda_open_fn(fv_device *d, const fv_cuda_host *host, size_t abi, int number,
                                  fv_err *e);
#define FV_CUDA_OPEN "fv_cuda_open"

/* One line on each device ("NVIDIA H200, sm_90, 139.8 GiB"); returns how many there are, or -1 with
 * the reason in e. */
typedef int fv_cuda_list_fn(const fv_cuda_host *host, size_t abi, char (*lines)[128], int most,
                            fv_err *e);
#define FV_CUDA_LIST "fv_cuda_list"

#endif
