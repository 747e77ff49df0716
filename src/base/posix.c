/* posix.c - the file system behind an fv_env that has none of its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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
    int rc = sync_retried(fd);
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

/* ---- links and special files ---- */

static int posix_kind(void *self, const char *path)
{
    (void)self;
    struct stat st;
    if (stat(path, &st)) return -errno;
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
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -errno;
    int rc = unlinkat(fd, name, 0) ? -errno : 0;
    close(fd);
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
};

const fv_io *fv__io(const fv_env *env) { return env && env->io ? env->io : &posix; }
