/* part.h - what families share: heads, stacks of layers, the steps of a session, positions of a
 * sequence. */
#ifndef FV_MODEL_PART_H
#define FV_MODEL_PART_H

#include "fovea/author/session.h"
#include "fovea/author/family.h"
#include "fovea/author/op.h"

/* What nearly every family's table names alike, with and without rules for keys; T: the family's
 * own struct. */
#define FV__FAMILY_PARTS(T) FV__FAMILY_PLAIN(T), .rules = rules
#define FV__FAMILY_PLAIN(T)                                                                        \
    .heads = heads, .config = fields, .inputs = inputs, .config_size = sizeof(config),             \
    .size = sizeof(T), .check = check, .declare = declare, .load = load, .pack = pack,             \
    .forward = forward

/* ---- sizes ---- */

/* That heads divide the width, that query heads divide among key heads: sentences where not. */
fv_status fv__heads_check(int width, int n_head, fv_err *e);
fv_status fv__key_heads_check(int n_head, int n_kv_head, fv_err *e);

/* ---- the pre-norm block ---- */

/* x += attn(norm x);  x += mlp(norm x), each with dropout on what it adds. */
typedef struct fv__pre_norm {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_mlp mlp;
    float dropout;
} fv__pre_norm;

/* An fv_layer_fn: one of them on x (B,T,D). */
fv_tensor *fv__pre_norm_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none);

/* ---- stacks of layers ---- */

typedef struct fv__layers_arg {
    fv_mha_arg self, cross;
} fv__layers_arg;

/* n layers on x (B,T,D), one after the other; `blocks` is an array of n structs of `size` bytes,
 * each handed to fn.  Shows what enters each as `shown`; what leaves the last is shown by whoever
 * has put the norm of the stack behind it. */
fv_tensor *fv__layers_run(fv_ctx *c, fv_layer_fn *fn, const void *blocks, size_t size, int n,
                          fv_tensor *x, fv__layers_arg arg, const char *shown);

/* ---- outputs ---- */

/* Puts "logits" (B,T,V) into out and, where there are labels (B,T), the "loss": of each label under
 * the logits at its position. */
void fv__put_tokens(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                    fv_tensor *labels);

/* The same of x (B,T,D) under the weight w (V,D); in training the loss alone, where the device
 * gains by that. */
void fv__put_words(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w,
                   fv_tensor *labels);

/* What a decoder gives, x (B,T,D): itself as "last_hidden_state" in a model without a head, else
 * tokens under the weight w (V,D) with the labels of `in`. */
void fv__put_decoded(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w,
                     fv_head_job job);

/* sum / in->n_labels, which may be known on the device alone. */
fv_tensor *fv__per_label(fv_ctx *c, fv_tensor *sum, const fv_items *in);

/* The labels of `in`, each moved to the position before its own; NULL: there are none. */
fv_tensor *fv__next_labels(fv_ctx *c, const fv_items *in);

/* Puts "logits" (B,labels) or (B,T,labels) and, where there are labels, the "loss"; problem: an
 * fv_problem. */
void fv__put_classes(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits, int problem);

/* ---- heads and output weights ---- */

/* The output weight (V,D): the table itself where they are tied, else a parameter of that shape. */
fv_tensor *fv__output(fv_params *p, fv_tensor *table, bool tied, float std, const char *name);

/* A weight's layout for products (fv_lin_pack), or NULL for none.  Of an output weight that is the
 * table too it is a copy: rows of the table are still looked up. */
fv_tensor *fv__packed(fv_params *p, fv_tensor *w, fv_dtype dtype);

/* Whether the file of a setup has this name, below the scope that is declared in, or that name with
 * `prefix` in front.  True where there is no file. */
bool fv__file_has(const fv_setup *s, const char *prefix, const char *name);

/* ---- layer_types: "full_attention" or "sliding_attention" for each layer, with blanks between; ""
 * where it is not given ---- */

#define FV__LAYER_TYPES 4864 /* chars of 256 layers */
fv_status fv__layer_types_check(const char *types, int layers, fv_err *e);
/* Whether layer i sees a window only; `otherwise` where types are not given. */
bool fv__layer_is_local(const char *types, int i, bool otherwise);

/* ---- what a session keeps ---- */

/* The keys and values for the self-attention l of layer i. */
fv_kv fv__self_cache(fv_ctx *c, fv_session *s, int i, const fv_mha *l, const fv_mha_arg *arg);

/* The same for a decoder that attends to a source too: caches of the activations' dtype. */
fv_kv fv__own_cache(fv_ctx *c, fv_session *s, int i, const fv_mha *l);
/* What a session keeps of the source: the mask (or NULL) once, keys and values of each layer. */
void fv__source_mask_keep(fv_ctx *c, fv_session *s, fv_tensor *mask);
void fv__source_keep(fv_ctx *c, fv_session *s, int i, fv_kv kv);
fv_tensor *fv__source_mask(fv_ctx *c, fv_session *s);
fv_kv fv__source_cache(fv_ctx *c, fv_session *s, int i);

/* Host memory of the context, until it is reset; NULL: there is none, and that is raised. */
void *fv__step_memory(fv_ctx *c, size_t bytes);

/* ---- positions of a sequence ---- */

/* (B,T,D) -> (B,D): the last position (in a step that scores every position, all: (B*T,D)); the
 * last whose id is not pad (pad < 0: the last); the last
 * whose id is `token`. */
fv_tensor *fv__last_position(fv_ctx *c, fv_tensor *x);
/* norm(x) w' + b there, (B,V): the end of a step; norm and b (V) may be NULL. */
fv_tensor *fv__last_scores(fv_ctx *c, fv_tensor *x, const fv_norm *norm, fv_tensor *w,
                           fv_tensor *b);
/* len[b] = 1 + the greatest position (B,T) of a row among those that mask (B,T) leaves; mask may be
 * NULL.  False where that failed.  It waits for the device. */
bool fv__row_lengths(fv_ctx *c, const fv_tensor *pos, const fv_tensor *mask, int64_t *len);
/* (B,T,D) -> (B,D): the position of ids (B,T) that `what` describes. */
fv_tensor *fv__position_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token, fv_find what);
fv_tensor *fv__last_but(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t pad);
fv_tensor *fv__last_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token);

/* ids with `to` in place of every `from`. */
fv_tensor *fv__replace_ids(fv_ctx *c, fv_tensor *ids, int32_t from, int32_t to);

/* I32 (B,T): start, then all of ids but the last; labels that do not count become pad. */
fv_tensor *fv__shift_right(fv_ctx *c, fv_tensor *ids, int32_t start, int32_t pad);
/* labels (B,T), those that do not count as pad. */
fv_tensor *fv__labels_as_ids(fv_ctx *c, fv_tensor *labels, int32_t pad);

#endif
