/* http.h - requests and answers; what the rest of the server knows of HTTP.
 *
 * A request is counted: the HTTP side holds it until its answer is sent or its client has gone, and
 * whoever works on it (a sequence in a scheduler, a job of an engine) holds it until that is done.
 * An answer is given whole (sv_answer, sv_refuse) or as events that follow one another (sv_stream,
 * sv_event, sv_end), from any thread. */
#ifndef SV_HTTP_H
#define SV_HTTP_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>

#include "server.h"
#include "text.h"

typedef struct sv_server sv_server;
typedef struct sv_engine sv_engine;
typedef struct sv_connection sv_connection;
typedef struct sv_request sv_request;

/* What serves a path: it answers before it returns, or keeps the request (sv_hold) and answers
 * later. */
typedef void sv_route_fn(sv_request *r);

typedef struct sv_route {
    const char *method, *path;
    sv_route_fn *fn;
    bool open; /* needs no API key */
    /* for the OpenAPI document: one line, the body's fields, and further types of the answer */
    const char *what, *fields, *other;
} sv_route;

struct sv_request {
    sv_server *server;
    struct MHD_Connection *mhd;
    sv_connection *connection;
    const sv_route *route;
    const char *allow; /* methods of the path, where the request's is not one of them */
    char id[40];       /* the client's X-Request-Id, or one of ours */
    char method[8], path[64];
    uint64_t owner; /* who asks: for fair queueing */
    sv_text body;
    bool too_large;
    double arrived;    /* seconds of the monotonic clock */
    sv_engine *engine; /* whose model is asked; counted */
    int adapted;       /* and with which of its adapters, from 1 on; 0: with none */
    void *job;         /* what the route keeps for it */
    void (*free_job)(void *job);
    json_t *json;                              /* the body, parsed */
    _Atomic int64_t prompt_tokens, new_tokens; /* for the log */
    /* behind the lock */
    pthread_mutex_t lock;
    int refs;
    void (*cancel)(sv_request *r); /* ends what is running, or NULL */
    bool dispatched, suspended, ready, gone, streaming, ended, queued;
    unsigned status;
    const char *type; /* of the answer's content */
    sv_text out;      /* packed numbers included */
    /* of the thread that sends: events as they came, and with the digits of their numbers */
    sv_text taken, wire;
    size_t sent; /* of wire */
};

struct sv_connection {
    sv_connection *next, *prev;
    uint64_t serial;
    int fd;
    double deadline;   /* when it is closed; 0: never */
    sv_request *waits; /* the request whose answer is being made, or NULL */
};

/* ---- answers, from any thread ---- */

/* The whole answer: body is taken over and emptied.  type: NULL for JSON. */
void sv_answer(sv_request *r, unsigned status, const char *type, sv_text *body);
/* An error in OpenAI's shape.  param: the field it is about, or NULL. */
void sv_refuse(sv_request *r, unsigned status, const char *kind, const char *param, const char *fmt,
               ...) FV_PRINTF(5, 6);
/* The same for a failure of the library: 400 for what the request got wrong, 503 for what may
 * succeed later, 500 otherwise. */
void sv_refuse_error(sv_request *r, const fv_err *e);
/* Begins an answer of server-sent events; each is one line of data; the end. */
void sv_stream(sv_request *r);
void sv_event(sv_request *r, const char *data, size_t n);
void sv_end(sv_request *r);
bool sv_gone(sv_request *r);     /* nobody waits for the answer any more */
bool sv_is_ready(sv_request *r); /* there is an answer, or its beginning */

/* What ends the work for a request whose client has gone; called at once where it has already, and
 * from any thread. */
typedef void sv_cancel_fn(sv_request *r);
void sv_on_gone(sv_request *r, sv_cancel_fn *fn);
/* Its client has gone: what is running for it ends. */
void sv_abandon(sv_request *r);

sv_request *sv_hold(sv_request *r);
void sv_drop(sv_request *r);

/* ---- the body ---- */

/* Parses it into r->json, an object; false: refused. */
bool sv_read_json(sv_request *r);
/* Refuses keys that are in neither list (ending in NULL), with the nearest; false: refused. */
bool sv_check_keys(sv_request *r, const json_t *object, const char *const *keys,
                   const char *const *more);
/* Fields of the body; false: refused.  *out stays as it is where the field is missing or null. */
bool sv_get_int(sv_request *r, const char *key, int64_t least, int64_t greatest, int64_t *out);
bool sv_get_real(sv_request *r, const char *key, double least, double greatest, double *out);
bool sv_get_bool(sv_request *r, const char *key, bool *out);
bool sv_get_text(sv_request *r, const char *key, const char **out, size_t *n);

/* ---- the HTTP side ---- */

size_t sv_unescape(void *server, struct MHD_Connection *mhd, char *s);

enum MHD_Result sv_handle(void *server, struct MHD_Connection *mhd, const char *url,
                          const char *method, const char *version, const char *data, size_t *n,
                          void **self);
void sv_completed(void *server, struct MHD_Connection *mhd, void **self,
                  enum MHD_RequestTerminationCode why);

/* ---- watch.c ---- */

void sv_connected(void *server, struct MHD_Connection *mhd, void **self,
                  enum MHD_ConnectionNotificationCode what);
/* Changes what the watching thread does for a connection: closes it after so many milliseconds (0:
 * never), and tells the request (or NULL) when its client has gone. */
void sv_watch(sv_server *s, sv_connection *c, int64_t ms, sv_request *waits);
bool sv_watch_open(sv_server *s);
void sv_watch_close(sv_server *s);

/* ---- threads.c ---- */

/* A lock that is held for moments only. */
void sv_quick_lock(pthread_mutex_t *m);
void sv_name_thread(const char *name); /* the one that calls; at most 15 bytes */

double sv_now(void);

#endif
