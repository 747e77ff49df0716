/* hub.c - models by name, out of the Hugging Face cache.
 *
 * Layout of the cache, which huggingface_hub documents:
 *
 *     models--ORG--NAME/refs/REVISION            a commit
 *     models--ORG--NAME/snapshots/COMMIT/...     the files, as links into blobs/
 *
 * Nothing is downloaded here: a library that opens a model does not talk to the network. */
#include "hub.h"

#include <stdio.h>
#include <stdlib.h>

#define LONGEST 256 /* of a name with its revision */

bool fv__is_lfs_pointer(const char *data, size_t n)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    return n < 1024 && n > sizeof first && !memcmp(data, first, sizeof first - 1);
}

/* ---- names ---- */

/* Also a guard: no "..", no slash, nothing that would lead out of the cache directory. */
static bool plain(const char *s, size_t n)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (!n || *s == '.' || *s == '-') return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr(allowed, s[i]) || (s[i] == '.' && i + 1 < n && s[i + 1] == '.')) return false;
    return true;
}

typedef struct repo {
    char name[LONGEST];   /* org/name or name */
    char folder[LONGEST]; /* models--org--name */
    char revision[LONGEST];
} repo;

/* "name", "org/name", either with "@revision": false for everything that reads as a path. */
static bool parse(repo *r, const char *text)
{
    const char *at = strchr(text, '@'), *slash = strchr(text, '/');
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (strlen(text) >= LONGEST - 16) return false;
    if (slash && slash > text + n) slash = NULL;
    size_t org = slash ? (size_t)(slash - text) : 0;
    bool ok = slash ? plain(text, org) && plain(slash + 1, n - org - 1) : plain(text, n);
    if (!ok || (at && !plain(at + 1, strlen(at + 1)))) return false;
    snprintf(r->name, sizeof r->name, "%.*s", (int)n, text);
    if (slash)
        snprintf(r->folder, sizeof r->folder, "models--%.*s--%.*s", (int)org, text,
                 (int)(n - org - 1), slash + 1);
    else
        snprintf(r->folder, sizeof r->folder, "models--%.*s", (int)n, text);
    snprintf(r->revision, sizeof r->revision, "%s", at ? at + 1 : "main");
    return true;
}

/* ---- the cache ---- */

static bool cache_root(char out[FV_PATH])
{
    static const struct {
        const char *variable, *below;
    } roots[] = {{"HF_HUB_CACHE", ""},
                 {"HUGGINGFACE_HUB_CACHE", ""},
                 {"HF_HOME", "/hub"},
                 {"XDG_CACHE_HOME", "/huggingface/hub"},
                 {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        const char *value = getenv(roots[i].variable);
        if (value && *value)
            return snprintf(out, FV_PATH, "%s%s", value, roots[i].below) < FV_PATH - LONGEST * 3;
    }
    return false;
}

/* The commit that refs/REVISION names; a revision without such a file is a commit itself. */
static void read_ref(repo *r, const fv_env *env, const char *root)
{
    char path[FV_PATH];
    fv_file f;
    snprintf(path, sizeof path, "%.*s/%s/refs/%s", FV_PATH - 3 * LONGEST, root, r->folder,
             r->revision);
    if (!fv__file_exists(env, path) || fv__file_read(&f, env, path, LONGEST, NULL)) return;
    size_t n = 0;
    while (n < f.size && n + 1 < sizeof r->revision && f.data[n] > ' ') n++;
    if (plain(f.data, n)) snprintf(r->revision, sizeof r->revision, "%.*s", (int)n, f.data);
    fv__file_close(&f);
}

/* ---- versions ---- */

/* CURRENT has the name of the version in use on its first line. */
fv_status fv__hub_current(char path[FV_PATH], const fv_env *env, fv_err *e)
{
    char at[FV_PATH], version[LONGEST];
    fv_file f;
    if (strlen(path) + LONGEST + 8 >= FV_PATH) return FV_OK;
    snprintf(at, sizeof at, "%.*s/" FV_CURRENT, FV_PATH - LONGEST, path);
    if (!fv__file_exists(env, at)) return FV_OK;
    fv_status st = fv__file_read(&f, env, at, 4096, e);
    if (st) return st;
    size_t n = 0;
    while (n < f.size && n + 1 < sizeof version && f.data[n] > ' ') n++;
    memcpy(version, f.data, n);
    version[n] = 0;
    fv__file_close(&f);
    if (!n || version[0] == '.' || strchr(version, '/'))
        return fv_fail(e, FV_EFORMAT, "%s: its first line names no directory beside it", at);
    size_t len = strlen(path);
    snprintf(path + len, FV_PATH - len, "/%s", version);
    return FV_OK;
}

/* A path that exists is always a path; only what does not is looked up as a name. */
fv_status fv__hub_find(char out[FV_PATH], const fv_env *env, const char *name, fv_err *e)
{
    char root[FV_PATH];
    fv_path_kind kind;
    repo r;
    if (strlen(name) >= FV_PATH) return fv_fail(e, FV_EIO, "%.200s...: path too long", name);
    memcpy(out, name, strlen(name) + 1);
    fv_status st = fv__path_kind(&kind, env, name, e);
    if (!st && kind == FV_PATH_DIR) return fv__hub_current(out, env, e);
    if (st || kind != FV_PATH_ABSENT) return st;
    if (!parse(&r, name)) return fv_fail(e, FV_EIO, "%s: no such file or directory", name);
    bool known = cache_root(root);
    if (known) {
        read_ref(&r, env, root);
        snprintf(out, FV_PATH, "%.*s/%s/snapshots/%s", FV_PATH - 3 * LONGEST, root, r.folder,
                 r.revision);
        if (!fv__path_kind(&kind, env, out, NULL) && kind == FV_PATH_DIR) return FV_OK;
    }
    const char *at = strchr(name, '@');
    return fv_fail(e, FV_EIO,
                   "%s: no such directory, and no model of that name in the Hugging Face cache "
                   "(%.200s); get it with: hf download %s%s%s",
                   name, known ? root : "no home directory", r.name, at ? " --revision " : "",
                   at ? at + 1 : "");
}
