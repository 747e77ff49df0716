/* manifest.c - names, hashes and manifests of checkpoints: when one exists.
 *
 * A checkpoint exists if and only if its MANIFEST.json verifies: format, step, and size and XXH3
 * of every file.  XXH3 guards against torn writes and bad disks, not against an adversary. */
#include <errno.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint.h"
#include "store.h"

uint64_t fv__ckpt_hash(const void *data, size_t n) { return XXH3_64bits(data, n); }

/* The names in a directory, each ending in NUL. */
static void keep_name(void *user, const char *name) { fv__buf_add(user, name, strlen(name) + 1); }

fv_status fv__ckpt_names(fv_buf *names, const char *dir, fv_err *e)
{
    const fv_io *io = fv__io(names->env);
    int rc = io->list ? io->list(io->self, dir, keep_name, names) : -ENOSYS;
    if (!rc && !names->failed) return FV_OK;
    fv__buf_free(names);
    return rc ? fv_fail(e, FV_EIO, "%s: cannot list: %s", dir, strerror(-rc))
              : fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
}

/* Canonical numbers only, so that "step-7" and "step-07" cannot be two names of one step. */
int64_t fv__ckpt_step(const char *name, bool *part)
{
    int64_t step = 0;
    *part = false;
    if (strncmp(name, "step-", 5)) return -1;
    const char *s = name + 5, *from = s;
    for (; *s >= '0' && *s <= '9'; s++)
        if (!fv__mul_i64(&step, step, 10) || __builtin_add_overflow(step, *s - '0', &step))
            return -1;
    *part = !strcmp(s, ".tmp");
    bool canonical = s > from && (*from != '0' || s == from + 1);
    return canonical && (!*s || *part) ? step : -1;
}

bool fv__ckpt_name_ok(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n && n < 200 && name[0] != '.' && strspn(name, plain) == n &&
           strcmp(name, FV_MANIFEST) != 0;
}

/* ---- verifying ---- */

/* A file that is missing makes the checkpoint a broken one, FV_EFORMAT; one that is there and
 * cannot be opened says nothing about it, FV_EIO. */
static fv_status must_be_there(const fv_env *env, const char *path, fv_err *e)
{
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, env, path, e);
    if (st || kind != FV_PATH_ABSENT) return st;
    return fv_fail(e, FV_EFORMAT, "%s: cannot open: it is missing", path);
}

static bool hash_is(const char *hex, uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return hex && !strcmp(hex, text);
}

static fv_status verify_file(const fv_env *env, const char *dir, const fv_json *j, int i, fv_err *e)
{
    char at[64], path[FV_PATH];
    double size = -1;
    fv_file f;
    snprintf(at, sizeof at, "files.%d.name", i);
    const char *name = fv_json_text(j, at);
    snprintf(at, sizeof at, "files.%d.size", i);
    fv_json_number(j, at, &size);
    snprintf(at, sizeof at, "files.%d.xxh3", i);
    const char *hash = fv_json_text(j, at);
    if (!name || !hash || !fv__ckpt_name_ok(name))
        return fv_fail(e, FV_EFORMAT, "%s: its manifest is malformed", dir);
    fv_status st = fv__store_path(path, dir, name, e);
    if (!st) st = must_be_there(env, path, e);
    if (!st) st = fv__file_open(&f, env, path, e);
    if (st) return st;
    if ((double)f.size != size)
        st = fv_fail(e, FV_EFORMAT, "%s: %zu bytes, its manifest says %.0f", path, f.size, size);
    else if (!hash_is(hash, fv__ckpt_hash(f.data, f.size)))
        st = fv_fail(e, FV_EFORMAT, "%s: its content is not what its manifest says", path);
    fv__file_close(&f);
    return st;
}

static fv_status verify_manifest(const fv_env *env, const char *dir, int64_t step,
                                 const char *config, const fv_json *j, fv_err *e)
{
    double stored = -1;
    const char *format = fv_json_text(j, "format");
    int files = fv_json_count(j, "files");
    if (!format || strcmp(format, "fovea checkpoint 1"))
        return fv_fail(e, FV_EFORMAT, "%s: its manifest has an unknown format", dir);
    if (!fv_json_number(j, "step", &stored) || stored != (double)step || files < 0)
        return fv_fail(e, FV_EFORMAT, "%s: its manifest is malformed", dir);
    if (config && !hash_is(fv_json_text(j, "config"), fv__ckpt_hash(config, strlen(config))))
        return fv_fail(e, FV_EARG, "%s: was made with another configuration", dir);
    for (int i = 0; i < files; i++) {
        fv_status st = verify_file(env, dir, j, i, e);
        if (st) return st;
    }
    return FV_OK;
}

fv_status fv__ckpt_verify(const fv_env *env, const char *dir, int64_t step, const char *config,
                          fv_err *e)
{
    char path[FV_PATH];
    fv_json *j;
    fv_status st = fv__store_path(path, dir, FV_MANIFEST, e);
    if (!st) st = must_be_there(env, path, e);
    if (!st) st = fv_json_open(&j, env, path, e);
    if (st) return st;
    st = verify_manifest(env, dir, step, config, j, e);
    fv_json_close(j);
    return st;
}
