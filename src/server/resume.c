/* resume.c - connections that have got something to send are woken by a thread of their own.
 *
 * MHD_resume_connection takes the lock of the HTTP thread's connections and writes to a descriptor
 * that wakes it.  An engine's thread would do that for every token of every stream, and wait
 * whenever the HTTP thread holds its lock; at a hundred streams that took longer than the device's
 * next step.  So it only puts the request on a list, and wakes this thread if it sleeps:
 *
 *    engine    | event, event, event, ..  | next step ..
 *    resumer     | resume, resume, ..
 *    HTTP          | digits, send | digits, send | .. */
#include "core.h"

/* glibc's adaptive kind: whoever meets it held spins for a moment before it sleeps.  What is held
 * for a microsecond at a time would cost an engine's thread fifty otherwise. */
void sv_quick_lock(pthread_mutex_t *m)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(m, &kind);
    pthread_mutexattr_destroy(&kind);
}

static void resume(sv_request *r)
{
    MHD_resume_connection(r->mhd);
    sv_drop(r);
}

/* Woken by the first of a step's events; the others of them it finds when it looks again. */
static void *run(void *self)
{
    sv_server *s = self;
    pthread_mutex_lock(&s->resume_lock);
    while (s->resumable || !s->resumer_ends) {
        sv_request *r = s->resumable;
        s->resumable = NULL;
        if (!r) {
            s->resumer_sleeps = true;
            pthread_cond_wait(&s->resume, &s->resume_lock);
            s->resumer_sleeps = false;
            continue;
        }
        pthread_mutex_unlock(&s->resume_lock);
        for (sv_request *next; r; r = next) {
            next = r->next_resumable;
            resume(r);
        }
        pthread_mutex_lock(&s->resume_lock);
    }
    pthread_mutex_unlock(&s->resume_lock);
    return NULL;
}

/* The request's connection stays suspended, and with it valid, until it is resumed. */
void sv_resume_later(sv_request *r)
{
    sv_server *s = r->server;
    r->next_resumable = NULL;
    pthread_mutex_lock(&s->resume_lock);
    bool sleeps = s->resumer_sleeps, ended = s->resumer_ends;
    if (!ended) {
        *(s->resumable ? &s->last_resumable->next_resumable : &s->resumable) = r;
        s->last_resumable = r;
    }
    pthread_mutex_unlock(&s->resume_lock);
    if (sleeps) pthread_cond_signal(&s->resume);
    if (ended) resume(r);
}

bool sv_resumer_open(sv_server *s)
{
    sv_quick_lock(&s->resume_lock);
    pthread_cond_init(&s->resume, NULL);
    return !pthread_create(&s->resumer, NULL, run, s);
}

/* Once all requests are abandoned: what is on the list is resumed, and nothing comes on it. */
void sv_resumer_close(sv_server *s)
{
    pthread_mutex_lock(&s->resume_lock);
    s->resumer_ends = true;
    pthread_mutex_unlock(&s->resume_lock);
    pthread_cond_signal(&s->resume);
    pthread_join(s->resumer, NULL);
}
