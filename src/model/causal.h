/* causal.h - what decoder-only models share: everything around their block.
 *
 *     x = embed(ids);   x = block_i(x), i = 0 .. layers - 1;   y = head(norm(x))
 *
 * The block is the family's own: a struct that begins with the parts of a pre-norm block, a
 * function that declares its parameters and one that computes it.  fv__causal runs the stack for a
 * batch and, with the keys and values of a session, for a step.  The functions below that take
 * `self` are entries of fv_family, for families whose struct begins with an fv__causal; one that
 * embeds otherwise (OPT, GPT-2) writes its own forward and step from fv__causal_run. */
#ifndef FV_MODEL_CAUSAL_H
#define FV_MODEL_CAUSAL_H

#include <stddef.h>

#include "model/rope.h"

#define FV__MAX_LAYERS 256

/* ---- config.json ---- */

/* The keys of the head and of first values. */
typedef struct fv__causal_config {
    int pad_token_id, num_labels, problem_type;
    float classifier_dropout, initializer_range;
    bool tie_word_embeddings;
} fv__causal_config;

/* Their fields, in the member of that type; pad, tied: what is meant where they are left out. */
#define FV__CAUSAL_FIELDS(config, member, pad, tied)                                               \
    FV_INT_KEY("pad_token_id", config, member.pad_token_id, 0, pad, 1 << 24,                       \
               "padding, which a classifier skips"),                                               \
        FV__LABEL_FIELDS(config, member),                                                          \
        FV_FLOAT_KEY("classifier_dropout", config, member.classifier_dropout, 0, 0.1, 0.99,        \
                     "dropout before labels of tokens"),                                           \
        FV_FLOAT_KEY("initializer_range", config, member.initializer_range, 0, 0.02, 10,           \
                     "standard deviation of first values; 0: Xavier"),                             \
        FV_BOOL_KEY("tie_word_embeddings", config, member.tie_word_embeddings, tied,               \
                    "the table is the output weight too")
#define FV__LABEL_FIELDS(config, member)                                                           \
    FV_INT_KEY("num_labels", config, member.num_labels, 1, 2, 1 << 20, "labels"),                  \
        FV_CHOICE_KEY("problem_type", config, member.problem_type, 0, fv_problem_words,            \
                      "what the labels are; not given: as they look")

/* Rules of a family that rotates the whole of each head. */
#define FV__ROTATES_ALL                                                                            \
    {"partial_rotary_factor", "1.0"}, {"rope_scaling.partial_rotary_factor", "1.0"},               \
    {                                                                                              \
        "rope_parameters.partial_rotary_factor", "1.0"                                             \
    }

/* input_ids, attention_mask, position_ids, labels; and the ends of spans, for heads that have
 * them. */
extern const fv_input fv__causal_inputs[], fv__causal_span_inputs[];

/* ---- the head ---- */

/* Texts are classified by their last token that is no padding.  Weights are lm_head, score and
 * qa_outputs, where no other names are given. */
typedef struct fv__causal_head {
    fv_head_job job;
    fv_tensor *w, *b; /* (V,D), (labels,D) or (2,D), NULL for FV_HEAD_BASE; (labels), (2) or NULL */
    int problem;      /* an fv_problem */
    int32_t pad;      /* -1: the last token it is, padding or not */
    float dropout;    /* before labels of tokens */
} fv__causal_head;

/* ---- the model ---- */

/* What the stack knows of a family's block: a struct that is, or begins with, an fv__pre_norm. */
typedef struct fv__block_type {
    size_t size;
    /* Declares layer i below `at` ("model.layers.0"). */
    void (*init)(fv_params *p, void *block, const void *config, int i, const char *at);
    fv_layer_fn *fwd;
} fv__block_type;

typedef struct fv__causal {
    fv_emb tokens;
    float dropout;        /* on the embeddings */
    fv_rotary rotary;     /* width 0: positions are no rotation */
    fv_rotary local;      /* of the layers that is_local names */
    const bool *is_local; /* of each layer; NULL: all are rotated by `rotary` */
    const fv__block_type *type;
    char *blocks;
    int n_layer;
    struct fv_comm *stages; /* ranks that have the layers in turn; NULL: this one has all */
    int first, end;         /* the layers that are here */
    int64_t context;        /* positions it was made for */
    fv_norm norm;
    fv__causal_head head;
    bool tied;
} fv__causal;

/* Declares the table of tokens, path.weight, of which padding gets no gradient. */
void fv__causal_tokens(fv_params *p, fv__causal *m, const fv__causal_config *k, int vocabulary,
                       int width, const char *path, ...) FV_PRINTF(6, 7);
/* Declares n layers: path.0, path.1, .. */
void fv__causal_blocks(fv_params *p, fv__causal *m, const fv__block_type *type, int n,
                       const void *config, const char *path, ...) FV_PRINTF(6, 7);
/* Declares the weights of the head.  words, tag: their names where not lm_head and score. */
void fv__causal_head_init(fv_params *p, fv__causal *m, fv_head_job job, const fv__causal_config *k,
                          const char *words, const char *tag);

/* All of that under Llama's names, embed_tokens, layers and norm below a prefix, lm_head. */
typedef struct fv__causal_dims {
    int vocabulary, width, layers, positions;
} fv__causal_dims;
#define FV__CAUSAL_DIMS(k)                                                                         \
    (fv__causal_dims)                                                                              \
    {                                                                                              \
        (k)->vocab_size, (k)->hidden_size, (k)->num_hidden_layers, (k)->max_position_embeddings    \
    }
void fv__causal_declare(const fv_setup *s, fv__causal *m, const fv__block_type *type,
                        const void *config, const fv__causal_config *k, fv__causal_dims d,
                        fv_norm_opt norm, const char *prefix);
/* A product's options: its first values and whether it has a bias. */
static inline fv_lin_opt fv__causal_lin(const fv__causal_config *k, bool bias)
{
    return (fv_lin_opt){.no_bias = !bias, .std = k->initializer_range};
}
/* Options of a block under these names: grouped heads, and a gated feed-forward part. */
#define FV__GROUPED_HEADS(n_kv, width, lin)                                                        \
    (fv_mha_opt)                                                                                   \
    {                                                                                              \
        .n_kv_head = n_kv, .head = width, .in = lin, .out = lin,                                   \
        .names = "q_proj k_proj v_proj o_proj"                                                     \
    }
#define FV__GATED_MLP(act_, lin_)                                                                  \
    (fv_mlp_opt) { .act = act_, .lin = lin_, .names = "gate_proj up_proj down_proj" }

fv_load_opt fv__causal_load(const void *self); /* names below "model.", lm_head tied to the table */
void fv__causal_pack(void *self, fv_params *p, fv_dtype dtype);
void fv__causal_forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out);
fv_tensor *fv__causal_step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids);
int64_t fv__causal_vocabulary(const void *self);
int64_t fv__causal_context(const void *self); /* 0 where frequencies grow with the length */

/* The entries of a family made of these. */
#define FV__CAUSAL_FAMILY                                                                          \
    .pack = fv__causal_pack, .forward = fv__causal_forward, .step = fv__causal_step,               \
    FV__CAUSAL_SIZES
#define FV__CAUSAL_SIZES .vocabulary = fv__causal_vocabulary, .context = fv__causal_context

/* ---- parts of forward and step ---- */

/* Whether layer i is in this stage. */
static inline bool fv__causal_has(const fv__causal *m, int i)
{
    return i >= m->first && i < m->end;
}
/* One layer on x (B,T,D), with the cache of a session or, without one, shown to the tap.  Of a
 * model in stages the rank that has the layer computes it, and behind the last layer of a stage x
 * goes to the next one, behind the last of all to every rank. */
fv_tensor *fv__causal_layer(fv_ctx *c, const fv__causal *m, fv_session *s, int i, fv_tensor *x,
                            fv_mha_arg arg, fv_mha_arg cross);
/* All layers; local: the rotation of local ones. */
fv_tensor *fv__causal_run(fv_ctx *c, const fv__causal *m, fv_session *s, fv_tensor *x,
                          fv_mha_arg arg, fv_rope_arg local);
/* The labels that this head predicts, each at the position before its own; NULL: there are none.
 * Taken before the layers: what is made between them is dropped while serving. */
fv_tensor *fv__causal_labels(fv_ctx *c, const fv__causal *m, const fv_items *in);
/* Shows x (B,T,D), behind the last norm, to the tap and puts what the head makes of it. */
void fv__causal_put(fv_ctx *c, const fv__causal *m, const fv_items *in, fv_items *out, fv_tensor *x,
                    fv_tensor *labels);

#endif
