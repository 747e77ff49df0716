/* log.h - what a run tells about itself: train.jsonl, a TensorBoard event file and a picture of the
 * losses. */
#ifndef FV_LOG_H
#define FV_LOG_H

#include "base/base.h"
#include "fovea/train.h"

typedef struct fv__log fv__log;

typedef struct fv__entry {
    int64_t step, epoch;
    bool valid;          /* of an evaluation; else of an update */
    double loss, metric; /* NaN: none */
    double lr, norm, rate, time;
    double wait; /* share of the time that training waited for batches: at most so much of it was a
                    GPU idle, as updates are started ahead of it */
    /* of several ranks: how many, the share of time that communication took beside computing, and
     * the share of communication that computing hid; 0 and NaN: of one */
    int64_t ranks;
    double comm, overlap;
} fv__entry;

/* Opens the log of a run in dir.  Entries behind step are forgotten, as the run that wrote them is;
 * -1: all are. */
fv_status fv__log_open(fv__log **out, const fv_env *env, const char *dir, int64_t step, fv_err *e);
void fv__log_close(fv__log *l); /* NULL is allowed */
/* metric: what the metric is called; NULL: there is none. */
fv_status fv__log_add(fv__log *l, const fv__entry *x, const char *metric, fv_err *e);
/* Writes curve.svg. */
fv_status fv__log_draw(fv__log *l, fv_err *e);

/* ---- its parts ---- */

/* Records of a TensorBoard event file: the first of the file, and one scalar each. */
void fv__event_version(fv_buf *b, double time);
void fv__event_scalar(fv_buf *b, double time, int64_t step, const char *tag, double value);
/* The picture of n entries as SVG text. */
void fv__curve(fv_buf *b, const fv__entry *x, size_t n);

#endif
