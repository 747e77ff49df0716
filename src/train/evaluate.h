/* evaluate.h - the loss and metric of a model on a feed. */
#ifndef FV_EVALUATE_H
#define FV_EVALUATE_H

#include "fovea/author/train.h"
#include "fovea/train.h"

/* The mean loss of a label over all examples of a feed, and the share of right answers where the
 * feed has a metric (else NaN).  Ranks share the batches; the result does not depend on their
 * number. */
fv_status fv__evaluate(const fv_train_job *j, const fv_feed *feed, double *loss, double *metric,
                       fv_err *e);

#endif
