/* classify.h - labels given on the command line, for models that were not trained on them. */
#ifndef FOVEA_CLI_CLASSIFY_H
#define FOVEA_CLI_CLASSIFY_H

#include "texts.h"

typedef struct classify_values {
    cli_model model;
    int64_t top;
    double threshold;
    const char *labels, *hypothesis, *prompt, *examples;
    bool many, json;
} classify_values;

typedef struct label_list {
    char *text;
    const char **at;
    int n;
} label_list;

/* "a,b,c" */
int read_labels(const cli *c, const char *list, label_list *out);
void free_labels(label_list *l);

/* Scores (texts,labels) of labels that the model does not know: by entailment where it has a head
 * for it, else by how likely it is to write them. */
int score_labels(const cli *c, const classify_values *v, const cli_texts *texts,
                 const label_list *labels, float *scores);

#endif
