/* ranks.c - see ranks.h. */
#include "helper/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/gen.h"
#include "fovea/store.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/mpi.h"
#include "helper/program.h"

int ranks_exchange(fv_comm *c)
{
    int n = fv_comm_size(c), me = fv_comm_rank(c), out[RANKS_MOST][2], in[RANKS_MOST][2];
    fv_comm_part send[2 * RANKS_MOST], recv[2 * RANKS_MOST];
    for (int r = 0; r < n; r++)
        for (int k = 0; k < 2; k++) {
            out[r][k] = 100 * me + 10 * r + k;
            send[2 * r + k] = (fv_comm_part){r, &out[r][k], sizeof(int)};
            recv[2 * r + k] = (fv_comm_part){r, &in[r][k], sizeof(int)};
        }
    if (fv_comm_exchange(c, send, 2 * n, recv, 2 * n, NULL)) return 1;
    for (int r = 0; r < n; r++)
        for (int k = 0; k < 2; k++)
            if (in[r][k] != 100 * r + 10 * me + k) return 2;
    return 0;
}

void ranks_recipe(const char *recipe)
{
    char text[8000];
    size_t n = 0;
    for (int i = 0; i < 150; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "line %d has the word %d\n", i,
                              i * 7 % 31);
    scratch_text("lines.txt", text);
    scratch_text("r.ini", recipe);
}

static fv_st *open_moments(const char *dir)
{
    char path[1024];
    fv_st *f = NULL;
    snprintf(path, sizeof path, "%s/moments.safetensors", dir);
    if (access(path, R_OK)) snprintf(path, sizeof path, "%s/moments.safetensors.index.json", dir);
    return fv_st_open(&f, NULL, path, NULL) ? NULL : f;
}

bool same_moments(const char *a, const char *b)
{
    fv_st *x = open_moments(a), *y = open_moments(b);
    bool same = x && y && fv_st_count(x) == fv_st_count(y);
    for (int i = 0; same && i < fv_st_count(x); i++) {
        fv_st_info t = fv_st_at(x, i), u;
        same = !fv_st_find(y, t.name, &u, NULL) && t.count == u.count;
        size_t bytes = (size_t)t.count * sizeof(float);
        float *p = malloc(2 * bytes + 1), *q = p + t.count;
        same = same && p && !fv_st_read(x, &t, p, FV_F32, t.count, NULL) &&
               !fv_st_read(y, &u, q, FV_F32, t.count, NULL) && !memcmp(p, q, bytes);
        free(p);
    }
    fv_st_close(x);
    fv_st_close(y);
    return same;
}

void write_model(const char *dir, const char *config)
{
    fv_err e;
    fv_device *d;
    fv_model *m;
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1}, &e), &e);
    check(fv_model_new(&m, d, config, (fv_model_opt){0}, 3, &e), &e);
    check(fv_model_save(m, dir, FV_F32, &e), &e);
    fv_model_free(m);
    fv_device_close(d);
}

/* The same for every rank; none is the last of the vocabulary, which ends a text. */
static void shared_ids(int32_t *ids)
{
    for (int i = 0; i < SHARED_B * SHARED_T; i++) ids[i] = (i * 17 + 5) % (SHARED_VOCAB - 1);
}

fv_status shared_forward(float *logits, float *loss, fv_device *d, fv_model *m, fv_err *e)
{
    int32_t ids[SHARED_B * SHARED_T];
    fv_ctx *c;
    fv_items in = {0}, out = {0};
    shared_ids(ids);
    fv_status st = fv_ctx_new(&c, d, (fv_ctx_opt){.record = loss}, e);
    if (st) return st;
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(SHARED_B, SHARED_T)));
    if (loss) fv_items_put(&in, "labels", fv_ints(c, ids, FV_SHAPE(SHARED_B, SHARED_T)));
    fv_model_forward(c, m, &in, &out);
    fv_read(c, fv_items_get(&out, "logits"), logits, SHARED_B * SHARED_T * SHARED_VOCAB);
    if (loss) {
        fv_read(c, fv_items_get(&out, "loss"), loss, 1);
        fv_backward(c, fv_items_get(&out, "loss"));
    }
    st = fv_ctx_status(c);
    if (st) fv_fail(e, st, "%s", fv_ctx_err(c)->text);
    fv_ctx_free(c);
    return st;
}

fv_status shared_decode(int32_t *made, int64_t *n_made, fv_device *d, fv_model *m, const char *dir,
                        fv_err *e)
{
    int32_t ids[SHARED_B * SHARED_T];
    const int32_t *source = ids;
    int64_t len = SHARED_T;
    fv_gen_config *g = NULL;
    fv_generated out = {0};
    shared_ids(ids);
    fv_status st = fv_gen_config_open(&g, NULL, dir, NULL, e);
    if (!st) {
        fv_gen_opt how = *fv_gen_config_options(g);
        how.max_new_tokens = SHARED_MADE;
        st = fv_generate(&out, d, m, &source, &len, 1, &how, e);
    }
    if (!st) {
        *n_made = out.hyp[0].n;
        memcpy(made, out.hyp[0].ids, (size_t)*n_made * sizeof *made);
    }
    fv_generated_free(&out);
    fv_gen_config_close(g);
    return st;
}

typedef struct rank {
    const shared_job *job;
    const char *dir;
    fv_comm *comm;
    void *outcome;
    fv_status st;
    fv_err e;
} rank;

static void *run_rank(void *self)
{
    rank *r = self;
    r->st = r->job->compute(r->outcome, r->job, r->dir, r->comm, &r->e);
    if (r->st) fv_comm_abort(r->comm, r->e.text);
    fv_comm_close(r->comm);
    return NULL;
}

static void *new_outcome(const shared_job *job)
{
    void *outcome = calloc(1, job->size);
    if (!outcome) abort();
    return outcome;
}

static void free_outcome(const shared_job *job, void *outcome)
{
    if (job->free) job->free(outcome);
    free(outcome);
}

void share_by_threads(const shared_job *job, const char *dir, int n)
{
    rank r[SHARED_MOST];
    fv_comm *comm[SHARED_MOST];
    pthread_t thread[SHARED_MOST];
    fv_err e = {0};
    void *whole = new_outcome(job);
    check(job->compute(whole, job, dir, NULL, &e), &e);
    check(fv_comm_threads(comm, n, NULL, &e), &e);
    for (int i = 0; i < n; i++) {
        r[i] = (rank){.job = job, .dir = dir, .comm = comm[i], .outcome = new_outcome(job)};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) {
        check(r[i].st, &r[i].e);
        assert_int_equal(job->compare(r[i].outcome, whole), 0);
        free_outcome(job, r[i].outcome);
    }
    free_outcome(job, whole);
}

static char self[4096]; /* this program's path */

void share_by_processes(int n)
{
#ifdef __SANITIZE_THREAD__
    skip(); /* MPI's own threads: make test-mpi-asan looks at processes */
#endif
    if (no_mpi()) skip();
    succeeded(sh(MPIRUN "-np %d %s rank", n, self));
}

static int as_rank(const shared_job *job)
{
    fv_err e = {0};
    fv_comm *c;
    int bad = 0;
    if (fv_comm_open(&c, NULL, (fv_comm_opt){0}, &e)) return 90;
    for (int k = 0; k < job->models && !bad; k++) {
        char dir[32];
        void *shared = new_outcome(job), *whole = new_outcome(job);
        snprintf(dir, sizeof dir, "model-%d", k);
        if (job->compute(whole, job, dir, NULL, &e) || job->compute(shared, job, dir, c, &e)) {
            fprintf(stderr, "%s\n", e.text);
            bad = 91;
        } else {
            bad = job->compare(shared, whole);
        }
        free_outcome(job, shared);
        free_outcome(job, whole);
    }
    fv_comm_close(c);
    return bad;
}

int share_main(int argc, char **argv, const shared_job *job, const struct CMUnitTest *tests,
               size_t n)
{
    if (argc > 1 && !strcmp(argv[1], "rank")) return as_rank(job);
    if (!realpath(argv[0], self)) return 1;
    return _cmocka_run_group_tests("tests", tests, n, scratch_open, scratch_close);
}
