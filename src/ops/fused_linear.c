/* fused_linear.c - a linear layer for one token of each sequence, with the norm before it and the
 * sum behind it.
 *
 *     n = norm(x);  y = act(n w' + b),  y += n w' + b,  y = act(n w' + b) * (n up' + up_b),
 *     y = norm'(r) + n w' + b,
 *     or [q k v] = n w' + b with q and k rotated, q to y, k and v to the caches
 *
 * A decode step reads every weight for a handful of rows: what stands between two products costs as
 * much as they do.  This op has no gradient and is not for the table of public ops: it exists where
 * a device's kernel says so (fv__fused_*_supported), and nn falls back to the ops it stands for.
 * One op with optional parts rather than one per combination: kernels share all but their last
 * instructions, and the megakernel on CUDA needs the parts as data. */
#include "ops/fused_linear.h"

#include "core/core.h"

/* Rows, and which weights: a CPU takes any, and more rows than one or two are better off among
 * themselves. */
#define MAX_ROWS 512
#define MAX_ROWS_HOST 2

/* A weight that is not packed yet goes the ordinary way, which packs it; from the next token on
 * it is taken here. */
static bool takes(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w)
{
    if (fv__device_is_host(c->dev)) return fv__weight_is_packed(w) && fv_dim(x, 0) <= MAX_ROWS_HOST;
    bool narrow = w->dtype == FV_BF16 || w->dtype == FV_Q8 || w->dtype == FV_Q4;
    return narrow && fv_dim(x, 0) <= MAX_ROWS && fv_dim(w, 1) % 8 == 0;
}

bool fv__fused_linear_supported(const fv_ctx *c, const fv_tensor *x, const fv_tensor *w)
{
    return !c->record && !c->train && x && w && w->packed && x->dtype == FV_F32 &&
           x->shape.n == 3 && fv_dim(x, 1) == 1 && c->dev->k[FV_F32]->fused_linear &&
           takes(c, x, w);
}

/* A tile of 8 columns holds 4 pairs: of gate and up, or of what is rotated together. */
#define TILE_PAIRS 4

/* On the host rows are packed in panels, and the second half must begin with one. */
bool fv__fused_gate_supported(const fv_ctx *c, int64_t n, bool halves)
{
    bool apart = !halves || !fv__device_is_host(c->dev) || n % FV_PACK_ROWS == 0;
    return c->dev->k[FV_F32]->fused_linear_gates && n % TILE_PAIRS == 0 && apart;
}

bool fv__fused_rope_supported(const fv_ctx *c, const fv_tensor *freq, int64_t head)
{
    return c->dev->k[FV_F32]->fused_linear_gates && head % (2 * TILE_PAIRS) == 0 &&
           fv_cols(freq) % TILE_PAIRS == 0 && 2 * fv_cols(freq) <= head;
}

static const void *data_of(const fv_tensor *t) { return t ? t->data : NULL; }

/* Shapes agree, and no parts that exclude one another: a sum with caches or a gate. */
static bool fit(const fv_tensor *x, const fv_fused_linear_arg *a, fv_dtype t, int64_t y_n)
{
    int64_t n = fv_dim(a->w, 0), k = fv_dim(a->w, 1);
    bool ok = fv_cols(x) == k && (!a->b || fv_len(a->b) == n) &&
              (!a->halves || (n % 2 == 0 && !a->up && !a->k && !a->residual)) &&
              (!a->gain || fv_len(a->gain) == k) && (!a->shift || fv_len(a->shift) == k) &&
              (!a->residual || (fv_cols(a->residual) == n && fv_rows(a->residual) == fv_rows(x))) &&
              (!a->residual_norm || a->residual) &&
              (!a->residual_gain || fv_len(a->residual_gain) == n) &&
              (!a->residual_shift || fv_len(a->residual_shift) == n);
    ok = ok && (!a->up || (fv_shape_same(a->up->shape, a->w->shape) && !a->b == !a->up_b &&
                           (!a->up_b || fv_len(a->up_b) == n) && !a->k && !a->residual));
    if (a->rope_freq)
        ok = ok && a->k && a->rope_pos && !a->act && fv_len(a->rope_pos) == fv_rows(x) &&
             y_n % a->head == 0 && fv_cols(a->k) % a->head == 0 &&
             (a->rope_freq->shape.n == 1 || fv_dim(a->rope_freq, 0) == fv_rows(x));
    return ok && (!a->k || (a->v && a->pos && y_n > 0 && fv_shape_same(a->k->shape, a->v->shape) &&
                            a->k->row_step == a->v->row_step &&
                            a->k->batch_step == a->v->batch_step && a->k->dtype == t &&
                            fv_dim(a->k, 0) == fv_rows(x) && fv_len(a->pos) == fv_rows(x)));
}

fv_fused_rope fv__fused_rope(const fv_tensor *freq, const fv_tensor *pos, int64_t head,
                             bool adjacent)
{
    if (!freq) return (fv_fused_rope){0};
    int32_t half = (int32_t)fv_cols(freq);
    return (fv_fused_rope){.freq = freq->data,
                           .pos = pos->data,
                           .freq_row = freq->shape.n == 2 ? half : 0,
                           .half = half,
                           .head = (int32_t)head,
                           .adjacent = adjacent};
}

/* Gate and up from the halves of one weight. */
static void take_halves(const fv_ctx *c, fv_fused_linear *r, const fv_fused_linear_arg *a)
{
    r->n = r->y_n = r->n / 2;
    r->up = (const char *)r->w + c->dev->k[FV_F32]->pack_bytes(r->n, r->k, r->wt);
    if (a->b) r->up_bias = (const float *)a->b->data + r->n;
}

fv_tensor *fv__fused_linear(fv_ctx *c, fv_tensor *x, fv_fused_linear_arg a)
{
    if (!x || fv__failed(c)) return NULL;
    int64_t n = fv_dim(a.w, 0), y_n = n - (a.k ? 2 * fv_cols(a.k) : 0);
    if (a.halves) y_n = n / 2;
    fv_dtype t = a.half && !fv__device_is_host(c->dev) ? FV_BF16 : FV_F32;
    if (!fit(x, &a, t, y_n))
        return fv_raise(
            c, FV_ESHAPE,
            "fused_linear: x %s, w %s: expected rows of one width, and a bias, norm, sum, gate, "
            "rotation and cache for them",
            fv_desc(x).s, fv_desc(a.w).s);
    fv_tensor *y = a.residual && !a.residual_norm ? a.residual
                                                  : fv_new(c, t, FV_SHAPE(fv_dim(x, 0), 1, y_n));
    if (!y) return NULL;
    fv_fused_linear r = {.rows = fv_rows(x),
                         .n = n,
                         .k = fv_cols(x),
                         .x = x->data,
                         .w = a.w->data,
                         .bias = data_of(a.b),
                         .xt = x->dtype,
                         .wt = a.w->dtype,
                         .yt = y->dtype,
                         .norm = a.norm,
                         .gain = data_of(a.gain),
                         .shift = data_of(a.shift),
                         .eps = a.eps,
                         .act = a.act,
                         .residual = data_of(a.residual),
                         .residual_norm = a.residual_norm,
                         .residual_gain = data_of(a.residual_gain),
                         .residual_shift = data_of(a.residual_shift),
                         .residual_eps = a.residual_eps,
                         .y = y->data,
                         .y_n = y_n,
                         .up = data_of(a.up),
                         .up_bias = data_of(a.up_b)};
    if (a.halves) take_halves(c, &r, &a);
    if (a.k) {
        r.k_cache = a.k->data;
        r.v_cache = a.v->data;
        r.pos = a.pos->data;
        r.cap = fv_dim(a.k, 1);
        r.cache_row = fv__row_step(a.k);
        r.cache_batch = fv__batch_step(a.k);
    }
    r.rope = fv__fused_rope(a.rope_freq, a.rope_pos, a.head, a.adjacent);
    if (!c->dev->k[FV_F32]->fused_linear(&c->stream, &r))
        return fv_raise(c, FV_EMISSING, "fused_linear: %s has no kernel for x %s, w %s",
                        fv_device_name(c->dev), fv_desc(x).s, fv_desc(a.w).s);
    return y;
}
