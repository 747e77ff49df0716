/* translate.c - fovea translate: lines in, lines out, in the same order. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/translate.h"
#include "json.h"

typedef struct values {
    const char *device;
    const char *model;
    int64_t beam, nbest, threads, batch;
    int dtype;
    bool attention, json, stats;
    cli_settings settings;
} values;

static const values defaults = {.batch = 32};

static const cli_option options[] = {
    CLI_DIR(values, model, 'm', "model", "DIR",
            "a model directory: config.json, model.safetensors and its tokenizer"),
    CLI_INT(values, beam, 'b', "beam", "N", 1, 256, "beams; as the model says, else 4"),
    CLI_INT(values, nbest, 'n', "nbest", "N", 1, 256,
            "translations of each line; from 2 on: line, score and text, with tabs between"),
    CLI_FLAG(values, attention, 0, "attention",
             "how much each token of the translation attended to each of the source, mean of all "
             "layers and heads; as JSON"),
    CLI_CHOICE(values, dtype, 0, "dtype", cli_weights, CLI_WEIGHTS_HELP),
    CLI_INT(values, batch, 0, "batch", "N", 1, 4096, "lines that go through the model together"),
    CLI_DEVICE(values, device),
    CLI_INT(values, threads, 't', "threads", "N", 0, 4096, "0: all cores"),
    CLI_FLAG(values, json, 0, "json",
             "an object for each line: its translations with scores, ids and tokens"),
    CLI_FLAG(values, stats, 0, "stats",
             "at the end, on standard error: lines, tokens and seconds, as JSON"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'I like to eat apples.' | fovea translate -m fovea-demo/model", "one line"},
    {"fovea translate -m opus-mt-en-de --dtype q8 news.en > news.de",
     "a file, with weights of 8 bits"},
    {"fovea translate -m opus-mt-en-de --nbest 3 --beam 6 news.en",
     "the three best of each line with their scores"},
    {"fovea translate -m opus-mt-en-de --attention line.en",
     "which words of the source each word came from"},
    {0},
};

typedef struct work {
    const cli *c;
    const values *v;
    fv_translator *t;
    int64_t lines, tokens;
} work;

/* ---- output ---- */

static json_t *ids_json(const int32_t *ids, int64_t n)
{
    json_t *a = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(a, json_integer(ids[i]));
    return a;
}

static json_t *tokens_json(const fv_tok *t, const int32_t *ids, int64_t n)
{
    json_t *a = json_array();
    for (int64_t i = 0; i < n; i++) {
        const char *token = fv_tok_token(t, ids[i]);
        json_array_append_new(a, json_string(token ? token : ""));
    }
    return a;
}

static bool print_json(const work *w, const fv_translation *x)
{
    const fv_tok *tok = fv_translator_tok(w->t);
    json_t *all = json_array();
    for (int64_t i = 0; i < x->n_best; i++) {
        const fv_translated *b = &x->best[i];
        json_array_append_new(all,
                              json_pack("{s:s%, s:o, s:o, s:o}", "text", b->text, b->len, "score",
                                        cli_json_number(b->score), "ids", ids_json(b->ids, b->n),
                                        "tokens", tokens_json(tok, b->ids, b->n)));
    }
    json_t *line = json_pack("{s:I, s:o, s:o}", "line", (json_int_t)x->line, "source",
                             tokens_json(tok, x->source, x->n_source), "translations", all);
    if (line && x->cut) json_object_set_new(line, "cut", json_true());
    if (line && w->v->attention)
        json_object_set_new(line, "attention",
                            cli_json_matrix(x->attention, NULL, x->attention ? x->best->n : 0,
                                            x->n_source));
    return cli_print_json(w->c, line) == CLI_OK;
}

/* A translation is one line whatever the model said. */
static void print_line(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) putchar(s[i] == '\n' || s[i] == '\r' ? ' ' : s[i]);
    putchar('\n');
}

static bool print(void *user, const fv_translation *x)
{
    work *w = user;
    bool ok = true;
    if (x->cut)
        fprintf(
            stderr,
            "%s: line %lld has too many tokens for the model; what is beyond %lld was left out\n",
            w->c->name, (long long)x->line, (long long)x->n_source);
    if (w->v->json || w->v->attention)
        ok = print_json(w, x);
    else if (w->v->nbest < 2)
        print_line(x->best->text, x->best->len);
    else
        for (int64_t i = 0; i < x->n_best; i++) {
            printf("%lld\t%.6f\t", (long long)x->line, x->best[i].score);
            print_line(x->best[i].text, x->best[i].len);
        }
    w->lines++;
    w->tokens += x->best->n;
    return ok && !fflush(stdout) && !ferror(stdout);
}

/* ---- input ---- */

/* Lines as they come from standard input: all that are there, and at least one. */
typedef struct reader {
    char *text;
    size_t used, capacity;
    const char **line;
    size_t *len;
    size_t n, most; /* lines found, and room for them */
    size_t taken;   /* bytes that they are */
    bool ended;
} reader;

enum { AT_ONCE = 4096 }; /* lines */

static bool more_waits(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static bool read_some(reader *r)
{
    if (r->capacity - r->used < 65536) {
        char *bigger = realloc(r->text, r->capacity * 2 + 131072);
        if (!bigger) return false;
        r->text = bigger;
        r->capacity = r->capacity * 2 + 131072;
    }
    ssize_t got;
    do got = read(STDIN_FILENO, r->text + r->used, r->capacity - r->used);
    while (got < 0 && errno == EINTR);
    if (got > 0) r->used += (size_t)got;
    r->ended = got == 0;
    return got >= 0;
}

static bool add_line(reader *r, size_t from, size_t to)
{
    if (r->n == r->most) {
        size_t most = r->most * 2 + 64;
        const char **line = realloc(r->line, most * sizeof *line);
        if (line) r->line = line;
        size_t *len = line ? realloc(r->len, most * sizeof *len) : NULL;
        if (!len) return false;
        r->len = len;
        r->most = most;
    }
    r->line[r->n] = r->text + from;
    r->len[r->n++] = to > from && r->text[to - 1] == '\r' ? to - from - 1 : to - from;
    return true;
}

static size_t whole_lines(const reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->used; i++) n += r->text[i] == '\n';
    return n;
}

/* Finds the lines that have come whole; at the end what is left is one too. */
static bool cut_lines(reader *r)
{
    r->n = r->taken = 0;
    for (size_t i = 0; i < r->used; i++)
        if (r->text[i] == '\n') {
            if (!add_line(r, r->taken, i)) return false;
            r->taken = i + 1;
        }
    if (r->ended && r->taken < r->used) {
        if (!add_line(r, r->taken, r->used)) return false;
        r->taken = r->used;
    }
    return true;
}

static int from_input(work *w)
{
    reader r = {0};
    fv_err e;
    int code = CLI_OK;
    int64_t first = 1;
    while (code == CLI_OK && !r.ended) {
        bool ok = true;
        do ok = read_some(&r);
        while (ok && !r.ended && (!whole_lines(&r) || (whole_lines(&r) < AT_ONCE && more_waits())));
        if (!ok || !cut_lines(&r))
            code = cli_fail(w->c, "cannot read standard input: %s", strerror(errno));
        fv_lines lines = {.text = r.line, .len = r.len, .n = (int64_t)r.n, .first = first};
        if (code == CLI_OK && fv_translate(w->t, lines, print, w, &e)) code = cli_error(w->c, &e);
        first += (int64_t)r.n;
        if (r.used) memmove(r.text, r.text + r.taken, r.used - r.taken);
        r.used -= r.taken;
    }
    free(r.text);
    free(r.line);
    free(r.len);
    return code;
}

static int from_file(work *w, const char *path)
{
    fv_err e;
    fv_textfile *text;
    if (fv_textfile_open(&text, NULL, path, &e)) return cli_error(w->c, &e);
    int64_t n = fv_textfile_count(text);
    const char **line = malloc((size_t)(n + 1) * sizeof *line);
    size_t *len = malloc((size_t)(n + 1) * sizeof *len);
    int code = line && len ? CLI_OK : cli_fail(w->c, "out of memory");
    for (int64_t i = 0; code == CLI_OK && i < n; i++) line[i] = fv_textfile_line(text, i, &len[i]);
    if (code == CLI_OK &&
        fv_translate(w->t, (fv_lines){.text = line, .len = len, .n = n, .name = path}, print, w,
                     &e))
        code = cli_error(w->c, &e);
    free(line);
    free(len);
    fv_textfile_close(text);
    return code;
}

/* ---- the command ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int set_up(const work *w)
{
    fv_gen_opt *o = fv_translator_gen(w->t);
    const fv_family *f = fv_model_family(fv_translator_model(w->t));
    int64_t n_positions = f->context ? f->context(fv_model_self(fv_translator_model(w->t))) : 0;
    if (w->v->beam) o->num_beams = w->v->beam;
    if (w->v->nbest) o->num_return_sequences = w->v->nbest;
    int code = cli_apply(w->c, &w->v->settings, o, fv_gen_fields);
    if (code != CLI_OK) return code;
    if (!o->do_sample && o->num_return_sequences > o->num_beams)
        return cli_usage(w->c,
                         "--nbest %lld needs as many beams, and there are %lld; say --beam %lld",
                         (long long)o->num_return_sequences, (long long)o->num_beams,
                         (long long)o->num_return_sequences);
    if (n_positions && o->max_length > n_positions)
        return cli_usage(w->c, "--max-length %lld: the model has %lld places",
                         (long long)o->max_length, (long long)n_positions);
    return CLI_OK;
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    work w = {.c = c, .v = v};
    fv_translate_opt how = {.batch = v->batch, .attention = v->attention};
    fv_device *d = NULL;
    fv_err e;
    if (!v->model) return cli_usage(c, "a model is needed: -m DIR");
    cli_choose_weights(v->dtype, &how.weights, &how.widen);
    double start = now();
    bool failed = fv_device_open(&d, v->device, (fv_device_opt){.threads = (int)v->threads}, &e) ||
                  fv_translator_open(&w.t, d, v->model, how, &e);
    double opened = now();
    int code = failed ? cli_error(c, &e) : set_up(&w);
    if (code == CLI_OK) code = n ? from_file(&w, operand[0]) : from_input(&w);
    if (code == CLI_OK && v->stats)
        fprintf(stderr, "{\"lines\":%lld,\"tokens\":%lld,\"open_seconds\":%.3f,\"seconds\":%.3f}\n",
                (long long)w.lines, (long long)w.tokens, opened - start, now() - opened);
    fv_translator_close(w.t);
    fv_device_close(d);
    return code;
}

const cli_command translate_command = {
    .name = "translate",
    .summary = "lines of text through a model with an encoder and a decoder",
    .about = "Translates a file, plain or gzip, or standard input, line by line.  Lines come out "
             "in the order they went in, as "
             "soon as they are done; from standard input all lines that are waiting are taken "
             "together, so it can be used in a "
             "conversation.  Lines of like length go through the model together, which changes the "
             "time and nothing else.\n\n"
             "An empty line gives an empty line.  A line with more tokens than the model has "
             "places is cut, with a message that "
             "names it.  A line that is not UTF-8 ends the command with a message that names it; "
             "of a file, before anything is "
             "translated.\n\n"
             "How to generate stands in the model's generation_config.json, or else config.json; "
             "options override it and have the "
             "names of transformers' generate.",
    .options = options,
    .size = sizeof(values),
    .defaults = &defaults,
    .fields = fv_gen_fields,
    .settings = offsetof(values, settings),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
