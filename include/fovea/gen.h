/* gen.h - sessions: what a model remembers of the sequences it is generating.
 *
 * A session holds, on the model's device, the keys and values of every token so far for `rows` sequences side by side.
 * It belongs to one thread at a time; the model is shared. */
#ifndef FOVEA_GEN_H
#define FOVEA_GEN_H

#include "fovea/model.h"
#include "fovea/nn.h"

/* cap: tokens a row can hold. */
FV_API fv_status fv_session_new(fv_session **out, const fv_model *m, fv_device *d, int64_t rows, int64_t cap, fv_err *e);
FV_API void fv_session_free(fv_session *s); /* NULL is allowed */
/* Forgets all tokens; memory stays. */
FV_API void fv_session_reset(fv_session *s);

FV_API int64_t fv_session_count(const fv_session *s);         /* rows */
FV_API int64_t fv_session_len(const fv_session *s, int64_t row); /* tokens so far */
/* Cuts a row back to n tokens: after a prompt that was padded, or to try again from there. */
FV_API void fv_session_cut(fv_session *s, int64_t row, int64_t n);

/* Runs the family's begin: an encoder on in, whose batch is the session's rows. */
FV_API void fv_session_begin(fv_ctx *c, fv_session *s, const fv_items *in);
/* Appends ids I32 (rows,T) and gives the logits (rows,V) that follow; NULL once the context has failed. */
FV_API fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids);
/* Row i becomes a copy of what row from[i] was: beams that go on and beams that end. */
FV_API void fv_session_reorder(fv_ctx *c, fv_session *s, const int32_t *from);

/* ---- for families, inside begin and step ---- */

/* The cache of layer's self-attention, for the tokens of this step. */
FV_API fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width);
/* I32 (rows,T): where the tokens of this step stand. */
FV_API fv_tensor *fv_session_places(fv_ctx *c, fv_session *s);
/* Copies x, whose first axis is the rows, into the session under a number, and gets it back in a later step. */
FV_API void fv_session_keep(fv_ctx *c, fv_session *s, int slot, fv_tensor *x);
FV_API fv_tensor *fv_session_kept(fv_ctx *c, fv_session *s, int slot); /* NULL: nothing there */

#endif
