/* forward.c - fovea forward: a model on raw tensors, from one file into another.
 *
 * The command by which others check us, and tests do: tensors go in under transformers' names and
 * come out under them, in f32. Neither a tokenizer nor generation stands between. */
#include "cli.h"

typedef struct forward_values {
    const char *model, *input, *output, *head, *device;
    bool attentions, hidden_states, grad;
    int64_t threads;
    int dtype;
    cli_list adapters;
    bool verbose;
} forward_values;

static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "q8", "q4", "int8", NULL};

static const cli_option options[] = {
    CLI_DIR(forward_values, model, 'm', "model", "DIR",
            "a model directory: config.json and model.safetensors"),
    CLI_FILE(forward_values, input, 'i', "input", "FILE",
             "safetensors file with input_ids, attention_mask, labels, ..."),
    CLI_FILE(forward_values, output, 'o', "output", "FILE",
             "safetensors file to write: logits, last_hidden_state, loss, ..."),
    CLI_FLAG(forward_values, attentions, 0, "attentions",
             "also attentions.N: exact weights of layer N, (B,H,Tq,Tk)"),
    CLI_FLAG(forward_values, hidden_states, 0, "hidden-states",
             "also hidden_states.N: what enters layer N, (B,T,D), and the last"),
    CLI_FLAG(forward_values, grad, 0, "grad",
             "also grad.NAME: the gradient of the loss for each parameter; needs labels"),
    CLI_LIST(forward_values, adapters, 0, "adapter", "DIR[=WEIGHT]", CLI_ADAPTER_HELP),
    CLI_TEXT(forward_values, head, 0, "head", "NAME",
             "the architecture, where it is not that of config.json"),
    CLI_CHOICE(forward_values, dtype, 0, "dtype", dtypes,
               "of parameters and activations; q8, q4 and int8: of the weights of products"),
    CLI_DEVICE(forward_values, device),
    CLI_INT(forward_values, threads, 't', "threads", "N", 0, 4096, "0: all cores"),
    CLI_VERBOSE(forward_values, verbose),
    {0},
};

static const cli_example examples[] = {
    {"fovea forward -m bert-base-uncased -i in.safetensors -o out.safetensors",
     "outputs under transformers' names"},
    {"fovea forward -m bert-base-uncased -i in.safetensors -o out.safetensors --attentions",
     "with every attention map"},
    {"fovea forward -m t5-small -i in.safetensors -o out.safetensors --grad",
     "loss and gradients, where labels are among the inputs"},
    {0},
};

/* --dtype is of parameters and activations alike where it is a float, and of weights alone where it
 * is quantised; gradients exist in floats only. */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const forward_values *v = values;
    (void)n, (void)operand;
    if (!v->model || !v->input || !v->output)
        return cli_usage(c, "a model, an input and an output are needed: -m DIR -i FILE -o FILE");
    fv_err e;
    fv_device *d = NULL;
    fv_model *m = NULL;
    fv_model_opt how = {.train = v->grad, .head = v->head, .serve = !v->grad};
    fv_dtype_parse(&how.weights, dtypes[v->dtype]);
    if (fv_dtype_size(how.weights)) how.dtype = how.weights;
    how.widen = how.weights == FV_F32; /* by this others check us: f32 is f32 */
    if (v->grad && how.dtype != how.weights)
        return cli_usage(c, "%s is for running alone: no --grad", dtypes[v->dtype]);
    cli_adapters adapters;
    int code = cli_take_adapters(c, &v->adapters, &adapters, &how.adapters);
    if (code != CLI_OK) return code;
    cli_name_ignored(c, v->verbose, v->model);
    fv_run_opt what = {.attentions = v->attentions,
                       .hidden_states = v->hidden_states,
                       .grad = v->grad};
    bool failed = fv_device_open(&d, v->device, (fv_device_opt){.threads = cli_threads(v->threads)},
                                 &e) ||
                  fv_model_open(&m, d, v->model, how, &e) ||
                  fv_model_run(m, d, v->input, v->output, what, &e);
    fv_model_free(m);
    fv_device_close(d);
    return failed ? cli_error(c, &e) : CLI_OK;
}

const cli_command forward_command = {
    .name = "forward",
    .summary = "run a model on raw tensors",
    .about = "Runs any model on the tensors of a safetensors file and writes what comes out to "
             "another.  Names are those of transformers: input_ids, attention_mask, "
             "token_type_ids, decoder_input_ids, labels and so on go in; logits, "
             "last_hidden_state, pooler_output, start_logits, loss and so on come out, in f32.  An "
             "input that the model does not know is an error.\n\n"
             "Attention weights are exact: they are recomputed from the log-sum-exp that the tiled "
             "operator keeps for each row.  Models with an encoder and a decoder give "
             "encoder_attentions.N, decoder_attentions.N and cross_attentions.N.  A row in which "
             "every key is masked gives zeros.",
    CLI_OWN(forward_values),
};
