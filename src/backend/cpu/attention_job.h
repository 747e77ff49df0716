/* attention_job.h - a job of attention's forward pass, and the arithmetic that it is done with.
 *
 * attention.c has the loop over tiles of keys and panels of rows; an arithmetic packs q, k and v
 * and updates a panel with a tile.  There are two: f32 (attention.c, which widens 16-bit operands
 * while it packs them) and bf16 on the tile registers of AMX (attention_amx.c).  Both keep scores,
 * and the unfinished output, with rows of the softmax in lanes. */
#ifndef FV_ATTENTION_JOB_H
#define FV_ATTENTION_JOB_H

#include "attention.h"

/* Most rows of a job: enough to make packing keys cheap.  Where cores are alike (Neoverse V1), as
 * many as L2 has room for; elsewhere fewer, so that threads that are faster take more jobs. */
#if VW == 4
#define JOB_ROWS 1056
#else
#define JOB_ROWS 384
#endif
#define JOB_LEAST 384                  /* rows, however wide they are */
#define JOB_BYTES ((int64_t)528 << 10) /* of q and o */

typedef struct job {
    const attn *t;
    int64_t b, g, r0;
    int n; /* rows */
    attn_row row[JOB_ROWS];
    int64_t wo;   /* Wv rounded up: rows of a panel of o */
    float *o;     /* panels (wo, LANES) */
    float *m, *l; /* of each row: running maximum and sum of the online softmax */
    void *q;      /* packed, panel after panel */
    void *k, *v;  /* of the tile, packed */
    float *s;     /* a panel's scores, then its weights */
    void *p;      /* bf16: the weights as the next product takes them */
    float *scratch;
    float after; /* factor of the output: what its weights have not been multiplied by */
    int64_t ahead, ahead_end; /* keys of the next tile that this panel prefetches */
} job;

typedef struct attn_arithmetic {
    int64_t keys; /* of a tile, a multiple of KEYS: sums of a row are cut at multiples of it */
    int64_t (*floats)(const attn *t); /* of memory for one job */
    void (*layout)(job *x, float *work);
    void (*pack_rows)(job *x, int p);                   /* q of the panel at row p */
    void (*pack_keys)(job *x, int64_t j0, int64_t n);   /* k and v of a tile */
    void (*tile)(job *x, int p, int64_t j0, int64_t n); /* keys j0 .. j0 + n for panel p */
    void (*enter)(void); /* before a job and behind it; NULL: nothing is to be done */
    void (*leave)(void);
} attn_arithmetic;

#if defined(CPU_AMX)
extern const attn_arithmetic NAME(attn_amx);
#endif

#endif
