/* eval_perplexity.c - how likely a text is to a language model: by token, by word, in bits per
 * character and byte.
 *
 * A causal model reads the whole file as one text; one with an encoder has a source and a target in
 * each record; one that fills masks has a text in each line, and every token of it is masked in
 * turn. */
#include <math.h>

#include "task_pipeline.h"

typedef struct total {
    double log_p, cached; /* cached: with a continuous cache beside the model, where there is one */
    int64_t tokens, words, characters, bytes;
} total;

/* Words are what blanks separate, so that models with different tokenizers can be compared. */
static void add_text(total *t, const char *s, size_t n)
{
    t->bytes += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        bool blank = strchr(" \t\n\v\f\r", s[i]), before = !i || strchr(" \t\n\v\f\r", s[i - 1]);
        t->characters += ((unsigned char)s[i] & 0xC0) != 0x80;
        t->words += !blank && before;
    }
}

/* One long text through a sliding window: each token is predicted once, with as much context as the
 * stride leaves.  Ranks share the windows. */
static fv_status score_file(fv_eval_run *r, fv_writer *w, total *t, fv_err *e)
{
    fv_textfile *text;
    fv_text all = {0};
    fv_status st = fv_textfile_open(&text, &r->env, r->opt->file, e);
    if (st) return st;
    all.s = fv_textfile_all(text, &all.n);
    const fv_eval_opt *o = r->opt;
    fv_score_opt how = {.window = o->window,
                        .stride = o->stride,
                        .cache = {o->cache, o->cache_theta, o->cache_weight, NULL}};
    double log_p[2] = {0, 0};
    st = all.n ? fv__writer_score_ranks(w, &all, how, o->comm, log_p, &t->tokens, e)
               : fv_fail(e, FV_EARG, "%s: no text in it", o->file);
    t->log_p = log_p[0];
    t->cached = log_p[1];
    if (!st) add_text(t, all.s, all.n);
    fv_textfile_close(text);
    return st;
}

/* Records that are scored one by one: of a model with an encoder the pairs of a table, of one that
 * fills masks the lines of a file. */
typedef struct scoring {
    fv_eval_run *r;
    fv_writer *writer;
    fv_table *rows;
    fv_task *task;
    fv_textfile *lines;
    total *t;
} scoring;

typedef struct scored {
    double log_p;
    int64_t tokens;
} scored;

/* What is scored of record i: a target, or a line. */
static const char *text_of(const scoring *s, int64_t i, size_t *n)
{
    return s->rows ? fv_table_text(s->rows, i, 1, n) : fv_textfile_line(s->lines, i, n);
}

static fv_status score_records(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    scoring *s = user;
    fv_status st = FV_OK;
    for (int64_t i = from; !st && i < from + n; i++) {
        scored x = {0, 0};
        fv_text text = {0};
        if (s->rows) {
            text.s = fv_table_text(s->rows, i, 0, &text.n);
            text.pair = text_of(s, i, &text.pair_n);
            st = fv__writer_score_pair(s->writer, &text, &x.log_p, &x.tokens, e);
        } else {
            text.s = text_of(s, i, &text.n);
            if (text.n) st = fv__task_score(s->task, &text, 1, NULL, &x.log_p, &x.tokens, e);
        }
        fv__eval_give(out, &x, sizeof x);
    }
    return st;
}

static fv_status add_record(void *user, int64_t i, const void *result, size_t bytes, fv_err *e)
{
    scoring *s = user;
    const scored *x = result;
    size_t n;
    const char *text = text_of(s, i, &n);
    (void)bytes, (void)e;
    s->t->log_p += x->log_p;
    s->t->tokens += x->tokens;
    add_text(s->t, text, n);
    return FV_OK;
}

/* Of a model with an encoder: log p(target | source), record by record; the source is not counted.
 */
static fv_status score_targets(fv_eval_run *r, fv_writer *w, total *t, fv_err *e)
{
    scoring s = {.r = r, .writer = w, .t = t};
    fv_data_report report = {0};
    fv_records from = fv__eval_records(r);
    fv_status st = fv_table_open(&s.rows, &r->env, &from, 2, &report, e);
    if (st) return st;
    st = fv__eval_slices(r, fv_table_count(s.rows), &(fv_slices){score_records, add_record, 0}, &s,
                         e);
    fv_table_close(s.rows);
    return st;
}

/* Each line is a text of its own; every token is masked in turn (Salazar et al. 2020). */
static fv_status score_masked(fv_eval_run *r, total *t, fv_err *e)
{
    scoring s = {.r = r, .t = t};
    fv_status st = fv__eval_encoder(r, &s.task, FV_JOB_FILL, e);
    if (!st) st = fv_textfile_open(&s.lines, &r->env, r->opt->file, e);
    int64_t n = st ? 0 : fv_textfile_count(s.lines);
    if (!st) st = fv__eval_slices(r, n, &(fv_slices){score_records, add_record, 0}, &s, e);
    fv_textfile_close(s.lines);
    fv_task_close(s.task);
    return st;
}

static fv_status score_written(fv_eval_run *r, total *t, fv_err *e)
{
    fv_writer w;
    fv_status st = fv__eval_writer(r, &w, e);
    if (st) return st;
    if (w.encoder && r->opt->cache > 0)
        st = fv_fail(e, FV_EUSAGE, "--cache: a target is too short to have one");
    else
        st = w.encoder ? score_targets(r, &w, t, e) : score_file(r, &w, t, e);
    fv_writer_close(&w);
    return st;
}

/* perplexity = exp(-log p / tokens); by word the same log p over words. bits = -log2 p over
 * characters or bytes, which needs no tokenizer to be comparable. */
static fv_status report(fv_eval_run *r, const total *t, bool masked, fv_err *e)
{
    fv_buf *b = &r->out;
    if (!t->tokens || !t->words) return fv_fail(e, FV_EARG, "there is nothing to score");
    double by_token = exp(-t->log_p / (double)t->tokens),
           by_word = exp(-t->log_p / (double)t->words);
    double bits = -t->log_p / log(2), by_character = bits / (double)t->characters,
           by_byte = bits / (double)t->bytes;
    if (!r->opt->json) {
        fv__buf_fmt(b, "%s%.4f  a token, of %lld\n",
                    masked ? "pseudo-perplexity  " : "perplexity         ", by_token,
                    (long long)t->tokens);
        fv__buf_fmt(b, "                   %.4f  a word, of %lld\n", by_word, (long long)t->words);
        if (r->opt->cache > 0)
            fv__buf_fmt(b, "with a cache       %.4f  a token, beside the last %lld states\n",
                        exp(-t->cached / (double)t->tokens), (long long)r->opt->cache);
        fv__buf_fmt(b, "bits               %.4f  a character, of %lld\n", by_character,
                    (long long)t->characters);
        fv__buf_fmt(b, "                   %.4f  a byte, of %lld\n", by_byte, (long long)t->bytes);
        return FV_OK;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "perplexity", 10);
    fv__buf_str(b, masked ? ",\"masked\":true" : ",\"masked\":false");
    fv__json_number_at(b, "perplexity", by_token);
    if (r->opt->cache > 0)
        fv__json_number_at(b, "cached_perplexity", exp(-t->cached / (double)t->tokens));
    fv__json_number_at(b, "word_perplexity", by_word);
    fv__json_number_at(b, "bits_per_character", by_character);
    fv__json_number_at(b, "bits_per_byte", by_byte);
    fv__json_number_at(b, "log_probability", t->log_p);
    fv__json_int_at(b, "tokens", t->tokens);
    fv__json_int_at(b, "words", t->words);
    fv__json_int_at(b, "characters", t->characters);
    fv__json_int_at(b, "bytes", t->bytes);
    fv__buf_str(b, "}\n");
    return FV_OK;
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    total t = {0};
    if (!r->opt->file) return fv_fail(e, FV_EUSAGE, "a file of text is needed");
    if (!r->opt->model) return fv_fail(e, FV_EUSAGE, "a model is needed: -m DIR");
    bool masked = fv__head_job(r->opt->model, NULL, 0) == FV_HEAD_MASKED_LM;
    if (masked && r->opt->cache > 0)
        return fv_fail(e, FV_EUSAGE, "--cache: this model reads lines, not running text");
    fv_status st = masked ? score_masked(r, &t, e) : score_written(r, &t, e);
    return st ? st : report(r, &t, masked, e);
}

static const fv_head_job heads[] = {FV_HEAD_CAUSAL_LM, FV_HEAD_MASKED_LM, FV_HEAD_BASE};
const fv_task_eval fv__eval_perplexity = {.name = "perplexity",
                                          .heads = heads,
                                          .no_predictions = true,
                                          .run = run};
