/* family.h - what heads of many families share: activations by name, masks, losses as transformers
 * has them. */
#ifndef FOVEA_AUTHOR_FAMILY_H
#define FOVEA_AUTHOR_FAMILY_H

#include "fovea/model.h"
#include "fovea/nn.h"

/* The values of hidden_act and its like, for FV_CHOICE; what each stands for. */
FV_DATA const char *const fv_act_words[];
FV_API fv_act fv_act_of(int word);

/* The values of problem_type; 0: what the labels say, as transformers guesses it. */
typedef enum fv_problem {
    FV_PROBLEM_GUESS = 0,
    FV_PROBLEM_REGRESSION,
    FV_PROBLEM_SINGLE,
    FV_PROBLEM_MULTI
} fv_problem;
FV_DATA const char *const fv_problem_words[];

/* Self-attention under an attention_mask: (B,T), (B,T,T), or NULL for none. */
FV_API fv_mha_arg fv_masked(fv_ctx *c, fv_tensor *mask);

/* (B,T,D) -> (B,D): the first of each sequence. */
FV_API fv_tensor *fv_first(fv_ctx *c, fv_tensor *x);

/* Each puts "loss" where there are labels.  Losses are divided by in->n_labels. */

/* logits (..,V), labels (..) with -100 for those that do not count. */
FV_API fv_tensor *fv_loss_tokens(fv_ctx *c, fv_tensor *logits, fv_tensor *labels,
                                 const fv_items *in);
/* logits (B,L); labels I32 (B), floats (B) or (B,L). */
FV_API fv_tensor *fv_loss_classes(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_problem p,
                                  const fv_items *in);
/* x (B,T,2): puts start_logits and end_logits, and with start_positions and end_positions in, the
 * loss. */
FV_API void fv_put_spans(fv_ctx *c, fv_tensor *x, const fv_items *in, fv_items *out);

#endif
