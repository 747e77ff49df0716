/* test_speech_run.c - recognisers trained on recordings made here, tones that are words: joined
 * strings, streams, and what a run from the same seed repeats. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/speech.h"
#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/program.h"
#include "media/audio/fft.h"
#include "media/audio/wav.h"

#define PI 3.14159265358979323846
#define RATE 8000

/* A word is a tone: half of them are low, half are high. */
static void write_tone(const char *name, double hz, double seconds)
{
    fv_clip x = {0};
    fv_err e;
    check(fv_clip_new(&x, NULL, RATE, (int64_t)(RATE * seconds), &e), &e);
    for (int64_t i = 0; i < x.n; i++) {
        double edge = fmin(1, fmin((double)i, (double)(x.n - 1 - i)) / 200);
        x.data[i] = (float)(0.5 * edge * sin(2 * PI * hz * (double)i / RATE));
    }
    check(fv_clip_save(&x, scratch("%s", name), &e), &e);
    fv_clip_free(&x);
}

static int set_up(void **state)
{
    char table[400] = "path\ttext\tspeaker\n";
    if (scratch_open(state)) return -1;
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.wav", i);
        write_tone(name, i % 2 ? 2000 + 50 * i : 500 + 20 * i, 0.2 + 0.01 * i);
        snprintf(table + strlen(table), 40, "%s\t%s\t%s\n", name, i % 2 ? "high" : "low",
                 i < 4 ? "a" : "b");
    }
    scratch_text("words.tsv", table);
    return 0;
}

/* ---- WAV and the FFT without libraries ---- */

static void put(uint8_t **p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) *(*p)++ = (uint8_t)(v >> 8 * i);
}

/* Two channels, 1/2 and 1/4 of full scale, of every format; a chunk of odd length before them. */
static size_t make_wav(uint8_t *out, int tag, int bits, bool extensible)
{
    uint8_t *p = out, *end;
    int bytes = bits / 8;
    memcpy(p, "RIFF\0\0\0\0WAVEjunk", 16);
    p += 16;
    put(&p, 3, 4);
    p += 4; /* three bytes and one that fills */
    memcpy(p, "fmt ", 4);
    p += 4;
    put(&p, extensible ? 40 : 16, 4);
    put(&p, extensible ? 0xfffe : (uint64_t)tag, 2);
    put(&p, 2, 2);
    put(&p, RATE, 4);
    put(&p, (uint64_t)(RATE * 2 * bytes), 4);
    put(&p, (uint64_t)(2 * bytes), 2);
    put(&p, (uint64_t)bits, 2);
    if (extensible) {
        put(&p, 22, 2);
        put(&p, (uint64_t)bits, 2);
        put(&p, 3, 4);
        put(&p, (uint64_t)tag, 2);
        memset(p, 0, 14);
        p += 14;
    }
    memcpy(p, "data", 4);
    p += 4;
    put(&p, 0xffffffff, 4); /* as a stream has it */
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            double level = k ? 0.25 : 0.5;
            float single = (float)level;
            uint64_t v = (uint64_t)(int64_t)(level * pow(2, bits - 1));
            uint32_t word;
            if (bits == 8) v = (uint64_t)(128 + level * 128);
            memcpy(&word, &single, 4);
            if (tag == 3) v = word;
            if (tag == 3 && bits == 64) memcpy(&v, &level, 8);
            put(&p, v, bytes);
        }
    end = p;
    return (size_t)(end - out);
}

static void plain_wav_of_every_width(void **state)
{
    (void)state;
    static const int formats[][2] = {{1, 8}, {1, 16}, {1, 24}, {1, 32}, {3, 32}, {3, 64}};
    uint8_t file[300];
    fv_clip x = {0};
    fv__wav w;
    fv_err e;
    for (int i = 0; i < 12; i++) {
        size_t n = make_wav(file, formats[i % 6][0], formats[i % 6][1], i >= 6);
        assert_true(fv__wav_find(&w, file, n));
        check(fv__wav_read(&x, NULL, &w, "a file", &e), &e);
        assert_int_equal(x.rate, RATE);
        assert_int_equal(x.n, 3);
        for (int k = 0; k < 3; k++) assert_true(fabs((double)x.data[k] - 0.375) < 1e-9);
        for (size_t cut = 0; cut < n; cut++) fv__wav_find(&w, file, cut); /* no fault */
    }
    file[20] = 17; /* no plain samples */
    size_t n = make_wav(file, 17, 16, false);
    assert_false(fv__wav_find(&w, file, n));
    fv_clip_free(&x);
}

static void fft_is_the_sum(void **state)
{
    (void)state;
    static const int sizes[] = {2, 14, 240, 256, 400, 512};
    for (int s = 0; s < 6; s++) {
        int n = sizes[s];
        void *plan = malloc(fv__fft_bytes(n)), *work = malloc(fv__fft_work(n));
        float *x = malloc((size_t)n * sizeof *x);
        fv__complex *y = malloc((size_t)(n / 2 + 1) * sizeof *y);
        fv__fft_plan(plan, n);
        for (int i = 0; i < n; i++) x[i] = (float)sin(i * i * 0.7 + s);
        fv__fft_real(plan, x, y, work);
        for (int f = 0; f <= n / 2; f++) {
            double re = 0, im = 0;
            for (int t = 0; t < n; t++) {
                re += (double)x[t] * cos(2 * PI * f * t / n);
                im -= (double)x[t] * sin(2 * PI * f * t / n);
            }
            assert_true(fabs(re - (double)y[f].re) + fabs(im - (double)y[f].im) < 1e-4);
        }
        free(plan);
        free(work);
        free(x);
        free(y);
    }
}

/* ---- strings ---- */

typedef struct reader {
    const fv__speech *s;
    const fv__spoken *want; /* 8 of them */
    pthread_t thread;
    int wrong;
} reader;

/* All strings again and again, beside other threads that do the same. */
static void *read_strings(void *user)
{
    reader *r = user;
    fv__spoken a;
    fv_err e;
    if (fv__spoken_open(&a, r->s, &e)) r->wrong = 1;
    for (int64_t i = 0; !r->wrong && i < 80; i++) {
        const fv__spoken *w = &r->want[i % 8];
        fv_data_rng how = {.seed = 5, .epoch = 2};
        bool failed = fv__speech_get(r->s, &a, i % 8, how, &e) != FV_OK || a.x.n != w->x.n;
        if (failed || memcmp(a.x.data, w->x.data, (size_t)a.x.n * sizeof(float))) r->wrong = 1;
    }
    fv__spoken_close(&a);
    return NULL;
}

static void threads_read_the_same(const fv__speech *s)
{
    fv__spoken want[8];
    reader r[4];
    fv_err e;
    for (int64_t i = 0; i < 8; i++) {
        check(fv__spoken_open(&want[i], s, &e), &e);
        check(fv__speech_get(s, &want[i], i, (fv_data_rng){.seed = 5, .epoch = 2}, &e), &e);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = (reader){.s = s, .want = want};
        assert_int_equal(pthread_create(&r[i].thread, NULL, read_strings, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(r[i].thread, NULL);
        assert_int_equal(r[i].wrong, 0);
    }
    for (int i = 0; i < 8; i++) fv__spoken_close(&want[i]);
}

static void strings_repeat_by_their_seed(void **state)
{
    (void)state;
    fv_err e;
    fv_data_report report = {0};
    fv_processor *p;
    fv_tok *tok;
    fv_records from = {.file = scratch("words.tsv"), .header = true, .field = {"path", "text"}};
    fv__speech_opt o = {.join = 3,
                        .gap_least = 0.05f,
                        .gap_most = 0.2f,
                        .snr_least = 10,
                        .snr_most = 30,
                        .speed = 0.1f,
                        .time_masks = 1,
                        .time_width = 3,
                        .rate = RATE,
                        .mels = 8,
                        .stack = 2,
                        .speaker = "speaker"};
    check(fv_tok_open(&tok, NULL, FOVEA_TESTS "/golden/tasks/classify-many", &e), &e);
    check(fv_processor_from_tok(&p, NULL, tok, 0, &e), &e);
    fv_processor *audio;
    check(fv__speech_processor(&audio, NULL, &o, &from, p, &e), &e);
    fv_feed_opt t = {.tok = fv_processor_tok(audio), .processor = audio};
    fv__speech s;
    fv__spoken a, b;
    check(fv__speech_open(&s, &t, &from, &o, NULL, &report, &e), &e);
    assert_int_equal(fv__speech_count(&s), 8);
    check(fv__spoken_open(&a, &s, &e), &e);
    check(fv__spoken_open(&b, &s, &e), &e);
    int longer = 0;
    for (int64_t i = 0; i < 8; i++) {
        fv_data_rng how = {.seed = 5, .epoch = 2}, other = {.seed = 5, .epoch = 3};
        check(fv__speech_get(&s, &a, i, how, &e), &e);
        check(fv__speech_get(&s, &b, 7 - i, other, &e), &e);
        check(fv__speech_get(&s, &b, i, how, &e), &e); /* whatever was asked for before */
        assert_int_equal(a.x.n, b.x.n);
        assert_memory_equal(a.x.data, b.x.data, (size_t)a.x.n * sizeof(float));
        assert_string_equal(a.text.data, b.text.data);
        longer += strchr(a.text.data, ' ') != NULL;
    }
    assert_true(longer > 2);
    threads_read_the_same(&s);
    /* recordings that all stay clean are those without noise */
    fv_data_rng how = {.seed = 5, .epoch = 2};
    s.o.clean = 1;
    check(fv__speech_get(&s, &a, 3, how, &e), &e);
    s.o.clean = 0;
    check(fv__speech_get(&s, &b, 3, how, &e), &e);
    assert_memory_not_equal(a.wave.data, b.wave.data, (size_t)a.wave.n * sizeof(float));
    s.o.snr_most = 0;
    check(fv__speech_get(&s, &b, 3, how, &e), &e);
    assert_memory_equal(a.wave.data, b.wave.data, (size_t)a.wave.n * sizeof(float));
    fv__spoken_close(&a);
    fv__spoken_close(&b);
    fv__speech_close(&s);
    fv_processor_close(audio);
}

/* ---- runs ---- */

#define COMMON                                                                                     \
    "hidden_size = 32\nintermediate_size = 64\nencoder_layers = 2\ndropout = 0\n"                  \
    "[tokenizer]\nkind = bpe\nvocab = 24\nmin_count = 1\n"                                         \
    "[data]\ntrain = words.tsv\nvalid = words.tsv\nheader = true\nsource_field = path\n"           \
    "target_field = text\nspeaker = speaker\nrate = 8000\nmels = 16\nstack = 4\njoin = 3\n"        \
    "strings = 6\ngap_least = 0\ngap_most = 0.2\nsnr_least = 20\nsnr_most = 40\nstream = 0.5\n"    \
    "chunk = 4\nleft = 12\n"
#define TRAIN                                                                                      \
    "[train]\nupdates = 250\nbatch_rows = 8\nbatch_tokens = 100000\nlr = 3e-3\nwarmup = 10\n"      \
    "eval_every = 0\nsave_every = 0\nprefetch = 0\n"

static void train(const char *name, const char *recipe)
{
    char file[40];
    snprintf(file, sizeof file, "%s.ini", name);
    scratch_text(file, recipe);
    succeeded(fovea("train %s -q -o %s", file, name));
}

static void a_transducer_learns_two_words(void **state)
{
    (void)state;
    train("rnnt", "[model]\nmodel_type = transducer\nencoder_attention_heads = 2\n"
                  "decoder_attention_heads = 2\ndecoder_layers = 1\njoint_size = 32\n" COMMON
                  "objective = transducer\n" TRAIN);
    prints("$fovea transcribe -m rnnt/model 3.wav", "high\n");
    prints("$fovea transcribe -m rnnt/model --stream 2.wav", "low\n");
    prints("$fovea transcribe -m rnnt/model --num-beams 3 3.wav", "high\n");
    prints("tail -c +45 3.wav | $fovea transcribe -m rnnt/model --stream --rate 8000 -", "high\n");
    const result *r = succeeded(fovea("transcribe -m rnnt/model --json 3.wav"));
    json_t *j = json_line(r, 0), *word = json_array_get(json_object_get(j, "words"), 0);
    assert_string_equal(json_string_value(json_object_get(word, "word")), "high");
    assert_true(json_real_value(json_object_get(word, "to")) <= 0.3);
    json_decref(j);
    size_t n;
    succeeded(fovea("transcribe -m rnnt/model --lattice way.svg 3.wav"));
    char *svg = slurp(scratch("way.svg"), &n);
    assert_non_null(strstr(svg, "<polyline"));
    assert_non_null(strstr(svg, "high</text>"));
    free(svg);
    refused(fovea("transcribe -m rnnt/model --stream --rate 16000 -"), 2, "8000 samples a second");
}

static void ctc_learns_two_words(void **state)
{
    (void)state;
    train("ctc", "[model]\nmodel_type = transducer\narchitecture = TransducerForCTC\n"
                 "encoder_attention_heads = 2\n" COMMON "objective = ctc\n" TRAIN);
    prints("$fovea transcribe -m ctc/model 3.wav", "high\n");
    prints("$fovea transcribe -m ctc/model --stream --word-timestamps 2.wav | cut -f3", "low\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_wav_of_every_width),
        cmocka_unit_test(fft_is_the_sum),
        cmocka_unit_test(strings_repeat_by_their_seed),
        cmocka_unit_test(a_transducer_learns_two_words),
        cmocka_unit_test(ctc_learns_two_words),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
