/* rank_runs.h - recipes trained by ranks that are threads. */
#ifndef HELPER_RANK_RUNS_H
#define HELPER_RANK_RUNS_H

#include <stdbool.h>

#include "fovea/error.h"

enum { RANK_RUNS_MOST = 16 };

/* A recipe whose data are in the scratch folder; keys are set as on the command line. */
typedef struct ranks_run {
    const char *recipe, *dir; /* a file, and the run's directory; NULL: a dry run */
    const char *device;       /* NULL: the CPU */
    const char *set[6][2];    /* keys and values, ending in {0} */
    bool resume;
} ranks_run;
typedef struct ranks_end {
    fv_status st;
    fv_err e;
} ranks_end;
void ranks_train(const ranks_run *run, int n, ranks_end *end); /* end[n] */
void ranks_trained(const ranks_run *run, int n);               /* all of them to the end */

#endif
