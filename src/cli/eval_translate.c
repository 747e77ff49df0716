/* eval_translate.c - BLEU and chrF of translations, by a model or from a file. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fovea/translate.h"

/* Texts of one side, NUL-terminated. */
typedef struct texts {
    char **at;
    int64_t n;
} texts;

static void free_texts(texts *t)
{
    for (int64_t i = 0; t->at && i < t->n; i++) free(t->at[i]);
    free(t->at);
    *t = (texts){0};
}

static char *copy(const char *s, size_t n)
{
    char *p = malloc(n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

static fv_status read_texts(texts *out, const char *path, fv_err *e)
{
    fv_textfile *file;
    fv_status st = fv_textfile_open(&file, NULL, path, e);
    if (st) return st;
    int64_t n = fv_textfile_count(file);
    *out = (texts){.at = calloc((size_t)n + 1, sizeof *out->at), .n = n};
    for (int64_t i = 0; out->at && i < n && !st; i++) {
        size_t len;
        const char *line = fv_textfile_line(file, i, &len);
        if (!(out->at[i] = copy(line, len))) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    }
    if (!out->at) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    fv_textfile_close(file);
    return st;
}

/* ---- translating ---- */

typedef struct work {
    const cli *c;
    const eval_values *v;
    texts hypothesis;
    double seconds;
} work;

static bool take(void *user, const fv_translation *x)
{
    work *w = user;
    if (x->cut)
        fprintf(stderr, "%s: %s: line %lld has too many tokens for the model; what is beyond %lld was left out\n", w->c->name,
                w->v->source, (long long)x->line, (long long)x->n_source);
    return (w->hypothesis.at[w->hypothesis.n++] = copy(x->best->text, x->best->len)) != NULL;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int translate(work *w, const texts *source)
{
    const eval_values *v = w->v;
    fv_translate_opt how = {.batch = v->batch};
    fv_device *d = NULL;
    fv_translator *t = NULL;
    fv_err e;
    size_t *len = malloc((size_t)(source->n + 1) * sizeof *len);
    w->hypothesis.at = calloc((size_t)source->n + 1, sizeof *w->hypothesis.at);
    int code = len && w->hypothesis.at ? CLI_OK : cli_fail(w->c, "out of memory");
    for (int64_t i = 0; code == CLI_OK && i < source->n; i++) len[i] = strlen(source->at[i]);
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    if (code == CLI_OK && (fv_device_open(&d, v->model.device, (fv_device_opt){.threads = (int)v->model.threads}, &e) ||
                           fv_translator_open(&t, d, v->model.dir, how, &e)))
        code = cli_error(w->c, &e);
    if (code == CLI_OK && v->beam) fv_translator_gen(t)->num_beams = v->beam;
    if (code == CLI_OK) code = cli_apply(w->c, &v->settings, fv_translator_gen(t), fv_gen_fields);
    double start = now();
    fv_lines lines = {.text = (const char *const *)source->at, .len = len, .n = source->n, .name = v->source};
    if (code == CLI_OK && fv_translate(t, lines, take, w, &e)) code = cli_error(w->c, &e);
    if (code == CLI_OK && w->hypothesis.n < source->n) code = cli_fail(w->c, "out of memory");
    w->seconds = now() - start;
    fv_translator_close(t);
    fv_device_close(d);
    free(len);
    return code;
}

static int write_predictions(const work *w)
{
    FILE *f;
    int code = eval_open_predictions(w->c, w->v, &f);
    for (int64_t i = 0; f && i < w->hypothesis.n; i++) fprintf(f, "%s\n", w->hypothesis.at[i]);
    return eval_close_predictions(w->c, w->v, f, code);
}

/* ---- scores ---- */

static json_t *bleu_json(const fv_bleu *b)
{
    return json_pack("{s:f, s:s, s:[f,f,f,f], s:f, s:I, s:I}", "score", b->score, "signature", b->signature, "precisions",
                     b->precision[0], b->precision[1], b->precision[2], b->precision[3], "brevity_penalty", b->brevity, "length",
                     (json_int_t)b->length, "reference_length", (json_int_t)b->reference_length);
}

static void bleu_line(const char *name, const fv_bleu *b)
{
    printf("%-16s %6.2f  %.1f/%.1f/%.1f/%.1f  BP %.3f, %lld tokens for %lld  %s\n", name, b->score, b->precision[0],
           b->precision[1], b->precision[2], b->precision[3], b->brevity, (long long)b->length, (long long)b->reference_length,
           b->signature);
}

static int report(const work *w, const texts *reference)
{
    const char *const *texts_of = (const char *const *)w->hypothesis.at, *const *wanted = (const char *const *)reference->at;
    int64_t n = reference->n;
    fv_bleu usual, plain;
    fv_chrf chrf;
    fv_err e;
    if (fv_bleu_score(&usual, NULL, texts_of, wanted, n, (fv_bleu_opt){FV_BLEU_13A, w->v->lowercase}, &e) ||
        fv_bleu_score(&plain, NULL, texts_of, wanted, n, (fv_bleu_opt){FV_BLEU_NONE, w->v->lowercase}, &e) ||
        fv_chrf_score(&chrf, NULL, texts_of, wanted, n, &e))
        return cli_error(w->c, &e);
    if (w->v->json) {
        json_t *all = json_pack("{s:I, s:o, s:o, s:{s:f, s:s}}", "lines", (json_int_t)n, "bleu", bleu_json(&usual),
                                "bleu_tokenised", bleu_json(&plain), "chrf", "score", chrf.score, "signature", chrf.signature);
        if (all && w->v->model.dir) json_object_set_new(all, "seconds", json_real(w->seconds));
        return cli_print_json(w->c, all);
    }
    bleu_line("BLEU", &usual);
    bleu_line("BLEU, tokenised", &plain);
    printf("%-16s %6.2f  %s\n", "chrF2", chrf.score, chrf.signature);
    return CLI_OK;
}

static bool clear(const eval_values *v, const char *file)
{
    return !file && v->reference && (v->hypothesis ? !v->model.dir && !v->source && !v->predictions : v->model.dir && v->source);
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    work w = {.c = c, .v = v};
    texts given = {0}, reference = {0};
    const char *path = v->hypothesis ? v->hypothesis : v->source;
    fv_err e;
    if (!clear(v, file))
        return cli_usage(c, "translations take --reference FILE with -m DIR --source FILE, or with --hypothesis FILE");
    int code = read_texts(&given, path, &e) || read_texts(&reference, v->reference, &e) ? cli_error(c, &e) : CLI_OK;
    if (code == CLI_OK && given.n != reference.n)
        code = cli_fail(c, "%s has %lld lines and %s %lld", path, (long long)given.n, v->reference, (long long)reference.n);
    if (code == CLI_OK && !given.n) code = cli_fail(c, "%s: no lines", path);
    if (code == CLI_OK && v->hypothesis) {
        w.hypothesis = given;
        given = (texts){0};
    } else if (code == CLI_OK) {
        code = translate(&w, &given);
    }
    if (code == CLI_OK) code = write_predictions(&w);
    if (code == CLI_OK) code = report(&w, &reference);
    free_texts(&given);
    free_texts(&reference);
    free_texts(&w.hypothesis);
    return code;
}

static const char *const heads[] = {"ForConditionalGeneration", "MTModel", NULL};
const eval_kind eval_translate = {.name = "translate", .heads = heads, .run = run};
