/* machine.c - bench machine: what the cores and the memory can do, as a measure for the other
 * benchmarks.
 *
 * Three limits: multiply-adds on registers alone, reading memory in four streams a thread (one is
 * not enough to keep a core's load units busy), and the triad a = b + s c, which also writes.
 *
 *     multiply-add  a second that the cores can do in f32
 *     read          bytes a second of reading alone, which decoding is bound by
 *     triad         bytes a second of two reads and a write */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fovea/author/tensor.h"

typedef struct machine_values {
    int64_t mib;
} machine_values;

static const fv_field options[] = {FV_INT(machine_values, mib, 1, 256, 1 << 16,
                                          "megabytes of each array; more than the caches hold"),
                                   {0}};

static const fv_task_example examples[] = {
    {"fovea bench machine --threads 1", "the limits of one core"},
    {0},
};

/* ---- multiply-adds ---- */

enum { ROUNDS = 1 << 18, LANES = 16 };

/* Independent chains s = s a + a on vectors of one size: enough to hide the latency, few enough for
 * the registers.  Written out for each size and unrolled throughout, because only then do the
 * chains stay in registers.  They begin at different values, else the compiler sees that they are
 * one chain; the first round makes them zeros, so that no limit of power is met. */
typedef float quad __attribute__((vector_size(16)));

/* in assembly: the compiler's order of the same instructions runs at half the rate */
#if defined(__aarch64__)
/* Sixteen accumulators, more than latency times ports of any core so far: the throughput of
 * multiply-add, nothing else. Assembly, because a compiler may merge or drop what it can see
 * through. */
static float chains_quad(float a)
{
    uint64_t rounds = ROUNDS;
    __asm__ volatile(
        "movi v30.4s, #0\n movi v31.4s, #0\n1:\nfmla v0.4s, v30.4s, v31.4s\n fmla v1.4s, v30.4s, "
        "v31.4s\n fmla v2.4s, v30.4s, v31.4s\nfmla v3.4s, v30.4s, v31.4s\n fmla v4.4s, v30.4s, "
        "v31.4s\n fmla v5.4s, v30.4s, v31.4s\nfmla v6.4s, v30.4s, v31.4s\n fmla v7.4s, v30.4s, "
        "v31.4s\n fmla v16.4s, v30.4s, v31.4s\nfmla v17.4s, v30.4s, v31.4s\n fmla v18.4s, v30.4s, "
        "v31.4s\n fmla v19.4s, v30.4s, v31.4s\nfmla v20.4s, v30.4s, v31.4s\n fmla v21.4s, v30.4s, "
        "v31.4s\n fmla v22.4s, v30.4s, v31.4s\nfmla v23.4s, v30.4s, v31.4s\nsubs %0, %0, #1\n b.ne "
        "1b\n"
        : "+r"(rounds)::"cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18",
          "v19", "v20", "v21", "v22", "v23", "v30", "v31");
    return a;
}
#else
#define CHAINS 16
#define VECTOR quad
#define NAME chains_quad
#include "bench/chains.h"
#endif
static const double quad_flops = 2.0 * ROUNDS * 16 * 4;

#if defined(__x86_64__)
typedef float oct __attribute__((vector_size(32)));
#define CHAINS 12
#define VECTOR oct
#define NAME __attribute__((target("avx2,fma"))) chains_oct
#include "bench/chains.h"
static const double oct_flops = 2.0 * ROUNDS * 12 * 8;

typedef float hex __attribute__((vector_size(64)));
#define CHAINS 20
#define VECTOR hex
#define NAME __attribute__((target("avx512f"))) chains_hex
#include "bench/chains.h"
static const double hex_flops = 2.0 * ROUNDS * 20 * 16;
#endif

typedef struct probe {
    float (*chains)(float a);
    double flops; /* of one call */
    int64_t n;    /* floats in each array, a multiple of 4 * threads * LANES */
    float *a, *b, *c;
    volatile float zero; /* not known to the compiler */
    float sink;          /* what was computed goes here, so that it must be computed */
} probe;

/* The widest vectors that this processor has, by what it reports. */
static void choose_chains(probe *p)
{
    p->chains = chains_quad;
    p->flops = quad_flops;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        p->chains = chains_oct, p->flops = oct_flops;
    if (__builtin_cpu_supports("avx512f")) p->chains = chains_hex, p->flops = hex_flops;
#endif
}

/* The sum goes to `sink`, which somebody might read: the loop cannot be optimised away. */
static void multiply_add(fv_ctx *c, void *what)
{
    probe *p = what;
    float sum = 0;
#pragma omp parallel for reduction(+ : sum) \
    num_threads(fv_device_threads(fv_ctx_device(c))) schedule(static, 1)
    for (int t = 0; t < fv_device_threads(fv_ctx_device(c)); t++) sum += p->chains(p->zero);
    p->sink = sum;
}

/* ---- memory ---- */

/* A quarter of a thread's share each, a cache line of every stream in turn. */
static float read_streams(const float *x, int64_t quarter)
{
    quad s[4][4] = {{{0}}};
    for (int64_t i = 0; i < quarter; i += LANES)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                s[k][j] += *(const quad *)(const void *)(x + k * quarter + i + 4 * j);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
#pragma GCC unroll 4
        for (int j = k == 0; j < 4; j++) s[0][0] += s[k][j];
    return s[0][0][0] + s[0][0][3];
}

/* Four streams a thread, as packed products read: one stream does not fill the memory system. */
static void read_all(fv_ctx *c, void *what)
{
    probe *p = what;
    int threads = fv_device_threads(fv_ctx_device(c));
    int64_t quarter = p->n / threads / 4 / LANES * LANES;
    float sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) sum += read_streams(p->b + t * 4 * quarter, quarter);
    p->sink = sum;
}

/* McCalpin's STREAM triad, three arrays. */
static void triad(fv_ctx *c, void *what)
{
    probe *p = what;
    float *a = p->a;
    const float *b = p->b, *d = p->c;
#pragma omp parallel for num_threads(fv_device_threads(fv_ctx_device(c))) schedule(static)
    for (int64_t i = 0; i < p->n; i++) a[i] = b[i] + 0.5f * d[i];
}

/* ---- the benchmark ---- */

/* Touched by the threads that will use it: on machines with several memory nodes a page belongs to
 * the node of its first writer. */
static float *array(const bench *b, int64_t n)
{
    float *x = aligned_alloc(64, (size_t)n * sizeof *x);
    if (!x) return NULL;
#pragma omp parallel for num_threads(fv_device_threads(b->device)) schedule(static)
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 3);
    return x;
}

/* Bytes count what the program moves; caches may move more. */
static fv_status measure(bench *b, probe *p, fv_err *e)
{
    double threads = fv_device_threads(b->device), n = (double)p->n;
    const struct {
        const char *name;
        bench_fn *fn;
        bench_work work;
    } limits[] = {{"multiply-add", multiply_add, {.flops = p->flops * threads}},
                  {"read", read_all, {.bytes = 4 * n}},
                  {"triad", triad, {.bytes = 12 * n}}};
    fv_status st = FV_OK;
    for (int i = 0; i < 3 && !st; i++) {
        bench_row r = {.name = limits[i].name};
        st = bench_run(b, &r, limits[i].fn, p, limits[i].work, e);
    }
    return st;
}

/* Arrays far larger than the caches unless told otherwise: what is measured is memory. */
static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    const machine_values *v = values;
    (void)k;
    if (o->device && strcmp(o->device, "cpu"))
        return fv_fail(e, FV_EUSAGE, "--device %s: the limits of the processor are measured",
                       o->device);
    bench b;
    probe p = {0};
    fv_status st = bench_open(&b, o, FV_F32, e);
    if (!st) {
        int64_t step = 4 * LANES * fv_device_threads(b.device);
        p.n = (v->mib * 262144 + step - 1) / step * step;
        p.a = array(&b, p.n), p.b = array(&b, p.n), p.c = array(&b, p.n);
        choose_chains(&p);
        st = p.a && p.b && p.c ? measure(&b, &p, e) : fv_fail(e, FV_ENOMEM, "out of memory");
    }
    free(p.a), free(p.b), free(p.c);
    bench_close(&b);
    return st;
}

const bench_kind bench_machine[] = {
    {.name = "machine",
     .summary = "the limits: multiply-adds, reading memory, the triad",
     .about = "Three lines to hold the other benchmarks against.  The triad a = b + s c counts "
              "three arrays, though on most machines memory also moves a before it is written.",
     .examples = examples,
     .options = options,
     .size = sizeof(machine_values),
     .run = run},
    {0}};
