/* eval_answer.c - answers to questions, judged as SQuAD does: exact matches and F1 of words. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
    const cli *c;
    const eval_values *v;
    cli_task model;
    fv_questions *all;
    double exact, f1; /* sums */
    int64_t done;
    FILE *predictions;
} work;

/* SQuAD's own form, {"id": "answer", ..}, one to a line. */
static int write_prediction(const work *w, const fv_question *q, const char *text)
{
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)w->done + 1);
    json_t *id = json_string(q->id ? q->id : number), *answer = json_string(text);
    char *a = json_dumps(id, JSON_ENCODE_ANY), *b = json_dumps(answer, JSON_ENCODE_ANY);
    if (a && b) fprintf(w->predictions, "%s%s: %s", w->done ? ",\n" : "{", a, b);
    int code = a && b ? CLI_OK : cli_fail(w->c, "out of memory");
    free(a);
    free(b);
    json_decref(id);
    json_decref(answer);
    return code;
}

static int judge(work *w, const fv_question *q, const fv_answer *x)
{
    double exact, f1;
    fv_err e;
    char *text = x ? strndup(x->s, x->n) : strdup("");
    if (!text) return cli_fail(w->c, "out of memory");
    int code = fv_answer_score(&exact, &f1, NULL, text, q->answer, q->n, &e) ? cli_error(w->c, &e)
                                                                             : CLI_OK;
    if (code == CLI_OK && w->predictions) code = write_prediction(w, q, text);
    w->exact += exact;
    w->f1 += f1;
    w->done++;
    free(text);
    return code;
}

static int run_slice(void *user, int64_t from, int64_t n)
{
    work *w = user;
    const eval_values *v = w->v;
    fv_answer_opt how = {.window = v->window,
                         .stride = v->stride,
                         .longest = v->longest,
                         .or_none = v->or_none};
    fv_err e;
    fv_answer *found = NULL;
    int64_t n_found = 0;
    fv_text *texts = calloc((size_t)n, sizeof *texts);
    if (!texts) return cli_fail(w->c, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        const fv_question *q = fv_questions_at(w->all, from + i);
        texts[i] = (fv_text){.s = q->text,
                             .n = strlen(q->text),
                             .pair = q->context,
                             .pair_n = strlen(q->context)};
    }
    int code = fv_task_answer(w->model.task, texts, n, how, &found, &n_found, &e)
                   ? cli_error(w->c, &e)
                   : CLI_OK;
    for (int64_t i = 0, at = 0; i < n && code == CLI_OK; i++) {
        bool answered = at < n_found && found[at].text == i;
        code = judge(w, fv_questions_at(w->all, from + i), answered ? &found[at] : NULL);
        at += answered;
    }
    free(texts);
    return code;
}

static int report(const work *w)
{
    double exact = w->exact / (double)w->done, f1 = w->f1 / (double)w->done;
    if (w->v->json)
        return cli_print_json(w->c, json_pack("{s:s, s:I, s:f, s:f}", "task", "answer", "records",
                                              (json_int_t)w->done, "exact", exact, "f1", f1));
    printf("exact  %6.2f  of %lld questions\nF1     %6.2f\n", exact, (long long)w->done, f1);
    return CLI_OK;
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    fv_err e;
    work w = {.c = c, .v = v};
    if (!file) return cli_usage(c, "a file of questions is needed, in SQuAD's JSON");
    int code = cli_open_task(c, &w.model, &v->model, FV_JOB_ANSWER);
    if (code == CLI_OK && fv_questions_open(&w.all, NULL, file, &e)) code = cli_error(c, &e);
    if (code == CLI_OK) code = eval_open_predictions(c, v, &w.predictions);
    if (code == CLI_OK) code = eval_in_slices(v, fv_questions_count(w.all), run_slice, &w);
    if (w.predictions) fputs("}\n", w.predictions);
    code = eval_close_predictions(c, v, w.predictions, code);
    if (code == CLI_OK) code = report(&w);
    fv_questions_close(w.all);
    cli_close_task(&w.model);
    return code;
}

static const char *const heads[] = {"ForQuestionAnswering", NULL};
const eval_kind eval_answer = {.name = "answer", .heads = heads, .run = run};
