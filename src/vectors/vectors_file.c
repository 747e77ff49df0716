/* vectors_file.c - word vectors in the forms of word2vec and fastText.
 *
 * Text is "words width" on the first line, then a word and its numbers on each; GloVe's files
 * lack the first line, and are known by that.  Binary has the same first line, then for each
 * word its bytes, a blank and its floats, little-endian; word2vec puts a line feed behind them
 * and gensim none, so one is left out where it stands. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/decimal.h"
#include "vectors/vectors.h"

const char *const fv_vectors_forms[] = {"auto", "text", "binary", NULL};

enum { MOST_WIDTH = 1 << 16 };

typedef struct reading {
    fv_vectors *v;
    const char *path;
    size_t rows_capacity;
    fv_err *e;
} reading;

static fv_status no_memory(const reading *r)
{
    return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->path);
}

/* Room for one more word; a word that comes twice is an error, since one of them would be lost. */
static fv_status add_word(reading *r, const char *s, size_t n, float **row)
{
    fv_vectors *v = r->v;
    int32_t id, had = v->words.n;
    fv_status st = fv_labels_add(&v->words, &id, s, n, r->e);
    if (!st && id != had)
        st = fv_fail(r->e, FV_EFORMAT, "%s: \"%.*s\" stands there twice", r->path,
                     (int)(n < 60 ? n : 60), s);
    if (st) return st;
    void *p = v->rows;
    size_t before = v->rows_bytes;
    if (!fv__grow(&v->env, &p, &v->rows_bytes, (size_t)((had + 1) * v->stride) * sizeof(float)))
        return no_memory(r);
    v->rows = p;
    if (v->rows_bytes > before) memset((char *)p + before, 0, v->rows_bytes - before);
    *row = v->rows + had * v->stride;
    return FV_OK;
}

static void set_width(fv_vectors *v, int64_t width)
{
    v->width = width;
    v->stride = fv__vectors_stride(width);
}

/* ---- text ---- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* "N W" and nothing else? */
static bool read_sizes(const char *s, size_t n, int64_t *words, int64_t *width)
{
    char text[64], *end;
    if (n >= sizeof text) return false;
    memcpy(text, s, n);
    text[n] = 0;
    *words = strtoll(text, &end, 10);
    if (end == text || !is_blank(*end)) return false;
    const char *second = end;
    *width = strtoll(second, &end, 10);
    while (is_blank(*end)) end++;
    return end != second && !*end && *words >= 0 && *width > 0 && *width <= MOST_WIDTH;
}

static int64_t count_fields(const char *s, size_t n)
{
    int64_t fields = 0;
    for (size_t i = 0; i < n; i++) fields += !is_blank(s[i]) && (!i || is_blank(s[i - 1]));
    return fields;
}

static fv_status read_line(reading *r, const char *line, size_t n, int64_t number)
{
    size_t end = 0;
    float *row;
    while (end < n && !is_blank(line[end])) end++;
    fv_status st = add_word(r, line, end, &row);
    for (int64_t k = 0; !st && k < r->v->width; k++) {
        char text[64];
        size_t len = 0;
        while (end < n && is_blank(line[end])) end++;
        while (end < n && !is_blank(line[end]) && len < sizeof text - 1) text[len++] = line[end++];
        text[len] = 0;
        char *stop;
        row[k] = (float)fv__strtod(text, &stop);
        if (!len || *stop || !isfinite(row[k]))
            st = fv_fail(r->e, FV_EFORMAT, "%s:%lld: number %lld of %lld is \"%.40s\"", r->path,
                         (long long)number, (long long)k + 1, (long long)r->v->width, text);
    }
    while (end < n && is_blank(line[end])) end++;
    if (!st && end < n)
        st = fv_fail(r->e, FV_EFORMAT, "%s:%lld: more than %lld numbers", r->path,
                     (long long)number, (long long)r->v->width);
    return st;
}

static fv_status read_text(reading *r)
{
    fv_textfile *t;
    int64_t words = -1, width = 0;
    size_t n = 0;
    fv_status st = fv_textfile_open(&t, &r->v->env, r->path, r->e);
    if (st) return st;
    const char *line = fv_textfile_count(t) ? fv_textfile_line(t, 0, &n) : "";
    bool sized = read_sizes(line, n, &words, &width);
    if (!sized) width = count_fields(line, n) - 1;
    if (width < 1 || width > MOST_WIDTH)
        st = fv_fail(r->e, FV_EFORMAT, "%s:1: expected the numbers of words and of their values",
                     r->path);
    set_width(r->v, width);
    for (int64_t i = sized; !st && i < fv_textfile_count(t); i++) {
        line = fv_textfile_line(t, i, &n);
        if (n) st = read_line(r, line, n, i + 1);
    }
    fv_textfile_close(t);
    if (!st && sized && r->v->words.n != words)
        st = fv_fail(r->e, FV_EFORMAT, "%s: its first line says %lld words, and there are %d",
                     r->path, (long long)words, r->v->words.n);
    return st;
}

/* ---- binary ---- */

static float little_float(const char *s)
{
    const unsigned char *b = (const unsigned char *)s;
    uint32_t u = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static fv_status cut(const reading *r, int64_t word)
{
    return fv_fail(r->e, FV_EFORMAT, "%s: ends inside word %lld", r->path, (long long)word + 1);
}

static fv_status read_binary(reading *r)
{
    fv_file f;
    int64_t words, width;
    fv_status st = fv__file_open(&f, &r->v->env, r->path, r->e);
    if (st) return st;
    const char *end = memchr(f.data, '\n', f.size < 64 ? f.size : 64);
    size_t at = end ? (size_t)(end - f.data) + 1 : 0;
    if (!end || !read_sizes(f.data, at - 1, &words, &width))
        st = fv_fail(r->e, FV_EFORMAT,
                     "%s: expected the numbers of words and of their values on "
                     "the first line",
                     r->path);
    if (!st) set_width(r->v, width);
    for (int64_t i = 0; !st && i < words; i++) {
        float *row;
        while (at < f.size && f.data[at] == '\n') at++;
        const char *blank = at < f.size ? memchr(f.data + at, ' ', f.size - at) : NULL;
        size_t n = blank ? (size_t)(blank - f.data) - at : 0, bytes = (size_t)width * 4;
        if (!blank || f.size - at - n - 1 < bytes) st = cut(r, i);
        if (!st) st = add_word(r, f.data + at, n, &row);
        for (int64_t k = 0; !st && k < width; k++) {
            row[k] = little_float(blank + 1 + 4 * k);
            if (!isfinite(row[k]))
                st = fv_fail(r->e, FV_EFORMAT, "%s: word %lld has a value that is no number",
                             r->path, (long long)i + 1);
        }
        at += n + 1 + bytes;
    }
    fv__file_close(&f);
    return st;
}

static bool is_binary(const char *path, fv_vectors_form form)
{
    size_t n = strlen(path);
    if (form != FV_VECTORS_AUTO) return form == FV_VECTORS_BINARY;
    return n > 4 && !strcmp(path + n - 4, ".bin");
}

fv_status fv_vectors_open(fv_vectors **out, const fv_env *env, const char *path,
                          fv_vectors_form form, fv_err *e)
{
    fv_vectors *v = *out = fv__alloc(env, sizeof *v);
    if (!v) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (env) v->env = *env;
    v->words.env = &v->env;
    reading r = {.v = v, .path = path, .e = e};
    fv_status st = is_binary(path, form) ? read_binary(&r) : read_text(&r);
    if (!st && !v->words.n) st = fv_fail(e, FV_EFORMAT, "%s: there are no words", path);
    v->length_bytes = (size_t)v->words.n * sizeof *v->length;
    if (!st && !(v->length = fv__alloc(&v->env, v->length_bytes))) st = no_memory(&r);
    if (!st) {
        fv__vectors_lengths(v);
        return FV_OK;
    }
    fv_vectors_free(v);
    *out = NULL;
    return st;
}

/* ---- writing ---- */

/* Nine digits give every float back. */
static void put_row(fv_out *o, fv_buf *b, const fv_vectors *v, int64_t w, bool binary)
{
    const float *x = fv_vectors_row(v, w);
    b->len = 0;
    fv__buf_fmt(b, "%s", v->words.name[w]);
    if (binary) fv__buf_str(b, " ");
    for (int64_t i = 0; i < v->width; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        const unsigned char bytes[] = {(unsigned char)u, (unsigned char)(u >> 8),
                                       (unsigned char)(u >> 16), (unsigned char)(u >> 24)};
        if (binary)
            fv__buf_add(b, bytes, 4);
        else
            fv__buf_fmt(b, " %.9g", (double)x[i]);
    }
    fv__buf_str(b, "\n");
    if (!b->failed) fv__out_add(o, b->data, b->len);
}

fv_status fv_vectors_save(const fv_vectors *v, const char *path, fv_vectors_form form, fv_err *e)
{
    fv_out o;
    fv_buf b = {.env = &v->env};
    char head[64];
    fv_status st = fv__out_open(&o, &v->env, path, e);
    if (st) return st;
    int n = snprintf(head, sizeof head, "%d %lld\n", v->words.n, (long long)v->width);
    fv__out_add(&o, head, (size_t)n);
    for (int64_t w = 0; w < v->words.n && !b.failed; w++)
        put_row(&o, &b, v, w, is_binary(path, form));
    if (b.failed) {
        fv__out_abandon(&o);
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    }
    fv__buf_free(&b);
    return st ? st : fv__out_commit(&o, e);
}
