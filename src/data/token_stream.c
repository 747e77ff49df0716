/* token_stream.c - running text as one sequence of tokens, cut into windows.
 *
 * A plain file is one text, line ends included; each record of a table or JSONL file is a document
 * and ends in the end token.  Windows are adjacent.  Each epoch shifts all of them by the same
 * number of tokens, so that over many epochs every token is seen at every position; an evaluation
 * begins at the first token and covers all of them. */
#include "data/token_stream.h"

/* ---- reading ---- */

typedef struct filling {
    fv__token_stream *r;
    fv_encoding *enc;
    fv_buf text; /* of a plain file */
} filling;

static fv_status no_memory(const fv__reading *rd)
{
    return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

/* Encodes a text behind what is there, and the end token behind it where it is a document. */
static fv_status add_tokens(fv__reading *rd, const filling *f, const char *s, size_t n, bool end)
{
    fv__token_stream *r = f->r;
    fv_status st = fv_tok_encode(f->enc, s, n, (fv_tok_opts){0}, rd->e);
    if (st) return st;
    void *p = r->ids;
    if (!fv__grow(r->env, &p, &r->bytes, (size_t)(r->n + f->enc->n + 1) * sizeof *r->ids))
        return no_memory(rd);
    r->ids = p;
    memcpy(r->ids + r->n, f->enc->ids, (size_t)f->enc->n * sizeof *r->ids);
    r->n += f->enc->n;
    if (end && r->task.eos >= 0) r->ids[r->n++] = r->task.eos;
    return FV_OK;
}

/* A document ends in the end token, so that windows that span two of them can tell. */
static fv_status add_document(fv__reading *rd, const fv__record *rec)
{
    rd->report->kept++;
    return add_tokens(rd, rd->user, rec->text[0].s, rec->text[0].n, true);
}

/* Lines are kept with their ends; an empty one is text like any other. */
static fv_status read_plain(fv__reading *rd, filling *f)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, rd->env, rd->from->file, rd->e);
    for (int64_t i = 0;
         !st && i < fv_textfile_count(t) && !(rd->from->most && rd->report->kept >= rd->from->most);
         i++) {
        size_t n;
        const char *s = fv_textfile_line(t, i, &n);
        size_t bad = fv__utf8_check(s, n);
        rd->report->records++;
        if (bad < n && rd->from->malformed == FV_REFUSE)
            st = fv_fail(rd->e, FV_EFORMAT, "%s:%lld: not UTF-8 at byte %zu", rd->from->file,
                         (long long)i + 1, bad + 1);
        if (bad < n) {
            rd->report->malformed++;
            fv__records_note(rd, rd->from->file, i + 1, "not UTF-8 at byte %zu", bad + 1);
            continue;
        }
        rd->report->kept++;
        fv__buf_add(&f->text, s, n);
        fv__buf_add(&f->text, "\n", 1);
    }
    fv_textfile_close(t);
    if (!st && f->text.failed) st = no_memory(rd);
    if (st) return st;
    /* The part that was asked for, cut where a character begins. */
    const double *part = rd->from->part;
    size_t from = (size_t)(part[0] * (double)f->text.len),
           to = part[1] > 0 ? (size_t)(part[1] * (double)f->text.len) : f->text.len;
    while (from > 0 && from < f->text.len && ((unsigned char)f->text.data[from] & 0xc0) == 0x80)
        from--;
    while (to > from && to < f->text.len && ((unsigned char)f->text.data[to] & 0xc0) == 0x80) to--;
    return add_tokens(rd, f, f->text.data ? f->text.data + from : "", to - from, false);
}

/* Whether records are documents of their own; else the file is one text. */
static bool is_table(const fv_records *from)
{
    fv_format f = fv__records_format(from);
    return f == FV_FORMAT_TSV || f == FV_FORMAT_JSONL || f == FV_FORMAT_FASTA;
}

/* Windows of `width` tokens; shared: each begins with the last token of the one before, which a
 * causal model read but did not predict, so that every token is predicted once. */
fv_status fv__token_stream_open(fv__token_stream **out, const fv_feed_opt *t,
                                const fv_records *from, int64_t width, bool shared,
                                fv_data_report *report, fv_err *e)
{
    *out = NULL;
    fv__token_stream *r = fv__alloc(t->env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *r = (fv__token_stream){.env = t->env, .task = *t, .width = width, .step = width - shared};
    filling f = {.r = r, .text = {.env = t->env}};
    fv__reading rd = {.env = t->env,
                      .from = from,
                      .n_texts = 1,
                      .each = add_document,
                      .user = &f,
                      .report = report,
                      .e = e};
    fv_status st = fv_encoding_new(&f.enc, t->tok, e);
    if (!st) st = is_table(from) ? fv__records_read(&rd) : read_plain(&rd, &f);
    fv_encoding_free(f.enc);
    fv__buf_free(&f.text);
    report->tokens[0] = r->n;
    if (!st && r->n < 2) st = fv_fail(e, FV_EFORMAT, "%s: has no text", from->file);
    if (st)
        fv__token_stream_close(r);
    else
        *out = r;
    return st;
}

void fv__token_stream_close(void *self)
{
    fv__token_stream *r = self;
    if (!r) return;
    fv__free(r->env, r->ids, r->bytes);
    fv__free(r->env, r, sizeof *r);
}

/* ---- windows ---- */

/* In training, the windows that are complete whatever the shift; in an evaluation all of them, the
 * last one shorter. */
int64_t fv__token_stream_count(const void *self, int64_t epoch)
{
    const fv__token_stream *r = self;
    int64_t rest = r->n - (r->width - r->step); /* the first token of all is in no step */
    if (rest <= r->step) return 1;
    return epoch < 0                              ? (rest + r->step - 1) / r->step
           : (rest - (r->step - 1)) / r->step > 0 ? (rest - (r->step - 1)) / r->step
                                                  : 1;
}

void fv__token_stream_size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    (void)i;
    *source = ((const fv__token_stream *)self)->width;
    *target = 0;
}

/* The shift of an epoch is below one step, and never pushes the first window past the end. */
const int32_t *fv__token_stream_window(const fv__token_stream *r, int64_t i, fv_data_rng how,
                                       int64_t *n)
{
    int64_t budget = r->n - r->width, shift = 0;
    if (how.epoch >= 0 && budget > 0) {
        uint32_t w[4];
        fv_philox(w, how.seed, 2, (uint64_t)how.epoch, 0);
        shift = (int64_t)(w[0] % (uint64_t)(budget < r->step ? budget + 1 : r->step));
    }
    int64_t from = i * r->step + shift;
    *n = r->n - from < r->width ? r->n - from : r->width;
    return r->ids + from;
}
