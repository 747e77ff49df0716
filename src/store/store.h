/* store.h - what the files of this folder share beyond the formats themselves. */
#ifndef FV_STORE_STORE_H
#define FV_STORE_STORE_H

#include "fovea/store.h"
#include "fovea/author/checkpoint.h"
#include "fovea/author/config.h"
#include "store/safetensors/safetensors.h"

/* dir/name */
fv_status fv__store_path(char out[FV_PATH], const char *dir, const char *name, fv_err *e);
/* false also where that cannot be told: for callers that open the path next, or need not know */
bool fv__is_dir(const fv_env *env, const char *path);
bool fv__ends_with(const char *s, const char *end);
/* What config.json says of the weights' dtype, where it says anything: others load them as that. */
fv_status fv__config_dtype(fv_json *j, fv_dtype dtype, fv_err *e);

typedef struct fv_st_shard {
    fv_file file;
    fv_st_plan plan;
} fv_st_shard;

fv_status fv__st_shard_open(fv_st_shard *x, const fv_env *env, const char *path, fv_err *e);
void fv__st_shards_free(const fv_env *env, fv_st_shard *x, int n);
/* Opens every shard an index names, and checks that index and shards agree.  *x and *n are to be
 * freed on failure too. */
fv_status fv__st_index_open(fv_st_shard **x, int *n, const fv_env *env, const char *path,
                            fv_err *e);
/* n values of a weight as FV_Q8, FV_Q4 or FV_I8: fv_dtype_row(t, n) bytes. */
void fv__quantise_row(void *out, fv_dtype t, const float *x, int64_t n);
/* These bytes of an open file's data may leave memory: they come back when they are touched. */
void fv__st_forget(const fv_st *s, const void *data, size_t bytes);
/* Elements [at, at+n) of a tensor, converted as fv_st_read does. */
fv_status fv__st_read_part(const fv_st *s, const fv_st_info *t, int64_t at, int64_t n, void *out,
                           fv_dtype to, fv_err *e);
/* Writes the parameters that are trained, those of the base model with prefix in front of their
 * names. */
fv_status fv__params_save_trained(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                                  const char *prefix, fv_err *e);
/* Whether fv_params_load would find every parameter in the file, asked before there is memory for
 * them. */
fv_status fv__params_fit(fv_params *p, const fv_env *env, const char *path, fv_load_opt opt,
                         fv_err *e);

#endif
