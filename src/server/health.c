/* health.c - /livez, /readyz, /metrics and the list of models.
 *
 * /livez answers as long as the process does; /readyz also says no while it drains, so that a
 * balancer sends nothing more.  /metrics is the text format of Prometheus: counters only rise, and
 * a histogram's buckets each count all that were at most so long.  All of it is read while engines
 * run, from atomics and from the scheduler's own copy of its figures, so that asking often costs
 * nobody a step. */
#include <string.h>

#include "core.h"

const double sv_bounds[SV_BOUNDS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                     0.5,   1,      2.5,   5,    10,    30,   60,  300};

/* Counts by bucket, not cumulative: sv_metrics adds them up, so that an observation is one
 * increment. */
void sv_observe(sv_histogram *h, double seconds)
{
    int i = 0;
    while (i < SV_BOUNDS && seconds > sv_bounds[i]) i++;
    h->at[i]++;
    h->sum_us += (int64_t)(seconds * 1e6);
}

static void plain(sv_request *r, unsigned status, const char *text)
{
    sv_text t = {0};
    sv_put(&t, text);
    sv_answer(r, status, "text/plain; charset=utf-8", &t);
}

void sv_livez(sv_request *r) { plain(r, 200, "ok\n"); }

/* 503 while draining, so that a load balancer sends no more before the listener is closed. */
void sv_readyz(sv_request *r)
{
    if (r->server->draining)
        plain(r, 503, "draining\n");
    else
        plain(r, 200, "ok\n");
}

/* ---- models ---- */

/* What a model can be asked, by what it computes. */
static void write_abilities(sv_text *t, const sv_engine *g)
{
    static const char *const tasks[][4] = {
        [FV_HEAD_BASE] = {"embeddings"},
        [FV_HEAD_ENCODER] = {"embeddings"},
        [FV_HEAD_CAUSAL_LM] = {"completions", "attention", "embeddings"},
        [FV_HEAD_MASKED_LM] = {"fill", "embeddings"},
        [FV_HEAD_SEQ2SEQ] = {"translate"},
        [FV_HEAD_CLASSIFY] = {"classify", "rerank", "embeddings"},
        [FV_HEAD_TAG] = {"tag", "embeddings"},
        [FV_HEAD_ANSWER] = {"answer", "embeddings"},
        [FV_HEAD_NEXT_SENTENCE] = {"embeddings"},
        [FV_HEAD_PRETRAINING] = {"embeddings"},
    };
    sv_key(t, "tasks");
    sv_open(t, '[');
    if (g->media) {
        sv_string(t, g->media, strlen(g->media));
        sv_close(t, ']');
        sv_string_at(t, "takes", strcmp(g->media, "transcribe") ? "images" : "sound");
        return;
    }
    if (g->template) sv_string(t, "chat", 4);
    for (int i = 0; i < 4 && tasks[g->job][i]; i++)
        sv_string(t, tasks[g->job][i], strlen(tasks[g->job][i]));
    sv_close(t, ']');
}

/* The model of an engine, or the one that an adapter makes of it. */
static void write_model(sv_text *t, const sv_engine *g, const sv_adapted *a)
{
    sv_open(t, '{');
    sv_string_at(t, "id", a ? a->name : g->name);
    sv_string_at(t, "object", "model");
    sv_int_at(t, "created", g->created);
    sv_string_at(t, "owned_by", "fovea");
    if (a) sv_string_at(t, "parent", g->name);
    write_abilities(t, g);
    if (g->scheduler) {
        fv_sched_stats s = fv_scheduler_stats(g->scheduler);
        sv_int_at(t, "context", s.capacity);
        sv_int_at(t, "layers", s.layers);
        sv_int_at(t, "heads", s.heads);
    }
    sv_close(t, '}');
}

/* An adapter is a model to clients, with its base as its parent. Under the lock, because a reload
 * swaps engines. */
void sv_models(sv_request *r)
{
    sv_server *s = r->server;
    sv_text t = {0};
    sv_open(&t, '{');
    sv_string_at(&t, "object", "list");
    sv_key(&t, "data");
    sv_open(&t, '[');
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->opt.n_models; i++) {
        const sv_engine *g = s->engine[i];
        write_model(&t, g, NULL);
        for (int k = 0; k < g->n_adapted; k++) write_model(&t, g, &g->adapted[k]);
    }
    pthread_mutex_unlock(&s->lock);
    sv_put(&t, "]}\n");
    sv_answer(r, 200, NULL, &t);
}

void sv_model_named(sv_request *r)
{
    sv_server *s = r->server;
    const char *name = r->path + strlen("/v1/models/");
    sv_text t = {0};
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->opt.n_models && !t.n; i++) {
        const sv_engine *g = s->engine[i];
        if (!strcmp(g->name, name)) write_model(&t, g, NULL);
        for (int k = 0; k < g->n_adapted && !t.n; k++)
            if (!strcmp(g->adapted[k].name, name)) write_model(&t, g, &g->adapted[k]);
    }
    pthread_mutex_unlock(&s->lock);
    sv_put(&t, "\n");
    if (t.n > 1)
        sv_answer(r, 200, NULL, &t);
    else
        sv_refuse(r, 404, "invalid_request_error", "model", "no model %s is served", name);
    sv_free(&t);
}

/* ---- figures ---- */

/* Prometheus's text format 0.0.4. */
static void head(sv_text *t, const char *name, const char *type, const char *help)
{
    sv_fmt(t, "# HELP fovea_%s %s\n# TYPE fovea_%s %s\n", name, help, name, type);
}

/* Buckets are kept apart and added up here: observing is one atomic addition. */
static void histogram(sv_text *t, const char *name, const char *label, sv_histogram *h)
{
    int64_t n = 0;
    const char *comma = label[0] ? "," : "";
    for (int i = 0; i <= SV_BOUNDS; i++) {
        n += h->at[i];
        if (i < SV_BOUNDS)
            sv_fmt(t, "fovea_%s_bucket{%s%sle=\"%g\"} %lld\n", name, label, comma, sv_bounds[i],
                   (long long)n);
        else
            sv_fmt(t, "fovea_%s_bucket{%s%sle=\"+Inf\"} %lld\n", name, label, comma, (long long)n);
    }
    sv_fmt(t, "fovea_%s_sum{%s} %.6f\n", name, label, 1e-6 * (double)h->sum_us);
    sv_fmt(t, "fovea_%s_count{%s} %lld\n", name, label, (long long)n);
}

/* A figure of each model; names hold nothing that would need escapes (server.c sees to that). */
typedef struct figure {
    const char *name, *type, *help;
    size_t at; /* in fv_sched_stats */
} figure;

static const figure figures[] = {
    {"requests_waiting", "gauge", "Sequences that wait for a row of the batch.",
     offsetof(fv_sched_stats, waiting)},
    {"requests_running", "gauge", "Sequences in the batch.", offsetof(fv_sched_stats, running)},
    {"batch_rows", "gauge", "Sequences that fit into the batch.", offsetof(fv_sched_stats, rows)},
    {"prompt_tokens_total", "counter", "Tokens of prompts that went through the model.",
     offsetof(fv_sched_stats, prompt)},
    {"generated_tokens_total", "counter", "Tokens that were generated.",
     offsetof(fv_sched_stats, generated)},
    {"prompt_steps_total", "counter", "Passes of prompts through the model.",
     offsetof(fv_sched_stats, prompt_steps)},
    {"decode_steps_total", "counter", "Passes of the rows that decode.",
     offsetof(fv_sched_stats, decode_steps)},
    {"prefix_tokens_total", "counter", "Tokens of prompts that a kept prefix saved.",
     offsetof(fv_sched_stats, shared)},
    {"kv_cache_tokens", "gauge", "Tokens in the KV cache.", offsetof(fv_sched_stats, cache_tokens)},
    {"kv_cache_shared_tokens", "gauge", "Of these, in pages of the prefix cache.",
     offsetof(fv_sched_stats, cache_shared)},
    {"kv_cache_bytes", "gauge", "Keys and values of the others.",
     offsetof(fv_sched_stats, cache_bytes)},
    {"kv_cache_page_bytes", "gauge", "Pages of a GPU that hold them, with those kept for more.",
     offsetof(fv_sched_stats, cache_pages)},
    {"prefix_cache_bytes", "gauge", "Keys and values kept for prompts to come.",
     offsetof(fv_sched_stats, prefix_bytes)},
};

/* Where an engine's thread spends its time: what is not in it, it waited for requests. */
static void write_times(sv_text *t, sv_server *s)
{
    static const struct {
        const char *part;
        size_t at;
    } parts[] = {{"queue", offsetof(fv_sched_times, queue)},
                 {"prompts", offsetof(fv_sched_times, prompts)},
                 {"decode", offsetof(fv_sched_times, decode)},
                 {"tell", offsetof(fv_sched_times, tell)},
                 {"wait", offsetof(fv_sched_times, wait)}};
    head(t, "engine_seconds_total", "counter",
         "Time of the engine's thread: rows, prompts, decoding, callbacks beside a GPU, and "
         "waiting for it.");
    for (int i = 0; i < s->opt.n_models; i++) {
        if (!s->engine[i]->scheduler) continue;
        fv_sched_times now = fv_scheduler_stats(s->engine[i]->scheduler).times;
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            int64_t x;
            memcpy(&x, (const char *)&now + parts[k].at, sizeof x);
            sv_fmt(t, "fovea_engine_seconds_total{model=\"%s\",part=\"%s\"} %.6f\n",
                   s->engine[i]->name, parts[k].part, 1e-9 * (double)x);
        }
    }
}

/* By figure and not by model: Prometheus wants the lines of one name together. */
static void write_models(sv_text *t, sv_server *s)
{
    char label[300];
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
        head(t, figures[f].name, figures[f].type, figures[f].help);
        for (int i = 0; i < s->opt.n_models; i++) {
            if (!s->engine[i]->scheduler) continue;
            fv_sched_stats now = fv_scheduler_stats(s->engine[i]->scheduler);
            int64_t x;
            memcpy(&x, (const char *)&now + figures[f].at, sizeof x);
            sv_fmt(t, "fovea_%s{model=\"%s\"} %lld\n", figures[f].name, s->engine[i]->name,
                   (long long)x);
        }
    }
    for (int which = 0; which < 2; which++) {
        const char *name = which ? "inter_token_seconds" : "time_to_first_token_seconds";
        head(t, name, "histogram",
             which ? "Time from one token of a sequence to the next."
                   : "Time from a request's arrival to its first token.");
        for (int i = 0; i < s->opt.n_models; i++) {
            sv_engine *g = s->engine[i];
            snprintf(label, sizeof label, "model=\"%s\"", g->name);
            if (g->scheduler)
                histogram(t, name, label, which ? &g->between_tokens : &g->first_token);
        }
    }
}

void sv_metrics(sv_request *r)
{
    sv_server *s = r->server;
    sv_text t = {0};
    head(&t, "http_requests_total", "counter", "Answers, by the hundreds of their status.");
    for (int i = 1; i < 6; i++)
        sv_fmt(&t, "fovea_http_requests_total{status=\"%dxx\"} %lld\n", i,
               (long long)s->answered[i]);
    head(&t, "http_requests_active", "gauge", "Requests that are being answered.");
    sv_fmt(&t, "fovea_http_requests_active %lld\n", (long long)s->active);
    head(&t, "http_connections", "gauge", "Connections that are open.");
    sv_fmt(&t, "fovea_http_connections %lld\n", (long long)s->connections);
    head(&t, "http_disconnected_total", "counter", "Requests whose client went before the answer.");
    sv_fmt(&t, "fovea_http_disconnected_total %lld\n", (long long)s->disconnected);
    head(&t, "http_request_seconds", "histogram", "Time from a request to the end of its answer.");
    histogram(&t, "http_request_seconds", "", &s->times);
    pthread_mutex_lock(&s->lock);
    write_models(&t, s);
    write_times(&t, s);
    pthread_mutex_unlock(&s->lock);
    sv_answer(r, 200, "text/plain; version=0.0.4; charset=utf-8", &t);
}
