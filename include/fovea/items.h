/* items.h - tensors by name: what goes into a model and what comes out of it, with the names of
 * transformers, and by what its losses are divided.
 *
 * A plain struct, filled by value and owned by whoever declares it; names and tensors are borrowed
 * and must live as long as it is used. */
#ifndef FOVEA_ITEMS_H
#define FOVEA_ITEMS_H

#include "fovea/tensor.h"

#define FV_MAX_ITEMS 24

typedef struct fv_items {
    int n;
    struct {
        const char *name;
        fv_tensor *value;
    } at[FV_MAX_ITEMS];
    bool full; /* an item was refused; fv_items_check, and so fv_model_forward, raise it */
    /* Labels that count, over the whole batch with all its parts: losses are divided by it.  0: a
     * loss is the sum over the labels, which callers that add up parts divide themselves. */
    double n_labels;
    /* of end_positions, where their number is not that of start_positions; 0: it is */
    double n_ends;
    double n_rows; /* sequences, likewise, for losses that count these; 0: those of this part */
    float smooth;  /* label smoothing, for families that train with it */
    /* (1) f32: 1 / n_labels and 1 / n_rows on the device, where a step is to be run again with
     * others; else NULL */
    fv_tensor *per_label, *per_row;
} fv_items;

FV_API fv_tensor *fv_items_get(const fv_items *s, const char *name); /* NULL if absent */
/* A NULL value is left out: its op has failed, or it is optional.  Beyond FV_MAX_ITEMS false, and
 * `full` is set. */
FV_API bool fv_items_put(fv_items *s, const char *name, fv_tensor *value);

#endif
