/* server.h - fovea serve: models behind an HTTP interface.
 *
 * It stands on the public headers alone.  Threads: one for HTTP (libmicrohttpd's, over epoll), one
 * engine for each model, which steps its scheduler and runs everything else that the model is
 * asked, one that wakes connections which have got a token, and one that watches deadlines and
 * clients that have gone.  The thread that calls sv_serve waits for signals. */
#ifndef SV_SERVER_H
#define SV_SERVER_H

#include "fovea/fovea.h"

typedef struct sv_model {
    const char *name, *dir;
} sv_model;

/* An adapter of a model that writes text, asked for by a name of its own. */
typedef struct sv_adapter {
    const char *name, *dir;
    const char *model; /* whose it is, by name */
} sv_adapter;

/* Where a name is kept: models and adapters point to it. */
typedef struct sv_names {
    char s[128];
} sv_names;

/* What a command line gave, n of each; out and names have as many entries.  FV_EUSAGE: a sentence
 * that says which is wrong. */
fv_status sv_read_models(const char *const *list, int n, sv_model *out, sv_names *names, fv_err *e);
fv_status sv_read_adapters(const char *const *list, int n, const sv_model *models, int n_models,
                           sv_adapter *out, sv_names *names, fv_err *e);

typedef struct sv_opt {
    const sv_model *models; /* the first serves requests that name none */
    int n_models;
    const sv_adapter *adapters;
    int n_adapters;
    const char *host;   /* to listen at; NULL: 127.0.0.1 */
    int64_t port;       /* 0: one that is free, which is printed */
    const char *socket; /* path of a Unix socket, instead of host and port; NULL: none */
    const char *device; /* as fv_device_open */
    int threads;
    fv_dtype weights; /* as in fv_model_opt */
    bool widen;
    /* ranks that share the one model, by its weights or by its layers, as in fv_writer_opt; all of
     * them call sv_serve, rank 0 listens.  Such a model generates and is not read again. */
    fv_comm *ranks, *stages;
    fv_scheduler_opt scheduler;
    int64_t body_bytes;       /* of a request at most */
    int64_t connections;      /* open at once at most */
    int64_t attention_floats; /* weights in one answer at most */
    /* milliseconds: for the head of a request, for its body, for a connection without a request,
     * and for an answer from first to last byte */
    int64_t header_ms, body_ms, idle_ms, answer_ms;
    int64_t drain_ms; /* after SIGTERM, for what is running */
    const char *keys; /* file of API keys, one a line; NULL: none are needed */
    const char *cors; /* origin that may call from a browser, "*": any; NULL: none */
    const char *runs; /* directory of trainings to show; NULL: none */
    bool quiet;       /* no line for each request */
} sv_opt;

/* Serves until SIGTERM or SIGINT; SIGHUP reads models and keys again.  Messages go to standard
 * error, one JSON object a line.  A second SIGTERM does not wait for what is running. */
fv_status sv_serve(const sv_opt *opt, fv_err *e);

#endif
