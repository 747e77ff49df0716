/* page.c - a record as one page to explore: markup, style and program are built in, the weights are
 * put into its middle.
 *
 * Weights are written as 16-bit fractions in base64: a hundredth of the size of decimal text, and
 * finer than any screen. */
#include <stdio.h>

#include "see.h"
#include "see_page.h"

enum { MAX_WEIGHTS = 1 << 23 };

static const char mark[] = "@data@";

typedef struct page {
    fv_out *o;
    fv_see *s;
    fv_buf text;
    unsigned char rest[3]; /* bytes that wait for their base64 group */
    int n_rest;
    float *row;
} page;

static void flush(page *p)
{
    if (p->text.len) fv__out_add(p->o, p->text.data, p->text.len);
    p->text.len = 0;
}

/* ---- base64 ---- */

static void group(page *p)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned v = (unsigned)p->rest[0] << 16 | (unsigned)p->rest[1] << 8 | p->rest[2];
    char out[4] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63]};
    for (int i = p->n_rest + 1; i < 4; i++) out[i] = '=';
    fv__buf_add(&p->text, out, 4);
    memset(p->rest, 0, sizeof p->rest);
    p->n_rest = 0;
}

static void put_byte(page *p, unsigned b)
{
    p->rest[p->n_rest++] = (unsigned char)b;
    if (p->n_rest == 3) group(p);
}

static fv_status put_map(page *p, fv_see_pick pick, fv_err *e)
{
    int64_t rows = fv_see_rows(p->s, pick.kind), cols = fv_see_cols(p->s, pick.kind);
    for (int64_t i = 0; i < rows; i++) {
        fv_status st = fv_see_weights(p->s, pick, i, i + 1, p->row, e);
        if (st) return st;
        for (int64_t j = 0; j < cols; j++) {
            float w = p->row[j];
            unsigned v = w <= 0 ? 0 : w >= 1 ? 65535 : (unsigned)(w * 65535 + 0.5f);
            put_byte(p, v & 255);
            put_byte(p, v >> 8);
        }
        flush(p);
    }
    return FV_OK;
}

static fv_status put_maps(page *p, fv_see_kind k, bool rollout, fv_err *e)
{
    fv_status st = FV_OK;
    int64_t layers = fv_see_layers(p->s, k), heads = rollout ? 1 : fv_see_heads(p->s, k);
    fv__buf_fmt(&p->text, ", \"%s\": \"", rollout ? "rollout" : "weights");
    for (int64_t i = 0; !st && i < layers * heads; i++)
        st = put_map(p,
                     (fv_see_pick){.kind = k,
                                   .layer = i / heads,
                                   .head = rollout ? FV_SEE_ALL : i % heads,
                                   .rollout = rollout},
                     e);
    if (p->n_rest) group(p);
    fv__buf_str(&p->text, "\"");
    return st;
}

/* ---- the data ---- */

static void put_labels(page *p, const char *name, fv_see_kind k, int64_t n,
                       const char *(*get)(const fv_see *, fv_see_kind, int64_t))
{
    fv__buf_fmt(&p->text, ", \"%s\": [", name);
    for (int64_t i = 0; i < n; i++) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)i);
        const char *text = get(p->s, k, i);
        if (i) fv__buf_str(&p->text, ", ");
        fv__see_quote(&p->text, text ? text : number);
    }
    fv__buf_str(&p->text, "]");
}

static fv_status put_kind(page *p, fv_see_kind k, fv_err *e)
{
    int64_t layers = fv_see_layers(p->s, k), cols = fv_see_cols(p->s, k);
    size_t bytes = (size_t)cols * sizeof(float);
    fv_err none;
    p->row = fv__alloc(p->s->env, bytes);
    if (!p->row) return fv_fail(e, FV_ENOMEM, "page: out of memory");
    fv__buf_fmt(&p->text, "\n{\"kind\": \"%s\", \"layers\": %lld, \"heads\": %lld",
                fv_see_kind_name(k), (long long)layers, (long long)fv_see_heads(p->s, k));
    put_labels(p, "names", k, layers, fv_see_layer_name);
    put_labels(p, "rows", k, fv_see_rows(p->s, k), fv_see_row);
    put_labels(p, "cols", k, cols, fv_see_col);
    fv_status st = put_maps(p, k, false, e);
    bool rolls =
        !fv_see_weights(p->s,
                        (fv_see_pick){.kind = k, .layer = 0, .head = FV_SEE_ALL, .rollout = true},
                        0, 1, p->row, &none);
    if (!st && rolls) st = put_maps(p, k, true, e);
    fv__buf_str(&p->text, "}");
    fv__free(p->s->env, p->row, bytes);
    return st;
}

static fv_status put_data(page *p, const fv_see_opt *opt, fv_err *e)
{
    const fv_see_pick *pick = &opt->pick;
    fv_status st = FV_OK;
    bool first = true;
    fv__buf_str(&p->text, "{\"title\": ");
    fv__see_quote(&p->text, opt->title ? opt->title : opt->text ? opt->text : "");
    fv__buf_str(&p->text, ", \"note\": ");
    fv__see_quote(&p->text, opt->note ? opt->note : "");
    fv__buf_fmt(&p->text,
                ", \"begin\": {\"kind\": \"%s\", \"layer\": %lld, \"head\": %lld, \"rollout\": %s, "
                "\"view\": \"%s\"}",
                fv_see_kind_name(pick->kind), (long long)pick->layer, (long long)pick->head,
                pick->rollout ? "true" : "false", opt->view == FV_VIEW_HEAT ? "heat" : "lines");
    fv__buf_str(&p->text, ", \"maps\": [");
    for (int k = 0; !st && k < FV_SEE_KINDS; k++) {
        if (!fv_see_layers(p->s, (fv_see_kind)k)) continue;
        if (!first) fv__buf_str(&p->text, ",");
        first = false;
        st = put_kind(p, (fv_see_kind)k, e);
    }
    fv__buf_str(&p->text, "]}");
    return st;
}

static fv_status check(const fv_see *s, fv_err *e)
{
    double n = 0;
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        const fv_see_map *m = &s->map[k];
        n += (double)m->layers * (double)(m->heads + 1) * (double)m->rows * (double)m->cols;
    }
    if (n <= MAX_WEIGHTS) return FV_OK;
    return fv_fail(e, FV_EARG,
                   "a page holds all layers and heads, here %.0f million weights, and takes at "
                   "most %d million; a picture, "
                   ".json or .csv can show one layer, head or some rows of a long text",
                   n / 1e6, MAX_WEIGHTS / 1000000);
}

fv_status fv__see_html(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e)
{
    const char *all = (const char *)see_page;
    const char *at = memmem(all, sizeof see_page, mark, sizeof mark - 1);
    if (!at) return fv_fail(e, FV_ESTATE, "the page of this build has no place for data");
    size_t head = (size_t)(at - all), tail = sizeof see_page - head - (sizeof mark - 1);
    page p = {.o = o, .s = s, .text = {.env = s->env}};
    fv_status st = check(s, e);
    if (st) return st;
    fv__out_add(o, all, head);
    st = put_data(&p, opt, e);
    flush(&p);
    fv__out_add(o, all + head + sizeof mark - 1, tail);
    if (!st && p.text.failed) st = fv_fail(e, FV_ENOMEM, "page: out of memory");
    fv__buf_free(&p.text);
    return st;
}
