/* writer.h - a model with first values, and a session of it with some rows. */
#ifndef HELPER_WRITER_H
#define HELPER_WRITER_H

#include "fovea/fovea.h"
#include "fovea/gen.h"

typedef struct writer {
    fv_model *model;
    fv_ctx *ctx;
    fv_session *session;
    int rows;
} writer;

/* weights: of products, as the model serves; the session has room for so many places. */
writer writer_begin(fv_device *d, const char *config, fv_dtype weights, int rows,
                    int64_t n_positions);
void writer_end(writer *w);

#endif
