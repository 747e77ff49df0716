/* data.h - text for training: read, checked, encoded once, and served by a feed for each objective.
 *
 * What a record must be is stated here and nowhere guessed.  One with a malformed or empty text, or
 * with more tokens than allowed, is treated by a stated policy: it is left out ("drop"), shortened
 * where that makes sense ("cut"), or the whole file is refused ("refuse").  Whatever is left out or
 * shortened is counted, and its first few places are kept for the report.  Files whose line counts
 * differ, and records without the wanted fields, are errors. */
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
    int n;
    bool closed; /* a name that is not there is an error, not a new label */
    char name[256][64];
} fv_labels;

/* ---- feeds, one for each objective; each owns what it is given or reads, and is closed by
 * fv_feed_close ---- */

/* input_ids, attention_mask, decoder_input_ids (start, then the target), labels (the target, -100
 * behind it).  Owns p when own is set, else p must live longer. */
FV_API fv_status fv_feed_pairs(fv_feed *out, fv_pairs *p, int32_t pad, int32_t start, bool own,
                               fv_err *e);

/* What the other objectives need besides their files.  Ids are -1 where the tokenizer has no such
 * token. */
typedef struct fv_feed_opt {
    const fv_env *env;
    const fv_tok *tok; /* must outlive the feed */
    int32_t pad, start, eos, cls, sep, mask;
    int64_t context;   /* tokens of a window of running text, its frame included */
    float share, span; /* of tokens that are hidden; mean length of a hidden span */
    float drop;        /* of tokens hidden while labels of texts and words are learnt */
    double part[2];    /* of a plain text: from and to, as shares of its length; {0, 0}: all */
    fv_labels *labels; /* filled while the feed is opened; must outlive it */
    const char *label_until; /* a label ends before any of these characters; NULL: nowhere */
} fv_feed_opt;

typedef fv_status fv_feed_fn(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                             fv_data_report *report, fv_err *e);

/* Running text, the ids as labels: what comes next. */
FV_API fv_feed_fn fv_feed_causal;
/* Running text with hidden words, drawn anew whenever a window is seen. */
FV_API fv_feed_fn fv_feed_masked;
/* The same for pairs of sentences, with next_sentence_label: BERT's pre-training. */
FV_API fv_feed_fn fv_feed_masked_next;
/* Running text with hidden spans: T5's (sentinels, the target holds the spans) and BART's (masks,
 * it holds the text). */
FV_API fv_feed_fn fv_feed_spans;
FV_API fv_feed_fn fv_feed_denoise;
/* A label for each text, a tag for each word (CoNLL columns), an answer in a context (SQuAD's
 * JSON). */
FV_API fv_feed_fn fv_feed_classify;
FV_API fv_feed_fn fv_feed_tag;
FV_API fv_feed_fn fv_feed_answer;

#endif
