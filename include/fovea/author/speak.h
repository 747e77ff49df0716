/* speak.h - spectrograms of texts by models that speak, frame after frame.
 *
 *     fv_voice_new(&v, device, model, &err);
 *     fv_voice_speak(v, ids, n, (fv_speak_opt){.speaker = vector, .seed = 1}, &said, &err);
 *     fv_processor_sound_back(processor, &clip, said.mel, said.frames, 0, 1, &err);
 *
 * The model must be one whose head is FV_HEAD_SPEECH, and must outlive the voice, which belongs to
 * one thread. */
#ifndef FOVEA_AUTHOR_SPEAK_H
#define FOVEA_AUTHOR_SPEAK_H

#include "fovea/model.h"

typedef struct fv_voice fv_voice;

/* Names and defaults of transformers' generate_speech. */
typedef struct fv_speak_opt {
    const float *speaker; /* as many numbers as the model wants; NULL: nobody in particular */
    double threshold;     /* probability of the end at which it ends; 0: 0.5 */
    double min_ratio, max_ratio; /* frames for each token, at least and at most; 0: 0 and 20 */
    bool no_dropout;             /* the prenet drops nothing: always the same, and often worse */
    uint64_t seed;               /* the same seed says a text in the same way */
} fv_speak_opt;

/* What was said; the voice's, until it speaks again. */
typedef struct fv_said {
    const float *mel; /* (frames,mels): log-mel, as the model was trained */
    int64_t frames, mels;
    /* (layers,heads,steps,tokens): where each step of the decoder looked in the text */
    const float *attention;
    int64_t layers, heads, steps, tokens;
    bool ended; /* it ended by itself, not at the greatest length */
} fv_said;

FV_API fv_status fv_voice_new(fv_voice **out, fv_device *d, const fv_model *m, fv_err *e);
FV_API void fv_voice_free(fv_voice *v); /* NULL is allowed */
/* Numbers of a speaker's vector. */
FV_API int64_t fv_voice_speaker_dim(const fv_voice *v);
FV_API fv_status fv_voice_speak(fv_voice *v, const int32_t *ids, int64_t n, fv_speak_opt opt,
                                fv_said *out, fv_err *e);

/* How near the diagonal the heads of attention (maps,steps,tokens) are: for the best of them, the
 * mean over steps of 1 - |place in the text - place in the clip|, each in 0 .. 1; *best: which. */
FV_API double fv_said_diagonality(const fv_said *s, int64_t *best);

#endif
