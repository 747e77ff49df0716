/* http.c - the HTTP side of a request: its head is checked, its body read, its answer sent.
 *
 * libmicrohttpd parses; what it is lenient about is checked here before the body is read: a length
 * that is given twice or beside a transfer coding, codings other than chunked, a missing host.
 * Such a request is refused and its connection closed, so that a proxy in front and this server
 * cannot disagree about where a request ends.
 *
 * While an answer is being made elsewhere the connection is suspended: it costs no thread.  The
 * request's lock decides who comes first: whoever makes the answer ready resumes a connection
 * that is suspended, and the HTTP thread suspends only while nothing is ready. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

/* Monotonic: deadlines must not move when the clock is set. */
double sv_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- life ---- */

/* A request has owners: the connection, work that is queued, and each sequence that runs. The last
 * one frees it. */
sv_request *sv_hold(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->refs++;
    pthread_mutex_unlock(&r->lock);
    return r;
}

void sv_drop(sv_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) return;
    if (r->free_job) r->free_job(r->job);
    if (r->engine) sv_engine_drop(r->engine);
    json_decref(r->json);
    sv_free(&r->body);
    sv_free(&r->out);
    sv_free(&r->taken);
    sv_free(&r->wire);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* A client's X-Request-Id is echoed in a header and in the log: only what can break neither. */
static bool plain_id(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 40 &&
           strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                     "0123456789-_.") == n;
}

static const char *header(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

/* FNV-1a of the key: who asks, for fair queueing, without keeping the key itself. */
static uint64_t hash(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; s && *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

/* owner is a hash of the API key: the scheduler shares rows out among owners without knowing keys.
 */
static sv_request *new_request(sv_server *s, struct MHD_Connection *mhd, const char *method,
                               const char *url)
{
    sv_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    const char *given = header(mhd, "X-Request-Id");
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    sv_quick_lock(&r->lock);
    r->server = s;
    r->mhd = mhd;
    r->connection = info ? info->socket_context : NULL;
    r->refs = 1;
    r->arrived = sv_now();
    r->owner = hash(header(mhd, "Authorization"));
    if (given && plain_id(given))
        snprintf(r->id, sizeof r->id, "%s", given);
    else
        snprintf(r->id, sizeof r->id, "req-%llx-%llu", (unsigned long long)(s->started * 1e6),
                 (unsigned long long)++s->last_request);
    snprintf(r->method, sizeof r->method, "%s", method);
    snprintf(r->path, sizeof r->path, "%s", url);
    return r;
}

/* ---- the head ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %00 stays as it is: decoded, it would end the path, and what follows it would go unseen. */
size_t sv_unescape(void *server, struct MHD_Connection *mhd, char *s)
{
    size_t n = 0;
    (void)server, (void)mhd;
    for (size_t i = 0; s[i]; i++) {
        int high = s[i] == '%' ? hex(s[i + 1]) : -1, low = high >= 0 ? hex(s[i + 2]) : -1;
        bool coded = low >= 0 && high * 16 + low > 0;
        s[n++] = coded ? (char)(high * 16 + low) : s[i];
        if (coded) i += 2;
    }
    s[n] = 0;
    return n;
}

typedef struct framing {
    int lengths, codings, hosts;
    const char *length, *coding;
} framing;

/* Counts what must come once: two lengths, or a length beside a coding, are how requests are
 * smuggled past a proxy (RFC 9112, 6.3). */
static enum MHD_Result look(void *self, enum MHD_ValueKind kind, const char *key, const char *value)
{
    framing *f = self;
    (void)kind;
    if (!strcasecmp(key, "Content-Length")) f->lengths++, f->length = value ? value : "";
    if (!strcasecmp(key, "Transfer-Encoding")) f->codings++, f->coding = value ? value : "";
    if (!strcasecmp(key, "Host")) f->hosts++;
    return MHD_YES;
}

/* Refuses what two parsers may read differently; false: refused. */
static bool check_framing(sv_request *r, const char *version)
{
    framing f = {0};
    MHD_get_connection_values(r->mhd, MHD_HEADER_KIND, look, &f);
    size_t digits = f.length ? strspn(f.length, "0123456789") : 0;
    if (f.lengths > 1 || f.codings > 1 || (f.lengths && f.codings))
        sv_refuse(r, 400, "invalid_request_error", NULL,
                  "the length of the body is given more than once");
    else if (f.codings && strcasecmp(f.coding, "chunked"))
        sv_refuse(r, 400, "invalid_request_error", NULL,
                  "the transfer coding is not chunked, and no other is understood");
    else if (f.lengths && (!digits || f.length[digits] || digits > 15))
        sv_refuse(r, 400, "invalid_request_error", NULL, "Content-Length is not a number");
    else if (f.hosts > 1 || (!f.hosts && !strcmp(version, "HTTP/1.1")))
        sv_refuse(r, 400, "invalid_request_error", NULL, "one Host header is needed");
    else if (f.lengths && strtoll(f.length, NULL, 10) > r->server->opt.body_bytes)
        sv_refuse(r, 413, "invalid_request_error", NULL, "a body has at most %lld bytes",
                  (long long)r->server->opt.body_bytes);
    else
        return true;
    return false;
}

/* A path that is not there, a method it does not take, or a key that is missing; false: refused. */
static bool check_route(sv_request *r, const char *url)
{
    if (!strcmp(r->method, "OPTIONS") && r->server->opt.cors) { /* a browser asks beforehand */
        sv_answer(r, 204, NULL, &(sv_text){0});
        return false;
    }
    r->route = strlen(url) < sizeof r->path ? sv_find_route(r->method, url, &r->allow) : NULL;
    if (!r->route && r->allow)
        sv_refuse(r, 405, "invalid_request_error", NULL, "%s does not take %s", r->path, r->method);
    else if (!r->route)
        sv_refuse(r, 404, "invalid_request_error", NULL, "there is nothing at %s", r->path);
    else if (!r->route->open && !sv_keys_allow(r->server, header(r->mhd, "Authorization")))
        sv_refuse(r, 401, "authentication_error", NULL,
                  "an API key is needed: Authorization: Bearer KEY");
    else
        return true;
    return false;
}

/* ---- sending ---- */

/* Takes what is there to be sent, digits of its numbers written outside of the lock; suspends the
 * connection while there is nothing.  0 or how the stream ends.  Three buffers go round, so that a
 * stream allocates nothing for its tokens. */
static ssize_t take_events(sv_request *r)
{
    ssize_t end = 0;
    sv_empty(&r->taken);
    sv_empty(&r->wire);
    r->sent = 0;
    pthread_mutex_lock(&r->lock);
    sv_text none = r->taken;
    r->taken = r->out;
    r->out = none;
    if (r->taken.failed) {
        end = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (!r->taken.n && (r->ended || r->gone)) {
        end = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (!r->taken.n) {
        MHD_suspend_connection(r->mhd);
        r->suspended = true;
    }
    pthread_mutex_unlock(&r->lock);
    if (!sv_is_packed(&r->taken)) {
        none = r->wire;
        r->wire = r->taken;
        r->taken = none;
    } else {
        sv_unpack(&r->wire, &r->taken);
    }
    return r->wire.failed ? MHD_CONTENT_READER_END_WITH_ERROR : end;
}

static ssize_t read_events(void *self, uint64_t pos, char *buf, size_t max)
{
    sv_request *r = self;
    (void)pos;
    if (r->sent == r->wire.n) {
        ssize_t end = take_events(r);
        if (end) return end;
    }
    size_t left = r->wire.n - r->sent, n = left < max ? left : max;
    if (n) memcpy(buf, r->wire.s + r->sent, n);
    r->sent += n;
    return (ssize_t)n;
}

static void drop_reader(void *self) { sv_drop(self); }

/* What a page of another origin may do, where the operator allows one at all. */
static void add_cors(const sv_request *r, struct MHD_Response *resp)
{
    if (!r->server->opt.cors) return;
    MHD_add_response_header(resp, "Access-Control-Allow-Origin", r->server->opt.cors);
    if (strcmp(r->method, "OPTIONS")) return;
    MHD_add_response_header(resp, "Access-Control-Allow-Methods", "GET, POST");
    MHD_add_response_header(resp, "Access-Control-Allow-Headers", "Authorization, Content-Type");
    MHD_add_response_header(resp, "Access-Control-Max-Age", "600");
}

/* The page is one file with its script in it, hence 'unsafe-inline'; nothing else may be loaded,
 * and no other page may frame it. Answers are never cached: they hold what users wrote. */
static void add_headers(const sv_request *r, struct MHD_Response *resp)
{
    static const char *const fixed[][2] = {
        {"X-Content-Type-Options", "nosniff"},
        {"Cache-Control", "no-store"},
    };
    const char *type = r->type ? r->type : "application/json";
    MHD_add_response_header(resp, "Content-Type", r->streaming ? "text/event-stream" : type);
    MHD_add_response_header(resp, "X-Request-Id", r->id);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        MHD_add_response_header(resp, fixed[i][0], fixed[i][1]);
    add_cors(r, resp);
    if (r->type && !strncmp(r->type, "text/html", 9))
        MHD_add_response_header(resp, "Content-Security-Policy",
                                "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                "'unsafe-inline'; connect-src 'self'; img-src data:; "
                                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (r->status == 405 && r->allow) MHD_add_response_header(resp, "Allow", r->allow);
    if (r->status == 401) MHD_add_response_header(resp, "WWW-Authenticate", "Bearer");
    if (r->status == 429 || r->status == 503) MHD_add_response_header(resp, "Retry-After", "1");
    if (r->server->draining) MHD_add_response_header(resp, "Connection", "close");
}

/* Queues the answer that is ready.  Nobody else changes it from then on, but for events that are
 * added to a stream, so the lock is not held: libmicrohttpd has one for each response, under which
 * it calls read_events. */
static enum MHD_Result send_answer(sv_request *r)
{
    struct MHD_Response *resp;
    if (r->streaming) {
        sv_hold(r);
        resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_events, r,
                                                 drop_reader);
        if (!resp) sv_drop(r);
    } else {
        bool packed = !r->type && sv_is_packed(&r->out); /* a type of its own: it is no JSON */
        sv_text *whole = packed ? &r->wire : &r->out;
        if (packed) sv_unpack(&r->wire, &r->out);
        if (whole->failed) r->status = 500;
        resp = MHD_create_response_from_buffer(whole->n, whole->s, MHD_RESPMEM_MUST_FREE);
        if (resp) *whole = (sv_text){0};
    }
    if (!resp) return MHD_NO;
    add_headers(r, resp);
    r->queued = true;
    enum MHD_Result ok = MHD_queue_response(r->mhd, r->status, resp);
    MHD_destroy_response(resp);
    return ok;
}

/* ---- the callbacks ---- */

/* The head is there: what it gets wrong is answered before a byte of the body is read. */
static enum MHD_Result begin(sv_server *s, struct MHD_Connection *mhd, const char *url,
                             const char *method, const char *version, void **self)
{
    sv_request *r = new_request(s, mhd, method, url);
    if (!r) return MHD_NO;
    *self = r;
    sv_watch(s, r->connection, s->opt.body_ms, NULL);
    if (!check_framing(r, version) || !check_route(r, url)) return send_answer(r);
    return MHD_YES;
}

/* The request is whole: its route answers, now or later. */
static enum MHD_Result dispatch(sv_request *r)
{
    r->dispatched = true;
    r->server->active++;
    if (r->too_large)
        sv_refuse(r, 413, "invalid_request_error", NULL, "a body has at most %lld bytes",
                  (long long)r->server->opt.body_bytes);
    else
        r->route->fn(r);
    /* a client that closes its side while its answer is being made is taken to have gone */
    sv_watch(r->server, r->connection, r->server->opt.answer_ms, sv_is_ready(r) ? NULL : r);
    pthread_mutex_lock(&r->lock);
    bool ready = r->ready;
    if (!ready) MHD_suspend_connection(r->mhd);
    r->suspended = !ready;
    pthread_mutex_unlock(&r->lock);
    return ready ? send_answer(r) : MHD_YES;
}

/* libmicrohttpd calls this for the head, for each piece of the body, once at its end, and again
 * when a suspended connection is resumed. A body that is too large is read and dropped, so that the
 * client gets the 413 instead of a reset connection. */
enum MHD_Result sv_handle(void *server, struct MHD_Connection *mhd, const char *url,
                          const char *method, const char *version, const char *data, size_t *n,
                          void **self)
{
    sv_server *s = server;
    sv_request *r = *self;
    if (!r) return begin(s, mhd, url, method, version, self);
    if (*n) {
        r->too_large |= r->body.n + *n > (size_t)s->opt.body_bytes;
        if (!r->too_large) sv_add(&r->body, data, *n);
        *n = 0;
        return MHD_YES;
    }
    if (!r->dispatched) return dispatch(r);
    pthread_mutex_lock(&r->lock);
    bool ready = r->ready && !r->queued;
    pthread_mutex_unlock(&r->lock);
    return ready ? send_answer(r) : MHD_NO;
}

/* The answer was sent, or the connection ended before it was: either way nobody waits any more. */
void sv_completed(void *server, struct MHD_Connection *mhd, void **self,
                  enum MHD_RequestTerminationCode why)
{
    sv_server *s = server;
    sv_request *r = *self;
    (void)mhd, (void)why;
    if (!r) return;
    sv_watch(s, r->connection, s->opt.idle_ms, NULL);
    if (r->dispatched) sv_abandon(r);
    if (r->dispatched) s->active--;
    if (r->status >= 100 && r->status < 600) s->answered[r->status / 100]++;
    if (r->dispatched) sv_observe(&s->times, sv_now() - r->arrived);
    if (!s->opt.quiet) sv_log_request(r);
    *self = NULL;
    sv_drop(r);
}
