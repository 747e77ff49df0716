/* pages.h - memory that follows its use (pages.cu), for the backend's table (stream.cu). */
#ifndef FV_CUDA_DEVICE_PAGES_H
#define FV_CUDA_DEVICE_PAGES_H

#include "cuda.h"

/* As fv_backend has them. */
size_t fv_cuda_page_size(fv_device *dev);
void *fv_cuda_reserve(fv_device *dev, size_t bytes);
bool fv_cuda_commit(fv_device *dev, void *p, size_t bytes);
void fv_cuda_discard(fv_device *dev, void *p, size_t bytes);

/* False: p is no reservation. */
bool fv_cuda_unreserve(device *d, void *p);
void fv_cuda_unreserve_all(device *d);

#endif
