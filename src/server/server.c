/* server.c - opening models, waiting for signals, reading models again, draining, closing.
 *
 * Signals are blocked in every thread and waited for in this one, so that reading models again and
 * draining are plain code and no handler.  A model is read again beside the old one: memory holds
 * both for a moment, and a request is never without a model.  That happens at SIGHUP, and where a
 * directory of versions (`fovea promote`) names another one: its file CURRENT is looked at every
 * second, which every file system can do, where inotify sees no change made by another machine.
 *
 * Draining closes the socket that listens and waits for requests that run; idle connections are
 * closed by their deadlines or at the end. */
#include "server.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"
#include "ranks.h"

/* ---- models ---- */

/* An adapter whose model nobody serves, or that has none to offer, is a mistake of the operator. */
static fv_status check_adapters(sv_server *s, fv_err *e)
{
    for (int i = 0; i < s->opt.n_adapters; i++) {
        const sv_adapter *a = &s->opt.adapters[i];
        const sv_engine *g = NULL;
        for (int k = 0; k < s->opt.n_models && !g; k++)
            if (!strcmp(s->engine[k]->name, a->model)) g = s->engine[k];
        if (!g) return fv_fail(e, FV_EARG, "adapter %s: no model %s is served", a->name, a->model);
        if (!g->generates)
            return fv_fail(e, FV_EARG, "adapter %s: %s does not write text", a->name, a->model);
    }
    return FV_OK;
}

/* The model is opened beside the one that serves and takes its place; requests that run keep
 * theirs.  One that does not open leaves what there was. */
static void reload_model(sv_server *s, int i)
{
    fv_err e;
    sv_engine *fresh, *old = s->engine[i];
    if (sv_shared(&s->opt)) {
        sv_log("error", "%s: ranks share it, so it is not read again", old->name);
        return;
    }
    if (sv_engine_open(&fresh, s, old->name, old->dir, &e)) {
        sv_log("error", "%s: not read again, the old one goes on: %s", old->name, e.text);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->engine[i] = fresh;
    pthread_mutex_unlock(&s->lock);
    sv_log("info", "%s: read again", fresh->name);
    sv_engine_drop(old);
}

/* Whether a directory's CURRENT is another file than at the last look; that it is new, or gone, is
 * a change too. */
static bool version_changed(const char *dir, sv_stamp *seen)
{
    char path[4096];
    struct stat now = {0};
    int n = snprintf(path, sizeof path, "%s/CURRENT", dir);
    if (n < 0 || (size_t)n >= sizeof path || stat(path, &now)) now = (struct stat){0};
    sv_stamp is = {(int64_t)now.st_ino, now.st_mtim.tv_sec, now.st_mtim.tv_nsec};
    bool changed = memcmp(seen, &is, sizeof is);
    *seen = is;
    return changed;
}

/* Reads models again whose version, or whose adapter's, is another one now; at first only looks. */
static void follow_versions(sv_server *s, bool first)
{
    for (int i = 0; i < s->opt.n_models; i++) {
        const sv_model *m = &s->opt.models[i];
        bool changed = version_changed(m->dir, &s->versions[i]);
        for (int k = 0; k < s->opt.n_adapters; k++)
            if (!strcmp(s->opt.adapters[k].model, m->name))
                changed |= version_changed(s->opt.adapters[k].dir, &s->versions[SV_MAX_MODELS + k]);
        if (changed && !first) reload_model(s, i);
    }
}

static fv_status open_models(sv_server *s, fv_err *e)
{
    follow_versions(s, true); /* before they are opened: a change from here on is seen */
    for (int i = 0; i < s->opt.n_models; i++) {
        const sv_model *m = &s->opt.models[i];
        double from = sv_now();
        fv_status st = sv_engine_open(&s->engine[i], s, m->name, m->dir, e);
        if (st) return st;
        sv_log("info", "%s: open after %.2f s", m->name, sv_now() - from);
    }
    return check_adapters(s, e);
}

static void reload(sv_server *s)
{
    fv_err e;
    sv_keys *keys;
    for (int i = 0; i < s->opt.n_models; i++) reload_model(s, i);
    if (!s->opt.keys) return;
    if (sv_keys_read(&keys, s->opt.keys, &e)) {
        sv_log("error", "keys not read again, the old ones hold: %s", e.text);
        return;
    }
    pthread_mutex_lock(&s->lock);
    sv_keys *old = s->keys;
    s->keys = keys;
    pthread_mutex_unlock(&s->lock);
    free(old);
    sv_log("info", "keys read again: %d", keys->n);
}

/* Engines close on their own threads; this waits for the last. */
static void close_models(sv_server *s)
{
    for (int i = 0; i < s->opt.n_models; i++)
        if (s->engine[i]) sv_engine_drop(s->engine[i]);
    sv_checkpoints_close(s);
    pthread_mutex_lock(&s->lock);
    while (s->engines > 0) pthread_cond_wait(&s->closed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- HTTP ---- */

/* Every connection takes a descriptor. */
static void raise_limits(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* A token of a stream is some microseconds of the thread that sends it, which a fast GPU's hundred
 * thousand tokens a second are too much for; with few cores the model needs them more. */
static unsigned http_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores >= 16 ? 4 : cores >= 8 ? 2 : 1;
}

/* No timeout of libmicrohttpd's own: it would close streams that have waited long for their first
 * token.  All deadlines are watch.c's. */
static fv_status start_http(sv_server *s, fv_err *e)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    unsigned threads = http_threads();
    struct MHD_OptionItem more[] = {{MHD_OPTION_END, 0, NULL}, {MHD_OPTION_END, 0, NULL}};
    if (threads > 1)
        more[0] = (struct MHD_OptionItem){MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)threads, NULL};
    raise_limits();
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, sv_handle, s, MHD_OPTION_LISTEN_SOCKET,
                                 s->socket, MHD_OPTION_NOTIFY_COMPLETED, sv_completed, s,
                                 MHD_OPTION_NOTIFY_CONNECTION, sv_connected, s,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->opt.connections,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)16384,
                                 MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK,
                                 sv_unescape, s, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
    if (s->daemon) return FV_OK;
    return fv_fail(e, FV_EIO, "the HTTP server does not start: %s", strerror(errno));
}

/* ---- waiting and ending ---- */

/* Signals are waited for, not handled: reloading takes locks and memory, which a handler must not.
 */
static void wait_for_signals(sv_server *s, const sigset_t *set)
{
    struct timespec second = {.tv_sec = 1};
    for (int sig = 0; sig != SIGTERM && sig != SIGINT;) {
        sig = sigtimedwait(set, NULL, &second);
        if (sig == SIGHUP) reload(s);
        if (sig < 0) follow_versions(s, false);
    }
}

/* No new connections; what runs may go on for a while, or until the signal comes again. */
static void drain(sv_server *s, const sigset_t *set)
{
    struct timespec tick = {.tv_nsec = 20000000};
    double until = sv_now() + 1e-3 * (double)s->opt.drain_ms;
    s->draining = true;
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET) close(fd);
    sv_log("info", "draining: %lld requests", (long long)s->active);
    while (s->active > 0 && sv_now() < until) {
        int sig = sigtimedwait(set, NULL, &tick);
        if (sig == SIGTERM || sig == SIGINT) break;
    }
}

/* Requests that are left are told that their clients have gone: nobody will send an answer. */
static void abandon_all(sv_server *s)
{
    for (int n = 1; n > 0;) {
        n = 0;
        pthread_mutex_lock(&s->watch_lock);
        sv_request *r = NULL;
        for (sv_connection *c = s->open; c && !r; c = c->next)
            if (c->waits) r = sv_hold(c->waits), c->waits = NULL;
        pthread_mutex_unlock(&s->watch_lock);
        if (!r) break;
        n = 1;
        sv_abandon(r);
        sv_refuse(r, 503, "overloaded_error", NULL, "the server is shutting down");
        sv_drop(r);
    }
}

/* In this order, so that what fails is said before a client can connect; and back: the listener is
 * the last to be told, after running answers have come to their end or their time is up. */
static fv_status serve(sv_server *s, const sigset_t *set, fv_err *e)
{
    char where[128];
    fv_status st = open_models(s, e);
    if (!st && s->opt.keys) st = sv_keys_read(&s->keys, s->opt.keys, e);
    if (st) return st;
    s->socket = sv_listen(&s->opt, where, sizeof where, e);
    if (s->socket < 0) return e ? e->code : FV_EIO;
    if (!sv_watch_open(s)) return fv_fail(e, FV_EIO, "no thread can be started");
    st = start_http(s, e);
    if (!st) {
        sv_log("info", "listening at %s", where);
        wait_for_signals(s, set);
        drain(s, set);
        abandon_all(s);
        while (s->resuming) sched_yield(); /* nothing new is resumed: everybody has gone */
        MHD_stop_daemon(s->daemon);
    }
    sv_watch_close(s);
    if (s->opt.socket) unlink(s->opt.socket);
    return st;
}

/* glibc would raise the size from which on a block has pages of its own with each large block that
 * is freed, up to 32 MiB; weights and caches would then lie in heaps among small blocks, and what a
 * model held could not go back when it is read again. */
static void keep_large_blocks_apart(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
#endif
}

fv_status sv_serve(const sv_opt *opt, fv_err *e)
{
    sigset_t set;
    fv_status shared = sv_check_ranks(opt, e);
    if (shared) return shared;
    if (sv_follows(opt)) return sv_follow(opt, e);
    keep_large_blocks_apart();
    sv_server *s = calloc(1, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "out of memory");
    s->opt = *opt;
    s->started = sv_now();
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->shown_lock, NULL);
    pthread_cond_init(&s->closed, NULL);
    pthread_mutex_init(&s->watch_lock, NULL);
    /* before any thread is started, so that all of them leave these signals to this one */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    fv_status st = sv_open_device(&s->device, opt, e);
    if (!st) st = serve(s, &set, e);
    close_models(s);
    fv_device_close(s->device);
    free(s->keys);
    free(s);
    return st;
}
