/* memory.c - malloc and its kin, counted: the dynamic linker takes these for everybody's. */
#include "memory.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__ /* it has a malloc of its own, and looks for other faults */

void memory_watch(size_t most) { (void)most; }
memory memory_seen(void) { return (memory){0}; }
void memory_mark(void) {}
memory memory_marked(void) { return (memory){0}; }

#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static size_t live, peak, largest, base, limit = SIZE_MAX;
static memory marked;
static int is_marked;

void memory_watch(size_t most)
{
    is_marked = 0;
    base = peak = live;
    largest = 0;
    limit = most;
}

memory memory_seen(void)
{
    return (memory){.live = live > base ? live - base : 0, .peak = peak - base, .largest = largest};
}

void memory_mark(void)
{
    if (!is_marked) marked = memory_seen();
    is_marked = 1;
}

memory memory_marked(void) { return is_marked ? marked : memory_seen(); }

static int allowed(size_t n)
{
    if (n > largest) largest = n;
    if (n <= limit) return 1;
    errno = ENOMEM;
    return 0;
}

static void *took(void *p)
{
    if (p) live += malloc_usable_size(p);
    if (live > peak) peak = live;
    return p;
}

static void *gave(void *p)
{
    if (p) live -= malloc_usable_size(p);
    return p;
}

void *malloc(size_t n) { return allowed(n) ? took(__libc_malloc(n)) : NULL; }
void free(void *p) { __libc_free(gave(p)); }

void *calloc(size_t n, size_t size)
{
    size_t all;
    if (__builtin_mul_overflow(n, size, &all)) all = SIZE_MAX;
    return allowed(all) ? took(__libc_calloc(n, size)) : NULL;
}

void *realloc(void *p, size_t n)
{
    if (!allowed(n)) return NULL;
    gave(p);
    void *q = __libc_realloc(p, n);
    if (!q && n) took(p); /* it stays as it was */
    return took(q);
}

void *memalign(size_t align, size_t n)
{
    return allowed(n) ? took(__libc_memalign(align, n)) : NULL;
}
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = memalign(align, n);
    if (p) *out = p;
    return p ? 0 : ENOMEM;
}

#endif
