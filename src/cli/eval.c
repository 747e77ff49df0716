/* eval.c - fovea eval: how good a model, or what it wrote, is. */
#include "eval.h"

#include <stdio.h>
#include <string.h>

static const eval_kind *const kinds[] = {&eval_translation};
enum { N_KINDS = (int)(sizeof kinds / sizeof *kinds) };

static const eval_values defaults = {.batch = 32};

static const cli_option options[] = {
    CLI_DIR(eval_values, model, 'm', "model", "DIR", "a model directory"),
    CLI_FILE(eval_values, source, 's', "source", "FILE", "what the model reads, a text on each line; plain or gzip"),
    CLI_FILE(eval_values, reference, 'r', "reference", "FILE", "what it should have written"),
    CLI_FILE(eval_values, hypothesis, 0, "hypothesis", "FILE", "what was written, in place of a model and a source"),
    CLI_FILE(eval_values, output, 'o', "output", "FILE", "also write what the model wrote"),
    CLI_FLAG(eval_values, lowercase, 0, "lowercase", "BLEU without regard to case"),
    CLI_INT(eval_values, beam, 'b', "beam", "N", 1, 256, "beams; as the model says, else 4"),
    CLI_CHOICE(eval_values, dtype, 0, "dtype", cli_weights, "of the weights"),
    CLI_INT(eval_values, batch, 0, "batch", "N", 1, 4096, "lines that go through the model together"),
    CLI_DEVICE(eval_values, device),
    CLI_INT(eval_values, threads, 't', "threads", "N", 0, 4096, "0: all cores"),
    CLI_FLAG(eval_values, json, 0, "json", "one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea eval -m run/model --source test.en --reference test.de", "BLEU and chrF of a model"},
    {"fovea eval --hypothesis out.de --reference test.de", "the same of a file"},
    {"fovea eval -m run/model -s test.en -r test.de --beam 5 --length-penalty 0.6 --json", "for a script, other settings"},
    {0},
};

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    char needs[512] = "";
    size_t used = 0;
    for (int i = 0; i < N_KINDS; i++) {
        if (kinds[i]->takes(values)) return kinds[i]->run(c, values);
        if (used < sizeof needs)
            used += (size_t)snprintf(needs + used, sizeof needs - used, "%s%s", i ? "; or " : "", kinds[i]->needs);
    }
    return cli_usage(c, "what to evaluate is not clear; it takes %s", needs);
}

const cli_command eval_command = {
    .name = "eval",
    .summary = "how good a model is",
    .about =
        "Translations: translates the source and compares the result with the reference, line by line, or compares a file that "
        "is there already.  BLEU and chrF are those of sacreBLEU, with its signatures: BLEU with the tokens of mteval-v13a, "
        "which is what papers compare, and on the tokens as they stand, for text that is tokenised already.",
    .options = options,
    .size = sizeof(eval_values),
    .defaults = &defaults,
    .fields = fv_gen_fields,
    .settings = offsetof(eval_values, settings),
    .examples = examples,
    .run = run,
};
