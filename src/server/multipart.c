/* multipart.c - fields of multipart/form-data (RFC 7578), as clients send files.
 *
 *     --BOUNDARY CRLF  headers CRLF CRLF  data CRLF  --BOUNDARY ... --BOUNDARY--
 *
 * The body is there whole, so a field is two addresses within it and nothing is copied.  What is
 * not exactly of this form is refused: there is one way to write it, and clients use libraries. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "media.h"

enum { LONGEST = 70 }; /* of a boundary, by RFC 2046 */

/* boundary=x or boundary="x" of the type, with two dashes in front. */
static bool read_boundary(const char *type, char *out)
{
    static const char kind[] = "multipart/form-data";
    const char *at = type && !strncasecmp(type, kind, sizeof kind - 1)
                         ? strcasestr(type, "boundary=")
                         : NULL;
    if (!at) return false;
    at += strlen("boundary=");
    bool quoted = *at == '"';
    size_t n = strcspn(at + quoted, quoted ? "\"" : "; \t");
    if (!n || n > LONGEST) return false;
    snprintf(out, LONGEST + 4, "--%.*s", (int)n, at + quoted);
    return true;
}

/* The value of name="..." within a header line of n bytes. */
static bool parameter(const char *line, size_t n, const char *name, char *out, size_t room)
{
    char key[32];
    int k = snprintf(key, sizeof key, "%s=\"", name);
    for (const char *at = line; (at = memmem(at, n - (size_t)(at - line), key, (size_t)k)); at++) {
        if (at == line || (at[-1] != ' ' && at[-1] != ';')) continue; /* the end of another name */
        const char *from = at + k, *to = memchr(from, '"', n - (size_t)(from - line));
        if (!to || (size_t)(to - from) >= room) return false;
        memcpy(out, from, (size_t)(to - from));
        out[to - from] = 0;
        return true;
    }
    return false;
}

/* Whether the headers of a part name the field that is wanted. */
static bool is_wanted(const char *head, size_t n, const char *name, sv_part *out)
{
    char found[128];
    static const char key[] = "content-disposition:";
    for (const char *line = head, *end; line < head + n; line = end + 2) {
        end = memmem(line, n - (size_t)(line - head), "\r\n", 2);
        if (!end) end = head + n;
        size_t len = (size_t)(end - line);
        if (len < sizeof key || strncasecmp(line, key, sizeof key - 1)) continue;
        if (!parameter(line, len, "name", found, sizeof found) || strcmp(found, name)) return false;
        if (!parameter(line, len, "filename", out->file, sizeof out->file)) out->file[0] = 0;
        return true;
    }
    return false;
}

/* RFC 2046: "--boundary CRLF headers CRLF CRLF data CRLF--boundary", the last one with "--" behind
 * it. The part's data points into the body; nothing is copied. false: no such part, or the body is
 * broken. */
bool sv_multipart(const char *type, const sv_text *body, const char *name, sv_part *out)
{
    char mark[LONGEST + 8];
    *out = (sv_part){0};
    if (!body->n || !read_boundary(type, mark)) return false;
    size_t len = strlen(mark);
    const char *at = body->s, *end = body->s + body->n;
    if (body->n < len || memcmp(at, mark, len)) return false;
    while ((size_t)(end - at) > len + 2 && at[len] == '\r' && at[len + 1] == '\n') {
        const char *head = at + len + 2;
        const char *blank = memmem(head, (size_t)(end - head), "\r\n\r\n", 4);
        const char *data = blank ? blank + 4 : NULL;
        const char *next = data;
        /* the boundary is a line of its own: what looks like it within the data is data */
        while (next && (next = memmem(next, (size_t)(end - next), mark, len)) &&
               (next < data + 2 || next[-1] != '\n' || next[-2] != '\r'))
            next++;
        if (!next) return false;
        if (is_wanted(head, (size_t)(blank - head), name, out)) {
            out->data = data;
            out->n = (size_t)(next - 2 - data);
            return true;
        }
        at = next;
    }
    return false;
}
