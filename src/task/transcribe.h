/* transcribe.h - what the files of transcribing share: what was heard, how it is written, and the
 * windows of models that write times (Whisper). */
#ifndef FV_TRANSCRIBE_H
#define FV_TRANSCRIBE_H

#include "fovea/author/gen.h"
#include "fovea/author/recognise.h"
#include "task/task_pipeline.h"

/* ---- what was heard ---- */

/* A stretch of sound; text and ids are in the buffers of the transcript. */
typedef struct fv__heard {
    double from, to; /* seconds */
    size_t text, text_n;
    int64_t ids, n_ids;
} fv__heard;

typedef struct fv__transcript {
    fv_buf text, ids, heard; /* chars, int32_t, fv__heard */
    fv_buf words;            /* fv__heard of words, where the model tells their times; no ids */
} fv__transcript;

typedef enum fv__transcript_format {
    FV__TRANSCRIPT_TEXT,
    FV__TRANSCRIPT_TIMES, /* from, to, text, with tabs between */
    FV__TRANSCRIPT_WORDS, /* the same of words */
    FV__TRANSCRIPT_SRT,
    FV__TRANSCRIPT_VTT,
    FV__TRANSCRIPT_JSON
} fv__transcript_format;

static inline const fv__heard *fv__heard_at(const fv__transcript *t, int64_t *n)
{
    *n = (int64_t)(t->heard.len / sizeof(fv__heard));
    return (const fv__heard *)(const void *)t->heard.data;
}

static inline const fv__heard *fv__words_at(const fv__transcript *t, int64_t *n)
{
    *n = (int64_t)(t->words.len / sizeof(fv__heard));
    return (const fv__heard *)(const void *)t->words.data;
}

void fv__transcript_clear(fv__transcript *t, const fv_env *env);
void fv__transcript_free(fv__transcript *t);
/* Appends a stretch whose text is s, without the blanks around it. */
fv_status fv__transcript_add(fv__transcript *t, double from, double to, const char *s, size_t n,
                             const int32_t *ids, int64_t n_ids, fv_err *e);
/* Appends a word. */
fv_status fv__transcript_word(fv__transcript *t, double from, double to, const char *s, size_t n,
                              fv_err *e);
/* name, seconds: of the file, for JSON. */
void fv__transcript_write(fv_buf *out, const fv__transcript *t, fv__transcript_format how,
                          const fv_text *name, double seconds);

/* Of a stream, an object on a line each: words of a piece so far, and a piece that is complete. */
void fv__transcript_partial(fv_buf *out, const char *text, size_t n);
void fv__transcript_piece(fv_buf *out, const fv__transcript *t, const fv__heard *h);

/* ---- CTC and transducers ---- */

typedef struct fv__frames fv__frames;
/* stream: in chunks, with the model's look-ahead.  *out is to be closed whatever comes back. */
fv_status fv__frames_open(fv__frames **out, fv_pipeline *p, bool stream, fv_err *e);
void fv__frames_close(fv__frames *f); /* NULL is allowed */
int fv__frames_rate(const fv__frames *f);
/* A recording at the model's rate, as one piece with its words. */
fv_status fv__frames_hear(fv__frames *f, const fv_clip *whole, fv__transcript *to, fv_err *e);
/* Raw samples of 16 bits at the model's rate from standard input: each word is handed on as part of
 * the result when the next begins; a line for each, with its times, where `times`. */
fv_status fv__frames_stream(fv__frames *f, fv__transcript *heard, bool times, double *seconds,
                            fv_err *e);

/* Draws the lattice of the recording that was heard last; of transducers only. */
fv_status fv__frames_lattice(fv__frames *f, const char *path, fv_err *e);

/* What a lattice is drawn from. */
typedef struct fv__lattice {
    const float *logits;        /* (frames,n+1,V) */
    const float *features;      /* (frames,width) */
    const fv_recognised *token; /* n of them, the way that was taken */
    const fv_tok *tok;
    int64_t frames, n, V, width;
    int32_t blank;
    double seconds; /* of a frame */
} fv__lattice;
fv_status fv__lattice_write(const fv__lattice *in, const fv_env *env, const char *path, fv_err *e);

/* ---- words of models that generate ---- */

enum { FV__MOST_HEADS = 512 };
/* The heads of the cross-attention that say when a token was spoken. */
typedef struct fv__aligning {
    int32_t heads[2 * FV__MOST_HEADS]; /* layer and head of each; head -1: all of the layer's */
    int n, width;                      /* width of the median; 0: as usual */
} fv__aligning;
fv_status fv__aligning_read(fv__aligning *a, const fv_json *generation, const fv_json *config,
                            fv_err *e);
/* Appends the words of n tokens; ids from `first` on are times.  begins (n+1): seconds at which
 * each begins, and one more.  spaced: words of the language stand between blank spaces. */
fv_status fv__words_add(fv__transcript *to, const fv_tok *tok, const int32_t *ids, int64_t n,
                        int32_t first, const double *begins, bool spaced, fv_err *e);

/* ---- windows ---- */

/* What the tokens behind the start token ask for, by generation_config.json. */
typedef struct fv__asked {
    const fv_json *generation; /* lang_to_id */
    int32_t ids[8];            /* language, task, ..; -1: a language that is yet to be heard */
    int n;
    int32_t none;   /* <|notimestamps|>; -1: the model has no times */
    int32_t latest; /* of the first time; -1: any */
} fv__asked;

/* language: a code ("de"), "" for none; task: "transcribe", "translate" or "".  Refused:
 * what the model was not made for. */
fv_status fv__ask(fv__asked *q, const fv_json *generation, const fv_json *config,
                  const char *language, const char *task, fv_err *e);
/* Whether words of the language that was asked for, or heard, stand between blank spaces. */
bool fv__asked_spaced(const fv__asked *q);

typedef struct fv__windows {
    fv_device *dev;
    const fv_model *model;
    const fv_gen_opt *gen;
    bool times;    /* times among the tokens; always where there is more than one window */
    bool fallback; /* what is unlikely or repeats itself is drawn again, at higher temperatures */
    const fv__aligning *align; /* tokens get times; NULL: none are asked for */
    fv_status (*seek)(void *user, int64_t frame, int64_t n, fv_err *e); /* the window to hear */
    fv_source_fn *put;                                                  /* its inputs */
    /* what was heard, times included; begins (n+1): of tokens, NULL where there is no `align` */
    fv_status (*segment)(void *user, const fv__asked *q, double from, double to, const int32_t *ids,
                         int64_t n, const double *begins, fv_err *e);
    void *user;
} fv__windows;

/* Hears `frames` frames (0.01 s) in windows of `window`; a window ends where its last whole segment
 * does.  q: its language is filled in where it was heard. */
fv_status fv__windows_run(const fv__windows *w, fv__asked *q, int64_t frames, int64_t window,
                          fv_err *e);

/* ---- standard input, by models that generate ---- */

/* What hears and who is told; positions are samples of the clip, at the model's rate. */
typedef struct fv__live {
    fv_clip *clip; /* what came so far and is still needed; filled here */
    fv__transcript *heard;
    int rate;     /* of the model */
    double chunk; /* seconds of a piece at most */
    /* where the piece that begins at `from` ends, `most` samples on or before */
    int64_t (*end)(void *user, int64_t from, int64_t most);
    /* appends tokens of the stretch to ids, which it has to begin with */
    fv_status (*guess)(void *user, int64_t from, int64_t to, fv_buf *ids, fv_err *e);
    /* puts the stretch into `heard` as a recording of it gives it; seconds: before the clip */
    fv_status (*piece)(void *user, int64_t from, int64_t to, double seconds, fv_err *e);
    void *user;
} fv__live;

/* Reads raw samples of 16 bits at `rate`, or a WAV file, from standard input until it ends; what is
 * certain and pieces are handed on as parts of p's result. */
fv_status fv__live_run(const fv__live *how, fv_pipeline *p, int rate, fv_err *e);

#endif
