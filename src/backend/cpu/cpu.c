/* cpu.c - the CPU as a device: its memory, the instruction levels it has, and the tables for one of
 * them.
 *
 * A level is one compilation of every kernel file with its own compiler flags; cpu_files.h, made
 * from the folder by CMake, lists the files.  Tables are filled in two layers: the reference
 * kernels first, then the level's own over them, so no entry is ever empty and a new op works on
 * the CPU at once. One table per float dtype belongs to the device: opening a second device at
 * another level does not touch the first. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1 << 13)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif
#endif

#include "backend/backends.h"
#include "backend/ref/tables.h"
#include "base/base.h"

/* ---- levels, best first ---- */

/* `supported` asks the processor, never its name; a build for one architecture contains all its
 * levels. */
typedef struct level {
    const char *name;
    bool (*supported)(void); /* this machine can run it */
    void (*fill)(fv_kernels *k);
} level;

static bool always(void) { return true; }
void fv__cpu_level_generic(fv_kernels *k);

#if defined(HAVE_CPU_NEON)
void fv__cpu_level_neon(fv_kernels *k);
void fv__cpu_level_neon_bf16(fv_kernels *k);
/* Asimdhp and asimddp are asked for too: the level's flags let the compiler use them anywhere. */
static bool has_neon_bf16(void)
{
    unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    return (two & HWCAP2_BF16) && (two & HWCAP2_I8MM) && (one & HWCAP_ASIMDDP) &&
           (one & HWCAP_ASIMDHP);
}
#endif

#if defined(HAVE_CPU_AVX2)
void fv__cpu_level_avx2(fv_kernels *k);
void fv__cpu_level_avx512(fv_kernels *k);
void fv__cpu_level_avx512_bf16(fv_kernels *k);
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16");
}
#endif

static const level levels[] = {
#if defined(HAVE_CPU_NEON)
    {"neon_bf16", has_neon_bf16, fv__cpu_level_neon_bf16},
    {"neon", always, fv__cpu_level_neon},
#endif
#if defined(HAVE_CPU_AVX2)
    {"avx512_bf16", has_avx512_bf16, fv__cpu_level_avx512_bf16},
    {"avx512", has_avx512, fv__cpu_level_avx512},
    {"avx2", has_avx2, fv__cpu_level_avx2},
#endif
    {"generic", always, fv__cpu_level_generic},
};
#define N_LEVELS ((int)(sizeof levels / sizeof *levels))

int fv_cpu_levels(const char **out, int most)
{
    int n = 0;
    for (int i = 0; i < N_LEVELS; i++)
        if (levels[i].supported() && n < most) out[n++] = levels[i].name;
    return n;
}

/* The level asked for by option or $FOVEA_CPU, else the best; NULL if there is none of that
 * name. */
static const level *choose(const char *name, fv_err *e)
{
    const char *source = name ? "level" : "FOVEA_CPU";
    if (!name) name = getenv("FOVEA_CPU");
    char have[128] = "";
    size_t len = 0;
    for (int i = 0; i < N_LEVELS; i++) {
        if (!levels[i].supported()) continue;
        if (!name || !*name || !strcmp(levels[i].name, name)) return &levels[i];
        if (len < sizeof have)
            len += (size_t)snprintf(have + len, sizeof have - len, "%s%s", len ? ", " : "",
                                    levels[i].name);
    }
    fv_fail(e, FV_EDEVICE, "%s %s: not a CPU level of this build and machine, which has %s", source,
            name, have);
    return NULL;
}

/* ---- memory and streams: a CPU stream is synchronous ---- */

/* Huge pages for what is large: fewer misses of the TLB in panels and long rows.
 * advise is given for the whole pages inside the block only: the edges may belong to other
 * allocations. */
static void *mem_alloc(fv_device *d, size_t bytes)
{
    void *p = fv__alloc_raw(&d->env, bytes);
    if (p && bytes >= FV__HUGE_PAGE) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), at = ((uintptr_t)p + page - 1) / page * page;
        madvise((void *)at, ((uintptr_t)p + bytes - at) / page * page, MADV_HUGEPAGE);
    }
    return p;
}

static void mem_release(fv_device *d, void *p, size_t bytes) { fv__free(&d->env, p, bytes); }

static void copy(fv_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes) memmove(dst, src, bytes);
}

static void zero(fv_stream *s, void *dst, size_t bytes)
{
    (void)s;
    if (bytes) memset(dst, 0, bytes);
}

static void finish(fv_stream *s) { (void)s; }

static void cpu_close(fv_device *d) { fv__free(&d->env, d->impl, FV_FLOATS * sizeof(fv_kernels)); }

static const fv_backend backend = {
    .name = "cpu",
    .alloc = mem_alloc,
    .release = mem_release,
    .upload = copy,
    .download = copy,
    .move = copy,
    .zero = zero,
    .sync = finish,
    .close = cpu_close,
};

/* ---- opening ---- */

/* By affinity, not by what is installed: containers and taskset give fewer. */
static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* ---- threads ---- */

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t open;
    bool is_open;
} gate;

static void *wait_at(void *arg)
{
    gate *g = arg;
    pthread_mutex_lock(&g->mutex);
    while (!g->is_open) pthread_cond_wait(&g->open, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return NULL;
}

/* Holds n threads at once; 0, or why the last one could not be made. */
static int try_threads(const fv_env *env, int n)
{
    gate g = {.mutex = PTHREAD_MUTEX_INITIALIZER, .open = PTHREAD_COND_INITIALIZER};
    pthread_t *thread = fv__alloc(env, (size_t)n * sizeof *thread);
    int made = 0, rc = thread ? 0 : ENOMEM;
    while (!rc && made < n) {
        rc = pthread_create(&thread[made], NULL, wait_at, &g);
        made += !rc;
    }
    pthread_mutex_lock(&g.mutex);
    g.is_open = true;
    pthread_cond_broadcast(&g.open);
    pthread_mutex_unlock(&g.mutex);
    for (int i = 0; i < made; i++) pthread_join(thread[i], NULL);
    fv__free(env, thread, (size_t)n * sizeof *thread);
    return rc;
}

/* libgomp ends the process where a thread cannot be made.  So as many are made here first, where
 * that is an error like any other, and then libgomp makes those it keeps for this thread. */
static fv_status start_threads(const fv_device *d, fv_err *e)
{
    int rc = d->threads > 1 ? try_threads(&d->env, d->threads - 1) : 0;
    if (rc)
        return fv_fail(e, FV_ENOMEM, "device cpu: cannot start %d threads: %s", d->threads,
                       strerror(rc));
    if (d->threads > 1)
#pragma omp parallel num_threads(d->threads)
    {
    }
    return FV_OK;
}

fv_status fv__cpu_open(fv_device *d, fv_device_opt opt, fv_err *e)
{
    const level *l = choose(opt.level, e);
    if (!l) return FV_EDEVICE;
    fv_kernels *k = fv__alloc(&d->env, FV_FLOATS * sizeof *k);
    if (!k) return fv_fail(e, FV_ENOMEM, "device cpu: out of memory");
    fv__ref_fill(k);
    for (int i = 0; i < FV_FLOATS; i++) {
        l->fill(&k[i]);
        d->k[i] = &k[i];
    }
    d->backend = &backend;
    d->impl = k;
    d->level = l->name;
    d->threads = opt.threads ? opt.threads : cores();
    fv_status st = start_threads(d, e);
    if (st) cpu_close(d);
    return st;
}
