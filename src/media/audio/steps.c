/* steps.c - the steps of an audio processor, from and to preprocessor_config.json.
 *
 * What a file leaves out is what the class it names would take, so that files of any age read the
 * same here and in transformers.  KWTFeatureExtractor is ours: transformers has no keyword
 * transformer. */
#include "media/audio/steps.h"

#include <stdio.h>

#include "base/base.h"

static const char *const classes[] = {
    [FV_SOUND_RAW] = "Wav2Vec2FeatureExtractor",  [FV_SOUND_WHISPER] = "WhisperFeatureExtractor",
    [FV_SOUND_FBANK] = "ASTFeatureExtractor",     [FV_SOUND_MFCC] = "KWTFeatureExtractor",
    [FV_SOUND_LOGMEL] = "LogMelFeatureExtractor", [FV_SOUND_SPEECH] = "SpeechT5FeatureExtractor",
};

/* What each feature extractor of transformers has where its file says nothing. */
fv_sound_steps fv__sound_defaults(fv_sound_kind kind)
{
    static const fv_sound_steps normal[] = {
        [FV_SOUND_RAW] = {.rate = 16000, .features = 1, .normalise = true, .deviation = 1},
        [FV_SOUND_WHISPER] = {.rate = 16000,
                              .features = 80,
                              .mels = 80,
                              .window = 400,
                              .hop = 160,
                              .fft = 400,
                              .high = 8000,
                              .most = 480000,
                              .deviation = 1},
        [FV_SOUND_FBANK] = {.rate = 16000,
                            .features = 128,
                            .mels = 128,
                            .window = 400,
                            .hop = 160,
                            .fft = 512,
                            .low = 20,
                            .high = 8000,
                            .most = 1024,
                            .normalise = true,
                            .mean = -4.2677393,
                            .deviation = 4.5689974},
        [FV_SOUND_MFCC] = {.rate = 16000,
                           .features = 40,
                           .mels = 80,
                           .window = 480,
                           .hop = 160,
                           .fft = 512,
                           .low = 20,
                           .high = 7600,
                           .most = 98,
                           .deviation = 1},
        [FV_SOUND_LOGMEL] = {.rate = 16000,
                             .features = 240,
                             .mels = 80,
                             .window = 400,
                             .hop = 160,
                             .fft = 512,
                             .stack = 3,
                             .low = 20,
                             .high = 7600,
                             .deviation = 1},
        [FV_SOUND_SPEECH] = {.rate = 16000,
                             .features = 80,
                             .mels = 80,
                             .window = 1024,
                             .hop = 256,
                             .fft = 1024,
                             .low = 80,
                             .high = 7600,
                             .deviation = 1,
                             .floor = 1e-10},
    };
    fv_sound_steps s = normal[kind];
    s.kind = kind;
    if (!s.stack) s.stack = 1;
    return s;
}

/* ---- reading ---- */

typedef struct reading {
    const fv_json *j;
    const char *at, *path;
    fv_err *e;
} reading;

static const char *place(const char *at, const char *key, char out[128])
{
    snprintf(out, 128, "%s%s%s", at, *at ? "." : "", key);
    return out;
}

const char *fv__sound_at(const fv_json *j)
{
    return fv_json_count(j, "feature_extractor") > 0 ? "feature_extractor" : "";
}

/* By the class that transformers writes; false: not a sound's, or one that is not known. */
bool fv__sound_kind(fv_sound_kind *out, const fv_json *j, const char *at)
{
    char key[128];
    const char *name = fv_json_text(j, place(at, "feature_extractor_type", key));
    for (int i = 0; name && i < (int)(sizeof classes / sizeof *classes); i++)
        if (!strcmp(name, classes[i])) {
            *out = (fv_sound_kind)i;
            return true;
        }
    return false;
}

/* An integer; as it was where the key is not there. */
static fv_status integer(const reading *r, const char *key, int64_t least, int64_t most,
                         int64_t *out)
{
    char at[128];
    double x;
    if (!fv_json_number(r->j, place(r->at, key, at), &x)) return FV_OK;
    if (!(x >= (double)least && x <= (double)most) || x != (double)(int64_t)x)
        return fv_fail(r->e, FV_EFORMAT, "%s: %s: expected an integer, %lld to %lld", r->path, key,
                       (long long)least, (long long)most);
    *out = (int64_t)x;
    return FV_OK;
}

static fv_status small(const reading *r, const char *key, int least, int most, int *out)
{
    int64_t x = *out;
    fv_status st = integer(r, key, least, most, &x);
    *out = (int)x;
    return st;
}

static void number(const reading *r, const char *key, double *out)
{
    char at[128];
    fv_json_number(r->j, place(r->at, key, at), out);
}

/* Of a class whose window is free. */
static fv_status read_window(const reading *r, fv_sound_steps *s)
{
    fv_status st = small(r, "win_length", 16, 1 << 16, &s->window);
    if (!st) st = small(r, "hop_length", 1, 1 << 16, &s->hop);
    if (!st) st = small(r, "n_fft", 16, 1 << 16, &s->fft);
    number(r, "min_frequency", &s->low);
    number(r, "max_frequency", &s->high);
    return st;
}

/* SpeechT5's lengths are milliseconds, and its transform the next power of two. */
static fv_status read_speech(const reading *r, fv_sound_steps *s)
{
    int window = 64, hop = 16;
    char at[128];
    const char *shape = fv_json_text(r->j, place(r->at, "win_function", at));
    if (shape && strcmp(shape, "hann_window") && strcmp(shape, "hann"))
        return fv_fail(r->e, FV_EMISSING, "%s: win_function: only hann_window is supported",
                       r->path);
    fv_status st = small(r, "num_mel_bins", 1, 1024, &s->mels);
    if (!st) st = small(r, "win_length", 1, 300, &window);
    if (!st) st = small(r, "hop_length", 1, 300, &hop);
    number(r, "fmin", &s->low);
    number(r, "fmax", &s->high);
    number(r, "mel_floor", &s->floor);
    s->features = s->mels;
    s->window = window * s->rate / 1000;
    s->hop = hop * s->rate / 1000;
    for (s->fft = 1; s->fft < s->window;) s->fft *= 2;
    return st;
}

/* The keys of the class; those of a window that AST has no key for stay as they are. */
static fv_status read_frames(const reading *r, fv_sound_steps *s)
{
    fv_status st = FV_OK;
    int64_t seconds = s->most / s->rate;
    switch (s->kind) {
    case FV_SOUND_WHISPER:
        st = small(r, "feature_size", 1, 1024, &s->features);
        if (!st) st = small(r, "n_fft", 16, 1 << 16, &s->fft);
        if (!st) st = small(r, "hop_length", 1, 1 << 16, &s->hop);
        if (!st) st = integer(r, "chunk_length", 1, 3600, &seconds);
        s->window = s->fft;
        s->mels = s->features;
        s->most = seconds * s->rate;
        /* transformers leaves filters above the Nyquist frequency empty: they would hear nothing */
        if (s->high > s->rate / 2.) s->high = s->rate / 2.;
        return st;
    case FV_SOUND_FBANK:
        st = small(r, "num_mel_bins", 1, 1024, &s->mels);
        if (!st) st = integer(r, "max_length", 1, 1 << 20, &s->most);
        s->features = s->mels;
        s->high = s->rate / 2;
        return st;
    case FV_SOUND_MFCC:
        st = small(r, "feature_size", 1, 1024, &s->features);
        if (!st) st = small(r, "num_mel_bins", 1, 1024, &s->mels);
        if (!st) st = integer(r, "max_length", 0, 1 << 20, &s->most);
        return st ? st : read_window(r, s);
    case FV_SOUND_LOGMEL:
        st = small(r, "num_mel_bins", 1, 1024, &s->mels);
        if (!st) st = small(r, "stack", 1, 64, &s->stack);
        if (!st) st = integer(r, "max_length", 0, 1 << 20, &s->most);
        if (!st) st = read_window(r, s);
        s->features = s->mels * s->stack;
        return st;
    case FV_SOUND_SPEECH: return read_speech(r, s);
    default: return FV_OK;
    }
}

/* Before any filter is made: sizes of buffers follow from these numbers. */
static fv_status check(const reading *r, const fv_sound_steps *s)
{
    const char *wrong = NULL;
    if (s->kind == FV_SOUND_RAW) return FV_OK;
    if (s->fft % 2 || s->window > s->fft)
        wrong = "n_fft: expected an even number, no less than the window";
    else if (!(s->low >= 0 && s->low < s->high && s->high <= s->rate / 2.))
        wrong = "the filters' frequencies: expected low < high <= half the sampling rate";
    else if (s->features > s->mels * s->stack)
        wrong = "feature_size: no more coefficients than num_mel_bins";
    else if (s->kind == FV_SOUND_SPEECH && !(s->floor > 0 && s->floor < 1e6))
        wrong = "mel_floor: expected more than 0";
    else if (s->hop < 1 || s->hop > s->window)
        wrong = "hop_length: expected no more than the window";
    else if (!(s->deviation > 0))
        wrong = "std: expected more than 0";
    return wrong ? fv_fail(r->e, FV_EFORMAT, "%s: %s", r->path, wrong) : FV_OK;
}

/* Dither adds random noise to every frame: the same file would give other features each time, so
 * only 0 is taken. */
fv_status fv__sound_read(fv_sound_steps *out, const fv_json *j, const char *path, fv_err *e)
{
    reading r = {j, fv__sound_at(j), path, e};
    fv_sound_kind kind;
    char at[128];
    if (!fv__sound_kind(&kind, j, r.at))
        return fv_fail(e, FV_EFORMAT,
                       "%s: feature_extractor_type: expected Whisper, AST, Wav2Vec2, SpeechT5, KWT "
                       "or LogMelFeatureExtractor",
                       path);
    *out = fv__sound_defaults(kind);
    double dither = 0;
    number(&r, "dither", &dither);
    if (dither != 0) return fv_fail(e, FV_EMISSING, "%s: dither: only 0 is supported", path);
    fv_status st = small(&r, "sampling_rate", 1000, 192000, &out->rate);
    if (!st) st = read_frames(&r, out);
    number(&r, "mean", &out->mean);
    number(&r, "std", &out->deviation);
    fv_json_bool(j, place(r.at, "do_normalize", at), &out->normalise);
    return st ? st : check(&r, out);
}

/* ---- writing ---- */

fv_status fv__sound_json(fv_json **out, const fv_env *env, const fv_sound_steps *s, fv_err *e)
{
    fv_buf b = {.env = env};
    fv__buf_fmt(&b,
                "{\"feature_extractor_type\": \"%s\", \"sampling_rate\": %d, \"feature_size\": %d, "
                "\"padding_value\": 0.0, \"do_normalize\": %s",
                classes[s->kind], s->rate,
                s->kind == FV_SOUND_FBANK || s->kind == FV_SOUND_SPEECH ? 1 : s->features,
                s->normalise ? "true" : "false");
    if (s->kind == FV_SOUND_WHISPER)
        fv__buf_fmt(&b, ", \"n_fft\": %d, \"hop_length\": %d, \"chunk_length\": %lld", s->fft,
                    s->hop, (long long)(s->most / s->rate));
    if (s->kind == FV_SOUND_FBANK || s->kind == FV_SOUND_MFCC || s->kind == FV_SOUND_LOGMEL)
        fv__buf_fmt(&b,
                    ", \"num_mel_bins\": %d, \"max_length\": %lld, \"mean\": %.17g, \"std\": %.17g",
                    s->mels, (long long)s->most, s->mean, s->deviation);
    if (s->kind == FV_SOUND_LOGMEL) fv__buf_fmt(&b, ", \"stack\": %d", s->stack);
    if (s->kind == FV_SOUND_MFCC || s->kind == FV_SOUND_LOGMEL)
        fv__buf_fmt(&b,
                    ", \"win_length\": %d, \"hop_length\": %d, \"n_fft\": %d, \"min_frequency\": "
                    "%.17g, \"max_frequency\": %.17g",
                    s->window, s->hop, s->fft, s->low, s->high);
    if (s->kind == FV_SOUND_SPEECH)
        fv__buf_fmt(&b,
                    ", \"num_mel_bins\": %d, \"win_length\": %d, \"hop_length\": %d, \"fmin\": "
                    "%.17g, \"fmax\": %.17g, \"mel_floor\": %.17g",
                    s->mels, (int)(s->window * 1000LL / s->rate), (int)(s->hop * 1000LL / s->rate),
                    s->low, s->high, s->floor);
    fv__buf_str(&b, "}");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "preprocessor_config.json: out of memory")
                            : fv_json_parse(out, env, b.data, "preprocessor_config.json", e);
    fv__buf_free(&b);
    return st;
}
