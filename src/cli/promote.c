/* promote.c - fovea promote: take a new version of a model into use if it is not worse. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

typedef struct promote_values {
    cli_model model;
    fv_eval_opt eval;
    const char *metric;
    double margin;
    bool less, back, json;
} promote_values;

static const cli_option options[] = {
    CLI_MODEL(promote_values),
    CLI_TEXT(promote_values, metric, 0, "metric", "NAME",
             "number of the evaluation that is compared, as eval --json has it; accuracy if not "
             "given"),
    CLI_FLAG(promote_values, less, 0, "less", "less of it is better: perplexity"),
    CLI_REAL(promote_values, margin, 0, "margin", "X", 0, 1e9,
             "worse by so much counts as not worse"),
    CLI_FLAG(promote_values, back, 0, "back", "use the version before this one again"),
    CLI_TEXT(promote_values, eval.task, 0, "task", "NAME", "what is evaluated, as in eval"),
    CLI_CHOICE(promote_values, eval.format, 0, "format", fv_formats,
               "of FILE; auto goes by its name"),
    CLI_TEXT(promote_values, eval.source_field, 0, "source-field", "NAME", "field with the text"),
    CLI_TEXT(promote_values, eval.target_field, 0, "target-field", "NAME",
             "field with the label or reference"),
    CLI_FLAG(promote_values, eval.header, 0, "header",
             "the first line of a table only names its columns"),
    CLI_FLAG(promote_values, eval.latin1, 0, "latin1", "FILE is ISO-8859-1, not UTF-8"),
    CLI_TEXT(promote_values, eval.label_until, 0, "label-until", "CHARS",
             "a label ends where one of these characters stands"),
    CLI_FLAG(promote_values, json, 0, "json", "one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea promote models/trec -m runs/trec/model --latin1 --label-until : TREC_10.label",
     "the first version, or a better one"},
    {"fovea classify -m models/trec questions.txt", "whichever is in use"},
    {"fovea promote models/trec --back", "the one before"},
    {0},
};

static void print_number(const char *name, double x)
{
    if (isfinite(x)) printf(", \"%s\": %.9g", name, x);
}

static void report(const promote_values *v, const char *metric, const fv_promoted *r)
{
    if (v->json) {
        printf("{\"taken\": %s, \"version\": \"%s\", \"previous\": \"%s\"",
               r->taken ? "true" : "false", r->version, r->previous);
        print_number("candidate", r->candidate);
        print_number("current", r->current);
        printf("}\n");
        return;
    }
    if (isfinite(r->candidate)) printf("candidate: %s %.4f\n", metric, r->candidate);
    if (isfinite(r->current)) printf("in use: %s %.4f\n", metric, r->current);
    printf(r->taken ? "%s is in use now\n" : "not taken: %s stays in use\n", r->version);
}

/* A candidate that is worse is not taken, and the exit says so to a script. */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const promote_values *v = values;
    fv_device *d = NULL;
    fv_promoted r;
    fv_err e;
    cli_adapters adapters;
    fv_promote_opt o = {.dir = operand[0],
                        .candidate = v->model.dir,
                        .eval = v->eval,
                        .metric = v->metric ? v->metric : "accuracy",
                        .less = v->less,
                        .margin = v->margin,
                        .back = v->back};
    if (v->back && (v->model.dir || n > 1))
        return cli_usage(c, "--back needs no model and no evaluation set");
    if (!v->back && (!v->model.dir || n < 2))
        return cli_usage(c, "a candidate and an evaluation set are needed: -m DIR FILE");
    int code = cli_take_adapters(c, &v->model.adapters, &adapters, &o.eval.adapters);
    if (code == CLI_OK) code = cli_open_device(c, &d, v->model.device, v->model.threads);
    if (code != CLI_OK) return code;
    cli_choose_weights(v->model.dtype, &o.eval.weights, &o.eval.widen);
    o.eval.file = n > 1 ? operand[1] : NULL;
    if (fv_promote(d, &o, &r, &e))
        code = cli_error(c, &e);
    else
        report(v, o.metric, &r);
    fv_device_close(d);
    return code != CLI_OK || r.taken ? code : CLI_FAILED;
}

const cli_command promote_command = {
    .name = "promote",
    .summary = "take a new version of a model into use if it is not worse",
    .about =
        "DIR holds the versions of a model (v1, v2, ..) and the file CURRENT, which names the one "
        "in use: given as a model, DIR is that version.  The candidate (-m) and the version in use "
        "are evaluated on FILE as \"fovea eval\" does; the candidate is copied to DIR and taken "
        "only if it is not worse.  The switch is one rename, so whoever opens DIR meanwhile gets "
        "one whole version or the other.  A candidate that is not taken is exit code 1.",
    CLI_OWN(promote_values),
    .operands = "DIR [FILE]",
    .min_operands = 1,
    .max_operands = 2,
};
