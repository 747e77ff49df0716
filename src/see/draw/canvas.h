/* canvas.h - what figures are drawn with: cairo for shapes, Pango for text, so that any script is
 * shaped and any font serves. */
#ifndef FV_SEE_CANVAS_H
#define FV_SEE_CANVAS_H

#include "see/draw/library.h"
#include "see/see.h"

typedef struct fv_rgb {
    double r, g, b;
} fv_rgb;

#define FV_RGB(hex)                                                                                \
    ((fv_rgb){((hex) >> 16 & 255) / 255.0, ((hex) >> 8 & 255) / 255.0, ((hex)&255) / 255.0})

/* Weight 0 to 1 on the light scale of palette.h. */
fv_rgb fv__shade(double t);
/* The colour of a head; see palette.h. */
fv_rgb fv__head_color(int64_t head);

#define FV_INK FV_RGB(0x1b2430)
#define FV_MUTED FV_RGB(0x5f6b7a)
#define FV_FAINT FV_RGB(0xd9dee5)

/* Where a text was drawn: its centre, size and rotation.  Tests check these. */
typedef struct fv_text_box {
    double x, y, w, h, angle;
} fv_text_box;

typedef struct fv_canvas {
    cairo_t *cr;
    PangoLayout *layout;
    double fine;    /* device pixels for a unit */
    bool raster;    /* the surface has pixels, fine of them for a unit */
    bool measuring; /* only sizes are wanted: shapes may be left out */
    void (*on_text)(void *user, const fv_text_box *b);
    void *user;
} fv_canvas;

typedef struct fv_style {
    double size; /* of the type, in pixels */
    bool bold;
    fv_rgb color;
    double most;      /* width beyond which the middle is left out; 0: none */
    bool whole_words; /* leave out words, not letters */
    double anchor;    /* 0: x is the left end, 0.5 the middle, 1 the right end */
    double rotation;  /* degrees, counter-clockwise around (x,y) */
} fv_style;

/* The dashes of a head's lines: heads beyond the colours there are differ by them. */
void fv__head_dash(fv_canvas *c, int64_t head);
double fv__canvas_width(fv_canvas *c, const char *text, fv_style s);
/* y is the middle of the line; returns the width. */
double fv__canvas_text(fv_canvas *c, double x, double y, const char *text, fv_style s);
void fv__canvas_color(fv_canvas *c, fv_rgb color, double alpha);
/* added to the path */
void fv__canvas_box(fv_canvas *c, double x, double y, double w, double h, double round);

/* ---- pictures ---- */

/* Words along one side of a map whose tokens are merged; n 0: tokens are shown. */
typedef struct fv_words {
    int64_t n, tokens;
    int64_t *start; /* the first token of each word, and the end */
    char **text;
} fv_words;

/* What a picture shows: maps of one size, layers by heads of them, with their tokens. */
typedef struct fv_figure {
    const fv_see *s;
    fv_see_kind kind;
    fv_see_view view;
    int64_t layers, heads, rows, cols;
    int64_t layer, head, from; /* the first shown; head FV_SEE_ALL: a mean */
    int64_t *row_at;           /* of an image: the rows that are shown; NULL: from `from` on */
    float *rollout;            /* of an image: beside all layers and heads of one row; or NULL */
    float *w;                  /* (layers,heads,rows,cols) */
    float most;                /* the greatest of them */
    double *token_pos;         /* scratch for the positions of rows + cols labels */
    int64_t n_w, n_pos, n_at;  /* as allocated */
    fv_words row_words, col_words;
    const char *title, *text, *note; /* text and note stand under the title and may be NULL */
    char own[160];                   /* a title of ours */
} fv_figure;

/* Draws the figure; *w and *h get the size it needs, which does not depend on the surface. */
typedef void fv_draw_fn(fv_canvas *c, const fv_figure *p, double *w, double *h);
fv_draw_fn fv__draw_heat, fv__draw_grid, fv__draw_lines, fv__draw_alignment, fv__draw_image;

/* The rows that a picture over an image shows where none are asked for, at most `most` of them into
 * at (NULL: counted only). */
int64_t fv__image_rows(const fv_see *s, fv_see_kind k, int64_t *at, int64_t most);

/* The text of a row or column, its number where it has none. */
const char *fv__figure_row(const fv_figure *p, int64_t i, char number[24]);
const char *fv__figure_col(const fv_figure *p, int64_t i, char number[24]);
/* Special tokens are muted. */
fv_rgb fv__token_color(const char *token);
/* Title and note from (x,y) on, at most `most` wide; returns where the next line may begin and
 * widens *right. */
double fv__draw_title(fv_canvas *c, const fv_figure *p, double x, double y, double most,
                      double *right);
/* The shade of a weight.  In large maps weights are small: there it goes by the square root, and
 * the scale says so. */
fv_rgb fv__figure_shade(const fv_figure *p, double weight);
/* One map with its corner at (x,y), cells cw by ch. */
void fv__draw_cells(fv_canvas *c, const fv_figure *p, const float *w, double x, double y, double cw,
                    double ch, bool numbers);
/* The colour scale; returns its height. */
double fv__draw_scale(fv_canvas *c, const fv_figure *p, double x, double y, double *right);

/* The figure that opt asks for; freed with fv__figure_free. */
fv_status fv__figure_load(fv_figure *p, fv_see *s, const fv_see_opt *opt, fv_err *e);
void fv__figure_free(fv_figure *p);
fv_draw_fn *fv__figure_draw(const fv_figure *p);
/* Puts a canvas around a surface; false if memory is out. */
bool fv__canvas_open(fv_canvas *c, cairo_surface_t *surface);
void fv__canvas_close(fv_canvas *c);

#endif
