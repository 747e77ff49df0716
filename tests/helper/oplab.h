/* oplab.h - what optable.h works with: drawn inputs, a place to compute in, results,
 * comparisons. */
#ifndef HELPER_OPLAB_H
#define HELPER_OPLAB_H

#include "core/core.h"
#include "optable.h"

/* The inputs of a case, as every dtype holds them. */
typedef struct numbers {
    int n; /* inputs */
    int64_t len[OP_MAX_IN];
    double *x[OP_MAX_IN];
} numbers;

numbers numbers_draw(const op_case *k);
void numbers_free(numbers *v);
double *zeros(int64_t n); /* n zeros */
/* Element i of the gradient that is sent back into y. */
float weight(int64_t i);

/* A device and a context with counted memory; fail_at as in fv_mem_counter.  A GPU is opened once
 * for all labs, as that takes longer than most cases do. */
typedef struct lab {
    fv_mem_counter own, *mem;
    fv_env env;
    fv_device *dev;
    fv_ctx *ctx;
} lab;

fv_status lab_open(lab *l, const op_case *k, fv_dtype t, bool record, int threads, size_t fail_at);
void lab_close(lab *l); /* all memory must have come back; on a GPU lab_end sees to that */
/* after the last: returns how many faults there are, if all was good so far */
int lab_end(bool all_good);

typedef struct inputs {
    fv_tensor *x[OP_MAX_IN];
} inputs;

typedef struct result {
    int64_t n;
    double *y, *g[OP_MAX_IN];
    const void *at[1 + OP_MAX_IN]; /* where y and the gradients lay */
} result;

void result_free(result *r);

/* Whether input i is asked for its gradient. */
bool wants(const op_case *k, int i);
fv_tensor *upload(fv_ctx *c, const double *x, fv_shape s, fv_dtype t);
inputs give(fv_ctx *c, const op_case *k, const numbers *v, fv_dtype t, bool grad);
fv_status send_back(fv_ctx *c, fv_tensor *y);
/* The value and, if asked, the gradients.  times 2: the op twice on the same inputs, added. */
fv_status compute(fv_ctx *c, const op_case *k, const numbers *v, inputs in, bool grad, int times,
                  result *r);
fv_status run(lab *l, const op_case *k, const numbers *v, fv_dtype t, bool grad, int times,
              result *r);
/* In a lab of its own; an error fails the test. */
result run_alone(const op_case *k, const numbers *v, fv_dtype t, bool grad, int times, int threads);

/* Element by element, relative to the number and to the size of all of them together. */
void near(const op_case *k, const char *what, const double *got, const double *want, int64_t n,
          double tolerance);
void same_bits(const op_case *k, const char *what, const double *a, const double *b, int64_t n);

#endif
