/* spectral_norm.c - w divided by its largest singular value, sigma = u' W v.
 *
 * A composition of other ops.  One round of power iteration on the detached matrix refreshes u and
 * v while training; sigma is then an ordinary product in which the fresh vectors are constants, so
 * the tape gives the gradient of the paper:
 * dw = (dy - <dy, y> u v') / sigma.  The copies matter: the next call may overwrite u and v before
 * backward runs.
 *
 * Where the backend has a kernel for sigma, all up to it is one launch: on a GPU each of the steps
 * is shorter than its launch. */
#include <math.h>

#include "fovea/author/op.h"
#include "fovea/author/ops.h"

/* Not below eps, as torch.nn.functional.normalize has it: a zero vector stays zero. */
static fv_tensor *unit(fv_ctx *c, fv_tensor *x, float eps)
{
    fv_tensor *length = fv_sqrt(c, fv_sum_all(c, fv_square(c, x)));
    return fv_div(c, x, fv_clamp(c, length, eps, INFINITY));
}

static void store(fv_ctx *c, fv_tensor *to, const fv_tensor *from)
{
    fv_stream *s = fv_ctx_stream(c);
    if (from)
        s->dev->backend->move(s, to->data, from->data,
                              (size_t)fv_len(to) * fv_dtype_size(to->dtype));
}

/* ---- sigma by one kernel ---- */

typedef struct {
    fv_node node;
    const void *u, *v; /* copies */
    int64_t rows, cols;
} sigma_node;

/* sigma = u' W v, of which u and v are constants */
static void backward(fv_ctx *c, fv_node *n)
{
    const sigma_node *s = (sigma_node *)n;
    const fv_kernels *k = fv_kernels_of(c, n->y->dtype);
    k->spectral_sigma_bwd(fv_ctx_stream(c), fv_grad(c, n->in[0]), n->y->grad, s->u, s->v, s->rows,
                          s->cols);
}

/* NULL: the backend has no kernel for it, or not for these sizes. */
static fv_tensor *spectral_sigma(fv_ctx *c, fv_tensor *w, fv_tensor *u, fv_tensor *v, float eps)
{
    fv_dtype t = w->dtype;
    const fv_kernels *k = fv_kernels_of(c, t);
    int64_t rows = fv_len(u), cols = fv_len(v);
    if (!k || !k->spectral_sigma || !k->spectral_sigma_bwd) return NULL;
    fv_tensor *sigma = fv_new(c, t, (fv_shape){0});
    void *u_copy = fv_scratch(c, t, rows), *v_copy = fv_scratch(c, t, cols);
    if (!sigma || !u_copy || !v_copy) return NULL;
    if (!k->spectral_sigma(fv_ctx_stream(c), sigma->data, u_copy, v_copy, u->data, v->data, w->data,
                           rows, cols, eps, fv_ctx_training(c)))
        return NULL;
    sigma_node *s = fv_record(c, sizeof *s, backward, sigma, w);
    if (s) s->u = u_copy, s->v = v_copy, s->rows = rows, s->cols = cols;
    return sigma;
}

fv_tensor *fv_spectral_norm(fv_ctx *c, fv_tensor *w, fv_tensor *u, fv_tensor *v, float eps)
{
    if (!w || !u || !v || !fv_same_dtype(c, "spectral_norm", w, u) ||
        !fv_same_dtype(c, "spectral_norm", w, v))
        return NULL;
    int64_t rows = w->shape.n ? w->shape.d[0] : 1, cols = fv_len(w) / (rows ? rows : 1);
    if (fv_len(u) != rows || fv_len(v) != cols)
        return fv_raise(c, FV_ESHAPE, "spectral_norm: w %s, u %s, v %s", fv_desc(w).s, fv_desc(u).s,
                        fv_desc(v).s);

    fv_tensor *one = spectral_sigma(c, w, u, v, eps);
    if (one) return fv_div(c, w, one);
    fv_tensor *matrix = fv_reshape(c, w, FV_SHAPE(rows, cols));
    fv_tensor *ur = fv_reshape(c, fv_detach(c, u), FV_SHAPE(1, rows)),
              *vr = fv_reshape(c, fv_detach(c, v), FV_SHAPE(1, cols));
    if (fv_ctx_training(c)) {
        fv_tensor *fixed = fv_detach(c, matrix);
        vr = unit(c, fv_matmul(c, ur, fixed, (fv_mm){0}), eps);
        ur = unit(c, fv_matmul(c, vr, fixed, (fv_mm){.tb = true}), eps);
        store(c, v, vr);
        store(c, u, ur);
    }
    fv_tensor *sigma = fv_sum_all(c, fv_mul(c, fv_matmul(c, ur, matrix, (fv_mm){0}), vr));
    return fv_div(c, w, sigma);
}
