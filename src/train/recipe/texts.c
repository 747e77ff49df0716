/* texts.c - the texts of the training data, for learning a tokenizer from: what will be encoded,
 * and nothing else. */
#include "data/records.h"
#include "train/recipe/recipe.h"

/* All texts, each ending in NUL; records that cannot be used are left out here, and reported when
 * the data are read. */
static void add(fv_buf *b, const char *s, size_t n)
{
    if (!n || memchr(s, 0, n)) return;
    fv__buf_add(b, s, n);
    fv__buf_add(b, "", 1);
}

static fv_status add_both(fv__reading *r, const fv__record *rec)
{
    for (int i = 0; i < 2; i++) add(r->user, rec->text[i].s, rec->text[i].n);
    return FV_OK;
}

static fv_status add_first(fv__reading *r, const fv__record *rec)
{
    add(r->user, rec->text[0].s, rec->text[0].n);
    return FV_OK;
}

/* The words of CoNLL columns, a sentence a text. */
static fv_status add_words(fv_buf *b, const fv_env *env, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv_tagged *t;
    fv_status st = fv_tagged_open(&t, env, from, report, e);
    for (int64_t i = 0; !st && i < fv_tagged_count(t); i++) {
        const char *const *word, *const *tag;
        int64_t line, n = fv_tagged_sentence(t, i, &word, &tag, &line);
        for (int64_t k = 0; k < n; k++) fv__buf_fmt(b, "%s ", word[k]);
        fv__buf_add(b, "", 1);
    }
    fv_tagged_close(t);
    return st;
}

/* Contexts and questions of SQuAD's JSON. */
static fv_status add_questions(fv_buf *b, const fv_env *env, const fv_records *from, fv_err *e)
{
    fv_questions *all;
    const char *context = NULL;
    fv_status st = fv_questions_open(&all, env, from->file, e);
    for (int64_t i = 0; !st && i < fv_questions_count(all); i++) {
        const fv_question *q = fv_questions_at(all, i);
        if (q->context != context) add(b, q->context, strlen(q->context));
        context = q->context;
        add(b, q->text, strlen(q->text));
    }
    fv_questions_close(all);
    return st;
}

fv_status fv__recipe_texts(fv__recipe_run *k, const fv_records *from, fv_buf *out)
{
    int objective = k->r->data.objective;
    fv_data_report unread = {0};
    bool table = objective == FV_SEQ2SEQ || objective == FV_CLASSIFY;
    fv_status st = FV_OK;
    if (objective == FV_TAG) {
        st = add_words(out, k->env, from, &unread, k->e);
    } else if (objective == FV_ANSWER) {
        st = add_questions(out, k->env, from, k->e);
    } else {
        fv__reading r = {.env = k->env,
                         .from = from,
                         .n_texts = table ? 2 : 1,
                         .each = objective == FV_SEQ2SEQ ? add_both : add_first,
                         .user = out,
                         .report = &unread,
                         .e = k->e};
        st = fv__records_read(&r);
    }
    if (!st && out->failed) st = fv_fail(k->e, FV_ENOMEM, "%s: out of memory", from->file);
    return st;
}
