/* merge.c - fovea merge: a model's directory with adapters folded into its weights. */
#include "cli.h"

typedef struct merge_values {
    const char *model, *output;
    cli_list adapters;
    int dtype;
    int64_t threads;
} merge_values;

static const char *const dtypes[] = {"stored", "f32", "bf16", "f16", NULL};

static const cli_option options[] = {
    CLI_DIR(merge_values, model, 'm', "model", "DIR",
            "the base model, or an adapter's directory that names its base"),
    CLI_LIST(merge_values, adapters, 0, "adapter", "DIR[=WEIGHT]", CLI_ADAPTER_HELP),
    CLI_DIR(merge_values, output, 'o', "output", "DIR", "where the model is written"),
    CLI_CHOICE(merge_values, dtype, 0, "dtype", dtypes, "of all parameters; stored: the base's"),
    CLI_INT(merge_values, threads, 't', "threads", "N", 0, 4096, "0: all cores"),
    {0},
};

static const cli_example examples[] = {
    {"fovea merge -m gpt2 --adapter gpt2-poems -o gpt2-merged", "one model of base and adapter"},
    {"fovea merge -m gpt2-merged --adapter gpt2-poems=-1 -o gpt2-again", "and out again"},
    {"fovea merge -m base --adapter law=0.5 --adapter news=0.5 -o both", "two of them, half each"},
    {0},
};

static int run(const cli *c, const void *values, int n, char **operand)
{
    const merge_values *v = values;
    fv_err e;
    fv_device *d = NULL;
    fv_dtype dtype = FV_F32;
    cli_adapters adapters;
    fv_adapter_list list;
    (void)n, (void)operand;
    if (!v->model || !v->output)
        return cli_usage(c, "a model and an output are needed: -m DIR -o DIR");
    int code = cli_take_adapters(c, &v->adapters, &adapters, &list);
    if (code != CLI_OK) return code;
    bool stored = !fv_dtype_parse(&dtype, dtypes[v->dtype]);
    bool failed = fv_device_open(&d, "cpu", (fv_device_opt){.threads = cli_threads(v->threads)},
                                 &e) ||
                  fv_model_merge(d, v->model, list, v->output, stored ? NULL : &dtype, &e);
    fv_device_close(d);
    return failed ? cli_error(c, &e) : CLI_OK;
}

const cli_command merge_command = {
    .name = "merge",
    .summary = "fold adapters into the weights of a model",
    .about =
        "Writes a model that computes what the base computes with its adapters: LoRA, DoRA and "
        "IA3 directories as PEFT and \"fovea train\" write them.  The result is a directory "
        "like any other, for transformers too, and can be quantised.\n\n"
        "A LoRA may have a weight; with -1 it is taken out of a model that has it.",
    CLI_OWN(merge_values),
};
