/* eval.h - a kind of evaluation: what the command line must hold for it, and what is done then.  Each is one file. */
#ifndef FOVEA_CLI_EVAL_H
#define FOVEA_CLI_EVAL_H

#include "cli.h"
#include "json.h"

typedef struct eval_values {
    const char *model, *source, *reference, *hypothesis, *output;
    const char *device;
    int64_t beam, threads, batch;
    int dtype;
    bool lowercase, json;
    cli_settings settings;
} eval_values;

typedef struct eval_kind {
    const char *needs;                   /* for messages: "--reference F with -m DIR --source F" */
    bool (*takes)(const eval_values *v); /* whether the options are those of this kind */
    int (*run)(const cli *c, const eval_values *v);
} eval_kind;

extern const eval_kind eval_translation; /* BLEU and chrF of translations */

#endif
