/* generate.c - sequences of a request in the scheduler: tokens become text, text stops at stop
 * strings, and what is certain is sent.
 *
 * on_token runs on the engine's thread and passes on what it is told; everything of a choice
 * belongs to the thread of outputs.c once the choice is submitted.  Text that may be the beginning
 * of a stop string is held back until it is not. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

/* ---- text ---- */

/* Where the first stop string begins in what is new, or the length of all. */
static size_t find_stop(const sv_choice *c, size_t old)
{
    const sv_gen *q = c->gen;
    size_t end = c->text.n;
    for (int i = 0; i < q->n_stops; i++) {
        size_t from = old > q->stop_len[i] ? old - q->stop_len[i] + 1 : 0;
        const char *at = c->text.n > from ? memmem(c->text.s + from, c->text.n - from, q->stop[i],
                                                   q->stop_len[i])
                                          : NULL;
        if (at && (size_t)(at - c->text.s) < end) end = (size_t)(at - c->text.s);
    }
    return end;
}

/* The longest end of the text that begins a stop string. */
static size_t held_back(const sv_choice *c)
{
    const sv_gen *q = c->gen;
    size_t most = 0;
    for (int i = 0; i < q->n_stops; i++) {
        size_t k = q->stop_len[i] - 1 < c->text.n ? q->stop_len[i] - 1 : c->text.n;
        for (; k > most; k--)
            if (!memcmp(c->text.s + c->text.n - k, q->stop[i], k)) most = k;
    }
    return most;
}

/* Adds a piece; true: a stop string has ended the text, which is cut before it. */
static bool add_piece(sv_choice *c, const char *piece, size_t n)
{
    size_t old = c->text.n;
    sv_add(&c->text, piece, n);
    size_t end = find_stop(c, old);
    if (end >= c->text.n) return false;
    c->text.n = end;
    c->text.s[end] = 0;
    return true;
}

/* ---- events ---- */

/* Log-probabilities are kept until a chunk or the answer is written. The offset is where the
 * token's text begins in the choice's, as completions report it. */
static bool note_scores(sv_choice *c, const fv_sched_event *ev)
{
    if (c->gen->logprobs < 0) return true;
    if (c->n_scored == c->room) {
        int64_t room = c->room ? 2 * c->room : 4;
        sv_scored *more = realloc(c->scored, (size_t)room * sizeof *more);
        if (!more) return false;
        c->scored = more;
        c->room = room;
    }
    sv_scored *s = &c->scored[c->n_scored++];
    *s = (sv_scored){.token = ev->token, .before = c->last, .score = ev->score};
    s->offset = c->text.n;
    s->n_top = ev->n_top < (int)c->gen->logprobs ? ev->n_top : (int)c->gen->logprobs;
    memcpy(s->top, ev->top, (size_t)s->n_top * sizeof *s->top);
    return true;
}

/* The first token counts from the request, the others from the one before. */
static void note_times(sv_choice *c)
{
    double now = sv_now();
    sv_engine *g = c->gen->g;
    if (c->n == 0)
        sv_observe(&g->first_token, now - c->gen->r->arrived);
    else
        sv_observe(&g->between_tokens, now - c->last_time);
    c->last_time = now;
}

/* The text of a token; false: the text ends here. */
static bool take_text(sv_choice *c, const fv_sched_event *ev)
{
    const char *piece = "";
    size_t n = 0;
    fv_err e;
    const fv_gen_opt *o = &c->gen->opt;
    bool end = ev->finish == FV_FINISH_STOP && !c->gen->special; /* an end token has no text */
    for (int i = 0; i < o->n_ends && !end; i++) end = o->ends[i] == ev->token && !c->gen->special;
    if (!end && fv_tok_stream_push(c->stream, ev->token, &piece, &n, &e)) n = 0;
    return !add_piece(c, piece, n);
}

/* Counts what a choice has written; whoever calls it sends the end. */
static void end_choice(sv_choice *c, const char *why)
{
    sv_gen *q = c->gen;
    c->finish = why;
    q->left--;
    q->new_tokens += c->n;
    q->r->new_tokens += c->n;
}

/* The last choice ends the answer. */
static void end_answer(sv_gen *q)
{
    if (q->left || q->failed) return;
    if (q->stream) {
        if (q->usage) sv_write_usage_chunk(q);
        sv_event(q->r, "[DONE]", 6);
        sv_end(q->r);
    } else {
        sv_write_whole(q);
    }
}

/* One choice that fails takes the answer with it: the others are cancelled, and their events find
 * the request refused already. */
static void fail_answer(sv_gen *q, const fv_err *e)
{
    if (!q->failed) sv_refuse_error(q->r, e);
    q->failed = true;
    for (int i = 0; i < q->n_choices; i++)
        if (!q->choice[i].finish && q->choice[i].id)
            fv_scheduler_cancel(q->g->scheduler, q->choice[i].id, NULL);
}

static void fail_choice(sv_choice *c)
{
    fv_err none = {.code = FV_ENOMEM, .text = "out of memory"};
    end_choice(c, "error");
    fail_answer(c->gen, &none);
}

/* A token's way: times, scores, attention, text, then why it is the last. A stop string may end
 * inside a token, and the tokenizer may hold bytes back that complete a character: the end asks for
 * them. */
static void take_token(sv_choice *c, const fv_sched_event *ev)
{
    sv_gen *q = c->gen;
    const char *piece, *why = NULL;
    size_t n;
    note_times(c);
    q->cached += c->n ? 0 : ev->cached;
    c->n++;
    bool kept = note_scores(c, ev);
    if (ev->attention) sv_write_weights(&c->attention, ev->attention);
    bool stopped = !take_text(c, ev);
    c->last = ev->token;
    if (stopped || ev->finish == FV_FINISH_STOP) why = "stop";
    if (!why && ev->finish == FV_FINISH_LENGTH) why = "length";
    if (why && !stopped && !fv_tok_stream_finish(c->stream, &piece, &n, NULL))
        if (add_piece(c, piece, n)) why = "stop";
    if (!kept || c->text.failed || c->attention.failed) {
        fail_choice(c);
        return;
    }
    if (why) end_choice(c, why);
    if (q->stream) sv_write_chunk(q, c, c->text.n - (why ? 0 : held_back(c)));
    if (why) end_answer(q);
}

/* An event without a token carries the attention of prompt rows, or says why there will be no
 * more. */
static void take_event(sv_choice *c, const fv_sched_event *ev)
{
    if (ev->token >= 0) {
        take_token(c, ev);
    } else if (ev->finish == FV_FINISH_NOT) {
        sv_write_weights(&c->attention, ev->attention);
    } else {
        end_choice(c, "cancelled");
        if (ev->finish == FV_FINISH_FAILED) fail_answer(c->gen, ev->error);
    }
}

/* What comes behind the end of the text is dropped. */
void sv_take_told(sv_choice *c, const fv_sched_event *ev, sv_told told, bool short_of_memory)
{
    sv_request *r = c->gen->r;
    if (told == SV_TOLD_BEGIN)
        sv_stream(r);
    else if (!c->finish && short_of_memory)
        fail_choice(c);
    else if (!c->finish)
        take_event(c, ev);
    if (c->finish) c->stopped = true;
    if (told == SV_TOLD_LAST) sv_drop(r); /* the sequence's share; c may be gone now */
}

/* Called by the scheduler's thread for every event of a sequence; false ends it. */
static bool on_token(void *user, const fv_sched_event *ev)
{
    sv_choice *c = user;
    bool last = ev->finish != FV_FINISH_NOT || c->stopped;
    sv_tell(c, ev, last ? SV_TOLD_LAST : SV_TOLD_MORE); /* c may be gone now */
    return !last;
}

/* ---- starting ---- */

/* From any thread: it only marks, and the engine's thread ends the sequences at its next step. */
static void cancel(sv_request *r)
{
    sv_gen *q = r->job;
    for (int i = 0; i < q->n_choices; i++)
        if (q->choice[i].id) fv_scheduler_cancel(q->g->scheduler, q->choice[i].id, NULL);
    sv_wake(q->g);
}

/* Pushes the prompt from a token on, and adds its text where it is echoed.  *word: whether there
 * was more than blanks. */
static fv_status push_prompt(sv_choice *c, int64_t from, bool *word, fv_err *e)
{
    fv_status st = FV_OK;
    const char *piece;
    size_t n;
    *word = false;
    for (int64_t i = from; i < c->n_prompt && !st; i++) {
        st = fv_tok_stream_push(c->stream, c->prompt[i], &piece, &n, e);
        if (!st) *word |= strspn(piece, " ") < n;
        if (!st && c->gen->echo) sv_add(&c->text, piece, n);
    }
    return st;
}

/* The stream of a choice has read its prompt, whose end may decide about a blank.  A stream looks
 * back no further than to the last word, so of a long prompt its end will do. */
static fv_status read_prompt(sv_choice *c, fv_err *e)
{
    enum { END = 64 };
    const char *piece;
    size_t n;
    bool word, whole = c->gen->echo || c->n_prompt <= END;
    fv_status st = push_prompt(c, whole ? 0 : c->n_prompt - END, &word, e);
    if (st || whole || word) return st;
    st = fv_tok_stream_finish(c->stream, &piece, &n, e);
    return st ? st : push_prompt(c, 0, &word, e);
}

static fv_status open_choice(sv_gen *q, int i, fv_err *e)
{
    sv_choice *c = &q->choice[i];
    int64_t k = i / q->each;
    *c = (sv_choice){.gen = q, .index = i, .prompt = q->prompts + q->prompt_at[k]};
    c->n_prompt = q->prompt_at[k + 1] - q->prompt_at[k];
    c->last = c->prompt[c->n_prompt - 1];
    fv_status st = fv_tok_stream_new(&c->stream, q->g->tok, !q->special, e);
    if (!st) st = read_prompt(c, e);
    if (!st && q->schema) st = sv_constrain(q, c, e);
    return st;
}

/* `number` tells the n choices of one prompt apart: each draws random numbers of its own, and the
 * same ones whichever runs first. */
static fv_status submit(sv_choice *c, fv_err *e)
{
    sv_gen *q = c->gen;
    int64_t number = c->index % q->each;
    fv_sched_request ask = {.prompt = c->prompt, .n = c->n_prompt, .opt = &q->opt};
    q->opt.numbers = &number;
    ask.fn = on_token, ask.user = c;
    ask.bias = q->bias, ask.n_bias = q->n_bias;
    ask.frequency_penalty = (float)q->frequency_penalty;
    ask.presence_penalty = (float)q->presence_penalty;
    ask.top = q->logprobs > 0 ? (int)q->logprobs : 0;
    ask.unscored = q->logprobs < 0;
    ask.layers = q->layers, ask.heads = q->heads;
    ask.n_layers = q->n_layers, ask.n_heads = q->n_heads;
    ask.prompt_rows = q->prompt_rows;
    if (q->r->adapted) ask.model = q->g->adapted[q->r->adapted - 1].number;
    ask.priority = (int)q->priority, ask.owner = q->r->owner;
    if (c->constraint) ask.logits = fv_constraint_logits, ask.logits_user = c->constraint;
    return fv_scheduler_submit(q->g->scheduler, &c->id, &ask, e);
}

/* Runs on the engine's thread: no token can come while choices are still being submitted. */
static void start(sv_engine *g, sv_request *r)
{
    sv_gen *q = r->job;
    fv_err e;
    fv_status st = FV_OK;
    (void)g;
    for (int i = 0; i < q->n_choices && !st; i++) {
        st = submit(&q->choice[i], &e);
        if (st) break;
        sv_hold(r);
        q->left++;
    }
    if (st && e.code == FV_ESTATE) {
        q->failed = true;
        sv_refuse(r, 429, "rate_limit_error", NULL, "%s", e.text);
    }
    if (st) {
        fail_answer(q, &e);
        return;
    }
    sv_on_gone(r, cancel);
    if (q->stream) sv_tell(&q->choice[0], NULL, SV_TOLD_BEGIN);
}

/* Everything that may fail by itself is opened here, in the thread of the connection; the
 * scheduler's thread only submits. */
void sv_gen_start(sv_gen *q)
{
    fv_err e;
    fv_status st = FV_OK;
    q->n_choices = (int)(q->n_prompts * q->each);
    q->choice = calloc((size_t)q->n_choices, sizeof *q->choice);
    if (!q->choice) st = fv_fail(&e, FV_ENOMEM, "out of memory");
    for (int i = 0; i < q->n_choices && !st; i++) st = open_choice(q, i, &e);
    if (st)
        sv_refuse_error(q->r, &e);
    else
        sv_post_start(q->g, q->r, start);
}
