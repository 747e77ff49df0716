/* transcribe_lattice.c - the lattice of a transducer as a picture: how likely an alignment is to
 * pass each point, and the way that was taken.
 *
 * Points are (t,u): t frames were heard and u tokens written.  The share of all alignments of the
 * tokens that pass a point is exp(alpha + beta - total), alpha and beta as in
 * backend/ref/rnnt.c, computed here in double on the host: there are a few thousand points.  The
 * picture is SVG written as text, a column for each frame, a row for each token from the bottom,
 * and the loudness of each frame above, so that one sees where in a word it was recognised. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "task/transcribe.h"

enum { COLUMN = 9, ROW = 22, LEFT = 70, TOP = 60, FOOT = 34 };

typedef struct lattice {
    const fv__lattice *in;
    double *blank, *label; /* (T,U+1): log-probabilities of the two ways on from a point */
    double *alpha, *beta;
    int64_t T, U;
} lattice;

static double log_add(double a, double b)
{
    double top = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? top : top + log1p(exp(low - top));
}

/* Log-probabilities of the blank and of the next token at each point, from logits (T,U+1,V). */
static void read_logits(lattice *l)
{
    const fv__lattice *in = l->in;
    for (int64_t i = 0; i < l->T * (l->U + 1); i++) {
        const float *z = in->logits + i * in->V;
        int64_t u = i % (l->U + 1);
        double top = (double)z[0], sum = 0;
        for (int64_t v = 1; v < in->V; v++) top = (double)z[v] > top ? (double)z[v] : top;
        for (int64_t v = 0; v < in->V; v++) sum += exp((double)z[v] - top);
        double whole = top + log(sum);
        l->blank[i] = (double)z[in->blank] - whole;
        l->label[i] = u < l->U ? (double)z[in->token[u].id] - whole : -INFINITY;
    }
}

static void fill(lattice *l)
{
    int64_t R = l->U + 1;
    for (int64_t t = 0; t < l->T; t++)
        for (int64_t u = 0; u < R; u++) {
            int64_t i = t * R + u;
            double down = t ? l->alpha[i - R] + l->blank[i - R] : -INFINITY,
                   across = u ? l->alpha[i - 1] + l->label[i - 1] : -INFINITY;
            l->alpha[i] = i ? log_add(down, across) : 0;
        }
    for (int64_t t = l->T - 1; t >= 0; t--)
        for (int64_t u = R - 1; u >= 0; u--) {
            int64_t i = t * R + u;
            bool end = t == l->T - 1 && u == R - 1;
            double down = end            ? 0
                          : t < l->T - 1 ? l->beta[i + R]
                                         : -INFINITY,
                   across = u < R - 1 ? l->label[i] + l->beta[i + 1] : -INFINITY;
            l->beta[i] = log_add(l->blank[i] + down, across);
        }
}

/* ---- the picture ---- */

static double x_of(double t) { return LEFT + COLUMN * t; }
static double y_of(const lattice *l, double u) { return TOP + ROW * ((double)l->U - u); }

static void put_points(fv_buf *b, const lattice *l)
{
    for (int64_t i = 0; i < l->T * (l->U + 1); i++) {
        double share = exp(l->alpha[i] + l->beta[i] - l->beta[0]);
        if (share < 0.004) continue;
        fv__buf_fmt(b,
                    "<rect x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\" opacity=\"%.2f\"/>\n",
                    x_of((double)(i / (l->U + 1))), y_of(l, (double)(i % (l->U + 1))), COLUMN - 1,
                    ROW - 2, share > 1 ? 1 : share);
    }
}

/* Up where a token was written, to the right with each frame. */
static void put_path(fv_buf *b, const lattice *l)
{
    int64_t u = 0;
    fv__buf_str(b, "<polyline fill=\"none\" stroke=\"#d1495b\" stroke-width=\"2\" points=\"");
    for (int64_t t = 0; t < l->T; t++) {
        double x = x_of((double)t + 0.4);
        fv__buf_fmt(b, "%.1f,%.1f ", x, y_of(l, (double)u) + ROW / 2.);
        while (u < l->U && l->in->token[u].from <= t) u++;
        fv__buf_fmt(b, "%.1f,%.1f ", x, y_of(l, (double)u) + ROW / 2.);
    }
    fv__buf_str(b, "\"/>\n");
}

static void put_loudness(fv_buf *b, const lattice *l)
{
    const fv__lattice *in = l->in;
    double least = INFINITY, most = -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        if (pass)
            fv__buf_str(b,
                        "<polyline fill=\"none\" stroke=\"#555\" stroke-width=\"1.2\" points=\"");
        for (int64_t t = 0; t < l->T; t++) {
            double sum = 0;
            for (int64_t k = 0; k < in->width; k++) sum += (double)in->features[t * in->width + k];
            sum /= (double)in->width;
            if (!pass && sum < least) least = sum;
            if (!pass && sum > most) most = sum;
            if (pass)
                fv__buf_fmt(b, "%.1f,%.1f ", x_of((double)t + 0.4),
                            50 - 40 * (sum - least) / (most > least ? most - least : 1));
        }
    }
    fv__buf_str(b, "\"/>\n");
}

void fv__put_xml(fv_buf *b, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || (unsigned char)*s < 0x20)
            fv__buf_fmt(b, "&#%d;", (unsigned char)*s);
        else
            fv__buf_add(b, s, 1);
}

static void put_labels(fv_buf *b, const lattice *l)
{
    const fv__lattice *in = l->in;
    double foot = y_of(l, 0) + ROW;
    for (int64_t u = 0; u < l->U; u++) {
        const char *s = fv_tok_token(in->tok, in->token[u].id);
        fv__buf_fmt(b, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">", LEFT - 6,
                    y_of(l, (double)u + 1) + ROW - 7);
        fv__put_xml(b, s ? s : "");
        fv__buf_str(b, "</text>\n");
    }
    for (double s = 0; s < (double)l->T * in->seconds; s += 0.5)
        fv__buf_fmt(b, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.1f s</text>\n",
                    x_of(s / in->seconds), foot + 16, s);
}

static void draw(fv_buf *b, const lattice *l)
{
    double width = x_of((double)l->T) + 20, height = y_of(l, 0) + ROW + FOOT;
    fv__buf_fmt(b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<g fill=\"#30638e\">\n",
                width, height);
    put_points(b, l);
    fv__buf_str(b, "</g>\n");
    put_path(b, l);
    put_loudness(b, l);
    put_labels(b, l);
    fv__buf_str(b, "</svg>\n");
}

fv_status fv__lattice_write(const fv__lattice *in, const fv_env *env, const char *path, fv_err *e)
{
    lattice l = {.in = in, .T = in->frames, .U = in->n};
    fv_buf b = {.env = env};
    size_t points = (size_t)(l.T * (l.U + 1)), bytes = 4 * points * sizeof(double);
    l.blank = fv__alloc(env, bytes);
    if (!l.blank) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    l.label = l.blank + points;
    l.alpha = l.label + points;
    l.beta = l.alpha + points;
    read_logits(&l);
    fill(&l);
    draw(&b, &l);
    fv_out o;
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__out_open(&o, env, path, e);
    if (!st) {
        fv__out_add(&o, b.data, b.len);
        st = fv__out_commit(&o, e);
    }
    fv__buf_free(&b);
    fv__free(env, l.blank, bytes);
    return st;
}
