/* transcribe.c - what is said in sound files, by models with an encoder that hears and a decoder
 * that writes.
 *
 * A model that writes times among its tokens (Whisper) hears windows, transcribe_windows.c, one
 * that aligns frames and tokens (CTC, transducers) frames, transcribe_frames.c.  To others a clip
 * longer than --chunk seconds is cut into pieces of that length at the quietest moment of each
 * piece's last quarter, so that no word is cut in two where there is a pause. */
#include <math.h>

#include "fovea/author/audio.h"
#include "fovea/author/family.h"
#include "task/transcribe.h"

enum { TOKENS_A_SECOND = 7, LEAST_TOKENS = 8 }; /* nobody says more; what goes on is a loop */

typedef struct transcribe_options {
    double chunk;
    int64_t rate;
    bool timestamps, word_timestamps, fallback, stream;
    char language[64]; /* "": none is given */
    char lattice[FV_PATH];
    int task, format;
} transcribe_options;

static const char *const tasks[] = {"model", "transcribe", "translate", NULL};
static const char *const formats[] = {"text", "srt", "vtt", NULL};

static const fv_field options[] = {
    FV_FLOAT(transcribe_options, chunk, 1, 30, 3600,
             "seconds that go through the model at once; longer sounds are cut at pauses"),
    FV_INT(transcribe_options, rate, 1000, 16000, 768000,
           "samples a second of raw samples (16 bits, one channel) from standard input"),
    FV_BOOL(transcribe_options, timestamps, false,
            "a line for each piece, with the seconds where it begins and ends"),
    FV_BOOL(transcribe_options, word_timestamps, false,
            "a line for each word, with the seconds where it begins and ends"),
    FV_BOOL(transcribe_options, stream, false,
            "print words while they are spoken on standard input; transducers also hear files so"),
    FV_TEXT(transcribe_options, language, "",
            "CODE: what is spoken (en, de), of a model that knows several; heard where not given"),
    FV_CHOICE(transcribe_options, task, 0, tasks,
              "transcribe, or translate into English; model: as generation_config.json says"),
    FV_TEXT(transcribe_options, lattice, "",
            "FILE: draw the lattice of a transducer and the path through it, as SVG"),
    FV_CHOICE(transcribe_options, format, 0, formats, "text, or subtitles: srt, vtt"),
    FV_BOOL(transcribe_options, fallback, false,
            "Whisper: draw again, at higher temperatures, what is unlikely or repeats itself"),
    {0}};

typedef struct transcriber {
    fv__frames *frames; /* of CTC or a transducer; NULL: the model generates */
    fv_processor *processor;
    fv_clip raw, whole, x; /* as decoded, at the model's rate, the features of a piece */
    fv_shape shape;
    fv__transcript heard;
    fv__asked asked;
    fv__aligning align; /* for words with times */
    fv_buf text;        /* of a piece */
} transcriber;

/* ---- opening ---- */

/* Whether the model hears clips of one length and writes times (Whisper). */
static bool hears_windows(const transcriber *t)
{
    const fv_sound_steps *steps = t->frames ? NULL : fv_processor_sound_steps(t->processor);
    return steps && steps->kind == FV_SOUND_WHISPER && steps->most > 0;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const transcribe_options *o = p->options;
    fv_head_job job = fv__head_job(p->opt.model, NULL, 0);
    fv_status st = fv__pipeline_self(p, sizeof(transcriber), e);
    if (st) return st;
    transcriber *t = p->self;
    if (job == FV_HEAD_CTC || job == FV_HEAD_TRANSDUCER)
        return fv__frames_open(&t->frames, p, o->stream, e);
    st = fv__open_writer(p, NULL, 0, e);
    if (st) return st;
    if (!fv__family_hears(fv_model_family(p->writer.model)))
        return fv_fail(e, FV_EARG, "%s: %s reads no sound", p->opt.model,
                       fv_model_head(p->writer.model));
    st = fv__ask(&t->asked, fv_dir_generation(p->writer.dir), fv_dir_config(p->writer.dir),
                 o->language, o->task ? tasks[o->task] : "", e);
    if (!st)
        st = fv__aligning_read(&t->align, fv_dir_generation(p->writer.dir),
                               fv_dir_config(p->writer.dir), e);
    if (st) return st;
    st = fv_processor_open(&t->processor, &p->env, "audio", fv_dir_path(p->writer.dir), e);
    if (!st && o->stream && hears_windows(t))
        return fv_fail(e, FV_EUSAGE, "--stream: %s hears windows of a fixed length",
                       fv_model_head(p->writer.model));
    return st;
}

static fv_status check(fv_pipeline *p, fv_err *e)
{
    const transcribe_options *o = p->options;
    if (o->format && (p->opt.json || o->timestamps || o->word_timestamps))
        return fv_fail(e, FV_EUSAGE, "--format %s, --json and --timestamps exclude each other",
                       formats[o->format]);
    if (o->timestamps && o->word_timestamps)
        return fv_fail(e, FV_EUSAGE, "--timestamps and --word-timestamps exclude each other");
    return FV_OK;
}

static void close_task(fv_pipeline *p)
{
    transcriber *t = p->self;
    if (!t) return;
    fv__frames_close(t->frames);
    fv_processor_close(t->processor);
    fv_clip_free(&t->raw);
    fv_clip_free(&t->whole);
    fv_clip_free(&t->x);
    fv__transcript_free(&t->heard);
    fv__buf_free(&t->text);
}

/* ---- pieces ---- */

static double energy(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Where the piece that begins at `from` ends: in the middle of the quietest tenth of a second. */
static int64_t piece_end(const fv_clip *x, int64_t from, int64_t most)
{
    int64_t window = x->rate / 10, best = from + most;
    double least = INFINITY;
    if (x->n - from <= most) return x->n;
    for (int64_t at = from + most - most / 4; at + window <= from + most; at += window / 2) {
        double y = energy(x->data + at, window);
        if (y < least) least = y, best = at + window / 2;
    }
    return best;
}

/* Samples (1,n) or features (1,rows,cols), as the processor makes them; it also knows the input's
 * name. */
static void put_source(void *user, fv_ctx *c, fv_items *in)
{
    const transcriber *t = user;
    fv_shape s = t->shape;
    fv_shape batch = s.n == 1 ? FV_SHAPE(1, s.d[0]) : FV_SHAPE(1, s.d[0], s.d[1]);
    fv_items_put(in, fv_processor_sound_input(t->processor), fv_floats(c, t->x.data, batch));
}

/* A tokenizer need not know the end as a special token, so it is taken off by its id. */
static bool is_end(const fv_gen_opt *o, int32_t id)
{
    for (int i = 0; i < o->n_ends; i++)
        if (o->ends[i] == id) return true;
    return id == o->eos;
}

/* By one more pass for each piece, so only where somebody asks. */
static bool wants_words(const fv_pipeline *p)
{
    return ((const transcribe_options *)p->options)->word_timestamps;
}

/* Appends ids and their text, without times, to what was heard, and its words where the seconds at
 * which tokens begin are known. */
static fv_status add_heard(fv_pipeline *p, const fv__asked *q, double from, double to,
                           const int32_t *ids, int64_t n, const double *begins, fv_err *e)
{
    transcriber *t = p->self;
    fv_buf none = {.env = &p->env}, words = {.env = &p->env};
    int32_t first = t->asked.none >= 0 ? t->asked.none + 1 : INT32_MAX;
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++)
        if (ids[i] < first) st = fv__ids_add(&words, &ids[i], 1, e);
    t->text.env = &p->env;
    t->text.len = 0;
    if (!st)
        st = fv__writer_decode(&p->writer, &t->text, &none, fv__ids(&words), fv__n_ids(&words), e);
    if (!st)
        st = fv__transcript_add(&t->heard, from, to, t->text.data ? t->text.data : "", t->text.len,
                                ids, n, e);
    if (!st && begins)
        st = fv__words_add(&t->heard, p->writer.tok, ids, n, first, begins, fv__asked_spaced(q), e);
    p->tokens += n;
    fv__buf_free(&words);
    return st;
}

/* The samples from .. to - 1 of the clip as the model's numbers. */
static fv_status cut_piece(fv_pipeline *p, int64_t from, int64_t to, fv_err *e)
{
    transcriber *t = p->self;
    fv_clip piece = {.env = &p->env,
                     .rate = t->whole.rate,
                     .n = to - from,
                     .data = t->whole.data + from};
    return fv_processor_sound(t->processor, &t->x, &piece, &t->shape, "the clip", e);
}

/* Seconds at which the n tokens of a piece begin, and its end: rows of the decoder that write them,
 * the first of which reads the start token. */
static fv_status time_tokens(fv_pipeline *p, double from, double to, const int32_t *ids, int64_t n,
                             double *begins, fv_err *e)
{
    transcriber *t = p->self;
    size_t bytes = (size_t)(n + 1) * (sizeof(int64_t) + sizeof(int32_t));
    int64_t *at = fv__alloc(&p->env, bytes), cols = 0;
    if (!at) return fv_fail(e, FV_ENOMEM, "token times: out of memory");
    int32_t *read = (int32_t *)(void *)(at + n + 1);
    read[0] = p->writer.gen.start;
    memcpy(read + 1, ids, (size_t)n * sizeof *read);
    fv_align_opt o = {t->align.heads, t->align.n, t->align.width};
    fv_status st = fv_align(at, p->dev, p->writer.model, put_source, t, read, n + 1, 0, o, &cols,
                            e);
    for (int64_t i = 0; !st && i <= n; i++)
        begins[i] = from + (to - from) * (double)at[i] / (double)cols;
    fv__free(&p->env, at, bytes);
    return st;
}

/* What was written for a piece, with times of words where they are wanted. */
static fv_status add_piece(fv_pipeline *p, double from, double to, const int32_t *ids, int64_t n,
                           fv_err *e)
{
    const transcriber *t = p->self;
    if (!wants_words(p) || n < 1) return add_heard(p, &t->asked, from, to, ids, n, NULL, e);
    size_t bytes = (size_t)(n + 1) * sizeof(double);
    double *begins = fv__alloc(&p->env, bytes);
    if (!begins) return fv_fail(e, FV_ENOMEM, "token times: out of memory");
    fv_status st = time_tokens(p, from, to, ids, n, begins, e);
    if (!st) st = add_heard(p, &t->asked, from, to, ids, n, begins, e);
    fv__free(&p->env, begins, bytes);
    return st;
}

/* Tokens of the samples from .. to - 1, behind those that ids has, without the end.  Their number
 * is bounded by the sound: a model that loops would otherwise write to the end of its context. */
static fv_status write_ids(fv_pipeline *p, int64_t from, int64_t to, fv_buf *ids, fv_err *e)
{
    transcriber *t = p->self;
    fv_generated g = {0};
    fv_gen_opt gen = p->writer.gen;
    bool given = fv__setting(p->opt.settings, p->opt.n_settings, "max_new_tokens") ||
                 fv__setting(p->opt.settings, p->opt.n_settings, "max_length");
    if (!given) gen.max_new_tokens = LEAST_TOKENS + TOKENS_A_SECOND * (to - from) / t->whole.rate;
    gen.begin = fv__ids(ids);
    gen.n_begin = (int)fv__n_ids(ids);
    fv_status st = cut_piece(p, from, to, e);
    if (!st) st = fv_generate_from(&g, p->dev, p->writer.model, put_source, t, 1, &gen, e);
    int64_t n = st ? 0 : g.hyp[0].n;
    if (n && is_end(&gen, g.hyp[0].ids[n - 1])) n--;
    if (!st) st = fv__ids_add(ids, g.hyp[0].ids, n, e);
    fv_generated_free(&g);
    return st;
}

/* seconds: of the sound before the clip. */
static fv_status write_piece(fv_pipeline *p, int64_t from, int64_t to, double seconds, fv_err *e)
{
    const transcriber *t = p->self;
    double rate = t->whole.rate;
    fv_buf ids = {.env = &p->env};
    fv_status st = write_ids(p, from, to, &ids, e);
    if (!st)
        st = add_piece(p, seconds + (double)from / rate, seconds + (double)to / rate, fv__ids(&ids),
                       fv__n_ids(&ids), e);
    fv__buf_free(&ids);
    return st;
}

/* For models without times of their own: pieces of at most --chunk seconds, cut where it is quiet,
 * each transcribed by itself. */
static fv_status hear_pieces(fv_pipeline *p, fv_err *e)
{
    const transcriber *t = p->self;
    const transcribe_options *o = p->options;
    int64_t most = (int64_t)(o->chunk * t->whole.rate);
    fv_status st = FV_OK;
    for (int64_t from = 0, to; !st && from < t->whole.n; from = to) {
        to = piece_end(&t->whole, from, most);
        st = write_piece(p, from, to, 0, e);
    }
    return st;
}

/* ---- windows ---- */

/* Whisper counts in frames of the spectrogram, sound in samples. */
static fv_status seek_window(void *user, int64_t frame, int64_t n, fv_err *e)
{
    fv_pipeline *p = user;
    const transcriber *t = p->self;
    int64_t hop = fv_processor_sound_steps(t->processor)->hop, from = frame * hop,
            to = from + n * hop;
    return cut_piece(p, from, to < t->whole.n ? to : t->whole.n, e);
}

static void put_window(void *user, fv_ctx *c, fv_items *in)
{
    put_source(((fv_pipeline *)user)->self, c, in);
}

static fv_status add_segment(void *user, const fv__asked *q, double from, double to,
                             const int32_t *ids, int64_t n, const double *begins, fv_err *e)
{
    return add_heard(user, q, from, to, ids, n, begins, e);
}

/* Whisper's long form: windows of 30 seconds, the next beginning where the last timestamp of this
 * one ended. */
static fv_status hear_windows(fv_pipeline *p, const fv_sound_steps *steps, fv_err *e)
{
    const transcriber *t = p->self;
    const transcribe_options *o = p->options;
    fv__asked asked = t->asked; /* the language is heard anew in each file */
    fv__windows w = {.dev = p->dev,
                     .model = p->writer.model,
                     .gen = &p->writer.gen,
                     .times = o->timestamps || o->format || wants_words(p),
                     .fallback = o->fallback,
                     .align = wants_words(p) ? &t->align : NULL,
                     .seek = seek_window,
                     .put = put_window,
                     .segment = add_segment,
                     .user = p};
    int64_t frames = (t->whole.n + steps->hop - 1) / steps->hop;
    return fv__windows_run(&w, &asked, frames, steps->most / steps->hop, e);
}

/* ---- a file ---- */

static fv_status write_out(fv_pipeline *p, const fv_text *path, double seconds, fv_err *e)
{
    const transcriber *t = p->self;
    const transcribe_options *o = p->options;
    fv__transcript_format how = o->timestamps ? FV__TRANSCRIPT_TIMES : FV__TRANSCRIPT_TEXT;
    if (o->word_timestamps) how = FV__TRANSCRIPT_WORDS;
    if (o->format) how = o->format == 1 ? FV__TRANSCRIPT_SRT : FV__TRANSCRIPT_VTT;
    if (p->opt.json) how = FV__TRANSCRIPT_JSON;
    fv__transcript_write(&p->out, &t->heard, how, path, seconds);
    return p->out.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

/* ---- standard input, while it is spoken ---- */

static int64_t live_end(void *user, int64_t from, int64_t most)
{
    const transcriber *t = ((fv_pipeline *)user)->self;
    return piece_end(&t->whole, from, most);
}

static fv_status live_guess(void *user, int64_t from, int64_t to, fv_buf *ids, fv_err *e)
{
    return write_ids(user, from, to, ids, e);
}

static fv_status live_piece(void *user, int64_t from, int64_t to, double seconds, fv_err *e)
{
    return write_piece(user, from, to, seconds, e);
}

/* By a model that generates. */
static fv_status guess_live(fv_pipeline *p, fv_err *e)
{
    transcriber *t = p->self;
    const transcribe_options *o = p->options;
    fv__live how = {.clip = &t->whole,
                    .heard = &t->heard,
                    .rate = fv_processor_sound_steps(t->processor)->rate,
                    .chunk = o->chunk,
                    .end = live_end,
                    .guess = live_guess,
                    .piece = live_piece,
                    .user = p};
    if (o->timestamps || o->word_timestamps || o->format)
        return fv_fail(e, FV_EUSAGE,
                       "--stream: words are printed before their times are known; "
                       "leave it out for times and subtitles");
    return fv__live_run(&how, p, (int)o->rate, e);
}

/* Standard input, heard while it comes: what is certain was handed on already. */
static fv_status transcribe_live(fv_pipeline *p, fv_err *e)
{
    transcriber *t = p->self;
    const transcribe_options *o = p->options;
    double seconds;
    int rate = fv__frames_rate(t->frames);
    if (o->rate != rate)
        return fv_fail(e, FV_EUSAGE, "--rate %lld: the model hears streams of %d samples a second",
                       (long long)o->rate, rate);
    fv__transcript_clear(&t->heard, &p->env);
    fv_status st = fv__frames_stream(t->frames, &t->heard, o->word_timestamps, &seconds, e);
    if (!st && !o->word_timestamps) fv__buf_str(&p->out, "\n");
    return st;
}

/* The whole file is decoded and resampled at once; windows are cut from it. */
static fv_status transcribe(fv_pipeline *p, const fv_text *path, fv_err *e)
{
    transcriber *t = p->self;
    const transcribe_options *o = p->options;
    bool stdin_ = path->n == 1 && *path->s == '-';
    if (t->frames && o->stream && stdin_ && !p->opt.json && !o->format && !o->timestamps)
        return transcribe_live(p, e);
    if (!t->frames && o->stream && stdin_) return guess_live(p, e);
    if (!t->frames && o->stream)
        return fv_fail(e, FV_EUSAGE, "--stream: %s hears - (standard input) as it is spoken",
                       fv_model_head(p->writer.model));
    const fv_sound_steps *steps = t->frames ? NULL : fv_processor_sound_steps(t->processor);
    int rate = steps ? steps->rate : fv__frames_rate(t->frames);
    fv_status st = fv__clip_at(&t->raw, &p->env, path, (int)o->rate, e);
    if (!st) st = fv_clip_resample(&t->whole, &t->raw, rate, e);
    fv__transcript_clear(&t->heard, &p->env);
    if (!st && t->frames) st = fv__frames_hear(t->frames, &t->whole, &t->heard, e);
    if (!st && t->frames && *o->lattice) st = fv__frames_lattice(t->frames, o->lattice, e);
    if (!st && steps) st = hears_windows(t) ? hear_windows(p, steps, e) : hear_pieces(p, e);
    return st ? st : write_out(p, path, (double)t->whole.n / rate, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        st = transcribe(p, &in[i], e);
        if (!st) st = fv__task_emit(p, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"fovea transcribe -m moonshine-tiny talk.flac", "what is said in a file"},
    {"fovea transcribe -m moonshine-tiny --timestamps lecture.mp3",
     "a line for each piece, with its seconds"},
    {"fovea transcribe -m whisper-tiny --language de --task translate --format srt talk.mp3",
     "subtitles in English of a talk in German"},
    {"fovea transcribe -m moonshine-tiny --json recordings/", "all of a folder, for scripts"},
    {"arecord -f S16_LE -r 16000 -c 1 | fovea transcribe -m moonshine-tiny --stream -",
     "words from a microphone while they are spoken"},
    {"arecord -f S16_LE -r 8000 -c 1 -t raw | fovea transcribe -m transducer --stream --rate 8000 "
     "-",
     "the same by a transducer"},
    {0}};

const fv_task_kind fv__transcribe_task = {
    .name = "transcribe",
    .summary = "write down what is said in sound files",
    .about =
        "Writes the words of WAV, FLAC, OGG and MP3 files, of any rate and number of channels. "
        "Files and folders of them are named on the command line, or a path on each line of "
        "standard input; - is a sound file, or raw samples of 16 bits, on standard input.\n\n"
        "Whisper hears windows of 30 seconds, each from where the last whole sentence of the one "
        "before ends; --language, --task, --fallback are for it.  To others a sound longer than "
        "--chunk seconds is cut at pauses; with --stream words of standard input are printed as "
        "soon as two hypotheses in a row agree on them, and a piece that is complete is printed "
        "once more where its last pass changed them.  How to generate stands in the "
        "model's generation_config.json; options override it.",
    .examples = examples,
    .options = options,
    .size = sizeof(transcribe_options),
    .generates = true,
    .images = true,
    .sound = true,
    .may_be_empty = true,
    .check = check,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_transcribe};
