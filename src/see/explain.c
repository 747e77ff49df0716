/* explain.c - a model opened to be explained, and one text, or image, from end to end.
 *
 * The model is opened as for training, without gradients of its own: the layouts that serving packs
 * weights into have no way back, and gradients of the inputs need one. */
#include "explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/family.h"
#include "fovea/author/tok.h"

static const char *const names[] = {"attention", "rollout",    "flow",
                                    "gradient",  "integrated", "occlusion"};

const char *fv_explain_name(fv_explain_method m)
{
    return (unsigned)m < FV_EXPLAIN_METHODS ? names[m] : NULL;
}

/* ---- opening ---- */

/* What stands for "no word": the mask, which the model knows as such; else unknown, else padding.
 */
static fv_status find_blank(fv_explainer *x, fv_err *e)
{
    static const char *const masks[] = {"[MASK]", "<mask>", NULL};
    const char *given = x->opt.blank;
    x->blank = -1; /* of patches */
    if (x->sees)
        return given ? fv_fail(e, FV_EARG, "blank: names a token, and images and sounds have none")
                     : FV_OK;
    x->blank = given ? fv_tok_id(x->tok, given) : -1;
    if (given && x->blank < 0)
        return fv_fail(e, FV_EARG, "blank: the tokenizer has no token \"%s\"", given);
    for (int i = 0; x->blank < 0 && masks[i]; i++) x->blank = fv_tok_id(x->tok, masks[i]);
    if (x->blank < 0) x->blank = fv_tok_unknown(x->tok);
    if (x->blank < 0) x->blank = fv_tok_pad(x->tok);
    if (x->blank >= 0) return FV_OK;
    return fv_fail(e, FV_EARG,
                   "the tokenizer has no mask, unknown or padding token: name one to blank with");
}

/* "LABEL_i" as transformers has it, where config.json names none. */
static void label_name(const fv_explainer *x, int64_t i, char *out, size_t size)
{
    char key[48];
    snprintf(key, sizeof key, "id2label.%lld", (long long)i);
    const char *name = fv_json_text(fv_dir_config(x->dir), key);
    if (name)
        snprintf(out, size, "%s", name);
    else
        snprintf(out, size, "LABEL_%lld", (long long)i);
}

/* The number of opt.label: by its name, or written out. */
static fv_status find_label(fv_explainer *x, fv_err *e)
{
    const char *wanted = x->opt.label;
    char *end, name[160];
    x->label = -1;
    if (!wanted) return FV_OK;
    int n = fv_json_count(fv_dir_config(x->dir), "id2label");
    for (int i = 0; !x->next_token && i < n; i++) {
        label_name(x, i, name, sizeof name);
        if (!strcmp(name, wanted)) x->label = i;
    }
    if (x->next_token) x->label = fv_tok_id(x->tok, wanted);
    if (x->label >= 0) return FV_OK;
    x->label = strtoll(wanted, &end, 10);
    if (*wanted && !*end && x->label >= 0) return FV_OK;
    return fv_fail(e, FV_EARG, "label: the model has none called \"%s\"", wanted);
}

/* Opened neither to serve nor to train: gradients of activations are needed, of parameters not. */
static fv_status open_model(fv_explainer *x, const char *dir, fv_err *e)
{
    fv_model_opt opt = x->opt.model;
    opt.serve = opt.train = false;
    fv_status st = fv_dir_open(&x->dir, &x->env, dir, e);
    if (!st) st = fv_model_open(&x->model, x->dev, dir, opt, e);
    if (st) return st;
    fv_head_job job = fv_model_job(x->model);
    bool pixels = fv_family_takes(fv_model_family(x->model), "pixel_values") ||
                  fv__see_hears(x->model),
         ids = fv_family_takes(fv_model_family(x->model), "input_ids");
    x->next_token = job == FV_HEAD_CAUSAL_LM;
    x->sees = pixels && !ids && job == FV_HEAD_CLASSIFY;
    bool reads = ids && !pixels && (job == FV_HEAD_CLASSIFY || x->next_token);
    if ((!reads && !x->sees) || fv_model_has_cross(x->model))
        return fv_fail(
            e, FV_EMISSING,
            "%s: %s cannot be explained: a classifier (of texts, images, sounds) or a causal "
            "language model is needed",
            dir, fv_model_head(x->model));
    const char *problem = fv_json_text(fv_dir_config(x->dir), "problem_type");
    if (problem && !strcmp(problem, "regression"))
        return fv_fail(e, FV_EMISSING, "%s: a regression has no label to explain", dir);
    x->apart = problem && !strcmp(problem, "multi_label_classification");
    return FV_OK;
}

fv_status fv_explainer_open(fv_explainer **out, fv_device *d, const char *dir, fv_explain_opt opt,
                            fv_err *e)
{
    fv_explainer *x = *out = fv__alloc(fv_device_env(d), sizeof *x);
    if (!x) return fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    *x = (fv_explainer){.env = *fv_device_env(d), .dev = d, .opt = opt};
    x->out.env = &x->env;
    if (!x->opt.steps) x->opt.steps = 32;
    fv_status st = opt.steps < 0 ? fv_fail(e, FV_EARG, "steps: %d", opt.steps) : FV_OK;
    if (!st) st = open_model(x, dir, e);
    if (!st && !x->sees) st = fv_tok_open(&x->tok, &x->env, dir, e);
    if (!st && !x->sees) st = fv_encoding_new(&x->enc, x->tok, e);
    if (!st) st = find_blank(x, e);
    if (!st) st = find_label(x, e);
    if (!st) st = fv_ctx_new(&x->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(x->model)}, e);
    if (!st) return FV_OK;
    fv_explainer_close(x);
    *out = NULL;
    return st;
}

/* What belongs to the text at hand. */
static void drop_text(fv_explainer *x)
{
    fv__see_axis_free(&x->env, &x->axis);
    x->axis = (fv_see_axis){0};
    fv__see_image_free(x->image);
    x->image = NULL;
    if (x->memory) fv__free(&x->env, x->memory, x->bytes);
    if (x->head) fv__free(&x->env, x->head, x->head_bytes);
    x->memory = NULL, x->head = NULL;
    x->now = (fv_explained){0};
}

void fv_explainer_close(fv_explainer *x)
{
    if (!x) return;
    fv_env env = x->env;
    drop_text(x);
    fv__buf_free(&x->out);
    fv_ctx_free(x->ctx);
    fv_encoding_free(x->enc);
    fv_tok_close(x->tok);
    fv_model_free(x->model);
    fv_dir_close(x->dir);
    fv__free(&env, x, sizeof *x);
}

/* ---- one text ---- */

/* A tokenizer of a language model may put nothing in front: then nothing is special. */
static fv_status encode(fv_explainer *x, const char *text, const char *pair, fv_err *e)
{
    fv_tok_opts how = {.specials = true, .pair = pair, .pair_len = pair ? strlen(pair) : 0};
    fv_status st = fv_tok_encode(x->enc, text, strlen(text), how, e);
    int64_t most = fv_model_context(x->model), free_tokens = 0;
    for (int64_t i = 0; !st && i < x->enc->n; i++) free_tokens += !x->enc->special[i];
    if (!st && !free_tokens)
        st = fv_fail(e, FV_EARG, "the text is empty: nothing can be explained");
    if (!st && most && x->enc->n > most)
        st = fv_fail(e, FV_EARG, "the text has %lld tokens, this model takes at most %lld",
                     (long long)x->enc->n, (long long)most);
    snprintf(x->text, sizeof x->text, "%s%s%s", text, pair ? "\t" : "", pair ? pair : "");
    return st;
}

/* What is read, and how many tokens that is. */
static fv_status read_input(fv_explainer *x, const char *text, const char *pair, int64_t *n,
                            fv_err *e)
{
    *n = 0;
    if (x->sees && pair) return fv_fail(e, FV_EARG, "%s: one image at a time is explained", pair);
    if (x->sees) return fv__explain_open_image(x, text, n, e);
    fv_status st = encode(x, text, pair, e);
    *n = st ? 0 : x->enc->n;
    return st;
}

/* One block for all arrays of a text but that of the heads, whose number a pass must show first. */
static fv_status take_memory(fv_explainer *x, int64_t n, float *score[FV_EXPLAIN_METHODS],
                             fv_err *e)
{
    size_t doubles = (size_t)n * sizeof(double), floats = (size_t)n * sizeof(float),
           ints = (size_t)n * sizeof(int32_t);
    x->bytes = doubles + FV_EXPLAIN_METHODS * floats + 2 * ints + (size_t)n;
    char *at = x->memory = fv__alloc(&x->env, x->bytes);
    if (!at) return fv_fail(e, FV_ENOMEM, "explain: out of memory");
    x->top = (double *)(void *)at;
    at += doubles;
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++, at += floats) score[m] = (float *)(void *)at;
    x->ids = (int32_t *)(void *)at;
    at += ints;
    bool typed = fv_family_takes(fv_model_family(x->model), "token_type_ids");
    x->types = typed ? (int32_t *)(void *)at : NULL;
    uint8_t *special = (uint8_t *)at + ints;
    x->now.special = special;
    x->now.n = n;
    bool ok = true;
    if (x->sees) {
        fv__explain_image_tokens(x, special);
    } else {
        memcpy(x->ids, x->enc->ids, ints);
        memcpy(at, x->enc->token_types, ints);
        memcpy(special, x->enc->special, (size_t)n);
        ok = fv__see_axis_label(&x->env, &x->axis, x->tok, x->ids, n);
    }
    x->now.token = (const char *const *)x->axis.text;
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "explain: out of memory");
}

/* The label's name, or the text of the next token. */
static fv_status take_label(fv_explainer *x, fv_err *e)
{
    fv_see_axis one = {0};
    int32_t id = (int32_t)x->label;
    if (!x->next_token) {
        label_name(x, x->label, x->name, sizeof x->name);
    } else {
        if (!fv__see_axis_label(&x->env, &one, x->tok, &id, 1))
            return fv_fail(e, FV_ENOMEM, "explain: out of memory");
        snprintf(x->name, sizeof x->name, "%s", one.text[0]);
        fv__see_axis_free(&x->env, &one);
    }
    x->now.label = x->name;
    return FV_OK;
}

static fv_status take_heads(fv_explainer *x, fv_err *e)
{
    x->head_bytes = (size_t)(x->now.layers * x->now.heads) * sizeof *x->head;
    x->head = fv__alloc(&x->env, x->head_bytes);
    fv_status st = x->head ? fv__explain_heads(x, x->head, e)
                           : fv_fail(e, FV_ENOMEM, "explain: out of memory");
    x->now.head = st ? NULL : x->head;
    return st;
}

/* Spearman's rank correlation of every two methods, over the tokens that are not special: whether
 * explanations agree is part of the explanation. */
static fv_status compare(fv_explainer *x, fv_err *e)
{
    size_t bytes = (size_t)(2 * x->now.n) * sizeof(double);
    double *order = fv__alloc(&x->env, bytes);
    if (!order) return fv_fail(e, FV_ENOMEM, "explain: out of memory");
    for (int a = 0; a < FV_EXPLAIN_METHODS; a++)
        for (int b = 0; b < FV_EXPLAIN_METHODS; b++) {
            const float *p = x->now.score[a], *q = x->now.score[b];
            x->now.agreement[a][b] = p && q
                                         ? fv__explain_rank(p, q, x->now.special, x->now.n, order)
                                         : (double)NAN;
        }
    fv__free(&x->env, order, bytes);
    return FV_OK;
}

/* All methods explain one number, the log-probability of one label. The flow is left out for long
 * texts: it is a maximum flow for each token. */
fv_status fv_explain(fv_explainer *x, const char *text, const char *pair, const fv_explained **out,
                     fv_err *e)
{
    float *score[FV_EXPLAIN_METHODS];
    int64_t asked = x->label;
    *out = NULL;
    drop_text(x);
    int64_t n;
    fv_status st = read_input(x, text, pair, &n, e);
    if (!st) st = take_memory(x, n, score, e);
    bool short_enough = n <= FV__FLOW_LONGEST;
    if (!st) st = fv__explain_log_p(x, x->ids, 1, &x->now.log_p, e);
    if (!st) st = take_label(x, e);
    if (!st) st = fv__explain_occlusion(x, score[FV_EXPLAIN_OCCLUSION], e);
    if (!st)
        st = fv__explain_gradients(x, score[FV_EXPLAIN_GRADIENT], score[FV_EXPLAIN_INTEGRATED], e);
    if (!st)
        st = fv__explain_attention(x, score[FV_EXPLAIN_ATTENTION], score[FV_EXPLAIN_ROLLOUT],
                                   short_enough ? score[FV_EXPLAIN_FLOW] : NULL, e);
    for (int m = 0; !st && m < FV_EXPLAIN_METHODS; m++)
        x->now.score[m] = m == FV_EXPLAIN_FLOW && !short_enough ? NULL : score[m];
    if (!st && x->opt.heads) st = take_heads(x, e);
    if (!st) st = compare(x, e);
    if (!st) st = fv__explain_add(x, e);
    x->label = asked; /* the next text has a likeliest label of its own */
    if (!st) *out = &x->now;
    return st;
}
