/* events.h - what users did, in order of time: sequences of items, for recommendation; and what
 * they were shown, for estimates of whether they take it. */
#ifndef FOVEA_AUTHOR_EVENTS_H
#define FOVEA_AUTHOR_EVENTS_H

#include "fovea/author/data.h"

typedef struct fv_events fv_events;

typedef enum fv_events_layout {
    FV_EVENTS_ROWS = 0, /* user, item and perhaps time on each line */
    FV_EVENTS_SEQUENCES /* a user and all its items, in order of time, on each line */
} fv_events_layout;
FV_DATA const char *const fv_events_layouts[]; /* words for the above, ending in NULL */

typedef struct fv_events_opt {
    const char *file; /* plain or gzip; tabs, commas, semicolons or blanks between fields */
    fv_events_layout layout;
    bool header;      /* the first line names the columns and is no event */
    fv_labels *items; /* their numbers, in order of appearance; grows unless it is closed */
} fv_events_opt;

/* Rows with a third field are sorted by it, a number, within each user; equal times, and rows
 * without one, stay in the order of the file. */
FV_API fv_status fv_events_open(fv_events **out, const fv_env *env, const fv_events_opt *opt,
                                fv_err *e);
FV_API void fv_events_close(fv_events *v);          /* NULL is allowed */
FV_API int64_t fv_events_users(const fv_events *v); /* in order of their first appearance */
FV_API const char *fv_events_user(const fv_events *v, int64_t user);
/* The number of the user of that name, or -1. */
FV_API int64_t fv_events_find(const fv_events *v, const char *user);
/* The items of a user, in order of time. */
FV_API const int32_t *fv_events_items(const fv_events *v, int64_t user, int64_t *n);

/* ---- impressions: a candidate that was shown, and whether it was taken ---- */

typedef struct fv_impressions fv_impressions;

typedef struct fv_impression {
    int32_t item;           /* the candidate */
    int32_t label;          /* 1: taken, 0: not, -1: not known */
    const int32_t *history; /* (n), oldest first */
    int64_t n;
    const int32_t *features; /* a number below `buckets` for each column of features */
} fv_impression;

typedef struct fv_impressions_opt {
    /* Plain or gzip, tabs between columns: label (1, 0 or -), candidate, history (items with blanks
     * between, oldest first; may be empty), then a column for each feature. */
    const char *file;
    bool header;      /* the first line names the columns */
    fv_labels *items; /* grows unless it is closed; then others get the number items->n */
    int64_t buckets;  /* a feature is the hash of its column and its text, below this */
} fv_impressions_opt;

FV_API fv_status fv_impressions_open(fv_impressions **out, const fv_env *env,
                                     const fv_impressions_opt *opt, fv_err *e);
FV_API void fv_impressions_close(fv_impressions *v); /* NULL is allowed */
FV_API int64_t fv_impressions_count(const fv_impressions *v);
FV_API int64_t fv_impressions_features(const fv_impressions *v); /* columns of features */
FV_API fv_impression fv_impressions_at(const fv_impressions *v, int64_t i);

#endif
