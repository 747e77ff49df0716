/* text.c - aligned text: growing, copying, and asking where a part comes from.
 *
 *    s      b  y  t  e  s          from[i], to[i]: the bytes of the source that byte i stands for
 *    from   0  0  2  3  3          kept only if track; an identity text has none, it is the source
 *    to     2  2  3  5  5 */
#include "text.h"

void fv__text_free(fv__text *t)
{
    if (!t->identity) {
        fv__free(t->env, t->s, t->cap_s);
        fv__free(t->env, t->from, t->cap_from);
        fv__free(t->env, t->to, t->cap_to);
    }
    *t = (fv__text){0};
}

/* most bounds what a crafted file can make of a text; over tells that failure from lack of
 * memory. */
static bool reserve(fv__text *t, size_t n)
{
    size_t want = t->n + n;
    if (t->failed) return false;
    if (t->most && want > t->most) {
        t->failed = t->over = true;
        return false;
    }
    if (want <= t->cap_s && (!t->track || want * sizeof *t->from <= t->cap_from)) return true;
    bool ok = want < UINT32_MAX;
    if (ok) {
        void *s = t->s, *from = t->from, *to = t->to;
        ok = fv__grow(t->env, &s, &t->cap_s, want);
        if (ok && t->track) ok = fv__grow(t->env, &from, &t->cap_from, want * sizeof *t->from);
        if (ok && t->track) ok = fv__grow(t->env, &to, &t->cap_to, want * sizeof *t->to);
        t->s = s, t->from = from, t->to = to;
    }
    t->failed = !ok;
    return ok;
}

void fv__text_start(fv__text *t, const fv_env *env, bool track, size_t capacity)
{
    if (t->identity) *t = (fv__text){0};
    t->env = env;
    t->track = track;
    t->n = t->most = 0;
    t->failed = t->over = false;
    reserve(t, capacity + 4);
}

void fv__text_view(fv__text *t, const char *s, size_t n, bool track)
{
    *t = (fv__text){.s = (char *)(uintptr_t)s, .n = n, .track = track, .identity = true};
}

void fv__text_put(fv__text *t, const char *s, size_t n, uint32_t from, uint32_t to)
{
    if (!n || !reserve(t, n)) return;
    memcpy(t->s + t->n, s, n);
    if (t->track) {
        for (size_t i = 0; i < n; i++) t->from[t->n + i] = from;
        for (size_t i = 0; i < n; i++) t->to[t->n + i] = to;
    }
    t->n += n;
}

void fv__text_put_char(fv__text *t, uint32_t cp, uint32_t from, uint32_t to)
{
    char buf[4];
    fv__text_put(t, buf, (size_t)fv__utf8_put(buf, cp), from, to);
}

static bool inside(char c) { return (c & 0xC0) == 0x80; }

void fv__text_span(const fv__text *in, size_t a, size_t b, uint32_t *from, uint32_t *to)
{
    *from = *to = 0;
    if (!in->track || a >= b) return;
    if (!in->identity) {
        *from = in->from[a];
        *to = in->to[b - 1];
        return;
    }
    while (a && inside(in->s[a])) a--;
    while (b < in->n && inside(in->s[b])) b++;
    *from = (uint32_t)a;
    *to = (uint32_t)b;
}

void fv__text_copy(fv__text *t, const fv__text *in, size_t a, size_t b)
{
    size_t n = b - a;
    if (!n || !reserve(t, n)) return;
    memcpy(t->s + t->n, in->s + a, n);
    if (t->track && !in->identity) {
        memcpy(t->from + t->n, in->from + a, n * sizeof *t->from);
        memcpy(t->to + t->n, in->to + a, n * sizeof *t->to);
    } else if (t->track) {
        for (size_t i = a, out = t->n; i < b;) {
            uint32_t cp;
            size_t len = (size_t)fv__char_at(&cp, in->s + i);
            for (size_t k = 0; k < len; k++, out++)
                t->from[out] = (uint32_t)i, t->to[out] = (uint32_t)(i + len);
            i += len;
        }
    }
    t->n += n;
}

/* The maximal subpart of an ill-formed sequence (Unicode, chapter 3.9): one U+FFFD for each, as
 * Python and the web do it, so that offsets agree. */
size_t fv__utf8_bad(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned lo = 0x80, hi = 0xBF;
    size_t want;
    if (u[0] >= 0xC2 && u[0] <= 0xDF)
        want = 2;
    else if (u[0] >= 0xE0 && u[0] <= 0xEF)
        want = 3, lo = u[0] == 0xE0 ? 0xA0 : 0x80, hi = u[0] == 0xED ? 0x9F : 0xBF;
    else if (u[0] >= 0xF0 && u[0] <= 0xF4)
        want = 4, lo = u[0] == 0xF0 ? 0x90 : 0x80, hi = u[0] == 0xF4 ? 0x8F : 0xBF;
    else
        return 1;
    size_t i = 1;
    for (; i < want && i < n && u[i] >= lo && u[i] <= hi; i++) lo = 0x80, hi = 0xBF;
    return i;
}
