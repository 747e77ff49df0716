/* merge.c - a model's directory with adapters folded into its weights. */
#include <stdio.h>

#include "model/adapter.h"
#include "model/copy.h"
#include "store/store.h"

/* As the base has its first matrix, where that is a dtype that can be written. */
static fv_dtype stored_dtype(const fv_st *file)
{
    fv_dtype t = FV_F32;
    for (int i = 0; i < fv_st_count(file); i++) {
        fv_st_info x = fv_st_at(file, i);
        if (x.shape.n == 2 && fv_dtype_parse(&t, x.dtype_name) && t < FV_FLOATS) return t;
    }
    return FV_F32;
}

/* The files beside the weights: the base's, or those of an adapter's own directory. */
fv_status fv_model_merge(fv_device *d, const char *from, fv_adapter_list adapters, const char *to,
                         const fv_dtype *dtype, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    char base[FV_PATH], path[FV_PATH];
    fv_model *m = NULL;
    fv_dir *dir = NULL, *below = NULL;
    fv_st *file = NULL;
    fv_status st = fv_dir_open(&dir, env, from, e);
    if (!st && fv__adapter_is_dir(dir)) {
        st = fv__adapter_base(base, env, fv_dir_path(dir), e);
        if (!st) st = fv_dir_open(&below, env, base, e);
    }
    if (!st) st = fv__store_path(path, to, "config.json", e);
    if (!st && fv__file_exists(env, path))
        st = fv_fail(e, FV_ESTATE, "%s: there is a model in it already", to);
    if (!st) st = fv_dir_weights(below ? below : dir, &file, e);
    if (!st) st = fv_model_open(&m, d, from, (fv_model_opt){.adapters = adapters}, e);
    if (!st && fv__model_virtual(m)->n)
        st = fv_fail(e, FV_EMISSING, "%s: virtual tokens cannot be folded into a model", from);
    if (!st && fv__params_have_bottleneck(fv_model_params(m)))
        st = fv_fail(e, FV_EMISSING, "%s: bottlenecks cannot be folded into a model", from);
    if (!st && fv__params_have_table_adapter(fv_model_params(m)))
        st = fv_fail(e, FV_EMISSING,
                     "%s: LoRA of embeddings is not folded into a table, which may be the output "
                     "layer too",
                     from);
    if (!st) st = fv_model_save(m, to, dtype ? *dtype : stored_dtype(file), e);
    if (!st && below) st = fv__copy_beside(env, fv_dir_path(below), to, e);
    if (!st) st = fv__copy_beside(env, fv_dir_path(dir), to, e);
    fv_model_free(m);
    fv_st_close(file);
    fv_dir_close(below);
    fv_dir_close(dir);
    return st;
}
