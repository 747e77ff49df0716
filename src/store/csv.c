/* csv.c - rows of numbers as text.
 *
 * Grammar: rows are lines (LF or CRLF); blank lines count for nothing; numbers are decimal, nan or
 * inf, with blanks between them and at most one comma or semicolon.  Everything else is refused
 * with line and column, a header line too.  The text is walked twice, first to count and check,
 * then to fill: memory is allocated once, at its final size. */
#include "array.h"

#include <math.h>
#include <stdlib.h>
#include <strings.h>

/* Fields are separated by commas, semicolons or blanks; all rows have as many. */
typedef struct csv {
    const char *path, *at, *end;
    float *out, *out_end; /* NULL on the first walk */
    int64_t line, rows, cols;
    bool nonfinite;
    fv_err *e;
} csv;

#define LONGEST 128 /* characters of one number, sign to exponent */

static bool blank(char c) { return c == ' ' || c == '\t'; }
static bool digit(char c) { return c >= '0' && c <= '9'; }
/* Quotes are not understood: these are tables of numbers. */
static bool ends_field(char c)
{
    return blank(c) || c == ',' || c == ';' || c == '\n' || c == '\r';
}

static const char *digits(const char *s)
{
    while (digit(*s)) s++;
    return s;
}

/* strtof takes more than we do: hexadecimal, nan(text). */
static bool is_number(const char *s)
{
    s += *s == '+' || *s == '-';
    if (!strcasecmp(s, "nan") || !strcasecmp(s, "inf") || !strcasecmp(s, "infinity")) return true;
    const char *whole = digits(s), *rest = whole;
    if (*whole == '.') rest = digits(whole + 1);
    if (rest == s || (rest == s + 1 && *s == '.')) return false;
    if (*rest == 'e' || *rest == 'E') {
        const char *exponent = rest + 1 + (rest[1] == '+' || rest[1] == '-');
        rest = digits(exponent);
        if (rest == exponent) return false;
    }
    return !*rest;
}

/* The field as it may be shown in a message: cut, control characters and broken UTF-8 replaced. */
static fv_digits shown(const char *s, size_t n)
{
    fv_digits d = {""};
    size_t len = 0;
    for (size_t i = 0; i < n && len < 24;) {
        uint32_t cp = 0;
        int w = fv__utf8_get(&cp, s + i, n - i);
        bool plain = w && cp >= 32 && cp != 127;
        len += (size_t)(plain ? fv__utf8_put(d.s + len, cp) : fv__utf8_put(d.s + len, '?'));
        i += (size_t)(w ? w : 1);
    }
    d.s[len] = 0;
    return d;
}

/* A large file is mapped, and another process may write into it between the walks. */
static fv_status changed(const csv *c)
{
    return fv_fail(c->e, FV_EIO, "%s: it changed while it was read", c->path);
}

/* Checked before strtof, which would also take hexadecimal; the locale is C's while a file is
 * read. */
static fv_status number(csv *c, int64_t column)
{
    const char *from = c->at;
    char text[LONGEST];
    while (c->at < c->end && !ends_field(*c->at)) c->at++;
    size_t n = (size_t)(c->at - from);
    const char *where = c->path;
    if (!n)
        return fv_fail(c->e, FV_EFORMAT, "%s: line %lld, column %lld: no number here", where,
                       (long long)c->line, (long long)column);
    if (n < sizeof text) {
        memcpy(text, from, n);
        text[n] = 0;
    }
    if (n >= sizeof text || strlen(text) < n || !is_number(text))
        return fv_fail(c->e, FV_EFORMAT, "%s: line %lld, column %lld: \"%s\" is not a number",
                       where, (long long)c->line, (long long)column, shown(from, n).s);
    float x = strtof(text, NULL);  /* in the C locale, which fv__csv_read sets */
    bool word = text[n - 1] > '9'; /* nan, inf and infinity end in a letter, and no number does */
    if (!isfinite(x) && !word)
        return fv_fail(c->e, FV_ENUMERIC, "%s: line %lld, column %lld: %s is beyond what f32 holds",
                       where, (long long)c->line, (long long)column, shown(from, n).s);
    if (!isfinite(x) && !c->nonfinite)
        return fv_fail(c->e, FV_ENUMERIC,
                       "%s: line %lld, column %lld: %s, where a finite number must stand", where,
                       (long long)c->line, (long long)column, shown(from, n).s);
    if (!c->out) return FV_OK;
    if (c->out == c->out_end) return changed(c);
    *c->out++ = x;
    return FV_OK;
}

static void skip_blanks(csv *c)
{
    while (c->at < c->end && blank(*c->at)) c->at++;
}

/* A line may end in \r\n, too. */
static bool at_line_end(const csv *c)
{
    return c->at == c->end || *c->at == '\n' ||
           (*c->at == '\r' && (c->at + 1 == c->end || c->at[1] == '\n'));
}

/* One line that is not blank; leaves c->at at its end. */
static fv_status row(csv *c)
{
    int64_t cols = 0;
    for (;;) {
        fv_status st = number(c, cols + 1);
        if (st) return st;
        cols++;
        skip_blanks(c);
        if (at_line_end(c)) break;
        if (*c->at == ',' || *c->at == ';') {
            c->at++;
            skip_blanks(c);
        }
    }
    if (c->rows && cols != c->cols)
        return fv_fail(c->e, FV_EFORMAT,
                       "%s: line %lld has %lld numbers where the lines before have %lld", c->path,
                       (long long)c->line, (long long)cols, (long long)c->cols);
    c->cols = cols;
    c->rows++;
    return FV_OK;
}

/* Twice over the same text is cheaper than growing an array of unknown size, and leaves no
 * slack. */
static fv_status walk(csv *c, const fv_file *f)
{
    c->at = f->data;
    c->end = f->data + f->size;
    c->rows = c->line = 0;
    if (f->size >= 3 && !memcmp(c->at, "\xEF\xBB\xBF", 3)) c->at += 3;
    while (c->at < c->end) {
        c->line++;
        skip_blanks(c);
        fv_status st = at_line_end(c) ? FV_OK : row(c);
        if (st) return st;
        while (c->at < c->end && *c->at++ != '\n') {}
    }
    return FV_OK;
}

/* (rows,columns); a file of one column is (rows,1). */
fv_status fv__csv_read(fv_array *a, const fv_file *f, const char *path, fv_array_opt opt, fv_err *e)
{
    csv c = {.path = path, .nonfinite = opt.nonfinite, .e = e};
    locale_t before = fv__c_numbers();
    fv_status st = walk(&c, f);
    if (!st && !c.rows) st = fv_fail(e, FV_EFORMAT, "%s: no numbers in it", path);
    if (!st) {
        a->shape = (fv_shape){2, {c.rows, c.cols}};
        memcpy(a->stored, "text", sizeof "text");
        st = fv__array_alloc(a, path, e);
    }
    if (!st) {
        c.out = a->data;
        c.out_end = a->data + c.rows * c.cols;
        st = walk(&c, f);
        if (!st && c.out != c.out_end) st = changed(&c);
    }
    fv__c_numbers_end(before);
    return st;
}

void fv__csv_write(fv_out *o, const fv_array *a)
{
    char text[8192];
    size_t used = 0;
    int64_t n = 0, cols = a->shape.n ? a->shape.d[a->shape.n - 1] : 1;
    fv__shape_count(&n, &a->shape);
    locale_t before = fv__c_numbers();
    for (int64_t i = 0; i < n; i++) {
        fv_digits d = fv__digits((double)a->data[i], true);
        size_t len = strlen(d.s);
        memcpy(text + used, d.s, len);
        used += len;
        text[used++] = (i + 1) % cols ? ',' : '\n';
        if (used > sizeof text - sizeof d.s - 1 || i + 1 == n) {
            fv__out_add(o, text, used);
            used = 0;
        }
    }
    fv__c_numbers_end(before);
}
