/* forms.c - Unicode normal forms on text that keeps its alignment.
 *
 * utf8proc knows the decompositions and compositions but maps whole strings; here each result must
 * remember its source.  So text goes in blocks that cannot influence each other (an ASCII character
 * starts a new one), each is decomposed, put into canonical order and, for NFC and NFKC, composed
 * pair by pair. */
#include <utf8proc.h>

#include "tok/tok.h"

/*    source     U+00E9  U+0323              e acute, dot below
 *    decompose  e  U+0301(230)  U+0323(220)     `extra` marks U+0301
 *    order      e  U+0323(220)  U+0301(230)     by combining class
 *    compose    U+1EB9  U+0301                  e with dot below; the acute stays */
typedef struct unit {
    uint32_t cp;
    uint8_t ccc;
    bool extra;     /* not the first of the characters that a source character became */
    uint16_t eaten; /* source characters that were composed into this one */
} unit;

typedef struct source {
    uint32_t from, to;
} source;

typedef struct block {
    const fv_env *env;
    unit *v, *tmp;
    source *sources; /* one for each character of the block */
    size_t n, n_sources;
    size_t cap, cap_tmp, cap_sources; /* bytes */
    bool failed;
} block;

static uint8_t combining(uint32_t cp)
{
    return cp < 0x300 ? 0 : (uint8_t)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

static void push(block *b, uint32_t cp, bool extra)
{
    void *v = b->v;
    if (b->failed || !fv__grow(b->env, &v, &b->cap, (b->n + 1) * sizeof *b->v)) {
        b->failed = true;
        return;
    }
    b->v = v;
    b->v[b->n++] = (unit){.cp = cp, .ccc = combining(cp), .extra = extra};
}

static void push_source(block *b, uint32_t from, uint32_t to)
{
    void *v = b->sources;
    if (b->failed ||
        !fv__grow(b->env, &v, &b->cap_sources, (b->n_sources + 1) * sizeof *b->sources)) {
        b->failed = true;
        return;
    }
    b->sources = v;
    b->sources[b->n_sources++] = (source){from, to};
}

static void decompose(block *b, const fv__text *in, size_t from, size_t to, bool compat)
{
    utf8proc_option_t how = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    for (size_t i = from; i < to && !b->failed;) {
        uint32_t cp, a, z;
        utf8proc_int32_t parts[32];
        int boundclass = 0;
        size_t len = (size_t)fv__char_at(&cp, in->s + i);
        fv__text_span(in, i, i + len, &a, &z);
        push_source(b, a, z);
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, 32, how,
                                                     &boundclass);
        if (n < 1 || n > 32)
            push(b, cp, false);
        else
            for (utf8proc_ssize_t k = 0; k < n; k++) push(b, (uint32_t)parts[k], k > 0);
        i += len;
    }
}

/* Marks between two starters, by combining class, stable.  Counting sort: thousands of marks in a
 * row stay linear. */
static void order(block *b, size_t from, size_t to)
{
    uint32_t start[257] = {0};
    bool sorted = true;
    for (size_t i = from + 1; i < to; i++) sorted = sorted && b->v[i - 1].ccc <= b->v[i].ccc;
    if (sorted) return;
    void *tmp = b->tmp;
    if (!fv__grow(b->env, &tmp, &b->cap_tmp, (to - from) * sizeof *b->v)) {
        b->failed = true;
        return;
    }
    b->tmp = tmp;
    memcpy(b->tmp, b->v + from, (to - from) * sizeof *b->v);
    for (size_t i = 0; i < to - from; i++) start[b->tmp[i].ccc + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < to - from; i++) b->v[from + start[b->tmp[i].ccc]++] = b->tmp[i];
}

static void order_all(block *b)
{
    for (size_t i = 0; i < b->n && !b->failed;) {
        if (!b->v[i].ccc) {
            i++;
            continue;
        }
        size_t from = i;
        while (i < b->n && b->v[i].ccc) i++;
        order(b, from, i);
    }
}

/* The composition of two characters, or 0.  Only marks and the vowels and finals of Hangul ever
 * come second. */
static uint32_t pair(uint32_t a, uint32_t b)
{
    bool second = (b >= 0x1161 && b <= 0x11C2) || fv__is_mark(b);
    if (!second) return 0;
    utf8proc_int32_t buf[3] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b, 0};
    return utf8proc_normalize_utf32(buf, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1
               ? (uint32_t)buf[0]
               : 0;
}

/* A mark joins the last starter unless something between them has the same or a higher class. */
static void compose(block *b)
{
    size_t out = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < b->n; i++) {
        unit u = b->v[i];
        if (starter != SIZE_MAX) {
            bool adjacent = out == starter + 1;
            bool blocked = !adjacent && (b->v[out - 1].ccc >= u.ccc || !b->v[out - 1].ccc);
            uint32_t c = blocked ? 0 : pair(b->v[starter].cp, u.cp);
            if (c) {
                b->v[starter].cp = c;
                b->v[starter].eaten = (uint16_t)(b->v[starter].eaten + !u.extra);
                continue;
            }
        }
        if (!u.ccc) starter = out;
        b->v[out++] = u;
    }
    b->n = out;
}

/* Sources are given out in order, as in the reference: reordered marks are exchanged, not
 * sources. */
static void emit(fv__text *out, const block *b)
{
    size_t at = 0;
    source s = {0};
    for (size_t k = 0; k < b->n; k++) {
        if (!b->v[k].extra && at < b->n_sources) {
            s = b->sources[at];
            at += 1u + b->v[k].eaten;
        }
        fv__text_put_char(out, b->v[k].cp, s.from, s.to);
    }
}

static bool ascii(char c) { return !(c & 0x80); }

void fv__unicode_form(fv__text *out, const fv__text *in, bool do_compose, bool compat)
{
    block b = {.env = out->env};
    for (size_t i = 0; i < in->n;) {
        size_t end = i;
        while (end < in->n && ascii(in->s[end])) end++;
        /* the last one may take a mark */
        size_t plain = end == in->n ? end : end > i ? end - 1 : i;
        fv__text_copy(out, in, i, plain);
        if (plain == in->n) break;
        while (end < in->n && !ascii(in->s[end])) end++;
        b.n = b.n_sources = 0;
        decompose(&b, in, plain, end, compat);
        if (!b.failed) order_all(&b);
        if (!b.failed && do_compose) compose(&b);
        if (!b.failed) emit(out, &b);
        i = end;
    }
    if (b.failed) out->failed = true;
    fv__free(b.env, b.v, b.cap);
    fv__free(b.env, b.tmp, b.cap_tmp);
    fv__free(b.env, b.sources, b.cap_sources);
}
