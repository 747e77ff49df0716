/* http.c - a server of the program under test, and a plain client over a socket. */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static pid_t child;
static int port;
static answer last;

/* ---- the server ---- */

char *serve_log(void)
{
    size_t n;
    return slurp(scratch("serve.log"), &n);
}

static void nap(void)
{
    struct timespec t = {.tv_nsec = 10000000};
    nanosleep(&t, NULL);
}

static const char *launcher = "exec";

void serve_under(const char *line) { launcher = line; }

void serve_start(const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    int n = snprintf(line, sizeof line,
                     "cd '%s' && ASAN_OPTIONS=detect_leaks=1 %s '%s' serve --port 0 ", scratch("."),
                     launcher, FOVEA_PROGRAM);
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    scratch_text("serve.log", "");
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        int fd = open(scratch("serve.log"), O_WRONLY | O_TRUNC);
        dup2(fd, 2);
        execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    port = 0;
    for (int i = 0; i < 3000 && !port; i++) {
        char *log = serve_log(), *at = strstr(log, "listening at http://127.0.0.1:");
        if (at) port = atoi(at + strlen("listening at http://127.0.0.1:"));
        if (!port && waitpid(child, NULL, WNOHANG)) fail_msg("it ended: %s", log);
        free(log);
        if (!port) nap();
    }
    assert_true(port > 0);
}

void serve_signal(int sig) { kill(child, sig); }

bool serve_runs(void) { return waitpid(child, NULL, WNOHANG) == 0; }

int serve_stop(void)
{
    int status = 0;
    kill(child, SIGTERM);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        char *log = serve_log();
        fprintf(stderr, "%s", log);
        free(log);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int serve_close(void **state)
{
    int code = serve_stop();
    scratch_close(state);
    return code;
}

/* ---- the client ---- */

int http_open(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval most = {.tv_sec = 30};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* A server that has seen enough may have closed its side: what then is not taken is lost. */
void http_send(int fd, const char *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, bytes + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) return;
        done += (size_t)k;
    }
}

/* Reads until `want` bytes are in buf, or (want 0) until `stop` is, or the end. */
static bool fill(int fd, char **buf, size_t *n, size_t want, const char *stop)
{
    while (want ? *n < want : !*buf || !strstr(*buf, stop)) {
        *buf = realloc(*buf, *n + 4097);
        ssize_t k = recv(fd, *buf + *n, want && want - *n < 4096 ? want - *n : want ? 4096 : 1, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        *n += (size_t)k;
        (*buf)[*n] = 0;
    }
    return true;
}

static void read_chunks(int fd)
{
    for (;;) {
        char *line = NULL, *data = NULL;
        size_t n = 0, got = 0;
        bool ok = fill(fd, &line, &n, 0, "\r\n");
        size_t size = ok ? strtoul(line, NULL, 16) : 0;
        free(line);
        ok = ok && fill(fd, &data, &got, size + 2, "");
        if (ok && size) {
            last.body = realloc(last.body, last.n + size + 1);
            memcpy(last.body + last.n, data, size);
            last.n += size;
            last.body[last.n] = 0;
        }
        free(data);
        if (!ok) last.closed = true;
        if (!ok || !size) return;
    }
}

const answer *http_read(int fd)
{
    size_t n = 0;
    free(last.head);
    free(last.body);
    last = (answer){.body = strdup("")};
    if (!fill(fd, &last.head, &n, 0, "\r\n\r\n")) {
        if (!last.head) last.head = strdup("");
        last.closed = true;
        return &last;
    }
    last.status = atoi(last.head + 9);
    const char *length = strcasestr(last.head, "Content-Length:");
    if (strcasestr(last.head, "Transfer-Encoding: chunked")) {
        read_chunks(fd);
    } else if (length) {
        size_t want = strtoul(length + 15, NULL, 10);
        if (want && !fill(fd, &last.body, &(size_t){0}, want, "")) last.closed = true;
        last.n = strlen(last.body);
    }
    return &last;
}

const answer *http_with(const char *headers, const char *path, const char *body)
{
    int fd = http_open();
    char head[2048];
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s",
                     body ? "POST" : "GET", path, headers);
    if (body)
        n += snprintf(head + n, sizeof head - (size_t)n, "Content-Length: %zu\r\n", strlen(body));
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    http_send(fd, head, (size_t)n);
    if (body) http_send(fd, body, strlen(body));
    http_read(fd);
    close(fd);
    return &last;
}

const answer *http(const char *path, const char *body) { return http_with("", path, body); }

json_t *post(const char *path, const char *body)
{
    const answer *a = http(path, body);
    json_error_t e;
    if (a->status != 200) fail_msg("%s %s: %d %s", path, body ? body : "", a->status, a->body);
    json_t *j = json_loads(a->body, JSON_REJECT_DUPLICATES, &e);
    if (!j) fail_msg("%s: %s at %d in %s", path, e.text, e.position, a->body);
    return j;
}

void http_refused(int status, const char *part, const char *path, const char *body)
{
    const answer *a = http(path, body);
    if (a->status != status) fail_msg("%s: %d, expected %d: %s", body, a->status, status, a->body);
    json_t *j = json_loads(a->body, 0, NULL);
    const char *said = text_at(j, "error.message");
    if (!strstr(said, part)) fail_msg("%s: \"%s\", expected %s", body, said, part);
    assert_true(strlen(text_at(j, "error.type")) > 0);
    assert_int_equal((int)number_at(j, "error.code"), status);
    json_decref(j);
}

/* ---- values ---- */

const json_t *at(const json_t *j, const char *path)
{
    char key[64];
    for (const char *p = path; j && *p;) {
        size_t n = strcspn(p, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, p);
        j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
        p += n + (p[n] == '.');
    }
    if (!j) fail_msg("there is no %s", path);
    return j;
}

const char *text_at(const json_t *j, const char *path)
{
    const char *s = json_string_value(at(j, path));
    if (!s) fail_msg("%s is no string", path);
    return s;
}

double number_at(const json_t *j, const char *path) { return json_number_value(at(j, path)); }

double metric(const char *line)
{
    char begun[256]; /* not as it stands in a comment */
    snprintf(begun, sizeof begun, "\n%s", line);
    const char *found = strstr(http("/metrics", NULL)->body, begun);
    if (!found) fail_msg("no figure %s", line);
    return strtod(found + strlen(begun), NULL);
}
