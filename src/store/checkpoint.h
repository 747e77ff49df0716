/* checkpoint.h - what writing and finding checkpoints share. */
#ifndef FV_STORE_CHECKPOINT_H
#define FV_STORE_CHECKPOINT_H

#include "base/base.h"
#include "fovea/store.h"

#define FV_MANIFEST "MANIFEST.json"

uint64_t fv__ckpt_hash(const void *data, size_t n);

/* The names in a directory, one after another, each ending in NUL; names->env is set, and freed by
 * the caller. */
fv_status fv__ckpt_names(fv_buf *names, const char *dir, fv_err *e);

/* N of "step-N" or (part) "step-N.tmp", else -1. */
int64_t fv__ckpt_step(const char *name, bool *part);

/* A plain file name of letters, digits, dot, dash and underscore. */
bool fv__ckpt_name_ok(const char *name);

/* Every file of the manifest is there, with its size and hash; config (or NULL) has the hash it was
 * made with. */
fv_status fv__ckpt_verify(const fv_env *env, const char *dir, int64_t step, const char *config,
                          fv_err *e);

#endif
