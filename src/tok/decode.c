/* decode.c - ids to text: the tokens as a list of strings, changed by each step, joined at the
 * end.
 *
 *    ["Hello", "Ġworld"]  -> byte_level ->  ["Hello world"]  -> ..  -> joined
 *
 * A step sees the list, not the joined text, since some depend on boundaries (WordPiece's "##",
 * CTC's repeats).  Strings of a list lie back to back in one buffer: a step costs no allocation a
 * token.
 *
 * The steps and their order are those of the decoder section of tokenizers; what each does to a
 * list of tokens is decode_chain of the reference. A SentencePiece .model has no such section:
 * join_pieces does what its own Decode does.
 *
 * Bytes of a file decide how much text comes out (a Replace may turn one byte into many), so a
 * budget is kept: `most` bounds the text, w->steps the work. Whoever decodes token by token
 * wants stream.c, which holds back bytes of a character that is not complete. */
#include "decode.h"
#include "fovea/author/tok.h"

typedef struct fv__strings list; /* get returns a view, valid until the next string is added */

static void list_end(list *l)
{
    void *p = l->ends;
    if (!fv__grow(l->text.env, &p, &l->cap, (l->n + 1) * sizeof *l->ends)) {
        l->failed = true;
        return;
    }
    l->ends = p;
    l->ends[l->n++] = l->text.len;
}

static void list_add(list *l, const char *s, size_t n)
{
    fv__buf_add(&l->text, s, n);
    list_end(l);
}

static fv__str list_get(const list *l, size_t i)
{
    size_t from = i ? l->ends[i - 1] : 0;
    return (fv__str){l->text.data ? l->text.data + from : "", l->ends[i] - from};
}

/* Its memory serves again. */
static void list_empty(list *l, const fv_env *env)
{
    l->text.env = env;
    l->text.len = l->n = 0;
    l->failed = l->text.failed = false;
}

static void list_free(list *l)
{
    fv__buf_free(&l->text);
    fv__free(l->text.env, l->ends, l->cap);
}

/* ---- pieces of text ---- */

/* s with every `what` as `by`; an empty `what` is nowhere. */
static void put_replaced(fv_buf *out, fv__str s, fv__str what, fv__str by)
{
    while (what.n && s.n >= what.n) {
        const char *hit = memmem(s.s, s.n, what.s, what.n);
        if (!hit) break;
        fv__buf_add(out, s.s, (size_t)(hit - s.s));
        fv__buf_add(out, by.s, by.n);
        s.n -= (size_t)(hit - s.s) + what.n;
        s.s = hit + what.n;
    }
    fv__buf_add(out, s.s, s.n);
}

/* Undoes the spaces that splitting put before punctuation and abbreviations: each rule in turn over
 * the whole string.
 * transformers' clean_up_tokenization: the rules and their order are its own, " do not"
 * included. */
static void put_clean(fv_buf *out, fv__str s)
{
    static const char *const rules[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    fv_buf cur = {.env = out->env}, next = {.env = out->env};
    fv__buf_add(&cur, s.s, s.n);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        next.len = 0;
        put_replaced(&next, (fv__str){cur.data, cur.len},
                     (fv__str){rules[i][0], strlen(rules[i][0])},
                     (fv__str){rules[i][1], strlen(rules[i][1])});
        fv_buf swap = cur;
        cur = next;
        next = swap;
    }
    fv__buf_add(out, cur.data, cur.len);
    if (cur.failed || next.failed) out->failed = true;
    fv__buf_free(&cur);
    fv__buf_free(&next);
}

/* Bytes as UTF-8, ill-formed parts replaced. */
static void put_utf8(fv_buf *out, const char *s, size_t n)
{
    while (n) {
        size_t good = fv__utf8_check(s, n);
        fv__buf_add(out, s, good);
        s += good;
        n -= good;
        if (!n) break;
        size_t skip = fv__utf8_bad(s, n);
        fv__buf_str(out, "\xEF\xBF\xBD");
        s += skip;
        n -= skip;
    }
}

/* ---- steps ---- */

/* Characters that are GPT-2's for bytes become these; a token with any other character stays as it
 * is.
 * Bytes of all tokens are joined before UTF-8 is looked at: a character may be cut between
 * tokens. */
static void byte_level(fv_buf *bytes, list *out, const list *in)
{
    bytes->len = 0;
    for (size_t i = 0; i < in->n; i++) {
        fv__str s = list_get(in, i);
        size_t from = bytes->len;
        uint32_t cp;
        /* A token that has a character outside GPT-2's 256 is an added token in plain text: its
         * bytes are taken as they are, from the start of the token. */
        for (size_t k = 0; k < s.n; k += (size_t)fv__char_at(&cp, s.s + k)) {
            fv__char_at(&cp, s.s + k);
            int b = fv__char_to_byte(cp);
            char c = (char)b;
            if (b < 0) {
                bytes->len = from;
                fv__buf_add(bytes, s.s, s.n);
                break;
            }
            fv__buf_add(bytes, &c, 1);
        }
    }
    put_utf8(&out->text, bytes->data, bytes->len);
    if (bytes->failed) out->failed = true;
    list_end(out);
}

/* "<0x0A>" stands for a byte that no token has. */
static int byte_token(fv__str s)
{
    int v = 0;
    if (s.n != 6 || memcmp(s.s, "<0x", 3) || s.s[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = s.s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Runs of byte tokens become one string if they are UTF-8, else one replacement for each. */
static void byte_fallback(fv_buf *run, list *out, const list *in)
{
    run->len = 0;
    /* One turn more than there are tokens: the empty string at the end closes the last run. */
    for (size_t i = 0; i <= in->n; i++) {
        fv__str s = i < in->n ? list_get(in, i) : (fv__str){"", 0};
        int b = byte_token(s);
        char c = (char)b;
        if (b >= 0) {
            fv__buf_add(run, &c, 1);
            continue;
        }
        if (run->len && fv__utf8_check(run->data, run->len) == run->len)
            list_add(out, run->data, run->len);
        else
            for (size_t k = 0; k < run->len; k++) list_add(out, "\xEF\xBF\xBD", 3);
        run->len = 0;
        if (i < in->n) list_add(out, s.s, s.n);
    }
    if (run->failed) out->failed = true;
}

static void wordpiece(const fv__dec *d, list *out, fv__str s, bool first)
{
    fv_buf buf = {.env = out->text.env};
    /* The first token keeps its "##": there is no word before that it could continue. */
    bool continues = s.n >= d->text.n && !memcmp(s.s, d->text.s, d->text.n);
    if (!first && continues)
        fv__buf_add(&buf, s.s + d->text.n, s.n - d->text.n);
    else {
        if (!first) fv__buf_str(&buf, " ");
        fv__buf_add(&buf, s.s, s.n);
    }
    /* Cleaned token by token, as the reference does, with the leading space already in front: "
     * ." is a token and its space at once. */
    if (d->cleanup)
        put_clean(&out->text, (fv__str){buf.data, buf.len});
    else
        fv__buf_add(&out->text, buf.data, buf.len);
    if (buf.failed) out->failed = true;
    fv__buf_free(&buf);
    list_end(out);
}

/* At most start copies of the character go from the left and stop from the right of every token,
 * not of the whole text. */
static void strip(const fv__dec *d, list *out, fv__str s)
{
    for (int64_t i = 0; i < d->start && s.n >= d->text.n && !memcmp(s.s, d->text.s, d->text.n); i++)
        s.s += d->text.n, s.n -= d->text.n;
    for (int64_t i = 0;
         i < d->stop && s.n >= d->text.n && !memcmp(s.s + s.n - d->text.n, d->text.s, d->text.n);
         i++)
        s.n -= d->text.n;
    list_add(out, s.s, s.n);
}

static bool replace(const fv__dec *d, fv__work *w, list *out, fv__str s)
{
    size_t at = 0, kept = 0, a, b;
    int found = 0;
    uint32_t cp;
    while (at <= s.n && out->text.len <= out->most &&
           (found = fv__pattern_find(&d->pattern, w, s.s, s.n, at, &a, &b)) > 0) {
        /* An empty match directly behind another match is skipped, as Rust's regex iterates. */
        if (a != b || a != kept || !at) {
            fv__buf_add(&out->text, s.s + kept, a - kept);
            fv__buf_add(&out->text, d->text.s, d->text.n);
            kept = b;
        }
        /* After an empty match go on by a whole character, never into the middle of one. */
        at = b > a ? b : b < s.n ? b + (size_t)fv__char_at(&cp, s.s + b) : b + 1;
    }
    fv__buf_add(&out->text, s.s + kept, s.n - kept);
    list_end(out);
    if (out->text.len > out->most) {
        fv_fail(&w->err, FV_EFORMAT, "the tokenizer's decoder makes more than %zu bytes of it",
                out->most);
        return false;
    }
    return found >= 0;
}

/* Repeated tokens are one, and the padding token separates equal neighbours, as connectionist
 * temporal classification writes them. */
static void ctc(const fv__dec *d, list *out, const list *in, size_t i)
{
    fv__str s = list_get(in, i);
    fv_buf buf = {.env = out->text.env}, clean = {.env = out->text.env};
    /* Compared with the token as it was, before the padding is taken out: a a is one a, a <pad>
     * a are two. */
    if (i && fv__str_eq(s, list_get(in, i - 1))) return;
    put_replaced(&buf, s, d->text, (fv__str){"", 0});
    if (d->cleanup) {
        put_clean(&clean, (fv__str){buf.data, buf.len});
        buf.len = 0;
        put_replaced(&buf, (fv__str){clean.data, clean.len}, d->word, (fv__str){" ", 1});
    }
    if (buf.failed || clean.failed) out->failed = true;
    if (buf.len) list_add(out, buf.data, buf.len);
    fv__buf_free(&buf);
    fv__buf_free(&clean);
}

/* Three steps see the whole list, the others one string at a time and its position in the list. */
static bool run_step(const fv__dec *d, fv__decoding *x, list *out, const list *in)
{
    if (d->kind == FV__DEC_BYTE_LEVEL) return byte_level(&x->run, out, in), true;
    if (d->kind == FV__DEC_BYTE_FALLBACK) return byte_fallback(&x->run, out, in), true;
    if (d->kind == FV__DEC_FUSE) return list_add(out, in->text.data, in->text.len), true;
    for (size_t i = 0; i < in->n; i++) {
        fv__str s = list_get(in, i);
        switch (d->kind) {
        case FV__DEC_WORDPIECE: wordpiece(d, out, s, !i); break;
        case FV__DEC_METASPACE:
            /* The first token loses its meta character instead of getting a space: encoding put
             * it there. */
            put_replaced(&out->text, s, d->text,
                         i || d->scheme == FV__NEVER ? (fv__str){" ", 1} : (fv__str){"", 0});
            list_end(out);
            break;
        case FV__DEC_BPE:
            /* The suffix "</w>" ends a word, and the last word of a text gets no space behind
             * it. */
            put_replaced(&out->text, s, d->text,
                         i + 1 < in->n ? (fv__str){" ", 1} : (fv__str){"", 0});
            list_end(out);
            break;
        case FV__DEC_STRIP: strip(d, out, s); break;
        case FV__DEC_REPLACE:
            if (!replace(d, &x->w, out, s)) return false;
            break;
        case FV__DEC_CTC: ctc(d, out, in, i); break;
        default: break;
        }
    }
    return true;
}

/* ---- SentencePiece ---- */

#define META "\xE2\x96\x81"

/* Bytes gather until something else comes; the space that stands before the first piece is taken
 * away. */
static void join_pieces(const fv_tok *t, fv__decoding *x, size_t n)
{
    const fv__model *m = &t->model;
    const fv__str *pieces = x->pieces;
    fv_buf *out = &x->text, *run = &x->run;
    run->len = 0;
    bool at_start = true, space_seen = false;
    for (size_t i = 0; i <= n; i++) {
        int32_t id = i < n ? fv__vocab_id(&m->vocab, pieces[i].s, pieces[i].n) : -1;
        int type = id >= 0 ? t->spm->types[id] : 0;
        if (type == FV__SPM_BYTE) {
            char c = (char)byte_token(pieces[i]);
            fv__buf_add(run, &c, 1);
            continue;
        }
        put_utf8(out, run->data, run->len);
        run->len = 0;
        if (i == n || type == FV__SPM_CONTROL) continue;
        /* Only at the start of the text is a space dropped: control pieces before it write
         * nothing and do not end the start. */
        if (space_seen || out->len) at_start = false;
        space_seen = false;
        fv__str s = pieces[i];
        /* unk_surface is " U+2047 " in most models: the text of an unknown piece is not known
         * any more. */
        if (type == FV__SPM_UNKNOWN) {
            fv__buf_add(out, t->spm->unk_surface.s, t->spm->unk_surface.n);
            continue;
        }
        /* With squeeze encoding removed all leading spaces, so any that is here goes; without it
         * only the one of the dummy prefix does. */
        if (at_start && (t->spm->prefix || t->spm->squeeze) && s.n >= 3 && !memcmp(s.s, META, 3)) {
            s.s += 3, s.n -= 3;
            space_seen = !t->spm->squeeze;
        }
        put_replaced(out, s, (fv__str){META, 3}, (fv__str){" ", 1});
    }
    if (run->failed) out->failed = true;
}

/* As Python's strip(). */
static bool blank(uint32_t cp) { return fv__is_space(cp) || (cp >= 0x1C && cp <= 0x1F); }

static void trim(fv_buf *b)
{
    size_t from = 0, len;
    uint32_t cp;
    while (b->len) {
        size_t at = b->len - 1;
        while (at && (b->data[at] & 0xC0) == 0x80) at--;
        fv__char_at(&cp, b->data + at);
        if (!blank(cp)) break;
        b->len = at;
    }
    for (; from < b->len; from += len) {
        len = (size_t)fv__char_at(&cp, b->data + from);
        if (!blank(cp)) break;
    }
    if (!b->data) return;
    memmove(b->data, b->data + from, b->len - from);
    b->len -= from;
    b->data[b->len] = 0;
}

/* ---- the whole ---- */

/* Ids outside the vocabulary are an error and not dropped: they come from a model with another
 * tokenizer, or with padded embeddings. */
static fv_status collect_pieces(const fv_tok *t, fv__str *out, size_t *n_out, const int32_t *ids,
                                int64_t n, bool skip, fv_err *e)
{
    for (int64_t i = 0; i < n; i++) {
        fv__str s = fv__token_str(t, ids[i]);
        if (!s.s)
            return fv_fail(e, FV_EARG, "id %d at %lld is not in the vocabulary", ids[i],
                           (long long)i);
        if (!skip || !fv_tok_special(t, ids[i])) out[(*n_out)++] = s;
    }
    return FV_OK;
}

/* Two lists in turn, each emptied when the next one is made: memory is twice the text, however
 * many steps a file asks for. */
static fv_status run_steps(const fv_tok *t, fv__decoding *x, size_t n, fv_err *e)
{
    list *cur = &x->list[0], *next = &x->list[1];
    fv__work *w = &x->w;
    bool ok = true;
    list_empty(cur, t->env);
    for (size_t i = 0; i < n; i++) {
        /* no decoder: tokens with spaces between */
        if (!t->has_dec && i) fv__buf_str(&cur->text, " ");
        list_add(cur, x->pieces[i].s, x->pieces[i].n);
    }
    fv__work_limits(w, cur->text.len);
    for (int i = 0; i < t->n_dec && ok && !cur->failed && !cur->text.failed; i++) {
        list_empty(next, t->env);
        next->most = w->most_text;
        /* Charged before the step runs, by the size of its input; a Sequence of a thousand steps
         * ends here. */
        w->steps += cur->text.len * FV__STEPS_PASS;
        ok = fv__within_limits(w) && (!cur->n || run_step(t->dec + i, x, next, cur));
        list *made = next;
        next = cur;
        cur = made;
    }
    fv__buf_add(&x->text, cur->text.data, cur->text.len);
    if (cur->failed || cur->text.failed) x->text.failed = true;
    return ok ? FV_OK : fv_fail(e, w->err.code, "%s", w->err.text);
}

/* What an earlier call has left is forgotten, its failures too. */
static bool begin(const fv_tok *t, fv__decoding *x, int64_t n)
{
    void *pieces = x->pieces;
    bool ok = fv__grow(t->env, &pieces, &x->cap_pieces, ((size_t)n + 1) * sizeof *x->pieces);
    x->pieces = pieces;
    x->w.t = t;
    x->w.env = x->text.env = x->run.env = t->env;
    x->text.len = 0;
    x->text.failed = x->run.failed = false;
    fv__buf_add(&x->text, "", 0); /* so that an empty text is one */
    return ok;
}

fv_status fv__decode_ids(const fv_tok *t, fv__decoding *x, const int32_t *ids, int64_t n,
                         bool skip_specials, fv_err *e)
{
    size_t count = 0;
    if (!begin(t, x, n)) return fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    fv_status st = collect_pieces(t, x->pieces, &count, ids, n, skip_specials, e);
    if (st == FV_OK && t->spm)
        /* Marian writes the target language: its pieces have a normaliser and types of their
         * own. */
        join_pieces(t->target ? t->target : t, x, count);
    else if (st == FV_OK)
        st = run_steps(t, x, count, e);
    /* Marian's Python class strips the decoded text; SentencePiece itself does not. */
    if (st == FV_OK && t->pieces) trim(&x->text);
    if (st == FV_OK && x->text.failed) st = fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    return st;
}

void fv__decoding_free(const fv_tok *t, fv__decoding *x)
{
    fv__pattern_release(&x->w);
    list_free(&x->list[0]);
    list_free(&x->list[1]);
    fv__buf_free(&x->run);
    fv__buf_free(&x->text);
    fv__free(t->env, x->pieces, x->cap_pieces);
}

/* *out is the caller's, to be given back with fv_tok_free_text; NULL on failure. */
fv_status fv_tok_decode(const fv_tok *t, char **out, size_t *out_len, const int32_t *ids, int64_t n,
                        bool skip_specials, fv_err *e)
{
    fv__decoding x = {0};
    *out = NULL;
    *out_len = 0;
    if (n < 0 || (n && !ids)) return fv_fail(e, FV_EARG, "fv_tok_decode: no ids");
    fv_status st = fv__decode_ids(t, &x, ids, n, skip_specials, e);
    /* Callers give back a length, not a capacity: hand over a copy that fits. */
    char *copy = st == FV_OK ? fv__alloc(t->env, x.text.len + 1) : NULL;
    if (st == FV_OK && !copy) st = fv_fail(e, FV_ENOMEM, "out of memory while decoding");
    if (copy) {
        memcpy(copy, x.text.data, x.text.len);
        *out = copy;
        *out_len = x.text.len;
    }
    fv__decoding_free(t, &x);
    return st;
}

void fv_tok_free_text(const fv_tok *t, char *text, size_t len)
{
    if (text) fv__free(t->env, text, len + 1);
}
