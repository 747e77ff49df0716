/* part.h - what the layers share: paths, first values, and constants made on the host. */
#ifndef FV_PART_H
#define FV_PART_H

#include <stdarg.h>

#include "fovea/author/nn.h"
#include "fovea/author/op.h"
#include "ops/fused_linear.h"

/* A parameter's path.  One that is too long is cut, and then refused by fv_param once a name is
 * added to it. */
typedef struct fv_path {
    char s[256];
} fv_path;

fv_path fv__path(const char *fmt, va_list ap);
/* path.name, or path itself where name is empty; NULL stands for otherwise. */
fv_path fv__below(const fv_path *path, const char *name, const char *otherwise);
/* How many names a list has, with blanks between them; path.name of the i-th. */
int fv__names(const char *names);
fv_path fv__named(const fv_path *path, const char *names, int i);

/* A sum whose norm is still to be computed, by what reads it; norm NULL: it has none. */
typedef struct fv_residual {
    fv_tensor *x;
    const fv_norm *norm;
} fv_residual;

/* For one token of each sequence, where the device has a kernel for it: f(norm(x)), added to
 * `onto`, in place unless that lacks a norm, or by itself where onto.x is NULL; norm may be NULL.
 * The feed-forward part comes in two halves, h = g(norm(x)) and down(h): where both parts of a
 * layer read the same x, h is computed before attention is added to it. */
bool fv__mha_decode_supported(const fv_ctx *c, const fv_mha *l, const fv_tensor *x,
                              const fv_mha_arg *arg);
fv_tensor *fv__mha_decode(fv_ctx *c, const fv_mha *l, const fv_norm *norm, fv_tensor *x,
                          fv_mha_arg arg, fv_residual onto);
/* Of the numbers that a cache for this attention holds. */
fv_dtype fv__mha_cache_dtype(const fv_ctx *c, const fv_mha *l, const fv_mha_arg *arg);
bool fv__mlp_decode_supported(const fv_ctx *c, const fv_mlp *l, const fv_tensor *x);
fv_tensor *fv__mlp_decode_hidden(fv_ctx *c, const fv_mlp *l, const fv_norm *norm, fv_tensor *x);
fv_tensor *fv__mlp_decode(fv_ctx *c, const fv_mlp *l, fv_tensor *h, fv_residual onto);
fv_fused_linear_arg fv__norm_then_linear(const fv_norm *norm, const fv_lin *l);
fv_fused_linear_arg fv__linear_then_sum(const fv_lin *l, fv_residual onto);

/* A post-norm layer with attention to others, for one token of each sequence, by such kernels:
 *     x = norm(x + self(x));  x = norm'(x + cross(x));  x + mlp(x), which still lacks its norm. */
bool fv__post_norm_decodes(const fv_ctx *c, const fv_mha *attn, const fv_mha *cross,
                           const fv_mlp *mlp, const fv_tensor *x, const fv_mha_arg *arg,
                           const fv_mha_arg *cross_arg);
fv_tensor *fv__post_norm_decode(fv_ctx *c, const fv_mha *attn, const fv_norm *attn_norm,
                                const fv_mha *cross, const fv_norm *cross_norm, const fv_mlp *mlp,
                                fv_residual x, fv_mha_arg arg, fv_mha_arg cross_arg);

/* fv_mha_fwd before its last product */
fv_tensor *fv__mha_heads(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg);
fv_tensor *fv__mlp_hidden(fv_ctx *c, const fv_mlp *l, fv_tensor *x); /* likewise */
/* onto + l(x), in one product where the device can. */
fv_tensor *fv__lin_add(fv_ctx *c, const fv_lin *l, fv_tensor *residual, fv_tensor *x);

/* Variational dropout (Gal and Ghahramani 2016): x (..,T,D) with one mask (..,1,D) for all T tokens
 * of a sequence. */
fv_tensor *fv__variational_dropout(fv_ctx *c, fv_tensor *x, float p);

/* What segments of Transformer-XL carry instead of states: keys and values (B,M,H W) of earlier
 * tokens and the projected positions (L,H W) of fv_rel_mha_fwd; NULL: not yet known. */
typedef struct fv_rel_past {
    fv_tensor *k, *v, *r;
} fv_rel_past;

/* fv_rel_mha_fwd behind a past, if past->k is not NULL; past then has all keys and values,
 * (B,L,H W), and the positions. */
fv_tensor *fv__rel_mha_past(fv_ctx *c, const fv_rel_mha *l, fv_tensor *x, fv_tensor *positions,
                            fv_rel_past *past, fv_mha_arg arg);
/* Sines and cosines of the distances n-1, .., 0: (n,width) f32, kept by the context.  Those beyond
 * clamp count as it, if that is positive. */
fv_tensor *fv__distances(fv_ctx *c, int64_t n, int64_t width, int64_t clamp);

/* A linear map that ranks may share (core/params.h): kind is an fv__split_kind, and the divided
 * axis is `pieces` runs of these lengths. */
void fv__lin_init_split(fv_params *p, fv_lin *l, int64_t in, int64_t out, fv_lin_opt opt, int kind,
                        const int64_t *piece, int pieces, const char *path);
int fv__split_ranks(const fv_params *p); /* 1: nothing is divided */

/* Normal with deviation std, or Xavier where that is 0. */
fv_init fv__weight(float std);

/* A tensor whose elements [from, from+n) fill writes to `out`, in pieces, so that no host memory is
 * asked for.  Where the `bytes` that user points to are all that it depends on, it is made once and
 * kept by the context; 0: it is made in each step. */
typedef void fv_fill_fn(void *out, const void *user, int64_t from, int64_t n);
fv_tensor *fv__table(fv_ctx *c, fv_dtype t, fv_shape s, fv_fill_fn *fill, const void *user,
                     size_t bytes);

#endif
