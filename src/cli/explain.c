/* explain.c - fovea explain: which tokens a prediction rests on, by several methods. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fovea/author/explain.h"

typedef struct explain_values {
    cli_model model;
    fv_explain_opt o;
    const char *pair, *file, *output;
    int64_t steps, most;
    bool json;
} explain_values;

static const cli_option options[] = {
    CLI_MODEL(explain_values),
    CLI_TEXT(explain_values, pair, 0, "pair", "TEXT", "a second sentence beside the text"),
    CLI_FILE(
        explain_values, file, 'f', "file", "FILE",
        "a set of texts, one a line, two with a tab between, or of paths of images: means over "
        "all of them"),
    CLI_INT(explain_values, most, 0, "most", "N", 0, 1e9, "of --file: only the first N; 0: all"),
    CLI_TEXT(explain_values, o.label, 0, "label", "NAME",
             "label or next token to be explained; if not given, the likeliest"),
    CLI_TEXT(explain_values, o.blank, 0, "blank", "TOKEN",
             "what replaces a token; if not given the mask, else the unknown token, else padding"),
    CLI_INT(explain_values, steps, 0, "steps", "N", 1, 4096,
            "steps of the integral of gradients; 32 if not given"),
    CLI_FLAG(explain_values, o.heads, 0, "heads", "also silence each head in turn"),
    CLI_FLAG(explain_values, o.curves, 0, "curves",
             "also deletion and insertion: how the prediction falls and rises with the tokens"),
    CLI_FLAG(explain_values, json, 0, "json", "one JSON object"),
    CLI_FILE(explain_values, output, 'o', "output", "FILE",
             "also write a page (.html) or everything as JSON (.json)"),
    {0},
};

static const cli_example examples[] = {
    {"fovea explain -m runs/sst2/model 'A film of rare charm.' -o charm.html",
     "six methods side by side, as a page"},
    {"fovea explain -m runs/sst2/model --heads --json 'A film of rare charm.'", "for a script"},
    {"fovea explain -m gpt2 'The keys to the cabinet' --label Ġare",
     "why a language model would say \"are\""},
    {"fovea explain -m vit-base-patch16-224 cat.jpg -o cat.html", "an image, patch by patch"},
    {"fovea explain -m runs/sst2/model --curves -f sentences.txt --most 200",
     "which method to trust, over a set of texts"},
    {0},
};

/* Every line of a file, up to --most of them. */
static fv_status explain_lines(fv_explainer *x, const explain_values *v, char *lines, fv_err *e)
{
    const fv_explained *out;
    fv_status st = FV_OK;
    int64_t done = 0;
    for (char *at = lines, *next; !st && at && *at; at = next) {
        next = strchr(at, '\n');
        if (next) *next++ = 0;
        char *tab = strchr(at, '\t');
        if (tab) *tab++ = 0;
        if (!*at) continue;
        if (v->most && done == v->most) break;
        st = fv_explain(x, at, tab, &out, e);
        done++;
    }
    if (!st && !done) st = fv_fail(e, FV_EARG, "%s: there is no text in it", v->file);
    return st;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const explain_values *v = values;
    fv_explain_opt o = v->o;
    fv_explainer *x = NULL;
    const fv_explained *one;
    const char *text = NULL;
    size_t len = 0;
    char *lines = NULL;
    fv_device *d = NULL;
    fv_err e;
    cli_adapters adapters;
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    if (!n == !v->file) return cli_usage(c, "one text, or a --file of them, is needed");
    int code = cli_take_adapters(c, &v->model.adapters, &adapters, &o.model.adapters);
    if (code == CLI_OK && v->file) code = cli_read_text(c, v->file, &lines);
    if (code == CLI_OK) code = cli_open_device(c, &d, v->model.device, v->model.threads);
    if (code != CLI_OK) return code;
    o.steps = (int)v->steps;
    fv_status st = fv_explainer_open(&x, d, v->model.dir, o, &e);
    if (!st && v->file) st = explain_lines(x, v, lines, &e);
    if (!st && !v->file) st = fv_explain(x, operand[0], n > 1 ? operand[1] : v->pair, &one, &e);
    if (!st && v->output) st = fv_explain_save(x, v->output, &e);
    if (!st) st = fv_explain_report(x, v->json ? "json" : "text", &text, &len, &e);
    if (st)
        code = cli_error(c, &e);
    else
        fwrite(text, 1, len, stdout);
    fv_explainer_close(x);
    fv_device_close(d);
    free(lines);
    return code;
}

const cli_command explain_command = {
    .name = "explain",
    .summary = "say which tokens a prediction rests on, by several methods",
    .about =
        "Explains the label that a classifier gives to a text, an image or a sound, or the token "
        "that a causal language model expects next.  Of an image TEXT is its path and patches are "
        "tokens, blanked by the mean colour; of a sound they are frames.  What is explained is its "
        "log-probability, by six methods: attention of the last layer, rollout and flow through "
        "all layers, gradient x input, integrated gradients, and occlusion, which blanks one token "
        "after another.  Attention is read from the tokens that the prediction reads above the "
        "last layer.\n\n"
        "Beside the scores stands how far the methods agree: Spearman's rank correlation of their "
        "magnitudes, without special tokens.  --curves says which to trust: tokens are blanked in "
        "the order of each method, and a good one lets the prediction fall soon (deletion) and "
        "rise soon when tokens are put back (insertion).",
    CLI_OWN(explain_values),
    .operands = "[TEXT [SECOND]]",
    .max_operands = 2,
};
