/* parallel.h - for authors: a model whose weights ranks share (tensor parallel), for one that is
 * larger than a machine or a GPU, or to be faster than one.
 *
 * Attention heads and feed-forward parts are divided; embeddings, norms and the head are whole on
 * every rank.  All ranks make the same calls on the same inputs, forward, backward or step by step,
 * and get the same results; each has the gradients of its part. */
#ifndef FOVEA_AUTHOR_PARALLEL_H
#define FOVEA_AUTHOR_PARALLEL_H

#include "fovea/comm.h"
#include "fovea/model.h"

/* As fv_model_open, and every rank of c calls it.  For families whose blocks are made of fv_mha and
 * fv_mlp, as GPT-2's and Llama's, with floats as weights and without adapters; heads and widths
 * must be multiples of the ranks.  A model that ranks share is not saved.  c NULL:
 * fv_model_open. */
FV_API fv_status fv_model_open_ranks(fv_model **out, fv_device *d, const char *dir,
                                     fv_model_opt opt, fv_comm *c, fv_err *e);

#endif
