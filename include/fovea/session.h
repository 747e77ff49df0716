/* session.h - what a model remembers of sequences while they are generated: the KV cache.
 *
 * A session holds, on the model's device, the keys and values of every token so far for `rows`
 * sequences side by side.  It belongs to one thread at a time; the model is shared. */
#ifndef FOVEA_SESSION_H
#define FOVEA_SESSION_H

#include "fovea/model.h"

typedef struct fv_session fv_session;

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

#endif
