/* recipe.h - the inside of a recipe, and of a run that follows one. */
#ifndef FV_TRAIN_RECIPE_H
#define FV_TRAIN_RECIPE_H

#include "base/base.h"
#include "fovea/gen.h"
#include "fovea/recipe.h"

/* A key of [model]: which table it belongs to is known only once model_type is. */
typedef struct fv__model_key {
    char key[64], value[512], location[160]; /* place: "file:line", or "--set" */
} fv__model_key;

struct fv_recipe {
    const fv_env *env;
    char path[256]; /* for messages; the end of a longer one */
    fv_data_opt data;
    fv_tokenizer_opt tokenizer;
    fv_train_opt train;
    fv_gen_opt generate;
    fv__model_key *model;
    size_t n_model, model_bytes;
    fv_buf text;
};

/* The value of a key of [model], or NULL. */
const char *fv__recipe_model(const fv_recipe *r, const char *key);

/* Puts the recipe and the key in front of what went wrong where they say to look: "r.ini: [data]
 * train: x.txt: cannot open".  Returns st; nothing is done where it is FV_OK. */
fv_status fv__recipe_prefix_error(const fv_recipe *r, const char *key, fv_status st, fv_err *e);

/* ---- a run under way ---- */

typedef struct fv__recipe_run {
    fv_recipe *r;
    const fv_recipe_job *job;
    const fv_env *env;
    fv_tok *tok;
    int32_t pad, start, eos;
    fv_feed train, valid;
    fv_pairs *valid_pairs; /* for BLEU; owned by valid */
    fv_labels labels;
    fv_model *model;
    fv_err *e;
} fv__recipe_run;

void fv__recipe_log(const fv__recipe_run *k, const char *fmt, ...) FV_PRINTF(2, 3);
/* The texts that a tokenizer is trained on, each ending in NUL. */
fv_status fv__recipe_texts(fv__recipe_run *k, const fv_records *from, fv_buf *out);
/* Opens or trains the tokenizer.  A resumed run opens the one it made. */
fv_status fv__recipe_tokenizer(fv__recipe_run *k);
/* The labels of the model that is gone on from, where its head stays: they keep their numbers. */
fv_status fv__recipe_labels(fv__recipe_run *k);
/* The two feeds, with a report of what was read and left out. */
fv_status fv__recipe_data(fv__recipe_run *k);
/* The model: new, or from a directory. */
fv_status fv__recipe_new_model(fv__recipe_run *k);
/* The family that [model] means; its keys are checked against it. */
fv_status fv__recipe_family(const fv_recipe *r, const fv_family **out, fv_err *e);
/* dir/name, name alone where it is absolute, "" for "". */
void fv__recipe_path(char out[FV_PATH], const char *dir, const char *name);
/* BLEU of the first sentences of the validation data. */
fv_status fv__recipe_bleu(void *kitchen, double *value, fv_err *e);
/* generation_config.json and tokenizer_config.json, beside a model. */
fv_status fv__recipe_extra(void *kitchen, const char *dir, fv_err *e);

#endif
