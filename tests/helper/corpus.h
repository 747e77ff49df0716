/* corpus.h - sixty pairs of sentences by rule, their tokenizer, and a small translator that can
 * learn them. */
#ifndef HELPER_CORPUS_H
#define HELPER_CORPUS_H

#include "fovea/fovea.h"
#include "fovea/train.h"
#include "fovea/author/data.h"

enum { CORPUS_PAIRS = 60 };

typedef struct corpus_data {
    fv_tok *tok; /* owned by the processor */
    fv_processor *processor;
    fv_pairs *pairs;
    fv_feed feed;
    int32_t pad, eos;
} corpus_data;
extern corpus_data corpus;

/* For cmocka's set-up and tear-down of a group; a scratch folder is opened besides. */
int corpus_open(void **state);
int corpus_close(void **state);

fv_device *corpus_device(int threads);
fv_model *corpus_model(fv_device *d, double dropout, fv_dtype t);
fv_train_job corpus_job(fv_device *d, fv_model *m, int64_t updates);

#endif
