/* data.h - records of text files for training and evaluation: read, checked, counted, encoded.
 *
 * A record with a malformed or empty text, or with more tokens than allowed, is treated by policy:
 * left out ("drop"), shortened where that makes sense ("cut"), or the whole file is refused
 * ("refuse").  A report counts what was left out or shortened, and names the first few lines.
 * Files whose line counts differ, and records without the wanted fields, are errors. */
#ifndef FOVEA_DATA_H
#define FOVEA_DATA_H

#include "fovea/feed.h"
#include "fovea/tok.h"

/* ---- text files: plain or gzip, a line each ---- */

typedef struct fv_textfile fv_textfile;
FV_API fv_status fv_textfile_open(fv_textfile **out, const fv_env *env, const char *path,
                                  fv_err *e);
FV_API void fv_textfile_close(fv_textfile *t);                         /* NULL is allowed */
FV_API const char *fv_textfile_all(const fv_textfile *t, size_t *len); /* all of it */
FV_API int64_t fv_textfile_count(const fv_textfile *t);
/* Line i, without its end (LF or CR LF); not NUL-terminated. */
FV_API const char *fv_textfile_line(const fv_textfile *t, int64_t i, size_t *len);

/* ---- records: one or two texts each ---- */

typedef enum fv_format {
    FV_FORMAT_AUTO =
        /* by the name, .gz aside: .tsv is a table, .jsonl or .ndjson objects, .label words,
         * anything else lines */
    0,
    FV_FORMAT_LINES, /* a line is a text; two files stand side by side */
    FV_FORMAT_TSV,   /* fields with tabs between them */
    FV_FORMAT_JSONL, /* an object a line */
    FV_FORMAT_WORD   /* a word and a blank before the text: the word is the second text */
} fv_format;

typedef enum fv_policy { FV_DROP = 0, FV_CUT, FV_REFUSE } fv_policy;
FV_DATA const char *const fv_formats[]; /* words for the above, ending in NULL */
FV_DATA const char *const fv_policies[];

typedef struct fv_records {
    /* beside: the second text stands line by line in a file of its own; NULL: it does not */
    const char *file, *beside;
    fv_format format;
    /* Which fields: names of a JSONL object or of a table's first line, or numbers from 1 of a
     * table's columns.  NULL: the first and the second column, which must be all there are. */
    const char *field[2];
    bool header; /* a table's first line is no record; so it is when field has names */
    bool latin1; /* bytes are ISO-8859-1 */
    fv_policy malformed, empty, too_long;
    int64_t max_len; /* tokens of a text, specials included; 0: 512 */
    int64_t most;    /* at most so many records are kept; 0: all */
    /* Only this part of the file, from and to as shares of its records (of a plain text, of its
     * bytes): {0, 0.9} and {0.9, 1} have no record in common.  {0, 0}: all. */
    double part[2];
} fv_records;

typedef struct fv_data_report {
    int64_t records, kept, empty, malformed, too_long, cut;
    char first[3][160]; /* "train.en:17: not UTF-8 at byte 5"; unused ones are empty */
    int64_t tokens[2];
} fv_data_report;

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
} fv_labels;

/* Its number, or -1. */
FV_API int32_t fv_labels_find(const fv_labels *l, const char *s, size_t n);
/* Its number, a new one where it is not there yet. */
FV_API fv_status fv_labels_add(fv_labels *l, int32_t *id, const char *s, size_t n, fv_err *e);
FV_API void fv_labels_free(fv_labels *l); /* empties it; its numbers are gone */

/* ---- the feed of pairs; author/objective.h has the others ---- */

/* input_ids, attention_mask, decoder_input_ids (start, then the target), labels (the target, -100
 * for padding).  Closed by fv_feed_close.  Owns p when own is set, else p must outlive it. */
FV_API fv_status fv_feed_pairs(fv_feed *out, fv_pairs *p, int32_t pad, int32_t start, bool own,
                               fv_err *e);
/* The pairs of a feed that fv_feed_pairs made. */
FV_API const fv_pairs *fv_feed_pairs_of(const fv_feed *f);

#endif
