/* model.c - bench forward and train: any family from its config.json, with random weights.
 *
 * Any family runs from its config.json alone: its table of inputs says what it takes (ids, decoder
 * ids, pixels), and random ones of the right shapes are made. Weights are random, too: times do
 * not depend on them. Updates go through fv_updater, which the trainer uses, captured steps and
 * pipelining included, so that the figure is that of a run. */
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
    char config[1024], model[1024];
    int64_t batch, len; /* sequences or images, tokens of each */
    int dtype, weights; /* indices into bench_dtypes and bench_weights */
    bool recompute, compare, padded;
} model_values;

#define MODEL_OPTIONS                                                                              \
    FV_TEXT(model_values, config, "",                                                              \
            "FILE: a config.json: its model_type, architectures and sizes"),                       \
        FV_INT(model_values, batch, 1, 8, 1 << 20, "sequences, or images"),                        \
        FV_INT(model_values, len, 1, 128, 1 << 20,                                                 \
               "tokens of each, on both sides where there are two"),                               \
        FV_CHOICE(model_values, dtype, 0, bench_dtypes, "of parameters and arithmetic")

static const fv_field forward_options[] = {
    MODEL_OPTIONS,
    FV_TEXT(model_values, model, "", "DIR: or a model's directory, with its weights"),
    FV_CHOICE(model_values, weights, 0, bench_weights, BENCH_WEIGHTS_HELP),
    FV_BOOL(model_values, padded, false,
            "sequences of all lengths from half of --len on, with a mask"),
    {0}};
static const fv_field train_options[] = {
    MODEL_OPTIONS,
    FV_BOOL(model_values, recompute, false, "keep only what enters each layer"),
    FV_BOOL(model_values, compare, false,
            "also learn for ten updates, beside the CPU in f32, and print both losses"),
    {0}};

static const fv_task_example forward_examples[] = {
    {"fovea bench forward --config bert-base/config.json --batch 8 --len 128",
     "an encoder, eight sentences at a time"},
    {"fovea bench forward --config bert-base/config.json --weights int8 --threads 2",
     "with weights of eight bits"},
    {"fovea bench forward --config vit-base/config.json --batch 1 --threads 2", "images"},
    {0},
};
static const fv_task_example train_examples[] = {
    {"fovea bench train --config config.json --batch 32 --len 64 --threads 2 --json",
     "one update after another, for a script"},
    {"fovea bench train --config config.json --device cuda --dtype bf16 --compare",
     "is what is fast still right?"},
    {0},
};

/* ---- the model and its inputs ---- */

enum { MAX_UNREAD = 64 }; /* updates; no device lets more go unread */

/* What is measured; memory of the benchmark's environment, so that peaks count all of it. */
typedef struct subject {
    bench *b;
    fv_model *model;
    fv_items in;   /* forward */
    fv_batch data; /* train */
    fv_updater *updater;
    int64_t step, unread;
    fv_err e;
} subject;

static bool takes(const fv_model *m, const char *name)
{
    for (const fv_input *i = fv_model_family(m)->inputs; i && i->name; i++)
        if (!strcmp(i->name, name)) return true;
    return false;
}

/* A size of the configuration, for drawing ids that the model accepts. */
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

/* Noise of the right shape: the arithmetic is the same for any picture. */
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

/* The labels that the head's loss needs, by what it computes: of tokens, of sequences, of spans. */
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

/* The whole forward pass of the family's head, as fv_model_run does it. */
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

/* ---- updates ---- */

static void close_subject(bench *b, subject *s)
{
    fv_updater_free(s->updater);
    fv_batch_free(&s->data);
    fv_model_free(s->model);
    bench_close(b);
}

static fv_status open_model(bench *b, subject *s, const model_values *v, bool train)
{
    fv_dtype dtype = bench_dtype(v->dtype);
    fv_model_opt opt = {.dtype = dtype,
                        .train = train,
                        .serve = !train && dtype != FV_F64,
                        .weights = dtype};
    if (v->weights) bench_choose_weights(v->weights, &opt);
    if (v->model[0]) return fv_model_open(&s->model, b->device, v->model, opt, &s->e);
    char *config = bench_read_file(v->config, 1 << 20, NULL, &s->e);
    if (!config) return FV_EIO;
    fv_status st = fv_model_new(&s->model, b->device, config, opt, 1, &s->e);
    free(config);
    return st;
}

/* A rate that hardly moves parameters makes every repetition the same work. */
static fv_status prepare(bench *b, subject *s, const model_values *v, bool train, float rate)
{
    fv_status st = open_model(b, s, v, train);
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
    fv_train_opt how = {0};
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
static fv_status learn(const bench_opt *o, const model_values *v, double loss[COMPARED], fv_err *e)
{
    bench b;
    subject s = {.b = &b, .data = {.env = &b.env}};
    fv_updated came[MAX_UNREAD];
    int64_t n = 0, read;
    fv_status st = bench_open(&b, o, bench_dtype(v->dtype), &s.e);
    if (!st) st = prepare(&b, &s, v, true, 1e-3f);
    while (!st && n < COMPARED) {
        const fv_batch *batch = &s.data;
        for (int64_t i = 0; !st && i < fv_updater_max_pending(s.updater) && s.step < COMPARED; i++)
            st = fv_updater_step(s.updater, ++s.step, &batch, 1, &s.e);
        if (!st) st = fv_updater_read(s.updater, came, &read, &s.e);
        for (int64_t i = 0; !st && i < read; i++) loss[n++] = came[i].loss;
    }
    if (st) *e = s.e;
    close_subject(&b, &s);
    return st;
}

/* The losses of a few updates here and on the CPU in f32: whether a fast configuration still learns
 * the same is part of its speed. */
static fv_status compare(const bench_opt *o, const model_values *v, fv_err *e)
{
    double here[COMPARED], cpu[COMPARED];
    bench_opt on_cpu = *o;
    model_values plain = *v;
    on_cpu.device = "cpu";
    plain.dtype = 0; /* f32 */
    fv_status st = learn(o, v, here, e);
    if (!st) st = learn(&on_cpu, &plain, cpu, e);
    for (int i = 0; !st && i < COMPARED; i++) {
        bench_row r = {.name = "compare"};
        bench_number(&r, "update", i + 1);
        bench_number(&r, "loss", here[i]);
        bench_number(&r, "cpu_loss", cpu[i]);
        bench_number(&r, "off", fabs(here[i] - cpu[i]) / cpu[i]);
        o->print(o->user, &r);
    }
    return st;
}

/* A model of random parameters is as fast as a trained one; drawing a hundred million of them takes
 * seconds, so what measures again and again saves a model and gives its directory. */
static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    const model_values *v = values;
    bool train = k->options == train_options;
    bench b;
    subject s = {.b = &b, .data = {.env = &b.env}};
    if (train && !v->config[0]) return fv_fail(e, FV_EUSAGE, "--config FILE is missing");
    if (!v->config[0] == !v->model[0])
        return fv_fail(e, FV_EUSAGE, "one of --config and --model is needed");
    fv_status st = bench_open(&b, o, bench_dtype(v->dtype), &s.e);
    if (!st) st = prepare(&b, &s, v, train, 1e-6f);
    if (!st) {
        bench_row r = {.name = k->name};
        bench_word(&r, "family", fv_model_family(s.model)->type);
        bench_word(&r, "head", fv_model_head(s.model));
        bench_number(&r, "batch", (double)v->batch);
        bench_number(&r, "len", (double)v->len);
        bench_word(&r, "dtype", bench_dtypes[v->dtype]);
        bench_number(&r, "parameters", (double)fv_params_elements(fv_model_params(s.model), ""));
        if (!train) bench_word(&r, "weights", bench_weights[v->weights]);
        if (v->padded) bench_flag(&r, "padded", true);
        if (train && v->recompute) bench_flag(&r, "recompute", true);
        bench_work work = {.tokens = (double)v->batch * (double)v->len,
                           .sentences = (double)v->batch};
        st = bench_run(&b, &r, train ? update : forward, &s, work, &s.e);
    }
    if (st) *e = s.e;
    close_subject(&b, &s);
    return st || !v->compare ? st : compare(o, v, e);
}

const bench_kind bench_model[] = {
    {.name = "forward",
     .summary = "a model of any family on random ids",
     .about = "Makes the model that a config.json describes, with random weights, or opens a "
              "model's directory, and runs it as a server would.",
     .examples = forward_examples,
     .options = forward_options,
     .size = sizeof(model_values),
     .run = run},
    {.name = "train",
     .summary = "updates of a model of any family: forward, backward and AdamW",
     .about = "Makes the model that a config.json describes, with random weights, and trains it on "
              "random ids.  Memory counts everything: parameters, gradients, moments and what the "
              "layers keep.  With --compare it then takes ten updates that learn, here and on the "
              "CPU in f32, from the same weights: choose sizes that a CPU can do.",
     .examples = train_examples,
     .options = train_options,
     .size = sizeof(model_values),
     .run = run},
    {0}};
