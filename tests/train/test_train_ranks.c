/* test_train_ranks.c - the number of ranks changes no bit of training: with dropout, accumulation,
 * recompute, a moving average, bf16, and in runs that are stopped and go on with another number. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/comm.h"
#include "helper/corpus.h"
#include "helper/device.h"
#include "helper/files.h"

enum { MOST = 8, UPDATES = 10 };
#if defined(__SANITIZE_THREAD__) /* ranks meet as often in each of them */
enum { FEW_UPDATES = 4 };
#else
enum { FEW_UPDATES = UPDATES };
#endif

typedef struct how {
    void (*change)(fv_train_opt *);
    const char *dir;             /* NULL: nothing is written */
    int64_t stop_after, updates; /* 0: never; UPDATES */
    fv_dtype dtype;
} how;

typedef struct rank {
    fv_comm *comm;
    const how *how;
    fv_train_state s;
    fv_status st;
    fv_err e;
    float *w;
    int64_t n;
    volatile int stop;
} rank;

static void stop_at(void *user, const fv_train_state *s, const char *event)
{
    rank *r = user;
    if (!strcmp(event, "step") && s->step == r->how->stop_after) r->stop = 1;
}

/* One rank's training; what it comes to is looked at by the test's own thread. */
static void *train_rank(void *self)
{
    rank *r = self;
    fv_device *d = NULL;
    r->st = fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, &r->e);
    if (r->st) return NULL;
    fv_model *m = corpus_model(d, 0.2, r->how->dtype);
    fv_train_job j = corpus_job(d, m, r->how->updates ? r->how->updates : UPDATES);
    j.opt.shards = 8;
    j.opt.batch_tokens = 200;
    j.opt.eval_every = 4;
    j.opt.save_every = 3;
    j.valid = &corpus.feed;
    j.comm = r->comm;
    j.dir = r->how->dir;
    j.resume = r->how->dir != NULL;
    if (r->how->change) r->how->change(&j.opt);
    /* only one rank is asked to stop, and not always the same one */
    if (r->how->stop_after && fv_comm_rank(r->comm) == fv_comm_size(r->comm) - 1) {
        j.progress = stop_at;
        j.user = r;
        j.stop = &r->stop;
    }
    r->st = fv_train(&j, &r->s, &r->e);
    r->w = test_values(fv_model_params(m), &r->n);
    fv_model_free(m);
    fv_device_close(d);
    fv_comm_close(r->comm);
    return NULL;
}

static void train(rank *r, int n, const how *h)
{
    fv_err e;
    fv_comm *comm[MOST];
    pthread_t thread[MOST];
    check(fv_comm_threads(comm, n, NULL, &e), &e);
    for (int i = 0; i < n; i++) {
        r[i] = (rank){.comm = comm[i], .how = h};
        assert_int_equal(pthread_create(&thread[i], NULL, train_rank, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) check(r[i].st, &r[i].e);
    for (int i = 1; i < n; i++) {
        assert_memory_equal(r[i].w, r[0].w, (size_t)r[0].n * sizeof(float));
        free(r[i].w);
    }
}

/* The parameters that n ranks end with. */
static float *trained(int n, const how *h, fv_train_state *s, int64_t *len)
{
    rank r[MOST];
    train(r, n, h);
    *s = r[0].s;
    *len = r[0].n;
    return r[0].w;
}

static void accumulate(fv_train_opt *o) { o->accumulate = 3; }
static void recompute(fv_train_opt *o) { o->recompute = true; }
static void odd(fv_train_opt *o) { o->shards = 11; }
static void few_rows(fv_train_opt *o) { o->batch_rows = 3; }
static void average(fv_train_opt *o)
{
    o->ema = 0.9f;
    o->result = FV_RESULT_EMA;
}

static void no_bit_depends_on_the_number_of_ranks(void **state)
{
    (void)state;
    static const how cases[] = {
        {.change = NULL},     {.change = accumulate}, {.change = recompute}, {.change = odd},
        {.change = few_rows}, {.change = average},    {.dtype = FV_BF16},
    };
    static const int ranks[] = {2, 3, 4, 8};
#if defined(__SANITIZE_THREAD__) /* minutes each */
    const size_t n_cases = 2, most_ranks = 2;
#else
    const size_t n_cases = sizeof cases / sizeof *cases, most_ranks = 4;
#endif
    for (size_t i = 0; i < n_cases; i++) {
        fv_train_state one, many;
        int64_t n, m;
        how h = cases[i];
        h.updates = FEW_UPDATES;
        float *alone = trained(1, &h, &one, &n);
        for (size_t k = 0; k < (i ? 2 : most_ranks); k++) {
            float *w = trained(ranks[i ? (i + k) % most_ranks : k], &h, &many, &m);
            assert_int_equal(n, m);
            assert_memory_equal(w, alone, (size_t)n * sizeof *w);
            assert_true(one.loss == many.loss && one.norm == many.norm);
            assert_true(one.valid == many.valid);
            assert_int_equal(one.tokens, many.tokens);
            free(w);
        }
        free(alone);
    }
}

/* Stopped and resumed with other numbers of ranks; the optimiser's state is shared anew each
 * time. */
static void a_run_goes_on_with_another_number_of_ranks(void **state)
{
    (void)state;
    fv_train_state s;
    int64_t n, m;
    how whole = {.change = average, .dir = scratch("whole")}, h = {.change = average};
    h.dir = scratch("pieces");
    float *want = trained(1, &whole, &s, &n);
    static const int ranks[] = {3, 1, 4, 2};
    static const int64_t stops[] = {2, 5, 7, 0};
    for (int i = 0; i < 4; i++) {
        h.stop_after = stops[i];
        float *w = trained(ranks[i], &h, &s, &m);
        /* ranks agree on an update to stop at; a device alone may have begun the next one */
        if (stops[i])
            assert_in_range(s.step, stops[i] + (ranks[i] > 1), stops[i] + 1);
        else
            assert_int_equal(s.step, UPDATES);
        if (i == 3) assert_memory_equal(w, want, (size_t)n * sizeof *w);
        free(w);
    }
    free(want);
}

static void fast(fv_train_opt *o) { o->fast_sums = true; }

/* Another order of the same sums: near, and near only. */
static void fast_sums_are_near(void **state)
{
    (void)state;
    how h = {.change = fast}, exact = {.change = NULL};
    h.updates = exact.updates = FEW_UPDATES;
    fv_train_state a, b;
    int64_t n, m;
    float *x = trained(2, &h, &a, &n), *y = trained(1, &exact, &b, &m);
    assert_true(a.loss / b.loss < 1.001 && b.loss / a.loss < 1.001);
    free(x);
    free(y);
}

static void too_few(fv_train_opt *o) { o->shards = 2; }

static void more_ranks_than_shards_are_refused(void **state)
{
    (void)state;
    fv_err e;
    fv_comm *comm[3];
    pthread_t thread[3];
    rank r[3];
    const how h = {.change = too_few};
    check(fv_comm_threads(comm, 3, NULL, &e), &e);
    for (int i = 0; i < 3; i++) {
        r[i] = (rank){.comm = comm[i], .how = &h};
        assert_int_equal(pthread_create(&thread[i], NULL, train_rank, &r[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(r[i].st, FV_EUSAGE);
        assert_string_equal(r[i].e.text,
                            "train.shards = 2: 3 ranks need batches cut into at least 3 shards");
        free(r[i].w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_the_number_of_ranks),
        cmocka_unit_test(a_run_goes_on_with_another_number_of_ranks),
        cmocka_unit_test(fast_sums_are_near),
        cmocka_unit_test(more_ranks_than_shards_are_refused),
    };
    return cmocka_run_group_tests(tests, corpus_open, corpus_close);
}
