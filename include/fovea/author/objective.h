/* objective.h - for authors of training objectives: what a model is trained to do.
 *
 * An objective is one file of src/objective: x.c defines `const fv_objective fv__objective_x`, and
 * the build lists the folder.  The file says everything about it: its keys in a recipe's [data],
 * how records become batches, which kind of head and which special tokens it needs, the arrays its
 * loss is computed from, and its metric.  No other file names it. */
#ifndef FOVEA_AUTHOR_OBJECTIVE_H
#define FOVEA_AUTHOR_OBJECTIVE_H

#include "fovea/author/data.h"
#include "fovea/author/config.h"

/* Called with each text that a tokenizer is to be trained on. */
typedef void fv_text_fn(void *user, const char *text, size_t len);

typedef struct fv_objective {
    const char *name; /* the file's, and the value of data.objective */
    const char *help; /* a line */

    /* Its own keys of [data] and the size of the struct they fill; NULL and 0: none. */
    const fv_field *keys;
    size_t options_size;

    /* ---- a tokenizer that is trained for it (WordPiece has BERT's instead) ---- */
    const char *processor;             /* the kind of processor it needs: "tokenizer", "image" */
    const char *const *specials;       /* special tokens, in order of their ids; NULL: none */
    const char *const *specials_bytes; /* those of a byte-level tokenizer; NULL: the same */
    const char *before, *after;        /* put around every text; NULL: nothing */
    /* Calls each with every text of the training records.  options: its own. */
    fv_status (*texts)(const fv_env *env, const void *options, const fv_records *from,
                       fv_text_fn *each, void *user, fv_err *e);

    /* Makes the processor of a new model, of another kind than a tokenizer, from its own options
     * and the training records.  tok: the tokenizer that was trained or opened, owned from here on;
     * NULL where `texts` is.  NULL: the processor has no files, or they stand with the model. */
    fv_status (*make_processor)(fv_processor **out, const fv_env *env, const void *options,
                                const fv_records *from, fv_processor *tok, fv_err *e);

    /* ---- the model ---- */
    /* A key of config.json that follows from the data (the channels of a series), for a new model
     * whose recipe does not give it; -1: it does not.  NULL: none does. */
    int64_t (*config_value)(const void *options, const fv_processor *p, const char *key);
    fv_head_job head;               /* what the model's head must compute */
    const char *const *loss_inputs; /* arrays of a batch that the loss is computed from */
    bool names_labels;              /* config.json gets id2label and label2id */
    bool generates;                 /* generation_config.json is written */

    /* ---- data ---- */
    fv_feed_fn *open;
    /* The pairs behind a feed, whose targets can be generated and compared (BLEU); NULL: none. */
    const fv_pairs *(*pairs)(const fv_feed *f);
} fv_objective;

/* The objectives of this build, in order of name; NULL past the end. */
FV_API const fv_objective *fv_objective_at(int i);
FV_API const fv_objective *fv_objective_find(const char *name);
/* Their names, ending in NULL: number i is fv_objective_at(i). */
FV_DATA const char *const fv_objective_names[];

/* ---- texts of the usual records, for fv_objective.texts ---- */

/* The first text of every record, and both. */
FV_API fv_status fv_texts_first(const fv_env *env, const void *options, const fv_records *from,
                                fv_text_fn *each, void *user, fv_err *e);
FV_API fv_status fv_texts_both(const fv_env *env, const void *options, const fv_records *from,
                               fv_text_fn *each, void *user, fv_err *e);
/* The first text of records that have a second: a label. */
FV_API fv_status fv_texts_labelled(const fv_env *env, const void *options, const fv_records *from,
                                   fv_text_fn *each, void *user, fv_err *e);

#endif
