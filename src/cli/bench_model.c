/* bench_model.c - fovea bench forward and train: any family from its config.json, with random weights. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/op.h"
#include "fovea/train.h"

typedef struct model_values {
    bench_values common;
    const char *config;
    int64_t batch, len;
    int dtype, weights;
    bool recompute, compare;
} model_values;

static const model_values defaults = {.common = BENCH_DEFAULTS, .batch = 8, .len = 128};

#define MODEL_OPTIONS                                                                                                            \
    CLI_FILE(model_values, config, 'c', "config", "FILE", "a config.json: its model_type, architectures and sizes"),             \
        CLI_INT(model_values, batch, 'b', "batch", "N", 1, 1 << 20, "sequences"),                                                \
        CLI_INT(model_values, len, 'l', "len", "N", 1, 1 << 20, "tokens of each, on both sides where there are two"),            \
        CLI_CHOICE(model_values, dtype, 'd', "dtype", bench_dtypes, "of parameters and arithmetic")

static const cli_option forward_options[] = {
    MODEL_OPTIONS,
    CLI_CHOICE(model_values, weights, 'w', "weights", cli_weights, CLI_WEIGHTS_HELP),
    BENCH_OPTIONS(model_values),
    {0},
};
static const cli_option train_options[] = {
    MODEL_OPTIONS,
    CLI_FLAG(model_values, recompute, 0, "recompute", "keep only what enters each layer"),
    CLI_FLAG(model_values, compare, 0, "compare", "also learn for ten updates, beside the CPU in f32, and print both losses"),
    BENCH_OPTIONS(model_values),
    {0},
};

static const cli_example forward_examples[] = {
    {"fovea bench forward --config bert-base/config.json --batch 8 --len 128", "an encoder, eight sentences at a time"},
    {"fovea bench forward --config bert-base/config.json --weights int8 --threads 2", "with weights of eight bits"},
    {0},
};
static const cli_example train_examples[] = {
    {"fovea bench train --config config.json --batch 32 --len 64 --threads 2 --json", "one update after another, for a script"},
    {"fovea bench train --config config.json --device cuda --dtype bf16 --compare", "is what is fast still right?"},
    {0},
};

/* ---- the model and its inputs ---- */

typedef struct subject {
    fv_model *model;
    fv_items in;
    fv_adam *adam; /* NULL: forward only */
    fv_train_opt opt;
    int64_t step;
    float loss; /* of the last update */
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

/* Ids of every kind that the head takes; those of one token a sequence where it judges sequences. */
static void make_inputs(bench *b, subject *s, const model_values *v, bool train)
{
    const char *head = fv_model_head(s->model);
    fv_shape tokens = FV_SHAPE(v->batch, v->len), rows = FV_SHAPE(v->batch);
    int32_t vocab = number(s->model, "vocab_size", 1000), labels = number(s->model, "num_labels", 2);
    bool sequence = strstr(head, "SequenceClassification") != NULL, span = strstr(head, "QuestionAnswering") != NULL;
    bool token = strstr(head, "TokenClassification") != NULL;
    fv_items_put(&s->in, "input_ids", bench_ids(b, tokens, vocab));
    if (takes(s->model, "decoder_input_ids")) fv_items_put(&s->in, "decoder_input_ids", bench_ids(b, tokens, vocab));
    if (!train) return;
    if (span) {
        fv_items_put(&s->in, "start_positions", bench_ids(b, rows, (int32_t)v->len));
        fv_items_put(&s->in, "end_positions", bench_ids(b, rows, (int32_t)v->len));
    } else if (sequence) {
        fv_items_put(&s->in, "labels", bench_ids(b, rows, labels));
    } else {
        fv_items_put(&s->in, "labels", bench_ids(b, tokens, token ? labels : vocab));
    }
    if (strstr(head, "PreTraining")) fv_items_put(&s->in, "next_sentence_label", bench_ids(b, rows, 2));
    s->in.n_labels = sequence || span ? (double)v->batch : (double)v->batch * (double)v->len;
    s->in.n_rows = (double)v->batch;
}

/* ---- one repetition ---- */

static void forward(fv_ctx *c, void *what)
{
    subject *s = what;
    fv_items out = {0};
    fv_model_forward(c, s->model, &s->in, &out);
}

static void update(fv_ctx *c, void *what)
{
    subject *s = what;
    fv_items out = {0};
    double norm;
    fv_params_zero_grad(fv_model_params(s->model));
    fv_model_forward(c, s->model, &s->in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    if (!y && !fv_ctx_status(c)) fv_raise(c, FV_EARG, "%s has no loss: name another of architectures", fv_model_head(s->model));
    if (fv_backward(c, y) || fv_read(c, y, &s->loss, 1)) return; /* in this order the device need not wait for us in between */
    if (fv_adam_step(s->adam, &s->opt, ++s->step, &norm, &s->e)) fv_raise(c, s->e.code, "%s", s->e.text);
}

/* ---- the commands ---- */

static void close_subject(bench *b, subject *s)
{
    fv_adam_free(s->adam);
    fv_model_free(s->model);
    bench_close(b);
}

static fv_status prepare(bench *b, subject *s, const model_values *v, bool train)
{
    char *config = read_config(v->config);
    fv_ctx_opt how = {.dtype = bench_dtype(v->dtype), .record = train, .train = train, .recompute = v->recompute};
    if (!config) return fv_fail(&s->e, FV_EIO, "%s: cannot be read", v->config);
    fv_model_opt opt = {.dtype = how.dtype, .train = train, .serve = !train && how.dtype != FV_F64, .weights = how.dtype};
    if (v->weights) cli_choose_weights(v->weights, &opt.weights, &opt.widen);
    fv_status st = fv_model_new(&s->model, b->device, config, opt, 1, &s->e);
    free(config);
    if (st) return st;
    fv_ctx_free(b->step);
    b->step = NULL;
    st = fv_ctx_new(&b->step, b->device, how, &s->e);
    fv_fields_default(&s->opt, fv_train_fields);
    s->opt.lr = 1e-6f; /* parameters that hardly move: every repetition does the same work */
    if (!st && train) st = fv_adam_new(&s->adam, fv_model_params(s->model), b->device, &s->opt, &s->e);
    if (!st) make_inputs(b, s, v, train);
    return st;
}

/* ---- beside the CPU ---- */

enum { COMPARED = 10 };

/* The losses of the first updates at a rate that learns, from the same weights and ids wherever it is. */
static int learn(const cli *c, const model_values *v, float loss[COMPARED])
{
    subject s = {0};
    bench b;
    int code = bench_open(&b, c, v->common, bench_dtype(v->dtype), false);
    if (!code && prepare(&b, &s, v, true)) code = cli_error(c, &s.e);
    s.opt.lr = 1e-3f;
    s.opt.warmup = 0;
    for (int i = 0; !code && i < COMPARED; i++) {
        fv_ctx_reset(b.step, (uint64_t)i);
        update(b.step, &s);
        if (fv_ctx_status(b.step)) code = cli_error(c, fv_ctx_err(b.step));
        loss[i] = s.loss;
    }
    close_subject(&b, &s);
    return code;
}

static int compare(const cli *c, const model_values *v)
{
    float here[COMPARED], cpu[COMPARED];
    model_values plain = *v;
    plain.common.device = "cpu";
    plain.dtype = 0; /* f32 */
    int code = learn(c, v, here);
    if (!code) code = learn(c, &plain, cpu);
    for (int i = 0; !code && i < COMPARED; i++) {
        double off = fabs((double)here[i] - (double)cpu[i]) / (double)cpu[i];
        if (v->common.json)
            code = cli_print_json(c, json_pack("{s:s, s:i, s:f, s:f, s:f}", "name", "compare", "update", i + 1, "loss",
                                               (double)here[i], "cpu_loss", (double)cpu[i], "off", off));
        else
            printf("update %d: loss %.6f, on the CPU in f32 %.6f, off by %.1e\n", i + 1, (double)here[i], (double)cpu[i], off);
    }
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const model_values *v = values;
    bool train = !strcmp(c->command->name, "train");
    subject s = {0};
    bench b;
    if (!v->config) return cli_usage(c, "--config FILE is missing");
    int code = bench_open(&b, c, v->common, bench_dtype(v->dtype), false);
    if (!code && prepare(&b, &s, v, train)) code = cli_error(c, &s.e);
    if (!code) {
        json_t *parameters = json_pack("{s:s, s:s, s:I, s:I, s:s, s:I}", "family", fv_model_family(s.model)->type, "head",
                                       fv_model_head(s.model), "batch", (json_int_t)v->batch, "len", (json_int_t)v->len, "dtype",
                                       bench_dtypes[v->dtype], "parameters",
                                       (json_int_t)fv_params_elements(fv_model_params(s.model), ""));
        if (!train) json_object_set_new(parameters, "weights", json_string(cli_weights[v->weights]));
        if (train && v->recompute) json_object_set_new(parameters, "recompute", json_true());
        bench_work work = {.tokens = (double)v->batch * (double)v->len, .sentences = (double)v->batch};
        code = bench_run(&b, c->command->name, parameters, train ? update : forward, &s, work);
    }
    close_subject(&b, &s);
    return code || !v->compare ? code : compare(c, v);
}

const cli_command bench_forward_command = {
    .name = "forward",
    .summary = "a model of any family on random ids",
    .about = "Makes the model that a config.json describes, with random weights, and runs it as a server would.",
    .options = forward_options,
    .size = sizeof(model_values),
    .defaults = &defaults,
    .examples = forward_examples,
    .run = run,
};

const cli_command bench_train_command = {
    .name = "train",
    .summary = "updates of a model of any family: forward, backward and AdamW",
    .about = "Makes the model that a config.json describes, with random weights, and trains it on random ids.  Memory counts "
             "everything: parameters, gradients, moments and what the layers keep.  With --compare it then takes ten updates "
             "that learn, here and on the CPU in f32, from the same weights: choose sizes that a CPU can do.",
    .options = train_options,
    .size = sizeof(model_values),
    .defaults = &defaults,
    .examples = train_examples,
    .run = run,
};
