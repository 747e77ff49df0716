/* explain_score.c - scores of tokens, each method from passes of the model it needs.
 *
 * The scalar that is explained is log p, the log-probability of one label:
 *
 *     gradient      s_t = sum_d  d log p / d x_td  x_td           x: what the first layer reads
 *     integrated    s_t = sum_d (x - b)_td  mean_k d log p / d x_td at b + (k + 1/2)/K (x - b)
 *     occlusion     s_t = log p - log p with token t blanked
 *
 * b is what the first layer reads where every token that is not special is blank, at the same
 * positions, so that the integrated scores add up to log p less that of the blanked text.
 *
 * x is found by the tap that shows hidden states, first of them; no family knows of this.  It is
 * marked as wanting a gradient there, so the tape begins behind the embeddings and no parameter has
 * a gradient.  The last of them tells which tokens the prediction reads above the last layer, by
 * the size of their gradients: the class token of BERT, the last token of GPT, all of a mean. */
#include <math.h>

#include "core/core.h"
#include "explain.h"
#include "fovea/author/family.h"
#include "fovea/author/ops.h"
#include "fovea/author/see.h"
#include "fovea/author/tensor.h"

static fv_status failed(const fv_explainer *x, fv_err *e)
{
    return fv_fail(e, fv_ctx_status(x->ctx), "%s", fv_ctx_err(x->ctx)->text);
}

/* ---- one pass ---- */

/* (rows,n,V) -> (rows,V): the scores behind the last token. */
static fv_tensor *last_row(fv_explainer *x, fv_tensor *y)
{
    fv_shape shape = FV_SHAPE(fv_dim(y, 0), fv_cols(y));
    return fv_reshape(x->ctx, fv_slice(x->ctx, y, 1, x->now.n - 1, x->now.n), shape);
}

/* (rows,labels): of a language model the scores behind the last token. */
static fv_tensor *run(fv_explainer *x, const int32_t *ids, int64_t rows)
{
    fv_ctx *c = x->ctx;
    int64_t n = x->now.n;
    fv_items in = {0}, out = {0};
    if (x->sees) {
        fv__explain_put_input(x, ids, rows, &in);
        if (!fv_ctx_status(c)) fv_model_forward(c, x->model, &in, &out);
        return fv_items_get(&out, "logits");
    }
    fv_shape shape = FV_SHAPE(rows, n);
    uint8_t *mask = fv__alloc(&x->env, (size_t)(rows * n));
    int32_t *types = x->types ? fv__alloc(&x->env, (size_t)(rows * n) * sizeof *types) : NULL;
    if (!mask || (x->types && !types)) fv_raise(c, FV_ENOMEM, "explain: out of memory");
    if (mask) memset(mask, 1, (size_t)(rows * n));
    for (int64_t r = 0; types && r < rows; r++)
        memcpy(types + r * n, x->types, (size_t)n * sizeof *types);
    fv_items_put(&in, "input_ids", fv_ints(c, ids, shape));
    if (mask) fv_items_put(&in, "attention_mask", fv_bytes(c, mask, shape));
    if (types) fv_items_put(&in, "token_type_ids", fv_ints(c, types, shape));
    if (!fv_ctx_status(c)) fv_model_forward(c, x->model, &in, &out);
    if (types) fv__free(&x->env, types, (size_t)(rows * n) * sizeof *types);
    if (mask) fv__free(&x->env, mask, (size_t)(rows * n));
    fv_tensor *y = fv_items_get(&out, "logits");
    if (y && x->next_token) y = last_row(x, y);
    return y;
}

/* log p of every label, (rows,labels); log sigmoid(y) = -softplus(-y). */
static fv_tensor *log_p(fv_explainer *x, fv_tensor *y)
{
    if (!x->apart) return fv_log_softmax(x->ctx, y);
    return fv_scale(x->ctx, fv_softplus(x->ctx, fv_scale(x->ctx, y, -1)), -1);
}

/* Rows of one length each, in batches. With no label asked for, the first row, which is the text
 * itself, decides which is explained. */
fv_status fv__explain_log_p(fv_explainer *x, const int32_t *ids, int64_t rows, double *out,
                            fv_err *e)
{
    for (int64_t at = 0; at < rows; at += FV__EXPLAIN_ROWS) {
        int64_t some = rows - at < FV__EXPLAIN_ROWS ? rows - at : FV__EXPLAIN_ROWS;
        fv_ctx_reset(x->ctx, 0);
        fv_tensor *y = log_p(x, run(x, ids + at * x->now.n, some));
        int64_t labels = y ? fv_cols(y) : 0;
        size_t bytes = (size_t)(some * labels) * sizeof(float);
        float *host = fv__alloc(&x->env, bytes + 1);
        if (!host) return fv_fail(e, FV_ENOMEM, "explain: out of memory");
        fv_status st = y && !fv_read(x->ctx, y, host, some * labels) ? FV_OK : failed(x, e);
        if (!st && x->label < 0) {
            x->label = 0;
            for (int64_t i = 1; i < labels; i++)
                if (host[i] > host[x->label]) x->label = i;
        }
        if (!st && x->label >= labels)
            st = fv_fail(e, FV_EARG, "label %lld: the model has %lld", (long long)x->label,
                         (long long)labels);
        for (int64_t r = 0; !st && r < some; r++) out[at + r] = (double)host[r * labels + x->label];
        fv__free(&x->env, host, bytes + 1);
        if (st) return st;
    }
    return FV_OK;
}

/* ---- gradients ---- */

/* What the tap does to the first hidden state of a pass, and what it found. */
typedef struct watch {
    fv_tensor *first, *last;
    const float *text, *base; /* (n,D): rows become base + share (text - base); NULL: stay */
    int64_t rows, from, steps;
    fv_env *env;
} watch;

/* Row r is at the middle of step from + r of the way from base to text. */
static void interpolate(const watch *w, fv_ctx *c, fv_tensor *x)
{
    int64_t each = fv_len(x) / w->rows;
    size_t bytes = (size_t)fv_len(x) * sizeof(float);
    float *host = fv__alloc(w->env, bytes);
    if (!host) {
        fv_raise(c, FV_ENOMEM, "explain: out of memory");
        return;
    }
    for (int64_t r = 0; r < w->rows; r++) {
        float share = ((float)(w->from + r) + 0.5f) / (float)w->steps;
        for (int64_t i = 0; i < each; i++)
            host[r * each + i] = w->base[i] + share * (w->text[i] - w->base[i]);
    }
    fv_write(c, x, host, fv_len(x));
    fv__free(w->env, host, bytes);
}

/* The first hidden state is what enters the first layer: its gradient is that of the input. It may
 * be replaced on the way, which is how points between the blank text and the text are run. */
static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    watch *w = user;
    fv_tensor *x = (fv_tensor *)(uintptr_t)what;
    (void)name;
    if (strcmp(site, "hidden") != 0 || !x) return;
    if (!w->first) {
        w->first = x;
        if (w->text) interpolate(w, c, x);
        x->wants_grad = true;
        fv_hold(c, x);
    }
    if (w->last && w->last != w->first) w->last->held = false; /* only the last is kept */
    w->last = fv_hold(c, x);
}

/* Passes rows texts through the model and the gradient of the sum of their log p back. */
static fv_status backward(fv_explainer *x, watch *w, const int32_t *ids, int64_t rows, fv_err *e)
{
    fv_ctx *c = x->ctx;
    w->rows = rows;
    w->env = &x->env;
    fv_ctx_reset(c, 0);
    c->record = true;
    fv_ctx_set_tap(c, on_tap, w);
    fv_tensor *y = log_p(x, run(x, ids, rows));
    fv_ctx_set_tap(c, NULL, NULL);
    fv_status st = y ? FV_OK : failed(x, e);
    bool shown = w->first && w->first->shape.n == 3 && fv_dim(w->first, 1) == x->now.n &&
                 fv_dim(w->last, 1) == x->now.n;
    if (!st && !shown)
        st = fv_fail(e, FV_EMISSING, "%s does not show a hidden state for each token",
                     fv_model_head(x->model));
    fv_tensor *sum = st ? NULL : fv_sum_all(c, fv_slice(c, y, 1, x->label, x->label + 1));
    if (!st && (!sum || fv_backward(c, sum))) st = failed(x, e);
    c->record = false;
    return st;
}

/* Shares by the length of a token's gradient above the last layer. */
static fv_status read_top(fv_explainer *x, const watch *w, double *grad, fv_err *e)
{
    int64_t n = x->now.n, width = fv_cols(w->last);
    double all = 0;
    if (fv_read_grad(x->ctx, w->last, grad, n * width)) return failed(x, e);
    for (int64_t t = 0; t < n; t++) {
        double sum = 0;
        for (int64_t d = 0; d < width; d++) sum += grad[t * width + d] * grad[t * width + d];
        all += x->top[t] = sqrt(sum);
    }
    for (int64_t t = 0; t < n; t++) x->top[t] = all > 0 ? x->top[t] / all : 1 / (double)n;
    return FV_OK;
}

/* The first hidden state of one text. */
static fv_status first_state(fv_explainer *x, const int32_t *ids, float *out, int64_t width,
                             fv_err *e)
{
    watch w = {0};
    fv_status st = backward(x, &w, ids, 1, e);
    return st || !fv_read(x->ctx, w.first, out, x->now.n * width) ? st : failed(x, e);
}

/* mean over the steps of the gradient, times (text - base), summed over the width. */
static fv_status integrate(fv_explainer *x, const float *text, const float *base, int64_t width,
                           double *grad, float *out, fv_err *e)
{
    int64_t n = x->now.n, steps = x->opt.steps;
    size_t bytes = (size_t)(FV__EXPLAIN_ROWS * n) * sizeof(int32_t);
    int32_t *ids = fv__alloc(&x->env, bytes);
    fv_status st = ids ? FV_OK : fv_fail(e, FV_ENOMEM, "explain: out of memory");
    for (int64_t r = 0; !st && r < FV__EXPLAIN_ROWS; r++)
        memcpy(ids + r * n, x->ids, (size_t)n * sizeof *ids);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t at = 0; !st && at < steps; at += FV__EXPLAIN_ROWS) {
        int64_t rows = steps - at < FV__EXPLAIN_ROWS ? steps - at : FV__EXPLAIN_ROWS;
        watch w = {.text = text, .base = base, .from = at, .steps = steps};
        st = backward(x, &w, ids, rows, e);
        if (!st && fv_read_grad(x->ctx, w.first, grad, rows * n * width)) st = failed(x, e);
        for (int64_t i = 0; !st && i < rows * n * width; i++) {
            int64_t t = i / width % n, k = i % (n * width);
            out[t] += (float)(grad[i] / (double)steps * (double)(text[k] - base[k]));
        }
    }
    fv__free(&x->env, ids, bytes);
    return st;
}

/* gradient: sum over d of x_d dlog p / dx_d at each token. integrated (Sundararajan et al. 2017):
 * (x - x0)_d times the mean gradient on the line from the blanked text x0 to x; its sum over tokens
 * is log p(x) - log p(x0), up to the steps. */
fv_status fv__explain_gradients(fv_explainer *x, float *gradient, float *integrated, fv_err *e)
{
    int64_t n = x->now.n;
    watch w = {0};
    fv_status st = backward(x, &w, x->ids, 1, e);
    if (st) return st;
    int64_t width = fv_cols(w.first), size = n * width;
    size_t floats = (size_t)(2 * size) * sizeof(float), ids = (size_t)n * sizeof(int32_t),
           doubles = (size_t)(FV__EXPLAIN_ROWS * size) * sizeof(double);
    float *text = fv__alloc(&x->env, floats);
    double *grad = fv__alloc(&x->env, doubles);
    int32_t *blanks = fv__alloc(&x->env, ids);
    if (!text || !grad || !blanks) st = fv_fail(e, FV_ENOMEM, "explain: out of memory");
    if (!st) st = read_top(x, &w, grad, e);
    if (!st && (fv_read(x->ctx, w.first, text, size) || fv_read_grad(x->ctx, w.first, grad, size)))
        st = failed(x, e);
    for (int64_t t = 0; !st && t < n; t++) {
        double sum = 0;
        for (int64_t d = t * width; d < (t + 1) * width; d++) sum += grad[d] * (double)text[d];
        gradient[t] = (float)sum;
        blanks[t] = x->now.special[t] ? x->ids[t] : x->blank;
    }
    if (!st) st = first_state(x, blanks, text + size, width, e);
    if (!st) st = integrate(x, text, text + size, width, grad, integrated, e);
    if (text) fv__free(&x->env, text, floats);
    if (grad) fv__free(&x->env, grad, doubles);
    if (blanks) fv__free(&x->env, blanks, ids);
    return st;
}

/* ---- blanks ---- */

/* log p of the text minus log p with one token blanked, special ones never. n + 1 rows of one
 * batch: the last has all blanked and is the baseline of the others. */
fv_status fv__explain_occlusion(fv_explainer *x, float *out, fv_err *e)
{
    int64_t n = x->now.n;
    size_t ids = (size_t)((n + 1) * n) * sizeof(int32_t),
           doubles = (size_t)(n + 1) * sizeof(double);
    int32_t *rows = fv__alloc(&x->env, ids);
    double *p = fv__alloc(&x->env, doubles);
    fv_status st = rows && p ? FV_OK : fv_fail(e, FV_ENOMEM, "explain: out of memory");
    for (int64_t r = 0; !st && r <= n; r++) /* row n: all blanked */
        for (int64_t t = 0; t < n; t++)
            rows[r * n + t] = (r == t || r == n) && !x->now.special[t] ? x->blank : x->ids[t];
    if (!st) st = fv__explain_log_p(x, rows, n + 1, p, e);
    for (int64_t t = 0; !st && t < n; t++) out[t] = (float)(x->now.log_p - p[t]);
    if (!st) x->now.log_p_blank = p[n];
    if (rows) fv__free(&x->env, rows, ids);
    if (p) fv__free(&x->env, p, doubles);
    return st;
}

/* ---- attention ---- */

/* Rows weighted by x->top. */
static fv_status by_top(const fv_explainer *x, fv_see *s, fv_see_pick p, float *rows, float *out,
                        fv_err *e)
{
    int64_t n = x->now.n;
    fv_status st = fv_see_weights(s, p, 0, n, rows, e);
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t i = 0; !st && i < n * n; i++) out[i % n] += (float)x->top[i / n] * rows[i];
    return st;
}

/* From the row that the head reads: the class token, or the last token of a causal model. */
fv_status fv__explain_attention(fv_explainer *x, float *raw, float *rollout, float *flow, fv_err *e)
{
    int64_t n = x->now.n;
    fv_see *s = NULL;
    fv_status st = fv_see_run(&s, x->dev, x->model, fv__explain_seen(x), e);
    if (st) return st;
    fv_see_kind k = fv_see_shape_of(s, FV_SEE_ENCODER).layers ? FV_SEE_ENCODER : FV_SEE_DECODER;
    fv_see_shape m = fv_see_shape_of(s, k);
    if (m.rows != n || m.cols != n)
        st = fv_fail(e, FV_EMISSING, "attention is %lld x %lld for %lld tokens", (long long)m.rows,
                     (long long)m.cols, (long long)n);
    size_t bytes = (size_t)((m.layers + 1) * n * n) * sizeof(float);
    float *a = st ? NULL : fv__alloc(&x->env, bytes);
    if (!st && !a) st = fv_fail(e, FV_ENOMEM, "explain: out of memory");
    fv_see_pick last = {.kind = k, .layer = m.layers - 1, .head = FV_SEE_ALL},
                rolled = {.kind = k, .layer = FV_SEE_ALL, .head = FV_SEE_ALL, .rollout = true};
    if (!st) st = by_top(x, s, last, a, raw, e);
    if (!st) st = by_top(x, s, rolled, a, rollout, e);
    if (!st && flow) st = fv__see_capacities(s, k, m.layers, a, a + m.layers * n * n, e);
    if (!st && flow) st = fv__explain_flow(&x->env, a, m.layers, n, x->top, flow, e);
    x->now.layers = m.layers, x->now.heads = m.heads, x->kind = k;
    if (a) fv__free(&x->env, a, bytes);
    fv_see_free(s);
    return st;
}

/* ---- heads ---- */

fv_status fv__explain_heads(fv_explainer *x, float *out, fv_err *e)
{
    fv_status st = FV_OK;
    fv_see_in in = fv__explain_seen(x);
    for (int64_t i = 0; !st && i < x->now.layers * x->now.heads; i++) {
        fv_see_pick head = {.kind = x->kind, .layer = i / x->now.heads, .head = i % x->now.heads};
        fv_items items = {0};
        bool ahead;
        float p;
        fv_ctx_reset(x->ctx, 0);
        st = fv__see_silent_pass(x->ctx, x->model, &in, x->image, &items, &head, 1, &ahead, e);
        fv_tensor *y = st ? NULL : fv_items_get(&items, "logits");
        if (y && x->next_token) y = last_row(x, y);
        y = y ? fv_slice(x->ctx, log_p(x, y), 1, x->label, x->label + 1) : NULL;
        if (!st && fv_read(x->ctx, y, &p, 1)) st = failed(x, e);
        if (!st) out[i] = (float)x->now.log_p - p;
    }
    return st;
}
