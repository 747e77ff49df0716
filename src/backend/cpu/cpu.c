/* cpu.c - the CPU as a device: its memory, the instruction levels it has, and the tables for one of
 * them.
 *
 * A level is one compilation of every kernel file with its own compiler flags, or, where a base
 * differs in its products alone, of those; cpu_files.h, made from the folder by CMake, lists the
 * files.  Tables are filled in layers: the reference kernels first, then a base's, then the level's
 * own over them, so no entry is ever empty and a new op works on the CPU at once.  One table per
 * float dtype belongs to the device: opening a second device at another level does not touch the
 * first. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif
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
#include "base/launcher.h"
#include "base/pages.h"
#include "parallel.h"

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
void fv__cpu_level_neon_dotprod(fv_kernels *k);
void fv__cpu_level_neon_bf16(fv_kernels *k);
static bool has_neon_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
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
void fv__cpu_level_avx_vnni(fv_kernels *k);
void fv__cpu_level_avx512(fv_kernels *k);
void fv__cpu_level_avx512_vnni(fv_kernels *k);
void fv__cpu_level_avx512_bf16(fv_kernels *k);
void fv__cpu_level_amx(fv_kernels *k);
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
/* Not a name that __builtin_cpu_supports of gcc 12 and clang 14 knows. */
static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool has_avx512_vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_avx512_bf16(void)
{
    return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16");
}
/* Tiles are 8 KiB of state a thread, which Linux keeps only for processes that asked. */
#define REQUEST_XSTATE 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18
static bool has_amx(void)
{
    const unsigned need = 1u << 22 | 1u << 24 | 1u << 25; /* bf16, tiles, int8 */
    unsigned a, b, c, d;
    return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & need) == need &&
           !syscall(SYS_arch_prctl, REQUEST_XSTATE, TILE_DATA);
}
#endif

static const level levels[] = {
#if defined(HAVE_CPU_NEON)
    {"neon_bf16", has_neon_bf16, fv__cpu_level_neon_bf16},
    {"neon_dotprod", has_neon_dotprod, fv__cpu_level_neon_dotprod},
    {"neon", always, fv__cpu_level_neon},
#endif
#if defined(HAVE_CPU_AVX2)
    {"amx", has_amx, fv__cpu_level_amx},
    {"avx512_bf16", has_avx512_bf16, fv__cpu_level_avx512_bf16},
    {"avx512_vnni", has_avx512_vnni, fv__cpu_level_avx512_vnni},
    {"avx512", has_avx512, fv__cpu_level_avx512},
    {"avx_vnni", has_avx_vnni, fv__cpu_level_avx_vnni},
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

/* Small pages from now on: a huge one would take 2 MiB back for the first byte that is written. */
static void mem_discard(fv_device *d, void *p, size_t bytes)
{
    (void)d;
    size_t page = fv__page_size();
    uintptr_t from = ((uintptr_t)p + page - 1) / page * page,
              to = ((uintptr_t)p + bytes) / page * page;
    if (to <= from) return;
    madvise((void *)from, to - from, MADV_NOHUGEPAGE);
    madvise((void *)from, to - from, MADV_DONTNEED);
}

static size_t page_size(fv_device *d)
{
    (void)d;
    return fv__page_size();
}

static void *mem_reserve(fv_device *d, size_t bytes)
{
    void *p = mem_alloc(d, bytes);
    if (p) mem_discard(d, p, bytes);
    return p;
}

/* The system takes a page when it is first written. */
static bool mem_commit(fv_device *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
    return true;
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

/* ---- threads: one pool for all contexts of the device ---- */

typedef struct cpu {
    fv_kernels k[FV_FLOATS];
    fv__thread_pool *pool;
} cpu;

void fv__cpu_parallel(fv_stream *s, int threads, int64_t n, int64_t grain, fv__range_fn fn,
                      void *arg)
{
    fv__parallel_for(((cpu *)s->dev->impl)->pool, threads, n, grain, fn, arg);
}

static fv_status no_threads(int threads, int rc, fv_err *e)
{
    return fv_fail(e, FV_ENOMEM, "device cpu: cannot start %d threads: %s", threads, strerror(rc));
}

/* A context may ask for more threads than its device has. */
static fv_status stream_open(fv_stream *s, fv_err *e)
{
    int rc = fv__thread_pool_grow(((cpu *)s->dev->impl)->pool, s->threads);
    return rc ? no_threads(s->threads, rc, e) : FV_OK;
}

static void cpu_close(fv_device *d)
{
    cpu *c = d->impl;
    fv__thread_pool_free(c->pool);
    fv__free(&d->env, c, sizeof *c);
}

static const fv_backend backend = {
    .name = "cpu",
    .alloc = mem_alloc,
    .release = mem_release,
    .stream_open = stream_open,
    .page_size = page_size,
    .reserve = mem_reserve,
    .commit = mem_commit,
    .discard = mem_discard,
    .upload = copy,
    .download = copy,
    .move = copy,
    .zero = zero,
    .sync = finish,
    .close = cpu_close,
};

/* ---- opening ---- */

fv_status fv__cpu_open(fv_device *d, fv_device_opt opt, fv_err *e)
{
    const level *l = choose(opt.level, e);
    if (!l) return FV_EDEVICE;
    cpu *c = fv__alloc(&d->env, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "device cpu: out of memory");
    fv__ref_fill(c->k);
    for (int i = 0; i < FV_FLOATS; i++) {
        l->fill(&c->k[i]);
        d->k[i] = &c->k[i];
    }
    int cores = fv__cores(&d->env);
    d->backend = &backend;
    d->impl = c;
    d->level = l->name;
    d->threads = opt.threads ? opt.threads : fv__cores_of_rank(&d->env);
    int rc = fv__thread_pool_new(&c->pool, &d->env, d->threads, cores);
    if (!rc) return FV_OK;
    cpu_close(d);
    return no_threads(d->threads, rc, e);
}
