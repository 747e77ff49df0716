/* run.c - what a run leaves on disk.
 *
 *     checkpoints/step-N/   config.json, model.safetensors, tokenizer.json, moments.safetensors, state.json, MANIFEST.json
 *     train.jsonl           a line for every report
 *     model/                the result, as Hugging Face lays it out
 *
 * The log is rewritten when a run resumes: lines that a lost piece of the run had written go away with it. */
#include "train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PATH 1024

struct fv_run {
    const fv_env *env;
    char dir[PATH], checkpoints[PATH];
    fv_buf log;
};

static fv_status join(char out[PATH], const char *dir, const char *name, fv_err *e)
{
    int n = snprintf(out, PATH, "%s/%s", dir, name);
    return n > 0 && n < PATH ? FV_OK : fv_fail(e, FV_EARG, "%.100s...: the path is too long", dir);
}

/* ---- the log ---- */

static void number(fv_buf *b, const char *key, double value)
{
    if (isfinite(value)) fv__buf_fmt(b, ", \"%s\": %.9g", key, value);
}

static fv_status write_log(fv_run *r, fv_err *e)
{
    char path[PATH];
    fv_status st = join(path, r->dir, "train.jsonl", e);
    if (!st && r->log.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    return st ? st : fv__file_write(r->env, path, r->log.data ? r->log.data : "", r->log.len, e);
}

fv_status fv__run_log(fv_run *r, const fv_train_state *s, const char *event, fv_err *e)
{
    bool train = !strcmp(event, "train");
    fv__buf_fmt(&r->log, "{\"event\": \"%s\", \"step\": %lld, \"epoch\": %lld", event, (long long)s->step, (long long)s->epoch);
    number(&r->log, train ? "loss" : "valid_loss", train ? s->loss : s->valid);
    if (train) {
        number(&r->log, "lr", s->lr);
        number(&r->log, "norm", s->norm);
        number(&r->log, "tokens_per_s", s->seconds > 0 ? (double)s->tokens / s->seconds : NAN);
    }
    fv__buf_str(&r->log, "}\n");
    return write_log(r, e);
}

/* Lines of an earlier log up to the step resumed from. */
static fv_status keep_log(fv_run *r, int64_t step, fv_err *e)
{
    char path[PATH];
    fv_file f;
    fv_status st = join(path, r->dir, "train.jsonl", e);
    if (st || !fv__file_exists(r->env, path)) return st;
    st = fv__file_open(&f, r->env, path, e);
    if (st) return st;
    for (size_t i = 0; i < f.size;) {
        const char *line = f.data + i, *end = memchr(line, '\n', f.size - i);
        long long at = 0;
        char head[128];
        size_t n = end ? (size_t)(end - line) + 1 : f.size - i;
        snprintf(head, sizeof head, "%.*s", (int)(n < sizeof head ? n : sizeof head - 1), line);
        const char *key = strstr(head, "\"step\": ");
        if (end && key && sscanf(key, "\"step\": %lld", &at) == 1 && at <= step) fv__buf_add(&r->log, line, n);
        i += n;
    }
    fv__file_close(&f);
    return FV_OK;
}

/* ---- checkpoints ---- */

static fv_status write_model(const fv_train_job *job, const char *dir, fv_err *e)
{
    char path[PATH];
    fv_status st = fv_model_save(job->model, dir, FV_F32, e);
    if (!st) st = join(path, dir, "tokenizer.json", e);
    return st || !job->tok ? st : fv_tok_save(job->tok, path, e);
}

/* Doubles are written with all their digits: a resumed run compares them again. */
static void state_text(fv_buf *b, const fv_train_state *s)
{
    fv__buf_fmt(b, "{\"step\": %lld, \"epoch\": %lld, \"batch\": %lld, \"best_step\": %lld, \"worse\": %lld", (long long)s->step,
                (long long)s->epoch, (long long)s->batch, (long long)s->best_step, (long long)s->worse);
    if (isfinite(s->best)) fv__buf_fmt(b, ", \"best\": %.17g", s->best);
    if (isfinite(s->valid)) fv__buf_fmt(b, ", \"valid\": %.17g", s->valid);
    fv__buf_str(b, "}\n");
}

fv_status fv__run_save(fv_run *r, const fv_train_job *job, fv_adam *adam, const fv_train_state *s, fv_err *e)
{
    fv_ckpt *k = NULL;
    char path[PATH];
    fv_buf state = {.env = r->env};
    int keep = (int)(job->opt.average > job->opt.keep ? job->opt.average : job->opt.keep);
    fv_status st = fv_ckpt_begin(&k, r->env, r->checkpoints, s->step, job->config, e);
    if (!st) st = write_model(job, fv_ckpt_dir(k), e);
    if (!st) st = fv_ckpt_add_file(k, "config.json", e);
    if (!st) st = fv_ckpt_add_file(k, "model.safetensors", e);
    if (!st && job->tok) st = fv_ckpt_add_file(k, "tokenizer.json", e);
    if (!st) st = join(path, fv_ckpt_dir(k), "moments.safetensors", e);
    if (!st) st = fv_adam_save(adam, r->env, path, e);
    if (!st) st = fv_ckpt_add_file(k, "moments.safetensors", e);
    state_text(&state, s);
    if (!st && state.failed) st = fv_fail(e, FV_ENOMEM, "checkpoint: out of memory");
    if (!st) st = fv_ckpt_add(k, "state.json", state.data, state.len, e);
    fv__buf_free(&state);
    if (!st) return fv_ckpt_commit(k, keep, e);
    fv_ckpt_abandon(k);
    return st;
}

static fv_status read_state(fv_train_state *s, const fv_env *env, const char *path, fv_err *e)
{
    fv_json *j;
    fv_status st = fv_json_open(&j, env, path, e);
    if (st) return st;
    double n[5] = {-1, -1, -1, -1, -1};
    static const char *const keys[] = {"step", "epoch", "batch", "best_step", "worse"};
    for (int i = 0; i < 5; i++)
        if (!fv_json_number(j, keys[i], &n[i]) || !(n[i] >= 0)) st = fv_fail(e, FV_EFORMAT, "%s: %s is missing", path, keys[i]);
    s->step = (int64_t)n[0], s->epoch = (int64_t)n[1], s->batch = (int64_t)n[2], s->best_step = (int64_t)n[3],
    s->worse = (int64_t)n[4];
    fv_json_number(j, "best", &s->best);
    fv_json_number(j, "valid", &s->valid);
    fv_json_close(j);
    return st;
}

static fv_status read_params(const fv_run *r, const fv_train_job *job, const char *dir, fv_err *e)
{
    const fv_family *f = fv_model_family(job->model);
    fv_load_opt how = f->load ? f->load(fv_model_config(job->model)) : (fv_load_opt){0};
    return fv_params_load(fv_model_params(job->model), r->env, dir, how, e);
}

static fv_status resume(fv_run *r, const fv_train_job *job, fv_adam *adam, fv_train_state *s, fv_err *e)
{
    fv_ckpt_found found;
    char path[PATH];
    fv_status st = fv_ckpt_find(&found, r->env, r->checkpoints, job->config, NULL, NULL, e);
    if (st || found.step < 0) return st;
    st = read_params(r, job, found.dir, e);
    if (!st) st = join(path, found.dir, "moments.safetensors", e);
    if (!st) st = fv_adam_load(adam, r->env, path, e);
    if (!st) st = join(path, found.dir, "state.json", e);
    if (!st) st = read_state(s, r->env, path, e);
    return st ? st : keep_log(r, s->step, e);
}

/* ---- opening and finishing ---- */

fv_status fv__run_open(fv_run **out, const fv_train_job *job, fv_adam *adam, fv_train_state *s, fv_err *e)
{
    const fv_env *env = fv_device_env(job->device);
    fv_run *r = *out = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "%s: out of memory", job->dir);
    r->env = env;
    r->log.env = env;
    snprintf(r->dir, sizeof r->dir, "%s", job->dir);
    fv_status st = join(r->checkpoints, job->dir, "checkpoints", e);
    if (!st) st = fv__dir_make(env, job->dir, e);
    if (!st) st = fv__dir_make(env, r->checkpoints, e);
    if (!st && job->resume) st = resume(r, job, adam, s, e);
    return st ? st : write_log(r, e);
}

void fv__run_close(fv_run *r)
{
    if (!r) return;
    fv__buf_free(&r->log);
    fv__free(r->env, r, sizeof *r);
}

/* ---- the mean of checkpoints ---- */

typedef struct steps {
    int64_t at[1000];
    int n;
} steps;

static void note_step(void *user, const char *name)
{
    steps *s = user;
    long long step;
    char rest;
    if (s->n < 1000 && sscanf(name, "step-%lld%c", &step, &rest) == 1) s->at[s->n++] = step;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Adds what the checkpoint has of every parameter to sum, parameter after parameter. */
static fv_status add_checkpoint(fv_run *r, const fv_train_job *job, int64_t step, double *sum, float *host, fv_err *e)
{
    char name[64], dir[PATH];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    fv_params *p = fv_model_params(job->model);
    fv_status st = join(dir, r->checkpoints, name, e);
    if (!st) st = read_params(r, job, dir, e);
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        int64_t n = fv_len(t);
        st = fv_params_get(p, t, host, n, e);
        for (int64_t k = 0; k < n; k++) *sum++ += (double)host[k];
    }
    return st;
}

static fv_status set_mean(fv_params *p, const double *sum, int n, float *host, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        for (int64_t k = 0; k < fv_len(t); k++) host[k] = (float)(*sum++ / n);
        st = fv_params_set(p, t, host, fv_len(t), e);
    }
    return st;
}

/* Of the newest n checkpoints, or as many as there are; added up in f64. */
static fv_status average(fv_run *r, const fv_train_job *job, int64_t n, fv_err *e)
{
    const fv_io *io = fv__io(r->env);
    fv_params *p = fv_model_params(job->model);
    steps s = {.n = 0};
    if (io->list && io->list(io->self, r->checkpoints, note_step, &s))
        return fv_fail(e, FV_EIO, "%s: cannot be listed", r->checkpoints);
    qsort(s.at, (size_t)s.n, sizeof *s.at, newest_first);
    if (s.n > n) s.n = (int)n;

    size_t elements = (size_t)fv_params_elements(p, ""), sum_bytes = elements * sizeof(double),
           host_bytes = elements * sizeof(float);
    double *sum = fv__alloc(r->env, sum_bytes);
    float *host = fv__alloc(r->env, host_bytes);
    fv_status st = sum && host ? FV_OK : fv_fail(e, FV_ENOMEM, "average: out of memory");
    for (int i = 0; !st && i < s.n; i++) st = add_checkpoint(r, job, s.at[i], sum, host, e);
    if (!st && s.n) st = set_mean(p, sum, s.n, host, e);
    fv__free(r->env, sum, sum_bytes);
    fv__free(r->env, host, host_bytes);
    return st;
}

fv_status fv__run_finish(fv_run *r, const fv_train_job *job, fv_err *e)
{
    char dir[PATH];
    fv_status st = job->opt.average > 1 ? average(r, job, job->opt.average, e) : FV_OK;
    if (!st) st = join(dir, r->dir, "model", e);
    return st ? st : write_model(job, dir, e);
}
