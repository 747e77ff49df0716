/* crf.h - the best sequence of labels under a conditional random field. */
#ifndef FV_MODEL_CRF_H
#define FV_MODEL_CRF_H

#include "fovea/env.h"

/* Scratch that fv__crf_decode needs for n positions of K labels, in bytes. */
size_t fv__crf_scratch(int64_t n, int64_t K);

/* best (n): the labels that score highest together.  row[i] (K): the scores of position i;
 * transitions (K+2,K), as fv_crf_loss reads them; scratch: fv__crf_scratch(n, K) bytes.  Of equal
 * scores the label with the smaller number wins, from the last position on. */
void fv__crf_decode(int32_t *best, const float *const *row, int64_t n, const float *transitions,
                    int64_t K, void *scratch);

#endif
