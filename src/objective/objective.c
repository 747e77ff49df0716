/* objective.c - the list of objectives, made by the build from the files of this folder, and the
 * texts of the usual records. */
#include "fovea/author/objective.h"

#include "data/records.h"

#define X(file) extern const fv_objective fv__objective_##file;
#include "objective_files.h"
#undef X

static const fv_objective *const objectives[] = {
/* in order of name, since the build lists files sorted */
#define X(file) &fv__objective_##file,
#include "objective_files.h"
#undef X
};
enum { COUNT = sizeof objectives / sizeof *objectives };

const char *const fv_objective_names[] = {
#define X(file) #file,
#include "objective_files.h"
#undef X
    NULL,
};

const fv_objective *fv_objective_at(int i) { return i >= 0 && i < COUNT ? objectives[i] : NULL; }

/* By name: the recipe's `objective` and the name in a checkpoint are the same word. */
const fv_objective *fv_objective_find(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(objectives[i]->name, name)) return objectives[i];
    return NULL;
}

/* ---- texts ---- */

typedef struct collecting {
    fv_text_fn *each;
    void *user;
    int n; /* texts of a record that are wanted */
} collecting;

static fv_status collect(fv__reading *r, const fv__record *rec)
{
    const collecting *c = r->user;
    for (int i = 0; i < c->n; i++) c->each(c->user, rec->text[i].s, rec->text[i].n);
    return FV_OK;
}

/* Records of `has` texts, of which the first `wanted` are collected.  What is left out is reported
 * when the feed is opened. */
static fv_status read_texts(const fv_env *env, const fv_records *from, int has, int wanted,
                            fv_text_fn *each, void *user, fv_err *e)
{
    fv_data_report unread = {0};
    collecting c = {each, user, wanted};
    fv__reading r = {.env = env,
                     .from = from,
                     .n_texts = has,
                     .each = collect,
                     .user = &c,
                     .report = &unread,
                     .e = e};
    return fv__records_read(&r);
}

fv_status fv_texts_first(const fv_env *env, const void *options, const fv_records *from,
                         fv_text_fn *each, void *user, fv_err *e)
{
    (void)options;
    return read_texts(env, from, 1, 1, each, user, e);
}

fv_status fv_texts_both(const fv_env *env, const void *options, const fv_records *from,
                        fv_text_fn *each, void *user, fv_err *e)
{
    (void)options;
    return read_texts(env, from, 2, 2, each, user, e);
}

/* The second text is a label and not language: a tokenizer must not learn from it. */
fv_status fv_texts_labelled(const fv_env *env, const void *options, const fv_records *from,
                            fv_text_fn *each, void *user, fv_err *e)
{
    (void)options;
    return read_texts(env, from, 2, 1, each, user, e);
}
