/* see.h - seeing the attention of a pass of one's own. */
#ifndef FOVEA_AUTHOR_SEE_H
#define FOVEA_AUTHOR_SEE_H

#include "fovea/see.h"

/* fv_see_run around a pass of one's own: watches c, which must record, and sees sequence b of every
 * attention that runs in it from here on, until fv_see_free.  fv_ctx_reset ends what can be
 * asked. */
FV_API fv_status fv_see_watch(fv_see **out, fv_ctx *c, int64_t b, fv_err *e);
/* Texts for rows and columns of a kind, n_rows and n_cols of them, copied; without them numbers are
 * shown. */
FV_API fv_status fv_see_label(fv_see *s, fv_see_kind k, const char *const *rows, int64_t n_rows,
                              const char *const *cols, int64_t n_cols, fv_err *e);

/* The name of a layer of that kind: "model.decoder.layers.0.encoder_attn" */
FV_API const char *fv_see_layer_name(const fv_see *s, fv_see_kind k, int64_t layer);

#endif
