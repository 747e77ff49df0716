/* lexer.c - a template's text as tokens.
 *
 * Blanks around tags follow Jinja with trim_blocks and lstrip_blocks:
 *     the newline behind a statement or comment is dropped (trim_blocks);
 *     blanks between the start of a line and a statement or comment are dropped (lstrip_blocks);
 *     a minus at a tag's side drops all blanks there, a plus keeps them;
 *     one newline at the end of the template is dropped (keep_trailing_newline is off).
 * Output tags {{ }} are exempt from the first two.  "The start of a line" includes the text
 * behind a tag whose newline was dropped: line_start remembers that, as Jinja's lexer does. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "gen/template/jinja.h"

typedef struct lexer {
    jinja_pool *pool;
    const char *s, *end;
    int line;
    bool line_start; /* the last tag ended with a newline, or nothing was read yet */
    jinja_token *out;
    size_t n, cap;
} lexer;

/* Tokens are in one growing array: the parser looks ahead by index. */
static jinja_token *push(lexer *x, jinja_token_kind kind)
{
    if (x->n == x->cap) {
        size_t cap = 2 * x->cap + 64;
        jinja_token *bigger = fv__jinja_alloc(x->pool, cap * sizeof *bigger);
        if (!bigger) return NULL;
        if (x->n) memcpy(bigger, x->out, x->n * sizeof *bigger);
        x->out = bigger;
        x->cap = cap;
    }
    jinja_token *t = &x->out[x->n++];
    *t = (jinja_token){.kind = kind, .line = x->line};
    return t;
}

/* Moves on and counts lines, for messages. */
static void advance(lexer *x, const char *to)
{
    for (; x->s < to; x->s++) x->line += *x->s == '\n';
}

static bool starts(const lexer *x, const char *s, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(x->end - s) >= n && !memcmp(s, word, n);
}

/* ---- strings ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The code point of \xNN, \uNNNN or \UNNNNNNNN at s; returns the bytes read, 0 if it is none. */
static int hex_escape(const char *s, const char *end, uint32_t *cp)
{
    int digits = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    *cp = 0;
    if (!digits || end - s <= digits) return 0;
    for (int i = 1; i <= digits; i++) {
        if (hex_digit(s[i]) < 0) return 0;
        *cp = *cp * 16 + (uint32_t)hex_digit(s[i]);
    }
    return 1 + digits;
}

/* Python's escapes; an unknown one stands for itself. */
static jinja_text unescape(lexer *x, const char *s, const char *end)
{
    static const char from[] = "nrtabfv\\'\"", to[] = "\n\r\t\a\b\f\v\\'\"";
    char *out = fv__jinja_alloc(x->pool, (size_t)(end - s) + 1), *at = out;
    if (!out) return (jinja_text){"", 0};
    while (s < end) {
        uint32_t cp;
        int hex;
        const char *known;
        if (*s != '\\' || s + 1 == end) {
            *at++ = *s++;
        } else if (s[1] == '\n') {
            s += 2;
        } else if ((known = strchr(from, s[1])) && s[1]) {
            *at++ = to[known - from];
            s += 2;
        } else if ((hex = hex_escape(s + 1, end, &cp))) {
            at += cp < 0x110000 ? fv__utf8_put(at, cp) : 0;
            s += 1 + hex;
        } else {
            *at++ = *s++;
        }
    }
    return (jinja_text){out, (size_t)(at - out)};
}

/* A string in either kind of quotes; it may run over lines. */
static void lex_string(lexer *x)
{
    const char *s = x->s + 1;
    while (s < x->end && *s != *x->s) s += *s == '\\' && s + 1 < x->end ? 2 : 1;
    if (s >= x->end) {
        fv__jinja_fail(x->pool, FV_EFORMAT, "a string that does not end");
        return;
    }
    jinja_token *t = push(x, TOKEN_STRING);
    if (t) t->text = unescape(x, x->s + 1, s);
    advance(x, s + 1);
}

/* ---- numbers, names, operators ---- */

/* Decimal integers and fractions; other notations (hex, exponents) are refused by name.  The
 * value is exact for up to 15 digits, one correctly rounded division. */
static void lex_number(lexer *x)
{
    const char *s = x->s;
    char digits[64];
    size_t n = 0;
    bool real = false;
    for (; s < x->end && n < sizeof digits - 1; s++) {
        bool dot = *s == '.' && s + 1 < x->end && isdigit((unsigned char)s[1]) && !real;
        if (*s == '_') continue;
        if (!dot && !isdigit((unsigned char)*s)) break;
        real = real || dot;
        digits[n++] = *s;
    }
    digits[n] = 0;
    if (s < x->end && (isalpha((unsigned char)*s) || n == sizeof digits - 1))
        fv__jinja_fail(x->pool, FV_EMISSING, "the number %s%c", digits, *s);
    jinja_token *t = push(x, real ? TOKEN_FLOAT : TOKEN_INT);
    if (!t) return;
    double f = 0, scale = 1;
    bool behind = false;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] == '.') {
            behind = true;
            continue;
        }
        f = f * 10 + (digits[i] - '0');
        if (behind) scale *= 10;
    }
    t->f = f / scale;
    if (!real && f > 9e15) fv__jinja_fail(x->pool, FV_EMISSING, "an integer of %s", digits);
    t->i = !real && f <= 9e15 ? (int64_t)f : 0;
    x->s = s;
}

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Operators of two characters before those of one. */
static void lex_operator(lexer *x)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**", NULL};
    size_t n = 0;
    for (int i = 0; two[i] && !n; i++)
        if (starts(x, x->s, two[i])) n = 2;
    if (!n && *x->s && strchr("+-*/%~<>=|.,:()[]{}", *x->s)) n = 1;
    if (!n) {
        fv__jinja_fail(x->pool, FV_EFORMAT, "the character '%c' in an expression", *x->s);
        return;
    }
    jinja_token *t = push(x, TOKEN_OPERATOR);
    if (t) t->text = (jinja_text){x->s, n};
    x->s += n;
}

/* ---- tags ---- */

static void skip_blanks(lexer *x)
{
    const char *s = x->s;
    while (s < x->end && isspace((unsigned char)*s)) s++;
    advance(x, s);
}

/* Behind a tag's last character: what its sign and trim_blocks take away. */
static void after_tag(lexer *x, char sign, bool block)
{
    const char *before = x->s;
    if (sign == '-')
        skip_blanks(x);
    else if (block && sign != '+' && x->s < x->end && *x->s == '\n')
        advance(x, x->s + 1);
    x->line_start = x->s > before && x->s[-1] == '\n';
}

/* Whether the tag ends here; a brace of a dict is no end while others are open. */
static bool at_end(const lexer *x, bool block, int open)
{
    const char *s = x->s + (x->s + 1 < x->end && (*x->s == '-' || (block && *x->s == '+')));
    return (block || !open) && starts(x, s, block ? "%}" : "}}");
}

/* The tokens of {{ .. }} or {% .. %}.  Braces are counted, so that a dict's }} does not end an
 * output tag. */
static void lex_tag(lexer *x, bool block)
{
    int open = 0;
    if (!push(x, block ? TOKEN_STMT_BEGIN : TOKEN_OUT_BEGIN)) return;
    for (skip_blanks(x); !x->pool->st; skip_blanks(x)) {
        x->pool->line = x->line;
        if (x->s >= x->end) {
            fv__jinja_fail(x->pool, FV_EFORMAT, "a tag that does not end");
        } else if (at_end(x, block, open)) {
            char sign = *x->s;
            x->s += 2 + (sign == '-' || sign == '+');
            push(x, block ? TOKEN_STMT_END : TOKEN_OUT_END);
            after_tag(x, sign, block);
            return;
        } else if (*x->s == '\'' || *x->s == '"') {
            lex_string(x);
        } else if (isdigit((unsigned char)*x->s)) {
            lex_number(x);
        } else if (is_name(*x->s)) {
            jinja_token *t = push(x, TOKEN_NAME);
            const char *s = x->s;
            while (s < x->end && is_name(*s)) s++;
            if (t) t->text = (jinja_text){x->s, (size_t)(s - x->s)};
            x->s = s;
        } else {
            open += (*x->s == '{') - (*x->s == '}');
            lex_operator(x);
        }
    }
}

/* {# .. #} leaves no token, but drops blanks as a statement does. */
static void lex_comment(lexer *x)
{
    const char *s = x->s;
    while (s < x->end && !starts(x, s, "#}")) s++;
    if (s >= x->end) {
        fv__jinja_fail(x->pool, FV_EFORMAT, "a comment that does not end");
        return;
    }
    char sign = s > x->s ? s[-1] : 0;
    advance(x, s + 2);
    after_tag(x, sign, true);
}

/* ---- text ---- */

/* A tag's sign on the left and lstrip_blocks take blanks of the text before it. */
static void push_text(lexer *x, const char *end, char sign, bool block)
{
    const char *s = x->s, *to = end;
    if (sign == '-') {
        while (to > s && isspace((unsigned char)to[-1])) to--;
    } else if (block && sign != '+') {
        const char *line = to;
        while (line > s && line[-1] != '\n' && isspace((unsigned char)line[-1])) line--;
        if ((line > s && line[-1] == '\n') || (line == s && x->line_start)) to = line;
    }
    if (to > s) {
        jinja_token *t = push(x, TOKEN_TEXT);
        if (t) t->text = (jinja_text){s, (size_t)(to - s)};
    }
    advance(x, end);
}

/* The length of {% raw %} or {% endraw %} at s, with its signs; 0: it is none. */
static size_t raw_tag(const lexer *x, const char *s, const char *word, char *left, char *right)
{
    const char *at = s + 2;
    if (!starts(x, s, "{%")) return 0;
    *left = at < x->end && (*at == '-' || *at == '+') ? *at++ : 0;
    while (at < x->end && isspace((unsigned char)*at)) at++;
    if (!starts(x, at, word)) return 0;
    at += strlen(word);
    while (at < x->end && isspace((unsigned char)*at)) at++;
    *right = at < x->end && (*at == '-' || *at == '+') ? *at++ : 0;
    return starts(x, at, "%}") ? (size_t)(at + 2 - s) : 0;
}

/* Text up to {% endraw %}, whatever it looks like. */
static void lex_raw(lexer *x)
{
    char left = 0, right = 0;
    const char *s = x->s;
    size_t n = 0;
    while (s < x->end && !(n = raw_tag(x, s, "endraw", &left, &right))) s++;
    if (!n) fv__jinja_fail(x->pool, FV_EFORMAT, "a raw block that does not end");
    if (!n) return;
    push_text(x, s, left, true);
    advance(x, s + n);
    after_tag(x, right, true);
}

/* The text up to the next tag, and that tag. */
static void lex_any(lexer *x)
{
    const char *s = x->s;
    char left = 0, right = 0;
    while (s < x->end && !(*s == '{' && s + 1 < x->end && strchr("{%#", s[1]) && s[1])) s++;
    if (s >= x->end) {
        push_text(x, s, '+', false);
        return;
    }
    char sign = s + 2 < x->end ? s[2] : 0;
    bool output = s[1] == '{';
    push_text(x, s, sign, !output);
    size_t raw = raw_tag(x, x->s, "raw", &left, &right);
    if (raw) {
        advance(x, x->s + raw);
        after_tag(x, right, true);
        lex_raw(x);
    } else if (s[1] == '#') {
        x->s += 2;
        lex_comment(x);
    } else {
        x->s += 2 + (sign == '-' || sign == '+');
        lex_tag(x, !output);
    }
}

/* Line ends become \n first, as in Jinja, so that blanks are counted the same for files with
 * \r\n. */
jinja_token *fv__jinja_lex(jinja_pool *p, const char *source, size_t n)
{
    char *copy = fv__jinja_alloc(p, n + 1);
    size_t len = 0;
    if (!copy) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
        copy[len++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (len && copy[len - 1] == '\n') len--;
    lexer x = {.pool = p, .s = copy, .end = copy + len, .line = 1, .line_start = true};
    while (!p->st && x.s < x.end) lex_any(&x);
    push(&x, TOKEN_END);
    return p->st ? NULL : x.out;
}
