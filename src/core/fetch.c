/* fetch.c - parameters that are not in memory as a whole: read, then let go.
 *
 * What reads a parameter asks for it before and lets go of it afterwards, so that whoever has its
 * numbers (train/sharded.c: other ranks) can bring them in between.  Fetches are counted: one
 * reader may call another.  A hook in every op was the alternative; only products read weights that
 * are worth it, and the tape refuses all other ops that are given one. */
#include "core/params.h"

fv_status fv__param_fetch_now(const fv_tensor *t, fv_err *e)
{
    fv_entry *entry = (fv_entry *)(uintptr_t)t;
    if (!t->is_param || !entry->store || entry->fetched++) return FV_OK;
    fv_status st = entry->store->fetch(entry->store->user, entry, e);
    entry->fetched -= st != FV_OK;
    return st;
}

bool fv__param_fetch(fv_ctx *c, const fv_tensor *t)
{
    fv_err e = {0};
    if (!fv__param_fetch_now(t, &e)) return true;
    fv_raise(c, e.code, "%s", e.text);
    return false;
}

void fv__param_release(const fv_tensor *t)
{
    fv_entry *entry = (fv_entry *)(uintptr_t)t;
    if (t->is_param && entry->store && !--entry->fetched)
        entry->store->release(entry->store->user, entry);
}
