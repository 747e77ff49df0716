/* model.c - fovea bench forward and train: any family from its config.json, with random weights. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/author/op.h"
#include "fovea/train.h"
#include "fovea/author/family.h"
#include "fovea/author/train.h"

typedef struct model_values {
    bench_values common;
    const char *config;
    int64_t batch, len;
    int dtype, weights;
    bool recompute, compare, padded;
} model_values;

static const model_values defaults = {.common = BENCH_DEFAULTS, .batch = 8, .len = 128};

#define MODEL_OPTIONS                                                                              \
    CLI_FILE(model_values, config, 0, "config", "FILE",                                            \
             "a config.json: its model_type, architectures and sizes"),                            \
        CLI_INT(model_values, batch, 'b', "batch", "N", 1, 1 << 20, "sequences, or images"),       \
        CLI_INT(model_values, len, 0, "len", "N", 1, 1 << 20,                                      \
                "tokens of each, on both sides where there are two"),                              \
        CLI_CHOICE(model_values, dtype, 0, "dtype", bench_dtypes, "of parameters and arithmetic")

static const cli_option forward_options[] = {
    MODEL_OPTIONS,
    CLI_CHOICE(model_values, weights, 0, "weights", cli_weights, CLI_WEIGHTS_HELP),
    CLI_FLAG(model_values, padded, 0, "padded",
             "sequences of all lengths from half of --len on, with a mask"),
    BENCH_OPTIONS(model_values),
    {0},
};
static const cli_option train_options[] = {
    MODEL_OPTIONS,
    CLI_FLAG(model_values, recompute, 0, "recompute", "keep only what enters each layer"),
    CLI_FLAG(model_values, compare, 0, "compare",
             "also learn for ten updates, beside the CPU in f32, and print both losses"),
    BENCH_OPTIONS(model_values),
    {0},
};

static const cli_example forward_examples[] = {
    {"fovea bench forward --config bert-base/config.json --batch 8 --len 128",
     "an encoder, eight sentences at a time"},
    {"fovea bench forward --config bert-base/config.json --weights int8 --threads 2",
     "with weights of eight bits"},
    {"fovea bench forward --config vit-base/config.json --batch 1 --threads 2", "images"},
    {0},
};
static const cli_example train_examples[] = {
    {"fovea bench train --config config.json --batch 32 --len 64 --threads 2 --json",
     "one update after another, for a script"},
    {"fovea bench train --config config.json --device cuda --dtype bf16 --compare",
     "is what is fast still right?"},
    {0},
};

/* ---- the model and its inputs ---- */

enum { MAX_UNREAD = 64 }; /* updates; no device lets more go unread */

typedef struct subject {
    bench *b;
    fv_model *model;
    fv_items in;   /* forward */
    fv_batch data; /* train */
    fv_updater *updater;
    int64_t step, unread;
    fv_err e;
} subject;

static char *read_config(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, 1 << 20) : NULL;
    size_t n = text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (f) fclose(f);
    if (text && n < (1 << 20) - 1) return text;
    free(text);
    return NULL;
}

static bool takes(const fv_model *m, const char *name)
{
    for (const fv_input *i = fv_model_family(m)->inputs; i && i->name; i++)
        if (!strcmp(i->name, name)) return true;
    return false;
}

static int32_t number(const fv_model *m, const char *key, int32_t otherwise)
{
    char text[64];
    int n = fv_fields_get(fv_model_config(m), fv_model_family(m)->config, key, text, sizeof text);
    return n > 0 && atoi(text) > 0 ? atoi(text) : otherwise;
}

/* Sequence b has one token less than the one before, down to half. */
static fv_tensor *mask(bench *b, const model_values *v)
{
    uint8_t *x = malloc((size_t)(v->batch * v->len));
    if (!x) return fv_raise(b->hold, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < v->batch * v->len; i++)
        x[i] = i % v->len < v->len - i / v->len % (v->len / 2 + 1);
    fv_tensor *t = fv_bytes(b->hold, x, FV_SHAPE(v->batch, v->len));
    free(x);
    return t;
}

/* Of the images that a model takes: (B,C,H,W), or (B,frames,C,H,W) of clips. */
static fv_shape image_shape(const fv_model *m, int64_t batch)
{
    static const char *const keys[] = {"image_size", "vision_config.image_size"};
    char text[64] = "";
    int height = 224, width = 224;
    for (int i = 0; i < 2 && !*text; i++)
        if (fv_fields_get(fv_model_config(m), fv_model_family(m)->config, keys[i], text,
                          sizeof text) < 0)
            *text = 0;
    int n = sscanf(text, "%d %d", &height, &width), frames = number(m, "num_frames", 0);
    if (n == 1) width = height;
    int64_t channels = number(m, "num_channels", number(m, "vision_config.num_channels", 3));
    if (frames) return FV_SHAPE(batch, frames, channels, height, width);
    return FV_SHAPE(batch, channels, height, width);
}

/* Ids of every kind that the head takes; those of one token a sequence where it judges
 * sequences.  Images of noise where it takes images. */
static void make_inputs(bench *b, subject *s, const model_values *v)
{
    fv_shape tokens = FV_SHAPE(v->batch, v->len);
    int32_t vocab = number(s->model, "vocab_size",
                           number(s->model, "text_config.vocab_size", 1000));
    if (takes(s->model, "pixel_values"))
        fv_items_put(&s->in, "pixel_values", bench_floats(b, image_shape(s->model, v->batch)));
    if (takes(s->model, "input_ids"))
        fv_items_put(&s->in, "input_ids", bench_ids(b, tokens, vocab));
    if (takes(s->model, "decoder_input_ids"))
        fv_items_put(&s->in, "decoder_input_ids", bench_ids(b, tokens, vocab));
    if (v->padded) fv_items_put(&s->in, "attention_mask", mask(b, v));
}

static void put(subject *s, const char *name, fv_shape shape, int32_t most)
{
    int32_t *x = fv_batch_put(&s->data, name, FV_I32, shape);
    if (x) bench_draw(s->b, x, fv_shape_len(shape), most);
}

static void put_images(subject *s, int64_t batch)
{
    fv_shape shape = image_shape(s->model, batch);
    float *x = fv_batch_put(&s->data, "pixel_values", FV_F32, shape);
    uint64_t state = 1;
    for (int64_t i = 0; x && i < fv_shape_len(shape); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(state >> 40) / (float)(1 << 23) - 1;
    }
}

static void make_batch(subject *s, const model_values *v)
{
    fv_head_job job = fv_model_job(s->model);
    fv_shape tokens = FV_SHAPE(v->batch, v->len), rows = FV_SHAPE(v->batch);
    int32_t vocab = number(s->model, "vocab_size", 1000),
            labels = number(s->model, "num_labels", 2);
    bool sequence = job == FV_HEAD_CLASSIFY, span = job == FV_HEAD_ANSWER,
         token = job == FV_HEAD_TAG;
    if (takes(s->model, "input_ids")) put(s, "input_ids", tokens, vocab);
    if (takes(s->model, "pixel_values")) put_images(s, v->batch);
    if (takes(s->model, "decoder_input_ids")) put(s, "decoder_input_ids", tokens, vocab);
    if (span) {
        put(s, "start_positions", rows, (int32_t)v->len);
        put(s, "end_positions", rows, (int32_t)v->len);
    } else {
        put(s, "labels", sequence ? rows : tokens, sequence || token ? labels : vocab);
    }
    if (job == FV_HEAD_PRETRAINING) put(s, "next_sentence_label", rows, 2);
    s->data.labels = sequence || span ? (double)v->batch : (double)v->batch * (double)v->len;
}

/* ---- one repetition ---- */

static void forward(fv_ctx *c, void *what)
{
    subject *s = what;
    fv_items out = {0};
    fv_model_forward(c, s->model, &s->in, &out);
}

/* Losses are read as a run reads them, several at once. */
static void update(fv_ctx *c, void *what)
{
    subject *s = what;
    const fv_batch *batch = &s->data;
    fv_updated came[MAX_UNREAD];
    int64_t n;
    fv_status st = fv_updater_step(s->updater, ++s->step, &batch, 1, &s->e);
    if (!st && ++s->unread == fv_updater_max_pending(s->updater)) {
        st = fv_updater_read(s->updater, came, &n, &s->e);
        s->unread = 0;
    }
    if (st) fv_raise(c, st, "%s", s->e.text);
    s->b->more = fv_updater_bytes(s->updater);
}

/* ---- the commands ---- */

static void close_subject(bench *b, subject *s)
{
    fv_updater_free(s->updater);
    fv_batch_free(&s->data);
    fv_model_free(s->model);
    bench_close(b);
}

/* A rate that hardly moves parameters makes every repetition the same work. */
static fv_status prepare(bench *b, subject *s, const model_values *v, bool train, float rate)
{
    char *config = read_config(v->config);
    fv_dtype dtype = bench_dtype(v->dtype);
    if (!config) return fv_fail(&s->e, FV_EIO, "%s: cannot be read", v->config);
    fv_model_opt opt = {.dtype = dtype,
                        .train = train,
                        .serve = !train && dtype != FV_F64,
                        .weights = dtype};
    if (v->weights) cli_choose_weights(v->weights, &opt.weights, &opt.widen);
    fv_status st = fv_model_new(&s->model, b->device, config, opt, 1, &s->e);
    free(config);
    if (st) return st;
    if (!train) {
        if (v->padded && !takes(s->model, "attention_mask"))
            return fv_fail(&s->e, FV_EARG, "--padded: %s takes no attention_mask",
                           fv_model_family(s->model)->type);
        make_inputs(b, s, v);
        return FV_OK;
    }
    make_batch(s, v);
    if (s->data.err.code) return fv_fail(&s->e, s->data.err.code, "%s", s->data.err.text);
    fv_train_opt how;
    fv_fields_default(&how, fv_train_fields);
    how.lr = rate;
    how.warmup = 0;
    how.recompute = v->recompute;
    st = fv_updater_new(&s->updater, s->model, b->device, &how, &s->e);
    if (!st && fv_updater_max_pending(s->updater) > 1) b->together = 4;
    return st;
}

/* ---- beside the CPU ---- */

enum { COMPARED = 10 };

/* The losses of the first updates at a rate that learns, from the same weights and ids wherever it
 * is. */
static int learn(const cli *c, const model_values *v, double loss[COMPARED])
{
    bench b;
    subject s = {.b = &b, .data = {.env = &b.env}};
    fv_updated came[MAX_UNREAD];
    int64_t n = 0, read;
    int code = bench_open(&b, c, v->common, bench_dtype(v->dtype), false);
    fv_status st = code ? FV_OK : prepare(&b, &s, v, true, 1e-3f);
    while (!code && !st && n < COMPARED) {
        const fv_batch *batch = &s.data;
        for (int64_t i = 0; !st && i < fv_updater_max_pending(s.updater) && s.step < COMPARED; i++)
            st = fv_updater_step(s.updater, ++s.step, &batch, 1, &s.e);
        if (!st) st = fv_updater_read(s.updater, came, &read, &s.e);
        for (int64_t i = 0; !st && i < read; i++) loss[n++] = came[i].loss;
    }
    if (st) code = cli_error(c, &s.e);
    close_subject(&b, &s);
    return code;
}

static int compare(const cli *c, const model_values *v)
{
    double here[COMPARED], cpu[COMPARED];
    model_values plain = *v;
    plain.common.device = "cpu";
    plain.dtype = 0; /* f32 */
    int code = learn(c, v, here);
    if (!code) code = learn(c, &plain, cpu);
    for (int i = 0; !code && i < COMPARED; i++) {
        double off = fabs(here[i] - cpu[i]) / cpu[i];
        cli_json j = {0};
        if (v->common.json)
            cli_json_put(&j, "{s:s, s:i, s:f, s:f, s:f}", "name", "compare", "update", i + 1,
                         "loss", here[i], "cpu_loss", cpu[i], "off", off),
                cli_json_end();
        else
            printf("update %d: loss %.6f, on the CPU in f32 %.6f, off by %.1e\n", i + 1, here[i],
                   cpu[i], off);
    }
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const model_values *v = values;
    bool train = !strcmp(c->command->name, "train");
    bench b;
    subject s = {.b = &b, .data = {.env = &b.env}};
    if (!v->config) return cli_usage(c, "--config FILE is missing");
    int code = bench_open(&b, c, v->common, bench_dtype(v->dtype), false);
    if (!code && prepare(&b, &s, v, train, 1e-6f)) code = cli_error(c, &s.e);
    if (!code) {
        bench_parameters p = {0};
        bench_word(&p, "family", fv_model_family(s.model)->type);
        bench_word(&p, "head", fv_model_head(s.model));
        bench_number(&p, "batch", (double)v->batch);
        bench_number(&p, "len", (double)v->len);
        bench_word(&p, "dtype", bench_dtypes[v->dtype]);
        bench_number(&p, "parameters", (double)fv_params_elements(fv_model_params(s.model), ""));
        if (!train) bench_word(&p, "weights", cli_weights[v->weights]);
        if (v->padded) bench_flag(&p, "padded", true);
        if (train && v->recompute) bench_flag(&p, "recompute", true);
        bench_work work = {.tokens = (double)v->batch * (double)v->len,
                           .sentences = (double)v->batch};
        code = bench_run(&b, c->command->name, &p, train ? update : forward, &s, work);
    }
    close_subject(&b, &s);
    return code || !v->compare ? code : compare(c, v);
}

const cli_command bench_forward_command = {
    .name = "forward",
    .summary = "a model of any family on random ids",
    .about = "Makes the model that a config.json describes, with random weights, and runs it as a "
             "server would.",
    .options = forward_options,
    .size = sizeof(model_values),
    .defaults = &defaults,
    .examples = forward_examples,
    .run = run,
};

const cli_command bench_train_command = {
    .name = "train",
    .summary = "updates of a model of any family: forward, backward and AdamW",
    .about = "Makes the model that a config.json describes, with random weights, and trains it on "
             "random ids.  Memory counts everything: parameters, gradients, moments and what the "
             "layers keep.  With --compare it then takes ten updates that learn, here and on the "
             "CPU in f32, from the same weights: choose sizes that a CPU can do.",
    .options = train_options,
    .size = sizeof(model_values),
    .defaults = &defaults,
    .examples = train_examples,
    .run = run,
};
