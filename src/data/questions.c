/* questions.c - questions about texts, in SQuAD's JSON: articles of paragraphs, each a context with
 * its questions.
 *
 *     {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers":
 *       [{"text", "answer_start"}], "is_impossible"}]}]}]}
 *
 * The file is parsed whole, since a context stands once for all its questions; texts are used where
 * they stand in the tree. Positions count characters, which the tokenizer's offsets do too. */
#include "base/json/tree.h"
#include "data/records.h"

enum { JSON_DEPTH = 32 };

struct fv_questions {
    const fv_env *env;
    fv__jtree tree; /* owns every text */
    fv_question *at;
    const char **answer; /* of all questions */
    size_t at_bytes, answer_bytes;
    int64_t n, n_answers;
};

/* NULL where there is no such text. */
static const char *text_at(const fv__jnode *object, const char *key)
{
    const fv__jnode *v = fv__jnode_get(object, key);
    return fv__jnode_is(v, FV__J_TEXT) ? v->text : NULL;
}

static int elements(const fv__jnode *v) { return fv__jnode_is(v, FV__J_ARRAY) ? v->n : 0; }

/* Every question in turn: once to count, once to fill. */
typedef fv_status each_fn(fv_questions *q, const char *path, const char *context,
                          const fv__jnode *qa, fv_err *e);

/* The first of two walks over the file: sizes, so that questions and answers are two arrays. */
static fv_status count(fv_questions *q, const char *path, const char *context, const fv__jnode *qa,
                       fv_err *e)
{
    (void)path, (void)context, (void)e;
    q->n++;
    q->n_answers += elements(fv__jnode_get(qa, "answers"));
    return FV_OK;
}

/* A question without answers is one that the text does not answer; with answers it must say where
 * the first one begins. */
static fv_status fill(fv_questions *q, const char *path, const char *context, const fv__jnode *qa,
                      fv_err *e)
{
    fv_question *x = &q->at[q->n++];
    const fv__jnode *answers = fv__jnode_get(qa, "answers");
    *x = (fv_question){.id = text_at(qa, "id"),
                       .text = text_at(qa, "question"),
                       .context = context,
                       .answer = q->answer + q->n_answers,
                       .start = -1};
    bool ok = x->text && fv__jnode_is(answers, FV__J_ARRAY);
    for (int i = 0; i < elements(answers); i++) {
        const fv__jnode *start = fv__jnode_get(answers->kid[i], "answer_start");
        const char *text = text_at(answers->kid[i], "text");
        ok = ok && text;
        if (!i && fv__jnode_is(start, FV__J_INT)) x->start = start->i;
        q->answer[q->n_answers++] = text;
        x->n++;
    }
    if (ok && (!x->n || x->start >= 0)) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: question %lld: not as SQuAD has it", path, (long long)q->n);
}

/* Calls each with every question, in the order of the file. */
static fv_status walk(fv_questions *q, const char *path, each_fn *each, fv_err *e)
{
    const fv__jnode *articles = fv__jnode_get(q->tree.root, "data");
    fv_status st = FV_OK;
    q->n = q->n_answers = 0;
    for (int i = 0; i < elements(articles); i++) {
        const fv__jnode *paragraphs = fv__jnode_get(articles->kid[i], "paragraphs");
        for (int j = 0; j < elements(paragraphs); j++) {
            const fv__jnode *qas = fv__jnode_get(paragraphs->kid[j], "qas");
            const char *context = text_at(paragraphs->kid[j], "context");
            if (!context) return fv_fail(e, FV_EFORMAT, "%s: a paragraph has no context", path);
            for (int k = 0; !st && k < elements(qas); k++)
                st = each(q, path, context, qas->kid[k], e);
            if (st) return st;
        }
    }
    return st;
}

/* Strings of the tree are used in place; it lives as long as the questions. */
static fv_status parse(fv_questions *q, const char *path, fv_err *e)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, q->env, path, e);
    if (st) return st;
    size_t n;
    const char *text = fv_textfile_all(t, &n);
    fv_err why = {0};
    st = fv__jtree_parse(&q->tree, text, n, path, JSON_DEPTH, &why);
    if (st) st = fv_fail(e, st, "not JSON: %s", why.text);
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
    q->env = q->tree.pool.env = env;
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
    fv__jtree_free(&q->tree);
    fv__free(env, q->at, q->at_bytes);
    fv__free(env, q->answer, q->answer_bytes);
    fv__free(env, q, sizeof *q);
}

int64_t fv_questions_count(const fv_questions *q) { return q->n; }
const fv_question *fv_questions_at(const fv_questions *q, int64_t i) { return &q->at[i]; }
