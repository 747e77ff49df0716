/* pass.c - one forward pass on the tokens of one text or one pair, and the ablation of heads.
 *
 * Ablation silences a head: what it would add is zero, all else stays.  The tap that shows the
 * output of an attention may write to it, so no family knows of this.  The worth of a head is how
 * much worse the text is then predicted. */
#include "see.h"
#include "fovea/author/family.h"

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
    if (in->n_source < 1) return fv_fail(e, FV_EARG, "there is no token to look at");
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
    f->bytes = reads * sizeof *f->read + (size_t)in->n_source;
    f->read = fv__alloc(env, f->bytes);
    if (!f->read) return false;
    f->mask = (uint8_t *)(f->read + reads);
    memset(f->mask, 1, (size_t)in->n_source);
    if (!pair) return true;
    f->read[0] = in->start;
    memcpy(f->read + 1, in->target, (reads - 1) * sizeof *f->read);
    return true;
}

/* Whether the model has such an input: token types, where it reads pairs. */
static bool takes(const fv_model *m, const char *input)
{
    for (const fv_input *i = fv_model_family(m)->inputs; i->name; i++)
        if (!strcmp(i->name, input)) return true;
    return false;
}

fv_status fv__see_pass(fv_ctx *c, const fv_model *m, const fv_see_in *in, fv_items *out, fv_err *e)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    bool pair = fv_model_has_cross(m);
    fv_items items = {0};
    inputs f;
    fv_status st = check_input(m, in, pair, e);
    if (st) return st;
    if (!make_inputs(&f, env, in, pair))
        return fv_fail(e, FV_ENOMEM, "forward pass: out of memory");
    fv_items_put(&items, "input_ids", fv_ints(c, in->source, FV_SHAPE(1, in->n_source)));
    fv_items_put(&items, "attention_mask", fv_bytes(c, f.mask, FV_SHAPE(1, in->n_source)));
    if (in->types && takes(m, "token_type_ids"))
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
    fv_see_pick pick;
    int64_t seen[FV_SEE_KINDS]; /* attentions of each kind that ran */
    fv_see_kind kind;           /* of the one that runs */
    int64_t heads;
    bool done;
} silence;

/* Zeroes the columns of one head in the output of its attention, (B,T,H*W). */
static void silence_head(const silence *s, fv_ctx *c, fv_tensor *y)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    int64_t n = fv_len(y), cols = fv_cols(y), width = cols / s->heads;
    float *x = fv__alloc(env, (size_t)n * sizeof *x);
    if (!x) return; /* done stays false, which is reported */
    if (!fv_read(c, y, x, n)) {
        for (int64_t i = s->pick.head * width; i < n; i += cols)
            memset(x + i, 0, (size_t)width * sizeof *x);
        fv_write(c, y, x, n);
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
        if (s->kind != s->pick.kind || s->seen[s->kind] - 1 != s->pick.layer ||
            s->pick.head >= s->heads)
            return;
        silence_head(s, c, (fv_tensor *)(uintptr_t)what);
        s->done = true;
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

/* Two passes, with and without the head, would differ in nothing else: dropout is off and kernels
 * give the same bits for the same input. */
fv_status fv_see_ablate(fv_device *d, const fv_model *m, fv_see_in in, fv_see_pick head,
                        double *loss, fv_err *e)
{
    fv_ctx *c;
    fv_items out = {0};
    silence s = {.pick = head};
    bool pair = fv_model_has_cross(m), none = head.layer == FV_SEE_ALL;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){0}, e);
    if (st) return st;
    fv_ctx_set_tap(c, on_tap, &s);
    st = fv__see_pass(c, m, &in, &out, e);
    if (!st && !none && !s.done)
        st = fv_fail(e, FV_EARG, "%s attention: there is no head %lld in a layer %lld",
                     fv_see_kind_name(head.kind), (long long)head.head, (long long)head.layer);
    /* a model that attends to the whole text does not predict the next token */
    bool ahead = pair || !s.seen[FV_SEE_ENCODER];
    if (!st) st = mean_loss(c, ahead ? fv_items_get(&out, "logits") : NULL, &in, pair, loss, e);
    fv_ctx_free(c);
    return st;
}
