/* embedding.c - a table of vectors by id, read both ways: into the model, and as the scores of
 * every id out of it. */
#include "nn/part.h"

#include <math.h>

#include "core/core.h"
#include "ops/adapted.h"
#include "ops/embed.h"

void fv_emb_init(fv_params *p, fv_emb *l, int64_t vocab, int64_t width, float std, const char *path,
                 ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    fv_init first = fv__weight(std > 0 ? std : (float)(1 / sqrt((double)width)));
    *l = (fv_emb){.scale = 1, .skip = -1};
    l->table = fv_param(p, first, FV_SHAPE(vocab, width), "%s.weight", at.s);
    if (l->table) fv__param_table(l->table);
}

static fv_tensor *given(fv_ctx *c, const fv_emb *l, fv_tensor *ids)
{
    fv_tensor *x = fv__table_rows(c, l->table, ids, l->skip, 0, 0);
    return l->scale == 0 || l->scale == 1 ? x : fv_scale(c, x, l->scale);
}

fv_tensor *fv_emb_fwd(fv_ctx *c, const fv_emb *l, fv_tensor *ids)
{
    if (fv__is_prompted(c, ids)) { /* PEFT's prompts are not scaled */
        fv_tensor *rest = fv__ids_behind_prompt(c, ids);
        return fv__behind_prompt(c, ids, rest ? given(c, l, rest) : NULL);
    }
    return given(c, l, ids);
}

fv_tensor *fv_emb_logits(fv_ctx *c, const fv_emb *l, fv_tensor *x)
{
    return fv_linear(c, x, l->table, NULL, FV_ACT_NONE);
}
