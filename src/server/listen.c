/* listen.c - the socket that is listened at: TCP, a Unix socket, or one that systemd hands over.
 *
 * A socket that systemd passes goes before all options, so that a unit can be started by its first
 * connection and restarted without losing one.  A Unix socket is replaced only where nobody
 * listens at it any more. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core.h"

enum { BACKLOG = 1024, FIRST_PASSED = 3 };

/* sd_listen_fds(3) without the library: the first descriptor behind the standard ones. */
static int passed(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    bool ours = pid && n && strtol(pid, NULL, 10) == (long)getpid() && strtol(n, NULL, 10) >= 1;
    return ours ? FIRST_PASSED : -1;
}

/* A socket that nobody listens at any more may be replaced; anything else at that path may not. */
static fv_status clear_path(const struct sockaddr_un *at, fv_err *e)
{
    struct stat info;
    if (lstat(at->sun_path, &info)) return FV_OK;
    if (!S_ISSOCK(info.st_mode))
        return fv_fail(e, FV_EARG, "%s: something that is no socket is there", at->sun_path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool taken = probe >= 0 && !connect(probe, (const struct sockaddr *)at, sizeof *at);
    if (probe >= 0) close(probe);
    if (taken) return fv_fail(e, FV_EIO, "%s: another server listens there", at->sun_path);
    unlink(at->sun_path);
    return FV_OK;
}

/* The path is cleared first where a dead server left it; clear_path refuses one that is in use. */
static int listen_unix(const char *path, fv_err *e)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) {
        fv_fail(e, FV_EARG, "%s: the path of a socket has at most %zu characters", path,
                sizeof at.sun_path - 1);
        return -1;
    }
    memcpy(at.sun_path, path, strlen(path));
    if (clear_path(&at, e)) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, BACKLOG)) return fd;
    fv_fail(e, FV_EIO, "%s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

/* SO_REUSEADDR: a restart does not wait for connections that are still closing. */
static int try_address(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG)) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* The first address of the host that can be bound: "localhost" may be ::1 as well as 127.0.0.1. */
static int listen_tcp(const char *host, int64_t port, fv_err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *all;
    char service[16];
    int fd = -1;
    snprintf(service, sizeof service, "%d", (int)port);
    int rc = getaddrinfo(host, service, &hints, &all);
    if (rc) {
        fv_fail(e, FV_EIO, "%s: %s", host, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *a = all; a && fd < 0; a = a->ai_next) fd = try_address(a);
    if (fd < 0) fv_fail(e, FV_EIO, "%s port %s: %s", host, service, strerror(errno));
    freeaddrinfo(all);
    return fd;
}

/* As the system has it, since port 0 was a wish for any. */
static void describe(int fd, char *what, size_t n)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[64] = "?", port[16] = "?";
    if (!getsockname(fd, (struct sockaddr *)&at, &len))
        getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool six = at.ss_family == AF_INET6;
    snprintf(what, n, "http://%s%s%s:%s", six ? "[" : "", host, six ? "]" : "", port);
}

/* systemd's socket comes before the options: a unit that passes one means it. -1: *e says why. */
int sv_listen(const sv_opt *o, char *what, size_t n, fv_err *e)
{
    int fd = passed();
    if (fd >= 0) {
        snprintf(what, n, "the socket of systemd");
        return fd;
    }
    if (o->socket) {
        snprintf(what, n, "%s", o->socket);
        return listen_unix(o->socket, e);
    }
    fd = listen_tcp(o->host ? o->host : "127.0.0.1", o->port, e);
    if (fd >= 0) describe(fd, what, n);
    return fd;
}
