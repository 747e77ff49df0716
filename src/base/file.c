/* file.c - whole files in, through the fv_io of an fv_env.
 *
 * A map is no snapshot: another process may rewrite or truncate the file while it is parsed.  What
 * is parsed (configurations, tokenizers, headers, manifests) is therefore read into memory; only
 * what is large and used in place (weights, corpora) is mapped, and whoever parses a map twice
 * checks bounds both times. */
#include <errno.h>

#include "base.h"

#define SMALL ((size_t)16 << 20)       /* files up to this size are read, not mapped */
#define MOST_PIPED ((size_t)256 << 20) /* of a pipe or a device, which may never end */

/* ---- what is there ---- */

static bool absent(int rc) { return rc == -ENOENT || rc == -ENOTDIR; }

/* Without fv_io's kind the file is opened to look at it. */
static int look(const fv_env *env, const char *path)
{
    const fv_io *io = fv__io(env);
    if (io->kind) return io->kind(io->self, path);
    int fd = io->open_read(io->self, path);
    if (fd < 0) return fd;
    int64_t size = io->size(io->self, fd);
    io->close(io->self, fd);
    if (size == -EISDIR) return FV_PATH_DIR;
    if (size == -ESPIPE) return FV_PATH_SPECIAL;
    return size < 0 ? (int)size : FV_PATH_FILE;
}

fv_status fv__path_kind(fv_path_kind *kind, const fv_env *env, const char *path, fv_err *e)
{
    int rc = look(env, path);
    *kind = rc < 0 ? FV_PATH_ABSENT : (fv_path_kind)rc;
    return rc >= 0 || absent(rc) ? FV_OK
                                 : fv_fail(e, FV_EIO, "%s: cannot open: %s", path, strerror(-rc));
}

bool fv__file_exists(const fv_env *env, const char *path)
{
    int rc = look(env, path);
    return rc >= 0 || !absent(rc);
}

/* ---- reading ---- */

/* The size that fstat gave is not trusted: the file may grow or shrink while it is read. */
static fv_status read_all(fv_file *f, int fd, size_t most, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(f->env);
    fv_buf b = {.env = f->env};
    char chunk[65536];
    int64_t n = 0;
    do {
        n = io->read(io->self, fd, chunk, sizeof chunk);
        if (n > 0) fv__buf_add(&b, chunk, (size_t)n);
    } while (n > 0 && !b.failed && b.len <= most);
    fv_status st = FV_OK;
    if (n < 0)
        st = fv_fail(e, FV_EIO, "%s: cannot read: %s", path, strerror((int)-n));
    else if (b.failed)
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory after %zu bytes", path, b.len);
    else if (b.len > most)
        st = fv_fail(e, FV_EIO, "%s: more than %zu bytes, which are too many to read", path, most);
    if (st)
        fv__buf_free(&b);
    else
        *f = (fv_file){.env = f->env, .data = b.data ? b.data : "", .size = b.len, .cap = b.cap};
    return st;
}

/* Files of up to `small` bytes are read, the rest is mapped; no file may be larger than `most`. */
static fv_status open_file(fv_file *f, const fv_env *env, const char *path, size_t small,
                           size_t most, fv_err *e)
{
    const fv_io *io = fv__io(env);
    *f = (fv_file){.env = env};
    int fd = io->open_read(io->self, path);
    if (fd < 0) return fv_fail(e, FV_EIO, "%s: cannot open: %s", path, strerror(-fd));
    int64_t size = io->size(io->self, fd);
    fv_status st = FV_OK;
    if (size > 0 && (uint64_t)size > most) {
        st = fv_fail(e, FV_EIO, "%s: %lld bytes, which are too many to read", path,
                     (long long)size);
    } else if (size > 0 && (uint64_t)size > small) {
        f->data = io->map(io->self, fd, (size_t)size);
        f->size = (size_t)size;
        f->mapped = f->data != NULL;
    }
    if (size < 0 && size != -ESPIPE)
        st = fv_fail(e, FV_EIO, "%s: cannot read: %s", path, strerror((int)-size));
    else if (!st && !f->mapped)
        st = read_all(f, fd, size < 0 && most > MOST_PIPED ? MOST_PIPED : most, path, e);
    io->close(io->self, fd);
    return st;
}

fv_status fv__file_open(fv_file *f, const fv_env *env, const char *path, fv_err *e)
{
    return open_file(f, env, path, SMALL, SIZE_MAX, e);
}

fv_status fv__file_read(fv_file *f, const fv_env *env, const char *path, size_t most, fv_err *e)
{
    return open_file(f, env, path, SIZE_MAX, most, e);
}

fv_status fv__file_map(fv_file *f, const fv_env *env, const char *path, fv_err *e)
{
    return open_file(f, env, path, 0, SIZE_MAX, e);
}

fv_status fv__file_same_size(const fv_file *f, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(f->env);
    if (!f->mapped) return FV_OK;
    int fd = io->open_read(io->self, path);
    if (fd < 0) return fv_fail(e, FV_EIO, "%s: cannot open: %s", path, strerror(-fd));
    int64_t size = io->size(io->self, fd);
    io->close(io->self, fd);
    if (size >= 0 && (uint64_t)size == f->size) return FV_OK;
    return fv_fail(e, FV_EIO, "%s: it changed while it was read", path);
}

void fv__file_close(fv_file *f)
{
    const fv_io *io = fv__io(f->env);
    if (f->mapped)
        io->unmap(io->self, f->data, f->size);
    else if (f->cap)
        fv__free(f->env, (void *)(uintptr_t)f->data, f->cap);
    f->data = NULL;
    f->size = f->cap = 0;
    f->mapped = false;
}
