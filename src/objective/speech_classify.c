/* speech_classify.c - the objective of classifiers of sound: one label for each clip (a keyword, a
 * speaker, an emotion).
 *
 * Clips stand in a folder or an archive with a folder for each label, or are named by a table.
 * Samples are kept and features are made with each batch, so that a clip may be moved, made faster,
 * noisy and masked anew in each epoch (data/speech.h).  Clips that are shorter than the model reads
 * end in silence; what is longer is cut. */
#include "data/feed_parts.h"
#include "data/speech.h"
#include "fovea/author/objective.h"
#include "fovea/author/tensor.h"

typedef struct options {
    fv__speech_opt speech;
    int rate, frames, coefficients, features;
} options;

typedef struct labelled {
    const fv_env *env;
    fv__speech speech;
} labelled;

/* input_features (n,T,F), labels (n).  All clips have one shape, so a batch needs neither padding
 * nor a mask. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const labelled *l = self;
    const char *input = fv_processor_sound_input(l->speech.processor);
    fv__spoken one;
    fv_shape shape = {0};
    float *x = NULL;
    int32_t *label = NULL;
    fv_status st = fv__spoken_open(&one, &l->speech, e);
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv__speech_get(&l->speech, &one, rows[i], how, e);
        if (st) break;
        if (!i) {
            shape = one.shape;
            x = fv_batch_put(out, input, FV_F32, FV_SHAPE(n, shape.d[0], shape.d[1]));
            label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
            if (!x || !label) st = fv_fail(e, out->err.code, "%s", out->err.text);
        }
        if (!st && (one.shape.n != 2 || !fv_shape_same(one.shape, shape)))
            st = fv_fail(e, FV_EARG,
                         "the processor gives clips of different lengths; it needs a max_length");
        if (st) break;
        memcpy(x + i * one.x.n, one.x.data, (size_t)one.x.n * sizeof *x);
        label[i] = fv_images_label(l->speech.clips, rows[i]);
    }
    fv__spoken_close(&one);
    out->labels = (double)n;
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv__speech_count(&((const labelled *)self)->speech);
}

static void close_feed(void *self)
{
    labelled *l = self;
    fv__speech_close(&l->speech);
    fv__free(l->env, l, sizeof *l);
}

static const fv_feed feed = {.metric = "accuracy",
                             .count = count,
                             .size = fv__size_alike,
                             .make = make,
                             .count_correct = fv__count_correct_labels,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    labelled *l = fv__alloc(t->env, sizeof *l);
    if (!l) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    l->env = t->env;
    fv_status st = fv__speech_open(&l->speech, t, from, &o->speech, t->labels, report, e);
    report->tokens[0] = report->kept;
    return fv__feed_give(out, &feed, l, st);
}

/* MFCC as the keyword transformer has them, with windows of 30 ms every 10 ms at any rate; or the
 * logarithms of mel bands, whose masks hide what they say. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    /* window and hop scale with the rate, the upper edge stays just below the Nyquist frequency */
    fv_sound_steps s = {.kind = o->features ? FV_SOUND_LOGMEL : FV_SOUND_MFCC,
                        .rate = o->rate,
                        .features = o->coefficients,
                        .mels = o->features ? o->coefficients : 0,
                        .stack = 1,
                        .window = o->rate * 3 / 100,
                        .hop = o->rate / 100,
                        .low = 20,
                        .high = 0.475 * o->rate,
                        .most = o->frames,
                        .deviation = 1};
    /* the FFT is the least power of two that holds a window */
    for (s.fft = 16; s.fft < s.window;) s.fft *= 2;
    fv_status st = o->features ? fv__speech_measure(&s, env, &o->speech, from, e) : FV_OK;
    if (!st) return fv_processor_from_sound(out, env, &s, tok, e);
    fv_processor_close(tok);
    return st;
}

static const char *const kinds[] = {"mfcc", "logmel", NULL};
static const fv_field keys[] = {
    FV__SOUND_KEYS(options),
    FV_INT(options, rate, 1000, 16000, 192000, "samples a second that the model reads"),
    FV_INT(options, frames, 1, 98, 1 << 16, "frames of 10 ms of each clip"),
    FV_INT(options, coefficients, 1, 40, 80, "MFCC, or mel bands, of a frame"),
    FV_CHOICE(options, features, 0, kinds, "what a frame is"),
    {0},
};
static const char *const loss_inputs[] = {"labels", NULL};

const fv_objective fv__objective_speech_classify = {
    .name = "speech_classify",
    .help = "a label for each sound",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "audio",
    .make_processor = make_processor,
    .head = FV_HEAD_CLASSIFY,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
