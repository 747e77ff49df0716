/* speech.c - recordings with their texts as examples: joined, made noisy and masked at random.
 *
 *     string = gap clip_1 gap clip_2 .. gap + noise;   text = text_1 " " text_2 ..
 *
 * Recordings are decoded once and kept as samples at the model's rate; everything else is made when
 * a batch is, in the loader's threads, so that no two epochs see the same sound.  What is drawn is
 * a function of the seed, the epoch and the example's number (dice.h): a resumed run goes on with
 * the same strings, and an evaluation (epoch -1) has the same ones each time.  The first recording
 * of string i is recording i, so that an epoch goes through all of them; the others are any of the
 * same speaker. */
#include "data/speech.h"

#include <math.h>

#include "base/base.h"
#include "data/pixels.h"

#define PI 3.14159265358979323846

static fv_images_opt source(const fv__speech_opt *o, const fv_records *from, bool evaluation,
                            fv_labels *names)
{
    const char *where = evaluation && *o->valid_where ? o->valid_where : o->where;
    fv_images_opt s = fv__images_source(from, o->sounds, where);
    s.sounds = true;
    s.labels = names;
    s.group = *o->speaker ? o->speaker : NULL;
    return s;
}

/* A table's second field, or the name of the folder. */
static const char *text_of(const fv_images *clips, const fv_labels *names, int64_t i)
{
    const char *text = fv_images_text(clips, i);
    int32_t label = fv_images_label(clips, i);
    return text || label < 0 ? text : names->name[label];
}

const char *fv__speech_text(const fv__speech *s, int64_t i)
{
    return text_of(s->clips, s->labels, i);
}

/* ---- opening ---- */

/* Clips stand one behind the other as f32 at the model's rate: resampling is done once, and joining
 * clips is copying. */
static fv_status add_samples(fv__speech *s, int64_t i, const fv_clip *x, fv_err *e)
{
    void *p = s->samples;
    size_t want = (size_t)(s->at[i] + x->n) * sizeof *s->samples;
    if (!fv__grow(s->env, &p, &s->samples_bytes, want))
        return fv_fail(e, FV_ENOMEM, "recordings: out of memory for %zu bytes", want);
    s->samples = p;
    memcpy(s->samples + s->at[i], x->data, (size_t)x->n * sizeof *x->data);
    s->at[i + 1] = s->at[i] + x->n;
    return FV_OK;
}

static fv_status decode_all(fv__speech *s, fv_err *e)
{
    fv_clip raw = {0}, x = {0};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < s->n; i++) {
        if (!fv__speech_text(s, i))
            st = fv_fail(
                e, FV_EFORMAT,
                "the recordings have no texts: a table must name both, or folders be named so");
        if (!st) st = fv_images_clip(s->clips, i, &raw, e);
        if (!st) st = fv_clip_resample(&x, &raw, s->steps->rate, e);
        if (!st) st = add_samples(s, i, &x, e);
    }
    fv_clip_free(&raw);
    fv_clip_free(&x);
    return st;
}

/* Recordings by speaker, each speaker's in order: a counting sort. */
static void sort_speakers(fv__speech *s)
{
    for (int64_t i = 0; i < s->n; i++) s->group[fv_images_group(s->clips, i) + 1]++;
    for (int64_t g = 0; g < s->groups; g++) s->group[g + 1] += s->group[g];
    for (int64_t g = s->groups; g > 0; g--) s->group[g] = s->group[g - 1];
    s->group[0] = 0;
    for (int64_t i = 0; i < s->n; i++) s->order[s->group[fv_images_group(s->clips, i) + 1]++] = i;
}

/* order and group are compressed rows: recordings of speaker g are order[group[g]] .. order[group[g
 * + 1]]. */
static fv_status open_lists(fv__speech *s, fv_err *e)
{
    s->n = fv_images_count(s->clips);
    s->groups = 1;
    for (int64_t i = 0; i < s->n; i++)
        if (fv_images_group(s->clips, i) >= s->groups) s->groups = fv_images_group(s->clips, i) + 1;
    s->at_bytes = (size_t)(s->n + 1) * sizeof *s->at;
    s->order_bytes = (size_t)s->n * sizeof *s->order;
    s->group_bytes = (size_t)(s->groups + 1) * sizeof *s->group;
    s->at = fv__alloc(s->env, s->at_bytes);
    s->order = fv__alloc(s->env, s->order_bytes);
    s->group = fv__alloc(s->env, s->group_bytes);
    if (!s->at || !s->order || !s->group)
        return fv_fail(e, FV_ENOMEM, "recordings: out of memory for %lld", (long long)s->n);
    sort_speakers(s);
    return FV_OK;
}

/* In the report "tokens" are seconds of sound: what a speaker of the field counts. */
fv_status fv__speech_open(fv__speech *s, const fv_feed_opt *t, const fv_records *from,
                          const fv__speech_opt *o, fv_labels *labels, fv_data_report *report,
                          fv_err *e)
{
    fv_images_opt where = source(o, from, t->evaluation, labels ? labels : &s->names);
    *s = (fv__speech){.env = t->env,
                      .names = {.env = t->env},
                      .processor = t->processor,
                      .steps = fv_processor_sound_steps(t->processor),
                      .tok = labels ? NULL : t->tok,
                      .labels = where.labels,
                      .o = *o,
                      .evaluation = t->evaluation};
    if (!s->steps || (!t->tok && !labels))
        return fv_fail(e, FV_EARG, "%s: the model needs an audio processor and a tokenizer",
                       from->file);
    if (o->gap_least > o->gap_most || (o->snr_most != 0 && o->snr_least > o->snr_most))
        return fv_fail(e, FV_EARG, "gap_least or snr_least is more than gap_most or snr_most");
    fv_status st = fv_images_open(&s->clips, t->env, &where, report, e);
    if (!st) st = open_lists(s, e);
    if (!st) st = decode_all(s, e);
    if (!st) report->tokens[0] = s->at[s->n] / s->steps->rate; /* seconds */
    return st;
}

void fv__speech_close(fv__speech *s)
{
    fv_images_close(s->clips);
    fv_labels_free(&s->names);
    fv__free(s->env, s->samples, s->samples_bytes);
    fv__free(s->env, s->at, s->at_bytes);
    fv__free(s->env, s->order, s->order_bytes);
    fv__free(s->env, s->group, s->group_bytes);
}

/* For planning: what the processor will make of it, without computing it. */
int64_t fv__speech_frames(const fv__speech *s, int64_t i)
{
    fv_shape shape;
    fv_err unread;
    if (fv_processor_sound_shape(s->processor, s->at[i + 1] - s->at[i], &shape, &unread)) return 1;
    return s->steps->kind == FV_SOUND_WHISPER ? shape.d[1] : shape.d[0];
}

int64_t fv__speech_count(const fv__speech *s)
{
    return s->evaluation && s->o.join > 1 && s->o.strings ? s->o.strings : s->n;
}

/* ---- the sound of an example ---- */

/* Appends n samples, of silence where x is NULL. */
static fv_status append(fv_clip *out, const fv__speech *s, const float *x, int64_t n, fv_err *e)
{
    int64_t at = out->n;
    if (n < 1) return FV_OK;
    fv_status st = fv_clip_new(out, s->env, s->steps->rate, at + n, e);
    for (int64_t i = 0; !st && i < n; i++) out->data[at + i] = x ? x[i] : 0;
    return st;
}

static fv_status append_gap(fv_clip *out, const fv__speech *s, fv__dice *d, fv_err *e)
{
    double least = (double)s->o.gap_least, most = (double)s->o.gap_most;
    double seconds = least + (most - least) * fv__dice_unit(d);
    return append(out, s, NULL, (int64_t)(seconds * s->steps->rate), e);
}

/* Recording i at one of three speeds: read as if it had been made at another rate. */
static fv_status append_clip(fv__spoken *x, const fv__speech *s, int64_t i, fv__dice *d, bool vary,
                             fv_err *e)
{
    int64_t n = s->at[i + 1] - s->at[i];
    int pace = vary && s->o.speed > 0 ? fv__dice_below(d, 3) - 1 : 0;
    if (!pace) return append(&x->wave, s, s->samples + s->at[i], n, e);
    fv_clip in = {.env = s->env,
                  .rate = (int)lround(s->steps->rate * (1 + pace * (double)s->o.speed)),
                  .n = n,
                  .data = s->samples + s->at[i]};
    fv_status st = fv_clip_resample(&x->faster, &in, s->steps->rate, e);
    return st ? st : append(&x->wave, s, x->faster.data, x->faster.n, e);
}

static fv_status append_text(fv__spoken *x, const fv__speech *s, int64_t i, fv_err *e)
{
    if (x->text.len) fv__buf_str(&x->text, " ");
    fv__buf_str(&x->text, fv__speech_text(s, i));
    return x->text.failed ? fv_fail(e, FV_ENOMEM, "recordings: out of memory") : FV_OK;
}

/* Of the same speaker, possibly the same recording: joined sentences are said by one voice. */
static int64_t draw_other(const fv__speech *s, int64_t first, fv__dice *d)
{
    int32_t g = fv_images_group(s->clips, first);
    int64_t from = s->group[g];
    return s->order[from + fv__dice_below(d, (int)(s->group[g + 1] - from))];
}

/* Up to o.join recordings with gaps before, between and behind them, and their texts with blanks
 * between: short clips teach a model nothing about where words end. */
static fv_status join(fv__spoken *x, const fv__speech *s, int64_t first, fv__dice *d, bool vary,
                      fv_err *e)
{
    int n = 1 + (s->o.join > 1 ? fv__dice_below(d, s->o.join) : 0);
    fv_status st = s->o.join > 1 ? append_gap(&x->wave, s, d, e) : FV_OK;
    if (!st && vary && s->o.delay > 0)
        st = append(&x->wave, s, NULL,
                    (int64_t)((double)s->o.delay * fv__dice_unit(d) * s->steps->rate), e);
    for (int k = 0; !st && k < n; k++) {
        int64_t i = k ? draw_other(s, first, d) : first;
        st = append_clip(x, s, i, d, vary, e);
        if (!st) st = append_text(x, s, i, e);
        if (!st && s->o.join > 1) st = append_gap(&x->wave, s, d, e);
    }
    return st;
}

/* White Gaussian noise (Box and Muller), so many dB below the speech.  A model that has heard noise
 * alone takes the silence of a clean recording for something else, so some may stay clean. */
static void add_noise(fv_clip *x, const fv__speech *s, fv__dice *d, fv__dice *noise)
{
    double power = 0, least = (double)s->o.snr_least, most = (double)s->o.snr_most;
    if (s->o.snr_most == 0) return;
    if (s->o.clean > 0 && fv__dice_unit(noise) < (double)s->o.clean) return;
    double snr = least + (most - least) * fv__dice_unit(d);
    for (int64_t i = 0; i < x->n; i++) power += (double)x->data[i] * (double)x->data[i];
    float level = (float)sqrt(power / (double)x->n * pow(10, -snr / 10));
    for (int64_t i = 0; i < x->n; i += 2) {
        float radius = level * sqrtf(-2 * logf((float)(1 - fv__dice_unit(noise))));
        float angle = (float)(2 * PI * fv__dice_unit(noise));
        x->data[i] += radius * cosf(angle);
        if (i + 1 < x->n) x->data[i + 1] += radius * sinf(angle);
    }
}

/* ---- masks ---- */

typedef struct layout {
    int64_t frames, bands, stack;
    int64_t frame, band; /* strides */
} layout;

/* Whisper's features are (bands,frames), all others (frames,stack bands). */
static layout layout_of(const fv__speech *s, const fv_shape *shape)
{
    if (s->steps->kind == FV_SOUND_WHISPER)
        return (layout){shape->d[1], shape->d[0], 1, 1, shape->d[1]};
    int64_t stack = s->steps->stack > 1 ? s->steps->stack : 1;
    return (layout){shape->d[0], shape->d[1] / stack, stack, shape->d[1], 1};
}

/* SpecAugment (Park et al. 2019): 0, which is the mean of the features. */
static void hide(const layout *l, float *x, int64_t t0, int64_t t1, int64_t b0, int64_t b1)
{
    for (int64_t t = t0; t < t1; t++)
        for (int64_t k = 0; k < l->stack; k++)
            for (int64_t b = b0; b < b1; b++) x[t * l->frame + (k * l->bands + b) * l->band] = 0;
}

/* SpecAugment (Park et al. 2019): bands of time and of frequency are hidden; without time warping,
 * which its authors found to gain least. */
static void mask(const fv__speech *s, fv__spoken *out, fv__dice *d)
{
    if (out->shape.n != 2) return; /* samples */
    layout l = layout_of(s, &out->shape);
    for (int k = 0; k < s->o.time_masks; k++) {
        /* at most a fifth of a short recording */
        int64_t most = s->o.time_width < l.frames / 5 ? s->o.time_width : l.frames / 5;
        int64_t width = fv__dice_below(d, (int)most + 1),
                from = fv__dice_below(d, (int)(l.frames - width) + 1);
        hide(&l, out->x.data, from, from + width, 0, l.bands);
    }
    for (int k = 0; k < s->o.band_masks; k++) {
        int64_t most = s->o.band_width < l.bands ? s->o.band_width : l.bands;
        int64_t width = fv__dice_below(d, (int)most + 1),
                from = fv__dice_below(d, (int)(l.bands - width) + 1);
        hide(&l, out->x.data, 0, l.frames, from, from + width);
    }
}

/* ---- an example ---- */

fv_status fv__spoken_open(fv__spoken *x, const fv__speech *s, fv_err *e)
{
    *x = (fv__spoken){.text = {.env = s->env}};
    return s->tok ? fv_encoding_new(&x->enc, s->tok, e) : FV_OK;
}

void fv__spoken_close(fv__spoken *x)
{
    fv_clip_free(&x->wave);
    fv_clip_free(&x->faster);
    fv_clip_free(&x->x);
    fv__buf_free(&x->text);
    if (x->enc) fv_encoding_free(x->enc);
}

/* Two dice, so that turning noise off changes nothing else about an example. */
fv_status fv__speech_get(const fv__speech *s, fv__spoken *out, int64_t i, fv_data_rng how,
                         fv_err *e)
{
    fv__dice d = fv__dice_of(how, FV__DICE_SPEECH, i), noise = fv__dice_of(how, FV__DICE_NOISE, i);
    bool vary = how.epoch >= 0;
    char name[256];
    out->wave.n = 0;
    out->text.len = 0;
    fv_images_name(s->clips, i % s->n, name, sizeof name);
    fv_status st = join(out, s, i % s->n, &d, vary, e);
    if (st) return st;
    add_noise(&out->wave, s, &d, &noise);
    st = fv_processor_sound(s->processor, &out->x, &out->wave, &out->shape, name, e);
    if (st) return st;
    if (vary) mask(s, out, &d);
    if (!s->tok) return FV_OK;
    return fv_tok_encode(out->enc, out->text.data, out->text.len, (fv_tok_opts){.specials = false},
                         e);
}

/* ---- for new models ---- */

fv_status fv__speech_texts(const fv_env *env, const void *options, const fv_records *from,
                           void (*each)(void *user, const char *text, size_t len), void *user,
                           fv_err *e)
{
    fv_labels names = {.env = env};
    fv_images_opt where = source(options, from, false, &names);
    fv_data_report unread = {0};
    fv_images *clips;
    fv_status st = fv_images_open(&clips, env, &where, &unread, e);
    for (int64_t i = 0; !st && i < fv_images_count(clips); i++) {
        const char *text = text_of(clips, &names, i);
        if (text) each(user, text, strlen(text));
    }
    fv_images_close(clips);
    fv_labels_free(&names);
    return st;
}

/* Windows of 25 ms every 10 ms from 20 Hz to just below half the rate, the transform the next power
 * of two: Kaldi's and NeMo's habits. */
static fv_sound_steps new_steps(const fv__speech_opt *o)
{
    fv_sound_steps s = {.kind = FV_SOUND_LOGMEL,
                        .rate = o->rate,
                        .mels = o->mels,
                        .stack = o->stack,
                        .features = o->mels * o->stack,
                        .window = o->rate / 40,
                        .hop = o->rate / 100,
                        .low = 20,
                        .high = 0.475 * o->rate,
                        .deviation = 1};
    for (s.fft = 16; s.fft < s.window;) s.fft *= 2;
    return s;
}

/* Mean and deviation of all numbers of up to MEASURED recordings, evenly taken. */
fv_status fv__speech_measure(fv_sound_steps *steps, const fv_env *env, const fv__speech_opt *o,
                             const fv_records *from, fv_err *e)
{
    enum { MEASURED = 500 };
    fv_labels names = {.env = env};
    fv_images_opt where = source(o, from, false, &names);
    fv_data_report report = {0};
    fv_images *clips = NULL;
    fv_processor *p = NULL;
    fv_clip raw = {0}, x = {0};
    fv_shape shape;
    double n = 0, sum = 0, squares = 0;
    where.from.most = MEASURED;
    fv_status st = fv_images_open(&clips, env, &where, &report, e);
    if (!st) st = fv_processor_from_sound(&p, env, steps, NULL, e);
    for (int64_t i = 0; !st && i < fv_images_count(clips); i++) {
        char name[256];
        fv_images_name(clips, i, name, sizeof name);
        st = fv_images_clip(clips, i, &raw, e);
        if (!st) st = fv_processor_sound(p, &x, &raw, &shape, name, e);
        for (int64_t k = 0; !st && k < x.n; k++) {
            double y = (double)x.data[k];
            n++;
            sum += y;
            squares += y * y;
        }
    }
    if (!st && n > 0) {
        steps->mean = sum / n;
        double variance = squares / n - steps->mean * steps->mean;
        steps->deviation = variance > 1e-12 ? sqrt(variance) : 1;
    }
    fv_clip_free(&raw);
    fv_clip_free(&x);
    fv_processor_close(p);
    fv_images_close(clips);
    fv_labels_free(&names);
    return st;
}

fv_status fv__speech_processor(fv_processor **out, const fv_env *env, const fv__speech_opt *o,
                               const fv_records *from, fv_processor *tok, fv_err *e)
{
    fv_sound_steps s = new_steps(o);
    fv_status st = fv__speech_measure(&s, env, o, from, e);
    if (!st) return fv_processor_from_sound(out, env, &s, tok, e);
    fv_processor_close(tok);
    return st;
}
