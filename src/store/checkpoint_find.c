/* checkpoint_find.c - which checkpoint to go on from: the newest one that verifies. */
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint.h"
#include "store.h"

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
    if (!st) st = fv_json_open(&j, env, path, e);
    if (st) return st;
    st = verify_manifest(env, dir, step, config, j, e);
    fv_json_close(j);
    return st;
}

/* ---- finding ---- */

/* The greatest step below `below` among the names, or -1. */
static int64_t next_step(const fv_buf *names, int64_t below)
{
    int64_t best = -1;
    for (size_t at = 0; at < names->len; at += strlen(names->data + at) + 1) {
        bool part;
        int64_t step = fv__ckpt_step(names->data + at, &part);
        if (!part && step > best && step < below) best = step;
    }
    return best;
}

fv_status fv_ckpt_find(fv_ckpt_found *out, const fv_env *env, const char *root, const char *config,
                       void (*broken)(void *user, const char *dir, const char *why), void *user,
                       fv_err *e)
{
    fv_buf names = {.env = env};
    *out = (fv_ckpt_found){.step = -1};
    if (!fv__is_dir(env, root)) return FV_OK;
    fv_status st = fv__ckpt_names(&names, root, e);
    for (int64_t step = INT64_MAX; !st && (step = next_step(&names, step)) >= 0;) {
        char dir[FV_PATH], name[64];
        fv_err why = {0};
        snprintf(name, sizeof name, "step-%lld", (long long)step);
        st = fv__store_path(dir, root, name, e);
        if (!st && strlen(dir) >= sizeof out->dir)
            st = fv_fail(e, FV_EIO, "%.200s...: path too long", dir);
        if (st) break;
        fv_status bad = fv__ckpt_verify(env, dir, step, config, &why);
        /* says nothing about the checkpoint */
        if (bad == FV_ENOMEM) st = fv_fail(e, bad, "%s", why.text);
        if (bad && broken) broken(user, dir, why.text);
        if (bad) continue;
        out->step = step;
        memcpy(out->dir, dir, strlen(dir) + 1);
        break;
    }
    fv__buf_free(&names);
    return st;
}
