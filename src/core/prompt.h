/* prompt.h - virtual tokens: what prompt tuning, P-tuning and prefix tuning put beside a sequence.
 *
 * A pass with virtual tokens runs on longer sequences: n ids more, whose embeddings are `rows`
 * (prompts), or whose keys and values are replaced by those of `prefix` in every layer.  So no
 * family knows of them: positions, masks and caches grow with the sequence, and what the virtual
 * tokens themselves compute is cut off at the end.  (PEFT hands a prefix over as past keys and
 * values instead; every family would need a way to take them, in training too.) */
#ifndef FV_CORE_PROMPT_H
#define FV_CORE_PROMPT_H

#include "fovea/tensor.h"

enum { FV__PROMPT_LAYERS = 256 };

/* Of the pass under way, in fv_ctx.prompt. */
typedef struct fv__prompt {
    int64_t n;
    bool behind;          /* they stand behind the sequence: an encoder's prefix */
    bool encoder;         /* they are an encoder's, and a decoder computes the results */
    bool causal_only;     /* a prefix of a decoder that has an encoder beside it */
    const fv_tensor *ids; /* prompts: those the rows stand in front of */
    fv_tensor *rows;      /* (n,D) or NULL */
    fv_tensor *prefix;    /* (n, 2 layers kv) or NULL: keys and values of layer 0, of layer 1, .. */
    /* layers in the order in which they first attended, and the column of the prefix at which the
     * keys of each begin: layers need not be equally wide */
    int layers;
    const void *layer[FV__PROMPT_LAYERS];
    int64_t column[FV__PROMPT_LAYERS + 1];
} fv__prompt;

#endif
