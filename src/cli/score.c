/* score.c - fovea score: how likely texts are under a model: perplexity and bits per byte. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "write.h"

typedef struct score_values {
    cli_model model;
    bool json, whole;
    int64_t window, stride;
} score_values;

static const cli_option options[] = {
    CLI_MODEL(score_values),
    CLI_FLAG(score_values, json, 0, "json", "print one JSON object a line"),
    CLI_FLAG(score_values, whole, 'w', "whole", "the input is one text, not one a line"),
    CLI_INT(score_values, window, 0, "window", "N", 0, 1 << 20,
            "tokens the model sees at a time; 0: as many as it can"),
    CLI_INT(score_values, stride, 0, "stride", "N", 0, 1 << 20,
            "tokens a window moves on by; 0: half a window"),
    {0},
};

static const cli_example examples[] = {
    {"fovea score -m gpt2 < sentences.txt", "perplexity of each line, then of all"},
    {"fovea score -m gpt2 --whole --stride 512 wiki.txt", "a long text by a sliding window"},
    {"fovea score -m gpt2 --whole --dtype q8 wiki.txt", "what eight-bit weights lose"},
    {"fovea score -m t5-small < pairs.tsv", "with an encoder: source, a tab, target"},
    {0},
};

typedef struct total {
    double log_p;
    int64_t tokens, bytes;
} total;

static double perplexity(const total *t)
{
    return exp(-t->log_p / (double)(t->tokens ? t->tokens : 1));
}
static double bits_per_byte(const total *t)
{
    return (0 - t->log_p) / log(2) / (double)(t->bytes ? t->bytes : 1);
}

/* Source, a tab, target. */
static int score_pair(writer *w, const fv_text *text, total *out)
{
    const char *tab = memchr(text->s, '\t', text->n);
    if (!tab)
        return cli_fail(w->c, "a line has no tab between source and target: \"%.*s\"",
                        text->n < 40 ? (int)text->n : 40, text->s);
    size_t first = (size_t)(tab - text->s);
    fv_text pair = {.s = text->s, .n = first, .pair = tab + 1, .pair_n = text->n - first - 1};
    out->bytes = (int64_t)pair.pair_n;
    return writer_score_pair(w, &pair, &out->log_p, &out->tokens);
}

static int print_score(writer *w, bool json, const fv_text *text, const total *t)
{
    if (!json) {
        printf("%.4f\t%.4f\t%lld\t", perplexity(t), bits_per_byte(t), (long long)t->tokens);
        if (text) fwrite(text->s, 1, text->n, stdout);
        puts(text ? "" : "all");
        return CLI_OK;
    }
    json_t *o = json_pack("{s:o, s:o, s:f, s:I, s:I}", "perplexity", cli_json_number(perplexity(t)),
                          "bits_per_byte", cli_json_number(bits_per_byte(t)), "log_probability",
                          t->log_p, "tokens", (json_int_t)t->tokens, "bytes", (json_int_t)t->bytes);
    if (text && o) json_object_set_new(o, "text", json_stringn(text->s, text->n));
    return cli_print_json(w->c, o);
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const score_values *v = values;
    writer w;
    cli_texts in = {0};
    total all = {0};
    int code = writer_open(&w, c, &v->model, NULL, NULL, 1);
    if (!code) code = cli_read_texts(c, n ? operand[0] : NULL, v->whole ? CLI_WHOLE : 0, &in);
    for (int64_t i = 0; i < in.n && !code; i++) {
        total one = {.bytes = (int64_t)in.at[i].n};
        code = w.encoder
                   ? score_pair(&w, &in.at[i], &one)
                   : writer_score(&w, &in.at[i], v->window, v->stride, &one.log_p, &one.tokens);
        all.log_p += one.log_p;
        all.tokens += one.tokens;
        all.bytes += one.bytes;
        if (!code && !v->whole) code = print_score(&w, v->json, &in.at[i], &one);
    }
    if (!code) code = print_score(&w, v->json, NULL, &all);
    cli_free_texts(&in);
    writer_close(&w);
    return code;
}

const cli_command score_command = {
    .name = "score",
    .summary = "how likely texts are: perplexity and bits per byte",
    .about = "Prints for each line of a file or of standard input: perplexity of a token, bits per "
             "byte of text, tokens, the "
             "line; and at the end the same for all together.  A text stands behind the token that "
             "texts begin with, where the "
             "model has one, so that every token of it counts.  A text longer than the model's "
             "context is read through a window "
             "that moves on by --stride tokens: each token then sees at least a window less a "
             "stride before it.\n\n"
             "For a model with an encoder a line holds source, a tab, and target, whose likelihood "
             "is told.",
    .options = options,
    .size = sizeof(score_values),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
