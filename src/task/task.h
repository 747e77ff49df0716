/* task.h - what the tasks share: the open model, encoded texts, batches. */
#ifndef FV_TASK_H
#define FV_TASK_H

#include "core/core.h"
#include "fovea/author/audio.h"
#include "fovea/author/data.h"
#include "fovea/task.h"
#include "fovea/author/config.h"

/* One encoded sequence; memory of the call. */
typedef struct fv_seq {
    int64_t n;
    int32_t *ids, *types;
    fv_span *spans;   /* characters */
    int32_t *words;   /* which word a token is part of */
    uint8_t *special; /* 1: added by the tokenizer */
    int32_t *letters; /* (n,word_bytes) of the task: those of each token's word; or NULL */
} fv_seq;

/* Bytes at which the characters of a text begin, and its end; for finding what a span of characters
 * covers. */
typedef struct fv_chars {
    const char *s;
    size_t *at;
    int64_t n;
} fv_chars;

/* A dense layer behind the pooling: y = act(w x + b), w (out,in). */
typedef struct fv_dense {
    int64_t in, out;
    float *w, *b; /* b may be NULL */
    bool tanh;
    struct fv_dense *next;
} fv_dense;

struct fv_task {
    fv_env env;
    fv_job job;
    fv_device *dev;
    fv_model *model;
    fv_tok *tok;                 /* NULL: the model reads no text */
    fv_processor *processor;     /* of images, sound or series; NULL: the model reads text alone */
    int seen_width, seen_height; /* of the last image, as its file has it */
    fv_encoding *enc;
    fv_dir *dir;
    fv_ctx *ctx;
    fv_arena host;   /* texts and results of one call */
    int64_t longest; /* tokens at once */
    bool strict;     /* a longer text is an error, it is not cut */
    int32_t pad;
    bool types;         /* the model takes token_type_ids */
    int64_t word_bytes; /* bytes of a word that it takes as char_ids; 0: it does not */
    float *transitions; /* (labels+2,labels) of a conditional random field, or NULL */
    fv_pool pool;       /* of sentence-transformers' files */
    bool not_normal;    /* likewise: vectors are not scaled to length 1 */
    fv_dense *dense;    /* likewise, or NULL */
    const char *prompt; /* likewise: what stands before each text, or NULL */
    fv_arena names;     /* as long as the task */
    int labels;
    const char **label;
    char mask[64];
    fv_seq *filled; /* texts of the last fv_task_fill, and capacity for one of them */
    int32_t *copy;
};

/* An integer of the model's configuration; 0 where the family has no such key. */
int64_t fv__task_setting(const fv_task *t, const char *key);
/* Reads modules.json and what it names, and the prompts of config_sentence_transformers.json. */
fv_status fv__task_read_modules(fv_task *t, fv_err *e);
/* Forgets what the last call gave. */
void fv__task_begin(fv_task *t);
/* Memory until the next call; NULL with e filled. */
void *fv__task_claim(fv_task *t, size_t bytes, fv_err *e);
/* most: tokens it may have, cut beyond; 0: no limit. */
fv_status fv__task_encode(fv_task *t, fv_seq *out, const fv_text *x, int64_t most, fv_err *e);
fv_status fv__task_encode_all(fv_task *t, fv_seq **out, const fv_text *texts, int64_t n, fv_err *e);

/* What came out for sequence i: its rows of each output asked for, each `width` numbers wide. */
typedef fv_status fv_row_fn(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                            int64_t width, fv_err *e);

typedef struct fv_wanted {
    const char *names[2]; /* of outputs; the second may be NULL */
    int64_t per_token;    /* numbers that come out for each token, which limits a batch */
    fv_row_fn *fn;        /* of an image s has only n: the rows of the first output */
    /* Adds inputs beside pixel_values; NULL: there are none. */
    fv_status (*more)(void *user, fv_ctx *c, fv_items *in);
    void *user;
} fv_wanted;

/* Runs all sequences, the longest first, those of like length together, and calls fn for each. */
fv_status fv__task_run(fv_task *t, const fv_seq *seqs, int64_t n, const fv_wanted *w, fv_err *e);

/* ---- images: a text is the path of one ---- */

bool fv__task_sees(const fv_task *t);
bool fv__names_image(const fv_text *x); /* by the ending of its name */
/* Of the image that was run last, before it was resized: what its boxes are measured in. */
void fv__task_image_size(const fv_task *t, int *width, int *height);
/* One that is decoded; raw's channels may be changed. */
fv_status fv__task_run_image(fv_task *t, fv_image *raw, const fv_wanted *w, fv_err *e);
/* A model of sound: a text is the path of a sound file (task_sound.c). */
bool fv__family_hears(const fv_family *f);
bool fv__task_hears(const fv_task *t);
fv_status fv__task_run_sound(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                             fv_err *e);
/* The clip at a path; "-": standard input, a sound file or else raw samples at `rate`. */
fv_status fv__clip_at(fv_clip *out, const fv_env *env, const fv_text *path, int rate, fv_err *e);
/* A model of time series: a text is the numbers of one (task_series.c). */
bool fv__task_reads_series(const fv_task *t);
fv_status fv__task_run_series(fv_task *t, const fv_text *texts, int64_t n, const fv_wanted *w,
                              fv_err *e);
/* t->processor, where the model takes pixel_values, sound or series. */
fv_status fv__task_open_processor(fv_task *t, fv_err *e);
fv_status fv__task_run_images(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                              fv_err *e);
/* Frames that a model of video takes; 0: it takes images.  Then a text is the path of a folder of
 * frames (task_clips.c). */
int64_t fv__task_frames(const fv_task *t);
fv_status fv__task_run_clips(fv_task *t, const fv_text *paths, int64_t n, const fv_wanted *w,
                             fv_err *e);
/* Reads the outputs that w wants of a batch of n, of which the first is number `first`. */
fv_status fv__task_hand_back(fv_task *t, const fv_items *out, int64_t first, int64_t n,
                             const fv_wanted *w, fv_err *e);
/* n images that `get` gives. */
fv_status fv__task_run_got(fv_task *t,
                           fv_status (*get)(void *user, int64_t i, fv_image *raw, fv_err *e),
                           void *user, int64_t n, const fv_wanted *w, fv_err *e);
/* Images from .. from + n - 1 of a set; fn counts from 0. */
fv_status fv__task_run_set(fv_task *t, const fv_images *set, int64_t from, int64_t n,
                           const fv_wanted *w, fv_err *e);

fv_status fv__task_chars(fv_task *t, fv_chars *out, const char *s, size_t n, fv_err *e);
/* The bytes of characters [from, to). */
const char *fv__chars_slice(const fv_chars *c, int64_t from, int64_t to, size_t *n);

/* s->letters of a sequence that was encoded from x; nothing where the model takes none. */
fv_status fv__task_letters(fv_task *t, fv_seq *s, const fv_text *x, fv_err *e);
/* Of the n positions at[i] of a sequence the labels that score highest together, best (n); x:
 * scores of all positions.  Without transitions each position's own best. */
fv_status fv__task_decode(fv_task *t, int32_t *best, const float *x, const int64_t *at, int64_t n,
                          int64_t width, fv_err *e);

/* x becomes softmax(x). */
void fv__softmax_row(float *x, int64_t n);

/* A stream of what follows a prompt: it has read that already, and gives none of its text. */
fv_status fv__writer_stream(fv_writer *w, fv_tok_stream **out, const int32_t *prompt, int64_t n,
                            fv_err *e);
/* fv_task_classify before softmax or sigmoid. */
fv_status fv__task_logits(fv_task *t, const fv_text *texts, int64_t n, float *logits, fv_err *e);
/* How likely each text is: the sum of log p(token | all the others) over its tokens, each being
 * masked in turn, and how many they are.  from: only those that end behind this character of the
 * text; NULL: all.  n tokens cost n passes. */
fv_status fv__task_score(fv_task *t, const fv_text *texts, int64_t n, const int64_t *from,
                         double *log_p, int64_t *tokens, fv_err *e);

/* Words that stand apart already. */
typedef struct fv__sentence {
    const char *const *word;
    int64_t n;
} fv__sentence;
/* The label of each word, those of all sentences one after the other, by its first token as models
 * are trained; -1: the word has no tokens.  Sentences longer than the model sees are read in
 * parts. */
fv_status fv__task_tag_words(fv_task *t, const fv__sentence *s, int64_t n, int32_t *labels,
                             fv_err *e);

#endif
