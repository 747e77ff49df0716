/* lines.c - attention as lines between tokens: two columns of tokens for the heads of a layer, two
 * sentences one above the other for an alignment.
 *
 * A line's width and opacity grow with its weight, so that hundreds of weak lines recede into the
 * background.  Labels are drawn after the lines, over them. */
#ifdef HAVE_CAIRO
#include <math.h>
#include <stdio.h>

#include "canvas.h"

enum { MARGIN = 28, LONGEST = 200, WIDEST = 2400 };
#define LEAST 0.02 /* lines below this are not drawn: they would only be grey */

/* A curve that leaves and arrives at a right angle to the columns (or, upright, to the lines of
 * text), so that lines that meet at a token can be followed. */
static void curve(fv_canvas *c, double x0, double y0, double x1, double y1, bool upright)
{
    double mx = (x0 + x1) / 2, my = (y0 + y1) / 2;
    cairo_move_to(c->cr, x0, y0);
    if (upright)
        cairo_curve_to(c->cr, x0, my, x1, my, x1, y1);
    else
        cairo_curve_to(c->cr, mx, y0, mx, y1, x1, y1);
}

/* ---- the head view ---- */

/* The heads and their colours, wrapped; returns where the next line may begin. */
static double legend(fv_canvas *c, const fv_figure *p, double x, double y, double *right)
{
    fv_style s = {.size = 11.5, .color = FV_MUTED};
    if (p->heads < 2) return y;
    for (int64_t h = 0; h < p->heads; h++) {
        char text[32];
        snprintf(text, sizeof text, "head %lld", (long long)h);
        double w = fv__canvas_width(c, text, s) + 30;
        if (h && x + w > MARGIN + 520) x = MARGIN, y += 20;
        fv__canvas_box(c, x, y + 2, 11, 11, 2);
        fv__canvas_color(c, fv__head_color(h), 1);
        cairo_fill(c->cr);
        fv__canvas_text(c, x + 16, y + 7.5, text, s);
        x += w;
        *right = fmax(*right, x);
    }
    return y + 30;
}

/* Rows are the left column and columns the right one, as the page draws them. */
void fv__draw_lines(fv_canvas *c, const fv_figure *p, double *width, double *height)
{
    char number[24];
    int64_t n = p->rows > p->cols ? p->rows : p->cols;
    double step = n <= 40 ? 24 : 17, between = 190, right = 0, lw = 0;
    fv_style s = {.size = step > 20 ? 13 : 11, .most = LONGEST},
             over = {.size = 11.5, .color = FV_MUTED, .bold = true};
    for (int64_t i = 0; i < p->rows; i++)
        lw = fmax(lw, fv__canvas_width(c, fv__figure_row(p, i, number), s));
    lw = fmax(lw, 70);
    double y = fv__draw_title(c, p, MARGIN, MARGIN, 560, &right);
    y = legend(c, p, MARGIN, y, &right);
    double x0 = MARGIN + lw + 8, x1 = x0 + between;

    over.anchor = 1;
    fv__canvas_text(c, x0 - 8, y + 8, "looks", over);
    over.anchor = 0;
    right = fmax(right, x1 + 8 + fv__canvas_text(c, x1 + 8, y + 8, "at", over));
    y += 24;
    for (int64_t h = 0; h < p->heads && !c->measuring; h++) {
        const float *w = p->w + h * p->rows * p->cols;
        fv_rgb color = p->heads > 1 ? fv__head_color(h) : fv__shade(0.8);
        if (p->heads > 1) fv__head_dash(c, h);
        /* heads lie side by side, not on top of one another */
        double thick = p->heads > 1 ? 2 : 3.4,
               aside = ((double)h - (double)(p->heads - 1) / 2) * fmin(2.6, 14 / (double)p->heads);
        for (int64_t i = 0; i < p->rows * p->cols; i++) {
            double v = (double)w[i];
            if (v < LEAST) continue;
            int64_t row = i / p->cols, col = i % p->cols;
            double from = ((double)row + 0.5) * step, to = ((double)col + 0.5) * step;
            curve(c, x0, y + from + aside, x1, y + to + aside, false);
            fv__canvas_color(c, color, fmin(1, 0.08 + 0.92 * v));
            cairo_set_line_width(c->cr, 0.6 + thick * v);
            cairo_stroke(c->cr);
        }
    }
    cairo_set_dash(c->cr, NULL, 0, 0);
    for (int64_t i = 0; i < p->rows; i++) {
        const char *text = fv__figure_row(p, i, number);
        s.anchor = 1, s.color = fv__token_color(text);
        fv__canvas_text(c, x0 - 8, y + ((double)i + 0.5) * step, text, s);
    }
    for (int64_t j = 0; j < p->cols; j++) {
        const char *text = fv__figure_col(p, j, number);
        s.anchor = 0, s.color = fv__token_color(text);
        right = fmax(right,
                     x1 + 8 + fv__canvas_text(c, x1 + 8, y + ((double)j + 0.5) * step, text, s));
    }
    *width = right + MARGIN;
    *height = y + (double)n * step + MARGIN;
}

/* ---- the alignment ---- */

typedef const char *label_fn(const fv_figure *p, int64_t i, char number[24]);

/* The length of a sentence set in one line. */
static double line_length(fv_canvas *c, const fv_figure *p, label_fn *label, int64_t n, fv_style s,
                          double gap)
{
    char number[24];
    double w = 0;
    for (int64_t i = 0; i < n; i++)
        w += fmax(fv__canvas_width(c, label(p, i, number), s), 10) + gap;
    return w - gap;
}

/* Sets it from x on; fills at[] with the middles of its tokens. */
static void set_line(fv_canvas *c, const fv_figure *p, label_fn *label, int64_t n, fv_style s,
                     double x, double y, double gap, double *at)
{
    char number[24];
    s.anchor = 0.5;
    for (int64_t i = 0; i < n; i++) {
        const char *text = label(p, i, number);
        double w = fmax(fv__canvas_width(c, text, s), 10);
        s.color = fv__token_color(text);
        at[i] = x + w / 2;
        fv__canvas_text(c, at[i], y, text, s);
        x += w + gap;
    }
}

/* The source above and the target below, both centred, so that words of a monotone alignment stand
 * over one another. */
void fv__draw_alignment(fv_canvas *c, const fv_figure *p, double *width, double *height)
{
    fv_style s = {.size = 17, .most = LONGEST},
             side = {.size = 11.5, .color = FV_MUTED, .bold = true};
    double gap = 20, right = 0, deep = 130;
    double top = line_length(c, p, fv__figure_col, p->cols, s, gap),
           low = line_length(c, p, fv__figure_row, p->rows, s, gap);
    double wide = fmax(fmax(top, low), 420), x = MARGIN;
    if (wide > WIDEST) { /* a long page of two columns can be read, a line of metres cannot */
        fv__draw_lines(c, p, width, height);
        return;
    }
    double *at = p->token_pos, y = fv__draw_title(c, p, MARGIN, MARGIN, fmax(wide, 720), &right);
    fv__canvas_text(c, x, y + 8, "source", side);
    y += 36;
    set_line(c, p, fv__figure_col, p->cols, s, x + (wide - top) / 2, y, gap, at + p->rows);
    set_line(c, p, fv__figure_row, p->rows, s, x + (wide - low) / 2, y + deep + 28, gap, at);
    for (int64_t i = 0; i < p->rows * p->cols && !c->measuring; i++) {
        double v = (double)p->w[i];
        if (v < LEAST) continue;
        curve(c, at[p->rows + i % p->cols], y + 15, at[i / p->cols], y + deep + 13, true);
        fv__canvas_color(c, fv__shade(0.45 + 0.4 * v), fmin(1, 0.1 + 0.9 * v));
        cairo_set_line_width(c->cr, 0.8 + 6 * v);
        cairo_set_line_cap(c->cr, CAIRO_LINE_CAP_ROUND);
        cairo_stroke(c->cr);
    }
    y += deep + 28 + 26;
    fv__canvas_text(c, x, y, "translation", side);
    *width = fmax(right, x + wide) + MARGIN;
    *height = y + MARGIN;
}
#endif
