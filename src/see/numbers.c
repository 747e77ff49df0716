/* numbers.c - a capture as JSON and as CSV.
 *
 * Rows are computed, formatted and written one at a time, so a file of any size needs the memory of
 * one row.  "%.9g" has digits enough to read the same f32 back. */
#include <stdio.h>

#include "fovea/author/see.h"
#include "see.h"

/* Headings come from users and may be any bytes; JSON and SVG must be UTF-8. */
int fv__see_char(char out[4], const char *s)
{
    uint32_t cp;
    int n = fv__utf8_get(&cp, s, strnlen(s, 4));
    fv__utf8_put(out, n ? cp : 0xFFFD);
    return n ? n : 1;
}

void fv__see_quote(fv_buf *b, const char *text)
{
    fv__buf_str(b, "\"");
    while (*text) {
        char c[5] = {0};
        text += fv__see_char(c, text);
        if (*c == '"' || *c == '\\')
            fv__buf_fmt(b, "\\%c", *c);
        else if ((unsigned char)*c < 0x20 || *c == '<')
            fv__buf_fmt(b, "\\u%04x", (unsigned char)*c);
        else
            fv__buf_str(b, c);
    }
    fv__buf_str(b, "\"");
}

/* One file being written, and the kind of attention it is at. */
typedef struct job {
    fv_out *o;
    fv_see *s;
    fv_see_kind kind;
    int64_t from, to;
    bool csv;
    fv_buf text; /* what is being formatted */
    float *row;
} job;

/* Hands what was formatted to the file. */
static void flush(job *j)
{
    if (j->text.len) fv__out_add(j->o, j->text.data, j->text.len);
    j->text.len = 0;
}

/* RFC 4180: quoted, quotes doubled. */
static void csv_field(fv_buf *b, const char *text)
{
    fv__buf_str(b, "\"");
    for (; *text; text++) fv__buf_str(b, *text == '"' ? "\"\"" : (char[]){*text, 0});
    fv__buf_str(b, "\"");
}

/* A label, or its number where there is none. */
static void label(job *j, const char *text, int64_t i)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)i);
    if (j->csv)
        csv_field(&j->text, text ? text : number);
    else
        fv__see_quote(&j->text, text ? text : number);
}

/* A layer or head for a file: its number, or what stands for all of them. */
static void number(char out[24], int64_t n, const fv_see_pick *p)
{
    const char *all = p->flow ? "flow" : p->rollout ? "rollout" : "mean";
    if (n == FV_SEE_ALL)
        snprintf(out, 24, "%s", all);
    else
        snprintf(out, 24, "%lld", (long long)n);
}

/* Followed through the layers: then they come together. */
static bool through(const fv_see_pick *p) { return p->rollout || p->flow; }

/* One line a weight: long, but every tool that reads CSV can group and pivot it. */
static void csv_row(job *j, fv_see_pick p, int64_t i)
{
    char layer[24], head[24];
    int64_t cols = fv_see_shape_of(j->s, j->kind).cols;
    number(layer, p.layer, &p);
    number(head, p.head, &p);
    for (int64_t c = 0; c < cols; c++) {
        fv__buf_fmt(&j->text, "%s,%s,%s,%lld,%lld,", fv_see_kind_name(j->kind), layer, head,
                    (long long)i, (long long)c);
        label(j, fv_see_row(j->s, j->kind, i), i);
        fv__buf_str(&j->text, ",");
        label(j, fv_see_col(j->s, j->kind, c), c);
        fv__buf_fmt(&j->text, ",%.9g\n", (double)j->row[c]);
    }
}

/* One row of "weights": an array of cols numbers. */
static void json_row(job *j, int64_t i)
{
    int64_t cols = fv_see_shape_of(j->s, j->kind).cols;
    fv__buf_str(&j->text, i == j->from ? "[" : ", [");
    for (int64_t c = 0; c < cols; c++)
        fv__buf_fmt(&j->text, "%s%.9g", c ? ", " : "", (double)j->row[c]);
    fv__buf_str(&j->text, "]");
}

/* The rows of one map. */
static fv_status write_map(job *j, fv_see_pick p, fv_err *e)
{
    for (int64_t i = j->from; i < j->to; i++) {
        fv_status st = fv_see_weights(j->s, p, i, i + 1, j->row, e);
        if (st) return st;
        if (j->csv)
            csv_row(j, p, i);
        else
            json_row(j, i);
        flush(j);
    }
    return FV_OK;
}

/* One element of "heads"; first: no comma before it. */
static fv_status write_head(job *j, fv_see_pick p, bool first, fv_err *e)
{
    char head[24];
    number(head, p.head, &p);
    const char *quote = p.head == FV_SEE_ALL ? "\"" : "";
    if (!j->csv)
        fv__buf_fmt(&j->text, "%s\n        {\"head\": %s%s%s, \"weights\": [", first ? "" : ",",
                    quote, head, quote);
    fv_status st = write_map(j, p, e);
    if (!j->csv) fv__buf_str(&j->text, "]}");
    return st;
}

/* One element of "layers", with all heads or the one that p names. */
static fv_status write_layer(job *j, fv_see_pick p, bool every_head, bool first, fv_err *e)
{
    char layer[24];
    number(layer, p.layer, &p);
    const char *quote = p.layer == FV_SEE_ALL ? "\"" : "",
               *name = fv_see_layer_name(j->s, j->kind, p.layer);
    if (!j->csv) {
        fv__buf_fmt(&j->text, "%s\n      {\"layer\": %s%s%s, ", first ? "" : ",", quote, layer,
                    quote);
        if (name && !through(&p)) {
            fv__buf_str(&j->text, "\"name\": ");
            fv__see_quote(&j->text, name);
            fv__buf_str(&j->text, ", ");
        }
        fv__buf_str(&j->text, "\"heads\": [");
    }
    fv_status st = FV_OK;
    int64_t heads = every_head ? fv_see_shape_of(j->s, j->kind).heads : 1;
    for (int64_t h = 0; !st && h < heads; h++) {
        if (every_head) p.head = h;
        st = write_head(j, p, h == 0, e);
    }
    if (!j->csv) fv__buf_str(&j->text, "]}");
    return st;
}

/* "rows" or "columns": the tokens, or their positions. */
static void write_labels(job *j, const char *name,
                         const char *(*get)(const fv_see *, fv_see_kind, int64_t), int64_t from,
                         int64_t to)
{
    fv__buf_fmt(&j->text, ",\n     \"%s\": [", name);
    for (int64_t i = from; i < to; i++) {
        if (i > from) fv__buf_str(&j->text, ", ");
        label(j, get(j->s, j->kind, i), i);
    }
    fv__buf_str(&j->text, "]");
}

/* All that is asked of one kind.  A layer or head that is not named means each of them; of a
 * rollout or flow, all together. */
static fv_status write_kind(job *j, fv_see_pick p, bool first, fv_err *e)
{
    int64_t cols = fv_see_shape_of(j->s, j->kind).cols;
    size_t bytes = (size_t)cols * sizeof(float);
    bool every_layer = p.layer == FV_SEE_ALL && !through(&p);
    j->row = fv__alloc(j->s->env, bytes);
    if (!j->row) return fv_fail(e, FV_ENOMEM, "attention weights: out of memory");
    if (!j->csv) {
        fv__buf_fmt(&j->text, "%s\n    {\"kind\": \"%s\", \"rollout\": %s, %s\"first_row\": %lld",
                    first ? "" : ",", fv_see_kind_name(j->kind), p.rollout ? "true" : "false",
                    p.flow ? "\"flow\": true, " : "", (long long)j->from);
        write_labels(j, "rows", fv_see_row, j->from, j->to);
        write_labels(j, "columns", fv_see_col, 0, cols);
        fv__buf_str(&j->text, ",\n     \"layers\": [");
    }
    fv_status st = FV_OK;
    int64_t layers = every_layer ? fv_see_shape_of(j->s, j->kind).layers : 1;
    bool every_head = p.head == FV_SEE_ALL && !through(&p);
    for (int64_t l = 0; !st && l < layers; l++) {
        if (every_layer) p.layer = l;
        st = write_layer(j, p, every_head, l == 0, e);
    }
    if (!j->csv) fv__buf_str(&j->text, "]}");
    fv__free(j->s->env, j->row, bytes);
    return st;
}

/* All kinds, or the one that opt names. */
static fv_status write_all(job *j, const fv_see_opt *opt, fv_err *e)
{
    bool first = true;
    fv_status st = FV_OK;
    for (int k = 0; !st && k < FV_SEE_KINDS; k++) {
        fv_see_pick p = opt->pick;
        if (!fv_see_shape_of(j->s, (fv_see_kind)k).layers ||
            (!opt->every_kind && p.kind != (fv_see_kind)k))
            continue;
        p.kind = j->kind = (fv_see_kind)k;
        /* kinds have rows of their own: where one has fewer, those it has */
        int64_t rows = fv_see_shape_of(j->s, j->kind).rows;
        j->from = opt->to ? opt->from : 0;
        j->to = opt->to && opt->to < rows ? opt->to : rows;
        if (j->from >= j->to) continue;
        st = fv__see_check(j->s, p, e);
        if (!st) st = write_kind(j, p, first, e);
        first = false;
    }
    return st;
}

/* {"attentions": [kind..]}, as docs/seeing.md describes it. */
fv_status fv__see_json(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e)
{
    job j = {.o = o, .s = s, .text = {.env = s->env}};
    fv__buf_str(&j.text, "{\"attentions\": [");
    fv_status st = write_all(&j, opt, e);
    fv__buf_str(&j.text, "]}\n");
    flush(&j);
    if (!st && j.text.failed) st = fv_fail(e, FV_ENOMEM, "attention weights: out of memory");
    fv__buf_free(&j.text);
    return st;
}

/* The weights as a table; the header names the columns. */
fv_status fv__see_csv(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e)
{
    job j = {.o = o, .s = s, .csv = true, .text = {.env = s->env}};
    fv__buf_str(&j.text, "kind,layer,head,row,column,row_token,column_token,weight\n");
    fv_status st = write_all(&j, opt, e);
    flush(&j);
    if (!st && j.text.failed) st = fv_fail(e, FV_ENOMEM, "attention weights: out of memory");
    fv__buf_free(&j.text);
    return st;
}
