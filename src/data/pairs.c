/* pairs.c - parallel sentences as token ids, and their feed.
 *
 * Every sentence is encoded once, when the file is read; ids of one side lie one after another with
 * an index of where each sentence begins.  A pair of which one side is left out is left out
 * whole.
 *
 * With BPE-dropout (Provilkov et al. 2020) texts are kept too, and a batch of training encodes its
 * own anew.  Draws are by (seed, epoch, pair, side), so a batch has the same bits whichever thread
 * makes it; batches are planned by the lengths without dropout, and grow a little. */
#include "data/dice.h"
#include "data/records.h"

/* Ids of all sentences of one side, one after another. */
typedef struct side {
    int32_t *ids;
    int64_t *at; /* where each begins, and one more */
    size_t ids_bytes, at_bytes;
    int64_t n_ids;
    fv_buf texts; /* as they were, each ending in NUL; of targets, or with dropout of both */
    size_t *text_at;
    size_t text_bytes;
} side;

struct fv_pairs {
    const fv_env *env;
    side side[2];
    int64_t n;
    const fv_tok *tok;
    int32_t eos;   /* behind each side; -1: the tokenizer's own */
    float dropout; /* of merges, in training */
    int64_t most;  /* tokens of a side */
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

static fv_tok_opts how_to_encode(const fv_pairs *p, int which)
{
    return (fv_tok_opts){.specials = p->eos < 0, .as_target = which == 1};
}

/* The first len ids behind those of side s, the end token as the last of them where one is added;
 * n_ids is as before. */
static void put_ids(const fv_pairs *p, side *s, const int32_t *ids, int64_t len)
{
    bool end = p->eos >= 0;
    memcpy(s->ids + s->n_ids, ids, (size_t)(len - end) * sizeof *s->ids);
    if (end) s->ids[s->n_ids + len - 1] = p->eos;
}

/* Encodes one side behind the last pair; it counts only once both sides are there, so a pair
 * that is left out is simply overwritten.  *len 0: left out. */
static fv_status encode(fv__reading *r, const fv__record *rec, int which, int64_t *len)
{
    const filling *f = r->user;
    side *s = &f->p->side[which];
    fv_status st = fv_tok_encode(f->enc, rec->text[which].s, rec->text[which].n,
                                 how_to_encode(f->p, which), r->e);
    if (st) return st;
    *len = f->enc->n + (f->p->eos >= 0);
    if (*len > fv__records_most(r) && ((st = fv__records_long(r, rec, which, *len, len)) || !*len))
        return st;
    if (!grow(f->p->env, s, *len, f->p->n)) return no_memory(r, f->p);
    put_ids(f->p, s, f->enc->ids, *len);
    return FV_OK;
}

/* The text as it stands in the file: what BLEU compares with, and what dropout encodes again. */
static fv_status keep_text(fv__reading *r, const fv_pairs *p, side *s, fv__span text)
{
    void *at = s->text_at;
    if (!fv__grow(p->env, &at, &s->text_bytes, (size_t)(p->n + 1) * sizeof *s->text_at))
        return no_memory(r, p);
    s->text_at = at;
    s->text_at[p->n] = s->texts.len;
    fv__buf_add(&s->texts, text.s, text.n);
    fv__buf_add(&s->texts, "", 1);
    return s->texts.failed ? no_memory(r, p) : FV_OK;
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
    fv_status st = FV_OK;
    for (int i = 0; !st && i < 2; i++)
        if (p->dropout > 0 || (i == 1 && f->opt->keep_texts))
            st = keep_text(r, p, &p->side[i], rec->text[i]);
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
    *f->p = (fv_pairs){.env = r->env,
                       .tok = tok,
                       .eos = f->opt->eos,
                       .dropout = f->opt->dropout,
                       .most = fv__records_most(r)};
    for (int i = 0; i < 2; i++) {
        f->p->side[i].texts.env = r->env;
        if (!grow(r->env, &f->p->side[i], 1, 0)) return no_memory(r, f->p);
    }
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

static void release(fv_pairs *p)
{
    for (int i = 0; i < 2; i++) {
        side *s = &p->side[i];
        fv__free(p->env, s->ids, s->ids_bytes);
        fv__free(p->env, s->at, s->at_bytes);
        fv__buf_free(&s->texts);
        fv__free(p->env, s->text_at, s->text_bytes);
    }
}

void fv_pairs_close(fv_pairs *p)
{
    if (!p) return;
    release(p);
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
    const side *s = &p->side[1];
    return s->text_at ? s->texts.data + s->text_at[i] : NULL;
}

/* ---- dropout of merges ---- */

/* One side of pair i, encoded with dropout and put behind those that `out` has.  One that would
 * become too long stays as it is without. */
static fv_status draw_side(fv_pairs *out, const fv_pairs *p, fv_encoding *enc, int which, int64_t i,
                           fv_data_rng how, fv_err *e)
{
    const side *s = &p->side[which];
    side *to = &out->side[which];
    size_t at = s->text_at[i], end = i + 1 < p->n ? s->text_at[i + 1] : s->texts.len;
    fv__dice d = fv__dice_of(how, FV__DICE_MERGES, 2 * i + which);
    fv_tok_opts opts = how_to_encode(p, which);
    opts.dropout = p->dropout;
    opts.seed = (uint64_t)fv__dice_word(&d) << 32;
    opts.seed |= fv__dice_word(&d);
    fv_status st = fv_tok_encode(enc, s->texts.data + at, end - at - 1, opts, e);
    if (st) return st;
    int64_t plain, len = enc->n + (p->eos >= 0);
    const int32_t *ids = ids_of(s, i, &plain);
    bool fits = len <= p->most;
    if (!grow(out->env, to, fits ? len : plain, out->n))
        return fv_fail(e, FV_ENOMEM, "pairs: out of memory for a batch");
    if (fits)
        put_ids(p, to, enc->ids, len);
    else
        memcpy(to->ids + to->n_ids, ids, (size_t)plain * sizeof *ids);
    to->n_ids += fits ? len : plain;
    to->at[out->n + 1] = to->n_ids;
    return FV_OK;
}

/* The pairs of a batch of training, which are rows 0 .. n-1 of *out. */
static fv_status draw(fv_pairs *out, const fv_pairs *p, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    fv_encoding *enc;
    *out = (fv_pairs){.env = p->env};
    fv_status st = fv_encoding_new(&enc, p->tok, e);
    for (; !st && out->n < n; out->n++)
        for (int k = 0; !st && k < 2; k++) st = draw_side(out, p, enc, k, rows[out->n], how, e);
    fv_encoding_free(enc);
    return st;
}

/* ---- the feed ---- */

typedef struct pairs_feed {
    const fv_env *env;
    fv_pairs *p;
    int32_t pad, start;
    bool own;
} pairs_feed;

/* Tokens of the longest of the rows: the padded length.  rows NULL: the first n. */
static int64_t longest(const fv_pairs *p, int which, const int32_t *rows, int64_t n)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        ids_of(&p->side[which], rows ? rows[i] : i, &len);
        if (len > most) most = len;
    }
    return most;
}

/* With dropout lengths differ from epoch to epoch: multiples of four let shapes come again, which
 * a device that keeps plans and captured steps by shape needs. */
static int64_t rounded(const fv_pairs *p, int64_t len)
{
    int64_t up = (len + 3) / 4 * 4;
    return up <= p->most ? up : len;
}

/* Teacher forcing: the decoder reads start, y0 .. yN-1 and predicts y0 .. yN; padding is -100 in
 * labels, which no loss counts, and masked in the source. */
static fv_status fill(const pairs_feed *f, fv_batch *out, const fv_pairs *p, const int32_t *rows,
                      int64_t n, fv_err *e)
{
    int64_t s = longest(p, 0, rows, n), t = longest(p, 1, rows, n);
    if (p != f->p) s = rounded(f->p, s), t = rounded(f->p, t);
    int32_t *source = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, s));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, s));
    int32_t *input = fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, t));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, t));
    if (!label) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        int64_t len, row = rows ? rows[i] : i;
        const int32_t *ids = fv_pairs_source(p, row, &len);
        for (int64_t j = 0; j < s; j++) {
            source[i * s + j] = j < len ? ids[j] : f->pad;
            mask[i * s + j] = j < len;
        }
        ids = fv_pairs_target(p, row, &len);
        for (int64_t j = 0; j < t; j++) {
            input[i * t + j] = j == 0 ? f->start : j <= len ? ids[j - 1] : f->pad;
            label[i * t + j] = j < len ? ids[j] : -100;
        }
        out->labels += (double)len;
    }
    return FV_OK;
}

static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const pairs_feed *f = self;
    fv_pairs drawn;
    if (!(f->p->dropout > 0) || how.epoch < 0) return fill(f, out, f->p, rows, n, e);
    fv_status st = draw(&drawn, f->p, rows, n, how, e);
    if (!st) st = fill(f, out, &drawn, NULL, n, e);
    release(&drawn);
    return st;
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
