/* transcribe_frames.c - transcribing by models that align frames and tokens: CTC and transducers.
 *
 * There is no generation: frames go through a recogniser (gen/recognise.c), whole or chunk by
 * chunk, and every token has the frame it was heard at, so words have times without a further
 * search.  A stream on standard input is raw samples; they are read as they come, in blocks of a
 * tenth of a second, and a word is written as soon as the next one begins or the stream ends. */
#include "task/transcribe.h"

#include <stdlib.h>

#include "base/base.h"
#include "fovea/author/family.h"

/* Words while their tokens come in. */
typedef struct words {
    fv_tok_stream *stream;
    fv_buf word; /* the one that is still open */
    double from, to;
    int64_t done; /* tokens that were read */
} words;

struct fv__frames {
    fv_pipeline *p;
    fv_dir *dir;
    fv_model *model;
    fv_processor *processor;
    fv_recogniser *recogniser;
    const fv_sound_steps *steps;
    fv_clip x;      /* features */
    fv_shape shape; /* of those of the recording heard last */
    int32_t blank;
    fv_buf samples; /* of a stream, floats that no frame was made of yet */
    double frame;   /* seconds of a frame of the encoder's output */
};

static const fv_tok *tok_of(const fv__frames *f) { return fv_processor_tok(f->processor); }

/* ---- opening ---- */

static int64_t beams_of(const fv_pipeline *p)
{
    const char *s = fv__setting(p->opt.settings, p->opt.n_settings, "num_beams");
    return s ? strtol(s, NULL, 10) : 1;
}

static fv_status open_recogniser(fv__frames *f, bool stream, fv_err *e)
{
    fv_pipeline *p = f->p;
    fv_special_ids ids = fv_processor_ids(f->processor);
    double blank = ids.pad;
    fv_json_number(fv_dir_config(f->dir), "pad_token_id", &blank);
    f->steps = fv_processor_sound_steps(f->processor);
    if (!tok_of(f))
        return fv_fail(e, FV_EARG, "%s: there is no tokenizer beside the model", p->opt.model);
    if (blank < 0)
        return fv_fail(e, FV_EFORMAT, "%s: config.json: no pad_token_id, which is the blank",
                       p->opt.model);
    fv_recognise_opt how = {.stream = stream,
                            .beams = beams_of(p),
                            .input = fv_processor_sound_input(f->processor),
                            .blank = f->blank = (int32_t)blank};
    return fv_recogniser_new(&f->recogniser, p->dev, f->model, how, e);
}

fv_status fv__frames_open(fv__frames **out, fv_pipeline *p, bool stream, fv_err *e)
{
    fv__frames *f = *out = fv__alloc(&p->env, sizeof *f);
    if (!f) return fv_fail(e, FV_ENOMEM, "out of memory");
    f->p = p;
    f->samples.env = &p->env;
    fv_model_opt opt = fv__pipeline_model_opt(p);
    opt.serve = true;
    fv_status st = fv_dir_open(&f->dir, &p->env, p->opt.model, e);
    if (!st) st = fv_model_open(&f->model, p->dev, p->opt.model, opt, e);
    if (!st) st = fv_processor_open(&f->processor, &p->env, "audio", fv_dir_path(f->dir), e);
    return st ? st : open_recogniser(f, stream, e);
}

void fv__frames_close(fv__frames *f)
{
    if (!f) return;
    fv_recogniser_free(f->recogniser);
    fv_processor_close(f->processor);
    fv_model_free(f->model);
    fv_dir_close(f->dir);
    fv_clip_free(&f->x);
    fv__buf_free(&f->samples);
    fv__free(&f->p->env, f, sizeof *f);
}

int fv__frames_rate(const fv__frames *f) { return f->steps->rate; }

/* ---- words ---- */

/* Appends the word that ends here, if there is one, to the transcript. */
static fv_status close_word(fv__transcript *to, fv_buf *word, double from, double until, fv_err *e)
{
    fv_status st = word->len ? fv__transcript_word(to, from, until, word->data, word->len, e)
                             : FV_OK;
    word->len = 0;
    return st;
}

/* Tokens [*done, n) as words: a token whose text begins with a blank begins one.  The last word
 * stays open, in `word`, unless it is the end. */
static fv_status add_words(fv__frames *f, words *w, fv__transcript *to, bool end, fv_err *e)
{
    int64_t n;
    const fv_recognised *token = fv_recogniser_tokens(f->recogniser, &n);
    fv_status st = FV_OK;
    if (!w->stream) st = fv_tok_stream_new(&w->stream, tok_of(f), true, e);
    w->word.env = &f->p->env;
    for (; !st && w->done < n; w->done++) {
        const fv_recognised *t = &token[w->done];
        const char *text;
        size_t len;
        st = fv_tok_stream_push(w->stream, t->id, &text, &len, e);
        if (!st && len && *text == ' ') {
            st = close_word(to, &w->word, w->from, w->to, e);
            text++, len--;
        }
        if (st || !len) continue;
        if (!w->word.len) w->from = (double)t->from * f->frame;
        w->to = (double)t->to * f->frame;
        fv__buf_add(&w->word, text, len);
    }
    return st || !end ? st : close_word(to, &w->word, w->from, w->to, e);
}

static void words_free(words *w)
{
    fv_tok_stream_free(w->stream);
    fv__buf_free(&w->word);
    *w = (words){0};
}

/* ---- a recording ---- */

/* Seconds of a frame of the output: of log-mel by its steps, of samples by what came out. */
static void set_frame(fv__frames *f, int64_t samples, int64_t frames)
{
    f->frame = f->steps->kind == FV_SOUND_RAW
                   ? (double)samples / f->steps->rate / (double)(frames > 0 ? frames : 1)
                   : (double)(f->steps->hop * (f->steps->stack > 1 ? f->steps->stack : 1)) /
                         f->steps->rate;
}

/* The tokens as the one piece of the transcript, with its words. */
static fv_status finish(fv__frames *f, fv__transcript *to, double seconds, fv_err *e)
{
    fv_buf ids = {.env = &f->p->env};
    words w = {0};
    int64_t n;
    const fv_recognised *token = fv_recogniser_tokens(f->recogniser, &n);
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < n; i++) st = fv__ids_add(&ids, &token[i].id, 1, e);
    char *s = NULL;
    size_t len = 0;
    if (!st) st = fv_tok_decode(tok_of(f), &s, &len, fv__ids(&ids), n, true, e);
    if (!st) st = fv__transcript_add(to, 0, seconds, s, len, fv__ids(&ids), n, e);
    if (!st) st = add_words(f, &w, to, true, e);
    if (s) fv_tok_free_text(tok_of(f), s, len);
    f->p->tokens += n;
    words_free(&w);
    fv__buf_free(&ids);
    return st;
}

fv_status fv__frames_hear(fv__frames *f, const fv_clip *whole, fv__transcript *to, fv_err *e)
{
    fv_recogniser_reset(f->recogniser);
    fv_status st = fv_processor_sound(f->processor, &f->x, whole, &f->shape, "the clip", e);
    int64_t width = f->shape.n == 2 ? f->shape.d[1] : 1;
    if (!st) st = fv_recogniser_add(f->recogniser, f->x.data, f->shape.d[0], width, e);
    if (!st) st = fv_recogniser_end(f->recogniser, e);
    if (st) return st;
    set_frame(f, whole->n, fv_recogniser_frames(f->recogniser));
    return finish(f, to, (double)whole->n / whole->rate, e);
}

/* The whole recording with all its tokens through the model once more: logits of every point. */
fv_status fv__frames_lattice(fv__frames *f, const char *path, fv_err *e)
{
    fv_pipeline *p = f->p;
    fv__lattice l = {.features = f->x.data,
                     .tok = tok_of(f),
                     .frames = f->shape.d[0],
                     .width = f->shape.d[1],
                     .blank = f->blank,
                     .seconds = f->frame};
    fv_buf ids = {.env = &p->env};
    fv_items in = {0}, out = {0};
    fv_ctx *c = NULL;
    l.token = fv_recogniser_tokens(f->recogniser, &l.n);
    if (fv_model_job(f->model) != FV_HEAD_TRANSDUCER)
        return fv_fail(e, FV_EUSAGE, "--lattice: %s is no transducer", fv_model_head(f->model));
    fv_status st = fv__ids_add(&ids, &f->blank, 1, e);
    for (int64_t i = 0; !st && i < l.n; i++) st = fv__ids_add(&ids, &l.token[i].id, 1, e);
    if (!st) st = fv_ctx_new(&c, p->dev, (fv_ctx_opt){.dtype = fv_model_dtype(f->model)}, e);
    float *logits = NULL;
    int64_t n = 0;
    if (!st) {
        fv_items_put(&in, "input_features",
                     fv_floats(c, l.features, FV_SHAPE(1, l.frames, l.width)));
        fv_items_put(&in, "decoder_input_ids", fv_ints(c, fv__ids(&ids), FV_SHAPE(1, l.n + 1)));
        fv_model_forward(c, f->model, &in, &out);
        const fv_tensor *y = fv_items_get(&out, "logits");
        n = fv_len(y);
        l.V = fv_dim(y, 3);
        logits = n ? fv__alloc(&p->env, (size_t)n * sizeof *logits) : NULL;
        if (!logits || fv_read(c, y, logits, n))
            st = fv_fail(e, FV_ESTATE, "--lattice: %s", fv_ctx_err(c)->text);
    }
    l.logits = logits;
    if (!st) st = fv__lattice_write(&l, &p->env, path, e);
    fv__free(&p->env, logits, (size_t)n * sizeof *logits);
    fv__buf_free(&ids);
    fv_ctx_free(c);
    return st;
}

/* ---- a stream ---- */

/* Features of the samples that are there, as far as they make whole frames; the samples that no
 * later frame needs are dropped. */
static fv_status hear_waiting(fv__frames *f, fv_err *e)
{
    const fv_sound_steps *s = f->steps;
    int64_t n = (int64_t)(f->samples.len / sizeof(float)), step = (int64_t)s->hop * s->stack;
    int64_t rows = (n - s->window) / s->hop + 1;
    fv_shape shape;
    if (n < s->window || rows / s->stack < 1) return FV_OK;
    fv_clip in = {.env = &f->p->env,
                  .rate = s->rate,
                  .n = n,
                  .data = (float *)(void *)f->samples.data};
    fv_status st = fv_processor_sound(f->processor, &f->x, &in, &shape, "standard input", e);
    if (!st) st = fv_recogniser_add(f->recogniser, f->x.data, shape.d[0], shape.d[1], e);
    if (st) return st;
    size_t gone = (size_t)(shape.d[0] * step) * sizeof(float);
    if (gone > f->samples.len) gone = f->samples.len;
    memmove(f->samples.data, f->samples.data + gone, f->samples.len - gone);
    f->samples.len -= gone;
    return FV_OK;
}

/* Samples of 16 bits; an odd byte waits in *half for its other. */
static fv_status add_pcm(fv__frames *f, const uint8_t *p, int64_t n, int *half, fv_err *e)
{
    for (int64_t i = 0; i < n; i++) {
        if (*half < 0) {
            *half = p[i];
            continue;
        }
        float x = (float)(int16_t)(uint16_t)(*half | p[i] << 8) / 32768;
        fv__buf_add(&f->samples, &x, sizeof x);
        *half = -1;
    }
    return f->samples.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

/* Writes the words that were finished since the last time. */
static fv_status emit_words(fv__frames *f, fv__transcript *heard, int64_t *written, bool times,
                            fv_err *e)
{
    int64_t n;
    const fv__heard *w = fv__words_at(heard, &n);
    fv_buf line = {.env = &f->p->env};
    fv_status st = FV_OK;
    for (; !st && *written < n; ++*written) {
        const fv__heard *x = &w[*written];
        line.len = 0;
        if (times) fv__buf_fmt(&line, "%.2f\t%.2f\t", x->from, x->to);
        if (!times && *written) fv__buf_str(&line, " ");
        fv__put_flat(&line, heard->text.data + x->text, x->text_n);
        if (times) fv__buf_str(&line, "\n");
        if (line.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
        if (!st) st = fv__task_emit_part(f->p, line.data, line.len, e);
    }
    fv__buf_free(&line);
    return st;
}

fv_status fv__frames_stream(fv__frames *f, fv__transcript *heard, bool times, double *seconds,
                            fv_err *e)
{
    uint8_t block[8192];
    size_t tenth = (size_t)f->steps->rate / 10 * 2,
           most = tenth < sizeof block ? tenth : sizeof block;
    int64_t got = 0, all = 0, written = 0;
    int half = -1;
    words w = {0};
    fv_recogniser_reset(f->recogniser);
    set_frame(f, 0, 0);
    f->samples.len = 0;
    const fv_io *io = fv__io(&f->p->env);
    int fd = io->open_read(io->self, "/dev/stdin");
    if (fd < 0) return fv_fail(e, FV_EIO, "standard input cannot be opened");
    fv_status st = FV_OK;
    while (!st && (got = io->read(io->self, fd, block, most)) > 0) {
        all += got;
        st = add_pcm(f, block, got, &half, e);
        if (!st) st = hear_waiting(f, e);
        if (!st) st = add_words(f, &w, heard, false, e);
        if (!st) st = emit_words(f, heard, &written, times, e);
    }
    io->close(io->self, fd);
    if (!st && got < 0) st = fv_fail(e, FV_EIO, "standard input cannot be read");
    if (!st && all < 2) st = fv_fail(e, FV_EFORMAT, "standard input: there are no samples in it");
    if (!st) st = fv_recogniser_end(f->recogniser, e);
    if (!st) st = add_words(f, &w, heard, true, e);
    if (!st) st = emit_words(f, heard, &written, times, e);
    *seconds = (double)(all / 2) / f->steps->rate;
    words_free(&w);
    return st;
}
