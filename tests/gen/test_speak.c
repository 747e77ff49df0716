/* test_speak.c - what a voice says, against transformers' generate_speech; that a seed decides it;
 * what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "fovea/author/speak.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/golden.h"

#define VOICE FOVEA_TESTS "/golden/models/speecht5"

enum { TEXTS = 3, WIDTH = 9, SPEAKER = 5, MELS = 6 }; /* of the golden case */

static fv_model *model;
static fv_voice *voice;
static int32_t ids[TEXTS][WIDTH], lengths[TEXTS] = {9, 5, 7};
static float speakers[TEXTS][SPEAKER];

static int set_up(void **state)
{
    fv_err e;
    fv_st *file;
    int64_t n;
    if (open_device(state)) return -1;
    check(fv_model_open(&model, device, VOICE, (fv_model_opt){.serve = true}, &e), &e);
    check(fv_voice_new(&voice, device, model, &e), &e);
    check(fv_st_open(&file, NULL, VOICE "/in.safetensors", &e), &e);
    float *x = golden_numbers(file, "input_ids", &n);
    assert_int_equal(n, TEXTS * WIDTH);
    for (int i = 0; i < TEXTS * WIDTH; i++) ids[i / WIDTH][i % WIDTH] = (int32_t)x[i];
    free(x);
    x = golden_numbers(file, "speaker_embeddings", &n);
    memcpy(speakers, x, sizeof speakers);
    free(x);
    fv_st_close(file);
    return 0;
}

static int tear_down(void **state)
{
    fv_voice_free(voice);
    fv_model_free(model);
    return close_device(state);
}

static fv_said say(int text, fv_speak_opt how)
{
    fv_err e;
    fv_said said;
    how.speaker = speakers[text];
    check(fv_voice_speak(voice, ids[text], lengths[text], how, &said, &e), &e);
    return said;
}

static void same(const fv_st *file, int text, const char *what, const float *got, int64_t n)
{
    char name[64];
    int64_t have;
    snprintf(name, sizeof name, "sequences.%d.%s", text, what);
    float *want = golden_numbers(file, name, &have);
    assert_int_equal(n, have);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 1e-4))
            fail_msg("%s: number %d is %g, expected %g", name, (int)i, (double)got[i],
                     (double)want[i]);
    free(want);
}

/* Spectrograms, how long they are, and where each step looked. */
static void it_says_what_transformers_says(void **state)
{
    (void)state;
    fv_err e;
    fv_st *file;
    check(fv_st_open(&file, NULL, VOICE "/out.safetensors", &e), &e);
    for (int i = 0; i < TEXTS; i++) {
        fv_said said = say(i, (fv_speak_opt){.no_dropout = true,
                                             .threshold = 0.9,
                                             .min_ratio = 0.5,
                                             .max_ratio = 3});
        assert_int_equal(said.mels, MELS);
        assert_int_equal(said.tokens, lengths[i]);
        same(file, i, "spectrogram", said.mel, said.frames * said.mels);
        same(file, i, "cross", said.attention, said.layers * said.heads * said.steps * said.tokens);
        double sum = 0;
        for (int64_t k = 0; k < said.tokens; k++) sum += (double)said.attention[k];
        assert_float_equal(sum, 1, 1e-5);
    }
    fv_st_close(file);
}

/* Dropout in the prenet is drawn from the seed and nothing else. */
static void a_seed_decides_what_is_said(void **state)
{
    (void)state;
    fv_speak_opt how = {.threshold = 0.999, .min_ratio = 4, .max_ratio = 5, .seed = 3};
    fv_said said = say(0, how);
    size_t bytes = (size_t)(said.frames * said.mels) * sizeof(float);
    float *first = malloc(bytes);
    assert_non_null(first);
    memcpy(first, said.mel, bytes);
    int64_t frames = said.frames;
    how.seed = 4;
    said = say(0, how);
    assert_int_equal(said.frames, frames);
    assert_memory_not_equal(first, said.mel, bytes);
    say(2, how);
    how.seed = 3;
    said = say(0, how);
    assert_memory_equal(first, said.mel, bytes);
    free(first);
}

static void it_ends_in_time(void **state)
{
    (void)state;
    fv_said said = say(0, (fv_speak_opt){.threshold = 100, .max_ratio = 2});
    assert_false(said.ended);
    assert_int_equal(said.frames, 18);
    /* no longer than the model has positions, 60 steps of two frames */
    said = say(0, (fv_speak_opt){.threshold = 100, .max_ratio = 1000});
    assert_int_equal(said.frames, 120);
    said = say(0, (fv_speak_opt){.threshold = 1e-6});
    assert_true(said.ended);
    assert_int_equal(said.steps, 1);
}

static void a_diagonal_is_told_from_a_smear(void **state)
{
    (void)state;
    float maps[2 * 4 * 4] = {0};
    for (int i = 0; i < 16; i++) maps[i] = 0.25f;
    for (int i = 0; i < 4; i++) maps[16 + 5 * i] = 1;
    fv_said said = {.attention = maps, .layers = 1, .heads = 2, .steps = 4, .tokens = 4};
    int64_t best = -1;
    assert_float_equal(fv_said_diagonality(&said, &best), 1, 1e-6);
    assert_int_equal(best, 1);
    said.heads = 1;
    assert_float_equal(fv_said_diagonality(&said, &best), 2.f / 3, 1e-6);
}

static void what_cannot_be_said_is_refused(void **state)
{
    (void)state;
    fv_err e;
    fv_said said;
    fv_voice *other;
    fv_model *vocoder;
    int32_t wrong[] = {4, 500}, many[64];
    for (int i = 0; i < 64; i++) many[i] = 4;
    assert_int_equal(fv_voice_speak(voice, wrong, 0, (fv_speak_opt){0}, &said, &e), FV_EARG);
    assert_int_not_equal(fv_voice_speak(voice, wrong, 2, (fv_speak_opt){0}, &said, &e), FV_OK);
    assert_non_null(strstr(e.text, "500"));
    assert_int_not_equal(fv_voice_speak(voice, many, 64, (fv_speak_opt){0}, &said, &e), FV_OK);
    assert_non_null(strstr(e.text, "at most 30"));
    check(fv_model_open(&vocoder, device, VOICE "_hifigan", (fv_model_opt){0}, &e), &e);
    assert_int_equal(fv_voice_new(&other, device, vocoder, &e), FV_EARG);
    fv_model_free(vocoder);
    /* and it speaks again */
    said = say(1, (fv_speak_opt){.seed = 1});
    assert_true(said.frames > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_transformers_says),
        cmocka_unit_test(a_seed_decides_what_is_said),
        cmocka_unit_test(it_ends_in_time),
        cmocka_unit_test(a_diagonal_is_told_from_a_smear),
        cmocka_unit_test(what_cannot_be_said_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
