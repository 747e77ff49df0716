/* memory.h - models that carry a memory from segment to segment: "mems" (layers,B,M,D) is an input
 * and an output of their forward pass. */
#ifndef FV_MODEL_MEMORY_H
#define FV_MODEL_MEMORY_H

#include "fovea/author/family.h"

typedef struct fv__memory {
    int64_t layers, width; /* of "mems"; 0 layers: the model has no memory */
    int64_t len;           /* config.json's mem_len: M where nothing else is said */
} fv__memory;

/* Whether forward passes of this model take a memory. */
bool fv__memory_taken(const fv_model *m);
/* Its sizes, which a pass over one token tells. */
fv_status fv__memory_of(fv__memory *out, fv_device *d, const fv_model *m, fv_err *e);

/* The mask (M+T) of a segment behind `known` tokens: 0 for memory that does not exist yet. */
void fv__memory_mask(uint8_t *mask, int64_t M, int64_t T, int64_t known);

#endif
