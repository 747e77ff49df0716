/* labels.c - what a token is called in a figure: its text, and which word it is part of.
 *
 * Tokenizers cut words into pieces, and byte-level ones cut characters into bytes.  A label is the
 * decoded text of one token.  Where a token holds only some bytes of a character, the tokens that
 * make up the character are decoded together and share its text, numbered ("😺 1/2", "😺 2/2"):
 * the vocabulary's own spelling of such a piece ("ðŁĺ") cannot be read.
 *
 * Words are found from the marks that pieces carry in the vocabulary: "##" continues a word in
 * WordPiece, a leading "▁" or "Ġ" begins one in SentencePiece and byte-level BPE.  The tokenizer's
 * own word numbers (fv_encoding.words) are not used: captures are made from ids, and the target of
 * a translation was never encoded. */
#include <ctype.h>
#include <stdio.h>

#include "see/see.h"
#include "fovea/author/tok.h"

enum { MAX_PARTS = 8 }; /* tokens that may make up one character */

void fv__see_axis_free(const fv_env *env, fv_see_axis *a)
{
    for (int64_t i = 0; a->text && i < a->n; i++)
        if (a->text[i]) fv__free(env, a->text[i], strlen(a->text[i]) + 1);
    fv__free(env, a->text, (size_t)a->n * sizeof *a->text);
    fv__free(env, a->word, (size_t)a->n * sizeof *a->word);
    fv__free(env, a->type, (size_t)a->n * sizeof *a->type);
    a->text = NULL;
    a->word = NULL;
    a->type = NULL;
}

/* On failure what was copied so far stays in *to and is freed with it. */
bool fv__see_axis_copy(const fv_env *env, fv_see_axis *to, const char *const *text,
                       const int32_t *word, const int32_t *type, int64_t n)
{
    fv__see_axis_free(env, to);
    to->n = n;
    to->text = fv__alloc(env, (size_t)n * sizeof *to->text);
    for (int64_t i = 0; to->text && i < n; i++) to->text[i] = NULL;
    for (int64_t i = 0; to->text && i < n; i++)
        if (!(to->text[i] = fv__strdup(env, text[i]))) return false;
    if (word && !(to->word = fv__alloc(env, (size_t)n * sizeof *word))) return false;
    if (type && !(to->type = fv__alloc(env, (size_t)n * sizeof *type))) return false;
    if (word) memcpy(to->word, word, (size_t)n * sizeof *word);
    if (type) memcpy(to->type, type, (size_t)n * sizeof *type);
    return to->text != NULL;
}

/* ---- texts ---- */

/* Signs for what has no glyph: line ends, tabs, a token that is nothing but space. */
static char *visible(const fv_env *env, const char *text, size_t n, const char *suffix)
{
    fv_buf b = {.env = env};
    while (n && text[n - 1] == ' ') n--;
    while (n && *text == ' ') text++, n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            fv__buf_str(&b, "\u21B5");
        else if (text[i] == '\t')
            fv__buf_str(&b, "\u21E5");
        else if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            fv__buf_str(&b, "\u00B7");
        else
            fv__buf_add(&b, text + i, 1);
    }
    if (!n) fv__buf_str(&b, "\u2423");
    fv__buf_str(&b, suffix);
    char *copy = b.failed ? NULL : fv__strdup(env, b.data);
    fv__buf_free(&b);
    return copy;
}

/* The text of n tokens if they hold whole characters only, else NULL.  The decoder writes U+FFFD
 * for an incomplete character; a token that really is U+FFFD is then shown by its bytes, which is
 * no worse. */
static char *whole_text(const fv_tok *tok, const int32_t *ids, int64_t n, size_t *len)
{
    char *text;
    if (fv_tok_decode(tok, &text, len, ids, n, false, NULL)) return NULL;
    if (fv__utf8_check(text, *len) == *len && !memmem(text, *len, "\xEF\xBF\xBD", 3)) return text;
    fv_tok_free_text(tok, text, *len);
    return NULL;
}

/* The byte that a character of the byte-level alphabet stands for: printable bytes of Latin-1 are
 * themselves, the others follow from U+0100 on in their order. */
static unsigned byte_of(uint32_t cp)
{
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool kept = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        if ((kept ? b : next++) == cp) return b;
    }
    return 256;
}

/* A byte-level piece that completes no character, as its bytes: "F0 9F". */
static char *bytes_text(const fv_env *env, const char *raw)
{
    fv_buf b = {.env = env};
    bool ok = true;
    for (const char *p = raw; ok && *p;) {
        uint32_t cp;
        int n = fv__utf8_get(&cp, p, strnlen(p, 4));
        unsigned byte = n ? byte_of(cp) : 256;
        ok = byte < 256;
        fv__buf_fmt(&b, "%s%02X", p == raw ? "" : " ", byte);
        p += n ? n : 1;
    }
    char *copy = NULL;
    if (!b.failed)
        copy = ok && b.data ? fv__strdup(env, b.data) : visible(env, raw, strlen(raw), "");
    fv__buf_free(&b);
    return copy;
}

/* Labels of the tokens from i on that belong together; returns how many, 0 without memory.  Special
 * tokens keep the vocabulary's spelling, since decoding may leave them out. */
static int64_t label_from(fv_see_axis *a, const fv_env *env, const fv_tok *tok, const int32_t *ids,
                          int64_t i)
{
    const char *raw = tok ? fv_tok_token(tok, ids[i]) : NULL;
    char number[32], *text = NULL;
    size_t len = 0;
    int64_t n = 1;
    snprintf(number, sizeof number, "%d", (int)ids[i]);
    if (!raw || fv_tok_special(tok, ids[i])) {
        a->text[i] = raw ? visible(env, raw, strlen(raw), "") : fv__strdup(env, number);
        return a->text[i] ? 1 : 0;
    }
    for (; n <= MAX_PARTS && i + n <= a->n; n++)
        if ((text = whole_text(tok, ids + i, n, &len))) break;
    if (!text) {
        a->text[i] = bytes_text(env, raw);
        return a->text[i] ? 1 : 0;
    }
    bool ok = true;
    for (int64_t k = 0; ok && k < n; k++) {
        snprintf(number, sizeof number, " %d/%d", (int)k + 1, (int)n);
        ok = (a->text[i + k] = visible(env, text, len, n > 1 ? number : "")) != NULL;
        a->word[i + k] = k ? 1 : 0; /* continues, until words are numbered */
    }
    fv_tok_free_text(tok, text, len);
    return ok ? n : 0;
}

/* ---- words ---- */

static bool begins(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }
/* U+2581 of SentencePiece; U+0120 and U+010A are a space and a line feed in the byte-level
 * alphabet. */
static bool marks_space(const char *raw)
{
    return begins(raw, "\u2581") || begins(raw, "\u0120") || begins(raw, "\u010A");
}

/* Punctuation that is a word of its own behind a piece without a space; an apostrophe or a hyphen
 * stays inside its word. */
static bool punctuation(const char *raw)
{
    return *raw && strspn(raw, ".,;:!?()[]{}\"") == strlen(raw);
}

/* Whether this vocabulary marks the beginning of a word; otherwise it marks the continuation. */
static bool marks_beginnings(const fv_tok *tok)
{
    for (int32_t id = 0; id < fv_tok_size(tok); id++) {
        const char *raw = fv_tok_token(tok, id);
        if (raw && marks_space(raw)) return true;
    }
    return false;
}

/* word[i] is the number of the word of token i; the array goes where every token is a word. */
static void number_words(fv_see_axis *a, const fv_env *env, const fv_tok *tok, const int32_t *ids)
{
    bool beginnings = tok && marks_beginnings(tok), after_special = true, any = false;
    int32_t word = -1;
    for (int64_t i = 0; i < a->n; i++) {
        const char *raw = tok ? fv_tok_token(tok, ids[i]) : NULL;
        bool special = !raw || fv_tok_special(tok, ids[i]);
        bool starts = special || after_special || punctuation(raw);
        if (!starts) starts = beginnings ? marks_space(raw) : !begins(raw, "##");
        if (a->word[i]) starts = false;
        any |= !starts;
        a->word[i] = word += starts;
        after_special = special;
    }
    if (any) return;
    fv__free(env, a->word, (size_t)a->n * sizeof *a->word);
    a->word = NULL;
}

/* label_from leaves in word[i] whether token i continues a character; number_words then replaces
 * these flags by word numbers. */
bool fv__see_axis_label(const fv_env *env, fv_see_axis *a, const fv_tok *tok, const int32_t *ids,
                        int64_t n)
{
    *a = (fv_see_axis){.n = n};
    a->text = fv__alloc(env, (size_t)n * sizeof *a->text);
    a->word = fv__alloc(env, (size_t)n * sizeof *a->word);
    if (!a->text || !a->word) return false;
    for (int64_t i = 0; i < n; i++) a->text[i] = NULL, a->word[i] = 0;
    for (int64_t i = 0, step; i < n; i += step)
        if (!(step = label_from(a, env, tok, ids, i))) return false;
    number_words(a, env, tok, ids);
    return true;
}

void fv__see_join(fv_buf *b, const char *label, bool first)
{
    size_t n = strlen(label);
    /* "x 2/3": written by its first part */
    if (n > 4 && label[n - 2] == '/' && isdigit((unsigned char)label[n - 1]) &&
        isdigit((unsigned char)label[n - 3]) && label[n - 4] == ' ') {
        if (label[n - 3] == '1' || first) fv__buf_add(b, label, n - 4);
        return;
    }
    fv__buf_str(b, !first && begins(label, "##") ? label + 2 : label);
}
