/* speech.h - recordings with their texts as batches: joined, made noisy and masked at random, for
 * the objectives of recognisers. */
#ifndef FV_DATA_SPEECH_H
#define FV_DATA_SPEECH_H

#include "base/base.h"
#include "data/dice.h"
#include "fovea/author/data.h"

/* The options that these objectives have in common, as `speech`. */
typedef struct fv__speech_opt {
    char sounds[512], where[200], valid_where[200], speaker[100];
    int join, strings, rate, mels, stack;
    float gap_least, gap_most; /* seconds */
    float snr_least, snr_most; /* dB; snr_most 0: no noise */
    float clean;               /* share of recordings without it */
    float speed, delay;
    int time_masks, time_width, band_masks, band_width;
} fv__speech_opt;

/* What objectives on recordings of any kind have; then those of recognisers besides. */
#define FV__SOUND_KEYS(T)                                                                          \
    FV_TEXT_KEY("sounds", T, speech.sounds, "",                                                    \
                "what a table's paths are looked up in: a folder, an archive"),                    \
        FV_TEXT_KEY("where", T, speech.where, "", "only rows of a table with field=value"),        \
        FV_TEXT_KEY("valid_where", T, speech.valid_where, "",                                      \
                    "those that are evaluated on; empty: as where"),                               \
        FV_FLOAT_KEY("snr_least", T, speech.snr_least, -20, 10, 200,                               \
                     "dB of speech above white noise, at least"),                                  \
        FV_FLOAT_KEY("snr_most", T, speech.snr_most, -20, 0, 200, "and at most; 0: no noise"),     \
        FV_FLOAT_KEY("clean", T, speech.clean, 0, 0, 1, "share of recordings that get none"),      \
        FV_FLOAT_KEY("speed", T, speech.speed, 0, 0, 0.5,                                          \
                     "0.1: slower or faster by 10 %, or not, drawn for each recording"),           \
        FV_FLOAT_KEY("delay", T, speech.delay, 0, 0, 60,                                           \
                     "seconds of silence before a recording, at most, drawn"),                     \
        FV_INT_KEY("time_masks", T, speech.time_masks, 0, 0, 64,                                   \
                   "SpecAugment: stretches of frames that are hidden"),                            \
        FV_INT_KEY("time_width", T, speech.time_width, 1, 10, 1 << 16, "frames of one, at most"),  \
        FV_INT_KEY("band_masks", T, speech.band_masks, 0, 0, 64,                                   \
                   "SpecAugment: ranges of mel bands that are hidden"),                            \
        FV_INT_KEY("band_width", T, speech.band_width, 1, 10, 1024, "bands of one, at most")

#define FV__SPEECH_KEYS(T)                                                                         \
    FV__SOUND_KEYS(T),                                                                             \
        FV_TEXT_KEY("speaker", T, speech.speaker, "",                                              \
                    "field with the speaker: what is joined is one speaker's; empty: anybody's"),  \
        FV_INT_KEY("join", T, speech.join, 1, 1, 64,                                               \
                   "recordings that are joined to one, at most: 1 to so many, drawn anew"),        \
        FV_INT_KEY("strings", T, speech.strings, 0, 0, 1 << 24,                                    \
                   "joined recordings of an evaluation; 0: as many as recordings"),                \
        FV_FLOAT_KEY("gap_least", T, speech.gap_least, 0, 0.05, 60,                                \
                     "seconds of silence before, between and behind them, at least"),              \
        FV_FLOAT_KEY("gap_most", T, speech.gap_most, 0, 0.3, 60, "and at most"),                   \
        FV_INT_KEY("rate", T, speech.rate, 1000, 16000, 192000,                                    \
                   "samples a second that a new model reads"),                                     \
        FV_INT_KEY("mels", T, speech.mels, 1, 40, 1024, "mel bands of a new model"),               \
        FV_INT_KEY("stack", T, speech.stack, 1, 3, 64,                                             \
                   "frames of 10 ms that a new model reads as one")

typedef struct fv__speech {
    const fv_env *env;
    const fv_processor *processor;
    const fv_sound_steps *steps;
    const fv_tok *tok;
    fv__speech_opt o;
    bool evaluation;
    fv_images *clips;
    fv_labels names;   /* of folders, which are the texts where there is no table */
    fv_labels *labels; /* these, or the caller's */
    float *samples;    /* of all recordings at the model's rate, one behind the other */
    int64_t *at;       /* where each begins, and one more */
    size_t samples_bytes, at_bytes;
    int64_t *order, *group; /* recordings by speaker; where each speaker's begin, and one more */
    size_t order_bytes, group_bytes;
    int64_t n, groups;
} fv__speech;

/* One example of a batch: features and the ids of what is said.  Buffers are used again. */
typedef struct fv__spoken {
    fv_clip wave, faster, x;
    fv_shape shape;
    fv_buf text;
    fv_encoding *enc;
} fv__spoken;

/* labels: numbers what stands where texts do, for a classifier; NULL: texts are encoded. */
fv_status fv__speech_open(fv__speech *s, const fv_feed_opt *t, const fv_records *from,
                          const fv__speech_opt *o, fv_labels *labels, fv_data_report *report,
                          fv_err *e);
void fv__speech_close(fv__speech *s);

int64_t fv__speech_count(const fv__speech *s);
/* Example i: drawn by `how`, the same whenever it is asked for. */
fv_status fv__speech_get(const fv__speech *s, fv__spoken *out, int64_t i, fv_data_rng how,
                         fv_err *e);
/* What is said in recording i, or NULL. */
const char *fv__speech_text(const fv__speech *s, int64_t i);
/* Frames of the features of recording i alone. */
int64_t fv__speech_frames(const fv__speech *s, int64_t i);
fv_status fv__spoken_open(fv__spoken *x, const fv__speech *s, fv_err *e);
void fv__spoken_close(fv__spoken *x);

/* Calls each for every text that is trained on: the `texts` of an objective whose options begin
 * with a fv__speech_opt. */
fv_status fv__speech_texts(const fv_env *env, const void *options, const fv_records *from,
                           void (*each)(void *user, const char *text, size_t len), void *user,
                           fv_err *e);
/* Mean and deviation of what such steps make of the recordings, where both were 0 and 1. */
fv_status fv__speech_measure(fv_sound_steps *steps, const fv_env *env, const fv__speech_opt *o,
                             const fv_records *from, fv_err *e);
/* A log-mel processor whose mean and deviation are those of the recordings. */
fv_status fv__speech_processor(fv_processor **out, const fv_env *env, const fv__speech_opt *o,
                               const fv_records *from, fv_processor *tok, fv_err *e);

#endif
