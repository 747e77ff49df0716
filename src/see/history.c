/* history.c - the history of a user, for models of items (SASRec, BERT4Rec): names with blanks
 * between them, oldest first, as numbers and as labels.
 *
 * Names are those of the training data (id2label).  They are compared one by one and not put into
 * a table: this is done once, for tens of names. */
#include <stdio.h>

#include "see.h"
#include "fovea/author/family.h"

/* The word that stands at *s, and *s behind it; its length is 0 at the end. */
static size_t word_at(const char **s, const char **word)
{
    *s += strspn(*s, " \t\n");
    *word = *s;
    *s += strcspn(*s, " \t\n");
    return (size_t)(*s - *word);
}

static char *copy(const fv_env *env, const char *s, size_t n)
{
    char *to = fv__alloc(env, n + 1);
    if (to) memcpy(to, s, n), to[n] = 0;
    return to;
}

/* Finds all names in one way through the items: how many items there are. */
static int64_t find(const fv_dir *dir, const fv_see_axis *names, int32_t *ids)
{
    int64_t i = 0;
    char key[40];
    const char *name;
    for (;; i++) {
        snprintf(key, sizeof key, "id2label.%lld", (long long)i);
        if (!(name = fv_json_text(fv_dir_config(dir), key))) return i;
        for (int64_t k = 0; k < names->n; k++)
            if (!strcmp(name, names->text[k])) ids[k] = (int32_t)i;
    }
}

/* A model that looks both ways finds the next item at a mask behind the history. */
static fv_status take(fv_see_history *h, const fv_model *m, const char *text, const char *dir,
                      fv_err *e)
{
    bool masked = fv_family_takes(fv_model_family(m), "attention_mask");
    fv_see_axis *a = &h->names;
    fv_dir *files = NULL;
    const char *s = text, *word;
    size_t len;
    while (word_at(&s, &word)) a->n++;
    if (!a->n) return fv_fail(e, FV_EARG, "the history is empty: there is no item to look at");
    h->bytes = (size_t)(a->n + 1) * sizeof *h->ids;
    h->ids = fv__alloc(h->env, h->bytes);
    a->text = fv__alloc(h->env, (size_t)(a->n += masked) * sizeof *a->text);
    if (!h->ids || !a->text) return fv_fail(e, FV_ENOMEM, "history: out of memory");
    s = text;
    for (int64_t i = 0; i < a->n; i++) {
        len = word_at(&s, &word);
        h->ids[i] = -1;
        a->text[i] = len ? copy(h->env, word, len) : copy(h->env, "next", 4);
        if (!a->text[i]) return fv_fail(e, FV_ENOMEM, "history: out of memory");
    }
    fv_status st = fv_dir_open(&files, h->env, dir, e);
    int64_t items = st ? 0 : find(files, a, h->ids);
    fv_dir_close(files);
    if (!st && masked) h->ids[a->n - 1] = (int32_t)items;
    for (int64_t i = 0; !st && i < a->n; i++)
        if (h->ids[i] < 0)
            st = fv_fail(e, FV_EARG, "item %s: the model does not know it", a->text[i]);
    return st;
}

fv_status fv__see_history_open(fv_see_history *h, const fv_env *env, const fv_model *m,
                               const fv_see_in *in, fv_err *e)
{
    *h = (fv_see_history){.env = env};
    if (fv_model_job(m) != FV_HEAD_NEXT_ITEM)
        return fv_fail(e, FV_EARG, "%s reads no histories of items", fv_model_head(m));
    if (!in->dir) return fv_fail(e, FV_EARG, "which directory has the names of the items?");
    return take(h, m, in->history, in->dir, e);
}

void fv__see_history_free(fv_see_history *h)
{
    fv__see_axis_free(h->env, &h->names);
    fv__free(h->env, h->ids, h->bytes);
}
