/* adapter.h - what changes a linear map without changing its weight: LoRA, DoRA, IA3, bottlenecks.
 *
 * An adapter hangs on the parameter that is the weight, not on the layer: fv_linear and its like
 * ask the weight for it, so no family and no layer knows of adapters.  (A pointer in fv_lin was the
 * alternative; weights that families multiply with directly, as output layers, would have been
 * missed.)  Its own tensors are parameters of the same model, marked as added: files of the base
 * model do not have them. */
#ifndef FV_CORE_ADAPTER_H
#define FV_CORE_ADAPTER_H

#include "fovea/author/params.h"

/* How a parameter serves as the weight of a linear map, if it does. */
typedef enum fv_linear_kind {
    FV_LINEAR_NONE = 0,
    FV_LINEAR_OUT_IN, /* stored (out,in), as torch.nn.Linear has it */
    FV_LINEAR_IN_OUT  /* stored (in,out), as GPT-2's Conv1D has it */
} fv_linear_kind;

/* y = x W' + b becomes
 *
 *     LoRA   y + scale (dropout(x) A') B'
 *     DoRA   m / |W + scale B A| (x W' + scale (x A') B') + b, |.| being the norm of each row
 *     IA3    y * l, or where it stands before the map (x * l) W' + b
 *     bottleneck  y + scale (act(y D' + d) U' + u)
 *
 * and rows E[ids] of a table of embeddings E[ids] + scale A'[ids] B', by LoRA alone. */
typedef struct fv_adapter {
    fv_tensor *a, *b;     /* LoRA: (r,in), (out,r); of a table (r,V), (D,r); NULL: another kind */
    bool table;           /* it changes rows that are looked up, and no product with the weight */
    fv_tensor *magnitude; /* DoRA: m (out), or NULL */
    fv_tensor *l;         /* IA3: (out,1) or, before, (1,in) */
    bool before;
    float scale, dropout;
    fv_tensor *down, *down_b, *up, *up_b; /* bottleneck: (n,out), (n), (out,n), (out), or NULL */
    fv_act act;
} fv_adapter;

/* ---- marks on parameters (params.c); freezing must come before fv_params_alloc ---- */

void fv__param_freeze(fv_tensor *t);
bool fv__param_frozen(const fv_tensor *t);
void fv__param_mark_added(fv_tensor *t);
bool fv__param_added(const fv_tensor *t);
void fv__param_mark_linear(fv_tensor *t, fv_linear_kind kind); /* t may be NULL */
fv_linear_kind fv__param_linear(const fv_tensor *t);
fv_part_end fv__param_end(const fv_tensor *t);
void fv__param_adapt(fv_tensor *t, fv_adapter *a);
/* NULL: there is none, or t is no parameter.  Of a product with t; of t as a table. */
fv_adapter *fv__param_adapter(const fv_tensor *t);
fv_adapter *fv__param_table_adapter(const fv_tensor *t);
bool fv__param_is_table(const fv_tensor *t);
size_t fv__params_frozen_bytes(const fv_params *p);

#endif
