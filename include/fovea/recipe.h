/* recipe.h - a whole training run in one file: model, data, tokenizer, training and generation.
 *
 *     [model]      model_type = marian, then keys of that family's config.json; or from = DIR to go
 *                  on from a model
 *     [data]       the objective with its own keys, and the files
 *     [tokenizer]  trained on the data, or opened
 *     [train]      fv_train_fields
 *     [generate]   fv_gen_fields
 *
 * Every key has a default, a range and a line of help.  A key that does not exist, or a value that
 * does not fit, is an error with file and line that names the nearest key. */
#ifndef FOVEA_RECIPE_H
#define FOVEA_RECIPE_H

#include "fovea/records.h"
#include "fovea/train.h"

typedef struct fv_recipe fv_recipe;

/* ---- [data] and [tokenizer] ---- */

typedef struct fv_data_opt {
    int objective; /* number in fv_objective_names */
    char dir[512], train[512], train_target[512], valid[512], valid_target[512];
    int format; /* fv_format */
    char source_field[64], target_field[64];
    bool header, latin1;
    int malformed, empty, too_long; /* fv_policy */
    int64_t max_len, max_train, max_valid;
    float hold_out;
} fv_data_opt;
/* Keys of [data] that all objectives share; an objective has further ones of its own. */
FV_DATA const fv_field fv_data_fields[];

typedef struct fv_tokenizer_opt {
    char from[512];
    int kind; /* fv_tok_kind */
    int64_t vocab, min_count;
    bool lowercase, nfkc;
} fv_tokenizer_opt;
/* Keys of [tokenizer]. */
FV_DATA const fv_field fv_tokenizer_fields[];

/* ---- reading ---- */

FV_API fv_status fv_recipe_open(fv_recipe **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_recipe_close(fv_recipe *r); /* NULL is allowed */
/* Sets a key afterwards: "train.lr", "3e-4". */
FV_API fv_status fv_recipe_set(fv_recipe *r, const char *key, const char *value, fv_err *e);
/* Checks what only the whole recipe can show: that the family exists and has the keys of [model],
 * that its head can be trained with the objective, that files are named. */
FV_API fv_status fv_recipe_check(fv_recipe *r, fv_err *e);
FV_API const fv_train_opt *fv_recipe_options(const fv_recipe *r);
/* A line of help for each key of each section.  type: the family whose keys [model] shows; NULL:
 * none.  false, and no line: there is no such family. */
FV_API bool fv_recipe_help(const char *type, void (*line)(void *user, const char *text),
                           void *user);

/* ---- running ---- */

typedef struct fv_recipe_job {
    fv_device *device;
    /* NULL: a dry run, which reads everything, tries the largest batch and reports the memory it
     * takes, but trains and writes nothing.  Made with the directories above it; a run that fails
     * before its first update removes what it made. */
    const char *dir;
    /* Without it, a directory that is not empty is refused.  With it, keys that a resumed run may
     * not change must be those of the run. */
    bool resume;
    const volatile int *stop;
    void (*progress)(void *user, const fv_train_state *s, const char *event);
    void (*on_message)(void *user, const char *text); /* what was read and made, a line each */
    void *user;
    fv_comm *comm;     /* the ranks that train together (fv_train_job); NULL: one */
    const char *trace; /* as fv_train_job's */
    /* instead of a dry run: called, with user, with the job as it would be trained */
    fv_status (*look)(void *user, const fv_train_job *job, fv_err *e);
} fv_recipe_job;

/* Tokenizer, data, model and training, as fv_train. */
FV_API fv_status fv_recipe_train(fv_recipe *r, const fv_recipe_job *job, fv_train_state *out,
                                 fv_err *e);

#endif
