/* summarize.c - fovea summarize: a short text for a long one, with models that were trained for
 * it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "summarize.h"

typedef struct summarize_values {
    cli_model model;
    cli_settings settings;
    bool json;
    const char *prefix;
    bool whole;
    int64_t batch;
} summarize_values;

static const cli_option options[] = {
    CLI_MODEL(summarize_values),
    CLI_FLAG(summarize_values, json, 0, "json", "print one JSON object a line"),
    CLI_FLAG(summarize_values, whole, 'w', "whole", "the input is one text, not one a line"),
    CLI_TEXT(summarize_values, prefix, 0, "prefix", "TEXT",
             "put before every text; as config.json says if not given"),
    CLI_INT(summarize_values, batch, 'b', "batch", "N", 1, 1024,
            "texts that go through the model together"),
    {0},
};

static const summarize_values defaults = {.batch = SUMMARY_BATCH};

static const cli_example examples[] = {
    {"fovea summarize -m bart-large-cnn --whole article.txt",
     "with the lengths and beams its config.json gives"},
    {"fovea summarize -m t5-small --json < articles.txt",
     "an article a line, a JSON object a line"},
    {0},
};

/* What the model asks to have before a text: "summarize: " for T5. */
static const char *prefix_of(const writer *w)
{
    const char *said = fv_json_text(fv_dir_config(w->dir),
                                    "task_specific_params.summarization.prefix");
    return said ? said : "";
}

int summarize_encode(writer *w, const char *prefix, ids *out, const fv_text *text)
{
    fv_err e;
    if (!prefix) prefix = prefix_of(w);
    size_t before = strlen(prefix), n = before + text->n;
    char *all = malloc(n + 1);
    if (!all) return cli_fail(w->c, "out of memory");
    memcpy(all, prefix, before + 1);
    memcpy(all + before, text->s, text->n);
    const fv_family *f = fv_model_family(w->model);
    /* what does not fit is cut off, as it is published */
    int64_t most = f->context ? f->context(fv_model_self(w->model)) : 0;
    fv_tok_opts o = {.specials = true,
                     .max_len = w->encoder ? (most ? most : fv_tok_max_len(w->tok)) : 0};
    int code = fv_tok_encode(w->enc, all, n, o, &e) ? cli_error(w->c, &e) : CLI_OK;
    if (!code && !ids_add(out, w->enc->ids, w->enc->n)) code = cli_fail(w->c, "out of memory");
    free(all);
    return code;
}

static int encode(writer *w, const void *user, ids *out, const fv_text *text)
{
    return summarize_encode(w, ((const summarize_values *)user)->prefix, out, text);
}

static int print_one(writer *w, const void *user, const fv_text *text, const ids *source,
                     const fv_hyp *h)
{
    const summarize_values *v = user;
    char *summary;
    size_t len;
    (void)text;
    int code = writer_decode(w, &summary, &len, source, h->ids, h->n);
    if (!code && v->json)
        code = cli_print_json(w->c,
                              json_pack("{s:s%, s:I, s:I, s:o}", "summary", summary, len,
                                        "source_tokens", (json_int_t)source->n, "tokens",
                                        (json_int_t)h->n, "score", cli_json_number(h->score)));
    else if (!code)
        puts(summary);
    free(summary);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const summarize_values *v = values;
    writer w;
    cli_texts in = {0};
    writer_job job = {.encode = encode, .print = print_one, .user = v, .together = v->batch};
    int code = writer_open(&w, c, &v->model, &v->settings, "summarization", SUMMARY_TOKENS);
    if (!code)
        code = cli_read_texts(c, n ? operand[0] : NULL, v->whole ? CLI_WHOLE : CLI_IF_ANY, &in);
    if (!code) code = writer_run(&w, &job, in.at, in.n);
    cli_free_texts(&in);
    writer_close(&w);
    return code;
}

const cli_command summarize_command = {
    .name = "summarize",
    .summary = "a short text for a long one",
    .about = "Summarises each line of a file or of standard input, or the whole of it.  Beams, "
             "lengths and the words put before a "
             "text are those that the model's config.json gives for summarization "
             "(task_specific_params), unless the command line "
             "says otherwise.  What is longer than the model can read is cut off.",
    .options = options,
    .size = sizeof(summarize_values),
    .defaults = &defaults,
    .fields = fv_gen_fields,
    .settings = offsetof(summarize_values, settings),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
