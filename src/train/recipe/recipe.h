/* recipe.h - the inside of a recipe, and the steps of a run that follows one.
 *
 * A run goes one way: read.c reads the file into an fv_recipe, check.c compares its parts, then
 * input.c opens the processor and the feeds, model.c makes the model, run.c trains it in its
 * directory, and beside.c writes how it generates.  Each step takes what it needs as
 * arguments and gives what it made; none calls back into an earlier one. */
#ifndef FV_TRAIN_RECIPE_H
#define FV_TRAIN_RECIPE_H

#include "base/base.h"
#include "fovea/author/objective.h"
#include "fovea/gen.h"
#include "fovea/processor.h"
#include "fovea/recipe.h"
#include "train/continual/continual.h"
#include "train/options.h"

/* A key whose table is known only once the whole recipe is read: those of [model] depend on
 * model_type, those of [data] that are an objective's own on the objective. */
typedef struct fv__late_key {
    char key[64], value[512], location[160]; /* location: "file:line", or "--set" */
} fv__late_key;

typedef struct fv__late_keys {
    fv__late_key *at;
    size_t n, bytes;
} fv__late_keys;

struct fv_recipe {
    const fv_env *env;
    char path[256]; /* for messages; the end of a longer one */
    fv_data_opt data;
    fv_tokenizer_opt tokenizer;
    fv_train_opt train;
    fv_gen_opt generate;
    fv_adapter_opt adapter;
    fv__continual_opt continual;
    fv__late_keys model, own; /* of [model], and of [data] those of an objective */
    void *files;              /* options that files of src/train declare (train/options.h) */
    fv_buf given;             /* "\nsection.key\n": all that were set, by file or afterwards */
    fv_buf text;
};

/* The value of a key, or NULL. */
const char *fv__late_get(const fv__late_keys *k, const char *key);
/* Whether the file or --set gave this key a value. */
bool fv__recipe_given(const fv_recipe *r, const char *section, const char *key);
const fv_objective *fv__recipe_objective(const fv_recipe *r);
/* Whether the family has a head of this name, and it does the job. */
bool fv__head_does(const fv_family *f, const char *architecture, fv_head_job job);
/* The objective's own options, allocated (objective->options_size bytes); NULL where it has none or
 * memory is out.  A key that the objective does not have is an error. */
fv_status fv__recipe_own(const fv_recipe *r, void **out, fv_err *e);
/* Calls each with every key that a resumed run must not change, as "section.key" and value. */
typedef void fv__key_fn(void *user, const char *key, const char *value);
fv_status fv__recipe_fixed(const fv_recipe *r, fv__key_fn *each, void *user, fv_err *e);

/* Puts the recipe and the key before an error: "r.ini: [data] train: x.txt: cannot open".  Returns
 * st; does nothing where it is FV_OK. */
fv_status fv__recipe_prefix_error(const fv_recipe *r, const char *key, fv_status st, fv_err *e);

/* ---- messages of a run ---- */

typedef struct fv__messages {
    void (*line)(void *user, const char *text); /* NULL: nobody listens */
    void *user;
} fv__messages;
void fv__message(const fv__messages *m, const char *fmt, ...) FV_PRINTF(2, 3);

/* ---- input.c: the processor and the feeds ---- */

typedef struct fv__input {
    const fv_env *env;
    fv_processor *processor;
    bool made; /* the processor was trained here, not opened */
    int32_t pad, start, eos, cls, sep, mask;
    fv_labels labels;
    void *own; /* the objective's options */
    size_t own_bytes;
    fv_feed train, valid; /* valid.self is NULL where there is no validation data */
} fv__input;

/* source: the directory of [model] from, NULL without one.  resumed: a run's directory whose
 * processor is opened again; NULL: none. */
fv_status fv__input_open(fv__input *out, const fv_recipe *r, const fv_env *env,
                         const fv_dir *source, const char *resumed, const fv__messages *m,
                         fv_err *e);
void fv__input_close(fv__input *in);

/* ---- inputs.c: a resumed run reads what it began with ---- */

/* Hashes of the tokenizer and the data, written into the run's directory when it begins, and
 * compared when it is resumed: FV_ESTATE names the file that differs. */
fv_status fv__inputs_write(const fv_recipe *r, const fv_env *env, const char *run, fv_err *e);
fv_status fv__inputs_compare(const fv_recipe *r, const fv_env *env, const char *run, fv_err *e);

/* ---- model.c ---- */

/* The family of [model], whose keys are checked against it, and the name of its head. */
fv_status fv__recipe_family(const fv_recipe *r, const fv_family **family, const char **head,
                            fv_err *e);
/* adapter.c.  The recipe's adapter, with what follows from the rest of the recipe; from: the model
 * it is trained on.  And prompts that begin as tokens of a text, or as tokens drawn from the
 * vocabulary. */
fv_status fv__recipe_adapter(fv_adapter_opt *out, const fv_recipe *r, const char *from, fv_err *e);
fv_status fv__recipe_prompt(fv_model *model, const fv_recipe *r, const fv__input *in, fv_err *e);
/* vectors.c.  Word vectors as first values of the embeddings; nothing where none are named. */
fv_status fv__recipe_vectors(fv_model *model, const fv_recipe *r, const fv__input *in,
                             const fv__messages *m, fv_err *e);
/* ---- load.c: parameters that a model begins with ---- */

/* Those of a directory.  With another head than the directory's, those that it lacks stay new. */
fv_status fv__recipe_load(fv_model *model, const fv_env *env, const char *from, bool other_head,
                          const fv__messages *m, fv_err *e);
/* Of a new model the halves that encoder.from and decoder.from name a directory for. */
fv_status fv__recipe_halves(fv_model *model, const fv_recipe *r, const fv__input *in,
                            const fv__messages *m, fv_err *e);
/* New, or with the parameters of the source directory; ranks that share it, or NULL. */
fv_status fv__recipe_model(fv_model **out, const fv_recipe *r, fv_device *d, const fv__input *in,
                           const fv_dir *source, fv_comm *ranks, const fv__messages *m, fv_err *e);

/* ---- beside.c: how the model generates ---- */

typedef struct fv__beside {
    const fv_recipe *r;
    const fv__input *in;
    const fv_model *model;
    const char *from; /* the source directory's path, NULL without one */
} fv__beside;

/* generation_config.json, where the model generates; user is an fv__beside. */
fv_status fv__beside_write(void *user, const char *dir, fv_err *e);
/* How the model generates: as the source directory says, then as the recipe says.  Freed with
 * fv_gen_config_close(*owner), which has out's lists; *owner is NULL without a source directory. */
fv_status fv__beside_generation(const fv__beside *b, fv_gen_opt *out, fv_gen_config **owner,
                                fv_err *e);

/* ---- bleu.c ---- */

typedef struct fv__bleu {
    fv_device *device;
    const fv__beside *beside;
    const fv_pairs *pairs;
    int64_t n; /* sentences that are translated */
} fv__bleu;
/* BLEU of the first sentences of the validation data; user is an fv__bleu. */
fv_status fv__bleu_score(void *user, double *value, fv_err *e);

/* dir/name, name alone where it is absolute, "" for "". */
void fv__recipe_path(char out[FV_PATH], const char *dir, const char *name);

#endif
