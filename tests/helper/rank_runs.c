/* rank_runs.c - see rank_runs.h. */
#include "helper/rank_runs.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "fovea/author/comm.h"
#include "fovea/recipe.h"
#include "helper/device.h"
#include "helper/files.h"

typedef struct thread_rank {
    const ranks_run *run;
    const char *data;
    fv_comm *comm;
    ranks_end *end;
} thread_rank;

static void *train_rank(void *self)
{
    const thread_rank *r = self;
    const ranks_run *run = r->run;
    fv_err *e = &r->end->e;
    fv_device *d = NULL;
    fv_recipe *recipe = NULL;
    fv_train_state s;
    fv_status st = fv_device_open(&d, run->device ? run->device : "cpu",
                                  (fv_device_opt){.threads = 1}, e);
    if (!st) st = fv_recipe_open(&recipe, NULL, run->recipe, e);
    if (!st) st = fv_recipe_set(recipe, "data.dir", r->data, e);
    for (int i = 0; !st && run->set[i][0]; i++)
        st = fv_recipe_set(recipe, run->set[i][0], run->set[i][1], e);
    fv_recipe_job job = {.device = d, .dir = run->dir, .comm = r->comm, .resume = run->resume};
    if (!st) st = fv_recipe_train(recipe, &job, &s, e);
    r->end->st = st;
    fv_recipe_close(recipe);
    fv_device_close(d);
    fv_comm_close(r->comm);
    return NULL;
}

void ranks_train(const ranks_run *run, int n, ranks_end *end)
{
    fv_err e;
    fv_comm *comm[RANK_RUNS_MOST];
    pthread_t thread[RANK_RUNS_MOST];
    thread_rank r[RANK_RUNS_MOST];
    char data[512];
    snprintf(data, sizeof data, "%s", scratch("."));
    check(fv_comm_threads(comm, n, NULL, &e), &e);
    for (int i = 0; i < n; i++) {
        end[i] = (ranks_end){0};
        r[i] = (thread_rank){run, data, comm[i], &end[i]};
        assert_int_equal(pthread_create(&thread[i], NULL, train_rank, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
}

void ranks_trained(const ranks_run *run, int n)
{
    ranks_end end[RANK_RUNS_MOST];
    ranks_train(run, n, end);
    for (int i = 0; i < n; i++) check(end[i].st, &end[i].e);
}
