/* draw.c - heat maps: one map with its tokens, and the grid of all layers and heads.
 *
 * Sizes follow from the number of tokens: cells shrink until a map has about 900 units, labels
 * shrink with them to a readable least size, and from there on only every second, third, ... label
 * is drawn.  A small map consists of boxes, which stay sharp at any zoom; a large one is an image
 * (cells_image). */
#ifdef HAVE_CAIRO
#include <math.h>
#include <stdio.h>

#include "canvas.h"

enum { MARGIN = 28, LABEL_ROTATION = 50, MAX_BOXES = 6000, MAX_LABEL = 170 };
#define VECTOR_PIXELS 1.6e7 /* of all maps of a vector file */

/* ---- parts that views share ---- */

/* One line under the title; a translation that is too wide is broken at its arrow. */
static double line_under(fv_canvas *c, const char *text, double x, double *y, fv_style s)
{
    const char *arrow = strstr(text, " \u2192 ");
    double w = 0, most = s.most;
    s.most = 0;
    bool wide = most > 0 && fv__canvas_width(c, text, s) > most;
    s.most = most;
    if (wide && arrow) {
        fv_buf first = {0};
        fv__buf_add(&first, text, (size_t)(arrow - text));
        w = fv__canvas_text(c, x, *y + 9, first.data ? first.data : "", s);
        fv__buf_free(&first);
        *y += 20;
        text = arrow + 1;
    }
    w = fmax(w, fv__canvas_text(c, x, *y + 9, text, s));
    *y += 20;
    return w;
}

double fv__draw_title(fv_canvas *c, const fv_figure *p, double x, double y, double most,
                      double *right)
{
    fv_style title = {.size = 17, .bold = true, .color = FV_INK, .most = most, .whole_words = true},
             under = {.size = 12.5, .most = most, .whole_words = true};
    const char *lines[] = {p->text, p->note};
    double w = fv__canvas_text(c, x, y + 11, p->title, title);
    y += 26;
    for (int i = 0; i < 2; i++) {
        if (!lines[i] || !*lines[i]) continue;
        under.color = i ? FV_MUTED : FV_INK;
        w = fmax(w, line_under(c, lines[i], x, &y, under));
    }
    *right = fmax(*right, x + w);
    return y + 14;
}

static bool by_root(const fv_figure *p) { return fv__see_by_root(p->cols); }

fv_rgb fv__figure_shade(const fv_figure *p, double weight)
{
    double t = p->most > 0 ? weight / (double)p->most : 0;
    return fv__shade(by_root(p) ? sqrt(t) : t);
}

/* A gradient from 0 to the greatest weight, which is the darkest shade. */
double fv__draw_scale(fv_canvas *c, const fv_figure *p, double x, double y, double *right)
{
    enum { STEPS = 60, WIDTH = 150, HEIGHT = 9 };
    char most[40];
    fv_style s = {.size = 11, .color = FV_MUTED};
    snprintf(most, sizeof most, "%.0f %%%s", 100 * (double)p->most,
             by_root(p) ? ", by its square root" : "");
    double at = x + fv__canvas_text(c, x, y + HEIGHT / 2.0, "0", s) + 6;
    cairo_pattern_t *shades = cairo_pattern_create_linear(at, 0, at + WIDTH, 0);
    for (int i = 0; i <= STEPS; i++) {
        fv_rgb k = fv__shade((double)i / STEPS);
        cairo_pattern_add_color_stop_rgb(shades, (double)i / STEPS, k.r, k.g, k.b);
    }
    fv__canvas_box(c, at, y, WIDTH, HEIGHT, 2);
    cairo_set_source(c->cr, shades);
    cairo_fill(c->cr);
    cairo_pattern_destroy(shades);
    at += WIDTH + 6;
    at += fv__canvas_text(c, at, y + HEIGHT / 2.0, most, s);
    *right = fmax(*right, at);
    return HEIGHT;
}

/* Pixels along one side of the image of a map with n cells of size cell.  On a raster surface these
 * are the pixels of the surface: what cannot be seen is not painted.  In a vector file a cell
 * gets several, as viewers smooth what they enlarge, but all maps together stay within a budget. */
static int64_t image_side(const fv_canvas *c, const fv_figure *p, int64_t n, double cell)
{
    if (c->raster) {
        int64_t pixels = (int64_t)((double)n * cell * c->fine + 0.5);
        return pixels > 1 ? pixels : 1;
    }
    int64_t longest = p->rows > p->cols ? p->rows : p->cols, k = 2000 / longest;
    double all = (double)(p->rows * p->cols) * (double)(p->layers * p->heads);
    int64_t most = (int64_t)sqrt(VECTOR_PIXELS / all);
    k = k < most ? k : most;
    k = k < 1 ? 1 : k;
    return n * (k > 8 ? 8 : k);
}

/* The shades as pixels, for 256 steps of t. */
static void shade_table(uint32_t table[256])
{
    for (int i = 0; i < 256; i++) {
        fv_rgb f = fv__shade(i / 255.0);
        table[i] = (uint32_t)(f.r * 255 + 0.5) << 16 | (uint32_t)(f.g * 255 + 0.5) << 8 |
                   (uint32_t)(f.b * 255 + 0.5);
    }
}

/* Row y of an image of high rows: the greatest weights of the cells that each pixel covers, so that
 * a strong weight is visible however small the map is. */
static void image_row(uint32_t *to, const fv_figure *p, const float *w, int64_t y, int64_t wide,
                      int64_t high, const uint32_t table[256])
{
    int64_t i0 = y * p->rows / high, i1 = (y + 1) * p->rows / high;
    float scale = p->most > 0 ? 1 / p->most : 0;
    i1 = i1 > i0 ? i1 : i0 + 1;
    for (int64_t x = 0; x < wide; x++) {
        int64_t j0 = x * p->cols / wide, j1 = (x + 1) * p->cols / wide;
        float most = 0;
        j1 = j1 > j0 ? j1 : j0 + 1;
        for (int64_t i = i0; i < i1; i++)
            for (int64_t j = j0; j < j1; j++) {
                float v = w[i * p->cols + j];
                most = v > most ? v : most;
            }
        float t = most * scale;
        to[x] = table[(int)(255 * (by_root(p) ? sqrtf(t) : t) + 0.5f)];
    }
}

/* Many cells are painted as one image: a box each would make a file of many megabytes. */
static void cells_image(fv_canvas *c, const fv_figure *p, const float *w, double x, double y,
                        double cw, double ch)
{
    int64_t wide = image_side(c, p, p->cols, cw), high = image_side(c, p, p->rows, ch);
    uint32_t table[256];
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)wide, (int)high);
    unsigned char *data = cairo_image_surface_get_data(s);
    int stride = cairo_image_surface_get_stride(s);
    shade_table(table);
    for (int64_t i = 0; data && i < high; i++)
        image_row((uint32_t *)(void *)(data + i * stride), p, w, i, wide, high, table);
    cairo_surface_mark_dirty(s);
    cairo_save(c->cr);
    if (c->raster) { /* pixel on pixel */
        cairo_user_to_device(c->cr, &x, &y);
        cairo_identity_matrix(c->cr);
        cairo_translate(c->cr, floor(x + 0.5), floor(y + 0.5));
    } else {
        cairo_translate(c->cr, x, y);
        cairo_scale(c->cr, cw * (double)p->cols / (double)wide,
                    ch * (double)p->rows / (double)high);
    }
    cairo_set_source_surface(c->cr, s, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(c->cr), CAIRO_FILTER_NEAREST);
    cairo_paint(c->cr);
    cairo_restore(c->cr);
    cairo_surface_destroy(s);
}

void fv__draw_cells(fv_canvas *c, const fv_figure *p, const float *w, double x, double y, double cw,
                    double ch, bool numbers)
{
    if (c->measuring) return;
    if (p->rows * p->cols * p->layers * p->heads > MAX_BOXES) {
        cells_image(c, p, w, x, y, cw, ch);
        return;
    }
    /* weights below this cannot be told from 0 by their shade */
    double gap = cw >= 8 ? 1 : 0, round = cw >= 20 ? 2.5 : 0,
           faint = (by_root(p) ? 2e-5 : 0.004) * (double)p->most;
    /* all that look empty in one piece: most do, and each costs a line */
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        int64_t row = i / p->cols, col = i % p->cols;
        if ((double)w[i] <= faint)
            fv__canvas_box(c, x + (double)col * cw, y + (double)row * ch, cw - gap, ch - gap,
                           round);
    }
    fv__canvas_color(c, fv__shade(0), 1);
    cairo_fill(c->cr);
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        int64_t row = i / p->cols, col = i % p->cols;
        double v = (double)w[i], left = x + (double)col * cw, top = y + (double)row * ch;
        if (v <= faint) continue;
        fv__canvas_box(c, left, top, cw - gap, ch - gap, round);
        fv__canvas_color(c, fv__figure_shade(p, v), 1);
        cairo_fill(c->cr);
        /* two digits of per cent: what is less is pale enough to see */
        if (!numbers || v < 0.095) continue;
        char text[8];
        snprintf(text, sizeof text, "%.0f", v * 100);
        fv_rgb ink = v > 0.5 * (double)p->most ? FV_RGB(0xffffff) : FV_INK;
        fv__canvas_text(c, left + (cw - gap) / 2, top + (ch - gap) / 2, text,
                        (fv_style){.size = 10.5, .color = ink, .anchor = 0.5});
    }
}

/* ---- labels around a map ---- */

typedef const char *label_fn(const fv_figure *p, int64_t i, char number[24]);

/* The width of the widest label of those that are drawn. */
static double widest(fv_canvas *c, const fv_figure *p, label_fn *label, int64_t n, int64_t step,
                     fv_style s)
{
    double w = 0;
    char number[24];
    for (int64_t i = 0; i < n; i += step) w = fmax(w, fv__canvas_width(c, label(p, i, number), s));
    return w;
}

/* The style of labels that are `available` units apart, and of how many one is drawn. */
static fv_style label_style(double available, int64_t *step)
{
    double size = available * 0.78;
    size = size > 13 ? 13 : size < 8.5 ? 8.5 : size;
    *step = (int64_t)ceil(size * 1.25 / available);
    return (fv_style){.size = size, .most = MAX_LABEL};
}

/* Right-aligned, ending at `right`. */
static void row_labels(fv_canvas *c, const fv_figure *p, double right, double y, double cell,
                       int64_t step, fv_style s)
{
    char number[24];
    s.anchor = 1;
    for (int64_t i = 0; i < p->rows; i += step) {
        const char *text = fv__figure_row(p, i, number);
        s.color = fv__token_color(text);
        fv__canvas_text(c, right, y + ((double)i + 0.5) * cell, text, s);
    }
}

/* Slanted, so that they are read without turning the head and need only the width of a cell; widens
 * *right. */
static void col_labels(fv_canvas *c, const fv_figure *p, double x, double bottom, double cell,
                       int64_t step, fv_style s, double *right)
{
    char number[24];
    double lean = cos(LABEL_ROTATION * M_PI / 180), up = sin(LABEL_ROTATION * M_PI / 180);
    s.rotation = LABEL_ROTATION;
    for (int64_t j = 0; j < p->cols; j += step) {
        const char *text = fv__figure_col(p, j, number);
        double at = x + ((double)j + 0.5) * cell;
        s.color = fv__token_color(text);
        double w = fv__canvas_text(c, at, bottom, text, s);
        *right = fmax(*right, at + w * lean + s.size * up);
    }
}

/* ---- views ---- */

/* Cell sizes have a least and a greatest value. */
static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* From top to bottom: title, column labels, the map with its row labels, the colour scale.  The
 * width of the labels decides where the map begins, so they are measured first. */
void fv__draw_heat(fv_canvas *c, const fv_figure *p, double *width, double *height)
{
    double n = (double)(p->rows > p->cols ? p->rows : p->cols), right = 0;
    double cell = clamp(fmax(900 / n, fmin(16, 1600 / n)), 1.5, 34);
    int64_t row_step, col_step;
    fv_style rows = label_style(cell, &row_step),
             cols = label_style(cell * sin(LABEL_ROTATION * M_PI / 180), &col_step);
    double left = MARGIN + widest(c, p, fv__figure_row, p->rows, row_step, rows) + 8;
    double tall = widest(c, p, fv__figure_col, p->cols, col_step, cols) *
                      sin(LABEL_ROTATION * M_PI / 180) +
                  cols.size;
    double body = fmax(left + (double)p->cols * cell - MARGIN, 520);
    double y = fv__draw_title(c, p, MARGIN, MARGIN, body, &right) + tall;

    col_labels(c, p, left, y - 7, cell, col_step, cols, &right);
    row_labels(c, p, left - 8, y, cell, row_step, rows);
    fv__draw_cells(c, p, p->w, left, y, cell, cell, cell >= 26);
    right = fmax(right, left + (double)p->cols * cell);
    y += (double)p->rows * cell + 16;
    y += fv__draw_scale(c, p, left, y, &right);
    *width = right + MARGIN;
    *height = y + MARGIN;
}

/* Layers from top to bottom, heads from left to right.  Column labels stand over the first layer
 * only and row labels before the first head: the tokens are the same in every map. */
void fv__draw_grid(fv_canvas *c, const fv_figure *p, double *width, double *height)
{
    double n = (double)(p->rows > p->cols ? p->rows : p->cols), cell = clamp(180 / n, 0.25, 17),
           right = 0, gap = 16;
    double mw = fmax((double)p->cols * cell, 44), mh = fmax((double)p->rows * cell, 16);
    int64_t row_step, col_step;
    fv_style rows = label_style(cell, &row_step),
             cols = label_style(cell * sin(LABEL_ROTATION * M_PI / 180), &col_step);
    /* in a grid either all labels are readable or none is drawn */
    bool labels = row_step == 1 && col_step == 1;
    rows.size = cols.size;
    fv_style head = {.size = 12, .bold = true, .color = FV_MUTED, .anchor = 0.5}, layer = head;
    layer.anchor = 0;
    double left = MARGIN + fv__canvas_width(c, "layer 00", layer) + 10, tall = 0, lean = 0;
    if (labels) {
        double wide = widest(c, p, fv__figure_col, p->cols, 1, cols);
        left += widest(c, p, fv__figure_row, p->rows, 1, rows) + 8;
        tall = wide * sin(LABEL_ROTATION * M_PI / 180) + cols.size;
        /* the last label leans over its neighbour's map */
        lean = fmax(0, wide * cos(LABEL_ROTATION * M_PI / 180) - cell);
    }
    double body = fmax(left + (double)p->heads * (mw + gap) - MARGIN, 520);
    double y = fv__draw_title(c, p, MARGIN, MARGIN, body, &right);
    gap = labels ? fmax(gap, lean - mw * 0.5) : gap;

    for (int64_t h = 0; h < p->heads; h++) {
        char text[32];
        double x = left + (double)h * (mw + gap);
        snprintf(text, sizeof text, "head %lld", (long long)(p->head + h));
        if (p->head != FV_SEE_ALL) fv__canvas_text(c, x + mw / 2, y + 8, text, head);
        if (labels) col_labels(c, p, x, y + 22 + tall - 5, cell, 1, cols, &right);
    }
    y += 24 + tall;
    for (int64_t l = 0; l < p->layers; l++, y += mh + gap) {
        char text[32];
        snprintf(text, sizeof text, "layer %lld", (long long)(p->layer + l));
        if (p->layer != FV_SEE_ALL) fv__canvas_text(c, MARGIN, y + mh / 2, text, layer);
        if (labels) row_labels(c, p, left - 6, y, cell, 1, rows);
        for (int64_t h = 0; h < p->heads; h++) {
            double x = left + (double)h * (mw + gap);
            fv__draw_cells(c, p, p->w + (l * p->heads + h) * p->rows * p->cols, x, y, cell, cell,
                           false);
            right = fmax(right, x + mw);
        }
    }
    y += fv__draw_scale(c, p, left, y, &right);
    *width = right + MARGIN;
    *height = y + MARGIN;
}
#endif
