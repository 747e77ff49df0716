/* recipe_texts.c - the texts of the training data, for learning a tokenizer from: what will be encoded, and nothing else. */
#include <jansson.h>

#include "data/records.h"
#include "train/recipe.h"

/* All texts, each ending in NUL; records that cannot be used are left out here, and reported when the data are read. */
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
static fv_status add_words(fv_buf *b, const fv_env *env, const fv_records *from, fv_data_report *report, fv_err *e)
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

/* Contexts and questions of SQuAD's JSON: every text called so, wherever it stands. */
static void add_named(fv_buf *b, json_t *v)
{
    const char *key;
    json_t *x;
    size_t i;
    if (json_is_array(v)) json_array_foreach(v, i, x) add_named(b, x);
    if (!json_is_object(v)) return;
    json_object_foreach(v, key, x)
    {
        if (json_is_string(x) && (!strcmp(key, "context") || !strcmp(key, "question")))
            add(b, json_string_value(x), json_string_length(x));
        if (!json_is_string(x)) add_named(b, x);
    }
}

static fv_status add_json(fv_buf *b, const fv_textfile *t, const char *path, fv_err *e)
{
    json_error_t err;
    size_t n = 0, k;
    int64_t lines = fv_textfile_count(t);
    const char *first = lines ? fv_textfile_line(t, 0, &k) : "", *last = lines ? fv_textfile_line(t, lines - 1, &n) : first;
    json_t *root = json_loadb(first, (size_t)(last + n - first), 0, &err);
    if (!root) return fv_fail(e, FV_EFORMAT, "%s:%d: not JSON: %s", path, err.line, err.text);
    add_named(b, root);
    json_decref(root);
    return FV_OK;
}

fv_status fv__recipe_texts(fv__kitchen *k, const fv_records *from, fv_buf *out)
{
    int objective = k->r->data.objective;
    fv_data_report unread = {0};
    fv_textfile *t;
    bool table = objective == FV_SEQ2SEQ || objective == FV_CLASSIFY;
    fv_status st = FV_OK;
    if (objective == FV_TAG) {
        st = add_words(out, k->env, from, &unread, k->e);
    } else if (objective == FV_ANSWER) {
        st = fv_textfile_open(&t, k->env, from->file, k->e);
        if (!st) st = add_json(out, t, from->file, k->e);
        fv_textfile_close(t);
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
