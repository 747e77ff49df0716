/* pass.c - one forward pass on the tokens of one text or one pair, and the ablation of heads.
 *
 * Ablation silences a head: what it would add is zero, all else stays.  The tap that shows the
 * output of an attention may write to it, so no family knows of this.  The worth of a head is how
 * much worse the text is then predicted. */
#include <math.h>

#include "see.h"
#include "fovea/author/family.h"
#include "fovea/author/see.h"

/* Positions beyond the model's context have no embedding: the sentence is better than its index
 * error. */
static fv_status check_length(const fv_model *m, int64_t n, const char *what, fv_err *e)
{
    int64_t most = fv_model_context(m);
    if (!most || n <= most) return FV_OK;
    return fv_fail(e, FV_EARG, "the %s has %lld tokens, this model takes at most %lld", what,
                   (long long)n, (long long)most);
}

/* Refused here rather than by the model, which would name its inputs and not what is missing. */
static fv_status check_input(const fv_model *m, const fv_see_in *in, bool pair, fv_err *e)
{
    if (in->image && !fv_family_takes(fv_model_family(m), "pixel_values") && !fv__see_hears(m) &&
        !fv__see_reads_series(m))
        return fv_fail(e, FV_EARG, "%s takes neither an image nor a sound", fv_model_head(m));
    if (in->drawn && fv_model_job(m) != FV_HEAD_GAN)
        return fv_fail(e, FV_EARG, "%s draws no images", fv_model_head(m));
    if (!in->image && !in->drawn && in->n_source < 1)
        return fv_fail(e, FV_EARG, "there is no token to look at");
    if (pair && in->n_target < 1)
        return fv_fail(e, FV_EARG,
                       "this model reads a source and writes a target; the target is missing");
    fv_status st = check_length(m, in->n_source, pair ? "source" : "text", e);
    return st || !pair ? st : check_length(m, in->n_target, "target", e);
}

/* Inputs that are made for the pass, in one allocation: the mask, and the target shifted right by
 * the start token. */
typedef struct inputs {
    uint8_t *mask;
    int32_t *read;
    size_t bytes;
} inputs;

static bool make_inputs(inputs *f, const fv_env *env, const fv_see_in *in, bool pair)
{
    size_t reads = pair ? (size_t)in->n_target : 0;
    f->bytes = reads * sizeof *f->read + (size_t)in->n_source + 1; /* never none */
    f->read = fv__alloc(env, f->bytes);
    if (!f->read) return false;
    f->mask = (uint8_t *)(f->read + reads);
    memset(f->mask, 1, (size_t)in->n_source);
    if (!pair) return true;
    f->read[0] = in->start;
    memcpy(f->read + 1, in->target, (reads - 1) * sizeof *f->read);
    return true;
}

fv_status fv__see_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in, const fv_see_image *im,
                       fv_items *out, fv_err *e)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    bool pair = fv_model_has_cross(m);
    fv_items items = {0};
    inputs f;
    fv_status st = check_input(m, in, pair, e);
    if (st) return st;
    if (!make_inputs(&f, env, in, pair))
        return fv_fail(e, FV_ENOMEM, "forward pass: out of memory");
    if (im) fv__see_put_image(c, im, in, &items);
    if (in->n_source) {
        fv_items_put(&items, "input_ids", fv_ints(c, in->source, FV_SHAPE(1, in->n_source)));
        if (!in->history || fv_family_takes(fv_model_family(m), "attention_mask"))
            fv_items_put(&items, "attention_mask", fv_bytes(c, f.mask, FV_SHAPE(1, in->n_source)));
    }
    if (in->types && in->n_source && fv_family_takes(fv_model_family(m), "token_type_ids"))
        fv_items_put(&items, "token_type_ids", fv_ints(c, in->types, FV_SHAPE(1, in->n_source)));
    if (pair)
        fv_items_put(&items, "decoder_input_ids", fv_ints(c, f.read, FV_SHAPE(1, in->n_target)));
    fv_model_forward(c, m, &items, out);
    st = fv_ctx_status(c);
    fv__free(env, f.read, f.bytes);
    return st ? fv_fail(e, st, "%s", fv_ctx_err(c)->text) : FV_OK;
}

/* ---- ablation ---- */

typedef struct silence {
    const fv_see_pick *pick;    /* n of them */
    int n, done;                /* done: those that were there */
    int64_t seen[FV_SEE_KINDS]; /* attentions of each kind that ran */
    fv_see_kind kind;           /* of the one that runs */
    int64_t heads;
} silence;

/* Zeroes the columns of one head in the output of its attention, (B,T,H*W). */
static void silence_head(silence *s, fv_ctx *c, fv_tensor *y, int64_t head)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    int64_t n = fv_len(y), cols = fv_cols(y), width = cols / s->heads;
    float *x = fv__alloc(env, (size_t)n * sizeof *x);
    if (!x) return; /* done stays false, which is reported */
    if (!fv_read(c, y, x, n)) {
        for (int64_t i = head * width; i < n; i += cols)
            memset(x + i, 0, (size_t)width * sizeof *x);
        fv_write(c, y, x, n);
        s->done++;
    }
    fv__free(env, x, (size_t)n * sizeof *x);
}

/* The output of an attention is tapped right after its view, so the view tells whose it is. */
static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    silence *s = user;
    (void)name;
    if (!strcmp(site, "attention")) {
        s->kind = fv__see_kind(what);
        s->heads = fv_attn_view_shape(what).d[1];
        s->seen[s->kind]++;
    } else if (!strcmp(site, "attention_output")) {
        for (int i = 0; i < s->n; i++) {
            const fv_see_pick *p = &s->pick[i];
            if (s->kind == p->kind && s->seen[s->kind] - 1 == p->layer && p->head >= 0 &&
                p->head < s->heads)
                silence_head(s, c, (fv_tensor *)(uintptr_t)what, p->head);
        }
    }
}

/* Minus the mean log-probability of the tokens: of the target, or of each token of a text after the
 * first. */
static fv_status mean_loss(fv_ctx *c, fv_tensor *scores, const fv_see_in *in, bool pair,
                           double *loss, fv_err *e)
{
    const int32_t *says = pair ? in->target : in->source + 1;
    int64_t n = pair ? in->n_target : in->n_source - 1;
    if (!scores || scores->shape.n != 3 || fv_dim(scores, 1) < n || n < 1)
        return fv_fail(
            e, FV_EMISSING,
            "this model predicts no next token, so silencing a head has no loss to change");
    fv_tensor *rows = fv_slice(c, scores, 1, 0, n);
    fv_tensor *each = fv_cross_entropy(c, rows, fv_ints(c, says, FV_SHAPE(1, n)),
                                       (fv_ce_opt){.ignore = -100});
    float mean = 0;
    fv_status st = fv_read(c, fv_mean_all(c, each), &mean, 1);
    *loss = (double)mean;
    return st ? fv_fail(e, st, "%s", fv_ctx_err(c)->text) : FV_OK;
}

fv_status fv__see_silent_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in,
                              const fv_see_image *im, fv_items *out, const fv_see_pick *heads,
                              int n, bool *ahead, fv_err *e)
{
    silence s = {.pick = heads, .n = n};
    fv_ctx_set_tap(c, on_tap, &s);
    fv_status st = fv__see_pass(c, m, in, im, out, e);
    fv_ctx_set_tap(c, NULL, NULL);
    if (!st && s.done < n)
        st = fv_fail(e, FV_EARG, "%s attention: there is no head %lld in a layer %lld",
                     fv_see_kind_name(heads[0].kind), (long long)heads[0].head,
                     (long long)heads[0].layer);
    /* a model that attends to the whole text does not predict the next token */
    *ahead = fv_model_has_cross(m) || !s.seen[FV_SEE_ENCODER];
    return st;
}

/* Two passes, with and without the head, would differ in nothing else: dropout is off and kernels
 * give the same bits for the same input. */
fv_status fv_see_ablate(fv_device *d, const fv_model *m, fv_see_in in, fv_see_pick head,
                        double *loss, fv_err *e)
{
    fv_ctx *c;
    fv_items out = {0};
    fv_see_image *im = NULL;
    bool pair = fv_model_has_cross(m), ahead = false;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){0}, e);
    if (st) return st;
    st = fv__see_image_open(&im, fv_device_env(d), m, &in, e);
    if (!st)
        st = fv__see_silent_pass(c, m, &in, im, &out, &head, head.layer != FV_SEE_ALL, &ahead, e);
    if (!st) st = mean_loss(c, ahead ? fv_items_get(&out, "logits") : NULL, &in, pair, loss, e);
    fv__see_image_free(im);
    fv_ctx_free(c);
    return st;
}

/* The likeliest tokens of the last row, best first; ties to the lower one. */
static fv_status take_top(fv_ctx *c, fv_tensor *logits, const fv_see_in *in, fv_see_next *out,
                          fv_err *e)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    int64_t n = in->n_source, V = fv_cols(logits);
    size_t bytes = (size_t)V * sizeof(float);
    float *x = fv__alloc(env, bytes);
    if (!x) return fv_fail(e, FV_ENOMEM, "next tokens: out of memory");
    fv_status st = fv_read(c, fv_slice(c, logits, 1, n - 1, n), x, V);
    double sum = 0, most = -INFINITY;
    for (int64_t v = 0; v < V; v++)
        if ((double)x[v] > most) most = (double)x[v];
    for (int64_t v = 0; v < V; v++) sum += exp((double)x[v] - most);
    if (out->n > V) out->n = (int)V;
    for (int k = 0; k < out->n && !st; k++) {
        int64_t best = 0;
        for (int64_t v = 1; v < V; v++)
            if (x[v] > x[best]) best = v;
        out->token[k] = (int32_t)best;
        out->score[k] = (float)((double)x[best] - most - log(sum));
        x[best] = -INFINITY;
    }
    fv__free(env, x, bytes);
    return st ? fv_fail(e, st, "%s", fv_ctx_err(c)->text) : FV_OK;
}

fv_status fv_see_without(fv_device *d, const fv_model *m, fv_see_in in, const fv_see_pick *heads,
                         int n, int top, fv_see_next *out, fv_err *e)
{
    fv_ctx *c;
    fv_items items = {0};
    bool ahead = false;
    *out = (fv_see_next){.loss = (double)NAN, .n = top};
    if (top < 0 || top > FV_SEE_NEXT)
        return fv_fail(e, FV_EARG, "%d likeliest tokens, at most %d are told", top, FV_SEE_NEXT);
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){0}, e);
    if (st) return st;
    st = fv__see_silent_pass(c, m, &in, NULL, &items, heads, n, &ahead, e);
    fv_tensor *logits = ahead && !fv_model_has_cross(m) ? fv_items_get(&items, "logits") : NULL;
    if (!st && !logits)
        st = fv_fail(e, FV_EMISSING, "this model predicts no next token behind a text");
    if (!st && in.n_source > 1) st = mean_loss(c, logits, &in, false, &out->loss, e);
    if (!st) st = take_top(c, logits, &in, out, e);
    fv_ctx_free(c);
    return st;
}
