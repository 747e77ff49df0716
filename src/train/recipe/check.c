/* check.c - what only the whole recipe can show: parts that do not go together. */
#include <stdio.h>

#include "train/recipe/keys.h"
#include "fovea/author/family.h"

fv_status fv__recipe_prefix_error(const fv_recipe *r, const char *key, fv_status st, fv_err *e)
{
    if (!st || !e) return st;
    fv_err why = *e;
    return fv_fail(e, st, "%s: %s: %s", r->path, key, why.text);
}

const fv_objective *fv__recipe_objective(const fv_recipe *r)
{
    return fv_objective_at(r->data.objective);
}

fv_status fv__recipe_own(const fv_recipe *r, void **out, fv_err *e)
{
    const fv_objective *o = fv__recipe_objective(r);
    fv_err why;
    *out = NULL;
    for (size_t i = 0; i < r->own.n; i++)
        if (!fv__field_find(o->keys, r->own.at[i].key))
            return fv_fail(e, FV_EARG, "%s: [data] %s: the objective %s has no such key; %s has",
                           r->own.at[i].location, r->own.at[i].key, o->name,
                           fv__objective_with(r->own.at[i].key)->name);
    if (!o->keys) return FV_OK;
    void *own = fv__alloc(r->env, o->options_size);
    if (!own) return fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    fv_fields_default(own, o->keys);
    fv_status st = FV_OK;
    for (size_t i = 0; !st && i < r->own.n; i++) {
        const fv__late_key *k = &r->own.at[i];
        st = fv_fields_set(own, o->keys, k->key, k->value, &why);
        if (st) fv_fail(e, st, "%s: [data] %s", k->location, why.text);
    }
    if (st)
        fv__free(r->env, own, o->options_size);
    else
        *out = own;
    return st;
}

/* ---- the head ---- */

bool fv__head_does(const fv_family *f, const char *architecture, fv_head_job job)
{
    const fv_family_head *h = fv_family_head_find(f, architecture);
    return h && h->job == job;
}

/* The message names a head of the family that fits. */
static fv_status check_head(const fv_recipe *r, const fv_family *f, const char *head, fv_err *e)
{
    const fv_objective *o = fv__recipe_objective(r);
    const char *fits = NULL;
    if (fv__head_does(f, head, o->head)) return FV_OK;
    for (const fv_family_head *h = f->heads; h->name && !fits; h++)
        if (h->job == o->head) fits = h->name;
    return fv_fail(e, FV_EARG,
                   "%s: [model] architecture: %s cannot be trained with the objective %s; %s%s",
                   r->path, head, o->name,
                   fits ? "this family has "
                        : "this family has no head "
                          "for it",
                   fits ? fits : "");
}

/* The loss is computed from arrays that the family must know. */
static fv_status check_inputs(const fv_recipe *r, const fv_family *f, fv_err *e)
{
    const fv_objective *o = fv__recipe_objective(r);
    for (const char *const *name = o->loss_inputs; *name; name++) {
        const fv_input *i = f->inputs;
        while (i->name && strcmp(i->name, *name)) i++;
        if (!i->name)
            return fv_fail(e, FV_EARG,
                           "%s: [data] objective: %s needs the input %s, which %s lacks", r->path,
                           o->name, *name, f->type);
    }
    return FV_OK;
}

/* ---- the whole ---- */

/* Options of [train] that need something of another section. */
static fv_status check_train(const fv_recipe *r, fv_err *e)
{
    bool valid = *r->data.valid || r->data.hold_out > 0;
    if (r->train.bleu && (!fv__recipe_objective(r)->pairs || !valid))
        return fv_fail(e, FV_EARG,
                       "%s: [train] bleu: needs the objective seq2seq and validation data",
                       r->path);
    if (r->train.result == FV_RESULT_EMA && !(r->train.ema > 0))
        return fv_fail(e, FV_EARG,
                       "%s: [train] result = ema: [train] ema is 0, so there is no moving average",
                       r->path);
    if (r->train.result == FV_RESULT_BEST && !valid)
        return fv_fail(e, FV_EARG, "%s: [train] result = best: needs validation data", r->path);
    return FV_OK;
}

/* In the order a reader would look: what is named, then sections against each other, then the
 * family. */
fv_status fv_recipe_check(fv_recipe *r, fv_err *e)
{
    const fv_family *f;
    const char *head;
    void *own;
    if (!*r->data.train) return fv_fail(e, FV_EARG, "%s: [data] train: no file is named", r->path);
    fv_status st = check_train(r, e);
    if (!st) st = fv__recipe_own(r, &own, e);
    if (st) return st;
    fv__free(r->env, own, fv__recipe_objective(r)->options_size);
    st = fv__recipe_family(r, &f, &head, e);
    if (!st) st = check_head(r, f, head, e);
    return st ? st : check_inputs(r, f, e);
}
