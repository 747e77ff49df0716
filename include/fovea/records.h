/* records.h - how files of records are read: one or two texts each.
 *
 * A record with a malformed or empty text, or with more tokens than allowed, is treated by policy:
 * left out ("drop"), shortened where that makes sense ("cut"), or the whole file is refused
 * ("refuse").  A report counts what was left out or shortened, and names the first few lines.
 * Files whose line counts differ, and records without the wanted fields, are errors. */
#ifndef FOVEA_RECORDS_H
#define FOVEA_RECORDS_H

#include "fovea/env.h"

typedef enum fv_format {
    /* by the name, .gz aside: .tsv and .csv are tables, .jsonl or .ndjson objects, .label words,
     * anything else lines */
    FV_FORMAT_AUTO = 0,
    FV_FORMAT_LINES, /* a line is a text; two files stand side by side */
    FV_FORMAT_TSV,   /* fields with tabs between them */
    FV_FORMAT_JSONL, /* an object a line */
    FV_FORMAT_WORD,  /* a word and a blank before the text: the word is the second text */
    /* commas between fields; one in quotes may hold commas, quotes ("") and lines */
    FV_FORMAT_CSV,
    FV_FORMAT_FASTA /* a header that begins with >, then lines of one sequence, which is a text */
} fv_format;

typedef enum fv_policy { FV_DROP = 0, FV_CUT, FV_REFUSE } fv_policy;
FV_DATA const char *const fv_formats[]; /* words for the above, ending in NULL */
FV_DATA const char *const fv_policies[];

typedef struct fv_records {
    /* beside: the second text stands line by line in a file of its own; NULL: it does not */
    const char *file, *beside;
    fv_format format;
    /* Which fields: names of a JSONL object or of a table's first line, or numbers from 1 of a
     * table's columns.  NULL: the first and the second column, which must be all there are.  In
     * JSONL a.b is member b of the object a, a[0] the first of the list a. */
    const char *field[2];
    bool header; /* a table's first line is no record; so it is when field has names */
    bool latin1; /* bytes are ISO-8859-1 */
    /* the second text of a JSONL record may be a list of texts: they come as one, with
     * FV_NEXT_TEXT between them; else a list is an error */
    bool lists;
    fv_policy malformed, empty, too_long;
    int64_t max_len; /* tokens of a text, specials included; 0: 512 */
    int64_t most;    /* at most so many records are kept; 0: all */
    /* Only this part of the file, from and to as shares of its records (of a plain text, of its
     * bytes): {0, 0.9} and {0.9, 1} have no record in common.  {0, 0}: all. */
    double part[2];
} fv_records;

/* What became of the records of a file. */
typedef struct fv_data_report {
    int64_t records, kept, empty, malformed, too_long, cut;
    char first[3][160]; /* "train.en:17: not UTF-8 at byte 5"; unused ones are empty */
    int64_t tokens[2];
} fv_data_report;

#endif
