/* guided.c - what a text looks at in an image: attention, weighed by what it does for the text.
 *
 * CLIP's image tower knows nothing of the text beside it, so its attention alone cannot say where
 * in the image the text is.  The gradient of their agreement can (Chefer et al. 2021): with
 * s the logit of text and image and A (rows,cols) the weights of one head,
 *
 *     G_ij = A_ij max(0, ds / dA_ij),        ds / dA_ij = dO_i . v_j,
 *
 * since the head's output is O = A v.  No weights are stored for it: dO is the gradient of what the
 * operator gave out, v is what it read, and A is recomputed as always.  G replaces A in every
 * layer and head, so pictures, pages, numbers and the rollout need not know.  All of G is
 * divided by its greatest row sum over all layers (means of heads): a rollout mixes it with 1, and
 * the gradient of a logit has no unit.
 *
 * The pass with gradients is one of its own, before the one that is looked at: going back releases
 * what weights are recomputed from. */
#include <math.h>

#include "core/core.h"
#include "ops/attention.h"
#include "see.h"
#include "fovea/author/ops.h"
#include "fovea/author/see.h"
#include "fovea/author/tensor.h"

/* One attention of the image tower. */
typedef struct guide_layer {
    fv_tensor *y;    /* what it gave out, until its gradient is read */
    float *v;        /* (cols, width of all heads) */
    double *dy;      /* (rows, the same) */
    int64_t n, wide; /* of rows, which are also the columns; of all heads together */
} guide_layer;

struct fv_see_guide {
    const fv_env *env;
    guide_layer *layer;
    size_t bytes;
    int64_t layers;
    bool open; /* the attention that has just run is of the image */
    double scale;
    fv_err err;
};

static void fail(fv_see_guide *g) { fv_fail(&g->err, FV_ENOMEM, "guided: out of memory"); }

/* The values are read at once, as their memory is given back on the way. */
static void add_layer(fv_see_guide *g, fv_ctx *c, const fv_attn_view *view)
{
    void *array = g->layer;
    fv_tensor *v = fv__attn_view_values(c, view);
    fv_shape s = fv_attn_view_shape(view);
    if (!v || s.d[2] != s.d[3] || fv_dim(v, 1) != s.d[3]) return;
    if (!fv__grow(g->env, &array, &g->bytes, (size_t)(g->layers + 1) * sizeof *g->layer)) {
        fail(g);
        return;
    }
    g->layer = array;
    guide_layer *l = &g->layer[g->layers++];
    *l = (guide_layer){.n = s.d[2], .wide = fv_cols(v)};
    size_t each = (size_t)(l->n * l->wide);
    l->v = fv__alloc(g->env, each * sizeof *l->v);
    l->dy = fv__alloc(g->env, each * sizeof *l->dy);
    if (l->v && l->dy)
        fv_read(c, v, l->v, (int64_t)each);
    else
        fail(g);
    g->open = true;
}

/* No parameter has a gradient here: the tape begins at the first hidden state of either tower. */
static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    fv_see_guide *g = user;
    fv_tensor *x = (fv_tensor *)(uintptr_t)what;
    (void)name;
    if (g->err.code) return;
    if (!strcmp(site, "hidden") && x) x->wants_grad = true;
    if (!strcmp(site, "attention") && fv__see_kind(what) == FV_SEE_ENCODER) add_layer(g, c, what);
    if (!strcmp(site, "attention_output") && g->open) {
        g->layer[g->layers - 1].y = fv_hold(c, x);
        g->open = false;
    }
}

static fv_status backward(fv_see_guide *g, fv_ctx *c, const fv_items *out, fv_err *e)
{
    fv_tensor *s = fv_items_get(out, "logits_per_text");
    if (!s)
        return fv_fail(e, FV_EMISSING,
                       "a text and an image: this model does not say how well they agree");
    if (!g->layers) return fv_fail(e, FV_EMISSING, "no attention ran over the image");
    fv_status st = fv_backward(c, fv_sum_all(c, s));
    for (int64_t i = 0; !st && i < g->layers; i++) {
        guide_layer *l = &g->layer[i];
        st = fv_read_grad(c, l->y, l->dy, l->n * l->wide);
        l->y = NULL; /* goes with the context */
    }
    return st ? fv_fail(e, st, "%s", fv_ctx_err(c)->text) : FV_OK;
}

void fv__see_guide_free(fv_see_guide *g)
{
    if (!g) return;
    for (int64_t i = 0; i < g->layers; i++) {
        size_t each = (size_t)(g->layer[i].n * g->layer[i].wide);
        fv__free(g->env, g->layer[i].v, each * sizeof *g->layer[i].v);
        fv__free(g->env, g->layer[i].dy, each * sizeof *g->layer[i].dy);
    }
    fv__free(g->env, g->layer, g->bytes);
    fv__free(g->env, g, sizeof *g);
}

fv_status fv__see_guide_run(fv_see_guide **out, fv_device *d, const fv_model *m,
                            const fv_see_in *in, const fv_see_image *im, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    fv_items found = {0};
    fv_ctx *c;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, e);
    if (st) return st;
    fv_see_guide *g = fv__alloc(env, sizeof *g);
    if (!g) st = fv_fail(e, FV_ENOMEM, "guided: out of memory");
    if (g) *g = (fv_see_guide){.env = env, .scale = 1};
    if (!st) fv_ctx_set_tap(c, on_tap, g);
    if (!st) st = fv__see_pass(c, m, in, im, &found, e);
    if (!st && g->err.code) st = fv_fail(e, g->err.code, "%s", g->err.text);
    if (!st) st = backward(g, c, &found, e);
    fv_ctx_free(c);
    *out = st ? NULL : g;
    if (st) fv__see_guide_free(g);
    return st;
}

void fv__see_guide_rows(const fv_see_guide *g, int64_t layer, int64_t head, int64_t heads,
                        int64_t from, int64_t to, float *a)
{
    const guide_layer *l = &g->layer[layer];
    int64_t wide = l->wide / heads;
    for (int64_t i = from; i < to; i++)
        for (int64_t j = 0; j < l->n; j++) {
            const double *dy = l->dy + i * l->wide + head * wide;
            const float *v = l->v + j * l->wide + head * wide;
            double sum = 0;
            for (int64_t k = 0; k < wide; k++) sum += dy[k] * (double)v[k];
            a[(i - from) * l->n + j] *= (float)(fmax(sum, 0) * g->scale);
        }
}

fv_status fv__see_guide_scale(fv_see *s, fv_err *e)
{
    const fv_see_map *m = &s->map[FV_SEE_ENCODER];
    size_t bytes = (size_t)(2 * m->cols) * sizeof(float);
    double most = 0;
    if (m->layers != s->guide->layers || m->rows != m->cols)
        return fv_fail(e, FV_EMISSING, "a text and an image: layers of one size are needed");
    float *row = fv__alloc(s->env, bytes);
    fv_status st = row ? FV_OK : fv_fail(e, FV_ENOMEM, "guided: out of memory");
    for (int64_t l = 0; !st && l < m->layers; l++)
        for (int64_t i = 0; !st && i < m->rows; i++) {
            double sum = 0;
            st = fv__see_layer_rows(s, FV_SEE_ENCODER, l, FV_SEE_ALL, i, i + 1, row, row + m->cols,
                                    e);
            for (int64_t j = 0; !st && j < m->cols; j++) sum += (double)row[j];
            most = fmax(most, sum);
        }
    if (!st && most > 0) s->guide->scale = 1 / most;
    fv__free(s->env, row, bytes);
    return st;
}
