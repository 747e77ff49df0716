/* joint.c - the loss of a transducer's joint network, a slice of frames at a time.
 *
 *     z[t,u] = tanh(h_t + g_u),  logits[t,u] = W z[t,u] + b                      (B,T,U+1,V)
 *
 * The logits are by far the largest numbers of a transducer's step, and an alignment looks at two
 * of each V only: the blank, and the label that comes next.
 *
 *     log p(blank | t,u) = -(lse - logit of the blank)            a cross entropy
 *     log p(y_u | t,u)   = log p(blank | t,u) + (W[y_u] - W[blank]) z[t,u] + b[y_u] - b[blank]
 *
 * So a slice of frames becomes (B,frames,U+1,2), under a checkpoint: its z and logits are computed
 * again in the backward pass, one slice after the other.  The lattice is that of V = 2, whose blank
 * is 0 and whose labels are all 1.  Memory falls from B T (U+1) V to that of one slice; the price
 * is the joint network's forward pass a second time.  A fused kernel (Bagby et al. 2018) saves that
 * too, and was not worth a kernel on each backend here. */
#include "nn/joint.h"

#include "core/core.h"
#include "nn/part.h"
#include "ops/rnnt.h"

enum { MOST_SLICES = 64 };

typedef struct joint {
    fv_lin out;
    fv_tensor *g;       /* (B,1,U+1,J) */
    fv_tensor *dw, *db; /* (B,1,U+1,J) and (B,1,U+1): of the next label less those of the blank */
    int32_t blank;
} joint;

static void fill_ids(void *out, const void *user, int64_t from, int64_t n)
{
    (void)from;
    for (int64_t i = 0; i < n; i++) ((int32_t *)out)[i] = *(const int32_t *)user;
}

static fv_tensor *all_of(fv_ctx *c, int32_t id, fv_shape s)
{
    return fv__table(c, FV_I32, s, fill_ids, &id, sizeof id);
}

/* h (B,frames,J) -> (B,frames,U+1,2): log-probabilities of the blank and of the next label */
static fv_tensor *steps(fv_ctx *c, void *user, fv_tensor *h)
{
    const joint *j = user;
    int64_t B = fv_dim(h, 0), S = fv_dim(h, 1), U1 = fv_dim(j->g, 2);
    fv_tensor *z = fv_tanh(c, fv_add(c, fv_reshape(c, h, FV_SHAPE(B, S, 1, fv_dim(h, 2))), j->g));
    fv_tensor *blank = fv_cross_entropy(c, fv_lin_fwd(c, &j->out, z),
                                        all_of(c, j->blank, FV_SHAPE(B, S, U1)),
                                        (fv_ce_opt){.ignore = -100});
    if (!blank) return NULL;
    fv_tensor *more = fv_sum(c, fv_mul(c, fv_cast(c, z, blank->dtype), j->dw), 3);
    blank = fv_scale(c, blank, -1);
    if (j->db) more = fv_add(c, more, j->db);
    fv_tensor *both[2] = {fv_reshape(c, blank, FV_SHAPE(B, S, U1, 1)),
                          fv_reshape(c, fv_add(c, blank, more), FV_SHAPE(B, S, U1, 1))};
    return fv_concat(c, both, 2, 3);
}

/* Rows of a table (V,n) for the labels, less that of the blank: (B,1,U+1,n), 0 behind the last. */
static fv_tensor *beyond_blank(fv_ctx *c, fv_tensor *table, fv_tensor *labels, int32_t blank,
                               fv_dtype dtype)
{
    int64_t B = fv_dim(labels, 0), U = fv_dim(labels, 1), n = fv_dim(table, 1);
    fv_tensor *zero = fv_gather(c, table, all_of(c, blank, FV_SHAPE(1, 1)), -1),
              *rows = U ? fv_gather(c, table, labels, -1) : NULL;
    if (!rows) return fv_cast(c, fv_full(c, FV_SHAPE(B, 1, 1, n), 0), dtype);
    rows = fv_sub(c, fv_cast(c, rows, dtype), fv_cast(c, zero, dtype));
    return fv_reshape(c, fv_pad(c, rows, 1, 0, 1, 0), FV_SHAPE(B, 1, U + 1, n));
}

fv_tensor *fv__joint_loss(fv_ctx *c, const fv_lin *out, fv_tensor *h, fv_tensor *g,
                          fv_tensor *labels, fv_tensor *tlen, fv_tensor *ulen, int32_t blank,
                          int64_t frames)
{
    if (!h || !g || !labels || !out->w) return NULL;
    int64_t B = fv_dim(h, 0), T = fv_dim(h, 1), J = fv_dim(h, 2), U1 = fv_dim(g, 1), n = 0;
    if (h->shape.n != 3 || g->shape.n != 3 || labels->shape.n != 2 || fv_dim(labels, 1) != U1 - 1)
        return fv_raise(c, FV_ESHAPE,
                        "joint loss: frames %s, labels' states %s, labels %s, out %s and %s",
                        fv_desc(h).s, fv_desc(g).s, fv_desc(labels).s, fv_desc(out->w).s,
                        out->b ? fv_desc(out->b).s : "no bias");
    joint *j = fv__arena_alloc(&c->host, sizeof *j); /* it lives until backward */
    if (!j) return fv_raise(c, FV_ENOMEM, "joint loss: out of memory");
    fv_dtype sums = h->dtype == FV_F64 ? FV_F64 : FV_F32;
    *j = (joint){.out = *out, .blank = blank};
    j->g = fv_reshape(c, g, FV_SHAPE(B, 1, U1, J));
    j->dw = beyond_blank(c, out->w, labels, blank, sums);
    if (out->b) {
        fv_tensor *b = fv_reshape(c, out->b, FV_SHAPE(fv_len(out->b), 1));
        j->db = fv_reshape(c, beyond_blank(c, b, labels, blank, sums), FV_SHAPE(B, 1, U1));
    }
    fv_tensor *slice[MOST_SLICES];
    if (frames < (T + MOST_SLICES - 1) / MOST_SLICES) frames = (T + MOST_SLICES - 1) / MOST_SLICES;
    for (int64_t t = 0; t < T; t += frames, n++) {
        int64_t to = t + frames < T ? t + frames : T;
        slice[n] = fv_checkpoint(c, steps, j, fv_slice(c, h, 1, t, to));
    }
    fv_tensor *lp = n > 1 ? fv_concat(c, slice, (int)n, 1) : slice[0];
    return fv__rnnt_of(c, lp, all_of(c, 1, FV_SHAPE(B, U1 - 1)), tlen, ulen, 0);
}
