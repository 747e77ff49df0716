/* records.h - records of one or two texts from files of any format, checked and counted. */
#ifndef FV_RECORDS_H
#define FV_RECORDS_H

#include "base/base.h"
#include "fovea/author/data.h"

typedef struct fv__span {
    const char *s;
    size_t n;
} fv__span;

enum { FV__TEXTS = 2 }; /* of a record, at most */

typedef struct fv__record {
    fv__span text[FV__TEXTS];    /* UTF-8 */
    const char *file[FV__TEXTS]; /* where they stand */
    int64_t line;
} fv__record;

typedef struct fv__reading fv__reading;

/* Each record in turn; what it returns ends the reading unless FV_OK. */
typedef fv_status fv__record_fn(fv__reading *r, const fv__record *rec);

struct fv__reading {
    const fv_env *env;
    const fv_records *from;
    int n_texts; /* of each record: 1 or 2 */
    fv__record_fn *each;
    void *user;
    fv_data_report *report;
    fv_err *e;
    int noted;
    fv_buf utf8[FV__TEXTS]; /* what became of ISO-8859-1 */
    fv_buf made[FV__TEXTS]; /* a text that stands nowhere as it is: unquoted, or a list */
};

fv_status fv__records_read(fv__reading *r);
/* The format of a file: as given, or by its name. */
fv_format fv__records_format(const fv_records *from);

/* ---- FASTA, fasta.c ---- */

typedef struct fv__fasta {
    bool inside, skip; /* a line; one that is no sequence */
    bool any;          /* a sequence has begun */
} fv__fasta;

bool fv__names_fasta(const char *path); /* .fasta, .fa or .faa, .gz aside */
/* Appends bytes of such a file as lines, a sequence each; the last has no line end. */
void fv__fasta_add(fv__fasta *f, fv_buf *out, const char *s, size_t n);

/* ---- fields of a line, records_fields.c ---- */

enum { FV__MAX_COLUMNS = 256 };

/* Splits at a tab, or at commas that stand in no quotes; returns how many fields there are. */
int fv__fields_split(fv__span line, char separator, fv__span out[FV__MAX_COLUMNS]);
/* A field of CSV without its quotes; b is used where it holds quotes itself. */
fv__span fv__field_unquoted(fv__span field, fv_buf *b);
/* The row that begins at line i: a quoted field may go on over line ends.  *next: the line behind
 * it, or -1 where a quote is never closed. */
fv__span fv__csv_row(const fv_textfile *t, int64_t i, int64_t *next);
/* What stands at "a.b[0]" below a value, or NULL; a key may hold dots and brackets itself. */
const struct fv__jnode *fv__json_field(const struct fv__jnode *at, const char *path);
/* One record that stands in memory, with the same checks. */
fv_status fv__records_give(fv__reading *r, const fv__record *rec);
/* Which of n records from->part covers: [*first, *last). */
void fv__records_part(const fv_records *from, int64_t n, int64_t *first, int64_t *last);
/* Tokens that a text of a record may have. */
int64_t fv__records_most(const fv__reading *r);
/* A text of n tokens is too long: by the policy *keep says how many of them stay (0: the record is
 * left out). */
fv_status fv__records_long(fv__reading *r, const fv__record *rec, int i, int64_t n, int64_t *keep);
/* A note for the report: where, and why. */
void fv__records_note(fv__reading *r, const char *file, int64_t line, const char *why, ...)
    FV_PRINTF(4, 5);

#endif
