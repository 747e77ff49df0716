/* see.h - a text that is looked at: its tokens and one forward pass, for the routes that show what
 * attends to what. */
#ifndef SV_SEE_H
#define SV_SEE_H

#include "fovea/see.h"
#include "generate.h"
#include "media.h"

typedef struct sv_see {
    sv_engine *g;
    sv_request *r;
    int32_t *source, *target; /* target: of a model with an encoder and a decoder */
    sv_media image;           /* of a model that sees */
    int32_t start;            /* what its decoder begins with */
    int64_t n_source, n_target;
    fv_see *see;
    bool outline; /* it has no weights */
    int adapted;  /* with which adapter, as of the request */
    fv_see_kind kind;
    fv_see_shape shape; /* of that kind */
} sv_see;

/* Encodes "input" (and "target"); false: refused.  sv_see_in: what the library takes. */
bool sv_see_read(sv_see *k, sv_engine *g, sv_request *r);
fv_see_in sv_see_in(const sv_see *k);
/* The same, or the image of "input" and what is written about it; a forward pass, and the "kind" of
 * attention that is meant. */
bool sv_see_run(sv_see *k, sv_engine *g, sv_request *r);
/* The same with labels alone, if the model has an outline and no capture is kept; then the pass,
 * to be kept, once the answer is on its way. */
bool sv_see_outline(sv_see *k, sv_engine *g, sv_request *r);
void sv_see_complete(sv_see *k);
void sv_see_free(sv_see *k); /* the capture of a text is kept for the next request */
/* The tokens along the rows or the columns of the map. */
void sv_see_put_tokens(sv_text *t, const sv_see *k, const char *key, bool rows);

/* ---- seen.c, all on the engine's thread ---- */

/* The capture of k's tokens, if it is kept: it is k's then. */
bool sv_seen_take(sv_engine *g, sv_see *k);
/* Keeps what k holds, which is the engine's then; false: it is too large. */
bool sv_seen_keep(sv_engine *g, sv_see *k);

#endif
