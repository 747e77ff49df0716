/* steps.h - the steps of an audio processor, from and to preprocessor_config.json. */
#ifndef FV_MEDIA_AUDIO_STEPS_H
#define FV_MEDIA_AUDIO_STEPS_H

#include "fovea/author/audio.h"
#include "fovea/author/config.h"

/* The class of transformers that j names below `at` ("" or "feature_extractor"); false: none of
 * ours. */
bool fv__sound_kind(fv_sound_kind *out, const fv_json *j, const char *at);
/* Where the object stands in j: "feature_extractor" in a processor_config.json, else "". */
const char *fv__sound_at(const fv_json *j);
fv_status fv__sound_read(fv_sound_steps *out, const fv_json *j, const char *path, fv_err *e);
/* What a class takes where nothing is said. */
fv_sound_steps fv__sound_defaults(fv_sound_kind kind);
fv_status fv__sound_json(fv_json **out, const fv_env *env, const fv_sound_steps *s, fv_err *e);

#endif
