/* dir.c - model directories as Hugging Face lays them out.
 *
 *    config.json                     family and sizes: required
 *    generation_config.json          defaults for sampling: optional
 *    model.safetensors[.index.json]  weights
 *    tokenizer.json, ..              opened by tok */
#include <stdio.h>

#include "base/hub.h"
#include "store.h"

struct fv_dir {
    const fv_env *env;
    char *path;
    fv_json *config, *generation;
};

const char *fv_dir_path(const fv_dir *d) { return d->path; }
const fv_json *fv_dir_config(const fv_dir *d) { return d->config; }
const fv_json *fv_dir_generation(const fv_dir *d) { return d->generation; }

/* false where it is not there; out is then left alone. */
bool fv_dir_file(const fv_dir *d, const char *name, char *out, size_t n)
{
    char path[FV_PATH];
    if (fv__store_path(path, d->path, name, NULL) || !fv__file_exists(d->env, path) ||
        strlen(path) >= n)
        return false;
    memcpy(out, path, strlen(path) + 1);
    return true;
}

/* config.json must be there; generation_config.json may be. */
static fv_status read_configs(fv_dir *d, fv_err *e)
{
    char path[FV_PATH];
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, d->env, d->path, e);
    if (!st && kind != FV_PATH_DIR) st = fv_fail(e, FV_EIO, "%s: not a directory", d->path);
    if (!st) st = fv__store_path(path, d->path, "config.json", e);
    if (!st) st = fv__path_kind(&kind, d->env, path, e);
    if (!st && kind == FV_PATH_ABSENT)
        st = fv_fail(e, FV_EIO, "%s: no config.json in it, so not the directory of a model",
                     d->path);
    if (!st && kind != FV_PATH_FILE) /* a FIFO would be waited for */
        st = fv_fail(e, FV_EIO, "%s: not a regular file", path);
    if (!st) st = fv_json_open(&d->config, d->env, path, e);
    if (!st && fv_dir_file(d, "generation_config.json", path, sizeof path))
        st = fv_json_open(&d->generation, d->env, path, e);
    return st;
}

/* A directory, or the name of a model in the Hugging Face cache. */
fv_status fv_dir_open(fv_dir **out, const fv_env *env, const char *path, fv_err *e)
{
    fv_dir *d = fv__alloc(env, sizeof *d);
    *out = NULL;
    char found[FV_PATH];
    fv_status st = fv__hub_find(found, env, path, e);
    if (d) {
        d->env = env;
        d->path = st ? NULL : fv__strdup(env, found);
    }
    if (!st)
        st = d && d->path ? read_configs(d, e) : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (st)
        fv_dir_close(d);
    else
        *out = d;
    return st;
}

void fv_dir_close(fv_dir *d)
{
    if (!d) return;
    fv_json_close(d->config);
    fv_json_close(d->generation);
    if (d->path) fv__free(d->env, d->path, strlen(d->path) + 1);
    fv__free(d->env, d, sizeof *d);
}

/* A pickle is a program: reading one means running it.  We say how to leave it behind. */
static fv_status refuse_pickle(const fv_dir *d, fv_err *e)
{
    return fv_fail(e, FV_EFORMAT,
                   "%s: its weights are a pickle (pytorch_model.bin), which is not read because it "
                   "can run code; in that directory, "
                   "convert it once: python3 -c \"import torch, safetensors.torch as s; "
                   "s.save_file({k: v.clone() for k, v in "
                   "torch.load('pytorch_model.bin', weights_only=True).items()}, "
                   "'model.safetensors', {'format': 'pt'})\"",
                   d->path);
}

fv_status fv_dir_weights(const fv_dir *d, fv_st **out, fv_err *e)
{
    char path[FV_PATH];
    *out = NULL;
    if (!fv_dir_file(d, "model.safetensors", path, sizeof path) &&
        !fv_dir_file(d, "model.safetensors.index.json", path, sizeof path)) {
        if (fv_dir_file(d, "pytorch_model.bin", path, sizeof path) ||
            fv_dir_file(d, "pytorch_model.bin.index.json", path, sizeof path))
            return refuse_pickle(d, e);
        return fv_fail(e, FV_EIO, "%s: no weights in it (model.safetensors)", d->path);
    }
    return fv_st_open(out, d->env, path, e);
}

/* Under the name that the file has: torch_dtype until transformers 4, dtype since. */
fv_status fv__config_dtype(fv_json *j, fv_dtype dtype, fv_err *e)
{
    const char *key = fv_json_has(j, "torch_dtype") ? "torch_dtype" : "dtype";
    if (!fv_json_has(j, key)) return FV_OK;
    return fv_json_set(j, key,
                       dtype == FV_BF16  ? "\"bfloat16\""
                       : dtype == FV_F16 ? "\"float16\""
                                         : "\"float32\"",
                       e);
}
