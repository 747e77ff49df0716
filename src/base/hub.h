/* hub.h - names of models as the Hugging Face hub has them, and where its cache keeps them. */
#ifndef FV_BASE_HUB_H
#define FV_BASE_HUB_H

#include "base.h"

/* The directory that `name` means: itself if anything is there; else, for "gpt2", "org/name" or
 * "org/name@revision", the snapshot in the cache that hf download fills ($HF_HUB_CACHE,
 * $HF_HOME/hub, ~/.cache/huggingface/hub).  FV_EIO says how to get what is not there. */
fv_status fv__hub_find(char out[FV_PATH], const fv_env *env, const char *name, fv_err *e);

/* A directory of versions stands for the one that its file CURRENT names; any other path stays as
 * it is. */
#define FV_CURRENT "CURRENT"
fv_status fv__hub_current(char path[FV_PATH], const fv_env *env, fv_err *e);

/* A repository that was cloned without its large files has texts of three lines in their place. */
bool fv__is_lfs_pointer(const char *data, size_t n);
#define FV_LFS_SENTENCE                                                                            \
    "it is a Git LFS pointer, not the file it stands for; in its directory, run: git lfs pull"

#endif
