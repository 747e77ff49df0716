/* writer.c - a model with first values, and a session of it with some rows. */
#include "fovea/author/session.h"
#include "writer.h"

#include "device.h"

writer writer_begin(fv_device *d, const char *config, fv_dtype weights, int rows,
                    int64_t n_positions)
{
    writer w = {.rows = rows};
    fv_err e;
    check(fv_model_new(&w.model, d, config, (fv_model_opt){.serve = true, .weights = weights}, 7,
                       &e),
          &e);
    check(fv_ctx_new(&w.ctx, d, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&w.session, w.model, d, rows, n_positions, &e), &e);
    return w;
}

void writer_end(writer *w)
{
    fv_session_free(w->session);
    fv_ctx_free(w->ctx);
    fv_model_free(w->model);
}
