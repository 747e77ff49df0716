/* save.c - writing a tokenizer.json: every section as the reference spells it.
 *
 * SentencePiece's own normaliser and scores have no name there.  They are written as the components
 * that stand for them in published conversions: Precompiled, Strip and Replace, Metaspace, and
 * merges in the order of scores.
 *
 * The text is put together in one fv_buf, whose failure is sticky: nothing below checks for
 * memory, fv_tok_save looks once, at the end. A tree of JSON values was the alternative; it
 * would hold a vocabulary of 250,000 tokens three times (model, tree, text) for no gain, since
 * the order of members is fixed.
 *
 * Invariant: json/load.c reads back what is written here and the ids of every text stay the
 * same. So all options are written, also those that have the default of the reference: defaults
 * of tokenizers have changed between its versions, and a file that leaves them out changes its
 * meaning with the reader. */
#include <math.h>
#include <stdio.h>

#include "base/decimal.h"
#include "tok/json/load.h"
#include "tok/json/put.h"

/* ---- normalizer, pre_tokenizer, decoder ---- */

/* SentencePiece's normaliser has no name in tokenizer.json: it is written as the steps that do the
 * same.
 * Precompiled takes the blob as it came from the .model file: the double array is never rebuilt.
 * Strip goes before Replace, as SentencePiece drops leading and trailing spaces before it
 * squeezes runs; the dummy prefix and the escape of spaces are Metaspace's (put_steps). */
static void put_spm_norm(fv_buf *b, const fv__norm *s)
{
    if (s->map.units) {
        fv__buf_str(b, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        fv__put_base64(b, s->map.blob);
        fv__buf_str(b, s->squeeze ? "\"}," : "\"}");
    }
    if (s->squeeze)
        fv__buf_str(b,
                    "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
                    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}");
}

static void put_norm(fv_buf *b, const fv__norm *s)
{
    /* Indexed by fv__norm_kind: the order of the enum in tok.h is the order here. */
    static const char *const names[] = {"NFC",       "NFD",          "NFKC",    "NFKD",
                                        "Lowercase", "StripAccents", "Nmt",     "BertNormalizer",
                                        "Strip",     "Replace",      "Prepend", "Precompiled",
                                        "ByteLevel"};
    if (s->kind == FV__SPM_NORM) {
        put_spm_norm(b, s);
        return;
    }
    fv__buf_fmt(b, "{\"type\":\"%s\"", names[s->kind]);
    switch (s->kind) {
    case FV__BERT_NORM:
        fv__put_bool(b, "clean_text", s->clean);
        fv__put_bool(b, "handle_chinese_chars", s->cjk);
        /* null is a third value: accents are then stripped where the text is lowercased (bert()
         * in unicode/normalise.c). */
        fv__buf_fmt(b, ",\"strip_accents\":%s",
                    !s->accents_set ? "null"
                    : s->accents    ? "true"
                                    : "false");
        fv__put_bool(b, "lowercase", s->lowercase);
        break;
    case FV__STRIP:
        fv__put_bool(b, "strip_left", s->left);
        fv__put_bool(b, "strip_right", s->right);
        break;
    case FV__REPLACE:
        fv__put_pattern(b, &s->pattern);
        fv__put_member(b, "content", s->content);
        break;
    case FV__PREPEND: fv__put_member(b, "prepend", s->content); break;
    case FV__PRECOMPILED:
        fv__buf_str(b, ",\"precompiled_charsmap\":\"");
        fv__put_base64(b, s->map.blob);
        fv__buf_str(b, "\"");
        break;
    default: break;
    }
    fv__buf_str(b, "}");
}

/* When Metaspace puts its character in front: of every piece, of the one at the start of the
 * text only, or of none. */
static const char *scheme_name(fv__scheme s)
{
    return s == FV__FIRST ? "first" : s == FV__NEVER ? "never" : "always";
}

static void put_metaspace(fv_buf *b, fv__str replacement, fv__scheme scheme, bool split)
{
    fv__buf_str(b, "{\"type\":\"Metaspace\"");
    fv__put_member(b, "replacement", replacement);
    fv__buf_fmt(b, ",\"prepend_scheme\":\"%s\",\"split\":%s}", scheme_name(scheme),
                split ? "true" : "false");
}

static void put_byte_level(fv_buf *b, bool prefix, bool trim, bool regex)
{
    fv__buf_str(b, "{\"type\":\"ByteLevel\"");
    fv__put_bool(b, "add_prefix_space", prefix);
    fv__put_bool(b, "trim_offsets", trim);
    fv__put_bool(b, "use_regex", regex);
    fv__buf_str(b, "}");
}

static void put_split(fv_buf *b, const fv__split *s)
{
    /* Indexed by fv__split_kind and fv__behaviour. */
    static const char *const names[] = {
        "BertPreTokenizer", "Whitespace",         "WhitespaceSplit", "Punctuation",
        "Digits",           "CharDelimiterSplit", "Split",           "Metaspace",
        "ByteLevel",        "FixedLength",        "UnicodeScripts"};
    static const char *const behaviours[] = {"Removed", "Isolated", "MergedWithPrevious",
                                             "MergedWithNext", "Contiguous"};
    if (s->kind == FV__METASPACE) {
        put_metaspace(b, s->replacement, s->scheme, s->split);
        return;
    }
    if (s->kind == FV__BYTE_LEVEL) {
        put_byte_level(b, s->prefix_space, s->trim, s->use_regex);
        return;
    }
    fv__buf_fmt(b, "{\"type\":\"%s\"", names[s->kind]);
    if (s->kind == FV__SPLIT) fv__put_pattern(b, &s->pattern);
    if (s->kind == FV__SPLIT || s->kind == FV__PUNCTUATION)
        fv__buf_fmt(b, ",\"behavior\":\"%s\"", behaviours[s->behaviour]);
    if (s->kind == FV__SPLIT) fv__put_bool(b, "invert", s->invert);
    if (s->kind == FV__DIGITS) fv__put_bool(b, "individual_digits", s->individual);
    if (s->kind == FV__DELIMITER) fv__put_member(b, "delimiter", s->replacement);
    if (s->kind == FV__FIXED_LENGTH) fv__buf_fmt(b, ",\"length\":%lld", (long long)s->length);
    fv__buf_str(b, "}");
}

static void put_dec(fv_buf *b, const fv__dec *s)
{
    static const char *const names[] = {"ByteLevel",  "WordPiece",    "Metaspace",
                                        "BPEDecoder", "ByteFallback", "Fuse",
                                        "Strip",      "Replace",      "CTC"};
    if (s->kind == FV__DEC_METASPACE) {
        put_metaspace(b, s->text, s->scheme, s->split);
        return;
    }
    if (s->kind == FV__DEC_BYTE_LEVEL) {
        put_byte_level(b, s->prefix_space, s->trim, s->use_regex);
        return;
    }
    fv__buf_fmt(b, "{\"type\":\"%s\"", names[s->kind]);
    /* The one string of a step has another key in every type: prefix, suffix, content,
     * pad_token. */
    if (s->kind == FV__DEC_WORDPIECE) fv__put_member(b, "prefix", s->text);
    if (s->kind == FV__DEC_BPE) fv__put_member(b, "suffix", s->text);
    if (s->kind == FV__DEC_STRIP || s->kind == FV__DEC_REPLACE)
        fv__put_member(b, "content", s->text);
    if (s->kind == FV__DEC_STRIP)
        fv__buf_fmt(b, ",\"start\":%lld,\"stop\":%lld", (long long)s->start, (long long)s->stop);
    if (s->kind == FV__DEC_REPLACE) fv__put_pattern(b, &s->pattern);
    if (s->kind == FV__DEC_CTC)
        fv__put_member(b, "pad_token", s->text), fv__put_member(b, "word_delimiter_token", s->word);
    if (s->kind == FV__DEC_CTC || s->kind == FV__DEC_WORDPIECE)
        fv__put_bool(b, "cleanup", s->cleanup);
    fv__buf_str(b, "}");
}

/* Every section is written as a Sequence, also of one step: one form to read back and to test. */
static void put_steps(fv_buf *b, const fv_tok *t)
{
    static const fv__str meta = {"\xE2\x96\x81", 3};
    bool spm_norm = t->spm && (t->norm->map.units || t->norm->squeeze);
    fv__buf_str(b, ",\n\"normalizer\":");
    if (!t->n_norm || (t->spm && !spm_norm))
        fv__buf_str(b, "null");
    else {
        fv__buf_str(b, "{\"type\":\"Sequence\",\"normalizers\":[");
        for (int i = 0; i < t->n_norm; i++) fv__buf_str(b, i ? "," : ""), put_norm(b, t->norm + i);
        fv__buf_str(b, "]}");
    }
    fv__buf_str(b, ",\n\"pre_tokenizer\":");
    /* add_dummy_prefix puts a space before every text, which is what prepend_scheme "always"
     * says. */
    fv__scheme scheme = t->spm && t->norm->prefix ? FV__ALWAYS : FV__NEVER;
    if (t->spm)
        put_metaspace(b, meta, scheme, t->model.kind == FV__MODEL_WORDLEVEL);
    else if (!t->n_split)
        fv__buf_str(b, "null");
    else {
        fv__buf_str(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
        for (int i = 0; i < t->n_split; i++)
            fv__buf_str(b, i ? "," : ""), put_split(b, t->split + i);
        fv__buf_str(b, "]}");
    }
    fv__buf_str(b, ",\n\"decoder\":");
    /* The order matters: <0x0A> must be a byte again before spaces are touched. */
    if (t->spm) {
        fv__buf_str(b, "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},");
        put_metaspace(b, meta, scheme, true);
        fv__buf_str(b, "]}");
    } else if (!t->has_dec)
        fv__buf_str(b, "null");
    else {
        fv__buf_str(b, "{\"type\":\"Sequence\",\"decoders\":[");
        for (int i = 0; i < t->n_dec; i++) fv__buf_str(b, i ? "," : ""), put_dec(b, t->dec + i);
        fv__buf_str(b, "]}");
    }
}

/* ---- post_processor ---- */

/* The templates of one text and of two. */
static void put_items(fv_buf *b, const fv__post *p, const char *key, const fv__template_item *items,
                      int n)
{
    fv__buf_fmt(b, ",\"%s\":[", key);
    for (int i = 0; i < n; i++) {
        bool text = items[i].sequence >= 0;
        fv__buf_fmt(b, "%s{\"%s\":{\"id\":", i ? "," : "", text ? "Sequence" : "SpecialToken");
        fv__put_str(b, text ? (fv__str){items[i].sequence ? "B" : "A", 1}
                            : p->specials[items[i].special].name);
        fv__buf_fmt(b, ",\"type_id\":%d}}", items[i].type);
    }
    fv__buf_str(b, "]");
}

static void put_template(fv_buf *b, const fv__post *p)
{
    fv__buf_str(b, "{\"type\":\"TemplateProcessing\"");
    put_items(b, p, "single", p->single, p->n_single);
    put_items(b, p, "pair", p->pair, p->n_pair);
    fv__buf_str(b, ",\"special_tokens\":{");
    for (int i = 0; i < p->n_specials; i++) {
        const fv__template_special *s = p->specials + i;
        if (i) fv__buf_str(b, ",");
        fv__put_str(b, s->name);
        fv__buf_str(b, ":{\"id\":");
        fv__put_str(b, s->name);
        fv__buf_str(b, ",\"ids\":[");
        for (int32_t k = 0; k < s->n; k++) fv__buf_fmt(b, "%s%d", k ? "," : "", s->ids[k]);
        fv__buf_str(b, "],\"tokens\":[");
        for (int32_t k = 0; k < s->n; k++)
            fv__buf_str(b, k ? "," : ""), fv__put_str(b, s->tokens[k]);
        fv__buf_str(b, "]}");
    }
    fv__buf_str(b, "}}");
}

/* ["[SEP]", 102]: BertProcessing and RobertaProcessing take one id for each special. */
static void put_named(fv_buf *b, const char *key, const fv__template_special *s)
{
    fv__buf_fmt(b, ",\"%s\":[", key);
    fv__put_str(b, s->name);
    fv__buf_fmt(b, ",%d]", s->ids[0]);
}

static void put_post(fv_buf *b, const fv_tok *t)
{
    const fv__post *p = &t->post;
    fv__buf_str(b, ",\n\"post_processor\":");
    if (p->kind == FV__POST_NONE && !p->byte_level) {
        fv__buf_str(b, "null");
        return;
    }
    /* Two members make a Sequence, one stands alone; byte_first keeps the order of the file that
     * was read, so that saving it again changes nothing. */
    bool two = p->byte_level && p->kind != FV__POST_NONE;
    if (two) fv__buf_str(b, "{\"type\":\"Sequence\",\"processors\":[");
    if (p->byte_level && p->byte_first)
        put_byte_level(b, p->byte_prefix_space, p->byte_trim, p->byte_use_regex);
    if (two && p->byte_first) fv__buf_str(b, ",");
    if (p->kind == FV__POST_TEMPLATE) put_template(b, p);
    if (p->kind == FV__POST_BERT || p->kind == FV__POST_ROBERTA) {
        fv__buf_fmt(b, "{\"type\":\"%s\"",
                    p->kind == FV__POST_BERT ? "BertProcessing" : "RobertaProcessing");
        put_named(b, "sep", p->specials + 1);
        put_named(b, "cls", p->specials);
        if (p->kind == FV__POST_ROBERTA) {
            /* With a trimming ByteLevel beside it the flag in p->trim is that one's
             * (fv__load_post copies it): writing it here too would trim twice. */
            fv__put_bool(b, "trim_offsets", p->trim && !(p->byte_level && p->byte_trim));
            fv__put_bool(b, "add_prefix_space", p->trim_prefix_space);
        }
        fv__buf_str(b, "}");
    }
    if (two && !p->byte_first) fv__buf_str(b, ",");
    if (p->byte_level && !p->byte_first)
        put_byte_level(b, p->byte_prefix_space, p->byte_trim, p->byte_use_regex);
    if (two) fv__buf_str(b, "]}");
}

/* ---- model ---- */

/* In order of ids, as the reference writes it, so that two files can be compared. */
static void put_vocab(fv_buf *b, const fv__vocab *v)
{
    fv__buf_str(b, ",\n\"vocab\":{");
    bool first = true;
    for (int32_t id = 0; id < v->size; id++) {
        if (!fv__vocab_has(v, id)) continue;
        fv__buf_str(b, first ? "\n" : ",\n");
        fv__put_str(b, fv__vocab_str(v, id));
        fv__buf_fmt(b, ":%d", id);
        first = false;
    }
    fv__buf_str(b, "}");
}

/* The reference reads an empty string and null as two things; an affix that is absent is null. */
static void put_affix(fv_buf *b, const char *key, fv__str s)
{
    if (s.n)
        fv__put_member(b, key, s);
    else
        fv__buf_fmt(b, ",\"%s\":null", key);
}

/* In the order of ranks: the position of a pair is its rank for every reader. */
static void put_bpe(fv_buf *b, const fv__model *m)
{
    /* Dropout is a matter of training: a file that asks for it is refused on opening. */
    fv__buf_str(b, "{\"type\":\"BPE\",\"dropout\":null");
    put_affix(b, "unk_token", m->unk_token);
    put_affix(b, "continuing_subword_prefix", m->prefix);
    put_affix(b, "end_of_word_suffix", m->suffix);
    fv__put_bool(b, "fuse_unk", m->fuse_unk);
    fv__put_bool(b, "byte_fallback", m->byte_fallback);
    fv__put_bool(b, "ignore_merges", m->ignore_merges);
    put_vocab(b, &m->vocab);
    fv__buf_str(b, ",\n\"merges\":[");
    for (int32_t i = 0; i < m->n_pairs; i++) {
        fv__buf_str(b, i ? ",\n[" : "\n[");
        fv__put_str(b, fv__vocab_str(&m->vocab, m->pairs[i][0]));
        fv__buf_str(b, ",");
        fv__put_str(b, fv__vocab_str(&m->vocab, m->pairs[i][1]));
        fv__buf_str(b, "]");
    }
    fv__buf_str(b, "]}");
}

/* Scores with as many digits as it takes to read the same double back. */
static void put_unigram(fv_buf *b, const fv__model *m)
{
    fv__buf_str(b, "{\"type\":\"Unigram\",\"unk_id\":");
    if (m->unk >= 0)
        fv__buf_fmt(b, "%d", m->unk);
    else
        fv__buf_str(b, "null");
    fv__put_bool(b, "byte_fallback", m->byte_fallback);
    fv__buf_str(b, ",\n\"vocab\":[");
    for (int32_t id = 0; id < m->vocab.size; id++) {
        fv__buf_str(b, id ? ",\n[" : "\n[");
        fv__put_str(b, fv__vocab_str(&m->vocab, id));
        fv__buf_str(b, ",");
        fv__put_double(b, m->scores[id]);
        fv__buf_str(b, "]");
    }
    fv__buf_str(b, "]}");
}

static void put_model(fv_buf *b, const fv__model *m)
{
    fv__buf_str(b, ",\n\"model\":");
    if (m->kind == FV__MODEL_BPE) {
        put_bpe(b, m);
    } else if (m->kind == FV__MODEL_UNIGRAM) {
        put_unigram(b, m);
    } else {
        bool pieces = m->kind == FV__MODEL_WORDPIECE;
        fv__buf_fmt(b, "{\"type\":\"%s\"", pieces ? "WordPiece" : "WordLevel");
        fv__put_member(b, "unk_token", m->unk_token.s ? m->unk_token : (fv__str){"", 0});
        if (pieces) fv__put_member(b, "continuing_subword_prefix", m->prefix);
        if (pieces) fv__buf_fmt(b, ",\"max_input_chars_per_word\":%lld", (long long)m->max_chars);
        put_vocab(b, &m->vocab);
        fv__buf_str(b, "}");
    }
}

/* ---- the file ---- */

/* Truncation and padding stand first in the file, as the reference has them. */
static void put_limits(fv_buf *b, const fv_tok *t)
{
    static const char *const strategies[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    const fv__truncation *c = &t->truncation;
    const fv__padding *p = &t->padding;
    if (c->set)
        fv__buf_fmt(b,
                    ",\n\"truncation\":{\"direction\":\"%s\",\"max_length\":%lld,\"strategy\":\"%"
                    "s\",\"stride\":%lld}",
                    c->left ? "Left" : "Right", (long long)c->max_length, strategies[c->strategy],
                    (long long)c->stride);
    else
        fv__buf_str(b, ",\n\"truncation\":null");
    if (!p->set) {
        fv__buf_str(b, ",\n\"padding\":null");
        return;
    }
    fv__buf_fmt(b, ",\n\"padding\":{\"direction\":\"%s\",\"pad_id\":%lld,\"pad_type_id\":%lld",
                p->left ? "Left" : "Right", (long long)p->id, (long long)p->type);
    fv__put_member(b, "pad_token", p->token);
    if (p->has_multiple)
        fv__buf_fmt(b, ",\"pad_to_multiple_of\":%lld", (long long)p->multiple);
    else
        fv__buf_str(b, ",\"pad_to_multiple_of\":null");
    if (p->fixed)
        fv__buf_fmt(b, ",\"strategy\":{\"Fixed\":%lld}}", (long long)p->length);
    else
        fv__buf_str(b, ",\"strategy\":\"BatchLongest\"}");
}

static void put_added_one(fv_buf *b, bool first, const fv__added *a)
{
    fv__buf_fmt(b, "%s{\"id\":%d", first ? "\n" : ",\n", a->id);
    fv__put_member(b, "content", a->content);
    fv__put_bool(b, "single_word", a->single_word);
    fv__put_bool(b, "lstrip", a->lstrip);
    fv__put_bool(b, "rstrip", a->rstrip);
    fv__put_bool(b, "normalized", a->normalized);
    fv__put_bool(b, "special", a->special);
    fv__buf_str(b, "}");
}

/* Ids are written for readers; every reader numbers added tokens itself and must come to the
 * same. */
static void put_added(fv_buf *b, const fv_tok *t)
{
    bool first = true;
    fv__buf_str(b, ",\n\"added_tokens\":[");
    /* A SentencePiece file keeps what must not be found by the model in the types of its pieces. */
    for (int32_t id = 0; t->spm && id < t->model.vocab.size; id++) {
        int type = t->spm->types[id];
        fv__added a = {.content = fv__vocab_str(&t->model.vocab, id),
                       .id = id,
                       .special = type != FV__SPM_USER};
        if ((type == FV__SPM_CONTROL || type == FV__SPM_USER || type == FV__SPM_UNKNOWN) &&
            !fv__added_by_id(t, id))
            put_added_one(b, first, &a), first = false;
    }
    for (int32_t i = 0; i < t->added.n; i++)
        put_added_one(b, first, t->added.all + i), first = false;
    fv__buf_str(b, "]");
}

/* What cannot be said in the format is refused, never approximated. */
static fv_status can_save(const fv_tok *t, fv_err *e)
{
    if (t->pieces)
        return fv_fail(e, FV_EMISSING,
                       "a tokenizer whose pieces vocab.json numbers (Marian, M2M-100) has no form "
                       "as tokenizer.json");
    if (t->model.kind == FV__MODEL_CHAR)
        return fv_fail(e, FV_EMISSING,
                       "a SentencePiece character model has no counterpart in a tokenizer.json");
    if (t->spm && (t->norm->suffix || !t->norm->escape))
        return fv_fail(e, FV_EMISSING,
                       "treat_whitespace_as_suffix and unescaped spaces have no counterpart in a "
                       "tokenizer.json");
    return FV_OK;
}

/* The file is written whole or not at all. */
fv_status fv_tok_save(const fv_tok *t, const char *path, fv_err *e)
{
    fv_status st = can_save(t, e);
    if (st != FV_OK) return st;
    fv_buf b = {.env = t->env};
    fv__buf_str(&b, "{\"version\":\"1.0\"");
    put_limits(&b, t);
    put_added(&b, t);
    put_steps(&b, t);
    put_post(&b, t);
    put_model(&b, &t->model);
    fv__buf_str(&b, "}\n");
    st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                  : fv__file_write(t->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
