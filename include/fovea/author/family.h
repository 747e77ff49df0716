/* family.h - for authors of families: the table that is one, and what heads of many families share.
 *
 * A family is one file of src/models: x.c defines `const fv_family fv__family_x`, and the build
 * lists the folder; or it is opened by fv_model_opt.family (examples/own_family.c). */
#ifndef FOVEA_AUTHOR_FAMILY_H
#define FOVEA_AUTHOR_FAMILY_H

#include "fovea/author/checkpoint.h"
#include "fovea/author/config.h"
#include "fovea/author/nn.h"
#include "fovea/author/session.h"
#include "fovea/model.h"

/* ---- the table ---- */

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
    const fv_st *file;   /* the weights that will be loaded; NULL: none, values will be random */
    const fv_json *json; /* the whole config.json, for families made of others */
} fv_setup;

/* Something forward takes.  Labels may also be floats, where the problem is a regression or has
 * many labels. */
typedef struct fv_input {
    const char *name;
    fv_dtype dtype; /* FV_I32, FV_U8 for masks, FV_F32 for floats of the model's dtype */
    bool needed;
} fv_input;

/* How a family hears a stream: an encoder that takes chunks. */
typedef struct fv_stream_shape {
    int64_t chunk, left;   /* frames that are encoded together, and those before that layers see */
    int64_t layers, width; /* of the keys and values kept: "past" (2 layers,rows,width) */
    int64_t labels;        /* tokens that the next one depends on; 0: none (CTC) */
} fv_stream_shape;

/* What a family that speaks makes and wants. */
typedef struct fv_voice_shape {
    int64_t frames, mels; /* that a step of the decoder makes; numbers of a frame */
    int64_t speaker;      /* numbers of a speaker's vector */
    int64_t prenet_layers, prenet_units;
    float prenet_dropout; /* share of these units that is dropped, whoever speaks */
} fv_voice_shape;

struct fv_family {
    const char *type;        /* config.json's model_type: "marian" */
    const char *const *also; /* other model types it serves, ending in NULL; NULL: none */
    /* key of the object with the family's own configuration in files of models that have parts of
     * several kinds ("text_config"): such a model is opened, and saved, as that part alone, with
     * the head of the same job that has no type of its own.  NULL: there are none. */
    const char *part;
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
    /* A label that does not count, besides -100; NULL: none. */
    int32_t (*ignored)(const void *self);
    /* in -> out: "logits", "last_hidden_state", ...; with "labels" in, also "loss" (a scalar).
     * What passes between the layers it shows by fv_tap(c, "hidden", name, x), name being
     * transformers': "hidden_states", or "encoder_hidden_states" and "decoder_hidden_states";
     * before the first layer, between any two, behind the last. */
    void (*forward)(fv_ctx *c, const void *self, const fv_items *in, fv_items *out);

    /* ---- generation; NULL where the family does not generate ---- */
    /* Runs the encoder on in and keeps what steps need of it; NULL: no encoder, a source is the
     * beginning of what follows. */
    void (*begin)(fv_ctx *c, const void *self, fv_session *s, const fv_items *in);
    /* For a decoder inside another family's model: keeps the keys and values of x (B,T,D), which
     * steps attend to under mask (B,T) or NULL.  NULL: it attends to its own sequence alone. */
    void (*attend)(fv_ctx *c, const void *self, fv_session *s, fv_tensor *x, fv_tensor *mask);
    /* Tokens it can generate: the V of step's logits. */
    int64_t (*vocabulary)(const void *self);
    /* Places of a sequence, or 0 for no limit; NULL: the same. */
    int64_t (*context)(const void *self);
    /* ids (rows,T): appends them and gives the logits (rows,V) that follow the last one. */
    fv_tensor *(*step)(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids);
    /* Of a family whose sequences are no tokens (frames of speech): appends one element of `in` to
     * each row, and puts what follows into out; step is NULL then. */
    void (*advance)(fv_ctx *c, const void *self, fv_session *s, const fv_items *in, fv_items *out);

    /* ---- speech; NULL where it does not speak ---- */
    fv_voice_shape (*voice)(const void *self);

    /* ---- streams of sound; NULL where whole recordings are heard ---- */
    fv_stream_shape (*stream)(const void *self);
};

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

/* The structs behind a model: its configuration, and the family's own. */
FV_API const void *fv_model_config(const fv_model *m);
FV_API const void *fv_model_self(const fv_model *m); /* the family's struct */

/* ---- activations by name, masks, losses as transformers has them ---- */

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
/* logits (B,L); labels I32 (B), floats (B) or (B,L).  Examples mixed from two have among the inputs
 * "mixed_labels" I32 (B), those of the other, and "label_share" (B), what counts of the first. */
FV_API fv_tensor *fv_loss_classes(fv_ctx *c, fv_tensor *logits, fv_tensor *labels, fv_problem p,
                                  const fv_items *in);
/* x (B,T,2): puts start_logits and end_logits, and with start_positions and end_positions in, the
 * loss. */
FV_API void fv_put_spans(fv_ctx *c, fv_tensor *x, const fv_items *in, fv_items *out);

#endif
