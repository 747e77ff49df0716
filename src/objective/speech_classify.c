/* speech_classify.c - the objective of classifiers of sound: one label for each clip (a keyword, a
 * speaker, an emotion).
 *
 * Clips stand in a folder or an archive with a folder for each label, or are named by a table.
 * Features are computed once, when the data are opened, and kept: a second of sound is 98 x 40
 * floats, a quarter of its samples at 16 kHz.  Clips that are shorter than the model reads end in
 * silence; what is longer is cut. */
#include "base/base.h"
#include "data/feed_parts.h"
#include "data/pixels.h"
#include "fovea/author/objective.h"

typedef struct options {
    int rate, frames, coefficients;
    /* sounds: a folder or an archive that paths of a table are relative to; where: field=value */
    char sounds[512], where[200];
} options;

typedef struct labelled {
    const fv_env *env;
    /* the listing of files and their labels, the same for sounds as for images */
    fv_images *clips;
    const char *input; /* the model's name for the features */
    fv_shape shape;    /* of one clip */
    int64_t each;
    float *x; /* (n,each) */
    size_t bytes;
} labelled;

static fv_images_opt source(const options *o, const fv_records *from, fv_labels *labels)
{
    fv_images_opt s = fv__images_source(from, o->sounds, o->where);
    s.sounds = true;
    s.labels = labels;
    return s;
}

/* input_features (n,T,F), labels (n) */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const labelled *l = self;
    (void)how;
    float *x = fv_batch_put(out, l->input, FV_F32, FV_SHAPE(n, l->shape.d[0], l->shape.d[1]));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n));
    if (!x || !label) return fv_fail(e, out->err.code, "%s", out->err.text);
    /* all clips have one shape, so a batch needs neither padding nor a mask */
    for (int64_t i = 0; i < n; i++) {
        memcpy(x + i * l->each, l->x + rows[i] * l->each, (size_t)l->each * sizeof *x);
        label[i] = fv_images_label(l->clips, rows[i]);
    }
    out->labels = (double)n;
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv_images_count(((const labelled *)self)->clips);
}

static void close_feed(void *self)
{
    labelled *l = self;
    const fv_env *env = l->env;
    fv_images_close(l->clips);
    fv__free(env, l->x, l->bytes);
    fv__free(env, l, sizeof *l);
}

/* The features of clip i, which have the shape of those before it. */
static fv_status add_features(labelled *l, const fv_processor *p, int64_t i, fv_clip *raw,
                              fv_clip *x, fv_err *e)
{
    char name[256];
    fv_shape shape;
    fv_images_name(l->clips, i, name, sizeof name);
    fv_status st = fv_images_clip(l->clips, i, raw, e);
    if (!st) st = fv_processor_sound(p, x, raw, &shape, name, e);
    if (st) return st;
    /* The first clip decides the shape; the processor's max_length makes the others equal. */
    if (!i) {
        l->shape = shape;
        l->each = x->n;
        l->bytes = (size_t)(fv_images_count(l->clips) * x->n) * sizeof *l->x;
        l->x = fv__alloc(l->env, l->bytes);
        if (!l->x) return fv_fail(e, FV_ENOMEM, "%s: out of memory for %zu bytes", name, l->bytes);
    }
    if (shape.n != 2 || x->n != l->each)
        return fv_fail(e, FV_EARG,
                       "%s: its processor gives clips of different lengths; it needs a "
                       "max_length",
                       name);
    memcpy(l->x + i * l->each, x->data, (size_t)x->n * sizeof *l->x);
    return FV_OK;
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
    /* raw: samples of one clip; x: its features.  Both are reused from clip to clip. */
    fv_clip raw = {0}, x = {0};
    *out = (fv_feed){0};
    labelled *l = fv__alloc(t->env, sizeof *l);
    if (!l) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    l->env = t->env;
    l->input = fv_processor_sound_input(t->processor);
    fv_images_opt where = source(t->options, from, t->labels);
    fv_status st = fv_images_open(&l->clips, t->env, &where, report, e);
    for (int64_t i = 0; !st && i < fv_images_count(l->clips); i++)
        st = add_features(l, t->processor, i, &raw, &x, e);
    fv_clip_free(&raw);
    fv_clip_free(&x);
    report->tokens[0] = report->kept;
    return fv__feed_give(out, &feed, l, st);
}

/* MFCC as the keyword transformer has them, with windows of 30 ms every 10 ms at any rate. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    (void)from;
    /* window and hop scale with the rate, the upper edge stays just below the Nyquist frequency */
    fv_sound_steps s = {.kind = FV_SOUND_MFCC,
                        .rate = o->rate,
                        .features = o->coefficients,
                        .window = o->rate * 3 / 100,
                        .hop = o->rate / 100,
                        .low = 20,
                        .high = 0.475 * o->rate,
                        .most = o->frames};
    /* the FFT is the least power of two that holds a window */
    for (s.fft = 16; s.fft < s.window;) s.fft *= 2;
    return fv_processor_from_sound(out, env, &s, tok, e);
}

static const fv_field keys[] = {
    FV_INT(options, rate, 1000, 16000, 192000, "samples a second that the model reads"),
    FV_INT(options, frames, 1, 98, 1 << 16, "frames of 10 ms of each clip"),
    FV_INT(options, coefficients, 1, 40, 80, "MFCC of a frame"),
    FV_TEXT(options, sounds, "", "what a table's paths are looked up in: a folder, an archive"),
    FV_TEXT(options, where, "", "only rows of a table with field=value"),
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
