/* attention.h - exact weights into device memory of the caller's own, in a step that repeats. */
#ifndef FV_ATTENTION_H
#define FV_ATTENTION_H

#include "core/core.h"
#include "fovea/ops.h"

/* fv_attn_view_map into f32 `out`, (to-from, Tk) in device memory that lives longer than the
 * context's tensors: a captured step can be replayed with it. */
void fv__attn_view_write(fv_ctx *c, const fv_attn_view *v, float *out, int64_t b, int64_t head,
                         int64_t from, int64_t to);

/* The same for one query each of many sequences and heads, listed in device memory
 * (fv_weights_job): one launch, which a captured step repeats for whoever is listed then.  Whether
 * the device has it. */
bool fv__attn_lists_rows(const fv_device *d, fv_dtype t);
void fv__attn_view_write_rows(fv_ctx *c, const fv_attn_view *v, float *out,
                              const fv_weights_job *jobs, int64_t n);

/* Queries (Tq,W) and keys (Tk,W) of one head as the operator reads them, rotated where the model
 * rotates, into host memory; NULL: not wanted.  *scale: what their product is multiplied by.
 * Returns W, or 0 with the context's error. */
int64_t fv__attn_view_vectors(fv_ctx *c, const fv_attn_view *v, int64_t b, int64_t head, float *q,
                              float *k, float *scale);

/* What it was computed from: q (B,Tq,H W), k (B,Tk,G W), cut out of one tensor where they lie in
 * one; with gradient.  While recording, or during the tap. */
typedef struct fv__attn_inputs {
    fv_tensor *q, *k;
    int64_t n_head, n_kv_head;
    float scale;
} fv__attn_inputs;
fv__attn_inputs fv__attn_view_inputs(fv_ctx *c, const fv_attn_view *v);
/* Likewise v (B,Tk,G W). */
fv_tensor *fv__attn_view_values(fv_ctx *c, const fv_attn_view *v);

#endif
