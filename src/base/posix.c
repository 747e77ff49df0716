/* posix.c - the file system behind an fv_env that has none of its own.
 *
 * A signal that a handler caught may end any call with EINTR, on network file systems also those
 * that a local disk never interrupts (fsync, rename, open).  Every call is made again then: a
 * Ctrl-C that asks a training to save must not make the saving fail. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base.h"

static int posix_open_read(void *self, const char *path)
{
    (void)self;
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static int posix_open_write(void *self, const char *path)
{
    (void)self;
    int fd;
    do fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static int posix_open_new(void *self, const char *path)
{
    (void)self;
    int fd;
    do fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
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

/* May write less than n, on a pipe or a full disk: fv__out_add goes on from there. */
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
static void posix_advise_unused(void *self, const void *p, size_t n)
{
    (void)self;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
              from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + n) / page * page;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static int sync_retried(int fd)
{
    int rc;
    do rc = fsync(fd);
    while (rc && errno == EINTR);
    return rc ? -errno : 0;
}

static int posix_sync(void *self, int fd)
{
    (void)self;
    return sync_retried(fd);
}

static int posix_close(void *self, int fd)
{
    (void)self;
    /* never again: with EINTR, too, the descriptor is closed, and may be another thread's by now */
    return close(fd) && errno != EINTR ? -errno : 0;
}

static int posix_rename(void *self, const char *from, const char *to)
{
    (void)self;
    int rc;
    do rc = rename(from, to);
    while (rc && errno == EINTR);
    return rc ? -errno : 0;
}

static int posix_unlink(void *self, const char *path)
{
    (void)self;
    int rc;
    do rc = unlink(path);
    while (rc && errno == EINTR);
    return rc ? -errno : 0;
}

static int posix_mkdir(void *self, const char *path)
{
    (void)self;
    int rc;
    do rc = mkdir(path, 0777);
    while (rc && errno == EINTR);
    return rc ? -errno : 0;
}

static int open_dir(const char *path, int flags)
{
    int fd;
    do fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static int posix_sync_dir(void *self, const char *path)
{
    (void)self;
    int fd = open_dir(path, 0);
    if (fd < 0) return fd;
    int rc = sync_retried(fd);
    close(fd);
    return rc;
}

static int posix_rmdir(void *self, const char *path)
{
    (void)self;
    int rc;
    do rc = rmdir(path);
    while (rc && errno == EINTR);
    return rc ? -errno : 0;
}

/* readdir reports errors through errno alone, so it is cleared before every call. */
static int posix_list(void *self, const char *path, fv_name_fn *each, void *user)
{
    (void)self;
    int fd = open_dir(path, 0);
    if (fd < 0) return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir)) || errno == EINTR) {
        if (!entry) {
            errno = 0;
            continue;
        }
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) each(user, entry->d_name);
        errno = 0;
    }
    int rc = -errno;
    closedir(dir);
    return rc;
}

/* ---- links and special files ---- */

static int posix_kind(void *self, const char *path)
{
    (void)self;
    struct stat st;
    int rc;
    do rc = stat(path, &st);
    while (rc && errno == EINTR);
    if (rc) return -errno;
    return S_ISREG(st.st_mode) ? FV_PATH_FILE : S_ISDIR(st.st_mode) ? FV_PATH_DIR : FV_PATH_SPECIAL;
}

static int posix_read_link(void *self, const char *path, char *out, size_t n)
{
    (void)self;
    ssize_t len = readlink(path, out, n);
    if (len < 0) return -errno;
    if ((size_t)len >= n) return -ENAMETOOLONG;
    out[len] = 0;
    return (int)len;
}

/* By a descriptor that does not follow links: the directory cannot become another one between the
 * look at it and the removal. */
static int posix_unlink_in(void *self, const char *dir, const char *name)
{
    (void)self;
    int fd = open_dir(dir, O_NOFOLLOW), rc;
    if (fd < 0) return fd;
    do rc = unlinkat(fd, name, 0);
    while (rc && errno == EINTR);
    if (rc) rc = -errno;
    close(fd);
    return rc;
}

/* flock, not fcntl: it belongs to the open directory, so two runs in one process exclude each other
 * too, and nothing that this process opens and closes meanwhile lets it go. */
static int posix_lock_dir(void *self, const char *path)
{
    (void)self;
    int fd = open_dir(path, 0), rc;
    if (fd < 0) return fd;
    do rc = flock(fd, LOCK_EX | LOCK_NB);
    while (rc && errno == EINTR);
    if (!rc) return fd;
    rc = -errno;
    close(fd);
    return rc;
}

/* The one place that calls the operating system for files.  Tests put tables of their own here:
 * one that fails at the n-th call, and one that simulates a crash by dropping what was not
 * synced. */
static const fv_io posix = {
    .open_read = posix_open_read,
    .open_write = posix_open_write,
    .read = posix_read,
    .write = posix_write,
    .size = posix_size,
    .map = posix_map,
    .unmap = posix_unmap,
    .advise_unused = posix_advise_unused,
    .sync = posix_sync,
    .close = posix_close,
    .rename = posix_rename,
    .unlink = posix_unlink,
    .mkdir = posix_mkdir,
    .sync_dir = posix_sync_dir,
    .rmdir = posix_rmdir,
    .list = posix_list,
    .kind = posix_kind,
    .read_link = posix_read_link,
    .open_new = posix_open_new,
    .unlink_in = posix_unlink_in,
    .lock_dir = posix_lock_dir,
};

const fv_io *fv__io(const fv_env *env) { return env && env->io ? env->io : &posix; }
