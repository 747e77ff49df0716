/* test_live.c - standard input transcribed while it is spoken: agreement of hypotheses, samples of
 * streams, and the program from outside.  Time is the sound's own: a fake standard input gives a
 * quarter of a second at each read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "fovea/author/audio.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/golden.h"
#include "helper/program.h"
#include "helper/tok.h"
#include "task/transcribe.h"

#define MODELS FOVEA_TESTS "/golden/models/"

/* ---- a stream that is fed by hand ---- */

typedef struct stage {
    const uint8_t *bytes; /* of standard input */
    size_t n, at, block;
    fv_tok *tok;
    fv_clip clip;
    const char *const *script; /* hypotheses, one for each call */
    int guesses;
    int64_t given[32]; /* tokens that each had to begin with */
    const char *last;  /* what the last pass over a piece gives, or NULL */
    fv__transcript heard;
    char parts[400]; /* what was handed on, '|' behind each part */
    fv_clip whole;   /* the recording, to compare the samples of pieces with */
    int64_t pieces;
} stage;

static int64_t read_block(void *self, int fd, void *buf, size_t n)
{
    stage *s = self;
    size_t take = s->n - s->at < s->block ? s->n - s->at : s->block;
    (void)fd;
    assert_true(take <= n);
    memcpy(buf, s->bytes + s->at, take);
    s->at += take;
    return (int64_t)take;
}

static int open_input(void *self, const char *path)
{
    (void)self;
    assert_string_equal(path, "/dev/stdin");
    return 3;
}

static int close_input(void *self, int fd)
{
    (void)self;
    assert_int_equal(fd, 3);
    return 0;
}

static int64_t end_at_most(void *user, int64_t from, int64_t most)
{
    const stage *s = user;
    return s->clip.n - from <= most ? s->clip.n : from + most;
}

static fv_status guess(void *user, int64_t from, int64_t to, fv_buf *ids, fv_err *e)
{
    stage *s = user;
    assert_true(s->guesses < 32 && from < to && to == s->clip.n);
    int64_t have = fv__n_ids(ids);
    s->given[s->guesses] = have;
    const char *text = s->script ? s->script[s->guesses] : "";
    s->guesses++;
    fv_encoding *enc = tok_encode(s->tok, text, strlen(text), (fv_tok_opts){0});
    assert_true(enc->n >= have);
    if (have) assert_memory_equal(enc->ids, ids->data, (size_t)have * sizeof(int32_t));
    fv_status st = fv__ids_add(ids, enc->ids + have, enc->n - have, e);
    fv_encoding_free(enc);
    return st;
}

static bool take_part(void *user, const fv_task_result *r)
{
    stage *s = user;
    size_t at = strlen(s->parts);
    assert_true(r->more);
    snprintf(s->parts + at, sizeof s->parts - at, "%.*s|", (int)r->n, r->text);
    return true;
}

/* The samples of a piece are those of the recording, bit for bit. */
static fv_status piece(void *user, int64_t from, int64_t to, double seconds, fv_err *e)
{
    stage *s = user;
    int64_t gone = (int64_t)(seconds * s->clip.rate);
    s->pieces++;
    if (s->last) return fv__transcript_add(&s->heard, 0, 1, s->last, strlen(s->last), NULL, 0, e);
    if (!s->whole.n) return FV_OK;
    assert_true(gone + to <= s->whole.n);
    assert_memory_equal(s->clip.data + from, s->whole.data + gone + from,
                        (size_t)(to - from) * sizeof(float));
    return FV_OK;
}

static fv_status run(stage *s, int rate, double chunk, fv_err *e)
{
    fv_io io = {.open_read = open_input, .read = read_block, .close = close_input, .self = s};
    fv_pipeline p = {.env = {.io = &io}, .writer = {.tok = s->tok}, .fn = take_part, .user = s};
    fv__live how = {.clip = &s->clip,
                    .rate = 16000,
                    .chunk = chunk,
                    .end = end_at_most,
                    .guess = guess,
                    .heard = &s->heard,
                    .piece = piece,
                    .user = s};
    if (!s->block) s->block = (size_t)rate / 2; /* a quarter of a second */
    fv_status st = fv__live_run(&how, &p, rate, e);
    fv_clip_free(&s->clip);
    fv__transcript_free(&s->heard);
    fv__buf_free(&p.out);
    return st;
}

/* Sound of 16 bits that is not quiet. */
static uint8_t *noise(size_t samples)
{
    uint8_t *x = malloc(2 * samples);
    uint32_t seed = 5;
    for (size_t i = 0; i < 2 * samples; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint8_t)(seed >> 24);
    }
    return x;
}

/* ---- agreement ---- */

static fv_tok *words(void)
{
    static const char *const specials[] = {"<s>", "</s>", NULL};
    return tok_trained("And so my fellow Americans, ask not what you, what your. And so? So. ask",
                       300, specials);
}

/* Words are handed on when two hypotheses in a row have them, whole and without the punctuation at
 * the end, and are given to all that follow; the last pass goes on from them. */
static void words_are_certain_when_two_agree(void **state)
{
    (void)state;
    static const char *const script[] = {"And so,",
                                         "And so?",
                                         "And so my fell",
                                         "And so my fellow",
                                         "And so my fellow Americans.",
                                         "And so my fellow Americans."};
    fv_err e;
    stage s = {.bytes = noise(24000),
               .n = 48000,
               .script = script,
               .last = "And so my fellow Americans, ask.",
               .tok = words()};
    check(run(&s, 16000, 30, &e), &e);
    assert_int_equal(s.guesses, 6);
    assert_string_equal(s.parts, "And so| my| fellow| Americans|, ask.\n|");
    assert_int_equal(s.given[0], 0);
    assert_int_equal(s.given[1], 0);
    assert_true(s.given[2] > 0 && s.given[2] == s.given[3]);
    assert_true(s.given[4] > s.given[3] && s.given[5] > s.given[4]);
    fv_tok_close(s.tok);
    free((void *)s.bytes);
}

/* In silence nothing is heard again once the hypotheses agree.  A last pass that differs is a line
 * of its own. */
static void silence_costs_nothing(void **state)
{
    (void)state;
    static const char *const script[] = {"ask", "ask", "ask"};
    fv_err e;
    uint8_t *x = noise(32000);
    memset(x + 24000, 0, 40000);
    stage s = {.bytes = x, .n = 64000, .script = script, .last = "Ask", .tok = words()};
    check(run(&s, 16000, 30, &e), &e);
    assert_in_range(s.guesses, 2, 3);
    assert_string_equal(s.parts, "ask|\nAsk\n|");
    fv_tok_close(s.tok);
    free(x);
}

/* ---- samples ---- */

/* Pieces of a second, of a stream at another rate: dropped seconds change no sample. */
static void pieces_have_the_samples_of_the_recording(void **state)
{
    (void)state;
    fv_err e;
    fv_clip raw = {0};
    uint8_t *x = noise(44000);
    stage s = {.bytes = x, .n = 88000, .tok = words()};
    check(fv_clip_pcm(&raw, NULL, x, 88000, 8000, "noise", &e), &e);
    check(fv_clip_resample(&s.whole, &raw, 16000, &e), &e);
    check(run(&s, 8000, 1, &e), &e);
    assert_int_equal(s.pieces, 6);
    fv_clip_free(&raw);
    fv_clip_free(&s.whole);
    fv_tok_close(s.tok);
    free(x);
}

/* A header in small reads, and a chunk behind the samples that is no sound. */
static void headers_come_in_pieces(void **state)
{
    (void)state;
    fv_err e;
    fv_clip clip = {0};
    uint8_t *x = noise(8000);
    size_t n;
    check(fv_clip_pcm(&clip, NULL, x, 16000, 16000, "noise", &e), &e);
    check(fv_clip_save(&clip, scratch("a.wav"), &e), &e);
    char *file = slurp(scratch("a.wav"), &n);
    uint8_t *more = malloc(n + 16);
    memcpy(more, file, n);
    memcpy(more + n, "LIST\10\0\0\0noise!!!", 16);
    stage s = {.bytes = more, .n = n + 16, .block = 7, .tok = words(), .whole = clip};
    check(run(&s, 8000, 30, &e), &e);
    assert_int_equal(s.pieces, 1);
    fv_tok_close(s.tok);
    fv_clip_free(&clip);
    free(more);
    free(file);
    free(x);
}

static void what_cannot_be_heard_is_named(void **state)
{
    (void)state;
    fv_err e;
    stage none = {.bytes = (const uint8_t *)"", .n = 0, .block = 8, .tok = words()},
          flac = {.bytes = (const uint8_t *)"fLaC....", .n = 8, .block = 8, .tok = none.tok};
    assert_int_equal(run(&none, 16000, 30, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "no samples"));
    assert_int_equal(run(&flac, 16000, 30, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "raw samples and WAV"));
    fv_tok_close(none.tok);
}

/* ---- the program ---- */

static void put_model(void)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    mkdir(scratch("moon"), 0777);
    for (int i = 0; i < 2; i++) {
        char path[500], name[100];
        size_t n;
        snprintf(path, sizeof path, MODELS "moonshine-text/%s", files[i]);
        snprintf(name, sizeof name, "moon/%s", files[i]);
        char *bytes = slurp(path, &n);
        scratch_put(name, bytes, n);
        free(bytes);
    }
    scratch_text(
        "moon/preprocessor_config.json",
        "{\"feature_extractor_type\":\"Wav2Vec2FeatureExtractor\",\"do_normalize\":false}");
    tok_put_letters("moon/tokenizer.json");
}

/* What stands last is what the recording gives: text, and ids in JSON. */
static void a_stream_ends_with_the_text_of_the_recording(void **state)
{
    (void)state;
    char dir[300];
    uint8_t *x = noise(16000);
    put_model();
    snprintf(dir, sizeof dir, "%s", scratch("moon"));
    scratch_put("a.raw", x, 32000);
    free(x);
    char *want = strdup(
        succeeded(sh("$fovea transcribe -m %s - < %s", dir, scratch("a.raw")))->out);
    const char *out =
        succeeded(sh("$fovea transcribe -m %s --stream - < %s", dir, scratch("a.raw")))->out;
    assert_true(strlen(out) >= strlen(want));
    assert_string_equal(out + strlen(out) - strlen(want), want);
    free(want);
    json_t *whole =
        json_line(succeeded(sh("$fovea transcribe -m %s --json - < %s", dir, scratch("a.raw"))), 0);
    const result *r = succeeded(
        sh("$fovea transcribe -m %s --json --stream - < %s | tail -n 1", dir, scratch("a.raw")));
    json_t *last = json_line(r, 0), *piece = json_array_get(json_object_get(whole, "pieces"), 0);
    assert_true(json_equal(json_object_get(last, "ids"), json_object_get(piece, "ids")));
    assert_true(json_equal(json_object_get(last, "text"), json_object_get(piece, "text")));
    json_decref(whole);
    json_decref(last);
    refused(sh("$fovea transcribe -m %s --stream --timestamps - < %s", dir, scratch("a.raw")), 2,
            "before their times are known");
    scratch_text("b.wav", "");
    refused(fovea("transcribe -m %s --stream %s", dir, scratch("b.wav")), 2, "standard input");
}

static int set_up(void **state) { return open_device(state) || scratch_open(state); }
static int tear_down(void **state) { return scratch_close(state) || close_device(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_certain_when_two_agree),
        cmocka_unit_test(silence_costs_nothing),
        cmocka_unit_test(pieces_have_the_samples_of_the_recording),
        cmocka_unit_test(headers_come_in_pieces),
        cmocka_unit_test(what_cannot_be_heard_is_named),
        cmocka_unit_test(a_stream_ends_with_the_text_of_the_recording),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
