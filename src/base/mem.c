/* mem.c - allocation through fv_env, and the allocator that counts.
 *
 * Every allocation of the library goes through an fv_mem, and every release says the size again:
 * a counter needs no header in front of blocks, and sized allocators can be plugged in.  The
 * counting one is the tests' instrument: count, bytes alive, peak, a limit, and failure of the
 * n-th request. */
#include <stdlib.h>

#include "base.h"

#define ALIGN 64

/* What is large begins where a huge page can. */
static void *plain_alloc(void *self, size_t size)
{
    (void)self;
    void *p = NULL;
    if (size > SIZE_MAX - ALIGN) return NULL;
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    return posix_memalign(&p, size >= FV__HUGE_PAGE ? FV__HUGE_PAGE : ALIGN, size) ? NULL : p;
}

static void plain_release(void *self, void *p, size_t size)
{
    (void)self;
    (void)size;
    free(p);
}

static const fv_mem plain = {plain_alloc, plain_release, NULL};

static const fv_mem *mem_of(const fv_env *env) { return env && env->mem ? env->mem : &plain; }

void *fv__alloc_raw(const fv_env *env, size_t size)
{
    const fv_mem *m = mem_of(env);
    return m->alloc(m->self, size);
}

void *fv__alloc(const fv_env *env, size_t size)
{
    void *p = size ? fv__alloc_raw(env, size) : NULL;
    if (p) memset(p, 0, size);
    return p;
}

void fv__free(const fv_env *env, void *p, size_t size)
{
    if (!p) return;
    const fv_mem *m = mem_of(env);
    m->release(m->self, p, size);
}

/* Doubles, so n appends cost O(n).  On failure *p and *have are as before, and still owned. */
bool fv__grow(const fv_env *env, void **p, size_t *have, size_t want)
{
    if (want <= *have) return true;
    size_t size = *have > want / 2 && *have <= SIZE_MAX / 2 ? *have * 2 : want;
    if (size < ALIGN) size = ALIGN;
    void *q = fv__alloc(env, size);
    if (!q) return false;
    if (*have) memcpy(q, *p, *have);
    fv__free(env, *p, *have);
    *p = q;
    *have = size;
    return true;
}

/* The counters are read by tests while nothing runs, and updated by any thread: atomics on plain
 * fields. */
static void *count_alloc(void *self, size_t size)
{
    fv_mem_counter *m = self;
    size_t n = __atomic_add_fetch(&m->count, 1, __ATOMIC_RELAXED);
    if (m->fail_at && n == m->fail_at) return NULL;
    size_t live = __atomic_add_fetch(&m->live, size, __ATOMIC_RELAXED);
    void *p = m->limit && live > m->limit ? NULL : plain_alloc(NULL, size);
    if (!p) {
        __atomic_sub_fetch(&m->live, size, __ATOMIC_RELAXED);
        return NULL;
    }
    size_t peak = __atomic_load_n(&m->peak, __ATOMIC_RELAXED);
    while (live > peak && !__atomic_compare_exchange_n(&m->peak, &peak, live, true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return p;
}

static void count_release(void *self, void *p, size_t size)
{
    fv_mem_counter *m = self;
    __atomic_sub_fetch(&m->live, size, __ATOMIC_RELAXED);
    free(p);
}

void fv_mem_counter_init(fv_mem_counter *m)
{
    *m = (fv_mem_counter){.mem = {count_alloc, count_release, m}};
}
