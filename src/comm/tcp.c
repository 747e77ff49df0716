/* tcp.c - ranks that are processes, by TCP through rank 0: for jobs of torchrun, which MPI cannot
 * join.
 *
 * It is what ranks need beside NCCL: its id, counts, agreements, heartbeats, and who is lost.
 * Messages between two other ranks pass through rank 0, which is plain and enough for that;
 * gradients of CPUs can go this way too, and on a cluster should go by MPI.  A mesh of sockets was
 * the alternative: N^2 of them, and every rank would need a port that the others can reach.
 *
 * One thread reads and writes all sockets.  A frame has a header and its bytes; those that arrive
 * are kept by their sender until an exchange asks for them, in order. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/tcp.h"

#define BEAT 0.5 /* seconds between heartbeats */

/* LEAVE: a rank that ends on purpose, so that its closed connection is no loss. */
typedef enum kind { DATA = 1, HEARTBEAT, DEAD, LEAVE } kind;

/* On the wire as it lies in memory: all ranks run one build, which training compares. */
typedef struct header {
    int32_t kind, from, to, unused;
    uint64_t bytes;
} header;

typedef struct frame {
    struct frame *next;
    header h;
    char data[];
} frame;

typedef struct queue {
    frame *first, *last;
} queue;

/* A socket, with the frame that is being read and how much of the first to write is out. */
typedef struct line {
    int fd;
    header h;
    size_t have; /* of the header, then of the data */
    frame *reading;
    queue out;
    size_t sent;
    double heard;
    bool left; /* it has said goodbye */
} line;

/* The thread owns the sockets; callers put frames into queues and wait for those that arrive. */
typedef struct tcp {
    fv_comm *c;
    line *line; /* by rank */
    int *fd;
    struct pollfd *poll;
    queue *in; /* by sender */
    pthread_t thread;
    bool running, quit;
    int wake[2];          /* a pipe: there is something to write */
    pthread_mutex_t lock; /* over what the thread shares */
    pthread_cond_t arrived;
    char dead[512]; /* why nothing goes any more; "": it goes */
    bool told;
} tcp;

/* ---- frames ---- */

/* A size that no job has is a broken stream, not a reason to take all memory. */
static frame *frame_new(tcp *t, header h, const void *data)
{
    if (h.bytes > (uint64_t)1 << 40) return NULL;
    frame *f = fv__alloc_raw(&t->c->env, sizeof *f + (size_t)h.bytes);
    if (!f) return NULL;
    f->next = NULL;
    f->h = h;
    if (data && h.bytes) memcpy(f->data, data, (size_t)h.bytes);
    return f;
}

static void frame_free(tcp *t, frame *f)
{
    if (f) fv__free(&t->c->env, f, sizeof *f + (size_t)f->h.bytes);
}

static void push(queue *q, frame *f)
{
    *(q->first ? &q->last->next : &q->first) = f;
    q->last = f;
}

static frame *pop(queue *q)
{
    frame *f = q->first;
    if (f) q->first = f->next;
    return f;
}

static void clear(tcp *t, queue *q)
{
    for (frame *f; (f = pop(q));) frame_free(t, f);
}

/* ---- failure; the lock is held ---- */

static void set_dead(tcp *t, const char *fmt, ...) FV_PRINTF(2, 3);
static void set_dead(tcp *t, const char *fmt, ...)
{
    va_list ap;
    if (*t->dead) return;
    va_start(ap, fmt);
    vsnprintf(t->dead, sizeof t->dead, fmt, ap);
    va_end(ap);
    pthread_cond_broadcast(&t->arrived);
}

/* The socket on which a frame for rank `to` goes: everything but rank 0's own goes through it. */
static line *line_to(tcp *t, int to) { return &t->line[t->c->rank ? 0 : to]; }

/* false: memory is out.  The data are copied, so the caller's are free at once. */
static bool queue_frame(tcp *t, kind k, int to, const void *data, size_t bytes)
{
    header h = {.kind = k, .from = t->c->rank, .to = to, .bytes = bytes};
    frame *f = frame_new(t, h, data);
    if (f) push(&line_to(t, to)->out, f);
    return f;
}

/* ---- the thread ---- */

/* A whole frame has come over line r; the lock is held. */
static void receive(tcp *t, int r, frame *f)
{
    const fv_comm *c = t->c;
    int from = f->h.from, to = f->h.to;
    bool ok = from >= 0 && from < c->size && to >= 0 && to < c->size;
    switch (ok ? f->h.kind : 0) {
    case DATA:
        if (to == c->rank)
            push(&t->in[from], f), pthread_cond_broadcast(&t->arrived);
        else if (!c->rank)
            push(&t->line[to].out, f);
        else
            frame_free(t, f);
        return;
    case DEAD: set_dead(t, "%.*s", (int)f->h.bytes, f->data); break;
    case LEAVE: t->line[r].left = true; break;
    case HEARTBEAT: break;
    default: set_dead(t, "rank %d: it sent what is no frame", r);
    }
    frame_free(t, f);
}

/* A connection that closes without a goodbye ends the job for all. */
static void lose(tcp *t, int r)
{
    line *l = &t->line[r];
    close(l->fd);
    l->fd = t->fd[r] = -1;
    if (!l->left && !t->quit) set_dead(t, "rank %d is lost: its connection was closed", r);
}

/* Reads what is there of line r; the lock is held. */
static void read_line(tcp *t, int r)
{
    line *l = &t->line[r];
    for (;;) {
        bool head = !l->reading;
        char *to = head ? (char *)&l->h : l->reading->data;
        size_t want = head ? sizeof l->h : (size_t)l->reading->h.bytes;
        ssize_t n = want > l->have ? recv(l->fd, to + l->have, want - l->have, 0) : 0;
        if (want > l->have && n <= 0) {
            if (n == 0 || (errno != EAGAIN && errno != EINTR)) lose(t, r);
            return;
        }
        l->heard = fv__comm_now();
        l->have += (size_t)n;
        if (l->have < want) continue;
        l->have = 0;
        if (head && !(l->reading = frame_new(t, l->h, NULL))) {
            set_dead(t, "rank %d: out of memory for what rank %d sends", t->c->rank, r);
            lose(t, r);
            return;
        }
        if (head && l->h.bytes) continue;
        frame *f = l->reading;
        l->reading = NULL;
        receive(t, r, f);
    }
}

/* As much as the socket takes; the rest waits for the next round. */
static void write_line(tcp *t, int r)
{
    line *l = &t->line[r];
    while (l->out.first) {
        frame *f = l->out.first;
        size_t all = sizeof f->h + (size_t)f->h.bytes;
        bool head = l->sent < sizeof f->h;
        const char *from = head ? (char *)&f->h + l->sent : f->data + (l->sent - sizeof f->h);
        ssize_t n = send(l->fd, from, head ? sizeof f->h - l->sent : all - l->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) lose(t, r);
            return;
        }
        l->sent += (size_t)n;
        if (l->sent < all) continue;
        l->sent = 0;
        frame_free(t, pop(&l->out));
    }
}

/* Beats to the neighbours, and whom nothing was heard of; late: this process itself was stopped. */
static void look_around(tcp *t, bool beat, bool late)
{
    double now = fv__comm_now();
    bool tell = *t->dead && !t->told;
    for (int r = 0; r < t->c->size; r++) {
        line *l = &t->line[r];
        if (l->fd < 0) continue;
        if (late) l->heard = now;
        if (now - l->heard > t->c->timeout && !l->left)
            set_dead(t, "rank %d is lost: nothing was heard of it for %.0f seconds", r,
                     t->c->timeout);
        if (tell)
            queue_frame(t, DEAD, r, t->dead, strlen(t->dead));
        else if (beat)
            queue_frame(t, HEARTBEAT, r, NULL, 0);
    }
    t->told = t->told || tell;
}

static int list_sockets(tcp *t)
{
    int n = 0;
    t->poll[n++] = (struct pollfd){.fd = t->wake[0], .events = POLLIN};
    for (int r = 0; r < t->c->size; r++)
        t->poll[n++] = (struct pollfd){.fd = t->line[r].fd,
                                       .events = (short)(t->line[r].out.first ? POLLIN | POLLOUT
                                                                              : POLLIN)};
    return n;
}

static bool all_written(const tcp *t)
{
    for (int r = 0; r < t->c->size; r++)
        if (t->line[r].fd >= 0 && t->line[r].out.first) return false;
    return true;
}

/* Waits for any socket, for the pipe, or for the next heartbeat. */
static void *loop(void *self)
{
    tcp *t = self;
    double last = 0, seen = fv__comm_now();
    for (bool quit = false; !quit;) {
        char drop[64];
        pthread_mutex_lock(&t->lock);
        int n = list_sockets(t);
        pthread_mutex_unlock(&t->lock);
        poll(t->poll, (nfds_t)n, 100);
        if (t->poll[0].revents && read(t->wake[0], drop, sizeof drop) < 0) (void)drop;
        pthread_mutex_lock(&t->lock);
        double now = fv__comm_now();
        for (int r = 0; r < t->c->size; r++) {
            if (t->line[r].fd >= 0 && t->poll[r + 1].revents & (POLLIN | POLLHUP | POLLERR))
                read_line(t, r);
            if (t->line[r].fd >= 0) write_line(t, r);
        }
        look_around(t, now - last > BEAT, now - seen > t->c->timeout / 2);
        if (now - last > BEAT) last = now;
        seen = now;
        quit = t->quit && all_written(t);
        bool dead = *t->dead;
        pthread_mutex_unlock(&t->lock);
        if (dead) fv__comm_tell_lost(t->c);
    }
    return NULL;
}

/* The thread waits in poll: a byte in the pipe tells it of new frames. */
static void wake(tcp *t)
{
    if (write(t->wake[1], "w", 1) < 0) return; /* it is full: the thread will wake up anyway */
}

/* ---- collectives ---- */

/* The next frame of a rank; NULL: the job has failed.  The lock is held. */
static frame *next_of(tcp *t, int from)
{
    while (!*t->dead && !t->in[from].first) pthread_cond_wait(&t->arrived, &t->lock);
    return pop(&t->in[from]);
}

/* Sends are queued without waiting; parts of a rank arrive in the order it sent them. */
static fv_status exchange(fv_comm *c, const fv_comm_part *send_, int n_send,
                          const fv_comm_part *recv_, int n_recv, fv_err *e)
{
    tcp *t = c->impl;
    bool ok = true;
    pthread_mutex_lock(&t->lock);
    /* of a job that has failed nothing more is sent: it would look as if all were well */
    fv_status st = *t->dead ? fv_fail(e, FV_EDEVICE, "%s", t->dead) : FV_OK;
    for (int i = 0; !st && i < n_send && ok; i++)
        if (send_[i].rank != c->rank)
            ok = queue_frame(t, DATA, send_[i].rank, send_[i].data, send_[i].bytes);
    if (!ok) set_dead(t, "rank %d: out of memory", c->rank);
    pthread_mutex_unlock(&t->lock);
    wake(t);
    if (!st) fv__comm_copy_own(c, send_, n_send, recv_, n_recv);
    for (int i = 0; i < n_recv && !st; i++) {
        if (recv_[i].rank == c->rank) continue;
        pthread_mutex_lock(&t->lock);
        frame *f = next_of(t, recv_[i].rank);
        if (f && f->h.bytes != recv_[i].bytes)
            set_dead(t, "rank %d: it was sent other parts than it expected", c->rank);
        if (*t->dead) st = fv_fail(e, FV_EDEVICE, "%s", t->dead);
        pthread_mutex_unlock(&t->lock);
        if (!st && f->h.bytes) memcpy(recv_[i].data, f->data, recv_[i].bytes);
        frame_free(t, f);
    }
    return st;
}

static void stop_all(fv_comm *c, const char *why)
{
    tcp *t = c->impl;
    pthread_mutex_lock(&t->lock);
    set_dead(t, "rank %d: %.400s", c->rank, why);
    pthread_mutex_unlock(&t->lock);
    wake(t);
}

/* ---- lifetime ---- */

static void free_tcp(tcp *t)
{
    const fv_env *env = &t->c->env;
    size_t n = (size_t)t->c->size;
    for (size_t r = 0; r < n && t->line; r++) {
        clear(t, &t->line[r].out);
        frame_free(t, t->line[r].reading);
    }
    for (size_t r = 0; r < n && t->in; r++) clear(t, &t->in[r]);
    if (t->fd) fv__tcp_leave(t->fd, (int)n);
    if (t->wake[0] > 0) close(t->wake[0]), close(t->wake[1]);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->arrived);
    fv__free(env, t->line, n * sizeof *t->line);
    fv__free(env, t->fd, n * sizeof *t->fd);
    fv__free(env, t->poll, (n + 1) * sizeof *t->poll);
    fv__free(env, t->in, n * sizeof *t->in);
    fv__free(env, t, sizeof *t);
}

/* Where the job has failed the others hear why before the connection is closed, or they would take
 * this rank for the one that is lost; on a busy machine that takes a while. */
static void wait_until_told(tcp *t)
{
    const struct timespec nap = {0, 10000000};
    double until = fv__comm_now() + 5;
    for (bool told = false; !told && fv__comm_now() < until; nanosleep(&nap, NULL)) {
        pthread_mutex_lock(&t->lock);
        told = t->told && all_written(t);
        pthread_mutex_unlock(&t->lock);
    }
}

static void close_tcp(fv_comm *c)
{
    tcp *t = c->impl;
    fv_status st = fv_comm_barrier(c, NULL);
    if (st) wait_until_told(t);
    pthread_mutex_lock(&t->lock);
    for (int r = 0; !st && r < c->size; r++)
        if (t->line[r].fd >= 0) queue_frame(t, LEAVE, r, NULL, 0);
    t->quit = true;
    /* what a lost rank does not take is not waited for */
    for (int r = 0; st && r < c->size; r++) clear(t, &t->line[r].out);
    pthread_mutex_unlock(&t->lock);
    wake(t);
    if (t->running) pthread_join(t->thread, NULL);
    free_tcp(t);
}

/* Broadcast, barrier and sums are made of exchange. */
static const fv__comm_table table = {.name = "tcp",
                                     .exchange = exchange,
                                     .stop = stop_all,
                                     .close = close_tcp};

static fv_status start(tcp *t, const fv__launch *launch, fv_err *e)
{
    fv_comm *c = t->c;
    size_t n = (size_t)c->size;
    t->line = fv__alloc(&c->env, n * sizeof *t->line);
    t->fd = fv__alloc(&c->env, n * sizeof *t->fd);
    t->poll = fv__alloc(&c->env, (n + 1) * sizeof *t->poll);
    t->in = fv__alloc(&c->env, n * sizeof *t->in);
    if (!t->line || !t->fd || !t->poll || !t->in || pipe2(t->wake, O_NONBLOCK | O_CLOEXEC))
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    fv_status st = fv__tcp_join(t->fd, c, launch, e);
    for (int r = 0; r < c->size; r++)
        t->line[r] = (line){.fd = st ? -1 : t->fd[r], .heard = fv__comm_now()};
    int rc = st ? 0 : pthread_create(&t->thread, NULL, loop, t);
    if (rc) st = fv_fail(e, FV_ENOMEM, "ranks: cannot start a thread: %s", strerror(rc));
    t->running = !st;
    return st;
}

fv_status fv__comm_tcp(fv_comm **out, const fv_env *env, const fv_comm_opt *o, fv_err *e)
{
    fv__launch launch = fv__launch_of_env();
    *out = NULL;
    if (launch.size < 1)
        return fv_fail(e, FV_EARG,
                       "ranks: the engine tcp needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
    fv_comm *c = fv__comm_new(env, &table, o->timeout);
    tcp *t = c ? fv__alloc(env, sizeof *t) : NULL;
    if (!t) {
        if (c) fv__comm_free(c);
        return fv_fail(e, FV_ENOMEM, "ranks: out of memory");
    }
    c->rank = launch.rank;
    c->size = launch.size;
    c->local_rank = launch.local_rank;
    c->local_size = launch.local_size;
    c->impl = t;
    t->c = c;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->arrived, NULL);
    fv_status st = start(t, &launch, e);
    if (!st) {
        *out = c;
        return FV_OK;
    }
    free_tcp(t);
    fv__comm_free(c);
    return st;
}
