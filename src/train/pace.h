/* pace.h - how many updates a limited time is enough for. */
#ifndef FV_TRAIN_PACE_H
#define FV_TRAIN_PACE_H

#include <stdint.h>

/* So many updates were done so many seconds after the start. */
typedef struct fv__mark {
    int64_t step;
    double at;
} fv__mark;

/* Both marks begin where the run does. */
typedef struct fv__pace {
    fv__mark older, newer;
} fv__pace;

/* The last update that ends within `limit` seconds of the start, at most `most`, given that `step`
 * of them are done at second t; `most` while it is too early to say. */
int64_t fv__pace_fit(fv__pace *p, int64_t step, double t, double limit, int64_t most);

#endif
