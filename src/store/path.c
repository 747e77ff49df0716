/* path.c - paths of files in a directory. */
#include <stdio.h>

#include "store.h"

/* dir/name; a path that does not fit is an error, never cut. */
fv_status fv__store_path(char out[FV_PATH], const char *dir, const char *name, fv_err *e)
{
    size_t n = strlen(dir);
    const char *slash = !n || dir[n - 1] == '/' ? "" : "/";
    if ((size_t)snprintf(out, FV_PATH, "%s%s%s", dir, slash, name) < FV_PATH) return FV_OK;
    return fv_fail(e, FV_EIO, "%.200s...: path too long", dir);
}

bool fv__is_dir(const fv_env *env, const char *path)
{
    fv_path_kind kind;
    return !fv__path_kind(&kind, env, path, NULL) && kind == FV_PATH_DIR;
}

bool fv__ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !memcmp(s + n - m, end, m);
}
