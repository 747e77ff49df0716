/* sound.c - the sound that a model hears, as an image: its spectrogram, with the positions of the
 * encoder side by side as patches of full height.
 *
 * So everything that shows attention over an image shows it over a sound: pictures word by word,
 * the page, weights by patch.  The spectrogram is the same for all models, log-mel bands of 10 ms,
 * whatever the model itself reads (Moonshine reads samples): what is drawn is for the eye.
 * Quiet is white, so that the veil of overlay.c, which is dark, darkens what is not attended to. */
#include <math.h>
#include <stdio.h>

#include "see.h"
#include "fovea/author/audio.h"
#include "fovea/author/family.h"

enum { BANDS = 64, TALL = 3 /* pixels of a band */, WIDEST = 3000 /* of the picture */ };
#define RANGE 10. /* natural logarithms from the loudest to what is white */

bool fv__see_hears(const fv_model *m)
{
    const fv_family *f = fv_model_family(m);
    return !fv_family_takes(f, "pixel_values") &&
           (fv_family_takes(f, "input_features") || fv_family_takes(f, "input_values"));
}

/* Loudness t in [0,1] as a colour: white, blue, nearly black. */
static void shade(uint8_t *to, double t)
{
    to[0] = (uint8_t)(255 * pow(1 - t, 1.5) + 0.5);
    to[1] = (uint8_t)(255 * pow(1 - t, 1.1) + 0.5);
    to[2] = (uint8_t)(255 * (1 - t * t * 0.75) + 0.5);
}

/* Bands upwards, time to the right; at most WIDEST pixels wide, of which each shows the loudest
 * frame that falls on it. */
static fv_status draw(fv_see_image *im, const float *mel, int64_t frames, fv_err *e)
{
    int wide = frames < WIDEST ? (int)frames : WIDEST;
    float top = -INFINITY;
    for (int64_t i = 0; i < frames * BANDS; i++) top = mel[i] > top ? mel[i] : top;
    fv_status st = fv_image_new(&im->shown, im->env, wide, BANDS * TALL, 3, e);
    for (int64_t i = 0; !st && i < (int64_t)wide * BANDS * TALL; i++) {
        int64_t x = i % wide, band = BANDS - 1 - i / wide / TALL;
        float most = -INFINITY;
        for (int64_t t = x * frames / wide; t < (x + 1) * frames / wide; t++)
            most = mel[t * BANDS + band] > most ? mel[t * BANDS + band] : most;
        double level = 1 + ((double)most - (double)top) / RANGE;
        shade(im->shown.data + 3 * i, level > 0 ? level : 0);
    }
    return st;
}

/* Log-mel of the clip, which is at the rate of the model. */
static fv_status take_spectrogram(fv_see_image *im, const fv_clip *x, fv_err *e)
{
    fv_sound_steps s = {.kind = FV_SOUND_LOGMEL,
                        .rate = x->rate,
                        .mels = BANDS,
                        .features = BANDS,
                        .stack = 1,
                        .window = x->rate / 40,
                        .hop = x->rate / 100,
                        .low = 20,
                        .high = 0.475 * x->rate,
                        .deviation = 1};
    fv_processor *p = NULL;
    fv_clip mel = {0};
    fv_shape shape;
    for (s.fft = 16; s.fft < s.window;) s.fft *= 2;
    fv_status st = fv_processor_from_sound(&p, im->env, &s, NULL, e);
    if (!st) st = fv_processor_sound(p, &mel, x, &shape, im->name, e);
    if (!st) st = draw(im, mel.data, shape.d[0], e);
    fv_clip_free(&mel);
    fv_processor_close(p);
    return st;
}

fv_status fv__see_sound_open(fv_see_image *im, const char *path, fv_err *e)
{
    fv_clip raw = {0}, x = {0}, numbers = {0};
    const char *slash = strrchr(path, '/');
    snprintf(im->name, sizeof im->name, "%s", slash ? slash + 1 : path);
    fv_status st = fv_processor_open(&im->processor, im->env, "audio", fv_dir_path(im->dir), e);
    const fv_sound_steps *s = st ? NULL : fv_processor_sound_steps(im->processor);
    if (!st && !s) st = fv_fail(e, FV_EARG, "%s: there is no audio processor", im->name);
    if (!st) st = fv_clip_open(&raw, im->env, path, e);
    if (!st) st = fv_clip_resample(&x, &raw, s->rate, e);
    if (!st && s->kind == FV_SOUND_WHISPER && x.n > s->most)
        st = fv_fail(e, FV_EARG, "%s: %.1f seconds; a window of this model is %.1f", im->name,
                     (double)x.n / s->rate, (double)s->most / s->rate);
    if (!st) st = fv_processor_sound(im->processor, &numbers, &x, &im->shape, im->name, e);
    if (!st) st = take_spectrogram(im, &x, e);
    if (!st) { /* the image owns the numbers from here on */
        im->pixels = numbers.data;
        im->bytes = numbers.bytes;
        im->seconds = (double)x.n / x.rate;
        /* Whisper hears a window, of which the sound may be the beginning */
        im->heard = s->kind == FV_SOUND_WHISPER ? (double)x.n / (double)s->most : 1;
        numbers = (fv_clip){0};
    }
    fv_clip_free(&numbers);
    fv_clip_free(&raw);
    fv_clip_free(&x);
    return st;
}

void fv__see_put_sound(fv_ctx *c, const fv_see_image *im, fv_items *items)
{
    fv_shape s = im->shape;
    fv_shape batch = s.n == 1 ? FV_SHAPE(1, s.d[0]) : FV_SHAPE(1, s.d[0], s.d[1]);
    fv_items_put(items, fv_processor_sound_input(im->processor), fv_floats(c, im->pixels, batch));
}

/* Behind a class token where a token is a frame (KWT).  The last position may be heard in part. */
fv_see_grid fv__see_sound_grid(const fv_see_image *im, int64_t n)
{
    int64_t frames = im->shape.n == 2 ? im->shape.d[0] : 0;
    if (n == frames + 1) return (fv_see_grid){1, 1, frames};
    int64_t wide = (int64_t)ceil(im->heard * (double)n - 1e-9);
    return (fv_see_grid){0, 1, wide < n ? wide : n};
}
