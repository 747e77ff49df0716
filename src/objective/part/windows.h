/* windows.h - what the objectives of time series share: windows of a file that is cut into parts by
 * time, each channel with mean 0 and deviation 1 over the training part. */
#ifndef FV_OBJECTIVE_WINDOWS_H
#define FV_OBJECTIVE_WINDOWS_H

#include "fovea/author/objective.h"
#include "fovea/author/series.h"

enum { FV__PART_VALID, FV__PART_TEST };

typedef struct fv__windows_opt {
    /* all three in time steps */
    int64_t context, horizon, stride;
    /* time steps of training, validation, test; at[0] 0: 7/10, 1/10, 2/10 */
    fv_int_list split;
    char date[64], columns[1024];
    int missing, evaluate;
    int loss;   /* of a forecast */
    float mask; /* share of the patches that is hidden */
} fv__windows_opt;

/* Keys of all objectives of series, in a list of fields. */
#define FV__WINDOWS_FIELDS                                                                         \
    FV_INT(fv__windows_opt, context, 2, 336, 1 << 20, "time steps that the model reads"),          \
        FV_INT(fv__windows_opt, stride, 1, 1, 1 << 20,                                             \
               "time steps from one window of training to the next"),                              \
        FV_INTS_KEY("parts", fv__windows_opt, split, 0, "0", 1 << 30,                              \
                    "time steps of training, validation and test; 0: seven, one and two tenths"),  \
        FV_CHOICE(fv__windows_opt, evaluate, FV__PART_VALID, fv__part_words,                       \
                  "which part is evaluated on", FV_ON_RESUME),                                     \
        FV_TEXT(fv__windows_opt, date, "", "column with the date; empty: the first"),              \
        FV_TEXT(fv__windows_opt, columns, "",                                                      \
                "columns that are channels, commas between; empty: all others"),                   \
        FV_CHOICE(fv__windows_opt, missing, FV_MISSING_REFUSE, fv_missing_words,                   \
                  "values that are missing: an error, as the one before, or on a line between")

extern const char *const fv__part_words[];

typedef struct fv__windows {
    const fv_env *env;
    fv__windows_opt opt;
    float *x; /* (steps,channels), normalised */
    size_t bytes;
    int64_t first, n, stride, channels; /* the first window, how many, and how far apart */
    int64_t patches;                    /* of a window, once the model is known */
} fv__windows;

/* Reads the series of a feed; its self, to be closed by fv__windows_close. */
fv_status fv__windows_open(fv__windows **out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e);
void fv__windows_close(void *self);
int64_t fv__windows_count(const void *self, int64_t epoch);
/* The first value of window `row`. */
const float *fv__windows_at(const fv__windows *w, int64_t row);

/* Of fv_objective: the processor of a new model, and keys of its configuration. */
fv_status fv__windows_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e);
int64_t fv__windows_value(const void *own, const fv_processor *p, const char *key);

#endif
