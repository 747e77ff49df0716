/* parallel.h - for authors: a model that ranks share, for one that is larger than a machine or a
 * GPU: each weight is divided (tensor parallel), or the layers are (stages of a pipeline).
 *
 * Tensor parallel, which may also be faster than one rank.
 * Attention heads and feed-forward parts are divided; embeddings, norms and the head are whole on
 * every rank.  All ranks make the same calls on the same inputs, forward, backward or step by step,
 * and get the same results; each has the gradients of its part.  fv_model_save, which every rank
 * calls, writes the directory that one rank would have written. */
#ifndef FOVEA_AUTHOR_PARALLEL_H
#define FOVEA_AUTHOR_PARALLEL_H

#include "fovea/comm.h"
#include "fovea/model.h"

/* As fv_model_open, and every rank of c calls it.  For families whose blocks are made of fv_mha and
 * fv_mlp, as GPT-2's and Llama's, with floats as weights and without adapters; heads and widths
 * must be multiples of the ranks.  c NULL: fv_model_open. */
FV_API fv_status fv_model_open_ranks(fv_model **out, fv_device *d, const char *dir,
                                     fv_model_opt opt, fv_comm *c, fv_err *e);

/* As fv_model_new, for the same models: the parts of the numbers that one rank would draw. */
FV_API fv_status fv_model_new_ranks(fv_model **out, fv_device *d, const char *config,
                                    fv_model_opt opt, uint64_t seed, fv_comm *c, fv_err *e);

/* Stages: rank r has the r-th part of the layers, and x goes from rank to rank; embeddings, the
 * last norm and the head are whole on every rank.  All ranks make the same calls on the same
 * inputs, forward or step by step, and get the same results, with the bits of one rank.  A rank
 * keeps the KV cache of its own layers.  For families whose stack is fv__causal's, as GPT-2's and
 * Llama's, weights of any kind, without adapters; such a model is neither trained nor saved.  c
 * NULL: fv_model_open. */
FV_API fv_status fv_model_open_stages(fv_model **out, fv_device *d, const char *dir,
                                      fv_model_opt opt, fv_comm *c, fv_err *e);

/* A scheduler of such a model: every rank makes one with the same options.  Rank 0's is used as any
 * other, but tells no attention weights; the others call fv_scheduler_step, which makes a step of
 * rank 0's with it, until *left is -1: that one was freed.  A rank that cannot open the model or
 * its scheduler stops the others. */

/* The ranks that share the model, one way or the other; NULL: it is whole. */
FV_API fv_comm *fv_model_ranks(const fv_model *m);

#endif
