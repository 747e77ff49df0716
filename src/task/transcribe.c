/* transcribe.c - what is said in sound files, by models with an encoder that hears and a decoder
 * that writes.
 *
 * A clip longer than --chunk seconds is cut into pieces of that length at the quietest moment of
 * each piece's last quarter, so that no word is cut in two where there is a pause; the texts of
 * pieces are joined by spaces.  A piece's bounds are what --timestamps prints. */
#include <math.h>

#include "fovea/author/audio.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "task_pipeline.h"

enum { TOKENS_A_SECOND = 7, LEAST_TOKENS = 8 }; /* nobody says more; what goes on is a loop */

typedef struct transcribe_options {
    double chunk;
    int64_t rate;
    bool timestamps;
} transcribe_options;

static const fv_field options[] = {
    FV_FLOAT(transcribe_options, chunk, 1, 30, 3600,
             "seconds that go through the model at once; longer sounds are cut at pauses"),
    FV_INT(transcribe_options, rate, 1000, 16000, 768000,
           "samples a second of raw samples (16 bits, one channel) from standard input"),
    FV_BOOL(transcribe_options, timestamps, false,
            "a line for each piece, with the seconds where it begins and ends"),
    {0}};

typedef struct transcriber {
    fv_processor *processor;
    fv_clip raw, whole, x; /* as decoded, at the model's rate, the features of a piece */
    fv_shape shape;
    fv_buf ids; /* of a piece, without the end */
} transcriber;

/* ---- opening ---- */

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(transcriber), e);
    if (!st) st = fv__open_writer(p, NULL, 0, e);
    if (st) return st;
    transcriber *t = p->self;
    if (!fv__family_hears(fv_model_family(p->writer.model)))
        return fv_fail(e, FV_EARG, "%s: %s reads no sound", p->opt.model,
                       fv_model_head(p->writer.model));
    return fv_processor_open(&t->processor, &p->env, "audio", fv_dir_path(p->writer.dir), e);
}

static void close_task(fv_pipeline *p)
{
    transcriber *t = p->self;
    if (!t) return;
    fv_processor_close(t->processor);
    fv_clip_free(&t->raw);
    fv_clip_free(&t->whole);
    fv_clip_free(&t->x);
    fv__buf_free(&t->ids);
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

static fv_status decode(fv_pipeline *p, fv_buf *out, const fv_hyp *h, fv_err *e)
{
    transcriber *t = p->self;
    fv_buf none = {.env = &p->env};
    int64_t n = h->n && is_end(&p->writer.gen, h->ids[h->n - 1]) ? h->n - 1 : h->n;
    p->tokens += h->n;
    t->ids.env = &p->env;
    t->ids.len = 0;
    fv_status st = fv__ids_add(&t->ids, h->ids, n, e);
    return st ? st : fv__writer_decode(&p->writer, out, &none, h->ids, n, e);
}

/* The text of samples from .. to - 1 of the clip, appended to out. */
static fv_status write_piece(fv_pipeline *p, fv_buf *out, int64_t from, int64_t to, fv_err *e)
{
    transcriber *t = p->self;
    fv_clip piece = {.env = &p->env,
                     .rate = t->whole.rate,
                     .n = to - from,
                     .data = t->whole.data + from};
    fv_generated g = {0};
    fv_gen_opt gen = p->writer.gen;
    bool given = fv__setting(p->opt.settings, p->opt.n_settings, "max_new_tokens") ||
                 fv__setting(p->opt.settings, p->opt.n_settings, "max_length");
    if (!given) gen.max_new_tokens = LEAST_TOKENS + TOKENS_A_SECOND * (to - from) / t->whole.rate;
    fv_status st = fv_processor_sound(t->processor, &t->x, &piece, &t->shape, "the clip", e);
    if (!st) st = fv_generate_from(&g, p->dev, p->writer.model, put_source, t, 1, &gen, e);
    if (!st) st = decode(p, out, &g.hyp[0], e);
    fv_generated_free(&g);
    return st;
}

/* ---- results ---- */

/* A piece's text without the spaces around it, as plain text or as an object of "pieces". */
static void put_piece(fv_pipeline *p, fv_buf *text, double from, double to, bool first)
{
    const transcribe_options *o = p->options;
    const fv_buf *ids = &((const transcriber *)p->self)->ids;
    const char *s = text->data ? text->data : "";
    size_t n = text->len;
    while (n && *s == ' ') s++, n--;
    while (n && s[n - 1] == ' ') n--;
    if (p->opt.json) {
        fv__json_begin(&p->out, '{');
        fv__json_number_at(&p->out, "from", from);
        fv__json_number_at(&p->out, "to", to);
        fv__json_text_at(&p->out, "text", s, n);
        fv__json_key(&p->out, "ids");
        fv__json_begin(&p->out, '[');
        for (int64_t i = 0; i < fv__n_ids(ids); i++) fv__json_put_int(&p->out, fv__ids(ids)[i]);
        fv__json_end(&p->out, ']');
        fv__json_end(&p->out, '}');
        return;
    }
    if (o->timestamps) fv__buf_fmt(&p->out, "%.2f\t%.2f\t", from, to);
    if (!o->timestamps && !first && n) fv__buf_str(&p->out, " ");
    fv__put_flat(&p->out, s, n);
    if (o->timestamps) fv__buf_str(&p->out, "\n");
}

/* A clip is cut into chunks that the model can hear; their texts are joined. */
static fv_status transcribe(fv_pipeline *p, const fv_text *path, fv_err *e)
{
    transcriber *t = p->self;
    const transcribe_options *o = p->options;
    int rate = fv_processor_sound_steps(t->processor)->rate;
    int64_t most = (int64_t)(o->chunk * rate);
    fv_status st = fv__clip_at(&t->raw, &p->env, path, (int)o->rate, e);
    if (!st) st = fv_clip_resample(&t->whole, &t->raw, rate, e);
    if (st) return st;
    if (p->opt.json) {
        fv__json_begin(&p->out, '{');
        fv__json_text_at(&p->out, "sound", path->s, path->n);
        fv__json_number_at(&p->out, "seconds", (double)t->whole.n / rate);
        fv__json_key(&p->out, "pieces");
        fv__json_begin(&p->out, '[');
    }
    for (int64_t from = 0, to; !st && from < t->whole.n; from = to) {
        fv_buf text = {.env = &p->env};
        to = piece_end(&t->whole, from, most);
        st = write_piece(p, &text, from, to, e);
        if (!st) put_piece(p, &text, (double)from / rate, (double)to / rate, !from);
        fv__buf_free(&text);
    }
    if (p->opt.json) {
        fv__json_end(&p->out, ']');
        fv__json_end(&p->out, '}');
    }
    if (p->opt.json || !o->timestamps) fv__buf_str(&p->out, "\n");
    return st;
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
    {"fovea transcribe -m moonshine-tiny --json recordings/", "all of a folder, for scripts"},
    {"arecord -f S16_LE -r 16000 -c 1 -d 5 -t raw | fovea transcribe -m moonshine-tiny -",
     "from a microphone"},
    {0}};

const fv_task_kind fv__transcribe_task = {
    .name = "transcribe",
    .summary = "write down what is said in sound files",
    .about =
        "Writes the words of WAV, FLAC, OGG and MP3 files, of any rate and number of channels. "
        "Files and folders of them are named on the command line, or a path on each line of "
        "standard input; - is a sound file, or raw samples of 16 bits, on standard input.\n\n"
        "A sound longer than --chunk seconds is cut at pauses.  How to generate stands in the "
        "model's generation_config.json; options override it.",
    .examples = examples,
    .options = options,
    .size = sizeof(transcribe_options),
    .generates = true,
    .images = true,
    .sound = true,
    .may_be_empty = true,
    .batch = 1,
    .open = open_task,
    .run = run,
    .close = close_task};
