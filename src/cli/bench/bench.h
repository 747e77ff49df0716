/* bench.h - what the benchmarks share: inputs, timing, reporting.
 *
 * A benchmark opens a `bench`, makes its inputs in the context `hold`, describes one repetition as
 * a function over the context `step`, which is reset before each, and hands both to bench_run. */
#ifndef FOVEA_CLI_BENCH_H
#define FOVEA_CLI_BENCH_H

#include "cli/json.h"

typedef struct bench_values {
    const char *device;
    int64_t threads;
    double seconds;
    bool json;
} bench_values;

#define BENCH_DEFAULTS                                                                             \
    {                                                                                              \
        .seconds = 1                                                                               \
    }

/* The options that every benchmark has; s is its struct, with a bench_values named common. */
#define BENCH_OPTIONS(s)                                                                           \
    CLI_DEVICE(s, common.device),                                                                  \
        CLI_INT(s, common.threads, 't', "threads", "N", 0, 1024,                                   \
                "threads; 0: all cores this process may use"),                                     \
        CLI_REAL(s, common.seconds, 0, "seconds", "S", 0, 3600, "repeat for at least so long"),    \
        CLI_FLAG(s, common.json, 0, "json", "print one JSON object a line")

extern const char *const bench_dtypes[]; /* "f32", "bf16", "f16", "f64" */
fv_dtype bench_dtype(int choice);        /* an index into them */

typedef struct bench {
    const cli *c;
    bench_values opt;
    fv_mem_counter memory;
    fv_env env;
    fv_device *device;
    fv_ctx *hold, *step;
    uint64_t random;
    /* repetitions that are timed at once at least, where a device works ahead; 0: one */
    int together;
    size_t more; /* bytes that are held on the device besides hold's and step's */
} bench;

/* One repetition; failures stay in the context. */
typedef void bench_fn(fv_ctx *c, void *what);

/* What one repetition does, for the rates; 0: not said. */
typedef struct bench_work {
    double flops, bytes;
    double inputs; /* bytes of input and output, to report what is needed beside them */
    double tokens, sentences;
} bench_work;

int bench_open(bench *b, const cli *c, bench_values opt, fv_dtype dtype, bool record);
void bench_close(bench *b);

/* Numbers between -1 and 1, the same in every run; ids from 0 to below most. */
fv_tensor *bench_floats(bench *b, fv_shape s);
fv_tensor *bench_ids(bench *b, fv_shape s, int32_t most);
void bench_draw(bench *b, int32_t *ids, int64_t n, int32_t most);

/* What was measured: sizes, words and flags, in the order they are printed. */
typedef struct bench_parameters {
    int n;
    struct {
        const char *key, *word; /* word NULL: a number; "" : a flag */
        double number;
    } at[16];
} bench_parameters;

void bench_number(bench_parameters *p, const char *key, double x);
void bench_word(bench_parameters *p, const char *key, const char *word);
void bench_flag(bench_parameters *p, const char *key, bool is);

/* Repeats fn, and prints a line: the name, the parameters, times, rates and memory. */
int bench_run(bench *b, const char *name, const bench_parameters *p, bench_fn *fn, void *what,
              bench_work work);

double bench_now(void);                            /* seconds */
int bench_ascending(const void *a, const void *b); /* doubles, for qsort */
char *bench_read_text(const char *path);           /* to be freed; NULL: cannot be read */

#endif
