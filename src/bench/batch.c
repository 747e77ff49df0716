/* batch.c - bench batch: many sequences in a scheduler, as a server has them, without the server.
 *
 * All requests are there from the start and are alike, so the batch is full until the last of them
 * is left: what is measured are steps of the model and what the scheduler adds to them.  A budget
 * for the KV cache lets its memory follow the tokens. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fovea/gen.h"
#include "fovea/author/family.h"

typedef struct batch_values {
    char config[1024], model[1024];
    int64_t batch, requests, len, made, context, budget; /* budget: MiB */
    int dtype;                                           /* an index into bench_weights */
} batch_values;

static const fv_field options[] = {
    FV_TEXT(batch_values, config, "", "FILE: config.json of a model, which gets random weights"),
    FV_TEXT(batch_values, model, "", "DIR: or a model's directory"),
    FV_INT(batch_values, batch, 1, 64, 4096, "sequences that run side by side"),
    FV_INT(batch_values, requests, 1, 64, 1 << 20, "in all"),
    FV_INT(batch_values, len, 1, 16, 1 << 20, "tokens of a prompt"),
    FV_INT_KEY("new", batch_values, made, 1, 128, 1 << 20, "tokens to write"),
    FV_INT(batch_values, context, 0, 0, 1 << 24, "tokens of a row at most; 0: the model's context"),
    FV_INT_KEY("kv_budget", batch_values, budget, 0, 0, 1 << 30,
               "MiB of the KV cache at most, which then follows the tokens; 0: no limit"),
    FV_CHOICE(batch_values, dtype, 0, bench_weights, BENCH_WEIGHTS_HELP),
    {0}};

static const fv_task_example examples[] = {
    {"fovea bench batch --config gpt2/config.json --batch 8 --requests 32 --threads 2",
     "tokens a second, eight sequences at a time"},
    {"fovea bench batch --config gpt2/config.json --device cuda --dtype bf16 --kv-budget 8192",
     "a GPU whose cache follows the tokens"},
    {0},
};

typedef struct batch {
    bench b;
    const batch_values *v;
    fv_model *model;
    int32_t *prompt;
    int64_t tokens; /* that were written */
} batch;

static bool take(void *user, const fv_sched_event *ev)
{
    batch *d = user;
    d->tokens += ev->token >= 0;
    return true;
}

static fv_status open_model(batch *d, fv_err *e)
{
    const batch_values *v = d->v;
    fv_status st = bench_open_model(&d->model, &d->b, v->config, v->model, v->dtype, e);
    if (st) return st;
    d->prompt = malloc((size_t)v->len * sizeof *d->prompt);
    return d->prompt ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
}

/* Prompts differ from their first token on, so that no prefix is shared. */
static fv_status submit_all(batch *d, fv_scheduler *s, fv_err *e)
{
    const fv_family *f = fv_model_family(d->model);
    int64_t vocab = f->vocabulary(fv_model_self(d->model));
    fv_gen_opt how = {0};
    fv_status st = FV_OK;
    fv_fields_default(&how, fv_gen_fields);
    how.num_beams = 1;
    how.max_new_tokens = how.min_new_tokens = d->v->made;
    how.eos = -1;
    for (int64_t i = 0; i < d->v->requests && !st; i++) {
        for (int64_t k = 0; k < d->v->len; k++)
            d->prompt[k] = (int32_t)(((i + 1) * 7919 + k * 13) % vocab);
        fv_sched_request r = {.prompt = d->prompt,
                              .n = d->v->len,
                              .opt = &how,
                              .fn = take,
                              .user = d,
                              .unscored = true};
        uint64_t id;
        st = fv_scheduler_submit(s, &id, &r, e);
    }
    return st;
}

/* Seconds for all requests; *most: of the pages of a GPU's cache. */
static fv_status measure(batch *d, fv_scheduler *s, double *seconds, double *most, fv_err *e)
{
    int64_t left = 1;
    fv_status st = submit_all(d, s, e);
    double start = bench_now();
    d->tokens = 0;
    while (left && !st) st = fv_scheduler_step(s, &left, e);
    *seconds = bench_now() - start;
    double pages = (double)fv_scheduler_stats(s).cache_pages;
    *most = pages > *most ? pages : *most;
    return st;
}

/* Nanoseconds of all steps that decode and the waits behind them. */
static double decode_time(const fv_sched_stats *now)
{
    return (double)(now->times.decode + now->times.wait + now->times.tell);
}

enum { LEAST = 3, MOST = 1000 };

static fv_status repeat(batch *d, fv_scheduler *s, fv_err *e)
{
    const batch_values *v = d->v;
    double rate[MOST], total = 0, seconds, most = 0;
    int runs = 0;
    fv_status st = measure(d, s, &seconds, &most, e); /* steps are captured, memory is taken */
    fv_sched_stats before = fv_scheduler_stats(s), after;
    for (; !st && runs < MOST && (runs < LEAST || total < d->b.opt->seconds); runs++) {
        st = measure(d, s, &seconds, &most, e);
        rate[runs] = (double)d->tokens / seconds;
        total += seconds;
    }
    if (st) return st;
    after = fv_scheduler_stats(s);
    double steps = (double)(after.decode_steps - before.decode_steps);
    bench_row r = {.name = "batch"};
    bench_word(&r, "family", fv_model_family(d->model)->type);
    bench_number(&r, "batch", (double)v->batch);
    bench_number(&r, "requests", (double)v->requests);
    bench_number(&r, "len", (double)v->len);
    bench_number(&r, "new", (double)v->made);
    bench_number(&r, "kv_budget", (double)v->budget);
    bench_word(&r, "dtype", fv_dtype_name(fv_model_weights(d->model)));
    bench_where(&d->b, &r);
    bench_measured(&r, "runs", runs, 1, NULL, 0);
    bench_measured(&r, "tokens_per_s", bench_quantile(rate, runs, 0.5), 1, "tokens/s", 1);
    bench_measured(&r, "step_s", (decode_time(&after) - decode_time(&before)) / steps * 1e-9, 1e6,
                   "us a step", 1);
    bench_measured(&r, "rows", (double)after.rows, 1, "rows", 0);
    bench_measured(&r, "page_bytes", most, 1.0 / 1048576, "MiB of pages", 1);
    bench_measured(&r, "peak_bytes", (double)d->b.memory.peak, 1.0 / 1048576, "MiB", 1);
    d->b.opt->print(d->b.opt->user, &r);
    return FV_OK;
}

static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    batch d = {.v = values};
    fv_scheduler *s = NULL;
    (void)k;
    fv_status st = bench_open(&d.b, o, FV_F32, e);
    if (!st) st = open_model(&d, e);
    if (!st)
        st = fv_scheduler_new(&s, d.b.device, d.model,
                              (fv_scheduler_opt){.rows = d.v->batch,
                                                 .capacity = d.v->context,
                                                 .waiting = d.v->requests,
                                                 .cache_bytes = d.v->budget << 20},
                              e);
    if (!st) st = repeat(&d, s, e);
    fv_scheduler_free(s);
    free(d.prompt);
    fv_model_free(d.model);
    bench_close(&d.b);
    return st;
}

const bench_kind bench_batch[] = {
    {.name = "batch",
     .summary = "many sequences in one batch, as a server has them",
     .about = "Takes any family that writes text and has no encoder, with random weights or those "
              "of a directory, and writes tokens for requests that are all there from the start, "
              "the most likely one each time.  Prints tokens a second, prompts included, the time "
              "of a decode step with what the scheduler does around it, and the memory of a KV "
              "cache whose pages follow the tokens.",
     .examples = examples,
     .options = options,
     .size = sizeof(batch_values),
     .run = run},
    {0}};
