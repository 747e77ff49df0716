/* speech_seq2seq.c - the objective of encoder-decoders that hear: the text of each recording.
 *
 * Recordings and their texts come from a table or from folders, and may be joined, made noisy and
 * masked (data/speech.h).  The model's processor makes clips of one length (Whisper's windows); a
 * string that is longer than it is cut, so window and join must fit.  The decoder's input is the
 * text behind decoder_start_token_id (teacher forcing), the labels are the text with the end
 * token. */
#include "base/base.h"
#include "data/feed_parts.h"
#include "data/speech.h"
#include "fovea/author/objective.h"

typedef struct options {
    fv__speech_opt speech; /* first: fv__speech_texts */
    int seconds;
} options;

typedef struct hearing {
    const fv_env *env;
    fv__speech speech;
    fv_feed_opt task;
} hearing;

/* Labels of a row, and the decoder's input: T of each. */
static void put_text(const hearing *p, const fv_encoding *enc, int32_t *in, int32_t *label,
                     int64_t T)
{
    for (int64_t j = 0; j < T; j++) {
        in[j] = j == 0 ? p->task.start : j <= enc->n ? enc->ids[j - 1] : p->task.pad;
        label[j] = j < enc->n ? enc->ids[j] : j == enc->n ? p->task.eos : -100;
    }
}

/* input_features (n,F,T), decoder_input_ids and labels (n,U).  U is the longest text's; rows are
 * made twice as wide as needed and moved together, so that each sound is made once. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    enum { MOST = 512 };
    const hearing *p = self;
    size_t bytes = (size_t)(2 * n * MOST) * sizeof(int32_t);
    int32_t *wide = fv__alloc(p->env, bytes), *wide_label = wide + n * MOST;
    if (!wide) return fv_fail(e, FV_ENOMEM, "a batch: out of memory");
    fv__spoken one;
    float *x = NULL;
    int64_t U = 1;
    fv_status st = fv__spoken_open(&one, &p->speech, e);
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv__speech_get(&p->speech, &one, rows[i], how, e);
        if (st) break;
        fv_shape s = one.shape;
        if (!i) x = fv_batch_put(out, "input_features", FV_F32, FV_SHAPE(n, s.d[0], s.d[1]));
        if (!x || one.enc->n + 1 > MOST)
            st = fv_fail(e, x ? FV_EARG : FV_ENOMEM, "a batch: a text of %lld tokens, or no memory",
                         (long long)one.enc->n);
        if (st) break;
        memcpy(x + i * one.x.n, one.x.data, (size_t)one.x.n * sizeof *x);
        put_text(p, one.enc, wide + i * MOST, wide_label + i * MOST, MOST);
        if (one.enc->n + 1 > U) U = one.enc->n + 1;
        out->labels += (double)(one.enc->n + 1);
    }
    fv__spoken_close(&one);
    int32_t *in = st ? NULL : fv_batch_put(out, "decoder_input_ids", FV_I32, FV_SHAPE(n, U)),
            *label = st ? NULL : fv_batch_put(out, "labels", FV_I32, FV_SHAPE(n, U));
    if (!st && !label) st = fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; !st && i < n; i++) {
        memcpy(in + i * U, wide + i * MOST, (size_t)U * sizeof *in);
        memcpy(label + i * U, wide_label + i * MOST, (size_t)U * sizeof *label);
    }
    fv__free(p->env, wide, bytes);
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv__speech_count(&((const hearing *)self)->speech);
}

static void close_feed(void *self)
{
    hearing *p = self;
    fv__speech_close(&p->speech);
    fv__free(p->env, p, sizeof *p);
}

static const fv_feed feed = {.count = count,
                             .size = fv__size_alike,
                             .make = make,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    if (t->eos < 0) return fv_fail(e, FV_EARG, "%s: the tokenizer has no end token", from->file);
    hearing *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *p = (hearing){.env = t->env, .task = *t};
    fv_status st = fv__speech_open(&p->speech, t, from, &o->speech, NULL, report, e);
    return fv__feed_give(out, &feed, p, st);
}

/* ---- for new models ---- */

/* Whisper's features: windows of 25 ms every 10 ms, at any rate. */
static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    const fv__speech_opt *w = &o->speech;
    (void)from;
    fv_sound_steps s = {.kind = FV_SOUND_WHISPER,
                        .rate = w->rate,
                        .features = w->mels,
                        .mels = w->mels,
                        .window = w->rate / 40,
                        .hop = w->rate / 100,
                        .fft = w->rate / 40,
                        .high = w->rate / 2.,
                        .most = (int64_t)o->seconds * w->rate};
    return fv_processor_from_sound(out, env, &s, tok, e);
}

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    const fv_sound_steps *s = fv_processor_sound_steps(p);
    (void)own;
    if (!strcmp(key, "num_mel_bins")) return s ? s->mels : -1;
    if (!strcmp(key, "max_source_positions")) return s ? s->most / s->hop / 2 : -1;
    return -1;
}

static const fv_field keys[] = {
    FV__SPEECH_KEYS(options),
    FV_INT(options, seconds, 1, 30, 3600, "of a new model's window"),
    {0},
};
static const char *const loss_inputs[] = {"decoder_input_ids", "labels", NULL};
static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};

const fv_objective fv__objective_speech_seq2seq = {
    .name = "speech_seq2seq",
    .help = "the text of each recording, by an encoder and a decoder",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "audio",
    .specials = specials,
    .texts = fv__speech_texts,
    .make_processor = make_processor,
    .config_value = config_value,
    .head = FV_HEAD_SEQ2SEQ,
    .loss_inputs = loss_inputs,
    .generates = true,
    .open = open_feed,
};
