/* series.h - time series from files of numbers with dates, for objectives and tasks.
 *
 * A file is a table (CSV): the first line names the columns, one of them holds the date, the others
 * are channels.  Moments follow each other in time: a date that is not after the one before it is
 * an error that names its line. */
#ifndef FOVEA_AUTHOR_SERIES_H
#define FOVEA_AUTHOR_SERIES_H

#include "fovea/env.h"

typedef struct fv_series fv_series;

/* What becomes of a value that is missing: an empty field, NaN, NA, null. */
typedef enum fv_missing {
    FV_MISSING_REFUSE = 0, /* an error that names the line */
    FV_MISSING_PREVIOUS,   /* the value before it; before the first there is, that one */
    FV_MISSING_LINEAR      /* on the line between the values around it; at the ends as previous */
} fv_missing;
FV_DATA const char *const fv_missing_words[]; /* words for the above, ending in NULL */

typedef struct fv_series_opt {
    const char *file;    /* plain or gzip; commas, semicolons or tabs between fields */
    const char *date;    /* name of the column with the date; NULL or "": the first column */
    const char *columns; /* names of the channels, commas between them; NULL or "": all others */
    fv_missing missing;
} fv_series_opt;

/* Dates are 2016-07-01, 2016-07-01 13:00 or 2016-07-01T13:00:00 (also with /, with Z behind), or
 * plain numbers. */
FV_API fv_status fv_series_open(fv_series **out, const fv_env *env, const fv_series_opt *opt,
                                fv_err *e);
FV_API void fv_series_close(fv_series *s);          /* NULL is allowed */
FV_API int64_t fv_series_count(const fv_series *s); /* time steps */
FV_API int fv_series_channels(const fv_series *s);
FV_API const char *fv_series_name(const fv_series *s, int channel);
/* (steps,channels), row by row. */
FV_API const float *fv_series_values(const fv_series *s);
/* Values that were missing and have been filled. */
FV_API int64_t fv_series_filled(const fv_series *s);
/* The date of moment i; from the last on, dates go on by the last distance.  out has at least 32
 * bytes. */
FV_API void fv_series_date(const fv_series *s, int64_t i, char *out, size_t n);

/* ---- one series in a text ---- */

/* Numbers with commas or blanks between them, channels with ":" between (as in .ts files of the
 * UEA archive); "?", NaN, NA or nothing between two commas is a value that is missing.  How many
 * time steps and channels there are; channels of different lengths are an error. */
FV_API fv_status fv_series_measure(const char *text, size_t n, int64_t *steps, int64_t *channels,
                                   fv_err *e);
/* x and observed (steps,channels): a shorter series stands at the end.  What is missing, and what
 * is before it, is not observed, and holds the mean of its channel.  A longer one, and one of
 * another number of channels, is an error. */
FV_API fv_status fv_series_parse(float *x, uint8_t *observed, int64_t steps, int64_t channels,
                                 const char *text, size_t n, fv_err *e);

#endif
