/* checkpoint.c - writing checkpoints that a crash cannot spoil.
 *
 * Order of events in a commit, each finished before the next: every file synced; MANIFEST.json
 * synced; the directory step-N.tmp synced; renamed to step-N; root synced; root/last replaced and
 * synced; older checkpoints removed, their manifest last.  Whenever the power fails, the newest
 * checkpoint that verifies is the one before or this one. */
#include "checkpoint.h"

#include <errno.h>
#include <stdio.h>

#include "store.h"

struct fv_ckpt {
    const fv_env *env;
    int64_t step;
    char root[FV_PATH], dir[FV_PATH];
    fv_buf manifest; /* its list of files so far */
    int files;
};

/* ---- directories ---- */

static fv_status failed(const char *path, const char *what, int rc, fv_err *e)
{
    return fv_fail(e, FV_EIO, "%s: cannot %s: %s", path, what, strerror(-rc));
}

/* ---- removing ----
 *
 * A run directory may come from somewhere else, in an archive, and hold anything under the names of
 * checkpoints: a link to another run, somebody's notes.  So nothing is removed through a link; of
 * step-N goes what its manifest lists, of step-N.tmp, which only a write that did not end leaves,
 * every file. */

/* Relative to the open directory where the system can, so that a link put in its place is not
 * followed. */
static void unlink_in(const fv_env *env, const char *dir, const char *name)
{
    const fv_io *io = fv__io(env);
    char path[FV_PATH];
    if (io->unlink_in)
        io->unlink_in(io->self, dir, name);
    else if (!fv__store_path(path, dir, name, NULL))
        io->unlink(io->self, path);
}

/* Only what the manifest lists is ever removed: a stray file in the directory stays. */
static void unlink_listed(const fv_env *env, const char *dir, const fv_json *manifest)
{
    int files = fv_json_count(manifest, "files");
    for (int i = 0; i < files; i++) {
        char at[64];
        snprintf(at, sizeof at, "files.%d.name", i);
        const char *name = fv_json_text(manifest, at);
        if (name && fv__ckpt_name_ok(name)) unlink_in(env, dir, name);
    }
}

/* What fv__file_write leaves behind when it is interrupted; all: every name. */
static void unlink_left(const fv_env *env, const char *dir, bool all)
{
    fv_buf names = {.env = env};
    if (fv__ckpt_names(&names, dir, NULL)) return;
    for (size_t at = 0; at < names.len; at += strlen(names.data + at) + 1)
        if (all || fv__ends_with(names.data + at, ".tmp")) unlink_in(env, dir, names.data + at);
    fv__buf_free(&names);
}

/* The manifest goes last, so that a removal that is interrupted can be taken up again; without one
 * of its files the checkpoint does not verify, and so does not exist.
 * rmdir refuses a directory that still holds something, and that is meant: what no manifest
 * listed is not ours to delete. */
static fv_status remove_dir(const fv_env *env, const char *dir, fv_err *e)
{
    const fv_io *io = fv__io(env);
    char path[FV_PATH];
    bool part = fv__ends_with(dir, ".tmp");
    fv_json *manifest;
    if (io->read_link && io->read_link(io->self, dir, path, sizeof path) >= 0) {
        int rc = io->unlink(io->self, dir);
        return rc ? failed(dir, "remove", rc, e) : FV_OK;
    }
    fv_status st = fv__store_path(path, dir, FV_MANIFEST, e);
    if (st) return st;
    if (!part && !fv_json_open(&manifest, env, path, NULL)) {
        unlink_listed(env, dir, manifest);
        fv_json_close(manifest);
        unlink_left(env, dir, false);
        io->sync_dir(io->self, dir);
        unlink_in(env, dir, FV_MANIFEST);
    }
    if (part) unlink_left(env, dir, true);
    int rc = io->rmdir(io->self, dir);
    return rc ? failed(dir, "remove", rc, e) : FV_OK;
}

/* ---- one checkpoint ---- */

/* Gives a directory of which more is there than may be removed another name. */
static fv_status put_aside(const fv_ckpt *c, const char *dir, fv_err *e)
{
    const fv_io *io = fv__io(c->env);
    char aside[FV_PATH];
    int rc = -EEXIST;
    for (int i = 1; i < 100 && (rc == -EEXIST || rc == -ENOTEMPTY); i++) {
        snprintf(aside, sizeof aside, "%.*s.damaged-%d", FV_PATH - 32, dir, i);
        rc = io->rename(io->self, dir, aside);
    }
    return rc ? failed(dir, "put aside", rc, e) : FV_OK;
}

/* A leftover of the same name is in the way; one that verifies is somebody's work. */
static fv_status clear_way(fv_ckpt *c, const char *final, fv_err *e)
{
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, c->env, final, e);
    if (!st && kind != FV_PATH_ABSENT) {
        fv_status broken = fv__ckpt_verify(c->env, final, c->step, NULL, e);
        if (broken == FV_OK) return fv_fail(e, FV_ESTATE, "%s: is already there", final);
        if (broken == FV_EIO || broken == FV_ENOMEM) return broken;
        if (remove_dir(c->env, final, NULL)) st = put_aside(c, final, e);
    }
    if (!st) st = fv__path_kind(&kind, c->env, c->dir, e);
    return !st && kind != FV_PATH_ABSENT ? remove_dir(c->env, c->dir, e) : st;
}

/* step-N.tmp is filled and renamed when all of it is on the disk; one that a crash left is cleared
 * first. */
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
    if (!st) st = fv__dir_make(c->env, root, e);
    if (!st) st = clear_way(c, final, e);
    if (!st) st = fv__dir_make(c->env, c->dir, e);
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

/* Written, synced, and noted in the manifest with size and hash. */
fv_status fv_ckpt_add(fv_ckpt *c, const char *name, const void *data, size_t n, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = fv__store_path(path, c->dir, name, e);
    if (!st) st = fv__file_write(c->env, path, data, n, e);
    return st ? st : fv_ckpt_add_file(c, name, e);
}

/* A checkpoint that is not finished does not exist. */
void fv_ckpt_abandon(fv_ckpt *c)
{
    if (!c) return;
    const fv_env *env = c->env;
    remove_dir(env, c->dir, NULL);
    fv__buf_free(&c->manifest);
    fv__free(env, c, sizeof *c);
}

/* ---- commit ---- */

/* Last of all files: without a manifest that verifies, a directory is no checkpoint. */
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

/* step-N.tmp becomes step-N, and root/last names it.
 * `last` is a hint for people and scripts; finding a checkpoint lists the directory and
 * verifies. */
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

/* Renamed, `last` replaced, and only then are older ones removed. */
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
