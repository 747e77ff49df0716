/* data.h - data for training and evaluation: text files, tables, tagged words, questions, pairs,
 * labels.  records.h says how files of records are read. */
#ifndef FOVEA_AUTHOR_DATA_H
#define FOVEA_AUTHOR_DATA_H

#include "fovea/author/audio.h"
#include "fovea/author/feed.h"
#include "fovea/records.h"
#include "fovea/author/processor.h"

/* ---- text files: plain or gzip, a line each ---- */

typedef struct fv_textfile fv_textfile;
FV_API fv_status fv_textfile_open(fv_textfile **out, const fv_env *env, const char *path,
                                  fv_err *e);
FV_API void fv_textfile_close(fv_textfile *t);                         /* NULL is allowed */
FV_API const char *fv_textfile_all(const fv_textfile *t, size_t *len); /* all of it */
FV_API int64_t fv_textfile_count(const fv_textfile *t);
/* Line i, without its end (LF or CR LF); not NUL-terminated. */
FV_API const char *fv_textfile_line(const fv_textfile *t, int64_t i, size_t *len);

/* ---- records as they stand, for evaluation and for tokenizers ---- */

/* Records of `texts` texts each, 1 or 2. */
typedef struct fv_table fv_table;
FV_API fv_status fv_table_open(fv_table **out, const fv_env *env, const fv_records *from, int texts,
                               fv_data_report *report, fv_err *e);
FV_API void fv_table_close(fv_table *t); /* NULL is allowed */
FV_API int64_t fv_table_count(const fv_table *t);
/* Text `which` of record i; NUL-terminated. */
FV_API const char *fv_table_text(const fv_table *t, int64_t i, int which, size_t *len);
FV_API int64_t fv_table_line(const fv_table *t, int64_t i); /* where it stands in the file */

/* Words with tags: CoNLL's columns, the word first and its tag last, an empty line behind a
 * sentence.  Lines that begin with
 * -DOCSTART- are no words.  Tags in IOB1, where B- stands only between neighbours of one kind,
 * become IOB2, where every entity begins with B-. */
typedef struct fv_tagged fv_tagged;
FV_API fv_status fv_tagged_open(fv_tagged **out, const fv_env *env, const fv_records *from,
                                fv_data_report *report, fv_err *e);
FV_API void fv_tagged_close(fv_tagged *t);          /* NULL is allowed */
FV_API int64_t fv_tagged_count(const fv_tagged *t); /* sentences */
/* Sentence i: n words and their tags, NUL-terminated; *line is where it ends. */
FV_API int64_t fv_tagged_sentence(const fv_tagged *t, int64_t i, const char *const **word,
                                  const char *const **tag, int64_t *line);

/* Questions about texts, in SQuAD's JSON. */
typedef struct fv_question {
    const char *id;             /* NULL: it has none */
    const char *text, *context; /* questions about one text point to the same */
    const char *const *answer;  /* n of them, each right; none: the text does not say */
    int64_t n;
    int64_t start; /* characters of the context before the first answer; -1: there is none */
} fv_question;

typedef struct fv_questions fv_questions;
FV_API fv_status fv_questions_open(fv_questions **out, const fv_env *env, const char *path,
                                   fv_err *e);
FV_API void fv_questions_close(fv_questions *q); /* NULL is allowed */
FV_API int64_t fv_questions_count(const fv_questions *q);
FV_API const fv_question *fv_questions_at(const fv_questions *q, int64_t i);

/* ---- pairs of sentences, for sequence to sequence ---- */

typedef struct fv_pairs fv_pairs;

typedef struct fv_pairs_opt {
    fv_records from;
    int32_t eos;     /* put after every side; -1: what the tokenizer adds is all */
    bool keep_texts; /* so that fv_pairs_text works */
} fv_pairs_opt;

FV_API fv_status fv_pairs_open(fv_pairs **out, const fv_env *env, const fv_tok *tok,
                               fv_pairs_opt opt, fv_data_report *report, fv_err *e);
/* The same from memory: n texts of each side. */
FV_API fv_status fv_pairs_make(fv_pairs **out, const fv_env *env, const fv_tok *tok,
                               const char *const *source, const char *const *target, int64_t n,
                               fv_pairs_opt opt, fv_data_report *report, fv_err *e);
FV_API void fv_pairs_close(fv_pairs *p); /* NULL is allowed */
FV_API int64_t fv_pairs_count(const fv_pairs *p);
FV_API const int32_t *fv_pairs_source(const fv_pairs *p, int64_t i, int64_t *n);
FV_API const int32_t *fv_pairs_target(const fv_pairs *p, int64_t i, int64_t *n);
/* The target as it was read, NUL-terminated; NULL without keep_texts. */
FV_API const char *fv_pairs_text(const fv_pairs *p, int64_t i);

/* ---- names of labels, in order of their first appearance in the training data ---- */

typedef struct fv_labels {
    const fv_env *env;
    int32_t n;
    bool closed; /* a name that is not there is an error, not a new label */
    char **name; /* n of them, NUL-terminated */
    size_t name_bytes;
    int32_t *slot; /* a hash table of numbers from 1 */
    uint32_t slots;
    uint64_t seed; /* of the hash */
} fv_labels;

/* Its number, or -1. */
FV_API int32_t fv_labels_find(const fv_labels *l, const char *s, size_t n);
/* Its number, a new one where it is not there yet. */
FV_API fv_status fv_labels_add(fv_labels *l, int32_t *id, const char *s, size_t n, fv_err *e);
FV_API void fv_labels_free(fv_labels *l); /* empties it; its numbers are gone */

/* ---- images, each with a label or a text ---- */

typedef struct fv_images fv_images;

typedef struct fv_images_opt {
    /* Where they stand: a folder or an archive (.tar, .tar.gz) with a folder for each label; an IDX
     * file, with the labels in `beside` or in the file of the same name with "labels-idx1"; a table
     * whose first field names an image and whose second is its label or text.  Of part and most,
     * images are taken evenly, as those of a label usually stand together. */
    fv_records from;
    /* What the first field of a table is looked up in, relative to the table's folder: a folder or
     * an archive (as path), an IDX file (as number from 0); NULL: that folder itself. */
    const char *images;
    const char *where; /* "field=value": only such rows of a table; NULL: all */
    const char *group; /* field of a table whose value an item is grouped by; NULL: none */
    bool sounds;       /* sound files are listed, not images; no IDX */
    fv_labels *labels; /* grows while they are opened; NULL: they have no labels, but texts */
} fv_images_opt;

FV_API fv_status fv_images_open(fv_images **out, const fv_env *env, const fv_images_opt *opt,
                                fv_data_report *report, fv_err *e);
FV_API void fv_images_close(fv_images *m); /* NULL is allowed */
FV_API int64_t fv_images_count(const fv_images *m);
/* Decodes image i, using the memory of out again; several threads may at once. */
FV_API fv_status fv_images_get(const fv_images *m, int64_t i, fv_image *out, fv_err *e);
/* The same of sounds. */
FV_API fv_status fv_images_clip(const fv_images *m, int64_t i, fv_clip *out, fv_err *e);
FV_API int32_t fv_images_label(const fv_images *m, int64_t i);    /* -1: it has none */
FV_API const char *fv_images_text(const fv_images *m, int64_t i); /* of a table; else NULL */
/* Number of its value in the field `group`, in order of appearance; 0 where there is none. */
FV_API int32_t fv_images_group(const fv_images *m, int64_t i);
FV_API const char *fv_images_group_name(const fv_images *m, int32_t group); /* NULL past the last */
/* Its name, for messages: out has at least 256 bytes. */
FV_API void fv_images_name(const fv_images *m, int64_t i, char *out, size_t n);

/* ---- images with boxes around what is in them ---- */

/* Corners in pixels: left, top, right, bottom. */
typedef struct fv_box {
    float x0, y0, x1, y1;
    int32_t label;
    bool difficult; /* Pascal VOC's: detecting it counts neither way.  COCO's crowds are so, too */
} fv_box;

typedef struct fv_boxed fv_boxed;

typedef struct fv_boxed_opt {
    /* A folder or an archive, in it anywhere: Annotations/X.xml with JPEGImages/X.jpg (or .png), as
     * Pascal VOC has them; or a file of COCO's, whose images are named in it. */
    const char *path;
    const char *split; /* VOC: only those that ImageSets/Main/SPLIT.txt names; COCO: the file's name
                        * in the archive, or of the file itself; NULL: all */
    int64_t most;      /* images, taken evenly; 0: all */
    fv_labels *labels; /* grows while they are opened */
} fv_boxed_opt;

FV_API fv_status fv_boxed_open(fv_boxed **out, const fv_env *env, const fv_boxed_opt *opt,
                               fv_err *e);
FV_API void fv_boxed_close(fv_boxed *b); /* NULL is allowed */
FV_API int64_t fv_boxed_count(const fv_boxed *b);
FV_API fv_status fv_boxed_get(const fv_boxed *b, int64_t i, fv_image *out, fv_err *e);
/* The n boxes of image i. */
FV_API const fv_box *fv_boxed_boxes(const fv_boxed *b, int64_t i, int64_t *n);
FV_API const char *fv_boxed_name(const fv_boxed *b, int64_t i);

/* ---- feeds of records ---- */

/* What a feed is opened with, besides its files.  Ids are -1 where the tokenizer has no such
 * token. */
typedef struct fv_feed_opt {
    const fv_env *env;
    const fv_tok *tok;             /* must outlive the feed; NULL: there is none */
    const fv_processor *processor; /* likewise */
    int32_t pad, start, eos, cls, sep, mask;
    bool evaluation;     /* the feed is evaluated, not trained on: texts for metrics are kept */
    const void *options; /* the objective's own struct, filled by its table of keys */
    fv_labels *labels;   /* grows while the feed is opened; must outlive it */
} fv_feed_opt;

/* Opens the feed of an objective; fv_feed_close closes it. */
typedef fv_status fv_feed_fn(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                             fv_data_report *report, fv_err *e);

/* input_ids, attention_mask, decoder_input_ids (start, then the target), labels (the target, -100
 * for padding).  Closed by fv_feed_close.  Owns p when own is set, else p must outlive it. */
FV_API fv_status fv_feed_pairs(fv_feed *out, fv_pairs *p, int32_t pad, int32_t start, bool own,
                               fv_err *e);
/* The pairs of a feed that fv_feed_pairs made. */
FV_API const fv_pairs *fv_feed_pairs_of(const fv_feed *f);

#endif
