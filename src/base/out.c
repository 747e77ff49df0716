/* out.c - whole files out: written beside their name, synced, renamed.
 *
 * The file beside it has a random name and is created exclusively: with a fixed one (path.tmp, as
 * it was) somebody who may write into the directory could put a link there and have any file of the
 * user overwritten.  A path that is a link means what it points to, and a device or a FIFO is
 * written to: renaming would replace /dev/null by a regular file. */
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

#define MOST_LINKS 40 /* as the kernel's own limit */
#define SUFFIX 16     /* ".", 11 characters, ".tmp" */

void fv__dir_of(char out[FV_PATH], const char *path)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) : 1;
    snprintf(out, FV_PATH, "%.*s", n ? n : 1, slash ? path : ".");
}

/* Makes the directories above path that are missing, the outermost first. */
static void make_parents(const fv_io *io, const char *path)
{
    char above[FV_PATH];
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t n = (size_t)(slash - path);
        if (!n || n >= sizeof above) continue;
        memcpy(above, path, n);
        above[n] = 0;
        io->mkdir(io->self, above); /* what matters is whether the last one can be made */
    }
}

fv_status fv__dir_make(const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    char above[FV_PATH];
    int rc = io->mkdir(io->self, path);
    if (rc == -ENOENT) {
        make_parents(io, path);
        rc = io->mkdir(io->self, path);
    }
    if (rc == -EEXIST) return FV_OK;
    if (rc) return fv_fail(e, FV_EIO, "%s: cannot make the directory: %s", path, strerror(-rc));
    fv__dir_of(above, path);
    rc = io->sync_dir(io->self, above); /* or the directory may be gone after a crash */
    return rc ? fv_fail(e, FV_EIO, "%s: cannot sync: %s", above, strerror(-rc)) : FV_OK;
}

fv_status fv__dir_lock(int *lock, const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    int fd = io->lock_dir ? io->lock_dir(io->self, path) : -ENOSYS;
    *lock = fd < 0 ? -1 : fd;
    if (fd == -EWOULDBLOCK)
        return fv_fail(e, FV_ESTATE, "%s: another process is training in it", path);
    bool none = fd == -ENOSYS || fd == -EBADF || fd == -EINVAL || fd == -ENOLCK ||
                fd == -EOPNOTSUPP;
    if (fd >= 0 || none) return FV_OK;
    return fv_fail(e, FV_EIO, "%s: cannot lock: %s", path, strerror(-fd));
}

void fv__dir_unlock(int *lock, const fv_env *env)
{
    const fv_io *io = fv__io(env);
    if (*lock >= 0) io->close(io->self, *lock);
    *lock = -1;
}

/* ---- where to write ---- */

/* A relative target of a link is relative to the directory of the link. */
static bool follow(char path[FV_PATH], const char *target)
{
    char above[FV_PATH], next[FV_PATH];
    int n;
    fv__dir_of(above, path);
    if (*target == '/')
        n = snprintf(next, sizeof next, "%s", target);
    else
        n = snprintf(next, sizeof next, "%s%s%s", above, strcmp(above, "/") ? "/" : "", target);
    if (n < 0 || (size_t)n + SUFFIX >= sizeof next) return false;
    memcpy(path, next, (size_t)n + 1);
    return true;
}

/* Fills o->path with the file that is to be replaced, or sets o->in_place where the path must be
 * opened as it is: special files, and the links of /proc behind those of /dev/fd, whose text names
 * no file. */
static int resolve(fv_out *o)
{
    const fv_io *io = fv__io(o->env);
    char given[FV_PATH], target[FV_PATH];
    memcpy(given, o->path, sizeof given);
    int kind = io->kind ? io->kind(io->self, o->path) : FV_PATH_FILE;
    if (kind == FV_PATH_DIR) return -EISDIR;
    o->in_place = kind == FV_PATH_SPECIAL;
    for (int links = 0; io->read_link && !o->in_place; links++) {
        int n = io->read_link(io->self, o->path, target, sizeof target);
        if (n == -EINVAL || n == -ENOENT) return 0; /* not a link, or nothing yet */
        if (n < 0) return n;
        if (links == MOST_LINKS) return -ELOOP;
        o->in_place = !strncmp(o->path, "/proc/", 6);
        if (!o->in_place && !follow(o->path, target)) return -ENAMETOOLONG;
    }
    memcpy(o->path, given, sizeof given);
    return 0;
}

/* 62^11 names; the clock serves only where the kernel has no random numbers. */
static void random_name(fv_out *o)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t r = 0;
    struct timespec now;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        r = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid() << 32 ^ (uintptr_t)o;
    }
    char word[12];
    for (int i = 0; i < 11; i++, r /= 62) word[i] = letters[r % 62];
    word[11] = 0;
    snprintf(o->tmp, sizeof o->tmp, "%.*s.%s.tmp", FV_PATH - SUFFIX - 1, o->path, word);
}

static int open_beside(fv_out *o)
{
    const fv_io *io = fv__io(o->env);
    int fd = -EEXIST;
    for (int tries = 0; tries < 8 && fd == -EEXIST; tries++) {
        random_name(o);
        fd = io->open_new ? io->open_new(io->self, o->tmp) : io->open_write(io->self, o->tmp);
    }
    return fd;
}

/* ---- writing ---- */

fv_status fv__out_open(fv_out *o, const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    *o = (fv_out){.env = env, .fd = -1};
    size_t n = strlen(path);
    if (n + SUFFIX + 1 > sizeof o->path)
        return fv_fail(e, FV_EIO, "%.200s...: path too long", path);
    memcpy(o->path, path, n + 1);
    int rc = resolve(o);
    if (!rc) rc = o->fd = o->in_place ? io->open_write(io->self, o->path) : open_beside(o);
    if (rc >= 0) return FV_OK;
    o->fd = -1;
    return fv_fail(e, FV_EIO, "%s: cannot create: %s", path, strerror(-rc));
}

void fv__out_add(fv_out *o, const void *bytes, size_t n)
{
    const fv_io *io = fv__io(o->env);
    const char *data = bytes;
    while (n && !o->rc) {
        int64_t put = io->write(io->self, o->fd, data, n);
        if (put <= 0) {
            o->rc = put ? (int)put : -ENOSPC;
            return;
        }
        data += put;
        n -= (size_t)put;
        o->size += (uint64_t)put;
    }
}

/* Until its directory is synced a crash may undo the rename.  Where a directory cannot be opened or
 * synced at all there is nothing to be done about it. */
static int sync_above(const fv_out *o)
{
    const fv_io *io = fv__io(o->env);
    char above[FV_PATH];
    fv__dir_of(above, o->path);
    int rc = io->sync_dir(io->self, above);
    return rc == -EACCES || rc == -EINVAL || rc == -ENOSYS ? 0 : rc;
}

/*    write path.XXXXXXXXXXX.tmp -> fsync -> close -> rename to path -> fsync of the directory
 *
 * A reader sees the old file or the new one, whole, whenever the power fails.  The error is the
 * first that happened in all of that, kept in rc since fv__out_add. */
fv_status fv__out_commit(fv_out *o, fv_err *e)
{
    const fv_io *io = fv__io(o->env);
    if (!o->rc && !o->in_place) o->rc = io->sync(io->self, o->fd); /* a pipe cannot be synced */
    int closed = io->close(io->self, o->fd);
    o->fd = -1;
    if (!o->rc) o->rc = closed;
    if (!o->rc && !o->in_place) o->rc = io->rename(io->self, o->tmp, o->path);
    if (!o->rc && !o->in_place) o->rc = sync_above(o);
    if (!o->rc) return FV_OK;
    if (!o->in_place) io->unlink(io->self, o->tmp);
    return fv_fail(e, FV_EIO, "%s: cannot write: %s", o->path, strerror(-o->rc));
}

void fv__out_abandon(fv_out *o)
{
    const fv_io *io = fv__io(o->env);
    if (o->fd < 0) return;
    io->close(io->self, o->fd);
    if (!o->in_place) io->unlink(io->self, o->tmp);
    o->fd = -1;
}

fv_status fv__file_write(const fv_env *env, const char *path, const void *data, size_t n, fv_err *e)
{
    fv_out o;
    fv_status st = fv__out_open(&o, env, path, e);
    if (st) return st;
    fv__out_add(&o, data, n);
    return fv__out_commit(&o, e);
}
