/* masking.h - hiding tokens of a row: for objectives that ask which token it was, and as a noise
 * against relying on single tokens. */
#ifndef FV_MASKING_H
#define FV_MASKING_H

#include "fovea/author/data.h"

/* Hides a share of ids in place and writes the hidden ones to labels, -100 elsewhere; special
 * tokens are left alone.  Returns how many are hidden. */
int64_t fv__mask_row(int32_t *ids, int32_t *labels, int64_t n, const fv_feed_opt *t, float share,
                     int64_t row, fv_data_rng how);

/* Hides a share of the input_ids (n,T) of a training batch, by the mask token or, where there is
 * none, the unknown one; an evaluation sees all of them. */
void fv__batch_drop(const fv_batch_part *tokens, const fv_feed_opt *t, float share,
                    const int32_t *rows, fv_data_rng how);

#endif
