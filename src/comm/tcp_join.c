/* tcp_join.c - how ranks that torchrun has started find each other: rank 0 listens at $MASTER_ADDR,
 * the others connect and say who they are.
 *
 * torchrun's own store listens at $MASTER_PORT, so ours is the port above, or $FOVEA_PORT.  What
 * connects and does not say hello the right way is dropped: a port scan must not end a job. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "comm/tcp.h"

/* Who connects: a stranger on the port is turned away by the magic, a rank of another job by the
 * size. */
typedef struct hello {
    char magic[8];
    int32_t rank, size;
} hello;

static const char magic[8] = "fovea01";

static void nap(void)
{
    const struct timespec t = {0, 20000000};
    nanosleep(&t, NULL);
}

/* Sends or receives all of it within a few seconds. */
static bool whole(int fd, void *data, size_t n, bool in)
{
    for (size_t at = 0; at < n;) {
        struct pollfd p = {.fd = fd, .events = in ? POLLIN : POLLOUT};
        if (poll(&p, 1, 5000) != 1) return false;
        ssize_t k = in ? recv(fd, (char *)data + at, n - at, 0)
                       : send(fd, (char *)data + at, n - at, MSG_NOSIGNAL);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (k > 0) at += (size_t)k;
    }
    return true;
}

/* Frames are small and waited for: no Nagle.  Reads and writes are the loop's, so none blocks. */
static void set_up(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* torchrun's own store listens at MASTER_PORT, so the next one is taken unless FOVEA_PORT says
 * another. */
static int port_of(void)
{
    int port = fv__env_int("FOVEA_PORT"), master = fv__env_int("MASTER_PORT");
    return port > 0 ? port : master > 0 ? master + 1 : -1;
}

/* A port that a job has just left can be taken again at once. */
static int listen_at(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024)) return fd;
    close(fd);
    return -1;
}

/* One that has connected; false: it is none of ours. */
static bool take_in(int *fd, const fv_comm *c, int s)
{
    hello h;
    set_up(s);
    if (!whole(s, &h, sizeof h, true) || memcmp(h.magic, magic, sizeof magic)) return false;
    if (h.size != c->size || h.rank < 1 || h.rank >= c->size || fd[h.rank] >= 0) return false;
    fd[h.rank] = s;
    return true;
}

/* Rank 0: until all are here; then all are told. */
static fv_status gather_ranks(int *fd, const fv_comm *c, const struct addrinfo *at, double until,
                              fv_err *e)
{
    int door = listen_at(at), here = 1;
    if (door < 0)
        return fv_fail(e, FV_EIO, "ranks: rank 0 cannot listen at port %d: %s", port_of(),
                       strerror(errno));
    while (here < c->size && fv__comm_now() < until) {
        struct pollfd p = {.fd = door, .events = POLLIN};
        if (poll(&p, 1, 100) != 1) continue;
        int s = accept(door, NULL, NULL);
        if (s < 0) continue;
        if (take_in(fd, c, s))
            here++;
        else
            close(s);
    }
    close(door);
    if (here < c->size) {
        int missing = 1;
        while (fd[missing] >= 0) missing++;
        return fv_fail(e, FV_EDEVICE, "ranks: rank %d has not joined (%d of %d are here)", missing,
                       here, c->size);
    }
    hello h = {.rank = 0, .size = c->size};
    memcpy(h.magic, magic, sizeof magic);
    for (int r = 1; r < c->size; r++)
        if (!whole(fd[r], &h, sizeof h, false))
            return fv_fail(e, FV_EDEVICE, "rank %d is lost: its connection was closed", r);
    return FV_OK;
}

/* Rank 0 may start later than the others: they try again until the time is up. */
static fv_status find_first(int *fd, const fv_comm *c, const struct addrinfo *at, double until,
                            fv_err *e)
{
    hello h = {.rank = c->rank, .size = c->size};
    memcpy(h.magic, magic, sizeof magic);
    for (; fv__comm_now() < until; nap()) {
        int s = socket(at->ai_family, SOCK_STREAM, 0);
        if (s < 0) break;
        if (connect(s, at->ai_addr, at->ai_addrlen)) {
            close(s);
            continue;
        }
        set_up(s);
        fd[0] = s;
        if (!whole(s, &h, sizeof h, false)) break;
        /* rank 0 answers when the last one is here */
        struct pollfd p = {.fd = s, .events = POLLIN};
        double left = until - fv__comm_now();
        if (poll(&p, 1, left > 0 ? (int)(1000 * left) : 0) == 1 && whole(s, &h, sizeof h, true) &&
            !memcmp(h.magic, magic, sizeof magic))
            return FV_OK;
        break;
    }
    return fv_fail(e, FV_EDEVICE, "ranks: rank %d was not taken in by rank 0 at %.100s port %d",
                   c->rank, getenv("MASTER_ADDR"), port_of());
}

fv_status fv__tcp_join(int *fd, fv_comm *c, const fv__launch *launch, fv_err *e)
{
    const char *host = getenv("MASTER_ADDR");
    struct addrinfo *at = NULL,
                    how = {.ai_socktype = SOCK_STREAM, .ai_flags = c->rank ? 0 : AI_PASSIVE};
    char port[16];
    for (int r = 0; r < c->size; r++) fd[r] = -1;
    if (!host || !*host || port_of() < 1 || port_of() > 65535)
        return fv_fail(e, FV_EARG,
                       "ranks: %s started %d processes, but MASTER_ADDR and MASTER_PORT do not say "
                       "where rank 0 is",
                       launch->by ? launch->by : "a launcher", c->size);
    snprintf(port, sizeof port, "%d", port_of());
    /* rank 0 listens for all: its own name may be that of the loopback alone */
    int rc = getaddrinfo(c->rank ? host : NULL, port, &how, &at);
    if (rc) return fv_fail(e, FV_EARG, "ranks: MASTER_ADDR=%.100s: %s", host, gai_strerror(rc));
    double until = fv__comm_now() + 10 * c->timeout;
    fv_status st = (c->rank ? find_first : gather_ranks)(fd, c, at, until, e);
    freeaddrinfo(at);
    if (st) fv__tcp_leave(fd, c->size);
    return st;
}

void fv__tcp_leave(int *fd, int size)
{
    for (int r = 0; r < size; r++) {
        if (fd[r] >= 0) close(fd[r]);
        fd[r] = -1;
    }
}
