/* split.c - pre-tokenizers: the pieces of the current text, cut further by each step.
 *
 * Finding and keeping are apart: a finder walks a piece and reports stretches that cover it, each a
 * match or not; a behaviour turns these into pieces.  Metaspace and ByteLevel change the text as
 * well.
 *
 * The text is never cut into strings: a piece is a pair of byte offsets into the current text,
 * and a step reads the list w->pieces and writes w->next_pieces, after which the two are
 * swapped. So a text of a million words costs two arrays, which stay allocated for the next
 * text.
 *
 * What is found and kept follows pre_tokenizers of the tokenizers library,
 * SplitDelimiterBehavior included. Linear in the text for all finders but by_pattern, whose
 * matches PCRE2 bounds by its match limit (regex.c); all of them count their work in w->steps. */
#include "work.h"

/* With "a-b" and matches of "-":
 *
 *    removed           a   b            merged with previous    a-  b
 *    isolated          a   -   b        merged with next        a   -b
 *    contiguous        as isolated, but neighbouring matches stay together */
typedef struct cutter {
    fv__work *w;
    fv__behaviour behaviour;
    bool invert;
    bool last_match, open; /* open: [a, b) is a piece that may still grow */
    size_t a, b;
    bool failed;
} cutter;

/* Only what was opened becomes a piece: a removed match leaves nothing behind. */
static void flush(cutter *c)
{
    if (c->open && !fv__add_piece(c->w, c->a, c->b)) c->failed = true;
    c->open = false;
}

static void begin(cutter *c, size_t a, size_t b)
{
    flush(c);
    c->open = true;
    c->a = a;
    c->b = b;
}

/* The next stretch of a piece.
 * Stretches come in order and cover the piece without gaps, so one open piece is all the state. */
static void report(cutter *c, size_t a, size_t b, bool match)
{
    match = match != c->invert;
    /* Whether this stretch goes into the open piece or begins a new one. */
    bool joins = false;
    switch (c->behaviour) {
    case FV__REMOVED:
        if (match)
            flush(c);
        else
            begin(c, a, b);
        return;
    case FV__ISOLATED: break;
    case FV__CONTIGUOUS: joins = match == c->last_match; break;
    case FV__MERGED_PREVIOUS: joins = match && !c->last_match; break;
    case FV__MERGED_NEXT: joins = !match && c->last_match; break;
    }
    if (joins && c->open)
        c->b = b;
    else
        begin(c, a, b);
    c->last_match = match;
}

static void end_piece(cutter *c)
{
    flush(c);
    c->last_match = false;
}

/* ---- finders ---- */

typedef bool (*char_test)(uint32_t);

/* test NULL: a single delimiter character, by its code point. */
static void by_char(cutter *c, const char *s, size_t a, size_t b, char_test test,
                    uint32_t delimiter)
{
    size_t from = a;
    for (size_t i = a; i < b;) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + i);
        if (test ? test(cp) : cp == delimiter) {
            if (from < i) report(c, from, i, false);
            report(c, i, i + len, true);
            from = i + len;
        }
        i += len;
    }
    if (from < b) report(c, from, b, false);
}

/* An empty match right after the one before is passed over, and matching goes on one character
 * later: as the regex libraries of the reference iterate. */
static bool by_pattern(cutter *c, const fv__pattern *p, const char *s, size_t a, size_t b)
{
    size_t at = 0, kept = 0, from, to, n = b - a;
    int found = 0;
    uint32_t cp;
    while (at <= n && (found = fv__pattern_find(p, c->w, s + a, n, at, &from, &to)) > 0) {
        /* At the very start (at == 0) an empty match counts, everywhere else it must not touch
         * the match before. */
        bool empty_again = from == to && from == kept && at;
        if (!empty_again) {
            if (kept < from) report(c, a + kept, a + from, false);
            report(c, a + from, a + to, true);
            kept = to;
        }
        at = to > from ? to : to < n ? to + (size_t)fv__char_at(&cp, s + a + to) : to + 1;
    }
    if (kept < n) report(c, a + kept, b, false);
    return found >= 0;
}

/* Words and runs of anything else that is not space: \w+|[^\w\s]+. */
static void by_words(cutter *c, const char *s, size_t a, size_t b)
{
    int last = 0; /* 0 space, 1 word, 2 other */
    size_t from = a;
    for (size_t i = a; i < b;) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + i);
        int kind = fv__is_word(cp) ? 1 : fv__is_space(cp) ? 0 : 2;
        if (kind != last) {
            if (last) report(c, from, i, false);
            from = i;
            last = kind;
        }
        i += len;
    }
    if (last) report(c, from, b, false);
}

/* Space separates, punctuation stands alone. */
static void by_bert(cutter *c, const char *s, size_t a, size_t b)
{
    size_t from = a;
    for (size_t i = a; i < b;) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + i);
        bool space = fv__is_space(cp), punct = !space && fv__is_punct(cp);
        if (space || punct) {
            if (from < i) report(c, from, i, false);
            if (punct) report(c, i, i + len, false);
            from = i + len;
        }
        i += len;
    }
    if (from < b) report(c, from, b, false);
}

/* In characters, not bytes: a UTF-8 sequence is never cut. */
static void by_length(cutter *c, const char *s, size_t a, size_t b, int64_t length)
{
    size_t from = a;
    int64_t n = 0;
    for (size_t i = a; i < b;) {
        uint32_t cp;
        i += (size_t)fv__char_at(&cp, s + i);
        if (++n == length) {
            report(c, from, i, false);
            from = i;
            n = 0;
        }
    }
    if (from < b) report(c, from, b, false);
}

/* ---- GPT-2's regex by hand: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
 * ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ ---- */

/* Lower case only, as the pattern has it: "I'M" is cut into I, ' and M. */
static size_t contraction(const char *s, size_t n)
{
    if (n < 2) return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    if (n < 3) return 0;
    bool three = (s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') ||
                 (s[1] == 'l' && s[2] == 'l');
    return three ? 3 : 0;
}

/* kind: the classes of fv__gpt_class, of which 3 is white space. */
static size_t run_of(int kind, const char *s, size_t i, size_t b)
{
    while (i < b) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + i);
        if (fv__gpt_class(cp) != kind) break;
        i += len;
    }
    return i;
}

/* White space from i: all of it at the end, otherwise all but the last, which belongs to what
 * follows. */
static size_t spaces(const char *s, size_t i, size_t b)
{
    size_t end = i, last = i;
    while (end < b) {
        uint32_t cp;
        size_t len = (size_t)fv__char_at(&cp, s + end);
        if (!fv__is_space(cp)) break;
        last = end;
        end += len;
    }
    /* A single white space that something follows is a piece of its own: \s+(?!\S) cannot match
     * it, \s+ does. */
    return end == b || last == i ? end : last;
}

/* The most frequent splitter of all, by hand: no backtracking, one pass, no PCRE2. */
static void by_gpt2(cutter *c, const char *s, size_t a, size_t b)
{
    for (size_t i = a; i < b;) {
        uint32_t cp;
        size_t end = s[i] == '\'' ? contraction(s + i, b - i) : 0, len;
        if (end) {
            end += i;
        } else {
            /* Only the blank U+0020 is taken along by what follows (" ?"); a tab before a word
             * is a piece of its own. */
            size_t start = s[i] == ' ' && i + 1 < b ? i + 1 : i;
            len = (size_t)fv__char_at(&cp, s + start);
            int kind = fv__gpt_class(cp);
            end = kind == 3 ? spaces(s, i, b) : run_of(kind, s, start + len, b);
        }
        report(c, i, end, true);
        i = end;
    }
}

/* ---- steps that change the text ---- */

/* Pieces are offsets into the current text, so a step that changes the text rewrites them all. */
static fv__text *other_text(fv__work *w, size_t capacity)
{
    /* Two buffers in turn: a step never writes the text it reads. */
    fv__text *out = w->text == &w->shift[0] ? &w->shift[1] : &w->shift[0];
    fv__text_start(out, w->env, w->track, capacity);
    out->most = w->most_text;
    return out;
}

/* Puts a prefix before in[a, b) that stands for its first character. */
static void put_prefix(fv__text *out, const fv__text *in, size_t a, fv__str prefix)
{
    uint32_t from, to, cp;
    fv__text_span(in, a, a + (size_t)fv__char_at(&cp, in->s + a), &from, &to);
    fv__text_put(out, prefix.s, prefix.n, from, to);
}

/* From here on offsets of pieces are those of the new text. */
static bool adopt(fv__work *w, const fv__text *out)
{
    if (!fv__text_made(w, out)) return false;
    w->text = out;
    return true;
}

/* A word at the start of a text then gets the id it has in the middle of one. */
static bool add_prefix_space(fv__work *w)
/* Pieces, not the text: after an added token the next stretch gets a space as well, as the
 * reference does it for every split. */
{
    const fv__text *in = w->text;
    fv__text *out = other_text(w, in->n + w->n_pieces);
    for (size_t i = 0; i < w->n_pieces && !out->failed; i++) {
        fv__piece *p = w->pieces + i;
        size_t from = out->n;
        if (in->s[p->a] != ' ') put_prefix(out, in, p->a, (fv__str){" ", 1});
        fv__text_copy(out, in, p->a, p->b);
        *p = (fv__piece){(uint32_t)from, (uint32_t)out->n};
    }
    return adopt(w, out);
}

/* GPT-2's map of bytes to printable characters: 0x20 becomes U+0120, and so on.  Skipped where
 * the model takes bytes itself (in_model), which halves the text. */
static bool map_bytes(fv__work *w)
{
    const fv__text *in = w->text;
    fv__text *out = other_text(w, in->n * 2);
    for (size_t i = 0; i < w->n_pieces && !out->failed; i++) {
        fv__piece *p = w->pieces + i;
        size_t start = out->n;
        for (size_t k = p->a; k < p->b; k++) {
            uint32_t from, to;
            fv__text_span(in, k, k + 1, &from, &to);
            fv__text_put_char(out, fv__byte_to_char((unsigned char)in->s[k]), from, to);
        }
        *p = (fv__piece){(uint32_t)start, (uint32_t)out->n};
    }
    return adopt(w, out);
}

static bool metaspace_text(const fv__split *step, fv__work *w)
{
    const fv__text *in = w->text;
    fv__text *out = other_text(w, in->n + in->n / 2);
    for (size_t i = 0; i < w->n_pieces && !out->failed; i++) {
        fv__piece *p = w->pieces + i;
        size_t start = out->n, kept = p->a;
        uint32_t from, to;
        /* Nothing is put in front of what begins with a space or with the replacement already. */
        bool there = in->s[p->a] == ' ' ||
                     (p->b - p->a >= step->replacement.n &&
                      !memcmp(in->s + p->a, step->replacement.s, step->replacement.n));
        fv__text_span(in, p->a, p->b, &from, &to);
        /* "first" asks whether the piece starts at byte 0 of the original text, which is why
         * encoding tracks offsets for this scheme even when nobody wants them (fv_tok_encode). */
        if (!there && (step->scheme == FV__ALWAYS || (step->scheme == FV__FIRST && !from)))
            put_prefix(out, in, p->a, step->replacement);
        for (size_t k = p->a; k < p->b; k++) {
            if (in->s[k] != ' ') continue;
            fv__text_copy(out, in, kept, k);
            fv__text_span(in, k, k + 1, &from, &to);
            fv__text_put(out, step->replacement.s, step->replacement.n, from, to);
            kept = k + 1;
        }
        fv__text_copy(out, in, kept, p->b);
        *p = (fv__piece){(uint32_t)start, (uint32_t)out->n};
    }
    return adopt(w, out);
}

/* ---- one step ---- */

static bool cut(const fv__split *step, cutter *c, const char *s, size_t a, size_t b)
{
    uint32_t delimiter = 0;
    if (step->replacement.n) fv__char_at(&delimiter, step->replacement.s);
    switch (step->kind) {
    case FV__BERT_SPLIT: by_bert(c, s, a, b); break;
    case FV__WHITESPACE: by_words(c, s, a, b); break;
    case FV__WHITESPACE_SPLIT: by_char(c, s, a, b, fv__is_space, 0); break;
    case FV__PUNCTUATION: by_char(c, s, a, b, fv__is_punct, 0); break;
    case FV__DIGITS: by_char(c, s, a, b, fv__is_numeric, 0); break;
    case FV__DELIMITER:
    case FV__METASPACE: by_char(c, s, a, b, NULL, delimiter); break;
    case FV__SCRIPTS:
    case FV__SPLIT: return by_pattern(c, &step->pattern, s, a, b);
    case FV__BYTE_LEVEL: by_gpt2(c, s, a, b); break;
    case FV__FIXED_LENGTH: by_length(c, s, a, b, step->length); break;
    }
    return true;
}

/* What each kind of pre-tokenizer does with its matches is fixed by the reference; only Split
 * and Punctuation let the file choose. */
static fv__behaviour behaviour_of(const fv__split *step)
{
    switch (step->kind) {
    case FV__SCRIPTS: /* its matches are the pieces, what is between them goes */
    case FV__WHITESPACE_SPLIT:
    case FV__DELIMITER: return FV__REMOVED;
    case FV__DIGITS: return step->individual ? FV__ISOLATED : FV__CONTIGUOUS;
    case FV__METASPACE: return FV__MERGED_NEXT;
    case FV__PUNCTUATION:
    case FV__SPLIT: return step->behaviour;
    default: return FV__ISOLATED;
    }
}

bool fv__split_text(const fv__split *step, fv__work *w)
{
    /* Every piece costs something even if it is short: four bytes' worth. */
    w->steps += (w->text->n + w->n_pieces * 4) * FV__STEPS_PASS;
    if (!fv__within_limits(w)) return false;
    if (step->kind == FV__METASPACE && !metaspace_text(step, w)) return false;
    if (step->kind == FV__BYTE_LEVEL && step->prefix_space && !add_prefix_space(w)) return false;
    bool cuts = step->kind == FV__BYTE_LEVEL  ? step->use_regex
                : step->kind == FV__METASPACE ? step->split
                                              : true;
    if (cuts) {
        cutter c = {.w = w,
                    .behaviour = behaviour_of(step),
                    .invert = step->kind == FV__SCRIPTS ||
                              (step->kind == FV__SPLIT && step->invert)};
        w->n_next = 0;
        for (size_t i = 0; i < w->n_pieces; i++) {
            if (!cut(step, &c, w->text->s, w->pieces[i].a, w->pieces[i].b)) return false;
            end_piece(&c);
            if (c.failed) return false;
        }
        fv__piece *pieces = w->pieces;
        size_t cap = w->cap_pieces;
        w->pieces = w->next_pieces, w->cap_pieces = w->cap_next, w->n_pieces = w->n_next;
        w->next_pieces = pieces, w->cap_next = cap;
    }
    if (step->kind == FV__BYTE_LEVEL && !step->in_model) return map_bytes(w);
    return true;
}
