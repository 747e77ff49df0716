/* recognise.h - what the files of a recogniser share: its state, and the searches over frames. */
#ifndef FV_GEN_RECOGNISE_H
#define FV_GEN_RECOGNISE_H

#include "base/base.h"
#include "fovea/author/family.h"
#include "fovea/author/recognise.h"

/* The tokens of a hypothesis, fv_recognised one behind the other, and its log-probability. */
typedef struct fv__hypothesis {
    fv_buf tokens;
    double score;
} fv__hypothesis;

/* Host memory that is used again. */
typedef struct fv__floats {
    float *x;
    size_t bytes;
} fv__floats;

struct fv_recogniser {
    const fv_env *env;
    const fv_model *model;
    fv_ctx *ctx;
    fv_recognise_opt opt;
    fv_stream_shape shape;
    fv_buf waiting;            /* frames that no chunk was made of yet */
    int64_t width;             /* numbers of a frame; 0: none came yet */
    float *past;               /* (2 layers,left + chunk,D) */
    int64_t past_n;            /* rows of it in use */
    int64_t position;          /* frames encoded so far */
    fv__floats states, scores; /* what the encoder gave, and the joint network */
    /* ---- the search ---- */
    fv__hypothesis *best; /* beams of them, and as many to build the next from */
    int64_t n;            /* in use, the likeliest first */
    int32_t last;         /* CTC: what the last frame said; the blank at first */
};

static inline int64_t fv__hypothesis_n(const fv__hypothesis *h)
{
    return (int64_t)(h->tokens.len / sizeof(fv_recognised));
}
static inline fv_recognised *fv__hypothesis_at(const fv__hypothesis *h)
{
    return (fv_recognised *)(void *)h->tokens.data;
}

/* n frames of logits (n,V) on the host: the likeliest of each, repeats and blanks left out. */
fv_status fv__recognise_ctc(fv_recogniser *r, const float *logits, int64_t n, int64_t V, fv_err *e);
/* n frames of the encoder's states (n,D) on the host, through the joint network. */
fv_status fv__recognise_greedy(fv_recogniser *r, const float *states, int64_t n, int64_t D,
                               fv_err *e);
fv_status fv__recognise_beams(fv_recogniser *r, const float *states, int64_t n, int64_t D,
                              fv_err *e);
/* A tensor's numbers on the host. */
fv_status fv__recognise_read(fv_recogniser *r, fv__floats *to, const fv_tensor *y,
                             const float **out, fv_err *e);
fv_status fv__recognise_failed(const fv_recogniser *r, fv_err *e);

#endif
