/* session.h - the inside of a session: caches, inputs of a step, and what the sampler adds. */
#ifndef FV_SESSION_H
#define FV_SESSION_H

#include "base/pages.h"
#include "core/core.h"
#include "fovea/author/session.h"

#define MAX_SLOTS 512
#define FV_STEP_GRAPHS 64 /* captured decode steps that are kept */

/* One tensor of the session and its memory. */
typedef struct slot {
    fv_tensor t;
    fv_tensor view; /* of a cache: the rows of the step under way */
    size_t bytes;
    bool inside; /* its memory is part of the session's block */
} slot;

/* Inputs of a decode step, I32 (4,rows), in memory of the session's own: the addresses are the
 * same every step, so that a captured step can be replayed. */
typedef struct fv_step_inputs {
    slot all;
    /* ids and shifted (rows,1); shifted: positions counted from `from` on */
    fv_tensor ids, pos, lens, shifted;
    int32_t from;
    bool active; /* a decode step is running */
} fv_step_inputs;

/* All that decides the kernels of a decode step and their arguments. */
typedef struct fv_step_kind {
    uint64_t version, rows, first, model, watched, kind;
} fv_step_kind;

/* A captured decode step; key: a number that no other step has had; used: by the last so many-th
 * replay, 0: none. */
typedef struct fv_step_graph {
    fv_graph graph;
    fv_step_kind of;
    uint64_t key, used;
} fv_step_graph;

/* Blocks of tokens that rows of a paged session share (session_share.c). */
typedef struct fv_shared_blocks {
    fv__pages pages;  /* not open: nothing is shared */
    int64_t tokens;   /* of a block */
    int64_t capacity; /* blocks */
    int64_t most;     /* of a row */
    int32_t *users;   /* capacity: rows that show the block */
    int32_t *of;      /* (all + 1, most): the blocks that a row shows, from its first token on */
    int32_t *n;       /* all + 1: how many */
    int32_t *maps;    /* all + 1: for how many maps of memory */
    int64_t n_maps;   /* of all rows */
    size_t bytes;     /* of the block of memory that users begins */
} fv_shared_blocks;

/* Rows whose pages are given and taken one by one (session_pages.c). */
typedef struct fv_row_pages {
    char *data; /* of row 0; NULL: each cache is a tensor of its own */
    size_t bytes;
    size_t token, row; /* bytes from one to the next, with the keys and values of all layers */
    size_t each;       /* of a page */
    int64_t n, limit;  /* pages that all rows have, and may have */
    int32_t *of;       /* all + 1: pages of a row, from its first token on */
    int32_t *need;     /* all + 1: of these, those that may not be taken from it */
    slot whole;        /* all of it as one cache of bytes, for copies */
} fv_row_pages;

struct fv_session {
    fv_env env;
    fv_device *dev;
    const fv_model *model;
    int64_t all, rows;      /* rows it was made for, and rows in use */
    int64_t first;          /* row of the step's first sequence: 0 unless narrowed */
    int64_t widest;         /* while narrowed: rows in use otherwise */
    int64_t processed;      /* tokens that went through the model, of all rows */
    int64_t virtual;        /* virtual tokens in front of every row */
    int64_t cap, allocated; /* tokens of a row: the limit, and what is allocated */
    bool paged;             /* a token's memory is taken when it is first written */
    fv_row_pages pages;
    fv_shared_blocks blocks;
    bool spans;                        /* the family asks how long a prompt is in all */
    bool plain;                        /* and takes caches for contiguous tensors */
    int32_t *len;                      /* tokens of each row before the step under way */
    int32_t *expected;                 /* of its whole prompt, where that was announced; else 0 */
    fv_tensor *pos, *lens, *positions; /* on the device, for the step under way */
    int32_t *host;                     /* staging memory for them */
    size_t host_bytes;
    /* (all,all): length of the common prefix of two rows; NULL before the first select */
    int32_t *shared;
    bool forked;          /* a row has become two: before that there are no common prefixes */
    int32_t *scratch;     /* (all,all) for the next of these, then lists of rows */
    fv_cache_move *moves; /* 2 * all entries */
    slot *k, *v, *kept;
    /* memory of caches that have grown: one allocation for all, since caches scattered over pages
     * cost attention more than its reading */
    void *block;
    size_t block_bytes;
    fv_step_inputs step_inputs;
    fv_step_graph graphs[FV_STEP_GRAPHS];
    uint64_t replays; /* decode steps so far: which graph was not used for longest */
    uint64_t version; /* counts changes of addresses and shapes that they were captured with */
    uint64_t watched; /* what a tap adds to a step, as a number that differs where its kernels do */
    /* of gen/sample_device.c: device memory (shared with gen/beam_device.c), launch parameters,
     * and tokens sampled before the next step */
    slot sampler_block;
    fv_sample sample;
    int64_t sampled;
};

/* Makes the slot a tensor of this shape, with memory for `spare` more rows behind it; its contents
 * may be lost. */
bool fv__session_reserve(fv_ctx *c, fv_session *s, slot *at, fv_dtype t, fv_shape shape,
                         int64_t spare);

/* A decode step: one token more in every row, then after(c, user, logits).  A device may capture
 * the kernels of both and replay them, so after may not synchronise, and may depend on `kind` and
 * on addresses alone.  ids: one a row, in host memory; NULL: those that the sampling or beam
 * kernel has left in step_inputs.ids, having advanced the positions.  Either way each row, ended or
 * not, has one token more afterwards: rotations may ask for its length.  False once the context has
 * failed.  The last kind is eight, by what a scheduler does. */
enum {
    FV_STEP_LOGITS,
    FV_STEP_TOPK,
    FV_STEP_GREEDY,
    FV_STEP_SAMPLE,
    FV_STEP_BEAMS,
    FV_STEP_CHOOSE
};
typedef void fv_after_fn(fv_ctx *c, void *user, fv_tensor *logits);
bool fv__session_replay(fv_ctx *c, fv_session *s, const int32_t *ids, uint64_t kind,
                        fv_after_fn *after, void *user);

void fv__session_replay_free(fv_session *s);
/* session.c: whether every row of the step can hold n tokens more, *most: length of the longest
 * then; grows all caches, to hold `tokens` a row. */
bool fv__session_fits(fv_ctx *c, fv_session *s, int64_t n, int64_t *most);
void fv__session_grow(fv_ctx *c, fv_session *s, int64_t tokens);

/* fv_session_step with the logits behind every token: (rows * T, V). */
fv_tensor *fv__session_step_all(fv_ctx *c, fv_session *s, fv_tensor *ids);

/* fv_session_step of prompts of several lengths, n[i] of the T tokens of row i of ids (host memory,
 * (rows,T)); what follows them is padding, which causal attention keeps from being seen, and is
 * forgotten.  For families with KV caches alone, and rows without virtual tokens. */
fv_tensor *fv__session_step_padded(fv_ctx *c, fv_session *s, const int32_t *ids, const int32_t *n,
                                   int64_t T);
/* Whether that can be asked of the session. */
bool fv__session_pads(const fv_session *s);

/* Until fv__session_restore, steps and their logits are of rows [first, first + n) alone, each of
 * which may get `tokens` more; the other rows keep their caches.  For families without an encoder.
 * False once the context has failed. */
bool fv__session_narrow(fv_ctx *c, fv_session *s, int64_t first, int64_t n, int64_t tokens);
void fv__session_restore(fv_session *s);
/* Changes how many rows are in use, at most those it was made for: rows go from the end and new
 * ones are empty.  Unlike fv_session_select it may leave none, and give rows back. */
void fv__session_resize(fv_session *s, int64_t rows);

/* Steps from now on are of this model: the same with other weights. */
void fv__session_use(fv_session *s, const fv_model *m);
/* fv_session_kv for layers that give their caches to cache_write, attention and the fused linear
 * layer alone: positions and rows may lie apart. */
fv_kv fv__session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width, fv_dtype t);

/* session_pages.c.  Whether memory can follow the tokens of sessions like this one, which has made
 * a step, and gains something by it with rows of so many; bytes that so many tokens of a row take
 * then; and whether a row that moves takes them twice. */
bool fv__session_can_page(const fv_session *like, int64_t tokens);
int64_t fv__session_row_bytes(const fv_session *like, int64_t tokens);
bool fv__session_packs(const fv_session *like);
/* Before the first step: caches have room for all tokens of a row from the start, but memory only
 * for those that are there, `budget` bytes of it at most.  like: a session of the same model that
 * has made a step.  False: there is no such memory. */
bool fv__session_page(fv_session *s, const fv_session *like, size_t budget);
/* Memory for the first `tokens` of a row; it may be taken from rows that have more than they need.
 * False once the context has failed. */
bool fv__session_hold(fv_ctx *c, fv_session *s, int64_t row, int64_t tokens);
/* Whether rows [0, n), which are to become from[0], from[1], .., can all get their memory before
 * any of the others gives his back; if so, they have it. */
bool fv__session_hold_moves(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n);
/* So many tokens are what the row needs from now on; and for a row that is not in use, its memory
 * given back, or to whoever needs it. */
void fv__session_needs(fv_session *s, int64_t row, int64_t tokens);
void fv__session_trim(fv_session *s, int64_t row);
int64_t fv__session_held_bytes(const fv_session *s); /* pages that rows have; 0: not known */
void fv__session_pages_free(fv_session *s);
/* The virtual tokens of the rows of a step, where these have nothing yet.  False once the context
 * has failed. */
bool fv__session_begin_rows(fv_ctx *c, fv_session *s);

/* session_share.c: memory for `n` blocks of so many tokens that rows may share; whether rows of
 * this session can.  Before that, and where they cannot, the other calls do nothing. */
bool fv__session_share(fv_session *s, int64_t tokens, int64_t n);
/* Tokens at the beginning of a row that are in shared blocks, and whether any row shows one. */
int64_t fv__session_shared(const fv_session *s, int64_t row);
bool fv__session_block_used(const fv_session *s, int64_t block);
/* A block that is written for the first time needs memory; false: there is none. */
bool fv__session_block_take(fv_session *s, int64_t block);
/* The at-th block of a row's tokens is copied into a block that no row shows. */
void fv__session_block_keep(fv_session *s, int64_t row, int64_t at, int64_t block);
/* n blocks, from `block` on, become the tokens of a row from its at-th block on: seen without a
 * copy where the row shows blocks up to there, else copied, unless the row has the same tokens
 * already.  Its length stays. */
void fv__session_block_show(fv_session *s, int64_t row, int64_t at, int64_t block, int64_t n,
                            bool same);
/* The row shows its first `keep` blocks and no others, whose tokens are lost; shows what another
 * row does, all of whose blocks are whole; has the first n tokens to itself from the last whole
 * block on. */
void fv__session_unshare(fv_session *s, int64_t row, int64_t keep);
void fv__session_share_alike(fv_session *s, int64_t row, int64_t as);
void fv__session_share_cut(fv_session *s, int64_t row, int64_t n);
void fv__session_share_free(fv_session *s);

/* session_prefix.c: a session's caches in their order; bytes of a token in all caches, known once a
 * step has run; and runs of n tokens of a row, one behind the other, copied out into device memory
 * and back behind the tokens of another row.  False once the context has failed. */
const slot *fv__session_cache(const fv_session *s, int i);
size_t fv__session_token_bytes(const fv_session *s);
/* Where a row's tokens begin in a cache, and bytes from one to the next. */
char *fv__session_row_at(const fv_session *s, const slot *cache, int64_t row);
size_t fv__session_step_bytes(const slot *cache);
void fv__session_copy(fv_ctx *c, fv_session *s, int64_t row, int64_t from, int64_t n,
                      void *const *to, int64_t runs);
bool fv__session_paste(fv_ctx *c, fv_session *s, int64_t row, int64_t n, void *const *from,
                       int64_t runs);

/* ---- gen/sample_device.c: runs of steps in which the device chooses ---- */

#define FV_SAMPLE_LOG 32 /* steps of one run at most */

/* One entry for each row of the session; NULL: 0, 1, .. for numbers, no limit for the others. */
typedef struct fv_sampler {
    fv_sample how; /* without addresses, rows and log */
    const uint8_t *token_flags;
    const int32_t *min_new, *max_new;
    const int64_t *number;
    int32_t made; /* tokens that all rows have */
} fv_sampler;

bool fv__sampler_supported(const fv_session *s, fv_dtype logits);
/* Uploads everything; w is not used afterwards. */
bool fv__sampler_begin(fv_ctx *c, fv_session *s, const fv_sampler *w);
/* n steps, then waits for tokens and scores (n,rows).  ids: the first inputs, or NULL to go on
 * where the last run stopped. */
bool fv__sampler_run(fv_ctx *c, fv_session *s, const int32_t *ids, int64_t n, int32_t *tokens,
                     float *scores);

/* session_rows.c: bytes of `shared`, and freeing all that file has allocated. */
size_t fv__session_prefix_bytes(const fv_session *s);
void fv__session_rows_free(fv_session *s);

#endif
