/* overlay.c - attention over an image: a picture of it for each row, or for each layer and head of
 * one row, under a veil where the weights are small.
 *
 *     opacity of the veil over a patch = VEIL (1 - w / greatest w of the picture)
 *
 * A veil keeps the colours of what is attended to; shades of a colour over the image lost, because
 * they hide what they mark.  The veil is dark, but over an image with much black in it (digits,
 * clothes), on which that would not show, of a middle blue, which is neither black nor white.  Each
 * picture has a scale of its own: how much is left for the patches beside the class token and its
 * like differs from head to head by orders, and what is asked is where a head looks. */
#ifdef HAVE_CAIRO
#include <math.h>
#include <stdio.h>

#include "canvas.h"

enum { LABEL = 110 /* beside the strips of a sound */, DATES = 5 /* below those of a series */ };
enum { MARGIN = 28, GAP = 14, WIDEST = 1180, FINE = 8 /* pixels of a patch, so that edges stay */ };
#define VEIL 0.86
#define TINT 0.7
enum { TINTED = 0xe66100 };
enum { BLACK = 48, FEW = 5 }; /* levels below are black; an image has much where a fifth is */

int64_t fv__image_rows(const fv_see *s, fv_see_kind k, int64_t *at, int64_t most)
{
    const fv_see_map *m = &s->map[k];
    const fv_see_grid *g = &m->row.grid;
    bool objects = g->high && s->boxes;
    bool token = g->high && g->at; /* one stands for all of the image */
    int64_t n = !g->high ? m->rows : objects ? s->boxes : token ? 1 : 5;
    n = n < most ? n : most;
    if (s->image->date && g->high) { /* the last patch is what a forecast goes on from */
        n = g->wide < 5 ? g->wide : 5;
        for (int64_t i = 0; at && i < n; i++) at[i] = g->at + (g->wide - 1) * (n - i) / n;
        return n;
    }
    for (int64_t i = 0; at && i < n; i++) {
        at[i] = i; /* what is written */
        if (objects) at[i] = s->box[i].row;
        /* the token that stands for the image, or patches in its middle and around it */
        int64_t y = i == 1 || i == 2 ? 1 : 3, x = i == 1 || i == 3 ? 1 : 3;
        if (g->high && !objects) at[i] = i ? g->high * y / 4 * g->wide + g->wide * x / 4 : 0;
        if (g->high && !objects && !token && !i) at[i] = g->high / 2 * g->wide + g->wide / 2;
    }
    return n;
}

/* ---- one picture ---- */

typedef struct pictures {
    fv_canvas *c;
    const fv_figure *p;
    const fv_see_grid *grid; /* of the columns */
    cairo_surface_t *image;  /* one for all: a vector file then holds it once */
    double w, h;             /* of a picture */
    uint32_t veil;           /* its colour */
} pictures;

/* The same as in image.js. */
static uint32_t veil_color(const fv_image *im)
{
    int64_t black = 0, n = (int64_t)im->width * im->height;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *p = im->data + 3 * i;
        black += p[0] < BLACK && p[1] < BLACK && p[2] < BLACK;
    }
    return FEW * black > n ? 0x6d80b4 : 0x0a1428;
}

static cairo_surface_t *image_surface(const fv_image *im)
{
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_RGB24, im->width, im->height);
    unsigned char *data = cairo_image_surface_get_data(s);
    int stride = cairo_image_surface_get_stride(s);
    for (int64_t i = 0; data && i < (int64_t)im->width * im->height; i++) {
        const uint8_t *from = im->data + i * 3;
        uint32_t *to = (uint32_t *)(void *)(data + i / im->width * stride) + i % im->width;
        *to = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
    }
    cairo_surface_mark_dirty(s);
    return s;
}

/* The veil as pixels, FINE by FINE of them for a patch; w: the weights of the patches.  Over the
 * white spectrogram of a sound, of which silence is part, what is attended to is tinted instead. */
static cairo_surface_t *veil_surface(const fv_see_grid *g, const float *w, uint32_t color,
                                     bool tint)
{
    float most = 0;
    int64_t wide = g->wide * FINE, high = g->high * FINE;
    for (int64_t i = 0; i < g->high * g->wide; i++) most = w[i] > most ? w[i] : most;
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)wide, (int)high);
    unsigned char *data = cairo_image_surface_get_data(s);
    int stride = cairo_image_surface_get_stride(s);
    for (int64_t i = 0; data && i < wide * high; i++) {
        int64_t y = i / wide, x = i % wide;
        double t = most > 0 ? (double)(w[y / FINE * g->wide + x / FINE] / most) : 0;
        double alpha = tint ? TINT * t : VEIL * (1 - t);
        uint32_t pixel = (uint32_t)(255 * alpha + 0.5) << 24;
        for (int shift = 0; shift < 24; shift += 8) /* premultiplied */
            pixel |= (uint32_t)((color >> shift & 255) * alpha) << shift;
        ((uint32_t *)(void *)(data + y * stride))[x] = pixel;
    }
    cairo_surface_mark_dirty(s);
    return s;
}

/* A surface of sw by sh pixels, stretched over the picture at (x,y). */
static void paint(const pictures *o, cairo_surface_t *s, double x, double y, double sw, double sh,
                  bool smooth)
{
    cairo_t *cr = o->c->cr;
    cairo_save(cr);
    cairo_translate(cr, x, y);
    cairo_scale(cr, o->w / sw, o->h / sh);
    cairo_set_source_surface(cr, s, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(cr),
                             smooth ? CAIRO_FILTER_BILINEAR : CAIRO_FILTER_NEAREST);
    cairo_rectangle(cr, 0, 0, sw, sh);
    cairo_fill(cr);
    cairo_restore(cr);
}

static void frame(const pictures *o, double x, double y, double w, double h)
{
    cairo_t *cr = o->c->cr;
    cairo_rectangle(cr, x, y, w, h);
    fv__canvas_color(o->c, FV_RGB(0xffffff), 0.9);
    cairo_set_line_width(cr, 3);
    cairo_stroke(cr);
    cairo_rectangle(cr, x, y, w, h);
    fv__canvas_color(o->c, FV_RGB(0xd55e00), 1);
    cairo_set_line_width(cr, 1.6);
    cairo_stroke(cr);
}

/* Who looks: its patch, or the box of its object. */
static void mark_row(const pictures *o, int64_t row, double x, double y)
{
    const fv_see *s = o->p->s;
    const fv_see_grid *g = &s->map[o->p->kind].row.grid;
    int64_t k = row - g->at;
    if (g->high && k >= 0 && k < g->high * g->wide) {
        double w = o->w / (double)g->wide, h = o->h / (double)g->high;
        frame(o, x + (double)(k % g->wide) * w, y + (double)(k / g->wide) * h, w, h);
    }
    for (int64_t i = 0; g->high && i < s->boxes; i++) {
        const float *e = s->box[i].edge;
        if (s->box[i].row != row) continue;
        frame(o, x + (double)e[0] * o->w, y + (double)e[1] * o->h, (double)(e[2] - e[0]) * o->w,
              (double)(e[3] - e[1]) * o->h);
    }
}

/* The image at (x,y) under the veil of the weights w of all columns; NULL: as it is. */
static void picture(const pictures *o, const float *w, int64_t row, double x, double y)
{
    const fv_image *im = &o->p->s->image->shown;
    const fv_see_grid *g = o->grid;
    if (o->c->measuring) return;
    paint(o, o->image, x, y, im->width, im->height, im->width > 64);
    if (!w) return;
    bool sound = o->p->s->image->seconds > 0;
    cairo_surface_t *veil = veil_surface(g, w + g->at, sound ? TINTED : o->veil, sound);
    paint(o, veil, x, y, (double)(g->wide * FINE), (double)(g->high * FINE), false);
    cairo_surface_destroy(veil);
    mark_row(o, row, x, y);
}

/* ---- arrangements ---- */

static fv_style label_style(double most)
{
    return (fv_style){.size = 12.5, .color = FV_INK, .anchor = 0.5, .most = most};
}

/* Rows side by side, each under the name of who looks; as many in a line as fit. */
static double draw_rows(pictures *o, double x, double y, double *right)
{
    const fv_figure *p = o->p;
    int64_t across = (int64_t)((WIDEST - 2 * MARGIN + GAP) / (o->w + GAP));
    across = across < 1 ? 1 : across;
    for (int64_t i = 0; i < p->rows; i++) {
        char number[24];
        const char *text = fv_see_row(p->s, p->kind, p->row_at[i]);
        double left = x + (double)(i % across) * (o->w + GAP),
               top = y + (double)(i / across) * (o->h + 20 + GAP);
        snprintf(number, sizeof number, "%lld", (long long)p->row_at[i]);
        fv__canvas_text(o->c, left + o->w / 2, top + 8, text ? text : number, label_style(o->w));
        picture(o, p->w + i * p->cols, p->row_at[i], left, top + 20);
        *right = fmax(*right, left + o->w);
    }
    return y + (double)((p->rows + across - 1) / across) * (o->h + 20 + GAP);
}

/* A sound: spectrograms one below the other, the word that each belongs to at its left, and the
 * seconds below; of a series its line, and dates. */
static double draw_strips(pictures *o, double x, double y, double *right)
{
    const fv_figure *p = o->p;
    double all = p->s->image->seconds, step = all > 40 ? 10 : all > 12 ? 2 : all > 2 ? 1 : 0.2;
    fv_style word = {.size = 12.5, .color = FV_INK, .anchor = 1, .most = LABEL - 10},
             second = {.size = 11, .color = FV_MUTED, .anchor = 0.5};
    const fv_see_image *im = p->s->image;
    char text[24];
    for (int64_t i = 0; i < p->rows; i++, y += o->h + 4) {
        const char *name = im->date ? fv_see_row(p->s, p->kind, p->row_at[i])
                                    : fv__figure_row(p, i, text);
        if (im->date) word.size = 11;
        fv__canvas_text(o->c, x + LABEL - 8, y + o->h / 2, name ? name : "", word);
        picture(o, p->w + i * p->cols, p->row_at[i], x + LABEL, y);
    }
    for (double t = 0; t <= all && !im->date; t += step) {
        snprintf(text, sizeof text, step < 1 ? "%.1f s" : "%.0f s", t);
        fv__canvas_text(o->c, x + LABEL + o->w * t / all, y + 9, text, second);
    }
    for (int i = 0; i < DATES && im->date; i++) {
        int64_t at = i * im->dates / DATES;
        second.anchor = 0; /* a date begins where its patch does */
        fv__canvas_text(o->c, x + LABEL + o->w * (double)at / (double)im->dates, y + 9,
                        im->date[at], second);
    }
    *right = fmax(*right, x + LABEL + o->w + 10);
    return y + 18 + GAP;
}

/* The image, and its rollout: larger than the heads below. */
static double draw_summary(pictures *o, double x, double y, double *right)
{
    const fv_figure *p = o->p;
    double w = o->w, h = o->h, k = fmin(260 / w, 260 / h);
    o->w *= k;
    o->h *= k;
    fv__canvas_text(o->c, x + o->w / 2, y + 8, "image", label_style(o->w));
    picture(o, NULL, 0, x, y + 20);
    if (p->rollout) {
        double left = x + o->w + 2 * GAP;
        fv__canvas_text(o->c, left + o->w / 2, y + 8, "rollout through all layers",
                        label_style(o->w));
        picture(o, p->rollout, *p->row_at, left, y + 20);
        *right = fmax(*right, left + o->w);
    }
    y += o->h + 20 + 2 * GAP;
    *right = fmax(*right, x + o->w);
    o->w = w;
    o->h = h;
    return y;
}

/* Layers from top to bottom, heads from left to right, of one row. */
static double draw_heads(pictures *o, double x, double y, double *right)
{
    const fv_figure *p = o->p;
    fv_style head = {.size = 12, .bold = true, .color = FV_MUTED, .anchor = 0.5}, layer = head;
    layer.anchor = 0;
    char text[32];
    double left = x + fv__canvas_width(o->c, "layer 00", layer) + 10;
    y = draw_summary(o, left, y, right);
    for (int64_t h = 0; h < p->heads; h++) {
        snprintf(text, sizeof text, "head %lld", (long long)(p->head + h));
        fv__canvas_text(o->c, left + (double)h * (o->w + GAP) + o->w / 2, y + 8, text, head);
    }
    y += 22;
    for (int64_t l = 0; l < p->layers; l++, y += o->h + GAP) {
        snprintf(text, sizeof text, "layer %lld", (long long)(p->layer + l));
        fv__canvas_text(o->c, x, y + o->h / 2, text, layer);
        for (int64_t h = 0; h < p->heads; h++)
            picture(o, p->w + (l * p->heads + h) * p->cols, *p->row_at,
                    left + (double)h * (o->w + GAP), y);
    }
    *right = fmax(*right, left + (double)p->heads * (o->w + GAP) - GAP);
    return y;
}

/* Pictures keep the shape of the image; the fewer there are, the larger they are. */
void fv__draw_image(fv_canvas *c, const fv_figure *p, double *width, double *height)
{
    const fv_image *im = &p->s->image->shown;
    bool heads = p->layers * p->heads > 1;
    double side = heads ? (p->heads > 8 ? 78 : 110) : p->rows == 1 ? 420 : 210, right = 0;
    double k = side / fmax(im->width, im->height);
    pictures o = {.c = c,
                  .p = p,
                  .grid = &p->s->map[p->kind].col.grid,
                  .w = im->width * k,
                  .h = im->height * k,
                  .veil = veil_color(im)};
    bool sound = p->s->image->seconds > 0;
    if (sound && !heads) o.w = WIDEST - 2 * MARGIN - LABEL, o.h = 42;
    double body = heads ? (double)p->heads * (o.w + GAP) + 80
                        : (double)(p->rows < 5 ? p->rows : 5) * (o.w + GAP);
    double y = fv__draw_title(c, p, MARGIN, MARGIN, fmax(body, 520), &right);
    o.image = image_surface(im);
    if (heads)
        y = draw_heads(&o, MARGIN, y, &right);
    else
        y = (sound ? draw_strips : draw_rows)(&o, MARGIN, y, &right);
    cairo_surface_destroy(o.image);
    *width = right + MARGIN;
    *height = y - GAP + MARGIN;
}
#endif
