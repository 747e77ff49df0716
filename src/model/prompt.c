/* prompt.c - virtual tokens of a model: their parameters, and passes with them.
 *
 *     prompt tuning (Lester et al. 2021)   embeddings in front of the text: (n,D)
 *     P-tuning (Liu et al. 2021)           the same, as MLP(table), relu between three layers
 *     prefix tuning (Li and Liang 2021)    keys and values in every layer: (n, 2 layers kv), or
 *                                          MLP(table), tanh between two layers
 *
 * Where they stand: in front of the text; of an encoder-decoder, prompts in front of the encoder's
 * and a prefix in front of the decoder's.  A prefix of an encoder stands behind the text, with the
 * positions of tokens in front of it: order means nothing to attention without a mask, and heads
 * that read the first token find it where it was. */
#include "model/prompt.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "core/adapter.h"
#include "core/core.h"
#include "core/params.h"
#include "fovea/author/ops.h"
#include "model/adapter.h"
#include "model/part.h"

bool fv__peft_is_virtual(int type)
{
    return type == FV_PEFT_PROMPT || type == FV_PEFT_P_TUNING || type == FV_PEFT_PREFIX;
}

/* ---- parameters ---- */

/* The value of the first of these keys that the family's configuration has; 0: none. */
static int64_t config_number(const fv__prompt_base *b, const char *const *keys)
{
    char text[64];
    for (; *keys; keys++)
        if (fv_fields_get(b->config, b->family->config, *keys, text, sizeof text) > 0 &&
            strtoll(text, NULL, 10) > 0)
            return strtoll(text, NULL, 10);
    return 0;
}

/* The mean width of what the last products of attentions read, which is that of all their heads:
 * embeddings may be narrower (ELECTRA), and so may the first layer be (USE-Lite).  0: a product
 * for each layer was not found. */
static int64_t attention_width(const fv_params *p, int64_t layers)
{
    int64_t sum = 0, n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const fv_tensor *w = &p->list[i]->tensor;
        if (fv__param_end(w) != FV_ENDS_ATTENTION) continue;
        sum += fv_dim(w, fv__param_linear(w) == FV_LINEAR_IN_OUT ? 0 : 1);
        n++;
    }
    return n && n == layers ? sum / n : 0;
}

/* PEFT's way to find out how wide keys are: heads that share keys have fewer.  Where layers differ,
 * the mean makes the table as wide as all of them together. */
static void measure_prefix(fv_adapter_opt *o, const fv__prompt_base *b, const fv_params *p,
                           int64_t width)
{
    static const char *const layers[] = {"num_decoder_layers", "decoder_layers",
                                         "num_hidden_layers",  "n_layer",
                                         "num_layers",         NULL};
    static const char *const heads[] = {"num_attention_heads", "n_head", "num_heads",
                                        "decoder_attention_heads", NULL};
    static const char *const shared[] = {"num_key_value_heads", NULL};
    static const char *const head[] = {"head_dim", "d_kv", NULL};
    int64_t all = config_number(b, heads), kv = config_number(b, shared),
            wide = config_number(b, head);
    if (!kv) kv = all;
    if (!o->num_layers) o->num_layers = (int)config_number(b, layers);
    int64_t heads_width = attention_width(p, o->num_layers);
    if (!wide && all) wide = (heads_width ? heads_width : width) / all;
    if (!o->num_attention_heads) o->num_attention_heads = (int)kv;
    if (!o->token_dim) o->token_dim = (int)(kv * wide);
}

/* The first table that rows are looked up in: that of the tokens. */
static fv_tensor *token_table(const fv_params *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i]->table && p->list[i]->tensor.shape.n == 2) return &p->list[i]->tensor;
    return NULL;
}

/* Saved with the adapter; the base is not touched. */
static fv_tensor *mark_added(fv_tensor *t)
{
    if (t) fv__param_mark_added(t);
    return t;
}

/* A layer of the network that makes virtual tokens, under PEFT's name. */
static void add_layer(fv__virtual *v, fv_params *p, int64_t in, int64_t out, const char *name)
{
    fv_lin *l = &v->layer[v->layers++];
    fv_lin_init(p, l, in, out, (fv_lin_opt){0}, "prompt_encoder.%s", name);
    mark_added(l->w);
    mark_added(l->b);
    fv__param_mark_linear(l->w, FV_LINEAR_NONE); /* no target of an adapter itself */
}

/* The table and, while it is trained, the network behind it. */
static void declare(fv__virtual *v, fv_params *p, const fv_adapter_opt *o, bool network)
{
    bool prefix = v->type == FV_PEFT_PREFIX;
    int64_t rows = prefix ? v->n : v->n * o->num_transformer_submodules,
            cols = prefix ? (int64_t)2 * o->num_layers * o->token_dim : o->token_dim,
            hidden = o->encoder_hidden_size;
    /* torch.nn.Embedding begins as N(0, 1) */
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = 1};
    int64_t in = prefix && network ? o->token_dim : cols;
    v->table = mark_added(
        fv_param(p, normal, FV_SHAPE(rows, in), "%s",
                 network ? "prompt_encoder.embedding.weight" : FV__PROMPT_EMBEDDINGS));
    if (!network) return;
    add_layer(v, p, in, hidden, prefix ? "transform.0" : "mlp_head.0");
    if (!prefix) add_layer(v, p, hidden, hidden, "mlp_head.2");
    add_layer(v, p, hidden, cols, prefix ? "transform.2" : "mlp_head.4");
}

/* What cannot work with virtual tokens is refused before anything is declared. */
static fv_status check_kind(const fv__virtual *v, const fv_adapter_opt *o, const fv__prompt_base *b,
                            bool train, fv_err *e)
{
    bool encoder = !v->causal && !v->seq2seq;
    if (train && v->type == FV_PEFT_P_TUNING && o->encoder_reparameterization_type != 0)
        return fv_fail(e, FV_EMISSING,
                       "adapter: P-tuning by an LSTM is not trained here; "
                       "encoder_reparameterization_type = MLP is");
    if (!fv_family_takes(b->family, "input_ids"))
        return fv_fail(e, FV_EMISSING, "adapter: %s reads no tokens, so it has no virtual ones",
                       b->type);
    if (b->head->job == FV_HEAD_ANSWER)
        return fv_fail(e, FV_EMISSING, "adapter: virtual tokens with a head of spans (%s)",
                       b->head->name);
    /* these count positions from the padding's id on */
    bool counted = strstr(b->type, "roberta") || !strcmp(b->type, "camembert") ||
                   !strcmp(b->type, "mpnet");
    if (v->type == FV_PEFT_PREFIX && encoder &&
        (counted || !fv_family_takes(b->family, "position_ids")))
        return fv_fail(e, FV_EMISSING, "adapter: a prefix on %s, which takes no position_ids",
                       b->type);
    return FV_OK;
}

fv_status fv__prompt_declare(fv__virtual *v, fv_params *p, fv_adapter_opt *o,
                             const fv__prompt_base *b, bool train, fv_err *e)
{
    fv_tensor *table = token_table(p);
    bool decoder = fv_family_takes(b->family, "decoder_input_ids") && !b->head->encoder_only;
    *v = (fv__virtual){.type = o->peft_type,
                       .n = o->num_virtual_tokens,
                       .seq2seq = decoder,
                       .causal = b->family->step && !b->family->begin};
    fv_status st = check_kind(v, o, b, train, e);
    if (st) return st;
    if (!table) return fv_fail(e, FV_EMISSING, "adapter: %s has no table of tokens", b->type);
    int64_t width = fv_cols(table);
    if (v->type == FV_PEFT_PREFIX) measure_prefix(o, b, p, width);
    if (!o->token_dim) o->token_dim = (int)width;
    if (!o->num_transformer_submodules) o->num_transformer_submodules = decoder ? 2 : 1;
    if (v->type != FV_PEFT_PREFIX && o->token_dim != width)
        return fv_fail(e, FV_ESHAPE, "adapter: token_dim is %d, and %s is %lld wide", o->token_dim,
                       b->type, (long long)width);
    if (v->type == FV_PEFT_PREFIX && (!o->num_layers || !o->num_attention_heads))
        return fv_fail(e, FV_EARG,
                       "adapter: num_layers and num_attention_heads are not known of %s", b->type);
    if (train) fv__adapter_freeze(p, o);
    bool network = v->type == FV_PEFT_P_TUNING || o->prefix_projection;
    if (network && !o->encoder_hidden_size) o->encoder_hidden_size = (int)width;
    declare(v, p, o, network && train);
    return fv_params_status(p, e);
}

/* Prompts that begin as tokens: rows of the table of tokens, repeated where there are fewer than
 * virtual tokens. */
fv_status fv__prompt_begin_as(const fv__virtual *v, fv_params *p, const int32_t *ids, int64_t n,
                              fv_err *e)
{
    const fv_tensor *from = token_table(p);
    int64_t D = fv_cols(from), rows = fv_dim(v->table, 0);
    size_t bytes = (size_t)(rows * D) * sizeof(float), row = (size_t)D * sizeof(float);
    const fv_env *env = &p->env;
    float *all = fv__alloc(env, (size_t)fv_len(from) * sizeof *all), *x = fv__alloc(env, bytes);
    fv_status st = all && x && n > 0 ? fv_params_get(p, from, all, fv_len(from), e)
                                     : fv_fail(e, n > 0 ? FV_ENOMEM : FV_EARG,
                                               "adapter: no token for the prompt to begin as");
    for (int64_t i = 0; !st && i < rows; i++) {
        if (ids[i % n] < 0 || ids[i % n] >= fv_dim(from, 0))
            st = fv_fail(e, FV_EARG, "adapter: the model has no token %d", ids[i % n]);
        else
            memcpy(x + i * D, all + ids[i % n] * D, row);
    }
    if (!st) st = fv_params_set(p, v->table, x, rows * D, e);
    fv__free(env, all, (size_t)fv_len(from) * sizeof *all);
    fv__free(env, x, bytes);
    return st;
}

/* ---- what they are ---- */

/* The table, or what the network makes of it. */
static fv_tensor *compute(fv_ctx *c, const fv__virtual *v)
{
    fv_act act = v->type == FV_PEFT_PREFIX ? FV_TANH : FV_RELU;
    fv_tensor *x = v->table;
    for (int i = 0; i < v->layers; i++)
        x = fv_lin_act(c, &v->layer[i], x, i < v->layers - 1 ? act : FV_ACT_NONE);
    return x;
}

/* What comes out of the network, on the host; PEFT's file holds that and no network. */
fv_status fv__prompt_read(const fv__virtual *v, fv_device *d, float **out, int64_t *rows,
                          int64_t *cols, fv_err *e)
{
    fv_ctx *c = NULL;
    *out = NULL;
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = v->table->dtype}, e);
    fv_tensor *x = st ? NULL : compute(c, v);
    *rows = fv_dim(x, 0);
    *cols = fv_cols(x);
    if (!st) {
        *out = fv__alloc(fv_device_env(d), (size_t)fv_len(x) * sizeof(float) + 1);
        if (!*out)
            st = fv_fail(e, FV_ENOMEM, "adapter: out of memory");
        else if (fv_read(c, x, *out, fv_len(x)))
            st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    }
    fv_ctx_free(c);
    return st;
}

/* Virtual tokens of one step, in the context: embeddings put them before the tokens' rows,
 * attention puts a prefix before its keys. */
static fv__prompt *begin(fv_ctx *c, const fv__virtual *v)
{
    fv__prompt *p = fv__step_memory(c, sizeof *p);
    if (!p) return NULL;
    *p = (fv__prompt){.n = v->n};
    fv_tensor *x = compute(c, v);
    if (v->type == FV_PEFT_PREFIX) {
        p->prefix = x;
        p->causal_only = v->seq2seq;
        p->behind = !v->causal && !v->seq2seq;
    } else {
        p->encoder = v->seq2seq;
        p->rows = v->n < fv_dim(x, 0) ? fv_slice(c, x, 0, 0, v->n) : x;
    }
    c->prompt = p;
    return p;
}

/* ---- longer inputs ---- */

/* (B,T) -> (B,n+T), in front or behind; cut: so many of its own first ones are replaced, too. */
static fv_tensor *longer(fv_ctx *c, const fv_tensor *x, int64_t n, bool behind, int32_t value,
                         int64_t cut)
{
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1);
    size_t item = fv_dtype_size(x->dtype);
    if (x->shape.n != 2 || T < cut)
        return fv_raise(c, FV_EMISSING, "virtual tokens: an input is %s, expected (B,T)",
                        fv_desc(x).s);
    int32_t *fill = fv__step_memory(c, (size_t)(n + cut) * sizeof *fill);
    if (!fill) return NULL;
    uint8_t *bytes = (uint8_t *)fill;
    for (int64_t i = 0; i < n + cut; i++) {
        if (x->dtype == FV_U8)
            bytes[i] = (uint8_t)value;
        else
            fill[i] = value;
    }
    fv_tensor *y = fv_new(c, x->dtype, FV_SHAPE(B, n + T)),
              *more = x->dtype == FV_U8 ? fv_bytes(c, bytes, FV_SHAPE(n + cut))
                                        : fv_ints(c, fill, FV_SHAPE(n + cut));
    if (!y || !more) return NULL;
    fv_stream *s = fv_ctx_stream(c);
    for (int64_t b = 0; b < B; b++) {
        char *row = (char *)y->data + (size_t)(b * (n + T)) * item;
        const char *old = (const char *)x->data + (size_t)(b * T + cut) * item;
        size_t own = (size_t)(T - cut) * item, extra = (size_t)(n + cut) * item;
        c->dev->backend->move(s, behind ? row + own : row, more->data, extra);
        c->dev->backend->move(s, behind ? row : row + extra, old, own);
    }
    return y;
}

/* Positions of a prefix behind the text: those in front of it. */
static fv_tensor *positions(fv_ctx *c, int64_t B, int64_t T, int64_t n)
{
    int32_t *at = fv__step_memory(c, (size_t)(B * (n + T)) * sizeof *at);
    for (int64_t i = 0; at && i < B * (n + T); i++) {
        int64_t t = i % (n + T);
        at[i] = (int32_t)(t < T ? n + t : t - T);
    }
    return at ? fv_ints(c, at, FV_SHAPE(B, n + T)) : NULL;
}

/* An input that becomes longer, and what stands there for virtual tokens. */
typedef struct change {
    const char *name;
    int32_t value; /* of the virtual tokens */
} change;

/* Items belong to the caller; only this copy of the list is changed. */
static void replace(fv_items *in, const char *name, fv_tensor *x)
{
    for (int i = 0; i < in->n; i++)
        if (!strcmp(in->at[i].name, name)) in->at[i].value = x;
}

/* Inputs that are given: ids, masks and types, each with its own filling. */
static void lengthen(fv_ctx *c, const fv__prompt *p, fv_items *in, const change *of)
{
    for (; of->name; of++) {
        const fv_tensor *x = fv_items_get(in, of->name);
        if (x) replace(in, of->name, longer(c, x, p->n, p->behind, of->value, 0));
    }
}

static const change of_text[] = {{"input_ids", 0},
                                 {"token_type_ids", 0},
                                 {"attention_mask", 1},
                                 {NULL, 0}};
static const change of_decoder[] = {{"decoder_input_ids", 0},
                                    {"decoder_attention_mask", 1},
                                    {NULL, 0}};

/* Labels of tokens; those of whole texts stay as they are.  What follows the last virtual token
 * counts in PEFT and not here: batches count labels from the second token on. */
static void lengthen_labels(fv_ctx *c, const fv__prompt *p, fv_items *in, int64_t T, bool shifted)
{
    const fv_tensor *x = fv_items_get(in, "labels");
    if (x && x->dtype == FV_I32 && x->shape.n == 2 && fv_dim(x, 1) == T)
        replace(in, "labels", longer(c, x, p->n, p->behind, -100, shifted));
}

void fv__prompt_enter(fv_ctx *c, const fv__virtual *v, const fv_family *f, fv_head_job job,
                      fv_items *in)
{
    if (!v->n) return;
    if (fv_items_get(in, "position_ids")) {
        fv_raise(c, FV_EMISSING, "virtual tokens: position_ids cannot be given with them");
        return;
    }
    if (c->recompute && c->record) {
        fv_raise(c, FV_EMISSING, "virtual tokens: train.recompute cannot be used with them");
        return;
    }
    bool decoder = v->seq2seq && v->type == FV_PEFT_PREFIX;
    const fv_tensor *ids = fv_items_get(in, decoder ? "decoder_input_ids" : "input_ids");
    if (!ids) {
        fv_raise(c, FV_EARG, "%s: a prefix needs decoder_input_ids", f->type);
        return;
    }
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1);
    fv__prompt *p = begin(c, v);
    if (!p) return;
    lengthen(c, p, in, decoder ? of_decoder : of_text);
    if (decoder || !v->seq2seq) lengthen_labels(c, p, in, T, job == FV_HEAD_CAUSAL_LM && !decoder);
    if (p->behind) fv_items_put(in, "position_ids", positions(c, B, T, p->n));
    if (p->rows) p->ids = fv_items_get(in, "input_ids");
}

/* (B,n+T,..) -> (B,T,..), where virtual tokens have results of their own. */
void fv__prompt_leave(fv_ctx *c, fv_items *out)
{
    static const char *const by_token[] = {"logits", "last_hidden_state", NULL};
    const fv__prompt *p = c->prompt;
    c->prompt = NULL;
    if (!p || fv__failed(c)) return;
    for (int i = 0; i < out->n; i++) {
        fv_tensor *x = out->at[i].value;
        const char *const *name = by_token;
        while (*name && strcmp(*name, out->at[i].name)) name++;
        if (!*name || !x || x->shape.n != 3 || fv_dim(x, 1) <= p->n || p->encoder) continue;
        int64_t T = fv_dim(x, 1) - p->n;
        out->at[i].value = fv_slice(c, x, 1, p->behind ? 0 : p->n, p->behind ? T : p->n + T);
    }
}

/* ---- sessions ---- */

void fv__prompt_encoder_inputs(fv_ctx *c, const fv__virtual *v, fv_items *in)
{
    if (!v->n || !v->seq2seq || v->type == FV_PEFT_PREFIX) return;
    fv__prompt *p = begin(c, v);
    if (!p) return;
    lengthen(c, p, in, of_text);
    p->ids = fv_items_get(in, "input_ids");
}

int64_t fv__prompt_length(const fv__virtual *v)
{
    bool encoder = v->seq2seq && v->type != FV_PEFT_PREFIX;
    return encoder ? 0 : v->n;
}

fv_tensor *fv__prompt_step(fv_ctx *c, const fv__virtual *v, int64_t rows)
{
    int32_t *ids = fv__step_memory(c, (size_t)(rows * v->n) * sizeof *ids);
    fv__prompt *p = ids ? begin(c, v) : NULL;
    if (!p) return NULL;
    for (int64_t i = 0; i < rows * v->n; i++) ids[i] = 0;
    fv_tensor *x = fv_ints(c, ids, FV_SHAPE(rows, v->n));
    if (p->rows) p->ids = x;
    return x;
}
