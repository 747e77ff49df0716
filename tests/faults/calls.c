/* calls.c - system calls and allocations of a program that fail, or in the middle of which it is
 * killed, to order.
 *
 * Preloaded (LD_PRELOAD), so that the program is tested as it is installed, with every library it
 * brings along.  The environment says what happens:
 *
 *     FAULT_CALL=N    the N-th call below that can fail does (the first is 1)
 *     FAULT_ALLOC=N   the N-th allocation
 *     FAULT_ERRNO=E   with this errno; EIO is the default
 *     FAULT_KILL=1    instead of failing the program is killed there, before the call is made
 *     FAULT_FROM=1    every one from the N-th on fails, not only that one
 *     FAULT_EINTR=1   every call is interrupted once before it succeeds
 *     FAULT_COUNT=F   how many calls and allocations there were is written to F at exit
 *
 * Only calls of the program's own code count: what the dynamic loader does before main does not go
 * through these. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_long calls, allocations;
static long call_at, alloc_at;
static int number = EIO;
static bool killing, onwards, interrupting;
static bool ready; /* the environment has been read */
static char count_file[4096];

static long setting(const char *name)
{
    const char *s = getenv(name);
    return s ? strtol(s, NULL, 10) : 0;
}

__attribute__((constructor)) static void read_settings(void)
{
    const char *file = getenv("FAULT_COUNT");
    call_at = setting("FAULT_CALL");
    alloc_at = setting("FAULT_ALLOC");
    if (setting("FAULT_ERRNO")) number = (int)setting("FAULT_ERRNO");
    killing = setting("FAULT_KILL");
    onwards = setting("FAULT_FROM");
    interrupting = setting("FAULT_EINTR");
    if (file) snprintf(count_file, sizeof count_file, "%s", file);
    ready = true;
}

/* By bare system calls: none of this may be counted, nor fail. */
__attribute__((destructor)) static void write_counts(void)
{
    char text[64];
    if (!*count_file) return;
    ready = false;
    int n = snprintf(text, sizeof text, "%ld %ld\n", (long)calls, (long)allocations);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, count_file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0) syscall(SYS_write, fd, text, (size_t)n), syscall(SYS_close, fd);
}

/* Whether this one fails; errno is set. */
static bool fails(atomic_long *count, long at)
{
    if (!ready) return false;
    long n = atomic_fetch_add(count, 1) + 1;
    if (!at || (onwards ? n < at : n != at)) return false;
    if (killing) syscall(SYS_kill, getpid(), SIGKILL);
    errno = count == &allocations ? ENOMEM : number;
    return true;
}

/* Every other call of a thread is interrupted. */
static bool call_fails(void)
{
    static _Thread_local bool odd;
    if (ready && interrupting && (odd = !odd)) {
        errno = EINTR;
        return true;
    }
    return fails(&calls, call_at);
}

/* ---- calls ---- */

EXPORT int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    return call_fails() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORT ssize_t read(int fd, void *buf, size_t n)
{
    return call_fails() ? -1 : (ssize_t)syscall(SYS_read, fd, buf, n);
}

EXPORT ssize_t write(int fd, const void *buf, size_t n)
{
    return call_fails() ? -1 : (ssize_t)syscall(SYS_write, fd, buf, n);
}

EXPORT int fsync(int fd) { return call_fails() ? -1 : (int)syscall(SYS_fsync, fd); }

EXPORT int close(int fd)
{
    int rc = (int)syscall(SYS_close, fd); /* in any case, as the kernel does */
    return call_fails() ? -1 : rc;
}

EXPORT int rename(const char *from, const char *to)
{
    return call_fails() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int unlink(const char *path)
{
    return call_fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

EXPORT int unlinkat(int dir, const char *path, int flags)
{
    return call_fails() ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

EXPORT int rmdir(const char *path)
{
    return call_fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    return call_fails() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* No EINTR here: mapping knows none. */
EXPORT void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
    if (fd >= 0 && fails(&calls, call_at)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, p, n, prot, flags, fd, at);
}

/* ---- allocations: glibc's own functions stand behind them ---- */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

EXPORT void *malloc(size_t n) { return fails(&allocations, alloc_at) ? NULL : __libc_malloc(n); }

EXPORT void *calloc(size_t n, size_t size)
{
    return fails(&allocations, alloc_at) ? NULL : __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t n)
{
    return fails(&allocations, alloc_at) ? NULL : __libc_realloc(p, n);
}

EXPORT void *aligned_alloc(size_t align, size_t n)
{
    return fails(&allocations, alloc_at) ? NULL : __libc_memalign(align, n);
}

EXPORT int posix_memalign(void **p, size_t align, size_t n)
{
    if (fails(&allocations, alloc_at)) return ENOMEM;
    return (*p = __libc_memalign(align, n)) ? 0 : ENOMEM;
}
