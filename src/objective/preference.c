/* preference.c - the objective of preferences: of two answers to a prompt the better one shall be
 * likelier.
 *
 * Direct preference optimisation (Rafailov et al. 2023): with p the log-probability of an answer
 * under the model, r under the model as it was before training,
 *
 *     loss = -log sigmoid(beta ((p_chosen - p_rejected) - (r_chosen - r_rejected)))
 *
 * ORPO (Hong et al. 2024) needs no reference: with p the mean log-probability of an answer's
 * tokens and odds(p) = p - log(1 - exp(p)),
 *
 *     loss = -p_chosen - beta log sigmoid(odds(p_chosen) - odds(p_rejected))
 *
 * Records are JSON lines (or a table) with a prompt, the chosen and the rejected answer.  What the
 * reference thinks of every pair is computed once before training (prepare) and travels with the
 * batches: the reference model itself need not stay in memory.  A resumed run computes it again
 * from the same directory, with the same bits.
 *
 * Chosen and rejected answers of a pair go through the model in one batch of 2n rows, so both
 * see the same weights and one backward pass covers both.  Only tokens of the answer are
 * counted: labels of the prompt are -100.  A pair's log-probabilities are sums (DPO) or means
 * (ORPO, by answer_tokens).
 *
 * The alternative, a frozen copy of the model beside the trained one, doubles memory and adds a
 * forward pass to every step; r never changes, so it is a table of one float for each pair. */
#include "data/feed_parts.h"
#include "data/ragged.h"
#include "data/records.h"
#include "fovea/author/objective.h"
#include "fovea/author/ops.h"
#include "model/part.h"

typedef struct options {
    int loss;
    float beta;
    char prompt_field[64], chosen_field[64], rejected_field[64];
} options;

enum { DPO, ORPO };
static const char *const losses[] = {"dpo", "orpo", NULL};

/* An answer behind its prompt. */
typedef struct side {
    fv__ragged ids;  /* the prompt, then the answer */
    int32_t *prompt; /* tokens of the prompt */
    int64_t *line;   /* of the record */
    size_t prompt_bytes, line_bytes;
} side;

typedef struct preferences {
    const fv_env *env;
    fv_feed_opt task;
    options opt;
    /* the same records in the same order, which check_pairs verifies by line numbers */
    side side[2];     /* chosen, rejected */
    float *reference; /* r_chosen - r_rejected of each pair; NULL until prepared */
    size_t reference_bytes;
    fv_encoding *enc;
    side *into; /* of the reading under way */
} preferences;

/* ---- reading ---- */

/* The prompt with what the tokenizer puts in front of a text, without what it puts behind. */
static fv_status encode_prompt(preferences *p, fv__span text, fv_buf *ids, int64_t *n, fv_err *e)
{
    fv_status st = fv_tok_encode(p->enc, text.s, text.n, (fv_tok_opts){.specials = true}, e);
    *n = p->enc->n;
    while (!st && *n && p->enc->ids[*n - 1] == p->task.eos) --*n;
    if (!st) fv__buf_add(ids, (const char *)p->enc->ids, (size_t)*n * sizeof(int32_t));
    return st;
}

static fv_status keep(fv__reading *rd, preferences *p, const fv_buf *ids, int64_t prompt,
                      int64_t line)
{
    side *s = p->into;
    int64_t i = s->ids.n;
    void *a = s->prompt, *b = s->line;
    bool ok = fv__grow(p->env, &a, &s->prompt_bytes, (size_t)(i + 1) * sizeof *s->prompt);
    s->prompt = a;
    ok = fv__grow(p->env, &b, &s->line_bytes, (size_t)(i + 1) * sizeof *s->line) && ok;
    s->line = b;
    if (ok) s->prompt[i] = (int32_t)prompt, s->line[i] = line;
    if (!ok || ids->failed ||
        !fv__ragged_add(&s->ids, (const int32_t *)(const void *)ids->data,
                        (int64_t)(ids->len / sizeof(int32_t))))
        return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
    return FV_OK;
}

static fv_status add(fv__reading *rd, const fv__record *rec)
{
    preferences *p = rd->user;
    fv_buf ids = {.env = p->env};
    int64_t prompt = 0, most = fv__records_most(rd);
    fv_status st = encode_prompt(p, rec->text[0], &ids, &prompt, rd->e);
    if (!st) st = fv_tok_encode(p->enc, rec->text[1].s, rec->text[1].n, (fv_tok_opts){0}, rd->e);
    if (!st) fv__buf_add(&ids, (const char *)p->enc->ids, (size_t)p->enc->n * sizeof(int32_t));
    if (!st && p->task.eos >= 0) fv__buf_add(&ids, (const char *)&p->task.eos, sizeof p->task.eos);
    int64_t n = (int64_t)(ids.len / sizeof(int32_t)), left = n;
    if (!st && n > most) st = fv__records_long(rd, rec, 1, n, &left);
    if (!st && left > 0 && left <= prompt)
        st = fv_fail(rd->e, FV_EFORMAT,
                     "%s:%lld: the prompt alone has %lld tokens, and max_len is %lld", rec->file[0],
                     (long long)rec->line, (long long)prompt, (long long)most);
    ids.len = (size_t)left * sizeof(int32_t);
    if (!st && left > 0) st = keep(rd, p, &ids, prompt, rec->line);
    if (!st && left > 0) {
        rd->report->kept++;
        rd->report->tokens[p->into == &p->side[1]] += left;
    }
    fv__buf_free(&ids);
    return st;
}

/* Prompt and one of the answers of every record. */
static fv_status read_side(preferences *p, int which, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv_records some = *from;
    some.field[0] = p->opt.prompt_field;
    some.field[1] = which ? p->opt.rejected_field : p->opt.chosen_field;
    fv__reading rd = {.env = p->env,
                      .from = &some,
                      .n_texts = 2,
                      .each = add,
                      .user = p,
                      .report = report,
                      .e = e};
    p->into = &p->side[which];
    return fv__records_read(&rd);
}

/* A record of which one answer was left out is an error: the pairs would no longer fit. */
static fv_status check_pairs(const preferences *p, const char *file, fv_err *e)
{
    const side *a = &p->side[0], *b = &p->side[1];
    int64_t n = a->ids.n < b->ids.n ? a->ids.n : b->ids.n;
    if (!a->ids.n && !b->ids.n) return fv_fail(e, FV_EFORMAT, "%s: no record can be used", file);
    for (int64_t i = 0; i < n; i++)
        if (a->line[i] != b->line[i])
            return fv_fail(e, FV_EFORMAT, "%s:%lld: one of its two answers cannot be used", file,
                           (long long)(a->line[i] < b->line[i] ? a->line[i] : b->line[i]));
    return a->ids.n == b->ids.n
               ? FV_OK
               : fv_fail(e, FV_EFORMAT, "%s: %lld chosen and %lld rejected answers can be used",
                         file, (long long)a->ids.n, (long long)b->ids.n);
}

/* ---- batches ---- */

/* One row of ids, and as labels the token that follows where it is the answer's. */
static void put_row(const side *s, int64_t row, int64_t T, int32_t pad, int32_t *ids,
                    int32_t *label)
{
    int64_t n;
    const int32_t *from = fv__ragged_row(&s->ids, row, &n);
    for (int64_t t = 0; t < T; t++) {
        ids[t] = t < n ? from[t] : pad;
        /* label t is the token at t+1, so the logits at the prompt's last token predict the
         * answer's first */
        label[t] = t + 1 < n && t + 1 >= s->prompt[row] ? from[t + 1] : -100;
    }
}

/* input_ids and answer_labels (2n,T): the chosen ones, then the rejected ones; answer_tokens (2n):
 * one divided by their number; reference (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const preferences *p = self;
    int64_t T = fv__ragged_longest(&p->side[0].ids, rows, n),
            other = fv__ragged_longest(&p->side[1].ids, rows, n);
    (void)how;
    if (other > T) T = other;
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(2 * n, T)),
            *label = fv_batch_put(out, "answer_labels", FV_I32, FV_SHAPE(2 * n, T));
    float *share = fv_batch_put(out, "answer_tokens", FV_F32, FV_SHAPE(2 * n)),
          *reference = fv_batch_put(out, "reference", FV_F32, FV_SHAPE(n));
    if (!reference) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < 2 * n; i++) {
        const side *s = &p->side[i >= n];
        int64_t row = rows[i % n], len;
        fv__ragged_row(&s->ids, row, &len);
        put_row(s, row, T, p->task.pad, ids + i * T, label + i * T);
        share[i] = 1 / (float)(len - s->prompt[row]);
        out->tokens += (double)len;
    }
    for (int64_t i = 0; i < n; i++) reference[i] = p->reference ? p->reference[rows[i]] : 0;
    out->labels = (double)n;
    return FV_OK;
}

/* ---- the loss ---- */

/* Minus the log-probability of each answer, (2n). */
static fv_tensor *answer_nll(fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out)
{
    fv_items plain = {0};
    fv_items_put(&plain, "input_ids", fv_items_get(in, "input_ids"));
    fv_model_forward(c, m, &plain, out);
    /* (2n,T): a loss for each position, 0 where the label is ignored */
    fv_tensor *rows = fv_cross_entropy(c, fv_items_get(out, "logits"),
                                       fv_items_get(in, "answer_labels"),
                                       (fv_ce_opt){.ignore = -100});
    return fv_sum(c, rows, 1);
}

/* p - log(1 - exp(p)) of p = -nll; a probability of 1 is held just below. */
static fv_tensor *log_odds(fv_ctx *c, fv_tensor *nll)
{
    fv_tensor *p = fv_clamp(c, fv_scale(c, nll, -1), -1e30f, -1e-6f);
    return fv_sub(c, p, fv_log(c, fv_affine(c, fv_exp(c, p), -1, 1)));
}

static void forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                    fv_items *out)
{
    const preferences *p = self;
    int64_t n = fv_len(fv_items_get(in, "reference"));
    fv_tensor *nll = answer_nll(c, m, in, out), *first = NULL, *margin;
    if (p->opt.loss == ORPO) {
        /* answer_tokens holds 1 / length: the mean over the answer's tokens */
        nll = fv_mul(c, nll, fv_items_get(in, "answer_tokens"));
        first = fv_slice(c, nll, 0, 0, n);
        fv_tensor *odds = log_odds(c, nll);
        margin = fv_sub(c, fv_slice(c, odds, 0, 0, n), fv_slice(c, odds, 0, n, 2 * n));
    } else {
        /* nll is -p, so (rejected - chosen) of nll is (chosen - rejected) of p */
        margin = fv_sub(c, fv_slice(c, nll, 0, n, 2 * n), fv_slice(c, nll, 0, 0, n));
        margin = fv_scale(c, fv_sub(c, margin, fv_items_get(in, "reference")), p->opt.beta);
    }
    /* -log sigmoid(z) = softplus(-z) */
    fv_tensor *loss = fv_softplus(c, fv_scale(c, margin, -1));
    if (first) loss = fv_add(c, first, fv_scale(c, loss, p->opt.beta));
    fv_items_put(out, "loss", fv__per_label(c, fv_sum_all(c, loss), in));
    fv_items_put(out, "margin", margin);
}

/* A pair is right where its margin is above zero. */
static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const preferences *p = self;
    fv_tensor *margin = fv_items_get(out, "margin");
    int64_t n = fv_len(margin);
    size_t bytes = (size_t)n * sizeof(float);
    float *host = fv__alloc(p->env, bytes);
    (void)b;
    if (!host) return FV_ENOMEM;
    fv_status st = fv_read(c, margin, host, n);
    for (int64_t i = 0; !st && i < n; i++) *hits += host[i] > 0;
    *of += (double)n;
    fv__free(p->env, host, bytes);
    return st;
}

/* ---- the reference ---- */

enum { PAIRS_AT_ONCE = 4 };

static fv_status reference_of(preferences *p, fv_ctx *c, const fv_model *m, fv_batch *b,
                              const int32_t *rows, int64_t n, fv_err *e)
{
    float nll[2 * PAIRS_AT_ONCE];
    fv_items out = {0};
    fv_batch_clear(b);
    fv_ctx_reset(c, 0);
    /* epoch -1: nothing random, as in an evaluation */
    fv_status st = make(p, b, rows, n, (fv_data_rng){.epoch = -1}, e);
    if (st) return st;
    fv_items in = fv_batch_items(c, b);
    if (fv_read(c, answer_nll(c, m, &in, &out), nll, 2 * n))
        return fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    for (int64_t i = 0; i < n; i++) p->reference[rows[i]] = nll[n + i] - nll[i];
    return FV_OK;
}

static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    preferences *p = self;
    fv_batch b = {.env = p->env};
    fv_ctx *c = NULL;
    int64_t all = p->side[0].ids.n;
    if (p->opt.loss == ORPO) return FV_OK;
    p->reference_bytes = (size_t)all * sizeof *p->reference;
    p->reference = fv__alloc(p->env, p->reference_bytes);
    if (!p->reference) return fv_fail(e, FV_ENOMEM, "preferences: out of memory");
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    for (int64_t i = 0; !st && i < all; i += PAIRS_AT_ONCE) {
        int32_t rows[PAIRS_AT_ONCE];
        int64_t n = all - i < PAIRS_AT_ONCE ? all - i : PAIRS_AT_ONCE;
        for (int64_t k = 0; k < n; k++) rows[k] = (int32_t)(i + k);
        st = reference_of(p, c, m, &b, rows, n, e);
    }
    fv_batch_free(&b);
    fv_ctx_free(c);
    return st;
}

/* ---- the feed ---- */

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const preferences *)self)->side[0].ids.n;
}

/* Both lengths are told: the plan then packs pairs by their longer side. */
static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const preferences *p = self;
    fv__ragged_row(&p->side[0].ids, i, source);
    fv__ragged_row(&p->side[1].ids, i, target);
}

static void close_feed(void *self)
{
    preferences *p = self;
    const fv_env *env = p->env;
    for (int i = 0; i < 2; i++) {
        fv__ragged_free(&p->side[i].ids);
        fv__free(env, p->side[i].prompt, p->side[i].prompt_bytes);
        fv__free(env, p->side[i].line, p->side[i].line_bytes);
    }
    fv__free(env, p->reference, p->reference_bytes);
    fv__free(env, p, sizeof *p);
}

static const fv_feed feed = {.metric = "preference accuracy",
                             .count = count,
                             .size = size,
                             .make = make,
                             .count_correct = count_correct,
                             .forward = forward,
                             .prepare = prepare,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv_data_report second = {0};
    *out = (fv_feed){0};
    preferences *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *p = (preferences){.env = t->env, .task = *t, .opt = *(const options *)t->options};
    p->side[0].ids.env = p->side[1].ids.env = t->env;
    fv_status st = fv_encoding_new(&p->enc, t->tok, e);
    if (!st) st = read_side(p, 0, from, report, e);
    if (!st) st = read_side(p, 1, from, &second, e);
    report->tokens[1] = second.tokens[1];
    fv_encoding_free(p->enc);
    p->enc = NULL;
    if (!st) st = check_pairs(p, from->file, e);
    return fv__feed_give(out, &feed, p, st);
}

static const fv_field keys[] = {
    FV_CHOICE(options, loss, DPO, losses,
              "dpo: against the model as it was before; orpo: without a reference"),
    FV_FLOAT(options, beta, 1e-4, 0.1, 100, "how much the preference weighs"),
    FV_TEXT(options, prompt_field, "prompt", "field with the prompt"),
    FV_TEXT(options, chosen_field, "chosen", "field with the better answer"),
    FV_TEXT(options, rejected_field, "rejected", "field with the worse answer"),
    {0},
};
static const char *const none[] = {NULL};

const fv_objective fv__objective_preference = {
    .name = "preference",
    .help = "the better of two answers shall be likelier (DPO, ORPO)",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "tokenizer",
    .texts = fv_texts_both,
    .head = FV_HEAD_CAUSAL_LM,
    .loss_inputs = none,
    .generates = true,
    .open = open_feed,
};
