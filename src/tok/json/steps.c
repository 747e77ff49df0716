/* steps.c - the normalizer, pre_tokenizer and decoder sections of a tokenizer.json.
 *
 * Each section is one step or a Sequence of steps, nested at will.  Steps are counted first, so
 * that their array is allocated once.  A type or option that is not implemented is an error with
 * its path: a tokenizer that skips a step gives other ids, which no later stage would notice. */
#include "load.h"

/* ---- sequences ---- */

static bool is_sequence(fv__jobj *o)
{
    fv__jval type;
    if (!fv__json_get(&type, o, "type") || fv__json_kind(type) != '"') return false;
    return fv__str_is(fv__json_raw(type), "Sequence");
}

/* Counts leaves, since Sequences may be nested; the recursion is as deep as the checked
 * document.
 * list is "normalizers", "pretokenizers", "decoders" or "processors": each section has a name of
 * its own for the members of its Sequence. */
int64_t fv__json_step_count(fv__jval v, const char *list)
{
    fv__jobj o;
    fv__jval items;
    int64_t n = 0;
    if (fv__json_object(&o, v, NULL) != FV_OK || !is_sequence(&o) ||
        !fv__json_get(&items, &o, list))
        return 1;
    for (fv__jiter it = fv__json_iter(items); fv__json_next(&it);)
        n += fv__json_step_count(fv__json_item(items, &it), list);
    return n;
}

/* One step, or a Sequence of them. */
fv_status fv__json_steps(fv_tok *t, fv__jval v, const char *list, fv__step_reader one, fv_err *e)
{
    fv__jobj o;
    fv__jval items;
    fv__str type = {0};
    fv_status st = fv__json_object(&o, v, e);
    if (st != FV_OK) return st;
    if (is_sequence(&o)) {
        if (!fv__json_get(&items, &o, list)) return fv__json_bad(v, e, "\"%s\" is missing", list);
        if (fv__json_kind(items) != '[') return fv__json_bad(items, e, "an array was expected");
        for (fv__jiter it = fv__json_iter(items); st == FV_OK && fv__json_next(&it);)
            st = fv__json_steps(t, fv__json_item(items, &it), list, one, e);
    } else {
        st = fv__json_str(&type, &t->pool, &o, "type", true, e);
        if (st == FV_OK) st = one(t, &o, type, e);
    }
    return st == FV_OK ? fv__json_done(&o, e) : st;
}

/* Refused with its path in the document: a skipped step would go unnoticed until the ids are
 * wrong. */
static fv_status unknown(fv__jobj *o, fv__str type, fv_err *e)
{
    return fv__json_bad(o->self, e, "type \"%.60s\" is not implemented", type.s);
}

/* The index of a string among names, which is the value of the enum; without the member *out
 * stays. */
static fv_status one_of(int *out, fv__pool *p, fv__jobj *o, const char *key,
                        const char *const *names, bool must, fv_err *e)
{
    fv__str s = {0};
    fv_status st = fv__json_str(&s, p, o, key, must, e);
    if (st != FV_OK || !s.s) return st;
    for (int i = 0; names[i]; i++)
        if (fv__str_is(s, names[i])) {
            *out = i;
            return FV_OK;
        }
    return fv__json_bad(o->self, e, "%s \"%.60s\" is not known", key, s.s);
}

/* {"String": ".."} is searched by memmem, {"Regex": ".."} compiled once, while the file is
 * opened. */
fv_status fv__json_pattern(fv__pattern *out, fv_tok *t, fv__jobj *o, const char *key, fv_err *e)
{
    fv__jval v;
    fv__jobj kind;
    char why[200];
    bool no_memory = false;
    if (!fv__json_get(&v, o, key)) return fv__json_bad(o->self, e, "\"%s\" is missing", key);
    fv_status st = fv__json_object(&kind, v, e);
    if (st == FV_OK) st = fv__json_str(&out->text, &t->pool, &kind, "String", false, e);
    if (st == FV_OK && !out->text.s) {
        out->regex = true;
        st = fv__json_str(&out->text, &t->pool, &kind, "Regex", true, e);
    }
    if (st == FV_OK) st = fv__json_done(&kind, e);
    if (st != FV_OK) return st;
    if (fv__pattern_compile(out, t->env, why, sizeof why, &no_memory)) return FV_OK;
    return no_memory ? fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file)
                     : fv__json_bad(v, e, "%s", why);
}

/* ---- normalizer ---- */

/* SentencePiece's map, in base 64.
 * A double array trie and its strings in one blob (unicode/charsmap.c checks every index it
 * follows). */
static fv_status load_charsmap(fv__charsmap *out, fv_tok *t, fv__jobj *o, fv_err *e)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    fv__str text = {0};
    fv_status st = fv__json_str(&text, &t->pool, o, "precompiled_charsmap", true, e);
    if (st != FV_OK) return st;
    char *blob = fv__pool_alloc(&t->pool, text.n / 4 * 3 + 4);
    if (!blob) return fv_fail(e, FV_ENOMEM, "%s: out of memory", o->self.j->file);
    size_t n = 0, len = text.n;
    /* Padding is one or two '=' at the very end; anything else that is no digit is damage. */
    bool ok = text.n % 4 == 0;
    while (ok && len && len > text.n - 2 && text.s[len - 1] == '=') len--;
    uint32_t bits = 0;
    for (size_t i = 0; i < len && ok; i++) {
        const char *d = text.s[i] ? strchr(digits, text.s[i]) : NULL;
        ok = d != NULL;
        bits = bits << 6 | (uint32_t)(ok ? d - digits : 0);
        /* Four digits are three bytes: the first digit of a group completes none. */
        if (i % 4) blob[n++] = (char)(bits >> (6 - 2 * (i % 4)));
    }
    if (!ok || !fv__charsmap_init(out, (fv__str){blob, n}))
        return fv__json_bad(o->self, e, "precompiled_charsmap is damaged");
    return FV_OK;
}

/* Names as the reference writes them, and the short ones of its early versions. */
static const struct {
    const char *name;
    fv__norm_kind kind;
} norm_names[] = {
    {"NFC", FV__NFC},
    {"NFD", FV__NFD},
    {"NFKC", FV__NFKC},
    {"NFKD", FV__NFKD},
    {"Lowercase", FV__LOWERCASE},
    {"StripAccents", FV__STRIP_ACCENTS},
    {"Nmt", FV__NMT},
    {"BertNormalizer", FV__BERT_NORM},
    {"Bert", FV__BERT_NORM},
    {"Strip", FV__STRIP},
    {"Replace", FV__REPLACE},
    {"Prepend", FV__PREPEND},
    {"Precompiled", FV__PRECOMPILED},
    {"ByteLevel", FV__BYTE_NORM},
};

/* The step is counted before it is read: a pattern that was compiled is freed with the tokenizer
 * even if a later member is bad. */
static fv_status read_norm(fv_tok *t, fv__jobj *o, fv__str type, fv_err *e)
{
    fv__norm *s = t->norm + t->n_norm++;
    fv_status st = FV_OK;
    fv__jval v;
    size_t i = 0, n = sizeof norm_names / sizeof *norm_names;
    while (i < n && !fv__str_is(type, norm_names[i].name)) i++;
    if (i == n) return unknown(o, type, e);
    s->kind = norm_names[i].kind;
    switch (s->kind) {
    case FV__BERT_NORM:
        s->clean = s->cjk = s->lowercase = true;
        s->accents_set = fv__json_get(&v, o, "strip_accents") && !fv__json_null(v);
        if ((st = fv__json_bool(&s->clean, o, "clean_text", false, e)) == FV_OK &&
            (st = fv__json_bool(&s->cjk, o, "handle_chinese_chars", false, e)) == FV_OK &&
            (st = fv__json_bool(&s->accents, o, "strip_accents", false, e)) == FV_OK)
            st = fv__json_bool(&s->lowercase, o, "lowercase", false, e);
        break;
    case FV__STRIP:
        st = fv__json_bool(&s->left, o, "strip_left", true, e);
        if (st == FV_OK) st = fv__json_bool(&s->right, o, "strip_right", true, e);
        break;
    case FV__REPLACE:
        st = fv__json_pattern(&s->pattern, t, o, "pattern", e);
        if (st == FV_OK) st = fv__json_str(&s->content, &t->pool, o, "content", true, e);
        break;
    case FV__PREPEND: st = fv__json_str(&s->content, &t->pool, o, "prepend", true, e); break;
    case FV__PRECOMPILED: st = load_charsmap(&s->map, t, o, e); break;
    default: break;
    }
    return st;
}

fv_status fv__load_normaliser(fv_tok *t, fv__jval v, fv_err *e)
{
    t->norm = fv__pool_array(&t->pool, (size_t)fv__json_step_count(v, "normalizers"),
                             sizeof *t->norm);
    if (!t->norm) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    return fv__json_steps(t, v, "normalizers", read_norm, e);
}

/* ---- pre_tokenizer ---- */

static const char *const behaviours[] = {"Removed",        "Isolated",   "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous", NULL};
static const char *const schemes[] = {"first", "never", "always", NULL};

/* A character, not a byte: U+2581 has three. */
static fv_status one_char(fv__str *out, fv_tok *t, fv__jobj *o, const char *key, fv_err *e)
{
    uint32_t cp;
    fv_status st = fv__json_str(out, &t->pool, o, key, true, e);
    if (st != FV_OK || (out->n && (size_t)fv__char_at(&cp, out->s) == out->n)) return st;
    return fv__json_bad(o->self, e, "%s must be one character", key);
}

/* Metaspace, as splitter and as decoder. */
static fv_status read_metaspace(fv__str *replacement, fv__scheme *scheme, bool *split, fv_tok *t,
                                fv__jobj *o, fv_err *e)
{
    int which = -1;
    bool prefix = true;
    fv__str ignored = {0};
    fv_status st;
    *split = true;
    if ((st = one_char(replacement, t, o, "replacement", e)) != FV_OK ||
        (st = one_of(&which, &t->pool, o, "prepend_scheme", schemes, false, e)) != FV_OK ||
        /* Before prepend_scheme there was only add_prefix_space, and str_rep repeated the
         * replacement: both are still read, and must not contradict what replaced them. */
        (st = fv__json_bool(&prefix, o, "add_prefix_space", false, e)) != FV_OK ||
        (st = fv__json_bool(split, o, "split", false, e)) != FV_OK ||
        (st = fv__json_str(&ignored, &t->pool, o, "str_rep", false, e)) != FV_OK)
        return st;
    if (!prefix && which >= 0 && which != FV__NEVER)
        return fv__json_bad(o->self, e,
                            "add_prefix_space and prepend_scheme contradict each other");
    *scheme = !prefix ? FV__NEVER : which < 0 ? FV__ALWAYS : (fv__scheme)which;
    return FV_OK;
}

/* All three are on where an old file does not have them. */
static fv_status read_byte_level(bool *prefix, bool *trim, bool *regex, fv__jobj *o, fv_err *e)
{
    fv_status st;
    *prefix = *trim = *regex = true;
    if ((st = fv__json_bool(prefix, o, "add_prefix_space", false, e)) != FV_OK ||
        (st = fv__json_bool(trim, o, "trim_offsets", false, e)) != FV_OK)
        return st;
    return fv__json_bool(regex, o, "use_regex", false, e);
}

static const struct {
    const char *name;
    fv__split_kind kind;
} split_names[] = {
    {"BertPreTokenizer", FV__BERT_SPLIT},
    {"Whitespace", FV__WHITESPACE},
    {"WhitespaceSplit", FV__WHITESPACE_SPLIT},
    {"Punctuation", FV__PUNCTUATION},
    {"Digits", FV__DIGITS},
    {"CharDelimiterSplit", FV__DELIMITER},
    {"Delimiter", FV__DELIMITER},
    {"Split", FV__SPLIT},
    {"Metaspace", FV__METASPACE},
    {"ByteLevel", FV__BYTE_LEVEL},
    {"FixedLength", FV__FIXED_LENGTH},
    {"UnicodeScripts", FV__SCRIPTS},
};

/* Members that older versions of the reference lacked have its defaults; those it always wrote
 * must be there. */
static fv_status read_split(fv_tok *t, fv__jobj *o, fv__str type, fv_err *e)
{
    fv__split *s = t->split + t->n_split++;
    fv_status st = FV_OK;
    int behaviour = FV__ISOLATED;
    size_t i = 0, n = sizeof split_names / sizeof *split_names;
    while (i < n && !fv__str_is(type, split_names[i].name)) i++;
    if (i == n) return unknown(o, type, e);
    s->kind = split_names[i].kind;
    switch (s->kind) {
    case FV__PUNCTUATION:
        st = one_of(&behaviour, &t->pool, o, "behavior", behaviours, false, e);
        break;
    case FV__DIGITS: st = fv__json_bool(&s->individual, o, "individual_digits", true, e); break;
    case FV__DELIMITER: st = one_char(&s->replacement, t, o, "delimiter", e); break;
    case FV__SPLIT:
        if ((st = fv__json_pattern(&s->pattern, t, o, "pattern", e)) == FV_OK &&
            (st = one_of(&behaviour, &t->pool, o, "behavior", behaviours, true, e)) == FV_OK)
            st = fv__json_bool(&s->invert, o, "invert", true, e);
        break;
    case FV__SCRIPTS: st = fv__scripts_pattern(&s->pattern, t, e); break;
    case FV__METASPACE: st = read_metaspace(&s->replacement, &s->scheme, &s->split, t, o, e); break;
    case FV__BYTE_LEVEL:
        st = read_byte_level(&s->prefix_space, &s->trim, &s->use_regex, o, e);
        break;
    case FV__FIXED_LENGTH:
        s->length = 5;
        st = fv__json_int(&s->length, o, "length", 1, INT32_MAX, false, e);
        break;
    default: break;
    }
    s->behaviour = (fv__behaviour)behaviour;
    return st;
}

fv_status fv__load_splitter(fv_tok *t, fv__jval v, fv_err *e)
{
    t->split = fv__pool_array(&t->pool, (size_t)fv__json_step_count(v, "pretokenizers"),
                              sizeof *t->split);
    if (!t->split) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    return fv__json_steps(t, v, "pretokenizers", read_split, e);
}

/* ---- decoder ---- */

static const struct {
    const char *name;
    fv__dec_kind kind;
} dec_names[] = {
    {"ByteLevel", FV__DEC_BYTE_LEVEL},
    {"WordPiece", FV__DEC_WORDPIECE},
    {"Metaspace", FV__DEC_METASPACE},
    {"BPEDecoder", FV__DEC_BPE},
    {"Fuse", FV__DEC_FUSE},
    {"Strip", FV__DEC_STRIP},
    {"ByteFallback", FV__DEC_BYTE_FALLBACK},
    {"Replace", FV__DEC_REPLACE},
    {"CTC", FV__DEC_CTC},
};

static fv_status read_dec(fv_tok *t, fv__jobj *o, fv__str type, fv_err *e)
{
    fv__dec *s = t->dec + t->n_dec++;
    fv_status st = FV_OK;
    size_t i = 0, n = sizeof dec_names / sizeof *dec_names;
    while (i < n && !fv__str_is(type, dec_names[i].name)) i++;
    if (i == n) return unknown(o, type, e);
    s->kind = dec_names[i].kind;
    switch (s->kind) {
    case FV__DEC_BYTE_LEVEL:
        st = read_byte_level(&s->prefix_space, &s->trim, &s->use_regex, o, e);
        break;
    case FV__DEC_WORDPIECE:
        st = fv__json_str(&s->text, &t->pool, o, "prefix", true, e);
        if (st == FV_OK) st = fv__json_bool(&s->cleanup, o, "cleanup", true, e);
        break;
    case FV__DEC_METASPACE: st = read_metaspace(&s->text, &s->scheme, &s->split, t, o, e); break;
    case FV__DEC_BPE: st = fv__json_str(&s->text, &t->pool, o, "suffix", true, e); break;
    case FV__DEC_STRIP:
        if ((st = one_char(&s->text, t, o, "content", e)) == FV_OK &&
            (st = fv__json_int(&s->start, o, "start", 0, INT32_MAX, true, e)) == FV_OK)
            st = fv__json_int(&s->stop, o, "stop", 0, INT32_MAX, true, e);
        break;
    case FV__DEC_REPLACE:
        st = fv__json_pattern(&s->pattern, t, o, "pattern", e);
        if (st == FV_OK) st = fv__json_str(&s->text, &t->pool, o, "content", true, e);
        break;
    case FV__DEC_CTC:
        if ((st = fv__json_str(&s->text, &t->pool, o, "pad_token", true, e)) == FV_OK &&
            (st = fv__json_str(&s->word, &t->pool, o, "word_delimiter_token", true, e)) == FV_OK)
            st = fv__json_bool(&s->cleanup, o, "cleanup", true, e);
        break;
    default: break;
    }
    return st;
}

fv_status fv__load_decoder(fv_tok *t, fv__jval v, fv_err *e)
{
    t->dec = fv__pool_array(&t->pool, (size_t)fv__json_step_count(v, "decoders"), sizeof *t->dec);
    if (!t->dec) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    /* An empty Sequence is a decoder too: tokens are then joined without spaces in between. */
    t->has_dec = true;
    return fv__json_steps(t, v, "decoders", read_dec, e);
}
