/* quantize.c - fovea quantize: a model's directory with smaller weights.
 *
 * The work is fv_model_quantize; the command says what became smaller. The copy is an ordinary
 * model directory whose tensors have our dtypes; config.json says so. */
#include <stdio.h>

#include "cli.h"

typedef struct quantize_values {
    const char *model, *output;
    int weights;
    bool json;
    int64_t threads;
} quantize_values;

static const char *const dtypes[] = {"q8", "q4", "int8", "bf16", "f16", "f32", NULL};

static const cli_option options[] = {
    CLI_DIR(quantize_values, model, 'm', "model", "DIR",
            "a model directory: config.json and model.safetensors"),
    CLI_DIR(quantize_values, output, 'o', "output", "DIR", "the directory to make"),
    CLI_CHOICE(quantize_values, weights, 0, "weights", dtypes,
               "how the weights of products are held; floats: all parameters"),
    CLI_FLAG(quantize_values, json, 0, "json", "print one object"),
    CLI_INT(quantize_values, threads, 't', "threads", "N", 0, 4096, "0: all cores"),
    {0},
};

static const cli_example examples[] = {
    {"fovea quantize -m gpt2 -o gpt2-q8", "8 bits, a scale for each 32 weights"},
    {"fovea quantize -m gpt2 -o gpt2-q4 --weights q4", "4 bits, likewise"},
    {"fovea quantize -m gpt2 -o gpt2-bf16 --weights bf16",
     "every parameter in 16 bits, as other programs read them too"},
    {"fovea score -m gpt2-q8 text.txt", "how much it costs: compare with -m gpt2"},
    {0},
};

static int run(const cli *c, const void *values, int n, char **operand)
{
    const quantize_values *v = values;
    (void)n, (void)operand;
    if (!v->model || !v->output)
        return cli_usage(c, "a model and an output are needed: -m DIR -o DIR");
    fv_err e;
    fv_device *d = NULL;
    fv_quantised q;
    fv_dtype weights = FV_Q8;
    fv_dtype_parse(&weights, dtypes[v->weights]);
    bool failed = fv_device_open(&d, "cpu", (fv_device_opt){.threads = cli_threads(v->threads)},
                                 &e) ||
                  fv_model_quantize(d, v->model, v->output, weights, &q, &e);
    fv_device_close(d);
    if (failed) return cli_error(c, &e);
    if (v->json) {
        cli_json j = {0};
        cli_json_put(&j, "{s:s, s:s, s:i, s:i, s:I, s:I}", "model", v->output, "weights",
                     dtypes[v->weights], "matrices", q.weights, "others", q.others, "bytes_before",
                     (int64_t)q.before, "bytes_after", (int64_t)q.after);
        cli_json_end();
        return CLI_OK;
    }
    char others[64] = "";
    if (q.others) snprintf(others, sizeof others, ", %d other parameters as they were", q.others);
    printf("%s: %d %s as %s%s; %.1f MB instead of %.1f MB\n", v->output, q.weights,
           q.others ? "matrices" : "parameters", dtypes[v->weights], others, (double)q.after * 1e-6,
           (double)q.before * 1e-6);
    return CLI_OK;
}

const cli_command quantize_command = {
    .name = "quantize",
    .summary = "copy a model with weights of 16, 8 or 4 bits",
    .about = "Copies a model's directory and holds the weights of its matrix products in 8 or 4 "
             "bits; embeddings, norms and biases stay as they are.  The copy opens like any model, "
             "takes less memory and computes faster.  It computes the same as the original opened "
             "with --dtype q8, q4 or int8.\n\n"
             "q8 and q4 have one scale for 32 weights; int8 has one for a row and is the fastest, "
             "and the coarsest for activations that are uneven.  What it costs in quality \"fovea "
             "score\" and \"fovea eval\" tell.\n\n"
             "bf16, f16 and f32 are for every parameter, and such a copy is a model like any "
             "other, for transformers too.",
    CLI_OWN(quantize_values),
};
