/* weight.c - a product's weight as a file stores it, until it pays to pack it.
 *
 * Packing a model takes as long as a dozen tokens, most of it new memory, and whoever asks one
 * question waits for that.  So the first product with a weight reads it where the file is mapped,
 * and the second one packs it.  Both add up in the same order and give the same bits, so it does
 * not matter which of several contexts comes first, nor who waits for whom: nobody does, and who
 * comes while another thread packs it uses it as stored. */
#include "params.h"

/* Lock-free.  uses counts 0, 1, 2: whoever raises it from 1 to 2 packs, all others go on with
 * the stored weight.  The release store of tensor.data publishes the packed bytes, and the
 * acquire load above it pairs with that. */
const void *fv__weight_data(fv_ctx *c, const fv_tensor *t)
{
    void *data = __atomic_load_n(&t->data, __ATOMIC_ACQUIRE);
    if (data) return data;
    fv_weight *w = (fv_weight *)(uintptr_t)t;
    if (__atomic_load_n(&w->uses, __ATOMIC_RELAXED) > 1 ||
        __atomic_fetch_add(&w->uses, 1, __ATOMIC_RELAXED) != 1)
        return NULL;
    if (!fv__params_pack_weight(w->params, &c->stream, &w->tensor, w->packed_data, w->part, w->n,
                                w->in_out))
        return NULL;
    __atomic_store_n(&w->tensor.data, w->packed_data, __ATOMIC_RELEASE);
    return w->packed_data;
}

bool fv__weight_is_packed(const fv_tensor *t)
{
    return __atomic_load_n(&t->data, __ATOMIC_ACQUIRE);
}

int fv__weight_parts(const fv_tensor *t, fv_tensor *const **parts, bool *in_out)
{
    const fv_weight *w = (const fv_weight *)t;
    *parts = w->part;
    *in_out = w->in_out;
    return w->n;
}
