/* test_train_bits.c - what must not change a bit of training, or hardly one: parts of a batch, a
 * run that was stopped and resumed with other threads, steps that are captured, layers that are
 * computed twice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "helper/corpus.h"
#include "helper/device.h"
#include "helper/files.h"

/* Parameters after one update from all pairs at once and from parts, as far apart as rounding makes
 * them. */
static void parts_of_a_batch_add_up(void **state)
{
    (void)state;
    float *w[2];
    int64_t n = 0;
    for (int parts = 0; parts < 2; parts++) {
        fv_err e;
        fv_train_state s;
        fv_device *d = corpus_device(1);
        fv_model *m = corpus_model(d, 0, FV_F32);
        fv_train_job j = corpus_job(d, m, 1);
        j.opt.batch_tokens = parts ? 300 : 100000;
        j.opt.accumulate = parts ? 1000 : 1;
        j.opt.warmup = 0;
        j.opt.clip = 0;
        /* a first step of Adam is the sign of the gradient: a large eps keeps rounding small */
        j.opt.eps = 1e-4f;
        check(fv_train(&j, &s, &e), &e);
        w[parts] = test_values(fv_model_params(m), &n);
        assert_non_null(w[parts]);
        fv_model_free(m);
        fv_device_close(d);
    }
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)w[0][i] - (double)w[1][i]);
        if (off > most) most = off;
    }
    assert_true(most < 1e-5);
    free(w[0]);
    free(w[1]);
}

/* ---- resuming ---- */

static volatile int stop;

static void stop_at(void *user, const fv_train_state *s, const char *event)
{
    if (!strcmp(event, "step") && s->step == *(const int64_t *)user) stop = 1;
}

static float *trained(const char *dir, int threads, int64_t stop_after, bool resume, int64_t *n)
{
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(threads);
    fv_model *m = corpus_model(d, 0.2, FV_F32);
    fv_train_job j = corpus_job(d, m, 40);
    j.dir = dir;
    j.resume = resume;
    j.opt.save_every = 15;
    j.valid = &corpus.feed;
    j.opt.eval_every = 10;
    stop = 0;
    j.stop = &stop;
    j.progress = stop_at;
    j.user = &stop_after;
    check(fv_train(&j, &s, &e), &e);
    if (stop_after && !test_on_cpu()) /* a device is told of steps later, several at once */
        assert_in_range(s.step, stop_after, 39);
    else
        assert_int_equal(s.step, stop_after ? stop_after : 40);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void a_resumed_run_has_the_same_bits(void **state)
{
    (void)state;
    const char *one = scratch("one"), *two = scratch("two");
    int64_t n, m;
    float *whole = trained(one, 1, 0, false, &n);
    free(trained(two, 2, 17, false, &m));
    free(trained(two, 1, 27, true, &m));
    float *pieces = trained(two, 3, 0, true, &m);
    assert_int_equal(n, m);
    assert_memory_equal(whole, pieces, (size_t)n * sizeof *whole);
    free(whole);
    free(pieces);
}

/* ---- captured steps ---- */

static const fv_backend *real;
static int replays;

static void count_replay(fv_stream *s, void *kept)
{
    replays++;
    real->replay(s, kept);
}

/* Parameters after some updates, with steps captured and replayed or each run by itself. */
static float *with_graphs(bool graphs, void (*change)(fv_train_opt *), int64_t *n)
{
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(2);
    fv_model *m = corpus_model(d, 0.1, FV_F32);
    fv_train_job j = corpus_job(d, m, 20);
    fv_backend watched = *(real = d->backend);
    watched.replay = count_replay;
    if (!graphs) watched.capture = NULL;
    replays = 0;
    change(&j.opt);
    d->backend = &watched;
    check(fv_train(&j, &s, &e), &e);
    d->backend = real;
    assert_true(graphs ? replays >= 10 : !replays);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void all_at_once(fv_train_opt *o) { o->batch_tokens = 100000; }

static void in_parts(fv_train_opt *o) /* of few shapes, each of which comes again */
{
    o->batch_rows = 20;
    o->batch_tokens = 100000;
    o->accumulate = 2;
    o->ema = 0.9f;
    o->result = FV_RESULT_EMA;
    o->updates = 120;
}

static void a_captured_step_has_the_same_bits(void **state)
{
    (void)state;
    /* nothing is captured there; test_train_kept does it for each family */
    if (test_on_cpu() || test_brief()) skip();
    void (*const how[])(fv_train_opt *) = {all_at_once, in_parts};
    for (int i = 0; i < 2; i++) {
        int64_t n, m;
        float *captured = with_graphs(true, how[i], &n), *plain = with_graphs(false, how[i], &m);
        assert_int_equal(n, m);
        assert_memory_equal(captured, plain, (size_t)n * sizeof *plain);
        free(captured);
        free(plain);
    }
}

/* ---- options ---- */

/* Parameters after eight updates. */
static float *after(void (*change)(fv_train_opt *), int64_t *n)
{
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(2);
    fv_model *m = corpus_model(d, 0.1, FV_F32);
    fv_train_job j = corpus_job(d, m, 8);
    if (change) change(&j.opt);
    check(fv_train(&j, &s, &e), &e);
    float *w = test_values(fv_model_params(m), n);
    assert_non_null(w);
    fv_model_free(m);
    fv_device_close(d);
    return w;
}

static void recompute(fv_train_opt *o) { o->recompute = true; }
static void no_thread(fv_train_opt *o) { o->prefetch = 0; }

/* Layers that are computed twice, and batches made by the same thread, change nothing. */
static void what_only_moves_work_changes_no_bit(void **state)
{
    (void)state;
    int64_t n, m;
    float *plain = after(NULL, &n), *twice = after(recompute, &m), *alone = after(no_thread, &m);
    assert_memory_equal(plain, twice, (size_t)n * sizeof *plain);
    assert_memory_equal(plain, alone, (size_t)n * sizeof *plain);
    free(plain);
    free(twice);
    free(alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_batch_add_up),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(a_captured_step_has_the_same_bits),
        cmocka_unit_test(what_only_moves_work_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, corpus_open, corpus_close);
}
