/* attention.h - attention problems made from a few numbers, and their answers from any kernel
 * table, for tests. */
#ifndef HELPER_ATTENTION_H
#define HELPER_ATTENTION_H

#include "fovea/author/op.h"

/* Options of a problem; the seed decides which axes of mask and bias are repeated. */
enum {
    LENS = 1,
    KEY_MASK = 2,
    MASK = 4,
    BIAS = 8,
    REL = 16,
    CAUSAL = 32,
    WINDOW = 64,
    DROPOUT = 128,
    APART = 256,
    ADD = 512
};

typedef struct sizes {
    int64_t B, Tq, Tk, H, G, Wk, Wv;
} sizes;

/* All in host memory as f64, rounded so that every dtype in use can hold it. */
typedef struct problem {
    sizes n;
    int options;
    uint64_t seed;
    int64_t n_q, n_k, n_v, n_y, n_bias, n_rel; /* elements, gaps of APART included */
    double *q, *k, *v, *dy, *bias, *rel;
    uint8_t *mask, *key_mask;
    int32_t *lens;
    int64_t mask_s[3], bias_s[3];
    uint64_t step;
} problem;

typedef struct answer {
    double *y, *lse, *dq, *dk, *dv, *dbias, *drel;
} answer;

problem problem_new(sizes n, int options, uint64_t seed);
void problem_free(problem *p);

/* Forward and backward by the kernels k on stream s.  Gradients start at 0.25 if ADD is among the
 * options. */
answer answer_new(const problem *p, const fv_kernels *k, fv_stream *s);
void answer_free(answer *x);

/* Largest difference, as part of the largest number in want (or of 0.05); NaN or infinity in only
 * one of them is 1e30. */
double difference(const double *got, const double *want, int64_t n);

/* The arguments alone, with memory of their own, for tests that go on by themselves. */
typedef struct prepared {
    fv_attn_args a;
    fv_attn_grads g;
    void *memory[16];
    int n;
} prepared;
prepared prepare(const problem *p, fv_dtype t);
void prepared_free(prepared *x);
double read_as(const void *x, fv_dtype t, int64_t i);

#endif
