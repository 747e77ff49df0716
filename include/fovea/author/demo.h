/* demo.h - the demonstration: a Transformer that learns to translate the sentences of grammar.h.
 *
 *     fv_demo *d;
 *     fv_demo_new(&d, device, (fv_demo_opt){.sentences = 30000, .tests = 500, .seed = 1}, &err);
 *     fv_demo_train(d, (fv_demo_run){.updates = 800}, &state, &err);
 *     fv_demo_judge(d, print, NULL, &right, &err);
 *
 * Everything follows from the seed: the same model whatever the number of threads. */
#ifndef FOVEA_AUTHOR_DEMO_H
#define FOVEA_AUTHOR_DEMO_H

#include "fovea/author/grammar.h"
#include "fovea/train.h"

typedef struct fv_demo fv_demo;

typedef struct fv_demo_opt {
    int64_t sentences, tests; /* to learn from, and held out */
    uint64_t seed;
} fv_demo_opt;

/* The corpus and a tokenizer trained on it.  The device must outlive the fv_demo. */
FV_API fv_status fv_demo_new(fv_demo **out, fv_device *d, fv_demo_opt opt, fv_err *e);
FV_API void fv_demo_free(fv_demo *d); /* NULL is allowed */
FV_API const fv_grammar_corpus *fv_demo_corpus(const fv_demo *d);
FV_API const fv_tok *fv_demo_tok(const fv_demo *d);
FV_API const fv_model *fv_demo_model(const fv_demo *d); /* NULL before fv_demo_train */

typedef struct fv_demo_run {
    int64_t updates;
    /* as in fv_train_job */
    const volatile int *stop;
    void (*progress)(void *user, const fv_train_state *s, const char *event);
    void *user;
} fv_demo_run;

/* A new model, trained once. */
FV_API fv_status fv_demo_train(fv_demo *d, fv_demo_run run, fv_train_state *out, fv_err *e);
/* Writes dir in Hugging Face's layout: weights, tokenizer and how to generate. */
FV_API fv_status fv_demo_save(const fv_demo *d, const char *dir, fv_err *e);

/* Translates the held-out sentences, then calls each for every one, in order; *right are those
 * that equal the grammar's translation word for word. */
typedef void fv_demo_fn(void *user, const char *en, const char *given, const char *expected);
FV_API fv_status fv_demo_judge(fv_demo *d, fv_demo_fn *each, void *user, int64_t *right, fv_err *e);

/* A translation with its ids, the end token included, and what the decoder began with. */
typedef struct fv_demo_translation {
    const int32_t *source, *target;
    int64_t n_source, n_target;
    int32_t start;
    char *text;
    /* owned, as text is; for fv_demo_free_translation */
    void *pairs, *generated;
    size_t text_len;
} fv_demo_translation;

/* Any sentence, of the corpus or not.  Freed by the call below, before the fv_demo. */
FV_API fv_status fv_demo_translate(fv_demo *d, const char *en, fv_demo_translation *out, fv_err *e);
FV_API void fv_demo_free_translation(const fv_demo *d, fv_demo_translation *t);

#endif
