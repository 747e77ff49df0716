/* record.c - the record of one forward pass: every attention that ran, by kind and layer, and whose
 * tokens are whose.
 *
 * A context that records keeps queries, keys and log-sum-exps until it is reset, so a view stays
 * good after the pass.  Kinds come from the names that attentions have in the published
 * checkpoints, not from the family: a new family is seen without a line here. */
#include <stdio.h>

#include "see.h"

static const char *const kind_names[] = {"encoder", "decoder", "cross"};

const char *fv_see_kind_name(fv_see_kind k)
{
    return (unsigned)k < FV_SEE_KINDS ? kind_names[k] : "?";
}

static bool names_cross(const char *name) { return !strcmp(fv_attention_kind(name), "cross"); }

fv_see_kind fv__see_kind(const char *name, bool causal)
{
    if (names_cross(name)) return FV_SEE_CROSS;
    if (strstr(name, "decoder")) return FV_SEE_DECODER;
    if (strstr(name, "encoder")) return FV_SEE_ENCODER;
    return causal ? FV_SEE_DECODER : FV_SEE_ENCODER;
}

bool fv_see_takes_pair(const fv_model *m)
{
    const fv_params *p = fv_model_params(m);
    for (int i = 0; i < fv_params_count(p); i++)
        if (names_cross(fv_params_at(p, i)->name)) return true;
    return false;
}

/* ---- the tap ---- */

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
}

static void on_tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    (void)c;
    fv_see *s = user;
    if (strcmp(site, "attention") != 0 || s->err.code) return;
    if (!name) name = "attention";
    add_layer(s, fv__see_kind(name, fv_attn_view_causal(what)), name, what);
}

/* ---- making one ---- */

fv_status fv_see_watch(fv_see **out, fv_ctx *c, int64_t b, fv_err *e)
{
    const fv_env *env = fv_device_env(fv_ctx_device(c));
    *out = NULL;
    if (b < 0) return fv_fail(e, FV_EARG, "sequence %lld of a batch", (long long)b);
    fv_see *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "attention record: out of memory");
    *s = (fv_see){.env = env, .ctx = c, .batch = b};
    fv_ctx_set_tap(c, on_tap, s);
    *out = s;
    return FV_OK;
}

static void free_labels(const fv_see *s, char ***list, int64_t n)
{
    char **l = *list;
    for (int64_t i = 0; l && i < n; i++)
        if (l[i]) fv__free(s->env, l[i], strlen(l[i]) + 1);
    fv__free(s->env, l, (size_t)n * sizeof *l);
    *list = NULL;
}

void fv_see_free(fv_see *s)
{
    if (!s) return;
    const fv_env *env = s->env;
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        fv_see_map *m = &s->map[k];
        free_labels(s, &m->row, m->rows);
        free_labels(s, &m->col, m->cols);
        fv__free(env, m->layer, m->capacity);
    }
    if (s->own)
        fv_ctx_free(s->ctx);
    else
        fv_ctx_set_tap(s->ctx, NULL, NULL);
    fv__free(env, s, sizeof *s);
}

/* ---- labels ---- */

static bool copy_labels(fv_see *s, char ***to, const char *const *from, int64_t n)
{
    free_labels(s, to, n);
    *to = fv__alloc(s->env, (size_t)n * sizeof **to);
    for (int64_t i = 0; *to && i < n; i++)
        if (!((*to)[i] = fv__strdup(s->env, from[i]))) return false;
    return *to != NULL;
}

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
    bool ok = copy_labels(s, &m->row, rows, n_rows) && copy_labels(s, &m->col, cols, n_cols);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "attention record: out of memory");
}

/* What cannot be seen gets a sign that can: line ends, tabs, a token that is nothing but space. */
static char *visible(const fv_see *s, const char *text, size_t n)
{
    fv_buf b = {.env = s->env};
    while (n && text[n - 1] == ' ') n--;
    while (n && *text == ' ') text++, n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            fv__buf_str(&b, "\u21B5");
        else if (text[i] == '\t')
            fv__buf_str(&b, "\u21E5");
        else if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            fv__buf_str(&b, "\u00B7");
        else
            fv__buf_add(&b, text + i, 1);
    }
    if (!n) fv__buf_str(&b, "\u2423");
    char *copy = b.failed ? NULL : fv__strdup(s->env, b.data);
    fv__buf_free(&b);
    return copy;
}

/* What people read of a token: its text alone, without the mark of a space; as it stands in the
 * vocabulary where decoding would hide it (special tokens) or break it (a part of a character). */
static char *token_text(const fv_see *s, const fv_tok *tok, int32_t id)
{
    char number[16], *text = NULL;
    size_t len = 0;
    const char *raw = tok ? fv_tok_token(tok, id) : NULL;
    snprintf(number, sizeof number, "%d", (int)id);
    if (!raw) return fv__strdup(s->env, number);
    if (fv_tok_special(tok, id) || fv_tok_decode(tok, &text, &len, &id, 1, false, NULL))
        return visible(s, raw, strlen(raw));
    bool whole = fv__utf8_check(text, len) == len && !strstr(text, "\xEF\xBF\xBD");
    char *copy = whole ? visible(s, text, len) : visible(s, raw, strlen(raw));
    fv_tok_free_text(tok, text, len);
    return copy;
}

typedef struct labels {
    char **text;
    int64_t n;
} labels;

/* n labels: of the ids, or of first and then the ids. */
static fv_status make_labels(labels *l, const fv_see *s, const fv_tok *tok, const int32_t *first,
                             const int32_t *ids, int64_t n, fv_err *e)
{
    *l = (labels){.text = fv__alloc(s->env, (size_t)n * sizeof *l->text), .n = n};
    bool ok = l->text != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        int32_t id = !first ? ids[i] : i ? ids[i - 1] : *first;
        ok = (l->text[i] = token_text(s, tok, id)) != NULL;
    }
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "attention record: out of memory");
}

/* Where a kind has other rows than there are tokens (patches, prefixes), numbers stay. */
static fv_status put_labels(fv_see *s, fv_see_kind k, const labels *rows, const labels *cols,
                            fv_err *e)
{
    const fv_see_map *m = &s->map[k];
    if (m->rows != rows->n || m->cols != cols->n) return FV_OK;
    return fv_see_label(s, k, (const char *const *)rows->text, rows->n,
                        (const char *const *)cols->text, cols->n, e);
}

/* ---- a pass ---- */

/* The pass and its labels.  A decoder at position i reads token i-1 of the target and says token i:
 * what it says are the rows of a cross-attention, what it reads those of its own. */
static fv_status look(fv_see *s, const fv_model *m, const fv_see_in *in, fv_err *e)
{
    labels source = {0}, says = {0}, reads = {0};
    fv_items out = {0};
    bool pair = fv_see_takes_pair(m);
    fv_status st = fv__see_pass(s->ctx, m, in, &out, e);
    if (!st && s->err.code) st = fv_fail(e, s->err.code, "%s", s->err.text);
    if (!st) st = make_labels(&source, s, in->tok, NULL, in->source, in->n_source, e);
    if (!st && pair) st = make_labels(&says, s, in->tok, NULL, in->target, in->n_target, e);
    if (!st && pair) st = make_labels(&reads, s, in->tok, &in->start, in->target, in->n_target, e);
    if (!st) st = put_labels(s, FV_SEE_ENCODER, &source, &source, e);
    if (!st)
        st = put_labels(s, FV_SEE_DECODER, pair ? &reads : &source, pair ? &reads : &source, e);
    if (!st) st = put_labels(s, FV_SEE_CROSS, &says, &source, e);
    free_labels(s, &source.text, source.n);
    free_labels(s, &says.text, says.n);
    free_labels(s, &reads.text, reads.n);
    return st;
}

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
    st = look(s, m, &in, e);
    if (!st && !s->map[FV_SEE_ENCODER].layers && !s->map[FV_SEE_DECODER].layers)
        st = fv_fail(e, FV_EMISSING, "no attention ran in this model");
    if (!st) return FV_OK;
    fv_see_free(s);
    *out = NULL;
    return st;
}

/* ---- what was seen ---- */

int64_t fv_see_layers(const fv_see *s, fv_see_kind k) { return s->map[k].layers; }
int64_t fv_see_heads(const fv_see *s, fv_see_kind k) { return s->map[k].heads; }
int64_t fv_see_rows(const fv_see *s, fv_see_kind k) { return s->map[k].rows; }
int64_t fv_see_cols(const fv_see *s, fv_see_kind k) { return s->map[k].cols; }

const char *fv_see_row(const fv_see *s, fv_see_kind k, int64_t i)
{
    const fv_see_map *m = &s->map[k];
    return m->row && i >= 0 && i < m->rows ? m->row[i] : NULL;
}

const char *fv_see_col(const fv_see *s, fv_see_kind k, int64_t i)
{
    const fv_see_map *m = &s->map[k];
    return m->col && i >= 0 && i < m->cols ? m->col[i] : NULL;
}

const char *fv_see_layer_name(const fv_see *s, fv_see_kind k, int64_t layer)
{
    const fv_see_map *m = &s->map[k];
    return layer >= 0 && layer < m->layers ? m->layer[layer].name : NULL;
}
