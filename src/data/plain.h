/* plain.h - the whole content of a file, unpacked where it is gzip. */
#ifndef FV_DATA_PLAIN_H
#define FV_DATA_PLAIN_H

#include "base/base.h"

typedef struct fv__plain {
    fv_file file;
    const char *data;
    size_t size;
} fv__plain;

/* Close it whatever comes back. */
fv_status fv__plain_open(fv__plain *p, const fv_env *env, const char *path, fv_err *e);
void fv__plain_close(fv__plain *p);

#endif
