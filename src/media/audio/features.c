/* features.c - what an audio processor makes of samples at the model's rate.
 *
 * As transformers' feature extractors (Whisper, AST, Wav2Vec2) compute them, and as the keyword
 * transformer was trained:
 *
 *     raw       x, or (x - mean) / sqrt(variance + 1e-7)
 *     whisper   l = log10 max(mel, 1e-10);  (max(l, max l - 8) + 4) / 4, of exactly one chunk
 *     fbank     (ln max(mel, eps) - mean) / (2 deviation), cut, or zeros up to max_length
 *     mfcc      DCT-II of ln max(mel, 1e-12), the first of them, (y - mean) / deviation
 *     log-mel   (ln max(mel, floor) - mean) / deviation of frames without a look at their
 *               neighbours, so that a stream has the numbers of its recording; `stack` frames are
 *               one row, what does not fill a row is dropped.  The floor is the energy of half a
 *               step of 16 bits: files of digital silence do not differ from quiet ones
 *     speech    log10 max(mel, floor) of magnitudes, frames centred as Whisper's: SpeechT5's
 *               targets, which a vocoder or griffin_lim.c makes sound again */
#include "media/audio/features.h"

#include <math.h>

#define PI 3.14159265358979323846
#define QUIET 2.3e-10 /* (2^-16)^2 */
#define FLOAT_EPS 1.1920928955078125e-07

/* The four families differ in mel scale (Slaney's or Kaldi's HTK), framing (centred or not), window
 * (periodic or symmetric) and what is done to a frame before it. */
fv__spectrum_opt fv__sound_spectrum(const fv_sound_steps *s)
{
    fv__spectrum_opt o = {.rate = s->rate,
                          .window = s->window,
                          .hop = s->hop,
                          .fft = s->fft,
                          .mels = s->mels,
                          .low = s->low,
                          .high = s->high};
    o.slaney = o.centre = s->kind == FV_SOUND_WHISPER || s->kind == FV_SOUND_SPEECH;
    o.magnitude = s->kind == FV_SOUND_MFCC || s->kind == FV_SOUND_SPEECH;
    if (s->kind == FV_SOUND_FBANK || s->kind == FV_SOUND_LOGMEL) {
        o.symmetric = o.remove_mean = true;
        o.preemphasis = 0.97;
    }
    return o;
}

/* Whisper hears exactly 30 seconds: shorter clips are padded with silence before the spectrum. */
int64_t fv__sound_samples(const fv_sound_steps *s, int64_t n)
{
    if (s->kind == FV_SOUND_WHISPER) return s->most;
    bool frames = s->kind == FV_SOUND_MFCC || s->kind == FV_SOUND_LOGMEL;
    if (frames && s->most) return (s->most * s->stack - 1) * s->hop + s->window;
    return n;
}

/* Known from the number of samples alone, so that batches can be planned without computing
 * features. */
fv_status fv__sound_shape(const fv_sound_steps *s, int64_t n, fv_shape *out, const char *name,
                          fv_err *e)
{
    fv__spectrum_opt o = fv__sound_spectrum(s);
    int64_t samples = fv__sound_samples(s, n), frames = 0;
    if (s->kind == FV_SOUND_RAW) {
        *out = FV_SHAPE(n);
        return FV_OK;
    }
    frames = fv__spectrum_frames(&o, samples);
    if (s->kind == FV_SOUND_LOGMEL) {
        *out = FV_SHAPE(frames / s->stack, s->features);
        frames = out->d[0];
    }
    if (frames < 1)
        return fv_fail(e, FV_EARG, "%s: %lld samples at %d a second: at least %d are needed", name,
                       (long long)n, s->rate, s->window + (s->stack - 1) * s->hop);
    if (s->kind == FV_SOUND_LOGMEL) return FV_OK;
    if (s->kind == FV_SOUND_WHISPER) {
        /* the frame at the very end is dropped, as transformers drops it */
        *out = FV_SHAPE(s->features, frames - 1);
        return FV_OK;
    }
    *out = FV_SHAPE(s->most ? s->most : frames, s->features);
    return FV_OK;
}

/* Zero mean and unit variance of the samples, with transformers' epsilon under the root. */
void fv__sound_normalise(const fv_sound_steps *s, float *x, int64_t n)
{
    double mean = 0, var = 0;
    if (!s->normalise || (s->kind != FV_SOUND_RAW && s->kind != FV_SOUND_WHISPER)) return;
    for (int64_t i = 0; i < n; i++) mean += (double)x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean);
    double by = 1 / sqrt(var / (double)n + 1e-7);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(((double)x[i] - mean) * by);
}

/* mel (frames,mels) -> out (mels,frames) */
static void whisper(const fv_sound_steps *s, float *out, float *mel, int64_t frames)
{
    int64_t n = frames * s->mels;
    float top = -10;
    for (int64_t i = 0; i < n; i++) {
        mel[i] = log10f(mel[i] > 1e-10f ? mel[i] : 1e-10f);
        if (mel[i] > top) top = mel[i];
    }
    for (int64_t t = 0; t < frames; t++)
        for (int m = 0; m < s->mels; m++) {
            float x = mel[t * s->mels + m];
            out[m * frames + t] = ((x > top - 8 ? x : top - 8) + 4) / 4;
        }
}

/* log of the mel energies with torch's float epsilon as floor; (x - mean) / (2 deviation), AST's
 * factor two included. Padding is 0 before the normalisation. */
static void fbank(const fv_sound_steps *s, float *out, int64_t rows, const float *mel,
                  int64_t frames)
{
    for (int64_t i = 0; i < rows * s->mels; i++) {
        double x = 0;
        if (i < frames * s->mels) x = log((double)mel[i] > FLOAT_EPS ? (double)mel[i] : FLOAT_EPS);
        out[i] = (float)(s->normalise ? (x - s->mean) / (2 * s->deviation) : x);
    }
}

/* out[t,k] = sqrt(2 / M) sum_m ln mel[t,m] cos(pi k (m + 1/2) / M).  The cosines, of which a clip
 * needs each a hundred times, are computed once a clip, and logarithms once a frame. */
static fv_status mfcc(const fv_sound_steps *s, const fv_env *env, float *out, const float *mel,
                      int64_t frames, fv_err *e)
{
    int M = s->mels, K = s->features;
    size_t bytes = (size_t)(K + 1) * (size_t)M * sizeof(double);
    double *cosine = fv__alloc(env, bytes), *level = cosine + (size_t)K * (size_t)M;
    if (!cosine) return fv_fail(e, FV_ENOMEM, "MFCC: out of memory");
    for (int i = 0; i < K * M; i++) cosine[i] = cos(PI * (i / M) * (i % M + 0.5) / M);
    for (int64_t t = 0; t < frames; t++) {
        for (int m = 0; m < M; m++) {
            double x = (double)mel[t * M + m];
            level[m] = log(x > 1e-12 ? x : 1e-12);
        }
        for (int k = 0; k < K; k++) {
            double sum = 0;
            for (int m = 0; m < M; m++) sum += level[m] * cosine[k * M + m];
            out[t * K + k] = (float)((sum * sqrt(2. / M) - s->mean) / s->deviation);
        }
    }
    fv__free(env, cosine, bytes);
    return FV_OK;
}

/* Rows of the result stand one behind the other as frames do: stacking moves nothing. */
static void logmel(const fv_sound_steps *s, float *out, const float *mel, int64_t frames)
{
    double floor = QUIET * s->window;
    for (int64_t i = 0; i < frames * s->mels; i++) {
        double x = log((double)mel[i] > floor ? (double)mel[i] : floor);
        out[i] = (float)((x - s->mean) / s->deviation);
    }
}

static void speech(const fv_sound_steps *s, float *out, const float *mel, int64_t frames)
{
    for (int64_t i = 0; i < frames * s->mels; i++)
        out[i] = (float)log10((double)mel[i] > s->floor ? (double)mel[i] : s->floor);
}

/* out has the shape of fv__sound_shape; rows behind the sound's end are the padding of its kind. */
fv_status fv__sound_features(const fv_sound_steps *s, const fv__spectrum *spectrum, float *out,
                             fv_shape shape, const float *x, int64_t n, fv_err *e)
{
    int64_t rows = shape.d[0];
    if (s->kind == FV_SOUND_RAW) {
        memcpy(out, x, (size_t)n * sizeof *out);
        return FV_OK;
    }
    int64_t frames = fv__spectrum_frames(&spectrum->o, n);
    if (s->kind == FV_SOUND_WHISPER)
        frames = shape.d[1];
    else if (frames > rows * s->stack)
        frames = rows * s->stack;
    size_t bytes = (size_t)(frames * s->mels) * sizeof(float);
    float *mel = fv__alloc(spectrum->env, bytes);
    if (!mel) return fv_fail(e, FV_ENOMEM, "features of %lld samples: out of memory", (long long)n);
    fv_status st = fv__spectrum_run(spectrum, mel, frames, x, n, e);
    if (!st && s->kind == FV_SOUND_WHISPER) whisper(s, out, mel, frames);
    if (!st && s->kind == FV_SOUND_FBANK) fbank(s, out, rows, mel, frames);
    if (!st && s->kind == FV_SOUND_MFCC) st = mfcc(s, spectrum->env, out, mel, frames, e);
    if (!st && s->kind == FV_SOUND_LOGMEL) logmel(s, out, mel, frames);
    if (!st && s->kind == FV_SOUND_SPEECH) speech(s, out, mel, frames);
    fv__free(spectrum->env, mel, bytes);
    return st;
}
