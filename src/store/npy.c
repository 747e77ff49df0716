/* npy.c - NumPy's array files.
 *
 * magic, version, header length, a Python dict literal of three keys, data.  The literal is parsed
 * for exactly what NumPy writes: 'descr' (one plain dtype), 'fortran_order' (True or False),
 * 'shape' (a tuple of integers), each once, in any order. */
#include "array.h"

#include <stdio.h>

/* A header while it is read. */
typedef struct npy {
    const char *path, *at, *end; /* of the dict literal */
    fv_err *e;
    fv_kind kind;
    fv_shape shape;
    bool fortran;
} npy;

/* Which of the three keys were seen. */
enum { DESCR = 1, ORDER = 2, SHAPE = 4 };

static fv_status broken(npy *h, const char *what)
{
    return fv_fail(h->e, FV_EFORMAT, "%s: NumPy header: %s", h->path, what);
}

static void skip(npy *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n')) h->at++;
}

/* The parser never reads past h->end: the header's length was checked against the file's. */
static bool take(npy *h, char c)
{
    skip(h);
    if (h->at == h->end || *h->at != c) return false;
    h->at++;
    return true;
}

static bool take_word(npy *h, const char *word)
{
    size_t n = strlen(word);
    skip(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, word, n)) return false;
    h->at += n;
    return true;
}

/* A quoted string without escapes. */
static bool quoted(npy *h, const char **s, size_t *n)
{
    skip(h);
    if (h->at == h->end || (*h->at != '\'' && *h->at != '"')) return false;
    char quote = *h->at++;
    *s = h->at;
    while (h->at < h->end && *h->at != quote && *h->at != '\\') h->at++;
    *n = (size_t)(h->at - *s);
    return take(h, quote);
}

/* Only little endian: what NumPy writes on every machine that runs this. */
static fv_status descr(npy *h)
{
    const char *s;
    size_t n;
    if (!quoted(h, &s, &n))
        return broken(h, "a structured or malformed dtype; only plain numbers are read");
    h->kind = fv__kind_npy(s, n);
    if (h->kind < FV_KINDS && fv__kind_readable(h->kind)) return FV_OK;
    int shown = n < 16 ? (int)n : 16;
    if (fv__utf8_check(s, (size_t)shown) < (size_t)shown) shown = 0;
    return fv_fail(
        h->e, FV_EDTYPE,
        "%s: dtype '%.*s' is not read: little endian f2, f4, f8, i1 to i8, u1 to u8 and b1 are",
        h->path, shown, s);
}

/* (3,) and () are tuples too: a trailing comma is allowed, an empty tuple is a scalar. */
static fv_status shape(npy *h)
{
    if (!take(h, '(')) return broken(h, "the shape is not a tuple");
    while (!take(h, ')')) {
        if (h->shape.n == FV_MAX_DIM)
            return fv_fail(h->e, FV_ESHAPE, "%s: more than %d axes", h->path, FV_MAX_DIM);
        skip(h);
        int64_t v = 0;
        const char *from = h->at;
        for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
            if (!fv__mul_i64(&v, v, 10) || __builtin_add_overflow(v, *h->at - '0', &v))
                return broken(h, "an axis is too long");
        if (h->at == from) return broken(h, "an axis is not a number");
        h->shape.d[h->shape.n++] = v;
        if (!take(h, ',') && (h->at == h->end || *h->at != ')'))
            return broken(h, "the shape is not a tuple");
    }
    return FV_OK;
}

/* The header is a literal of a Python dict; each of its three keys must stand there once. */
static fv_status entry(npy *h, int *seen)
{
    const char *s;
    size_t n;
    int key = 0;
    fv_status st = FV_OK;
    if (!quoted(h, &s, &n) || !take(h, ':'))
        return broken(h, "not a dict of 'descr', 'fortran_order' and 'shape'");
    if (n == 5 && !memcmp(s, "descr", 5)) {
        key = DESCR;
        st = descr(h);
    } else if (n == 13 && !memcmp(s, "fortran_order", 13)) {
        key = ORDER;
        h->fortran = take_word(h, "True");
        if (!h->fortran && !take_word(h, "False"))
            st = broken(h, "'fortran_order' is neither True nor False");
    } else if (n == 5 && !memcmp(s, "shape", 5)) {
        key = SHAPE;
        h->shape.n = 0;
        st = shape(h);
    }
    if (!st && (!key || *seen & key))
        st = broken(h, key ? "a key stands twice" : "a key that does not belong");
    *seen |= key;
    return st;
}

/* A grammar of three keys, not a Python parser: what NumPy itself never writes is refused. */
static fv_status literal(npy *h)
{
    int seen = 0;
    if (!take(h, '{')) return broken(h, "not a dict");
    while (!take(h, '}')) {
        fv_status st = entry(h, &seen);
        if (st) return st;
        skip(h);
        if (!take(h, ',') && (h->at == h->end || *h->at != '}'))
            return broken(h, "no comma between two keys");
    }
    skip(h);
    if (h->at != h->end) return broken(h, "text after the dict");
    if (seen != (DESCR | ORDER | SHAPE))
        return broken(h, "'descr', 'fortran_order' or 'shape' is missing");
    return FV_OK;
}

/* Finds the literal; *data gets the offset of what follows it. */
static fv_status frame(npy *h, const fv_file *f, size_t *data)
{
    const unsigned char *u = (const unsigned char *)f->data;
    if (f->size < 10 || memcmp(u, FV_NPY_MAGIC, FV_NPY_MAGIC_LEN))
        return fv_fail(h->e, FV_EFORMAT, "%s: not a NumPy file", h->path);
    if (u[6] < 1 || u[6] > 3 || u[7])
        return fv_fail(h->e, FV_EFORMAT, "%s: NumPy format %d.%d is not read (1.0 to 3.0 are)",
                       h->path, u[6], u[7]);
    size_t start = u[6] == 1 ? 10 : 12, len = u[8] | (size_t)u[9] << 8;
    if (f->size < start) return broken(h, "cut off");
    if (u[6] > 1) len |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (len > f->size - start)
        return fv_fail(h->e, FV_EFORMAT, "%s: NumPy header of %zu bytes in a file of %zu", h->path,
                       len, f->size);
    h->at = f->data + start;
    h->end = h->at + len;
    *data = start + len;
    return FV_OK;
}

/* Element by element from first-axis-fastest to last-axis-fastest order. */
static int64_t convert_fortran(float *out, const char *src, const npy *h, int64_t n)
{
    int64_t at[FV_MAX_DIM] = {0}, step[FV_MAX_DIM] = {1}, from = 0,
            width = fv__kinds[h->kind].bits / 8;
    for (int i = 1; i < h->shape.n; i++) step[i] = step[i - 1] * h->shape.d[i - 1];
    for (int64_t k = 0; k < n; k++) {
        if (!fv__convert(&out[k], FV_F32, src + from * width, h->kind, 1)) return k;
        for (int i = h->shape.n - 1; i >= 0; i--) {
            from += step[i];
            if (++at[i] < h->shape.d[i]) break;
            from -= step[i] * at[i];
            at[i] = 0;
        }
    }
    return n;
}

/* The size of the data must be exactly what the header says: a file that was cut is noticed. */
fv_status fv__npy_read(fv_array *a, const fv_file *f, const char *path, fv_err *e)
{
    npy h = {.path = path, .e = e};
    size_t start = 0;
    int64_t n;
    uint64_t bytes;
    fv_status st = frame(&h, f, &start);
    if (!st) st = literal(&h);
    if (st) return st;
    if (!fv__shape_count(&n, &h.shape) || !fv__kind_bytes(&bytes, h.kind, (uint64_t)n) ||
        bytes != f->size - start)
        return fv_fail(e, FV_EFORMAT,
                       "%s: %zu bytes of data do not fit the shape and dtype its header gives",
                       path, f->size - start);
    a->shape = h.shape;
    snprintf(a->stored, sizeof a->stored, "%s", fv__kinds[h.kind].plain);
    st = fv__array_alloc(a, path, e);
    if (st || !n) return st;
    const char *src = f->data + start;
    int64_t done = h.fortran && h.shape.n > 1 ? convert_fortran(a->data, src, &h, n)
                                              : fv__convert(a->data, FV_F32, src, h.kind, n);
    if (done < n)
        return fv_fail(e, FV_ENUMERIC, "%s: the %s at %s cannot be held in f32", path, a->stored,
                       fv__element(&a->shape, done).s);
    return FV_OK;
}

/* Version 1.0, f32, last axis fastest. */
void fv__npy_write(fv_out *o, const fv_array *a)
{
    char head[256];
    int64_t n = 0;
    fv__shape_count(&n, &a->shape);
    int len = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < a->shape.n; i++)
        len += snprintf(head + len, sizeof head - (size_t)len, i ? ", %lld" : "%lld",
                        (long long)a->shape.d[i]);
    len += snprintf(head + len, sizeof head - (size_t)len, a->shape.n == 1 ? ",), }" : "), }");
    /* data begins at a multiple of 64, as NumPy has it */
    while ((10 + len + 1) % 64) head[len++] = ' ';
    head[len++] = '\n';
    fv__out_add(o, FV_NPY_MAGIC "\x01\x00", 8);
    fv__out_add(o, (unsigned char[]){(unsigned char)len, (unsigned char)(len >> 8)}, 2);
    fv__out_add(o, head, (size_t)len);
    fv__out_add(o, a->data, (size_t)n * sizeof *a->data);
}
