/* serve.c - bench serve: requests to a server of completions, and how long its tokens take.
 *
 * Closed loop: so many clients, each sending its next request when the last is answered.  Open
 * loop: requests arrive at a rate, at the random intervals of a Poisson process, whether or not
 * others are still being answered; what a user sees under load shows only there.  Lengths are drawn
 * from log-normal distributions around the given means, as those of recorded conversations are, or
 * are all alike.  Every request has a connection and a thread of its own, which does nothing but
 * wait. */
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

typedef struct load_values {
    char host[256], model[256], api_key[512];
    int64_t port, clients, requests, prompt, made, vocab, seed;
    double rate; /* requests a second; 0: closed loop */
    bool spread, attention;
} load_values;

static const fv_field options[] = {
    FV_TEXT(load_values, host, "127.0.0.1", "HOST: of the server"),
    FV_INT(load_values, port, 1, 8080, 65535, "of the server"),
    FV_TEXT(load_values, model, "", "NAME: that is asked; the first unless given"),
    FV_TEXT(load_values, api_key, "", "KEY: where the server needs one"),
    FV_INT(load_values, clients, 1, 8, 4096, "that ask one thing after another"),
    FV_FLOAT(load_values, rate, 0, 0, 1e6,
             "instead: requests a second, at the intervals of a Poisson process"),
    FV_INT(load_values, requests, 1, 64, 1 << 20, "in all"),
    FV_INT_KEY("len", load_values, prompt, 1, 64, 1 << 20, "tokens of a prompt, in the mean"),
    FV_INT_KEY("new", load_values, made, 1, 64, 1 << 20, "tokens to write, in the mean"),
    FV_BOOL(load_values, spread, false, "lengths vary, log-normally, as conversations do"),
    FV_INT(load_values, vocab, 10, 400, 1 << 24, "ids of prompts are below this"),
    FV_BOOL(load_values, attention, false,
            "also ask for the weights of one head of the last layer, with every token"),
    FV_INT(load_values, seed, 0, 1, 1e15, "of lengths, prompts and intervals"),
    {0}};

static const fv_task_example examples[] = {
    {"fovea bench serve --port 8080 --clients 8 --len 64 --new 64", "eight clients"},
    {"fovea bench serve --rate 4 --requests 200 --spread --json", "as users come and go"},
    {0},
};

/* ---- one request ---- */

typedef struct load load;

/* Times in seconds of the monotonic clock; 0 where it did not happen. */
typedef struct request {
    load *l;
    int64_t prompt, made; /* tokens */
    double at;            /* when it is sent, from the start; open loop */
    double sent, first, end;
    int64_t tokens;
    int status;
    double *gaps; /* between tokens */
    int64_t n_gaps;
} request;

struct load {
    const bench_opt *opt;
    const load_values *v;
    struct addrinfo *to;
    request *all;
    _Atomic int64_t next;
    double start;
};

/* splitmix64's finaliser: numbers by (seed, request), so that every run and every server gets the
 * same load. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A number between 0 and 1, by what it is for. */
static double uniform(uint64_t seed, uint64_t i, uint64_t k)
{
    return ((double)(scramble(seed * 1000003 + i * 8191 + k) >> 11) + 0.5) * 0x1p-53;
}

/* The prompt is a list of ids, so that its length is exact and no tokenizer takes part; min_tokens
 * keeps an answer from ending early, and with it the comparison fair. */
static char *write_request(const request *r, int64_t number)
{
    const load_values *v = r->l->v;
    size_t room = (size_t)r->prompt * 9 + 2048;
    char *body = malloc(room), *all = malloc(room + 1024);
    if (!body || !all) {
        free(body);
        free(all);
        return NULL;
    }
    int n = snprintf(body, room, "{\"max_tokens\":%lld,\"temperature\":0,\"stream\":true,",
                     (long long)r->made);
    if (v->model[0]) n += snprintf(body + n, room - (size_t)n, "\"model\":\"%.200s\",", v->model);
    if (v->attention)
        n += snprintf(body + n, room - (size_t)n, "\"attention\":{\"layers\":-1,\"heads\":0},");
    n += snprintf(body + n, room - (size_t)n,
                  "\"min_tokens\":%lld,\"stream_options\":{\"include_usage\":true},\"prompt\":[",
                  (long long)r->made);
    for (int64_t i = 0; i < r->prompt; i++) {
        double u = uniform((uint64_t)v->seed, (uint64_t)(number * 100003 + i), 7);
        n += snprintf(body + n, room - (size_t)n, "%s%d", i ? "," : "",
                      (int)(4 + u * (double)(v->vocab - 4)));
    }
    n += snprintf(body + n, room - (size_t)n, "]}");
    snprintf(all, room + 1024,
             "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n%s%.500s%s"
             "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
             *v->api_key ? "Authorization: Bearer " : "", v->api_key, *v->api_key ? "\r\n" : "", n,
             body);
    free(body);
    return all;
}

/* The first address that answers. */
static int connect_to(const load *l)
{
    for (const struct addrinfo *a = l->to; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) return fd;
        if (fd >= 0) close(fd);
    }
    return -1;
}

/* Every piece of text is a token's, or that of a few that make one character; the last event counts
 * them. */
static void take_line(request *r, const char *line, double at, double *last)
{
    const char *total = strstr(line, "\"completion_tokens\":");
    if (strncmp(line, "data: {", 7)) return;
    if (total) {
        r->tokens = strtoll(total + strlen("\"completion_tokens\":"), NULL, 10);
        return;
    }
    if (r->first == 0)
        r->first = at;
    else if (r->n_gaps < r->made)
        r->gaps[r->n_gaps++] = at - *last;
    *last = at;
}

/* What has arrived of an answer: its head up to the empty line, then a body in chunks (RFC 9112,
 * 7.1).  A chunk may end inside an event, as a server's buffer is full, so events are looked for in
 * the body alone. */
typedef struct {
    char *text; /* head, or lines of the body that are not whole yet */
    size_t n, capacity;
    bool body, chunked;
    int64_t left;  /* bytes of the chunk */
    char size[20]; /* of the next one, as far as it has come */
    size_t n_size;
} answer;

static bool add_text(answer *a, const char *from, size_t n)
{
    if (a->n + n + 1 > a->capacity) {
        size_t more = 2 * (a->n + n + 1);
        char *text = realloc(a->text, more);
        if (!text) return false;
        a->text = text;
        a->capacity = more;
    }
    memcpy(a->text + a->n, from, n);
    a->n += n;
    a->text[a->n] = 0;
    return true;
}

/* Chunks, without their sizes: a line of hexadecimal digits before each, and one that is empty
 * behind it. */
static bool add_chunks(answer *a, const char *from, size_t n)
{
    for (size_t k; n; from += k, n -= k) {
        k = 1;
        if (a->left > 0) {
            k = n < (size_t)a->left ? n : (size_t)a->left;
            a->left -= (int64_t)k;
            if (!add_text(a, from, k)) return false;
        } else if (*from != '\n') {
            if (a->n_size + 1 < sizeof a->size) a->size[a->n_size++] = *from;
        } else {
            a->size[a->n_size] = 0;
            a->left = strtoll(a->size, NULL, 16);
            a->n_size = 0;
        }
    }
    return true;
}

static bool add_bytes(request *r, answer *a, const char *from, size_t n)
{
    if (a->body) return a->chunked ? add_chunks(a, from, n) : add_text(a, from, n);
    if (!add_text(a, from, n)) return false;
    const char *end = strstr(a->text, "\r\n\r\n");
    if (!end) return true;
    a->body = true;
    r->status = atoi(a->text + 9);
    const char *field = strcasestr(a->text, "\r\ntransfer-encoding: chunked");
    a->chunked = field && field < end;
    size_t head = (size_t)(end + 4 - a->text), rest = a->n - head;
    char *body = malloc(rest + 1);
    if (!body) return false;
    memcpy(body, end + 4, rest);
    a->n = 0;
    bool ok = !rest || add_bytes(r, a, body, rest);
    free(body);
    return ok;
}

/* Events are read line by line as they arrive; the time of an event is that of the recv that
 * completed it. */
static void read_answer(request *r, int fd)
{
    answer a = {0};
    char *buf = malloc(1 << 16);
    double last = 0;
    for (ssize_t k; buf && (k = recv(fd, buf, 1 << 16, 0)) > 0;) {
        double at = bench_now();
        if (!add_bytes(r, &a, buf, (size_t)k)) break;
        if (!a.body || !a.n) continue;
        char *from = a.text;
        for (char *end; (end = strchr(from, '\n')); from = end + 1) {
            *end = 0;
            take_line(r, from, at, &last);
        }
        a.n -= (size_t)(from - a.text);
        memmove(a.text, from, a.n + 1);
    }
    free(a.text);
    free(buf);
}

/* One connection a request, as a client without keep-alive: the time to the first token includes
 * connecting. */
static void run_request(load *l, int64_t i)
{
    request *r = &l->all[i];
    char *text = write_request(r, i);
    r->gaps = calloc((size_t)r->made + 1, sizeof *r->gaps);
    r->sent = bench_now();
    int fd = text && r->gaps ? connect_to(l) : -1;
    size_t n = text ? strlen(text) : 0, done = 0;
    while (fd >= 0 && done < n) {
        ssize_t k = send(fd, text + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) break;
        done += (size_t)k;
    }
    if (fd >= 0) read_answer(r, fd);
    if (fd >= 0) close(fd);
    r->end = bench_now();
    free(text);
}

/* ---- all of them ---- */

/* A client, or (open loop) whoever sends the next request that is due. */
static void *work(void *self)
{
    load *l = self;
    for (int64_t i; (i = l->next++) < l->v->requests;) {
        double wait = l->start + l->all[i].at - bench_now();
        struct timespec t = {.tv_sec = (time_t)wait};
        t.tv_nsec = (long)((wait - (double)t.tv_sec) * 1e9);
        if (l->v->rate > 0 && wait > 0) nanosleep(&t, NULL);
        run_request(l, i);
    }
    return NULL;
}

/* Mean m: exp(mu + s z) with s = 0.8 has the mean exp(mu + s^2/2). */
static int64_t draw_length(const load_values *v, int64_t i, uint64_t k, int64_t mean)
{
    uint64_t seed = (uint64_t)v->seed, at = (uint64_t)i;
    double u = uniform(seed, at, k), w = uniform(seed, at, k + 1), s = 0.8;
    double z = sqrt(-2 * log(u)) * cos(6.283185307179586 * w);
    if (!v->spread) return mean;
    int64_t n = (int64_t)lround((double)mean * exp(s * z - s * s / 2));
    return n < 1 ? 1 : n > 8 * mean ? 8 * mean : n;
}

/* Arrivals are a Poisson process: gaps are exponential with mean 1 / rate. All lengths are drawn
 * before the first request is sent. */
static fv_status plan(load *l, fv_err *e)
{
    const load_values *v = l->v;
    double at = 0;
    l->all = calloc((size_t)v->requests, sizeof *l->all);
    if (!l->all) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < v->requests; i++) {
        request *r = &l->all[i];
        *r = (request){.l = l, .at = at};
        r->prompt = draw_length(v, i, 1, v->prompt);
        r->made = draw_length(v, i, 3, v->made);
        if (v->rate > 0) at -= log(uniform((uint64_t)v->seed, (uint64_t)i, 5)) / v->rate;
    }
    return FV_OK;
}

/* Percentiles by nearest rank; the mean would hide what users wait for. */
static void put_times(bench_row *r, const char *const keys[3], double *x, int64_t n)
{
    static const double q[] = {0.5, 0.95, 0.99};
    static const char *const units[][3] = {{"ms to the first token (p50)", "ms (p95)", "ms (p99)"},
                                           {"ms between tokens (p50)", "ms (p95)", "ms (p99)"}};
    bool first = !strncmp(keys[0], "first", 5);
    for (int i = 0; i < 3; i++)
        bench_measured(r, keys[i], bench_quantile(x, n, q[i]), 1e3, units[!first][i], 2);
}

/* Tokens a second over the whole run, from the first request to the last answer; gaps between
 * tokens of all answers together. */
static fv_status report(load *l, double *gap, double *first, fv_err *e)
{
    static const char *const ttft[] = {"first_token_s.p50", "first_token_s.p95",
                                       "first_token_s.p99"};
    static const char *const between[] = {"between_tokens_s.p50", "between_tokens_s.p95",
                                          "between_tokens_s.p99"};
    const load_values *v = l->v;
    int64_t tokens = 0, gaps = 0, n = 0, failed = 0;
    double end = l->start;
    for (int64_t i = 0; i < v->requests; i++) {
        const request *r = &l->all[i];
        bool ok = r->status == 200 && r->tokens > 0;
        failed += !ok;
        tokens += r->tokens;
        if (ok) first[n++] = r->first - r->sent;
        if (r->end > end) end = r->end;
        memcpy(gap + gaps, r->gaps, (size_t)r->n_gaps * sizeof *gap);
        gaps += r->n_gaps;
    }
    double seconds = end - l->start;
    bench_row r = {.name = "serve"};
    bench_number(&r, "requests", (double)v->requests);
    bench_number(&r, "failed", (double)failed);
    bench_number(&r, "tokens", (double)tokens);
    bench_measured(&r, "seconds", seconds, 1, "s", 2);
    bench_measured(&r, "tokens_per_s", (double)tokens / seconds, 1, "tokens/s", 1);
    put_times(&r, ttft, first, n);
    put_times(&r, between, gap, gaps);
    l->opt->print(l->opt->user, &r);
    if (failed) return fv_fail(e, FV_EIO, "%lld requests failed", (long long)failed);
    return FV_OK;
}

/* Gaps between tokens are pooled over all requests: a percentile of percentiles says nothing. */
static fv_status report_all(load *l, fv_err *e)
{
    int64_t gaps = 0;
    for (int64_t i = 0; i < l->v->requests; i++) gaps += l->all[i].n_gaps;
    double *gap = malloc((size_t)(gaps + 1) * sizeof *gap),
           *first = malloc((size_t)l->v->requests * sizeof *first);
    fv_status st = gap && first ? report(l, gap, first, e) : fv_fail(e, FV_ENOMEM, "out of memory");
    free(gap);
    free(first);
    return st;
}

/* Small stacks: thousands of threads that wait need little memory each. */
static fv_status run_all(load *l, fv_err *e)
{
    int64_t n = l->v->rate > 0 ? l->v->requests : l->v->clients, started = 0;
    pthread_t *thread = malloc((size_t)n * sizeof *thread);
    pthread_attr_t small;
    if (!thread) return fv_fail(e, FV_ENOMEM, "out of memory");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    l->start = bench_now();
    while (started < n && !pthread_create(&thread[started], &small, work, l)) started++;
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    pthread_attr_destroy(&small);
    free(thread);
    if (started < n)
        return fv_fail(e, FV_ESTATE, "only %lld threads could be started", (long long)started);
    return report_all(l, e);
}

/* A connection is tried first: a server that is not there is one sentence, not as many as there are
 * requests. */
static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    load l = {.opt = o, .v = values};
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    (void)k;
    snprintf(port, sizeof port, "%d", (int)l.v->port);
    int rc = getaddrinfo(l.v->host, port, &hints, &l.to);
    if (rc) return fv_fail(e, FV_EIO, "%s: %s", l.v->host, gai_strerror(rc));
    int fd = connect_to(&l);
    fv_status st = FV_OK;
    if (fd < 0) st = fv_fail(e, FV_EIO, "nothing listens at port %s: %s", port, strerror(errno));
    if (fd >= 0) close(fd);
    if (!st) st = plan(&l, e);
    if (!st) st = run_all(&l, e);
    for (int64_t i = 0; l.all && i < l.v->requests; i++) free(l.all[i].gaps);
    free(l.all);
    freeaddrinfo(l.to);
    return st;
}

const bench_kind bench_serve[] = {
    {.name = "serve",
     .summary = "load on a server of completions: tokens a second, times to tokens",
     .about = "Sends streaming completions to a server that speaks OpenAI's interface, fovea serve "
              "or another, and reports tokens a second and, of the time to the first token and "
              "between tokens, the 50th, 95th and 99th percentile.  Prompts are random ids.",
     .examples = examples,
     .options = options,
     .size = sizeof(load_values),
     .run = run},
    {0}};
