/* text.h - what the check and the walk of a JSON document share.
 *
 * Blanks are the four of RFC 8259; a byte-order mark is none of them. */
#ifndef FV_BASE_JSON_TEXT_H
#define FV_BASE_JSON_TEXT_H

#include "reader.h"

static inline bool fv__json_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline size_t fv__json_space(const fv__json *j, size_t at)
{
    while (at < j->n && fv__json_blank(j->s[at])) at++;
    return at;
}

static inline int fv__json_hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

#endif
