/* unpack.h - opening a file that may have been compressed with gzip. */
#ifndef FV_TOK_UNPACK_H
#define FV_TOK_UNPACK_H

#include "base/base.h"

/* path, or else path.gz, is there. */
bool fv__packed_exists(const fv_env *env, const char *path);
/* Opens path, or path.gz where only that is there; what is compressed comes out unpacked.  Closed
 * by fv__file_close. */
fv_status fv__unpack(fv_file *f, const fv_env *env, const char *path, fv_err *e);

/* Replaces a gzip file's bytes, which may have several members, by what they unpack to: at most
 * `most` bytes, and never out of proportion.  On failure f is as it was. */
bool fv__is_gzip(const fv_file *f);
fv_status fv__inflate_file(fv_file *f, const char *path, size_t most, fv_err *e);

#endif
