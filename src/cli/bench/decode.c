/* decode.c - fovea bench decode: reading a prompt and writing token after token, with any family
 * that writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "fovea/gen.h"
#include "fovea/author/family.h"

typedef struct decode_values {
    bench_values common;
    const char *config, *model;
    int64_t batch, len, made;
    int dtype;
} decode_values;

static const cli_option options[] = {
    CLI_FILE(decode_values, config, 0, "config", "FILE",
             "config.json of a model, which gets random weights"),
    CLI_DIR(decode_values, model, 'm', "model", "DIR", "or a model's directory"),
    CLI_INT(decode_values, batch, 'b', "batch", "N", 1, 1024, "sequences side by side"),
    CLI_INT(decode_values, len, 0, "len", "N", 1, 1 << 20,
            "tokens of the prompt, or of the source"),
    CLI_INT(decode_values, made, 0, "new", "N", 1, 1 << 20, "tokens to write"),
    CLI_CHOICE(decode_values, dtype, 0, "dtype", cli_weights, CLI_WEIGHTS_HELP),
    BENCH_OPTIONS(decode_values),
    {0},
};

static const decode_values defaults = {.common = BENCH_DEFAULTS,
                                       .batch = 1,
                                       .len = 16,
                                       .made = 128};

static const cli_example examples[] = {
    {"fovea bench decode --config gpt2/config.json --threads 2", "tokens a second, one sequence"},
    {"fovea bench decode --config gpt2/config.json --len 512 --new 16 --dtype q8 --json",
     "a long prompt, eight-bit weights"},
    {0},
};

typedef struct decode {
    bench b;
    const decode_values *v;
    fv_model *model;
    fv_session *session;
    int32_t *ids;  /* (batch,len), then what comes next */
    int32_t *text; /* (made,batch) */
    int64_t vocab;
} decode;

static int open_model(decode *d)
{
    const decode_values *v = d->v;
    const cli *c = d->b.c;
    fv_err e;
    fv_model_opt how = {.serve = true};
    cli_choose_weights(v->dtype, &how.weights, &how.widen);
    if (!v->config == !v->model) return cli_usage(c, "one of --config and --model is needed");
    char *text = v->config ? bench_read_text(v->config) : NULL;
    if (v->config && !text) return cli_fail(c, "%s: cannot read", v->config);
    fv_status st = text ? fv_model_new(&d->model, d->b.device, text, how, 1, &e)
                        : fv_model_open(&d->model, d->b.device, v->model, how, &e);
    free(text);
    if (st) return cli_error(c, &e);
    const fv_family *f = fv_model_family(d->model);
    d->vocab = f->step ? f->vocabulary(fv_model_self(d->model)) : 0;
    if (d->vocab < 1) return cli_fail(c, "%s does not write text", fv_model_head(d->model));
    if (fv_session_new(&d->session, d->model, d->b.device, v->batch, v->len + v->made + 1, &e))
        return cli_error(c, &e);
    d->ids = malloc((size_t)(v->batch * v->len) * sizeof *d->ids);
    d->text = malloc((size_t)(v->batch * v->made) * sizeof *d->text);
    if (!d->ids || !d->text) return cli_fail(c, "out of memory");
    for (int64_t i = 0; i < v->batch * v->len; i++)
        d->ids[i] = (int32_t)((i * 7919 + 13) % d->vocab);
    return CLI_OK;
}

/* The prompt, or the first token behind a source; the most likely tokens become the next input. */
static bool read_prompt(decode *d, int64_t T)
{
    fv_ctx *c = d->b.step;
    fv_ctx_reset(c, 0);
    fv_tensor *y = fv_session_step(c, d->session, fv_ints(c, d->ids, FV_SHAPE(d->v->batch, T)));
    return !fv_read_i32(c, fv_argmax(c, y, -1), d->ids, d->v->batch);
}

/* Seconds for the prompt, or for the source and the first token, and for each token after it. */
static int measure(decode *d, double *prompt, double *token)
{
    const fv_family *f = fv_model_family(d->model);
    fv_ctx *c = d->b.step;
    double start = bench_now();
    bool ok = true;
    fv_session_reset(d->session);
    if (f->begin) {
        fv_items in = {0};
        fv_ctx_reset(c, 0);
        fv_items_put(&in, "input_ids", fv_ints(c, d->ids, FV_SHAPE(d->v->batch, d->v->len)));
        fv_session_begin(c, d->session, &in);
        ok = !fv_ctx_status(c);
    }
    ok = ok && read_prompt(d, f->begin ? 1 : d->v->len);
    *prompt = bench_now() - start;
    start = bench_now();
    ok = ok && !fv_session_greedy(c, d->session, d->ids, d->text, d->v->made);
    *token = (bench_now() - start) / (double)d->v->made;
    return ok ? CLI_OK : cli_error(d->b.c, fv_ctx_err(c));
}

enum { LEAST = 3, MOST = 1000 };

static int report(decode *d, int runs, double prompt, double token)
{
    const decode_values *v = d->v;
    double batch = (double)v->batch, read = batch * (double)v->len / prompt,
           written = batch / token;
    if (!v->common.json) {
        printf("decode %s batch=%lld len=%lld new=%lld dtype=%s threads=%d: %.1f tokens/s (%.3g ms "
               "a step), prompt %.1f tokens/s, %.1f MiB\n",
               fv_model_family(d->model)->type, (long long)v->batch, (long long)v->len,
               (long long)v->made, fv_dtype_name(fv_model_weights(d->model)),
               fv_device_threads(d->b.device), written, 1e3 * token, read,
               (double)d->b.memory.peak / 1048576);
        return CLI_OK;
    }
    cli_json j = {0};
    cli_json_put(&j, "{s:s, s:s, s:I, s:I, s:I, s:s, s:i, s:s, s:i, s:f, s:f, s:f, s:I}", "name",
                 "decode", "family", fv_model_family(d->model)->type, "batch", v->batch, "len",
                 v->len, "new", v->made, "dtype", fv_dtype_name(fv_model_weights(d->model)),
                 "threads", fv_device_threads(d->b.device), "level", fv_device_level(d->b.device),
                 "runs", runs, "median_s", token, "tokens_per_s", written, "prompt_tokens_per_s",
                 read, "peak_bytes", (int64_t)d->b.memory.peak);
    cli_json_end();
    return CLI_OK;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    decode d = {.v = values};
    double prompt[MOST], token[MOST], total = 0;
    int runs = 0;
    (void)n, (void)operand;
    int code = bench_open(&d.b, c, d.v->common, FV_F32, false);
    if (!code) code = open_model(&d);
    double warm;
    if (!code) code = measure(&d, &warm, &warm); /* caches grow, memory is touched */
    for (; !code && runs < MOST && (runs < LEAST || total < d.v->common.seconds); runs++) {
        code = measure(&d, &prompt[runs], &token[runs]);
        total += prompt[runs] + token[runs] * (double)d.v->made;
    }
    if (!code) {
        qsort(prompt, (size_t)runs, sizeof *prompt, bench_ascending);
        qsort(token, (size_t)runs, sizeof *token, bench_ascending);
        code = report(&d, runs, prompt[runs / 2], token[runs / 2]);
    }
    free(d.ids);
    free(d.text);
    fv_session_free(d.session);
    fv_model_free(d.model);
    bench_close(&d.b);
    return code;
}

const cli_command bench_decode_command = {
    .name = "decode",
    .summary = "reading a prompt and writing token after token",
    .about = "Takes any family that writes text, with random weights or those of a directory, "
             "reads a prompt and writes tokens, the most likely one each time.  Prints tokens a "
             "second for writing (all sequences of the batch together) and for the prompt, or for "
             "the source where the model has an encoder, and the most memory that was held.",
    .options = options,
    .size = sizeof(decode_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
