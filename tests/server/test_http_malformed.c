/* test_http_malformed.c - requests that are wrong, cut off or hostile: each is refused or closed,
 * none is read as two, and the server answers the next client. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/http.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define POST_HEAD "POST /tokenize HTTP/1.1\r\nHost: a\r\n"
#define BODY "{\"text\":\"a\"}" /* 12 bytes */

static int start(void **state)
{
    scratch_open(state);
    serve_start("-m plain='%s' --header-timeout 1 --body-timeout 1 --body-limit 1 --quiet",
                STORIES);
    return 0;
}

/* What must come back: a status, or 0 for any refusal (400 to 499, 501, or a closed connection). */
typedef struct request {
    const char *name, *bytes;
    int status;
} request;

static const request table[] = {
    {"fine", POST_HEAD "Content-Length: 12\r\n\r\n" BODY, 200},
    {"fine, in chunks",
     POST_HEAD "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"te\r\n8\r\nxt\":\"a\"}\r\n0\r\n\r\n",
     200},
    {"two lengths that agree", POST_HEAD "Content-Length: 12\r\nContent-Length: 12\r\n\r\n" BODY,
     0},
    {"two lengths that do not", POST_HEAD "Content-Length: 12\r\nContent-Length: 2\r\n\r\n" BODY,
     0},
    {"a list of lengths", POST_HEAD "Content-Length: 12, 12\r\n\r\n" BODY, 0},
    {"a length with a sign", POST_HEAD "Content-Length: +12\r\n\r\n" BODY, 0},
    {"a negative length", POST_HEAD "Content-Length: -1\r\n\r\n" BODY, 0},
    {"a length in hexadecimal", POST_HEAD "Content-Length: 0xc\r\n\r\n" BODY, 0},
    {"a length that overflows", POST_HEAD "Content-Length: 99999999999999999999\r\n\r\n" BODY, 0},
    {"a length above the limit", POST_HEAD "Content-Length: 2000000\r\n\r\n" BODY, 413},
    {"a length and chunks",
     POST_HEAD "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
    {"chunks and a length",
     POST_HEAD "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 0},
    {"another coding", POST_HEAD "Transfer-Encoding: gzip\r\n\r\n" BODY, 0},
    {"a coding behind chunked", POST_HEAD "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
     0},
    {"chunked with a trick", POST_HEAD "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 0},
    {"two codings",
     POST_HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 0},
    {"a chunk that is no number", POST_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 0},
    {"a chunk that overflows",
     POST_HEAD "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" BODY "\r\n", 0},
    {"a negative chunk", POST_HEAD "Transfer-Encoding: chunked\r\n\r\n-5\r\n" BODY "\r\n", 0},
    {"a chunk without its end",
     POST_HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 0},
    {"a blank before the colon",
     "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length : 12\r\n\r\n" BODY, 0},
    {"a header without a colon", "GET /livez HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", 0},
    {"a header that begins with a blank", "GET /livez HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", -1},
    {"no host", "GET /livez HTTP/1.1\r\n\r\n", 0},
    {"two hosts", "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 0},
    {"no version", "GET /livez\r\n\r\n", 0},
    {"a version of its own", "GET /livez HTTP/9.9\r\nHost: a\r\n\r\n", 0},
    {"no request at all", "\r\n\r\n\r\n", 0},
    {"bytes", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0},
    {"a method of its own", "BREW /livez HTTP/1.1\r\nHost: a\r\n\r\n", 0},
    {"a body that is not read", "GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde",
     200},
    {"a path that climbs", "GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", 404},
    {"a NUL in the path", "GET /livez%00x HTTP/1.1\r\nHost: a\r\n\r\n", 404},
    {"a bare line feed", "GET /livez HTTP/1.1\nHost: a\n\n", -1},
};

/* Whether the connection is at its end: nothing of the bytes is left to be a second request. */
static void expect(const request *r, const answer *a)
{
    bool refused = (a->status >= 400 && a->status < 500) || a->status == 501 || a->status == 505;
    bool ok = r->status > 0 ? a->status == r->status : refused || !a->status;
    if (r->status < 0) ok = ok || a->status == 200; /* both readings are allowed by RFC 9112 */
    if (!ok) fail_msg("%s: status %d, expected %d: %s", r->name, a->status, r->status, a->body);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const request *r = &table[i];
        int fd = http_open();
        http_send(fd, r->bytes, strlen(r->bytes));
        shutdown(fd, SHUT_WR);
        expect(r, http_read(fd));
        close(fd);
        if (http("/livez", NULL)->status != 200) fail_msg("%s: the server is gone", r->name);
    }
}

/* A request that hides behind a body of disputed length is not answered. */
static void nothing_is_smuggled(void **state)
{
    (void)state;
    static const char *const tricks[] = {
        POST_HEAD "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                  "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        POST_HEAD "Content-Length: 0\r\nContent-Length: 44\r\n\r\n"
                  "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        POST_HEAD "Transfer-Encoding: \tchunked \r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"
                  "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        POST_HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"
                  "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        int fd = http_open();
        http_send(fd, tricks[i], strlen(tricks[i]));
        for (int k = 0; k < 3; k++) {
            const answer *a = http_read(fd);
            if (strstr(a->body, "fovea_http")) fail_msg("trick %zu: a second request was read", i);
            if (a->closed) break;
        }
        close(fd);
    }
}

/* Requests that follow one another on a connection are both answered. */
static void a_connection_serves_many(void **state)
{
    (void)state;
    int fd = http_open();
    for (int i = 0; i < 20; i++) {
        http_send(fd, table[0].bytes, strlen(table[0].bytes));
        assert_int_equal(http_read(fd)->status, 200);
    }
    close(fd);
}

static void large_heads_and_bodies_are_refused(void **state)
{
    (void)state;
    size_t n = 100000;
    char *big = malloc(n + 1);
    memset(big, 'a', n);
    big[n] = 0;
    for (int kind = 0; kind < 3; kind++) {
        int fd = http_open();
        const char *before[] = {"GET /", "GET /livez HTTP/1.1\r\nHost: a\r\nX: ",
                                "GET /livez HTTP/1.1\r\nHost: a\r\n"};
        http_send(fd, before[kind], strlen(before[kind]));
        for (int i = 0; kind == 2 && i < 5000; i++) http_send(fd, "a: b\r\n", 6);
        if (kind < 2) http_send(fd, big, n);
        http_send(fd, "\r\n\r\n", 4);
        const answer *a = http_read(fd);
        assert_true(a->status == 0 || (a->status >= 400 && a->status < 500));
        close(fd);
    }
    /* a body in chunks beyond the limit */
    int fd = http_open();
    static const char head[] = POST_HEAD "Transfer-Encoding: chunked\r\n\r\n";
    http_send(fd, head, strlen(head));
    for (int i = 0; i < 20; i++) {
        http_send(fd, "186a0\r\n", 7);
        http_send(fd, big, n);
        http_send(fd, "\r\n", 2);
    }
    http_send(fd, "0\r\n\r\n", 5);
    assert_int_equal(http_read(fd)->status, 413);
    close(fd);
    /* JSON nested beyond reason */
    memset(big, '[', 50000);
    big[50000] = 0;
    assert_int_equal(http("/tokenize", big)->status, 400);
    free(big);
}

/* Clients that stop in the middle are closed by the deadline, and others do not notice. */
static void clients_that_stop_are_closed(void **state)
{
    (void)state;
    static const char *const parts[] = {"", "GET /liv", "GET /livez HTTP/1.1\r\nHost:",
                                        POST_HEAD "Content-Length: 12\r\n\r\n{\"te",
                                        POST_HEAD "Transfer-Encoding: chunked\r\n\r\n4\r\n{"};
    int fd[5];
    for (int i = 0; i < 5; i++) {
        fd[i] = http_open();
        http_send(fd[i], parts[i], strlen(parts[i]));
    }
    assert_int_equal(http("/livez", NULL)->status, 200);
    for (int i = 0; i < 5; i++) {
        const answer *a = http_read(fd[i]);
        assert_true(a->closed || a->status == 408);
        close(fd[i]);
    }
    for (int i = 0; i < 50; i++) { /* and some that go at once */
        int gone = http_open();
        http_send(gone, parts[i % 5], strlen(parts[i % 5]));
        close(gone);
    }
    assert_int_equal(http("/livez", NULL)->status, 200);
}

/* Any bytes at all: printable, framing characters and others, by a generator of fixed seed. */
static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    static const char *const words[] = {"GET ",      "POST ",
                                        "/livez",    "/tokenize",
                                        " HTTP/1.1", "\r\n",
                                        "Host: a",   "Content-Length: ",
                                        "12",        "Transfer-Encoding: ",
                                        "chunked",   "\r\n\r\n",
                                        BODY,        "\n",
                                        ":",         "0"};
    uint32_t dice = 7;
    for (int i = 0; i < 300; i++) {
        char bytes[2000];
        size_t n = 0;
        while (n < 300) {
            dice = dice * 1664525u + 1013904223u;
            const char *word = words[(dice >> 9) % 16];
            if (dice >> 28 == 3)
                bytes[n++] = (char)(dice >> 16);
            else
                n += (size_t)snprintf(bytes + n, sizeof bytes - n, "%s", word);
        }
        int fd = http_open();
        http_send(fd, bytes, n);
        shutdown(fd, SHUT_WR);
        const answer *a = http_read(fd);
        if (a->status >= 500 && a->status != 501 && a->status != 505)
            fail_msg("case %d: status %d", i, a->status);
        close(fd);
    }
    assert_true(serve_runs());
    assert_int_equal(http("/livez", NULL)->status, 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_requests_are_refused),
        cmocka_unit_test(nothing_is_smuggled),
        cmocka_unit_test(a_connection_serves_many),
        cmocka_unit_test(large_heads_and_bodies_are_refused),
        cmocka_unit_test(clients_that_stop_are_closed),
        cmocka_unit_test(random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
