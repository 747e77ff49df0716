/* array.c - arrays by path: which format, which checks, and whole files out.
 *
 * What a source means is decided by its bytes first (NumPy's magic), then by its name.  Values
 * arrive as f32 whatever the file holds; `stored` says what that was. */
#include "array.h"

#include <math.h>
#include <stdio.h>

#include "store.h"

/* "model.safetensors:name" */
static fv_status read_tensor(fv_array *a, const char *source, size_t path_len, const char *name,
                             fv_err *e)
{
    char path[FV_PATH];
    fv_st *s;
    fv_st_info t;
    if (path_len >= sizeof path) return fv_fail(e, FV_EIO, "%.200s...: path too long", source);
    memcpy(path, source, path_len);
    path[path_len] = 0;
    fv_status st = fv_st_open(&s, a->env, path, e);
    if (st) return st;
    st = fv_st_find(s, name, &t, e);
    if (!st) {
        a->shape = t.shape;
        snprintf(a->stored, sizeof a->stored, "%s", t.dtype_name);
        st = fv__array_alloc(a, source, e);
    }
    if (!st) st = fv_st_read(s, &t, a->data, FV_F32, t.count, e);
    fv_st_close(s);
    return st;
}

/* By what it begins with, not by its name alone: an .npy may be called anything. */
static fv_status read_file(fv_array *a, const char *path, fv_array_opt opt, fv_err *e)
{
    fv_file f;
    fv_status st = fv__file_open(&f, a->env, path, e);
    if (st) return st;
    bool npy = f.size >= FV_NPY_MAGIC_LEN && !memcmp(f.data, FV_NPY_MAGIC, FV_NPY_MAGIC_LEN);
    if (npy || fv__ends_with(path, ".npy"))
        st = fv__npy_read(a, &f, path, e);
    else
        st = fv__csv_read(a, &f, path, opt, e);
    fv__file_close(&f);
    return st;
}

/* Attention of NaN is NaN everywhere: better to say where it came from. */
static fv_status check_finite(const fv_array *a, const char *source, fv_err *e)
{
    int64_t n = 0;
    fv__shape_count(&n, &a->shape);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(a->data[i]))
            return fv_fail(e, FV_ENUMERIC, "%s: %s at %s, where a finite number must stand", source,
                           fv__digits((double)a->data[i], true).s, fv__element(&a->shape, i).s);
    return FV_OK;
}

fv_status fv_array_open(fv_array *a, const fv_env *env, const char *source, fv_array_opt opt,
                        fv_err *e)
{
    static const char inside[] = ".safetensors:";
    const char *colon = strstr(source, inside);
    *a = (fv_array){.env = env};
    fv_status st;
    if (colon) {
        const char *name = colon + sizeof inside - 1;
        st = read_tensor(a, source, (size_t)(name - 1 - source), name, e);
    } else if (fv__ends_with(source, ".safetensors")) {
        st = fv_fail(e, FV_EARG, "%s: say which tensor, as %s:NAME", source, source);
    } else {
        st = read_file(a, source, opt, e);
    }
    if (!st && !opt.nonfinite) st = check_finite(a, source, e);
    if (st) fv_array_close(a);
    return st;
}

void fv_array_close(fv_array *a)
{
    int64_t n;
    if (a->data && fv__shape_count(&n, &a->shape))
        fv__free(a->env, a->data, (size_t)n * sizeof *a->data);
    *a = (fv_array){.env = a->env};
}

fv_status fv_array_save(const fv_array *a, const fv_env *env, const char *path, fv_err *e)
{
    int64_t n;
    fv_out o;
    bool npy = fv__ends_with(path, ".npy");
    if (!npy && !fv__ends_with(path, ".csv"))
        return fv_fail(e, FV_EARG, "%s: arrays are written as .npy or .csv", path);
    if (!fv__shape_count(&n, &a->shape) || a->shape.n > FV_MAX_DIM)
        return fv_fail(e, FV_ESHAPE, "%s: a shape that cannot be", path);
    if (!npy && a->shape.n > 2)
        return fv_fail(e, FV_ESHAPE, "%s: %d axes, and a .csv has two", path, a->shape.n);
    if (!npy && !n) return fv_fail(e, FV_ESHAPE, "%s: a .csv cannot hold an empty array", path);
    fv_status st = fv__out_open(&o, env, path, e);
    if (st) return st;
    (npy ? fv__npy_write : fv__csv_write)(&o, a);
    return fv__out_commit(&o, e);
}
