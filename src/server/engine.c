/* engine.c - a model that is open, and the thread that runs it.
 *
 * The thread steps the scheduler while sequences are in flight, and between two steps runs one
 * piece of other work (embeddings, labels, translations, attention of a given text): so a long
 * queue of such work delays sequences by one piece a step and no more.  One thread a model keeps
 * contexts and tasks, which belong to one thread each, free of locks. */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "media.h"
#include "ranks.h"

enum { MOST_WORK = 1024 };

/* ---- opening ---- */

/* Each adapter is a copy of the model with other weights.  Applied beside the weights instead, an
 * adapter would take a few megabytes, and every token two more products for each of its maps and
 * kernels that take rows of several adapters; folded, a token costs what it costs without. */
static fv_status open_adapter(sv_engine *g, const sv_adapter *a, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_adapter_use use = {.dir = a->dir, .weight = 1};
    fv_model_opt how = {.serve = true, .weights = o->weights, .widen = o->widen};
    how.adapters = (fv_adapter_list){.at = &use, .n = 1};
    sv_adapted *x = &g->adapted[g->n_adapted];
    *x = (sv_adapted){.name = a->name};
    fv_status st = fv_model_open(&x->model, g->device, g->dir, how, e);
    if (st) return st;
    g->n_adapted++;
    return fv_scheduler_add_model(g->scheduler, &x->number, x->model, e);
}

static fv_status open_adapters(sv_engine *g, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_status st = FV_OK;
    g->adapted = calloc((size_t)o->n_adapters + 1, sizeof *g->adapted);
    if (!g->adapted) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; i < o->n_adapters && !st; i++)
        if (!strcmp(o->adapters[i].model, g->name)) st = open_adapter(g, &o->adapters[i], e);
    return st;
}

/* A budget that is not of pages makes rows fewer, which nobody would look for. */
static void say_rows(const sv_engine *g)
{
    int64_t asked = g->server->opt.scheduler.rows, rows = fv_scheduler_stats(g->scheduler).rows;
    if (rows < asked)
        sv_log("info", "%s: the KV cache is not paged here: %lld rows within its budget, not %lld",
               g->name, (long long)rows, (long long)asked);
}

static fv_status open_generation(sv_engine *g, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_err why;
    fv_writer_opt how = sv_writer_opt(o);
    fv_model_free(g->model); /* the writer opens its own */
    g->model = NULL;
    fv_status st = fv_writer_open(&g->writer, g->device, g->dir, how, e);
    if (st) return st;
    g->tok = g->writer.tok;
    if (fv_chat_template_open(&g->template, NULL, g->dir, &why))
        snprintf(g->no_template, sizeof g->no_template, "%s", why.text);
    g->generates = true;
    st = fv_scheduler_new(&g->scheduler, g->device, g->writer.model, o->scheduler, e);
    if (!st) say_rows(g);
    if (!st) st = sv_outputs_open(&g->outputs, e);
    return st ? st : open_adapters(g, e);
}

/* Tasks are opened when first asked for: a causal model that nobody embeds with holds one model. */
static fv_status open_task(sv_engine *g, fv_job job, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_model_opt how = {.serve = true, .weights = o->weights, .widen = o->widen};
    if (sv_shared(o)) return sv_refuse_shared(e);
    return fv_task_open(&g->task[job], g->device, g->dir, job, how, e);
}

static fv_status open_translator(sv_engine *g, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_translate_opt how = {.weights = o->weights, .widen = o->widen, .attention = true};
    return fv_translator_open(&g->translator, g->device, g->dir, how, e);
}

/* The pipeline opens its own model. */
static fv_status open_media(sv_engine *g, fv_err *e)
{
    const sv_opt *o = &g->server->opt;
    fv_pipeline_opt how = {.task = g->media, .model = g->dir, .json = true};
    how.weights = o->weights, how.widen = o->widen;
    fv_model_free(g->model);
    g->model = NULL;
    return fv_pipeline_open(&g->pipeline, g->device, how, e);
}

/* Opens what the model is for, so that a directory that cannot be served is refused at once. */
static fv_status open_model(sv_engine *g, fv_err *e)
{
    static const fv_job jobs[] = {[FV_HEAD_BASE] = FV_JOB_EMBED,
                                  [FV_HEAD_ENCODER] = FV_JOB_EMBED,
                                  [FV_HEAD_MASKED_LM] = FV_JOB_FILL,
                                  [FV_HEAD_CLASSIFY] = FV_JOB_CLASSIFY,
                                  [FV_HEAD_TAG] = FV_JOB_TAG,
                                  [FV_HEAD_ANSWER] = FV_JOB_ANSWER,
                                  [FV_HEAD_NEXT_SENTENCE] = FV_JOB_EMBED,
                                  [FV_HEAD_PRETRAINING] = FV_JOB_EMBED};
    const sv_opt *o = &g->server->opt;
    fv_model_opt how = {.serve = true, .weights = o->weights, .widen = o->widen};
    if (sv_shared(o)) { /* too large to be opened alone: it generates, or is refused */
        g->job = FV_HEAD_CAUSAL_LM;
        return open_generation(g, e);
    }
    fv_status st = fv_model_open(&g->model, g->device, g->dir, how, e);
    if (st) return st;
    g->job = fv_model_job(g->model);
    if (g->job == FV_HEAD_CAUSAL_LM) return open_generation(g, e);
    g->media = sv_media_task(g->model, g->job);
    if (g->media) return open_media(g, e);
    st = fv_tok_open(&g->tok, NULL, g->dir, e);
    if (st) return st;
    if (g->job == FV_HEAD_SEQ2SEQ) return open_translator(g, e);
    if ((size_t)g->job >= sizeof jobs / sizeof *jobs)
        return fv_fail(e, FV_EMISSING, "%s: the server has no task for such a model", g->dir);
    return open_task(g, jobs[g->job], e);
}

/* What a model held lies scattered between what its successor holds: glibc keeps such pages unless
 * it is told, and a server that reads its models again every minute would grow by some megabytes
 * each time. */
static void give_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void close_engine(sv_engine *g)
{
    sv_outputs_close(&g->outputs);
    sv_seen_free(g);
    fv_scheduler_free(g->scheduler);
    for (int i = 0; i < g->n_adapted; i++) fv_model_free(g->adapted[i].model);
    free(g->adapted);
    for (int i = 0; i < g->n_spare; i++) fv_encoding_free(g->spare[i]);
    for (int i = 0; i <= FV_JOB_ANSWER; i++) fv_task_close(g->task[i]);
    fv_translator_close(g->translator);
    fv_pipeline_close(g->pipeline);
    fv_model_free(g->model);
    fv_token_bytes_free(g->bytes);
    fv_chat_template_close(g->template);
    if (!g->generates) fv_tok_close(g->tok);
    fv_tok_close(g->words);
    fv_writer_close(&g->writer);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->bytes_lock);
    pthread_cond_destroy(&g->wake);
    free(g->name);
    free(g->dir);
    sv_server *s = g->server;
    free(g);
    give_back();
    pthread_mutex_lock(&s->lock);
    s->engines--;
    pthread_cond_broadcast(&s->closed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the thread ---- */

/* Everything that is to be started, in one list. */
static sv_work *take_starts(sv_engine *g)
{
    sv_work *all = g->starts;
    g->starts = g->last_start = NULL;
    return all;
}

static void do_work(sv_engine *g, sv_work *w)
{
    for (sv_work *next; w; w = next) {
        next = w->next;
        if (!sv_gone(w->r)) w->fn(g, w->r);
        sv_drop(w->r);
        free(w);
    }
}

/* One piece, so that a queue of such work delays sequences by one piece a step. */
static sv_work *take_work(sv_engine *g)
{
    sv_work *w = g->first;
    if (!w) return NULL;
    g->first = w->next;
    if (!g->first) g->last = NULL;
    g->queued--;
    w->next = NULL;
    return w;
}

/* With the lock held.  While captures are kept, once a second, so that they go in time. */
static void wait_for_work(sv_engine *g)
{
    struct timespec until;
    if (!sv_seen_expire(g)) {
        pthread_cond_wait(&g->wake, &g->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&g->wake, &g->lock, &until);
}

/* Starts before work before a step: sequences that arrived together begin in the same step. */
static void *run(void *self)
{
    sv_engine *g = self;
    fv_err e;
    int64_t left = 0;
    sv_name_thread("fovea-engine");
    for (;;) {
        pthread_mutex_lock(&g->lock);
        while (!g->first && !g->starts && !left && !g->pending && !g->stopping) wait_for_work(g);
        bool stop = g->stopping && !g->first && !g->starts && !left && !g->pending;
        g->pending = false;
        sv_work *starts = take_starts(g), *w = take_work(g);
        pthread_mutex_unlock(&g->lock);
        if (stop) break;
        do_work(g, starts);
        do_work(g, w);
        if (g->scheduler && fv_scheduler_step(g->scheduler, &left, &e)) {
            sv_log("error", "%s: %s", g->name, e.text);
            if (sv_shared(&g->server->opt)) kill(getpid(), SIGTERM); /* a rank is lost */
        }
    }
    close_engine(g);
    return NULL;
}

fv_status sv_engine_open(sv_engine **out, sv_server *s, const char *name, const char *dir,
                         fv_err *e)
{
    pthread_attr_t detached;
    *out = NULL;
    sv_engine *g = calloc(1, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "out of memory");
    g->server = s;
    g->device = s->device;
    g->created = (int64_t)time(NULL);
    g->refs = 1;
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->bytes_lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    g->name = strdup(name);
    g->dir = strdup(dir);
    pthread_mutex_lock(&s->lock);
    s->engines++;
    pthread_mutex_unlock(&s->lock);
    fv_status st = g->name && g->dir ? open_model(g, e) : fv_fail(e, FV_ENOMEM, "out of memory");
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (!st && pthread_create(&g->thread, &detached, run, g))
        st = fv_fail(e, FV_ENOMEM, "%s: no thread can be started", dir);
    pthread_attr_destroy(&detached);
    if (st)
        close_engine(g);
    else
        *out = g;
    return st;
}

void sv_engine_hold(sv_engine *g) { g->refs++; }

/* The last one may let go on the engine's own thread: so it is the thread that closes. */
void sv_engine_drop(sv_engine *g)
{
    if (--g->refs) return;
    pthread_mutex_lock(&g->lock);
    g->stopping = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

void sv_wake(sv_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->pending = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

/* Starts have no limit of their own: the scheduler's queue has one, and answers with status 429. */
static bool append(sv_engine *g, sv_work *w, bool start)
{
    sv_work **first = start ? &g->starts : &g->first, **last = start ? &g->last_start : &g->last;
    pthread_mutex_lock(&g->lock);
    bool room = start || g->queued < MOST_WORK;
    if (room) {
        if (*last) (*last)->next = w;
        if (!*first) *first = w;
        *last = w;
        g->queued += !start;
        pthread_cond_signal(&g->wake);
    }
    pthread_mutex_unlock(&g->lock);
    return room;
}

static bool post(sv_engine *g, sv_request *r, sv_work_fn *fn, bool start)
{
    sv_work *w = malloc(sizeof *w);
    if (!w) {
        sv_refuse(r, 503, "overloaded_error", NULL, "out of memory");
        return false;
    }
    *w = (sv_work){.fn = fn, .r = sv_hold(r)};
    bool taken = append(g, w, start);
    if (taken) return true;
    sv_drop(r);
    free(w);
    sv_refuse(r, 429, "rate_limit_error", NULL, "%d requests wait for %s, which is the most",
              MOST_WORK, g->name);
    return false;
}

bool sv_post(sv_engine *g, sv_request *r, sv_work_fn *fn) { return post(g, r, fn, false); }
bool sv_post_start(sv_engine *g, sv_request *r, sv_work_fn *fn) { return post(g, r, fn, true); }

/* ---- what requests ask of it ---- */

/* Whether the engine serves that name; *adapted: with which adapter, from 1 on. */
static bool serves(const sv_engine *g, const char *name, int *adapted)
{
    *adapted = 0;
    if (!name || !strcmp(g->name, name)) return true;
    for (int i = 0; i < g->n_adapted && !*adapted; i++)
        if (!strcmp(g->adapted[i].name, name)) *adapted = i + 1;
    return *adapted;
}

/* The model that the request names, or the first. It is held by the request until the answer is
 * sent, so a reload cannot free it meanwhile. */
sv_engine *sv_find_engine(sv_request *r)
{
    const char *name = NULL;
    sv_server *s = r->server;
    fv_err e;
    if (!sv_get_text(r, "model", &name, NULL)) return NULL;
    if (sv_is_checkpoint(s, name)) {
        if (sv_checkpoint_engine(s, &r->engine, name, &e))
            sv_refuse(r, 404, "invalid_request_error", "model", "%s", e.text);
        return r->engine;
    }
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->opt.n_models && !r->engine; i++)
        if (serves(s->engine[i], name, &r->adapted)) r->engine = s->engine[i];
    if (r->engine) sv_engine_hold(r->engine);
    pthread_mutex_unlock(&s->lock);
    if (!r->engine)
        sv_refuse(r, 404, "invalid_request_error", "model", "no model %.200s is served", name);
    return r->engine;
}

/* Encodings are scratch of a thread and cost an allocation each; a few are kept for the next
 * request. The caller gives it back. */
fv_encoding *sv_take_encoding(sv_engine *g, fv_err *e)
{
    fv_encoding *enc = NULL;
    if (!g->tok) { /* it sees or hears */
        fv_fail(e, FV_EARG, "%s reads no text", g->name);
        return NULL;
    }
    pthread_mutex_lock(&g->lock);
    if (g->n_spare) enc = g->spare[--g->n_spare];
    pthread_mutex_unlock(&g->lock);
    if (!enc && fv_encoding_new(&enc, g->tok, e)) return NULL;
    return enc;
}

void sv_give_encoding(sv_engine *g, fv_encoding *enc)
{
    pthread_mutex_lock(&g->lock);
    bool room = g->n_spare < (int)(sizeof g->spare / sizeof *g->spare);
    if (room) g->spare[g->n_spare++] = enc;
    pthread_mutex_unlock(&g->lock);
    if (!room) fv_encoding_free(enc);
}

/* Opened by the first request that needs it, and kept: the heads of a model are few, and most
 * servers are asked for one. Runs in the engine's thread, so there is no race between two of them.
 */
fv_task *sv_engine_task(sv_engine *g, sv_request *r, fv_job job)
{
    fv_err e;
    if (r->adapted) {
        sv_refuse(r, 400, "invalid_request_error", "model",
                  "the adapter %s only writes text; ask %s instead", sv_asked_name(r), g->name);
        return NULL;
    }
    /* a task would take a text for the path of a file */
    if (g->media) {
        sv_refuse(r, 400, "invalid_request_error", "model", "%s reads no text", g->name);
        return NULL;
    }
    if (!g->task[job] && open_task(g, job, &e)) {
        g->task[job] = NULL;
        sv_refuse_error(r, &e);
        return NULL;
    }
    return g->task[job];
}

const char *sv_asked_name(const sv_request *r)
{
    return r->adapted ? r->engine->adapted[r->adapted - 1].name : r->engine->name;
}

/* An adapter's model has the adapter folded in and shares what it does not change with the base. */
const fv_model *sv_asked_model(const sv_request *r)
{
    const sv_engine *g = r->engine;
    if (r->adapted) return g->adapted[r->adapted - 1].model;
    return g->generates ? g->writer.model : g->model;
}

/* The pipeline of a model that sees has a model of its own, which nobody else may run. */
const fv_model *sv_engine_model(const sv_request *r, fv_err *e)
{
    sv_engine *g = r->engine;
    const sv_opt *o = &g->server->opt;
    fv_model_opt how = {.serve = true, .weights = o->weights, .widen = o->widen};
    if (sv_shared(o)) return sv_refuse_shared(e), NULL;
    if (g->media && !g->model && fv_model_open(&g->model, g->device, g->dir, how, e)) return NULL;
    return sv_asked_model(r);
}

/* The first request that needs them waits; the engine goes on meanwhile. */
const fv_token_bytes *sv_engine_bytes(sv_engine *g, fv_err *e)
{
    fv_err none;
    pthread_mutex_lock(&g->bytes_lock);
    if (!g->bytes && fv_token_bytes_new(&g->bytes, NULL, g->tok, e ? e : &none)) g->bytes = NULL;
    const fv_token_bytes *bytes = g->bytes;
    pthread_mutex_unlock(&g->bytes_lock);
    return bytes;
}
