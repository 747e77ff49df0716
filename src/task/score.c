/* score.c - how likely texts are: perplexity and bits per byte.
 *
 * A causal model gives the log-probability of each token behind those before it; a model with an
 * encoder that of a target.  For a model that fills masks (fv__task_score) each token in turn is
 * masked and asked for: the sum over the tokens is the pseudo-log-likelihood (Salazar et al. 2020),
 * and a text of n tokens costs n passes. */
#include <math.h>

#include "task_pipeline.h"

typedef struct asked {
    int64_t text, token; /* which one is hidden */
    int32_t id;          /* and what it is */
    double log_p;
} asked;

/* log softmax of one position in f64: sums of many log-probabilities keep their digits. */
static fv_status score_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    asked *a = (asked *)user + i;
    const float *x = out[0] + a->token * width;
    (void)s, (void)e;
    double top = x[0], total = 0;
    for (int64_t v = 1; v < width; v++) top = (double)x[v] > top ? (double)x[v] : top;
    for (int64_t v = 0; v < width; v++) total += exp((double)x[v] - top);
    a->log_p = (double)x[a->id] - top - log(total);
    return FV_OK;
}

/* *out: as s, but with token j hidden. */
static fv_status hide(fv_task *t, fv_seq *out, const fv_seq *s, int64_t j, fv_err *e)
{
    *out = *s;
    out->ids = fv__task_claim(t, (size_t)s->n * sizeof *out->ids, e);
    if (!out->ids) return FV_ENOMEM;
    memcpy(out->ids, s->ids, (size_t)s->n * sizeof *out->ids);
    out->ids[j] = fv_tok_id(t->tok, t->mask);
    return FV_OK;
}

/* Whether token j of a text is asked for. */
static bool counts(const fv_seq *s, int64_t j, int64_t from)
{
    return !s->special[j] && s->spans[j].to > from;
}

/* Each token that counts makes a copy of its text with that token masked; all copies of all texts
 * run in batches of like length. */
fv_status fv__task_score(fv_task *t, const fv_text *texts, int64_t n, const int64_t *from,
                         double *log_p, int64_t *tokens, fv_err *e)
{
    fv_seq *seqs;
    int64_t all = 0, at = 0;
    fv__task_begin(t);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    for (int64_t i = 0; !st && i < n; all += tokens[i++]) {
        log_p[i] = 0;
        tokens[i] = 0;
        for (int64_t j = 0; j < seqs[i].n; j++)
            tokens[i] += counts(&seqs[i], j, from ? from[i] : -1);
    }
    fv_seq *hidden = st ? NULL : fv__task_claim(t, (size_t)all * sizeof *hidden, e);
    asked *a = st ? NULL : fv__task_claim(t, (size_t)all * sizeof *a, e);
    if (!hidden || !a) return st ? st : FV_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; !st && j < seqs[i].n; j++) {
            if (!counts(&seqs[i], j, from ? from[i] : -1)) continue;
            st = hide(t, &hidden[at], &seqs[i], j, e);
            a[at++] = (asked){.text = i, .token = j, .id = seqs[i].ids[j]};
        }
    fv_wanted w = {.names = {"logits"},
                   .per_token = fv__task_setting(t, "vocab_size"),
                   .fn = score_row,
                   .user = a};
    if (!st) st = fv__task_run(t, hidden, all, &w, e);
    /* in the text's order, whichever ran first */
    for (int64_t i = 0; !st && i < all; i++) log_p[a[i].text] += a[i].log_p;
    return st;
}

/* ---- the task ---- */

typedef struct score_options {
    int64_t window, stride;
} score_options;

static const fv_field options[] = {FV_INT(score_options, window, 0, 0, 1 << 20,
                                          "tokens the model sees at a time; 0: as many as it can"),
                                   FV_INT(score_options, stride, 0, 0, 1 << 20,
                                          "tokens a window moves on by; 0: half a window"),
                                   {0}};

typedef struct total {
    double log_p;
    int64_t tokens, bytes;
} total;

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(total), e);
    return st ? st : fv__open_writer(p, NULL, 1, e);
}

/* text: NULL for the total of all. */
static fv_status put(fv_pipeline *p, const fv_text *text, const total *t, fv_err *e)
{
    fv_buf *b = &p->out;
    double perplexity = exp(-t->log_p / (double)(t->tokens ? t->tokens : 1));
    double bits = (0 - t->log_p) / log(2) / (double)(t->bytes ? t->bytes : 1);
    if (!p->opt.json) {
        fv__buf_fmt(b, "%.4f\t%.4f\t%lld\t", perplexity, bits, (long long)t->tokens);
        fv__buf_add(b, text ? text->s : "all", text ? text->n : 3);
        if (text && text->pair) {
            fv__buf_str(b, "\t");
            fv__buf_add(b, text->pair, text->pair_n);
        }
    } else {
        fv__json_begin(b, '{');
        fv__json_number_at(b, "perplexity", perplexity);
        fv__json_number_at(b, "bits_per_byte", bits);
        fv__json_number_at(b, "log_probability", t->log_p);
        fv__json_int_at(b, "tokens", t->tokens);
        fv__json_int_at(b, "bytes", t->bytes);
        if (text) fv__json_text_at(b, "text", text->s, text->n);
        if (text && text->pair) fv__json_text_at(b, "pair", text->pair, text->pair_n);
        fv__json_end(b, '}');
    }
    fv__buf_str(b, "\n");
    return fv__task_emit(p, e);
}

/* A decoder scores the whole text; an encoder-decoder scores the pair's second part given the
 * first. */
static fv_status score_one(fv_pipeline *p, const fv_text *in, fv_err *e)
{
    const score_options *o = p->options;
    total one = {.bytes = (int64_t)in->n};
    fv_text text = *in;
    fv_status st;
    if (!p->writer.encoder) {
        text = fv__joined(in);
        one.bytes = (int64_t)text.n;
        st = fv__writer_score(&p->writer, &text, o->window, o->stride, &one.log_p, &one.tokens, e);
    } else if (in->pair) {
        one.bytes = (int64_t)in->pair_n;
        st = fv__writer_score_pair(&p->writer, in, &one.log_p, &one.tokens, e);
    } else {
        st = fv_fail(e, FV_EARG, "no tab between source and target");
    }
    if (st) return st;
    fv__task_extra(p, &one, sizeof one);
    return p->opt.whole ? fv__task_emit(p, e) : put(p, &text, &one, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) st = score_one(p, &in[i], e);
    return st;
}

static fv_status add(fv_pipeline *p, const void *extra, size_t n, fv_err *e)
{
    total *all = p->self, one;
    (void)n, (void)e;
    memcpy(&one, extra, sizeof one);
    all->log_p += one.log_p;
    all->tokens += one.tokens;
    all->bytes += one.bytes;
    return FV_OK;
}

static fv_status finish(fv_pipeline *p, fv_err *e) { return put(p, NULL, p->self, e); }

static const fv_task_example examples[] = {
    {"fovea score -m gpt2 < sentences.txt", "perplexity of each line, then of all"},
    {"fovea score -m gpt2 --whole --stride 512 wiki.txt", "a long text by a sliding window"},
    {"fovea score -m gpt2 --whole --dtype q8 wiki.txt", "what eight-bit weights lose"},
    {"fovea score -m t5-small < pairs.tsv", "with an encoder: source, a tab, target"},
    {0}};

const fv_task_kind fv__score_task = {
    .name = "score",
    .summary = "measure how likely texts are: perplexity and bits per byte",
    .about = "Prints for each line of a file or of standard input: perplexity of a token, bits per "
             "byte of text, tokens, the line; and at the end the same for all together.  A text "
             "stands behind the token that texts begin with, where the model has one, so that "
             "every token of it counts.  A text longer than the model's context is read through a "
             "window that moves on by --stride tokens: each token then sees at least a window less "
             "a stride before it.\n\n"
             "For a model with an encoder a line holds source, a tab, and target, whose likelihood "
             "is printed.",
    .examples = examples,
    .options = options,
    .size = sizeof(score_options),
    .pairs = true,
    .aligned = true,
    .open = open_task,
    .run = run,
    .add = add,
    .finish = finish,
    .eval = &fv__eval_perplexity};
