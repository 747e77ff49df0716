/* trace.h - what each rank did when, as a file for Perfetto (https://ui.perfetto.dev) or
 * chrome://tracing. */
#ifndef FV_TRACE_H
#define FV_TRACE_H

#include "base/base.h"
#include "fovea/author/comm.h"

typedef struct fv__trace fv__trace; /* NULL: nothing is traced, in every call */

typedef enum fv__track { FV__TRACK_MAIN, FV__TRACK_COMM } fv__track; /* the threads of a rank */

fv_status fv__trace_new(fv__trace **out, const fv_env *env, fv_err *e);
void fv__trace_free(fv__trace *t);
double fv__trace_now(const fv__trace *t); /* 0 where nothing is traced */
/* Something that began at `from` has ended.  name must outlive the trace.  Thread-safe. */
void fv__trace_add(fv__trace *t, fv__track track, const char *name, int64_t step, double from);
/* Every rank calls it; rank 0 writes the events of all. */
fv_status fv__trace_write(fv__trace *t, fv_comm *c, const char *path, fv_err *e);

#endif
