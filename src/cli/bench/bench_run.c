/* bench_run.c - what the benchmarks share: inputs, timing, reporting. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fovea/author/op.h"

enum { WARM_UP = 2, MIN_RUNS = 5, MAX_RUNS = 10000 };
#define PATIENCE 20 /* times the seconds asked for: then even one run is enough */
/* seconds: shorter repetitions are timed several at once, as the clock and a device's answer take
 * time */
#define A_LOOK 0.01

const char *const bench_dtypes[] = {"f32", "bf16", "f16", "f64", NULL};

fv_dtype bench_dtype(int choice)
{
    fv_dtype t = FV_F32;
    fv_dtype_parse(&t, bench_dtypes[choice]);
    return t;
}

/* ---- opening and inputs ---- */

int bench_open(bench *b, const cli *c, bench_values opt, fv_dtype dtype, bool record)
{
    fv_err e;
    *b = (bench){.c = c, .opt = opt, .random = 1};
    fv_mem_counter_init(&b->memory);
    b->env.mem = &b->memory.mem;
    fv_device_opt device = {.threads = cli_threads(opt.threads), .env = &b->env};
    fv_status st = fv_device_open(&b->device, opt.device, device, &e);
    if (!st) st = fv_ctx_new(&b->hold, b->device, (fv_ctx_opt){.dtype = dtype}, &e);
    if (!st)
        st = fv_ctx_new(&b->step, b->device, (fv_ctx_opt){.dtype = dtype, .record = record}, &e);
    return st ? cli_error(c, &e) : CLI_OK;
}

void bench_close(bench *b)
{
    fv_ctx_free(b->step);
    fv_ctx_free(b->hold);
    fv_device_close(b->device);
}

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

fv_tensor *bench_ids(bench *b, fv_shape s, int32_t most)
{
    int64_t n = fv_shape_len(s);
    int32_t *x = malloc((size_t)n * sizeof *x);
    if (x) bench_draw(b, x, n, most);
    fv_tensor *t = x ? fv_ints(b->hold, x, s) : fv_raise(b->hold, FV_ENOMEM, "out of memory");
    free(x);
    return t;
}

char *bench_read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, 1 << 20) : NULL;
    if (text && fread(text, 1, (1 << 20) - 1, f) == 0) {
        free(text);
        text = NULL;
    }
    if (f) fclose(f);
    return text;
}

/* ---- timing ---- */

typedef struct timing {
    int runs;
    double median, spread; /* spread: between the quartiles */
} timing;

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int bench_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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

static int measure(bench *b, timing *t, bench_fn *fn, void *what)
{
    double *seconds = malloc(MAX_RUNS * sizeof *seconds), total = 0;
    if (!seconds || fv_ctx_status(b->hold)) {
        free(seconds);
        return seconds ? cli_error(b->c, fv_ctx_err(b->hold)) : cli_fail(b->c, "out of memory");
    }
    int n = -WARM_UP, least = b->together > 1 ? b->together : 1, times = least;
    for (; n < MAX_RUNS; n++) {
        double s = once(b, fn, what, (uint64_t)(n + WARM_UP), times);
        if (s < 0) {
            free(seconds);
            return cli_error(b->c, fv_ctx_err(b->step));
        }
        total += s * times;
        if (n == -1 && s * least < A_LOOK) times = (int)(A_LOOK / (s > 1e-6 ? s : 1e-6)) + 1;
        if (n < 0) {
            if (total > b->opt.seconds) n = -1; /* slow enough: warmed up */
            if (n == -1) total = 0;
            continue;
        }
        seconds[n] = s;
        if ((n + 1 >= MIN_RUNS && total >= b->opt.seconds) || total > PATIENCE * b->opt.seconds) {
            n++;
            break;
        }
    }
    qsort(seconds, (size_t)n, sizeof *seconds, bench_ascending);
    *t = (timing){n, seconds[n / 2], seconds[n * 3 / 4] - seconds[n / 4]};
    free(seconds);
    return CLI_OK;
}

/* ---- reporting ---- */

static void add(bench_parameters *p, const char *key, const char *word, double number)
{
    if (p->n == (int)(sizeof p->at / sizeof *p->at)) return;
    p->at[p->n].key = key;
    p->at[p->n].word = word;
    p->at[p->n++].number = number;
}

void bench_number(bench_parameters *p, const char *key, double x) { add(p, key, NULL, x); }
void bench_word(bench_parameters *p, const char *key, const char *word) { add(p, key, word, 0); }
void bench_flag(bench_parameters *p, const char *key, bool is) { add(p, key, "", is); }

/* "m=2048 n=2048 k=2048 dtype=f32" */
static void print_parameters(const bench_parameters *p)
{
    for (int i = 0; i < p->n; i++) {
        const char *word = p->at[i].word;
        if (word && !*word && p->at[i].number != 0) printf(" %s", p->at[i].key);
        if (word && *word) printf(" %s=%s", p->at[i].key, word);
        if (!word) printf(" %s=%.15g", p->at[i].key, p->at[i].number);
    }
}

static void put_parameters(cli_json *j, const bench_parameters *p)
{
    for (int i = 0; i < p->n; i++) {
        const char *key = p->at[i].key, *word = p->at[i].word;
        double x = p->at[i].number;
        if (word && *word)
            cli_json_put(j, "s:s", key, word);
        else if (word)
            cli_json_put(j, "s:b", key, x != 0);
        else if (x == (double)(int64_t)x)
            cli_json_put(j, "s:I", key, (int64_t)x);
        else
            cli_json_put(j, "s:f", key, x);
    }
}

/* The most memory held: what the counter saw, or on a device of its own memory what the contexts
 * hold there. */
static double peak(const bench *b)
{
    double host = (double)b->memory.peak,
           held = (double)(fv_ctx_bytes(b->hold) + fv_ctx_bytes(b->step) + b->more);
    return host > held ? host : held;
}

static void print_text(const bench *b, const char *name, const bench_parameters *p, const timing *t,
                       bench_work w)
{
    printf("%s", name);
    print_parameters(p);
    printf(" %s threads=%d: %.4g ms +- %.2g", fv_device_level(b->device),
           fv_device_threads(b->device), 1e3 * t->median, 1e3 * t->spread);
    if (w.flops > 0) printf(", %.1f GFLOP/s", 1e-9 * w.flops / t->median);
    if (w.bytes > 0) printf(", %.1f GB/s", 1e-9 * w.bytes / t->median);
    if (w.tokens > 0) printf(", %.1f tokens/s", w.tokens / t->median);
    if (w.sentences > 0) printf(", %.2f sentences/s", w.sentences / t->median);
    printf(", %.1f MiB\n", peak(b) / 1048576);
}

static void print_json(const bench *b, const char *name, const bench_parameters *p, const timing *t,
                       bench_work w)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:s", "name", name);
    put_parameters(&j, p);
    cli_json_put(&j, "s:s, s:i, s:s, s:i, s:f, s:f", "device", fv_device_name(b->device), "threads",
                 fv_device_threads(b->device), "level", fv_device_level(b->device), "runs", t->runs,
                 "median_s", t->median, "spread_s", t->spread);
    if (w.flops > 0) cli_json_put(&j, "s:f", "gflops", 1e-9 * w.flops / t->median);
    if (w.bytes > 0) cli_json_put(&j, "s:f", "gb_per_s", 1e-9 * w.bytes / t->median);
    if (w.tokens > 0) cli_json_put(&j, "s:f", "tokens_per_s", w.tokens / t->median);
    if (w.sentences > 0) cli_json_put(&j, "s:f", "sentences_per_s", w.sentences / t->median);
    cli_json_put(&j, "s:I", "peak_bytes", (int64_t)peak(b));
    if (w.inputs > 0) cli_json_put(&j, "s:I", "extra_bytes", (int64_t)(peak(b) - w.inputs));
    cli_json_put(&j, "}");
    cli_json_end();
}

int bench_run(bench *b, const char *name, const bench_parameters *p, bench_fn *fn, void *what,
              bench_work work)
{
    timing t = {0};
    int code = measure(b, &t, fn, what);
    if (!code && b->opt.json)
        print_json(b, name, p, &t, work);
    else if (!code)
        print_text(b, name, p, &t, work);
    return code;
}
