/* attention_bwd_sweep.h - sweeps of blocks of keys over rows, of which attention_bwd.c makes the
 * gradient. */
#ifndef FV_ATTENTION_BWD_SWEEP_H
#define FV_ATTENTION_BWD_SWEEP_H

#include <stdatomic.h>

#include "attention.h"

#define ATTN_BLOCK 384   /* keys of a sweep */
#define ATTN_DQ_ROWS 192 /* rows of a job that computes dq only */

typedef struct backward {
    attn t;
    const fv_attn_grads *g;
    float *dbias; /* in f32, with the strides of bias; NULL if there is no such gradient */
    float *drel;  /* (B,H,rel_len) in f32, one share for each sequence */
} backward;

/* Floats that dq and the three numbers of each row take, and all of a thread's memory. */
int64_t NAME(attn_sweep_rows)(const attn *t, int64_t rows, bool want_q);
int64_t NAME(attn_sweep_floats)(const attn *t, int64_t rows, bool want_q);

/* dk and dv of keys [k0, k1) of head g in sequence b, and dq of all rows from these keys. */
void NAME(attn_sweep_head)(const backward *w, int64_t b, int64_t g, int64_t k0, int64_t k1,
                           bool want_q, float *work);
/* Block `number` of a head that threads share, all three gradients.  rows: the head's
 * attn_sweep_rows; ready: its counters, one for each block, of rows whose dq has that block. */
void NAME(attn_sweep_block)(const backward *w, int64_t b, int64_t g, int64_t number, float *rows,
                            atomic_llong *ready, float *work);
/* dq of ATTN_DQ_ROWS rows from r0 on. */
void NAME(attn_sweep_dq)(const backward *w, int64_t b, int64_t g, int64_t r0, float *work);

#endif
