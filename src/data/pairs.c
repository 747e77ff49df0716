/* pairs.c - parallel sentences as token ids, and their feed.
 *
 * Every sentence is encoded once, when the file is read; ids of one side lie one after another with
 * an index of where each sentence begins.  A pair of which one side is left out is left out
 * whole. */
#include "data/records.h"

/* Ids of all sentences of one side, one after another. */
typedef struct side {
    int32_t *ids;
    int64_t *at; /* where each begins, and one more */
    size_t ids_bytes, at_bytes;
    int64_t n_ids;
} side;

struct fv_pairs {
    const fv_env *env;
    side side[2];
    int64_t n;
    fv_buf texts; /* targets as they were, each ending in NUL */
    size_t *text_at;
    size_t text_bytes;
};

/* A reading under way. */
typedef struct filling {
    fv_pairs *p;
    fv_encoding *enc;
    const fv_pairs_opt *opt;
} filling;

static fv_status no_memory(const fv__reading *r, const fv_pairs *p)
{
    return fv_fail(r->e, FV_ENOMEM, "pairs: out of memory after %lld", (long long)p->n);
}

/* Space for so many more ids, and for the index of pair n. */
static bool grow(const fv_env *env, side *s, int64_t ids, int64_t n)
{
    void *a = s->ids, *b = s->at;
    bool ok = fv__grow(env, &a, &s->ids_bytes, (size_t)(s->n_ids + ids) * sizeof *s->ids);
    s->ids = a;
    ok = fv__grow(env, &b, &s->at_bytes, (size_t)(n + 2) * sizeof *s->at) && ok;
    s->at = b;
    return ok;
}

/* Encodes one side behind the last pair; it counts only once both sides are there, so a pair
 * that is left out is simply overwritten.  *len 0: left out. */
static fv_status encode(fv__reading *r, const fv__record *rec, int which, int64_t *len)
{
    const filling *f = r->user;
    side *s = &f->p->side[which];
    bool end = f->opt->eos >= 0;
    fv_tok_opts how = {.specials = !end, .as_target = which == 1};
    fv_status st = fv_tok_encode(f->enc, rec->text[which].s, rec->text[which].n, how, r->e);
    if (st) return st;
    *len = f->enc->n + end;
    if (*len > fv__records_most(r) && ((st = fv__records_long(r, rec, which, *len, len)) || !*len))
        return st;
    if (!grow(f->p->env, s, *len, f->p->n)) return no_memory(r, f->p);
    memcpy(s->ids + s->n_ids, f->enc->ids, (size_t)(*len - end) * sizeof *s->ids);
    if (end) s->ids[s->n_ids + *len - 1] = f->opt->eos;
    return FV_OK;
}

/* The target as it stands in the file: what BLEU compares with. */
static fv_status keep_text(fv__reading *r, fv_pairs *p, fv__span text)
{
    void *at = p->text_at;
    if (!fv__grow(p->env, &at, &p->text_bytes, (size_t)(p->n + 1) * sizeof *p->text_at))
        return no_memory(r, p);
    p->text_at = at;
    p->text_at[p->n] = p->texts.len;
    fv__buf_add(&p->texts, text.s, text.n);
    fv__buf_add(&p->texts, "", 1);
    return p->texts.failed ? no_memory(r, p) : FV_OK;
}

/* Both sides are encoded before either is kept: a record that is too long on one side is left out
 * whole. */
static fv_status add(fv__reading *r, const fv__record *rec)
{
    const filling *f = r->user;
    fv_pairs *p = f->p;
    int64_t len[2];
    for (int i = 0; i < 2; i++) {
        fv_status st = encode(r, rec, i, &len[i]);
        if (st || !len[i]) return st;
    }
    fv_status st = f->opt->keep_texts ? keep_text(r, p, rec->text[1]) : FV_OK;
    if (st) return st;
    for (int i = 0; i < 2; i++) {
        p->side[i].n_ids += len[i];
        p->side[i].at[p->n + 1] = p->side[i].n_ids;
        r->report->tokens[i] += len[i];
    }
    p->n++;
    r->report->kept++;
    return FV_OK;
}

/* ---- opening ---- */

static fv__reading pairs_of(const fv_env *env, filling *f, fv_data_report *report, fv_err *e)
{
    return (fv__reading){.env = env,
                         .from = &f->opt->from,
                         .n_texts = 2,
                         .each = add,
                         .user = f,
                         .report = report,
                         .e = e};
}

/* Every way of opening: an empty fv_pairs and an encoder. */
static fv_status begin(fv__reading *r, filling *f, const fv_tok *tok)
{
    *r->report = (fv_data_report){0};
    f->p = fv__alloc(r->env, sizeof *f->p);
    if (!f->p) return fv_fail(r->e, FV_ENOMEM, "pairs: out of memory");
    f->p->env = f->p->texts.env = r->env;
    for (int i = 0; i < 2; i++)
        if (!grow(r->env, &f->p->side[i], 1, 0)) return no_memory(r, f->p);
    return fv_encoding_new(&f->enc, tok, r->e);
}

/* ... and what is left to do after reading, whether or not it failed. */
static fv_status end(fv__reading *r, filling *f, fv_pairs **out, fv_status st)
{
    fv_encoding_free(f->enc);
    if (!st && !f->p->n)
        st = fv_fail(r->e, FV_EFORMAT, "%s: none of %lld pairs can be used%s%s",
                     r->from->file ? r->from->file : "pairs", (long long)r->report->records,
                     r->noted ? "; the first: " : "", r->noted ? r->report->first[0] : "");
    if (st)
        fv_pairs_close(f->p);
    else
        *out = f->p;
    return st;
}

fv_status fv_pairs_open(fv_pairs **out, const fv_env *env, const fv_tok *tok, fv_pairs_opt opt,
                        fv_data_report *report, fv_err *e)
{
    fv_data_report unread;
    filling f = {.opt = &opt};
    fv__reading r = pairs_of(env, &f, report ? report : &unread, e);
    *out = NULL;
    fv_status st = begin(&r, &f, tok);
    if (!st) st = fv__records_read(&r);
    return end(&r, &f, out, st);
}

/* Records from memory go through the same checks as those of a file; messages call the sides
 * "source" and "target". */
fv_status fv_pairs_make(fv_pairs **out, const fv_env *env, const fv_tok *tok,
                        const char *const *source, const char *const *target, int64_t n,
                        fv_pairs_opt opt, fv_data_report *report, fv_err *e)
{
    fv_data_report unread;
    filling f = {.opt = &opt};
    fv__reading r = pairs_of(env, &f, report ? report : &unread, e);
    *out = NULL;
    fv_status st = begin(&r, &f, tok);
    for (int64_t i = 0; !st && i < n && !(opt.from.most && r.report->kept >= opt.from.most); i++) {
        fv__record rec = {.text = {{source[i], strlen(source[i])}, {target[i], strlen(target[i])}},
                          .file = {"source", "target"},
                          .line = i + 1};
        st = fv__records_give(&r, &rec);
    }
    return end(&r, &f, out, st);
}

void fv_pairs_close(fv_pairs *p)
{
    if (!p) return;
    for (int i = 0; i < 2; i++) {
        fv__free(p->env, p->side[i].ids, p->side[i].ids_bytes);
        fv__free(p->env, p->side[i].at, p->side[i].at_bytes);
    }
    fv__buf_free(&p->texts);
    fv__free(p->env, p->text_at, p->text_bytes);
    fv__free(p->env, p, sizeof *p);
}

int64_t fv_pairs_count(const fv_pairs *p) { return p->n; }

static const int32_t *ids_of(const side *s, int64_t i, int64_t *n)
{
    *n = s->at[i + 1] - s->at[i];
    return s->ids + s->at[i];
}

const int32_t *fv_pairs_source(const fv_pairs *p, int64_t i, int64_t *n)
{
    return ids_of(&p->side[0], i, n);
}
const int32_t *fv_pairs_target(const fv_pairs *p, int64_t i, int64_t *n)
{
    return ids_of(&p->side[1], i, n);
}
const char *fv_pairs_text(const fv_pairs *p, int64_t i)
{
    return p->text_at ? p->texts.data + p->text_at[i] : NULL;
}

/* ---- the feed ---- */

typedef struct pairs_feed {
    const fv_env *env;
    fv_pairs *p;
    int32_t pad, start;
    bool own;
} pairs_feed;

/* Tokens of the longest of the rows: the padded length. */
static int64_t longest(const fv_pairs *p, int which, const int32_t *rows, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        ids_of(&p->side[which], rows[i], &len);
        if (len > most) most = len;
    }
    return most;
}

/* Teacher forcing: the decoder reads start, y0 .. yN-1 and predicts y0 .. yN; padding is -100 in
 * labels, which no loss counts, and masked in the source. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const pairs_feed *f = self;
    (void)how;
    int64_t s = longest(f->p, 0, rows, n), t = longest(f->p, 1, rows, n);
    int32_t *source = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, s));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, s));
    int32_t *input = fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, t));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, t));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        const int32_t *ids = fv_pairs_source(f->p, rows[i], &len);
        for (int64_t j = 0; j < s; j++) {
            source[i * s + j] = j < len ? ids[j] : f->pad;
            mask[i * s + j] = j < len;
        }
        ids = fv_pairs_target(f->p, rows[i], &len);
        for (int64_t j = 0; j < t; j++) {
            input[i * t + j] = j == 0 ? f->start : j <= len ? ids[j - 1] : f->pad;
            label[i * t + j] = j < len ? ids[j] : -100;
        }
        out->labels += (double)len;
    }
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const pairs_feed *)self)->p->n;
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const pairs_feed *f = self;
    fv_pairs_source(f->p, i, source);
    fv_pairs_target(f->p, i, target);
}

static void close_feed(void *self)
{
    pairs_feed *f = self;
    const fv_env *env = f->env;
    if (f->own) fv_pairs_close(f->p);
    fv__free(env, f, sizeof *f);
}

const fv_pairs *fv_feed_pairs_of(const fv_feed *f)
{
    return f->self ? ((const pairs_feed *)f->self)->p : NULL;
}

fv_status fv_feed_pairs(fv_feed *out, fv_pairs *p, int32_t pad, int32_t start, bool own, fv_err *e)
{
    pairs_feed *f = fv__alloc(p->env, sizeof *f);
    *out = (fv_feed){0};
    if (!f) return fv_fail(e, FV_ENOMEM, "pairs: out of memory");
    *f = (pairs_feed){.env = p->env, .p = p, .pad = pad, .start = start, .own = own};
    *out = (fv_feed){.self = f, .count = count, .size = size, .make = make, .close = close_feed};
    return FV_OK;
}
