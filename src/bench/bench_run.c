/* bench_run.c - what the benchmarks share: their list, inputs, timing, rows.
 *
 * A time is the median of many repetitions, and its spread the distance between the quartiles:
 * minima flatter, means suffer from whatever else the machine does.  Two repetitions or more warm
 * caches, captured steps and clock rates up.  Repetitions that are shorter than a look at the clock
 * are timed several at once. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fovea/author/op.h"

enum { WARM_UP = 2, MIN_RUNS = 5, MAX_RUNS = 10000 };
/* seconds: a core runs the tiles of AMX at a third of their speed for the first 30 ms */
#define WARM_UP_SECONDS 0.05
#define PATIENCE 20 /* times the seconds asked for: then even one run is enough */
/* seconds: shorter repetitions are timed several at once, as the clock and a device's answer take
 * time */
#define A_LOOK 0.01

/* ---- the list ---- */

#define X(name) extern const bench_kind bench_##name[];
#include "bench_files.h"
#undef X

static const bench_kind *const files[] = {
#define X(name) bench_##name,
#include "bench_files.h"
#undef X
    NULL};

/* A file may hold several benchmarks; they are numbered through. */
const bench_kind *bench_kind_at(int i)
{
    for (const bench_kind *const *f = files; *f; f++)
        for (const bench_kind *k = *f; k->name; k++)
            if (!i--) return k;
    return NULL;
}

const char *const bench_dtypes[] = {"f32", "bf16", "f16", "f64", NULL};
const char *const bench_weights[] = {"stored", "f32", "bf16", "f16", "q8", "q4", "int8", NULL};

fv_dtype bench_dtype(int choice)
{
    fv_dtype t = FV_F32;
    fv_dtype_parse(&t, bench_dtypes[choice]);
    return t;
}

void bench_choose_weights(int choice, fv_model_opt *opt)
{
    opt->weights = FV_F32;
    fv_dtype_parse(&opt->weights, bench_weights[choice]);
    opt->widen = !strcmp(bench_weights[choice], "f32");
}

/* ---- opening and inputs ---- */

/* The counting allocator of the device is what peak_bytes are read from, so kernels' scratch is
 * included. `hold` keeps inputs, `step` is reset before every repetition. */
fv_status bench_open(bench *b, const bench_opt *o, fv_dtype dtype, fv_err *e)
{
    *b = (bench){.opt = o, .random = 1};
    fv_mem_counter_init(&b->memory);
    b->env.mem = &b->memory.mem;
    fv_device_opt device = {.threads = o->threads, .env = &b->env};
    fv_status st = fv_device_open(&b->device, o->device, device, e);
    if (!st) st = fv_ctx_new(&b->hold, b->device, (fv_ctx_opt){.dtype = dtype}, e);
    return st ? st : fv_ctx_new(&b->step, b->device, (fv_ctx_opt){.dtype = dtype}, e);
}

/* Contexts before the device whose memory they hold. */
void bench_close(bench *b)
{
    fv_ctx_free(b->step);
    fv_ctx_free(b->hold);
    fv_device_close(b->device);
}

/* Knuth's multiplier; the same numbers in every run, since times of some kernels depend on the
 * values (zeros and denormals are fast or slow). */
static uint32_t next(bench *b)
{
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33);
}

/* Mean 0, variance 1, nearly normal: a sum of four even draws of 15 bits. */
static float next_number(bench *b)
{
    uint32_t x = next(b), y = next(b), low = 0x7fff;
    int sum = (int)((x & low) + (x >> 16) + (y & low) + (y >> 16));
    return (float)(sum - 2 * (int)low) * 5.2858e-5f; /* sqrt(3) / 2^15 */
}

/* In the dtype of the context: converted as models' inputs are. */
fv_tensor *bench_floats(bench *b, fv_shape s)
{
    int64_t n = fv_shape_len(s);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) x[i] = next_number(b);
    fv_tensor *t = x ? fv_floats(b->hold, x, s) : fv_raise(b->hold, FV_ENOMEM, "out of memory");
    free(x);
    return t;
}

void bench_draw(bench *b, int32_t *ids, int64_t n, int32_t most)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(next(b) % (uint32_t)most);
}

/* Ids are made on the host and uploaded once; repetitions use them where they are. */
fv_tensor *bench_ids(bench *b, fv_shape s, int32_t most)
{
    int64_t n = fv_shape_len(s);
    int32_t *x = malloc((size_t)n * sizeof *x);
    if (x) bench_draw(b, x, n, most);
    fv_tensor *t = x ? fv_ints(b->hold, x, s) : fv_raise(b->hold, FV_ENOMEM, "out of memory");
    free(x);
    return t;
}

char *bench_read_file(const char *path, size_t most, size_t *n, fv_err *e)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, most + 1) : NULL;
    size_t got = text ? fread(text, 1, most, f) : 0;
    bool whole = f && !ferror(f) && got < most;
    if (f) fclose(f);
    if (n) *n = got;
    if (text && got && whole) return text;
    free(text);
    fv_fail(e, FV_EIO, "%s: cannot be read, is empty or has more than %zu bytes", path, most);
    return NULL;
}

fv_status bench_open_model(fv_model **out, const bench *b, const char *config, const char *dir,
                           int weights, fv_err *e)
{
    fv_model_opt how = {.serve = true};
    bench_choose_weights(weights, &how);
    if (!config[0] == !dir[0])
        return fv_fail(e, FV_EUSAGE, "one of --config and --model is needed");
    if (dir[0]) return fv_model_open(out, b->device, dir, how, e);
    char *text = bench_read_file(config, 1 << 20, NULL, e);
    if (!text) return FV_EIO;
    fv_status st = fv_model_new(out, b->device, text, how, 1, e);
    free(text);
    return st;
}

/* ---- timing ---- */

typedef struct timing {
    int runs;
    double median, spread; /* seconds; spread: between the quartiles */
} timing;

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The nearest rank; x is sorted in place. */
double bench_quantile(double *x, int64_t n, double q)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n ? x[(int64_t)(q * (double)(n - 1) + 0.5)] : 0;
}

/* Seconds of one of `times` repetitions, or -1 where it failed. */
static double once(bench *b, bench_fn *fn, void *what, uint64_t step, int times)
{
    fv_ctx_reset(b->step, step);
    double start = bench_now();
    for (int i = 0; i < times; i++) {
        if (i) fv_ctx_reset(b->step, step);
        fn(b->step, what);
        if (fv_ctx_err(b->step)->code) break;
    }
    return fv_ctx_status(b->step) ? -1 : (bench_now() - start) / times;
}

/* Repeats until caches, captured steps and clock rates are warm; a repetition that is longer than
 * all that was asked for is enough.  How many to time at once, `least` or more; -1 where one
 * failed. */
static int warm_up(bench *b, bench_fn *fn, void *what, int least)
{
    double total = 0;
    int times = least;
    for (int n = 0; n < WARM_UP || total < WARM_UP_SECONDS; n++) {
        double s = once(b, fn, what, (uint64_t)n, times);
        if (s < 0) return -1;
        total += s * times;
        if (n && s * least < A_LOOK) times = (int)(A_LOOK / (s > 1e-6 ? s : 1e-6)) + 1;
        if (total >= WARM_UP_SECONDS && total > b->opt->seconds) break;
    }
    return times;
}

/* Fills seconds with the times of single repetitions; their number, or -1 where one failed. */
static int repeat(bench *b, double seconds[MAX_RUNS], bench_fn *fn, void *what)
{
    double total = 0, wanted = b->opt->seconds;
    int times = warm_up(b, fn, what, b->together > 1 ? b->together : 1);
    if (times < 0) return -1;
    for (int n = 0; n < MAX_RUNS; n++) {
        seconds[n] = once(b, fn, what, (uint64_t)(n + WARM_UP), times);
        if (seconds[n] < 0) return -1;
        total += seconds[n] * times;
        if ((n + 1 >= MIN_RUNS && total >= wanted) || total > PATIENCE * wanted) return n + 1;
    }
    return MAX_RUNS;
}

/* The median and the distance between the quartiles: one slow repetition (a page fault, another
 * process) changes neither. */
static fv_status measure(bench *b, timing *t, bench_fn *fn, void *what, fv_err *e)
{
    fv_status st = fv_ctx_status(b->hold);
    if (st) return fv_fail(e, st, "%s", fv_ctx_err(b->hold)->text);
    double *seconds = malloc(MAX_RUNS * sizeof *seconds);
    if (!seconds) return fv_fail(e, FV_ENOMEM, "out of memory");
    int n = repeat(b, seconds, fn, what);
    if (n < 0) {
        free(seconds);
        return fv_fail(e, fv_ctx_status(b->step), "%s", fv_ctx_err(b->step)->text);
    }
    qsort(seconds, (size_t)n, sizeof *seconds, ascending);
    *t = (timing){n, seconds[n / 2], seconds[n * 3 / 4] - seconds[n / 4]};
    free(seconds);
    return FV_OK;
}

/* ---- rows ---- */

static void add(bench_row *r, bench_value v)
{
    if (r->n < (int)(sizeof r->at / sizeof *r->at)) r->at[r->n++] = v;
}

void bench_number(bench_row *r, const char *key, double x)
{
    add(r, (bench_value){.key = key, .number = x});
}
void bench_word(bench_row *r, const char *key, const char *word)
{
    add(r, (bench_value){.key = key, .word = word});
}
void bench_flag(bench_row *r, const char *key, bool is)
{
    add(r, (bench_value){.key = key, .word = "", .number = is});
}
void bench_measured(bench_row *r, const char *key, double x, double scale, const char *unit,
                    int digits)
{
    add(r, (bench_value){.key = key,
                         .number = x,
                         .measured = true,
                         .unit = unit,
                         .scale = scale,
                         .digits = digits});
}

/* Every row says where it was measured, so that rows of two machines can be kept in one file. */
void bench_where(const bench *b, bench_row *r)
{
    bench_word(r, "device", fv_device_name(b->device));
    bench_word(r, "level", fv_device_level(b->device));
    bench_number(r, "threads", fv_device_threads(b->device));
}

/* The most memory held: what the counter saw, or on a device of its own memory what the contexts
 * hold there. */
static double peak(const bench *b)
{
    double host = (double)b->memory.peak,
           held = (double)(fv_ctx_bytes(b->hold) + fv_ctx_bytes(b->step) + b->more);
    return host > held ? host : held;
}

/* Rates are work divided by the median time, in the order of the table. */
fv_status bench_run(bench *b, bench_row *r, bench_fn *fn, void *what, bench_work work, fv_err *e)
{
    timing t = {0};
    fv_status st = measure(b, &t, fn, what, e);
    if (st) return st;
    const struct {
        const char *key, *unit;
        double work, scale; /* of one repetition; from it to the unit of the key */
        int digits;
    } rates[] = {{"gflops", "GFLOP/s", work.flops, 1e-9, 1},
                 {"gb_per_s", "GB/s", work.bytes, 1e-9, 1},
                 {"tokens_per_s", "tokens/s", work.tokens, 1, 1},
                 {"sentences_per_s", "sentences/s", work.sentences, 1, 2}};
    bench_where(b, r);
    bench_measured(r, "runs", t.runs, 1, NULL, 0);
    bench_measured(r, "median_s", t.median, 1e3, "ms", 4);
    bench_measured(r, "spread_s", t.spread, 1e3, "ms between quartiles", 4);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].work > 0)
            bench_measured(r, rates[i].key, rates[i].work * rates[i].scale / t.median, 1,
                           rates[i].unit, rates[i].digits);
    bench_measured(r, "peak_bytes", peak(b), 1.0 / 1048576, "MiB", 1);
    if (work.inputs > 0) bench_measured(r, "extra_bytes", peak(b) - work.inputs, 1, NULL, 0);
    b->opt->print(b->opt->user, r);
    return FV_OK;
}
