/* ranks.h - what tests of ranks do alike, whichever engine carries the bytes. */
#ifndef HELPER_RANKS_H
#define HELPER_RANKS_H

#include "comm/comm.h"
#include "fovea/model.h"

enum { RANKS_MOST = 16 };

/* Every rank sends two numbers to every rank, itself too; 0: all of them have arrived, else which
 * step failed. */
int ranks_exchange(fv_comm *c);

/* Writes lines.txt, 150 lines for a small language model, and r.ini into the scratch folder. */
void ranks_recipe(const char *recipe);

/* Whether two checkpoints, "run/checkpoints/step-4", hold the same moments, in one file or in one
 * of each rank. */
bool same_moments(const char *a, const char *b);

/* ---- one model whole and shared among ranks ---- */

enum { SHARED_B = 2, SHARED_T = 9, SHARED_VOCAB = 61, SHARED_MADE = 12, SHARED_MOST = 4 };

/* Writes a model of this config.json with first values. */
void write_model(const char *dir, const char *config);
/* The logits (SHARED_B,SHARED_T,SHARED_VOCAB) of fixed ids; where loss is not NULL, that of the
 * same ids as labels too, and its gradients, in the parameters. */
fv_status shared_forward(float *logits, float *loss, fv_device *d, fv_model *m, fv_err *e);
/* What the model generates from the first row of those ids: at most SHARED_MADE tokens. */
fv_status shared_decode(int32_t *made, int64_t *n_made, fv_device *d, fv_model *m, const char *dir,
                        fv_err *e);

/* What a test computes, with a model that ranks share or (comm NULL) with a whole one, and how both
 * outcomes are compared: 0 if they agree. */
typedef struct shared_job {
    size_t size; /* of an outcome */
    fv_status (*compute)(void *outcome, const struct shared_job *job, const char *dir,
                         fv_comm *comm, fv_err *e);
    int (*compare)(void *shared, const void *whole);
    void (*free)(void *outcome); /* what it owns; NULL: nothing */
    fv_dtype weights;            /* for compute */
    int models;                  /* directories model-0, model-1, ... of the scratch folder */
} shared_job;

/* n ranks that are threads share the model in dir; each must agree with the whole one. */
void share_by_threads(const shared_job *job, const char *dir, int n);
/* n ranks by mpirun, each of them this program as share_main runs it; skipped where there is no
 * mpirun. */
void share_by_processes(int n);
/* For main: all tests, or, started with the argument "rank", one rank on every model. */
struct CMUnitTest;
int share_main(int argc, char **argv, const shared_job *job, const struct CMUnitTest *tests,
               size_t n);

#endif
