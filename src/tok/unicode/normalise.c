/* normalise.c - the steps of a normaliser: text in, text out, alignment kept.
 *
 * Every step writes a new text in which each byte knows the span of the source it came from
 * (text.h). What is inserted gets the span of a neighbour, which one being copied from the
 * reference: offsets of all later stages follow from it.
 *
 * Steps run in the order of the file, each over the whole stretch between two added tokens,
 * from one fv__text into another; nothing works in place, since most steps change lengths. Two
 * texts take turns (encode.c), so the number of steps does not matter to memory.
 *
 * Unicode data is utf8proc's: its version decides what a letter or a mark is, and a character
 * that is newer than the reference's tables can differ. */
#include <utf8proc.h>

#include "tok/work.h"

/* ---- one character at a time ---- */

/* What SentencePiece's nmt rule removes, and what it takes for a blank. */
static uint32_t nmt(uint32_t cp)
{
    if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
        cp == 0x8F || cp == 0x9F)
        return UINT32_MAX;
    bool blank = cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
                 (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
                 cp == 0xFEFF || cp == 0xFFFD;
    return blank ? ' ' : cp;
}

/* BERT's clean_text: tab and line ends are blanks although they are control characters,
 * control, format and private-use characters go, and all other white space becomes a blank. */
static uint32_t clean(uint32_t cp)
{
    if (cp == '\t' || cp == '\n' || cp == '\r') return ' ';
    if (!cp || cp == 0xFFFD || fv__is_control(cp)) return UINT32_MAX;
    return fv__is_space(cp) ? ' ' : cp;
}

/* StripAccents drops all marks (M*), BERT's strip_accents only nonspacing ones (Mn), and only
 * after NFD: two steps of the reference with the same name and different results. */
static uint32_t no_mark(uint32_t cp) { return fv__is_mark(cp) ? UINT32_MAX : cp; }
static uint32_t no_accent(uint32_t cp) { return fv__is_nonspacing(cp) ? UINT32_MAX : cp; }

/* map gives the new character, or UINT32_MAX to drop it; runs that stay are copied whole.
 * Unchanged stretches are copied as blocks, so that plain text costs little more than memcpy. */
static void each(fv__text *out, const fv__text *in, uint32_t (*map)(uint32_t))
{
    size_t kept = 0;
    for (size_t i = 0; i < in->n;) {
        uint32_t cp, from, to;
        size_t len = (size_t)fv__char_at(&cp, in->s + i);
        uint32_t now = map(cp);
        if (now != cp) {
            fv__text_copy(out, in, kept, i);
            fv__text_span(in, i, i + len, &from, &to);
            if (now != UINT32_MAX) fv__text_put_char(out, now, from, to);
            kept = i + len;
        }
        i += len;
    }
    fv__text_copy(out, in, kept, in->n);
}

/* Full lower case: U+0130 is the one character that becomes two without regard to language or
 * context. */
static void lowercase(fv__text *out, const fv__text *in)
{
    size_t kept = 0;
    for (size_t i = 0; i < in->n;) {
        uint32_t cp, from, to;
        size_t len = (size_t)fv__char_at(&cp, in->s + i);
        uint32_t now = fv__lower(cp);
        if (now != cp) {
            fv__text_copy(out, in, kept, i);
            fv__text_span(in, i, i + len, &from, &to);
            fv__text_put_char(out, cp == 0x130 ? 'i' : now, from, to);
            if (cp == 0x130) fv__text_put_char(out, 0x307, from, to);
            kept = i + len;
        }
        i += len;
    }
    fv__text_copy(out, in, kept, in->n);
}

/* BERT reads ideographs one by one: a blank on each side makes them words. */
static void isolate_cjk(fv__text *out, const fv__text *in)
{
    size_t kept = 0;
    for (size_t i = 0; i < in->n;) {
        uint32_t cp, from, to;
        size_t len = (size_t)fv__char_at(&cp, in->s + i);
        if (cp >= 0x3400 && fv__is_cjk(cp)) {
            fv__text_copy(out, in, kept, i);
            fv__text_span(in, i, i + len, &from, &to);
            fv__text_put(out, " ", 1, from, to);
            fv__text_copy(out, in, i, i + len);
            fv__text_put(out, " ", 1, from, to);
            kept = i + len;
        }
        i += len;
    }
    fv__text_copy(out, in, kept, in->n);
}

/* ---- steps made of several passes ---- */

/* Runs a pass from *cur into the other of the two spare texts.
 * bert() may need five passes; two texts in turn hold them, of which one is the result. */
typedef struct passes {
    fv__work *w;
    const fv__text *cur;
    fv__text *spare[2];
    int turn;
} passes;

static fv__text *pass(passes *p)
{
    fv__text *out = p->spare[p->turn];
    p->turn ^= 1;
    fv__text_start(out, p->w->env, p->w->track, p->cur->n + p->cur->n / 8);
    return out;
}

static bool bert(const fv__norm *step, fv__work *w, const fv__text *in, fv__text *out)
{
    fv__text spare = {0};
    passes p = {w, in, {out, &spare}, 0};
    /* Not said in the file: accents go where the text is lowercased, as the Python class does
     * it. */
    bool accents = step->accents_set ? step->accents : step->lowercase;
    fv__text *to;
    if (step->clean) to = pass(&p), each(to, p.cur, clean), p.cur = to;
    if (step->cjk) to = pass(&p), isolate_cjk(to, p.cur), p.cur = to;
    if (accents) {
        to = pass(&p), fv__unicode_form(to, p.cur, false, false), p.cur = to;
        to = pass(&p), each(to, p.cur, no_accent), p.cur = to;
    }
    if (step->lowercase) to = pass(&p), lowercase(to, p.cur), p.cur = to;
    bool failed = out->failed || spare.failed;
    /* An even number of passes ends in the spare text, and none at all in the input: copy it
     * where it belongs. */
    if (p.cur != out) {
        fv__text_start(out, w->env, w->track, p.cur->n);
        fv__text_copy(out, p.cur, 0, p.cur->n);
    }
    out->failed = out->failed || failed;
    fv__text_free(&spare);
    w->steps += (in->n + out->n) * FV__STEPS_PASS;
    return fv__text_made(w, out);
}

static void strip(const fv__norm *step, fv__text *out, const fv__text *in)
{
    size_t a = 0, b = in->n;
    uint32_t cp;
    while (step->left && a < b) {
        int len = fv__char_at(&cp, in->s + a);
        if (!fv__is_space(cp)) break;
        a += (size_t)len;
    }
    while (step->right && b > a) {
        size_t at = b - 1;
        while ((in->s[at] & 0xC0) == 0x80) at--;
        fv__char_at(&cp, in->s + at);
        if (!fv__is_space(cp)) break;
        b = at;
    }
    fv__text_copy(out, in, a, b);
}

/* What replaces a match stands for its last character, as the reference has it. */
static bool replace(const fv__norm *step, fv__work *w, fv__text *out, const fv__text *in)
{
    size_t at = 0, kept = 0, a, b;
    uint32_t from, to, cp;
    int found = 0;
    while (at <= in->n && !out->failed &&
           (found = fv__pattern_find(&step->pattern, w, in->s, in->n, at, &a, &b)) > 0) {
        /* At the very start an empty match counts, so that "^" with content prepends it. */
        bool empty_again = a == b && a == kept && at; /* no empty match right after another match */
        if (!empty_again) {
            fv__text_copy(out, in, kept, a);
            size_t last = b;
            if (b) do
                    last--;
                while (last && (in->s[last] & 0xC0) == 0x80);
            fv__text_span(in, last, b, &from, &to);
            fv__text_put(out, step->content.s, step->content.n, from, to);
            kept = b;
        }
        at = b > a ? b : b < in->n ? b + (size_t)fv__char_at(&cp, in->s + b) : b + 1;
    }
    fv__text_copy(out, in, kept, in->n);
    return found >= 0;
}

/* An empty text stays empty, and gets no prefix either: so does the reference. */
static void prepend(const fv__norm *step, fv__text *out, const fv__text *in)
{
    uint32_t from, to, cp;
    if (!in->n) return;
    fv__text_span(in, 0, (size_t)fv__char_at(&cp, in->s), &from, &to);
    fv__text_put(out, step->content.s, step->content.n, from, to);
    fv__text_copy(out, in, 0, in->n);
}

/* ---- character maps ---- */

/* Puts text for in[i, i+len): character k of it stands for character k of the source, or for the
 * last one. */
static void put_aligned(fv__text *out, const fv__text *in, size_t i, size_t len, fv__str text)
{
    uint32_t from = 0, to = 0, cp;
    size_t at = i;
    for (size_t k = 0; k < text.n;) {
        size_t n = (size_t)fv__char_at(&cp, text.s + k);
        if (at < i + len) {
            size_t width = (size_t)fv__char_at(&cp, in->s + at);
            fv__text_span(in, at, at + width, &from, &to);
            at += width;
        }
        fv__text_put(out, text.s + k, n, from, to);
        k += n;
    }
}

/* Extended grapheme clusters of UAX 29, by utf8proc's state machine; plain ASCII takes the
 * shortcut. */
static size_t grapheme(const char *s, size_t n)
{
    uint32_t cp, next;
    utf8proc_int32_t state = 0;
    size_t len = (size_t)fv__char_at(&cp, s);
    if (cp < 0x80 && cp != '\r' && (len == n || !(s[len] & 0x80))) return len;
    while (len < n) {
        size_t more = (size_t)fv__char_at(&next, s + len);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            break;
        len += more;
        cp = next;
    }
    return len;
}

/* Whole graphemes of less than 6 bytes by their first rule, otherwise character by character: so
 * does the reference. */
static void precompiled(const fv__norm *step, fv__text *out, const fv__text *in)
{
    /* A rule that is found replaces the whole grapheme, even where it covers a prefix of it
     * only. */
    for (size_t i = 0; i < in->n;) {
        size_t len = grapheme(in->s + i, in->n - i), used, end = i + len;
        fv__str rule;
        if (len < 6 && fv__charsmap_find(&step->map, in->s + i, len, false, &used, &rule)) {
            put_aligned(out, in, i, len, rule);
            i = end;
            continue;
        }
        while (i < end) {
            uint32_t cp;
            size_t n = (size_t)fv__char_at(&cp, in->s + i);
            if (fv__charsmap_find(&step->map, in->s + i, n, false, &used, &rule))
                put_aligned(out, in, i, n, rule);
            else
                fv__text_copy(out, in, i, i + n);
            i += n;
        }
    }
}

/* ---- SentencePiece's own ---- */

#define META "\xE2\x96\x81"

/* What the text at i becomes, and how many bytes of it that takes. */
static fv__str spm_prefix(const fv__norm *step, fv__work *w, const fv__text *in, size_t i,
                          size_t *used)
{
    fv__str rule;
    uint32_t cp;
    const char *s = in->s + i;
    size_t left = in->n - i;
    /* User-defined pieces go through untouched and before any rule, as long as one begins here. */
    if (step->symbols && fv__trie_longest(step->symbols, 0, s, left, used, &w->steps) >= 0)
        return (fv__str){s, *used};
    if (step->map.units && fv__charsmap_find(&step->map, s, left, true, used, &rule)) return rule;
    *used = (size_t)fv__char_at(&cp, s);
    return (fv__str){s, *used};
}

static void spm_put(const fv__norm *step, fv__text *out, const fv__text *in, size_t i, size_t used,
                    fv__str text)
{
    /* All bytes of the replacement stand for the whole stretch it came from. */
    uint32_t from, to;
    fv__text_span(in, i, i + used, &from, &to);
    for (size_t k = 0; k < text.n;) {
        size_t end = k;
        while (end < text.n && (text.s[end] != ' ' || !step->escape)) end++;
        fv__text_put(out, text.s + k, end - k, from, to);
        if (end < text.n) fv__text_put(out, META, 3, from, to), end++;
        k = end;
    }
}

/* In order: leading spaces dropped, the dummy prefix, characters by the map with runs of spaces
 * made one and escaped, trailing spaces dropped. */
static void spm(const fv__norm *step, fv__work *w, fv__text *out, const fv__text *in)
{
    size_t i = 0, used;
    fv__str text, space = step->escape ? (fv__str){META, 3} : (fv__str){" ", 1};
    while (step->squeeze && i < in->n && w->steps <= w->most_steps) {
        text = spm_prefix(step, w, in, i, &used);
        if (!fv__str_is(text, " ")) break;
        i += used;
    }
    if (i >= in->n) return;
    if (step->prefix && !step->suffix) {
        uint32_t from, to, cp;
        fv__text_span(in, i, i + (size_t)fv__char_at(&cp, in->s + i), &from, &to);
        fv__text_put(out, space.s, space.n, from, from);
    }
    bool after_space = step->squeeze;
    while (i < in->n && w->steps <= w->most_steps) {
        text = spm_prefix(step, w, in, i, &used);
        /* A rule may give several characters: only its leading blanks are dropped, and a text
         * that becomes empty leaves after_space as it is. */
        while (after_space && text.n && *text.s == ' ') text.s++, text.n--;
        if (text.n) {
            spm_put(step, out, in, i, used, text);
            after_space = text.s[text.n - 1] == ' ';
        }
        if (!step->squeeze) after_space = false;
        i += used;
    }
    /* Trailing spaces are removed from the output, where they are escaped already. */
    while (step->squeeze && out->n >= space.n &&
           !memcmp(out->s + out->n - space.n, space.s, space.n))
        out->n -= space.n;
    /* treat_whitespace_as_suffix: the dummy goes behind the text instead of before it. */
    if (step->prefix && step->suffix) {
        uint32_t end = out->track && out->n ? out->to[out->n - 1] : 0;
        fv__text_put(out, space.s, space.n, end, end);
    }
}

static void byte_level(fv__text *out, const fv__text *in)
{
    uint32_t from, to;
    for (size_t i = 0; i < in->n; i++) {
        fv__text_span(in, i, i + 1, &from, &to);
        fv__text_put_char(out, fv__byte_to_char((unsigned char)in->s[i]), from, to);
    }
}

bool fv__normalise(const fv__norm *step, fv__work *w, const fv__text *in, fv__text *out)
{
    bool ok = true;
    if (step->kind == FV__BERT_NORM) return bert(step, w, in, out);
    fv__text_start(out, w->env, w->track, in->n + in->n / 8);
    out->most = w->most_text;
    switch (step->kind) {
    case FV__NFC: fv__unicode_form(out, in, true, false); break;
    case FV__NFD: fv__unicode_form(out, in, false, false); break;
    case FV__NFKC: fv__unicode_form(out, in, true, true); break;
    case FV__NFKD: fv__unicode_form(out, in, false, true); break;
    case FV__LOWERCASE: lowercase(out, in); break;
    case FV__STRIP_ACCENTS: each(out, in, no_mark); break;
    case FV__NMT: each(out, in, nmt); break;
    case FV__STRIP: strip(step, out, in); break;
    case FV__REPLACE: ok = replace(step, w, out, in); break;
    case FV__PREPEND: prepend(step, out, in); break;
    case FV__PRECOMPILED: precompiled(step, out, in); break;
    case FV__BYTE_NORM: byte_level(out, in); break;
    case FV__SPM_NORM: spm(step, w, out, in); break;
    case FV__BERT_NORM: break;
    }
    w->steps += (in->n + out->n) * FV__STEPS_PASS;
    return ok && fv__text_made(w, out);
}
