/* watch.c - deadlines of connections, and clients that go away while they wait.
 *
 * libmicrohttpd knows only how long a connection was silent, so a client that sends a byte now and
 * then could hold one for ever; and it does not look at a connection that is suspended, so a client
 * that has gone would be generated for to the end.  One thread does both: it shuts the socket of
 * whoever is late, and waits with epoll of its own for the end of those who wait.  The socket
 * stays libmicrohttpd's, which notices the shutdown and closes it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core.h"

enum { EVERY_MS = 200 };

/* libmicrohttpd tells of connections here: a new one gets the deadline of a head. */
void sv_connected(void *server, struct MHD_Connection *mhd, void **self,
                  enum MHD_ConnectionNotificationCode what)
{
    sv_server *s = server;
    sv_connection *c = *self;
    pthread_mutex_lock(&s->watch_lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *fd =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = calloc(1, sizeof *c);
        if (c && fd) {
            c->fd = fd->connect_fd;
            c->serial = ++s->last_connection;
            c->deadline = sv_now() + 1e-3 * (double)s->opt.header_ms;
            c->next = s->open;
            if (c->next) c->next->prev = c;
            s->open = c;
            s->connections++;
        }
        *self = c;
    } else if (c) {
        if (c->next) c->next->prev = c->prev;
        if (c->prev) c->prev->next = c->next;
        if (s->open == c) s->open = c->next;
        s->connections--;
        free(c);
        *self = NULL;
    }
    pthread_mutex_unlock(&s->watch_lock);
}

/* A connection's deadline, 0 for none, and the request that must hear when the client closes its
 * side. EPOLLRDHUP comes without reading, which libmicrohttpd does; one shot, so that a client that
 * stays half closed does not spin the thread. */
void sv_watch(sv_server *s, sv_connection *c, int64_t ms, sv_request *waits)
{
    if (!c) return;
    pthread_mutex_lock(&s->watch_lock);
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = c->serial};
    c->deadline = ms ? sv_now() + 1e-3 * (double)ms : 0;
    if (waits && epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &ev) && errno == EEXIST)
        epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &ev);
    c->waits = waits;
    pthread_mutex_unlock(&s->watch_lock);
}

/* The client of a waiting request has closed its side.  What runs for it ends; then the answer,
 * which nobody reads, lets libmicrohttpd go on and close the connection. */
static void tell_gone(sv_server *s, uint64_t serial)
{
    sv_request *r = NULL;
    pthread_mutex_lock(&s->watch_lock);
    for (sv_connection *c = s->open; c && !r; c = c->next)
        if (c->serial == serial && c->waits) r = sv_hold(c->waits);
    pthread_mutex_unlock(&s->watch_lock);
    if (!r) return;
    sv_abandon(r);
    sv_refuse(r, 499, "client_closed_request", NULL, "the client has gone");
    sv_drop(r);
}

/* Only the socket is shut: the connection is libmicrohttpd's, which sees the end and closes it. */
static void close_late(sv_server *s)
{
    double now = sv_now();
    pthread_mutex_lock(&s->watch_lock);
    for (sv_connection *c = s->open; c; c = c->next)
        if (c->deadline > 0 && now > c->deadline) {
            shutdown(c->fd, SHUT_RDWR);
            c->deadline = now + 5; /* once more, should it not have helped */
        }
    pthread_mutex_unlock(&s->watch_lock);
}

/* Wakes at least every EVERY_MS to close what is late; an event may come between, so the time of
 * the next round is kept apart. */
static void *watch(void *self)
{
    sv_server *s = self;
    struct epoll_event ev[64];
    double next = 0;
    sv_name_thread("fovea-watch");
    while (!s->closing) {
        int n = epoll_wait(s->epoll, ev, 64, EVERY_MS);
        for (int i = 0; i < n; i++)
            if (ev[i].data.u64) tell_gone(s, ev[i].data.u64);
        if (sv_now() < next) continue;
        next = sv_now() + 1e-3 * EVERY_MS;
        close_late(s);
    }
    return NULL;
}

bool sv_watch_open(sv_server *s)
{
    struct epoll_event ev = {.events = EPOLLIN};
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll < 0 || s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &ev))
        return false;
    return !pthread_create(&s->watcher, NULL, watch, s);
}

/* The eventfd, whose number is 0, wakes epoll_wait at once. */
void sv_watch_close(sv_server *s)
{
    s->closing = true;
    if (eventfd_write(s->wake, 1)) return;
    pthread_join(s->watcher, NULL);
    close(s->epoll);
    close(s->wake);
}
