/* eval_answer.c - answers to questions, judged as SQuAD does: exact matches and F1 of words.
 *
 * The best answer of each question is compared with all that are given for it, after SQuAD's
 * normalisation (lower case, no punctuation, no articles, single blanks): exact match, and the F1
 * of words. Both are means over questions, in per cent, as in the official script. */
#include <stdio.h>

#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_questions *all;
    double exact, f1; /* sums */
    int64_t done;
} work;

/* Predictions in SQuAD's own form, {"id": "answer", ..}, one to a line. */
static fv_status judge(void *user, int64_t i, const void *result, size_t n, fv_err *e)
{
    work *w = user;
    const fv_question *q = fv_questions_at(w->all, i);
    double exact, f1;
    char number[32];
    fv_buf text = {.env = &w->r->env}, *b = &w->r->predictions;
    fv__buf_add(&text, result, n);
    fv_status st = text.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
    const char *answer = text.data ? text.data : "";
    if (!st) st = fv_answer_score(&exact, &f1, &w->r->env, answer, q->answer, q->n, e);
    if (!st) {
        snprintf(number, sizeof number, "%lld", (long long)w->done + 1);
        const char *id = q->id ? q->id : number;
        fv__buf_str(b, w->done ? ",\n" : "{");
        fv__json_key(b, id);
        fv__buf_str(b, " ");
        fv__json_put_text(b, answer, text.len);
        w->exact += exact;
        w->f1 += f1;
        w->done++;
    }
    fv__buf_free(&text);
    return st;
}

/* The best answer of each question; one that has none (SQuAD 2) is judged as the empty text. */
static fv_status run_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    const fv_eval_opt *o = w->r->opt;
    fv_answer_opt how = {.window = o->window,
                         .stride = o->stride,
                         .longest = o->longest,
                         .or_none = o->or_none};
    fv_answer *found = NULL;
    int64_t n_found = 0;
    fv_text *texts = fv__alloc(&w->r->env, (size_t)n * sizeof *texts);
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        const fv_question *q = fv_questions_at(w->all, from + i);
        texts[i] = (fv_text){.s = q->text,
                             .n = strlen(q->text),
                             .pair = q->context,
                             .pair_n = strlen(q->context)};
    }
    fv_status st = fv_task_answer(w->task, texts, n, how, &found, &n_found, e);
    for (int64_t i = 0, at = 0; i < n && !st; i++) {
        bool answered = at < n_found && found[at].text == i;
        fv__eval_give(out, answered ? found[at].s : "", answered ? found[at].n : 0);
        at += answered;
    }
    fv__free(&w->r->env, texts, (size_t)n * sizeof *texts);
    return st;
}

/* Per cent, the mean over questions of the best match among the answers given for each. */
static void report(const work *w)
{
    double exact = w->exact / (double)w->done, f1 = w->f1 / (double)w->done;
    fv_buf *b = &w->r->out;
    if (!w->r->opt->json) {
        fv__buf_fmt(b, "exact  %6.2f  of %lld questions\nF1     %6.2f\n", exact, (long long)w->done,
                    f1);
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "answer", 6);
    fv__json_int_at(b, "records", w->done);
    fv__json_number_at(b, "exact", exact);
    fv__json_number_at(b, "f1", f1);
    fv__buf_str(b, "}\n");
}

/* Predictions are SQuAD's own: one object of ids and texts, which its script evaluates. */
static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r};
    if (!r->opt->file)
        return fv_fail(e, FV_EUSAGE, "a file of questions is needed, in SQuAD's JSON");
    fv_status st = fv__eval_encoder(r, &w.task, FV_JOB_ANSWER, e);
    if (!st) st = fv_questions_open(&w.all, &r->env, r->opt->file, e);
    if (!st)
        st = fv__eval_slices(r, fv_questions_count(w.all), &(fv_slices){run_slice, judge, 0}, &w,
                             e);
    fv__buf_str(&r->predictions, "}\n");
    if (!st) report(&w);
    fv_questions_close(w.all);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_ANSWER, FV_HEAD_BASE};
const fv_task_eval fv__eval_answer = {.name = "answer", .heads = heads, .run = run};
