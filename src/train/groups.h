/* groups.h - which parameters are trained, and how fast, by their names. */
#ifndef FV_GROUPS_H
#define FV_GROUPS_H

#include "fovea/author/params.h"
#include "fovea/train.h"

/* Freezes what o->freeze names and fills scale (one for each parameter) with factors of the
 * learning rate. */
fv_status fv__groups(float *scale, fv_params *p, const fv_train_opt *o, fv_err *e);
/* '*' stands for any run of characters, dots too. */
bool fv__name_matches(const char *pattern, size_t n, const char *name);

#endif
