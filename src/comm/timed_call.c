/* timed_call.c - see timed_call.h.
 *
 * Who is last of the two, the thread or the one that waits, frees what they share. */
#include "comm/timed_call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"

typedef struct call {
    void (*fn)(void *arg);
    void *arg;
    atomic_bool done;
    atomic_int users;
} call;

static void leave(call *c)
{
    if (atomic_fetch_sub(&c->users, 1) == 1) fv__free(NULL, c, sizeof *c);
}

static void *run(void *self)
{
    call *c = self;
    c->fn(c->arg);
    atomic_store(&c->done, true);
    leave(c);
    return NULL;
}

bool fv__timed_call(void (*fn)(void *arg), void *arg, double limit, bool (*give_up)(void *arg),
                    fv_err *e)
{
    const struct timespec nap = {0, 1000000};
    double from = fv__comm_now(), asked = from;
    pthread_t thread;
    call *c = fv__alloc(NULL, sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "ranks: out of memory"), false;
    c->fn = fn;
    c->arg = arg;
    atomic_init(&c->done, false);
    atomic_init(&c->users, 2);
    int rc = pthread_create(&thread, NULL, run, c);
    if (rc) {
        fv__free(NULL, c, sizeof *c);
        return fv_fail(e, FV_ENOMEM, "ranks: cannot start a thread: %s", strerror(rc)), false;
    }
    bool done = false, over = false;
    for (; !done && !over; nanosleep(&nap, NULL)) {
        done = atomic_load(&c->done);
        double now = fv__comm_now();
        over = now - from > limit;
        if (done || over || !give_up || now - asked < 1) continue;
        asked = now;
        over = give_up(arg);
    }
    if (done)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    leave(c);
    if (!done) fv_fail(e, FV_EDEVICE, "ranks: no answer within %.0f seconds", limit);
    return done;
}
