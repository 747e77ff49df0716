/* heads.c - what heads of many families share: activations by name, masks, losses.
 *
 * A batch may be computed in parts whose gradients are added up.  So a loss here is the sum over
 * the part's labels, divided by the labels of the whole batch (in->n_labels): parts then add up to
 * the mean over the batch, whatever the number of labels in each.  Where a step is captured and run
 * again with other batches that number is on the device (in->per_label). */
#include "model/part.h"

/* transformers' ACT2FN, but prelu and xielu: they have weights, which no family of ours declares.
 * Tables of families name their default by its number here: new words go to the end. */
const char *const fv_act_words[] = {
    "gelu",          "relu",        "silu",         "swish",      "gelu_new",   "gelu_pytorch_tanh",
    "gelu_fast",     "gelu_python", "tanh",         "sigmoid",    "quick_gelu", "gelu_python_tanh",
    "gelu_accurate", "gelu_10",     "linear",       "leaky_relu", "relu6",      "relu2",
    "hardswish",     "mish",        "sqrtsoftplus", "laplace",    NULL};

/* gelu_new, gelu_fast, gelu_accurate and the two of gelu_..._tanh write one formula in five
 * ways. */
fv_act fv_act_of(int word)
{
    static const fv_act acts[] = {FV_GELU,          FV_RELU,      FV_SILU,       FV_SILU,
                                  FV_GELU_TANH,     FV_GELU_TANH, FV_GELU_TANH,  FV_GELU,
                                  FV_TANH,          FV_SIGMOID,   FV_QUICK_GELU, FV_GELU_TANH,
                                  FV_GELU_TANH,     FV_GELU_10,   FV_IDENTITY,   FV_LEAKY_RELU,
                                  FV_RELU6,         FV_RELU2,     FV_HARDSWISH,  FV_MISH,
                                  FV_SQRT_SOFTPLUS, FV_LAPLACE};
    return word >= 0 && word < (int)(sizeof acts / sizeof *acts) ? acts[word] : FV_ACT_NONE;
}

const char *const fv_problem_words[] = {"", "regression", "single_label_classification",
                                        "multi_label_classification", NULL};

fv_mha_arg fv_masked(fv_ctx *c, fv_tensor *mask)
{
    if (!mask || mask->shape.n != 3) return (fv_mha_arg){.key_mask = mask};
    return (fv_mha_arg){
        .mask = fv_reshape(c, mask,
                           FV_SHAPE(fv_dim(mask, 0), 1, fv_dim(mask, 1), fv_dim(mask, 2)))};
}

fv_tensor *fv_first(fv_ctx *c, fv_tensor *x)
{
    return fv_reshape(c, fv_slice(c, x, 1, 0, 1), FV_SHAPE(fv_dim(x, 0), fv_dim(x, 2)));
}

/* ---- losses ---- */

fv_tensor *fv__per_label(fv_ctx *c, fv_tensor *sum, const fv_items *in)
{
    if (in->per_label)
        return fv_mul(c, sum, fv_reshape(c, in->per_label, sum ? sum->shape : FV_SHAPE(1)));
    return fv_scale(c, sum, in->n_labels > 0 ? (float)(1 / in->n_labels) : 1);
}

fv_tensor *fv_loss_tokens(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, const fv_items *in)
{
    fv_tensor *rows = fv_cross_entropy(c, logits, labels,
                                       (fv_ce_opt){.smooth = in->smooth, .ignore = -100});
    return fv__per_label(c, fv_sum_all(c, rows), in);
}

/* Of examples that were mixed from two (mixup, CutMix): labels and the share of the first, then the
 * labels of the other.  loss = sum_i share_i CE(labels_i) + (1 - share_i) CE(mixed_labels_i) */
static fv_tensor *loss_mixed(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_tensor *others,
                             const fv_items *in)
{
    fv_ce_opt how = {.smooth = in->smooth, .ignore = -100};
    fv_tensor *a = fv_cross_entropy(c, logits, labels, how),
              *b = fv_cross_entropy(c, logits, others, how),
              *share = fv_cast(c, fv_items_get(in, "label_share"), a ? a->dtype : FV_F32);
    return fv__per_label(c, fv_sum_all(c, fv_add(c, b, fv_mul(c, share, fv_sub(c, a, b)))), in);
}

/* Means over this part of the batch become its share of the mean over all. */
static fv_tensor *share(fv_ctx *c, fv_tensor *mean, const fv_tensor *labels, const fv_items *in)
{
    return in->n_labels > 0 ? fv__per_label(c, fv_scale(c, mean, (float)fv_len(labels)), in) : mean;
}

fv_tensor *fv_loss_classes(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_problem p,
                           const fv_items *in)
{
    if (!logits || !labels) return NULL;
    bool ids = labels->dtype == FV_I32;
    if (p == FV_PROBLEM_GUESS)
        p = fv_cols(logits) == 1 ? FV_PROBLEM_REGRESSION
            : ids                ? FV_PROBLEM_SINGLE
                                 : FV_PROBLEM_MULTI;
    if (ids != (p == FV_PROBLEM_SINGLE))
        return fv_raise(c, FV_EDTYPE, "%s with labels %s: expected %s", fv_problem_words[p],
                        fv_desc(labels).s, ids ? "floats" : "integers");
    fv_tensor *others = fv_items_get(in, "mixed_labels");
    if (ids && others) return loss_mixed(c, logits, labels, others, in);
    if (ids) return fv_loss_tokens(c, logits, labels, in);
    if (fv_len(labels) == fv_len(logits)) labels = fv_reshape(c, labels, logits->shape);
    return share(c, (p == FV_PROBLEM_MULTI ? fv_bce : fv_mse)(c, logits, labels), labels, in);
}

static fv_tensor *column(fv_ctx *c, fv_tensor *x, int64_t i)
{
    return fv_reshape(c, fv_slice(c, x, -1, i, i + 1), FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1)));
}

void fv_put_spans(fv_ctx *c, fv_tensor *x, const fv_items *in, fv_items *out)
{
    fv_tensor *start = column(c, x, 0), *end = column(c, x, 1);
    fv_tensor *from = fv_items_get(in, "start_positions"), *to = fv_items_get(in, "end_positions");
    fv_items_put(out, "start_logits", start);
    fv_items_put(out, "end_logits", end);
    if (!from || !to) return;
    fv_items ends = *in;
    if (in->n_ends > 0) ends.n_labels = in->n_ends;
    fv_tensor *both = fv_add(c, fv_loss_tokens(c, start, from, in),
                             fv_loss_tokens(c, end, to, &ends));
    fv_items_put(out, "loss", fv_scale(c, both, 0.5f));
}

/* ---- what a configuration says in vain ---- */

fv_status fv_model_ignored(const char *dir, void (*each)(void *user, const char *key), void *user,
                           fv_err *e)
{
    fv_dir *d;
    fv_status st = fv_dir_open(&d, NULL, dir, e);
    if (st) return st;
    const char *type = fv_config_type(fv_dir_config(d));
    const fv_family *f = type ? fv_family_find(type) : NULL;
    if (f) {
        const fv_key_rule *rules[] = {fv_keys_common, f->rules, NULL};
        fv_fields_ignored(f->config, fv_dir_config(d), "", rules, each, user);
    } else {
        st = fv_fail(e, FV_EARG, "%s: no family has the model_type \"%s\"", dir, type ? type : "");
    }
    fv_dir_close(d);
    return st;
}
