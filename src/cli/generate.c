/* generate.c - fovea generate: text from prompts, as it comes or many at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "write.h"

typedef struct generate_values {
    writer_values w;
    const char *file;
    bool echo;
    int64_t batch;
} generate_values;

static const cli_option options[] = {
    WRITER_OPTIONS(generate_values),
    CLI_FILE(generate_values, file, 'f', "file", "FILE", "the prompt is the text of a file"),
    CLI_FLAG(generate_values, echo, 'e', "echo", "print the prompt before what follows it"),
    CLI_INT(generate_values, batch, 'b', "batch", "N", 1, 1024, "lines of standard input that go through the model together"),
    GENERATE_OPTIONS(generate_values),
    {0},
};

static const generate_values defaults = {.batch = 16};

static const cli_example examples[] = {
    {"fovea generate -m gpt2 'The meaning of life is'", "greedy, or as the model's generation_config.json says"},
    {"fovea generate -m gpt2 --temperature 0.8 --top-p 0.95 --seed 7 'Once upon a time'", "drawn"},
    {"fovea generate -m t5-small --num-beams 4 'translate English to German: The house is small.'", "with an encoder"},
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
    if (!code && fv_generate(&out, w->device, w->model, &at, &prompt->n, 1, &w->gen, &s.e)) code = cli_error(w->c, &s.e);
    if (!code) {
        fv_generated_free(&out);
        if (s.failed || fv_tok_stream_finish(s.s, &text, &len, &s.e)) code = cli_error(w->c, &s.e);
    }
    if (!code) {
        fwrite(text, 1, len, stdout);
        putchar('\n');
    }
    if (s.s) fv_tok_stream_free(s.s);
    return code;
}

/* ---- many, when they are done ---- */

static int print_one(writer *w, const generate_values *v, const char *text, size_t len, const ids *prompt, const fv_hyp *h)
{
    char *more;
    size_t n;
    int code = writer_decode(w, &more, &n, prompt, h->ids, h->n);
    if (!code && v->w.json) {
        code = cli_print_json(w->c, json_pack("{s:s%, s:s%, s:I, s:f}", "prompt", text, len, "text", more, n, "tokens",
                                              (json_int_t)h->n, "score", h->score));
    } else if (!code) {
        if (v->echo) fwrite(text, 1, len, stdout);
        fwrite(more, 1, n, stdout);
        putchar('\n');
    }
    free(more);
    return code;
}

static int write_batch(writer *w, const generate_values *v, const lines *in, int64_t from, int64_t n)
{
    fv_err e;
    fv_generated out = {0};
    int code = CLI_OK;
    ids *prompt = calloc((size_t)n, sizeof *prompt);
    const int32_t **at = calloc((size_t)n, sizeof *at);
    int64_t *len = calloc((size_t)n, sizeof *len);
    if (!prompt || !at || !len) code = cli_fail(w->c, "out of memory");
    for (int64_t i = 0; i < n && !code; i++) {
        code = writer_encode(w, &prompt[i], in->at[from + i], in->len[from + i]);
        at[i] = prompt[i].at;
        len[i] = prompt[i].n;
    }
    if (!code && fv_generate(&out, w->device, w->model, at, len, n, &w->gen, &e)) code = cli_error(w->c, &e);
    for (int64_t i = 0; i < out.n * out.each && !code; i++) {
        int64_t k = i / out.each;
        code = print_one(w, v, in->at[from + k], in->len[from + k], &prompt[k], &out.hyp[i]);
    }
    fv_generated_free(&out);
    for (int64_t i = 0; prompt && i < n; i++) ids_free(&prompt[i]);
    free(prompt);
    free(at);
    free(len);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const generate_values *v = values;
    writer w;
    lines in = {0};
    char *text = n ? operand[0] : NULL;
    size_t len = n ? strlen(text) : 0;
    if (n && v->file) return cli_usage(c, "a prompt and --file are one prompt too many");
    int code = writer_open(&w, c, &v->w, NULL, 128);
    if (!code && !n) code = read_lines(c, &in, v->file, v->file != NULL);
    lines one = {.at = &text, .len = &len, .n = 1}, *all = n ? &one : &in;
    bool live = all->n == 1 && !v->w.json && w.gen.num_beams == 1 && w.gen.num_return_sequences == 1;
    ids prompt = {0};
    if (!code && live) {
        code = writer_encode(&w, &prompt, all->at[0], all->len[0]);
        if (!code && v->echo) fwrite(all->at[0], 1, all->len[0], stdout);
        if (!code) code = stream_one(&w, &prompt);
    }
    for (int64_t i = 0; !code && !live && i < all->n; i += v->batch)
        code = write_batch(&w, v, all, i, all->n - i < v->batch ? all->n - i : v->batch);
    ids_free(&prompt);
    free_lines(&in);
    writer_close(&w);
    return code;
}

const cli_command generate_command = {
    .name = "generate",
    .summary = "text that follows a prompt",
    .about = "Continues a prompt with a language model, or answers a source with a model that has an encoder.  The prompt is the "
             "argument, the text of a file, or each line of standard input.  One prompt is written as it is generated; of many, "
             "--batch go through the model together, and each gives the same text as alone.\n\n"
             "What the command line does not say comes from the model's generation_config.json; names and meanings are those of "
             "transformers.  A temperature, top-k, top-p, min-p or typical-p means drawing.  The same seed gives the same text.",
    .options = options,
    .size = sizeof(generate_values),
    .defaults = &defaults,
    .operands = "[PROMPT]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
