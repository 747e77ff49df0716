/* failing.h - work that is done again and again, while each allocation and each call of the file
 * system fails in turn. */
#ifndef HELPER_FAILING_H
#define HELPER_FAILING_H

#include "fovea/error.h"
#include "memfs.h"

/* Puts files into fs before anything fails. */
typedef void failing_files(memfs *fs, void *arg);
typedef fv_status failing_work(memfs *fs, const fv_env *env, void *arg, fv_err *e);

/* Where the work fails it says why, and whatever happens, nothing stays open, mapped or allocated.
 * When nothing fails any more it succeeds.  files may be NULL. */
void fail_in_turn(failing_files *files, failing_work *work, void *arg);

#endif
