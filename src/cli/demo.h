/* demo.h - what the two halves of the demonstration share: learning (demo.c) and showing
 * (demo_show.c). */
#ifndef FOVEA_CLI_DEMO_H
#define FOVEA_CLI_DEMO_H

#include "cli.h"

/* A translation to look at. */
typedef struct demo_scene {
    fv_device *dev;
    const fv_model *model;
    const fv_tok *tok;
    const char *dir; /* where pictures go */
    const char *en, *fr;
    const int32_t *source, *target; /* ids, the end included */
    int64_t n_source, n_target;
    int32_t start;
} demo_scene;

/* Writes the pictures and the page, says which word looked at which, and how to open them. */
fv_status demo_show(const demo_scene *d, fv_err *e);

#endif
