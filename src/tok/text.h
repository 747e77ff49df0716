/* text.h - text that remembers where it comes from, and what Unicode says about characters. */
#ifndef FV_TOK_TEXT_H
#define FV_TOK_TEXT_H

#include "base/pool.h"

/* Valid UTF-8.  from/to give, for each byte, the part of the original text it stands for; they are
 * NULL where the text is the original (identity), or where nobody will ask (track is false). */
typedef struct fv__text {
    const fv_env *env;
    char *s;
    uint32_t *from, *to;
    size_t n;
    size_t cap_s, cap_from, cap_to; /* bytes */
    size_t most;                    /* bytes it may have; 0: no limit */
    bool track, identity, failed;
    bool over; /* failed because of the limit */
} fv__text;

void fv__text_free(fv__text *t);
/* Empties t, reserves `capacity` bytes and takes its limit away. */
void fv__text_start(fv__text *t, const fv_env *env, bool track, size_t capacity);
/* Makes t a view of the original; it must not be added to. */
void fv__text_view(fv__text *t, const char *s, size_t n, bool track);
/* Appends n bytes that all stand for the original [from, to). */
void fv__text_put(fv__text *t, const char *s, size_t n, uint32_t from, uint32_t to);
void fv__text_put_char(fv__text *t, uint32_t cp, uint32_t from, uint32_t to);
/* Appends in[a, b) with what it stands for. */
void fv__text_copy(fv__text *t, const fv__text *in, size_t a, size_t b);
/* The original part that in[a, b) stands for. */
void fv__text_span(const fv__text *in, size_t a, size_t b, uint32_t *from, uint32_t *to);

/* One character at s[i]; text is valid, so no check. */
static inline int fv__char_at(uint32_t *cp, const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return *cp = u[0], 1;
    if (u[0] < 0xE0) return *cp = (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu), 2;
    if (u[0] < 0xF0) return *cp = (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu), 3;
    return *cp = (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu),
           4;
}

/* Length of the ill-formed part at s (not a valid character), as Unicode's "maximal subpart" and
 * Python cut it. */
size_t fv__utf8_bad(const char *s, size_t n);

/* ---- characters ---- */

bool fv__is_space(uint32_t cp);      /* White_Space */
bool fv__is_punct(uint32_t cp);      /* category P, or ASCII punctuation */
bool fv__is_numeric(uint32_t cp);    /* Nd, Nl, No */
bool fv__is_word(uint32_t cp);       /* \w */
bool fv__is_mark(uint32_t cp);       /* M */
bool fv__is_nonspacing(uint32_t cp); /* Mn */
bool fv__is_control(uint32_t cp);    /* Cc, Cf, Co */
bool fv__is_cjk(uint32_t cp);        /* the blocks BERT isolates */
uint32_t fv__lower(uint32_t cp);

/* Class for GPT-2 style splitting: 0 other, 1 letter, 2 number, 3 white space. */
int fv__gpt_class(uint32_t cp);

/* The printable character GPT-2 uses for a byte, and back (-1: none). */
uint32_t fv__byte_to_char(unsigned char b);
int fv__char_to_byte(uint32_t cp);

#endif
