/* oniguruma.c - Oniguruma's patterns, with Ruby's rules, in the language of PCRE2.
 *
 * What means the same in both passes as it is.  What differs:
 *
 *     \s \w \d          spelled out; in a class \w lacks the superscripts and fractions of Latin-1,
 *                       which it has alone (Oniguruma asks two tables)
 *     X{n,m}+           (?:X{n,m})+: intervals have no possessive form in Ruby
 *     X{n}?             (?:X{n})?
 *     X{,m}             X{0,m}
 *     \p{Han}           \p{sc:Han}: PCRE2 would ask for script extensions
 *     \b \B \h \H       spelled out; PCRE2's words are others, and its \h is a blank
 *     [[:alpha:]]       spelled out by Unicode's properties
 *     [a[bc]&&[^b]]     (?:(?=(?:[a]|[bc]))(?=(?:[^b]))(?s:.)): PCRE2 has no operators in classes
 *     (?i) and letters that fold to two (ss is also U+00DF)   refused, as are letters of one
 *                       case (\p{Lu}) and operators of classes there
 *
 * Everything else that would mean something else is refused too: a tokenizer that cuts text in
 * other positions is worse than one that does not open. */
#include "oniguruma.h"

#define SPACES                                                                                     \
    "\\t-\\r\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}"   \
    "\\x{3000}"
#define WORDS_IN_CLASS                                                                             \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-"         \
    "\\x{1F169}\\x{1F170}-\\x{1F189}"
#define WORDS WORDS_IN_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define BOUNDARY "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))"
#define NO_BOUNDARY "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))"
#define HEX "0-9A-Fa-f"
#define DEEPEST 64

/* One pass over the pattern, no tree: `atom` remembers where the last quantifiable piece began
 * in the output, which is all that intervals need to be put into a group. */
typedef struct translation {
    const char *s;
    size_t n, i;
    bool in_class, class_start; /* class_start: just after [ or [^, where ] is a character */
    bool fold;                  /* (?i) holds */
    uint32_t before;            /* the literal character just before, 0: none */
    size_t atom;                /* where in the output the last atom begins, SIZE_MAX: none */
    int depth;
    struct {
        size_t at; /* of the output: where the group begins */
        bool fold;
    } group[DEEPEST];
    fv_buf *out;
    bool (*is_script)(const char *name, size_t n);
    const char *refused;
} translation;

/* 0 behind the end, which is no character of any construct that is looked for. */
static char ahead(const translation *t, size_t k) { return t->i + k < t->n ? t->s[t->i + k] : 0; }

/* An atom begins here: something a quantifier behind it belongs to. */
static void begin_atom(translation *t)
{
    if (t->in_class) return;
    t->atom = t->out->len;
    t->before = 0;
}

/* ---- letters that fold to two ---- */

/* The characters whose full case folding has two or three code points, by their blocks: refusing
 * a few too many costs nothing. */
static bool folds_to_many(uint32_t c)
{
    return c == 0xDF || c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 ||
           c == 0x587 || (c >= 0x1E96 && c <= 0x1E9E) || (c >= 0x1F50 && c <= 0x1FFC) ||
           (c >= 0xFB00 && c <= 0xFB17);
}

/* Whether two letters are what one letter folds to. */
static bool folded_pair(uint32_t a, uint32_t b)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    uint32_t x = a | 32, y = b | 32;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (a < 128 && b < 128 && x == (unsigned char)pairs[i][0] &&
            y == (unsigned char)pairs[i][1])
            return true;
    /* with a mark behind it; n behind U+02BC; Greek and Armenian pairs */
    return (b >= 0x300 && b <= 0x36F) || a == 0x2BC || b == 0x2BE || b == 0x3B9 || b == 0x399 ||
           (a >= 0x531 && a <= 0x587 && b >= 0x531 && b <= 0x587);
}

/* Oniguruma folds "ss" with U+00DF under (?i), PCRE2 folds single characters only: refused. */
static void literal(translation *t, uint32_t c)
{
    if (t->fold && (folds_to_many(c) || (t->before && folded_pair(t->before, c))))
        t->refused = "letters that are one letter in another case, under (?i),";
    if (!t->in_class) t->before = c;
}

/* ---- escapes ---- */

/* Under (?i) Oniguruma folds all members of a class and no property outside of it; PCRE2 takes Lu
 * for all letters that have a case. */
static void refuse_cased(translation *t, const char *name, size_t n)
{
    static const char *const cased[] = {"lu", "ll", "lt", "uppercase", "lowercase", "titlecase"};
    char letters[16] = "";
    size_t k = 0;
    if (!t->fold) return;
    for (size_t i = 0; i < n && k + 1 < sizeof letters; i++)
        if ((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z') letters[k++] = (char)(name[i] | 32);
    for (size_t i = 0; k > 1 && i < sizeof cased / sizeof *cased; i++)
        if (!strncmp(letters, cased[i], k < 5 ? k : 5))
            t->refused = "letters of one case, under (?i),";
}

/* \p{Name}, \p{^Name} and \P{Name}; i is at the p. */
static void property(translation *t)
{
    bool negated = ahead(t, 0) == 'P', open = ahead(t, 1) == '{', caret = ahead(t, 2) == '^';
    size_t from = t->i + 2 + (open && caret); /* beyond the pattern where nothing is open */
    const char *name = t->s + from, *end = open ? memchr(name, '}', t->n - from) : NULL;
    if (!end) {
        t->refused = "\\p without braces";
        return;
    }
    size_t n = (size_t)(end - name);
    bool script = n > 2 && n < 40 && t->is_script(name, n);
    refuse_cased(t, name, n);
    /* A script is spelled sc: since PCRE2 10.40 and later read a bare script name as scx:,
     * script extensions. */
    fv__buf_fmt(t->out, "\\%c{%s%.*s}", negated != caret ? 'P' : 'p', script ? "sc:" : "", (int)n,
                name);
    t->i = (size_t)(end - t->s) + 1;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static void code_point(translation *t)
{
    for (size_t k = 1; k < 5; k++)
        if (!is_hex(ahead(t, k))) t->refused = "\\u without four digits";
    if (t->refused) return;
    fv__buf_fmt(t->out, "\\x{%.4s}", t->s + t->i + 1);
    t->i += 5;
}

/* \xHH and \x{H...}; i is at the x.  Two digits from 80 on are a byte in Oniguruma. */
static void hex(translation *t)
{
    bool braces = ahead(t, 1) == '{';
    size_t k = 1 + braces, most = braces ? 8 : 2, from = k;
    while (is_hex(ahead(t, k)) && k - from < most) k++;
    bool closed = !braces || ahead(t, k) == '}';
    if (k == from || !closed || (!braces && k - from == 2 && ahead(t, 1) > '7')) {
        t->refused = "this form of \\x";
        return;
    }
    fv__buf_fmt(t->out, "\\x{%.*s}", (int)(k - from), t->s + t->i + from);
    t->i += k + braces;
}

/* i is behind the backslash. */
static void escape(translation *t)
{
    static const char same[] = "nrtfAzZ"; /* of the letters and digits */
    char k = ahead(t, 0);
    bool in = t->in_class, word = (k >= '0' && k <= '9') || ((k | 32) >= 'a' && (k | 32) <= 'z');
    begin_atom(t);
    if (!k) t->refused = "a \\ at the end";
    if (k == 'W' && in) t->refused = "\\W in a class";
    if (k == 'p' || k == 'P') {
        property(t);
        return;
    }
    if (k == 'u' || k == 'x') {
        (k == 'u' ? code_point : hex)(t);
        return;
    }
    t->i++;
    switch (k) {
    case 's': fv__buf_str(t->out, in ? SPACES : "[" SPACES "]"); return;
    /* in a class: differs on U+180E alone */
    case 'S': fv__buf_str(t->out, in ? "\\S" : "[^" SPACES "]"); return;
    case 'w': fv__buf_str(t->out, in ? WORDS_IN_CLASS : "[" WORDS "]"); return;
    case 'W': fv__buf_str(t->out, "[^" WORDS "]"); return;
    case 'd': fv__buf_str(t->out, "\\p{Nd}"); return;
    case 'D': fv__buf_str(t->out, "\\P{Nd}"); return;
    case 'v': fv__buf_str(t->out, "\\x0B"); return; /* a class of line ends in PCRE2 */
    case 'h': fv__buf_str(t->out, in ? HEX : "[" HEX "]"); return;
    case 'b': fv__buf_str(t->out, in ? "\\x08" : BOUNDARY); return;
    case 'B':
    case 'H':
        if (in) t->refused = "\\B or \\H in a class";
        fv__buf_str(t->out, k == 'H' ? "[^" HEX "]" : NO_BOUNDARY);
        return;
    default: break;
    }
    if (word && k && !strchr(same, k)) t->refused = "an escape that is not known";
    fv__buf_fmt(t->out, "\\%c", k);
}

/* ---- groups ---- */

/* Those that mean the same in both: (...), (?:, (?=, (?!, (?>, (?<=, (?<!, and the flag i. */
static void open_group(translation *t)
{
    char k = ahead(t, 2), after = ahead(t, 3);
    bool flag = k == 'i' || (k == '-' && after == 'i'), look = k == '<';
    if (t->depth == DEEPEST) {
        t->refused = "nesting of more than 64 groups";
        return;
    }
    if (ahead(t, 1) == '*') t->refused = "a group that starts with *";
    t->group[t->depth].at = t->out->len;
    t->group[t->depth++].fold = t->fold;
    t->before = 0;
    t->atom = SIZE_MAX;
    if (ahead(t, 1) != '?') return;
    bool same = k == ':' || k == '=' || k == '!' || k == '>' ||
                (look && (after == '=' || after == '!'));
    /* (?i: opens a group with the flag, (?i) sets it for the rest of the group around it. */
    char ends = k == '-' ? ahead(t, 4) : after;
    if (!same && !(flag && (ends == ':' || ends == ')'))) t->refused = "a group of an unknown kind";
    if (!flag || t->refused) return;
    t->fold = k == 'i';
    if (ends == ')') t->depth--; /* (?i) is no group: it holds to the end of the one around it */
}

static void close_group(translation *t)
{
    t->before = 0;
    if (!t->depth) return; /* PCRE2 says what is wrong, or it closes (?i) */
    t->depth--;
    t->fold = t->group[t->depth].fold;
    t->atom = t->group[t->depth].at;
}

/* ---- intervals ---- */

static size_t digits(const translation *t, size_t k, long *value)
{
    *value = 0;
    size_t from = k;
    for (; ahead(t, k) >= '0' && ahead(t, k) <= '9' && k - from < 6; k++)
        *value = *value * 10 + (ahead(t, k) - '0');
    return k;
}

/* Puts what was written since `atom` into a group.
 * O(length) for each interval: patterns are short, and MAX_PATTERN bounds them. */
static void enclose(translation *t)
{
    fv_buf *b = t->out;
    size_t n = b->len - t->atom;
    fv__buf_str(b, "(?:)");
    if (b->failed) return;
    memmove(b->data + t->atom + 3, b->data + t->atom, n);
    memcpy(b->data + t->atom, "(?:", 3);
}

/* {n}, {n,}, {n,m}, {,m}; any other { is a character in both languages.
 * Printed anew, so that {,m} and {01} reach PCRE2 in the one form that both read alike. */
static bool interval(translation *t)
{
    long least, most = -1;
    size_t k = digits(t, 1, &least);
    bool given = k > 1, range = ahead(t, k) == ',';
    size_t upper = k + range;
    if (range) k = digits(t, upper, &most);
    if (ahead(t, k) != '}' || (!given && k == upper)) return false;
    if (range && k == upper) most = -1;
    if (most >= 0 && most < least) t->refused = "an interval from more to less";
    if (t->atom == SIZE_MAX) t->refused = "an interval without anything before it";
    if (t->refused) return true;
    if (!range)
        fv__buf_fmt(t->out, "{%ld}", least);
    else if (most < 0)
        fv__buf_fmt(t->out, "{%ld,}", least);
    else
        fv__buf_fmt(t->out, "{%ld,%ld}", least, most);
    t->i += k + 1;
    char next = ahead(t, 0);
    if (next == '+' || (next == '?' && !range)) enclose(t);
    t->before = 0;
    return true;
}

/* ---- classes ---- */

/* [:alpha:] inside a class, with what Unicode means by it; i is at its bracket. */
static void posix_class(translation *t)
{
    static const struct {
        const char *name, *is, *is_not; /* is_not NULL: there is no such set inside a class */
    } sets[] = {
        {"alpha", "\\p{Alphabetic}", "\\P{Alphabetic}"},
        {"digit", "\\p{Nd}", "\\P{Nd}"},
        {"upper", "\\p{Uppercase}", "\\P{Uppercase}"},
        {"lower", "\\p{Lowercase}", "\\P{Lowercase}"},
        {"cntrl", "\\p{Cc}", "\\P{Cc}"},
        {"alnum", "\\p{Alphabetic}\\p{Nd}", NULL},
        {"space", SPACES, NULL},
        {"blank", "\\p{Zs}\\t", NULL},
        {"punct", "\\p{P}\\p{S}", NULL},
        {"graph", "\\p{Cf}\\p{Co}\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}", NULL},
        {"print", "\\p{Cf}\\p{Co}\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Zs}", NULL},
        {"word", WORDS_IN_CLASS, NULL},
        {"xdigit", HEX, NULL},
        {"ascii", "\\x00-\\x7F", "\\x{80}-\\x{10FFFF}"},
    };
    bool negated = ahead(t, 2) == '^';
    const char *name = t->s + t->i + 2 + negated,
               *end = memmem(name, t->n - (t->i + 2 + negated), ":]", 2);
    t->refused = "a class of an unknown name";
    for (size_t i = 0; end && i < sizeof sets / sizeof *sets; i++) {
        size_t n = strlen(sets[i].name);
        if ((size_t)(end - name) != n || memcmp(name, sets[i].name, n)) continue;
        const char *set = negated ? sets[i].is_not : sets[i].is;
        t->refused = set ? NULL : "a class without a name's members";
        refuse_cased(t, name, n);
        if (set) fv__buf_str(t->out, set);
        t->i = (size_t)(end - t->s) + 2;
        return;
    }
}

static bool at_posix_class(const translation *t)
{
    return ahead(t, 0) == '[' && ahead(t, 1) == ':';
}

/* Whether the class that begins at i has a class or an intersection inside. */
static bool has_operators(const translation *t)
{
    size_t k = 1 + (ahead(t, 1) == '^');
    for (k += ahead(t, k) == ']'; ahead(t, k) && ahead(t, k) != ']'; k++) {
        if (ahead(t, k) == '\\') k++;
        if (ahead(t, k) == '&' && ahead(t, k + 1) == '&') return true;
        if (ahead(t, k) != '[') continue;
        if (ahead(t, k + 1) != ':') return true;
        while (ahead(t, k + 1) && !(ahead(t, k) == ':' && ahead(t, k + 1) == ']')) k++;
        k++;
    }
    return false;
}

/* One character of a class, an escape or a named class; i moves behind it. */
static void class_item(translation *t)
{
    uint32_t cp = 0;
    int len = fv__utf8_get(&cp, t->s + t->i, t->n - t->i);
    if (at_posix_class(t)) {
        posix_class(t);
    } else if (ahead(t, 0) == '\\') {
        t->i++;
        escape(t);
    } else {
        if (len) literal(t, cp);
        /* ^ may come first in what is printed */
        if (ahead(t, 0) && strchr("[]^", ahead(t, 0))) fv__buf_str(t->out, "\\");
        fv__buf_add(t->out, t->s + t->i, len ? (size_t)len : 1);
        t->i += len ? (size_t)len : 1;
    }
}

/* One operand of an intersection: characters and classes, any of which may match. */
static void class_union(translation *t, int depth);

/* A class with classes or intersections inside; i is at its bracket.
 * Intersection by lookahead: every operand must match at this position, then one character is
 * taken. */
static void class_expression(translation *t, int depth)
{
    bool negated = ahead(t, 1) == '^', meets = false;
    if (depth == DEEPEST / 4) t->refused = "nesting of more than 16 classes";
    fv__buf_str(t->out, negated ? "(?:(?!" : "(?:");
    t->i += 1 + negated;
    while (!t->refused) {
        fv__buf_str(t->out, "(?=(?:");
        class_union(t, depth);
        fv__buf_str(t->out, "))");
        if (ahead(t, 0) != '&') break;
        t->i += 2;
        meets = true;
    }
    /* Oniguruma folds the result, so that [^a] together with A has a, too */
    if (t->fold && (meets || (depth && negated)))
        t->refused = "&& or a negated class in a class, under (?i),";
    if (!t->refused && ahead(t, 0) != ']') t->refused = "a class without an end";
    t->i++;
    fv__buf_str(t->out, negated ? ")(?s:.))" : "(?s:.))");
}

static void class_union(translation *t, int depth)
{
    bool open = false, first = true;
    while (t->i < t->n && !t->refused && !t->out->failed) {
        bool end = ahead(t, 0) == ']' && !first, cut = ahead(t, 0) == '&' && ahead(t, 1) == '&';
        if (end || cut) break;
        bool nested = ahead(t, 0) == '[' && !at_posix_class(t);
        if (open && nested) fv__buf_str(t->out, "]"), open = false;
        if (!open && !first) fv__buf_str(t->out, "|");
        if (!open && !nested) fv__buf_str(t->out, "["), open = true;
        first = false;
        if (nested)
            class_expression(t, depth + 1);
        else
            class_item(t);
    }
    if (open) fv__buf_str(t->out, "]");
    if (first) t->refused = "an empty class";
}

/* ---- all of it ---- */

static void in_class(translation *t, char k)
{
    if (k == '[') t->refused = "a class in a class"; /* has_operators saw none */
    if (k == ']' && !t->class_start) t->in_class = false;
    t->class_start = t->class_start && k == '^' && t->s[t->i - 1] == '['; /* only one negates */
}

static void outside(translation *t, char k)
{
    if (k == '[') {
        begin_atom(t);
        t->in_class = t->class_start = true;
    } else if (k == '(') {
        open_group(t);
    } else if (k == ')') {
        close_group(t);
    } else if (k && strchr("*+?|^$", k)) {
        t->before = 0;
    } else {
        uint32_t before = t->before;
        begin_atom(t);
        t->before = before;
    }
}

static void translate(translation *t)
{
    while (t->i < t->n && !t->refused && !t->out->failed) {
        char k = t->s[t->i];
        uint32_t cp = 0;
        int len = fv__utf8_get(&cp, t->s + t->i, t->n - t->i);
        if (k == '\\') {
            t->i++;
            escape(t);
            t->class_start = false;
            continue;
        }
        if (t->in_class && at_posix_class(t)) {
            posix_class(t);
            t->class_start = false;
            continue;
        }
        if (!t->in_class && k == '[' && has_operators(t)) {
            begin_atom(t);
            t->in_class = true; /* for escapes */
            class_expression(t, 0);
            t->in_class = false;
            continue;
        }
        if (!t->in_class && k == '{') {
            if (interval(t)) continue;
            fv__buf_str(t->out, "\\"); /* newer PCRE2 knows more intervals than Oniguruma */
        }
        bool plain = t->in_class || !k || !strchr("[](){}*+?|^$.", k);
        (t->in_class ? in_class : outside)(t, k);
        if (plain && len) literal(t, cp);
        fv__buf_add(t->out, t->s + t->i, len ? (size_t)len : 1);
        t->i += len ? (size_t)len : 1;
    }
}

void fv__oniguruma(fv_buf *out, const char *s, size_t n,
                   bool (*is_script)(const char *name, size_t n), const char **refused, size_t *at)
{
    translation t = {.s = s, .n = n, .out = out, .is_script = is_script, .atom = SIZE_MAX};
    translate(&t);
    *refused = t.refused;
    *at = t.i;
}
