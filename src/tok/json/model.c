/* model.c - the "model" section of a tokenizer.json: BPE, WordPiece, Unigram, WordLevel.
 *
 * All four are read into one fv__model: a vocabulary (text to id and back), and what the kind
 * needs beside it, ranks of merges or scores of pieces. Everything lives in the tokenizer's
 * pool and is freed with it.
 *
 * Vocabularies are the bulk of the file (Llama 3: 128,000 tokens, 280,000 merges), so they are
 * walked in place by an iterator and never built as a tree; numbers and strings are parsed
 * where they stand.
 *
 * A vocabulary is {"token": id, ...} or, for Unigram, [["piece", score], ...], where the index
 * is the id. Merges are "a b" or ["a", "b"], and their index is the rank. */
#include <math.h>

#include "load.h"

#define MAX_AFFIX 48

static fv_status no_memory(fv__jval v, fv_err *e)
{
    return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
}

/* ---- vocabularies ---- */

/* Ids may have holes, but not such that the table would dwarf the file it came from. */
static fv_status check_ids(fv__jval v, int64_t most, fv_err *e)
{
    int64_t limit = (int64_t)fv__json_size(v) / 2 + 4096;
    if (most < limit && most < INT32_MAX / 4) return FV_OK;
    return fv__json_bad(v, e, "id %lld is too large for a vocabulary of this size",
                        (long long)most);
}

/* Two tokens of one text, or of one id, would make encoding depend on the order of the file. */
static fv_status put_token(fv__vocab *v, const char *s, size_t n, int64_t id, const fv__jval *at,
                           fv_err *e)
{
    int shown = (int)(n < 60 ? n : 60);
    switch (fv__vocab_put(v, s, n, (int32_t)id)) {
    case FV__ADDED: return FV_OK;
    case FV__SAME_TEXT: return fv__json_bad(*at, e, "token \"%.*s\" is there twice", shown, s);
    case FV__SAME_ID:
        return fv__json_bad(*at, e, "id %lld of \"%.*s\" is taken", (long long)id, shown, s);
    case FV__NO_SPACE: break;
    }
    return fv__json_bad(*at, e, "token \"%.*s\" does not fit", shown, s);
}

/* Two walks: count and measure, then fill tables of exactly that size.  Only keys are unescaped,
 * into one buffer that all of them fit. */
fv_status fv__json_vocab(fv__vocab *out, fv__pool *p, fv__jval v, fv_err *e)
{
    int64_t n = 0, most = -1, id;
    size_t text = 0;
    fv_status st;
    if (fv__json_kind(v) != '{')
        return fv__json_bad(v, e, "an object of tokens and ids was expected");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it); n++) {
        id = fv__json_id(&it);
        if (id < 0) return fv__json_to_int(&id, fv__json_item(v, &it), 0, INT32_MAX / 4, e);
        if (id > most) most = id;
        text += it.key_end - it.key;
    }
    if ((st = check_ids(v, most, e)) != FV_OK) return st;
    char *buf = fv__alloc(p->env, text + 1);
    if (!buf || !fv__vocab_init(out, p, n, most + 1, text)) st = no_memory(v, e);
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);) {
        size_t len = fv__json_unescape(buf, v.j->s + it.key, it.key_end - it.key);
        id = fv__json_id(&it);
        st = put_token(out, buf, len, id, &v, e);
    }
    fv__free(p->env, buf, text + 1);
    return st;
}

/* must: an unk_token outside the vocabulary is refused on opening. WordPiece and WordLevel
 * report it when a text first needs it. */
static fv_status find_unknown(fv__model *m, fv__jobj *o, fv__pool *p, bool must, fv_err *e)
{
    fv_status st = fv__json_str(&m->unk_token, p, o, "unk_token", false, e);
    m->has_unk_token = m->unk_token.s != NULL;
    if (st == FV_OK && m->has_unk_token)
        m->unk = fv__vocab_id(&m->vocab, m->unk_token.s, m->unk_token.n);
    if (st == FV_OK && must && m->has_unk_token && m->unk < 0)
        return fv__json_bad(o->self, e, "unk_token \"%.60s\" is not in the vocabulary",
                            m->unk_token.s);
    return st;
}

/* ---- BPE ---- */

/* The two halves of a merge, in buf: "a b" or ["a", "b"].
 * Newer files have pairs: a token with a space in it cannot be written as "a b". */
static bool merge_halves(fv__jval v, char *buf, fv__str *a, fv__str *b)
{
    if (fv__json_kind(v) == '"') {
        fv__str raw = fv__json_raw(v);
        size_t n = fv__json_unescape(buf, raw.s, raw.n);
        char *space = memchr(buf, ' ', n);
        /* Exactly one space, or it is not clear where the first half ends. */
        if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - buf))) return false;
        *a = (fv__str){buf, (size_t)(space - buf)};
        *b = (fv__str){space + 1, n - a->n - 1};
        return true;
    }
    fv__jiter it = fv__json_iter(v);
    fv__str *half[2] = {a, b};
    if (fv__json_kind(v) != '[') return false;
    for (int i = 0; i < 2; i++) {
        if (!fv__json_next(&it) || v.j->s[it.value] != '"') return false;
        fv__str raw = fv__json_raw((fv__jval){.j = v.j, .at = it.value});
        *half[i] = (fv__str){buf, fv__json_unescape(buf, raw.s, raw.n)};
        buf += half[i]->n;
    }
    return !fv__json_next(&it);
}

/* Rank i joins a and b to the token that spells both, less b's continuing prefix. */
const char *fv__bpe_add(fv__model *m, int32_t i, fv__str a, fv__str b, char *joined)
{
    if (b.n < m->prefix.n) return "its second half is shorter than continuing_subword_prefix";
    memcpy(joined, a.s, a.n);
    memcpy(joined + a.n, b.s + m->prefix.n, b.n - m->prefix.n);
    size_t n = a.n + b.n - m->prefix.n;
    int32_t ia = fv__vocab_id(&m->vocab, a.s, a.n), ib = fv__vocab_id(&m->vocab, b.s, b.n);
    /* Vocabularies mostly have them in the order in which they were made: a look at the next one
     * saves a search. */
    fv__str next = fv__vocab_str(&m->vocab, m->made + 1);
    int32_t id = m->made + 1;
    if (!next.s || next.n != n || memcmp(next.s, joined, n))
        id = fv__vocab_id(&m->vocab, joined, n);
    if (ia < 0 || ib < 0) return "one of its halves is not in the vocabulary";
    if (id < 0) return "what it makes is not in the vocabulary";
    m->made = id;
    m->pairs[i][0] = ia;
    m->pairs[i][1] = ib;
    fv__merge_put(m, ia, ib, i, id);
    m->n_pairs = i + 1;
    return NULL;
}

static fv_status load_merges(fv__model *m, fv__pool *p, fv__jval v, fv_err *e)
{
    if (fv__json_kind(v) != '[') return fv__json_bad(v, e, "an array was expected");
    int64_t n = 0;
    size_t longest = 0, last = 0;
    /* Halves are unescaped into a buffer of the longest merge, so one pass measures before the
     * table is made.
     * the text of one reaches to the next at most */
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it); n++) {
        if (n && it.value - last > longest) longest = it.value - last;
        last = it.value;
    }
    if (n && fv__json_size((fv__jval){.j = v.j, .at = last}) > longest)
        longest = fv__json_size((fv__jval){.j = v.j, .at = last});
    if (n > INT32_MAX / 4) return fv__json_bad(v, e, "%lld merges are too many", (long long)n);
    /* Two halves and what they join to: unescaping never makes a string longer. */
    char *buf = fv__merge_table(m, p, (int32_t)n) ? fv__alloc(p->env, 2 * longest + 2) : NULL;
    if (!buf) return no_memory(v, e);
    fv_status st = FV_OK;
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);) {
        fv__str a, b;
        const char *why = "two tokens were expected";
        if (merge_halves((fv__jval){.j = v.j, .at = it.value}, buf, &a, &b))
            why = fv__bpe_add(m, (int32_t)it.index, a, b, buf + longest + 1);
        if (why) st = fv__json_bad(fv__json_item(v, &it), e, "%s", why);
    }
    fv__free(p->env, buf, 2 * longest + 2);
    return st;
}

/* Every option is asked for by name, so fv__json_done can refuse one that is not known here. */
static fv_status load_bpe(fv__model *m, fv__pool *p, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    fv_status st;
    double dropout = 0;
    m->kind = FV__MODEL_BPE;
    if (fv__json_get(&v, o, "dropout") && !fv__json_null(v)) {
        if ((st = fv__json_to_double(&dropout, v, e)) != FV_OK) return st;
        if (dropout != 0)
            return fv__json_bad(v, e, "dropout is not implemented: encoding would be random");
    }
    if (!fv__json_get(&v, o, "vocab")) return fv__json_bad(o->self, e, "\"vocab\" is missing");
    if ((st = fv__json_vocab(&m->vocab, p, v, e)) != FV_OK ||
        (st = find_unknown(m, o, p, true, e)) != FV_OK ||
        (st = fv__json_str(&m->prefix, p, o, "continuing_subword_prefix", false, e)) != FV_OK ||
        (st = fv__json_str(&m->suffix, p, o, "end_of_word_suffix", false, e)) != FV_OK ||
        (st = fv__json_bool(&m->fuse_unk, o, "fuse_unk", false, e)) != FV_OK ||
        (st = fv__json_bool(&m->byte_fallback, o, "byte_fallback", false, e)) != FV_OK ||
        (st = fv__json_bool(&m->ignore_merges, o, "ignore_merges", false, e)) != FV_OK)
        return st;
    if (m->prefix.n > MAX_AFFIX || m->suffix.n > MAX_AFFIX)
        return fv__json_bad(o->self, e,
                            "a prefix or suffix of more than %d bytes is not implemented",
                            MAX_AFFIX);
    if (!fv__json_get(&v, o, "merges")) return fv__json_bad(o->self, e, "\"merges\" is missing");
    return load_merges(m, p, v, e);
}

/* ---- the others ---- */

static fv_status load_wordpiece(fv__model *m, fv__pool *p, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    fv_status st;
    m->kind = FV__MODEL_WORDPIECE;
    /* The default of the reference for files that lack max_input_chars_per_word. */
    m->max_chars = 100;
    if (!fv__json_get(&v, o, "vocab")) return fv__json_bad(o->self, e, "\"vocab\" is missing");
    if ((st = fv__json_vocab(&m->vocab, p, v, e)) != FV_OK ||
        (st = find_unknown(m, o, p, false, e)) != FV_OK ||
        (st = fv__json_str(&m->prefix, p, o, "continuing_subword_prefix", true, e)) != FV_OK ||
        (st = fv__json_int(&m->max_chars, o, "max_input_chars_per_word", 0, INT32_MAX, false, e)) !=
            FV_OK)
        return st;
    return FV_OK;
}

static fv_status load_wordlevel(fv__model *m, fv__pool *p, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    fv_status st;
    m->kind = FV__MODEL_WORDLEVEL;
    if (!fv__json_get(&v, o, "vocab")) return fv__json_bad(o->self, e, "\"vocab\" is missing");
    if ((st = fv__json_vocab(&m->vocab, p, v, e)) != FV_OK) return st;
    return find_unknown(m, o, p, false, e);
}

/* [["piece", score], ...]
 * The id of a piece is its index; scores are natural logarithms of probabilities. */
static fv_status load_scored(fv__model *m, fv__pool *p, fv__jval v, fv_err *e)
{
    if (fv__json_kind(v) != '[')
        return fv__json_bad(v, e, "an array of pieces and scores was expected");
    int64_t n = fv__json_count(v);
    size_t size = fv__json_size(v);
    if (n > INT32_MAX / 4) return fv__json_bad(v, e, "%lld pieces are too many", (long long)n);
    char *buf = fv__alloc(p->env, size);
    m->scores = fv__pool_array(p, (size_t)n, sizeof *m->scores);
    bool ok = buf && m->scores && fv__vocab_init(&m->vocab, p, n, n, size);
    fv_status st = ok ? FV_OK : no_memory(v, e);
    for (fv__jiter it = fv__json_iter(v); st == FV_OK && fv__json_next(&it);) {
        fv__jval item = {.j = v.j, .at = it.value};
        fv__jiter two = fv__json_iter(item);
        if (fv__json_kind(item) != '[' || !fv__json_next(&two) || v.j->s[two.value] != '"') {
            st = fv__json_bad(fv__json_item(v, &it), e, "[\"piece\", score] was expected");
            break;
        }
        fv__str raw = fv__json_raw((fv__jval){.j = v.j, .at = two.value});
        size_t len = fv__json_unescape(buf, raw.s, raw.n);
        if (!fv__json_next(&two)) {
            st = fv__json_bad(fv__json_item(v, &it), e, "a score was expected");
            break;
        }
        fv__jval score = {.j = v.j, .at = two.value};
        /* fv__json_score rounds as the reference's parser does: ties of paths depend on the last
         * bit. */
        if (fv__json_kind(score) == '0')
            m->scores[it.index] = fv__json_score(v.j->s + score.at, fv__json_size(score));
        if (fv__json_kind(score) != '0' || !isfinite(m->scores[it.index]))
            st = fv__json_bad(fv__json_item(v, &it), e, "its score is no finite number");
        if (st == FV_OK && fv__json_next(&two))
            st = fv__json_bad(fv__json_item(v, &it), e, "[\"piece\", score] was expected");
        if (st == FV_OK) st = put_token(&m->vocab, buf, len, it.index, &v, e);
    }
    fv__free(p->env, buf, size);
    return st;
}

static fv_status load_unigram(fv__model *m, fv__pool *p, fv__jobj *o, fv_err *e)
{
    fv__jval v;
    fv_status st;
    int64_t unk = -1;
    m->kind = FV__MODEL_UNIGRAM;
    if (!fv__json_get(&v, o, "vocab")) return fv__json_bad(o->self, e, "\"vocab\" is missing");
    if ((st = load_scored(m, p, v, e)) != FV_OK ||
        (st = fv__json_int(&unk, o, "unk_id", 0, m->vocab.size - 1, false, e)) != FV_OK ||
        (st = fv__json_bool(&m->byte_fallback, o, "byte_fallback", false, e)) != FV_OK)
        return st;
    m->unk = (int32_t)unk;
    return FV_OK;
}

/* Older files name no type; the fields tell. */
static const char *guess(fv__jobj *o)
{
    for (int i = 0; i < o->n; i++) {
        fv__str key = {o->self.j->s + o->m[i].key, o->m[i].key_end - o->m[i].key};
        if (fv__str_is(key, "merges")) return "BPE";
        if (fv__str_is(key, "max_input_chars_per_word")) return "WordPiece";
        if (fv__str_is(key, "unk_id")) return "Unigram";
    }
    return "WordLevel";
}

/* Old files do not name their model: its members show which it is. */
fv_status fv__load_model(fv_tok *t, fv__jval v, fv_err *e)
{
    fv__jobj o;
    fv__str type = {0};
    fv_status st = fv__json_object(&o, v, e);
    if (st == FV_OK) st = fv__json_str(&type, &t->pool, &o, "type", false, e);
    if (st != FV_OK) return st;
    if (!type.s) type = (fv__str){guess(&o), strlen(guess(&o))};
    fv__model *m = &t->model;
    if (fv__str_is(type, "BPE"))
        st = load_bpe(m, &t->pool, &o, e);
    else if (fv__str_is(type, "WordPiece"))
        st = load_wordpiece(m, &t->pool, &o, e);
    else if (fv__str_is(type, "Unigram"))
        st = load_unigram(m, &t->pool, &o, e);
    else if (fv__str_is(type, "WordLevel"))
        st = load_wordlevel(m, &t->pool, &o, e);
    else
        st = fv__json_bad(
            v, e, "type \"%.60s\" is not implemented (BPE, WordPiece, Unigram, WordLevel are)",
            type.s);
    return st == FV_OK ? fv__json_done(&o, e) : st;
}
