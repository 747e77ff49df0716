/* classify_labels.c - labels that a model was not trained on.
 *
 * An inference model (whose labels include one that begins with "entail") is asked whether "This
 * example is LABEL." follows from the text, as transformers' zero-shot pipeline asks.  A language
 * model is asked how likely LABEL is behind a prompt, which may begin with solved examples; one
 * that fills masks, how likely each token of LABEL is at its position.
 *
 * All three score one record at a time against all labels at once: the labels are the batch.
 * Scores of a record are comparable with each other only; with `many` each is a probability by
 * itself.
 *
 * Entailment needs as many passes as labels; likelihood encodes the prompt once for all
 * (fv_score_continuations). Label length is not normalised for: log-probabilities are sums over
 * tokens, so short labels are favoured. */
#include <math.h>
#include <stdlib.h>
#include <strings.h>

#include "task_pipeline.h"
#include "fovea/author/gen.h"

/* scores: (n, labels), filled row by row. */
typedef fv_status score_fn(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores, fv_err *e);

struct fv_zero_shot {
    fv_pipeline *p;
    const fv_env *env;
    fv_zero_shot_opt opt;
    score_fn *score;
    int entail;          /* which of an inference model's labels is entailment */
    fv_buf *said;        /* a text for each label */
    fv_buf *ids;         /* of each label */
    fv_buf shots;        /* solved examples */
    fv_buf prompt, text; /* ids and text of the prompt */
    /* One for each label, in one block that begins with `said`. */
    const int32_t **at;
    int64_t *len, *from;
    double *log_p;
    fv_text *pairs; /* of one text with each label */
    float *logits;
    size_t logit_bytes;
};

/* In double and with the maximum taken out: log-probabilities of long labels are around -100. */
static void softmax(float *out, const double *x, int n)
{
    double top = x[0], total = 0;
    for (int i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) total += exp(x[i] - top);
    for (int i = 0; i < n; i++) out[i] = (float)(exp(x[i] - top) / total);
}

static fv_status enough(const fv_buf *b, fv_err *e)
{
    return b->failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

/* ---- by entailment ---- */

/* logits: (labels, L) of one text. */
static void score_hypotheses(const fv_zero_shot *z, float *out, const float *logits, int L)
{
    /* contradiction is the label at the other end: MNLI models list entailment first or last. */
    int contra = z->entail == 0 ? L - 1 : 0;
    for (int i = 0; i < z->opt.n; i++) z->log_p[i] = (double)logits[i * L + z->entail];
    /* Single label: softmax over the labels' entailment logits. Several: entailment against
     * contradiction for each, neutral left out, as transformers does. */
    if (!z->opt.many && z->opt.n > 1) {
        softmax(out, z->log_p, z->opt.n);
        return;
    }
    for (int i = 0; i < z->opt.n; i++) {
        float both[2];
        double x[2] = {(double)logits[i * L + contra], z->log_p[i]};
        softmax(both, x, 2);
        out[i] = both[1];
    }
}

/* Yin et al. 2019, as in transformers' zero-shot pipeline: each label makes a hypothesis, and its
 * score is the logit of entailment, over all labels or against contradiction where several may
 * hold. */
static fv_status by_entailment(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores,
                               fv_err *e)
{
    fv_task *t = z->p->task;
    int L = t->labels, labels = z->opt.n;
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        for (int k = 0; k < labels; k++) {
            z->pairs[k] = in[i];
            z->pairs[k].pair = z->said[k].data;
            z->pairs[k].pair_n = z->said[k].len;
        }
        st = fv__task_logits(t, z->pairs, labels, z->logits, e);
        if (!st) score_hypotheses(z, scores + i * labels, z->logits, L);
    }
    return st;
}

/* The label is found by its name, since models disagree about its number; hypotheses are made once.
 */
static fv_status open_entailment(fv_zero_shot *z, fv_err *e)
{
    fv_status st = fv__open_encoder(z->p, FV_JOB_CLASSIFY, e);
    if (st) return st;
    const fv_task *t = z->p->task;
    z->entail = -1;
    for (int i = 0; i < t->labels && z->entail < 0; i++)
        if (!strncasecmp(t->label[i], "entail", 6)) z->entail = i;
    if (z->entail < 0)
        return fv_fail(e, FV_EARG,
                       "%s: none of its labels is entailment, so it cannot judge others",
                       z->p->opt.model);
    z->logit_bytes = (size_t)z->opt.n * (size_t)t->labels * sizeof *z->logits;
    z->logits = fv__alloc(z->env, z->logit_bytes);
    if (!z->logits) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; i < z->opt.n && !st; i++) {
        const char *label = z->opt.labels[i];
        fv__put_template(&z->said[i], z->opt.hypothesis, label, strlen(label));
        st = enough(&z->said[i], e);
    }
    return st;
}

/* ---- by likelihood ---- */

static fv_status encode(fv_zero_shot *z, fv_buf *out, const fv_buf *text, fv_err *e)
{
    out->len = 0;
    fv_status st = enough(text, e);
    return st ? st
              : fv__writer_encode(&z->p->writer, out, text->data ? text->data : "", text->len, e);
}

/* A prompt and each label behind it.  Tokens may join at the seam, so what all of them share is the
 * prompt, and what follows in each is its label. */
static fv_status encode_behind(fv_zero_shot *z, int64_t *shared, fv_err *e)
{
    size_t before = z->text.len;
    fv_status st = encode(z, &z->prompt, &z->text, e);
    *shared = fv__n_ids(&z->prompt);
    for (int i = 0; !st && i < z->opt.n; i++) {
        fv_buf *x = &z->ids[i];
        z->text.len = before;
        fv__buf_str(&z->text, " ");
        fv__buf_str(&z->text, z->opt.labels[i]);
        st = encode(z, x, &z->text, e);
        int64_t same = 0;
        /* At least one token stays for the label, even if all of it agrees with the prompt. */
        while (!st && same < *shared && same < fv__n_ids(x) - 1 &&
               fv__ids(x)[same] == fv__ids(&z->prompt)[same])
            same++;
        /* The minimum over all labels, so that every label is scored from the same prefix. */
        *shared = same;
    }
    for (int i = 0; !st && i < z->opt.n; i++) {
        z->at[i] = fv__ids(&z->ids[i]) + *shared;
        z->len[i] = fv__n_ids(&z->ids[i]) - *shared;
    }
    return !st && *shared < 1 ? fv_fail(e, FV_EARG, "the prompt is empty") : st;
}

/* An encoder reads the prompt, the decoder writes a label. */
static fv_status encode_apart(fv_zero_shot *z, int64_t *n, fv_err *e)
{
    fv_writer *w = &z->p->writer;
    fv_status st = encode(z, &z->prompt, &z->text, e);
    *n = fv__n_ids(&z->prompt);
    for (int i = 0; !st && i < z->opt.n; i++) {
        fv_tok_opts o = {.specials = true, .as_target = true};
        const char *label = z->opt.labels[i];
        z->ids[i].len = 0;
        st = fv_tok_encode(w->enc, label, strlen(label), o, e);
        if (!st) st = fv__ids_add(&z->ids[i], w->enc->ids, w->enc->n, e);
        z->at[i] = fv__ids(&z->ids[i]);
        z->len[i] = fv__n_ids(&z->ids[i]);
    }
    return st;
}

/* The examples, then the text in the same template: what the model is to go on with is the label.
 */
static void begin_prompt(fv_zero_shot *z, const fv_text *text)
{
    z->text.len = 0;
    fv__buf_add(&z->text, z->shots.data ? z->shots.data : "", z->shots.len);
    fv__put_template(&z->text, z->opt.prompt, text->s, text->n);
}

/* log p(label | prompt) of each label, the sum over its tokens; the prompt is read once and its KV
 * cache shared by all labels. */
static fv_status by_likelihood(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores,
                               fv_err *e)
{
    fv_writer *w = &z->p->writer;
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        int64_t prompt = 0;
        begin_prompt(z, &in[i]);
        st = w->encoder ? encode_apart(z, &prompt, e) : encode_behind(z, &prompt, e);
        if (!st)
            st = fv_score_continuations(z->log_p, w->device, w->model, fv__ids(&z->prompt), prompt,
                                        z->at, z->len, z->opt.n, w->gen.start, e);
        if (!st) softmax(scores + i * z->opt.n, z->log_p, z->opt.n);
    }
    return st;
}

/* ---- by filling in ---- */

/* Offsets of fv__task_score are in characters. */
static int64_t characters(const fv_buf *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < b->len; i++) n += ((unsigned char)b->data[i] & 0xC0) != 0x80;
    return n;
}

/* Of a model that fills masks: the label stands in the text, each of its tokens is masked in turn,
 * and its log-probabilities are added up (pseudo-likelihood, Salazar et al. 2020). */
static fv_status fill_in(fv_zero_shot *z, const fv_text *text, float *scores, fv_err *e)
{
    fv_task *t = z->p->task;
    int n = z->opt.n;
    begin_prompt(z, text);
    fv_status st = enough(&z->text, e);
    for (int i = 0; !st && i < n; i++) {
        fv_buf *said = &z->said[i];
        said->len = 0;
        fv__buf_add(said, z->text.data ? z->text.data : "", z->text.len);
        fv__buf_str(said, " ");
        fv__buf_str(said, z->opt.labels[i]);
        z->pairs[i] = (fv_text){.s = said->data, .n = said->len};
        z->from[i] = characters(&z->text) + 1; /* the blank */
        st = enough(said, e);
    }
    if (!st) st = fv__task_score(t, z->pairs, n, z->from, z->log_p, z->len, e);
    for (int i = 0; !st && i < n; i++)
        if (!z->len[i])
            st = fv_fail(e, FV_EARG,
                         "the prompt leaves no room for a label: the model sees %lld tokens",
                         (long long)t->longest);
    if (!st) softmax(scores, z->log_p, n);
    return st;
}

static fv_status by_filling(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) st = fill_in(z, &in[i], scores + i * z->opt.n, e);
    return st;
}

/* ---- solved examples ---- */

/* An example with a label that is not offered would teach the model one it must not give. */
static bool offered(const fv_zero_shot *z, const char *s, size_t n)
{
    for (int i = 0; i < z->opt.n; i++)
        if (strlen(z->opt.labels[i]) == n && !memcmp(z->opt.labels[i], s, n)) return true;
    return false;
}

/* A line of the file is "text TAB label"; a label that is not offered could never be given. */
static fv_status add_shot(fv_zero_shot *z, const fv_line *x, fv_err *e)
{
    const char *file = z->opt.examples;
    if (x->error.code)
        return fv_fail(e, FV_EFORMAT, "%s: line %lld: %s", file, (long long)x->number,
                       x->error.text);
    if (!x->text.pair)
        return fv_fail(e, FV_EFORMAT, "%s: line %lld has no tab between text and label", file,
                       (long long)x->number);
    if (!offered(z, x->text.pair, x->text.pair_n))
        return fv_fail(e, FV_EFORMAT, "%s: line %lld: the label \"%.*s\" is none of --labels", file,
                       (long long)x->number, (int)(x->text.pair_n < 80 ? x->text.pair_n : 80),
                       x->text.pair);
    fv__put_template(&z->shots, z->opt.prompt, x->text.s, x->text.n);
    fv__buf_str(&z->shots, " ");
    fv__buf_add(&z->shots, x->text.pair, x->text.pair_n);
    fv__buf_str(&z->shots, "\n\n");
    return enough(&z->shots, e);
}

/* text, a tab, its label: each as the prompt puts it, solved. */
static fv_status read_shots(fv_zero_shot *z, fv_err *e)
{
    fv_reader *r;
    const fv_line *lines;
    int64_t n = 0;
    if (!z->opt.examples[0]) return FV_OK;
    fv_status st = fv_reader_open(&r, z->env, z->opt.examples, (fv_reader_opt){.pairs = true}, e);
    if (st) return st;
    do {
        st = fv_reader_next(r, 1024, &lines, &n, e);
        for (int64_t i = 0; i < n && !st; i++) st = add_shot(z, &lines[i], e);
    } while (n && !st);
    fv_reader_close(r);
    return st;
}

/* ---- opening ---- */

/* What the head computes decides how labels are scored: entailment, filling masks, or writing on.
 */
static fv_status open_model(fv_zero_shot *z, fv_err *e)
{
    fv_head_job job = fv__head_job(z->p->opt.model, NULL, 0);
    if (job == FV_HEAD_CLASSIFY) {
        z->score = by_entailment;
        return open_entailment(z, e);
    }
    bool masked = job == FV_HEAD_MASKED_LM;
    z->score = masked ? by_filling : by_likelihood;
    fv_status st = read_shots(z, e);
    if (st) return st;
    return masked ? fv__open_encoder(z->p, FV_JOB_FILL, e) : fv__open_writer(z->p, NULL, 1, e);
}

static size_t each_label(void)
{
    return 2 * sizeof(fv_buf) + sizeof(void *) + 2 * sizeof(int64_t) + sizeof(double) +
           sizeof(fv_text);
}

/* Arrays of one entry a label share an allocation, in the order of their alignment. */
fv_status fv__zero_shot_open(fv_zero_shot **out, fv_pipeline *p, fv_zero_shot_opt opt, fv_err *e)
{
    size_t n = (size_t)opt.n;
    fv_zero_shot *z = *out = fv__alloc(&p->env, sizeof *z);
    if (!z) return fv_fail(e, FV_ENOMEM, "out of memory");
    *z = (fv_zero_shot){.p = p, .env = &p->env, .opt = opt};
    z->said = fv__alloc(z->env, n * each_label());
    /* Freed by fv__zero_shot_close, which the caller runs in any case. */
    if (!z->said) return fv_fail(e, FV_ENOMEM, "out of memory for %zu labels", n);
    z->ids = z->said + n;
    z->at = (const int32_t **)(void *)(z->ids + n);
    z->len = (int64_t *)(void *)(z->at + n);
    z->from = z->len + n;
    z->log_p = (double *)(void *)(z->from + n);
    z->pairs = (fv_text *)(void *)(z->log_p + n);
    for (size_t i = 0; i < n; i++) z->said[i].env = z->ids[i].env = z->env;
    z->shots.env = z->prompt.env = z->text.env = z->env;
    return open_model(z, e);
}

void fv__zero_shot_close(fv_zero_shot *z)
{
    if (!z) return;
    for (int i = 0; z->said && i < z->opt.n; i++) {
        fv__buf_free(&z->said[i]);
        fv__buf_free(&z->ids[i]);
    }
    fv__buf_free(&z->shots);
    fv__buf_free(&z->prompt);
    fv__buf_free(&z->text);
    fv__free(z->env, z->logits, z->logit_bytes);
    fv__free(z->env, z->said, (size_t)z->opt.n * each_label());
    fv__free(z->env, z, sizeof *z);
}

fv_status fv__zero_shot_run(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        /* A record with a tab is one text here: the pair's second part is used for the label. */
        fv_text whole = fv__joined(&in[i]);
        st = z->score(z, &whole, 1, scores + i * z->opt.n, e);
    }
    return st;
}
