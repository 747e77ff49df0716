/* text.c - growing buffers, UTF-8, and the nearest word.
 *
 * fv_buf is sticky like a context: after a failed allocation every addition is ignored, and the
 * caller looks at `failed` once, at the end.  Its data always ends in NUL, which len does not
 * count. */
#include <stdio.h>
#include <stdlib.h>

#include "base.h"
#include "decimal.h"

/* Room for n more bytes and the terminator; the pointer is moved here, so that no address of it is
 * taken. */
static bool reserve(fv_buf *b, size_t n)
{
    size_t want, cap = b->cap;
    if (!fv__add_size(&want, b->len, n) || !fv__add_size(&want, want, 1)) return false;
    if (want <= cap) return true;
    size_t size = cap > want / 2 && cap <= SIZE_MAX / 2 ? cap * 2 : want < 64 ? 64 : want;
    char *p = fv__alloc(b->env, size);
    if (!p) return false;
    if (b->len) memcpy(p, b->data, b->len);
    fv__free(b->env, b->data, cap);
    b->data = p;
    b->cap = size;
    return true;
}

void fv__buf_add(fv_buf *b, const void *bytes, size_t n)
{
    if (b->failed) return;
    if (!reserve(b, n)) {
        b->failed = true;
        return;
    }
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void fv__buf_str(fv_buf *b, const char *s) { fv__buf_add(b, s, strlen(s)); }

void fv__buf_fmt(fv_buf *b, const char *fmt, ...)
{
    char small[512];
    va_list ap;
    locale_t before = fv__c_numbers();
    va_start(ap, fmt);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    fv__c_numbers_end(before);
    if (n < 0) return;
    if ((size_t)n < sizeof small) {
        fv__buf_add(b, small, (size_t)n);
        return;
    }
    char *big = fv__alloc(b->env, (size_t)n + 1);
    if (!big) {
        b->failed = true;
        return;
    }
    before = fv__c_numbers();
    va_start(ap, fmt);
    vsnprintf(big, (size_t)n + 1, fmt, ap);
    va_end(ap);
    fv__c_numbers_end(before);
    fv__buf_add(b, big, (size_t)n);
    fv__free(b->env, big, (size_t)n + 1);
}

void fv__buf_free(fv_buf *b)
{
    fv__free(b->env, b->data, b->cap);
    b->data = NULL;
    b->len = b->cap = 0;
}

char *fv__strdup(const fv_env *env, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = fv__alloc(env, n);
    if (p) memcpy(p, s, n);
    return p;
}

/* Levenshtein distance of words of at most 63 bytes; longer ones are cut there.
 * One row of the table and the diagonal: O(n m) time, O(m) memory. */
static int distance(const char *a, const char *b)
{
    int row[64], na = (int)strnlen(a, 63), nb = (int)strnlen(b, 63);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

/* Up to half of the letters may differ; beyond that a suggestion is no help. */
const char *fv_closest(const char *word, const char *const *list)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 2 + 1;
    for (; *list; list++) {
        int d = distance(word, *list);
        if (d < least) least = d, best = *list;
    }
    return best;
}

/* Strict, as Unicode 15 table 3-7 has it: no overlong forms, no surrogates, nothing beyond
 * U+10FFFF. */
int fv__utf8_get(uint32_t *cp, const char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)s;
    if (!n) return 0;
    int len = u[0] < 0x80                   ? 1
              : u[0] >= 0xC2 && u[0] < 0xE0 ? 2
              : u[0] >= 0xE0 && u[0] < 0xF0 ? 3
              : u[0] >= 0xF0 && u[0] < 0xF5 ? 4
                                            : 0;
    if (!len || (size_t)len > n) return 0;
    uint32_t c = len == 1 ? u[0] : u[0] & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((u[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (u[i] & 0x3Fu);
    }
    if (c < least[len] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    *cp = c;
    return len;
}

int fv__utf8_put(char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> len & 0xFF) | cp);
    return len;
}

size_t fv__utf8_check(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int len = fv__utf8_get(&cp, s + i, n - i);
        if (!len) return i;
        i += (size_t)len;
    }
    return n;
}
