/* differences.h - gradients of an objective's loss against differences of that loss. */
#ifndef HELPER_DIFFERENCES_H
#define HELPER_DIFFERENCES_H

#include <stdbool.h>

#include "fovea/author/author.h"
#include "fovea/fovea.h"

/* The loss of one batch of f; with grad its gradients are left in m's parameters. */
typedef double (*loss_fn)(const fv_feed *f, const fv_model *m, bool grad);

/* The slope along one number of each parameter: within `close` and a thousandth of it. */
void gradients_match_differences(const fv_feed *f, fv_model *m, loss_fn loss, float step,
                                 double close);

#endif
