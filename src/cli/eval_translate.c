/* eval_translate.c - BLEU and chrF of translations, by a model or from a file. */
#include "eval.h"

#include <time.h>

#include "fovea/translate.h"

/* ---- translating ---- */

typedef struct work {
    const cli *c;
    const eval_values *v;
    const char *file; /* of the sources */
    eval_texts hypothesis;
    double seconds;
} work;

static bool take(void *user, const fv_translation *x)
{
    work *w = user;
    if (x->cut)
        fprintf(stderr,
                "%s: %s: line %lld has too many tokens for the model; what is beyond %lld was left "
                "out\n",
                w->c->name, w->file, (long long)x->line, (long long)x->n_source);
    return eval_add_text(&w->hypothesis, x->best->text, x->best->len);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int translate(work *w, const eval_texts *source)
{
    const eval_values *v = w->v;
    fv_translate_opt how = {.batch = v->batch};
    fv_device *d = NULL;
    fv_translator *t = NULL;
    fv_err e;
    int code = eval_new_texts(w->c, &w->hypothesis, source->n);
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    if (code == CLI_OK && (fv_device_open(&d, v->model.device,
                                          (fv_device_opt){.threads = (int)v->model.threads}, &e) ||
                           fv_translator_open(&t, d, v->model.dir, how, &e)))
        code = cli_error(w->c, &e);
    if (code == CLI_OK && v->beam) fv_translator_gen(t)->num_beams = v->beam;
    if (code == CLI_OK) code = cli_apply(w->c, &v->settings, fv_translator_gen(t), fv_gen_fields);
    double start = now();
    fv_lines lines = {.text = (const char *const *)source->at,
                      .len = source->len,
                      .n = source->n,
                      .name = w->file};
    if (code == CLI_OK && fv_translate(t, lines, take, w, &e)) code = cli_error(w->c, &e);
    if (code == CLI_OK && w->hypothesis.n < source->n) code = cli_fail(w->c, "out of memory");
    w->seconds = now() - start;
    fv_translator_close(t);
    fv_device_close(d);
    return code;
}

/* ---- scores ---- */

static json_t *bleu_json(const fv_bleu *b)
{
    return json_pack("{s:f, s:s, s:[f,f,f,f], s:f, s:I, s:I}", "score", b->score, "signature",
                     b->signature, "precisions", b->precision[0], b->precision[1], b->precision[2],
                     b->precision[3], "brevity_penalty", b->brevity, "length",
                     (json_int_t)b->length, "reference_length", (json_int_t)b->reference_length);
}

static void bleu_line(const char *name, const fv_bleu *b)
{
    printf("%-16s %6.2f  %.1f/%.1f/%.1f/%.1f  BP %.3f, %lld tokens for %lld  %s\n", name, b->score,
           b->precision[0], b->precision[1], b->precision[2], b->precision[3], b->brevity,
           (long long)b->length, (long long)b->reference_length, b->signature);
}

static int report(const work *w, const eval_texts *reference)
{
    const char *const *texts_of = (const char *const *)w->hypothesis.at, *const *wanted =
                                                                             (const char *const *)
                                                                                 reference->at;
    int64_t n = reference->n;
    fv_bleu usual, plain;
    fv_chrf chrf;
    fv_err e;
    if (fv_bleu_score(&usual, NULL, texts_of, wanted, n,
                      (fv_bleu_opt){FV_BLEU_13A, w->v->lowercase}, &e) ||
        fv_bleu_score(&plain, NULL, texts_of, wanted, n,
                      (fv_bleu_opt){FV_BLEU_NONE, w->v->lowercase}, &e) ||
        fv_chrf_score(&chrf, NULL, texts_of, wanted, n, &e))
        return cli_error(w->c, &e);
    if (w->v->json) {
        json_t *all = json_pack("{s:s, s:I, s:o, s:o, s:{s:f, s:s}}", "task", "translate", "lines",
                                (json_int_t)n, "bleu", bleu_json(&usual), "bleu_tokenised",
                                bleu_json(&plain), "chrf", "score", chrf.score, "signature",
                                chrf.signature);
        if (all && w->v->model.dir) json_object_set_new(all, "seconds", json_real(w->seconds));
        return cli_print_json(w->c, all);
    }
    bleu_line("BLEU", &usual);
    bleu_line("BLEU, tokenised", &plain);
    printf("%-16s %6.2f  %s\n", "chrF2", chrf.score, chrf.signature);
    return CLI_OK;
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    work w = {.c = c, .v = v, .file = file ? file : v->source};
    eval_texts given = {0}, reference = {0};
    bool made;
    int code = eval_read_sides(c, v, file, &given, &reference, &made);
    if (code == CLI_OK && made) {
        w.hypothesis = given;
        given = (eval_texts){0};
    } else if (code == CLI_OK) {
        code = translate(&w, &given);
    }
    if (code == CLI_OK) code = eval_write_texts(c, v, &w.hypothesis);
    if (code == CLI_OK) code = report(&w, &reference);
    eval_free_texts(&given);
    eval_free_texts(&reference);
    eval_free_texts(&w.hypothesis);
    return code;
}

static const char *const heads[] = {"ForConditionalGeneration", "MTModel", NULL};
const eval_kind eval_translate = {.name = "translate", .heads = heads, .run = run};
