/* canvas.c - text and colours on a cairo surface.
 *
 * All text goes through Pango, which shapes any script and falls back to other fonts where one
 * lacks a glyph.  cairo's own text calls do neither. */
#ifdef HAVE_CAIRO
#include "canvas.h"

#include <math.h>

#include "see/palette.h"

#define FONT "Inter, Source Sans 3, Noto Sans, DejaVu Sans, sans-serif"

/* Linear between the stops, in sRGB: the stops are close enough that no other space is needed. */
fv_rgb fv__shade(double t)
{
    enum { LAST = FV_SHADES - 1 };
    double at = (t < 0 ? 0 : t > 1 ? 1 : t) * LAST;
    int i = at >= LAST ? LAST - 1 : (int)at;
    fv_rgb a = FV_RGB(fv__shades_light[i]), b = FV_RGB(fv__shades_light[i + 1]);
    double f = at - i;
    return (fv_rgb){a.r + f * (b.r - a.r), a.g + f * (b.g - a.g), a.b + f * (b.b - a.b)};
}

fv_rgb fv__head_color(int64_t head) { return FV_RGB(fv__head_colors[head % FV_HEAD_COLORS]); }

void fv__head_dash(fv_canvas *c, int64_t head)
{
    static const double dashed[] = {7, 4}, dotted[] = {2, 3};
    int64_t round = head / FV_HEAD_COLORS % 3;
    cairo_set_dash(c->cr, round == 1 ? dashed : dotted, round ? 2 : 0, 0);
}

/* "<...>" and "[...]" by their spelling: labels may come from a caller without a tokenizer. */
fv_rgb fv__token_color(const char *t)
{
    size_t n = strlen(t);
    bool special = n > 2 && ((t[0] == '<' && t[n - 1] == '>') || (t[0] == '[' && t[n - 1] == ']'));
    return special ? FV_MUTED : FV_INK;
}

/* ---- canvas ---- */

/* Measures must not depend on the surface, so hinting is off: the same layout serves screen and
 * paper.  The font map is the canvas's own, because Pango would keep its default one for as long as
 * the thread lives. */
bool fv__canvas_open(fv_canvas *c, cairo_surface_t *surface)
{
    *c = (fv_canvas){.cr = cairo_create(surface), .fine = 1};
    PangoFontMap *fonts = pango_cairo_font_map_new();
    PangoContext *context = pango_font_map_create_context(fonts);
    cairo_font_options_t *o = cairo_font_options_create();
    cairo_font_options_set_hint_metrics(o, CAIRO_HINT_METRICS_OFF);
    cairo_font_options_set_hint_style(o, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_antialias(o, CAIRO_ANTIALIAS_GRAY);
    pango_cairo_context_set_font_options(context, o);
    pango_cairo_context_set_resolution(context, 96);
    c->layout = pango_layout_new(context);
    pango_layout_set_single_paragraph_mode(c->layout, TRUE);
    cairo_font_options_destroy(o);
    g_object_unref(context);
    g_object_unref(fonts);
    return cairo_status(c->cr) == CAIRO_STATUS_SUCCESS;
}

void fv__canvas_close(fv_canvas *c)
{
    if (c->layout) g_object_unref(c->layout);
    if (c->cr) cairo_destroy(c->cr);
    *c = (fv_canvas){0};
}

void fv__canvas_color(fv_canvas *c, fv_rgb k, double alpha)
{
    cairo_set_source_rgba(c->cr, k.r, k.g, k.b, alpha);
}

void fv__canvas_box(fv_canvas *c, double x, double y, double w, double h, double round)
{
    cairo_t *cr = c->cr;
    if (round <= 0) {
        cairo_rectangle(cr, x, y, w, h);
        return;
    }
    cairo_new_sub_path(cr); /* else the arc is joined to the last point of the path */
    for (int i = 0; i < 4; i++) {
        double cx = i == 0 || i == 3 ? x + w - round : x + round,
               cy = i < 2 ? y + h - round : y + round;
        cairo_arc(cr, cx, cy, round, i * M_PI / 2, (i + 1) * M_PI / 2);
    }
    cairo_close_path(cr);
}

/* The width of n bytes of text in the font that is set. */
static double layout_width(fv_canvas *c, const char *text, int n)
{
    int w, h;
    pango_layout_set_text(c->layout, text, n);
    pango_layout_get_size(c->layout, &w, &h);
    return (double)w / PANGO_SCALE;
}

/* Where word i of a text begins; its end is one before the next. */
static const char *word_at(const char *text, int i)
{
    while (i--) text = strchr(text, ' ') + 1;
    return text;
}

/* The text with words left out of its middle until it is at most `most` wide; false if not even its
 * first and last word fit. */
static bool omit_words(fv_canvas *c, fv_buf *out, const char *text, double most)
{
    int n = 1;
    for (const char *s = text; *s; s++) n += *s == ' ';
    for (int kept = n - 1; kept >= 2; kept--) {
        int head = (kept + 1) / 2, tail = kept / 2;
        out->len = 0;
        fv__buf_add(out, text, (size_t)(word_at(text, head) - text));
        fv__buf_fmt(out, "\u2026 %s", word_at(text, n - tail));
        if (out->failed) return false;
        if (layout_width(c, out->data, (int)out->len) <= most) return true;
    }
    return false;
}

/* Bytes that are not UTF-8 as U+FFFD: headings come from users. */
static const char *valid_text(fv_buf *out, const char *text)
{
    size_t n = strlen(text), good;
    if (fv__utf8_check(text, n) == n) return text;
    for (size_t at = 0; at < n; at += good + 1) {
        good = fv__utf8_check(text + at, n - at);
        fv__buf_add(out, text + at, good);
        if (at + good < n) fv__buf_str(out, "\uFFFD");
    }
    return out->failed || !out->data ? "" : out->data;
}

/* The layout is used for every text, so what an earlier one set is undone here. */
static void set_font(fv_canvas *c, fv_style s)
{
    PangoFontDescription *d = pango_font_description_new();
    pango_font_description_set_family_static(d, FONT);
    pango_font_description_set_absolute_size(d, s.size * PANGO_SCALE);
    if (s.bold) pango_font_description_set_weight(d, PANGO_WEIGHT_SEMIBOLD);
    pango_layout_set_font_description(c->layout, d);
    pango_font_description_free(d);
    pango_layout_set_width(c->layout, -1);
    pango_layout_set_ellipsize(c->layout, PANGO_ELLIPSIZE_NONE);
}

/* Puts the text into the layout, cut to its style's width; *w and *h get its size. */
static void set(fv_canvas *c, const char *text, fv_style s, double *w, double *h)
{
    int pw, ph;
    set_font(c, s);
    fv_buf valid = {0}, cut = {0};
    const char *whole = valid_text(&valid, text);
    pango_layout_set_text(c->layout, whole, -1);
    pango_layout_get_size(c->layout, &pw, &ph);
    bool wide = s.most > 0 && pw > s.most * PANGO_SCALE;
    if (wide && s.whole_words && omit_words(c, &cut, whole, s.most)) {
        pango_layout_set_text(c->layout, cut.data, -1);
        pango_layout_get_size(c->layout, &pw, &ph);
    } else if (wide) {
        pango_layout_set_text(c->layout, whole, -1);
        pango_layout_set_width(c->layout, (int)(s.most * PANGO_SCALE));
        pango_layout_set_ellipsize(c->layout, PANGO_ELLIPSIZE_MIDDLE);
        PangoRectangle logical;
        pango_layout_get_extents(c->layout, NULL, &logical);
        pw = logical.width;
        pango_layout_set_width(c->layout, pw);
    }
    fv__buf_free(&cut);
    fv__buf_free(&valid);
    *w = (double)pw / PANGO_SCALE;
    *h = (double)ph / PANGO_SCALE;
}

double fv__canvas_width(fv_canvas *c, const char *text, fv_style s)
{
    double w, h;
    set(c, text, s, &w, &h);
    return w;
}

/* Rotation is around the anchor, so that a slanted label ends or begins exactly at its tick. */
double fv__canvas_text(fv_canvas *c, double x, double y, const char *text, fv_style s)
{
    double w, h, angle = -s.rotation * M_PI / 180;
    set(c, text, s, &w, &h);
    cairo_save(c->cr);
    cairo_translate(c->cr, x, y);
    cairo_rotate(c->cr, angle);
    cairo_move_to(c->cr, -w * s.anchor, -h / 2);
    fv__canvas_color(c, s.color, 1);
    pango_cairo_update_layout(c->cr, c->layout);
    pango_cairo_show_layout(c->cr, c->layout);
    cairo_restore(c->cr);
    cairo_new_path(c->cr);
    if (c->on_text) {
        double along = w * (0.5 - s.anchor);
        c->on_text(c->user,
                   &(fv_text_box){x + along * cos(angle), y + along * sin(angle), w, h, angle});
    }
    return w;
}
#endif
