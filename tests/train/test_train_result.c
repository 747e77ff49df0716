/* test_train_result.c - what a run ends with: the same bits for every `result` however often it was
 * interrupted, only verified checkpoints of this run in an average, and nothing that is not
 * finite. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "helper/corpus.h"
#include "helper/device.h"
#include "helper/files.h"

typedef struct run {
    int result;
    int64_t stop_after; /* update at which the run is interrupted; 0: never */
    int64_t spoil_at;   /* update behind which a parameter becomes infinite; 0: none */
    bool resume, no_valid;
    fv_model *model;
    char text[4096]; /* the messages */
} run;

static volatile int stop;

static void on_step(void *user, const fv_train_state *s, const char *event)
{
    run *r = user;
    fv_err e;
    if (strcmp(event, "step")) return;
    if (s->step == r->stop_after) stop = 1;
    if (s->step != r->spoil_at) return;
    fv_params *p = fv_model_params(r->model);
    fv_tensor *t = fv_params_find(p, "model.shared.weight");
    int64_t n = fv_len(t);
    float *w = malloc((size_t)n * sizeof *w);
    assert_non_null(w);
    check(fv_params_get(p, t, w, n, &e), &e);
    w[0] = INFINITY;
    check(fv_params_set(p, t, w, n, &e), &e);
    free(w);
}

static void on_message(void *user, const char *text)
{
    run *r = user;
    size_t n = strlen(r->text);
    snprintf(r->text + n, sizeof r->text - n, "%s\n", text);
}

static fv_status train(const char *dir, run *r, fv_train_state *s, fv_err *e)
{
    fv_device *d = corpus_device(1);
    r->model = corpus_model(d, 0.2, FV_F32);
    fv_train_job j = corpus_job(d, r->model, 24);
    j.dir = dir;
    j.resume = r->resume;
    j.valid = r->no_valid ? NULL : &corpus.feed;
    j.opt.save_every = 5;
    j.opt.eval_every = 6;
    j.opt.keep = 2;
    j.opt.average = 3;
    j.opt.result = r->result;
    j.opt.ema = r->result == FV_RESULT_EMA ? 0.9f : 0;
    j.config = "one configuration";
    j.stop = &stop;
    j.progress = on_step;
    j.on_message = on_message;
    j.user = r;
    stop = 0;
    fv_status st = fv_train(&j, s, e);
    fv_model_free(r->model);
    fv_device_close(d);
    return st;
}

static void whole(const char *dir, int result)
{
    fv_err e;
    fv_train_state s;
    run r = {.result = result};
    check(train(dir, &r, &s, &e), &e);
    assert_int_equal(s.step, 24);
}

/* Interrupted between checkpoints, twice, so that the extra checkpoints would push one that counts
 * out of the directory. */
static void interruptions_do_not_change_the_result(void **state)
{
    (void)state;
    for (int result = FV_RESULT_LAST; result <= FV_RESULT_EMA; result++) {
        static const int64_t at[] = {12, 17, 0};
        const char *one = scratch("whole-%d", result), *two = scratch("pieces-%d", result);
        whole(one, result);
        for (int i = 0; i < 3; i++) {
            fv_err e;
            fv_train_state s;
            run r = {.result = result, .stop_after = at[i], .resume = i > 0};
            check(train(two, &r, &s, &e), &e);
        }
        assert_true(same_files(scratch("whole-%d/model/model.safetensors", result),
                               scratch("pieces-%d/model/model.safetensors", result)));
    }
}

static void spoil(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -3, SEEK_END);
    int c = fgetc(f);
    fseek(f, -3, SEEK_END);
    fputc(c ^ 0x40, f);
    fclose(f);
}

static void an_average_takes_verified_checkpoints_of_this_run(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    whole(scratch("mean"), FV_RESULT_AVERAGE);
    size_t n;
    char *good = slurp(scratch("mean/model/model.safetensors"), &n);

    /* a directory of a later update is not of this run */
    assert_int_equal(mkdir(scratch("mean/checkpoints/step-400"), 0777), 0);
    run again = {.result = FV_RESULT_AVERAGE, .resume = true};
    check(train(scratch("mean"), &again, &s, &e), &e);
    size_t m;
    char *same = slurp(scratch("mean/model/model.safetensors"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(good, same, n);
    free(same);
    free(good);

    spoil(scratch("mean/checkpoints/step-20/model.safetensors"));
    assert_int_not_equal(train(scratch("mean"), &again, &s, &e), FV_OK);
    assert_non_null(strstr(e.text, "step-20"));
    scratch_drop("mean/checkpoints/step-20");
    check(train(scratch("mean"), &again, &s, &e), &e);
}

/* The evaluation sees the parameter before a checkpoint would. */
static void a_validation_loss_that_is_not_finite_is_never_the_best(void **state)
{
    (void)state;
    if (!test_on_cpu()) skip(); /* updates are read several at once */
    fv_err e;
    fv_train_state s;
    run r = {.result = FV_RESULT_BEST, .spoil_at = 12};
    assert_int_equal(train(scratch("nan"), &r, &s, &e), FV_ENUMERIC);
    assert_non_null(strstr(e.text, "update 12: the validation loss is not finite"));
    assert_non_null(strstr(e.text, "the last checkpoint, of update 10, is intact"));
    assert_int_equal(s.best_step, 6);
    run go_on = {.result = FV_RESULT_BEST, .resume = true};
    check(train(scratch("nan"), &go_on, &s, &e), &e);
    assert_non_null(strstr(go_on.text, "resuming after update 10 of 24"));
    whole(scratch("plain"), FV_RESULT_BEST);
    assert_true(same_files(scratch("nan/model/model.safetensors"),
                           scratch("plain/model/model.safetensors")));
}

static void parameters_that_are_not_finite_are_never_saved(void **state)
{
    (void)state;
    if (!test_on_cpu()) skip();
    static const int64_t at[] = {10, 24}; /* at a checkpoint, and in the last update */
    for (int i = 0; i < 2; i++) {
        const char *dir = scratch("inf-%d", i);
        fv_err e;
        fv_train_state s;
        run r = {.spoil_at = at[i], .no_valid = true};
        assert_int_equal(train(dir, &r, &s, &e), FV_ENUMERIC);
        assert_non_null(strstr(e.text, "model.shared.weight is not finite"));
        assert_true(!scratch_has(i ? "inf-1/model/config.json" : "inf-0/model/config.json"));
        run go_on = {.resume = true, .no_valid = true};
        check(train(dir, &go_on, &s, &e), &e);
        assert_int_equal(s.step, 24);
    }
}

static void a_finished_run_knows_its_loss(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s, again;
    run r = {0}, resumed = {.resume = true};
    check(train(scratch("ends"), &r, &s, &e), &e);
    check(train(scratch("ends"), &resumed, &again, &e), &e);
    assert_int_equal(again.step, 24);
    assert_true(s.loss > 0 && again.loss == s.loss);
}

static void a_run_makes_its_directories(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    run r = {0};
    check(train(scratch("a/b/c"), &r, &s, &e), &e);
    assert_true(scratch_has("a/b/c/model/model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interruptions_do_not_change_the_result),
        cmocka_unit_test(an_average_takes_verified_checkpoints_of_this_run),
        cmocka_unit_test(a_validation_loss_that_is_not_finite_is_never_the_best),
        cmocka_unit_test(parameters_that_are_not_finite_are_never_saved),
        cmocka_unit_test(a_finished_run_knows_its_loss),
        cmocka_unit_test(a_run_makes_its_directories),
    };
    return cmocka_run_group_tests(tests, corpus_open, corpus_close);
}
