/* questions.c - questions about texts, in SQuAD's JSON: articles of paragraphs, each a context with
 * its questions. */
#include <jansson.h>

#include "data/records.h"

struct fv_questions {
    const fv_env *env;
    json_t *root; /* owns every text */
    fv_question *at;
    const char **answer; /* of all questions */
    size_t at_bytes, answer_bytes;
    int64_t n, n_answers;
};

/* Every question in turn: once to count, once to fill. */
typedef fv_status each_fn(fv_questions *q, const char *path, const char *context, const json_t *qa,
                          fv_err *e);

static fv_status count(fv_questions *q, const char *path, const char *context, const json_t *qa,
                       fv_err *e)
{
    (void)path, (void)context, (void)e;
    q->n++;
    q->n_answers += (int64_t)json_array_size(json_object_get(qa, "answers"));
    return FV_OK;
}

/* A question without answers is one that the text does not answer; with answers it must say where
 * the first one begins. */
static fv_status fill(fv_questions *q, const char *path, const char *context, const json_t *qa,
                      fv_err *e)
{
    fv_question *x = &q->at[q->n++];
    const json_t *answers = json_object_get(qa, "answers"), *one, *start = NULL;
    size_t i;
    *x = (fv_question){.id = json_string_value(json_object_get(qa, "id")),
                       .text = json_string_value(json_object_get(qa, "question")),
                       .context = context,
                       .answer = q->answer + q->n_answers,
                       .start = -1};
    bool ok = x->text && json_is_array(answers);
    json_array_foreach(answers, i, one)
    {
        const char *text = json_string_value(json_object_get(one, "text"));
        ok = ok && text;
        if (!i) start = json_object_get(one, "answer_start");
        q->answer[q->n_answers++] = text;
        x->n++;
    }
    if (json_is_integer(start)) x->start = json_integer_value(start);
    if (ok && (!x->n || x->start >= 0)) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: question %lld: not as SQuAD has it", path, (long long)q->n);
}

/* Calls each with every question, in the order of the file. */
static fv_status walk(fv_questions *q, const char *path, each_fn *each, fv_err *e)
{
    size_t i, j, k;
    json_t *article, *paragraph, *qa;
    fv_status st = FV_OK;
    q->n = q->n_answers = 0;
    json_array_foreach(json_object_get(q->root, "data"), i, article)
    {
        json_array_foreach(json_object_get(article, "paragraphs"), j, paragraph)
        {
            const char *context = json_string_value(json_object_get(paragraph, "context"));
            if (!context) return fv_fail(e, FV_EFORMAT, "%s: a paragraph has no context", path);
            json_array_foreach(json_object_get(paragraph, "qas"), k, qa)
            {
                if ((st = each(q, path, context, qa, e))) return st;
            }
        }
    }
    return st;
}

static fv_status parse(fv_questions *q, const char *path, fv_err *e)
{
    fv_textfile *t;
    json_error_t err;
    fv_status st = fv_textfile_open(&t, q->env, path, e);
    if (st) return st;
    size_t n;
    const char *text = fv_textfile_all(t, &n);
    q->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    if (!q->root) st = fv_fail(e, FV_EFORMAT, "%s:%d: not JSON: %s", path, err.line, err.text);
    fv_textfile_close(t);
    return st;
}

/* Two walks: the first counts, so that the arrays are allocated once and pointers into them
 * hold. */
static fv_status read_all(fv_questions *q, const char *path, fv_err *e)
{
    fv_status st = parse(q, path, e);
    if (!st) st = walk(q, path, count, e);
    if (st) return st;
    if (!q->n) return fv_fail(e, FV_EFORMAT, "%s: no questions as SQuAD has them", path);
    q->at_bytes = (size_t)q->n * sizeof *q->at;
    q->answer_bytes = (size_t)(q->n_answers + 1) * sizeof *q->answer;
    q->at = fv__alloc(q->env, q->at_bytes);
    q->answer = fv__alloc(q->env, q->answer_bytes);
    if (!q->at || !q->answer) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    return walk(q, path, fill, e);
}

fv_status fv_questions_open(fv_questions **out, const fv_env *env, const char *path, fv_err *e)
{
    fv_questions *q = *out = fv__alloc(env, sizeof *q);
    if (!q) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    q->env = env;
    fv_status st = read_all(q, path, e);
    if (st) {
        fv_questions_close(q);
        *out = NULL;
    }
    return st;
}

void fv_questions_close(fv_questions *q)
{
    if (!q) return;
    const fv_env *env = q->env;
    json_decref(q->root);
    fv__free(env, q->at, q->at_bytes);
    fv__free(env, q->answer, q->answer_bytes);
    fv__free(env, q, sizeof *q);
}

int64_t fv_questions_count(const fv_questions *q) { return q->n; }
const fv_question *fv_questions_at(const fv_questions *q, int64_t i) { return &q->at[i]; }
