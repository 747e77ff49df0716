/* test_see_draw.c - pictures and the page: well-formed, of the size they say, no text over another
 * or out of the sheet. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/see.h"
#include "fovea/author/see.h"
#include "helper/device.h"
#include "helper/files.h"
#include "see/palette.h"
#ifdef HAVE_CAIRO
#include "see/draw/canvas.h"
#endif

/* fontconfig links its patterns by offsets, which no leak checker can follow: what it still holds
 * looks lost.  Cairo keeps what it knows of fonts until the process ends.  The checker finds this
 * only if it can be seen from outside. */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__lsan_default_suppressions(void) { return "leak:libfontconfig\nleak:libcairo"; }

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

/* ---- attentions of any size, with tokens that are hard to set ---- */

static const char *const hard[] = {
    "a",      "Donaudampfschifffahrtsgesellschaftskapit\u00e4nsm\u00fctze",
    "</s>",   "\u6211\u559c\u6b22",
    "<unk>",  "\u0645\u0631\u062d\u0628\u0627",
    "&",      "\u043f\u0440\u0438\u0432\u0435\u0442",
    "\u2423", "\"quoted\" & <b>",
    ".",      "l'\u00e9cole"};

typedef struct scene {
    fv_ctx *c;
    fv_see *s;
} scene;

static fv_tensor *noise(fv_ctx *c, int64_t n, int64_t width, uint32_t seed)
{
    float *x = malloc((size_t)(n * width) * sizeof *x);
    for (int64_t i = 0; i < n * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (float)(1 << 23) * 3 - 3;
    }
    fv_tensor *t = fv_floats(c, x, FV_SHAPE(1, n, width));
    free(x);
    return t;
}

static void open_scene(scene *sc, int64_t rows, int64_t cols, int64_t layers, int64_t heads)
{
    fv_err e;
    check(fv_ctx_new(&sc->c, device, (fv_ctx_opt){.record = true}, &e), &e);
    check(fv_see_watch(&sc->s, sc->c, 0, &e), &e);
    for (int64_t l = 0; l < layers; l++) {
        uint32_t seed = (uint32_t)(rows * 100 + l);
        fv_tensor *q = noise(sc->c, rows, heads * 4, seed),
                  *k = noise(sc->c, cols, heads * 4, seed + 77);
        fv_attention(sc->c, q, k, k, (fv_attn){.n_head = heads, .role = FV_ATTN_CROSS});
    }
    assert_int_equal(fv_ctx_status(sc->c), FV_OK);
    const char **names = malloc((size_t)(rows + cols) * sizeof *names);
    for (int64_t i = 0; i < rows + cols; i++)
        names[i] = hard[i % (int64_t)(sizeof hard / sizeof *hard)];
    check(fv_see_label(sc->s, FV_SEE_CROSS, names, rows, names + rows, cols, &e), &e);
    free(names);
}

static void close_scene(scene *sc)
{
    fv_see_free(sc->s);
    fv_ctx_free(sc->c);
}

static char *saved(fv_see *s, const char *name, fv_see_opt opt, size_t *n)
{
    const char *path = scratch("%s", name);
    fv_err e;
    check(fv_see_save(s, NULL, path, opt, &e), &e);
    return slurp(path, n);
}

#ifdef HAVE_CAIRO

/* ---- files ---- */

/* Tags close in order, attributes are quoted, text holds no bare < or &.  Enough for what a drawing
 * program writes. */
static bool well_formed(const char *x)
{
    char stack[64][32];
    int depth = 0;
    bool any = false;
    for (const char *p = x; *p;) {
        if (*p == '&') {
            size_t n = strcspn(p + 1, "; <&\n") + 1;
            if (!(n > 1 && n < 10)) return false;
        }
        if (*p != '<') {
            p++;
            continue;
        }
        if (!strncmp(p, "<?", 2) || !strncmp(p, "<!", 2)) {
            p = strchr(p, '>');
            if (!p) return false;
            continue;
        }
        const char *name = p + 1 + (p[1] == '/');
        size_t n = strcspn(name, " \n\t/>");
        if (!n || n > 31) return false;
        const char *q = name + n;
        while (*q && *q != '>') {
            if (*q == '<') return false;
            if (*q == '"') q = strchr(q + 1, '"');
            if (!q) return false;
            q++;
        }
        if (*q != '>') return false;
        if (p[1] == '/') {
            if (!depth || strlen(stack[depth - 1]) != n || strncmp(stack[depth - 1], name, n) != 0)
                return false;
            depth--;
        } else if (q[-1] != '/') {
            if (depth == 64 || (any && !depth)) return false;
            snprintf(stack[depth++], 32, "%.*s", (int)n, name);
            any = true;
        }
        p = q + 1;
    }
    return any && !depth;
}

static void the_check_of_markup_can_fail(void **state)
{
    (void)state;
    assert_true(well_formed("<?xml version=\"1.0\"?>\n<a b=\"<\"><c/>x &amp; y</a>\n"));
    assert_false(well_formed("<a><b></a></b>"));
    assert_false(well_formed("<a>x & y</a>"));
    assert_false(well_formed("<a b=\"1>"));
    assert_false(well_formed("<a></a><b></b>"));
    assert_false(well_formed("<a>"));
}

static uint32_t big_endian(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint32_t)u[0] << 24 | (uint32_t)u[1] << 16 | (uint32_t)u[2] << 8 | u[3];
}

static void files_are_what_their_names_say(void **state)
{
    (void)state;
    scene sc;
    size_t n;
    open_scene(&sc, 7, 9, 2, 3);
    fv_see_opt o = {.pick = {.kind = FV_SEE_CROSS, .layer = 1, .head = 2},
                    .title = "a < b & \"c\" \xff",
                    .text = "\xff\xfe"};
    for (int view = 1; view < FV_VIEW_IMAGE; view++) {
        o.view = (fv_see_view)view;
        double w = 0, h = 0;
        char *svg = saved(sc.s, "x.svg", o, &n);
        assert_true(well_formed(svg));
        assert_non_null(strstr(svg, "<title>a &lt; b &amp; \"c\" \uFFFD</title>"));
        assert_int_equal(sscanf(strstr(svg, "width=\""), "width=\"%lf", &w), 1);
        assert_int_equal(sscanf(strstr(svg, "height=\""), "height=\"%lf", &h), 1);
        assert_true(w > 100 && w < 3000 && h > 100 && h < 3000);
        free(svg);

        char *png = saved(sc.s, "x.png", o, &n);
        assert_true(n > 1000);
        assert_memory_equal(png, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
        assert_true(fabs(big_endian(png + 16) - 2 * w) <= 1 &&
                    fabs(big_endian(png + 20) - 2 * h) <= 1);
        assert_memory_equal(png + n - 8, "IEND\xae\x42\x60\x82", 8);
        free(png);

        char *pdf = saved(sc.s, "x.pdf", o, &n);
        assert_memory_equal(pdf, "%PDF-1.", 7);
        assert_non_null(memmem(pdf + n - 16, 16, "%%EOF", 5));
        free(pdf);
    }
    close_scene(&sc);
}

/* ---- the sheet ---- */

typedef struct boxes {
    fv_text_box at[4096];
    int n;
} boxes;

static void keep_box(void *user, const fv_text_box *b)
{
    boxes *all = user;
    assert_true(all->n < 4096);
    all->at[all->n++] = *b;
}

/* How far a box reaches from its centre along the direction (x,y). */
static double reach(const fv_text_box *b, double x, double y)
{
    double c = cos(b->angle), s = sin(b->angle);
    /* of a line's height, what letters fill */
    return fabs(x * c + y * s) * b->w / 2 + fabs(-x * s + y * c) * b->h * 0.36;
}

/* Two turned boxes are apart if some side of one has all of the other beyond it. */
static bool apart(const fv_text_box *a, const fv_text_box *b)
{
    double dx = b->x - a->x, dy = b->y - a->y;
    for (int i = 0; i < 4; i++) {
        double angle = (i < 2 ? a : b)->angle + (i % 2 ? M_PI / 2 : 0), x = cos(angle),
               y = sin(angle);
        if (fabs(dx * x + dy * y) >= reach(a, x, y) + reach(b, x, y)) return true;
    }
    return false;
}

static void check_sheet(const fv_figure *p, const char *what)
{
    boxes *all = calloc(1, sizeof *all);
    double w, h, x0, y0, iw, ih;
    fv_canvas c;
    assert_int_equal(fv__draw_library(NULL), FV_OK);
    cairo_surface_t *s = cairo_recording_surface_create(CAIRO_CONTENT_COLOR_ALPHA, NULL);
    assert_true(fv__canvas_open(&c, s));
    c.on_text = keep_box;
    c.user = all;
    fv__figure_draw(p)(&c, p, &w, &h);
    assert_int_equal(cairo_status(c.cr), CAIRO_STATUS_SUCCESS);
    fv__canvas_close(&c);
    cairo_recording_surface_ink_extents(s, &x0, &y0, &iw, &ih);
    cairo_surface_destroy(s);

    if (!(x0 >= 0 && y0 >= 0 && x0 + iw <= w && y0 + ih <= h))
        print_error("%s: ink from %g,%g to %g,%g on a sheet of %g x %g\n", what, x0, y0, x0 + iw,
                    y0 + ih, w, h);
    assert_true(x0 >= 0 && y0 >= 0 && x0 + iw <= w && y0 + ih <= h);
    assert_true(all->n > 2);
    for (int i = 0; i < all->n; i++)
        for (int j = 0; j < i; j++) {
            const fv_text_box *a = &all->at[i], *b = &all->at[j];
            if (!apart(a, b))
                print_error("%s: texts at %g,%g and %g,%g overlap\n", what, a->x, a->y, b->x, b->y);
            assert_true(apart(a, b));
        }
    free(all);
}

static void nothing_overlaps_or_leaves_the_sheet(void **state)
{
    (void)state;
    static const int sizes[][4] = {/* rows, columns, layers, heads */
                                   {1, 1, 1, 1},     {1, 12, 2, 4},   {12, 1, 2, 4},
                                   {8, 7, 2, 4},     {24, 30, 3, 8},  {60, 40, 1, 12},
                                   {100, 100, 2, 2}, {300, 200, 1, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int *z = sizes[i];
        scene sc;
        open_scene(&sc, z[0], z[1], z[2], z[3]);
        for (int view = 1; view < FV_VIEW_IMAGE; view++)
            for (int every = 0; every < 2; every++) {
                fv_see_opt o = {.pick = {.kind = FV_SEE_CROSS, .head = every ? FV_SEE_ALL : 0},
                                .view = (fv_see_view)view};
                if (every && view == FV_VIEW_GRID) o.pick.layer = FV_SEE_ALL;
                fv_figure p;
                fv_err e;
                char what[64];
                snprintf(what, sizeof what, "view %d of %d x %d, %s", view, z[0], z[1],
                         every ? "all heads" : "one head");
                check(fv__figure_load(&p, sc.s, &o, &e), &e);
                check_sheet(&p, what);
                fv__figure_free(&p);
            }
        close_scene(&sc);
    }
}

/* Merged words: columns add up, rows are averaged, so rows still add up to 1. */
static void words_are_merged(void **state)
{
    (void)state;
    static const int32_t words[] = {0, 1, 1, 2, 2, 2, 3};
    scene sc;
    fv_figure p, q;
    fv_err e;
    open_scene(&sc, 7, 7, 1, 2);
    fv_see_map *m = &sc.s->map[FV_SEE_CROSS];
    const char *texts[] = {
        "The", "un", "##able", "\U0001F63A 1/3", "\U0001F63A 2/3", "\U0001F63A 3/3", "."};
    assert_true(fv__see_axis_copy(sc.s->env, &m->row, texts, words, NULL, 7));
    assert_true(fv__see_axis_copy(sc.s->env, &m->col, texts, words, NULL, 7));
    fv_see_opt o = {.pick = {FV_SEE_CROSS, 0, FV_SEE_ALL, false}, .view = FV_VIEW_LINES};
    check(fv__figure_load(&q, sc.s, &o, &e), &e);
    o.words = true;
    check(fv__figure_load(&p, sc.s, &o, &e), &e);
    char number[24];
    assert_int_equal(p.rows, 4);
    assert_int_equal(p.cols, 4);
    assert_string_equal(fv__figure_row(&p, 1, number), "unable");
    assert_string_equal(fv__figure_col(&p, 2, number), "\U0001F63A");
    for (int h = 0; h < 2; h++) {
        const float *w = p.w + h * 16, *t = q.w + h * 49;
        float want = (t[1 * 7 + 3] + t[1 * 7 + 4] + t[1 * 7 + 5] + t[2 * 7 + 3] + t[2 * 7 + 4] +
                      t[2 * 7 + 5]) /
                     2;
        assert_true(fabsf(w[1 * 4 + 2] - want) < 1e-6f);
        for (int i = 0; i < 4; i++) {
            float sum = 0;
            for (int j = 0; j < 4; j++) sum += w[i * 4 + j];
            assert_true(fabsf(sum - 1) < 1e-5f);
        }
    }
    fv__figure_free(&p);
    fv__figure_free(&q);
    close_scene(&sc);
}

/* A heading that is too wide loses words, not letters. */
static void titles_are_cut_between_words(void **state)
{
    (void)state;
    fv_canvas c;
    assert_int_equal(fv__draw_library(NULL), FV_OK);
    cairo_surface_t *s = cairo_recording_surface_create(CAIRO_CONTENT_COLOR_ALPHA, NULL);
    assert_true(fv__canvas_open(&c, s));
    const char *text = "The small child helps the beautiful neighbour of the old house";
    double all = fv__canvas_width(&c, text, (fv_style){.size = 12});
    fv_style narrow = {.size = 12, .most = all * 0.7, .whole_words = true};
    assert_true(fv__canvas_width(&c, text, narrow) <= all * 0.7);
    const char *shown = pango_layout_get_text(c.layout), *gap = strstr(shown, " \u2026 ");
    assert_non_null(gap);
    assert_int_equal(strncmp(text, shown, (size_t)(gap - shown) + 1),
                     0); /* a whole word, then a space */
    const char *tail = gap + strlen(" \u2026");
    assert_string_equal(tail, text + strlen(text) - strlen(tail));
    fv__canvas_close(&c);
    cairo_surface_destroy(s);
}

/* A grid of large maps has the pixels of the surface, not several for each weight. */
static void large_grids_stay_small(void **state)
{
    (void)state;
    scene sc;
    size_t n;
    open_scene(&sc, 260, 260, 6, 6);
    char *png = saved(sc.s, "grid.png",
                      (fv_see_opt){.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false},
                                   .view = FV_VIEW_GRID},
                      &n);
    assert_true(n < 8000000);
    free(png);
    close_scene(&sc);
}

static void views_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    scene sc;
    fv_err e;
    const char *path = scratch("no.svg");
    open_scene(&sc, 3, 3, 1, 1);
    fv_see_opt grid = {.pick = {FV_SEE_CROSS, 0, FV_SEE_ALL, true}, .view = FV_VIEW_GRID};
    assert_int_equal(fv_see_save(sc.s, NULL, path, grid, &e), FV_EARG);
    fv_see_opt missing = {.pick = {FV_SEE_ENCODER, 0, 0, false}};
    assert_int_equal(fv_see_save(sc.s, NULL, path, missing, &e), FV_EARG);
    assert_non_null(strstr(e.text, "it has: cross"));
    assert_null(fopen(path, "rb")); /* nothing is left behind */
    close_scene(&sc);
}

#else

static void pictures_are_refused_in_a_sentence(void **state)
{
    (void)state;
    scene sc;
    fv_err e;
    open_scene(&sc, 3, 3, 1, 1);
    assert_int_equal(fv_see_save(sc.s, NULL, "x.svg", (fv_see_opt){.pick = {.kind = FV_SEE_CROSS}},
                                 &e),
                     FV_EMISSING);
    assert_non_null(strstr(e.text, "cairo"));
    close_scene(&sc);
}

#endif

/* ---- the page ---- */

static int digit(char c)
{
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(all, c);
    return at && c ? (int)(at - all) : 0;
}

/* The 16-bit number at index i of a base64 text. */
static unsigned number_at(const char *text, int64_t i)
{
    unsigned byte[2];
    for (int k = 0; k < 2; k++) {
        int64_t at = 2 * i + k;
        const char *g = text + at / 3 * 4;
        unsigned v = (unsigned)(digit(g[0]) << 18 | digit(g[1]) << 12 | digit(g[2]) << 6 |
                                digit(g[3]));
        byte[k] = v >> (16 - 8 * (at % 3)) & 255;
    }
    return byte[0] | byte[1] << 8;
}

/* The text of the element with this id; *n gets its length. */
static const char *element(const char *page, const char *id, size_t *n)
{
    char key[80];
    *n = 0;
    snprintf(key, sizeof key, "id=\"%s\">", id);
    const char *at = strstr(page, key);
    if (!at) return NULL;
    at += strlen(key);
    const char *end = strstr(at, "</script>");
    assert_non_null(end);
    *n = (size_t)(end - at);
    return at;
}

static json_t *data_of(const char *page)
{
    size_t n;
    json_error_t je;
    const char *text = element(page, "data", &n);
    assert_non_null(text);
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!j) print_error("%s\n", je.text);
    assert_non_null(j);
    return j;
}

static long long number_of(const json_t *j, const char *key)
{
    return (long long)json_integer_value(json_object_get(j, key));
}

static void the_page_holds_all_and_needs_nothing(void **state)
{
    (void)state;
    scene sc;
    size_t n;
    fv_err e;
    open_scene(&sc, 7, 11, 2, 3);
    fv_see_pick start = {FV_SEE_CROSS, 1, 2, false, false};
    char *page = saved(sc.s, "x.html",
                       (fv_see_opt){.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false},
                                    .start = &start,
                                    .text = "</script> & \xff more"},
                       &n);
    assert_memory_equal(page, "<!DOCTYPE html>", 15);
    assert_non_null(strstr(page, "</html>"));
    assert_null(strstr(page, "@css@"));
    assert_null(strstr(page, "@js@"));
    assert_null(strstr(page, "@data@"));
    assert_null(strstr(page, " src="));
    assert_null(strstr(page, "@import"));

    json_t *j = data_of(page);
    assert_string_equal(json_string_value(json_object_get(j, "title")), "</script> & \uFFFD more");
    assert_int_equal(number_of(json_object_get(j, "begin"), "head"), 2);
    assert_int_equal(json_array_size(json_object_get(j, "heads")), FV_HEAD_COLORS);
    json_t *m = json_array_get(json_object_get(j, "maps"), 0);
    assert_string_equal(json_string_value(json_object_get(m, "kind")), "cross");
    assert_int_equal(json_array_size(json_object_get(m, "rows")), 7);
    assert_string_equal(json_string_value(json_array_get(json_object_get(m, "rows"), 1)), hard[1]);
    for (int64_t h = 0; h < 6; h++) {
        float row[11];
        char id[64];
        snprintf(id, sizeof id, "cross.%d.%d", (int)(h / 3), (int)(h % 3));
        const char *w = element(page, id, &n);
        assert_non_null(w);
        assert_int_equal(n, (7 * 11 * 2 + 2) / 3 * 4);
        check(fv_see_weights(sc.s, (fv_see_pick){FV_SEE_CROSS, h / 3, h % 3, false, false}, 4, 5,
                             row, &e),
              &e);
        for (int64_t c = 0; c < 11; c++) {
            double root = number_at(w, 4 * 11 + c) / 65535.0, want = (double)row[c];
            assert_true(fabs(root * root - want) < 1.6e-5 * sqrt(want) + 1e-9);
        }
    }
    assert_non_null(element(page, "cross.1.mean", &n));
    assert_non_null(element(page, "cross.thumbs", &n));
    assert_int_equal(n, (2 * 4 * 7 * 11 + 2) / 3 * 4); /* three heads and their mean, two layers */
    json_decref(j);
    free(page);
    close_scene(&sc);
}

/* A layer, a head and rows that are named make the page smaller, and too large a page says so. */
static void a_page_of_a_part_holds_that_part(void **state)
{
    (void)state;
    scene sc;
    size_t all, part, n;
    fv_err e;
    open_scene(&sc, 60, 70, 3, 4);
    fv_see_opt o = {.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false}};
    char *whole = saved(sc.s, "all.html", o, &all);
    o.pick.layer = 1;
    o.pick.head = 2;
    o.from = 10, o.to = 30;
    char *page = saved(sc.s, "part.html", o, &part);
    assert_true(all - part > 100000);
    json_t *j = data_of(page), *m = json_array_get(json_object_get(j, "maps"), 0);
    assert_int_equal(number_of(m, "layer"), 1);
    assert_int_equal(number_of(m, "layers"), 1);
    assert_int_equal(number_of(m, "head"), 2);
    assert_int_equal(number_of(m, "heads"), 1);
    assert_int_equal(number_of(m, "first_row"), 10);
    assert_int_equal(json_array_size(json_object_get(m, "rows")), 20);
    assert_int_equal(json_array_size(json_object_get(m, "cols")), 70);
    float row[70];
    const char *w = element(page, "cross.1.2", &n);
    assert_non_null(w);
    check(fv_see_weights(sc.s, o.pick, 12, 13, row, &e), &e);
    double root = number_at(w, 2 * 70 + 33) / 65535.0;
    assert_true(fabs(root * root - (double)row[33]) < 1e-5);
    assert_null(element(page, "cross.0.2", &n));
    assert_null(element(page, "cross.1.mean", &n));
    json_decref(j);
    free(page);
    free(whole);
    close_scene(&sc);

    open_scene(&sc, 3000, 3000, 2, 8);
    const char *path = scratch("large.html");
    o = (fv_see_opt){.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false}};
    assert_int_equal(fv_see_save(sc.s, NULL, path, o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "MB"));
    o.pick.layer = 1;
    o.pick.head = 2;
    o.to = 40;
    page = saved(sc.s, "rows.html", o, &part);
    assert_true(part < 500000);
    free(page);
    close_scene(&sc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef HAVE_CAIRO
        cmocka_unit_test(the_check_of_markup_can_fail),
        cmocka_unit_test(files_are_what_their_names_say),
        cmocka_unit_test(nothing_overlaps_or_leaves_the_sheet),
        cmocka_unit_test(words_are_merged),
        cmocka_unit_test(titles_are_cut_between_words),
        cmocka_unit_test(large_grids_stay_small),
        cmocka_unit_test(views_that_make_no_sense_are_refused),
#else
        cmocka_unit_test(pictures_are_refused_in_a_sentence),
#endif
        cmocka_unit_test(the_page_holds_all_and_needs_nothing),
        cmocka_unit_test(a_page_of_a_part_holds_that_part),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
