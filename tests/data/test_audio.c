/* test_audio.c - sound files against libsndfile's own reading, resampling by measured levels, and
 * audio processors against transformers; files that are not what they say. */
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

#include "fovea/author/processor.h"
#include "fovea/author/audio.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/golden.h"

#define GOLDEN FOVEA_TESTS "/golden/audio/"
#define PI 3.14159265358979323846

/* The greatest difference, of numbers above 1 relative to them. */
static double farthest(const float *x, const float *y, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)x[i] - (double)y[i]), size = fabs((double)y[i]);
        if (size > 1) d /= size;
        if (d > most) most = d;
    }
    return most;
}

/* ---- files ---- */

static void files_are_decoded_as_soundfile_does(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int rate;
        double tolerance; /* what a lossy decoder gives depends on the machine's rounding */
    } files[] = {{"sweep.wav", 16000, 0},
                 {"sweep.flac", 44100, 1e-7},
                 {"sweep.ogg", 22050, 1e-4},
                 {"sweep.mp3", 16000, 1e-4}};
    fv_st *file;
    fv_err e;
    fv_clip x = {0};
    check(fv_st_open(&file, NULL, GOLDEN "decoded.safetensors", &e), &e);
    for (int i = 0; i < 4; i++) {
        char path[400];
        int64_t n;
        float *want = golden_numbers(file, files[i].name, &n);
        snprintf(path, sizeof path, GOLDEN "%s", files[i].name);
        check(fv_clip_open(&x, NULL, path, &e), &e);
        assert_int_equal(x.rate, files[i].rate);
        assert_int_equal(x.n, n);
        assert_true(farthest(x.data, want, n) <= files[i].tolerance);
        free(want);
    }
    fv_clip_free(&x);
    fv_st_close(file);
}

static void make_tone(fv_clip *x, int rate, double hz, double seconds)
{
    fv_err e;
    check(fv_clip_new(x, NULL, rate, (int64_t)(seconds * rate), &e), &e);
    for (int64_t i = 0; i < x->n; i++)
        x->data[i] = (float)(0.5 * sin(2 * PI * hz * (double)i / rate));
}

static void what_is_written_is_read_again(void **state)
{
    (void)state;
    fv_clip x = {0}, y = {0};
    fv_err e;
    make_tone(&x, 8000, 440, 0.1);
    x.data[3] = 2; /* beyond full scale */
    check(fv_clip_save(&x, scratch("tone.wav"), &e), &e);
    check(fv_clip_open(&y, NULL, scratch("tone.wav"), &e), &e);
    assert_int_equal(y.rate, 8000);
    assert_int_equal(y.n, x.n);
    assert_true(y.data[3] > 0.9999f && y.data[3] < 1);
    x.data[3] = y.data[3];
    assert_true(farthest(x.data, y.data, x.n) <= 0.5 / 32768 + 1e-9);
    size_t n;
    char *bytes = slurp(scratch("tone.wav"), &n);
    check(fv_clip_pcm(&x, NULL, bytes + 44, n - 44, 8000, "stdin", &e), &e);
    assert_int_equal(x.n, y.n);
    assert_true(farthest(x.data, y.data, x.n) == 0);
    free(bytes);
    fv_clip_free(&x);
    fv_clip_free(&y);
}

static void refused(const char *name, const void *bytes, size_t n, const char *sentence)
{
    fv_clip x = {0};
    fv_err e = {0};
    assert_int_not_equal(fv_clip_decode(&x, NULL, bytes, n, name, &e), FV_OK);
    if (!strstr(e.text, sentence)) fail_msg("\"%s\" lacks \"%s\"", e.text, sentence);
    fv_clip_free(&x);
}

/* A WAV of 32-bit floats, one channel. */
static size_t float_wav(uint8_t *out, const float *x, uint32_t n)
{
    static const uint8_t head[44] = {'R', 'I', 'F',  'F',  0,   0,   0,   0,    'W', 'A', 'V',
                                     'E', 'f', 'm',  't',  ' ', 16,  0,   0,    0,   3,   0,
                                     1,   0,   0x80, 0x3e, 0,   0,   0,   0xfa, 0,   0,   4,
                                     0,   32,  0,    'd',  'a', 't', 'a', 0,    0,   0,   0};
    memcpy(out, head, 44);
    uint32_t bytes = 4 * n, all = 36 + bytes;
    memcpy(out + 4, &all, 4);
    memcpy(out + 40, &bytes, 4);
    if (n) memcpy(out + 44, x, bytes);
    return 44 + bytes;
}

static void bad_files_get_a_sentence(void **state)
{
    (void)state;
    uint8_t wav[200];
    fv_clip x = {0};
    fv_err e = {0};
    float samples[4] = {0.5f, NAN, 0, 0};
    refused("none.wav", "", 0, "none.wav: the file is empty");
    refused("text.wav", "this is no sound", 16, "text.wav: no sound file that can be read");
    refused("nan.wav", wav, float_wav(wav, samples, 4), "nan.wav: sample 1 is not a finite number");
    samples[1] = INFINITY;
    refused("inf.wav", wav, float_wav(wav, samples, 4), "sample 1 is not a finite number");
    refused("zero.wav", wav, float_wav(wav, samples, 0), "zero.wav: ");
    assert_int_not_equal(fv_clip_pcm(&x, NULL, "abc", 3, 16000, "stdin", &e), FV_OK);
    assert_non_null(strstr(e.text, "stdin: 3 bytes are no samples of 16 bits"));
    assert_int_not_equal(fv_clip_pcm(&x, NULL, "", 0, 16000, "stdin", &e), FV_OK);
    assert_non_null(strstr(e.text, "no samples"));
    assert_int_not_equal(fv_clip_open(&x, NULL, scratch("absent.wav"), &e), FV_OK);
    assert_non_null(strstr(e.text, "absent.wav"));
}

/* Bytes changed and files cut anywhere: a sentence or a clip, and never more memory than they
 * hold. */
static void spoiled_files_do_no_harm(void **state)
{
    (void)state;
    static const char *const names[] = {"sweep.wav", "sweep.flac", "sweep.ogg", "sweep.mp3"};
    uint32_t random = 1;
    for (int k = 0; k < 4; k++) {
        char path[400];
        size_t n;
        snprintf(path, sizeof path, GOLDEN "%s", names[k]);
        char *whole = slurp(path, &n), *bad = malloc(n);
        for (int i = 0; i < 150; i++) {
            fv_clip x = {0};
            fv_err e = {0};
            memcpy(bad, whole, n);
            for (int j = 0; j < 4; j++) {
                random = random * 1664525 + 1013904223;
                bad[(random >> 8) % (i % 2 ? n : 100)] = (char)(random >> 3);
            }
            size_t keep = i % 3 ? n : (random >> 5) % n;
            fv_status st = fv_clip_decode(&x, NULL, bad, keep, names[k], &e);
            assert_true(!st || *e.text);
            assert_true(st || (x.n > 0 && x.n <= FV_CLIP_MOST));
            fv_clip_free(&x);
        }
        free(bad);
        free(whole);
    }
}

/* ---- resampling ---- */

/* The level of a tone in the middle of a clip, by projection, relative to 0.5; in dB. */
static double level(const fv_clip *x, double hz)
{
    double s = 0, c = 0;
    int64_t from = x->n / 4, to = 3 * x->n / 4;
    for (int64_t i = from; i < to; i++) {
        double a = 2 * PI * hz * (double)i / x->rate,
               w = 2 * sin(PI * (double)(i - from) / (double)(to - from));
        s += w * w / 2 * (double)x->data[i] * sin(a);
        c += w * w / 2 * (double)x->data[i] * cos(a);
    }
    return 20 * log10(2 * hypot(s, c) / (double)(to - from) / 0.5 + 1e-12);
}

static double loudest(const fv_clip *x)
{
    double sum = 0;
    for (int64_t i = x->n / 4; i < 3 * x->n / 4; i++)
        sum += (double)x->data[i] * (double)x->data[i];
    return 10 * log10(sum / (double)(x->n / 2) / 0.125 + 1e-15);
}

static void resampling_is_as_good_as_it_says(void **state)
{
    (void)state;
    static const int rates[][2] = {{44100, 16000}, {8000, 16000}, {48000, 16000}, {16000, 11025}};
    fv_clip x = {0}, y = {0};
    fv_err e;
    for (int k = 0; k < 4; k++) {
        int in = rates[k][0], out = rates[k][1], low = in < out ? in : out;
        for (int i = 1; i <= 11; i++) { /* up to 0.88 of the lower Nyquist frequency */
            double hz = low * 0.5 * 0.08 * i;
            make_tone(&x, in, hz, 0.3);
            check(fv_clip_resample(&y, &x, out, &e), &e);
            assert_int_equal(y.rate, out);
            assert_int_equal(y.n, (x.n * out + in - 1) / in);
            assert_true(fabs(level(&y, hz)) < 0.01);
        }
        for (double hz = out * 0.5 * 1.001; hz < in * 0.5; hz *= 1.07) {
            make_tone(&x, in, hz, 0.3);
            check(fv_clip_resample(&y, &x, out, &e), &e);
            if (loudest(&y) > -100) fail_msg("%d to %d: %g Hz at %g dB", in, out, hz, loudest(&y));
        }
    }
    assert_int_not_equal(fv_clip_resample(&y, &x, 10, &e), FV_OK);
    fv_clip_free(&x);
    fv_clip_free(&y);
}

/* ---- processors ---- */

static fv_processor *open_processor(const char *path)
{
    fv_processor *p;
    fv_err e;
    check(fv_processor_open(&p, NULL, NULL, path, &e), &e);
    assert_string_equal(fv_processor_kind(p), "audio");
    return p;
}

static double against_golden(const char *name, const char *dir)
{
    char path[400];
    fv_st *file;
    fv_clip x = {0}, y = {0};
    fv_shape shape;
    fv_err e;
    int64_t n, count = 1;
    snprintf(path, sizeof path, GOLDEN "%s/out.safetensors", name);
    check(fv_st_open(&file, NULL, path, &e), &e);
    float *want = golden_numbers(file, "out", &n);
    check(fv_clip_open(&x, NULL, GOLDEN "sweep.wav", &e), &e);
    fv_processor *p = open_processor(dir);
    check(fv_processor_sound(p, &y, &x, &shape, "sweep.wav", &e), &e);
    for (int i = 0; i < shape.n; i++) count *= shape.d[i];
    assert_int_equal(count, n);
    assert_int_equal(y.n, n);
    double most = farthest(y.data, want, n);
    free(want);
    fv_st_close(file);
    fv_processor_close(p);
    fv_clip_free(&x);
    fv_clip_free(&y);
    return most;
}

static void processors_equal_transformers(void **state)
{
    (void)state;
    static const char *const names[] = {"whisper", "whisper-normal", "ast",
                                        "ast-cut", "wav2vec2",       "moonshine",
                                        "kwt",     "speecht5",       "speecht5-short"};
    for (int i = 0; i < 9; i++) {
        fv_err e;
        char dir[400];
        snprintf(dir, sizeof dir, GOLDEN "%s", names[i]);
        double first = against_golden(names[i], dir);
        if (first > 1e-4) fail_msg("%s differs by %g", names[i], first);
        mkdir(scratch("%s", names[i]), 0777);
        fv_processor *p = open_processor(dir);
        check(fv_processor_save(p, scratch("%s", names[i]), &e), &e);
        fv_processor_close(p);
        assert_true(against_golden(names[i], scratch("%s", names[i])) == first);
    }
}

/* The samples that a spectrogram is turned into have nearly that spectrogram, the same ones for the
 * same seed. */
static void a_spectrogram_is_heard_again(void **state)
{
    (void)state;
    fv_err e;
    fv_clip x = {0}, mel = {0}, back = {0}, twice = {0}, again = {0};
    fv_shape shape;
    double off = 0, norm = 0;
    fv_processor *p = open_processor(GOLDEN "speecht5-short");
    check(fv_clip_open(&x, NULL, GOLDEN "sweep.wav", &e), &e);
    check(fv_processor_sound(p, &mel, &x, &shape, "sweep.wav", &e), &e);
    check(fv_processor_sound_back(p, &back, mel.data, shape.d[0], 0, 5, &e), &e);
    assert_int_equal(back.n, (shape.d[0] - 1) * 160);
    assert_int_equal(back.rate, 16000);
    check(fv_processor_sound_back(p, &twice, mel.data, shape.d[0], 0, 5, &e), &e);
    assert_memory_equal(back.data, twice.data, (size_t)back.n * sizeof *back.data);
    check(fv_processor_sound(p, &again, &back, &shape, "again", &e), &e);
    /* frames at the ends are cut off from samples that are not there */
    for (int64_t i = 3 * shape.d[1]; i < (shape.d[0] - 3) * shape.d[1]; i++) {
        double a = pow(10, (double)mel.data[i]), b = pow(10, (double)again.data[i]);
        off += (a - b) * (a - b);
        norm += a * a;
    }
    if (!(sqrt(off / norm) < 0.12)) fail_msg("magnitudes differ by %g", sqrt(off / norm));
    mel.data[7] = NAN;
    assert_int_equal(fv_processor_sound_back(p, &back, mel.data, shape.d[0], 0, 5, &e), FV_EARG);
    assert_int_equal(fv_processor_sound_back(p, &back, mel.data, 1, 0, 5, &e), FV_EARG);
    fv_processor_close(p);
    fv_clip_free(&x);
    fv_clip_free(&mel);
    fv_clip_free(&back);
    fv_clip_free(&twice);
    fv_clip_free(&again);
}

static void a_new_processor_is_saved_and_opened(void **state)
{
    (void)state;
    fv_err e;
    fv_processor *p;
    fv_sound_steps s = {.kind = FV_SOUND_MFCC,
                        .rate = 8000,
                        .window = 240,
                        .hop = 80,
                        .fft = 256,
                        .low = 20,
                        .high = 3800,
                        .most = 50};
    check(fv_processor_from_sound(&p, NULL, &s, NULL, &e), &e);
    mkdir(scratch("new"), 0777);
    check(fv_processor_save(p, scratch("new"), &e), &e);
    fv_processor_close(p);
    p = open_processor(scratch("new"));
    const fv_sound_steps *got = fv_processor_sound_steps(p);
    assert_int_equal(got->kind, FV_SOUND_MFCC);
    assert_int_equal(got->rate, 8000);
    assert_int_equal(got->window, 240);
    assert_int_equal(got->most, 50);
    assert_true(got->high == 3800);
    assert_string_equal(fv_processor_sound_input(p), "input_features");
    fv_processor_close(p);
    s.high = 5000; /* above half the rate */
    assert_int_not_equal(fv_processor_from_sound(&p, NULL, &s, NULL, &e), FV_OK);
    assert_non_null(strstr(e.text, "half the sampling rate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_decoded_as_soundfile_does),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(bad_files_get_a_sentence),
        cmocka_unit_test(spoiled_files_do_no_harm),
        cmocka_unit_test(resampling_is_as_good_as_it_says),
        cmocka_unit_test(processors_equal_transformers),
        cmocka_unit_test(a_spectrogram_is_heard_again),
        cmocka_unit_test(a_new_processor_is_saved_and_opened),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
