/* shard.c - one safetensors file: mapped, its header checked. */
#include "base/hub.h"
#include "safetensors.h"
#include "store/store.h"

/* The tensors stay in the map; the header is copied out of it, as a map changes with its file and
 * the header is walked twice.
 * Otherwise a file rewritten between the walks could make the second one write past what the
 * first one measured. */
static fv_status read_header(fv_st_shard *x, const char *path, fv_err *e)
{
    const fv_file *f = &x->file;
    size_t n = f->size < 8 ? f->size : 8;
    uint64_t len = n == 8 ? fv__st_header_len(f->data) : 0;
    if (len <= f->size - n && len <= FV_ST_MAX_HEADER) n += (size_t)len;
    char *copy = fv__alloc_raw(f->env, n + 1);
    if (!copy) return fv_fail(e, FV_ENOMEM, "%s: no memory for its header", path);
    memcpy(copy, f->data, n);
    copy[n] = 0;
    fv_status st = fv__st_plan(&x->plan, f->env, copy, n, f->size, path, e);
    fv__free(f->env, copy, n + 1);
    return st;
}

fv_status fv__st_shard_open(fv_st_shard *x, const fv_env *env, const char *path, fv_err *e)
{
    fv_status st = fv__file_map(&x->file, env, path, e);
    if (!st && fv__is_lfs_pointer(x->file.data, x->file.size))
        st = fv_fail(e, FV_EFORMAT, "%s: " FV_LFS_SENTENCE, path);
    if (!st) st = read_header(x, path, e);
    if (st) fv__file_close(&x->file);
    return st;
}

void fv__st_shards_free(const fv_env *env, fv_st_shard *x, int n)
{
    for (int i = 0; i < n; i++) {
        fv__st_plan_free(&x[i].plan);
        fv__file_close(&x[i].file);
    }
    fv__free(env, x, (size_t)n * sizeof *x);
}
