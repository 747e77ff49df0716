/* answer_spans.c - answers that are spans of a context, which may be longer than what the model
 * sees at once.
 *
 * The context is cut into windows that overlap, each behind the whole question.  In a window the
 * score of a span is p(start) p(end), the softmax going over the context's tokens and the first
 * token.  The best spans of each window are widened to whole words; the scores of those that read
 * alike are added, as transformers does. */
#include <math.h>
#include <utf8proc.h>

#include "task.h"

#define MORE(k) (2 * (k) + 10) /* spans kept of a window: widening makes some of them equal */

typedef struct window {
    int64_t text;
    int64_t lead, n; /* tokens before its part of the context, and of it */
    fv_answer *best; /* the first n_best of MORE(k) */
    int64_t n_best;
    float none; /* score of "no answer" */
} window;

typedef struct asking {
    fv_task *t;
    fv_answer_opt opt;
    window *windows;
    fv_seq *seqs;
    int64_t n, capacity;
} asking;

/* ---- windows ---- */

/* Where the context's tokens are in an encoded pair: behind as many that are not special as the
 * question has. */
static fv_status find_context(fv_task *t, const fv_text *x, const fv_seq *all, int64_t *from,
                              int64_t *to, fv_err *e)
{
    fv_status st = fv_tok_encode(t->enc, x->s, x->n, (fv_tok_opts){0}, e);
    if (st) return st;
    int64_t question = t->enc->n, seen = 0;
    *from = *to = all->n;
    for (int64_t i = 0; i < all->n; i++) {
        if (all->special[i] || seen++ < question) continue;
        if (*from == all->n) *from = i;
        *to = i + 1;
    }
    return *from < *to ? FV_OK : fv_fail(e, FV_EARG, "a context is empty");
}

/* The lead, [at, at+n) of the context, and what stands behind it. */
static fv_status cut(fv_task *t, fv_seq *out, const fv_seq *all, int64_t lead, int64_t at,
                     int64_t n, int64_t to, fv_err *e)
{
    int64_t tail = all->n - to, total = lead + n + tail;
    *out = (fv_seq){.n = total};
    out->ids = fv__task_claim(t, (size_t)total * sizeof *out->ids, e);
    out->types = fv__task_claim(t, (size_t)total * sizeof *out->types, e);
    if (!out->ids || !out->types) return FV_ENOMEM;
    for (int64_t i = 0; i < total; i++) {
        int64_t from = i < lead ? i : i < lead + n ? at + i - lead : to + i - lead - n;
        out->ids[i] = all->ids[from];
        out->types[i] = all->types[from];
    }
    out->spans = all->spans + at; /* of its part of the context */
    out->words = all->words + at;
    return FV_OK;
}

/* Memory of a call is claimed from the task and freed with the next call, so what is outgrown is
 * not given back. */
static fv_status add_window(asking *a, int64_t text, const fv_seq *all, int64_t lead, int64_t at,
                            int64_t n, int64_t to, fv_err *e)
{
    if (a->n == a->capacity) {
        int64_t budget = a->capacity * 2 + 16;
        window *windows = fv__task_claim(a->t, (size_t)budget * sizeof *windows, e);
        fv_seq *seqs = fv__task_claim(a->t, (size_t)budget * sizeof *seqs, e);
        if (!windows || !seqs) return FV_ENOMEM;
        if (a->n) memcpy(windows, a->windows, (size_t)a->n * sizeof *windows);
        if (a->n) memcpy(seqs, a->seqs, (size_t)a->n * sizeof *seqs);
        a->windows = windows, a->seqs = seqs, a->capacity = budget;
    }
    window *w = &a->windows[a->n];
    *w = (window){.text = text, .lead = lead, .n = n};
    w->best = fv__task_claim(a->t, (size_t)MORE(a->opt.k) * sizeof *w->best, e);
    fv_status st = w->best ? cut(a->t, &a->seqs[a->n], all, lead, at, n, to, e) : FV_ENOMEM;
    a->n += !st;
    return st;
}

/* The context is cut into windows that overlap by `stride` tokens, each behind the whole question,
 * as in transformers: an answer that one window cuts is whole in the next. */
static fv_status add_windows(asking *a, int64_t text, const fv_text *x, fv_err *e)
{
    fv_seq all;
    int64_t from, to;
    if (!x->pair) return fv_fail(e, FV_EARG, "the question has no context");
    fv_status st = fv__task_encode(a->t, &all, x, 0, e);
    if (!st) st = find_context(a->t, x, &all, &from, &to, e);
    if (st) return st;
    int64_t budget = a->opt.window - from - (all.n - to), stride = a->opt.stride;
    if (budget < 2)
        return fv_fail(e, FV_EARG, "the question takes %lld tokens of a window of %lld",
                       (long long)(a->opt.window - budget), (long long)a->opt.window);
    if (stride >= budget) stride = budget / 2;
    for (int64_t at = from;; at += budget - stride) {
        int64_t n = to - at < budget ? to - at : budget;
        st = add_window(a, text, &all, from, at, n, to, e);
        if (st || at + n >= to) return st;
    }
}

/* ---- spans ---- */

/* Insertion into a short sorted list; of equal scores the first found stays ahead. */
static void keep_best(window *w, int64_t most, fv_answer x)
{
    int64_t i = w->n_best < most ? w->n_best++ : most;
    if (i == most && !(x.score > w->best[--i].score)) return;
    for (; i > 0 && x.score > w->best[i - 1].score; i--) w->best[i] = w->best[i - 1];
    w->best[i] = x;
}

/* Probabilities of the context's tokens, with the first token in the sum; returns that one's. */
static double probabilities(float *p, const float *logits, int64_t lead, int64_t n)
{
    double top = logits[0], total = 0;
    for (int64_t i = 0; i < n; i++)
        top = (double)logits[lead + i] > top ? (double)logits[lead + i] : top;
    for (int64_t i = 0; i < n; i++) total += exp((double)logits[lead + i] - top);
    double first = exp((double)logits[0] - top);
    total += first;
    for (int64_t i = 0; i < n; i++) p[i] = (float)(exp((double)logits[lead + i] - top) / total);
    return first / total;
}

/* from and to are tokens of the window here; words and characters come later. */
static fv_status find_spans(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                            int64_t width, fv_err *e)
{
    asking *a = user;
    window *w = &a->windows[i];
    (void)s, (void)width;
    float *start = fv__task_claim(a->t, (size_t)w->n * sizeof *start, e),
          *end = fv__task_claim(a->t, (size_t)w->n * sizeof *end, e);
    if (!start || !end) return FV_ENOMEM;
    double none = probabilities(start, out[0], w->lead, w->n);
    w->none = (float)(none * probabilities(end, out[1], w->lead, w->n));
    for (int64_t from = 0; from < w->n; from++)
        for (int64_t to = from; to < w->n && to - from < a->opt.longest; to++)
            keep_best(w, MORE(a->opt.k),
                      (fv_answer){
                          .text = w->text, .from = from, .to = to, .score = start[from] * end[to]});
    return FV_OK;
}

/* ---- words ---- */

/* From tokens to the characters of the whole words they are in, as far as the window goes. */
static void widen(const window *w, const fv_seq *s, fv_answer *x)
{
    int64_t from = x->from, to = x->to;
    while (from > 0 && s->words[from - 1] == s->words[x->from]) from--;
    while (to + 1 < w->n && s->words[to + 1] == s->words[x->to]) to++;
    x->from = s->spans[from].from;
    x->to = s->spans[to].to;
}

/* Without regard to case: overlapping windows find the same words again, which are one answer. */
static bool read_alike(const fv_answer *a, const fv_answer *b)
{
    const utf8proc_uint8_t *s = (const utf8proc_uint8_t *)a->s, *t = (const utf8proc_uint8_t *)b->s;
    utf8proc_ssize_t n = (utf8proc_ssize_t)a->n, m = (utf8proc_ssize_t)b->n;
    while (n > 0 && m > 0) {
        utf8proc_int32_t x, y;
        utf8proc_ssize_t i = utf8proc_iterate(s, n, &x), j = utf8proc_iterate(t, m, &y);
        /* malformed: only the same bytes are alike */
        if (i < 1 || j < 1) return n == m && !memcmp(s, t, (size_t)n);
        if (utf8proc_tolower(x) != utf8proc_tolower(y)) return false;
        s += i, n -= i, t += j, m -= j;
    }
    return n == m;
}

/* All answers to one question, from its windows in order; returns how many are in out. */
static int64_t collect_answers(asking *a, int64_t first, int64_t past, const fv_chars *chars,
                               fv_answer *out)
{
    int64_t n = 0;
    for (int64_t i = first; i < past; i++) {
        const window *w = &a->windows[i];
        for (int64_t k = 0; k < w->n_best; k++) {
            fv_answer x = w->best[k];
            widen(w, &a->seqs[i], &x);
            x.s = fv__chars_slice(chars, x.from, x.to, &x.n);
            int64_t same = 0;
            while (same < n && !read_alike(&out[same], &x)) same++;
            if (same < n)
                out[same].score += x.score;
            else
                out[n++] = x;
        }
    }
    if (!a->opt.or_none) return n;
    fv_answer none = {.text = a->windows[first].text,
                      .s = chars->s,
                      .score = a->windows[first].none};
    for (int64_t i = first; i < past; i++)
        none.score = a->windows[i].none < none.score ? a->windows[i].none : none.score;
    out[n++] = none;
    return n;
}

/* Moves the k best to the front, best first; of equals the earlier one. */
static int64_t best_first(fv_answer *x, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n && i < k; i++) {
        int64_t best = i;
        for (int64_t j = i + 1; j < n; j++) best = x[j].score > x[best].score ? j : best;
        fv_answer top = x[best];
        for (int64_t j = best; j > i; j--) x[j] = x[j - 1];
        x[i] = top;
    }
    return n < k ? n : k;
}

/* Windows of one text stand together; their candidates are merged and the k best kept. */
static fv_status collect(asking *a, const fv_text *texts, int64_t n, fv_answer **found,
                         int64_t *n_found, fv_err *e)
{
    *found = fv__task_claim(a->t, (size_t)(n * a->opt.k) * sizeof **found, e);
    *n_found = 0;
    fv_answer *all = fv__task_claim(a->t, (size_t)(a->n * MORE(a->opt.k) + 1) * sizeof *all, e);
    if (!*found || !all) return FV_ENOMEM;
    for (int64_t at = 0, past; at < a->n; at = past) {
        fv_chars chars;
        const fv_text *x = &texts[a->windows[at].text];
        fv_status st = fv__task_chars(a->t, &chars, x->pair, x->pair_n, e);
        if (st) return st;
        for (past = at; past < a->n && a->windows[past].text == a->windows[at].text;) past++;
        int64_t some = best_first(all, collect_answers(a, at, past, &chars, all), a->opt.k);
        for (int64_t i = 0; i < some; i++) (*found)[(*n_found)++] = all[i];
    }
    return FV_OK;
}

/* Defaults are those of transformers' pipeline: 384 tokens, a stride of 128, answers of at most 15
 * tokens. */
fv_status fv_task_answer(fv_task *t, const fv_text *texts, int64_t n, fv_answer_opt opt,
                         fv_answer **found, int64_t *n_found, fv_err *e)
{
    if (!opt.k) opt.k = 1;
    if (!opt.longest) opt.longest = 15;
    if (!opt.window) opt.window = t->longest && t->longest < 384 ? t->longest : 384;
    if (!opt.stride) opt.stride = opt.window / 2 < 128 ? opt.window / 2 : 128;
    if (opt.k < 1 || opt.longest < 1 || opt.window < 1 || opt.stride < 0 ||
        (t->longest && opt.window > t->longest))
        return fv_fail(
            e, FV_EARG,
            "%lld answers of %lld tokens from windows of %lld do not fit a model that sees %lld",
            (long long)opt.k, (long long)opt.longest, (long long)opt.window, (long long)t->longest);
    asking a = {.t = t, .opt = opt};
    fv_status st = FV_OK;
    fv__task_begin(t);
    for (int64_t i = 0; i < n && !st; i++) st = add_windows(&a, i, &texts[i], e);
    fv_wanted w = {.names = {"start_logits", "end_logits"},
                   .per_token = 2,
                   .fn = find_spans,
                   .user = &a};
    if (!st) st = fv__task_run(t, a.seqs, a.n, &w, e);
    return st ? st : collect(&a, texts, n, found, n_found, e);
}
