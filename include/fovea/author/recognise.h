/* recognise.h - tokens of a sound by models that align frames and tokens: CTC and transducers.
 *
 *     fv_recogniser_new(&r, device, model, (fv_recognise_opt){.stream = true}, &err);
 *     fv_recogniser_add(r, features, frames, &err);         again and again, while it is spoken
 *     fv_recogniser_end(r, &err);
 *     tokens = fv_recogniser_tokens(r, &n);                 grows while frames come in
 *
 * The model must be one whose head is FV_HEAD_CTC or FV_HEAD_TRANSDUCER, and must outlive it. */
#ifndef FOVEA_AUTHOR_RECOGNISE_H
#define FOVEA_AUTHOR_RECOGNISE_H

#include "fovea/model.h"

typedef struct fv_recogniser fv_recogniser;

typedef struct fv_recognise_opt {
    /* chunk by chunk, with the model's look-ahead, tokens coming as soon as they are certain; else
     * the whole recording is heard first */
    bool stream;
    int64_t beams;     /* hypotheses of a transducer; 0 or 1: greedy */
    const char *input; /* the encoder's: NULL: "input_features"; "input_values": samples */
    int32_t blank;
} fv_recognise_opt;

/* A token and where it was heard: frames [from, to) of the encoder's output. */
typedef struct fv_recognised {
    int32_t id;
    float log_prob; /* of the token at its frame */
    int64_t from, to;
} fv_recognised;

FV_API fv_status fv_recogniser_new(fv_recogniser **out, fv_device *d, const fv_model *m,
                                   fv_recognise_opt opt, fv_err *e);
FV_API void fv_recogniser_free(fv_recogniser *r); /* NULL is allowed */
/* Forgets the recording: the next begins. */
FV_API void fv_recogniser_reset(fv_recogniser *r);
/* n more frames of `width` numbers (samples: width 1), in order. */
FV_API fv_status fv_recogniser_add(fv_recogniser *r, const float *x, int64_t n, int64_t width,
                                   fv_err *e);
/* No more will come: what is left is heard. */
FV_API fv_status fv_recogniser_end(fv_recogniser *r, fv_err *e);
/* Frames of the encoder's output so far. */
FV_API int64_t fv_recogniser_frames(const fv_recogniser *r);
/* What was heard so far, of the best hypothesis; valid until the next call.  Of a greedy search
 * none is ever taken back. */
FV_API const fv_recognised *fv_recogniser_tokens(const fv_recogniser *r, int64_t *n);

/* The frames of a chunk and those before it that a stream is heard in; 0 where the model hears
 * whole recordings only. */
FV_API int64_t fv_model_stream_chunk(const fv_model *m, int64_t *left);

#endif
