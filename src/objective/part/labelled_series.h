/* labelled_series.h - what the objectives on whole series share: records of a series and its label
 * or number, kept as floats, each channel with mean 0 and deviation 1 over the training records. */
#ifndef FV_OBJECTIVE_LABELLED_SERIES_H
#define FV_OBJECTIVE_LABELLED_SERIES_H

#include "data/records.h"
#include "fovea/author/objective.h"
#include "fovea/author/series.h"

typedef struct fv__series_opt {
    int64_t context; /* time steps that are read */
    int64_t targets; /* of a regression */
} fv__series_opt;

#define FV__SERIES_FIELDS                                                                          \
    FV_INT(fv__series_opt, context, 2, 128, 1 << 20,                                               \
           "time steps that the model reads; a shorter series stands at their end")

typedef struct fv__labelled_series {
    const fv_env *env;
    fv__series_opt opt;
    const fv_processor *processor;
    fv_labels *labels; /* of a classifier */
    int64_t n, channels;
    float *x;          /* (n,context,channels), normalised */
    uint8_t *observed; /* the same */
    float *target;     /* (n,targets), of a regression */
    int32_t *label;    /* (n), of a classifier */
    size_t x_bytes, observed_bytes, target_bytes, label_bytes;
} fv__labelled_series;

/* Reads the records of a feed; targets 0: the second text is a label.  Its self, to be closed by
 * fv__labelled_series_close. */
fv_status fv__labelled_series_open(fv__labelled_series **out, const fv_feed_opt *t,
                                   const fv_records *from, int64_t targets, fv_data_report *report,
                                   fv_err *e);
void fv__labelled_series_close(void *self);
int64_t fv__labelled_series_count(const void *self, int64_t epoch);
/* past_values (n,context,C), past_observed_mask the same. */
fv_status fv__labelled_series_put(const fv__labelled_series *s, fv_batch *out, const int32_t *rows,
                                  int64_t n, fv_err *e);

/* Of fv_objective. */
fv_status fv__labelled_series_processor(fv_processor **out, const fv_env *env, const void *own,
                                        const fv_records *from, fv_processor *tok, fv_err *e);
int64_t fv__labelled_series_value(const void *own, const fv_processor *p, const char *key);

#endif
