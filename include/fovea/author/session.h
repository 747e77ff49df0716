/* session.h - sessions, for those who generate step by step and for families: what a model
 * remembers of sequences, the KV cache.
 *
 * A session holds, on the model's device, the keys and values of every token so far for `rows`
 * sequences side by side.  It belongs to one thread at a time; the model is shared. */
#ifndef FOVEA_AUTHOR_SESSION_H
#define FOVEA_AUTHOR_SESSION_H

#include "fovea/author/nn.h"
#include "fovea/model.h"

/* cap: tokens a row can hold. */
FV_API fv_status fv_session_new(fv_session **out, const fv_model *m, fv_device *d, int64_t rows,
                                int64_t cap, fv_err *e);
FV_API void fv_session_free(fv_session *s); /* NULL is allowed */
/* Empties all rows; memory stays allocated. */
FV_API void fv_session_reset(fv_session *s);

FV_API int64_t fv_session_len(const fv_session *s, int64_t row); /* tokens so far */

/* Runs the family's begin: an encoder on in, whose batch is the session's rows or divides them. */
FV_API void fv_session_begin(fv_ctx *c, fv_session *s, const fv_items *in);
/* Appends ids I32 (rows,T) and gives the logits (rows,V) that follow; NULL once the context has
 * failed. */
FV_API fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids);
/* The same for a family of frames: appends one to each row.  false once the context has failed. */
FV_API bool fv_session_advance(fv_ctx *c, fv_session *s, const fv_items *in, fv_items *out);

FV_API int64_t fv_session_count(const fv_session *s); /* rows in use */
/* Tokens that went through the model since the session was made, those of all rows added up. */
FV_API int64_t fv_session_processed(const fv_session *s);
/* Cuts a row back to its first n tokens: after a padded prompt, or to try again from there. */
FV_API void fv_session_truncate(fv_session *s, int64_t row, int64_t n);
/* Announces how long a row will be once its prompt is read, which may take several steps with
 * padding between: what depends on the length of a prompt (dynamic rotary positions) then depends
 * neither on these steps nor on other rows. */
FV_API void fv_session_expect(fv_session *s, int64_t row, int64_t n);
/* For families: the length that counts for a row in the step under way, which adds n tokens. */
FV_API int64_t fv_session_span(fv_session *s, int64_t row, int64_t n);
/* Greedy decoding: n tokens a row into out (n,rows), the first step reading ids (rows); both in
 * host memory.  Where the device can, it feeds its own choices back without the host. */
FV_API fv_status fv_session_greedy(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out,
                                   int64_t n);
/* Row i becomes a copy of what row from[i] was, and only n rows stay, until fv_session_reset:
 * beams that go on and beams that end, sequences that are done and free their rows. */
FV_API void fv_session_select(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n);

/* ---- for families, inside begin and step ---- */

/* The cache of layer's self-attention, for the tokens of this step, in numbers of type t. */
FV_API fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width, fv_dtype t);
/* I32 (rows,T): where the tokens of this step stand. */
FV_API fv_tensor *fv_session_positions(fv_ctx *c, fv_session *s);
/* counted from there, not from 0 */
FV_API fv_tensor *fv_session_positions_from(fv_ctx *c, fv_session *s, int32_t from);
/* Copies x into the session under a number, and gets it back in a later step.  Its first axis is
 * the rows, or divides them: then each serves as many neighbouring rows, which only change rows
 * together with their group or within it. */
FV_API void fv_session_save_state(fv_ctx *c, fv_session *s, int slot, fv_tensor *x);
FV_API fv_tensor *fv_session_state(fv_ctx *c, fv_session *s, int slot); /* NULL: nothing there */

#endif
