/* mha.c - multi-head attention: projections around the attention operator, rotary positions and a
 * cache between them.
 *
 *     q, k, v = x Wq', x Wk', x Wv';   q, k rotated by position;   k, v appended to the cache;
 *     y = attention(q, k, v) Wo'
 *
 * Three ways to the same numbers.  Training and encoders: one product each, or one for all where
 * the file stores them so.  Serving packs Wq, Wk, Wv one below the other (of grouped heads k and v
 * are fewer rows), so that one product reads x once.  A decode step where the device has fused
 * kernels: norm, product, rotation and cache are one call, output product and residual another
 * (fv__mha_decode). */
#include "nn/part.h"

#include <math.h>
#include <string.h>

#include "core/params.h"
#include "ops/fused_heads.h"
#include "ops/product.h"
#include "ops/split.h"

static const char *kept(fv_params *p, const fv_path *path)
{
    size_t n = strlen(path->s) + 1;
    char *s = fv_params_scratch(p, n);
    return s ? memcpy(s, path->s, n) : NULL;
}

void fv_mha_bare(fv_params *p, fv_mha *l, int64_t n_head, int64_t head, const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_mha){.n_head = n_head, .n_kv_head = n_head, .head = head, .name = kept(p, &at)};
}

/* Ranks share heads: those of queries and, in groups, those of keys. */
static void divide_heads(fv_params *p, fv_mha *l)
{
    int ranks = fv__split_ranks(p);
    fv_err e = {0};
    if (l->n_head % ranks || l->n_kv_head % ranks) {
        fv_fail(&e, FV_EARG,
                "%s: %lld attention heads with %lld of keys cannot be divided evenly among %d "
                "ranks",
                l->name ? l->name : "attention", (long long)l->n_head, (long long)l->n_kv_head,
                ranks);
        fv__params_fail(p, &e);
    }
    l->n_head /= ranks;
    l->n_kv_head /= ranks;
}

void fv_mha_init(fv_params *p, fv_mha *l, int64_t width, int64_t n_head, fv_mha_opt opt,
                 const char *path, ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    const char *names = opt.names ? opt.names : "q_proj k_proj v_proj out_proj";
    bool packed = fv__names(names) == 2;
    fv_mha_bare(p, l, n_head, opt.head, "%s", at.s);
    if (opt.n_kv_head) l->n_kv_head = opt.n_kv_head;
    if (!l->head && n_head > 0) l->head = width / n_head;
    int64_t q = n_head * l->head, kv = l->n_kv_head * l->head;
    const int64_t piece[] = {q, kv, kv};
    fv_lin *lins[] = {&l->q, &l->k, &l->v};
    if (packed)
        fv__lin_init_split(p, &l->qkv, width, q + 2 * kv, opt.in, FV__COLUMNS, piece, 3,
                           fv__named(&at, names, 0).s);
    for (int i = 0; i < 3 && !packed; i++)
        fv__lin_init_split(p, lins[i], width, piece[i], opt.in, FV__COLUMNS, &piece[i], 1,
                           fv__named(&at, names, i).s);
    fv__lin_init_split(p, &l->out, q, width, opt.out, FV__ROWS, &q, 1,
                       fv__named(&at, names, packed ? 1 : 3).s);
    fv_param_mark_end(l->out.w, FV_ENDS_ATTENTION);
    divide_heads(p, l);
}

static bool has_factor(const fv_rope_arg *t)
{
    return t->freq && t->attention_factor > 0 && t->attention_factor != 1;
}

static bool rotates_all(const fv_mha *l, const fv_rope_arg *t)
{
    return 2 * fv_cols(t->freq) == l->head;
}

static fv_attn settings(const fv_mha *l, const fv_mha_arg *a)
{
    fv_attn s = {.n_head = l->n_head,
                 .n_kv_head = l->n_kv_head,
                 .causal = a->causal,
                 .window = l->window,
                 .scale = l->scale,
                 .dropout = l->dropout,
                 .key_mask = a->key_mask,
                 .mask = a->mask,
                 .bias = a->bias,
                 .rel = a->rel,
                 .rel_zero = a->rel_zero,
                 .name = l->name};
    /* Keys of somebody else, or complete before this call: an encoder's. */
    if (a->memory || (a->kv && !a->kv->pos)) s.role = FV_ATTN_CROSS;
    if (a->kv) s.lens = a->kv->lens;
    /* A factor on all of q and of k is its square on the scores. */
    if (has_factor(&a->rope) && rotates_all(l, &a->rope))
        s.scale = a->rope.attention_factor * a->rope.attention_factor *
                  (l->scale != 0 ? l->scale : (float)(1 / sqrt((double)l->head)));
    return s;
}

/* The factor where a head is rotated, 1 behind that. */
typedef struct head_factors {
    float factor;
    int32_t rotated, head; /* widths */
} head_factors;

static void list_factors(void *out, const void *user, int64_t from, int64_t n)
{
    const head_factors *u = user;
    for (int64_t i = 0; i < n; i++) ((float *)out)[i] = from + i < u->rotated ? u->factor : 1;
}

/* Rotates each head of x (B,T,n_head*W) by the positions pos. */
static fv_tensor *apply_rope(fv_ctx *c, const fv_mha *l, const fv_rope_arg *t, fv_tensor *x,
                             fv_tensor *pos, int64_t n_head)
{
    if (!x || !t->freq) return x;
    fv_shape shape = x->shape;
    x = fv_rope(c, x, pos, t->freq, (fv_rope_opt){.n_head = n_head, .adjacent = t->adjacent});
    if (!x || !has_factor(t) || rotates_all(l, t)) return x;
    head_factors f = {t->attention_factor, (int32_t)(2 * fv_cols(t->freq)), (int32_t)l->head};
    fv_tensor *by = fv__table(c, FV_F32, FV_SHAPE(l->head), list_factors, &f, sizeof f);
    x = fv_mul(c, fv_reshape(c, x, FV_SHAPE(-1, l->head)), fv_cast(c, by, x->dtype));
    return fv_reshape(c, x, shape);
}

/* The norm of each head of x (B,T,n_head*W), where there is one. */
static fv_tensor *norm_heads(fv_ctx *c, const fv_mha *l, const fv_norm *norm, fv_tensor *x)
{
    if (!x || !norm->gain) return x;
    fv_tensor *heads = fv_reshape(c, x, FV_SHAPE(-1, l->head));
    fv_norm of_all = *norm; /* all heads have one gain: its gradient is the sum over ranks */
    of_all.gain = fv__split_enter(c, norm->gain, l->qkv.w ? l->qkv.w : l->q.w);
    return fv_reshape(c, fv_norm_fwd(c, &of_all, heads), x->shape);
}

/* (B,T,H*3*W), with q, k and v of each head side by side -> three of (B,T,H*W). */
static void split_heads(fv_ctx *c, const fv_mha *l, fv_tensor *all, fv_tensor *qkv[3])
{
    if (!all) return;
    fv_shape shape = all->shape;
    shape.d[shape.n - 1] = l->n_head * l->head;
    fv_tensor *heads = fv_reshape(c, all, FV_SHAPE(-1, 3 * l->head));
    for (int i = 0; i < 3; i++)
        qkv[i] = fv_reshape(c, fv_slice(c, heads, -1, i * l->head, (i + 1) * l->head), shape);
}

/* What one weight makes becomes t at once: a cache may be narrower than what passes through
 * layers. */
static void project(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_tensor *memory, bool with_keys,
                    fv_dtype t, fv_tensor *qkv[3])
{
    qkv[0] = qkv[1] = qkv[2] = NULL;
    if (l->qkv.w) {
        fv_tensor *all = fv_cast(c, fv_lin_fwd(c, &l->qkv, x), t);
        int64_t q = l->n_head * l->head, kv = l->n_kv_head * l->head;
        if (l->by_head) {
            split_heads(c, l, all, qkv);
            return;
        }
        qkv[0] = fv_slice(c, all, -1, 0, q);
        qkv[1] = fv_slice(c, all, -1, q, q + kv);
        qkv[2] = fv_slice(c, all, -1, q + kv, q + 2 * kv);
        return;
    }
    qkv[0] = fv_lin_fwd(c, &l->q, x);
    if (!with_keys) return;
    qkv[1] = fv_lin_fwd(c, &l->k, memory);
    qkv[2] = fv_lin_fwd(c, &l->v, memory);
}

/* The number of a layer among those whose keys have a prefix: layers attend in their order, and
 * that of the first time counts. */
static int prefix_layer(fv__prompt *p, const fv_mha *l, int64_t kv)
{
    int i = 0;
    while (i < p->layers && p->layer[i] != l) i++;
    if (i < p->layers || i == FV__PROMPT_LAYERS) return i;
    p->layer[p->layers++] = l;
    p->column[i + 1] = p->column[i] + 2 * kv;
    return i;
}

/* Keys and values of virtual tokens are those that were trained, as they are: not rotated.  x
 * (B,n+T,kv); which: 0 keys, 1 values.  A layer has two of the prefix's parts.  Beside an encoder
 * PEFT deals the parts out twice and gives every layer four, of which self-attention takes the
 * first two. */
static fv_tensor *put_prefix(fv_ctx *c, const fv_mha *l, fv_tensor *x, int which)
{
    fv__prompt *p = c->prompt;
    int64_t kv = l->n_kv_head * l->head, parts = fv_cols(p->prefix) / kv;
    int layer = prefix_layer(p, l, kv);
    int64_t from = p->column[layer] + which * kv;
    if (p->causal_only) {
        int64_t part = 4 * layer + which;
        from = (part < 2 * parts ? part % parts : part) * kv;
    }
    if (!x || from + kv > fv_cols(p->prefix))
        return !x ? NULL
                  : fv_raise(c, FV_ESHAPE, "%s: keys are %lld wide, and the prefix is %s", l->name,
                             (long long)kv, fv_desc(p->prefix).s);
    fv_tensor *rows = fv_cast(c, fv_slice(c, p->prefix, 1, from, from + kv), x->dtype);
    rows = fv_expand(c, fv_reshape(c, rows, FV_SHAPE(1, p->n, kv)),
                     FV_SHAPE(fv_dim(x, 0), p->n, kv));
    int64_t T = fv_dim(x, 1) - p->n;
    if (T < 1) return rows;
    fv_tensor *rest = fv_slice(c, x, 1, p->behind ? 0 : p->n, p->behind ? T : p->n + T);
    fv_tensor *both[] = {rows, rest}, *swapped[] = {rest, rows};
    return fv_concat(c, p->behind ? swapped : both, 2, 1);
}

static bool has_prefix(const fv_ctx *c, const fv_mha_arg *arg)
{
    const fv__prompt *p = c->prompt;
    bool cross = arg->memory || (arg->kv && !arg->kv->pos);
    return p && p->prefix && !cross && (arg->causal || !p->causal_only);
}

/* Three weights that training can multiply by at once: nothing happens to q, k and v before they
 * meet. */
static bool joins(const fv_ctx *c, const fv_mha *l, const fv_tensor *x, const fv_mha_arg *arg)
{
    fv_tensor *const w[] = {l->q.w, l->k.w, l->v.w}, *const b[] = {l->q.b, l->k.b, l->v.b};
    return !l->qkv.w && !l->q.in_out && !arg->rope.freq && !arg->kv && !l->q_norm.gain &&
           !l->k_norm.gain && (!arg->memory || arg->memory == x) && fv__linear_joins(c, x, w, b, 3);
}

static fv_tensor *attend_heads(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg)
{
    fv_attn how = settings(l, &arg);
    if (l->qkv.w && arg.memory && arg.memory != x)
        return fv_raise(c, FV_EARG,
                        "%s: one weight holds q, k and v, so nothing but x can be attended to",
                        l->name);
    const fv_tensor *first = l->qkv.w ? l->qkv.w : l->q.w;
    if (fv__weight_split(first) && (l->by_head || arg.bias || arg.rel || arg.memory || c->prompt))
        return fv_raise(c, FV_EMISSING, "%s: this attention cannot be divided among ranks",
                        l->name);
    x = fv__split_enter(c, x, first);
    bool prefix = has_prefix(c, &arg);
    if (l->qkv.w && !arg.rope.freq && !arg.kv && !l->by_head && !l->q_norm.gain && !prefix)
        return fv_attention_packed(c, fv_lin_fwd(c, &l->qkv, x), how);
    if (joins(c, l, x, &arg) && !prefix) {
        fv_tensor *const w[] = {l->q.w, l->k.w, l->v.w}, *const b[] = {l->q.b, l->k.b, l->v.b};
        return fv_attention_packed(c, fv__linear_joined(c, x, w, b, 3), how);
    }

    fv_tensor *t[3];
    bool complete = arg.kv && !arg.kv->pos; /* nothing is added to the keys */
    bool at_read = arg.kv && arg.rope.at_read;
    fv_dtype cached = arg.kv && !complete ? arg.kv->k->dtype : x->dtype;
    project(c, l, x, arg.memory ? arg.memory : x, !complete, arg.rope.freq ? x->dtype : cached, t);
    /* rotated before it is rounded to the cache's dtype, as fv__mha_decode does */
    t[0] = norm_heads(c, l, &l->q_norm, t[0]);
    t[0] = fv_cast(c, apply_rope(c, l, &arg.rope, t[0], arg.rope.pos, l->n_head), cached);
    if (complete) {
        t[1] = arg.kv->k;
        t[2] = arg.kv->v;
    } else {
        t[1] = norm_heads(c, l, &l->k_norm, t[1]);
        if (!at_read) t[1] = apply_rope(c, l, &arg.rope, t[1], arg.rope.pos, l->n_kv_head);
        if (prefix) t[1] = put_prefix(c, l, t[1], 0);
        if (prefix) t[2] = put_prefix(c, l, t[2], 1);
        t[1] = fv_cast(c, t[1], cached);
        t[2] = fv_cast(c, t[2], cached);
    }
    if (arg.kv && !complete) {
        t[1] = fv_cache_write(c, arg.kv->k, t[1], arg.kv->pos);
        t[2] = fv_cache_write(c, arg.kv->v, t[2], arg.kv->pos);
    }
    if (at_read && t[1]) {
        fv_tensor *pos = fv_positions(c, fv_dim(t[1], 0), fv_dim(t[1], 1), 0);
        t[1] = apply_rope(c, l, &arg.rope, t[1], pos, l->n_kv_head);
    }
    return fv_cast(c, fv_attention(c, t[0], t[1], t[2], how), x->dtype);
}

static fv_tensor *attend(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg)
{
    const fv_tensor *first = l->qkv.w ? l->qkv.w : l->q.w;
    fv__split_masks(c, first);
    fv_tensor *y = attend_heads(c, l, x, arg);
    fv__split_masks(c, first);
    return y;
}

/* Keys of one sequence for several of x (an encoder's, for all beams): as rows of one they read
 * them together.  How many sequences there are then; 0: each row has keys of its own. */
static int64_t sequences_shared(const fv_tensor *x, const fv_mha_arg *arg)
{
    int64_t B = fv_dim(x, 0), served = arg->kv && !arg->kv->pos ? fv_dim(arg->kv->k, 0) : B;
    return served == B || served < 1 || B % served || arg->causal ? 0 : served;
}

static fv_shape rows_shared(const fv_tensor *x, int64_t sequences)
{
    return FV_SHAPE(sequences, fv_dim(x, 0) / sequences * fv_dim(x, 1), fv_cols(x));
}

fv_tensor *fv__mha_heads(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg)
{
    int64_t shared = x ? sequences_shared(x, &arg) : 0;
    if (!x || !shared) return x ? attend(c, l, x, arg) : NULL;
    fv_shape shape = x->shape;
    shape.d[shape.n - 1] = l->n_head * l->head;
    return fv_reshape(c, attend(c, l, fv_reshape(c, x, rows_shared(x, shared)), arg), shape);
}

fv_tensor *fv_mha_fwd(fv_ctx *c, const fv_mha *l, fv_tensor *x, fv_mha_arg arg)
{
    return fv_lin_fwd(c, &l->out, fv__mha_heads(c, l, x, arg));
}

/* A factor on what is rotated of a head, where that is not all of it: no factor on the scores. */
static bool has_partial_factor(const fv_mha *l, const fv_rope_arg *t)
{
    return has_factor(t) && !rotates_all(l, t);
}

/* Heads are to be normed, sorted or multiplied before attention: more than a product can do. */
static bool has_heads_between(const fv_mha *l, const fv_rope_arg *t)
{
    return l->by_head || l->q_norm.gain || has_partial_factor(l, t);
}

/* Norms of q and of k that one kernel can do. */
static bool norms_are_alike(const fv_mha *l)
{
    const fv_norm *q = &l->q_norm, *k = &l->k_norm;
    if (!q->gain || !k->gain) return !q->gain && !k->gain;
    return q->rms && k->rms && !q->plus_one && !k->plus_one && !(q->eps < k->eps) &&
           !(q->eps > k->eps);
}

/* One weight for q, k and v, and a cache that their product, or fused_heads, writes to; or keys
 * that are complete, and a product for q alone. */
bool fv__mha_decode_supported(const fv_ctx *c, const fv_mha *l, const fv_tensor *x,
                              const fv_mha_arg *arg)
{
    const fv_rope_arg *rope = &arg->rope;
    bool heads = has_heads_between(l, rope), complete = arg->kv && !arg->kv->pos;
    if (complete)
        return !heads && !rope->freq && !arg->memory && !c->prompt &&
               fv__fused_linear_supported(c, x, l->q.w) &&
               fv__fused_linear_supported(c, x, l->out.w);
    if (heads && !(norms_are_alike(l) && fv__fused_heads_supported(c, l->head, rope->freq)))
        return false;
    if (!heads && rope->freq && !fv__fused_rope_supported(c, rope->freq, l->head)) return false;
    return arg->kv && arg->kv->pos && !arg->memory && !rope->at_read && !c->prompt &&
           fv__fused_linear_supported(c, x, l->qkv.w) && fv__fused_linear_supported(c, x, l->out.w);
}

/* Where weights are bf16, or of fewer bits, a device keeps keys and values in bf16 too: what
 * attention reads is most of what a step of many sequences does.  Scores to which something is
 * added stay f32. */
fv_dtype fv__mha_cache_dtype(const fv_ctx *c, const fv_mha *l, const fv_mha_arg *arg)
{
    bool half = c->dtype == FV_F32 && !fv__device_is_host(c->dev) && l->qkv.w && l->qkv.w->packed &&
                l->qkv.w->dtype != FV_F32 && l->qkv.w->dtype != FV_F16 && !arg->bias && !arg->rel;
    return half ? FV_BF16 : c->dtype;
}

/* q, rotated; k and v are in row pos of the caches then, if they were not complete before. */
static fv_tensor *decode_query(fv_ctx *c, const fv_mha *l, const fv_norm *norm, fv_tensor *x,
                               const fv_mha_arg *arg)
{
    bool complete = !arg->kv->pos;
    fv_fused_linear_arg in = fv__norm_then_linear(norm, complete ? &l->q : &l->qkv);
    const fv_rope_arg *rope = &arg->rope;
    in.half = arg->kv->k->dtype == FV_BF16;
    if (complete) return fv__fused_linear(c, x, in);
    if (has_heads_between(l, rope)) {
        in.half = false; /* heads are normed and rotated in f32 */
        fv_fused_heads_arg heads = {.n_head = l->n_head,
                                    .n_kv_head = l->n_kv_head,
                                    .head = l->head,
                                    .by_head = l->by_head,
                                    .q_gain = l->q_norm.gain,
                                    .k_gain = l->k_norm.gain,
                                    .eps = l->q_norm.eps,
                                    .factor = 1,
                                    .rope_pos = rope->pos,
                                    .rope_freq = rope->freq,
                                    .adjacent = rope->adjacent,
                                    .k = arg->kv->k,
                                    .v = arg->kv->v,
                                    .pos = arg->kv->pos};
        if (has_partial_factor(l, rope)) heads.factor = rope->attention_factor;
        return fv__fused_heads(c, fv__fused_linear(c, x, in), heads);
    }
    in.k = arg->kv->k;
    in.v = arg->kv->v;
    in.pos = arg->kv->pos;
    in.rope_freq = rope->freq;
    in.rope_pos = rope->pos;
    in.head = l->head;
    in.adjacent = rope->adjacent;
    return fv__fused_linear(c, x, in);
}

fv_tensor *fv__mha_decode(fv_ctx *c, const fv_mha *l, const fv_norm *norm, fv_tensor *x,
                          fv_mha_arg arg, fv_residual onto)
{
    fv_tensor *q = decode_query(c, l, norm, x, &arg), *y;
    int64_t shared = q ? sequences_shared(q, &arg) : 0;
    fv_shape shape = q ? q->shape : (fv_shape){0};
    if (shared) q = fv_reshape(c, q, rows_shared(q, shared));
    y = fv_attention(c, q, arg.kv->k, arg.kv->v, settings(l, &arg));
    if (shared) y = fv_reshape(c, y, shape);
    return fv__fused_linear(c, y, fv__linear_then_sum(&l->out, onto));
}

fv_kv fv_mha_keys(fv_ctx *c, const fv_mha *l, fv_tensor *memory)
{
    return (fv_kv){.k = fv_lin_fwd(c, &l->k, memory), .v = fv_lin_fwd(c, &l->v, memory)};
}

void fv_mha_pack(fv_params *p, fv_mha *l, fv_dtype dtype, bool joined)
{
    /* a file may store them in several dtypes */
    bool alike = l->q.w && l->k.w && l->v.w && l->q.w->dtype == l->k.w->dtype &&
                 l->q.w->dtype == l->v.w->dtype && !fv__param_adapter(l->q.w) &&
                 !fv__param_adapter(l->k.w) && !fv__param_adapter(l->v.w);
    if (joined && alike && !l->q.in_out && fv_params_packs(p, dtype)) {
        l->qkv.w = fv_params_pack(p, (fv_tensor *[]){l->q.w, l->k.w, l->v.w}, 3, dtype, false);
        l->qkv.b = fv_params_join(p, (fv_tensor *[]){l->q.b, l->k.b, l->v.b}, 3);
    } else {
        fv_lin_pack(p, &l->q, dtype);
        fv_lin_pack(p, &l->k, dtype);
        fv_lin_pack(p, &l->v, dtype);
        fv_lin_pack(p, &l->qkv, dtype);
    }
    fv_lin_pack(p, &l->out, dtype);
    fv_norm_pack(p, &l->q_norm);
    fv_norm_pack(p, &l->k_norm);
}
