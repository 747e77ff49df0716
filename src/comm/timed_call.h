/* timed_call.h - calls that may never return: MPI's, where a rank does not come. */
#ifndef FV_TIMED_CALL_H
#define FV_TIMED_CALL_H

#include "base/base.h"

/* Runs fn(arg) in a thread of its own and waits for it.  false: it has not returned within the
 * limit, in seconds, and may still use arg; *e, an FV_EDEVICE, is for the caller to complete, or
 * (FV_ENOMEM) says that no thread could be started, and fn was not called.  give_up, where it is
 * not NULL, is asked about once a second: true ends the waiting. */
bool fv__timed_call(void (*fn)(void *arg), void *arg, double limit, bool (*give_up)(void *arg),
                    fv_err *e);

#endif
