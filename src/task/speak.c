/* speak.c - the task of speaking: texts as sound files.
 *
 *     text -> tokens -> spectrogram (gen/speak.c) -> samples, by a vocoder or Griffin and Lim's way
 *
 * A record is a text, with a tab and the name of a speaker behind it where lines differ in that;
 * its result is a line of the file, what it says and who says it, so that the results of many are
 * a table that recognisers are evaluated on.  Line i is said with seed + i: lines that are equal
 * are said differently, and each the same whatever else is said. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/array.h"
#include "fovea/author/audio.h"
#include "fovea/author/family.h"
#include "fovea/author/speak.h"
#include "speak_alignment.h"
#include "task_pipeline.h"

typedef struct speak_options {
    char output[FV_PATH], folder[FV_PATH], speaker[FV_PATH], vocoder[FV_PATH], mel[FV_PATH],
        alignment[FV_PATH];
    double threshold, min_ratio, max_ratio;
    int64_t seed, rounds;
    bool no_dropout;
} speak_options;

static const fv_field options[] = {
    FV_TEXT(speak_options, output, "", "FILE: what is said of one text, as .wav"),
    FV_TEXT(speak_options, folder, "",
            "DIR: of each text, as DIR/000001.wav and so on; the results are their table"),
    FV_TEXT(speak_options, speaker, "",
            "NAME: who speaks, of those the model knows; or the speaker's vector: a file (.npy, "
            ".csv, x.safetensors:name) or numbers with commas between"),
    FV_TEXT(speak_options, vocoder, "",
            "DIR: a HiFi-GAN that makes sound of spectrograms; without it Griffin and Lim's way"),
    FV_TEXT(speak_options, mel, "", "FILE: also the spectrogram, (frames,mels), as .npy"),
    FV_TEXT(
        speak_options, alignment, "",
        "FILE: draw as SVG where each step looked in the text, by the head that is nearest to a "
        "diagonal"),
    FV_FLOAT(speak_options, threshold, 0.001, 0.5, 1, "probability of the end at which it ends"),
    FV_FLOAT(speak_options, min_ratio, 0, 0, 1000, "frames for each token, at least"),
    FV_FLOAT(speak_options, max_ratio, 0.1, 20, 1000, "and at most"),
    FV_BOOL(speak_options, no_dropout, false,
            "keep all units of the prenet: always the same, and often worse"),
    FV_INT(speak_options, seed, 0, 1, 9e15, "the same seed says a text in the same way"),
    FV_INT(speak_options, rounds, 1, 60, 10000, "of Griffin and Lim's way"),
    {0}};

typedef struct speaker {
    const fv_env *env;
    fv_dir *dir;
    fv_processor *processor;
    fv_model *model, *vocoder;
    fv_voice *voice;
    fv_ctx *ctx; /* of the vocoder */
    fv_encoding *enc;
    float *vector; /* of --speaker, or of a line's */
    int64_t dim, vocoder_rate;
    fv_clip clip;
} speaker;

/* ---- who speaks ---- */

static fv_status known_speakers(const speaker *s, const char *name, fv_err *e)
{
    fv_buf list = {.env = s->env};
    for (int i = 0; fv_processor_speaker_at(s->processor, i); i++)
        fv__buf_fmt(&list, "%s%s", i ? ", " : "", fv_processor_speaker_at(s->processor, i));
    fv__buf_add(&list, "", 1);
    fv_status st = fv_fail(e, FV_EARG, "speaker %.200s: the model knows %.300s", name,
                           list.len > 1 && !list.failed ? list.data : "none by name");
    fv__buf_free(&list);
    return st;
}

/* "0.3,-1,.." */
static fv_status read_numbers(speaker *s, const char *text, fv_err *e)
{
    int64_t n = 0;
    for (const char *at = text; *at; n++) {
        char *end;
        double x = strtod(at, &end);
        if (end == at || (*end && *end != ','))
            return fv_fail(e, FV_EARG, "speaker %.200s: expected numbers with commas between",
                           text);
        if (n < s->dim) s->vector[n] = (float)x;
        at = *end ? end + 1 : end;
    }
    return n == s->dim ? FV_OK
                       : fv_fail(e, FV_EARG, "a speaker of %lld numbers: the model wants %lld",
                                 (long long)n, (long long)s->dim);
}

static fv_status read_file(speaker *s, const char *path, fv_err *e)
{
    fv_array a;
    fv_status st = fv_array_open(&a, s->env, path, (fv_array_opt){0}, e);
    if (st) return st;
    if (fv_shape_len(a.shape) != s->dim)
        st = fv_fail(e, FV_EARG, "%.200s: a speaker of %lld numbers: the model wants %lld", path,
                     (long long)fv_shape_len(a.shape), (long long)s->dim);
    else
        memcpy(s->vector, a.data, (size_t)s->dim * sizeof *s->vector);
    fv_array_close(&a);
    return st;
}

/* A name first: speakers may be called as files or numbers are. */
static fv_status choose_speaker(speaker *s, const char *who, fv_err *e)
{
    int64_t n = fv_processor_speaker(s->processor, who, s->vector, s->dim);
    if (n == s->dim) return FV_OK;
    if (n)
        return fv_fail(e, FV_EFORMAT, "speaker %.200s has %lld numbers: the model wants %lld", who,
                       (long long)n, (long long)s->dim);
    if (strspn(who, "+-.eE0123456789,") == strlen(who)) return read_numbers(s, who, e);
    if (strchr(who, '.')) return read_file(s, who, e);
    return known_speakers(s, who, e);
}

/* ---- opening ---- */

/* The vocoder's bands and its samples a frame must be those of the voice. */
static fv_status open_vocoder(fv_pipeline *p, fv_err *e)
{
    const speak_options *o = p->options;
    speaker *s = p->self;
    double rate = 16000;
    fv_model_opt how = fv__pipeline_model_opt(p);
    how.serve = true;
    how.adapters = (fv_adapter_list){0};
    fv_status st = fv_model_open(&s->vocoder, p->dev, o->vocoder, how, e);
    if (!st && fv_model_job(s->vocoder) != FV_HEAD_WAVEFORM)
        st = fv_fail(e, FV_EARG, "%s: %s is no vocoder", o->vocoder, fv_model_head(s->vocoder));
    if (!st) st = fv_ctx_new(&s->ctx, p->dev, (fv_ctx_opt){.dtype = fv_model_dtype(s->vocoder)}, e);
    fv_dir *dir = NULL;
    if (!st) st = fv_dir_open(&dir, &p->env, o->vocoder, e);
    if (!st) fv_json_number(fv_dir_config(dir), "sampling_rate", &rate);
    fv_dir_close(dir);
    s->vocoder_rate = (int64_t)rate;
    return st;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const speak_options *o = p->options;
    fv_model_opt how = fv__pipeline_model_opt(p);
    how.serve = true;
    fv_status st = fv__pipeline_self(p, sizeof(speaker), e);
    if (st) return st;
    speaker *s = p->self;
    s->env = &p->env;
    st = fv_dir_open(&s->dir, &p->env, p->opt.model, e);
    if (!st) st = fv_model_open(&s->model, p->dev, fv_dir_path(s->dir), how, e);
    if (!st) st = fv_voice_new(&s->voice, p->dev, s->model, e);
    if (!st) st = fv_processor_open(&s->processor, &p->env, "audio", fv_dir_path(s->dir), e);
    if (!st && !fv_processor_tok(s->processor))
        st = fv_fail(e, FV_EFORMAT, "%s: it has no tokenizer", fv_dir_path(s->dir));
    if (!st) st = fv_encoding_new(&s->enc, fv_processor_tok(s->processor), e);
    if (st) return st;
    s->dim = fv_voice_speaker_dim(s->voice);
    s->vector = fv__alloc(&p->env, (size_t)s->dim * sizeof *s->vector);
    if (!s->vector) return fv_fail(e, FV_ENOMEM, "out of memory");
    if (o->speaker[0]) st = choose_speaker(s, o->speaker, e);
    if (!st && o->folder[0]) st = fv__dir_make(&p->env, o->folder, e);
    return st || !o->vocoder[0] ? st : open_vocoder(p, e);
}

static fv_status check(fv_pipeline *p, fv_err *e)
{
    const speak_options *o = p->options;
    if (!o->output[0] == !o->folder[0])
        return fv_fail(e, FV_EUSAGE, "expected --output FILE.wav, or --folder DIR for many texts");
    if (o->folder[0] && (o->mel[0] || o->alignment[0]))
        return fv_fail(e, FV_EUSAGE, "--mel and --alignment go with --output, of one text");
    return FV_OK;
}

static void close_task(fv_pipeline *p)
{
    speaker *s = p->self;
    if (!s) return;
    fv_clip_free(&s->clip); /* whose memory may be the processor's */
    fv_voice_free(s->voice);
    if (s->ctx) fv_ctx_free(s->ctx);
    fv_model_free(s->vocoder);
    fv_model_free(s->model);
    fv_encoding_free(s->enc);
    fv_processor_close(s->processor);
    fv_dir_close(s->dir);
    fv__free(&p->env, s->vector, (size_t)s->dim * sizeof *s->vector);
}

/* ---- sound ---- */

static fv_status by_vocoder(fv_pipeline *p, const fv_said *said, fv_err *e)
{
    speaker *s = p->self;
    fv_items in = {0}, out = {0};
    fv_ctx_reset(s->ctx, 0);
    fv_items_put(&in, "spectrogram",
                 fv_floats(s->ctx, said->mel, FV_SHAPE(said->frames, said->mels)));
    fv_model_forward(s->ctx, s->vocoder, &in, &out);
    const fv_tensor *wave = fv_items_get(&out, "waveform");
    fv_status st = wave ? fv_clip_new(&s->clip, &p->env, (int)s->vocoder_rate, fv_len(wave), e)
                        : FV_OK;
    if (st) return st;
    if (!wave || fv_read(s->ctx, wave, s->clip.data, s->clip.n))
        return fv_fail(e, fv_ctx_err(s->ctx)->code, "%s", fv_ctx_err(s->ctx)->text);
    return FV_OK;
}

static fv_status make_sound(fv_pipeline *p, const fv_said *said, uint64_t seed, fv_err *e)
{
    const speak_options *o = p->options;
    speaker *s = p->self;
    if (s->vocoder) return by_vocoder(p, said, e);
    return fv_processor_sound_back(s->processor, &s->clip, said->mel, said->frames, (int)o->rounds,
                                   seed, e);
}

/* ---- results ---- */

static void put_result(fv_pipeline *p, const fv_text *text, const char *who, const char *path,
                       const fv_said *said)
{
    const speaker *s = p->self;
    double diagonal = fv_said_diagonality(said, NULL);
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        fv__put_flat(b, path, strlen(path));
        fv__buf_str(b, "\t");
        fv__put_flat(b, text->s, text->n);
        fv__buf_str(b, "\t");
        fv__put_flat(b, who, strlen(who));
        fv__buf_str(b, "\n");
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "path", path, strlen(path));
    fv__json_text_at(b, "text", text->s, text->n);
    fv__json_text_at(b, "speaker", who, strlen(who));
    fv__json_int_at(b, "tokens", said->tokens);
    fv__json_int_at(b, "frames", said->frames);
    fv__json_number_at(b, "seconds", (double)s->clip.n / s->clip.rate);
    fv__json_number_at(b, "diagonality", diagonal);
    fv__json_key(b, "ended");
    fv__buf_str(b, said->ended ? "true" : "false");
    fv__json_end(b, '}');
    fv__buf_str(b, "\n");
}

static fv_status save(fv_pipeline *p, const char *path, const fv_said *said, fv_err *e)
{
    const speak_options *o = p->options;
    const speaker *s = p->self;
    fv_status st = fv_clip_save(&s->clip, path, e);
    fv_array mel = {.shape = FV_SHAPE(said->frames, said->mels)};
    if (!st && o->mel[0]) {
        mel.data = (float *)(uintptr_t)said->mel; /* which is only read */
        st = fv_array_save(&mel, &p->env, o->mel, e);
    }
    if (!st && o->alignment[0])
        st = fv__save_alignment(&p->env, o->alignment, said, fv_processor_tok(s->processor),
                                s->enc->ids, e);
    return st;
}

static fv_status say(fv_pipeline *p, const fv_text *text, int64_t number, fv_err *e)
{
    const speak_options *o = p->options;
    speaker *s = p->self;
    char who[FV_PATH], path[FV_PATH + 32];
    fv_said said;
    snprintf(who, sizeof who, "%.*s", text->pair ? (int)text->pair_n : 0,
             text->pair ? text->pair : "");
    fv_status st = text->pair ? choose_speaker(s, who, e) : FV_OK;
    if (!text->pair) snprintf(who, sizeof who, "%s", o->speaker);
    uint64_t seed = (uint64_t)(o->seed + number);
    fv_speak_opt how = {.speaker = *who ? s->vector : NULL,
                        .threshold = o->threshold,
                        .min_ratio = o->min_ratio,
                        .max_ratio = o->max_ratio,
                        .no_dropout = o->no_dropout,
                        .seed = seed};
    if (!st) st = fv_tok_encode(s->enc, text->s, text->n, (fv_tok_opts){.specials = true}, e);
    if (!st) st = fv_voice_speak(s->voice, s->enc->ids, s->enc->n, how, &said, e);
    if (!st) st = make_sound(p, &said, seed, e);
    if (o->folder[0])
        snprintf(path, sizeof path, "%s/%06lld.wav", o->folder, (long long)number);
    else
        snprintf(path, sizeof path, "%s", o->output);
    if (!st) st = save(p, path, &said, e);
    if (st) return st;
    if (!said.ended)
        snprintf(p->note, sizeof p->note, "did not end by itself after %lld frames",
                 (long long)said.frames);
    put_result(p, text, who, path, &said);
    return fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const speak_options *o = p->options;
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        int64_t number = p->first + p->done;
        if (o->output[0] && number > 1)
            return fv_fail(e, FV_EUSAGE, "--output is of one text; --folder DIR takes many");
        st = say(p, &in[i], number, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"fovea speak -m runs/fsdd-voice/model --speaker jackson -o seven.wav --text seven",
     "one text, by the name of a speaker"},
    {"fovea speak -m speecht5_tts --vocoder speecht5_hifigan --speaker xvector.npy -o hello.wav "
     "--text 'Hello there.'",
     "a published model with its vocoder, and the vector of a speaker"},
    {"fovea speak -m runs/fsdd-voice/model --folder spoken -f lines.tsv > spoken.tsv",
     "a text and a speaker on each line, with a tab between: a file each, and their table"},
    {"fovea speak -m runs/fsdd-voice/model --speaker nicolas -o six.wav --alignment six.svg --json "
     "--text six",
     "how long it is, whether attention went along the text, and a picture of that"},
    {0}};

const fv_task_kind fv__speak_task = {
    .name = "speak",
    .summary = "say texts, as sound files",
    .about = "Reads texts and writes what a model says as WAV files of 16 bits: --output for one "
             "text, --folder for one file a line.  A line may end in a tab and who speaks.  Prints "
             "a line for each: the file, the text, the speaker.  SpeechT5 drops units of its "
             "decoder also when it speaks, so what it says varies with --seed.",
    .examples = examples,
    .options = options,
    .size = sizeof(speak_options),
    .pairs = true,
    .aligned = true,
    .check = check,
    .open = open_task,
    .run = run,
    .close = close_task,
};
