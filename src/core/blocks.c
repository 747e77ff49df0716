/* blocks.c - products with frozen weights of 8 or 4 bits, forward and backward.
 *
 * QLoRA (Dettmers et al. 2023): the base model stays as it is served, the adapter above it is f32.
 * Nothing is lost in between: y = x W' and dx = dy W use the numbers that the blocks stand for, so
 * gradients are exact for the quantised model.
 *
 * A weight is widened just before its product, into memory of the step that the next weight
 * uses again: one matrix is in memory twice, not all.  (Products that widen inside their panels
 * were the alternative; the backward product reads the other way round, so it would need a second
 * set of panels.  Widening costs one pass over the weight, where a product makes as many as there
 * are rows in the batch.) */
#include "blocks.h"

#include "adapter.h"
#include "params.h"

enum { BLOCK = 32 };

void fv__param_hold_as(fv_tensor *t, fv_dtype rows) { ((fv_entry *)t)->rows = rows; }

size_t fv__params_rows_bytes(const fv_params *p) { return p->rows_bytes; }

/* FV_Q8: f32 scale, 32 int8.  FV_Q4: f32 scale, 16 bytes with values k and k + 16, each of four
 * bits in two's complement. */
void fv__widen_row(float *y, fv_dtype t, const void *row, int64_t n)
{
    const uint8_t *at = row;
    float scale, all[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        memcpy(&scale, at, sizeof scale);
        at += sizeof scale;
        if (t == FV_Q8) {
            for (int k = 0; k < BLOCK; k++) all[k] = scale * (float)(int8_t)at[k];
            at += BLOCK;
        } else {
            for (int k = 0; k < BLOCK / 2; k++) {
                all[k] = scale * (float)((int8_t)(uint8_t)(at[k] << 4) >> 4);
                all[k + BLOCK / 2] = scale * (float)((int8_t)at[k] >> 4);
            }
            at += BLOCK / 2;
        }
        memcpy(y + i, all, (size_t)(n - i < BLOCK ? n - i : BLOCK) * sizeof *y);
    }
}

bool fv__blocks_supported(const fv_device *d, fv_dtype t)
{
    if (fv__device_is_host(d)) return t == FV_F32;
    return (unsigned)t < FV_FLOATS && d->k[t] && d->k[t]->widen_blocks;
}

void fv__blocks_widen(fv_ctx *c, void *numbers, fv_dtype t, const fv_tensor *w, int64_t out,
                      int64_t in)
{
    float *to = numbers;
    if (!fv__blocks_supported(c->dev, t)) {
        fv_raise(c, FV_EMISSING, "%s: this device does not widen weights of %s to %s", w->name,
                 fv_dtype_name(w->dtype), fv_dtype_name(t));
        return;
    }
    if (!to) {
        fv_raise(c, FV_ENOMEM, "%s: out of memory for its numbers", w->name);
        return;
    }
    if (!fv__device_is_host(c->dev)) {
        c->dev->k[t]->widen_blocks(&c->stream, to, w->dtype, w->data, out, in);
        return;
    }
    size_t row = fv_dtype_row(w->dtype, in);
    int threads = c->stream.threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < out; i++)
        fv__widen_row(to + i * in, w->dtype, (const char *)w->data + (size_t)i * row, in);
}
