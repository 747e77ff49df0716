/* summarize.c - fovea summarize: a short text for a long one, with models that were trained for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "write.h"

typedef struct summarize_values {
    writer_values w;
    const char *prefix;
    bool whole;
    int64_t batch;
} summarize_values;

static const cli_option options[] = {
    WRITER_OPTIONS(summarize_values),
    CLI_FLAG(summarize_values, whole, 'w', "whole", "the input is one text, not one a line"),
    CLI_TEXT(summarize_values, prefix, 0, "prefix", "TEXT", "put before every text; as config.json says if not given"),
    CLI_INT(summarize_values, batch, 'b', "batch", "N", 1, 1024, "texts that go through the model together"),
    GENERATE_OPTIONS(summarize_values),
    {0},
};

static const summarize_values defaults = {.batch = 8};

static const cli_example examples[] = {
    {"fovea summarize -m bart-large-cnn --whole article.txt", "with the lengths and beams its config.json gives"},
    {"fovea summarize -m t5-small --json < articles.txt", "an article a line, a JSON object a line"},
    {0},
};

/* What the model asks to have before a text: "summarize: " for T5. */
static const char *prefix_of(const writer *w, const summarize_values *v)
{
    const char *said = fv_json_text(fv_dir_config(w->dir), "task_specific_params.summarization.prefix");
    return v->prefix ? v->prefix : said ? said : "";
}

static int encode(writer *w, ids *out, const char *prefix, const char *text, size_t len)
{
    fv_err e;
    size_t n = strlen(prefix) + len;
    char *all = malloc(n + 1);
    if (!all) return cli_fail(w->c, "out of memory");
    memcpy(all, prefix, strlen(prefix));
    memcpy(all + strlen(prefix), text, len);
    const fv_family *f = fv_model_family(w->model);
    int64_t most = f->context ? f->context(fv_model_self(w->model)) : 0; /* what does not fit is cut off, as it is published */
    fv_tok_opts o = {.specials = true, .max_len = w->encoder ? (most ? most : fv_tok_max_len(w->tok)) : 0};
    int code = fv_tok_encode(w->enc, all, n, o, &e) ? cli_error(w->c, &e) : CLI_OK;
    if (!code && !ids_add(out, w->enc->ids, w->enc->n)) code = cli_fail(w->c, "out of memory");
    free(all);
    return code;
}

static int print_one(writer *w, const summarize_values *v, const ids *source, const fv_hyp *h)
{
    char *text;
    size_t len;
    int code = writer_decode(w, &text, &len, source, h->ids, h->n);
    if (!code && v->w.json)
        code = cli_print_json(w->c, json_pack("{s:s%, s:I, s:I, s:f}", "summary", text, len, "source_tokens",
                                              (json_int_t)source->n, "tokens", (json_int_t)h->n, "score", h->score));
    else if (!code)
        puts(text);
    free(text);
    return code;
}

static int batch(writer *w, const summarize_values *v, const lines *in, int64_t from, int64_t n)
{
    fv_err e;
    fv_generated out = {0};
    int code = CLI_OK;
    ids *source = calloc((size_t)n, sizeof *source);
    const int32_t **at = calloc((size_t)n, sizeof *at);
    int64_t *len = calloc((size_t)n, sizeof *len);
    if (!source || !at || !len) code = cli_fail(w->c, "out of memory");
    for (int64_t i = 0; i < n && !code; i++) {
        code = encode(w, &source[i], prefix_of(w, v), in->at[from + i], in->len[from + i]);
        at[i] = source[i].at;
        len[i] = source[i].n;
    }
    if (!code && fv_generate(&out, w->device, w->model, at, len, n, &w->gen, &e)) code = cli_error(w->c, &e);
    for (int64_t i = 0; i < out.n * out.each && !code; i++) code = print_one(w, v, &source[i / out.each], &out.hyp[i]);
    fv_generated_free(&out);
    for (int64_t i = 0; source && i < n; i++) ids_free(&source[i]);
    free(source);
    free(at);
    free(len);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const summarize_values *v = values;
    writer w;
    lines in = {0};
    int code = writer_open(&w, c, &v->w, "summarization", 142);
    if (!code) code = read_lines(c, &in, n ? operand[0] : NULL, v->whole);
    for (int64_t i = 0; !code && i < in.n; i += v->batch) code = batch(&w, v, &in, i, in.n - i < v->batch ? in.n - i : v->batch);
    free_lines(&in);
    writer_close(&w);
    return code;
}

const cli_command summarize_command = {
    .name = "summarize",
    .summary = "a short text for a long one",
    .about =
        "Summarises each line of a file or of standard input, or the whole of it.  Beams, lengths and the words put before a "
        "text are those that the model's config.json gives for summarization (task_specific_params), unless the command line "
        "says otherwise.  What is longer than the model can read is cut off.",
    .options = options,
    .size = sizeof(summarize_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
