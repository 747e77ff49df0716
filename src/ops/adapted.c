/* adapted.c - linear maps with an adapter: LoRA (Hu et al. 2021), DoRA (Liu et al. 2024), IA3 (Liu
 * et al. 2022), as PEFT computes them, and bottlenecks (Houlsby et al. 2019).
 *
 * Compositions of other ops, so gradients need no code of their own.  The base weight is frozen:
 * the product with it has no weight gradient, which is a third of a linear map's work, and LoRA's
 * own products are rank r, a hundredth of it. */
#include "ops/adapted.h"

#include "core/core.h"
#include "ops/product.h"

/* PEFT's defaults, r = lora_alpha = 8, make the scale 1: two launches for each layer on a GPU that
 * would change nothing. */
static fv_tensor *scaled(fv_ctx *c, const fv_adapter *a, fv_tensor *u)
{
    return a->scale == 1 ? u : fv_scale(c, u, a->scale);
}

/* scale dropout(x) A', (..,r) */
static fv_tensor *rank_r(fv_ctx *c, const fv_adapter *a, fv_tensor *x)
{
    fv_tensor *u = fv__linear_plain(c, fv_dropout(c, x, a->dropout), a->a, NULL, false);
    return scaled(c, a, u);
}

/* scale (dropout(x) A') B' */
static fv_tensor *low_rank(fv_ctx *c, const fv_adapter *a, fv_tensor *x)
{
    return fv__linear_plain(c, rank_r(c, a, x), a->b, NULL, false);
}

/* m / |W + scale B A| for each output, |.| counting as a constant: PEFT takes no gradient through
 * it (section 4.3 of the paper: less memory, same accuracy). */
static fv_tensor *dora_factor(fv_ctx *c, const fv_adapter *a, fv_tensor *w, bool in_out)
{
    fv_tensor *lora_a = fv_detach(c, a->a), *lora_b = fv_detach(c, a->b);
    fv_tensor *delta = fv_matmul(c, lora_b, lora_a, (fv_mm){.alpha = a->scale});
    fv_tensor *whole = fv_add(c, in_out ? fv_transpose(c, w) : w, delta);
    fv_tensor *norm = fv_sqrt(c, fv_sum(c, fv_square(c, whole), 1));
    return fv_div(c, a->magnitude, norm);
}

/* Without dropout x W' is multiplied once; with it PEFT multiplies dropout(x) by W once more, so
 * that both halves of DoRA's second term see the same inputs. */
static fv_tensor *dora(fv_ctx *c, const fv_adapter *a, fv_tensor *x, fv_tensor *w, fv_tensor *bias,
                       bool in_out)
{
    fv_tensor *factor = dora_factor(c, a, w, in_out);
    fv_tensor *kept = fv_dropout(c, x, a->dropout);
    fv_adapter same = *a;
    same.dropout = 0;
    fv_tensor *y = fv__linear_plain(c, kept, w, NULL, in_out);
    if (kept == x) {
        y = fv_mul(c, fv_add(c, y, low_rank(c, &same, x)), factor);
        return bias ? fv_add(c, y, bias) : y;
    }
    fv_tensor *more = fv_mul(c, fv_add(c, y, low_rank(c, &same, kept)), factor);
    return fv_add(c, fv__linear_plain(c, x, w, bias, in_out), fv_sub(c, more, y));
}

/* y + scale (act(y D' + d) U' + u) */
static fv_tensor *bottleneck(fv_ctx *c, const fv_adapter *a, fv_tensor *y)
{
    fv_tensor *h = fv_linear(c, y, a->down, a->down_b, a->act);
    if (a->scale == 1) return fv__linear_add(c, y, h, a->up, a->up_b, false);
    return fv_add(c, y, fv_scale(c, fv__linear_plain(c, h, a->up, a->up_b, false), a->scale));
}

fv_tensor *fv__linear_adapted(fv_ctx *c, const fv_adapter *a, fv_tensor *x, fv_tensor *w,
                              fv_tensor *bias, bool in_out)
{
    if (!x || !w) return NULL;
    if (a->magnitude) return dora(c, a, x, w, bias, in_out);
    if (a->down) return bottleneck(c, a, fv__linear_plain(c, x, w, bias, in_out));
    if (a->a) {
        fv_tensor *y = fv__linear_plain(c, x, w, bias, in_out);
        return fv__linear_onto(c, y, rank_r(c, a, x), a->b);
    }
    fv_tensor *l = fv_reshape(c, a->l, FV_SHAPE(fv_len(a->l)));
    if (a->before) return fv__linear_plain(c, fv_mul(c, x, l), w, bias, in_out);
    return fv_mul(c, fv__linear_plain(c, x, w, bias, in_out), l);
}

static fv_tensor *rows_of(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip, int64_t first,
                          int64_t count)
{
    fv_tensor *rows = ids ? fv_gather(c, table, ids, skip)
                          : fv_slice(c, table, 0, first, first + count);
    /* a table may be read where its file is mapped, in 16 bits */
    return fv_cast(c, rows, c->dtype);
}

/* E[ids] + scale A'[ids] B': A is as wide as the vocabulary, so its columns are what is looked
 * up. */
fv_tensor *fv__table_rows(fv_ctx *c, fv_tensor *table, fv_tensor *ids, int32_t skip, int64_t first,
                          int64_t count)
{
    const fv_adapter *a = fv__param_table_adapter(table);
    fv_tensor *y = rows_of(c, table, ids, skip, first, count);
    if (!a) return y;
    fv_tensor *u = rows_of(c, fv_transpose(c, a->a), ids, skip, first, count);
    return fv__linear_add(c, y, scaled(c, a, u), a->b, NULL, false);
}
