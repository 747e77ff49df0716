/* embed.h - rows of tables, their sum and its norm: what enters the layers of a model. */
#ifndef FV_OPS_EMBED_H
#define FV_OPS_EMBED_H

#include "fovea/author/op.h"

enum { FV_EMBED_MAX_TABLES = 3 };

/* Rows of a table (V,D): those that ids (B,T) name, or where ids is NULL rows first ..
 * first+count-1, again and again. */
typedef struct fv_some_rows {
    fv_tensor *table, *ids;
    int64_t first, count;
    int32_t skip; /* an id whose row has no gradient, or -1 */
} fv_some_rows;

/* The layer norm of the sum of rows of n tables, the first of them by ids (B,T): (B,T,D).  count is
 * 1 or T. */
fv_tensor *fv__embed(fv_ctx *c, const fv_some_rows *of, int n, fv_tensor *gain, fv_tensor *bias,
                     float eps);
/* The sum itself. */
fv_tensor *fv__embed_bare(fv_ctx *c, const fv_some_rows *of, int n);

/* ---- virtual tokens (core/prompt.h) ---- */

/* These ids begin with virtual tokens, whose rows no table has. */
bool fv__is_prompted(const fv_ctx *c, const fv_tensor *ids);
/* Those that are no virtual tokens, (B,T); NULL: there are none. */
fv_tensor *fv__ids_behind_prompt(fv_ctx *c, fv_tensor *ids);
/* x (B,T,D), or NULL for T 0 -> (B,n+T,D): the rows of the virtual tokens in front of it. */
fv_tensor *fv__behind_prompt(fv_ctx *c, const fv_tensor *ids, fv_tensor *x);

#endif
