/* model_part.c - what families that write text share. */
#include "models/model_part.h"

#include "base/base.h"

/* ---- ids on the host: few, and what is done with them no kernel knows ---- */

typedef struct host {
    const fv_env *env;
    int32_t *ids;
    size_t bytes;
    int64_t B, T;
} host;

static bool fetch(fv_ctx *c, host *h, const fv_tensor *ids)
{
    if (!ids || fv_ctx_err(c)->code) return false;
    *h = (host){.env = fv_device_env(fv_ctx_device(c)), .bytes = (size_t)fv_len(ids) * sizeof *h->ids};
    h->B = fv_dim(ids, 0);
    h->T = fv_dim(ids, 1);
    if (ids->shape.n != 2 || ids->dtype != FV_I32 || !h->bytes) {
        fv_raise(c, FV_ESHAPE, "ids %s, expected i32 of two axes", fv_desc(ids).s);
        return false;
    }
    h->ids = fv__alloc(h->env, h->bytes);
    if (!h->ids) fv_raise(c, FV_ENOMEM, "out of memory for %zu bytes of ids", h->bytes);
    return h->ids && !fv_read_i32(c, ids, h->ids, fv_len(ids));
}

static void drop(host *h) { fv__free(h->env, h->ids, h->bytes); }

/* ---- losses ---- */

/* labels[b,t+1] at place t, and nothing that counts at the last. */
static fv_tensor *shift_left(fv_ctx *c, fv_tensor *labels)
{
    host h = {0};
    fv_tensor *y = NULL;
    if (fetch(c, &h, labels)) {
        for (int64_t b = 0; b < h.B; b++) {
            memmove(h.ids + b * h.T, h.ids + b * h.T + 1, (size_t)(h.T - 1) * sizeof *h.ids);
            h.ids[b * h.T + h.T - 1] = -100;
        }
        y = fv_ints(c, h.ids, labels->shape);
    }
    drop(&h);
    return y;
}

void fv__put_tokens(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *logits, bool next)
{
    fv_tensor *labels = fv_items_get(in, "labels");
    fv_items_put(out, "logits", logits);
    if (!labels) return;
    if (next) labels = shift_left(c, labels);
    fv_items_put(out, "loss", fv_loss_tokens(c, logits, labels, in));
}

void fv__put_class(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *x, fv_tensor *w, int problem)
{
    fv_tensor *labels = fv_items_get(in, "labels"), *logits = fv_linear(c, x, w, NULL, FV_ACT_NONE);
    fv_items_put(out, "logits", logits);
    if (labels) fv_items_put(out, "loss", fv_loss_classes(c, logits, labels, (fv_problem)problem, in));
}

bool fv__any(fv_params *p, const fv_tensor *t, fv_err *e)
{
    size_t bytes = (size_t)fv_len(t) * sizeof(float);
    float *x = fv__alloc(NULL, bytes);
    bool any = !x || fv_params_get(p, t, x, fv_len(t), e);
    for (int64_t i = 0; !any && i < fv_len(t); i++) any = x[i] != 0;
    fv__free(NULL, x, bytes);
    return any;
}

fv_tensor *fv__packed(fv_params *p, fv_tensor *w, fv_dtype dtype)
{
    fv_lin l = {.w = w};
    if (w) fv_lin_pack(p, &l, dtype);
    return l.w;
}

/* ---- places ---- */

fv_tensor *fv__last_place(fv_ctx *c, fv_tensor *x)
{
    int64_t T = fv_dim(x, 1);
    return fv_reshape(c, T > 1 ? fv_slice(c, x, 1, T - 1, T) : x, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 2)));
}

/* The last place at which (id == token) is `wanted`; the first place where there is none. */
static fv_tensor *last_where(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token, bool wanted)
{
    host h = {0};
    fv_tensor *at = NULL;
    if (fetch(c, &h, ids)) {
        for (int64_t b = 0; b < h.B; b++) {
            int64_t t = h.T - 1;
            while (t > 0 && (h.ids[b * h.T + t] == token) != wanted) t--;
            h.ids[b] = (int32_t)(b * h.T + t); /* behind what is still to be read, as T is at least 1 */
        }
        at = fv_ints(c, h.ids, FV_SHAPE(h.B));
    }
    drop(&h);
    return fv_gather(c, fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, 2))), at, -1);
}

fv_tensor *fv__last_but(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t pad)
{
    return pad < 0 ? fv__last_place(c, x) : last_where(c, x, ids, pad, false);
}

fv_tensor *fv__last_of(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t token) { return last_where(c, x, ids, token, true); }

fv_tensor *fv__shift_right(fv_ctx *c, fv_tensor *ids, int32_t start, int32_t pad)
{
    host h = {0};
    fv_tensor *y = NULL;
    if (fetch(c, &h, ids)) {
        for (int64_t b = 0; b < h.B; b++) {
            int32_t *row = h.ids + b * h.T;
            memmove(row + 1, row, (size_t)(h.T - 1) * sizeof *row);
            row[0] = start;
            for (int64_t t = 1; t < h.T; t++)
                if (row[t] == -100) row[t] = pad;
        }
        y = fv_ints(c, h.ids, ids->shape);
    }
    drop(&h);
    return y;
}
