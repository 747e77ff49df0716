/* tree.c - the files of a directory, or of a tar archive, by their paths in it.
 *
 * A data set may stay packed: readers of folders get archives for nothing. Files are sorted by
 * path, so the order of examples, and with it a run, does not depend on the file system or on how
 * the archive was made. Links are followed, folders nested deeper than DEEPEST are not, which also
 * ends a loop of links. */
#include "data/tree.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/tar.h"
#include "store/store.h"

enum { DEEPEST = 8, MOST_FILES = 1 << 26 };
#define MOST_BYTES ((size_t)1 << 30) /* of a file that is read */

/* Names are copied into a pool: an archive's stand in reused memory, and millions of allocations
 * would cost more than the names. */
static fv_status add(fv__tree *t, const char *name, const char *data, size_t size, fv_err *e)
{
    void *p = t->file;
    fv__str copy;
    if (t->n >= MOST_FILES)
        return fv_fail(e, FV_EFORMAT, "%s: more than %d files", t->root, MOST_FILES);
    if (!fv__grow(t->env, &p, &t->bytes, (size_t)(t->n + 1) * sizeof *t->file) ||
        (t->file = p, !fv__pool_str(&t->pool, &copy, name, strlen(name))))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory after %lld files", t->root,
                       (long long)t->n);
    t->file[t->n++] = (fv__tree_file){copy.s, data, size};
    return FV_OK;
}

/* ---- directories ---- */

typedef struct listing {
    fv_buf names; /* each ending in NUL */
} listing;

static void add_name(void *user, const char *name)
{
    fv__buf_add(&((listing *)user)->names, name, strlen(name) + 1);
}

/* Names that begin with a dot are not data. */
static fv_status walk(fv__tree *t, const char *under, int depth, fv_err *e)
{
    const fv_io *io = fv__io(t->env);
    char path[FV_PATH], name[FV_PATH];
    listing l = {.names = {.env = t->env}};
    if (depth > DEEPEST)
        return fv_fail(e, FV_EFORMAT, "%s/%s: deeper than %d folders", t->root, under, DEEPEST);
    snprintf(path, sizeof path, "%.2000s%s%.2000s", t->root, *under ? "/" : "", under);
    int rc = io->list(io->self, path, add_name, &l);
    fv_status st = rc ? fv_fail(e, FV_EIO, "%s: cannot be listed: %s", path, strerror(-rc)) : FV_OK;
    if (!st && l.names.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (size_t at = 0; !st && at < l.names.len; at += strlen(l.names.data + at) + 1) {
        const char *s = l.names.data + at;
        fv_path_kind kind;
        if (*s == '.') continue;
        if (snprintf(name, sizeof name, "%s%s%s", under, *under ? "/" : "", s) >= FV_PATH / 2)
            st = fv_fail(e, FV_EFORMAT, "%s/%.200s: the path is too long", path, s);
        snprintf(path, sizeof path, "%.2000s/%.2040s", t->root, name);
        if (!st) st = fv__path_kind(&kind, t->env, path, e);
        if (!st && kind == FV_PATH_DIR) st = walk(t, name, depth + 1, e);
        if (!st && kind == FV_PATH_FILE) st = add(t, name, NULL, 0, e);
    }
    fv__buf_free(&l.names);
    return st;
}

/* ---- archives ---- */

/* The archive stays unpacked in memory, or mapped where it is plain; files point into it. */
static fv_status open_archive(fv__tree *t, const char *path, fv_err *e)
{
    fv__tar_entry f;
    fv_status st = fv__plain_open(&t->archive, t->env, path, e);
    fv__tar tar = {.data = t->archive.data, .size = t->archive.size, .path = path};
    while (!st) {
        st = fv__tar_next(&tar, &f, e);
        if (!st && !f.data) break;
        if (!st) st = add(t, !strncmp(f.name, "./", 2) ? f.name + 2 : f.name, f.data, f.size, e);
    }
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const fv__tree_file *)a)->name, ((const fv__tree_file *)b)->name);
}

/* A folder is walked, an archive is mapped: to whoever reads files from it there is no difference.
 */
fv_status fv__tree_open(fv__tree *t, const fv_env *env, const char *path, fv_err *e)
{
    *t = (fv__tree){.env = env, .pool = {.env = env}};
    snprintf(t->root, sizeof t->root, "%s", path);
    if (strlen(path) >= FV_PATH / 2) return fv_fail(e, FV_EARG, "%.200s...: too long", path);
    fv_status st = fv__is_dir(env, path) ? walk(t, "", 0, e) : open_archive(t, path, e);
    if (!st && t->n) qsort(t->file, (size_t)t->n, sizeof *t->file, by_name);
    return st;
}

void fv__tree_close(fv__tree *t)
{
    fv__plain_close(&t->archive);
    fv__free(t->env, t->file, t->bytes);
    fv__pool_free(&t->pool);
}

/* Names are sorted once, when the tree is opened. */
int64_t fv__tree_find(const fv__tree *t, const char *name)
{
    int64_t from = 0, to = t->n;
    while (from < to) {
        int64_t mid = (from + to) / 2;
        int order = strcmp(t->file[mid].name, name);
        if (!order) return mid;
        if (order < 0)
            from = mid + 1;
        else
            to = mid;
    }
    return -1;
}

/* A file of an archive is not copied: out borrows it, and closing it frees nothing. */
fv_status fv__tree_read(const fv__tree *t, int64_t i, fv_file *out, char name[FV_PATH], fv_err *e)
{
    const fv__tree_file *f = &t->file[i];
    snprintf(name, FV_PATH, "%.2000s/%.2040s", t->root, f->name);
    if (!f->data) return fv__file_read(out, t->env, name, MOST_BYTES, e);
    *out = (fv_file){.env = t->env, .data = f->data, .size = f->size};
    return FV_OK;
}
