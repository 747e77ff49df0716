/* weight.c - a product's weight as it lies in a file, until it pays to lay it out.
 *
 * To lay out a model takes as long as a dozen tokens, most of it new memory, and whoever asks one
 * question waits for that.  So the first product with a weight reads it where the file is mapped,
 * and the second one lays it out.  Both add up in the same order and give the same bits, so it does
 * not matter which of several contexts comes first, nor who waits for whom: nobody does, and who
 * comes while another lays it out takes it as it lies. */
#include "params.h"

const void *fv__weight_data(fv_ctx *c, const fv_tensor *t)
{
    void *data = __atomic_load_n(&t->data, __ATOMIC_ACQUIRE);
    if (data) return data;
    fv_weight *w = (fv_weight *)(uintptr_t)t;
    if (__atomic_load_n(&w->uses, __ATOMIC_RELAXED) > 1 ||
        __atomic_fetch_add(&w->uses, 1, __ATOMIC_RELAXED) != 1)
        return NULL;
    if (!fv__params_lay(w->params, &c->stream, &w->tensor, w->room, w->part, w->n, w->kn))
        return NULL;
    __atomic_store_n(&w->tensor.data, w->room, __ATOMIC_RELEASE);
    return w->room;
}

bool fv__weight_laid(const fv_tensor *t) { return __atomic_load_n(&t->data, __ATOMIC_ACQUIRE); }

int fv__weight_parts(const fv_tensor *t, fv_tensor *const **parts, bool *kn)
{
    const fv_weight *w = (const fv_weight *)t;
    *parts = w->part;
    *kn = w->kn;
    return w->n;
}
