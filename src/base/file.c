/* file.c - whole files in, whole files out, through the fv_io of an fv_env. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"

/* ---- the file system ---- */

static int posix_open_read(void *self, const char *path)
{
    (void)self;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int posix_open_write(void *self, const char *path)
{
    (void)self;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return fd < 0 ? -errno : fd;
}

static int64_t posix_read(void *self, int fd, void *buf, size_t n)
{
    (void)self;
    ssize_t got;
    do got = read(fd, buf, n);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static int64_t posix_write(void *self, int fd, const void *buf, size_t n)
{
    (void)self;
    ssize_t put;
    do put = write(fd, buf, n);
    while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

/* Only regular files have a size here: a pipe or a directory is refused rather than read as
 * empty. */
static int64_t posix_size(void *self, int fd)
{
    (void)self;
    struct stat st;
    if (fstat(fd, &st)) return -errno;
    if (S_ISDIR(st.st_mode)) return -EISDIR;
    return S_ISREG(st.st_mode) ? st.st_size : -ESPIPE;
}

static const void *posix_map(void *self, int fd, size_t n)
{
    (void)self;
    void *p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void posix_unmap(void *self, const void *p, size_t n)
{
    (void)self;
    munmap((void *)(uintptr_t)p, n);
}

/* Whole pages leave this process; the file cache keeps them, and touching them brings them back. */
static void posix_forget(void *self, const void *p, size_t n)
{
    (void)self;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
              from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static int posix_sync(void *self, int fd)
{
    (void)self;
    return fsync(fd) ? -errno : 0;
}

static int posix_close(void *self, int fd)
{
    (void)self;
    return close(fd) ? -errno : 0;
}

static int posix_rename(void *self, const char *from, const char *to)
{
    (void)self;
    return rename(from, to) ? -errno : 0;
}

static int posix_unlink(void *self, const char *path)
{
    (void)self;
    return unlink(path) ? -errno : 0;
}

static int posix_mkdir(void *self, const char *path)
{
    (void)self;
    return mkdir(path, 0777) ? -errno : 0;
}

static int posix_sync_dir(void *self, const char *path)
{
    (void)self;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    int rc = fsync(fd) ? -errno : 0;
    close(fd);
    return rc;
}

static int posix_rmdir(void *self, const char *path)
{
    (void)self;
    return rmdir(path) ? -errno : 0;
}

static int posix_list(void *self, const char *path, fv_name_fn *each, void *user)
{
    (void)self;
    DIR *dir = opendir(path);
    if (!dir) return -errno;
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) each(user, entry->d_name);
        errno = 0;
    }
    int rc = -errno;
    closedir(dir);
    return rc;
}

static const fv_io posix = {
    .open_read = posix_open_read,
    .open_write = posix_open_write,
    .read = posix_read,
    .write = posix_write,
    .size = posix_size,
    .map = posix_map,
    .unmap = posix_unmap,
    .advise_unused = posix_forget,
    .sync = posix_sync,
    .close = posix_close,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .mkdir = posix_mkdir,
    .sync_dir = posix_sync_dir,
    .rmdir = posix_rmdir,
    .list = posix_list,
};

const fv_io *fv__io(const fv_env *env) { return env && env->io ? env->io : &posix; }

/* ---- reading ---- */

/* What cannot be mapped (a pipe, /dev/stdin) is read to its end. */
static fv_status read_all(fv_file *f, const fv_io *io, int fd, const char *path, fv_err *e)
{
    fv_buf b = {.env = f->env};
    char chunk[65536];
    for (;;) {
        int64_t n = io->read(io->self, fd, chunk, sizeof chunk);
        if (n < 0) {
            fv__buf_free(&b);
            return fv_fail(e, FV_EIO, "%s: cannot read: %s", path, strerror((int)-n));
        }
        if (!n) break;
        fv__buf_add(&b, chunk, (size_t)n);
    }
    if (b.failed) {
        fv__buf_free(&b);
        return fv_fail(e, FV_ENOMEM, "%s: out of memory after %zu bytes", path, b.len);
    }
    *f = (fv_file){.env = f->env, .data = b.data ? b.data : "", .size = b.len, .cap = b.cap};
    return FV_OK;
}

fv_status fv__file_open(fv_file *f, const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    *f = (fv_file){.env = env};
    int fd = io->open_read(io->self, path);
    if (fd < 0) return fv_fail(e, FV_EIO, "%s: cannot open: %s", path, strerror(-fd));
    int64_t size = io->size(io->self, fd);
    fv_status st = FV_OK;
    if (size > 0) {
        f->data = io->map(io->self, fd, (size_t)size);
        f->size = (size_t)size;
        f->mapped = f->data != NULL;
    }
    if (size < 0 && size != -ESPIPE)
        st = fv_fail(e, FV_EIO, "%s: cannot read: %s", path, strerror((int)-size));
    else if (!f->mapped)
        st = read_all(f, io, fd, path, e);
    io->close(io->self, fd);
    return st;
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

bool fv__file_exists(const fv_env *env, const char *path)
{
    const fv_io *io = fv__io(env);
    int fd = io->open_read(io->self, path);
    if (fd < 0) return false;
    io->close(io->self, fd);
    return true;
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
    int rc = io->mkdir(io->self, path);
    if (rc == -ENOENT) {
        make_parents(io, path);
        rc = io->mkdir(io->self, path);
    }
    return !rc || rc == -EEXIST
               ? FV_OK
               : fv_fail(e, FV_EIO, "%s: cannot make the directory: %s", path, strerror(-rc));
}

/* ---- writing ---- */

fv_status fv__out_open(fv_out *o, const fv_env *env, const char *path, fv_err *e)
{
    const fv_io *io = fv__io(env);
    *o = (fv_out){.env = env, .fd = -1};
    if (strlen(path) + sizeof ".tmp" > sizeof o->tmp)
        return fv_fail(e, FV_EIO, "%.200s...: path too long", path);
    snprintf(o->tmp, sizeof o->tmp, "%s.tmp", path);
    o->fd = io->open_write(io->self, o->tmp);
    if (o->fd < 0) return fv_fail(e, FV_EIO, "%s: cannot create: %s", o->tmp, strerror(-o->fd));
    return FV_OK;
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

/* The name without the ".tmp" that fv__out_open put behind it. */
static void final_name(const fv_out *o, char path[FV_PATH])
{
    size_t n = strlen(o->tmp) - (sizeof ".tmp" - 1);
    memcpy(path, o->tmp, n);
    path[n] = 0;
}

fv_status fv__out_commit(fv_out *o, fv_err *e)
{
    const fv_io *io = fv__io(o->env);
    char path[FV_PATH];
    final_name(o, path);
    if (!o->rc) o->rc = io->sync(io->self, o->fd);
    int closed = io->close(io->self, o->fd);
    o->fd = -1;
    if (!o->rc) o->rc = closed;
    if (!o->rc) o->rc = io->rename(io->self, o->tmp, path);
    if (!o->rc) return FV_OK;
    io->unlink(io->self, o->tmp);
    return fv_fail(e, FV_EIO, "%s: cannot write: %s", path, strerror(-o->rc));
}

void fv__out_abandon(fv_out *o)
{
    const fv_io *io = fv__io(o->env);
    if (o->fd < 0) return;
    io->close(io->self, o->fd);
    io->unlink(io->self, o->tmp);
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
