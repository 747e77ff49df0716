/* capture.c - the capture of one forward pass: every attention that ran, by kind and layer, and the
 * labels of its tokens.
 *
 * A context that records keeps queries, keys and log-sum-exps until it is reset, so a view stays
 * valid after the pass.  The alternative, to copy the weights when the tap runs, needs memory
 * quadratic in the length for every head, whether or not anybody looks at it. */
#include <stdio.h>

#include "see.h"
#include "fovea/author/see.h"
#include "fovea/author/tensor.h"

/* ---- the tap ---- */

/* Layers of a kind must have one shape, since weights are asked for by (kind, layer, head, row). */
static void add_layer(fv_see *s, fv_see_kind k, const char *name, const fv_attn_view *v)
{
    fv_see_map *m = &s->map[k];
    fv_shape shape = fv_attn_view_shape(v);
    int64_t n = m->layers;
    if (s->batch >= shape.d[0]) {
        fv_fail(&s->err, FV_EARG, "%s: sequence %lld of a batch of %lld", name, (long long)s->batch,
                (long long)shape.d[0]);
        return;
    }
    if (n && (shape.d[1] != m->heads || shape.d[2] != m->rows || shape.d[3] != m->cols)) {
        fv_fail(&s->err, FV_ESHAPE,
                "%s: %lld heads of %lld x %lld after layers with %lld heads of %lld x %lld", name,
                (long long)shape.d[1], (long long)shape.d[2], (long long)shape.d[3],
                (long long)m->heads, (long long)m->rows, (long long)m->cols);
        return;
    }
    void *array = m->layer;
    if (!fv__grow(s->env, &array, &m->capacity, (size_t)(n + 1) * sizeof *m->layer)) {
        fv_fail(&s->err, FV_ENOMEM, "%s: out of memory", name);
        return;
    }
    m->layer = array;
    m->layer[n].view = v;
    snprintf(m->layer[n].name, sizeof m->layer[n].name, "%s", name);
    m->layers = n + 1;
    m->heads = shape.d[1], m->rows = shape.d[2], m->cols = shape.d[3];
    m->causal = (!n || m->causal) && m->rows == m->cols && fv_attn_view_role(v) == FV_ATTN_CAUSAL;
}

/* Called by the operator for every attention that runs; it cannot fail, so an error is kept. */
static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    (void)c;
    fv_see *s = user;
    if (strcmp(site, "attention") != 0 || s->err.code) return;
    if (!name) name = "attention";
    add_layer(s, fv__see_kind(what), name, what);
}

/* ---- making one ---- */

/* The tap belongs to the context, so one capture a context can watch at a time. */
fv_status fv_see_watch(fv_see **out, fv_ctx *c, int64_t b, fv_err *e)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    *out = NULL;
    if (b < 0) return fv_fail(e, FV_EARG, "sequence %lld of a batch", (long long)b);
    fv_see *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
    *s = (fv_see){.env = env, .ctx = c, .batch = b};
    fv_ctx_set_tap(c, on_tap, s);
    *out = s;
    return FV_OK;
}

/* A context of the caller's gets its tap back empty; one of our own goes with everything recorded
 * in it. */
void fv_see_free(fv_see *s)
{
    if (!s) return;
    const fv_env *env = s->env;
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        fv_see_map *m = &s->map[k];
        fv__see_axis_free(env, &m->row);
        fv__see_axis_free(env, &m->col);
        fv__free(env, m->layer, m->capacity);
    }
    fv__free(env, s->box, s->box_bytes);
    fv__see_image_free(s->image);
    fv__see_guide_free(s->guide);
    if (s->own)
        fv_ctx_free(s->ctx);
    else
        fv_ctx_set_tap(s->ctx, NULL, NULL);
    fv__free(env, s, sizeof *s);
}

/* ---- labels ---- */

/* Labels are checked before any is copied: on failure the old ones stay. */
fv_status fv_see_label(fv_see *s, fv_see_kind k, const char *const *rows, int64_t n_rows,
                       const char *const *cols, int64_t n_cols, fv_err *e)
{
    fv_see_map *m = &s->map[k];
    if (n_rows != m->rows || n_cols != m->cols)
        return fv_fail(e, FV_ESHAPE, "%s attention is %lld x %lld, there are %lld and %lld labels",
                       fv_see_kind_name(k), (long long)m->rows, (long long)m->cols,
                       (long long)n_rows, (long long)n_cols);
    for (int64_t i = 0; i < n_rows + n_cols; i++) {
        const char *text = i < n_rows ? rows[i] : cols[i - n_rows];
        if (fv__utf8_check(text, strlen(text)) != strlen(text))
            return fv_fail(e, FV_EARG, "%s %lld of the %s attention: the label is not UTF-8",
                           i < n_rows ? "row" : "column", (long long)(i < n_rows ? i : i - n_rows),
                           fv_see_kind_name(k));
    }
    bool ok = fv__see_axis_copy(s->env, &m->row, rows, NULL, NULL, n_rows) &&
              fv__see_axis_copy(s->env, &m->col, cols, NULL, NULL, n_cols);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
}

/* Where a kind has other rows than there are tokens (patches, prefixes), positions are shown. */
static bool put_labels(fv_see *s, fv_see_kind k, const fv_see_axis *rows, const fv_see_axis *cols)
{
    fv_see_map *m = &s->map[k];
    if (m->rows != rows->n || m->cols != cols->n || !m->layers) return true;
    m->row.grid = rows->grid;
    m->col.grid = cols->grid;
    return fv__see_axis_copy(s->env, &m->row, (const char *const *)rows->text, rows->word,
                             rows->type, rows->n) &&
           fv__see_axis_copy(s->env, &m->col, (const char *const *)cols->text, cols->word,
                             cols->type, cols->n);
}

/* A decoder at position i reads token i-1 of the target and predicts token i.  Rows of the
 * cross-attention are labelled with what is predicted, rows of its self-attention with what is
 * read. */
static bool label_pair(fv_see *s, const fv_see_in *in, const fv_see_axis *source)
{
    size_t bytes = (size_t)in->n_target * sizeof(int32_t);
    int32_t *ids = fv__alloc(s->env, bytes);
    fv_see_axis predicted = {0}, read = {0};
    bool ok = ids != NULL;
    if (ok) {
        ids[0] = in->start;
        memcpy(ids + 1, in->target, bytes - sizeof *ids);
    }
    ok = ok && fv__see_axis_label(s->env, &predicted, in->tok, in->target, in->n_target) &&
         fv__see_axis_label(s->env, &read, in->tok, ids, in->n_target) &&
         put_labels(s, FV_SEE_DECODER, &read, &read) &&
         put_labels(s, FV_SEE_CROSS, &predicted, source);
    fv__free(s->env, ids, bytes);
    fv__see_axis_free(s->env, &predicted);
    fv__see_axis_free(s->env, &read);
    return ok;
}

/* The labels of every kind.  Encoder and decoder of a model with one stack read the same tokens;
 * with two stacks the decoder has the target. */
static bool label_texts(fv_see *s, const fv_see_in *in, bool pair)
{
    fv_see_axis source = {0};
    size_t bytes = (size_t)in->n_source * sizeof *source.type;
    bool ok = fv__see_axis_label(s->env, &source, in->tok, in->source, in->n_source);
    if (ok && in->types) ok = (source.type = fv__alloc(s->env, bytes)) != NULL;
    if (ok && in->types) memcpy(source.type, in->types, bytes);
    ok = ok && put_labels(s, FV_SEE_ENCODER, &source, &source) &&
         (pair ? label_pair(s, in, &source) : put_labels(s, FV_SEE_DECODER, &source, &source));
    fv__see_axis_free(s->env, &source);
    return ok;
}

/* The same where the encoder reads an image: patches and the tokens around them.  A text beside it
 * is read by another stack, and labelled where that looks back (CLIP). */
static fv_status label_image(fv_see *s, const fv_see_in *in, bool pair, const fv_items *out,
                             fv_err *e)
{
    fv_see_axis seen = {0}, text = {0};
    int64_t n = s->map[FV_SEE_ENCODER].cols;
    fv_status st = in->drawn ? fv__see_take_drawn(s, out, n, e) : FV_OK;
    if (!st) st = fv__see_axis_image(s, &seen, n, e);
    if (!st) st = fv__see_find_boxes(s, &seen, out, e);
    bool ok = !st && put_labels(s, FV_SEE_ENCODER, &seen, &seen);
    if (ok && pair) ok = label_pair(s, in, &seen);
    if (ok && !pair && in->n_source)
        ok = fv__see_axis_label(s->env, &text, in->tok, in->source, in->n_source) &&
             put_labels(s, FV_SEE_DECODER, &text, &text);
    fv__see_axis_free(s->env, &seen);
    fv__see_axis_free(s->env, &text);
    return st || ok ? st : fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
}

/* ---- a pass ---- */

static fv_status guide(fv_see *s, const fv_model *m, const fv_see_in *in, fv_err *e)
{
    if (!s->image || in->drawn || !in->n_source)
        return fv_fail(e, FV_EARG, "guided: an image file and a text are needed");
    return fv__see_guide_run(&s->guide, fv_ctx_device(s->ctx), m, in, s->image, e);
}

/* A history: one pass on its items, which the maps are labelled with. */
static fv_status capture_history(fv_see *s, const fv_model *m, fv_see_in in, fv_err *e)
{
    fv_items out = {0};
    fv_see_history h;
    fv_status st = fv__see_history_open(&h, s->env, m, &in, e);
    in.source = h.ids;
    in.n_source = h.names.n;
    if (!st) st = fv__see_pass(s->ctx, m, &in, NULL, &out, e);
    if (!st && s->err.code) st = fv_fail(e, s->err.code, "%s", s->err.text);
    if (!st && !(put_labels(s, FV_SEE_ENCODER, &h.names, &h.names) &&
                 put_labels(s, FV_SEE_DECODER, &h.names, &h.names)))
        st = fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
    fv__see_history_free(&h);
    return st;
}

/* The tap cannot return an error: what failed inside it is kept in s->err and reported here. */
static fv_status capture(fv_see *s, const fv_model *m, const fv_see_in *in, fv_err *e)
{
    fv_items out = {0};
    fv_status st = fv__see_image_open(&s->image, s->env, m, in, e);
    if (!st && in->guided) st = guide(s, m, in, e);
    if (!st && s->image && s->image->date) s->batch = s->image->channel;
    if (!st) st = fv__see_pass(s->ctx, m, in, s->image, &out, e);
    if (!st && s->err.code) st = fv_fail(e, s->err.code, "%s", s->err.text);
    if (st) return st;
    bool pair = fv_model_has_cross(m);
    if (s->guide) st = fv__see_guide_scale(s, e);
    if (st) return st;
    if (s->image) return label_image(s, in, pair, &out, e);
    return label_texts(s, in, pair) ? FV_OK
                                    : fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
}

/* Two tokens show layers, heads and who looks back; a kind that then has two rows and two columns
 * has as many as there are tokens. */
static fv_status outline(fv_see *s, const fv_model *m, const fv_see_in *in, fv_err *e)
{
    enum { FEW = 2 };
    fv_see_in few = *in;
    fv_items out = {0};
    int64_t most = fv_model_context(m);
    if (in->image || in->drawn || in->history || in->n_source < FEW || fv_model_has_cross(m) ||
        (most && in->n_source > most))
        return fv_fail(e, FV_EMISSING, "only a text of one model has an outline");
    few.n_source = FEW;
    fv_status st = fv__see_pass(s->ctx, m, &few, NULL, &out, e);
    if (!st && s->err.code) st = fv_fail(e, s->err.code, "%s", s->err.text);
    for (int k = 0; k < FV_SEE_KINDS && !st; k++) {
        fv_see_map *map = &s->map[k];
        if (!map->layers) continue;
        if (map->rows != FEW || map->cols != FEW)
            return fv_fail(e, FV_EMISSING, "this model's maps have other sizes than its text");
        map->rows = map->cols = in->n_source;
    }
    s->outline = true;
    if (st || label_texts(s, in, false)) return st;
    return fv_fail(e, FV_ENOMEM, "attention capture: out of memory");
}

/* The context is ours: it records, and lives as long as the capture. */
fv_status fv_see_run(fv_see **out, fv_device *d, const fv_model *m, fv_see_in in, fv_err *e)
{
    fv_ctx *c;
    *out = NULL;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.record = true}, e);
    if (st) return st;
    st = fv_see_watch(out, c, 0, e);
    if (st) {
        fv_ctx_free(c);
        return st;
    }
    fv_see *s = *out;
    s->own = true;
    if (in.outline)
        st = outline(s, m, &in, e);
    else
        st = in.history ? capture_history(s, m, in, e) : capture(s, m, &in, e);
    if (!st && !s->map[FV_SEE_ENCODER].layers && !s->map[FV_SEE_DECODER].layers)
        st = fv_fail(e, FV_EMISSING, "no attention ran in this model");
    if (!st) return FV_OK;
    fv_see_free(s);
    *out = NULL;
    return st;
}

/* ---- what was captured ---- */

fv_see_shape fv_see_shape_of(const fv_see *s, fv_see_kind k)
{
    const fv_see_map *m = &s->map[k];
    return (fv_see_shape){m->layers, m->heads, m->rows, m->cols, fv_ctx_bytes(s->ctx)};
}

/* NULL without labels or out of range: callers then show the position. */
const char *fv_see_row(const fv_see *s, fv_see_kind k, int64_t i)
{
    const fv_see_map *m = &s->map[k];
    return m->row.text && i >= 0 && i < m->rows ? m->row.text[i] : NULL;
}

const char *fv_see_col(const fv_see *s, fv_see_kind k, int64_t i)
{
    const fv_see_map *m = &s->map[k];
    return m->col.text && i >= 0 && i < m->cols ? m->col.text[i] : NULL;
}

const char *fv_see_layer_name(const fv_see *s, fv_see_kind k, int64_t layer)
{
    const fv_see_map *m = &s->map[k];
    return layer >= 0 && layer < m->layers ? m->layer[layer].name : NULL;
}
