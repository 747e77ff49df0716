/* test_sound.c - transcribe and classify on sound files: generation from sound against
 * transformers, the program from outside, and inputs that are none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/audio.h"
#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/golden.h"
#include "helper/program.h"
#include "helper/tok.h"
#include "task/transcribe.h"

#define MODELS FOVEA_TESTS "/golden/models/"

/* ---- generation ---- */

typedef struct source {
    float *x;
    int64_t n;
} source;

static void put_source(void *user, fv_ctx *c, fv_items *in)
{
    const source *s = user;
    fv_items_put(in, "input_values", fv_floats(c, s->x, FV_SHAPE(1, s->n)));
}

static void searches_equal(const fv_model *m, const source *s, const fv_st *out, const char *name,
                           int64_t beams)
{
    fv_gen_config *config;
    fv_generated g;
    fv_err e;
    int64_t n;
    float *want = golden_numbers(out, name, &n); /* the start token in front */
    check(fv_gen_config_open(&config, NULL, MODELS "moonshine-text", NULL, &e), &e);
    fv_gen_opt o = *fv_gen_config_options(config);
    o.num_beams = beams;
    o.max_length = 9;
    check(fv_generate_from(&g, device, m, put_source, (void *)s, 1, &o, &e), &e);
    assert_int_equal(g.hyp[0].n, n - 1);
    for (int64_t i = 1; i < n; i++) assert_int_equal(g.hyp[0].ids[i - 1], (int)want[i]);
    fv_generated_free(&g);
    fv_gen_config_close(config);
    free(want);
}

static void what_is_written_is_what_transformers_writes(void **state)
{
    (void)state;
    fv_model *m;
    fv_st *in, *out;
    fv_err e;
    int64_t n;
    check(fv_st_open(&in, NULL, MODELS "moonshine-text/in.safetensors", &e), &e);
    check(fv_st_open(&out, NULL, MODELS "moonshine-text/out.safetensors", &e), &e);
    float *x = golden_numbers(in, "input_values", &n);
    source s = {x, n / 2}; /* the first of two clips */
    for (int serve = 0; serve < 2; serve++) {
        check(fv_model_open(&m, device, MODELS "moonshine-text", (fv_model_opt){.serve = serve},
                            &e),
              &e);
        searches_equal(m, &s, out, "sequences.greedy", 1);
        searches_equal(m, &s, out, "sequences.beams", 3);
        fv_model_free(m);
    }
    free(x);
    fv_st_close(in);
    fv_st_close(out);
}

/* ---- windows of a model that writes times ---- */

enum { MELS = 5, WINDOW = 12, LONGEST = 80 };
#define TEXT MODELS "whisper-text"

typedef struct windows {
    const float *x; /* (MELS,frames) */
    int64_t frames, window;
    float now[MELS * LONGEST];
    int32_t ids[300];
    double begins[300]; /* seconds at which the tokens begin, where they are asked for */
    int64_t n, segments;
    double from[16], to[16];
    int64_t len[16];
} windows;

/* Frames behind the end are 0, as in transformers. */
static fv_status seek(void *user, int64_t frame, int64_t n, fv_err *e)
{
    windows *w = user;
    (void)e;
    for (int64_t i = 0; i < MELS * w->window; i++) {
        int64_t t = i % w->window;
        w->now[i] = t < n ? w->x[i / w->window * w->frames + frame + t] : 0;
    }
    return FV_OK;
}

static void put_window(void *user, fv_ctx *c, fv_items *in)
{
    const windows *w = user;
    fv_items_put(in, "input_features", fv_floats(c, w->now, FV_SHAPE(1, MELS, w->window)));
}

static fv_status add_segment(void *user, const fv__asked *q, double from, double to,
                             const int32_t *ids, int64_t n, const double *begins, fv_err *e)
{
    windows *w = user;
    (void)q, (void)e;
    assert_true(w->n + n <= 300 && w->segments < 16);
    memcpy(w->ids + w->n, ids, (size_t)n * sizeof *ids);
    if (begins) memcpy(w->begins + w->n, begins, (size_t)n * sizeof *begins);
    w->n += n;
    w->from[w->segments] = from;
    w->to[w->segments] = to;
    w->len[w->segments++] = n;
    return FV_OK;
}

typedef struct asking {
    const char *language, *task;
    bool times;
    int64_t beams;
    bool tokens; /* when each was said */
} asking;

static void hear(windows *w, const fv_model *m, const char *path, asking a)
{
    fv__aligning heads;
    fv_gen_config *config;
    fv_dir *dir;
    fv__asked q;
    fv_err e;
    check(fv_gen_config_open(&config, NULL, path, NULL, &e), &e);
    check(fv_dir_open(&dir, NULL, path, &e), &e);
    fv_gen_opt o = *fv_gen_config_options(config);
    o.num_beams = a.beams;
    check(fv__ask(&q, fv_dir_generation(dir), fv_dir_config(dir), a.language, a.task, &e), &e);
    check(fv__aligning_read(&heads, fv_dir_generation(dir), fv_dir_config(dir), &e), &e);
    fv__windows how = {.dev = device,
                       .model = m,
                       .gen = &o,
                       .times = a.times,
                       .align = a.tokens ? &heads : NULL,
                       .seek = seek,
                       .put = put_window,
                       .segment = add_segment,
                       .user = w};
    w->n = w->segments = 0;
    check(fv__windows_run(&how, &q, w->frames, w->window, &e), &e);
    fv_dir_close(dir);
    fv_gen_config_close(config);
}

static void same_ids(const windows *w, const fv_st *out, const char *name)
{
    int64_t n;
    float *want = golden_numbers(out, name, &n);
    assert_int_equal(w->n, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(w->ids[i], (int)want[i]);
    free(want);
}

/* A clip of one window, plain, with its language heard, and with times; then a talk of 41 frames in
 * windows of 12. */
static void windows_are_those_of_transformers(void **state)
{
    (void)state;
    fv_model *m;
    fv_st *in, *out;
    fv_err e;
    int64_t n;
    check(fv_st_open(&in, NULL, MODELS "whisper-text/in.safetensors", &e), &e);
    check(fv_st_open(&out, NULL, MODELS "whisper-text/out.safetensors", &e), &e);
    check(fv_model_open(&m, device, MODELS "whisper-text", (fv_model_opt){.serve = true}, &e), &e);
    float *clip = golden_numbers(in, "input_features", &n),
          *talk = golden_numbers(out, "sequences.input", &n);
    windows w = {.x = clip, .frames = WINDOW, .window = WINDOW};
    hear(&w, m, TEXT, (asking){"de", "transcribe", false, 1, false});
    same_ids(&w, out, "sequences.plain.greedy");
    hear(&w, m, TEXT, (asking){"de", "", false, 3, false});
    same_ids(&w, out, "sequences.plain.beams");
    hear(&w, m, TEXT, (asking){"", "translate", false, 1, false});
    same_ids(&w, out, "sequences.detected.greedy");
    hear(&w, m, TEXT, (asking){"", "translate", false, 3, false});
    same_ids(&w, out, "sequences.detected.beams");
    hear(&w, m, TEXT, (asking){"fr", "transcribe", true, 1, false});
    same_ids(&w, out, "sequences.times.greedy");
    hear(&w, m, TEXT, (asking){"<|FR|>", "transcribe", true, 3, false});
    same_ids(&w, out, "sequences.times.beams");
    w.x = talk;
    w.frames = n / MELS;
    hear(&w, m, TEXT, (asking){"de", "transcribe", false, 1, false});
    same_ids(&w, out, "sequences.talk");
    float *times = golden_numbers(out, "sequences.talk.times", &n);
    assert_int_equal(w.segments, n / 3);
    for (int64_t i = 0; i < w.segments; i++) {
        assert_true(fabs(w.from[i] - (double)times[3 * i]) < 1e-6);
        assert_true(fabs(w.to[i] - (double)times[3 * i + 1]) < 1e-6);
        assert_int_equal(w.len[i], (int)times[3 * i + 2]);
    }
    free(times);
    free(clip);
    free(talk);
    fv_model_free(m);
    fv_st_close(in);
    fv_st_close(out);
}

/* Tokens of a talk in windows of 80 frames, greedily and by beams: when each was said. */
static void tokens_have_the_times_of_transformers(void **state)
{
    (void)state;
    fv_model *m;
    fv_st *out;
    fv_err e;
    int64_t n;
    check(fv_st_open(&out, NULL, MODELS "whisper-words/out.safetensors", &e), &e);
    check(fv_model_open(&m, device, MODELS "whisper-words", (fv_model_opt){.serve = true}, &e), &e);
    float *talk = golden_numbers(out, "times.input", &n);
    windows w = {.x = talk, .frames = n / MELS, .window = LONGEST};
    for (int64_t beams = 1; beams <= 3; beams += 2) {
        const char *name = beams > 1 ? "times.beams" : "times.greedy";
        char ids[40];
        snprintf(ids, sizeof ids, "%s.ids", name);
        hear(&w, m, MODELS "whisper-words", (asking){"de", "transcribe", true, beams, true});
        same_ids(&w, out, ids);
        float *want = golden_numbers(out, name, &n);
        assert_int_equal(n, w.n);
        for (int64_t i = 0; i < n; i++) assert_true(fabs(w.begins[i] - (double)want[i]) < 1e-5);
        free(want);
    }
    free(talk);
    fv_model_free(m);
    fv_st_close(out);
}

/* ---- the program ---- */

/* A sweep of 0.4 s. */
static const char *put_sweep(const char *name, int rate, double top)
{
    fv_clip x = {0};
    fv_err e;
    check(fv_clip_new(&x, NULL, rate, rate * 2 / 5, &e), &e);
    for (int64_t i = 0; i < x.n; i++) {
        double t = (double)i / rate;
        x.data[i] = (float)(0.5 * sin(2 * 3.14159265358979 * (100 * t + top * t * t)));
    }
    const char *path = scratch("%s", name);
    check(fv_clip_save(&x, path, &e), &e);
    fv_clip_free(&x);
    return path;
}

static void copy_model(const char *from, const char *to)
{
    mkdir(scratch("%s", to), 0777);
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "generation_config.json"};
    for (int i = 0; i < 3; i++) {
        char path[500], name[100];
        size_t n;
        snprintf(path, sizeof path, MODELS "%s/%s", from, files[i]);
        if (access(path, R_OK)) continue;
        snprintf(name, sizeof name, "%s/%s", to, files[i]);
        char *bytes = slurp(path, &n);
        scratch_put(name, bytes, n);
        free(bytes);
    }
}

static void sounds_are_transcribed(void **state)
{
    (void)state;
    copy_model("moonshine-text", "moon");
    scratch_text(
        "moon/preprocessor_config.json",
        "{\"feature_extractor_type\":\"Wav2Vec2FeatureExtractor\",\"do_normalize\":false}");
    tok_put_letters("moon/tokenizer.json");
    mkdir(scratch("talks"), 0777);
    put_sweep("talks/a.wav", 16000, 3000);
    put_sweep("talks/b.wav", 44100, 9000);
    char dir[300]; /* scratch() forgets */
    snprintf(dir, sizeof dir, "%s", scratch("moon"));
    char *one = strdup(succeeded(fovea("transcribe -m %s %s", dir, scratch("talks/a.wav")))->out);
    assert_true(strlen(one) > 1 && strchr(one, '\n') == one + strlen(one) - 1);
    const char *out = succeeded(fovea("transcribe -m %s %s", dir, scratch("talks")))->out;
    const char *a = strstr(out, "a.wav\t"), *b = strstr(out, "b.wav\t");
    assert_true(a && b && a < b);
    assert_memory_equal(a + 6, one, strlen(one)); /* whoever is beside it */
    out = succeeded(sh("tail -c +45 %s | $fovea transcribe -m %s -", scratch("talks/a.wav"), dir))
              ->out;
    assert_string_equal(out, one);
    out = succeeded(sh("$fovea transcribe -m %s - < %s", dir, scratch("talks/a.wav")))->out;
    assert_string_equal(out, one);
    json_t *j =
        json_line(succeeded(fovea("transcribe -m %s --json %s", dir, scratch("talks/b.wav"))), 0);
    assert_int_equal(json_array_size(json_object_get(j, "pieces")), 1);
    assert_true(fabs(json_number_value(json_object_get(j, "seconds")) - 0.4) < 1e-3);
    json_decref(j);
    out = succeeded(fovea("transcribe -m %s --timestamps %s", dir, scratch("talks/a.wav")))->out;
    assert_memory_equal(out, "0.00\t0.40\t", 10);
    out =
        succeeded(fovea("transcribe -m %s --word-timestamps %s", dir, scratch("talks/a.wav")))->out;
    assert_memory_equal(out, "0.00\t", 5);
    out = succeeded(fovea("transcribe -m %s --format srt %s", dir, scratch("talks/a.wav")))->out;
    assert_memory_equal(out, "1\n00:00:00,000 --> 00:00:00,400\n", 32);
    out = succeeded(fovea("transcribe -m %s --format vtt %s", dir, scratch("talks/a.wav")))->out;
    assert_memory_equal(out, "WEBVTT\n\n00:00:00.000 --> 00:00:00.400\n", 38);
    free(one);
}

/* Each refusal has its sentence; the model's window, 0.12 s, is shorter than any processor's. */
static void what_whisper_cannot_is_named(void **state)
{
    (void)state;
    char dir[300], talk[300];
    copy_model("whisper-text", "talker");
    snprintf(dir, sizeof dir, "%s", scratch("talker"));
    snprintf(talk, sizeof talk, "%s", put_sweep("talk.wav", 16000, 3000));
    tok_put_letters("talker/tokenizer.json");
    scratch_text("talker/preprocessor_config.json",
                 "{\"feature_extractor_type\":\"WhisperFeatureExtractor\",\"feature_size\":5,"
                 "\"chunk_length\":1}");
    refused(fovea("transcribe -m %s %s", dir, talk), 1, "input_features");
    refused(fovea("transcribe -m %s --language xx %s", dir, talk), 1, "has no <|xx|>");
    refused(fovea("transcribe -m %s --format srt --json %s", dir, talk), 2, "exclude each other");
    refused(fovea("transcribe -m %s --language de %s", scratch("moon"), talk), 1,
            "not made for a choice");
    refused(fovea("transcribe -m %s --task sing %s", dir, talk), 2, "task");
}

/* What a model wrote held against itself is right; against other words the edits are shown. */
static void transcriptions_are_scored(void **state)
{
    (void)state;
    char dir[300], sound[300], line[700];
    snprintf(dir, sizeof dir, "%s", scratch("moon"));
    snprintf(sound, sizeof sound, "%s", scratch("talks/a.wav"));
    const char *out = succeeded(fovea("transcribe -m %s %s", dir, sound))->out;
    snprintf(line, sizeof line, "%s\t%s", sound, out);
    scratch_text("table.tsv", line);
    out = succeeded(fovea("eval -m %s --task transcribe %s", dir, scratch("table.tsv")))->out;
    assert_memory_equal(out, "WER            0.00  0 substituted, 0 deleted, 0 inserted of 1\n",
                        62);
    scratch_text("said.txt", "ask not what\nfor you\n");
    scratch_text("written.txt", "ask what\nfor you\n");
    char said[300];
    snprintf(said, sizeof said, "%s", scratch("said.txt"));
    out = succeeded(fovea("eval --task transcribe --hypothesis %s --reference %s",
                          scratch("written.txt"), said))
              ->out;
    assert_memory_equal(out, "WER           20.00  0 substituted, 1 deleted, 0 inserted of 5\n",
                        62);
    assert_non_null(strstr(out, "record 1\n  said    ask not what\n  written ask *** what\n"));
}

static void sounds_are_classified(void **state)
{
    (void)state;
    copy_model("kwt-classify", "words");
    scratch_text("words/preprocessor_config.json",
                 "{\"feature_extractor_type\":\"KWTFeatureExtractor\",\"feature_size\":7,"
                 "\"num_mel_bins\":9,\"max_length\":11}");
    put_sweep("c.wav", 22050, 5000);
    const char *out =
        succeeded(fovea("classify -m %s --top 0 %s", scratch("words"), scratch("c.wav")))->out;
    assert_true(out[0] == 'L' && strchr(out, '\t'));
    out = succeeded(fovea("classify -m %s --json %s", scratch("words"), scratch("c.wav")))->out;
    assert_memory_equal(out, "{\"sound\":", 9);
    /* explained frame by frame behind the class token, each blanked by the mean of all */
    out = succeeded(fovea("explain -m %s --json %s", scratch("words"), scratch("c.wav")))->out;
    assert_non_null(strstr(out, "\"tokens\": [\"class\", \"0.00 s\", "));
    assert_non_null(strstr(out, "\"special\": [1, 0, 0, "));
    assert_non_null(strstr(out, "\"occlusion\": ["));
}

/* Sweeps that rise slowly and quickly, in folders named so. */
static void a_classifier_learns(void **state)
{
    (void)state;
    char dir[300];
    snprintf(dir, sizeof dir, "%s", scratch("run"));
    mkdir(scratch("data"), 0777);
    mkdir(scratch("data/slow"), 0777);
    mkdir(scratch("data/quick"), 0777);
    for (int i = 0; i < 8; i++) {
        char name[40];
        snprintf(name, sizeof name, "data/slow/%d.wav", i);
        put_sweep(name, 8000, 100 + 40 * i);
        snprintf(name, sizeof name, "data/quick/%d.wav", i);
        put_sweep(name, 8000, 3000 + 40 * i);
    }
    scratch_text("r.ini", "[model]\nmodel_type = kwt\nhidden_size = 16\nnum_hidden_layers = 1\n"
                          "num_attention_heads = 2\nintermediate_size = 24\nnum_features = 10\n"
                          "max_frames = 30\n[data]\nobjective = speech_classify\ntrain = data\n"
                          "hold_out = 0.25\nrate = 8000\nframes = 30\ncoefficients = 10\n"
                          "[train]\nupdates = 40\nbatch_rows = 8\nlr = 1e-2\nwarmup = 4\n"
                          "eval_every = 20\n");
    succeeded(fovea("train %s -o %s --set data.dir=%s", scratch("r.ini"), dir, scratch(".")));
    const char *out = succeeded(fovea("classify -m %s/model %s %s", dir, scratch("data/slow/3.wav"),
                                      scratch("data/quick/4.wav")))
                          ->out;
    assert_non_null(strstr(out, "3.wav\tslow "));
    assert_non_null(strstr(out, "4.wav\tquick "));
    refused(fovea("train %s -o %s --set data.dir=%s --set data.train=moon", scratch("r.ini"),
                  scratch("other"), scratch(".")),
            1, "there is no sound (.wav, .flac, .ogg, .mp3) in it");
}

static void what_is_no_sound_is_named(void **state)
{
    (void)state;
    char dir[300]; /* scratch() forgets */
    snprintf(dir, sizeof dir, "%s", scratch("moon"));
    scratch_text("bad.wav", "no sound");
    scratch_text("empty.flac", "");
    refused(fovea("transcribe -m %s %s", dir, scratch("bad.wav")), 1,
            "bad.wav: no sound file that can be read");
    refused(fovea("transcribe -m %s %s", dir, scratch("empty.flac")), 1, "the file is empty");
    refused(fovea("transcribe -m %s %s", dir, scratch("absent.wav")), 1, "absent.wav");
    refused(sh("printf abc | $fovea transcribe -m %s -", dir), 1, "no samples of 16 bits");
    refused(fovea("transcribe -m %s %s", MODELS "bart-text", scratch("talks/a.wav")), 1, "");
    /* shorter than one frame of the convolutions */
    scratch_put("short.raw", "\0\0\0\0\0\0", 6);
    refused(sh("$fovea transcribe -m %s - < %s", dir, scratch("short.raw")), 1,
            "expected (B,samples), 895 or more");
}

static int set_up(void **state) { return open_device(state) || scratch_open(state); }
static int tear_down(void **state) { return scratch_close(state) || close_device(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_what_transformers_writes),
        cmocka_unit_test(windows_are_those_of_transformers),
        cmocka_unit_test(tokens_have_the_times_of_transformers),
        cmocka_unit_test(sounds_are_transcribed),
        cmocka_unit_test(what_whisper_cannot_is_named),
        cmocka_unit_test(transcriptions_are_scored),
        cmocka_unit_test(sounds_are_classified),
        cmocka_unit_test(a_classifier_learns),
        cmocka_unit_test(what_is_no_sound_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
