/* answer.c - answers to a request, from any thread: whole, or as server-sent events.
 *
 * Who makes an answer is never the thread that sends it.  The request's lock orders the two: an
 * answer is made ready once, whoever comes second finds it ready and does nothing, and a
 * connection that is suspended is resumed by whoever makes it ready.  So a token that arrives
 * while a client is being told that it was too slow changes nothing.
 *
 * Events are appended to one buffer that the HTTP thread empties.  There is no limit to it beside
 * the number of tokens: a reader that is too slow is closed by the deadline of the whole answer. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core.h"

/* The lock is held. */
static void resume(sv_request *r)
{
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->mhd);
}

/* The first answer wins: an engine that finishes and a watcher that gives up may both come here,
 * and only one status can be sent. Takes the text of body over, or frees it. */
void sv_answer(sv_request *r, unsigned status, const char *type, sv_text *body)
{
    pthread_mutex_lock(&r->lock);
    if (!r->ready) {
        sv_free(&r->out);
        r->out = *body;
        *body = (sv_text){0};
        r->status = r->out.failed ? 500 : status;
        r->type = type;
        r->ready = true;
        resume(r);
    }
    pthread_mutex_unlock(&r->lock);
    sv_free(body);
}

/* OpenAI's shape of an error, which its clients turn into exceptions: {"error": {"message", "type",
 * "param", "code"}}. */
static void write_error(sv_text *t, const char *message, const char *kind, const char *param,
                        unsigned status)
{
    sv_open(t, '{');
    sv_key(t, "error");
    sv_open(t, '{');
    sv_string_at(t, "message", message);
    sv_string_at(t, "type", kind);
    if (param)
        sv_string_at(t, "param", param);
    else
        sv_raw_at(t, "param", "null");
    sv_int_at(t, "code", status);
    sv_close(t, '}');
    sv_close(t, '}');
}

/* Where another thread begins the stream behind this question the refusal finds an answer that is
 * ready: that happens only to a client that has gone, whose stream ends by itself. */
static bool is_streaming(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool streaming = r->streaming;
    pthread_mutex_unlock(&r->lock);
    return streaming;
}

void sv_refuse(sv_request *r, unsigned status, const char *kind, const char *param, const char *fmt,
               ...)
{
    char message[640];
    sv_text t = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    write_error(&t, message, kind, param, status);
    if (is_streaming(r)) { /* too late for a status: an event says so, and the stream ends */
        sv_event(r, t.s, t.n);
        sv_free(&t);
        sv_end(r);
        return;
    }
    sv_put(&t, "\n");
    sv_answer(r, status, NULL, &t);
}

/* Whose fault it is decides the status: what the request says is 400, what will pass (memory, a
 * server that drains) is 503 and may be tried again, the rest is ours. */
void sv_refuse_error(sv_request *r, const fv_err *e)
{
    bool usage = e->code == FV_EARG || e->code == FV_ESHAPE || e->code == FV_EFORMAT ||
                 e->code == FV_EUSAGE || e->code == FV_EMISSING;
    bool later = e->code == FV_ENOMEM || e->code == FV_ESTATE;
    if (usage)
        sv_refuse(r, 400, "invalid_request_error", NULL, "%s", e->text);
    else if (later)
        sv_refuse(r, 503, "overloaded_error", NULL, "%s", e->text);
    else
        sv_refuse(r, 500, "server_error", NULL, "%s", e->text);
}

/* From here on the status is fixed: 200 goes out with the first event, and an error can only be an
 * event. */
void sv_stream(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    if (!r->ready) {
        r->status = 200;
        r->streaming = r->ready = true;
        resume(r);
    }
    pthread_mutex_unlock(&r->lock);
}

/* One event of a stream.  After the client has gone there is nobody to read it.  A connection is
 * resumed outside of the lock, which the HTTP thread may want next; it stays suspended until then,
 * and with it the request stays.  Whoever stops the HTTP threads waits until `resuming` is 0. */
void sv_event(sv_request *r, const char *data, size_t n)
{
    sv_server *s = r->server;
    struct MHD_Connection *mhd = r->mhd;
    pthread_mutex_lock(&r->lock);
    bool taken = !r->gone && !r->ended, waits = taken && r->suspended;
    if (taken) {
        sv_put(&r->out, "data: ");
        sv_add(&r->out, data, n);
        sv_put(&r->out, "\n\n");
    }
    if (waits) r->suspended = false, s->resuming++;
    pthread_mutex_unlock(&r->lock);
    if (!waits) return;
    MHD_resume_connection(mhd);
    s->resuming--;
}

void sv_end(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->ended = true;
    resume(r);
    pthread_mutex_unlock(&r->lock);
}

bool sv_gone(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool gone = r->gone;
    pthread_mutex_unlock(&r->lock);
    return gone;
}

/* An answer that is whole and waits to be sent; a stream never is, since its text goes out as it
 * comes. */
bool sv_is_ready(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool ready = r->ready && !r->streaming;
    pthread_mutex_unlock(&r->lock);
    return ready;
}

/* The client may have gone before there was anything to cancel: then it is cancelled at once. */
void sv_on_gone(sv_request *r, sv_cancel_fn *fn)
{
    pthread_mutex_lock(&r->lock);
    bool late = r->gone;
    r->cancel = fn;
    pthread_mutex_unlock(&r->lock);
    if (late) fn(r);
}

/* The client is gone. What still computes for it is cancelled outside of the lock: cancelling may
 * end the sequence at once, whose callback takes the same lock. */
void sv_abandon(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool unfinished = !r->gone && (!r->ready || (r->streaming && !r->ended));
    sv_cancel_fn *cancel = unfinished ? r->cancel : NULL;
    r->gone = true;
    pthread_mutex_unlock(&r->lock);
    if (unfinished) r->server->disconnected++;
    if (cancel) cancel(r);
}
