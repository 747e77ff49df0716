/* checkpoint.c - writing checkpoints that a crash cannot spoil.
 *
 * Order of events in a commit, each finished before the next: every file synced; MANIFEST.json
 * synced; the directory step-N.tmp synced; renamed to step-N; root synced; root/last replaced and
 * synced; older checkpoints removed, their manifest first.  Whenever the power fails, the newest
 * checkpoint that verifies is the one before or this one. */
#include "checkpoint.h"

#include <errno.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store.h"

struct fv_ckpt {
    const fv_env *env;
    int64_t step;
    char root[FV_PATH], dir[FV_PATH];
    fv_buf manifest; /* its list of files so far */
    int files;
};

uint64_t fv__ckpt_hash(const void *data, size_t n) { return XXH3_64bits(data, n); }

/* ---- directories ---- */

static fv_status failed(const char *path, const char *what, int rc, fv_err *e)
{
    return fv_fail(e, FV_EIO, "%s: cannot %s: %s", path, what, strerror(-rc));
}

/* The names in a directory, each ending in NUL. */
static void keep_name(void *user, const char *name) { fv__buf_add(user, name, strlen(name) + 1); }

fv_status fv__ckpt_names(fv_buf *names, const char *dir, fv_err *e)
{
    const fv_io *io = fv__io(names->env);
    int rc = io->list ? io->list(io->self, dir, keep_name, names) : -ENOSYS;
    if (!rc && !names->failed) return FV_OK;
    fv__buf_free(names);
    return rc ? failed(dir, "list", rc, e) : fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
}

/* Removes a directory and the files in it, the manifest first: from then on it does not exist. */
static fv_status remove_dir(const fv_env *env, const char *dir, fv_err *e)
{
    const fv_io *io = fv__io(env);
    fv_buf names = {.env = env};
    char path[FV_PATH];
    fv_status st = fv__ckpt_names(&names, dir, e);
    if (!st) st = fv__store_path(path, dir, FV_MANIFEST, e);
    if (!st && fv__file_exists(env, path)) {
        io->unlink(io->self, path);
        io->sync_dir(io->self, dir);
    }
    for (size_t at = 0; at < names.len && !st; at += strlen(names.data + at) + 1) {
        st = fv__store_path(path, dir, names.data + at, e);
        if (!st) io->unlink(io->self, path);
    }
    fv__buf_free(&names);
    int rc = st ? 0 : io->rmdir(io->self, dir);
    return rc ? failed(dir, "remove", rc, e) : st;
}

static fv_status make_dir(const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    int rc = io->mkdir(io->self, path);
    if (rc == -EEXIST) return FV_OK;
    if (rc) return failed(path, "make", rc, e);
    char parent[FV_PATH];
    const char *slash = strrchr(path, '/');
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    rc = io->sync_dir(io->self, *parent ? parent : "/");
    return rc ? failed(path, "sync", rc, e) : FV_OK;
}

/* ---- one checkpoint ---- */

/* A leftover of the same name is in the way; one that verifies is somebody's work. */
static fv_status clear_way(fv_ckpt *c, const char *final, fv_err *e)
{
    fv_err why;
    if (fv__is_dir(c->env, final)) {
        if (!fv__ckpt_verify(c->env, final, c->step, NULL, &why))
            return fv_fail(e, FV_ESTATE, "%s: is already there", final);
        fv_status st = remove_dir(c->env, final, e);
        if (st) return st;
    }
    return fv__is_dir(c->env, c->dir) ? remove_dir(c->env, c->dir, e) : FV_OK;
}

static fv_status begin(fv_ckpt *c, const char *root, const char *config, fv_err *e)
{
    char name[64], final[FV_PATH];
    if (strlen(root) + 64 > sizeof c->root)
        return fv_fail(e, FV_EIO, "%.200s...: path too long", root);
    memcpy(c->root, root, strlen(root) + 1);
    int n = snprintf(name, sizeof name, "step-%lld.tmp", (long long)c->step);
    fv_status st = fv__store_path(c->dir, root, name, e);
    name[n - 4] = 0;
    if (!st) st = fv__store_path(final, root, name, e);
    if (!st) st = make_dir(c->env, root, e);
    if (!st) st = clear_way(c, final, e);
    if (!st) st = make_dir(c->env, c->dir, e);
    fv__buf_fmt(&c->manifest,
                "{\n  \"format\": \"fovea checkpoint 1\",\n  \"step\": %lld,\n  \"config\": "
                "\"%016llx\",\n  \"files\": [",
                (long long)c->step,
                config ? (unsigned long long)fv__ckpt_hash(config, strlen(config)) : 0ull);
    return st;
}

fv_status fv_ckpt_begin(fv_ckpt **out, const fv_env *env, const char *root, int64_t step,
                        const char *config, fv_err *e)
{
    *out = NULL;
    if (step < 0)
        return fv_fail(e, FV_EARG, "%s: a checkpoint of step %lld cannot be", root,
                       (long long)step);
    fv_ckpt *c = fv__alloc(env, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "%s: out of memory", root);
    c->env = c->manifest.env = env;
    c->step = step;
    fv_status st = begin(c, root, config, e);
    if (st) {
        fv__buf_free(&c->manifest);
        fv__free(env, c, sizeof *c);
        return st;
    }
    *out = c;
    return FV_OK;
}

const char *fv_ckpt_dir(const fv_ckpt *c) { return c->dir; }

/* What was written there is read back for its hash: it stands in the page cache, and whoever wrote
 * it need not care. */
fv_status fv_ckpt_add_file(fv_ckpt *c, const char *name, fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    if (!fv__ckpt_name_ok(name))
        return fv_fail(e, FV_EARG, "%s: \"%.100s\" cannot be a file of a checkpoint", c->dir, name);
    fv_status st = fv__store_path(path, c->dir, name, e);
    if (!st) st = fv__file_open(&f, c->env, path, e);
    if (st) return st;
    fv__buf_fmt(&c->manifest, "%s\n    {\"name\": \"%s\", \"size\": %zu, \"xxh3\": \"%016llx\"}",
                c->files++ ? "," : "", name, f.size,
                (unsigned long long)fv__ckpt_hash(f.data, f.size));
    fv__file_close(&f);
    return FV_OK;
}

fv_status fv_ckpt_add(fv_ckpt *c, const char *name, const void *data, size_t n, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = fv__store_path(path, c->dir, name, e);
    if (!st) st = fv__file_write(c->env, path, data, n, e);
    return st ? st : fv_ckpt_add_file(c, name, e);
}

void fv_ckpt_abandon(fv_ckpt *c)
{
    if (!c) return;
    const fv_env *env = c->env;
    remove_dir(env, c->dir, NULL);
    fv__buf_free(&c->manifest);
    fv__free(env, c, sizeof *c);
}

/* ---- commit ---- */

static fv_status write_manifest(fv_ckpt *c, fv_err *e)
{
    const fv_io *io = fv__io(c->env);
    char path[FV_PATH];
    fv__buf_str(&c->manifest, "\n  ]\n}\n");
    if (c->manifest.failed) return fv_fail(e, FV_ENOMEM, "%s: out of memory", c->dir);
    fv_status st = fv__store_path(path, c->dir, FV_MANIFEST, e);
    if (!st) st = fv__file_write(c->env, path, c->manifest.data, c->manifest.len, e);
    int rc = st ? 0 : io->sync_dir(io->self, c->dir);
    return rc ? failed(c->dir, "sync", rc, e) : st;
}

/* step-N.tmp becomes step-N, and root/last names it. */
static fv_status publish(fv_ckpt *c, fv_err *e)
{
    const fv_io *io = fv__io(c->env);
    char name[64], final[FV_PATH], last[FV_PATH];
    snprintf(name, sizeof name, "step-%lld", (long long)c->step);
    fv_status st = fv__store_path(final, c->root, name, e);
    if (!st) st = fv__store_path(last, c->root, "last", e);
    if (st) return st;
    int rc = io->rename(io->self, c->dir, final);
    if (rc) return failed(final, "rename", rc, e);
    rc = io->sync_dir(io->self, c->root);
    if (rc) return failed(c->root, "sync", rc, e);
    size_t n = strlen(name);
    name[n] = '\n';
    st = fv__file_write(c->env, last, name, n + 1, e);
    rc = st ? 0 : io->sync_dir(io->self, c->root);
    return rc ? failed(c->root, "sync", rc, e) : st;
}

/* How many of the names are checkpoints after `step`, up to this one. */
static int count_newer(const fv_ckpt *c, const fv_buf *names, int64_t step)
{
    int n = 0;
    for (size_t at = 0; at < names->len; at += strlen(names->data + at) + 1) {
        bool part;
        int64_t other = fv__ckpt_step(names->data + at, &part);
        n += !part && other > step && other <= c->step;
    }
    return n;
}

/* Old ones beyond keep, and what earlier crashes left.  Failing here harms nothing: the next commit
 * tries again. */
static void tidy(fv_ckpt *c, int keep)
{
    fv_buf names = {.env = c->env};
    char path[FV_PATH];
    if (fv__ckpt_names(&names, c->root, NULL)) return;
    for (size_t at = 0; at < names.len; at += strlen(names.data + at) + 1) {
        bool part;
        int64_t step = fv__ckpt_step(names.data + at, &part);
        bool old = !part && keep > 0 && step < c->step && count_newer(c, &names, step) >= keep;
        if (step >= 0 && (part || old) && !fv__store_path(path, c->root, names.data + at, NULL))
            remove_dir(c->env, path, NULL);
    }
    fv__buf_free(&names);
}

fv_status fv_ckpt_commit(fv_ckpt *c, int keep, fv_err *e)
{
    const fv_env *env = c->env;
    fv_status st = write_manifest(c, e);
    if (st) {
        fv_ckpt_abandon(c);
        return st;
    }
    st = publish(c, e);
    if (!st) tidy(c, keep);
    fv__buf_free(&c->manifest);
    fv__free(env, c, sizeof *c);
    return st;
}
