/* post.c - fv_tok_encode: the tokens of one or two texts, cut to length, put into the template,
 * with the offsets asked for.
 *
 *    tokens[0], tokens[1]  -> shorten -> template -> ids, token_types, special, spans, words
 *
 * Offsets are kept as bytes of the clean text until the end, and turned into characters only
 * where they are asked for.
 *
 * What surrounds the texts is a template (json/post.c), also where the file says
 * BertProcessing. Order matters and is the reference's: offsets are set before truncation, so
 * that trimming sees the first token of the text, and special tokens go in last, with an empty
 * span and no word.
 *
 * Memory: one fv__work holds all buffers of a thread, and fv_encoding is its first member.
 * Arrays of a result are valid until the next fv_tok_encode with the same encoding. A tokenizer
 * is const here and shared by all threads. */
#include "work.h"

/* ---- handles ---- */

fv_status fv_encoding_new(fv_encoding **out, const fv_tok *t, fv_err *e)
{
    *out = NULL;
    if (!t) return fv_fail(e, FV_EARG, "no tokenizer was given");
    fv__work *w = fv__alloc(t->env, sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "out of memory for an encoding");
    w->t = t;
    w->env = t->env;
    *out = &w->out;
    return FV_OK;
}

void fv_encoding_free(fv_encoding *enc)
{
    if (!enc) return;
    fv__work *w = (fv__work *)enc;
    const fv_env *env = w->env;
    fv__free(env, w->out.ids, w->cap_ids);
    fv__free(env, w->out.token_types, w->cap_types);
    fv__free(env, w->out.special, w->cap_special);
    fv__free(env, w->spans, w->cap_spans);
    fv__free(env, w->words, w->cap_words);
    fv__text_free(&w->clean);
    for (int i = 0; i < 2; i++) {
        fv__text_free(&w->norm[i]);
        fv__text_free(&w->shift[i]);
        fv__free(env, w->tokens[i].v, w->tokens[i].cap);
    }
    fv__free(env, w->pieces, w->cap_pieces);
    fv__free(env, w->next_pieces, w->cap_next);
    fv__free(env, w->symbols, w->cap_symbols);
    fv__free(env, w->heap, w->cap_heap);
    fv__free(env, w->links, w->cap_links);
    fv__free(env, w->path, w->cap_path);
    fv__free(env, w->cache, FV__CACHE_SLOTS * sizeof *w->cache);
    fv__pattern_release(w);
    fv__free(env, w, sizeof *w);
}

/* ---- offsets ---- */

/* Walks along a text, counting characters; tokens come nearly in order, so steps are short. */
typedef struct ruler {
    const char *s;
    size_t n, byte;
    int64_t chars; /* that start before byte */
} ruler;

static int64_t chars_at(ruler *r, size_t byte)
{
    if (byte > r->n) byte = r->n;
    for (; r->byte < byte; r->byte++) r->chars += (r->s[r->byte] & 0xC0) != 0x80;
    for (; r->byte > byte; r->byte--) r->chars -= (r->s[r->byte - 1] & 0xC0) != 0x80;
    return r->chars;
}

/* Offsets in the text given.  Where that was malformed, characters are those of the replaced text:
 * `clean` has the source of each of its bytes, and is searched for the first that comes from
 * there. */
static int64_t clean_at(const fv__text *clean, uint32_t byte)
{
    size_t lo = 0, hi = clean->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (clean->from[mid] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (int64_t)lo;
}

/* lead and trail are white space at the ends of a token, which ByteLevel's trim_offsets leaves
 * out. */
static void set_spans(fv__work *w, fv__tokens *k, fv_offsets unit)
{
    const fv__post *post = &w->t->post;
    ruler r = {.s = w->clean.s, .n = w->clean.n};
    for (size_t i = 0; i < k->n; i++) {
        fv__token *token = k->v + i;
        int64_t from = token->from, to = token->to;
        if (unit == FV_OFFSETS_CHARS) {
            bool plain = w->clean.identity;
            from = chars_at(&r, plain ? (size_t)from : (size_t)clean_at(&w->clean, token->from));
            to = chars_at(&r, plain ? (size_t)to : (size_t)clean_at(&w->clean, token->to));
        }
        int64_t lead = token->lead, trail = token->trail;
        bool first = i == 0 || from == 0;
        /* it was put there, not cut from the text */
        if (lead == 1 && first && post->trim_prefix_space) lead = 0;
        from = from + lead < to ? from + lead : to;
        if (trail && to >= trail) to = to - trail > from ? to - trail : from;
        token->from = (uint32_t)from;
        token->to = (uint32_t)to;
    }
}

/* ---- length ---- */

/* Tokens that the template adds, texts not counted: what max_len has to leave for them. */
static int64_t added_by(const fv__post *p, bool pair)
{
    int64_t n = 0;
    const fv__template_item *items = pair ? p->pair : p->single;
    for (int i = 0; i < (pair ? p->n_pair : p->n_single); i++)
        if (items[i].sequence < 0) n += p->specials[items[i].special].n;
    return n;
}

/* left: the end of the text stays, as truncation_side = "left" asks (long chats, code). */
static void keep(fv__tokens *k, int64_t n, bool left)
{
    size_t want = (size_t)n;
    if (k->n <= want) return;
    if (left) memmove(k->v, k->v + (k->n - want), want * sizeof *k->v);
    k->n = want;
}

/* Longest first: tokens come off the longer text until both are equal, then off both; computed
 * in one step instead of token by token, with the reference's rounding of an odd budget. */
static fv_status truncate_pair(fv__work *w, int64_t budget, fv_err *e)
{
    fv__tokens *a = &w->tokens[0], *b = &w->tokens[1];
    /* strategy of the file: 0 longest first, 1 only the first, 2 only the second. */
    const fv__truncation *how = &w->t->truncation;
    int64_t na = (int64_t)a->n, nb = (int64_t)b->n, over = na + nb - budget;
    if (over <= 0) return FV_OK;
    if (how->strategy) {
        fv__tokens *k = how->strategy == 1 ? a : b;
        if ((int64_t)k->n <= over)
            return fv_fail(e, FV_EARG,
                           "the %s text is too short to cut %lld tokens from it, as the file's "
                           "truncation asks",
                           how->strategy == 1 ? "first" : "second", (long long)over);
        keep(k, (int64_t)k->n - over, how->left);
        return FV_OK;
    }
    /* The shorter text keeps all it has as long as the longer one alone can make up the
     * difference. */
    int64_t small = na < nb ? na : nb, large = small > budget           ? small
                                               : budget - small > small ? budget - small
                                                                        : small;
    if (small + large > budget) small = budget / 2, large = small + budget % 2;
    keep(a, na <= nb ? small : large, how->left);
    keep(b, na <= nb ? large : small, how->left);
    return FV_OK;
}

static fv_status shorten(fv__work *w, const fv_tok_opts *o, fv_err *e)
{
    int64_t added = o->specials ? added_by(&w->t->post, o->pair != NULL) : 0,
            budget = o->max_len - added;
    if (!o->max_len) return FV_OK;
    if (o->max_len < 0 || budget < 0)
        return fv_fail(e, FV_EARG, "max_len %lld leaves no room for the %lld special tokens",
                       (long long)o->max_len, (long long)added);
    if (o->pair) return truncate_pair(w, budget, e);
    keep(&w->tokens[0], budget, w->t->truncation.left);
    return FV_OK;
}

/* ---- the result ---- */

/* Arrays grow and stay: after the first texts an encoding allocates nothing. */
static bool reserve(fv__work *w, size_t n)
{
    fv_encoding *out = &w->out;
    void *ids = out->ids, *types = out->token_types, *special = out->special, *spans = w->spans,
         *words = w->words;
    bool ok = fv__want(w, &ids, &w->cap_ids, n, sizeof *out->ids) &&
              fv__want(w, &types, &w->cap_types, n, sizeof *out->token_types) &&
              fv__want(w, &special, &w->cap_special, n, 1) &&
              (!w->want || (fv__want(w, &spans, &w->cap_spans, n, sizeof *out->spans) &&
                            fv__want(w, &words, &w->cap_words, n, sizeof *out->words)));
    out->ids = ids;
    out->token_types = types;
    out->special = special;
    w->spans = spans;
    w->words = words;
    out->spans = w->want ? w->spans : NULL;
    out->words = w->want ? w->words : NULL;
    return ok;
}

static void put(fv_encoding *out, int32_t id, int32_t type, bool special, fv_span span,
                int32_t word)
{
    out->ids[out->n] = id;
    out->token_types[out->n] = type;
    out->special[out->n] = special;
    if (out->spans) out->spans[out->n] = span;
    if (out->words) out->words[out->n] = word;
    out->n++;
}

static bool assemble(fv__work *w, const fv_tok_opts *o)
{
    const fv__post *p = &w->t->post;
    const fv__template_item *items = o->pair ? p->pair : p->single;
    int n_items = o->pair ? p->n_pair : p->n_single;
    size_t n = o->specials ? (size_t)added_by(p, o->pair != NULL) : 0;
    for (int i = 0; i < n_items; i++)
        if (items[i].sequence >= 0) n += w->tokens[items[i].sequence].n;
    if (!reserve(w, n)) return false;
    /* Sequences keep their order in the template; specials = false leaves the same template
     * without its special tokens, so type ids of a pair stay 0 and 1. */
    for (int i = 0; i < n_items; i++) {
        const fv__template_item *it = items + i;
        if (it->sequence >= 0) {
            const fv__tokens *k = &w->tokens[it->sequence];
            for (size_t j = 0; j < k->n; j++)
                put(&w->out, k->v[j].id, it->type, false, (fv_span){k->v[j].from, k->v[j].to},
                    (int32_t)k->v[j].word);
        } else if (o->specials) {
            const fv__template_special *s = p->specials + it->special;
            for (int32_t j = 0; j < s->n; j++)
                put(&w->out, s->ids[j], it->type, true, (fv_span){0, 0}, -1);
        }
    }
    return true;
}

static bool encode_one(fv__work *w, const fv_tok_opts *o, int which, const char *text, size_t n)
{
    const fv_tok *t = w->t;
    /* Marian has a second SentencePiece model for the language that is written. */
    const fv_tok *by = o->as_target && t->target ? t->target : t;
    fv__tokens *k = &w->tokens[which];
    int32_t code = -1;
    uint32_t skipped = 0;
    if (t->pieces) { /* a language code in front stands for itself: >>fra<< */
        const char *end = n > 4 && text[0] == '>' && text[1] == '>'
                              ? memmem(text + 2, n - 2, "<<", 2)
                              : NULL;
        if (end) code = fv__vocab_id(t->pieces, text, (size_t)(end + 2 - text));
        if (code >= 0) skipped = (uint32_t)(end + 2 - text), n -= skipped, text += skipped;
    }
    if (!fv__encode_text(by, w, text, n, k)) return false;
    if (w->want) set_spans(w, k, o->offsets);
    if (code < 0) return true;
    void *v = k->v;
    bool ok = fv__want(w, &v, &k->cap, k->n + 1, sizeof *k->v);
    k->v = v;
    if (!ok) return false;
    /* The code goes in front, and the offsets of all others move by its bytes. */
    for (size_t i = k->n++; i; i--) {
        k->v[i] = k->v[i - 1];
        k->v[i].from += skipped;
        k->v[i].to += skipped;
    }
    k->v[0] = (fv__token){.id = code, .to = skipped};
    return true;
}

fv_status fv_tok_encode(fv_encoding *enc, const char *text, size_t len, fv_tok_opts o, fv_err *e)
{
    fv__work *w = (fv__work *)enc;
    if (!enc || (!text && len) || o.offsets > FV_OFFSETS_CHARS)
        return fv_fail(e, FV_EARG, "fv_tok_encode: no encoding, no text, or an unknown unit");
    enc->n = 0;
    w->want = o.offsets != FV_OFFSETS_NONE;
    w->track = w->want;
    /* Metaspace "first" has to know whether a piece starts the original text. */
    for (int i = 0; i < w->t->n_split; i++)
        if (w->t->split[i].kind == FV__METASPACE && w->t->split[i].scheme == FV__FIRST)
            w->track = true;
    w->tokens[1].n = 0;
    bool ok = encode_one(w, &o, 0, text, len) &&
              (!o.pair || encode_one(w, &o, 1, o.pair, o.pair_len));
    fv_status st = ok ? shorten(w, &o, e) : fv_fail(e, w->err.code, "%s", w->err.text);
    if (st == FV_OK && !assemble(w, &o)) st = fv_fail(e, w->err.code, "%s", w->err.text);
    if (st != FV_OK) enc->n = 0;
    return st;
}
