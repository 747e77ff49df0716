/* decode.c - sound files: WAV of plain samples by ourselves, FLAC, OGG, MP3 and what else it reads
 * through libsndfile.
 *
 * The file is in memory and libsndfile reads it through callbacks, so files of any fv_io and
 * members of an archive are alike.  No header is believed: memory grows with the samples that were
 * really decoded, a block at a time, up to FV_CLIP_MOST; channels become their mean on the way, so
 * a file of many channels takes no more memory than its mono clip. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "fovea/author/audio.h"
#include "media/audio/wav.h"

#define MOST_BYTES ((size_t)2 << 30) /* of a file */

#ifdef HAVE_AUDIO
#include <sndfile.h>

enum { BLOCK = 16384, MOST_CHANNELS = 64 };

/* ---- a file in memory, as libsndfile sees it ---- */

typedef struct stream {
    const char *bytes;
    sf_count_t n, at;
} stream;

static sf_count_t length(void *user) { return ((const stream *)user)->n; }
static sf_count_t tell(void *user) { return ((const stream *)user)->at; }

/* libsndfile reads through these from memory: the file was read by fv_io, which tests replace. */
static sf_count_t seek(sf_count_t offset, int whence, void *user)
{
    stream *s = user;
    sf_count_t from = 0, to;
    if (whence == SEEK_CUR) from = s->at;
    if (whence == SEEK_END) from = s->n;
    if (__builtin_add_overflow(from, offset, &to) || to < 0 || to > s->n) return -1;
    return s->at = to;
}

static sf_count_t read_bytes(void *out, sf_count_t n, void *user)
{
    stream *s = user;
    if (n > s->n - s->at) n = s->n - s->at;
    if (n <= 0) return 0;
    memcpy(out, s->bytes + s->at, (size_t)n);
    s->at += n;
    return n;
}

static sf_count_t write_bytes(const void *p, sf_count_t n, void *user)
{
    (void)p, (void)n, (void)user;
    return 0;
}

/* ---- samples ---- */

typedef struct decoding {
    const fv_env *env;
    const char *name;
    fv_clip *out;
    SNDFILE *file;
    SF_INFO info;
    fv_err *e;
} decoding;

/* Appends `frames` of the block, each as the mean of its channels. */
static fv_status add_block(const decoding *d, const float *block, int64_t frames)
{
    fv_clip *out = d->out;
    int64_t at = out->n;
    int channels = d->info.channels;
    if (at + frames > FV_CLIP_MOST)
        return fv_fail(d->e, FV_EFORMAT, "%s: more than %lld samples", d->name,
                       (long long)FV_CLIP_MOST);
    fv_status st = fv_clip_new(out, d->env, d->info.samplerate, at + frames, d->e);
    for (int64_t i = 0; !st && i < frames; i++) {
        double sum = 0;
        for (int k = 0; k < channels; k++) sum += (double)block[i * channels + k];
        out->data[at + i] = (float)(sum / channels);
        if (!isfinite(out->data[at + i]))
            return fv_fail(d->e, FV_EFORMAT, "%s: sample %lld is not a finite number", d->name,
                           (long long)(at + i));
    }
    return st;
}

/* Headers may lie about the length (streams say 0 or the greatest): samples are read until there
 * are no more. */
static fv_status read_all(const decoding *d)
{
    float block[BLOCK];
    sf_count_t frames = BLOCK / d->info.channels, got;
    fv_status st = FV_OK;
    d->out->n = 0;
    while (!st && (got = sf_readf_float(d->file, block, frames)) > 0) st = add_block(d, block, got);
    if (!st && sf_error(d->file))
        st = fv_fail(d->e, FV_EFORMAT, "%s: after %lld samples: %s", d->name, (long long)d->out->n,
                     sf_strerror(d->file));
    if (!st && !d->out->n)
        st = fv_fail(d->e, FV_EFORMAT, "%s: there are no samples in it", d->name);
    return st;
}

static fv_status check_header(const decoding *d)
{
    const SF_INFO *i = &d->info;
    if (i->channels < 1 || i->channels > MOST_CHANNELS)
        return fv_fail(d->e, FV_EFORMAT, "%s: %d channels: expected 1 to %d", d->name, i->channels,
                       (int)MOST_CHANNELS);
    if (i->samplerate < 1 || i->samplerate > FV_CLIP_MOST_RATE)
        return fv_fail(d->e, FV_EFORMAT, "%s: %d samples a second: expected 1 to %d", d->name,
                       i->samplerate, FV_CLIP_MOST_RATE);
    return FV_OK;
}

static fv_status decode(fv_clip *out, const fv_env *env, const void *bytes, size_t n,
                        const char *name, fv_err *e)
{
    SF_VIRTUAL_IO io = {length, seek, read_bytes, write_bytes, tell};
    stream s = {.bytes = bytes, .n = (sf_count_t)n};
    decoding d = {.env = env, .name = name, .out = out, .e = e};
    d.file = sf_open_virtual(&io, SFM_READ, &d.info, &s);
    if (!d.file)
        return fv_fail(e, FV_EFORMAT, "%s: no sound file that can be read: %s", name,
                       sf_strerror(NULL));
    fv_status st = check_header(&d);
    if (!st) st = read_all(&d);
    sf_close(d.file);
    return st;
}
#else
static fv_status decode(fv_clip *out, const fv_env *env, const void *bytes, size_t n,
                        const char *name, fv_err *e)
{
    (void)out, (void)env, (void)bytes, (void)n;
    return fv_fail(e, FV_EMISSING,
                   "%s: no WAV of plain samples, and this build reads nothing else "
                   "(FOVEA_AUDIO=OFF)",
                   name);
}
#endif

/* Plain WAV is read by us, in every build; libsndfile reads the rest. */
fv_status fv_clip_decode(fv_clip *out, const fv_env *env, const void *bytes, size_t n,
                         const char *name, fv_err *e)
{
    fv__wav w;
    if (!n) return fv_fail(e, FV_EFORMAT, "%s: the file is empty", name);
    if (fv__wav_find(&w, bytes, n)) return fv__wav_read(out, env, &w, name, e);
    return decode(out, env, bytes, n, name, e);
}

fv_status fv_clip_open(fv_clip *out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    fv_status st = fv__file_read(&f, env, path, MOST_BYTES, e);
    if (st) return st;
    st = fv_clip_decode(out, env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}
