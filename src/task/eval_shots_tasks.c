/* eval_shots_tasks.c - what few-shot evaluation asks: labels by likelihood, answers and
 * translations by writing on.
 *
 * Contextual calibration (Zhao et al. 2021): the scores of labels behind texts without content say
 * which labels the prompt alone prefers; scores are divided by the mean of those, and the greatest
 * quotient counts. */
#include "eval_shots.h"

#include <stdio.h>

/* ---- labels ---- */

static int label_of(const fv__shots *s, const char *gold)
{
    int i = 0;
    while (i < s->labels && strcmp(s->label[i], gold) != 0) i++;
    return i;
}

/* The word that [shots] labels gives a label, else the label itself. */
static const char *word_of(fv__shots *s, const char *label)
{
    size_t n = strlen(label);
    for (const char *at = s->opt.labels; *(at += strspn(at, " ,"));) {
        size_t len = strcspn(at, " ,");
        if (len > n + 1 && !memcmp(at, label, n) && at[n] == '=') {
            char *copy = fv__arena_alloc(&s->memory, len - n);
            if (copy) memcpy(copy, at + n + 1, len - n - 1), copy[len - n - 1] = 0;
            return copy;
        }
        at += len;
    }
    return label;
}

/* All labels of the examples and the records, in the order in which they come. */
static fv_status find_labels(fv__shots *s, fv_err *e)
{
    const fv_eval_texts *from[] = {&s->solved_gold, &s->gold};
    size_t most = (size_t)(s->solved_gold.n + s->gold.n);
    s->label = fv__arena_alloc(&s->memory, most * sizeof *s->label);
    s->word = fv__arena_alloc(&s->memory, most * sizeof *s->word);
    if (!s->label || !s->word) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < from[k]->n; i++) {
            if (label_of(s, from[k]->at[i]) < s->labels) continue;
            s->label[s->labels] = from[k]->at[i];
            s->word[s->labels] = word_of(s, from[k]->at[i]);
            if (!s->word[s->labels++]) return fv_fail(e, FV_ENOMEM, "out of memory");
            if (s->labels > 1000)
                return fv_fail(e, FV_EFORMAT,
                               "%s: more than 1,000 labels: is that the right field?",
                               s->r->opt->file);
        }
    for (int i = 0; i < s->labels; i++) {
        if (i) fv__buf_str(&s->words, ",");
        fv__buf_str(&s->words, s->word[i]);
    }
    return s->words.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

fv_status fv__shots_open_pipeline(fv__shots *s, const char *task, int n, fv_err *e)
{
    const fv_eval_opt *o = s->r->opt;
    return fv_pipeline_open(&s->pipe, s->r->dev,
                            (fv_pipeline_opt){.task = task,
                                              .model = o->model,
                                              .weights = o->weights,
                                              .widen = o->widen,
                                              .adapters = o->adapters,
                                              .settings = s->setting,
                                              .n_settings = n,
                                              .json = !strcmp(task, "generate"),
                                              .batch = o->batch},
                            e);
}

fv_status fv__shots_table(fv__shots *s, const char *file, fv_eval_texts *text, fv_eval_texts *gold,
                          fv_err *e)
{
    fv_table *t = NULL;
    fv_data_report report = {0};
    fv_records from = fv__eval_records(s->r);
    const char *until = s->r->opt->label_until ? s->r->opt->label_until : "";
    from.file = file;
    from.lists = s->task != &fv__shots_classify; /* several references */
    fv_status st = fv_table_open(&t, &s->r->env, &from, 2, &report, e);
    int64_t count = st ? 0 : fv_table_count(t);
    if (!st) st = fv__eval_texts_new(text, &s->r->env, count, e);
    if (!st) st = fv__eval_texts_new(gold, &s->r->env, count, e);
    for (int64_t i = 0; !st && i < count; i++) {
        size_t n, m;
        const char *x = fv_table_text(t, i, 0, &n), *y = fv_table_text(t, i, 1, &m);
        for (size_t k = 0; *until && k < m; k++)
            if (strchr(until, y[k])) m = k;
        st = fv__eval_texts_add(text, x, n, e);
        if (!st) st = fv__eval_texts_add(gold, y, m, e);
    }
    fv_table_close(t);
    return st || count ? st : fv_fail(e, FV_EFORMAT, "%s: no records", file);
}

static fv_status open_tables(fv__shots *s, fv_err *e)
{
    fv_status st = fv__shots_table(s, s->r->opt->file, &s->text, &s->gold, e);
    if (st || !*s->opt.examples) return st;
    return fv__shots_table(s, s->opt.examples, &s->solved_text, &s->solved_gold, e);
}

static fv_status open_classify(fv__shots *s, fv_err *e)
{
    fv_status st = open_tables(s, e);
    if (!st) st = find_labels(s, e);
    s->setting[0] = (fv_setting){"labels", s->words.data};
    s->setting[1] = (fv_setting){"prompt", "{}"}; /* it is made here, examples and all */
    return st ? st : fv__shots_open_pipeline(s, "classify", 2, e);
}

/* Scores of the labels' words behind a text. */
static fv_status score(fv__shots *s, const char *text, float *out, fv_err *e)
{
    fv_buf b = {.env = &s->r->env};
    fv__shots_prompt(s, &b, text);
    fv_text one = {.s = b.data ? b.data : "", .n = b.len};
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "out of memory")
                            : fv__zero_shot_run(fv__classify_zero_shot(s->pipe), &one, 1, out, e);
    fv__buf_free(&b);
    return st;
}

static int greatest(const float *x, const float *by, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (by ? x[i] * by[best] > x[best] * by[i] : x[i] > x[best]) best = i;
    return best;
}

const char *const fv__shots_empty[] = {"N/A", "[MASK]", "", NULL};

/* The mean scores of texts without content. */
static fv_status prefer(fv__shots *s, float *out, float *scores, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; i < s->labels; i++) out[i] = 1e-9f; /* nothing is divided by 0 */
    for (int k = 0; !st && fv__shots_empty[k]; k++) {
        st = score(s, fv__shots_empty[k], scores, e);
        for (int i = 0; !st && i < s->labels; i++) out[i] += scores[i] / 3;
    }
    return st;
}

static fv_status judge_classify(fv__shots *s, double figure[FV__SHOT_FIGURES], fv_err *e)
{
    size_t bytes = 2 * (size_t)s->labels * sizeof(float);
    float *scores = fv__alloc(&s->r->env, bytes), *prior = scores ? scores + s->labels : NULL;
    fv_status st = scores ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    int64_t right = 0, calibrated = 0;
    if (!st && s->opt.calibrate) st = prefer(s, prior, scores, e);
    for (int64_t i = 0; !st && i < s->text.n; i++) {
        int gold = label_of(s, s->gold.at[i]);
        st = score(s, s->text.at[i], scores, e);
        if (st) break;
        right += greatest(scores, NULL, s->labels) == gold;
        if (s->opt.calibrate) calibrated += greatest(scores, prior, s->labels) == gold;
    }
    figure[0] = 100.0 * (double)right / (double)s->text.n;
    figure[1] = s->opt.calibrate ? 100.0 * (double)calibrated / (double)s->text.n : figure[0];
    fv__free(&s->r->env, scores, bytes);
    return st;
}

const fv__shot_task fv__shots_classify = {.name = "classify",
                                          .prompt = "Text: {}\\nLabel:",
                                          .figure = {"accuracy", "calibrated"},
                                          .open = open_classify,
                                          .judge = judge_classify};

/* ---- texts that are written on ---- */

static fv_status open_translate(fv__shots *s, fv_err *e)
{
    fv_status st = open_tables(s, e);
    return st ? st : fv__shots_open_writer(s, e);
}

/* BLEU and chrF of what was written. */
static fv_status compare(const fv__shots *s, const fv_eval_texts *made, double *figure, fv_err *e)
{
    fv_bleu bleu = {0};
    fv_chrf chrf = {0};
    const char *const *given = (const char *const *)made->at, *const *wanted =
                                                                  (const char *const *)s->gold.at;
    fv_status st = fv_bleu_score(&bleu, &s->r->env, given, wanted, made->n, (fv_bleu_opt){0}, e);
    if (!st) st = fv_chrf_score(&chrf, &s->r->env, given, wanted, made->n, e);
    figure[0] = bleu.score, figure[1] = chrf.score;
    return st;
}

/* Two figures of the texts as they are written, the same two of the calibrated ones behind them. */
static fv_status judge_written(fv__shots *s, double figure[FV__SHOT_FIGURES],
                               fv_status measure(const fv__shots *s, const fv_eval_texts *made,
                                                 double *figure, fv_err *e),
                               fv_err *e)
{
    fv_eval_texts plain = {0}, calibrated = {0};
    fv_status st = fv__shots_write(s, &plain, &calibrated, e);
    if (!st) st = measure(s, &plain, figure, e);
    if (!st) st = measure(s, s->opt.calibrate ? &calibrated : &plain, figure + 2, e);
    fv__eval_texts_free(&plain);
    fv__eval_texts_free(&calibrated);
    return st;
}

static fv_status judge_translate(fv__shots *s, double figure[FV__SHOT_FIGURES], fv_err *e)
{
    return judge_written(s, figure, compare, e);
}

const fv__shot_task fv__shots_translate = {.name = "translate",
                                           .prompt = "Source: {}\\nTranslation:",
                                           .figure = {"BLEU", "chrF", "calibrated BLEU",
                                                      "calibrated chrF"},
                                           .open = open_translate,
                                           .judge = judge_translate};

/* ---- answers ---- */

/* Questions of SQuAD's JSON: the context, a line for the question; all answers in one string. */
static fv_status read_questions(fv__shots *s, const char *file, fv_eval_texts *text,
                                fv_eval_texts *gold, fv_err *e)
{
    fv_questions *q = NULL;
    fv_status st = fv_questions_open(&q, &s->r->env, file, e);
    int64_t n = st ? 0 : fv_questions_count(q);
    if (!st) st = fv__eval_texts_new(text, &s->r->env, n, e);
    if (!st) st = fv__eval_texts_new(gold, &s->r->env, n, e);
    for (int64_t i = 0; !st && i < n; i++) {
        const fv_question *x = fv_questions_at(q, i);
        fv_buf b = {.env = &s->r->env}, a = b;
        fv__buf_fmt(&b, "%s\nQuestion: %s", x->context, x->text);
        for (int64_t k = 0; k < (int64_t)x->n; k++)
            fv__buf_fmt(&a, "%s%s", k ? FV_NEXT_TEXT : "", x->answer[k]);
        if (b.failed || a.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
        if (!st) st = fv__eval_texts_add(text, b.data, b.len, e);
        if (!st) st = fv__eval_texts_add(gold, a.data ? a.data : "", a.len, e);
        fv__buf_free(&b);
        fv__buf_free(&a);
    }
    fv_questions_close(q);
    return st;
}

static fv_status open_answer(fv__shots *s, fv_err *e)
{
    fv_status st = read_questions(s, s->r->opt->file, &s->text, &s->gold, e);
    if (!st && *s->opt.examples)
        st = read_questions(s, s->opt.examples, &s->solved_text, &s->solved_gold, e);
    return st ? st : fv__shots_open_writer(s, e);
}

enum { MOST_ANSWERS = 64 };

/* Exact matches and F1 over the best of each question's answers. */
static fv_status mark(const fv__shots *s, const fv_eval_texts *made, double *figure, fv_err *e)
{
    fv_status st = FV_OK;
    figure[0] = figure[1] = 0;
    for (int64_t i = 0; !st && i < made->n; i++) {
        const char *answer[MOST_ANSWERS];
        char *copy = fv__strdup(&s->r->env, s->gold.at[i]), *at = copy, *next;
        double exact = 0, f1 = 0;
        int n = 0;
        for (; at && n < MOST_ANSWERS; at = next) {
            next = strstr(at, FV_NEXT_TEXT);
            if (next) *next = 0, next += strlen(FV_NEXT_TEXT);
            answer[n++] = at;
        }
        st = copy ? fv_answer_score(&exact, &f1, &s->r->env, made->at[i], answer, n, e)
                  : fv_fail(e, FV_ENOMEM, "out of memory");
        figure[0] += exact / (double)made->n;
        figure[1] += f1 / (double)made->n;
        if (copy) fv__free(&s->r->env, copy, s->gold.len[i] + 1);
    }
    return st;
}

static fv_status judge_answer(fv__shots *s, double figure[FV__SHOT_FIGURES], fv_err *e)
{
    return judge_written(s, figure, mark, e);
}

const fv__shot_task fv__shots_answer = {.name = "answer",
                                        .prompt = "{}\\nAnswer:",
                                        .figure = {"exact", "F1", "calibrated exact",
                                                   "calibrated F1"},
                                        .open = open_answer,
                                        .judge = judge_answer};
