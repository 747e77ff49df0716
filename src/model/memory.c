/* memory.c - how large the memory of a model is that carries one from segment to segment. */
#include "model/memory.h"

#include <stdlib.h>
#include <string.h>

#include "core/core.h"

bool fv__memory_taken(const fv_model *m) { return fv_family_takes(fv_model_family(m), "mems"); }

fv_status fv__memory_of(fv__memory *out, fv_device *d, const fv_model *m, fv_err *e)
{
    char len[32] = "0";
    fv_ctx *c;
    fv_items in = {0}, made = {0};
    const int32_t first = 0;
    *out = (fv__memory){0};
    if (!fv__memory_taken(m)) return FV_OK;
    fv_fields_get(fv_model_config(m), fv_model_family(m)->config, "mem_len", len, sizeof len);
    out->len = strtoll(len, NULL, 10);
    if (!out->len) return FV_OK;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (st) return st;
    fv_items_put(&in, "input_ids", fv_ints(c, &first, FV_SHAPE(1, 1)));
    fv_model_forward(c, m, &in, &made);
    const fv_tensor *mems = fv_items_get(&made, "mems");
    if (fv_ctx_status(c)) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    out->layers = fv_dim(mems, 0);
    out->width = fv_dim(mems, 3);
    fv_ctx_free(c);
    return st;
}

void fv__memory_mask(uint8_t *mask, int64_t M, int64_t T, int64_t known)
{
    if (known > M) known = M;
    memset(mask, 0, (size_t)(M - known));
    memset(mask + M - known, 1, (size_t)(known + T));
}
