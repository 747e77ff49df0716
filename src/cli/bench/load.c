/* load.c - fovea bench serve: requests to a server of completions, and how long its tokens take.
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

#include "cli/json.h"

typedef struct load_values {
    const char *host, *model, *key;
    int64_t port, clients, requests, prompt, made, vocab, seed;
    double rate;
    bool spread, attention, json;
} load_values;

static const load_values defaults = {
    .port = 8080, .clients = 8, .requests = 64, .prompt = 64, .made = 64, .vocab = 400, .seed = 1};

static const cli_option options[] = {
    CLI_TEXT(load_values, host, 0, "host", "HOST", "of the server; 127.0.0.1 unless given"),
    CLI_INT(load_values, port, 0, "port", "N", 1, 65535, "of the server"),
    CLI_TEXT(load_values, model, 'm', "model", "NAME", "that is asked; the first unless given"),
    CLI_TEXT(load_values, key, 0, "api-key", "KEY", "where the server needs one"),
    CLI_INT(load_values, clients, 0, "clients", "N", 1, 4096, "that ask one thing after another"),
    CLI_REAL(load_values, rate, 0, "rate", "N", 0, 1e6,
             "instead: requests a second, at the intervals of a Poisson process"),
    CLI_INT(load_values, requests, 0, "requests", "N", 1, 1 << 20, "in all"),
    CLI_INT(load_values, prompt, 0, "len", "N", 1, 1 << 20, "tokens of a prompt, in the mean"),
    CLI_INT(load_values, made, 0, "new", "N", 1, 1 << 20, "tokens to write, in the mean"),
    CLI_FLAG(load_values, spread, 0, "spread", "lengths vary, log-normally, as conversations do"),
    CLI_INT(load_values, vocab, 0, "vocab", "N", 10, 1 << 24, "ids of prompts are below this"),
    CLI_FLAG(load_values, attention, 0, "attention",
             "also ask for the weights of one head of the last layer, with every token"),
    CLI_INT(load_values, seed, 0, "seed", "N", 0, 1e15, "of lengths, prompts and intervals"),
    CLI_FLAG(load_values, json, 0, "json", "print one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea bench serve --port 8080 --clients 8 --len 64 --new 64", "eight clients"},
    {"fovea bench serve --rate 4 --requests 200 --spread --json", "as users come and go"},
    {0},
};

/* ---- one request ---- */

typedef struct load load;

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
    const cli *c;
    const load_values *v;
    struct addrinfo *to;
    request *all;
    _Atomic int64_t next;
    double start;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
    if (v->model) n += snprintf(body + n, room - (size_t)n, "\"model\":\"%.200s\",", v->model);
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
             v->key ? "Authorization: Bearer " : "", v->key ? v->key : "", v->key ? "\r\n" : "", n,
             body);
    free(body);
    return all;
}

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

static void read_answer(request *r, int fd)
{
    size_t cap = 1 << 16, n = 0;
    char *buf = malloc(cap);
    double last = 0;
    for (ssize_t k; buf && (k = recv(fd, buf + n, cap - n - 1, 0)) > 0;) {
        double at = now();
        n += (size_t)k;
        buf[n] = 0;
        if (!r->status && n > 12) r->status = atoi(buf + 9);
        char *from = buf;
        for (char *end; (end = strchr(from, '\n')); from = end + 1) {
            *end = 0;
            take_line(r, from, at, &last);
        }
        n -= (size_t)(from - buf);
        memmove(buf, from, n);
        if (n + 1 < cap) continue;
        char *more = realloc(buf, cap *= 2);
        if (!more) break;
        buf = more;
    }
    free(buf);
}

static void run_request(load *l, int64_t i)
{
    request *r = &l->all[i];
    char *text = write_request(r, i);
    r->gaps = calloc((size_t)r->made + 1, sizeof *r->gaps);
    r->sent = now();
    int fd = text && r->gaps ? connect_to(l) : -1;
    size_t n = text ? strlen(text) : 0, done = 0;
    while (fd >= 0 && done < n) {
        ssize_t k = send(fd, text + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) break;
        done += (size_t)k;
    }
    if (fd >= 0) read_answer(r, fd);
    if (fd >= 0) close(fd);
    r->end = now();
    free(text);
}

/* ---- all of them ---- */

/* A client, or (open loop) whoever sends the next request that is due. */
static void *work(void *self)
{
    load *l = self;
    for (int64_t i; (i = l->next++) < l->v->requests;) {
        double wait = l->start + l->all[i].at - now();
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

static int plan(load *l)
{
    const load_values *v = l->v;
    double at = 0;
    l->all = calloc((size_t)v->requests, sizeof *l->all);
    if (!l->all) return cli_fail(l->c, "out of memory");
    for (int64_t i = 0; i < v->requests; i++) {
        request *r = &l->all[i];
        *r = (request){.l = l, .at = at};
        r->prompt = draw_length(v, i, 1, v->prompt);
        r->made = draw_length(v, i, 3, v->made);
        if (v->rate > 0) at -= log(uniform((uint64_t)v->seed, (uint64_t)i, 5)) / v->rate;
    }
    return CLI_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(const double *x, int64_t n, double q)
{
    return n ? x[(int64_t)(q * (double)(n - 1) + 0.5)] : 0;
}

typedef struct times {
    double p50, p95, p99;
} times;

static times quantiles(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return (times){quantile(x, n, 0.5), quantile(x, n, 0.95), quantile(x, n, 0.99)};
}

static void print_times(const char *name, const times *q)
{
    printf("%-14s  p50 %9.2f ms  p95 %9.2f ms  p99 %9.2f ms\n", name, 1e3 * q->p50, 1e3 * q->p95,
           1e3 * q->p99);
}

static int report(load *l)
{
    const load_values *v = l->v;
    int64_t tokens = 0, gaps = 0, n = 0, failed = 0;
    double end = l->start;
    for (int64_t i = 0; i < v->requests; i++) gaps += l->all[i].n_gaps;
    double *gap = malloc((size_t)(gaps + 1) * sizeof *gap),
           *first = malloc((size_t)v->requests * sizeof *first);
    if (!gap || !first) return cli_fail(l->c, "out of memory");
    gaps = 0;
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
    times ttft = quantiles(first, n), between = quantiles(gap, gaps);
    if (!v->json) {
        printf("%lld requests, %lld failed, %lld tokens in %.2f s: %.1f tokens/s\n",
               (long long)v->requests, (long long)failed, (long long)tokens, seconds,
               (double)tokens / seconds);
        print_times("first token", &ttft);
        print_times("between tokens", &between);
    }
    int code = CLI_OK;
    if (v->json) {
        cli_json j = {0};
        cli_json_put(&j, "{s:I, s:I, s:I, s:f, s:f, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}}",
                     "requests", (int64_t)v->requests, "failed", failed, "tokens", tokens,
                     "seconds", seconds, "tokens_per_s", (double)tokens / seconds, "first_token_s",
                     "p50", ttft.p50, "p95", ttft.p95, "p99", ttft.p99, "between_tokens_s", "p50",
                     between.p50, "p95", between.p95, "p99", between.p99);
        cli_json_end();
    }
    free(gap);
    free(first);
    if (!code && failed) code = cli_fail(l->c, "%lld requests failed", (long long)failed);
    return code;
}

static int run_all(load *l)
{
    int64_t n = l->v->rate > 0 ? l->v->requests : l->v->clients, started = 0;
    pthread_t *thread = malloc((size_t)n * sizeof *thread);
    pthread_attr_t small;
    if (!thread) return cli_fail(l->c, "out of memory");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    l->start = now();
    while (started < n && !pthread_create(&thread[started], &small, work, l)) started++;
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    pthread_attr_destroy(&small);
    free(thread);
    return started < n ? cli_fail(l->c, "only %lld threads could be started", (long long)started)
                       : report(l);
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    load l = {.c = c, .v = values};
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    (void)n, (void)operand;
    snprintf(port, sizeof port, "%d", (int)l.v->port);
    int rc = getaddrinfo(l.v->host ? l.v->host : "127.0.0.1", port, &hints, &l.to);
    if (rc) return cli_fail(c, "%s: %s", l.v->host ? l.v->host : "127.0.0.1", gai_strerror(rc));
    int fd = connect_to(&l), code = CLI_OK;
    if (fd < 0) code = cli_fail(c, "nothing listens at port %s: %s", port, strerror(errno));
    if (fd >= 0) close(fd);
    if (!code) code = plan(&l);
    if (!code) code = run_all(&l);
    for (int64_t i = 0; l.all && i < l.v->requests; i++) free(l.all[i].gaps);
    free(l.all);
    freeaddrinfo(l.to);
    return code;
}

const cli_command bench_serve_command = {
    .name = "serve",
    .summary = "load on a server of completions: tokens a second, times to tokens",
    .about = "Sends streaming completions to a server that speaks OpenAI's interface, fovea serve "
             "or another, and reports tokens a second and, of the time to the first token and "
             "between tokens, the 50th, 95th and 99th percentile.  Prompts are random ids.",
    .options = options,
    .size = sizeof(load_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
