/* part.c - what families share: shifted labels, outputs, output weights, the state of sessions,
 * positions of a sequence.
 *
 * Nothing here knows a family.  What two of them have in common and a third has not is either here,
 * under the name of what it does, or written twice: a family is read alone. */
#include "model/part.h"

#include <stdio.h>

#include "base/base.h"
#include "core/core.h"
#include "core/params.h"
#include "model/session.h"
#include "nn/part.h"

/* ---- sizes ---- */

fv_status fv__heads_check(int width, int n_head, fv_err *e)
{
    if (width % n_head == 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "hidden_size %d is no multiple of num_attention_heads %d", width,
                   n_head);
}

fv_status fv__key_heads_check(int n_head, int n_kv_head, fv_err *e)
{
    if (n_head % n_kv_head == 0) return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%d attention heads cannot share %d key heads", n_head,
                   n_kv_head);
}

/* ---- ids ---- */

/* Ids are (B,T); anything else is raised. */
static bool two_axes(fv_ctx *c, const fv_tensor *ids)
{
    if (!ids || fv__failed(c)) return false;
    if (ids->shape.n == 2 && ids->dtype == FV_I32 && fv_len(ids)) return true;
    fv_raise(c, FV_ESHAPE, "ids %s, expected i32 of two axes", fv_desc(ids).s);
    return false;
}

/* ---- outputs ---- */

/* y[b,t] = ids[b,t+by], or edge outside of the row; then `to` for every `from`.  On the device: in
 * training labels are never read back. */
static fv_tensor *shifted(fv_ctx *c, const fv_tensor *ids, int64_t by, int32_t edge, int32_t from,
                          int32_t to)
{
    if (!two_axes(c, ids)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, c->dtype);
    fv_tensor *y = fv_need(c, k && k->shift, "shift", c->dtype) ? fv_new(c, FV_I32, ids->shape)
                                                                : NULL;
    if (y)
        k->shift(fv_ctx_stream(c), y->data, ids->data, fv_dim(ids, 0), fv_dim(ids, 1), by, edge,
                 from, to);
    return y;
}

/* labels[b,t+1] at position t, and nothing that counts at the last. */
fv_tensor *fv__next_labels(fv_ctx *c, const fv_items *in)
{
    fv_tensor *labels = fv_items_get(in, "labels");
    return labels ? shifted(c, labels, 1, -100, -100, -100) : NULL;
}

void fv__put_tokens(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits,
                    fv_tensor *labels)
{
    fv_items_put(out, "logits", logits);
    if (labels) fv_items_put(out, "loss", fv_loss_tokens(c, logits, labels, in));
}

void fv__put_decoded(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w,
                     fv_head_job job)
{
    if (job == FV_HEAD_BASE)
        fv_items_put(out, "last_hidden_state", x);
    else
        fv__put_tokens(c, in, out, fv_linear(c, x, w, NULL, FV_ACT_NONE),
                       fv_items_get(in, "labels"));
}

void fv__put_words(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w,
                   fv_tensor *labels)
{
    fv_tensor *logits = labels ? NULL : fv_linear(c, x, w, NULL, FV_ACT_NONE);
    if (labels) {
        fv_ce_opt how = {.smooth = in->smooth, .ignore = -100};
        fv_tensor *sum = fv_sum_all(c, fv_linear_cross_entropy(c, &logits, x, w, labels, how));
        fv_items_put(out, "loss", fv__per_label(c, sum, in));
    }
    if (logits) fv_items_put(out, "logits", logits);
}

void fv__put_classes(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits, int problem)
{
    fv_tensor *labels = fv_items_get(in, "labels");
    fv_items_put(out, "logits", logits);
    if (labels)
        fv_items_put(out, "loss", fv_loss_classes(c, logits, labels, (fv_problem)problem, in));
}

/* ---- heads and output weights ---- */

static fv_tensor *weight(fv_params *p, int64_t out, int64_t in, float std, const char *name)
{
    return fv_param(p, fv__weight(std), FV_SHAPE(out, in), "%s", name);
}

/* The output weight (V,D): the table itself where they are tied. */
fv_tensor *fv__output(fv_params *p, fv_tensor *table, bool tied, float std, const char *name)
{
    return tied || !table ? table : weight(p, fv_dim(table, 0), fv_dim(table, 1), std, name);
}

fv_tensor *fv__packed(fv_params *p, fv_tensor *w, fv_dtype dtype)
{
    fv_lin l = {.w = w};
    if (w) fv_lin_pack(p, &l, dtype);
    return l.w;
}

/* ---- blocks and stacks of them ---- */

fv_tensor *fv__pre_norm_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const fv__pre_norm *b = block;
    return fv_pre_norm(c, &b->attn_norm, &b->attn, &b->mlp_norm, &b->mlp, x, arg, b->dropout);
}

/* hidden_states of a layer is what enters it; memory of earlier layers is given back while nothing
 * is recorded. */
fv_tensor *fv__layers_run(fv_ctx *c, fv_layer_fn *fn, const void *blocks, size_t size, int n,
                          fv_tensor *x, fv__layers_arg arg, const char *shown)
{
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < n; i++) {
        fv_tap(c, "hidden", shown, x);
        x = fv_layer_run(c, fn, (const char *)blocks + (size_t)i * size, x, arg.self, arg.cross);
        x = fv_keep(c, mark, x); /* nothing while recording; caps memory while serving */
    }
    return x;
}

/* Whether the file holds a parameter, with or without the prefix; true for a model without a
 * file. */
bool fv__file_has(const fv_setup *s, const char *prefix, const char *name)
{
    char path[256];
    fv_st_info found;
    bool has = !s->file;
    for (int i = 0; !has && i < 2; i++) {
        int n = snprintf(path, sizeof path, "%s%s%s", s->params->scope, i ? prefix : "", name);
        has = n < (int)sizeof path && !fv_st_find(s->file, path, &found, NULL);
    }
    return has;
}

/* ---- layer_types ---- */

/* The i-th of words with blanks between; NULL past the end. */
static const char *word_at(const char *words, int i, size_t *n)
{
    words += strspn(words, " ");
    for (; *words && i > 0; i--) {
        words += strcspn(words, " ");
        words += strspn(words, " ");
    }
    *n = strcspn(words, " ");
    return *n ? words : NULL;
}

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && !memcmp(s, word, n);
}

/* By layer_types, "full_attention sliding_attention ..."; otherwise: where it is empty. */
bool fv__layer_is_local(const char *types, int i, bool otherwise)
{
    size_t n;
    const char *type = word_at(types, i, &n);
    return type ? is_word(type, n, "sliding_attention") : otherwise;
}

fv_status fv__layer_types_check(const char *types, int layers, fv_err *e)
{
    const char *type;
    size_t n;
    int i = 0;
    for (; (type = word_at(types, i, &n)); i++)
        if (!is_word(type, n, "full_attention") && !is_word(type, n, "sliding_attention"))
            return fv_fail(
                e, FV_EFORMAT,
                "layer_types: expected full_attention or sliding_attention, found \"%.*s\"", (int)n,
                type);
    if (i && i != layers)
        return fv_fail(e, FV_EFORMAT, "layer_types has %d entries, but num_hidden_layers is %d", i,
                       layers);
    return FV_OK;
}

/* ---- what a session keeps ---- */

fv_kv fv__own_cache(fv_ctx *c, fv_session *s, int i, const fv_mha *l)
{
    return fv_session_kv(c, s, i, l->n_kv_head * l->head, c->dtype);
}

fv_kv fv__self_cache(fv_ctx *c, fv_session *s, int i, const fv_mha *l, const fv_mha_arg *arg)
{
    return fv__session_kv(c, s, i, l->n_kv_head * l->head, fv__mha_cache_dtype(c, l, arg));
}

/* Numbers of states: the mask of the source, then keys and values of each layer. */
enum { MASK = 0, CROSS = 1 };

void fv__source_mask_keep(fv_ctx *c, fv_session *s, fv_tensor *mask)
{
    fv_session_save_state(c, s, MASK, mask);
}

void fv__source_keep(fv_ctx *c, fv_session *s, int i, fv_kv kv)
{
    fv_session_save_state(c, s, CROSS + 2 * i, kv.k);
    fv_session_save_state(c, s, CROSS + 2 * i + 1, kv.v);
}

fv_tensor *fv__source_mask(fv_ctx *c, fv_session *s) { return fv_session_state(c, s, MASK); }

fv_kv fv__source_cache(fv_ctx *c, fv_session *s, int i)
{
    return (fv_kv){.k = fv_session_state(c, s, CROSS + 2 * i),
                   .v = fv_session_state(c, s, CROSS + 2 * i + 1)};
}

/* Host memory until the context is reset. */
void *fv__step_memory(fv_ctx *c, size_t bytes)
{
    void *p = fv__failed(c) ? NULL : fv__arena_alloc(&c->host, bytes);
    return p || fv__failed(c) ? p : fv_raise(c, FV_ENOMEM, "out of memory for %zu bytes", bytes);
}

/* ---- positions of a sequence ---- */

/* (B,T,D) -> (B,D); or of all positions, (B*T,D), where a draft is verified.  Of prompts that are
 * padded to one length, the position of each one's own last token. */
fv_tensor *fv__last_position(fv_ctx *c, fv_tensor *x)
{
    int64_t T = fv_dim(x, 1);
    fv_tensor *flat = c->all_positions || c->ends
                          ? fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0) * T, fv_dim(x, 2)))
                          : NULL;
    if (c->all_positions) return flat;
    if (c->ends)
        return fv_reshape(c, fv_gather(c, flat, c->ends, -1), FV_SHAPE(fv_dim(x, 0), fv_dim(x, 2)));
    return fv_reshape(c, T > 1 ? fv_slice(c, x, 1, T - 1, T) : x,
                      FV_SHAPE(fv_dim(x, 0), fv_dim(x, 2)));
}

/* The norm and the output weight as one fused call where the device has it. */
fv_tensor *fv__last_scores(fv_ctx *c, fv_tensor *x, const fv_norm *norm, fv_tensor *w, fv_tensor *b)
{
    if ((norm && norm->plus_one) || !fv__fused_linear_supported(c, x, w)) {
        x = fv__last_position(c, x);
        return fv_linear(c, norm ? fv_norm_fwd(c, norm, x) : x, w, b, FV_ACT_NONE);
    }
    fv_lin out = {.w = w, .b = b};
    return fv__last_position(c, fv__fused_linear(c, x, fv__norm_then_linear(norm, &out)));
}

fv_tensor *fv__position_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token, fv_find what)
{
    if (!x || !two_axes(c, ids)) return NULL;
    const fv_kernels *k = fv_kernels_of(c, c->dtype);
    fv_tensor *at = fv_need(c, k && k->find_index, "find_index", c->dtype)
                        ? fv_new(c, FV_I32, FV_SHAPE(fv_dim(ids, 0)))
                        : NULL;
    if (at)
        k->find_index(fv_ctx_stream(c), at->data, ids->data, fv_dim(ids, 0), fv_dim(ids, 1), token,
                      what);
    return fv_gather(c, fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, 2))), at, -1);
}

bool fv__row_lengths(fv_ctx *c, const fv_tensor *pos, const fv_tensor *mask, int64_t *len)
{
    if (!two_axes(c, pos)) return false;
    int64_t B = fv_dim(pos, 0), T = fv_dim(pos, 1), n = B * T;
    int32_t *at = fv__arena_alloc(&c->host, (size_t)n * sizeof *at);
    uint8_t *seen = fv__arena_alloc(&c->host, (size_t)n);
    if (!at || !seen) return fv_raise(c, FV_ENOMEM, "lengths of rows: out of memory") != NULL;
    memset(seen, 1, (size_t)n);
    if (fv_read_i32(c, pos, at, n)) return false;
    if (mask && mask->dtype == FV_U8 && fv_shape_same(mask->shape, pos->shape))
        c->dev->backend->download(&c->stream, seen, mask->data, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        if (i % T == 0) len[i / T] = 1;
        if (seen[i] && at[i] >= len[i / T]) len[i / T] = (int64_t)at[i] + 1;
    }
    return !fv__failed(c);
}

fv_tensor *fv__last_but(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t pad)
{
    return pad < 0 ? fv__last_position(c, x) : fv__position_of(c, x, ids, pad, FV_FIND_LAST_OTHER);
}

fv_tensor *fv__last_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token)
{
    return fv__position_of(c, x, ids, token, FV_FIND_LAST);
}

fv_tensor *fv__replace_ids(fv_ctx *c, fv_tensor *ids, int32_t from, int32_t to)
{
    if (!ids) return NULL;
    fv_tensor *rows = fv_reshape(c, ids, FV_SHAPE(1, fv_len(ids)));
    return fv_reshape(c, shifted(c, rows, 0, 0, from, to), ids->shape);
}

fv_tensor *fv__shift_right(fv_ctx *c, fv_tensor *ids, int32_t start, int32_t pad)
{
    return shifted(c, ids, -1, start, -100, pad);
}

fv_tensor *fv__labels_as_ids(fv_ctx *c, fv_tensor *labels, int32_t pad)
{
    return shifted(c, labels, 0, pad, -100, pad);
}
