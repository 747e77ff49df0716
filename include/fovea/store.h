/* store.h - arrays on disk: safetensors.
 *
 * Everything here reads files it does not trust: a file is checked as a whole before any of it is
 * used, sizes are computed without overflow, and every refusal names file, position and reason.
 * Everything written is written beside its name, synced and renamed: a crash leaves the old file or
 * the new one. */
#ifndef FOVEA_STORE_H
#define FOVEA_STORE_H

#include "fovea/tensor.h"

/* Named arrays in one file, or in several with an index. */
typedef struct fv_st fv_st;

typedef struct fv_st_info {
    const char *name;       /* lives as long as the fv_st */
    const char *dtype_name; /* as stored: "f32", "bf16", "i64", ... */
    fv_shape shape;
    int64_t count;    /* elements */
    const void *data; /* as stored: little endian, of any alignment */
    uint64_t bytes;
} fv_st_info;

/* Maps x.safetensors, x.safetensors.index.json with its shards, or a directory that holds
 * model.safetensors or its index, and checks every rule of the format.  The fv_st may be shared by
 * threads. */
FV_API fv_status fv_st_open(fv_st **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_st_close(fv_st *s); /* NULL is allowed */

FV_API int fv_st_count(const fv_st *s);
FV_API fv_st_info fv_st_at(const fv_st *s, int i); /* by name, shard after shard; i < fv_st_count */
/* The error names the nearest that is there. */
FV_API fv_status fv_st_find(const fv_st *s, const char *name, fv_st_info *out, fv_err *e);

/* Converts to f32, f64, bf16, f16, i32 or u8; n must be t->count.  A finite number beyond the
 * range, and an integer that would be rounded, are refused (FV_ENUMERIC); so are floats as i32 or
 * u8 and dtypes that are not read (FV_EDTYPE). */
FV_API fv_status fv_st_read(const fv_st *s, const fv_st_info *t, void *out, fv_dtype to, int64_t n,
                            fv_err *e);

/* One array to write: name, shape, how it is stored, and where its numbers come from. */
typedef struct fv_st_item {
    const char *name;
    fv_dtype dtype; /* in the file: f32, f64, bf16, f16, i32 or u8 */
    fv_shape shape;
    fv_dtype from;    /* of data, or of what fetch gives */
    const void *data; /* host memory; NULL: fetch is asked */
} fv_st_item;

typedef struct fv_st_save_opt {
    /* split into model-00001-of-0000N.safetensors and an index beyond this; 0: never */
    uint64_t shard_bytes;
    const char *const (*meta)[2]; /* pairs ending in NULL; default {"format", "pt"} */
    /* Elements [at, at+n) of item, as item->from.  Called in order, for at most 65536 at a time. */
    fv_status (*fetch)(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e);
    void *user;
} fv_st_save_opt;

/* Writes path (x.safetensors).  The bytes depend on the items alone, not on their order, and are
 * those the reference implementation writes. */
FV_API fv_status fv_st_save(const fv_env *env, const char *path, const fv_st_item *items, int n,
                            fv_st_save_opt opt, fv_err *e);

#endif
