/* store.h - models on disk: safetensors, configuration, model directories and checkpoints.
 *
 * Everything here reads files it does not trust: a file is checked as a whole before any of it is used, sizes are
 * computed without overflow, and every refusal names file, place and reason.  Everything written is written beside
 * its name, synced and renamed: a crash leaves the old file or the new one. */
#ifndef FOVEA_STORE_H
#define FOVEA_STORE_H

#include "fovea/tensor.h"

/* ---- safetensors: named arrays in one file, or in several with an index ---- */

typedef struct fv_st fv_st;

typedef struct fv_st_info {
    const char *name;       /* lives as long as the fv_st */
    const char *dtype_name; /* as stored: "f32", "bf16", "i64", ... */
    fv_shape shape;
    int64_t count;    /* elements */
    const void *data; /* as stored: little endian, of any alignment */
    uint64_t bytes;
} fv_st_info;

/* Maps x.safetensors, x.safetensors.index.json with its shards, or a directory that holds model.safetensors or its
 * index, and checks every rule of the format.  The fv_st may be shared by threads. */
FV_API fv_status fv_st_open(fv_st **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_st_close(fv_st *s); /* NULL is allowed */

FV_API int fv_st_count(const fv_st *s);
FV_API fv_st_info fv_st_at(const fv_st *s, int i); /* in order of names; 0 <= i < fv_st_count */
/* The error names the nearest that is there. */
FV_API fv_status fv_st_find(const fv_st *s, const char *name, fv_st_info *out, fv_err *e);
FV_API const char *fv_st_meta(const fv_st *s, const char *key); /* an entry of __metadata__, or NULL */

/* Converts to f32, f64, bf16, f16, i32 or u8; n must be t->count.  A finite number beyond the range, and an integer that
 * would be rounded, are refused (FV_ENUMERIC); so are floats as i32 or u8 and dtypes that are not read (FV_EDTYPE). */
FV_API fv_status fv_st_read(const fv_st *s, const fv_st_info *t, void *out, fv_dtype to, int64_t n, fv_err *e);

#endif
