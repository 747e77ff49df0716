/* trace.c - see trace.h.
 *
 * Events are kept in memory, the newest MOST of them, and written once, at the end: a file that
 * grows would be a write in every update.  Format: the JSON array of "complete" events of
 * Chrome's tracing, a process for each rank. */
#include "train/trace.h"

#include <pthread.h>
#include <time.h>

enum { MOST = 1 << 16 };

typedef struct event {
    const char *name;
    int64_t step;
    double from, seconds;
    fv__track track;
} event;

struct fv__trace {
    const fv_env *env;
    pthread_mutex_t lock; /* over what follows */
    int64_t n;            /* events so far; the newest MOST are kept */
    event at[MOST];
};

fv_status fv__trace_new(fv__trace **out, const fv_env *env, fv_err *e)
{
    fv__trace *t = *out = fv__alloc(env, sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "trace: out of memory");
    t->env = env;
    pthread_mutex_init(&t->lock, NULL);
    return FV_OK;
}

void fv__trace_free(fv__trace *t)
{
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    fv__free(t->env, t, sizeof *t);
}

/* The wall clock: ranks on other machines have no other clock in common. */
double fv__trace_now(const fv__trace *t)
{
    struct timespec now;
    if (!t) return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A ring: of a long run the last events are kept. */
void fv__trace_add(fv__trace *t, fv__track track, const char *name, int64_t step, double from)
{
    if (!t) return;
    double now = fv__trace_now(t);
    pthread_mutex_lock(&t->lock);
    t->at[t->n++ % MOST] = (event){name, step, from, now - from, track};
    pthread_mutex_unlock(&t->lock);
}

/* The lines of one rank, each ending in a comma. */
static void events_text(fv_buf *b, const fv__trace *t, int rank)
{
    static const char *const tracks[] = {"compute", "communication"};
    fv__buf_fmt(b,
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank "
                "%d\"}},\n",
                rank, rank);
    for (int k = 0; k < 2; k++)
        fv__buf_fmt(b,
                    "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{"
                    "\"name\":\"%s\"}},\n",
                    rank, k, tracks[k]);
    for (int64_t i = t->n > MOST ? t->n - MOST : 0; i < t->n; i++) {
        const event *v = &t->at[i % MOST];
        fv__buf_fmt(b,
                    "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f,"
                    "\"args\":{\"update\":%lld}},\n",
                    v->name, rank, (int)v->track, 1e6 * v->from, 1e6 * v->seconds,
                    (long long)v->step);
    }
}

/* One file in the format of Chrome's tracing, which Perfetto opens; a row for each rank. */
fv_status fv__trace_write(fv__trace *t, fv_comm *c, const char *path, fv_err *e)
{
    fv_buf mine = {.env = t->env}, all = {.env = t->env};
    char *text = NULL;
    size_t len = 0;
    events_text(&mine, t, fv_comm_rank(c));
    fv_status st = mine.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path) : FV_OK;
    st = fv_comm_agree(c, st, e);
    if (!st) st = fv_comm_gather_text(c, t->env, mine.data, mine.len, &text, &len, e);
    if (!st && text) {
        fv__buf_str(&all, "[\n");
        fv__buf_add(&all, text, len - 2); /* without the last comma */
        fv__buf_str(&all, "\n]\n");
        st = all.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                        : fv__file_write(t->env, path, all.data, all.len, e);
    }
    fv_comm_free_text(t->env, text, len);
    fv__buf_free(&mine);
    fv__buf_free(&all);
    return st;
}
