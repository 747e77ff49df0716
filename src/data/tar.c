/* tar.c - the files of a tar archive that is in memory: ustar, with GNU's and pax's long names.
 *
 * An archive is a row of blocks of 512 bytes: a header, then the file's content, filled up to a
 * whole block; two blocks of zeros end it.  Nothing is unpacked to the disk. */
#include "data/tar.h"

#include <stdio.h>

enum { BLOCK = 512, TYPE = 156, SUM = 148 };

static fv_status refuse(const fv__tar *t, const char *why, fv_err *e)
{
    return fv_fail(e, FV_EFORMAT, "%s: no tar archive, or a damaged one: at byte %zu %s", t->path,
                   t->at, why);
}

/* A number in octal digits, between blanks or NULs; -1: there are others. */
static int64_t octal(const char *s, size_t n)
{
    int64_t v = 0;
    size_t i = 0;
    while (i < n && s[i] == ' ') i++;
    for (; i < n && s[i] >= '0' && s[i] <= '7'; i++) v = v * 8 + (s[i] - '0');
    for (; i < n; i++)
        if (s[i] && s[i] != ' ') return -1;
    return v;
}

/* The sum of the header's bytes, its own field taken as blanks. */
static bool sum_fits(const char *h)
{
    int64_t sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += i >= SUM && i < SUM + 8 ? ' ' : (unsigned char)h[i];
    return octal(h + SUM, 8) == sum;
}

static bool all_zero(const char *h)
{
    for (int i = 0; i < BLOCK; i++)
        if (h[i]) return false;
    return true;
}

/* ustar splits a long name in two: prefix/name. */
static void short_name(char out[FV__TAR_NAME], const char *h)
{
    bool ustar = !memcmp(h + 257, "ustar", 5);
    int prefix = ustar && memcmp(h + 257, "ustar ", 6) ? (int)strnlen(h + 345, 155) : 0;
    snprintf(out, FV__TAR_NAME, "%.*s%s%.*s", prefix, h + 345, prefix ? "/" : "",
             (int)strnlen(h, 100), h);
}

/* pax's records are "LENGTH key=value\n"; only path counts. */
static void pax_name(char out[FV__TAR_NAME], const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t len = 0, i = at;
        for (; i < n && s[i] >= '0' && s[i] <= '9' && len < n; i++)
            len = len * 10 + (size_t)(s[i] - '0');
        if (len <= i - at || len > n - at) return;
        size_t end = at + len - 1; /* of the value: before the line's end */
        if (end > i + 6 && !memcmp(s + i, " path=", 6))
            snprintf(out, FV__TAR_NAME, "%.*s",
                     (int)(end - i - 6 < FV__TAR_NAME ? end - i - 6 : FV__TAR_NAME - 1), s + i + 6);
        at += len;
    }
}

/* A name must stay below the folder it is unpacked to, also where nothing is unpacked: names become
 * paths in messages and labels. */
static bool leaves(const char *name)
{
    if (*name == '/') return true;
    for (const char *p = name; p; p = strchr(p, '/'), p += p != NULL)
        if (!strncmp(p, "..", 2) && (!p[2] || p[2] == '/')) return true;
    return false;
}

/* ustar: a header block of 512 bytes, the file's bytes rounded up to blocks, two blocks of zeros at
 * the end. A name too long for the header comes before it as a file of its own: GNU's type 'L', or
 * a pax record 'x'. Links, devices and folders are passed over. out->data NULL: the end. */
fv_status fv__tar_next(fv__tar *t, fv__tar_entry *out, fv_err *e)
{
    char given[FV__TAR_NAME] = ""; /* a long name for the next header */
    *out = (fv__tar_entry){.data = NULL};
    while (t->size - t->at >= BLOCK && !all_zero(t->data + t->at)) {
        const char *h = t->data + t->at;
        if (!sum_fits(h)) return refuse(t, "the sum over the header does not fit", e);
        int64_t size = octal(h + 124, 12);
        if (size < 0 || (uint64_t)size > t->size - t->at - BLOCK)
            return refuse(t, "a file is longer than the archive", e);
        const char *data = h + BLOCK;
        size_t whole = ((size_t)size + BLOCK - 1) / BLOCK * BLOCK, left = t->size - t->at - BLOCK;
        t->at += BLOCK + (whole < left ? whole : left);
        if (h[TYPE] == 'L') {
            snprintf(given, sizeof given, "%.*s", (int)(size < FV__TAR_NAME ? size : FV__TAR_NAME),
                     data);
        } else if (h[TYPE] == 'x') {
            pax_name(given, data, (size_t)size);
        } else if (h[TYPE] == '0' || !h[TYPE]) {
            if (*given)
                memcpy(out->name, given, sizeof given);
            else
                short_name(out->name, h);
            if (leaves(out->name)) return refuse(t, "a name leads out of the archive", e);
            out->data = data;
            out->size = (size_t)size;
            return FV_OK;
        } else {
            *given = 0;
        }
    }
    if (!t->at && t->size < BLOCK) return refuse(t, "there is no header", e);
    return FV_OK;
}
