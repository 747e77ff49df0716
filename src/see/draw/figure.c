/* figure.c - the content of a picture (which maps, labels, title) and its file as SVG, PNG or PDF.
 *
 * A figure is loaded first: weights of all maps that the view shows, as one array.  Then the view
 * draws it twice: on a surface of one pixel, which only measures, and on the surface of the file,
 * which needs its size before anything is drawn.  The alternative, to record the drawing once and
 * replay it, holds every path in memory and cannot place images on whole pixels. */
#include "see/see.h"

#ifndef HAVE_CAIRO
fv_status fv__see_picture(fv_out *o, fv_see *s, const fv_see_opt *opt, const char *format,
                          fv_err *e)
{
    (void)o, (void)s, (void)opt;
    return fv_fail(e, FV_EMISSING,
                   "this build draws no pictures (.%s), because it was made without cairo and "
                   "Pango; .html, .json and .csv work",
                   format);
}
#else
#include <stdio.h>

#include "canvas.h"

enum {
    MAX_WEIGHTS = 1 << 26,   /* of all maps of a picture: 256 MB of f32 */
    MOST_ROWS = 24,          /* pictures of an image where no rows are asked for */
    MOST_STRIPS = 80,        /* the same of a sound */
    SHARP_PIXELS = 12000000, /* a PNG with fewer has two a unit, for screens of today */
};

/* ---- loading ---- */

/* A single map is large enough for its tokens; several are shown side by side.  Patches are shown
 * where they lie. */
static fv_see_view view_of(const fv_see *s, const fv_see_opt *opt)
{
    if (opt->view != FV_VIEW_AUTO) return opt->view;
    if (s->image && s->map[opt->pick.kind].col.grid.high) return FV_VIEW_IMAGE;
    bool through = opt->pick.rollout || opt->pick.flow;
    return through || opt->pick.head != FV_SEE_ALL ? FV_VIEW_HEAT : FV_VIEW_GRID;
}

/* Which layers and heads a view shows: a grid all that opt does not name, lines all heads of one
 * layer, the other views one map. */
static fv_status choose(fv_figure *p, fv_see *s, const fv_see_opt *opt, fv_see_pick *pick,
                        fv_err *e)
{
    bool image = p->view == FV_VIEW_IMAGE, grid = p->view == FV_VIEW_GRID;
    bool through = opt->pick.rollout || opt->pick.flow;
    *pick = opt->pick;
    if (image && !(s->image && s->map[p->kind].col.grid.high))
        return fv_fail(e, FV_EARG, "what the %s attention looks at are no patches of an image",
                       fv_see_kind_name(p->kind));
    /* of one row all layers and heads; of several each in one picture: the last layer, where
     * objects are told from one another, and of what is written the mean of all */
    if (image && p->rows == 1 && !through) grid = true;
    if (image && !grid && pick->layer == FV_SEE_ALL && !through && p->kind != FV_SEE_CROSS)
        pick->layer = fv_see_shape_of(s, p->kind).layers - 1;
    if (grid && through)
        return fv_fail(e, FV_EARG, "a %s is one map: it has no grid",
                       pick->flow ? "flow" : "rollout");
    if (p->view == FV_VIEW_ALIGNMENT && p->kind != FV_SEE_CROSS)
        return fv_fail(e, FV_EARG,
                       "an alignment joins two sentences: it shows the cross attention, not the %s",
                       fv_see_kind_name(p->kind));
    p->layers = p->heads = 1;
    if (grid && pick->layer == FV_SEE_ALL)
        p->layers = fv_see_shape_of(s, p->kind).layers, pick->layer = 0;
    if (grid && pick->head == FV_SEE_ALL)
        p->heads = fv_see_shape_of(s, p->kind).heads, pick->head = 0;
    if (p->view == FV_VIEW_LINES && pick->head == FV_SEE_ALL && pick->layer != FV_SEE_ALL &&
        !through)
        p->heads = fv_see_shape_of(s, p->kind).heads, pick->head = 0;
    p->layer = pick->layer;
    p->head = pick->head;
    return FV_OK;
}

/* The line under the title that tells how to read the picture. */
static const char *default_note(const fv_figure *p, const fv_see_opt *opt)
{
    if (opt->note) return opt->note;
    if (p->view == FV_VIEW_IMAGE && p->s->image->seconds > 0)
        return "Tinted where the model attends; the greatest weight of each strip is its scale.";
    if (p->view == FV_VIEW_IMAGE)
        return "Dimmed where the model does not attend; the greatest weight of each picture is its "
               "scale.";
    bool maps = p->view == FV_VIEW_HEAT || p->view == FV_VIEW_GRID;
    if (p->kind == FV_SEE_CROSS)
        return maps ? "Rows: the translation as it is written. Columns: the source it looks at."
                    : "Each token of the translation, as it is written, looks at the source.";
    return maps ? "Rows: the tokens that look. Columns: what they look at."
                : "Each token looks at tokens of the same text.";
}

/* fv__see_title calls a layer or head that is not named a mean; a view that shows each of them says
 * so instead. */
static void default_title(fv_figure *p, fv_see_pick pick)
{
    char *end;
    fv__see_title(p->own, sizeof p->own, p->s, pick);
    if (p->layers * p->heads > 1 && (end = strstr(p->own, "mean of all")))
        snprintf(end, sizeof p->own - (size_t)(end - p->own), "%s",
                 p->layers > 1 ? "all layers and heads" : "all heads");
    if (p->view != FV_VIEW_IMAGE || p->rows != 1) return;
    const fv_see_grid *g = &p->s->map[p->kind].row.grid;
    const char *who = fv_see_row(p->s, p->kind, *p->row_at);
    bool patch = *p->row_at >= g->at && *p->row_at < g->at + g->high * g->wide;
    size_t n = strlen(p->own);
    if (who) snprintf(p->own + n, sizeof p->own - n, ": %s%s", patch ? "patch " : "", who);
}

/* The weights of all maps, and the greatest of them: the maps of a grid share one colour scale. */
static fv_status load_maps(fv_figure *p, fv_see *s, fv_see_pick pick, fv_err *e)
{
    int64_t size = p->rows * p->cols;
    for (int64_t i = 0; i < p->layers * p->heads; i++) {
        fv_see_pick one = pick;
        if (p->layers > 1) one.layer += i / p->heads;
        if (p->heads > 1) one.head += i % p->heads;
        fv_status st = FV_OK;
        if (!p->row_at) st = fv_see_weights(s, one, p->from, p->from + p->rows, p->w + i * size, e);
        for (int64_t k = 0; !st && p->row_at && k < p->rows; k++)
            st = fv_see_weights(s, one, p->row_at[k], p->row_at[k] + 1,
                                p->w + i * size + k * p->cols, e);
        if (st) return st;
    }
    if (p->rollout) {
        pick.rollout = true;
        pick.layer = pick.head = FV_SEE_ALL;
        fv_status st = fv_see_weights(s, pick, *p->row_at, *p->row_at + 1, p->rollout, e);
        if (st) return st;
    }
    for (int64_t i = 0; i < p->layers * p->heads * size; i++)
        p->most = p->w[i] > p->most ? p->w[i] : p->most;
    return FV_OK;
}

/* ---- words ---- */

/* The words of tokens [from,from+n) of an axis, as the first token of each and the end; w->text
 * gets their joined labels. */
static bool find_words(fv_words *w, const fv_env *env, const fv_see_axis *a, int64_t from,
                       int64_t n)
{
    w->tokens = n;
    w->start = fv__alloc(env, (size_t)(n + 1) * sizeof *w->start);
    w->text = fv__alloc(env, (size_t)n * sizeof *w->text);
    if (!w->start || !w->text) return false;
    for (int64_t i = 0; i < n; i++) {
        w->text[i] = NULL;
        if (!i || a->word[from + i] != a->word[from + i - 1]) w->start[w->n++] = i;
    }
    w->start[w->n] = n;
    for (int64_t k = 0; k < w->n; k++) {
        fv_buf b = {.env = env};
        for (int64_t i = w->start[k]; i < w->start[k + 1]; i++)
            fv__see_join(&b, a->text[from + i], i == w->start[k]);
        w->text[k] = b.failed || !b.data ? NULL : fv__strdup(env, b.data);
        fv__buf_free(&b);
        if (!w->text[k]) return false;
    }
    return true;
}

static void free_words(fv_words *w, const fv_env *env)
{
    for (int64_t i = 0; w->text && i < w->n; i++)
        if (w->text[i]) fv__free(env, w->text[i], strlen(w->text[i]) + 1);
    fv__free(env, w->start, (size_t)(w->tokens + 1) * sizeof *w->start);
    fv__free(env, w->text, (size_t)w->tokens * sizeof *w->text);
    *w = (fv_words){0};
}

/* One map, in place: columns of a word add up, then rows of a word are averaged.  What is written
 * lies never behind what is still to be read. */
static void merge_map(const fv_figure *p, const float *from, float *to)
{
    const fv_words *r = &p->row_words, *c = &p->col_words;
    int64_t cols = c->n ? c->n : p->cols, rows = r->n ? r->n : p->rows;
    for (int64_t i = 0; i < rows; i++) {
        int64_t a = r->n ? r->start[i] : i, b = r->n ? r->start[i + 1] : i + 1;
        for (int64_t j = 0; j < cols; j++) {
            int64_t x0 = c->n ? c->start[j] : j, x1 = c->n ? c->start[j + 1] : j + 1;
            float sum = 0;
            for (int64_t k = a; k < b; k++)
                for (int64_t x = x0; x < x1; x++) sum += from[k * p->cols + x];
            to[i * cols + j] = sum / (float)(b - a);
        }
    }
}

/* After loading, since weights are computed for tokens; all maps become smaller in place. */
static fv_status merge_words(fv_figure *p, fv_err *e)
{
    const fv_see_map *m = &p->s->map[p->kind];
    const fv_env *env = p->s->env;
    bool ok = true;
    if (m->row.word && m->row.text) ok = find_words(&p->row_words, env, &m->row, p->from, p->rows);
    if (ok && m->col.word && m->col.text) ok = find_words(&p->col_words, env, &m->col, 0, p->cols);
    if (!ok) return fv_fail(e, FV_ENOMEM, "picture: out of memory");
    int64_t rows = p->row_words.n ? p->row_words.n : p->rows,
            cols = p->col_words.n ? p->col_words.n : p->cols;
    for (int64_t i = 0; i < p->layers * p->heads; i++)
        merge_map(p, p->w + i * p->rows * p->cols, p->w + i * rows * cols);
    p->rows = rows;
    p->cols = cols;
    p->most = 0;
    for (int64_t i = 0; i < p->layers * p->heads * rows * cols; i++)
        p->most = p->w[i] > p->most ? p->w[i] : p->most;
    return FV_OK;
}

/* The rows of a picture over an image.  Of one row with all layers and heads the rollout stands
 * beside them, where there is one. */
static bool choose_rows(fv_figure *p, const fv_see_opt *opt)
{
    fv_err none;
    p->n_at = p->rows;
    p->row_at = fv__alloc(p->s->env, (size_t)p->n_at * sizeof *p->row_at);
    if (!p->row_at) return false;
    for (int64_t i = 0; i < p->rows; i++) p->row_at[i] = p->from + i;
    if (!opt->to) fv__image_rows(p->s, p->kind, p->row_at, p->rows);
    if (p->layers * p->heads < 2 || fv__see_rolls(p->s, p->kind, &none)) return true;
    p->rollout = fv__alloc(p->s->env, (size_t)p->cols * sizeof *p->rollout);
    return p->rollout != NULL;
}

/* Title and note are the caller's, or what fv__see_title makes of the pick; of an alignment the
 * sentences themselves are the title. */
fv_status fv__figure_load(fv_figure *p, fv_see *s, const fv_see_opt *opt, fv_err *e)
{
    fv_see_pick pick;
    *p = (fv_figure){.s = s,
                     .kind = opt->pick.kind,
                     .view = view_of(s, opt),
                     .from = opt->to ? opt->from : 0};
    p->rows = opt->to ? opt->to - opt->from : fv_see_shape_of(s, p->kind).rows;
    bool sound = s->image && s->image->seconds > 0; /* its strips are low: more of them fit */
    if (p->view == FV_VIEW_IMAGE && !opt->to)
        p->rows = fv__image_rows(s, p->kind, NULL, sound ? MOST_STRIPS : MOST_ROWS);
    fv_status st = choose(p, s, opt, &pick, e);
    if (st) return st;
    p->cols = fv_see_shape_of(s, p->kind).cols;
    if (p->rows * p->cols > MAX_WEIGHTS / (p->layers * p->heads))
        return fv_fail(e, FV_EARG,
                       "%lld maps of %lld x %lld weights are too many for one picture: choose a "
                       "layer, a head or rows",
                       (long long)(p->layers * p->heads), (long long)p->rows, (long long)p->cols);
    if (p->view == FV_VIEW_IMAGE && !choose_rows(p, opt)) {
        fv__figure_free(p);
        return fv_fail(e, FV_ENOMEM, "picture: out of memory");
    }
    default_title(p, p->layers * p->heads > 1 ? opt->pick : pick);
    p->title = opt->title                                  ? opt->title
               : p->view == FV_VIEW_ALIGNMENT && opt->text ? opt->text
                                                           : p->own;
    p->text = p->title == opt->text ? NULL : opt->text;
    p->note = default_note(p, opt);
    p->n_w = p->layers * p->heads * p->rows * p->cols;
    p->n_pos = p->rows + p->cols;
    p->w = fv__alloc(s->env, (size_t)p->n_w * sizeof *p->w);
    p->token_pos = fv__alloc(s->env, (size_t)p->n_pos * sizeof *p->token_pos);
    st = p->w && p->token_pos ? load_maps(p, s, pick, e)
                              : fv_fail(e, FV_ENOMEM, "picture: out of memory");
    if (!st && opt->words && (p->view != FV_VIEW_IMAGE || sound)) st = merge_words(p, e);
    if (st) fv__figure_free(p);
    return st;
}

void fv__figure_free(fv_figure *p)
{
    fv__free(p->s->env, p->w, (size_t)p->n_w * sizeof *p->w);
    fv__free(p->s->env, p->token_pos, (size_t)p->n_pos * sizeof *p->token_pos);
    fv__free(p->s->env, p->row_at, (size_t)p->n_at * sizeof *p->row_at);
    fv__free(p->s->env, p->rollout, (size_t)p->cols * sizeof *p->rollout);
    free_words(&p->row_words, p->s->env);
    free_words(&p->col_words, p->s->env);
    p->row_at = NULL;
    p->rollout = NULL;
    p->w = NULL;
    p->token_pos = NULL;
}

/* Without a tokenizer tokens are called by their positions. */
static const char *text_or_number(const char *text, int64_t i, char number[24])
{
    if (text) return text;
    snprintf(number, 24, "%lld", (long long)i);
    return number;
}

const char *fv__figure_row(const fv_figure *p, int64_t i, char number[24])
{
    if (p->row_words.n) return p->row_words.text[i];
    return text_or_number(fv_see_row(p->s, p->kind, p->from + i), p->from + i, number);
}

const char *fv__figure_col(const fv_figure *p, int64_t i, char number[24])
{
    if (p->col_words.n) return p->col_words.text[i];
    return text_or_number(fv_see_col(p->s, p->kind, i), i, number);
}

/* The function that draws this view. */
fv_draw_fn *fv__figure_draw(const fv_figure *p)
{
    static fv_draw_fn *const draw[FV_VIEWS] = {
        [FV_VIEW_HEAT] = fv__draw_heat,   [FV_VIEW_GRID] = fv__draw_grid,
        [FV_VIEW_LINES] = fv__draw_lines, [FV_VIEW_ALIGNMENT] = fv__draw_alignment,
        [FV_VIEW_IMAGE] = fv__draw_image,
    };
    return draw[p->view];
}

/* ---- files ---- */

/* cairo writes through this callback, so that the file itself is written by fv_out: whole or not at
 * all. */
static cairo_status_t to_buffer(void *user, const unsigned char *data, unsigned n)
{
    fv_buf *b = user;
    fv__buf_add(b, data, n);
    return b->failed ? CAIRO_STATUS_NO_MEMORY : CAIRO_STATUS_SUCCESS;
}

/* A surface of w by h units; *fine becomes its pixels a unit (PDF has points of 1/72 inch). */
static cairo_surface_t *surface_for(const char *format, fv_buf *b, double w, double h, double *fine)
{
    if (!strcmp(format, "svg")) {
        cairo_surface_t *s = cairo_svg_surface_create_for_stream(to_buffer, b, w, h);
        cairo_svg_surface_set_document_unit(s, CAIRO_SVG_UNIT_PX);
        return s;
    }
    if (!strcmp(format, "pdf"))
        return cairo_pdf_surface_create_for_stream(to_buffer, b, w * 0.75, h * 0.75);
    *fine = w * h * 4 <= SHARP_PIXELS ? 2 : 1;
    return cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(w * *fine + 0.5),
                                      (int)(h * *fine + 0.5));
}

/* A title inside an SVG is what a screen reader says; it stands right behind the opening tag. */
static void put_title(fv_out *o, const fv_buf *b, const char *title)
{
    const char *tag = b->data ? strstr(b->data, "<svg") : NULL,
               *end = tag ? strchr(tag, '>') : NULL;
    size_t head = end ? (size_t)(end - b->data) + 1 : 0;
    fv__out_add(o, b->data, head);
    fv__out_add(o, "\n<title>", 8);
    while (*title) {
        char c[5] = {0};
        title += fv__see_char(c, title);
        const char *as = *c == '<'                  ? "&lt;"
                         : *c == '&'                ? "&amp;"
                         : (unsigned char)*c < 0x20 ? " "
                                                    : c;
        fv__out_add(o, as, strlen(as));
    }
    fv__out_add(o, "</title>", 8);
    fv__out_add(o, b->data + head, b->len - head);
}

/* Draws on a surface of known size and appends the file to o. */
static fv_status draw_to(fv_out *o, const fv_figure *p, const char *format, double w, double h,
                         fv_err *e)
{
    fv_buf b = {.env = p->s->env};
    double fine = !strcmp(format, "pdf") ? 0.75 : 1;
    cairo_surface_t *surface = surface_for(format, &b, w, h, &fine);
    fv_canvas c;
    if (fv__canvas_open(&c, surface)) {
        c.fine = fine;
        c.raster = !strcmp(format, "png");
        cairo_scale(c.cr, fine, fine);
        cairo_set_source_rgb(c.cr, 1, 1, 1);
        cairo_paint(c.cr);
        fv__figure_draw(p)(&c, p, &w, &h);
    }
    cairo_status_t cs = cairo_status(c.cr);
    fv__canvas_close(&c);
    if (!cs && !strcmp(format, "png"))
        cs = cairo_surface_write_to_png_stream(surface, to_buffer, &b);
    cairo_surface_finish(surface);
    if (!cs)
        cs = cairo_surface_status(surface) == CAIRO_STATUS_SURFACE_FINISHED
                 ? CAIRO_STATUS_SUCCESS
                 : cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    fv_status st = FV_OK;
    if (cs)
        st = fv_fail(e, cs == CAIRO_STATUS_NO_MEMORY ? FV_ENOMEM : FV_EARG,
                     "a picture of %.0f x %.0f pixels: %s", w, h, cairo_status_to_string(cs));
    else if (!strcmp(format, "svg"))
        put_title(o, &b, p->title);
    else
        fv__out_add(o, b.data, b.len);
    fv__buf_free(&b);
    return st;
}

/* Measures on a surface of one pixel, then draws. */
fv_status fv__see_picture(fv_out *o, fv_see *s, const fv_see_opt *opt, const char *format,
                          fv_err *e)
{
    fv_figure p;
    fv_canvas c;
    double w = 0, h = 0;
    fv_status st = fv__draw_library(e);
    if (!st) st = fv__figure_load(&p, s, opt, e);
    if (st) return st;
    cairo_surface_t *nothing = cairo_image_surface_create(CAIRO_FORMAT_A8, 1, 1);
    bool ok = fv__canvas_open(&c, nothing);
    c.measuring = true;
    if (ok) fv__figure_draw (&p)(&c, &p, &w, &h);
    fv__canvas_close(&c);
    cairo_surface_destroy(nothing);
    st = ok ? draw_to(o, &p, format, w, h, e) : fv_fail(e, FV_ENOMEM, "picture: out of memory");
    fv__figure_free(&p);
    return st;
}
#endif
