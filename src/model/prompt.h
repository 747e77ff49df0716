/* prompt.h - virtual tokens of a model: prompt tuning, P-tuning, prefix tuning.
 *
 * core/prompt.h says how a pass runs with them. */
#ifndef FV_MODEL_PROMPT_H
#define FV_MODEL_PROMPT_H

#include "core/prompt.h"
#include "fovea/adapter.h"
#include "fovea/author/family.h"

/* What PEFT puts in front of the base model's names in files of such adapters, and its name for
 * what the virtual tokens are. */
#define FV__PROMPT_PREFIX "base_model."
#define FV__PROMPT_EMBEDDINGS "prompt_embeddings"
/* Beside adapter_model.safetensors, where a network makes them: that network, to resume from. */
#define FV__PROMPT_ENCODER "prompt_encoder.safetensors"

/* The trained part.  Zero: there are none. */
typedef struct fv__virtual {
    int type;         /* fv_peft */
    int64_t n;        /* virtual tokens */
    fv_tensor *table; /* (n, D) or (2n, D) of encoder-decoders; of a prefix (n, 2 layers kv) */
    fv_lin layer[3];  /* the network that makes them from the table, while they are trained */
    int layers;
    bool causal;  /* the model sees only what is before a token */
    bool seq2seq; /* it has an encoder and a decoder */
} fv__virtual;

bool fv__peft_is_virtual(int peft_type);

/* The model whose virtual tokens are declared. */
typedef struct fv__prompt_base {
    const fv_family *family;
    const fv_family_head *head;
    const void *config;
    const char *type; /* the model_type */
} fv__prompt_base;

/* Declares the parameters, to be trained (all others but modules_to_save are frozen) or as a
 * finished adapter has them, and fills in what opt leaves open. */
fv_status fv__prompt_declare(fv__virtual *v, fv_params *p, fv_adapter_opt *opt,
                             const fv__prompt_base *base, bool train, fv_err *e);
/* The embeddings, or keys and values, as f32 in host memory, (rows, cols) of them; freed by
 * fv__free(env, *out, rows * cols * sizeof(float)). */
fv_status fv__prompt_read(const fv__virtual *v, fv_device *d, float **out, int64_t *rows,
                          int64_t *cols, fv_err *e);
/* First values: rows of the model's embedding table, over and over. */
fv_status fv__prompt_begin_as(const fv__virtual *v, fv_params *p, const int32_t *ids, int64_t n,
                              fv_err *e);

/* ---- a pass ---- */

/* Where there are any: makes the inputs of a whole pass longer; the context has virtual tokens from
 * here to fv__prompt_leave.  The loss
 * of a causal model leaves out the first token, as it does without virtual tokens. */
void fv__prompt_enter(fv_ctx *c, const fv__virtual *v, const fv_family *f, fv_head_job job,
                      fv_items *in);
/* Cuts off what they computed. */
void fv__prompt_leave(fv_ctx *c, fv_items *out);
/* For a session: the inputs of its encoder; the ids (rows,n) of a step of virtual tokens alone, or
 * NULL where they are the encoder's. */
void fv__prompt_encoder_inputs(fv_ctx *c, const fv__virtual *v, fv_items *in);
fv_tensor *fv__prompt_step(fv_ctx *c, const fv__virtual *v, int64_t rows);
/* Tokens that they take of a sequence that is generated. */
int64_t fv__prompt_length(const fv__virtual *v);

const fv__virtual *fv__model_virtual(const fv_model *m);

#endif
