/* stream.h - streams as core opens and closes them; what kernels see of one is in
 * fovea/author/backend.h. */
#ifndef FV_BACKEND_STREAM_H
#define FV_BACKEND_STREAM_H

#include "fovea/author/backend.h"

/* threads: 0 means the device's.  A stream that failed to open need not be closed. */
fv_status fv__stream_open(fv_stream *s, fv_device *d, int threads, fv_err *e);
/* Waits for what is queued and releases the scratch; a stream without a device is left alone. */
void fv__stream_close(fv_stream *s);

/* Whether all ids are below vocab; if not, the stream fails with the first that is not. */
bool fv__ids_valid(fv_stream *s, const char *kernel, const int32_t *ids, int64_t n, int64_t vocab);

/* ", 12 of 34 bytes are left on the device", to stand behind a message that memory ran out; "" on
 * a backend that does not count. */
typedef struct fv__memory_text {
    char s[80];
} fv__memory_text;
fv__memory_text fv__memory_left(fv_device *d);

#endif
