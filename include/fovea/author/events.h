/* events.h - what users did, in order of time: sequences of items, for recommendation. */
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

#endif
