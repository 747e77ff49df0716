/* test_voice_run.c - a voice trained on recordings made here, tones that are words of two speakers:
 * what it says, who says it, what is written and what is refused. */
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
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/program.h"

#define PI 3.14159265358979323846
#define RATE 8000

/* The first speaker is quiet, the second is loud. */
static void write_tone(const char *name, double hz, double level, double seconds)
{
    fv_clip x = {0};
    fv_err e;
    check(fv_clip_new(&x, NULL, RATE, (int64_t)(RATE * seconds), &e), &e);
    for (int64_t i = 0; i < x.n; i++)
        x.data[i] = (float)(level * sin(2 * PI * hz * (double)i / RATE));
    check(fv_clip_save(&x, scratch("%s", name), &e), &e);
    fv_clip_free(&x);
}

#define RECIPE                                                                                     \
    "[model]\nmodel_type = speecht5\narchitecture = SpeechT5ForTextToSpeech\nhidden_size = 32\n"   \
    "encoder_layers = 1\nencoder_attention_heads = 2\nencoder_ffn_dim = 48\ndecoder_layers = 1\n"  \
    "decoder_attention_heads = 2\ndecoder_ffn_dim = 48\nspeech_decoder_prenet_units = 24\n"        \
    "speech_decoder_postnet_layers = 2\nspeech_decoder_postnet_units = 12\n"                       \
    "speech_decoder_postnet_dropout = 0\nspeech_decoder_prenet_dropout = 0.2\n"                    \
    "hidden_dropout = 0\nattention_dropout = 0\nactivation_dropout = 0\npositional_dropout = 0\n"  \
    "max_speech_positions = 64\nmax_text_positions = 16\ninitializer_range = 0\n"                  \
    "[tokenizer]\nkind = bpe\nvocab = 24\n"                                                        \
    "[data]\nobjective = text_to_speech\ntrain = words.tsv\nvalid = words.tsv\nheader = true\n"    \
    "source_field = path\ntarget_field = text\nspeaker = speaker\nrate = 8000\nmels = 12\n"        \
    "window = 32\nhop = 16\nlow = 50\nhigh = 3900\nfloor = 1e-3\n"                                 \
    "[train]\nbatch_rows = 8\nbatch_tokens = 10000\nlr = 4e-3\nwarmup = 20\nschedule = cosine\n"   \
    "clip = 1\nseed = 3\n"

static int set_up(void **state)
{
    char table[600] = "path\ttext\tspeaker\n";
    if (scratch_open(state)) return -1;
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.wav", i);
        write_tone(name, i % 2 ? 2500 : 500, i < 4 ? 0.05 : 0.5, 0.3);
        snprintf(table + strlen(table), 60, "%s\t%s\t%s\n", name, i % 2 ? "high" : "low",
                 i < 4 ? "anna" : "ben");
    }
    scratch_text("words.tsv", table);
    scratch_text("voice.ini", RECIPE);
    succeeded(
        fovea("train voice.ini -o run -q --set train.updates=250 --set train.eval_every=250"));
    return 0;
}

/* Loudness, and the frequency by how often the sign changes. */
static void measure(const char *name, double *level, double *hz)
{
    fv_clip x = {0};
    fv_err e;
    double sum = 0, crossings = 0;
    check(fv_clip_open(&x, NULL, scratch("%s", name), &e), &e);
    assert_int_equal(x.rate, RATE);
    for (int64_t i = 0; i < x.n; i++) sum += (double)x.data[i] * (double)x.data[i];
    for (int64_t i = 1; i < x.n; i++) crossings += (x.data[i] < 0) != (x.data[i - 1] < 0);
    *level = sqrt(sum / (double)x.n);
    *hz = crossings * RATE / 2 / (double)x.n;
    fv_clip_free(&x);
}

static void it_says_words_as_each_speaker(void **state)
{
    (void)state;
    double level[4], hz[4];
    scratch_text("lines.tsv", "low\tanna\nhigh\tanna\nlow\tben\nhigh\tben\n");
    prints("$fovea speak -m run/model --folder said -f lines.tsv",
           "said/000001.wav\tlow\tanna\nsaid/000002.wav\thigh\tanna\nsaid/000003.wav\tlow\tben\n"
           "said/000004.wav\thigh\tben\n");
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "said/%06d.wav", i + 1);
        measure(name, &level[i], &hz[i]);
        if (fabs(hz[i] - (i % 2 ? 2500 : 500)) > 400) fail_msg("%s sounds at %g Hz", name, hz[i]);
    }
    assert_true(level[2] > 4 * level[0] && level[3] > 4 * level[1]);
}

/* The seed decides, and the number of the line. */
static void what_is_said_repeats(void **state)
{
    (void)state;
    succeeded(fovea("speak -m run/model --speaker ben -o one.wav --text low"));
    succeeded(fovea("speak -m run/model --speaker ben -o two.wav --text low --mel two.npy"));
    succeeded(sh("cmp one.wav two.wav"));
    succeeded(fovea("speak -m run/model --speaker ben -o two.wav --seed 2 --text low"));
    assert_int_not_equal(sh("cmp -s one.wav two.wav")->code, 0);
    fv_array mel;
    fv_err e;
    check(fv_array_open(&mel, NULL, scratch("two.npy"), (fv_array_opt){0}, &e), &e);
    assert_int_equal(mel.shape.d[1], 12);
    fv_array_close(&mel);
    /* the same speaker as a vector: the axis that the recipe gave him */
    succeeded(fovea("speak -m run/model --speaker 0,1 -o two.wav --text low"));
    succeeded(sh("cmp one.wav two.wav"));
}

static void results_say_how_it_went(void **state)
{
    (void)state;
    size_t n;
    json_t *j = json_line(succeeded(fovea("speak -m run/model --speaker anna -o a.wav --json "
                                          "--alignment a.svg --text high")),
                          0);
    assert_string_equal(json_string_value(json_object_get(j, "speaker")), "anna");
    assert_true(json_is_true(json_object_get(j, "ended")));
    double seconds = json_number_value(json_object_get(j, "seconds"));
    if (fabs(seconds - 0.3) > 0.12) fail_msg("it took %g seconds", seconds);
    json_decref(j);
    char *svg = slurp(scratch("a.svg"), &n);
    assert_non_null(strstr(svg, "diagonality"));
    assert_non_null(strstr(svg, "</svg>"));
    free(svg);
}

/* A vocoder of other mel bands, and one of these: random weights make a sound of the right
 * length. */
static void a_vocoder_is_asked(void **state)
{
    (void)state;
    refused(fovea("speak -m run/model --speaker anna -o v.wav --text low --vocoder " FOVEA_TESTS
                  "/golden/models/speecht5_hifigan"),
            1, "expected (B,frames,6)");
    refused(fovea("speak -m run/model --speaker anna -o v.wav --text low --vocoder run/model"), 1,
            "no vocoder");
}

/* Speakers of more numbers than there are speakers: signs that alternate by ones, by twos. */
static void speakers_have_as_many_numbers_as_asked(void **state)
{
    (void)state;
    succeeded(fovea("train voice.ini -o wide -q --set data.speaker_size=8 --set train.updates=2"));
    succeeded(fovea("speak -m wide/model --speaker anna -o one.wav --text low"));
    succeeded(fovea("speak -m wide/model --speaker 1,-1,1,-1,1,-1,1,-1 -o two.wav --text low"));
    succeeded(sh("cmp one.wav two.wav"));
    succeeded(fovea("speak -m wide/model --speaker ben -o one.wav --text low"));
    succeeded(fovea("speak -m wide/model --speaker 1,1,-1,-1,1,1,-1,-1 -o two.wav --text low"));
    succeeded(sh("cmp one.wav two.wav"));
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    refused(fovea("speak -m run/model -o x.wav --speaker carl --text low"), 1,
            "the model knows anna, ben");
    refused(fovea("speak -m run/model -o x.wav --speaker 1,2,3 --text low"), 1, "wants 2");
    refused(fovea("speak -m run/model -o x.wav --speaker 1,x --text low"), 1, "1,x");
    refused(fovea("speak -m run/model --text low"), 2, "--folder");
    refused(fovea("see -m run/model --text low -o x.svg"), 1, "speak --alignment");
    refused(fovea("speak -m run/model -o x.wav --speaker ben --text "
                  "'low low low low low low low low low low low low low low low low low'"),
            1, "at most 16");
    scratch_text("bad.tsv", "path\ttext\tspeaker\n0.wav\tlow\tan.na\n");
    refused(fovea("train voice.ini -o bad -q --set data.train=bad.tsv --set train.updates=1"), 1,
            "without dots");
    scratch_text("other.tsv", "path\ttext\tspeaker\n0.wav\tlow\tcarl\n");
    refused(fovea("train voice.ini -o bad -q --set data.valid=other.tsv --set train.updates=1"), 1,
            "carl");
    refused(fovea("train voice.ini -o bad -q --set data.speaker_size=2 --set train.updates=1"), 1,
            "more than the 2 speakers");
    refused(fovea("train voice.ini -o bad -q --set data.speakers=none.safetensors --set "
                  "train.updates=1"),
            1, "none.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_words_as_each_speaker),
        cmocka_unit_test(what_is_said_repeats),
        cmocka_unit_test(results_say_how_it_went),
        cmocka_unit_test(a_vocoder_is_asked),
        cmocka_unit_test(speakers_have_as_many_numbers_as_asked),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
