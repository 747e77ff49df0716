/* bench.c - fovea bench: a command for each benchmark of src/bench, whose rows it prints.
 *
 * As with tasks, the tables of the benchmarks drive parser and help, so that a new one needs no
 * line here. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct bench_values {
    const char *device;
    int64_t threads;
    double seconds;
    bool json;
    cli_settings settings;
} bench_values;

static const bench_values defaults = {.seconds = 1};

static const cli_option options[] = {
    CLI_DEVICE(bench_values, device),
    CLI_INT(bench_values, threads, 't', "threads", "N", 0, 1024,
            "threads; 0: all cores this process may use"),
    CLI_REAL(bench_values, seconds, 0, "seconds", "S", 0, 3600, "repeat for at least so long"),
    CLI_FLAG(bench_values, json, 0, "json", "print one JSON object a line"),
    {0},
};

/* ---- rows ---- */

/* "gemm m=512 n=3072 dtype=f32 level=avx2 threads=2: 1.2 ms, 38.1 GFLOP/s" */
static void print_text(void *user, const bench_row *r)
{
    (void)user;
    const char *between = ": ";
    printf("%s", r->name);
    for (int i = 0; i < r->n; i++) {
        const bench_value *v = &r->at[i];
        if (v->measured) continue;
        if (!v->word)
            printf(" %s=%.15g", v->key, v->number);
        else if (*v->word)
            printf(" %s=%s", v->key, v->word);
        else if (v->number != 0)
            printf(" %s", v->key);
    }
    for (int i = 0; i < r->n; i++) {
        const bench_value *v = &r->at[i];
        if (!v->measured || !v->unit) continue;
        printf("%s%.*f %s", between, v->digits, v->scale * v->number, v->unit);
        between = ", ";
    }
    putchar('\n');
}

static void put_value(cli_json *j, const char *key, const bench_value *v)
{
    if (v->word && *v->word)
        cli_json_put(j, "s:s", key, v->word);
    else if (v->word)
        cli_json_put(j, "s:b", key, v->number != 0);
    else if (v->number == (double)(int64_t)v->number)
        cli_json_put(j, "s:I", key, (int64_t)v->number);
    else
        cli_json_put(j, "s:f", key, v->number);
}

/* Keys with a dot that follow each other and agree before it are members of one object. */
static void print_json(void *user, const bench_row *r)
{
    (void)user;
    cli_json j = {0};
    char object[64] = "";
    cli_json_put(&j, "{s:s", "name", r->name);
    for (int i = 0; i < r->n; i++) {
        const char *key = r->at[i].key, *dot = strchr(key, '.');
        char of[64] = "";
        if (dot) snprintf(of, sizeof of, "%.*s", (int)(dot - key), key);
        if (strcmp(of, object)) {
            if (*object) cli_json_put(&j, "}");
            if (*of) cli_json_put(&j, "s:{", of);
        }
        memcpy(object, of, sizeof object);
        put_value(&j, dot ? dot + 1 : key, &r->at[i]);
    }
    cli_json_put(&j, *object ? "}}" : "}");
    cli_json_end();
}

/* ---- the commands ---- */

/* The settings were checked against the table as they were parsed; applying them cannot fail but
 * for memory. */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const bench_values *v = values;
    const bench_kind *k = c->command->more;
    bench_opt o = {.device = v->device,
                   .threads = cli_threads(v->threads),
                   .seconds = v->seconds,
                   .operand = n ? operand[0] : NULL,
                   .print = v->json ? print_json : print_text};
    fv_err e;
    void *own = calloc(1, k->size);
    if (!own) return cli_fail(c, "out of memory");
    fv_fields_default(own, k->options);
    int code = cli_apply(c, &v->settings, own, k->options);
    if (!code && k->run(k, &o, own, &e)) code = cli_error(c, &e);
    free(own);
    return code;
}

enum { MOST = 64 };
static cli_command commands[MOST];
static const cli_command *subs[MOST + 1];

/* Called once by main, before any command is looked up. */
static void list_benchmarks(void)
{
    const bench_kind *k;
    for (int i = 0; i < MOST && (k = bench_kind_at(i)); i++) {
        commands[i] = (cli_command){.name = k->name,
                                    .summary = k->summary,
                                    .about = k->about,
                                    .options = options,
                                    .size = sizeof(bench_values),
                                    .defaults = &defaults,
                                    .task_fields = k->options,
                                    .settings = offsetof(bench_values, settings),
                                    .operands = k->operand,
                                    .min_operands = k->operand != NULL,
                                    .max_operands = k->operand != NULL,
                                    .examples = k->examples,
                                    .more = k,
                                    .run = run};
        subs[i] = &commands[i];
    }
}

const cli_command bench_command = {
    .name = "bench",
    .summary = "measure the operations on this machine",
    .about = "Each benchmark repeats one operation and prints a line: its parameters, the median "
             "time and the spread (between the quartiles), the rate, and the most memory that was "
             "held.  With --json each line is an object with name, the parameters, device, "
             "threads, level, runs, median_s, spread_s, gflops or gb_per_s or both, and "
             "peak_bytes.",
    .list = list_benchmarks,
    .subs = subs,
};
