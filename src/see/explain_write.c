/* explain_write.c - an explanation as text for a terminal, as JSON and as a page.
 *
 * The page is HTML with its style inside and no script: it can be mailed, printed and kept with an
 * audit.  Colours are of each method's own scale (its greatest magnitude), since a share of
 * attention and a difference of log-probabilities have no unit in common; numbers stand in the
 * table below them. */
#include <math.h>
#include <stdio.h>

#include "explain.h"

/* One line for each method, in the order of the enum: what a reader of the page needs to know of
 * it. */
static const char *const about[] = {"weights of the last layer, mean of its heads",
                                    "layers multiplied, from the prediction down",
                                    "greatest flow through the layers",
                                    "gradient x input of the first layer",
                                    "integrated gradients from blanks",
                                    "log-probability lost when the token is blanked"};

static bool has(const fv_explainer *x, int m) { return x->now.score[m]; }

/* A method's name; one behind the last is the random order. */
static const char *name_of(int m)
{
    return m == FV_EXPLAIN_METHODS ? "random" : fv_explain_name((fv_explain_method)m);
}

/* ---- text ---- */

static void text_scores(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    fv__buf_fmt(b, "%s: log p %.4f (p %.4f), all tokens blanked %.4f\n\n%-16s", n->label, n->log_p,
                exp(n->log_p), n->log_p_blank, "token");
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
        if (has(x, m)) fv__buf_fmt(b, " %10s", name_of(m));
    for (int64_t t = 0; t < n->n; t++) {
        fv__buf_fmt(b, "\n%-16s", n->token[t]);
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
            if (has(x, m)) fv__buf_fmt(b, " %10.4f", (double)n->score[m][t]);
    }
    fv__buf_str(b, "\n");
}

static void text_agreement(const fv_explainer *x, fv_buf *b, const char *title,
                           const double (*r)[FV_EXPLAIN_METHODS])
{
    fv__buf_fmt(b, "\n%s\n%-16s", title, "");
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
        if (has(x, m)) fv__buf_fmt(b, " %10s", name_of(m));
    for (int i = 0; i < FV_EXPLAIN_METHODS; i++) {
        if (!has(x, i)) continue;
        fv__buf_fmt(b, "\n%-16s", name_of(i));
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
            if (has(x, m)) fv__buf_fmt(b, " %10.3f", r[i][m]);
    }
    fv__buf_str(b, "\n");
}

static void text_heads(const fv_explained *n, fv_buf *b)
{
    if (!n->head) return;
    fv__buf_str(b, "\nlog p lost when a head is silenced\n");
    for (int64_t l = 0; l < n->layers; l++) {
        fv__buf_fmt(b, "layer %-10lld", (long long)l);
        for (int64_t h = 0; h < n->heads; h++)
            fv__buf_fmt(b, " %10.4f", (double)n->head[l * n->heads + h]);
        fv__buf_str(b, "\n");
    }
}

static void text_curves(const fv_explainer *x, fv_buf *b)
{
    const fv_explain_set *s = &x->set;
    if (!x->opt.curves) return;
    fv__buf_fmt(b, "\n%-16s %10s %10s   mean p of the prediction, %lld text%s\n", "order",
                "deletion", "insertion", (long long)s->texts, s->texts == 1 ? "" : "s");
    for (int m = 0; m <= FV_EXPLAIN_METHODS; m++)
        fv__buf_fmt(b, "%-16s %10.4f %10.4f\n", name_of(m), s->deletion_area[m],
                    s->insertion_area[m]);
    fv__buf_str(b, "less is better for deletion, more for insertion\n");
}

static void put_text(const fv_explainer *x, fv_buf *b)
{
    const fv_explain_set *s = &x->set;
    if (s->texts == 1) {
        text_scores(x, b);
        text_agreement(x, b, "Spearman's rank correlation of magnitudes", x->now.agreement);
        text_heads(&x->now, b);
    } else {
        text_agreement(x, b, "Spearman's rank correlation of magnitudes, mean over texts",
                       s->agreement);
    }
    text_curves(x, b);
}

/* ---- JSON ---- */

/* null where it is not finite. */
static void number(fv_buf *b, const char *before, double v)
{
    fv__buf_str(b, before);
    if (isfinite(v))
        fv__buf_fmt(b, "%.9g", v);
    else
        fv__buf_str(b, "null");
}

static void json_matrix(fv_buf *b, const char *key, const double (*r)[FV_EXPLAIN_METHODS])
{
    fv__buf_fmt(b, ",\n  \"%s\": {", key);
    for (int i = 0; i < FV_EXPLAIN_METHODS; i++) {
        fv__buf_fmt(b, "%s\n    \"%s\": {", i ? "," : "", name_of(i));
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++) {
            fv__buf_fmt(b, "%s\"%s\": ", m ? ", " : "", name_of(m));
            number(b, "", r[i][m]);
        }
        fv__buf_str(b, "}");
    }
    fv__buf_str(b, "}");
}

static void json_tokens(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    fv__buf_fmt(b, "{\n  \"%s\": ", x->image ? "file" : "text");
    fv__see_quote(b, x->text);
    fv__buf_str(b, ",\n  \"label\": ");
    fv__see_quote(b, n->label);
    number(b, ",\n  \"log_p\": ", n->log_p);
    number(b, ",\n  \"log_p_blank\": ", n->log_p_blank);
    fv__buf_str(b, ",\n  \"tokens\": [");
    for (int64_t t = 0; t < n->n; t++) {
        fv__buf_str(b, t ? ", " : "");
        fv__see_quote(b, n->token[t]);
    }
    fv__buf_str(b, "],\n  \"special\": [");
    for (int64_t t = 0; t < n->n; t++) fv__buf_fmt(b, "%s%d", t ? ", " : "", n->special[t]);
    fv__buf_str(b, "],\n  \"scores\": {");
    for (int m = 0, first = 1; m < FV_EXPLAIN_METHODS; m++) {
        if (!has(x, m)) continue;
        fv__buf_fmt(b, "%s\n    \"%s\": [", first ? "" : ",", name_of(m));
        for (int64_t t = 0; t < n->n; t++) number(b, t ? ", " : "", (double)n->score[m][t]);
        fv__buf_str(b, "]");
        first = 0;
    }
    fv__buf_str(b, "}");
}

static void json_curve(fv_buf *b, const char *key, const double *y, double area)
{
    fv__buf_fmt(b, "\"%s\": [", key);
    for (int i = 0; i < FV_EXPLAIN_POINTS; i++) number(b, i ? ", " : "", y[i]);
    fv__buf_fmt(b, "], \"%s_area\": ", key);
    number(b, "", area);
}

static void put_json(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    const fv_explain_set *s = &x->set;
    json_tokens(x, b);
    if (n->head) {
        fv__buf_str(b, ",\n  \"heads\": [");
        for (int64_t l = 0; l < n->layers; l++) {
            fv__buf_str(b, l ? ",\n    [" : "\n    [");
            for (int64_t h = 0; h < n->heads; h++)
                number(b, h ? ", " : "", (double)n->head[l * n->heads + h]);
            fv__buf_str(b, "]");
        }
        fv__buf_str(b, "]");
    }
    json_matrix(b, "agreement", n->agreement);
    fv__buf_fmt(b, ",\n  \"texts\": %lld", (long long)s->texts);
    json_matrix(b, "mean_agreement", s->agreement);
    if (x->opt.curves) {
        fv__buf_str(b, ",\n  \"curves\": {");
        for (int m = 0; m <= FV_EXPLAIN_METHODS; m++) {
            fv__buf_fmt(b, "%s\n    \"%s\": {", m ? "," : "", name_of(m));
            json_curve(b, "deletion", s->deletion[m], s->deletion_area[m]);
            fv__buf_str(b, ", ");
            json_curve(b, "insertion", s->insertion[m], s->insertion_area[m]);
            fv__buf_str(b, "}");
        }
        fv__buf_str(b, "}");
    }
    fv__buf_str(b, "\n}\n");
}

/* ---- the page ---- */

static const char page_head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>fovea "
    "explain</title>\n"
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;"
    "color:#1c2430}h1{font-size:1.3em}h2{font-size:1.05em;margin-top:2em}"
    ".m{margin:.5em 0}.m b{display:inline-block;width:7.5em}.m i{color:#68707c;font-size:.85em;"
    "margin-left:.6em}.t{display:inline-block;padding:.05em .3em;margin:.1em .05em;"
    "border-radius:.25em;white-space:pre}.s{color:#414953;font-style:italic}"
    ".p{display:inline-block;width:210px;margin-right:1.5em;vertical-align:top}.p i{display:block;"
    "margin:0;min-height:3em}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #e4e7eb}"
    "th:first-child,td:first-child{text-align:left}svg{margin-right:2em}</style></head><body>\n";

/* Tokens come from a text that anybody may have written: nothing of them is taken for markup. */
static void html_text(fv_buf *b, const char *s)
{
    while (*s) {
        char c[5] = {0};
        s += fv__see_char(c, s);
        if (*c == '<')
            fv__buf_str(b, "&lt;");
        else if (*c == '&')
            fv__buf_str(b, "&amp;");
        else
            fv__buf_str(b, c);
    }
}

/* Orange speaks for the prediction, blue against it. */
static void html_cell(fv_buf *b, const char *open, double v, double most)
{
    fv__buf_fmt(b, "%s style=\"background:rgba(%s,%.3f)\">", open,
                v < 0 ? "66,133,244" : "245,130,32", most > 0 ? 0.85 * fabs(v) / most : 0);
}

/* The greatest magnitude where skip, which may be NULL, is 0. */
static double most_of(const float *x, const uint8_t *skip, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if ((!skip || !skip[i]) && fabs((double)x[i]) > most) most = fabs((double)x[i]);
    return most;
}

/* The text once a method, its tokens in the method's colours. */
static void html_tokens(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    bool square = x->image && x->image->seconds <= 0; /* these stand side by side */
    if (x->image) fv__explain_put_image(x, b);
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++) {
        if (!has(x, m)) continue;
        /* special tokens take much attention and would pale the others */
        double most = most_of(n->score[m], n->special, n->n);
        fv__buf_fmt(b, "<div class=\"m%s\"><b>%s</b>", square ? " p" : "", name_of(m));
        if (x->image) fv__explain_put_patches(x, b, n->score[m], most);
        for (int64_t t = 0; !x->image && t < n->n; t++) {
            double v = (double)n->score[m][t];
            html_cell(b, n->special[t] ? "<span class=\"t s\"" : "<span class=t",
                      fabs(v) < most ? v : copysign(most, v), most);
            html_text(b, n->token[t]);
            fv__buf_str(b, "</span>");
        }
        fv__buf_fmt(b, "<i>%s</i></div>\n", about[m]);
    }
}

static void html_table(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    fv__buf_str(b, "<h2>Scores</h2><table><tr><th>token</th>");
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
        if (has(x, m)) fv__buf_fmt(b, "<th>%s</th>", name_of(m));
    for (int64_t t = 0; t < n->n; t++) {
        fv__buf_str(b, "</tr>\n<tr><td>");
        html_text(b, n->token[t]);
        fv__buf_str(b, "</td>");
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
            if (has(x, m)) fv__buf_fmt(b, "<td>%.4f</td>", (double)n->score[m][t]);
    }
    fv__buf_str(b, "</tr></table>\n");
}

static void html_agreement(const fv_explainer *x, fv_buf *b, const char *title,
                           const double (*r)[FV_EXPLAIN_METHODS])
{
    fv__buf_fmt(b, "<h2>%s</h2><table><tr><th></th>", title);
    for (int m = 0; m < FV_EXPLAIN_METHODS; m++)
        if (has(x, m)) fv__buf_fmt(b, "<th>%s</th>", name_of(m));
    for (int i = 0; i < FV_EXPLAIN_METHODS; i++) {
        if (!has(x, i)) continue;
        fv__buf_fmt(b, "</tr>\n<tr><td>%s</td>", name_of(i));
        for (int m = 0; m < FV_EXPLAIN_METHODS; m++) {
            if (!has(x, m)) continue;
            html_cell(b, "<td", isfinite(r[i][m]) ? r[i][m] : 0, 2);
            fv__buf_fmt(b, isfinite(r[i][m]) ? "%.3f</td>" : "-</td>", r[i][m]);
        }
    }
    fv__buf_str(b, "</tr></table>\n");
}

static void html_heads(const fv_explained *n, fv_buf *b)
{
    if (!n->head) return;
    double most = most_of(n->head, NULL, n->layers * n->heads);
    fv__buf_str(b, "<h2>Log-probability lost when a head is silenced</h2><table><tr><th></th>");
    for (int64_t h = 0; h < n->heads; h++) fv__buf_fmt(b, "<th>head %lld</th>", (long long)h);
    for (int64_t l = 0; l < n->layers; l++) {
        fv__buf_fmt(b, "</tr>\n<tr><td>layer %lld</td>", (long long)l);
        for (int64_t h = 0; h < n->heads; h++) {
            double v = (double)n->head[l * n->heads + h];
            html_cell(b, "<td", v, most);
            fv__buf_fmt(b, "%.4f</td>", v);
        }
    }
    fv__buf_str(b, "</tr></table>\n");
}

/* Curves of all orders in one drawing, with the areas as its legend. */
static void html_curve(fv_buf *b, const char *title, const double (*y)[FV_EXPLAIN_POINTS],
                       const double *area)
{
    static const char *const colour[] = {"#9aa1ac", "#f58220", "#d64545", "#2f855a",
                                         "#3182ce", "#6b46c1", "#cbd2d9"};
    fv__buf_fmt(b,
                "<svg width=460 height=260 font-size=11><text x=40 y=14>%s</text>"
                "<path d=\"M40 20V230H300\" fill=none stroke=\"#8a919c\"/>"
                "<text x=8 y=28>1</text><text x=8 y=230>0</text>"
                "<text x=40 y=246>none</text><text x=250 y=246>all tokens</text>",
                title);
    for (int m = 0; m <= FV_EXPLAIN_METHODS; m++) {
        fv__buf_str(b, "<polyline fill=none stroke-width=1.6 points=\"");
        for (int i = 0; i < FV_EXPLAIN_POINTS; i++)
            fv__buf_fmt(b, "%d,%.1f ", 40 + 26 * i, 230 - 205 * y[m][i]);
        fv__buf_fmt(b, "\" stroke=\"%s\"/><text x=312 y=%d fill=\"%s\">%s %.3f</text>", colour[m],
                    40 + 18 * m, colour[m], name_of(m), area[m]);
    }
    fv__buf_str(b, "</svg>\n");
}

static void put_html(const fv_explainer *x, fv_buf *b)
{
    const fv_explained *n = &x->now;
    const fv_explain_set *s = &x->set;
    fv__buf_str(b, page_head);
    fv__buf_str(b, "<h1>");
    html_text(b, n->label);
    fv__buf_fmt(b, ", p = %.4f</h1>\n<p>", exp(n->log_p));
    html_text(b, x->text);
    fv__buf_fmt(b,
                "</p><p>Explained is the log-probability, %.4f; with all tokens blanked it is "
                "%.4f.  Orange speaks for the prediction, blue against it.</p>\n",
                n->log_p, n->log_p_blank);
    html_tokens(x, b);
    html_agreement(x, b, "Agreement: Spearman's rank correlation of magnitudes", n->agreement);
    html_table(x, b);
    html_heads(n, b);
    if (s->texts > 1) {
        fv__buf_fmt(b, "<h2>%lld texts</h2>", (long long)s->texts);
        html_agreement(x, b, "Mean agreement", s->agreement);
    }
    if (x->opt.curves) {
        fv__buf_str(b, "<h2>Which to trust</h2><p>Mean probability of the prediction while tokens "
                       "are blanked, or put back, in the order of each method.  Areas: less is "
                       "better for deletion, more for insertion.</p>\n");
        html_curve(b, "deletion", s->deletion, s->deletion_area);
        html_curve(b, "insertion", s->insertion, s->insertion_area);
    }
    fv__buf_str(b, "</body></html>\n");
}

/* ---- handing it over ---- */

fv_status fv_explain_report(fv_explainer *x, const char *format, const char **out, size_t *n,
                            fv_err *e)
{
    fv_buf *b = &x->out;
    *out = NULL, *n = 0;
    if (!x->now.n) return fv_fail(e, FV_ESTATE, "explain: there is no text yet");
    b->len = 0;
    if (!strcmp(format, "text"))
        put_text(x, b);
    else if (!strcmp(format, "json"))
        put_json(x, b);
    else if (!strcmp(format, "html"))
        put_html(x, b);
    else
        return fv_fail(e, FV_EARG, "format: expected text, json or html, not \"%s\"", format);
    if (b->failed) return fv_fail(e, FV_ENOMEM, "explain: out of memory");
    *out = b->data, *n = b->len;
    return FV_OK;
}

fv_status fv_explain_save(fv_explainer *x, const char *path, fv_err *e)
{
    const char *dot = strrchr(path, '.'), *text;
    size_t n;
    fv_out o;
    bool known = dot && (!strcmp(dot, ".html") || !strcmp(dot, ".json"));
    if (!known)
        return fv_fail(e, FV_EARG,
                       "%s: the name must end in .html or .json, which says what is "
                       "written",
                       path);
    fv_status st = fv_explain_report(x, dot + 1, &text, &n, e);
    if (!st) st = fv__out_open(&o, &x->env, path, e);
    if (st) return st;
    fv__out_add(&o, text, n);
    return fv__out_commit(&o, e);
}
