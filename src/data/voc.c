/* voc.c - the objects of one image, in Pascal VOC's XML.
 *
 * What is read of XML: elements, their text, comments and declarations, the five entities.
 * Attributes are passed over.  Elements must be closed in order; anything else is refused with its
 * line. */
#include "data/voc.h"

#include <stdio.h>

#include "base/decimal.h"

enum { DEEPEST = 16, NAME = 64, TEXT = 128 };

typedef struct parser {
    const char *s, *path;
    size_t n, at;
    char open[DEEPEST][NAME]; /* elements around the position */
    int depth;
    char text[TEXT]; /* of the innermost, cut where it is longer */
    size_t len;
    fv__voc_object now;
    unsigned seen; /* of the four edges */
    fv__voc_fn *each;
    void *user;
    fv_err *e;
} parser;

/* The line is counted only where a message needs it. */
static fv_status refuse(const parser *p, const char *why)
{
    int64_t line = 1;
    for (size_t i = 0; i < p->at && i < p->n; i++) line += p->s[i] == '\n';
    return fv_fail(p->e, FV_EFORMAT, "%s:%lld: %s", p->path, (long long)line, why);
}

static bool inside(const parser *p, const char *a, const char *b)
{
    return p->depth >= 2 && !strcmp(p->open[p->depth - 1], b) &&
           (!a || !strcmp(p->open[p->depth - 2], a));
}

/* ---- text ---- */

/* Text of an element without the blanks around it; what does not fit TEXT is dropped, since no name
 * or number is as long. */
static void add_char(parser *p, char c)
{
    bool blank = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (blank && !p->len) return;
    if (p->len + 1 < TEXT) p->text[p->len++] = c;
}

/* The five entities that XML defines; others stay as they are written. No entity is ever expanded
 * into markup, and a document type cannot define any: skip passes over it. */
static void add_text(parser *p)
{
    static const struct {
        const char *name;
        char c;
    } entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (; p->at < p->n && p->s[p->at] != '<'; p->at++) {
        char c = p->s[p->at];
        for (int i = 0; c == '&' && i < 5; i++) {
            size_t len = strlen(entities[i].name);
            if (p->n - p->at < len || memcmp(p->s + p->at, entities[i].name, len)) continue;
            c = entities[i].c;
            p->at += len - 1;
        }
        add_char(p, c);
    }
}

static void end_text(parser *p)
{
    while (p->len && strchr(" \n\r\t", p->text[p->len - 1])) p->len--;
    p->text[p->len] = 0;
}

/* ---- elements ---- */

/* The value of an edge, from the innermost element. */
static fv_status take_edge(parser *p)
{
    static const char *const names[] = {"xmin", "ymin", "xmax", "ymax"};
    double *to[] = {&p->now.x0, &p->now.y0, &p->now.x1, &p->now.y1};
    for (int i = 0; i < 4; i++) {
        char *end;
        if (strcmp(p->open[p->depth - 1], names[i])) continue;
        *to[i] = fv__strtod(p->text, &end);
        if (end == p->text || *end || !(*to[i] >= -1e6 && *to[i] <= 1e6))
            return refuse(p, "an edge of a box is no number of pixels");
        p->seen |= 1u << i;
    }
    return FV_OK;
}

/* seen has a bit for each of the four corners. */
static fv_status take_object(parser *p)
{
    if (!*p->now.name) return refuse(p, "an object has no name");
    if (p->seen != 15) return refuse(p, "an object has no bndbox with xmin, ymin, xmax and ymax");
    return p->each(p->user, &p->now, p->e);
}

/* What an element that ends says. */
static fv_status take(parser *p)
{
    end_text(p);
    if (inside(p, "object", "name")) snprintf(p->now.name, sizeof p->now.name, "%s", p->text);
    if (inside(p, "object", "difficult")) p->now.difficult = !strcmp(p->text, "1");
    if (p->depth >= 3 && !strcmp(p->open[p->depth - 3], "object") &&
        !strcmp(p->open[p->depth - 2], "bndbox"))
        return take_edge(p);
    if (inside(p, NULL, "object")) return take_object(p);
    return FV_OK;
}

static bool name_char(char c) { return c && !strchr(" \t\r\n/>=<\"'", c); }

/* Attributes are passed over: annotations have none that matter. */
static fv_status begin_element(parser *p)
{
    char name[NAME];
    size_t from = ++p->at;
    while (p->at < p->n && name_char(p->s[p->at])) p->at++;
    if (p->at == from || p->at - from >= NAME) return refuse(p, "a tag without a usable name");
    snprintf(name, sizeof name, "%.*s", (int)(p->at - from), p->s + from);
    while (p->at < p->n && p->s[p->at] != '>') p->at++;
    if (p->at == p->n) return refuse(p, "the file ends inside a tag");
    bool empty = p->s[p->at - 1] == '/';
    p->at++;
    p->len = 0;
    if (empty) return FV_OK;
    if (p->depth == DEEPEST) return refuse(p, "elements are nested too deeply");
    memcpy(p->open[p->depth++], name, sizeof name);
    if (inside(p, NULL, "object")) {
        p->now = (fv__voc_object){.name = ""};
        p->seen = 0;
    }
    return FV_OK;
}

static fv_status end_element(parser *p)
{
    size_t from = p->at += 2;
    while (p->at < p->n && name_char(p->s[p->at])) p->at++;
    size_t len = p->at - from;
    while (p->at < p->n && p->s[p->at] != '>') p->at++;
    const char *open = p->depth ? p->open[p->depth - 1] : "";
    if (p->at == p->n || strlen(open) != len || memcmp(open, p->s + from, len))
        return refuse(p, "an element ends that did not begin");
    p->at++;
    fv_status st = take(p);
    p->depth--;
    p->len = 0;
    return st;
}

/* <?..?>, <!--..--> and <!..> */
static fv_status skip(parser *p)
{
    bool comment = p->n - p->at >= 4 && !memcmp(p->s + p->at, "<!--", 4);
    const char *end = comment ? "-->" : ">", *found;
    found = memmem(p->s + p->at, p->n - p->at, end, strlen(end));
    if (!found) return refuse(p, "a comment or declaration does not end");
    p->at = (size_t)(found - p->s) + strlen(end);
    return FV_OK;
}

/* States: text until '<', then by the next character an end tag, something to skip (declaration,
 * comment, doctype) or a start tag. The stack of open elements says what a text is: object/name,
 * bndbox/xmin. */
fv_status fv__voc_parse(const char *s, size_t n, const char *path, fv__voc_fn *each, void *user,
                        fv_err *e)
{
    parser p = {.s = s, .path = path, .n = n, .each = each, .user = user, .e = e};
    fv_status st = FV_OK;
    bool began = false;
    while (!st) {
        add_text(&p);
        if (p.at >= n) break;
        char next = p.at + 1 < n ? s[p.at + 1] : 0;
        if (next == '/')
            st = end_element(&p);
        else if (next == '?' || next == '!')
            st = skip(&p);
        else
            st = begin_element(&p);
        if (p.depth == 1 && !began) {
            began = true;
            if (strcmp(p.open[0], "annotation")) st = refuse(&p, "expected <annotation>");
        }
    }
    if (!st && (p.depth || !began)) st = refuse(&p, "the file ends before </annotation>");
    return st;
}
