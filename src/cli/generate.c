/* generate.c - fovea generate: text from prompts, as it comes or many at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "write.h"

typedef struct generate_values {
    cli_model model;
    cli_settings settings;
    bool json;
    const char *file;
    bool echo;
    int64_t batch;
} generate_values;

static const cli_option options[] = {
    CLI_MODEL(generate_values),
    CLI_FLAG(generate_values, json, 0, "json", "print one JSON object a line"),
    CLI_FILE(generate_values, file, 'f', "file", "FILE", "the prompt is the text of a file"),
    CLI_FLAG(generate_values, echo, 'e', "echo", "print the prompt before what follows it"),
    CLI_INT(generate_values, batch, 'b', "batch", "N", 1, 1024,
            "lines of standard input that go through the model together"),
    {0},
};

static const generate_values defaults = {.batch = 16};

static const cli_example examples[] = {
    {"fovea generate -m gpt2 'The meaning of life is'",
     "greedy, or as the model's generation_config.json says"},
    {"fovea generate -m gpt2 --temperature 0.8 --top-p 0.95 --seed 7 'Once upon a time'", "drawn"},
    {"fovea generate -m t5-small --num-beams 4 'translate English to German: The house is small.'",
     "with an encoder"},
    {"fovea generate -m gpt2 --json < prompts.txt", "a prompt a line, a JSON object a line"},
    {0},
};

/* ---- one prompt, as it comes ---- */

typedef struct stream {
    fv_tok_stream *s;
    fv_err e;
    bool failed;
} stream;

static bool print_token(void *user, int64_t source, int32_t token)
{
    stream *s = user;
    const char *text;
    size_t len;
    (void)source;
    s->failed = fv_tok_stream_push(s->s, token, &text, &len, &s->e) != FV_OK;
    if (s->failed) return false;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    return true;
}

static int stream_one(writer *w, const ids *prompt)
{
    stream s = {0};
    fv_generated out;
    const int32_t *at = prompt->at;
    const char *text;
    size_t len;
    int code = writer_stream_open(w, &s.s, prompt);
    w->gen.token = print_token;
    w->gen.user = &s;
    if (!code && fv_generate(&out, w->device, w->model, &at, &prompt->n, 1, &w->gen, &s.e))
        code = cli_error(w->c, &s.e);
    if (!code) {
        fv_generated_free(&out);
        if (s.failed || fv_tok_stream_finish(s.s, &text, &len, &s.e)) code = cli_error(w->c, &s.e);
    }
    if (!code) {
        fwrite(text, 1, len, stdout);
        putchar('\n');
    }
    w->gen.token = NULL;
    w->gen.user = NULL;
    if (s.s) fv_tok_stream_free(s.s);
    return code;
}

/* ---- many, when they are done ---- */

static int encode_one(writer *w, const void *user, ids *out, const fv_text *text)
{
    (void)user;
    return writer_encode(w, out, text->s, text->n);
}

static int print_one(writer *w, const void *user, const fv_text *text, const ids *prompt,
                     const fv_hyp *h)
{
    const generate_values *v = user;
    char *more;
    size_t n;
    int code = writer_decode(w, &more, &n, prompt, h->ids, h->n);
    if (!code && v->json) {
        code = cli_print_json(w->c, json_pack("{s:s%, s:s%, s:I, s:o}", "prompt", text->s, text->n,
                                              "text", more, n, "tokens", (json_int_t)h->n, "score",
                                              cli_json_number(h->score)));
    } else if (!code) {
        if (v->echo) fwrite(text->s, 1, text->n, stdout);
        fwrite(more, 1, n, stdout);
        putchar('\n');
    }
    free(more);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const generate_values *v = values;
    writer w;
    cli_texts in = {0};
    if (n && v->file) return cli_usage(c, "a prompt and --file are one prompt too many");
    int code = writer_open(&w, c, &v->model, &v->settings, NULL, 128);
    if (!code && !n) code = cli_read_texts(c, v->file, v->file ? CLI_WHOLE : CLI_IF_ANY, &in);
    fv_text one = {.s = n ? operand[0] : NULL, .n = n ? strlen(operand[0]) : 0};
    const fv_text *text = n ? &one : in.at;
    int64_t count = n ? 1 : in.n;
    ids prompt = {0};
    if (!code && count == 1 && !v->json && w.gen.num_beams == 1 &&
        w.gen.num_return_sequences == 1) {
        code = writer_encode(&w, &prompt, text->s, text->n);
        if (!code && v->echo) fwrite(text->s, 1, text->n, stdout);
        if (!code) code = stream_one(&w, &prompt);
    } else if (!code) {
        writer_job job = {.encode = encode_one,
                          .print = print_one,
                          .user = v,
                          .together = v->batch};
        code = writer_run(&w, &job, text, count);
    }
    ids_free(&prompt);
    cli_free_texts(&in);
    writer_close(&w);
    return code;
}

const cli_command generate_command = {
    .name = "generate",
    .summary = "text that follows a prompt",
    .about = "Continues a prompt with a language model, or answers a source with a model that has "
             "an encoder.  The prompt is the "
             "argument, the text of a file, or each line of standard input.  One prompt is written "
             "as it is generated; of many, "
             "--batch go through the model together, and each gives the same text as alone.\n\n"
             "What the command line does not say comes from the model's generation_config.json; "
             "names and meanings are those of "
             "transformers.  A temperature, top-k, top-p, min-p or typical-p means drawing.  The "
             "same seed gives the same text.",
    .options = options,
    .size = sizeof(generate_values),
    .defaults = &defaults,
    .fields = fv_gen_fields,
    .settings = offsetof(generate_values, settings),
    .operands = "[PROMPT]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
