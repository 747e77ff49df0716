/* model.h - models: a family is one file of src/models; a model is a family with a configuration
 * and parameters.
 *
 * A model opens straight from its Hugging Face directory (config.json, model.safetensors) and is
 * saved back into one: parameters carry the published names, so nothing is converted.  It is const
 * while it runs: any number of contexts may share it.  Training changes its parameters and belongs
 * to one thread. */
#ifndef FOVEA_MODEL_H
#define FOVEA_MODEL_H

#include "fovea/items.h"
#include "fovea/store.h"
#include "fovea/tensor.h"

/* ---- families ---- */

/* What a head computes, and so which task and objective it is for. */
typedef enum fv_head_job {
    FV_HEAD_BASE = 0,      /* hidden states, and what a pooler makes of them */
    FV_HEAD_ENCODER,       /* those of the encoder alone, in a family of two stacks */
    FV_HEAD_CAUSAL_LM,     /* the next token */
    FV_HEAD_MASKED_LM,     /* tokens behind [MASK] */
    FV_HEAD_SEQ2SEQ,       /* the next token of a target, given a source */
    FV_HEAD_CLASSIFY,      /* labels of a sequence */
    FV_HEAD_TAG,           /* a label of each token */
    FV_HEAD_ANSWER,        /* start and end of a span */
    FV_HEAD_NEXT_SENTENCE, /* whether the second segment follows the first */
    FV_HEAD_PRETRAINING    /* BERT's: masked tokens and the next sentence together */
} fv_head_job;

/* One architecture of a family, in its table of heads. */
typedef struct fv_family_head {
    const char *name; /* as config.json's architectures has it: "BertForMaskedLM" */
    fv_head_job job;
    /* the architecture of the bare model below it; NULL: none, or this is one */
    const char *base;
    const char *type;  /* the model_type it belongs to, where the family has several; NULL: any */
    bool encoder_only; /* it leaves out the decoder that others of its family have */
} fv_family_head;

typedef struct fv_setup {
    fv_params *params;          /* declare into this */
    const void *config;         /* filled from config.json by the family's table */
    const fv_family_head *head; /* the architecture: one of the family's heads */
    const fv_st *file; /* the weights that will be loaded; NULL: none, values will be random */
} fv_setup;

typedef struct fv_session fv_session;

/* Something forward takes.  Labels may also be floats, where the problem is a regression or has
 * many labels. */
typedef struct fv_input {
    const char *name;
    fv_dtype dtype; /* FV_I32, FV_U8 for masks, FV_F32 for floats of the model's dtype */
    bool needed;
} fv_input;

typedef struct fv_family {
    const char *type;        /* config.json's model_type: "marian" */
    const char *const *also; /* other model types it serves, ending in NULL; NULL: none */
    /* architectures, ending in {0}; the first that fits the model_type is the default */
    const fv_family_head *heads;
    const fv_field *config; /* the table of its keys */
    /* other keys that change nothing, besides fv_keys_common; NULL: none */
    const fv_key_rule *rules;
    const fv_input *inputs; /* of all heads, ending in {0} */
    size_t config_size;
    size_t size; /* of the family's own struct */
    /* What a table cannot say (heads divide the width); NULL: nothing. */
    fv_status (*check)(const void *config, fv_err *e);
    /* Fills self with layers and declares their parameters; failures stick to the parameters. */
    void (*declare)(void *self, const fv_setup *s);
    /* Tokens of the longest sequence; NULL: no limit. */
    int64_t (*longest)(const void *self);
    /* How names in a file may differ from those declared; NULL: not at all. */
    fv_load_opt (*load)(const void *self);
    /* Once parameters have values: computes what is not in a file (sinusoids); NULL: nothing. */
    fv_status (*ready)(void *self, fv_params *p, fv_err *e);
    /* For a model opened to serve: packs the weights of products as dtype (nn.h); NULL: they
     * stay as they are. */
    void (*pack)(void *self, fv_params *p, fv_dtype dtype);
    /* in -> out: "logits", "last_hidden_state", ...; with "labels" in, also "loss" (a scalar).
     * What passes between the layers it shows by fv_tap(c, "hidden", name, x), name being
     * transformers': "hidden_states", or "encoder_hidden_states" and "decoder_hidden_states";
     * before the first layer, between any two, behind the last. */
    void (*forward)(fv_ctx *c, const void *self, const fv_items *in, fv_items *out);

    /* ---- generation; NULL where the family does not generate ---- */
    /* Runs the encoder on in and keeps what steps need of it; NULL: no encoder, a source is the
     * beginning of what follows. */
    void (*begin)(fv_ctx *c, const void *self, fv_session *s, const fv_items *in);
    /* Tokens it can generate: the V of step's logits. */
    int64_t (*vocabulary)(const void *self);
    /* Places of a sequence, or 0 for no limit; NULL: the same. */
    int64_t (*context)(const void *self);
    /* ids (rows,T): appends them and gives the logits (rows,V) that follow the last one. */
    fv_tensor *(*step)(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids);
} fv_family;

/* The families of this build, in order of name: NULL past the end. */
FV_API const fv_family *fv_family_at(int i);
FV_API const fv_family *fv_family_find(const char *type);
/* The model_type of a config.json; where it is missing, as in files from before 2020, what its
 * architecture or its keys say.  NULL if nothing does. */
FV_API const char *fv_config_type(const fv_json *j);
/* The entry of an architecture's name; NULL: the family has none of that name. */
FV_API const fv_family_head *fv_family_head_find(const fv_family *f, const char *name);
/* The bare model below an architecture of this name, known or not ("BertForMultipleChoice"): the
 * one its entry names, else the family's first.  NULL: the family has none. */
FV_API const char *fv_family_base(const fv_family *f, const char *name);
/* Whether `name` is among the inputs of the family. */
FV_API bool fv_family_takes(const fv_family *f, const char *name);

/* ---- models ---- */

typedef struct fv_model fv_model;

typedef struct fv_model_opt {
    /* the family to open it with, which need not be compiled into the library
     * (examples/own_family.c); the file's model_type must be one of the family's.  NULL: the family
     * of this build that has it. */
    const fv_family *family;
    /* for fv_model_new: the directory whose weights it will be given, so that a family can declare
     * what is there; NULL: none */
    const char *from;
    fv_dtype dtype; /* of the parameters */
    bool train;     /* with gradients */
    /* not to be changed: parameters stay in the file, and weights of products are packed once */
    bool serve;
    /* as this, where it serves: f32 (or as they are stored, where that is smaller), bf16, f16, q8,
     * q4, int8 */
    fv_dtype weights;
    bool widen; /* f32 it is: weights stored as bf16 or f16 are packed, and multiplied, as f32 */
    const char *head; /* NULL: what config.json says, else the family's first */
} fv_model_opt;

FV_API fv_status fv_model_open(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt,
                               fv_err *e);
/* A new one with random parameters; config is the text of a config.json. */
FV_API fv_status fv_model_new(fv_model **out, fv_device *d, const char *config, fv_model_opt opt,
                              uint64_t seed, fv_err *e);
/* Writes config.json and model.safetensors (parameters as dtype) into dir, which is made if
 * needed. */
FV_API fv_status fv_model_save(fv_model *m, const char *dir, fv_dtype dtype, fv_err *e);
FV_API void fv_model_free(fv_model *m); /* NULL is allowed */

typedef struct fv_quantised {
    int weights, others;    /* matrices that became smaller, and parameters that stayed */
    uint64_t before, after; /* bytes of all of them */
} fv_quantised;

/* Copies the directory of a model with the weights of its products as FV_Q8, FV_Q4 or FV_I8
 * (docs/formats.md), or with all its parameters as FV_BF16, FV_F16 or FV_F32.  It opens like any
 * other, in blocks to serve only, and computes what `from` does when it is opened with such
 * weights.  `to` must not have a model. */
FV_API fv_status fv_model_quantize(fv_device *d, const char *from, const char *to, fv_dtype weights,
                                   fv_quantised *out, fv_err *e);

FV_API const fv_family *fv_model_family(const fv_model *m);
/* Keys of its config.json that nothing here reads, and nothing in transformers either. */
FV_API void fv_model_ignored(const fv_model *m, void (*each)(void *user, const char *key),
                             void *user);
FV_API const char *fv_model_head(const fv_model *m); /* the architecture's name */
FV_API fv_head_job fv_model_job(const fv_model *m);  /* what it computes */
/* Whether a decoder attends to an encoder in it: a source and a target go in. */
FV_API bool fv_model_has_cross(const fv_model *m);
FV_API const void *fv_model_config(const fv_model *m);
FV_API const void *fv_model_self(const fv_model *m); /* the family's struct */
FV_API fv_params *fv_model_params(const fv_model *m);
/* of its activations: that of a context for it */
FV_API fv_dtype fv_model_dtype(const fv_model *m);
FV_API fv_dtype fv_model_weights(const fv_model *m); /* how the weights of its products are held */

/* The family's forward: in names what its inputs list, out gets what its head makes of them. */
FV_API void fv_model_forward(fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out);

typedef struct fv_run_opt {
    /* attentions.N, or encoder_attentions.N, decoder_attentions.N and cross_attentions.N:
     * (B,H,Tq,Tk) */
    bool attentions;
    bool hidden_states; /* hidden_states.N, .. likewise: (B,T,D) */
    bool grad;          /* grad.<parameter>; needs labels, and a model opened to be trained */
    int threads;        /* 0: the device's */
} fv_run_opt;

/* Runs m on the arrays of in (a safetensors file whose names are the family's inputs) and writes
 * all outputs to out. */
FV_API fv_status fv_model_run(const fv_model *m, fv_device *d, const char *in, const char *out,
                              fv_run_opt opt, fv_err *e);

#endif
