/* decode.c - bench decode: reading a prompt and writing token after token, with any family
 * that writes.
 *
 * Two numbers that differ by an order of magnitude are kept apart: reading a prompt is bound by
 * arithmetic, writing by the memory that weights are read from. The session is the one that
 * generation uses; tokens are chosen on the device where the backend can, so that no step waits
 * for the host. */
#include <stdlib.h>

#include "bench.h"
#include "fovea/gen.h"
#include "fovea/author/family.h"

typedef struct decode_values {
    char config[1024], model[1024];
    int64_t batch, len, made; /* sequences, tokens of the prompt, tokens to write */
    int64_t bands;
    int dtype; /* an index into bench_weights */
} decode_values;

static const fv_field options[] = {
    FV_TEXT(decode_values, config, "", "FILE: config.json of a model, which gets random weights"),
    FV_TEXT(decode_values, model, "", "DIR: or a model's directory"),
    FV_INT(decode_values, batch, 1, 1, 1024, "sequences side by side"),
    FV_INT(decode_values, len, 1, 16, 1 << 20,
           "tokens of the prompt, or of the source; frames of a sound"),
    FV_INT(decode_values, bands, 1, 80, 1 << 12, "mel bands of a sound's frames"),
    FV_INT_KEY("new", decode_values, made, 1, 128, 1 << 20, "tokens to write"),
    FV_CHOICE(decode_values, dtype, 0, bench_weights, BENCH_WEIGHTS_HELP),
    {0}};

static const fv_task_example examples[] = {
    {"fovea bench decode --config gpt2/config.json --threads 2", "tokens a second, one sequence"},
    {"fovea bench decode --config whisper-tiny/config.json --len 3000 --new 64 --threads 2",
     "a window of sound, and 64 tokens about it"},
    {"fovea bench decode --config gpt2/config.json --len 512 --new 16 --dtype q8 --json",
     "a long prompt, eight-bit weights"},
    {0},
};

typedef struct decode {
    bench b;
    const decode_values *v;
    fv_model *model;
    fv_session *session;
    float *sound;  /* (batch,bands,len), of a model that hears; else NULL */
    int32_t *ids;  /* (batch,len), then what comes next */
    int32_t *text; /* (made,batch) */
    int64_t vocab;
} decode;

/* Features between -1 and 1, fixed as the prompt is. */
static float *make_sound(const decode_values *v)
{
    int64_t n = v->batch * v->bands * v->len;
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) x[i] = (float)(i * 7919 % 2003) / 1001 - 1;
    return x;
}

/* The prompt is arbitrary but fixed: what is written then repeats from run to run. */
static fv_status open_model(decode *d, fv_err *e)
{
    const decode_values *v = d->v;
    fv_status st = bench_open_model(&d->model, &d->b, v->config, v->model, v->dtype, e);
    if (st) return st;
    const fv_family *f = fv_model_family(d->model);
    d->vocab = f->step ? f->vocabulary(fv_model_self(d->model)) : 0;
    if (d->vocab < 1) return fv_fail(e, FV_EARG, "%s does not write text", fv_model_head(d->model));
    bool hears = f->begin && fv_family_takes(f, "input_features");
    st = fv_session_new(&d->session, d->model, d->b.device, v->batch,
                        (hears ? 1 : v->len) + v->made + 1, e);
    if (st) return st;
    if (hears && !(d->sound = make_sound(v))) return fv_fail(e, FV_ENOMEM, "out of memory");
    d->ids = malloc((size_t)(v->batch * v->len) * sizeof *d->ids);
    d->text = malloc((size_t)(v->batch * v->made) * sizeof *d->text);
    if (!d->ids || !d->text) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < v->batch * v->len; i++)
        d->ids[i] = (int32_t)((i * 7919 + 13) % d->vocab);
    return FV_OK;
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
static fv_status measure(decode *d, double *prompt, double *token, fv_err *e)
{
    const fv_family *f = fv_model_family(d->model);
    fv_ctx *c = d->b.step;
    double start = bench_now();
    bool ok = true;
    fv_session_reset(d->session);
    if (f->begin) {
        fv_items in = {0};
        fv_ctx_reset(c, 0);
        if (d->sound)
            fv_items_put(&in, "input_features",
                         fv_floats(c, d->sound, FV_SHAPE(d->v->batch, d->v->bands, d->v->len)));
        else
            fv_items_put(&in, "input_ids", fv_ints(c, d->ids, FV_SHAPE(d->v->batch, d->v->len)));
        fv_session_begin(c, d->session, &in);
        ok = !fv_ctx_status(c);
    }
    ok = ok && read_prompt(d, f->begin ? 1 : d->v->len);
    *prompt = bench_now() - start;
    start = bench_now();
    ok = ok && !fv_session_greedy(c, d->session, d->ids, d->text, d->v->made);
    *token = (bench_now() - start) / (double)d->v->made;
    return ok ? FV_OK : fv_fail(e, fv_ctx_status(c), "%s", fv_ctx_err(c)->text);
}

enum { LEAST = 3, MOST = 1000 };

/* Rates are those of the batch as a whole, medians over the repetitions. */
static void report(decode *d, int runs, double prompt, double token)
{
    const decode_values *v = d->v;
    double batch = (double)v->batch;
    bench_row r = {.name = "decode"};
    bench_word(&r, "family", fv_model_family(d->model)->type);
    bench_number(&r, "batch", batch);
    bench_number(&r, "len", (double)v->len);
    bench_number(&r, "new", (double)v->made);
    bench_word(&r, "dtype", fv_dtype_name(fv_model_weights(d->model)));
    bench_where(&d->b, &r);
    bench_measured(&r, "runs", runs, 1, NULL, 0);
    bench_measured(&r, "tokens_per_s", batch / token, 1, "tokens/s", 1);
    bench_measured(&r, "median_s", token, 1e3, "ms a step", 3);
    bench_measured(&r, "prompt_s", prompt, 1e3, "ms for the prompt", 2);
    bench_measured(&r, "prompt_tokens_per_s", batch * (double)v->len / prompt, 1,
                   "tokens/s of the prompt", 1);
    bench_measured(&r, "peak_bytes", (double)d->b.memory.peak, 1.0 / 1048576, "MiB", 1);
    d->b.opt->print(d->b.opt->user, &r);
}

/* Times of prompt and tokens apart: one is bound by arithmetic, the other by memory. Medians of
 * whole runs, at least LEAST of them. */
static fv_status repeat(decode *d, fv_err *e)
{
    double prompt[MOST], token[MOST], total = 0, warm;
    int runs = 0;
    fv_status st = measure(d, &warm, &warm, e); /* caches grow, memory is touched */
    for (; !st && runs < MOST && (runs < LEAST || total < d->b.opt->seconds); runs++) {
        st = measure(d, &prompt[runs], &token[runs], e);
        total += prompt[runs] + token[runs] * (double)d->v->made;
    }
    if (!st) report(d, runs, bench_quantile(prompt, runs, 0.5), bench_quantile(token, runs, 0.5));
    return st;
}

static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    decode d = {.v = values};
    (void)k;
    fv_status st = bench_open(&d.b, o, FV_F32, e);
    if (!st) st = open_model(&d, e);
    if (!st) st = repeat(&d, e);
    free(d.sound);
    free(d.ids);
    free(d.text);
    fv_session_free(d.session);
    fv_model_free(d.model);
    bench_close(&d.b);
    return st;
}

const bench_kind bench_decode[] = {
    {.name = "decode",
     .summary = "reading a prompt and writing token after token",
     .about = "Takes any family that writes text, with random weights or those of a directory, "
              "reads a prompt and writes tokens, the most likely one each time.  Prints tokens a "
              "second for writing (all sequences of the batch together) and for the prompt, or for "
              "the source where the model has an encoder, and the most memory that was held.",
     .examples = examples,
     .options = options,
     .size = sizeof(decode_values),
     .run = run},
    {0}};
