/* mpi.c - ranks that are processes, by MPI.
 *
 * No call blocks inside MPI: all are started, then tested again and again, so that a rank which
 * waits also notices that another is gone.  Who is gone is found out by heartbeats, twice a
 * second, between rank 0 and each other rank, on a communicator of their own: a rank that
 * computes for an hour sends them, one that was killed, stopped or cut off does not.  Rank 0
 * tells the others whom it misses; the others miss rank 0 themselves.  A limit on the time of a
 * collective was the alternative: it would have to be longer than the longest evaluation.
 *
 * MPI is called by two threads, the caller's and that of the heartbeats, one at a time (a lock
 * around each call, MPI_THREAD_SERIALIZED). */
#include "comm/missing_rank.h"
#include "comm/timed_call.h"
#include "comm/mpi_library.h"

#if !HAVE_MPI
fv_status fv__comm_mpi(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e)
{
    (void)env, (void)o;
    *out = NULL;
    return fv_fail(e, FV_EMISSING,
                   "ranks: this build has no MPI; install libopenmpi-dev and build "
                   "again");
}
#else

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNK = 1 << 30, TAG = 7 }; /* bytes of one message: MPI counts in int */
/* Bytes of a message of an exchange.  OpenMPI sends up to 64 KiB by TCP at once (the eager limit).
 * What is larger it announces, and sends when asked: the request waits in the other rank's stream
 * behind what that one sends itself, so of two ranks one sent after the other where their links
 * carry both directions at a time: 1.2 instead of 2.0 seconds an update at 100 Mbit/s. */
enum { PIECE = 48 << 10 };
#define BEAT 0.5 /* seconds between heartbeats */

/* A heartbeat, or the reason why the job ends. */
typedef struct beat {
    int32_t dead;
    char why[508];
} beat;

typedef struct mpi {
    fv__mpi_library m;
    fv_comm *c;
    MPI_Comm data, beats;
    pthread_mutex_t lock; /* over MPI and what follows */
    pthread_t thread;
    bool running, quit;
    fv_status join_status; /* of joining, when it has come to an end */
    fv_err join_error;
    double began;     /* when joining did */
    char absent[200]; /* who has not come */
    beat dead;        /* dead.dead: nothing goes any more */
    bool told;        /* the others have been told */
    double *heard;    /* of each rank, when last */
    beat *outbox;     /* one for each rank */
    MPI_Request *sending;
    MPI_Request *request; /* of a collective */
    size_t request_bytes;
} mpi;

/* ---- failure ---- */

/* The first reason stays; the lock is held. */
static void set_dead(mpi *m, const char *fmt, ...) FV_PRINTF(2, 3);
static void set_dead(mpi *m, const char *fmt, ...)
{
    va_list ap;
    if (m->dead.dead) return;
    va_start(ap, fmt);
    vsnprintf(m->dead.why, sizeof m->dead.why, fmt, ap);
    va_end(ap);
    m->dead.dead = 1;
}

static fv_status failed(mpi *m, fv_err *e)
{
    pthread_mutex_lock(&m->lock);
    beat why = m->dead;
    pthread_mutex_unlock(&m->lock);
    return fv_fail(e, FV_EDEVICE, "%s", why.why);
}

/* ---- heartbeats ---- */

/* Starts a message to rank r unless the last one is still on its way. */
static void send_beat(mpi *m, int r)
{
    int done = 1;
    if (m->sending[r]) m->m.Test(&m->sending[r], &done, MPI_STATUS_IGNORE);
    if (!done) return;
    m->outbox[r] = m->dead;
    if (m->m.Isend(&m->outbox[r], (int)sizeof(beat), m->m.byte, r, TAG, m->beats, &m->sending[r]))
        m->sending[r] = NULL;
}

static void receive_beats(mpi *m)
{
    int there = 1;
    MPI_Status from;
    while (!m->m.Iprobe(MPI_ANY_SOURCE, TAG, m->beats, &there, &from) && there) {
        beat b;
        if (m->m.Recv(&b, (int)sizeof b, m->m.byte, from.MPI_SOURCE, TAG, m->beats,
                      MPI_STATUS_IGNORE))
            return;
        m->heard[from.MPI_SOURCE] = fv__comm_now();
        b.why[sizeof b.why - 1] = 0;
        if (b.dead) set_dead(m, "%s", b.why);
    }
}

/* Rank 0 looks at all, the others at rank 0.  late: this thread itself was not running, because the
 * process was stopped or the machine asleep; then nobody can be blamed yet. */
static void find_lost(mpi *m, bool late)
{
    const fv_comm *c = m->c;
    double now = fv__comm_now();
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank || (c->rank && r)) continue;
        if (late) m->heard[r] = now;
        if (now - m->heard[r] > c->timeout)
            set_dead(m, "rank %d is lost: nothing was heard of it for %.0f seconds", r, c->timeout);
    }
}

static void tell(mpi *m)
{
    for (int r = 0; r < m->c->size; r++)
        if (r != m->c->rank && (m->dead.dead || !r || !m->c->rank)) send_beat(m, r);
    m->told = m->told || m->dead.dead;
}

static void *beat_thread(void *self)
{
    mpi *m = self;
    const struct timespec nap = {0, 20000000};
    double last = 0, seen = fv__comm_now();
    for (bool quit = false; !quit;) {
        pthread_mutex_lock(&m->lock);
        double now = fv__comm_now();
        receive_beats(m);
        find_lost(m, now - seen > m->c->timeout / 2);
        seen = now;
        if (now - last > BEAT || (m->dead.dead && !m->told)) {
            tell(m);
            last = now;
        }
        quit = m->quit;
        bool dead = m->dead.dead;
        pthread_mutex_unlock(&m->lock);
        if (dead) fv__comm_tell_lost(m->c);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

/* ---- waiting ---- */

/* Until n requests are done.  It yields first and sleeps later: ranks may share cores. */
static fv_status wait_for(mpi *m, MPI_Request *request, int n, fv_err *e)
{
    const struct timespec nap = {0, 50000};
    for (int64_t tries = 0;; tries++) {
        int done = 0;
        pthread_mutex_lock(&m->lock);
        int rc = m->m.Testall(n, request, &done, MPI_STATUSES_IGNORE);
        if (rc && !done) set_dead(m, "rank %d: MPI failed (error %d)", m->c->rank, rc);
        bool dead = m->dead.dead;
        pthread_mutex_unlock(&m->lock);
        if (done) return FV_OK;
        if (dead) return failed(m, e);
        if (tries < 1000)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

static size_t pieces(size_t bytes) { return (bytes + PIECE - 1) / PIECE; }

/* Memory for the requests of these parts, without those that stay here. */
static fv_status grow_requests(mpi *m, const fv_comm_part *send, int n_send,
                               const fv_comm_part *recv, int n_recv, fv_err *e)
{
    size_t n = 1;
    for (int i = 0; i < n_send; i++) n += pieces(send[i].bytes);
    for (int i = 0; i < n_recv; i++) n += pieces(recv[i].bytes);
    void *p = m->request;
    if (!fv__grow(&m->c->env, &p, &m->request_bytes, n * sizeof *m->request))
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    m->request = p;
    return FV_OK;
}

/* ---- collectives ---- */

/* Starts the messages of a part; n counts requests. */
static int start_part(mpi *m, const fv_comm_part *p, bool in, int *n)
{
    int rc = 0;
    for (size_t at = 0; p->rank != m->c->rank && at < p->bytes && !rc; at += PIECE) {
        int bytes = (int)(p->bytes - at < PIECE ? p->bytes - at : PIECE);
        char *data = (char *)p->data + at;
        MPI_Request *r = &m->request[(*n)++];
        rc = in ? m->m.Irecv(data, bytes, m->m.byte, p->rank, TAG, m->data, r)
                : m->m.Isend(data, bytes, m->m.byte, p->rank, TAG, m->data, r);
    }
    return rc;
}

/* Sends begin with the next rank, so that not all ranks send to the same one first. */
static fv_status exchange(fv_comm *c, const fv_comm_part *send, int n_send,
                          const fv_comm_part *recv, int n_recv, fv_err *e)
{
    mpi *m = c->impl;
    fv_status st = grow_requests(m, send, n_send, recv, n_recv, e);
    int n = 0, rc = 0;
    if (st) return st;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < n_recv && !rc; i++) rc = start_part(m, &recv[i], true, &n);
    for (int i = 0; i < n_send && !rc; i++)
        if (send[i].rank > c->rank) rc = start_part(m, &send[i], false, &n);
    for (int i = 0; i < n_send && !rc; i++)
        if (send[i].rank < c->rank) rc = start_part(m, &send[i], false, &n);
    if (rc) set_dead(m, "rank %d: MPI failed (error %d)", c->rank, rc);
    pthread_mutex_unlock(&m->lock);
    fv__comm_copy_own(c, send, n_send, recv, n_recv);
    return rc ? failed(m, e) : wait_for(m, m->request, n, e);
}

/* Starts one request under the lock and waits for it. */
static fv_status finish(mpi *m, int rc, MPI_Request *r, fv_err *e)
{
    if (rc) set_dead(m, "rank %d: MPI failed (error %d)", m->c->rank, rc);
    pthread_mutex_unlock(&m->lock);
    return rc ? failed(m, e) : wait_for(m, r, 1, e);
}

static fv_status broadcast(fv_comm *c, void *data, size_t bytes, int root, fv_err *e)
{
    mpi *m = c->impl;
    fv_status st = FV_OK;
    for (size_t at = 0; !st && at < bytes; at += CHUNK) {
        MPI_Request r;
        int n = (int)(bytes - at < CHUNK ? bytes - at : CHUNK);
        pthread_mutex_lock(&m->lock);
        st = finish(m, m->m.Ibcast((char *)data + at, n, m->m.byte, root, m->data, &r), &r, e);
    }
    return st;
}

static fv_status barrier(fv_comm *c, fv_err *e)
{
    mpi *m = c->impl;
    MPI_Request r;
    pthread_mutex_lock(&m->lock);
    return finish(m, m->m.Ibarrier(m->data, &r), &r, e);
}

static fv_status all_reduce(fv_comm *c, float *data, int64_t n, fv_err *e)
{
    mpi *m = c->impl;
    fv_status st = FV_OK;
    for (int64_t at = 0; !st && at < n; at += CHUNK) {
        MPI_Request r;
        int len = (int)(n - at < CHUNK ? n - at : CHUNK);
        pthread_mutex_lock(&m->lock);
        st = finish(m,
                    m->m.Iallreduce(MPI_IN_PLACE, data + at, len, m->m.f32, m->m.sum, m->data, &r),
                    &r, e);
    }
    return st;
}

/* MPI wants the parts one behind the other, which those of a bucket are. */
static fv_status reduce_scatter(fv_comm *c, float *data, const int64_t *from, const int64_t *n,
                                fv_err *e)
{
    mpi *m = c->impl;
    MPI_Request r;
    size_t bytes = (size_t)c->size * sizeof(int), own = (size_t)n[c->rank] * sizeof *data;
    int *counts = fv__alloc(&c->env, bytes);
    float *y = fv__alloc_raw(&c->env, own + 1);
    fv_status st = counts && y ? FV_OK : fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    for (int i = 0; !st && i < c->size; i++) counts[i] = (int)n[i];
    if (!st) {
        pthread_mutex_lock(&m->lock);
        st = finish(m,
                    m->m.Ireduce_scatter(data + from[0], y, counts, m->m.f32, m->m.sum, m->data,
                                         &r),
                    &r, e);
    }
    if (!st) memcpy(data + from[c->rank], y, own);
    fv__free(&c->env, counts, bytes);
    fv__free(&c->env, y, own + 1);
    return st;
}

/* ---- lifetime ---- */

static void stop_all(fv_comm *c, const char *why)
{
    mpi *m = c->impl;
    pthread_mutex_lock(&m->lock);
    set_dead(m, "rank %d: %.400s", c->rank, why);
    pthread_mutex_unlock(&m->lock);
}

static void free_mpi(mpi *m)
{
    fv_comm *c = m->c;
    size_t n = (size_t)c->size;
    pthread_mutex_destroy(&m->lock);
    fv__free(&c->env, m->heard, n * sizeof *m->heard);
    fv__free(&c->env, m->outbox, n * sizeof *m->outbox);
    fv__free(&c->env, m->sending, n * sizeof *m->sending);
    fv__free(&c->env, m->request, m->request_bytes);
    fv__free(&c->env, m, sizeof *m);
}

static void finalize(void *self) { ((mpi *)self)->m.Finalize(); }

/* Where the job has failed the others are given a second to hear of it; then MPI is left as it is:
 * MPI_Finalize would wait for the rank that is lost.  mpirun sees a process end without it and ends
 * the rest. */
static void close_mpi(fv_comm *c)
{
    mpi *m = c->impl;
    fv_status st = barrier(c, NULL);
    const struct timespec second = {1, 0};
    if (st) nanosleep(&second, NULL);
    pthread_mutex_lock(&m->lock);
    m->quit = true;
    pthread_mutex_unlock(&m->lock);
    if (m->running) pthread_join(m->thread, NULL);
    if (st) return; /* requests may still be under way in this memory */
    receive_beats(m);
    /* it waits for all ranks for ever, also for one whose machine is cut off when all work is
     * done; then it may still use m */
    if (fv__timed_call(finalize, m, c->timeout, NULL, NULL)) free_mpi(m);
}

static const fv__comm_table table = {.name = "mpi",
                                     .exchange = exchange,
                                     .broadcast = broadcast,
                                     .barrier = barrier,
                                     .stop = stop_all,
                                     .close = close_mpi,
                                     .all_reduce = all_reduce,
                                     .reduce_scatter = reduce_scatter};

/* The communicators, and this rank's place. */
static int join_world(mpi *m)
{
    fv_comm *c = m->c;
    const fv__mpi_library *l = &m->m;
    MPI_Comm local;
    int rc = l->Comm_dup(l->world, &m->data);
    if (!rc) rc = l->Comm_dup(l->world, &m->beats);
    if (!rc) rc = l->Comm_set_errhandler(m->data, l->errors_return);
    if (!rc) rc = l->Comm_set_errhandler(m->beats, l->errors_return);
    if (!rc) rc = l->Comm_rank(m->data, &c->rank);
    if (!rc) rc = l->Comm_size(m->data, &c->size);
    if (!rc) rc = l->Comm_split_type(l->world, MPI_COMM_TYPE_SHARED, 0, l->info_null, &local);
    if (!rc) rc = l->Comm_rank(local, &c->local_rank);
    if (!rc) rc = l->Comm_size(local, &c->local_size);
    return rc ? rc : l->Comm_free(&local);
}

static fv_status join_job(mpi *m, fv_err *e)
{
    int provided, begun = 0;
    fv_status st = fv__mpi_library_open(&m->m, e);
    if (st) return st;
    m->m.Initialized(&begun);
    if (begun) return fv_fail(e, FV_ESTATE, "ranks: MPI runs already in this process");
    int rc = m->m.Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (!rc && provided < MPI_THREAD_SERIALIZED)
        return fv_fail(e, FV_EMISSING, "ranks: this MPI cannot be called by two threads");
    if (!rc) rc = join_world(m);
    if (!rc) rc = fv__mpi_connect(&m->m, m->data, m->c, TAG);
    return rc ? fv_fail(e, FV_EDEVICE, "ranks: MPI cannot be started (error %d)", rc) : FV_OK;
}

static void join(void *self)
{
    mpi *m = self;
    m->join_status = join_job(m, &m->join_error);
}

/* A rank that is stopped is not waited for longer than one that stops later. */
static bool is_hopeless(void *self)
{
    mpi *m = self;
    if (fv__comm_now() - m->began < m->c->timeout) return false;
    fv__launch launch = fv__launch_of_env();
    return fv__comm_missing(m->absent, sizeof m->absent, &m->c->env, &launch);
}

/* MPI_Init waits for all ranks for ever.  Until it is done nobody can be heard, and launchers may
 * take their time to start the last rank: ten times the timeout.  *late: it may still use m. */
static fv_status join_in_time(mpi *m, bool *late, fv_err *e)
{
    fv_err why = {0};
    m->began = fv__comm_now();
    bool joined = fv__timed_call(join, m, 10 * m->c->timeout, is_hopeless, &why);
    *late = !joined && why.code == FV_EDEVICE;
    if (*late)
        return fv_fail(e, FV_EDEVICE,
                       "ranks: not all of them have joined within %.0f seconds of the start: %s",
                       fv__comm_now() - m->began, m->absent);
    if (!joined) return fv_fail(e, why.code, "%s", why.text);
    return m->join_status ? fv_fail(e, m->join_status, "%s", m->join_error.text) : FV_OK;
}

static fv_status start_beats(mpi *m, fv_err *e)
{
    fv_comm *c = m->c;
    size_t n = (size_t)c->size;
    m->heard = fv__alloc(&c->env, n * sizeof *m->heard);
    m->outbox = fv__alloc(&c->env, n * sizeof *m->outbox);
    m->sending = fv__alloc(&c->env, n * sizeof *m->sending);
    if (!m->heard || !m->outbox || !m->sending)
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    for (int r = 0; r < c->size; r++) m->heard[r] = fv__comm_now();
    int rc = pthread_create(&m->thread, NULL, beat_thread, m);
    if (rc) return fv_fail(e, FV_ENOMEM, "ranks: cannot start a thread: %s", strerror(rc));
    pthread_setname_np(m->thread, "fovea-beats");
    m->running = true;
    return FV_OK;
}

fv_status fv__comm_mpi(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e)
{
    *out = NULL;
    fv_comm *c = fv__comm_new(env, &table, o->timeout);
    mpi *m = c ? fv__alloc(env, sizeof *m) : NULL;
    if (!m) {
        if (c) fv__comm_free(c);
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    }
    m->c = c;
    c->impl = m;
    pthread_mutex_init(&m->lock, NULL);
    bool late;
    fv_status st = join_in_time(m, &late, e);
    if (late) return st;
    if (!st) st = start_beats(m, e);
    if (st) {
        free_mpi(m);
        fv__comm_free(c);
        return st;
    }
    *out = c;
    return FV_OK;
}
#endif
