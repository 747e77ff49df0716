/* stream.h - what opening a device (cuda.cu) needs of its streams (stream.cu). */
#ifndef FV_CUDA_DEVICE_STREAM_H
#define FV_CUDA_DEVICE_STREAM_H

#include "cuda.h"

enum { FAULT_ROWS = 64 }; /* further fv_streams share the last row of fault records */

/* is_blocking: every launch is waited for and no step is captured (CUDA_LAUNCH_BLOCKING). */
const fv_backend *fv_cuda_backend(bool is_blocking);
void fv_cuda_device_close(fv_device *dev);

#endif
