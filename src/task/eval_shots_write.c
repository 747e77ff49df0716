/* eval_shots_write.c - few-shot evaluation of texts that a model writes: answers, translations.
 *
 * Contextual calibration of a task that generates (Zhao et al. 2021, section 4): which word the
 * prompt alone prefers to begin with shows behind texts without content.  The probabilities of the
 * first token are divided by the mean of those, the greatest quotient is the first token, and
 * everything behind it is generated as ever.  Only the FIRST_TOKENS likeliest take part, as there,
 * where no more were to be had: the quotient of two tiny probabilities says nothing.
 *
 * The hook sees the logits where they are chosen from, so one generation serves both ways as long
 * as the calibrated token is the one that was chosen anyway; only the other records are written
 * twice. */
#include "eval_shots.h"

#include <math.h>

enum { FIRST_TOKENS = 100 };

/* What the hook does with the logits of a text's first token. */
typedef enum first_job {
    GATHER,   /* adds their probabilities to the prior */
    COMPARE,  /* leaves them, and says whether calibration would choose another */
    CALIBRATE /* divides them by the prior */
} first_job;

typedef struct first_token {
    fv__shots *s;
    first_job job;
    int64_t at;   /* tokens before it; -1: not seen yet */
    double share; /* GATHER: of this text in the mean */
    bool same;    /* COMPARE: the token stays */
    bool failed;  /* out of memory */
} first_token;

/* The k-th largest of x, or the least where there are fewer. */
static float kth_largest(const float *x, int64_t n, int k)
{
    float top[FIRST_TOKENS]; /* descending */
    int kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (kept == k && x[i] <= top[k - 1]) continue;
        int at = kept < k ? kept++ : k - 1;
        for (; at > 0 && top[at - 1] < x[i]; at--) top[at] = top[at - 1];
        top[at] = x[i];
    }
    return kept ? top[kept - 1] : 0;
}

/* log(p[i] / prior[i]) up to a constant; -INFINITY outside of what takes part. */
static float quotient(float logit, float prior, float least)
{
    return logit >= least && logit > -INFINITY ? logit - logf(prior) : -INFINITY;
}

void fv__shots_calibrate(float *logits, const float *prior, int64_t V)
{
    float least = kth_largest(logits, V, FIRST_TOKENS);
    for (int64_t i = 0; i < V; i++) logits[i] = quotient(logits[i], prior[i], least);
}

static bool keeps_token(const float *logits, const float *prior, int64_t V)
{
    float least = kth_largest(logits, V, FIRST_TOKENS), top = -INFINITY;
    int64_t plain = 0, other = 0;
    for (int64_t i = 0; i < V; i++) {
        float q = quotient(logits[i], prior[i], least);
        if (q > top) top = q, other = i;
        if (logits[i] > logits[plain]) plain = i;
    }
    return plain == other;
}

/* prior += share softmax(logits); it begins as 1e-9, so that nothing is divided by 0. */
static void gather(first_token *f, const float *logits, int64_t V)
{
    fv__shots *s = f->s;
    float top = -INFINITY;
    double total = 0;
    if (!s->prior) {
        s->prior_bytes = (size_t)V * sizeof *s->prior;
        s->prior = fv__alloc(&s->r->env, s->prior_bytes);
    }
    f->failed = !s->prior;
    if (f->failed) return;
    for (int64_t i = 0; i < V; i++) top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < V; i++) total += exp((double)(logits[i] - top));
    for (int64_t i = 0; i < V; i++)
        s->prior[i] += (float)(f->share * exp((double)(logits[i] - top)) / total);
}

/* An fv_logits_fn; beams of one text ask several times for the same position. */
static void first_logits(void *user, float *logits, int64_t V, const int32_t *ids, int64_t n)
{
    first_token *f = user;
    (void)ids;
    if (f->at < 0) f->at = n;
    if (f->at != n) return;
    if (f->job == GATHER) gather(f, logits, V);
    if (f->job == COMPARE) f->same = keeps_token(logits, f->s->prior, V);
    if (f->job == CALIBRATE) fv__shots_calibrate(logits, f->s->prior, V);
}

/* ---- writing ---- */

fv_status fv__shots_open_writer(fv__shots *s, fv_err *e)
{
    static char most[] = "64";
    s->setting[0] = (fv_setting){"stop", "\n"};
    s->setting[1] = (fv_setting){"max_new_tokens", most};
    int n = 2;
    for (int i = 0; i < s->r->opt->n_settings && n < 8; i++)
        s->setting[n++] = s->r->opt->settings[i];
    return fv__shots_open_pipeline(s, "generate", n, e);
}

typedef struct taking {
    fv__shots *s;
    fv_eval_texts *out;
    fv_err e;
} taking;

/* "text" of a result, without the blanks around it. */
static bool take_text(void *user, const fv_task_result *x)
{
    taking *t = user;
    fv_json *j = NULL;
    if (x->error) {
        fv_fail(&t->e, x->error->code, "%s", x->error->text);
        return false;
    }
    fv_buf copy = {.env = &t->s->r->env};
    fv__buf_add(&copy, x->text, x->n);
    fv_status st = copy.failed ? FV_ENOMEM
                               : fv_json_parse(&j, &t->s->r->env, copy.data, "result", &t->e);
    const char *text = st ? "" : fv_json_text(j, "text");
    text += strspn(text, " \n");
    size_t n = strcspn(text, "\n");
    while (n && text[n - 1] == ' ') n--;
    if (!st && t->out) fv__eval_texts_add(t->out, text, n, &t->e);
    fv_json_close(j);
    fv__buf_free(&copy);
    return !t->e.code;
}

/* What the model writes behind the prompt of a text, added to out; NULL: it is thrown away. */
static fv_status write_one(fv__shots *s, first_token *f, const char *text, int64_t number,
                           fv_eval_texts *out, fv_err *e)
{
    taking t = {.s = s, .out = out};
    fv_buf b = {.env = &s->r->env};
    fv_gen_opt *gen = &s->pipe->writer.gen;
    fv__shots_prompt(s, &b, text);
    fv_text one = {.s = b.data ? b.data : "", .n = b.len};
    gen->logits = f ? first_logits : NULL;
    gen->logits_user = f;
    if (f) f->at = -1;
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "out of memory")
                            : fv_pipeline_run(s->pipe, &one, 1, number, take_text, &t, e);
    if (!st && t.e.code) st = fv_fail(e, t.e.code, "%s", t.e.text);
    if (!st && f && f->failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
    fv__buf_free(&b);
    return st;
}

/* s->prior, of the examples that stand in front now: one token behind each text without content. */
static fv_status find_prior(fv__shots *s, first_token *f, fv_err *e)
{
    int n = 0;
    int64_t most = s->pipe->writer.gen.max_new_tokens;
    fv_status st = FV_OK;
    for (size_t i = 0; i < s->prior_bytes / sizeof *s->prior; i++) s->prior[i] = 0;
    while (fv__shots_empty[n]) n++;
    f->job = GATHER;
    f->share = 1.0 / n;
    s->pipe->writer.gen.max_new_tokens = 1;
    for (int i = 0; !st && i < n; i++) st = write_one(s, f, fv__shots_empty[i], i + 1, NULL, e);
    s->pipe->writer.gen.max_new_tokens = most;
    for (size_t i = 0; !st && i < s->prior_bytes / sizeof *s->prior; i++) s->prior[i] += 1e-9f;
    return st;
}

/* Plain and, where the recipe asks for it, calibrated.  Sampled tokens are not the likeliest, so
 * of sampled texts nothing can be said without writing them. */
fv_status fv__shots_write(fv__shots *s, fv_eval_texts *plain, fv_eval_texts *calibrated, fv_err *e)
{
    first_token f = {.s = s};
    bool both = s->opt.calibrate, greedy = false;
    fv_status st = fv__eval_texts_new(plain, &s->r->env, s->text.n, e);
    if (!st && both) st = fv__eval_texts_new(calibrated, &s->r->env, s->text.n, e);
    if (!st && both) st = find_prior(s, &f, e);
    if (!st) greedy = !s->pipe->writer.gen.do_sample && s->pipe->writer.gen.num_beams == 1;
    for (int64_t i = 0; !st && i < s->text.n; i++) {
        f.job = COMPARE;
        st = write_one(s, both ? &f : NULL, s->text.at[i], i + 1, plain, e);
        if (st || !both) continue;
        if (greedy && f.same) {
            st = fv__eval_texts_add(calibrated, plain->at[i], plain->len[i], e);
            continue;
        }
        f.job = CALIBRATE;
        st = write_one(s, &f, s->text.at[i], i + 1, calibrated, e);
    }
    return st;
}
