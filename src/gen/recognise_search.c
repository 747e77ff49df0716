/* recognise_search.c - the searches of a recogniser: CTC and transducers, greedy and with beams.
 *
 * Greedy over a transducer: at frame t the joint network says a label, which is written and changes
 * what it says next, or the blank, which moves to frame t + 1.  Most frames say the blank, and the
 * label encoder only sees labels, so all frames of a chunk are scored at once behind the labels so
 * far, up to the first that says one: a pass for each label and one more, not one for each frame.
 *
 * With beams: at most one label a frame (frames are 30 ms or more), so all hypotheses stand at the
 * same frame and their probabilities can be compared.  Two that come to the same labels by
 * different ways are added.  Graves's search, any number of labels a frame in order of
 * probability, needs a pass for each and was no better on what we tried. */
#include <math.h>

#include "gen/recognise.h"

enum { MOST_A_FRAME = 8 }; /* labels: a model that says more at one frame is in a loop */

static fv_status add_token(fv__hypothesis *h, fv_recognised x, fv_err *e)
{
    fv__buf_add(&h->tokens, &x, sizeof x);
    return h->tokens.failed ? fv_fail(e, FV_ENOMEM, "recogniser: out of memory") : FV_OK;
}

/* The greatest of V logits; *log_prob of it. */
static int32_t greatest(const float *x, int64_t V, float *log_prob)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < V; i++)
        if (x[i] > x[best]) best = i;
    for (int64_t i = 0; i < V; i++) sum += exp((double)(x[i] - x[best]));
    *log_prob = (float)-log(sum);
    return (int32_t)best;
}

/* ---- CTC ---- */

fv_status fv__recognise_ctc(fv_recogniser *r, const float *logits, int64_t n, int64_t V, fv_err *e)
{
    fv__hypothesis *h = &r->best[0];
    fv_status st = FV_OK;
    for (int64_t t = 0; !st && t < n; t++) {
        float lp;
        int32_t id = greatest(logits + t * V, V, &lp);
        int64_t at = r->position + t;
        h->score += (double)lp;
        if (id != r->opt.blank && id != r->last)
            st = add_token(h, (fv_recognised){.id = id, .log_prob = lp, .from = at, .to = at + 1},
                           e);
        else if (id != r->opt.blank) /* the same goes on */
            fv__hypothesis_at(h)[fv__hypothesis_n(h) - 1].to = at + 1;
        r->last = id;
    }
    return st;
}

/* ---- transducers ---- */

/* Writes the blank and the last labels of h that the next one depends on; how many ids. */
static int64_t history(const fv_recogniser *r, const fv__hypothesis *h, int32_t *ids)
{
    int64_t have = fv__hypothesis_n(h), keep = r->shape.labels, n = 0;
    if (have < keep) ids[n++] = r->opt.blank;
    for (int64_t i = have < keep ? 0 : have - keep; i < have; i++)
        ids[n++] = fv__hypothesis_at(h)[i].id;
    return n;
}

/* Logits behind hypotheses [0, rows): states (rows,frames,D), ids (rows,U) -> (rows,frames,U,V) on
 * the host. */
static fv_status score(fv_recogniser *r, const float *states, fv_shape s, const int32_t *ids,
                       int64_t U, const float **out, int64_t *V, fv_err *e)
{
    fv_items in = {0}, given = {0};
    fv_ctx_reset(r->ctx, 0);
    fv_items_put(&in, "encoder_hidden_states", fv_floats(r->ctx, states, s));
    fv_items_put(&in, "decoder_input_ids", fv_ints(r->ctx, ids, FV_SHAPE(s.d[0], U)));
    fv_model_forward(r->ctx, r->model, &in, &given);
    const fv_tensor *y = fv_items_get(&given, "logits");
    if (!y || fv_ctx_status(r->ctx)) return fv__recognise_failed(r, e);
    *V = fv_dim(y, 3);
    return fv__recognise_read(r, &r->scores, y, out, e);
}

fv_status fv__recognise_greedy(fv_recogniser *r, const float *states, int64_t n, int64_t D,
                               fv_err *e)
{
    fv__hypothesis *h = &r->best[0];
    int64_t t = 0, here = 0;
    size_t bytes = (size_t)(r->shape.labels + 1) * sizeof(int32_t);
    int32_t *ids = fv__alloc(r->env, bytes);
    fv_status st = ids ? FV_OK : fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
    while (!st && t < n) {
        const float *x;
        int64_t U = history(r, h, ids), V = 0, k = 0;
        int32_t id = r->opt.blank;
        float lp = 0;
        st = score(r, states + t * D, FV_SHAPE(1, n - t, D), ids, U, &x, &V, e);
        if (here >= MOST_A_FRAME) k = 1, here = 0;
        for (; !st && t + k < n; k++) {
            id = greatest(x + ((k + 1) * U - 1) * V, V, &lp);
            h->score += (double)lp;
            if (id != r->opt.blank) break;
        }
        if (st || t + k >= n) break;
        here = k ? 1 : here + 1;
        t += k;
        int64_t at = r->position + t;
        st = add_token(h, (fv_recognised){.id = id, .log_prob = lp, .from = at, .to = at + 1}, e);
    }
    fv__free(r->env, ids, bytes);
    return st;
}

/* ---- beams ---- */

static double log_add(double a, double b)
{
    double top = a > b ? a : b, low = a > b ? b : a;
    return top + log1p(exp(low - top));
}

/* Whether a, with `id` behind it unless that is the blank, has the labels of b. */
static bool same_labels(const fv_recogniser *r, const fv__hypothesis *a, int32_t id,
                        const fv__hypothesis *b)
{
    int64_t n = fv__hypothesis_n(a), longer = id != r->opt.blank;
    if (fv__hypothesis_n(b) != n + longer) return false;
    for (int64_t i = 0; i < n; i++)
        if (fv__hypothesis_at(a)[i].id != fv__hypothesis_at(b)[i].id) return false;
    return !longer || fv__hypothesis_at(b)[n].id == id;
}

/* Puts `from` with `token` behind it among the next hypotheses, sorted, or adds its probability to
 * the one that has the same labels. */
static fv_status offer(fv_recogniser *r, int64_t *made, const fv__hypothesis *from,
                       fv_recognised token, double total, fv_err *e)
{
    fv__hypothesis *next = r->best + r->opt.beams;
    int64_t at = 0;
    while (at < *made && !same_labels(r, from, token.id, &next[at])) at++;
    if (at < *made) {
        next[at].score = log_add(next[at].score, total);
    } else if (*made < r->opt.beams || total > next[*made - 1].score) {
        at = *made < r->opt.beams ? (*made)++ : *made - 1;
        next[at].tokens.len = 0;
        next[at].score = total;
        fv__buf_add(&next[at].tokens, from->tokens.data ? from->tokens.data : "", from->tokens.len);
        if (next[at].tokens.failed) return fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
        fv_status st = token.id != r->opt.blank ? add_token(&next[at], token, e) : FV_OK;
        if (st) return st;
    } else {
        return FV_OK;
    }
    for (; at && next[at].score > next[at - 1].score; at--) {
        fv__hypothesis swap = next[at];
        next[at] = next[at - 1];
        next[at - 1] = swap;
    }
    return FV_OK;
}

/* The next hypotheses of frame `at` from logits (n,U,V), len[i] ids of each being real. */
static fv_status step(fv_recogniser *r, const float *x, int64_t U, int64_t V, const int64_t *len,
                      int64_t at, fv_err *e)
{
    int64_t made = 0;
    fv_status st = FV_OK;
    for (int64_t i = 0; i < r->n; i++) {
        const float *row = x + (i * U + len[i] - 1) * V;
        double top = (double)row[0], sum = 0;
        for (int64_t v = 1; v < V; v++) top = (double)row[v] > top ? (double)row[v] : top;
        for (int64_t v = 0; v < V; v++) sum += exp((double)row[v] - top);
        for (int64_t v = 0; !st && v < V; v++) {
            double lp = (double)row[v] - top - log(sum);
            fv_recognised token = {(int32_t)v, (float)lp, at, at + 1};
            st = offer(r, &made, &r->best[i], token, r->best[i].score + lp, e);
        }
    }
    for (int64_t i = 0; i < made; i++) {
        fv__hypothesis swap = r->best[i];
        r->best[i] = r->best[r->opt.beams + i];
        r->best[r->opt.beams + i] = swap;
    }
    r->n = made;
    return st;
}

fv_status fv__recognise_beams(fv_recogniser *r, const float *states, int64_t n, int64_t D,
                              fv_err *e)
{
    int64_t most = r->shape.labels + 1, beams = r->opt.beams, len[64];
    size_t row = (size_t)D * sizeof(float), id_bytes = (size_t)(beams * most) * sizeof(int32_t),
           bytes = (size_t)beams * row + 2 * id_bytes;
    char *memory = fv__alloc(r->env, bytes);
    fv_status st = memory ? FV_OK : fv_fail(e, FV_ENOMEM, "recogniser: out of memory");
    float *frame = (float *)(void *)memory;
    int32_t *ids = (int32_t *)(void *)(memory + (size_t)beams * row),
            *dense = (int32_t *)(void *)(memory + (size_t)beams * row + id_bytes);
    for (int64_t t = 0; !st && t < n; t++) {
        const float *x;
        int64_t U = 0, V = 0;
        for (int64_t i = 0; i < r->n; i++) {
            memcpy(frame + i * D, states + t * D, row);
            len[i] = history(r, &r->best[i], ids + i * most);
            if (len[i] > U) U = len[i];
        }
        /* what stands behind the end of a row is not seen: the label encoder looks back */
        for (int64_t i = 0; i < r->n; i++)
            for (int64_t u = 0; u < U; u++)
                dense[i * U + u] = u < len[i] ? ids[i * most + u] : r->opt.blank;
        st = score(r, frame, FV_SHAPE(r->n, 1, D), dense, U, &x, &V, e);
        if (!st) st = step(r, x, U, V, len, r->position + t, e);
    }
    fv__free(r->env, memory, bytes);
    return st;
}
