/* constrain_json.c - rules over bytes, and those of JSON itself.
 *
 * Blanks stand where models put them: behind colons, commas and opening brackets, before closing
 * ones; one blank, or a line end with an indentation of at most 20.  Numbers have at most 16 digits
 * in each part, exponents two.  Without such bounds a model could go on for ever within the
 * rules.
 *
 *     rule -> alternatives (linked) -> elements: a class of bytes, another rule, or the end
 *
 * All four live in growing arrays and refer to each other by index, so they can move. Classes 0
 * to 255 are the single bytes, which makes a literal text a run of elements without any lookup. */
#include "gen/constrain.h"

void fv__rules_begin(fv_rules *r, const fv_env *env)
{
    *r = (fv_rules){.env = env};
    r->elems.env = r->classes.env = r->alts.env = r->rules.env = env;
    for (int c = 0; c < 256; c++) {
        fv_byte_class k = {0};
        k.bits[c / 64] = (uint64_t)1 << c % 64;
        fv__buf_add(&r->classes, &k, sizeof k);
    }
}

void fv__rules_free(fv_rules *r)
{
    fv__buf_free(&r->elems);
    fv__buf_free(&r->classes);
    fv__buf_free(&r->alts);
    fv__buf_free(&r->rules);
}

bool fv__rules_failed(const fv_rules *r)
{
    return r->elems.failed || r->classes.failed || r->alts.failed || r->rules.failed;
}

/* A rule without alternatives matches nothing, until some are added. */
int32_t fv__rule_new(fv_rules *r)
{
    int32_t none = -1;
    fv__buf_add(&r->rules, &none, sizeof none);
    return (int32_t)(r->rules.len / sizeof none) - 1;
}

/* ranges: pairs of bytes, first and last of each range; so "09AFaf" are the hexadecimal digits. */
int32_t fv__class_new(fv_rules *r, const char *ranges)
{
    fv_byte_class k = {0};
    for (const unsigned char *p = (const unsigned char *)ranges; p[0]; p += 2)
        for (unsigned c = p[0]; c <= p[1]; c++) k.bits[c / 64] |= (uint64_t)1 << c % 64;
    fv__buf_add(&r->classes, &k, sizeof k);
    return (int32_t)(r->classes.len / sizeof k) - 1;
}

void fv__seq_class(fv_seq *s, int32_t class)
{
    fv__buf_add(s, &(fv_elem){FV_ELEM_CLASS, class}, sizeof(fv_elem));
}

void fv__seq_rule(fv_seq *s, int32_t rule)
{
    fv__buf_add(s, &(fv_elem){FV_ELEM_RULE, rule}, sizeof(fv_elem));
}

void fv__seq_text(fv_seq *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) fv__seq_class(s, (unsigned char)text[i]);
}

/* Consumes s. New alternatives go to the front: their order does not matter to a matcher that
 * follows all. */
void fv__rule_add(fv_rules *r, int32_t rule, fv_seq *s)
{
    fv_alt alt = {.first = (int32_t)(r->elems.len / sizeof(fv_elem))};
    int32_t at = (int32_t)(r->alts.len / sizeof alt);
    if (s->data) fv__buf_add(&r->elems, s->data, s->len);
    fv__buf_add(&r->elems, &(fv_elem){FV_ELEM_END, 0}, sizeof(fv_elem));
    r->elems.failed |= s->failed;
    fv__buf_free(s);
    if (!r->rules.data || r->rules.failed) return;
    int32_t *first = (int32_t *)(void *)r->rules.data + rule;
    alt.next = *first;
    fv__buf_add(&r->alts, &alt, sizeof alt);
    *first = at;
}

/* ---- JSON ---- */

/* One alternative from a pattern: a letter is that byte; \1 to \9 is the next of the rules or
 * classes given (class + 1000). */
static void alternative(fv_rules *r, int32_t rule, const char *pattern, const int32_t *parts)
{
    fv_seq s = {.env = r->env};
    for (; *pattern; pattern++) {
        int32_t part = *pattern > 0 && *pattern < 10 ? parts[*pattern - 1] : -1;
        if (part >= 1000)
            fv__seq_class(&s, part - 1000);
        else if (part >= 0)
            fv__seq_rule(&s, part);
        else
            fv__seq_text(&s, pattern, 1);
    }
    fv__rule_add(r, rule, &s);
}

/* A chain of n + 1 rules.
 * At most n of a class. */
static int32_t up_to(fv_rules *r, int32_t class, int n)
{
    int32_t rule = fv__rule_new(r);
    alternative(r, rule, "", NULL);
    if (n > 0) alternative(r, rule, "\1\2", (int32_t[]){1000 + class, up_to(r, class, n - 1)});
    return rule;
}

static int32_t make_space(fv_rules *r)
{
    int32_t ws = fv__rule_new(r), indent = up_to(r, fv__class_new(r, "  \t\t"), 20);
    alternative(r, ws, "", NULL);
    alternative(r, ws, " ", NULL);
    fv_seq line = {.env = r->env};
    fv__seq_text(&line, "\n", 1);
    fv__seq_rule(&line, indent);
    fv__rule_add(r, ws, &line);
    return ws;
}

/* One character of a string: plain, of several bytes of UTF-8, or escaped. */
static int32_t make_character(fv_rules *r)
{
    int32_t c = fv__rule_new(r), tail = 1000 + fv__class_new(r, "\x80\xbf");
    /* Ranges of UTF-8 by lead byte, so that neither overlong forms nor surrogates nor code
     * points beyond U+10FFFF can be written. */
    int32_t plain = 1000 + fv__class_new(r, "  !!#[]\x7f"),
            two = 1000 + fv__class_new(r, "\xc2\xdf"), e0 = 1000 + fv__class_new(r, "\xa0\xbf"),
            three = 1000 + fv__class_new(r, "\xe1\xec\xee\xef"),
            ed = 1000 + fv__class_new(r, "\x80\x9f"), f0 = 1000 + fv__class_new(r, "\x90\xbf"),
            four = 1000 + fv__class_new(r, "\xf1\xf3"), f4 = 1000 + fv__class_new(r, "\x80\x8f"),
            escaped = 1000 + fv__class_new(r, "\"\"\\\\//bbffnnrrtt"),
            hex = 1000 + fv__class_new(r, "09AFaf");
    alternative(r, c, "\1", (int32_t[]){plain});
    alternative(r, c, "\1\2", (int32_t[]){two, tail});
    alternative(r, c, "\xe0\1\2", (int32_t[]){e0, tail});
    alternative(r, c, "\1\2\2", (int32_t[]){three, tail});
    alternative(r, c, "\xed\1\2", (int32_t[]){ed, tail});
    alternative(r, c, "\xf0\1\2\2", (int32_t[]){f0, tail});
    alternative(r, c, "\1\2\2\2", (int32_t[]){four, tail});
    alternative(r, c, "\xf4\1\2\2", (int32_t[]){f4, tail});
    alternative(r, c, "\\\1", (int32_t[]){escaped});
    alternative(r, c, "\\u\1\1\1\1", (int32_t[]){hex});
    return c;
}

/* No leading zeros, as JSON has it: 0 or a digit from 1 on. */
static void make_numbers(fv_rules *r, fv_json_rules *j)
{
    int32_t digit = fv__class_new(r, "09"), more = up_to(r, digit, 15), few = up_to(r, digit, 1);
    int32_t whole = fv__rule_new(r), fraction = fv__rule_new(r), exponent = fv__rule_new(r);
    int32_t nonzero = 1000 + fv__class_new(r, "19"), e = 1000 + fv__class_new(r, "EEee");
    int32_t sign = up_to(r, fv__class_new(r, "++--"), 1);
    alternative(r, whole, "0", NULL);
    alternative(r, whole, "\1\2", (int32_t[]){nonzero, more});
    alternative(r, fraction, "", NULL);
    alternative(r, fraction, ".\1\2", (int32_t[]){1000 + digit, more});
    alternative(r, exponent, "", NULL);
    alternative(r, exponent, "\1\2\3\4", (int32_t[]){e, sign, 1000 + digit, few});
    j->integer = fv__rule_new(r);
    alternative(r, j->integer, "\1", (int32_t[]){whole});
    alternative(r, j->integer, "-\1", (int32_t[]){whole});
    j->number = fv__rule_new(r);
    alternative(r, j->number, "\1\2\3", (int32_t[]){j->integer, fraction, exponent});
}

static void make_containers(fv_rules *r, fv_json_rules *j)
{
    int32_t pair = fv__rule_new(r), members = fv__rule_new(r), rest = fv__rule_new(r);
    int32_t items = fv__rule_new(r), others = fv__rule_new(r);
    alternative(r, pair, "\1:\2\3\2", (int32_t[]){j->string, j->ws, j->value});
    alternative(r, j->object, "{\1\2", (int32_t[]){j->ws, members});
    alternative(r, members, "}", NULL);
    alternative(r, members, "\1\2", (int32_t[]){pair, rest});
    alternative(r, rest, "}", NULL);
    alternative(r, rest, ",\1\2\3", (int32_t[]){j->ws, pair, rest});
    alternative(r, j->array, "[\1\2", (int32_t[]){j->ws, items});
    alternative(r, items, "]", NULL);
    alternative(r, items, "\1\2\3", (int32_t[]){j->value, j->ws, others});
    alternative(r, others, "]", NULL);
    alternative(r, others, ",\1\2\1\3", (int32_t[]){j->ws, j->value, others});
}

void fv__json_rules(fv_rules *r, fv_json_rules *j)
{
    j->ws = make_space(r);
    j->character = make_character(r);
    j->string = fv__rule_new(r);
    j->characters = fv__rule_new(r);
    j->object = fv__rule_new(r);
    j->array = fv__rule_new(r);
    /* Made before they are filled: values hold objects, which hold values. */
    j->value = fv__rule_new(r);
    alternative(r, j->string, "\"\1", (int32_t[]){j->characters});
    alternative(r, j->characters, "\"", NULL);
    alternative(r, j->characters, "\1\2", (int32_t[]){j->character, j->characters});
    make_numbers(r, j);
    make_containers(r, j);
    const int32_t kinds[] = {j->object, j->array, j->string, j->number};
    for (int i = 0; i < 4; i++) alternative(r, j->value, "\1", &kinds[i]);
    alternative(r, j->value, "true", NULL);
    alternative(r, j->value, "false", NULL);
    alternative(r, j->value, "null", NULL);
}
