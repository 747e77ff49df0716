/* checkpoint.h - parameters in files, and checkpoints of a run. */
#ifndef FOVEA_AUTHOR_CHECKPOINT_H
#define FOVEA_AUTHOR_CHECKPOINT_H

#include "fovea/author/params.h"
#include "fovea/store.h"

/* An entry of a file's __metadata__, or NULL */
FV_API const char *fv_st_meta(const fv_st *s, const char *key);

/* ---- parameters ---- */

typedef struct fv_tie {
    const char *name, *same_as;
} fv_tie;

typedef struct fv_load_opt {
    /* names may have it in the file and not here, or the other way round: "bert." */
    const char *prefix;
    /* ending in NULL: a missing name is read from the other; a surplus one must equal it */
    const fv_tie *ties;
    /* likewise: a name that ends so may end in the other in the file: ".weight", ".gamma" */
    const fv_tie *endings;
    /* names in the file that may stay unread; '*' at an end stands for anything */
    const char *const *ignore;
    const char *const *fresh; /* parameters that may be missing and keep their values, likewise */
    /* Told of every such name: a parameter that keeps its value, else one in the file that stays
     * unread.  NULL: nobody. */
    void (*on_skipped)(void *user, const char *name, bool is_fresh);
    void *user;
    fv_dtype rows; /* fv_params_map: matrices may be in the file as rows of this quantised dtype */
    /* fv_params_map to f32: matrices stay bf16, or f16, where the file has all of them so */
    bool half;
    bool trained; /* only parameters that are trained; those of a frozen base model stay */
} fv_load_opt;

/* Fills every parameter from path (as fv_st_open).  Names that are missing, unexpected or of
 * another shape are all found before anything is changed, and listed: the first few and the
 * count. */
FV_API fv_status fv_params_load(fv_params *p, const fv_env *env, const char *path, fv_load_opt opt,
                                fv_err *e);
/* Instead of fv_params_alloc and fv_params_load, for parameters that will not change: those the
 * file holds as dtype are used where it is mapped, on a device whose memory is the host's, and the
 * file stays open as long as p. */
FV_API fv_status fv_params_map(fv_params *p, fv_device *d, fv_dtype dtype, const char *path,
                               fv_load_opt opt, fv_err *e);
/* Writes them all, as dtype, in files of at most shard_bytes (0: one file). */
FV_API fv_status fv_params_save(fv_params *p, const fv_env *env, const char *path, fv_dtype dtype,
                                uint64_t shard_bytes, fv_err *e);

/* ---- checkpoints: root/step-N, complete or not there ----
 *
 * A checkpoint is written as step-N.tmp; its MANIFEST.json lists every file with size and hash.
 * Only when all of it is on the disk is it renamed, then root/last is replaced, then older ones are
 * removed.  Without a manifest that verifies it does not exist. */

typedef struct fv_ckpt fv_ckpt;

/* config: any text that must be the same to resume (NULL: none); its hash is kept. */
FV_API fv_status fv_ckpt_begin(fv_ckpt **out, const fv_env *env, const char *root, int64_t step,
                               const char *config, fv_err *e);
FV_API const char *fv_ckpt_dir(const fv_ckpt *c); /* write files in here, then add them */
FV_API fv_status fv_ckpt_add_file(fv_ckpt *c, const char *name, fv_err *e);
/* writes and adds */
FV_API fv_status fv_ckpt_add(fv_ckpt *c, const char *name, const void *data, size_t n, fv_err *e);
/* Makes it exist and keeps the newest `keep` (0: all).  c is gone afterwards, whatever comes
 * back. */
FV_API fv_status fv_ckpt_commit(fv_ckpt *c, int keep, fv_err *e);
FV_API void fv_ckpt_abandon(fv_ckpt *c); /* NULL is allowed */

typedef struct fv_ckpt_found {
    int64_t step;
    char dir[1024];
} fv_ckpt_found; /* step -1: none */
/* The newest checkpoint under root whose files all verify.  Others that it meets on the way are
 * told to broken (or NULL) with the reason.  None at all is no error. */
FV_API fv_status fv_ckpt_find(fv_ckpt_found *out, const fv_env *env, const char *root,
                              const char *config,
                              void (*broken)(void *user, const char *dir, const char *why),
                              void *user, fv_err *e);

#endif
