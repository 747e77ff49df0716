/* wav.c - WAV files of plain samples, read without a library.
 *
 * RIFF is a list of chunks: four letters, a length, the bytes, one more where the length is odd.
 * "fmt " says how samples are written, "data" has them; all others are skipped.  A length is only
 * believed up to the end of the file: recorders that were cut off leave a wrong one in "data", and
 * streams have 0xffffffff there.  Compressed formats are libsndfile's. */
#include "media/audio/wav.h"

#include <math.h>

#include "base/base.h"

enum { PCM = 1, IEEE_FLOAT = 3, EXTENSIBLE = 0xfffe, MOST_CHANNELS = 64 };

static uint32_t little(const uint8_t *p, int bytes)
{
    uint32_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint32_t)p[i] << 8 * i;
    return x;
}

/* WAVE_FORMAT_EXTENSIBLE has the real format in the first bytes of its GUID. */
static bool read_format(fv__wav *w, const uint8_t *p, size_t n)
{
    if (n < 16) return false;
    uint32_t tag = little(p, 2), rate = little(p + 4, 4);
    if (tag == EXTENSIBLE && n >= 26) tag = little(p + 24, 2);
    w->channels = (int)little(p + 2, 2);
    w->bits = (int)little(p + 14, 2);
    w->is_float = tag == IEEE_FLOAT;
    bool whole = w->bits == 8 || w->bits == 16 || w->bits == 24 || w->bits == 32;
    bool fits = w->is_float ? w->bits == 32 || w->bits == 64 : tag == PCM && whole;
    if (!fits || w->channels < 1 || w->channels > MOST_CHANNELS) return false;
    w->rate = rate <= FV_CLIP_MOST_RATE ? (int)rate : 0;
    return w->rate > 0;
}

/* RIFF: chunks of a name, a length and an even number of bytes; "fmt " must stand before "data". A
 * length beyond the file's end (streams write one) is cut to it. */
bool fv__wav_find(fv__wav *out, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    bool known = false;
    *out = (fv__wav){0};
    if (n < 12 || memcmp(p, "RIFF", 4) != 0 || memcmp(p + 8, "WAVE", 4) != 0) return false;
    for (size_t at = 12; at + 8 <= n;) {
        size_t len = little(p + at + 4, 4), left = n - at - 8;
        bool samples = !memcmp(p + at, "data", 4);
        if (len > left) len = left;
        if (!memcmp(p + at, "fmt ", 4)) known = read_format(out, p + at + 8, len);
        if (samples && !known) return false;
        if (samples) {
            out->data = p + at + 8;
            out->frames = (int64_t)(len / (size_t)(out->channels * (out->bits / 8)));
            return out->frames > 0;
        }
        at += 8 + len + (len & 1);
    }
    return false;
}

/* One sample, full scale -1 to 1.  Bytes are unsigned, all wider samples are signed. */
static double sample(const fv__wav *w, const uint8_t *p)
{
    if (w->is_float && w->bits == 64) {
        uint64_t x = little(p, 4) | (uint64_t)little(p + 4, 4) << 32;
        double y;
        memcpy(&y, &x, sizeof y);
        return y;
    }
    uint32_t x = little(p, w->bits / 8);
    if (w->is_float) {
        float y;
        memcpy(&y, &x, sizeof y);
        return (double)y;
    }
    if (w->bits == 8) return ((double)x - 128) / 128;
    /* the highest byte is moved to the top, where its sign is the number's */
    return (double)(int32_t)(x << (32 - w->bits)) / 2147483648.0;
}

/* Channels are averaged into one: models hear in mono. */
fv_status fv__wav_read(fv_clip *out, const fv_env *env, const fv__wav *w, const char *name,
                       fv_err *e)
{
    if (w->frames > FV_CLIP_MOST)
        return fv_fail(e, FV_EFORMAT, "%s: more than %lld samples", name, (long long)FV_CLIP_MOST);
    fv_status st = fv_clip_new(out, env, w->rate, w->frames, e);
    const uint8_t *p = w->data;
    for (int64_t i = 0; !st && i < w->frames; i++) {
        double sum = 0;
        for (int k = 0; k < w->channels; k++, p += w->bits / 8) sum += sample(w, p);
        out->data[i] = (float)(sum / w->channels);
        if (!isfinite(out->data[i]))
            st = fv_fail(e, FV_EFORMAT, "%s: sample %lld is not a finite number", name,
                         (long long)i);
    }
    return st;
}
