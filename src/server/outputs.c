/* outputs.c - the thread that makes answers of an engine's tokens.
 *
 * Text of a token, stop strings, JSON, and waking the connection that sends it take some
 * microseconds, at a hundred sequences as long as a GPU takes for its next step.  The engine's
 * thread, which every sequence waits for, only appends what the scheduler tells it to a queue:
 *
 *    engine     | tell, tell, tell, .. | next step ..              | tell, ..
 *    outputs      | text, JSON, resume | text, JSON, resume | ..
 *    HTTP           | digits, send | digits, send | ..
 *
 * The queue is two buffers in turn: records lie behind one another, each with the
 * weights and scores that came with it, so a token costs two short copies and no allocation.  The
 * engine wakes the thread where it sleeps, which is once a step, and waits for it only where it
 * is MOST_BYTES behind.
 *
 * Stop strings are seen here, one step after the token: the sequence ends with its next token,
 * which is dropped. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

enum { LEAST_BYTES = 1 << 12, KEPT_BYTES = 1 << 20, MOST_BYTES = 1 << 24 };

/* What the scheduler told; behind it lie n_top scores, the weights, or the error. */
typedef struct record {
    size_t bytes; /* with what lies behind it */
    sv_choice *choice;
    fv_sched_event ev; /* whose pointers are set when it is taken */
    fv_sched_weights weights;
    sv_told told;
    bool short_of_memory; /* nothing lies behind it, though something should */
} record;

static size_t aligned(size_t n) { return (n + 15) / 16 * 16; }

static size_t weight_bytes(const fv_sched_event *ev)
{
    const fv_sched_weights *w = ev->attention;
    if (!w) return 0;
    return (size_t)(w->n_layers * w->n_heads * w->rows * w->cols) * sizeof *w->w;
}

static size_t top_bytes(const fv_sched_event *ev) { return (size_t)ev->n_top * sizeof *ev->top; }

static size_t error_bytes(const fv_sched_event *ev) { return ev->error ? sizeof *ev->error : 0; }

/* ---- the engine's side ---- */

/* With the lock held: room for that many bytes more, once there is. */
static bool reserve(sv_outputs *o, size_t bytes)
{
    while (o->n && o->n + bytes > MOST_BYTES) {
        o->waited_for = true;
        pthread_cond_wait(&o->room, &o->lock);
    }
    if (o->n + bytes <= o->cap) return true;
    size_t cap = o->cap;
    while (cap < o->n + bytes) cap *= 2;
    char *more = realloc(o->queue, cap);
    if (!more) return false;
    o->queue = more;
    o->cap = cap;
    return true;
}

static void put(char **at, const void *from, size_t n)
{
    if (n) memcpy(*at, from, n);
    *at += aligned(n);
}

static void write_record(char *at, sv_choice *c, const fv_sched_event *ev, sv_told told,
                         size_t bytes)
{
    record r = {.bytes = bytes, .choice = c, .told = told};
    if (ev) r.ev = *ev;
    if (ev && ev->attention) r.weights = *ev->attention;
    r.short_of_memory = bytes == aligned(sizeof r) && ev &&
                        (weight_bytes(ev) || top_bytes(ev) || error_bytes(ev));
    put(&at, &r, sizeof r);
    if (!ev || r.short_of_memory) return;
    put(&at, ev->top, top_bytes(ev));
    put(&at, ev->attention ? ev->attention->w : NULL, weight_bytes(ev));
    put(&at, ev->error, error_bytes(ev));
}

/* Without memory it waits until the queue is empty, which always has room for a record alone. */
void sv_tell(sv_choice *c, const fv_sched_event *ev, sv_told told)
{
    sv_outputs *o = &c->gen->g->outputs;
    size_t alone = aligned(sizeof(record)), bytes = alone;
    if (ev) bytes += aligned(top_bytes(ev)) + aligned(weight_bytes(ev)) + aligned(error_bytes(ev));
    pthread_mutex_lock(&o->lock);
    if (!reserve(o, bytes)) {
        bytes = alone;
        while (o->n && o->n + bytes > o->cap) {
            o->waited_for = true;
            pthread_cond_wait(&o->room, &o->lock);
        }
    }
    write_record(o->queue + o->n, c, ev, told, bytes);
    o->n += bytes;
    bool sleeps = o->sleeps;
    o->sleeps = false; /* one call wakes it */
    pthread_mutex_unlock(&o->lock);
    if (sleeps) pthread_cond_signal(&o->more);
}

/* ---- the thread ---- */

static void take(record *r)
{
    const char *at = (const char *)r + aligned(sizeof *r);
    fv_sched_event *ev = &r->ev;
    if (r->short_of_memory) {
        ev->n_top = 0;
        ev->attention = NULL;
        ev->error = NULL;
    }
    ev->top = (const fv_scored *)at;
    at += aligned(top_bytes(ev));
    r->weights.w = (const float *)at;
    if (ev->attention) ev->attention = &r->weights;
    at += aligned(weight_bytes(ev));
    if (ev->error) ev->error = (const fv_err *)at;
    sv_take_told(r->choice, ev, r->told, r->short_of_memory);
}

static void take_all(char *records, size_t n)
{
    for (size_t at = 0, bytes; at < n; at += bytes) {
        record *r = (record *)(records + at);
        bytes = r->bytes;
        take(r);
    }
}

/* A buffer that many weights have grown is given back. */
static void shrink(char **buffer, size_t *cap)
{
    if (*cap <= KEPT_BYTES) return;
    char *less = realloc(*buffer, LEAST_BYTES);
    if (!less) return;
    *buffer = less;
    *cap = LEAST_BYTES;
}

/* With the lock held: the queue becomes the thread's, and its buffer the queue. */
static size_t swap(sv_outputs *o)
{
    char *full = o->queue;
    size_t n = o->n, cap = o->cap;
    o->queue = o->taken;
    o->cap = o->taken_cap;
    o->taken = full;
    o->taken_cap = cap;
    o->n = 0;
    if (o->waited_for) pthread_cond_signal(&o->room);
    o->waited_for = false;
    return n;
}

static void *run(void *self)
{
    sv_outputs *o = self;
    sv_name_thread("fovea-outputs");
    pthread_mutex_lock(&o->lock);
    while (o->n || !o->ends) {
        if (!o->n) {
            o->sleeps = true;
            pthread_cond_wait(&o->more, &o->lock);
            o->sleeps = false;
            continue;
        }
        size_t n = swap(o);
        pthread_mutex_unlock(&o->lock);
        take_all(o->taken, n);
        shrink(&o->taken, &o->taken_cap);
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

fv_status sv_outputs_open(sv_outputs *o, fv_err *e)
{
    sv_quick_lock(&o->lock);
    pthread_cond_init(&o->more, NULL);
    pthread_cond_init(&o->room, NULL);
    o->cap = o->taken_cap = LEAST_BYTES;
    o->queue = malloc(o->cap);
    o->taken = malloc(o->cap);
    o->open = o->queue && o->taken && !pthread_create(&o->thread, NULL, run, o);
    return o->open ? FV_OK : fv_fail(e, FV_ENOMEM, "no thread can be started for answers");
}

/* What was told is taken first. */
void sv_outputs_close(sv_outputs *o)
{
    if (!o->queue && !o->taken) return;
    pthread_mutex_lock(&o->lock);
    o->ends = true;
    pthread_mutex_unlock(&o->lock);
    pthread_cond_signal(&o->more);
    if (o->open) pthread_join(o->thread, NULL);
    pthread_cond_destroy(&o->more);
    pthread_cond_destroy(&o->room);
    pthread_mutex_destroy(&o->lock);
    free(o->queue);
    free(o->taken);
}
