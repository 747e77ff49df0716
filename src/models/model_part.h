/* model_part.h - what families that write text share: their outputs, and places of a sequence. */
#ifndef FV_MODEL_PART_H
#define FV_MODEL_PART_H

#include "fovea/gen.h"
#include "fovea/heads.h"
#include "fovea/op.h"

/* Puts "logits" (B,T,V) into out and, where there are labels (B,T), the "loss": of each label under the logits at its place
 * or, if next, at the place before. */
void fv__put_tokens(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits, bool next);

/* Puts "logits" (B,labels) of x (B,D) under the weight w and, where there are labels, the "loss". */
void fv__put_class(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w, int problem);

/* Whether a parameter has any number that is not 0; true where it cannot be read, which e says. */
bool fv__any(fv_params *p, const fv_tensor *t, fv_err *e);

/* A weight's layout for products (fv_lin_pack), or NULL for none. */
fv_tensor *fv__packed(fv_params *p, fv_tensor *w, fv_dtype dtype);

/* (B,T,D) -> (B,D): the last place; the last whose id is not pad (pad < 0: the last); the last whose id is `token`. */
fv_tensor *fv__last_place(fv_ctx *c, fv_tensor *x);
fv_tensor *fv__last_but(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t pad);
fv_tensor *fv__last_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token);

/* I32 (B,T): start, then all of ids but the last; labels that do not count become pad. */
fv_tensor *fv__shift_right(fv_ctx *c, fv_tensor *ids, int32_t start, int32_t pad);

#endif
