/* cuda_host.h - the interface between libfovea and its CUDA backend, libfovea_cuda.so.
 *
 * The backend is opened with dlopen when a CUDA device is requested.  A program may link libfovea
 * statically without exporting its symbols, so the backend cannot resolve them: only three
 * entry points are found by name, and the callbacks the backend needs are passed in. */
#ifndef FV_CUDA_HOST_H
#define FV_CUDA_HOST_H

#include "fovea/author/backend.h"

typedef struct fv_cuda_host {
    /* fv_stream_scratch, fv_stream_fail, fv_fail */
    void *(*work)(fv_stream *s, size_t bytes);
    void (*fail)(fv_stream *s, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);
    fv_status (*refuse)(fv_err *e, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);
} fv_cuda_host;

/* Both sides must be compiled from the same headers.  FV_CUDA_ABI (cmake/cuda.cmake) is a hash of
 * their text: a version number can be forgotten, and the size of a table does not show that an
 * argument has changed its type. */

/* Fills a device whose env is set; number: the CUDA ordinal. */
typedef fv_status fv_cuda_open_fn(fv_device *d, const fv_cuda_host *host, size_t abi, int number,
                                  fv_err *e);
#define FV_CUDA_OPEN "fv_cuda_open"

/* Describes each device in a line ("NVIDIA H200, sm_90, 139.8 GiB"); returns their number, or -1
 * with the reason in e. */
typedef int fv_cuda_list_fn(const fv_cuda_host *host, size_t abi, char (*lines)[128], int most,
                            fv_err *e);
#define FV_CUDA_LIST "fv_cuda_list"

/* The cudaStream_t that the work of s goes to, for NVIDIA's other libraries; makes its device the
 * calling thread's current one. */
typedef void *fv_cuda_stream_fn(fv_stream *s);
#define FV_CUDA_STREAM "fv_cuda_stream"

#endif
