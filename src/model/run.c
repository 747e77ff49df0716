/* run.c - a model on arrays from a file, with everything that comes out written to another.
 *
 * Scripts in any language use a model this way, and others check it: names are those of
 * transformers, in and out.  Maps and hidden states are caught by the tap as they pass, so a model
 * does nothing for them but to let them pass. */
#include <stdarg.h>
#include <stdio.h>

#include "core/core.h"
#include "fovea/model.h"
#include "fovea/ops.h"
#include "fovea/author/family.h"

typedef struct running {
    const fv_model *m;
    fv_ctx *c;
    fv_run_opt opt;
    fv_arena host; /* what comes out, until it is written */
    fv_st_item *items;
    size_t n, capacity;
    const char *path; /* of the input, for messages */
    fv_err *e;
    fv_status st; /* of the tap, which cannot return it */
} running;

/* ---- results ---- */

/* Room for one more; NULL where memory is out. */
static float *add(running *r, fv_shape s, const char *fmt, ...) FV_PRINTF(3, 4);
/* A named array of the output file, of this shape; the caller fills it. */
static float *add(running *r, fv_shape s, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    void *items = r->items;
    char *name = len < (int)sizeof text ? fv__arena_alloc(&r->host, (size_t)len + 1) : NULL;
    float *data = fv__arena_alloc(&r->host, (size_t)fv_shape_len(s) * sizeof(float));
    if (!name || !data ||
        !fv__grow(r->host.env, &items, &r->capacity, (r->n + 1) * sizeof *r->items)) {
        r->st = fv_fail(r->e, FV_ENOMEM, "out of memory for %.200s", text);
        return NULL;
    }
    memcpy(name, text, (size_t)len + 1);
    r->items = items;
    r->items[r->n++] =
        (fv_st_item){.name = name, .dtype = FV_F32, .shape = s, .from = FV_F32, .data = data};
    return data;
}

/* How many "base.N" there are: the number of the next layer's. */
static int count(const running *r, const char *base)
{
    int n = 0;
    size_t len = strlen(base);
    for (size_t i = 0; i < r->n; i++)
        n += !strncmp(r->items[i].name, base, len) && r->items[i].name[len] == '.';
    return n;
}

static fv_status failed(running *r)
{
    return fv_fail(r->e, fv_ctx_err(r->c)->code, "%s: %s", r->path, fv_ctx_err(r->c)->text);
}

static void add_tensor(running *r, const char *name, const fv_tensor *t)
{
    float *to = add(r, t->shape, "%s", name);
    if (to && fv_read(r->c, t, to, fv_len(t))) r->st = failed(r);
}

/* ---- what passes ---- */

/* Which of transformers' tuples an attention belongs to: with one stack there is only one. */
static const char *kind_of(const fv_model *m, const fv_attn_view *v, const char *name)
{
    static const char *const kinds[] = {[FV_ATTN_SELF] = "encoder_attentions",
                                        [FV_ATTN_CAUSAL] = "decoder_attentions",
                                        [FV_ATTN_CROSS] = "cross_attentions"};
    /* two encoders side by side: the first word of an attention's name says whose it is */
    if (fv_model_job(m) == FV_HEAD_CONTRASTIVE)
        return strncmp(name, "text_model.", 11) ? "vision_model_output.attentions"
                                                : "text_model_output.attentions";
    return fv_model_has_cross(m) ? kinds[fv_attn_view_role(v)] : "attentions";
}

/* Exact weights (B,H,Tq,Tk), recomputed from the view one head at a time. */
static void add_map(running *r, const fv_attn_view *v, const char *name)
{
    fv_shape s = fv_attn_view_shape(v);
    const char *kind = kind_of(r->m, v, name ? name : "");
    float *to = add(r, s, "%s.%d", kind, count(r, kind));
    for (int64_t i = 0; to && i < s.d[0] * s.d[1]; i++, to += s.d[2] * s.d[3])
        if (fv_attn_view_weights(r->c, v, i / s.d[1], i % s.d[1], 0, s.d[2], to)) return;
}

/* Called as each layer computes; arrays are read back at once, as the context may use their memory
 * again. */
static void tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    running *r = user;
    (void)c;
    if (r->st || !what) return;
    if (r->opt.attentions && !strcmp(site, "attention")) add_map(r, what, name);
    if (r->opt.hidden_states && !strcmp(site, "hidden")) {
        const fv_tensor *x = what;
        float *to = add(r, x->shape, "%s.%d", name, count(r, name));
        if (to) fv_read(r->c, x, to, fv_len(x));
    }
}

/* ---- inputs ---- */

/* A name that the family does not know is an error that names the nearest. */
static const fv_input *find_input(const running *r, const char *name)
{
    const fv_family *f = fv_model_family(r->m);
    const char *known[FV_MAX_ITEMS + 1] = {NULL};
    int n = 0;
    for (const fv_input *i = f->inputs; i->name; i++) {
        if (!strcmp(i->name, name)) return i;
        if (n < FV_MAX_ITEMS) known[n++] = i->name;
    }
    const char *suggestion = fv__closest(name, known);
    fv_fail(r->e, FV_EARG, "%s: %s is no input of %s%s%s", r->path, name, f->type,
            suggestion ? "; the nearest is " : "", suggestion ? suggestion : "");
    return NULL;
}

static bool is_float(const fv_st_info *t)
{
    return t->dtype_name[0] == 'f' || !strcmp(t->dtype_name, "bf16");
}

/* Positions of spans as transformers takes them: those before the sequence become its first, those
 * beyond it do not count. */
static void clamp_positions(int32_t *at, int64_t n, int64_t T)
{
    for (int64_t i = 0; i < n; i++) {
        if (at[i] < 0) at[i] = 0;
        if (at[i] >= T) at[i] = -100;
    }
}

/* Tokens of a sequence of the file's input_ids; 0: there are none. */
static int64_t sequence_len(const fv_st *file)
{
    fv_st_info ids;
    bool found = !fv_st_find(file, "input_ids", &ids, NULL) && ids.shape.n > 0;
    return found ? ids.shape.d[ids.shape.n - 1] : 0;
}

/* As the family wants it: floats, integers or bytes; labels may be floats (regression) or
 * integers. */
static fv_tensor *upload(running *r, const fv_input *i, const fv_st *file, const fv_st_info *t)
{
    fv_dtype as = i->dtype == FV_F32 || (!strcmp(i->name, "labels") && is_float(t)) ? FV_F32
                                                                                    : i->dtype;
    void *host = fv__arena_alloc(&r->host, (size_t)t->count * sizeof(float));
    if (!t->count) fv_fail(r->e, FV_ESHAPE, "%s: %s is empty", r->path, t->name);
    if (!host) fv_fail(r->e, FV_ENOMEM, "%s: out of memory for %s", r->path, t->name);
    if (!host || !t->count || fv_st_read(file, t, host, as, t->count, r->e)) return NULL;
    if (!strcmp(i->name, "start_positions") || !strcmp(i->name, "end_positions"))
        clamp_positions(host, t->count, sequence_len(file));
    fv_tensor *x = as == FV_F32  ? fv_floats(r->c, host, t->shape)
                   : as == FV_U8 ? fv_bytes(r->c, host, t->shape)
                                 : fv_ints(r->c, host, t->shape);
    if (!x) failed(r);
    return x;
}

/* For a head that tells replaced tokens: labels of padding do not count, as in transformers. */
static fv_status count_unmasked(running *r, const fv_items *in, double *n)
{
    const fv_tensor *mask = fv_items_get(in, "attention_mask");
    if (!mask || fv_model_job(r->m) != FV_HEAD_REPLACED) return FV_OK;
    uint8_t *seen = fv__arena_alloc(&r->host, (size_t)fv_len(mask));
    if (!seen) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->path);
    r->c->dev->backend->download(&r->c->stream, seen, mask->data, (size_t)fv_len(mask));
    for (int64_t i = 0; i < fv_len(mask); i++) *n -= !seen[i];
    return FV_OK;
}

/* Numbers of a spectrogram that are not -100, which is padding. */
static fv_status count_numbers(running *r, const fv_tensor *labels, double *n)
{
    float *host = fv__arena_alloc(&r->host, (size_t)fv_len(labels) * sizeof *host);
    if (!host) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->path);
    if (fv_read(r->c, labels, host, fv_len(labels))) return failed(r);
    for (int64_t i = 0; i < fv_len(labels); i++) *n -= host[i] == -100;
    return FV_OK;
}

/* Labels that a loss is divided by: those that are not -100; of other floats, all.  A causal model
 * predicts each token from those before it, so the first of a row is never predicted. */
static fv_status count_labels(running *r, const fv_items *in, const char *name, double *n)
{
    const fv_tensor *labels = fv_items_get(in, name);
    if (!labels) return FV_OK;
    *n = (double)fv_len(labels);
    if (fv_model_job(r->m) == FV_HEAD_SPEECH) return count_numbers(r, labels, n);
    if (labels->dtype != FV_I32) return FV_OK;
    int32_t *host = fv__arena_alloc(&r->host, (size_t)fv_len(labels) * sizeof *host);
    if (!host) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->path);
    if (fv_read_i32(r->c, labels, host, fv_len(labels))) return failed(r);
    const fv_family *f = fv_model_family(r->m);
    bool shifted = fv_model_job(r->m) == FV_HEAD_CAUSAL_LM;
    int32_t other = f->ignored ? f->ignored(fv_model_self(r->m)) : -100;
    for (int64_t i = 0; i < fv_len(labels); i++)
        *n -= host[i] == -100 || host[i] == other || (shifted && i % fv_cols(labels) == 0);
    if (*n > 0) return FV_OK;
    return fv_fail(r->e, FV_EARG, "%s: %s: none of them counts, so there is no loss", r->path,
                   name);
}

static fv_status read_inputs(running *r, const fv_st *file, fv_items *in)
{
    for (int i = 0; i < fv_st_count(file); i++) {
        fv_st_info t = fv_st_at(file, i);
        const fv_input *input = find_input(r, t.name);
        if (!input) return FV_EARG;
        fv_tensor *x = upload(r, input, file, &t);
        if (!x) return r->e ? r->e->code : FV_EARG;
        fv_items_put(in, input->name, x);
    }
    for (const fv_input *i = fv_model_family(r->m)->inputs; i->name; i++)
        if (i->needed && !fv_items_get(in, i->name))
            return fv_fail(r->e, FV_EARG, "%s: %s is missing", r->path, i->name);
    fv_status st = count_labels(r, in, "labels", &in->n_labels);
    if (!st && in->n_labels > 0) st = count_unmasked(r, in, &in->n_labels);
    if (!st) st = count_labels(r, in, "start_positions", &in->n_labels);
    return st ? st : count_labels(r, in, "end_positions", &in->n_ends);
}

/* ---- the run ---- */

/* The tap is taken off first: a backward pass that recomputes would show its layers again. */
static fv_status add_gradients(running *r, fv_tensor *loss)
{
    fv_params *p = fv_model_params(r->m);
    if (!loss)
        return fv_fail(r->e, FV_EARG, "%s: gradients need a loss, and a loss needs labels",
                       r->path);
    fv_ctx_set_tap(r->c, NULL, NULL);
    fv_params_zero_grad(p);
    if (fv_backward(r->c, loss)) return failed(r);
    for (int i = 0; i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        if (!t->has_grad) continue;
        float *to = add(r, t->shape, "grad.%s", t->name);
        fv_status st = to ? fv_params_get_grad(p, t, to, fv_len(t), r->e) : FV_ENOMEM;
        if (st) return st;
    }
    return FV_OK;
}

static fv_status compute(running *r, const fv_st *file)
{
    fv_items in = {0}, out = {0};
    fv_status st = read_inputs(r, file, &in);
    if (st) return st;
    fv_ctx_set_tap(r->c, tap, r);
    fv_model_forward(r->c, r->m, &in, &out);
    if (r->st) return r->st;
    if (fv_ctx_status(r->c)) return failed(r);
    for (int i = 0; i < out.n && !r->st; i++) add_tensor(r, out.at[i].name, out.at[i].value);
    return !r->st && r->opt.grad ? add_gradients(r, fv_items_get(&out, "loss")) : r->st;
}

fv_status fv_model_run(const fv_model *m, fv_device *d, const char *in, const char *out,
                       fv_run_opt opt, fv_err *e)
{
    fv_err own;
    const fv_env *env = fv_device_env(d);
    running r = {.m = m, .opt = opt, .host = {.env = env}, .path = in, .e = e ? e : &own};
    fv_st *file;
    fv_status st = fv_st_open(&file, env, in, r.e);
    if (st) return st;
    fv_dtype dtype = fv_model_dtype(m);
    st = fv_ctx_new(&r.c, d,
                    (fv_ctx_opt){.dtype = dtype, .threads = opt.threads, .record = opt.grad}, r.e);
    if (!st) st = compute(&r, file);
    if (!st) st = fv_st_save(env, out, r.items, (int)r.n, (fv_st_save_opt){0}, r.e);
    fv_ctx_free(r.c);
    fv__free(env, r.items, r.capacity);
    fv__arena_free(&r.host);
    fv_st_close(file);
    return st;
}
