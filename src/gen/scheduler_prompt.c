/* scheduler_prompt.c - reading prompts: alone and in parts, or several side by side.
 *
 * Only one prompt is half read at a time: a second would only hold memory.  Several short prompts
 * are read in one step, since those that arrive together would otherwise wait for a decode step of
 * the whole batch between any two of them; requests that decode are kept waiting by `prefill`
 * tokens at most either way.
 *
 * On the host one prompt follows the other: its products fill the cores.  A GPU is filled by
 * hundreds of rows, and its pass over the layers takes the same time for 64 tokens as for 512, so
 * prompts are padded to one length and read side by side, as long as tokens and padding together
 * are within `prefill`. */
#include "gen/scheduler.h"

static int64_t unread(const sequence *q) { return q->prompt - q->cached; }

/* Rows of the prompt that were just read, without the last one of all, which comes with its
 * token. */
static void tell_prompt_rows(fv_scheduler *s, sequence *q, int64_t T)
{
    fv_sched_weights w;
    int64_t n = q->cached < q->prompt ? T : T - 1;
    if (!q->ask.prompt_rows || n < 1) return;
    const fv_sched_weights *told = fv__sched_weights(s, &w, 0, 0, n);
    if (told)
        q->ask.fn(q->ask.user, &(fv_sched_event){.id = q->id, .token = -1, .attention = told});
}

/* The tokens of each prompt that this step reads, behind one another, padded with zeros; returns
 * the length of the longest. */
static int64_t pad_prompts(fv_scheduler *s, int32_t *n, int64_t rows, int64_t most)
{
    int64_t T = 0;
    for (int64_t b = 0; b < rows; b++) {
        int64_t left = unread(s->row[s->decoding + b]);
        n[b] = (int32_t)(left < most ? left : most);
        T = n[b] > T ? n[b] : T;
    }
    memset(s->padded, 0, (size_t)(rows * T) * sizeof *s->padded);
    for (int64_t b = 0; b < rows; b++) {
        const sequence *q = s->row[s->decoding + b];
        memcpy(s->padded + b * T, q->ids + q->cached, (size_t)n[b] * sizeof *s->padded);
    }
    return T;
}

static fv_tensor *run(fv_scheduler *s, const int32_t *n, int64_t rows, int64_t T)
{
    fv_ctx *c = s->ctx;
    fv_tensor *y = NULL;
    fv_ctx_reset(c, 0);
    if (!fv__session_narrow(c, s->session, s->decoding, rows, T)) return NULL;
    fv__session_use(s->session, s->models[s->row[s->decoding]->ask.model]);
    s->tap.prompt = true;
    s->tap.n = n;
    if (fv__sched_watch(s, s->decoding, rows, T) && fv__sched_choice_prepare(s, s->decoding, rows))
        y = rows > 1 ? fv__session_step_padded(c, s->session, s->padded, n, T)
                     : fv_session_step(c, s->session, fv_ints(c, s->padded, FV_SHAPE(1, T)));
    if (y) fv__sched_choose(c, s, y);
    fv__session_restore(s->session);
    return y;
}

/* Up to `most` tokens of each of the prompts that are being read: those that end with them give
 * their first token.  Only a prompt that is alone is left half read.  Returns how many tokens that
 * was, with padding; 0 once the context has failed. */
static int64_t prefill(fv_scheduler *s, int64_t most)
{
    int32_t *n = s->token; /* of no use before the next decode step */
    int64_t rows = s->reading, first = s->decoding, shared = 0, all = 0;
    int64_t T = pad_prompts(s, n, rows, most);
    fv_tensor *y = run(s, n, rows, T);
    for (int64_t b = 0; b < rows; b++) {
        sequence *q = s->row[first + b];
        shared += q->cached == q->shared ? q->shared : 0;
        all += n[b];
        q->cached += n[b];
    }
    if (!y || fv__failed(s->ctx)) return 0;
    fv__sched_tell(s);
    sequence *only = s->row[first];
    bool whole = !unread(only);
    for (int64_t b = 0; whole && b < rows; b++) /* before the wait, while the device works */
        fv__sched_keep_prefix(s, s->row[first + b], first + b, s->row[first + b]->prompt);
    if (!fv__sched_collect(s)) return 0;
    fv__sched_count(s, all, shared);
    if (!whole) s->session->dev->backend->sync(&s->ctx->stream);
    if (fv__failed(s->ctx)) return 0;
    if (rows == 1) tell_prompt_rows(s, only, T);
    if (!whole) return T;
    if (!fv__sched_take_tokens(s, first, rows)) return 0;
    s->decoding += rows;
    s->reading = 0;
    return rows * T;
}

/* Whether the prompt that waits in the first row may be read beside others. */
static bool joins(const fv_scheduler *s, const sequence *q, int64_t T)
{
    return s->beside && !s->spans && fv__session_pads(s->session) &&
           !(q->ask.n_layers && q->ask.prompt_rows) && q->cached + T <= s->session->cap;
}

/* Further prompts into rows beside the first, as long as all of them with their padding are within
 * `left` tokens.  A prompt is at most half as long as the cache, so that padding behind what a kept
 * prefix has of it fits as well. */
static void seat_others(fv_scheduler *s, int64_t left)
{
    const sequence *first = s->row[s->decoding];
    int64_t T = unread(first);
    while (s->decoding + s->reading < s->opt.rows) {
        int64_t most = left / (s->reading + 1);
        if (most > s->session->cap / 2) most = s->session->cap / 2;
        if (T > most || !joins(s, first, most)) return;
        sequence *q = fv__sched_next(s, most, first->ask.model);
        if (!q) return;
        if (fv__sched_cancelled(s, q)) {
            fv__sched_end(s, q, FV_FINISH_CANCELLED, NULL);
            fv__sched_forget(s, q);
            continue;
        }
        fv__sched_seat(s, q);
        T = unread(q) > T ? unread(q) : T;
    }
}

/* The first prompt may be read in part; another is begun only if all of it fits, since a pass over
 * the weights for its first few tokens would cost as much as for all. */
bool fv__sched_read_prompts(fv_scheduler *s)
{
    int64_t left = s->opt.prefill;
    while (s->reading) {
        int64_t n = unread(s->row[s->decoding]);
        if (n > left && left < s->opt.prefill) break;
        if (n <= left) seat_others(s, left);
        n = prefill(s, left);
        if (!n) return false;
        left -= n;
        if (s->reading) break;
        fv__sched_admit(s); /* a first token may have been the last, and the next takes a row */
        if (fv__failed(s->ctx)) return false;
    }
    return true;
}
