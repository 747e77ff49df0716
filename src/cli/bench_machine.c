/* bench_machine.c - fovea bench machine: what the cores and the memory can do, as a measure for the other benchmarks.
 *
 * Three limits: multiply-adds on registers alone, reading memory in four streams a thread (one is not enough to keep
 * a core's load units busy), and the triad a = b + s c, which also writes. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

typedef struct machine_values {
    bench_values common;
    int64_t mib;
} machine_values;

static const machine_values defaults = {.common = BENCH_DEFAULTS, .mib = 256};

static const cli_option options[] = {
    CLI_INT(machine_values, mib, 0, "mib", "N", 1, 1 << 16, "megabytes of each array; more than the caches hold"),
    BENCH_OPTIONS(machine_values),
    {0},
};

static const cli_example examples[] = {
    {"fovea bench machine --threads 1", "the limits of one core"},
    {0},
};

/* ---- multiply-adds ---- */

typedef float lanes __attribute__((vector_size(64)));
enum { LANES = 16, MOST_CHAINS = 12, ROUNDS = 1 << 20 };

/* n chains s = s a + a, independent of each other: enough to hide the latency, few enough for the registers. */
static inline __attribute__((always_inline)) float chains(int n, float a)
{
    lanes s[MOST_CHAINS] = {{0}};
    for (int64_t r = 0; r < ROUNDS; r++)
        for (int i = 0; i < n; i++) s[i] = s[i] * a + a;
    float sum = 0;
    for (int i = 0; i < n; i++) sum += s[i][0];
    return sum;
}

static float chains_plain(float a) { return chains(6, a); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float chains_avx2(float a) { return chains(6, a); }
__attribute__((target("avx512f"))) static float chains_avx512(float a) { return chains(12, a); }
#endif

typedef struct probe {
    float (*chains)(float a);
    int n_chains;
    int64_t n; /* floats in each array, a multiple of 4 * threads * LANES */
    float *a, *b, *c;
    float sink; /* what was computed goes here, so that it must be computed */
} probe;

static void choose_chains(probe *p)
{
    p->chains = chains_plain;
    p->n_chains = 6;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) p->chains = chains_avx2;
    if (__builtin_cpu_supports("avx512f")) p->chains = chains_avx512, p->n_chains = 12;
#endif
}

static void multiply_add(fv_ctx *c, void *what)
{
    probe *p = what;
    float sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(fv_device_threads(fv_ctx_device(c))) schedule(static, 1)
    for (int t = 0; t < fv_device_threads(fv_ctx_device(c)); t++) sum += p->chains(0.5f + (float)t * 1e-9f);
    p->sink = sum;
}

/* ---- memory ---- */

static void read_all(fv_ctx *c, void *what)
{
    probe *p = what;
    int threads = fv_device_threads(fv_ctx_device(c));
    float sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int64_t quarter = p->n / threads / 4 / LANES;
        const lanes *x = (const lanes *)(const void *)(p->b + t * 4 * quarter * LANES);
        lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        for (int64_t i = 0; i < quarter; i++) {
            s0 += x[i];
            s1 += x[quarter + i];
            s2 += x[2 * quarter + i];
            s3 += x[3 * quarter + i];
        }
        s0 += s1 + s2 + s3;
        sum += s0[0] + s0[LANES - 1];
    }
    p->sink = sum;
}

static void triad(fv_ctx *c, void *what)
{
    probe *p = what;
    float *a = p->a;
    const float *b = p->b, *d = p->c;
#pragma omp parallel for num_threads(fv_device_threads(fv_ctx_device(c))) schedule(static)
    for (int64_t i = 0; i < p->n; i++) a[i] = b[i] + 0.5f * d[i];
}

/* ---- the command ---- */

static float *array(const bench *b, int64_t n)
{
    float *x = aligned_alloc(64, (size_t)n * sizeof *x);
    if (!x) return NULL;
#pragma omp parallel for num_threads(fv_device_threads(b->device)) schedule(static)
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 3);
    return x;
}

static int measure(bench *b, probe *p)
{
    double threads = fv_device_threads(b->device), n = (double)p->n;
    bench_work fma = {.flops = 2.0 * LANES * ROUNDS * p->n_chains * threads};
    int code = bench_run(b, "multiply-add", json_object(), multiply_add, p, fma);
    if (!code) code = bench_run(b, "read", json_object(), read_all, p, (bench_work){.bytes = 4 * n});
    if (!code) code = bench_run(b, "triad", json_object(), triad, p, (bench_work){.bytes = 12 * n});
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const machine_values *v = values;
    bench b;
    probe p = {0};
    int code = bench_open(&b, c, v->common, FV_F32, false);
    if (!code) {
        int64_t step = 4 * LANES * fv_device_threads(b.device);
        p.n = (v->mib * 262144 + step - 1) / step * step;
        p.a = array(&b, p.n), p.b = array(&b, p.n), p.c = array(&b, p.n);
        choose_chains(&p);
        code = p.a && p.b && p.c ? measure(&b, &p) : cli_fail(c, "out of memory");
    }
    free(p.a), free(p.b), free(p.c);
    bench_close(&b);
    return code;
}

const cli_command bench_machine_command = {
    .name = "machine",
    .summary = "the limits: multiply-adds, reading memory, the triad",
    .about =
        "Three lines to hold the other benchmarks against.  The triad a = b + s c counts three arrays, though on most machines "
        "memory also moves a before it is written.",
    .options = options,
    .size = sizeof(machine_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
