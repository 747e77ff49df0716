/* text_to_speech.c - the objective of voices: the spectrogram of each recording, from its text and
 * who speaks.
 *
 * Recordings come from a table (path, text, speaker) or from folders named by what is said.  The
 * model's decoder reads the frames of the recording itself, moved by one step (teacher forcing);
 * the family's loss is that of SpeechT5: the spectrogram, the end of the clip, attention drawn to
 * the diagonal.  Batches are of like length, and a clip loses the frames that do not fill a step.
 *
 * Speakers are vectors.  They are given by a file, an array for each name (x-vectors of another
 * model), or each is an axis of its own: the layer behind them (speaker_embeds_layer) then has one
 * learned column for each, so nothing else is learned or stored.  A table of learned vectors was
 * the alternative; that layer makes it superfluous, and published files have no place for it.
 * With Adam every weight moves by about the learning rate, so one column is learned slowly beside
 * the frames of the recording, which also tell who speaks.  speaker_size n gives each speaker n
 * numbers instead, 1 or -1 (a Walsh function, orthogonal to the others'): sqrt(n) times as fast.
 * Names and vectors stand in preprocessor_config.json, where fovea speak finds them. */
#include <stdio.h>

#include "base/base.h"
#include "data/feed_parts.h"
#include "data/pixels.h"
#include "data/speech.h"
#include "fovea/array.h"
#include "fovea/author/objective.h"
#include "fovea/author/tensor.h"

enum { MOST_SPEAKERS = 4096, MOST_NUMBERS = 1 << 16 };

typedef struct options {
    fv__speech_opt speech; /* first: fv__speech_texts */
    char speakers[512];
    int speaker_size, rate, mels, window, hop, reduction;
    double low, high, floor;
} options;

typedef struct voice {
    const fv_env *env;
    fv__speech speech;
    fv_feed_opt task;
    int reduction;
    float *vectors; /* (speakers,dim) */
    int64_t dim, n_speakers;
} voice;

/* ---- batches ---- */

/* What is known of a batch before its arrays are made: lengths, then the numbers one behind the
 * other. */
typedef struct gathered {
    fv_buf mel, ids; /* floats, int32_t */
    int64_t frames[1024], tokens[1024];
    int64_t T, U;
} gathered;

enum { MOST_ROWS = 1024, STEPS_TOGETHER = 8, TOKENS_TOGETHER = 4 };

/* Lengths are rounded up, so that shapes come again: a device captures steps whose shapes do. */
static int64_t widest(int64_t so_far, int64_t n, int64_t unit)
{
    n = (n + unit - 1) / unit * unit;
    return n > so_far ? n : so_far;
}

static fv_status gather(const voice *p, gathered *g, const int32_t *rows, int64_t n,
                        fv_data_rng how, fv_err *e)
{
    fv__spoken x;
    fv_status st = fv__spoken_open(&x, &p->speech, e);
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv__speech_get(&p->speech, &x, rows[i], how, e);
        /* once more, with the token that ends a text */
        if (!st)
            st = fv_tok_encode(x.enc, x.text.data, x.text.len, (fv_tok_opts){.specials = true}, e);
        if (st) break;
        g->frames[i] = x.shape.d[0] / p->reduction * p->reduction;
        g->tokens[i] = x.enc->n;
        if (g->frames[i] < 1 || g->tokens[i] < 1)
            st = fv_fail(e, FV_EARG, "recording %d has %lld frames and %lld tokens: too few",
                         rows[i], (long long)x.shape.d[0], (long long)x.enc->n);
        g->T = widest(g->T, g->frames[i], (int64_t)STEPS_TOGETHER * p->reduction);
        g->U = widest(g->U, g->tokens[i], TOKENS_TOGETHER);
        fv__buf_add(&g->mel, x.x.data, (size_t)(g->frames[i] * x.shape.d[1]) * sizeof(float));
        fv__buf_add(&g->ids, x.enc->ids, (size_t)x.enc->n * sizeof(int32_t));
        if (g->mel.failed || g->ids.failed) st = fv_fail(e, FV_ENOMEM, "a batch: out of memory");
    }
    fv__spoken_close(&x);
    return st;
}

/* input_ids and attention_mask (n,U) */
static void put_texts(const voice *p, fv_batch *out, const gathered *g, int64_t n)
{
    const int32_t *from = (const int32_t *)(const void *)g->ids.data;
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, g->U));
    uint8_t *mask = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, g->U));
    for (int64_t i = 0; mask && i < n; i++) {
        for (int64_t u = 0; u < g->U; u++) {
            *ids++ = u < g->tokens[i] ? from[u] : p->task.pad;
            *mask++ = u < g->tokens[i];
        }
        from += g->tokens[i];
    }
}

/* labels (n,T,mels), -100 behind the end, and speaker_embeddings (n,dim) */
static void put_sounds(const voice *p, fv_batch *out, const gathered *g, const int32_t *rows,
                       int64_t n)
{
    int64_t mels = p->speech.steps->mels;
    const float *from = (const float *)(const void *)g->mel.data;
    float *label = fv_batch_put(out, "labels", FV_F32, FV_SHAPE(n, g->T, mels)),
          *who = fv_batch_put(out, "speaker_embeddings", FV_F32, FV_SHAPE(n, p->dim));
    for (int64_t i = 0; who && i < n; i++) {
        int64_t have = g->frames[i] * mels;
        for (int64_t k = 0; k < g->T * mels; k++) *label++ = k < have ? from[k] : -100;
        memcpy(who + i * p->dim,
               p->vectors + fv_images_group(p->speech.clips, rows[i] % p->speech.n) * p->dim,
               (size_t)p->dim * sizeof *who);
        from += have;
        out->labels += (double)have;
        out->tokens += (double)g->frames[i];
    }
}

static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const voice *p = self;
    if (n > MOST_ROWS)
        return fv_fail(e, FV_EARG, "[train] batch_rows: at most %d recordings", (int)MOST_ROWS);
    gathered *g = fv__alloc(p->env, sizeof *g);
    if (!g) return fv_fail(e, FV_ENOMEM, "a batch: out of memory");
    g->mel.env = g->ids.env = p->env;
    fv_status st = gather(p, g, rows, n, how, e);
    if (!st) {
        put_texts(p, out, g, n);
        put_sounds(p, out, g, rows, n);
        if (out->err.code) st = fv_fail(e, out->err.code, "%s", out->err.text);
    }
    fv__buf_free(&g->mel);
    fv__buf_free(&g->ids);
    fv__free(p->env, g, sizeof *g);
    return st;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv__speech_count(&((const voice *)self)->speech);
}

static void size_of(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    *source = fv__speech_frames(&((const voice *)self)->speech, i);
    *target = 0;
}

/* ---- speakers ---- */

/* The vector of a name: an array of the file, else what the processor knows.  Returns its numbers;
 * 0: it is not known. */
static fv_status vector_of(const fv_env *env, const char *file, const fv_processor *p,
                           const char *name, float *out, int64_t *n, fv_err *e)
{
    char source[800];
    fv_array a;
    if (!*file) {
        *n = fv_processor_speaker(p, name, out, MOST_NUMBERS);
        return *n > 0 && *n <= MOST_NUMBERS
                   ? FV_OK
                   : fv_fail(e, FV_EARG, "speaker %.200s is not one of the model's", name);
    }
    snprintf(source, sizeof source, "%s:%.200s", file, name);
    fv_status st = fv_array_open(&a, env, source, (fv_array_opt){0}, e);
    if (st) return st;
    *n = fv_shape_len(a.shape);
    if (*n < 1 || *n > MOST_NUMBERS)
        st = fv_fail(e, FV_EARG, "%s: a speaker of %lld numbers", source, (long long)*n);
    else
        memcpy(out, a.data, (size_t)*n * sizeof *out);
    fv_array_close(&a);
    return st;
}

/* All vectors of the feed's speakers, one behind the other. */
static fv_status read_vectors(voice *p, const char *file, fv_err *e)
{
    size_t bytes = MOST_NUMBERS * sizeof(float);
    float *one = fv__alloc(p->env, bytes);
    fv_buf all = {.env = p->env};
    fv_status st = one ? FV_OK : fv_fail(e, FV_ENOMEM, "speakers: out of memory");
    for (int32_t g = 0; !st; g++) {
        const char *name = fv_images_group_name(p->speech.clips, g);
        int64_t n = 0;
        if (!name && g) break;
        st = vector_of(p->env, file, p->task.processor, name ? name : "speaker", one, &n, e);
        if (!st && g && n != p->dim)
            st = fv_fail(e, FV_EARG, "speaker %.200s has %lld numbers, the first has %lld", name,
                         (long long)n, (long long)p->dim);
        p->dim = n;
        fv__buf_add(&all, one, (size_t)n * sizeof *one);
        p->n_speakers++;
    }
    fv__free(p->env, one, bytes);
    if (!st && !all.failed) p->vectors = fv__alloc(p->env, all.len);
    if (!st && !p->vectors) st = fv_fail(e, FV_ENOMEM, "speakers: out of memory");
    if (!st) memcpy(p->vectors, all.data, all.len);
    fv__buf_free(&all);
    return st;
}

/* Number k of the speaker's vector: on an axis, or of Walsh function speaker + 1, whose sign is the
 * parity of the bits that both have. */
static double coordinate(int64_t speaker, int64_t k, bool walsh)
{
    if (!walsh) return k == speaker ? 1 : 0;
    int odd = 0;
    for (int64_t both = k & (speaker + 1); both; both &= both - 1) odd ^= 1;
    return odd ? -1 : 1;
}

static void put_vector(fv_buf *b, const char *name, const float *x, int64_t n, int64_t speaker,
                       bool walsh)
{
    fv__buf_str(b, b->len > 1 ? ", " : "");
    fv__buf_fmt(b, "\"%s\": [", name);
    for (int64_t k = 0; k < n; k++)
        fv__buf_fmt(b, "%s%.9g", k ? ", " : "", x ? (double)x[k] : coordinate(speaker, k, walsh));
    fv__buf_str(b, "]");
}

/* Names stand in JSON, and in paths with dots between keys. */
static fv_status check_name(const char *name, fv_err *e)
{
    if (*name && strlen(name) <= 200 && !strpbrk(name, ".\"\\\t\n\r")) return FV_OK;
    return fv_fail(e, FV_EARG,
                   "a speaker called \"%.60s\": expected a name without dots and quotes", name);
}

/* {"jackson": [1, 0], "theo": [0, 1]}, or with the vectors of the file. */
static fv_status list_speakers(fv_buf *b, const fv_env *env, const options *o, const fv_images *m,
                               fv_err *e)
{
    int64_t n = 0, dim = 0;
    size_t bytes = MOST_NUMBERS * sizeof(float);
    while (fv_images_group_name(m, (int32_t)n)) n++;
    if (n > MOST_SPEAKERS)
        return fv_fail(e, FV_EARG, "%lld speakers: at most %d", (long long)n, (int)MOST_SPEAKERS);
    float *x = fv__alloc(env, bytes);
    fv_status st = x ? FV_OK : fv_fail(e, FV_ENOMEM, "speakers: out of memory");
    fv__buf_str(b, "{");
    bool walsh = o->speaker_size > 0;
    if (!*o->speakers && walsh && o->speaker_size <= n)
        st = fv_fail(e, FV_EARG, "speaker_size %d: expected more than the %lld speakers",
                     o->speaker_size, (long long)n);
    if (!st && !n) put_vector(b, "speaker", NULL, 1, 0, false);
    for (int64_t g = 0; !st && g < n; g++) {
        const char *name = fv_images_group_name(m, (int32_t)g);
        st = check_name(name, e);
        if (!st && *o->speakers) st = vector_of(env, o->speakers, NULL, name, x, &dim, e);
        if (!*o->speakers) dim = walsh ? o->speaker_size : n;
        if (!st) put_vector(b, name, *o->speakers ? x : NULL, dim, g, walsh);
    }
    fv__buf_add(b, "}", 2); /* and the NUL */
    fv__free(env, x, bytes);
    return st || !b->failed ? st : fv_fail(e, FV_ENOMEM, "speakers: out of memory");
}

/* ---- the feed ---- */

static void close_feed(void *self)
{
    voice *p = self;
    fv__speech_close(&p->speech);
    fv__free(p->env, p->vectors, (size_t)(p->n_speakers * p->dim) * sizeof *p->vectors);
    fv__free(p->env, p, sizeof *p);
}

static const fv_feed feed = {.count = count, .size = size_of, .make = make, .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    voice *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *p = (voice){.env = t->env, .task = *t, .reduction = o->reduction};
    fv_status st = fv__speech_open(&p->speech, t, from, &o->speech, NULL, report, e);
    if (!st && p->speech.steps->kind != FV_SOUND_SPEECH)
        st = fv_fail(e, FV_EARG, "the model's processor makes no spectrograms of speech");
    if (!st) st = read_vectors(p, o->speakers, e);
    return fv__feed_give(out, &feed, p, st);
}

/* ---- for new models ---- */

static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_sound_steps s = {.kind = FV_SOUND_SPEECH,
                        .rate = o->rate,
                        .mels = o->mels,
                        .window = o->window * o->rate / 1000,
                        .hop = o->hop * o->rate / 1000,
                        .low = o->low,
                        .high = o->high > 0 ? o->high : 0.475 * o->rate,
                        .floor = o->floor};
    fv_labels names = {.env = env};
    fv_images_opt where = fv__images_source(from, o->speech.sounds, o->speech.where);
    fv_data_report report = {0};
    fv_images *clips = NULL;
    fv_buf json = {.env = env};
    where.sounds = true;
    where.labels = &names;
    where.group = *o->speech.speaker ? o->speech.speaker : NULL;
    fv_status st = fv_images_open(&clips, env, &where, &report, e);
    if (!st) st = list_speakers(&json, env, o, clips, e);
    fv_images_close(clips);
    fv_labels_free(&names);
    if (st)
        fv_processor_close(tok);
    else
        st = fv_processor_from_sound(out, env, &s, tok, e);
    if (!st) st = fv_processor_set_speakers(*out, json.data, e);
    fv__buf_free(&json);
    return st;
}

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    const options *o = own;
    const fv_sound_steps *s = fv_processor_sound_steps(p);
    const char *first = fv_processor_speaker_at(p, 0);
    float unread;
    if (!strcmp(key, "num_mel_bins")) return s ? s->mels : -1;
    if (!strcmp(key, "reduction_factor")) return o->reduction;
    if (!strcmp(key, "speaker_embedding_dim"))
        return first ? fv_processor_speaker(p, first, &unread, 0) : -1;
    return -1;
}

static const fv_field keys[] = {
    FV__SOUND_KEYS(options),
    FV_TEXT_KEY("speaker", options, speech.speaker, "",
                "field of a table with the speaker; empty: all are one"),
    FV_TEXT(options, speakers, "",
            "FILE.safetensors with a vector for each speaker; empty: each is an axis of its own"),
    FV_INT(options, speaker_size, 0, 0, 1 << 12,
           "or each has so many numbers, 1 or -1, and is learned faster; 0: an axis"),
    FV_INT(options, rate, 1000, 16000, 192000, "samples a second of a new model"),
    FV_INT(options, mels, 1, 80, 1024, "its mel bands"),
    FV_INT(options, window, 1, 64, 300, "milliseconds of its windows"),
    FV_INT(options, hop, 1, 16, 300, "from one window to the next"),
    FV_FLOAT(options, low, 0, 80, 96000, "Hz, of its lowest band"),
    FV_FLOAT(options, high, 0, 0, 96000, "of its highest; 0: 0.475 of the rate"),
    FV_FLOAT(options, floor, 1e-20, 1e-10, 1, "magnitudes of a band are at least this"),
    FV_INT(options, reduction, 1, 2, 64, "frames of a step of the decoder"),
    {0},
};
static const char *const loss_inputs[] = {"labels", NULL};
static const char *const specials[] = {"<s>", "<pad>", "</s>", "<unk>", NULL};

const fv_objective fv__objective_text_to_speech = {
    .name = "text_to_speech",
    .help = "the spectrogram of what is said, from its text and the speaker",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "audio",
    .specials = specials,
    .after = "</s>",
    .texts = fv__speech_texts,
    .make_processor = make_processor,
    .config_value = config_value,
    .head = FV_HEAD_SPEECH,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
