/* audio.h - sound in memory: decoding, resampling, writing WAV; and the audio processor.
 *
 * A clip is mono: one float a sample, full scale -1 to 1.  Every function that makes one uses the
 * memory of `out` again where it suffices, so `out` is zeroed the first time, kept from clip to
 * clip, and freed once. */
#ifndef FOVEA_AUTHOR_AUDIO_H
#define FOVEA_AUTHOR_AUDIO_H

#include "fovea/processor.h"
#include "fovea/tensor.h"

/* Samples of the longest clip that is decoded: 4.6 hours at 16 kHz, 1 GiB. */
#define FV_CLIP_MOST ((int64_t)1 << 28)
#define FV_CLIP_MOST_RATE 768000

typedef struct fv_clip {
    const fv_env *env;
    int rate; /* samples a second */
    int64_t n;
    float *data;
    size_t bytes; /* allocated */
} fv_clip;

/* Room for n samples, whose values are undefined.  On failure `out` is as it was. */
FV_API fv_status fv_clip_new(fv_clip *out, const fv_env *env, int rate, int64_t n, fv_err *e);
FV_API void fv_clip_free(fv_clip *x); /* a zeroed one is allowed */

/* WAV, FLAC, OGG or MP3, whatever libsndfile reads (without it: WAV of plain samples); channels
 * become their mean.  Refused: a file
 * without samples, samples that are not finite, more than FV_CLIP_MOST.  name: for messages. */
FV_API fv_status fv_clip_decode(fv_clip *out, const fv_env *env, const void *bytes, size_t n,
                                const char *name, fv_err *e);
FV_API fv_status fv_clip_open(fv_clip *out, const fv_env *env, const char *path, fv_err *e);
/* Raw samples of 16 bits, little endian, one channel. */
FV_API fv_status fv_clip_pcm(fv_clip *out, const fv_env *env, const void *bytes, size_t n, int rate,
                             const char *name, fv_err *e);
/* As WAV of 16 bits; what lies beyond full scale is clipped. */
FV_API fv_status fv_clip_save(const fv_clip *x, const char *path, fv_err *e);

/* At another rate, by a windowed sinc (resample.c says how good); out must not be in. */
FV_API fv_status fv_clip_resample(fv_clip *out, const fv_clip *in, int rate, fv_err *e);

/* ---- the audio processor ---- */

typedef enum fv_sound_kind {
    FV_SOUND_RAW,     /* Wav2Vec2FeatureExtractor: samples, perhaps normalised */
    FV_SOUND_WHISPER, /* WhisperFeatureExtractor: log-mel of a chunk of fixed length */
    FV_SOUND_FBANK,   /* ASTFeatureExtractor: Kaldi's filter banks */
    FV_SOUND_MFCC,    /* KWTFeatureExtractor: cepstral coefficients */
    FV_SOUND_LOGMEL,  /* LogMelFeatureExtractor (ours): filter banks, several frames as one */
    FV_SOUND_SPEECH   /* SpeechT5FeatureExtractor: log-mel of what is to be said */
} fv_sound_kind;

/* What preprocessor_config.json says; lengths in samples. */
typedef struct fv_sound_steps {
    fv_sound_kind kind;
    int rate;     /* samples a second that the model reads */
    int features; /* numbers of a frame */
    int mels;     /* of the filter bank */
    int window, hop, fft;
    int stack;        /* log-mel: so many frames become one of stack * mels numbers; else 1 */
    double low, high; /* Hz, of the filter bank */
    int64_t most;     /* Whisper: samples of a chunk; filter banks, MFCC: frames; 0: any length */
    bool normalise;   /* raw, Whisper: to mean 0 and variance 1; else (x - mean) / deviation */
    double mean, deviation;
    double floor; /* speech: magnitudes of a mel band are at least this */
} fv_sound_steps;

/* A new one; zeros mean what the class of that kind takes.  tok: NULL, or the tokenizer of a model
 * that writes text, owned from here on. */
FV_API fv_status fv_processor_from_sound(fv_processor **out, const fv_env *env,
                                         const fv_sound_steps *steps, fv_processor *tok, fv_err *e);
/* NULL where it is no audio processor. */
FV_API const fv_sound_steps *fv_processor_sound_steps(const fv_processor *p);
/* The model's input that it makes: "input_values" or "input_features". */
FV_API const char *fv_processor_sound_input(const fv_processor *p);
/* The shape of what n samples at the model's rate become: (n) for raw, (features,frames) for
 * Whisper, (frames,features) for the others. */
FV_API fv_status fv_processor_sound_shape(const fv_processor *p, int64_t n, fv_shape *out,
                                          fv_err *e);
/* The other way, for speech: mel (frames,mels) as samples at the model's rate.  Phases, which a
 * spectrogram has not, are found in `rounds` rounds (0: 60) from those that seed draws. */
FV_API fv_status fv_processor_sound_back(const fv_processor *p, fv_clip *out, const float *mel,
                                         int64_t frames, int rounds, uint64_t seed, fv_err *e);
/* The speakers that its file knows ("speakers": {"jackson": [0.3, ..], ..}): the name of number i,
 * NULL past the end; and the vector of a name, of which the first n numbers are written.  Returns
 * how many it has; 0: there is no such speaker. */
FV_API const char *fv_processor_speaker_at(const fv_processor *p, int i);
FV_API int64_t fv_processor_speaker(const fv_processor *p, const char *name, float *out, int64_t n);
/* All of them, as the JSON object; names without dots. */
FV_API fv_status fv_processor_set_speakers(fv_processor *p, const char *json, fv_err *e);
/* A clip of any rate as the model's numbers: n of them in out->data, of shape *shape.  out must not
 * be in.  name: for messages. */
FV_API fv_status fv_processor_sound(const fv_processor *p, fv_clip *out, const fv_clip *in,
                                    fv_shape *shape, const char *name, fv_err *e);

#endif
