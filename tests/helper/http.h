/* http.h - a server of the program under test, and a client that can be as wrong as it likes. */
#ifndef HELPER_HTTP_H
#define HELPER_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "files.h"

/* Starts "fovea serve ARGUMENTS --port 0" in the folder of files.h and waits until it listens. */
void serve_start(const char *fmt, ...) FV_PRINTF(1, 2);
/* From now on by such a command: "exec mpirun -np 2". */
void serve_under(const char *line);
/* Sends it a signal; ends it with SIGTERM and gives its exit status. */
void serve_signal(int sig);
int serve_stop(void);
/* ... and the folder is removed: for cmocka's tear-down of a group. */
int serve_close(void **state);
char *serve_log(void); /* what it has written so far; the caller frees */
bool serve_runs(void);

typedef struct answer {
    int status; /* 0: the connection was closed without one */
    char *head, *body;
    size_t n; /* bytes of the body, chunks joined */
    bool closed;
} answer;

/* A connection; bytes; the next answer on it, which the next call overwrites. */
int http_open(void);
void http_send(int fd, const char *bytes, size_t n);
const answer *http_read(int fd);

/* One request on a connection of its own.  body NULL: GET. */
const answer *http(const char *path, const char *body);
/* The same with further header lines, each ending in \r\n. */
const answer *http_with(const char *headers, const char *path, const char *body);
/* ... of status 200, as JSON, which the caller lets go. */
json_t *post(const char *path, const char *body);
/* ... refused with that status and a message that holds part. */
void http_refused(int status, const char *part, const char *path, const char *body);

/* A value by its path, keys and indices joined by dots: "choices.0.text". */
const json_t *at(const json_t *j, const char *path);
const char *text_at(const json_t *j, const char *path);
double number_at(const json_t *j, const char *path);
/* A figure of /metrics by the beginning of its line. */
double metric(const char *line);

#endif
