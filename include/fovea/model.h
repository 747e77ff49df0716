/* model.h - models: a family is one file of src/models; a model is a family with a configuration
 * and parameters.
 *
 * A model opens straight from its Hugging Face directory (config.json, model.safetensors) and is
 * saved back into one: parameters carry the published names, so nothing is converted.  It is const
 * while it runs: any number of contexts may share it.  Training changes its parameters and belongs
 * to one thread. */
#ifndef FOVEA_MODEL_H
#define FOVEA_MODEL_H

#include "fovea/adapter.h"
#include "fovea/items.h"

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
    FV_HEAD_PRETRAINING,   /* BERT's: masked tokens and the next sentence together */
    FV_HEAD_REPLACED,      /* ELECTRA's discriminator: whether each token was replaced */
    FV_HEAD_CHOICE,        /* multiple choice: one of N sequences, (B,N,T) in and (B,N) out */
    FV_HEAD_MASKED_IMAGE,  /* pixels of patches that were hidden */
    FV_HEAD_PROJECT,       /* one vector for each input, in a space that two encoders share */
    FV_HEAD_CONTRASTIVE,   /* how well each image fits each text */
    FV_HEAD_DETECT,        /* boxes and what is in them */
    FV_HEAD_SEGMENT,       /* a label of each pixel */
    FV_HEAD_GAN,           /* images from noise, and a network that judges images */
    FV_HEAD_FORECAST,      /* the values that follow a window of a time series */
    FV_HEAD_REGRESS,       /* numbers that belong to a window */
    FV_HEAD_MASKED_SERIES, /* the values of patches of a window that were hidden */
    FV_HEAD_NEXT_ITEM,     /* the item that follows others */
    FV_HEAD_CTC,           /* a token or the blank for each frame of a sound */
    FV_HEAD_TRANSDUCER,    /* tokens or the blank for each frame and each prefix of the text */
    FV_HEAD_SPEECH,        /* the spectrogram of a text that is spoken */
    FV_HEAD_WAVEFORM       /* the samples of a spectrogram */
} fv_head_job;

typedef struct fv_family fv_family; /* its members are for authors: author/family.h */

/* ---- models ---- */

typedef struct fv_model fv_model;
typedef struct fv_session fv_session; /* author/session.h */

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
    const char *head;         /* NULL: what config.json says, else the family's first */
    fv_adapter_list adapters; /* folded into the weights one after another */
    /* where it trains: a new adapter, which alone is trained; fv_model_save then writes the
     * adapter's directory.  NULL, or peft_type FV_PEFT_NONE: the model itself */
    const fv_adapter_opt *adapter;
} fv_model_opt;

/* dir: a model's directory, or that of an adapter that this library trained, which names its base
 * model: it is opened folded. */
FV_API fv_status fv_model_open(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt,
                               fv_err *e);
/* A new one with random parameters; config is the text of a config.json. */
FV_API fv_status fv_model_new(fv_model **out, fv_device *d, const char *config, fv_model_opt opt,
                              uint64_t seed, fv_err *e);
/* Writes config.json and model.safetensors (parameters as dtype) into dir, which is made if
 * needed. */
FV_API fv_status fv_model_save(fv_model *m, const char *dir, fv_dtype dtype, fv_err *e);
/* Reads the parameters that fv_model_save wrote into dir. */
FV_API fv_status fv_model_load(fv_model *m, const char *dir, fv_err *e);
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

/* Writes the directory of the model with adapters folded into its weights, as *dtype (NULL: as the
 * model is stored), with what stands beside them.  `to` must not have a model.  from: as in
 * fv_model_open. */
FV_API fv_status fv_model_merge(fv_device *d, const char *from, fv_adapter_list adapters,
                                const char *to, const fv_dtype *dtype, fv_err *e);

FV_API const fv_family *fv_model_family(const fv_model *m);
/* Positions of a sequence that it generates; 0: no limit, or it does not generate. */
FV_API int64_t fv_model_context(const fv_model *m);
/* Keys of a directory's config.json that nothing here reads, and nothing in transformers either. */
FV_API fv_status fv_model_ignored(const char *dir, void (*each)(void *user, const char *key),
                                  void *user, fv_err *e);
FV_API const char *fv_model_head(const fv_model *m); /* the architecture's name */
FV_API fv_head_job fv_model_job(const fv_model *m);  /* what it computes */
/* Whether it reads an array of that name: "pixel_values". */
FV_API bool fv_model_takes(const fv_model *m, const char *input);
/* Whether a decoder attends to an encoder in it: a source and a target go in. */
FV_API bool fv_model_has_cross(const fv_model *m);
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
