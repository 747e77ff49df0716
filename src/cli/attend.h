/* attend.h - one attention worked out by hand, and how it is shown. */
#ifndef FOVEA_CLI_ATTEND_H
#define FOVEA_CLI_ATTEND_H

#include "json.h"

typedef struct attention {
    int64_t Tq, Tk, H, Wk, Wv;
    float scale;
    bool causal, masked, biased; /* whether a mask hides keys; whether one is added to the scores */
    const float *q, *k, *v;      /* (Tq,H*Wk), (Tk,H*Wk), (Tk,H*Wv) */
    uint8_t *mask;  /* (H,Tq,Tk): 1 where a key takes part, in the end causality included */
    float *bias;    /* (H,Tq,Tk): added to the scores */
    float *scores;  /* (H,Tq,Tk): q.k */
    float *scaled;  /* (H,Tq,Tk): scale * q.k + bias, of which the softmax is taken */
    float *weights; /* (H,Tq,Tk) */
    float *output;  /* (Tq,H*Wv) */
} attention;

/* The lesson: each step with its numbers, `digits` behind the point. */
void attend_print(const attention *a, int digits);
void attend_json(const attention *a);

#endif
