/* items.c - tensors by name.
 *
 * Families pass their inputs and outputs as a short list of (name, tensor): a model gains an
 * output without a new struct.  Names are literals and are not copied; a search is linear in a
 * few entries. */
#include "core.h"
#include "fovea/items.h"

fv_tensor *fv_items_get(const fv_items *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->at[i].name, name)) return s->at[i].value;
    return NULL;
}

/* A refusal sticks: families put their outputs without looking, as they call ops.
 * NULL is not put and is no failure: the op that gave it has set the context's error. */
bool fv_items_put(fv_items *s, const char *name, fv_tensor *value)
{
    if (!value) return true;
    if (s->n == FV_MAX_ITEMS) {
        s->full = true;
        return false;
    }
    s->at[s->n].name = name;
    s->at[s->n++].value = value;
    return true;
}

bool fv_items_check(fv_ctx *c, const fv_items *s, const char *what, const char *of)
{
    if (s->full && !fv__failed(c))
        fv_raise(c, FV_EARG, "%s: more than %d %s", of, FV_MAX_ITEMS, what);
    return !s->full;
}
