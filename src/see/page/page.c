/* page.c - a capture as one self-contained HTML file: markup, style and script are built in, the
 * data is put where the markup says @data@.
 *
 * The data is made for a page that opens at once and reacts to a click, whatever its size:
 *
 *     <script type="application/json" id="data">     labels, words, palette, what is shown first
 *     <script type="text/plain" id="encoder.3.5">    one element a map: base64 of 16-bit numbers
 *     <script type="text/plain" id="encoder.thumbs"> all thumbnails of a kind: base64 of bytes
 *     <script type="text/plain" id="image">          the image that is looked at: base64 of RGB
 *
 * The browser parses the elements as plain text and the script decodes a map only when it is shown.
 * Maps are called kind.layer.head, where head is a number, "mean" or "rollout".  Thumbnails are
 * pooled here, since the page would have to decode every map to make them.
 *
 * A weight w is stored as round(65535 sqrt(w)).  The error is below 1.6e-5 sqrt(w): four digits of
 * a large weight, and still two digits of 1e-6, where a linear scale would have none left (half
 * floats have three digits everywhere, which is too few near 1).  Maps of causal attention store
 * the lower triangle only.
 *
 * A page with opt->ask holds labels alone, and gets maps from a server row by row (remote.js): of
 * 2,000 tokens and 12 x 12 heads all maps together would be more than a gigabyte.
 *
 * One JSON text for everything, as in the first version, had to be parsed and decoded in full
 * before the first picture appeared. */
#include <math.h>
#include <stdio.h>

#include "see/palette.h"
#include "see/see.h"
#include "see_page.h"

/* longest side of a thumbnail; tokens up to which a server is asked for rollouts, whose time grows
 * with their cube */
enum { THUMB = 48, LONG = 1024 };
#define MAX_BYTES 268435456.0

static const char mark[] = "@data@";

typedef struct page {
    fv_out *o;
    fv_see *s;
    const fv_see_opt *opt;
    fv_buf text;
    unsigned char rest[3]; /* bytes that wait for their base64 group */
    int n_rest;
    /* of the kind that is being written */
    fv_see_kind kind;
    int64_t layer, layers, head, heads, from, to, cols; /* the first, and how many */
    bool triangle, mean, rollout;
    float *block, *sum;    /* rows as computed; (to-from, cols) of the mean so far */
    double *product, *old; /* of a rollout, (cols, cols); NULL: fv_see_weights computes it */
    float *pool;           /* greatest weights of the map, (tall, wide) */
    int64_t wide, tall;
    fv_buf thumbs; /* all of the kind, as bytes */
} page;

/* Hands what was formatted to the file: the buffer never holds more than a block of rows. */
static void flush(page *p)
{
    if (p->text.len) fv__out_add(p->o, p->text.data, p->text.len);
    p->text.len = 0;
}

/* ---- base64 ---- */

static void group(page *p)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned v = (unsigned)p->rest[0] << 16 | (unsigned)p->rest[1] << 8 | p->rest[2];
    char out[4] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63]};
    for (int i = p->n_rest + 1; i < 4; i++) out[i] = '=';
    fv__buf_add(&p->text, out, 4);
    memset(p->rest, 0, sizeof p->rest);
    p->n_rest = 0;
}

static void put_byte(page *p, unsigned b)
{
    p->rest[p->n_rest++] = (unsigned char)b;
    if (p->n_rest == 3) group(p);
}

/* ---- one map ---- */

/* Rounding can leave a weight just above 1. */
static double clamp01(double x) { return x > 0 ? fmin(x, 1) : 0; }

/* Opens the element of a map.  Base64 holds no "<", so nothing in it has to be escaped. */
static void begin_map(page *p, int64_t layer, const char *head)
{
    fv__buf_fmt(&p->text, "<script type=\"text/plain\" id=\"%s.%lld.%s\">",
                fv_see_kind_name(p->kind), (long long)layer, head);
    memset(p->pool, 0, (size_t)(p->wide * p->tall) * sizeof *p->pool);
}

/* One row, of which causal maps have only what is not right of the diagonal. */
static void put_row(page *p, const float *w, int64_t row)
{
    int64_t n = p->triangle ? row + 1 : p->cols;
    float *pool = p->pool + (row - p->from) * p->tall / (p->to - p->from) * p->wide;
    for (int64_t j = 0; j < n; j++) {
        unsigned v = (unsigned)(65535 * sqrt(clamp01((double)w[j])) + 0.5);
        float *most = pool + j * p->wide / p->cols;
        *most = w[j] > *most ? w[j] : *most;
        put_byte(p, v & 255);
        put_byte(p, v >> 8);
    }
}

/* A thumbnail is shaded by its own greatest weight; in large maps weights are small, so there
 * shades go by the square root. */
static void end_map(page *p)
{
    float most = 1e-6f;
    int64_t n = p->wide * p->tall;
    if (p->n_rest) group(p);
    fv__buf_str(&p->text, "</script>\n");
    flush(p);
    for (int64_t i = 0; i < n; i++) most = p->pool[i] > most ? p->pool[i] : most;
    for (int64_t i = 0; i < n; i++) {
        double t = clamp01((double)(p->pool[i] / most));
        unsigned char byte = (unsigned char)(255 * (fv__see_by_root(p->cols) ? sqrt(t) : t) + 0.5);
        fv__buf_add(&p->thumbs, &byte, 1);
    }
}

/* A map that fv_see_weights computes; added to the mean of its layer where sum is not NULL. */
static fv_status put_map(page *p, fv_see_pick pick, const char *name, float *sum, fv_err *e)
{
    int64_t size = fv__see_block(p->cols);
    begin_map(p, pick.layer, name);
    for (int64_t at = p->from; at < p->to; at += size) {
        int64_t end = at + size < p->to ? at + size : p->to;
        fv_status st = fv_see_weights(p->s, pick, at, end, p->block, e);
        if (st) return st;
        float *to = sum ? sum + (at - p->from) * p->cols : NULL;
        for (int64_t i = 0; sum && i < (end - at) * p->cols; i++)
            to[i] += p->block[i] / (float)p->heads;
        for (int64_t i = at; i < end; i++) put_row(p, p->block + (i - at) * p->cols, i);
        flush(p);
    }
    end_map(p);
    return FV_OK;
}

/* ---- one layer ---- */

/* The mean is stored although the page could add up the heads: it would have to decode all of them
 * to show it. */
static void put_mean(page *p, int64_t layer)
{
    begin_map(p, layer, "mean");
    for (int64_t i = p->from; i < p->to; i++) put_row(p, p->sum + (i - p->from) * p->cols, i);
    end_map(p);
}

/* With all layers and rows at hand a rollout is one product a layer; fv_see_weights would start
 * each layer's from the first. */
static fv_status put_rollout(page *p, int64_t layer, fv_err *e)
{
    if (!p->product)
        return put_map(
            p, (fv_see_pick){.kind = p->kind, .layer = layer, .head = FV_SEE_ALL, .rollout = true},
            "rollout", NULL, e);
    double *next = p->old;
    fv__see_rollout_step(next, p->product, p->sum, p->cols);
    p->old = p->product;
    p->product = next;
    begin_map(p, layer, "rollout");
    for (int64_t i = 0; i < p->cols; i++) {
        for (int64_t j = 0; j < p->cols; j++) p->block[j] = (float)next[i * p->cols + j];
        put_row(p, p->block, i);
    }
    end_map(p);
    return FV_OK;
}

static fv_status put_layer(page *p, int64_t layer, fv_err *e)
{
    fv_status st = FV_OK;
    if (p->sum) memset(p->sum, 0, (size_t)((p->to - p->from) * p->cols) * sizeof *p->sum);
    for (int64_t h = p->head; !st && h < p->head + p->heads; h++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)h);
        st = put_map(p, (fv_see_pick){p->kind, layer, h, false, false}, name, p->sum, e);
    }
    if (!st && p->mean) put_mean(p, layer);
    return !st && p->rollout ? put_rollout(p, layer, e) : st;
}

/* ---- one kind ---- */

/* Which layers, heads and rows of kind k the page holds; false: none.  Called three times for a
 * kind (size, labels, weights) instead of keeping the answers: it only compares numbers.  A page of
 * one head has neither mean nor rollout, which are made of all heads. */
static bool choose(page *p, fv_see_kind k)
{
    const fv_see_map *m = &p->s->map[k];
    const fv_see_opt *o = p->opt;
    fv_err none;
    if (!m->layers || (!o->every_kind && o->pick.kind != k)) return false;
    if (o->pick.layer >= m->layers || o->pick.head >= m->heads) return false;
    p->kind = k;
    p->layer = o->pick.layer == FV_SEE_ALL ? 0 : o->pick.layer;
    p->layers = o->pick.layer == FV_SEE_ALL ? m->layers : 1;
    p->head = o->pick.head == FV_SEE_ALL ? 0 : o->pick.head;
    p->heads = o->pick.head == FV_SEE_ALL ? m->heads : 1;
    /* kinds have rows of their own: where one has fewer, those it has */
    p->from = o->to ? o->from : 0;
    p->to = o->to && o->to < m->rows ? o->to : m->rows;
    p->cols = m->cols;
    p->triangle = m->causal;
    bool whole = o->pick.head == FV_SEE_ALL;
    p->mean = whole && m->heads > 1;
    p->rollout = whole && fv__see_rolls(p->s, k, &none) == FV_OK;
    if (o->ask && p->cols > LONG) p->rollout = false;
    p->tall = p->to - p->from < THUMB ? p->to - p->from : THUMB;
    p->wide = p->cols < THUMB ? p->cols : THUMB;
    return p->from < p->to;
}

/* Bytes that the maps of the kind take in the file. */
static double bytes_of(const page *p)
{
    double rows = (double)(p->to - p->from), maps = (double)(p->heads + p->mean + p->rollout);
    double cols = p->triangle ? ((double)p->from + (double)p->to + 1) / 2 : (double)p->cols;
    return (double)p->layers * maps * (rows * cols * 8 / 3 + 64);
}

static fv_status put_thumbs(page *p)
{
    fv__buf_fmt(&p->text, "<script type=\"text/plain\" id=\"%s.thumbs\">",
                fv_see_kind_name(p->kind));
    for (size_t i = 0; i < p->thumbs.len; i++) put_byte(p, (unsigned char)p->thumbs.data[i]);
    if (p->n_rest) group(p);
    fv__buf_str(&p->text, "</script>\n");
    flush(p);
    p->thumbs.len = 0;
    return FV_OK;
}

/* The maps of the kind that choose() found, layer by layer, then their thumbnails. */
static fv_status put_kind(page *p, fv_err *e)
{
    const fv_env *env = p->s->env;
    bool square = p->kind != FV_SEE_CROSS && p->rollout && p->opt->pick.layer == FV_SEE_ALL &&
                  p->to - p->from == p->cols;
    int64_t n = (p->to - p->from) * p->cols, rows = fv__see_block(p->cols);
    size_t sum = (size_t)n * sizeof(float), block = (size_t)(rows * p->cols) * sizeof(float),
           pool = (size_t)(p->wide * p->tall) * sizeof(float),
           product = (size_t)(p->cols * p->cols) * sizeof(double);
    p->sum = p->mean || square ? fv__alloc(env, sum) : NULL;
    p->block = fv__alloc(env, block);
    p->pool = fv__alloc(env, pool);
    p->product = square ? fv__alloc(env, product) : NULL;
    p->old = square ? fv__alloc(env, product) : NULL;
    bool ok = p->block && p->pool && (p->sum || !(p->mean || square)) &&
              (!square || (p->product && p->old));
    fv_status st = ok ? FV_OK : fv_fail(e, FV_ENOMEM, "page: out of memory");
    for (int64_t i = 0; ok && square && i < p->cols * p->cols; i++)
        p->product[i] = i % (p->cols + 1) ? 0 : 1;
    for (int64_t l = 0; !st && l < p->layers; l++) st = put_layer(p, p->layer + l, e);
    if (!st) st = put_thumbs(p);
    fv__free(env, p->sum, sum);
    fv__free(env, p->block, block);
    fv__free(env, p->pool, pool);
    fv__free(env, p->product, product);
    fv__free(env, p->old, product);
    return st;
}

/* ---- what is not weights ---- */

/* An array of integers, left out where there is none. */
static void put_numbers(page *p, const char *name, const int32_t *v, int64_t from, int64_t to)
{
    if (!v) return;
    fv__buf_fmt(&p->text, ", \"%s\": [", name);
    for (int64_t i = from; i < to; i++)
        fv__buf_fmt(&p->text, "%s%d", i > from ? "," : "", (int)v[i]);
    fv__buf_str(&p->text, "]");
}

/* Labels, words and token types along one side. */
static void put_axis(page *p, const char *name, const fv_see_axis *a, int64_t from, int64_t to)
{
    char key[32];
    fv__buf_fmt(&p->text, ", \"%s\": [", name);
    for (int64_t i = from; i < to; i++) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)i);
        if (i > from) fv__buf_str(&p->text, ", ");
        fv__see_quote(&p->text, a->text ? a->text[i] : number);
    }
    fv__buf_str(&p->text, "]");
    snprintf(key, sizeof key, "%s_words", name);
    put_numbers(p, key, a->word, from, to);
    snprintf(key, sizeof key, "%s_types", name);
    put_numbers(p, key, a->type, from, to);
}

/* The patches among the tokens of one side, left out where there are none. */
static void put_grid(page *p, const char *name, const fv_see_grid *g)
{
    if (g->high)
        fv__buf_fmt(&p->text, ", \"%s\": [%lld, %lld, %lld]", name, (long long)g->at,
                    (long long)g->high, (long long)g->wide);
}

/* The size of the image, and what was found in it: row, then edges as shares. */
static void put_image_data(page *p)
{
    const fv_image *im = &p->s->image->shown;
    fv__buf_fmt(&p->text, ", \"image\": {\"size\": [%d, %d], \"seconds\": %g, \"boxes\": [",
                im->width, im->height, p->s->image->seconds);
    for (int64_t i = 0; i < p->s->boxes; i++) {
        const fv_see_box *b = &p->s->box[i];
        fv__buf_fmt(&p->text, "%s[%lld, %.4f, %.4f, %.4f, %.4f]", i ? ", " : "", (long long)b->row,
                    (double)b->edge[0], (double)b->edge[1], (double)b->edge[2], (double)b->edge[3]);
    }
    fv__buf_str(&p->text, "]}");
}

static void put_image(page *p)
{
    const fv_image *im = &p->s->image->shown;
    size_t n = (size_t)im->width * (size_t)im->height * 3;
    fv__buf_str(&p->text, "<script type=\"text/plain\" id=\"image\">");
    for (size_t i = 0; i < n; i++) {
        put_byte(p, im->data[i]);
        if (p->text.len > 65536) flush(p);
    }
    if (p->n_rest) group(p);
    fv__buf_str(&p->text, "</script>\n");
    flush(p);
}

/* The entry of a kind in "maps": what the page holds of it and how it is stored. */
static void put_map_data(page *p)
{
    const fv_see_map *m = &p->s->map[p->kind];
    fv__buf_fmt(&p->text,
                "\n{\"kind\": \"%s\", \"layer\": %lld, \"layers\": %lld, \"head\": %lld, "
                "\"heads\": %lld, \"mean\": %s, \"rollout\": %s, \"triangle\": %s, "
                "\"first_row\": %lld, \"thumb\": [%lld, %lld]",
                fv_see_kind_name(p->kind), (long long)p->layer, (long long)p->layers,
                (long long)p->head, (long long)p->heads, p->mean ? "true" : "false",
                p->rollout ? "true" : "false", p->triangle ? "true" : "false", (long long)p->from,
                (long long)p->wide, (long long)p->tall);
    put_axis(p, "rows", &m->row, p->from, p->to);
    put_axis(p, "cols", &m->col, 0, p->cols);
    put_grid(p, "rows_grid", &m->row.grid);
    put_grid(p, "cols_grid", &m->col.grid);
    fv__buf_str(&p->text, "}");
}

static void put_colors(page *p, const char *name, const uint32_t *c, int n)
{
    fv__buf_fmt(&p->text, ", \"%s\": [", name);
    for (int i = 0; i < n; i++) fv__buf_fmt(&p->text, "%s\"#%06x\"", i ? ", " : "", (unsigned)c[i]);
    fv__buf_str(&p->text, "]");
}

/* Everything but weights, as one JSON object. */
static void put_data(page *p)
{
    const fv_see_opt *opt = p->opt;
    const fv_see_pick *pick = opt->start ? opt->start : &opt->pick;
    bool first = true;
    fv__buf_str(&p->text, "<script type=\"application/json\" id=\"data\">{\"title\": ");
    fv__see_quote(&p->text, opt->title ? opt->title : opt->text ? opt->text : "");
    fv__buf_str(&p->text, ", \"note\": ");
    fv__see_quote(&p->text, opt->note ? opt->note : "");
    fv__buf_fmt(&p->text,
                ", \"begin\": {\"kind\": \"%s\", \"layer\": %lld, \"head\": %lld, \"rollout\": %s, "
                "\"view\": \"%s\"}",
                fv_see_kind_name(pick->kind), (long long)pick->layer, (long long)pick->head,
                pick->rollout ? "true" : "false",
                opt->view == FV_VIEW_HEAT    ? "heat"
                : opt->view == FV_VIEW_IMAGE ? "image"
                : opt->view == FV_VIEW_LINES ? "lines"
                                             : "");
    if (opt->ask) fv__buf_fmt(&p->text, ", \"ask\": %s", opt->ask);
    if (p->s->image) put_image_data(p);
    put_colors(p, "heads", fv__head_colors, FV_HEAD_COLORS);
    put_colors(p, "light", fv__shades_light, FV_SHADES);
    put_colors(p, "dark", fv__shades_dark, FV_SHADES);
    fv__buf_str(&p->text, ", \"maps\": [");
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        if (!choose(p, (fv_see_kind)k)) continue;
        if (!first) fv__buf_str(&p->text, ",");
        first = false;
        put_map_data(p);
    }
    fv__buf_str(&p->text, "]}</script>\n");
    flush(p);
}

/* ---- the page ---- */

/* Refuses a page that would be too large, before anything is computed. */
static fv_status check(page *p, fv_err *e)
{
    double bytes = 0;
    if (p->opt->ask) return FV_OK;
    for (int k = 0; k < FV_SEE_KINDS; k++)
        if (choose(p, (fv_see_kind)k)) bytes += bytes_of(p);
    if (bytes <= MAX_BYTES) return FV_OK;
    return fv_fail(e, FV_EARG,
                   "this page would have %.0f MB, and %.0f MB is all that browsers open with ease: "
                   "name a layer, a head or rows, which make it smaller",
                   bytes / 1e6, MAX_BYTES / 1e6);
}

fv_status fv__see_html(fv_out *o, fv_see *s, const fv_see_opt *opt, fv_err *e)
{
    const char *all = (const char *)see_page;
    const char *at = memmem(all, sizeof see_page, mark, sizeof mark - 1);
    if (!at) return fv_fail(e, FV_ESTATE, "the page of this build has no @data@ to replace");
    size_t head = (size_t)(at - all), tail = sizeof see_page - head - (sizeof mark - 1);
    page p = {.o = o, .s = s, .opt = opt, .text = {.env = s->env}, .thumbs = {.env = s->env}};
    fv_status st = check(&p, e);
    if (st) return st;
    fv__out_add(o, all, head);
    put_data(&p);
    if (s->image) put_image(&p);
    for (int k = 0; !st && k < FV_SEE_KINDS; k++)
        if (!opt->ask && choose(&p, (fv_see_kind)k)) st = put_kind(&p, e);
    flush(&p);
    fv__out_add(o, all + head + sizeof mark - 1, tail);
    if (!st && (p.text.failed || p.thumbs.failed))
        st = fv_fail(e, FV_ENOMEM, "page: out of memory");
    fv__buf_free(&p.text);
    fv__buf_free(&p.thumbs);
    return st;
}
