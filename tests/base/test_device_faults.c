/* test_device_faults.c - a GPU that is lost in the middle of a run, too small for it, or has an old
 * driver: a sentence that says so and a non-zero exit; a run goes on from its checkpoint as if
 * nothing had been, and what is smaller fits.  This runs with a GPU only; the files of faults/ make
 * the faults. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "fovea/fovea.h"
#include "fovea/author/op.h"
#include "fovea/recipe.h"
#include "fovea/author/grammar.h"
#include "fovea/author/ops.h"
#include "helper/device.h"
#include "helper/program.h"

enum { UPDATES = 400, SAVE_EVERY = 20 };

static char program[PATH_MAX]; /* this */

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    FILE *f = fopen(scratch("data.tsv"), "wb");
    for (uint64_t i = 0; f && i < 60; i++) {
        fv_grammar_pair p;
        fv_grammar_sentence(&p, 5, i);
        fprintf(f, "%s\t%s\n", p.en, p.fr);
    }
    if (!f || fclose(f)) return -1;
    f = fopen(scratch("r.ini"), "wb");
    if (!f) return -1;
    fprintf(f,
            "[model]\nmodel_type = marian\nd_model = 32\nencoder_layers = 1\ndecoder_layers = "
            "1\nencoder_attention_heads = 2\n"
            "decoder_attention_heads = 2\nencoder_ffn_dim = 64\ndecoder_ffn_dim = "
            "64\nmax_position_embeddings = 64\n"
            "dropout = 0.1\n[data]\ntrain = data.tsv\n[tokenizer]\nvocab = 200\n[train]\nupdates = "
            "%d\nbatch_tokens = 200\n"
            "lr = 3e-3\nwarmup = 10\nsave_every = %d\n",
            UPDATES, SAVE_EVERY);
    return fclose(f);
}

/* The program ended by itself, with an error that names the device. */
static void said_so(const result *r)
{
    if (r->code != 1 || !strstr(r->err, "cuda")) fail_msg("exit %d: %s", r->code, r->err);
}

static void a_run_says_so_and_goes_on_from_its_checkpoint(void **state)
{
    (void)state;
    const result *r = sh("FOVEA_LOSE_AT=lost/checkpoints/step-%d/MANIFEST.json LD_PRELOAD='%s' "
                         "exec \"$fovea\" train r.ini -o lost "
                         "--device cuda",
                         2 * SAVE_EVERY, FOVEA_LOST);
    said_so(r);
    assert_non_null(
        strstr(r->err, "with CUDA_LAUNCH_BLOCKING=1 in the environment the kernel is named"));
    assert_non_null(strstr(r->err, "; the last checkpoint, of update "));
    assert_false(scratch_has("lost/model/model.safetensors"));
    succeeded(fovea("train r.ini -o lost --resume --device cuda"));
    succeeded(fovea("train r.ini -o whole --device cuda"));
    assert_true(same_files(scratch("lost/model/model.safetensors"),
                           scratch("whole/model/model.safetensors")));
}

/* From the first moment on that there is a device: while the model is read, or written from. */
static void a_command_that_writes_says_so(void **state)
{
    (void)state;
    scratch_text("now", "");
    for (int i = 0; i < 3; i++)
        said_so(sh("FOVEA_LOSE_AT=now LD_PRELOAD='%s' exec \"$fovea\" translate -m whole/model "
                   "--device cuda data.tsv",
                   FOVEA_LOST));
}

/* Bytes asked for and left, and the same context computes again. */
static void what_does_not_fit_is_an_error_and_what_is_smaller_fits(void **state)
{
    (void)state;
    fv_device *d;
    fv_ctx *c;
    fv_err e;
    float x[3] = {1, 2, 3}, y[3] = {0};
    check(fv_device_open(&d, test_device(), (fv_device_opt){0}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    assert_null(fv_new(c, FV_F32, FV_SHAPE(1 << 20, 1 << 20)));
    assert_int_equal(fv_ctx_status(c), FV_ENOMEM);
    const char *said = fv_ctx_err(c)->text;
    if (!strstr(said, "4398046511104 bytes for a tensor f32(1048576,1048576)") ||
        !strstr(said, "are left on the device"))
        fail_msg("%s", said);
    fv_ctx_reset(c, 1);
    fv_tensor *t = fv_floats(c, x, FV_SHAPE(3));
    assert_int_equal(fv_read(c, fv_add(c, t, t), y, 3), FV_OK);
    assert_true(y[0] == 2 && y[1] == 4 && y[2] == 6);
    fv_ctx_free(c);
    fv_device_close(d);

    scratch_text(
        "config.json",
        "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":64,\"n_layer\":1,\"n_head\":1}");
    const result *r = fovea(
        "bench train --config config.json --batch 16384 --len 1024 --device cuda");
    refused(r, 1, "out of memory: ");
    assert_non_null(strstr(r->err, "are left on the device"));
}

/* ---- too little memory in the middle of a run ---- */

static const fv_backend *real;
static fv_backend metered;
/* bytes on the device: now, at any time, and that there may be; 0: as many as there are */
static size_t held, most, limit;

static void *take(fv_device *d, size_t bytes)
{
    void *p = limit && held + bytes > limit ? NULL : real->alloc(d, bytes);
    if (p) held += bytes;
    if (held > most) most = held;
    return p;
}

static void release_data(fv_device *d, void *p, size_t bytes)
{
    held -= p ? bytes : 0;
    real->release(d, p, bytes);
}

static volatile int stop;
static void stop_half_way(void *user, const fv_train_state *s, const char *event)
{
    (void)user;
    /* a multiple of SAVE_EVERY: none was started behind it */
    if (!strcmp(event, "step") && s->step == UPDATES / 2) stop = 1;
}

static fv_status train(fv_device *d, const char *dir, const char *batch_tokens, bool half,
                       bool resume, fv_err *e)
{
    fv_recipe *r;
    fv_train_state s;
    check(fv_recipe_open(&r, NULL, scratch("r.ini"), e), e);
    check(fv_recipe_set(r, "data.dir", scratch("."), e), e);
    check(fv_recipe_set(r, "train.batch_tokens", batch_tokens, e), e);
    stop = 0;
    fv_recipe_job job = {.device = d,
                         .dir = scratch("%s", dir),
                         .resume = resume,
                         .stop = &stop,
                         .progress = half ? stop_half_way : NULL};
    fv_status st = fv_recipe_train(r, &job, &s, e);
    fv_recipe_close(r);
    return st;
}

/* Larger batches on the way do not fit: it says so, nothing is lost, and with smaller ones it ends
 * as if it had never tried. */
static void a_run_goes_on_with_a_smaller_batch(void **state)
{
    (void)state;
    fv_device *d;
    fv_err e;
    check(fv_device_open(&d, test_device(), (fv_device_opt){0}, &e), &e);
    real = d->backend;
    metered = *real;
    metered.alloc = take;
    metered.release = release_data;
    d->backend = &metered;
    check(train(d, "small", "40", false, false, &e), &e);
    check(train(d, "tried", "40", true, false, &e), &e);
    limit = most;
    assert_int_equal(train(d, "tried", "1000000", false, true, &e), FV_ENOMEM);
    if (!strstr(e.text, "out of memory: ") || !strstr(e.text, " bytes ") ||
        !strstr(e.text, "lower train.batch_tokens") ||
        !strstr(e.text, "checkpoint, of update 200, is intact"))
        fail_msg("%s", e.text);
    check(train(d, "tried", "40", false, true, &e), &e);
    limit = 0;
    assert_true(same_files(scratch("tried/model/model.safetensors"),
                           scratch("small/model/model.safetensors")));
    d->backend = real;
    fv_device_close(d);
}

/* This program itself, called with a word: products and sums, and among them one tensor that lies
 * nowhere. */
static int touch_what_is_not_there(void)
{
    fv_device *d;
    fv_ctx *c;
    fv_err e = {0};
    const float x[4] = {1, 2, 3, 4};
    if (fv_device_open(&d, test_device(), (fv_device_opt){0}, &e)) return 2;
    if (fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e)) return 2;
    fv_tensor *t = fv_floats(c, x, FV_SHAPE(2, 2)),
              nowhere = {.data = (void *)64, .shape = FV_SHAPE(2, 2)};
    if (fv_ctx_status(c)) return 2;
    fv_tensor *y = fv_softmax(c, &nowhere);
    for (int i = 0; i < 3; i++) y = fv_tanh(c, fv_add(c, y, t));
    if (!fv_ctx_status(c)) return 0;
    fprintf(stderr, "%s\n", fv_ctx_err(c)->text);
    return 1;
}

static void the_kernel_that_failed_is_named(void **state)
{
    (void)state;
    const result *r = sh("CUDA_LAUNCH_BLOCKING=1 exec '%s' touch", program);
    said_so(r);
    assert_non_null(strstr(r->err, "cudaErrorIllegalAddress) in softmax"));
    r = sh("exec '%s' touch", program);
    said_so(r);
    assert_non_null(strstr(r->err, "cudaErrorIllegalAddress) in or before "));
    assert_non_null(strstr(r->err, "CUDA_LAUNCH_BLOCKING=1"));
    /* Waiting changes nothing else. */
    succeeded(sh("CUDA_LAUNCH_BLOCKING=1 exec \"$fovea\" train r.ini -o waited --device cuda --set "
                 "train.updates=%d",
                 SAVE_EVERY));
    succeeded(fovea("train r.ini -o kept --device cuda --set train.updates=%d", SAVE_EVERY));
    assert_true(same_files(scratch("waited/model/model.safetensors"),
                           scratch("kept/model/model.safetensors")));
}

static void an_old_driver_is_named(void **state)
{
    (void)state;
    refused(sh("LD_LIBRARY_PATH='%s':\"$LD_LIBRARY_PATH\" exec \"$fovea\" info --device cuda",
               FOVEA_OLD_DRIVER),
            1, "device cuda: the driver is made for CUDA 11.4, this build needs ");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "touch")) return touch_what_is_not_there();
    if (!realpath("/proc/self/exe", program)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_says_so_and_goes_on_from_its_checkpoint),
        cmocka_unit_test(a_command_that_writes_says_so),
        cmocka_unit_test(what_does_not_fit_is_an_error_and_what_is_smaller_fits),
        cmocka_unit_test(a_run_goes_on_with_a_smaller_batch),
        cmocka_unit_test(the_kernel_that_failed_is_named),
        cmocka_unit_test(an_old_driver_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
