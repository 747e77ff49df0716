/* mutate.c - spoiling a file: bytes changed, left out, doubled, exchanged; numbers and words in it
 * replaced by others. */
#include "mutate.h"

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

uint64_t throw(dice * d) /* splitmix64 */
{
    uint64_t z = d->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

size_t below(dice *d, size_t n) { return n ? throw(d) % n : 0; }

/* file[at, at+cut) gives way to s. */
static void replace(bytes *f, size_t at, size_t cut, const char *s, size_t n)
{
    if (at > f->n) at = f->n;
    if (cut > f->n - at) cut = f->n - at;
    char *out = malloc(f->n - cut + n + 1);
    memcpy(out, f->s, at);
    if (n) memcpy(out + at, s, n);
    memcpy(out + at + n, f->s + at + cut, f->n - at - cut);
    free(f->s);
    *f = (bytes){out, f->n - cut + n};
}

static const char *const words[] = {
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "255",
    "256",
    "65536",
    "2147483647",
    "1e9",
    "1e308",
    "-0.5",
    "1e-9",
    "9999999999999999999",
    "18446744073709551615",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"\"",
    "\"a\"",
    "[[]]",
    "{\"a\":0}",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\xff",
    "\xc3",
    "\xe2\x96\x81",
    "<s>",
    "\"*\"",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "\n",
    "\t",
    " ",
    "NaN",
    "Infinity",
    "(?:",
    "a{1,9999}",
    "((((((((",
    "[PAD]",
    "##",
};
enum { N_WORDS = sizeof words / sizeof *words };

static int is_number(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '.'; }

/* The run of characters of one kind around a place: a number, or what stands between quotes, colons
 * and the like. */
static void token_at(const bytes *f, size_t at, size_t *from, size_t *n)
{
    size_t a = at, b = at;
    if (is_number(f->s[at])) {
        while (a > 0 && is_number(f->s[a - 1])) a--;
        while (b < f->n && is_number(f->s[b])) b++;
    } else {
        while (a > 0 && !strchr("\"{}[]:,=\n\t ", f->s[a - 1]) && at - a < 200) a--;
        while (b < f->n && !strchr("\"{}[]:,=\n\t ", f->s[b]) && b - at < 200) b++;
    }
    *from = a;
    *n = b - a;
}

/* ---- changes that leave the form as it was ---- */

static const char *const numbers[] = {"0",
                                      "-1",
                                      "1",
                                      "2",
                                      "3",
                                      "4",
                                      "5",
                                      "7",
                                      "8",
                                      "16",
                                      "17",
                                      "64",
                                      "255",
                                      "256",
                                      "1000",
                                      "4096",
                                      "65535",
                                      "65536",
                                      "1000000",
                                      "16777216",
                                      "2147483647",
                                      "4294967296",
                                      "1e9",
                                      "1e300",
                                      "0.5",
                                      "-0.5",
                                      "1e-30",
                                      "0.0",
                                      "9007199254740993",
                                      "9999999999999999999"};

/* The next number behind a place, where a value may stand. */
static int find_number(const bytes *f, size_t at, size_t *from, size_t *n)
{
    for (size_t i = at; i < f->n; i++) {
        if (!is_number(f->s[i]) || (i && !strchr(" :[,=\t\n", f->s[i - 1]))) continue;
        token_at(f, i, from, n);
        return 1;
    }
    return 0;
}

/* The next text in quotes behind a place. */
static int find_quoted(const bytes *f, size_t at, size_t *from, size_t *n)
{
    const char *a = memchr(f->s + at, '"', f->n - at),
               *b = a ? memchr(a + 1, '"', f->n - (size_t)(a + 1 - f->s)) : NULL;
    if (!b) return 0;
    *from = (size_t)(a + 1 - f->s);
    *n = (size_t)(b - a - 1);
    return 1;
}

static void change_value(dice *d, bytes *f)
{
    size_t at = below(d, f->n), from, n, other, m;
    char text[256];
    switch (below(d, 4)) {
    case 0: /* a text for a text, both of this file */
        if (!find_quoted(f, at, &from, &n) || !find_quoted(f, below(d, f->n), &other, &m) ||
            m > sizeof text)
            return;
        memcpy(text, f->s + other, m);
        replace(f, from, n, text, m);
        break;
    case 1: { /* a line less, or once more */
        const char *start = memrchr(f->s, '\n', at), *end = memchr(f->s + at, '\n', f->n - at);
        if (!start || !end || (size_t)(end - start) > sizeof text) return;
        n = (size_t)(end - start);
        memcpy(text, start, n);
        if (below(d, 2))
            replace(f, (size_t)(start - f->s), n, "", 0);
        else
            replace(f, (size_t)(start - f->s), 0, text, n);
        break;
    }
    default:
        if (!find_number(f, at, &from, &n)) return;
        m = below(d, sizeof numbers / sizeof *numbers);
        replace(f, from, n, numbers[m], strlen(numbers[m]));
    }
}

/* ---- changes of any kind ---- */

static void change(dice *d, bytes *f, bytes other)
{
    size_t at = below(d, f->n), from, n, k;
    switch (below(d, 13)) {
    case 0: f->s[at] ^= (char)(1 << below(d, 8)); break;
    case 1: f->s[at] = (char) throw(d); break;
    case 2: f->s[at] = "\0\xff\x7f\x80"[below(d, 4)]; break;
    case 3: /* eight bytes as a number, little end first */
        for (uint64_t v = (uint64_t[]){0, 1, ~0u, ~(uint64_t)0, (uint64_t)1 << 63, f->n, f->n - 1,
                                       1u << 31}[below(d, 8)],
                      i = 0;
             i < 8 && at + i < f->n; i++)
            f->s[at + i] = (char)(v >> (8 * i));
        break;
    case 4: replace(f, at, 1 + below(d, below(d, 4) ? 8 : f->n), "", 0); break;
    case 5: replace(f, at, f->n, "", 0); break; /* it ends here */
    case 6:                                     /* twice the same */
        n = 1 + below(d, 64);
        if (n > f->n - at) n = f->n - at;
        replace(f, below(d, f->n), 0, f->s + at, n);
        break;
    case 7: /* a piece of another */
        from = below(d, other.n);
        n = below(d, other.n - from < 200 ? other.n - from : 200);
        replace(f, at, below(d, 2) ? n : 0, other.s + from, n);
        break;
    case 8: /* any bytes */
        for (k = 1 + below(d, 8); k > 0 && at < f->n; k--) f->s[at++] = (char) throw(d);
        break;
    default: /* a word in place of a word, or of none */
        token_at(f, at, &from, &n);
        k = below(d, N_WORDS);
        if (below(d, 4))
            replace(f, from, n, words[k], strlen(words[k]));
        else
            replace(f, at, 0, words[k], strlen(words[k]));
    }
}

static void change_some(dice *d, bytes *f, bytes other)
{
    int formal = below(d, 2) == 0;
    for (size_t i = 1 + below(d, 4); i > 0 && f->n; i--) {
        if (formal)
            change_value(d, f);
        else
            change(d, f, other);
    }
}

/* The length of the header of a safetensors file, as it stands in its first eight bytes. */
static uint64_t header_size(const bytes *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < 8 && i < f->n; i++) n |= (uint64_t)(unsigned char)f->s[i] << (8 * i);
    return n;
}

/* ---- sums that would refuse everything else ---- */

void repair_tar_header(char h[512])
{
    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++) sum += (unsigned char)h[i];
    for (int i = 5; i >= 0; i--, sum /= 8) h[148 + i] = (char)('0' + sum % 8);
    h[154] = 0;
}

static void repair_tar(bytes *f)
{
    for (size_t at = 0; at + 512 <= f->n; at += 512)
        if (!memcmp(f->s + at + 257, "ustar", 5)) repair_tar_header(f->s + at);
}

/* Chunks are a length, a name, the data, a sum over name and data. */
static void repair_png(bytes *f)
{
    for (size_t at = 8; at + 12 <= f->n;) {
        const unsigned char *p = (const unsigned char *)f->s + at;
        size_t n = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        if (n > f->n - at - 12) return;
        unsigned long sum = crc32(0, p + 4, (unsigned)(n + 4));
        for (int i = 0; i < 4; i++) f->s[at + 8 + n + (size_t)i] = (char)(sum >> 8 * (3 - i));
        at += n + 12;
    }
}

bytes spoil(dice *d, const char *name, bytes file, bytes other)
{
    bytes f = {malloc(file.n + 1), file.n};
    memcpy(f.s, file.s, file.n);
    uint64_t header = header_size(&f);
    /* its header alone */
    if (strstr(name, ".safetensors") && header <= file.n - 8 && file.n > 8 && below(d, 8)) {
        bytes h = {malloc(header + 1), header};
        memcpy(h.s, f.s + 8, header);
        change_some(d, &h, other);
        replace(&f, 8, header, h.s, h.n);
        for (int i = 0; i < 8; i++) f.s[i] = (char)((uint64_t)h.n >> (8 * i));
        free(h.s);
        return f;
    }
    change_some(d, &f, other);
    if (strstr(name, ".png") && below(d, 8)) repair_png(&f);
    if (strstr(name, ".tar") && below(d, 8)) repair_tar(&f);
    return f;
}
