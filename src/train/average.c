/* average.c - the mean of the newest checkpoints, added up in f64. */
#include <stdio.h>
#include <stdlib.h>

#include "train/run.h"

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
static fv_status add_checkpoint(fv_run *r, int64_t step, double *sum, float *host, fv_err *e)
{
    char name[64], dir[FV_PATH];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    fv_params *p = fv_model_params(r->job->model);
    fv_status st = fv__run_join(dir, r->checkpoints, name, e);
    if (!st) st = fv__run_params(r, dir, e);
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

fv_status fv__run_average(fv_run *r, int64_t n, fv_err *e)
{
    const fv_io *io = fv__io(r->env);
    fv_params *p = fv_model_params(r->job->model);
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
    for (int i = 0; !st && i < s.n; i++) st = add_checkpoint(r, s.at[i], sum, host, e);
    if (!st && s.n) st = set_mean(p, sum, s.n, host, e);
    fv__free(r->env, sum, sum_bytes);
    fv__free(r->env, host, host_bytes);
    return st;
}
