/* average.c - the mean of the newest checkpoints, added up in f64.
 *
 * Which checkpoints count must not depend on how often a run was interrupted: an interruption saves
 * one more, at whatever update it came.  So only the checkpoints that every run of these options
 * makes are averaged: those at multiples of save_every, and the last one.  (Marking the extra ones
 * in their state.json was the alternative; it would have to be kept right by everyone who copies a
 * run, while the number of the update cannot be wrong.)  Directories of later updates belong to
 * another run and are left alone.  Each checkpoint is verified against its manifest before it
 * counts. */
#include <stdio.h>
#include <stdlib.h>

#include "core/adapter.h"
#include "store/checkpoint.h"
#include "train/run.h"

typedef struct steps {
    const fv_run *run;
    int64_t last; /* the update the run has come to */
    int64_t *at;
    size_t bytes, n;
    bool failed;
} steps;

/* A checkpoint that save_every asked for; others were made by an interruption. */
bool fv__run_regular(const fv_run *r, int64_t step)
{
    int64_t every = r->job->opt.save_every;
    return every > 0 && step % every == 0;
}

/* Steps of this run that may enter the mean. */
static void note_step(void *user, const char *name)
{
    steps *s = user;
    bool part;
    int64_t step = fv__ckpt_step(name, &part);
    if (part || step < 0 || step > s->last) return;
    if (step != s->last && !fv__run_regular(s->run, step)) return;
    void *p = s->at;
    if (!fv__grow(s->run->env, &p, &s->bytes, (s->n + 1) * sizeof *s->at)) {
        s->failed = true;
        return;
    }
    s->at = p;
    s->at[s->n++] = step;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Adds the checkpoint's values of every parameter to sum, parameter after parameter. */
static fv_status add_checkpoint(fv_run *r, int64_t step, double *sum, float *host, fv_err *e)
{
    char name[64], dir[FV_PATH];
    fv_err why = {0};
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    fv_params *p = fv_model_params(r->job->model);
    fv_status st = fv__run_join(dir, r->checkpoints, name, e);
    if (!st && (st = fv__ckpt_verify(r->env, dir, step, r->job->config, &why)))
        fv_fail(e, st, "result = average: %.350s; without this directory the others are averaged",
                why.text);
    if (!st) st = fv__run_params(r, dir, e);
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        int64_t n = fv_len(t);
        if (fv__param_frozen(t)) continue;
        st = fv_params_get(p, t, host, n, e);
        for (int64_t k = 0; k < n; k++) *sum++ += (double)host[k];
    }
    return st;
}

static fv_status set_mean(fv_params *p, const double *sum, size_t n, float *host, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        if (fv__param_frozen(t)) continue;
        for (int64_t k = 0; k < fv_len(t); k++) host[k] = (float)(*sum++ / (double)n);
        st = fv_params_set(p, t, host, fv_len(t), e);
    }
    return st;
}

/* Sums in f64, so that the order of checkpoints does not matter to f32. */
static fv_status average(fv_run *r, const steps *s, size_t n, fv_err *e)
{
    fv_params *p = fv_model_params(r->job->model);
    size_t elements = (size_t)fv_params_elements(p, ""), sum_bytes = elements * sizeof(double),
           host_bytes = elements * sizeof(float);
    double *sum = fv__alloc(r->env, sum_bytes);
    float *host = fv__alloc(r->env, host_bytes);
    fv_status st = sum && host ? FV_OK : fv_fail(e, FV_ENOMEM, "average: out of memory");
    for (size_t i = 0; !st && i < n; i++) st = add_checkpoint(r, s->at[i], sum, host, e);
    if (!st && n) st = set_mean(p, sum, n, host, e);
    fv__free(r->env, sum, sum_bytes);
    fv__free(r->env, host, host_bytes);
    return st;
}

fv_status fv__run_average(fv_run *r, int64_t n, fv_err *e)
{
    const fv_io *io = fv__io(r->env);
    steps s = {.run = r, .last = r->last};
    fv_status st = FV_OK;
    if (io->list && io->list(io->self, r->checkpoints, note_step, &s))
        st = fv_fail(e, FV_EIO, "%s: cannot be listed", r->checkpoints);
    if (!st && s.failed) st = fv_fail(e, FV_ENOMEM, "average: out of memory");
    if (!st && s.n) {
        qsort(s.at, s.n, sizeof *s.at, newest_first);
        st = average(r, &s, s.n < (size_t)n ? s.n : (size_t)n, e);
    }
    fv__free(r->env, s.at, s.bytes);
    return st;
}
