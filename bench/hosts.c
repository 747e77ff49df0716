/* hosts.c - a switch with long links, for network namespaces that stand for machines (netns.sh).
 *
 *     cc -O2 -o hosts hosts.c && ./hosts NAME N DELAY_US
 *
 * Makes N tap devices NAME1 .. NAMEn, prints "ready", and passes Ethernet frames between them until
 * it is killed.  What a host sends arrives DELAY_US later, as by the kernel's netem where that is
 * built in.  The bandwidth is limited in the host (tc's tbf), whose sockets then wait for their
 * turn as they do for a network card; a switch that is the bottleneck itself must drop frames.
 *
 * Frames of one sender arrive in the order in which they were sent, so a ring for each is enough.
 * It runs with real-time priority where it may: a delay must not depend on what else runs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 16, FRAME = 1600, RING = 4096 };

typedef struct frame {
    double due; /* seconds */
    int n;
    uint8_t data[FRAME];
} frame;

typedef struct host {
    int fd;
    uint8_t mac[6];
    frame *ring;
    unsigned first, count;
} host;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int open_tap(const char *name, int i)
{
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%.11s%d", name, i);
    return fd < 0 || ioctl(fd, TUNSETIFF, &r) ? -1 : fd;
}

/* All that a host has to say now; each frame gets the time at which it arrives. */
static void take(host *h, double delay)
{
    for (;;) {
        frame *f = &h->ring[(h->first + h->count) % RING], spare;
        if (h->count == RING) f = &spare;
        ssize_t n = read(h->fd, f->data, FRAME);
        if (n <= 0) return;
        if (n >= 12) memcpy(h->mac, f->data + 6, 6);
        if (f == &spare) continue;
        f->due = now() + delay;
        f->n = (int)n;
        h->count++;
    }
}

/* To the host with the frame's address, or to all others. */
static void deliver(host *all, int n, int from, const frame *f)
{
    int to = -1;
    for (int i = 0; i < n; i++)
        if (i != from && !memcmp(all[i].mac, f->data, 6)) to = i;
    for (int i = 0; i < n; i++)
        if (i != from && (to < 0 || i == to) && write(all[i].fd, f->data, (size_t)f->n) < 0)
            continue; /* a host that does not listen */
}

int main(int argc, char **argv)
{
    static host all[HOSTS];
    struct pollfd wait[HOSTS];
    int n = argc == 4 ? atoi(argv[2]) : 0;
    double delay = argc == 4 ? atof(argv[3]) * 1e-6 : 0;
    struct sched_param first = {.sched_priority = 50};
    if (n < 2 || n > HOSTS) {
        fprintf(stderr, "hosts NAME N DELAY_US\n");
        return 2;
    }
    sched_setscheduler(0, SCHED_FIFO, &first);
    for (int i = 0; i < n; i++) {
        all[i].fd = open_tap(argv[1], i + 1);
        all[i].ring = malloc(RING * sizeof *all[i].ring);
        if (all[i].fd < 0 || !all[i].ring) {
            perror("hosts: a tap device");
            return 1;
        }
        wait[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        double t = now(), next = t + 1;
        for (int i = 0; i < n; i++) {
            host *h = &all[i];
            for (; h->count && h->ring[h->first].due <= t;
                 h->count--, h->first = (h->first + 1) % RING)
                deliver(all, n, i, &h->ring[h->first]);
            if (h->count && h->ring[h->first].due < next) next = h->ring[h->first].due;
        }
        double left = next - now();
        struct timespec pause = {.tv_nsec = left > 0 ? (long)(left * 1e9) : 0};
        if (left >= 1) pause = (struct timespec){.tv_sec = 1};
        ppoll(wait, (nfds_t)n, &pause, NULL);
        for (int i = 0; i < n; i++) take(&all[i], delay);
    }
}
