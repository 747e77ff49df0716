/* eval_transcribe.c - word and character error rates of transcriptions, by a model or from a file.
 *
 * Each is counted twice, since both are published: of the texts as they are, and of their words in
 * lower case without punctuation.  The records that are wrong are shown word by word, those with
 * the most edits first. */
#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

enum { SHOWN = 10 };

typedef struct rates {
    fv_edits words, plain_words, chars, plain_chars;
} rates;

/* Four rates: words and characters, each as written and without case and punctuation, because
 * models and references disagree about those. */
static fv_status count(rates *x, fv_eval_run *r, const char *text, const char *reference, fv_err *e)
{
    fv_edits *to[] = {&x->words, &x->plain_words, &x->chars, &x->plain_chars};
    fv_status st = FV_OK;
    for (int i = 0; !st && i < 4; i++) {
        fv_edit_opt how = {.chars = i > 1, .plain = i % 2};
        st = fv_edits_add(to[i], &r->env, text, reference, how, NULL, NULL, e);
    }
    return st;
}

/* ---- alignments ---- */

typedef struct lines {
    fv_buf said, written;
} lines;

/* Words below each other; stars where one side has none.  Columns are bytes: accents shift them. */
static void put_step(void *user, char edit, const char *said, const char *written)
{
    lines *l = user;
    const char *a = edit == 'I' ? "***" : said, *b = edit == 'D' ? "***" : written;
    size_t n = strlen(a), m = strlen(b);
    int width = (int)(n > m ? n : m);
    fv__buf_fmt(&l->said, " %-*s", width, a);
    fv__buf_fmt(&l->written, " %-*s", width, b);
}

static int64_t wrong(const fv_edits *x) { return x->substituted + x->deleted + x->inserted; }

/* What was said above what was written, word under word. */
static fv_status put_alignment(fv_eval_run *r, const char *name, const char *text,
                               const char *reference, fv_err *e)
{
    lines l = {{.env = &r->env}, {.env = &r->env}};
    fv_edits x = {0};
    fv_status st = fv_edits_add(&x, &r->env, text, reference, (fv_edit_opt){.plain = true},
                                put_step, &l, e);
    if (!st)
        fv__buf_fmt(&r->out, "%s\n  said   %s\n  written%s\n", name, l.said.data ? l.said.data : "",
                    l.written.data ? l.written.data : "");
    fv__buf_free(&l.said);
    fv__buf_free(&l.written);
    return st;
}

typedef struct worst {
    int64_t wrong, record;
} worst;

/* The worst recordings first; they are worth listening to. */
static int most_first(const void *a, const void *b)
{
    const worst *x = a, *y = b;
    if (x->wrong != y->wrong) return x->wrong > y->wrong ? -1 : 1;
    return x->record < y->record ? -1 : 1;
}

/* ---- the report ---- */

/* (substituted + deleted + inserted) / words said: more than 100 % where much is inserted. */
static void put_rate(fv_buf *b, const char *name, const fv_edits *x)
{
    fv__buf_fmt(b, "%-12s %6.2f  %lld substituted, %lld deleted, %lld inserted of %lld\n", name,
                fv_error_rate(*x), (long long)x->substituted, (long long)x->deleted,
                (long long)x->inserted, (long long)(x->right + x->substituted + x->deleted));
}

static void put_rate_json(fv_buf *b, const char *key, const fv_edits *x)
{
    fv__json_key(b, key);
    fv__json_begin(b, '{');
    fv__json_number_at(b, "rate", fv_error_rate(*x));
    fv__json_int_at(b, "right", x->right);
    fv__json_int_at(b, "substituted", x->substituted);
    fv__json_int_at(b, "deleted", x->deleted);
    fv__json_int_at(b, "inserted", x->inserted);
    fv__json_end(b, '}');
}

static void put_rates(fv_eval_run *r, const rates *x, int64_t n)
{
    fv_buf *b = &r->out;
    if (r->opt->json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "task", "transcribe", 10);
        fv__json_int_at(b, "records", n);
        put_rate_json(b, "wer", &x->words);
        put_rate_json(b, "wer_plain", &x->plain_words);
        put_rate_json(b, "cer", &x->chars);
        put_rate_json(b, "cer_plain", &x->plain_chars);
        fv__buf_str(b, "}\n");
        return;
    }
    put_rate(b, "WER", &x->words);
    put_rate(b, "WER, plain", &x->plain_words);
    put_rate(b, "CER", &x->chars);
    put_rate(b, "CER, plain", &x->plain_chars);
}

/* sounds: paths of the recordings, or NULL where there are texts only. */
static fv_status report(fv_eval_run *r, const fv_eval_texts *texts, const fv_eval_texts *reference,
                        const fv_eval_texts *sounds, fv_err *e)
{
    rates all = {{0}, {0}, {0}, {0}};
    int64_t n = texts->n;
    size_t bytes = (size_t)n * sizeof(worst);
    worst *order = fv__alloc(&r->env, bytes);
    fv_status st = order ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; !st && i < n; i++) {
        int64_t before = wrong(&all.plain_words);
        st = count(&all, r, texts->at[i], reference->at[i], e);
        order[i] = (worst){wrong(&all.plain_words) - before, i};
    }
    if (!st) put_rates(r, &all, n);
    if (!st) qsort(order, (size_t)n, sizeof *order, most_first);
    for (int64_t k = 0; !st && !r->opt->json && k < n && k < SHOWN && order[k].wrong; k++) {
        char name[64];
        int64_t i = order[k].record;
        snprintf(name, sizeof name, "record %lld", (long long)i + 1);
        st = put_alignment(r, sounds ? sounds->at[i] : name, texts->at[i], reference->at[i], e);
    }
    fv__free(&r->env, order, bytes);
    return st;
}

/* Either a model hears the recordings, or what was written already is compared. */
static fv_status run(fv_eval_run *r, fv_err *e)
{
    fv_eval_texts texts = {0}, reference = {0}, heard = {0};
    bool made = false;
    fv_status st = fv__eval_sides(r, &texts, &reference, &made, e);
    if (!st && !made) st = fv__eval_pipeline(r, "transcribe", NULL, 0, &texts, &heard, e);
    if (!st) st = report(r, made ? &texts : &heard, &reference, made ? NULL : &texts, e);
    fv__eval_texts_free(&texts);
    fv__eval_texts_free(&reference);
    fv__eval_texts_free(&heard);
    return st;
}

/* a model that translates has a head of the same job: it is said by --task */
static const fv_head_job heads[] = {FV_HEAD_BASE};
const fv_task_eval fv__eval_transcribe = {.name = "transcribe", .heads = heads, .run = run};
