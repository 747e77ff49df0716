/* distill.h - learning from a teacher: a feed around the objective's own, with a loss of two. */
#ifndef FV_DISTILL_H
#define FV_DISTILL_H

#include "fovea/train.h"
#include "fovea/author/family.h"
#include "fovea/author/feed.h"

/* Puts a feed with a teacher around f, which it owns from here on, where [distill] names one, or
 * one of two passes (consistency).  job: the objective's. */
fv_status fv__distill_wrap(fv_feed *f, const fv_train_opt *o, fv_head_job job, fv_device *d,
                           fv_err *e);

#endif
