/* pages.c - memory whose pages can be seen at several addresses, copied when one of them writes.
 *
 * An anonymous file (memfd) holds the pages.  A private map of a part of it is the same physical
 * memory wherever it is mapped, and the MMU copies a page at the first write to one of the maps: so
 * readers need no table of pages, and a kernel that runs over contiguous rows runs over shared ones
 * as it is.  A map is one entry of the process's list, of which Linux allows 65,530: callers count
 * theirs. */
#include "base/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

size_t fv__page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

#if defined __linux__ && defined MFD_CLOEXEC

bool fv__pages_open(fv__pages *p, size_t bytes)
{
    *p = (fv__pages){.fd = memfd_create("fovea", MFD_CLOEXEC), .bytes = bytes};
    if (p->fd < 0) return false;
    void *data = MAP_FAILED;
    if (!ftruncate(p->fd, (off_t)bytes))
        data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (data == MAP_FAILED) {
        close(p->fd);
        return false;
    }
    p->data = data;
    return true;
}

bool fv__pages_take(fv__pages *p, size_t from, size_t bytes)
{
    return !fallocate(p->fd, 0, (off_t)from, (off_t)bytes);
}

/* Entries of the page table are made at once: attention would else fault its way through the range
 * at its next step.  For reading only, since populating a private map for writing copies it. */
bool fv__pages_show(const fv__pages *p, size_t from, size_t bytes, void *at)
{
    void *seen = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, p->fd,
                      (off_t)from);
    if (seen == MAP_FAILED) return false;
#ifdef MADV_POPULATE_READ
    madvise(at, bytes, MADV_POPULATE_READ); /* a hint: older systems fault */
#endif
    return true;
}

#else

bool fv__pages_open(fv__pages *p, size_t bytes)
{
    (void)bytes;
    *p = (fv__pages){0};
    return false;
}

bool fv__pages_take(fv__pages *p, size_t from, size_t bytes)
{
    (void)p, (void)from, (void)bytes;
    return false;
}

bool fv__pages_show(const fv__pages *p, size_t from, size_t bytes, void *at)
{
    (void)p, (void)from, (void)bytes, (void)at;
    return false;
}

#endif

void fv__pages_close(fv__pages *p)
{
    if (!p->data) return;
    munmap(p->data, p->bytes);
    close(p->fd);
    *p = (fv__pages){0};
}

/* Where that fails, the old map stays; writes to it are private and its contents were undefined, so
 * it is only memory that comes back later. */
void fv__pages_hide(void *at, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return;
    madvise(at, bytes, MADV_NOHUGEPAGE); /* like its neighbours, with which it becomes one map */
}
