/* bench.h - what the benchmarks share: the table that describes one, inputs, timing, rows.
 *
 * A file of src/bench/ without an underscore in its name defines bench_NAME[], the benchmarks it
 * has, and is listed by CMake: adding one edits no other file.  A benchmark opens a `bench`, makes
 * its inputs in the context `hold`, describes one repetition as a function over the context `step`,
 * which is reset before each, and hands both to bench_run.  Results are rows of named values;
 * the command prints them as text or as JSON.
 *
 * The room is part of the program, as the server is, and calls public functions only; it may use
 * authors' headers, because it measures kernels one by one.  Benchmarks inside the commands lost:
 * they were a third of the command line and repeated its parsing and printing fourteen times. */
#ifndef FV_BENCH_H
#define FV_BENCH_H

#include "fovea/author/config.h"
#include "fovea/fovea.h"
#include "fovea/pipeline.h"

/* ---- rows ---- */

/* A value of a row, by its name in JSON; "first_token_s.p50" is a member of an object. */
typedef struct bench_value {
    const char *key;
    const char *word; /* NULL: a number; "": a flag, which is true where number is not 0 */
    double number;
    bool measured;    /* it was measured, else it says what was measured */
    const char *unit; /* of a measured value as text; NULL: only JSON has it */
    double scale;     /* from number to that unit */
    int digits;       /* behind the point */
} bench_value;

typedef struct bench_row {
    const char *name;
    int n;
    bench_value at[32]; /* what does not fit is left out */
} bench_row;

typedef void bench_print_fn(void *user, const bench_row *r);

void bench_number(bench_row *r, const char *key, double x);
void bench_word(bench_row *r, const char *key, const char *word);
void bench_flag(bench_row *r, const char *key, bool is);
void bench_measured(bench_row *r, const char *key, double x, double scale, const char *unit,
                    int digits);

/* ---- benchmarks ---- */

/* What every benchmark is told. */
typedef struct bench_opt {
    const char *device;  /* NULL: the CPU */
    int threads;         /* 0: all cores */
    double seconds;      /* repeat for at least so long */
    const char *operand; /* of one that takes a file */
    bench_print_fn *print;
    void *user;
} bench_opt;

typedef struct bench_kind {
    const char *name, *summary, *about;
    const fv_task_example *examples;
    const fv_field *options; /* the struct that run gets, and its defaults */
    size_t size;             /* of it */
    const char *operand;     /* "IMAGE": it takes a file; NULL: it takes none */
    const void *more;        /* for benchmarks that share a run: what tells them apart */
    fv_status (*run)(const struct bench_kind *k, const bench_opt *o, const void *values, fv_err *e);
} bench_kind;

const bench_kind *bench_kind_at(int i); /* NULL past the last */

/* ---- inputs and timing ---- */

extern const char *const bench_dtypes[]; /* "f32", "bf16", "f16", "f64" */
fv_dtype bench_dtype(int choice);        /* an index into them */
/* How weights are held, for --weights: a word of bench_weights, as members of fv_model_opt. */
extern const char *const bench_weights[];
#define BENCH_WEIGHTS_HELP                                                                         \
    "how weight matrices are held: as in the file, widened to f32, rounded to 16 bits, or "        \
    "quantised: q8 and q4 with one scale for 32 weights, int8 with one for a row"
void bench_choose_weights(int choice, fv_model_opt *opt);

typedef struct bench {
    const bench_opt *opt;
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

fv_status bench_open(bench *b, const bench_opt *o, fv_dtype dtype, fv_err *e);
void bench_close(bench *b);

/* Nearly normal numbers, mean 0 and variance 1, the same in every run; ids from 0 to below most. */
fv_tensor *bench_floats(bench *b, fv_shape s);
fv_tensor *bench_ids(bench *b, fv_shape s, int32_t most);
void bench_draw(bench *b, int32_t *ids, int64_t n, int32_t most);

/* Repeats fn and hands on row r with times, rates and memory behind what it has. */
fv_status bench_run(bench *b, bench_row *r, bench_fn *fn, void *what, bench_work work, fv_err *e);
/* Where it ran: device, threads and level. */
void bench_where(const bench *b, bench_row *r);

double bench_now(void);                                /* seconds */
double bench_quantile(double *x, int64_t n, double q); /* sorts x; 0 where there is nothing */
/* A file of at most `most` bytes with a NUL behind it, to be freed; NULL with e filled. */
char *bench_read_file(const char *path, size_t most, size_t *n, fv_err *e);
/* A model that serves: random weights by a config.json, or a directory; one of them is "". */
fv_status bench_open_model(fv_model **out, const bench *b, const char *config, const char *dir,
                           int weights, fv_err *e);

#endif
