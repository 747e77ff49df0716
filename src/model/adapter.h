/* adapter.h - adapters of a model: which linear maps they change, and their directories. */
#ifndef FV_MODEL_ADAPTER_H
#define FV_MODEL_ADAPTER_H

#include "base/base.h"
#include "core/adapter.h"
#include "fovea/adapter.h"
#include "fovea/author/config.h"
#include "fovea/author/family.h"
#include "model/prompt.h"

/* What PEFT puts in front of every name in adapter_model.safetensors. */
#define FV__PEFT_PREFIX "base_model.model."

/* One adapted linear map. */
typedef struct fv__target {
    fv_tensor *w;     /* a parameter of the base model */
    char module[256]; /* its name without ".weight" */
    int64_t in, out;
    bool in_out; /* w is stored (in,out) */
    bool before; /* IA3 scales its input, not its output */
    bool table;  /* no product: rows of w (in,out) are looked up */
} fv__target;

/* Calls each(user, target) for every linear map of p that opt names; *n counts them.  An error
 * where it names none, or something that is no linear map.  type: the model_type. */
typedef fv_status fv__target_fn(void *user, const fv__target *t, fv_err *e);
fv_status fv__adapter_targets(fv_params *p, const fv_adapter_opt *opt, const char *type,
                              fv__target_fn *each, void *user, fv_err *e);

/* The same of tables of embeddings alone, before parameters have memory: no error where there are
 * none, nor where opt is wrong, which fv__adapter_targets says. */
fv_status fv__adapter_tables(fv_params *p, const fv_adapter_opt *opt, fv__target_fn *each,
                             void *user, fv_err *e);

/* lora_alpha / r, or lora_alpha / sqrt(r). */
float fv__adapter_scale(const fv_adapter_opt *opt);

/* Declares the adapter's parameters behind those of the model, hangs them on the weights they
 * change, and freezes everything else.  opt's target_modules are filled in where it has none.
 * Before fv_params_alloc. */
fv_status fv__adapter_declare(fv_params *p, fv_adapter_opt *opt, const char *type, fv_err *e);
/* The second half of that: the parameters alone, for an adapter in use. */
fv_status fv__adapter_hang(fv_params *p, fv_adapter_opt *opt, const char *type, fv_err *e);
/* And of a LoRA in use what changes tables, which is not folded: the same table may be the output
 * layer, which it leaves alone.  An error where another adapter has one already. */
fv_status fv__adapter_hang_tables(fv_params *p, fv_adapter_opt *opt, fv_err *e);
/* One of them, under PEFT's name for it; saved with the adapter and not with the model. */
fv_tensor *fv__adapter_param(fv_params *p, fv_init init, fv_shape s, const char *module,
                             const char *name);
/* For adapters that change no linear map: freezes all but modules_to_save. */
void fv__adapter_freeze(fv_params *p, const fv_adapter_opt *opt);
/* Frozen weights of linear maps are held as opt->weights says, below an adapter that is trained: a
 * model is tuned in about the memory that it is served in.  Before fv_params_alloc. */
fv_status fv__adapter_hold_base(fv_params *p, bool adapted, const fv_device *d,
                                const fv_model_opt *opt, fv_err *e);
/* Fills modules_to_save in where it is empty.  file: the base model's weights, or NULL. */
void fv__adapter_default_saved(fv_adapter_opt *opt, const fv_params *p, fv_head_job job,
                               const fv_st *file);
/* Parameters of DoRA that begin as a function of the base model's weights. */
fv_status fv__adapter_ready(fv_params *p, const fv_env *env, fv_err *e);

/* The trained parameters to and from a directory. */
/* v: the model's virtual tokens; those of a new adapter, where that is one. */
fv_status fv__adapter_save(fv_params *p, const fv_adapter_opt *opt, const fv__virtual *v,
                           const fv_env *env, const char *dir, fv_dtype dtype, fv_err *e);
fv_status fv__adapter_load(fv_params *p, const fv__virtual *v, const fv_env *env, const char *dir,
                           fv_err *e);

/* Puts adapters to use, one after another: base weights are changed by LoRA and IA3 (weight -1
 * takes a LoRA out again), v gets the values of virtual tokens.  needed: names of parameters, each
 * ending in NUL, that must come with the first; NULL: none. */
fv_status fv__adapters_fold(fv_params *p, const fv__virtual *v, const fv_env *env,
                            fv_adapter_list list, const char *type, const fv_buf *needed,
                            fv_err *e);
/* Declares v where one of the adapters is of virtual tokens.  Before fv_params_alloc. */
fv_status fv__adapters_declare(fv__virtual *v, fv_params *p, const fv__prompt_base *base,
                               const fv_env *env, fv_adapter_list list, fv_err *e);

/* ---- bottlenecks (bottleneck.c) ---- */

extern const char *const fv__bottleneck_acts[];
/* It is one, and its linear maps are found by the part of a layer that they end. */
bool fv__bottleneck_by_part(const fv_adapter_opt *opt);
bool fv__bottleneck_behind(const fv_adapter_opt *opt, const fv_tensor *w);
void fv__bottleneck_declare(fv_adapter *a, fv_params *p, const fv_adapter_opt *opt,
                            const fv__target *t);
/* A model has such an adapter, new or in use. */
bool fv__params_have_bottleneck(const fv_params *p);
bool fv__params_have_table_adapter(const fv_params *p);

#define FV__MAX_ADAPTERS 64

/* A directory with an adapter and without weights of a model. */
bool fv__adapter_is_dir(const fv_dir *d);
/* The directory of its base model: as adapter_config.json has it, from here or from dir. */
fv_status fv__adapter_base(char out[FV_PATH], const fv_env *env, const char *dir, fv_err *e);

/* Once all parameters have their values, also those that were loaded behind fv_model_new: computes
 * what depends on them. */
fv_status fv__model_ready(fv_model *m, fv_err *e);

#endif
