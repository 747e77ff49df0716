/* eval_translate.c - BLEU, chrF and error rates of translations, by a model or from a file.
 *
 * Two BLEUs are printed because two are in use: that of plain text, with the tokens of
 * mteval-v13a, and that of text which was tokenised before, by blanks. Numbers compare only with
 * equal signatures, so they are printed with them. Time counts the pipeline alone, not opening the
 * model.
 *
 * Where there is one right text and not many, as in pronunciation, papers count errors: texts that
 * are no reference (their "word error rate": the text is a word), and the edits of what stands
 * between blanks (their "phoneme error rate"), against the reference with the fewest. */
#include <stdio.h>
#include <time.h>

#include "task_pipeline.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put_bleu(fv_buf *b, const char *key, const fv_bleu *x)
{
    fv__json_key(b, key);
    fv__json_begin(b, '{');
    fv__json_number_at(b, "score", x->score);
    fv__json_text_at(b, "signature", x->signature, strlen(x->signature));
    fv__json_key(b, "precisions");
    fv__json_begin(b, '[');
    for (int i = 0; i < 4; i++) fv__json_put_number(b, x->precision[i]);
    fv__json_end(b, ']');
    fv__json_number_at(b, "brevity_penalty", x->brevity);
    fv__json_int_at(b, "length", x->length);
    fv__json_int_at(b, "reference_length", x->reference_length);
    fv__json_end(b, '}');
}

static void put_bleu_line(fv_buf *b, const char *name, const fv_bleu *x)
{
    fv__buf_fmt(b, "%-16s %6.2f  %.1f/%.1f/%.1f/%.1f  BP %.3f, %lld tokens for %lld  %s\n", name,
                x->score, x->precision[0], x->precision[1], x->precision[2], x->precision[3],
                x->brevity, (long long)x->length, (long long)x->reference_length, x->signature);
}

/* ---- errors ---- */

typedef struct errors {
    fv_edits words;
    int64_t exact;
} errors;

static int64_t wrong(const fv_edits *x) { return x->substituted + x->deleted + x->inserted; }

/* Adds the edits of a text against that of its references which needs the fewest. */
static fv_status add_errors(errors *x, const fv_env *env, const char *text, const char *all,
                            fv_err *e)
{
    fv_edits best = {.substituted = INT32_MAX};
    fv_buf one = {.env = env};
    fv_status st = FV_OK;
    for (const char *at = all; !st && at;) {
        size_t n = strcspn(at, FV_NEXT_TEXT);
        fv_edits k = {0};
        one.len = 0;
        fv__buf_add(&one, at, n);
        fv__buf_add(&one, "", 1);
        if (one.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
        if (!st) st = fv_edits_add(&k, env, text, one.data, (fv_edit_opt){0}, NULL, NULL, e);
        if (!st && wrong(&k) < wrong(&best)) best = k;
        at = at[n] ? at + n + 1 : NULL;
    }
    fv__buf_free(&one);
    if (st) return st;
    x->words.right += best.right;
    x->words.substituted += best.substituted;
    x->words.deleted += best.deleted;
    x->words.inserted += best.inserted;
    x->exact += !wrong(&best);
    return FV_OK;
}

/* Of several references the best or the nearest counts, as each metric defines it. */
static fv_status report(fv_eval_run *r, const fv_eval_texts *texts, const fv_eval_texts *reference,
                        double seconds, fv_err *e)
{
    const char *const *given = (const char *const *)texts->at;
    const char *const *wanted = (const char *const *)reference->at;
    fv_bleu usual, plain;
    fv_chrf chrf;
    errors bad = {{0}, 0};
    fv_buf *b = &r->out;
    fv_bleu_opt tokenised = {FV_BLEU_NONE, r->opt->lowercase}, by_13a = tokenised;
    by_13a.tokens = FV_BLEU_13A;
    fv_status st = fv_bleu_score(&usual, &r->env, given, wanted, texts->n, by_13a, e);
    if (!st) st = fv_bleu_score(&plain, &r->env, given, wanted, texts->n, tokenised, e);
    if (!st) st = fv_chrf_score(&chrf, &r->env, given, wanted, texts->n, e);
    for (int64_t i = 0; !st && i < texts->n; i++)
        st = add_errors(&bad, &r->env, given[i], wanted[i], e);
    if (st) return st;
    double not_exact = 100 * (1 - (double)bad.exact / (double)texts->n);
    if (!r->opt->json) {
        put_bleu_line(b, "BLEU", &usual);
        put_bleu_line(b, "BLEU, tokenised", &plain);
        fv__buf_fmt(b, "%-16s %6.2f  %s\n", "chrF2", chrf.score, chrf.signature);
        fv__buf_fmt(b, "%-16s %6.2f  %lld substituted, %lld deleted, %lld inserted of %lld\n",
                    "word error rate", fv_error_rate(bad.words), (long long)bad.words.substituted,
                    (long long)bad.words.deleted, (long long)bad.words.inserted,
                    (long long)(bad.words.right + bad.words.substituted + bad.words.deleted));
        fv__buf_fmt(b, "%-16s %6.2f  %lld of %lld\n", "texts not exact", not_exact,
                    (long long)(texts->n - bad.exact), (long long)texts->n);
        return FV_OK;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "translate", 9);
    fv__json_int_at(b, "lines", texts->n);
    put_bleu(b, "bleu", &usual);
    put_bleu(b, "bleu_tokenised", &plain);
    fv__json_key(b, "chrf");
    fv__json_begin(b, '{');
    fv__json_number_at(b, "score", chrf.score);
    fv__json_text_at(b, "signature", chrf.signature, strlen(chrf.signature));
    fv__json_end(b, '}');
    fv__json_number_at(b, "wer", fv_error_rate(bad.words));
    fv__json_number_at(b, "not_exact", not_exact);
    if (r->opt->model) fv__json_number_at(b, "seconds", seconds);
    fv__buf_str(b, "}\n");
    return FV_OK;
}

/* Either a model translates the sources, or what was written already is compared. */
static fv_status run(fv_eval_run *r, fv_err *e)
{
    fv_eval_texts texts = {0}, reference = {0}, made = {0};
    char beams[32];
    fv_setting beam = {"beam", beams};
    bool written = false;
    snprintf(beams, sizeof beams, "%lld", (long long)r->opt->beam);
    fv_status st = fv__eval_sides(r, &texts, &reference, &written, e);
    double start = now();
    if (!st && !written)
        st = fv__eval_pipeline(r, "translate", &beam, r->opt->beam > 0, &texts, &made, e);
    if (!st) st = report(r, written ? &texts : &made, &reference, now() - start, e);
    fv__eval_texts_free(&texts);
    fv__eval_texts_free(&reference);
    fv__eval_texts_free(&made);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_SEQ2SEQ, FV_HEAD_BASE};
const fv_task_eval fv__eval_translate = {.name = "translate", .heads = heads, .run = run};
