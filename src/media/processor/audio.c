/* audio.c - the processor of sound: clips of any rate as the numbers a model was trained with.
 *
 *     resample -> cut, or append silence -> features (audio/features.c)
 *
 * The file is written back as it was read, with all that only other programs know.  A model that
 * writes text has a tokenizer in its directory, which is opened and saved with it. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "fovea/author/processor.h"
#include "media/audio/features.h"
#include "media/audio/griffin_lim.h"
#include "media/audio/steps.h"
#include "media/preprocessor.h"

typedef struct audio {
    const fv_env *env;
    fv_json *config;
    bool shared; /* it came from processor_config.json */
    fv_sound_steps steps;
    fv__spectrum spectrum;
    fv_processor *tok; /* NULL: none */
} audio;

const fv_processor_type fv__processor_audio;

static bool recognise(const fv_env *env, const char *path, const fv_json *j)
{
    fv_sound_kind kind;
    (void)env, (void)path;
    return j && fv__sound_kind(&kind, j, fv__sound_at(j));
}

static fv_status open_spectrum(audio *m, fv_err *e)
{
    if (m->steps.kind == FV_SOUND_RAW) return FV_OK;
    return fv__spectrum_open(&m->spectrum, m->env, fv__sound_spectrum(&m->steps), e);
}

static fv_status open_audio(void *self, const fv_env *env, const char *dir, fv_err *e)
{
    audio *m = self;
    char path[FV_PATH];
    m->env = env;
    fv_status st = fv__preprocessor_open(&m->config, &m->shared, path, env, dir, e);
    if (!st) st = fv__sound_read(&m->steps, m->config, path, e);
    if (!st) st = open_spectrum(m, e);
    return st ? st : fv__preprocessor_tok(&m->tok, env, dir, e);
}

/* Zeros become what the class takes. */
static fv_sound_steps completed(fv_sound_steps s)
{
    fv_sound_steps d = fv__sound_defaults(s.kind);
    if (!s.rate) s.rate = d.rate;
    if (!s.features) s.features = d.features;
    if (!s.mels) s.mels = d.mels;
    if (!s.window) s.window = d.window;
    if (!s.hop) s.hop = d.hop;
    if (!s.fft) s.fft = d.fft;
    if (!(s.high > 0)) s.low = d.low, s.high = d.high;
    if (!s.most && s.kind == FV_SOUND_WHISPER) s.most = d.most;
    if (!(s.deviation > 0)) s.deviation = 1;
    if (!(s.floor > 0)) s.floor = d.floor;
    if (!s.stack) s.stack = 1;
    return s;
}

fv_status fv_processor_from_sound(fv_processor **out, const fv_env *env,
                                  const fv_sound_steps *steps, fv_processor *tok, fv_err *e)
{
    fv_status st = fv__preprocessor_new(out, env, &fv__processor_audio, tok, e);
    if (st) return st;
    audio *m = fv_processor_self(*out, &fv__processor_audio);
    m->env = env;
    m->tok = tok;
    m->steps = completed(*steps);
    st = fv__sound_json(&m->config, env, &m->steps, e);
    /* read again, so that what cannot be is refused as in a file */
    if (!st) st = fv__sound_read(&m->steps, m->config, "preprocessor_config.json", e);
    if (!st) st = open_spectrum(m, e);
    if (st) {
        fv_processor_close(*out);
        *out = NULL;
    }
    return st;
}

static fv_status save(const void *self, const char *dir, fv_err *e)
{
    const audio *m = self;
    return fv__preprocessor_save(m->config, m->shared, m->tok, dir, e);
}

static void close_audio(void *self)
{
    audio *m = self;
    fv_json_close(m->config);
    fv__spectrum_close(&m->spectrum);
    fv_processor_close(m->tok);
}

static const fv_processor *inside(const void *self) { return ((const audio *)self)->tok; }

/* ---- using it ---- */

const fv_sound_steps *fv_processor_sound_steps(const fv_processor *p)
{
    const audio *m = fv_processor_self(p, &fv__processor_audio);
    return m ? &m->steps : NULL;
}

const char *fv_processor_sound_input(const fv_processor *p)
{
    const fv_sound_steps *s = fv_processor_sound_steps(p);
    if (!s) return NULL;
    bool values = s->kind == FV_SOUND_RAW || s->kind == FV_SOUND_FBANK ||
                  s->kind == FV_SOUND_SPEECH;
    return values ? "input_values" : "input_features";
}

fv_status fv_processor_sound_shape(const fv_processor *p, int64_t n, fv_shape *out, fv_err *e)
{
    const fv_sound_steps *s = fv_processor_sound_steps(p);
    if (!s) return fv_fail(e, FV_EARG, "the model has no audio processor");
    return fv__sound_shape(s, n, out, "a clip", e);
}

/* The clip at the model's rate, as long as the model reads it. */
static fv_status fit(const fv_sound_steps *s, fv_clip *out, const fv_clip *in, fv_err *e)
{
    fv_status st = fv_clip_resample(out, in, s->rate, e);
    int64_t have = out->n, want = fv__sound_samples(s, have);
    if (!st) fv__sound_normalise(s, out->data, have < want ? have : want);
    if (!st) st = fv_clip_new(out, out->env, s->rate, want, e);
    for (int64_t i = have; !st && i < want; i++) out->data[i] = 0;
    return st;
}

fv_status fv_processor_sound(const fv_processor *p, fv_clip *out, const fv_clip *in,
                             fv_shape *shape, const char *name, fv_err *e)
{
    const audio *m = fv_processor_self(p, &fv__processor_audio);
    fv_clip x = {0};
    if (!m) return fv_fail(e, FV_EARG, "the model has no audio processor");
    fv_status st = fit(&m->steps, &x, in, e);
    if (!st) st = fv__sound_shape(&m->steps, x.n, shape, name, e);
    if (!st) {
        int64_t n = 1;
        for (int i = 0; i < shape->n; i++) n *= shape->d[i];
        st = fv_clip_new(out, in->env, m->steps.rate, n, e);
    }
    if (!st) st = fv__sound_features(&m->steps, &m->spectrum, out->data, *shape, x.data, x.n, e);
    fv_clip_free(&x);
    return st;
}

fv_status fv_processor_sound_back(const fv_processor *p, fv_clip *out, const float *mel,
                                  int64_t frames, int rounds, uint64_t seed, fv_err *e)
{
    const audio *m = fv_processor_self(p, &fv__processor_audio);
    if (!m || m->steps.kind != FV_SOUND_SPEECH)
        return fv_fail(e, FV_EARG, "the model's processor makes no spectrograms of speech");
    size_t n = (size_t)(frames * m->steps.mels), bytes = n * sizeof(float);
    float *magnitude = fv__alloc(m->env, bytes);
    if (!magnitude) return fv_fail(e, FV_ENOMEM, "a spectrogram: out of memory");
    fv_status st = FV_OK;
    for (size_t i = 0; i < n; i++) {
        if (!(mel[i] < 30)) /* or not a number */
            st = fv_fail(e, FV_EARG, "a spectrogram with %g in it: expected logarithms below 30",
                         (double)mel[i]);
        magnitude[i] = st ? 0 : powf(10, mel[i]);
    }
    if (!st)
        st = fv__griffin_lim(&m->spectrum, out, magnitude, frames, rounds > 0 ? rounds : 60, seed,
                             e);
    fv__free(m->env, magnitude, bytes);
    return st;
}

/* ---- speakers ---- */

fv_status fv_processor_set_speakers(fv_processor *p, const char *json, fv_err *e)
{
    audio *m = fv_processor_self(p, &fv__processor_audio);
    if (!m) return fv_fail(e, FV_EARG, "the model has no audio processor");
    return fv_json_set(m->config, "speakers", json, e);
}

const char *fv_processor_speaker_at(const fv_processor *p, int i)
{
    const audio *m = fv_processor_self(p, &fv__processor_audio);
    return m && fv_json_count(m->config, "speakers") > i ? fv_json_key(m->config, "speakers", i)
                                                         : NULL;
}

int64_t fv_processor_speaker(const fv_processor *p, const char *name, float *out, int64_t n)
{
    const audio *m = fv_processor_self(p, &fv__processor_audio);
    char at[300];
    if (!m || strlen(name) > 200) return 0;
    snprintf(at, sizeof at, "speakers.%s", name);
    int count = fv_json_count(m->config, at);
    for (int i = 0; i < count && i < n; i++) {
        double x = 0;
        snprintf(at, sizeof at, "speakers.%s.%d", name, i);
        if (!fv_json_number(m->config, at, &x)) return 0;
        out[i] = (float)x;
    }
    return count > 0 ? count : 0;
}

const fv_processor_type fv__processor_audio = {
    .name = "audio",
    .size = sizeof(audio),
    .recognise = recognise,
    .open = open_audio,
    .save = save,
    .close = close_audio,
    .inside = inside,
};
