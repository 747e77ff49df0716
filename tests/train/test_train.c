/* test_train.c - training: a tiny corpus is learnt by heart, in bf16 too; parameters move as they
 * should, and what goes wrong on the way (numbers that are none, no memory, a full disk) ends a run
 * with its last state good. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "helper/device.h"
#include "fovea/author/backend.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "fovea/train.h"
#include "fovea/author/checkpoint.h"
#include "fovea/author/train.h"
#include "helper/corpus.h"
#include "helper/files.h"

static void a_tiny_corpus_is_learnt_by_heart(void **state)
{
    (void)state;
    if (test_brief()) skip(); /* runs of a few updates follow */
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(2);
    fv_model *m = corpus_model(d, 0, FV_F32);
    fv_train_job j = corpus_job(d, m, 400);
    check(fv_train(&j, &s, &e), &e);
    assert_true(s.loss < 0.05);

    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 2;
    o.max_length = 60;
    o.start = o.pad = corpus.pad;
    o.eos = corpus.eos;
    o.forced_eos = -1;
    o.banned = NULL;
    o.n_banned = 0;
    int right = 0;
    for (int i = 0; i < CORPUS_PAIRS; i++) {
        int64_t len, want_len;
        const int32_t *source = fv_pairs_source(corpus.pairs, i, &len),
                      *want = fv_pairs_target(corpus.pairs, i, &want_len);
        fv_generated g;
        check(fv_generate(&g, d, m, &source, &len, 1, &o, &e), &e);
        right += g.hyp[0].n == want_len &&
                 !memcmp(g.hyp[0].ids, want, (size_t)want_len * sizeof *want);
        fv_generated_free(&g);
    }
    assert_true(right >= CORPUS_PAIRS - 2);
    fv_model_free(m);
    fv_device_close(d);
}

static void a_loss_that_is_not_finite_stops_the_run(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(1);
    fv_model *m = corpus_model(d, 0, FV_F32);
    fv_tensor *t = fv_params_find(fv_model_params(m), "model.shared.weight");
    int64_t n = fv_len(t);
    float *w = malloc((size_t)n * sizeof *w);
    check(fv_params_get(fv_model_params(m), t, w, n, &e), &e);
    for (int64_t i = 0; i < n; i++) w[i] = NAN;
    check(fv_params_set(fv_model_params(m), t, w, n, &e), &e);
    fv_train_job j = corpus_job(d, m, 5);
    float *before = test_values(fv_model_params(m), &n);
    assert_int_equal(fv_train(&j, &s, &e), FV_ENUMERIC);
    assert_non_null(strstr(e.text, "update 1"));
    assert_int_equal(s.step, 0);
    float *after = test_values(fv_model_params(m), &n);
    /* nor have updates that were under way changed anything */
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    free(before);
    free(after);
    free(w);
    fv_model_free(m);
    fv_device_close(d);
}

static void schedules_rise_and_fall(void **state)
{
    (void)state;
    fv_train_opt o = {0};
    fv_fields_default(&o, fv_train_fields);
    o.updates = 1000;
    o.warmup = 100;
    o.lr = 1;
    for (int k = FV_INVERSE_SQRT; k <= FV_CONSTANT; k++) {
        o.schedule = k;
        assert_true(fabs(fv_learning_rate(&o, 50) - 0.5) < 1e-12);
        assert_true(fabs(fv_learning_rate(&o, 100) - 1) < 1e-12);
    }
    o.schedule = FV_INVERSE_SQRT;
    assert_true(fabs(fv_learning_rate(&o, 400) - 0.5) < 1e-12);
    o.schedule = FV_COSINE;
    assert_true(fabs(fv_learning_rate(&o, 550) - 0.5) < 1e-12 &&
                fabs(fv_learning_rate(&o, 1000)) < 1e-12);
    o.schedule = FV_LINEAR;
    assert_true(fabs(fv_learning_rate(&o, 550) - 0.5) < 1e-12 &&
                fabs(fv_learning_rate(&o, 1000)) < 1e-12);
    o.lr_min = 0.25f;
    for (int k = FV_COSINE; k <= FV_LINEAR; k++) {
        o.schedule = k;
        assert_true(fabs(fv_learning_rate(&o, 550) - 0.625) < 1e-12 &&
                    fabs(fv_learning_rate(&o, 1000) - 0.25) < 1e-12);
        assert_true(fabs(fv_learning_rate(&o, 100) - 1) < 1e-12);
    }
}

static double moved(fv_params *p, const float *before, const char *name)
{
    int64_t all, from = 0;
    float *now = test_values(p, &all);
    const fv_tensor *t = fv_params_find(p, name);
    assert_non_null(now);
    assert_non_null(t);
    double sum = 0;
    for (int i = 0; fv_params_at(p, i) != t; i++) from += fv_len(fv_params_at(p, i));
    for (int64_t i = from; i < from + fv_len(t); i++)
        sum += fabs((double)now[i] - (double)before[i]);
    free(now);
    return sum / (double)fv_len(t);
}

static void parameters_move_as_their_group_says(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(1);
    fv_model *m = corpus_model(d, 0, FV_F32);
    fv_params *p = fv_model_params(m);
    int64_t n;
    float *before = test_values(p, &n);
    assert_non_null(before);
    fv_train_job j = corpus_job(d, m, 1);
    j.opt.warmup = 0;
    j.opt.layer_decay = 0.5f;
    snprintf(j.opt.freeze, sizeof j.opt.freeze, "model.encoder.layers.0.self_attn.* *.fc1.bias");
    snprintf(j.opt.lr_scale, sizeof j.opt.lr_scale, "*decoder*fc2.weight=0.1");
    check(fv_train(&j, &s, &e), &e);
    /* A first step of Adam moves every number by the learning rate. */
    double full = 5e-3;
    assert_true(moved(p, before, "model.encoder.layers.0.self_attn.q_proj.weight") == 0);
    assert_true(moved(p, before, "model.decoder.layers.0.fc1.bias") == 0);
    assert_true(fabs(moved(p, before, "model.decoder.layers.0.self_attn.v_proj.weight") -
                     full * 0.5) < full * 0.05);
    assert_true(fabs(moved(p, before, "model.decoder.layers.0.fc2.weight") - full * 0.05) <
                full * 0.005);
    assert_true(moved(p, before, "model.shared.weight") < full * 0.26);
    free(before);
    fv_model_free(m);

    m = corpus_model(d, 0, FV_F32);
    j = corpus_job(d, m, 1);
    snprintf(j.opt.freeze, sizeof j.opt.freeze, "model.encodr.*");
    assert_int_equal(fv_train(&j, &s, &e), FV_EARG);
    assert_non_null(strstr(e.text, "model.encodr.*"));
    fv_model_free(m);
    fv_device_close(d);
}

/* The average of parameters that move towards a place lies between where they were and where they
 * are. */
static void a_moving_average_follows(void **state)
{
    (void)state;
    if (!test_on_cpu()) skip(); /* gradients are written where they lie */
    fv_err e;
    fv_device *d = corpus_device(1);
    fv_model *m = corpus_model(d, 0, FV_F32);
    fv_params *p = fv_model_params(m);
    fv_train_opt o = {0};
    fv_fields_default(&o, fv_train_fields);
    o.warmup = 0;
    o.schedule = FV_CONSTANT;
    o.lr = 0.01f;
    o.clip = 0;
    o.ema = 0.5f;
    int64_t n;
    fv_adam *a;
    check(fv_adam_new(&a, p, d, &o, &e), &e);
    float *w = fv_params_data(p, &n), *grad = fv_params_grad(p, &n), first = w[0], want = first;
    for (int64_t step = 1; step <= 4; step++) {
        double norm, decay = 0.5 < (1.0 + (double)step) / (10.0 + (double)step)
                                 ? 0.5
                                 : (1.0 + (double)step) / (10.0 + (double)step);
        for (int64_t i = 0; i < n; i++) grad[i] = 1;
        check(fv_adam_step(a, &o, step, &norm, &e), &e);
        want = (float)(decay * (double)want + (1 - decay) * (double)w[0]);
    }
    float last = w[0];
    check(fv_adam_swap(a, &e), &e);
    assert_true(fabs((double)(w[0] - want)) < 1e-6 && last < want && want < first);
    check(fv_adam_swap(a, &e), &e);
    assert_true(w[0] == last);
    fv_adam_free(a);
    fv_model_free(m);
    fv_device_close(d);
}

static void bf16_learns_too(void **state)
{
    (void)state;
    fv_err e;
    fv_train_state s;
    fv_device *d = corpus_device(2);
    fv_model *m = corpus_model(d, 0.1, FV_BF16);
    fv_train_job j = corpus_job(d, m, test_brief() ? 8 : 120);
    j.opt.ema = 0.9f;
    j.opt.result = FV_RESULT_EMA;
    check(fv_train(&j, &s, &e), &e);
    assert_true(s.loss < (test_brief() ? 10 : 1.5));
    fv_model_free(m);
    fv_device_close(d);
}

/* ---- the disk is full ---- */

static int64_t room;

static int64_t small_write(void *self, int fd, const void *buf, size_t n)
{
    (void)self;
    if (room >= 0 && (int64_t)n > room) return -28; /* ENOSPC */
    if (room >= 0) room -= (int64_t)n;
    return write(fd, buf, n);
}

/* ---- memory ---- */

static void *refuse_all(fv_device *d, size_t bytes)
{
    (void)d, (void)bytes;
    return NULL;
}

static void a_rehearsal_says_what_a_run_needs(void **state)
{
    (void)state;
    fv_err e;
    fv_train_memory need, less;
    int64_t n, same;
    fv_device *d = corpus_device(2);
    fv_model *m = corpus_model(d, 0.1, FV_F32);
    fv_train_job j = corpus_job(d, m, 5);
    float *before = test_values(fv_model_params(m), &n);
    check(fv_train_dry_run(&j, &need, &e), &e);
    float *after = test_values(fv_model_params(m), &same);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    assert_true(need.parameters >= (size_t)n * sizeof(float) && need.gradients >= need.parameters);
    assert_int_equal(need.optimiser, 2 * need.gradients);
    assert_true(need.batch > 0 && need.rows * need.columns <= 300);
    free(before);
    free(after);

    /* a device that has nothing left says so, and serves again once it has */
    const fv_backend *real = d->backend;
    fv_backend empty = *real;
    empty.alloc = refuse_all;
    d->backend = &empty;
    fv_status st = fv_train_dry_run(&j, &less, &e);
    d->backend = real;
    assert_int_equal(st, FV_ENOMEM);
    assert_non_null(strstr(e.text, "batch_tokens"));
    j.opt.batch_tokens = 100;
    check(fv_train_dry_run(&j, &less, &e), &e);
    assert_true(less.rows * less.columns <= 100 && less.batch <= need.batch);
    fv_model_free(m);
    fv_device_close(d);
}

static void a_full_disk_stops_the_run_with_its_last_state_good(void **state)
{
    (void)state;
    const char *dir = scratch("full"), *root = scratch("full/checkpoints");
    fv_io io = *fv__io(NULL);
    io.write = small_write;
    fv_env env = {.io = &io};
    fv_device *d;
    fv_err e;
    fv_train_state s;
    fv_ckpt_found found;
    room = -1;
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e), &e);
    fv_model *m = corpus_model(d, 0, FV_F32);
    fv_train_job j = corpus_job(d, m, 30);
    j.dir = dir;
    j.opt.save_every = 10;
    room = 1500000; /* one checkpoint and a half */
    assert_int_equal(fv_train(&j, &s, &e), FV_EIO);
    assert_non_null(strstr(e.text, "No space left"));
    check(fv_ckpt_find(&found, NULL, root, NULL, NULL, NULL, &e), &e);
    assert_int_equal(found.step, s.step - 10);
    assert_true(found.step >= 10);
    fv_model_free(m);
    fv_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tiny_corpus_is_learnt_by_heart),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_the_run),
        cmocka_unit_test(schedules_rise_and_fall),
        cmocka_unit_test(parameters_move_as_their_group_says),
        cmocka_unit_test(a_moving_average_follows),
        cmocka_unit_test(bf16_learns_too),
        cmocka_unit_test(a_rehearsal_says_what_a_run_needs),
        cmocka_unit_test(a_full_disk_stops_the_run_with_its_last_state_good),
    };
    return cmocka_run_group_tests(tests, corpus_open, corpus_close);
}
