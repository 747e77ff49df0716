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

/* ---- heads ---- */

/* What a head does, as the mean over its rows. */
typedef struct fv_see_head {
    double entropy;  /* of a row's weights, in nats: 0 looks at one token, ln(cols) at all alike */
    double first;    /* weight of the first token, of rows behind it */
    double previous; /* of the token before, likewise */
    double self;     /* of the token itself */
    /* Of tokens that stood behind an earlier occurrence of the row's own (Olsson et al. 2022), over
     * rows whose token has one; 0: no token comes twice */
    double induction;
} fv_see_head;
/* p names one head.  ids: the tokens of the rows, for induction; NULL: there is none.  A
 * cross-attention has entropy and first alone, the others are 0. */
FV_API fv_status fv_see_head_type(fv_see *s, fv_see_pick p, const int32_t *ids, fv_see_head *out,
                                  fv_err *e);

/* Queries (rows,width) and keys (cols,width) of one head as the operator multiplies them: rotated,
 * where the model rotates.  A score is their product times *scale, with masks and biases on top.
 * q or k NULL: not wanted; both NULL: *width alone. */
FV_API fv_status fv_see_vectors(fv_see *s, fv_see_pick p, float *q, float *k, int64_t *width,
                                float *scale, fv_err *e);

#define FV_SEE_NEXT 32

/* What a model that looks back expects after a text. */
typedef struct fv_see_next {
    double loss; /* as fv_see_ablate; NaN where one token has nothing to predict */
    int n;       /* likeliest next tokens, best first: as many as were asked for */
    int32_t token[FV_SEE_NEXT];
    float score[FV_SEE_NEXT]; /* log-probabilities */
} fv_see_next;
/* The same when all of these heads add nothing; top: likeliest tokens wanted, at most 32.  For
 * models of one text that look back, else FV_EMISSING. */
FV_API fv_status fv_see_without(fv_device *d, const fv_model *m, fv_see_in in,
                                const fv_see_pick *heads, int n, int top, fv_see_next *out,
                                fv_err *e);

#endif
