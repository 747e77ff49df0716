/* masking.h - hiding tokens of a row, for the objectives that ask what stood there. */
#ifndef FV_MASKING_H
#define FV_MASKING_H

#include "fovea/data.h"

/* Hides a share of ids in place and writes what stood there to labels, -100 elsewhere; specials are
 * left alone.  Returns how many. */
int64_t fv__mask_row(int32_t *ids, int32_t *labels, int64_t n, const fv_feed_opt *t, int64_t row,
                     fv_data_rng how);

/* Hides a share t->drop of the input_ids (n,T) of a batch that is learnt from; an evaluation sees
 * all. */
void fv__batch_drop(fv_batch *b, const fv_feed_opt *t, const int32_t *rows, fv_data_rng how);

#endif
