/* core.h - what the files of src/core share: the arena and the inside of a context. */
#ifndef FV_CORE_H
#define FV_CORE_H

#include "backend/stream.h"
#include "base/base.h"
#include "core/prompt.h"
#include "fovea/author/op.h"

/* ---- arena: memory that is only given out, and taken back all at once ----
 * Chunks are kept and refilled in the same order, so the same sequence of requests gets the same
 * addresses: a step that repeats allocates nothing, and can be captured as a graph.  One large
 * reserved block would be simpler, but its size would have to be known, and fail-at-N tests could
 * not see it grow. */
typedef struct fv_chunk {
    char *data;
    size_t size;
} fv_chunk;

typedef struct fv_arena {
    fv_device *dev; /* chunks live there; NULL: host memory */
    const fv_env *env;
    fv_chunk *chunks;
    size_t n, capacity; /* chunks in use of the array, and its bytes */
    size_t at, used;    /* filling chunks[at], used bytes of it */
    size_t total;
} fv_arena;

/* What is taken next, up to so many bytes, lies side by side. */
bool fv__arena_reserve(fv_arena *a, size_t bytes);
void *fv__arena_alloc(fv_arena *a,
                      size_t bytes); /* 64-byte aligned, not cleared; NULL: no memory */
void fv__arena_rewind(fv_arena *a, fv_mark m);
/* p was taken before m, or elsewhere */
bool fv__arena_before(const fv_arena *a, const void *p, fv_mark m);
void fv__arena_free(fv_arena *a);

/* ---- context ---- */

typedef struct fv_block {
    void *data;
    size_t bytes;
} fv_block;

/* A tensor that is the same in every step, and what it was asked for by. */
typedef struct fv_constant {
    struct fv_constant *next;
    fv_tensor t;
    size_t bytes, all; /* of the tensor, and of this with its key */
    size_t n;
    unsigned char key[];
} fv_constant;

struct fv_ctx {
    fv_device *dev;
    fv_stream stream;
    fv_dtype dtype;
    fv_err err;
    bool record, train, recompute;
    uint64_t seed, site;
    uint64_t serial;     /* of the device's contexts */
    uint64_t *step;      /* device */
    uint64_t step_value; /* what it holds, once known */
    bool step_known;
    fv_arena host;   /* tensors and nodes */
    fv_arena data;   /* what they point to */
    fv_node *tape;   /* newest first */
    fv_block *spare; /* memory that backward is done with */
    size_t n_spare, spare_capacity;
    fv_constant *constants; /* newest first */
    void *
        /* a gradient that two tensors have, until the maker of one has run; or NULL */
        aliased_grad;
    bool backward; /* running: new tensors may use spare memory */
    /* Called by backward with each parameter whose gradient nothing will change any more; those of
     * which it cannot be told are left out.  NULL: nobody. */
    void (*on_final)(void *user, const fv_tensor *param);
    void *final_user;
    fv_tap_fn *tap;
    void *tap_user;
    fv__prompt *prompt; /* virtual tokens of the pass under way, or NULL */
    bool all_positions; /* a step of a session scores every position, not only the last */
    fv_tensor *ends; /* (B,1) I32, of a step of padded prompts: row * T + its last token; or NULL */
};

void fv__ctx_set_step(fv_ctx *c, uint64_t step);

/* True once anything has failed; moves a stream's failure into the context. */
bool fv__failed(fv_ctx *c);

/* A tensor that stays until the context goes, where it is: a step that is kept as a graph reads it
 * and nothing is uploaded again.  *fresh: it was not there before, and the caller fills it.  NULL:
 * it cannot be kept, since there are many already. */
fv_tensor *fv__constant(fv_ctx *c, const void *key, size_t n, fv_dtype t, fv_shape s, bool *fresh);

/* Memory for a tensor or gradient: while going backward from what came free on the way, else from
 * the arena. */
void *fv__block_alloc(fv_ctx *c, size_t bytes);
void fv__block_free(fv_ctx *c, void *data, size_t bytes);

/* ---- a step that repeats: the same kernels, sizes and addresses as the time before ----
 * Where the device can, such a step is kept as a graph the second time it comes with one key and
 * replayed from then on.  fn may not wait, nor copy from or to the host (then it just runs, each
 * time); what differs from step to step it reads from memory that lives longer.  Tensors it made
 * stay as they are until the context is reset by others. */
typedef struct fv_graph {
    fv_device *dev;
    void *kept;
    uint64_t key;
    int seen; /* times the key came */
} fv_graph;

typedef void fv_step_fn(fv_ctx *c, void *user);
/* fv_ctx_reset(c, step) and fn(c, user), or a replay.  A key stands for all that fn depends on but
 * memory's contents. */
void fv__graph_run(fv_ctx *c, fv_graph *g, uint64_t key, uint64_t step, fv_step_fn *fn, void *user);
void fv__graph_drop(fv_graph *g); /* before memory that it uses goes, or the device */

/* For y = x + a: x takes y's gradient over and a, whose maker is the next to run, reads it there
 * until then.  False: nothing was done, and a copy is needed. */
bool fv__grad_alias(fv_ctx *c, fv_tensor *x, fv_tensor *a, fv_node *n);

fv_dtype fv__grad_dtype(const fv_tensor *t);
size_t fv__tensor_bytes(fv_dtype t, int64_t n);
/* Of keys or values (B,T,D): elements from one position, and from one sequence, to the next. */
static inline int64_t fv__row_step(const fv_tensor *t)
{
    return t->row_step ? t->row_step : fv_cols(t);
}
static inline int64_t fv__batch_step(const fv_tensor *t)
{
    return t->batch_step ? t->batch_step : fv_dim(t, 1) * fv__row_step(t);
}

/* Its memory is the host's: files can be used where they are mapped. */
bool fv__device_is_host(const fv_device *d);

/* Before fv_params_alloc: this parameter lies at data, of the dtype that will be asked for or,
 * where `stored` is not FV_F32, of that: bf16, f16, or quantised, row after row.  It gets no memory
 * of its own; on a device that cannot read it there, until fv__params_widen. */
void fv__params_borrow(fv_params *p, fv_tensor *t, const void *data, fv_dtype stored);
/* Whose data that is: given back when the parameters go; forget: called for what was packed
 * elsewhere, perhaps for good. */
typedef struct fv_data_owner {
    void *self;
    void (*release_data)(void *self);
    void (*advise_unused)(void *self, const void *data, size_t bytes);
} fv_data_owner;
void fv__params_set_owner(fv_params *p, fv_data_owner owner);

/* bf16 or f16, where matrices are borrowed so, on the host, and not yet converted; else the
 * parameters' own dtype. */
fv_dtype fv__params_stored(const fv_params *p);
/* Gives every matrix that is borrowed in 16 bits, and is neither packed for products nor looked up,
 * memory of its own in the parameters' dtype; on a device that cannot read the file, every one that
 * is not packed. */
fv_status fv__params_widen(fv_params *p, fv_err *e);

/* Bytes of host memory to `to`, which is p's; waits. */
fv_status fv__params_upload(fv_params *p, void *to, const void *host, size_t bytes, fv_err *e);
/* As fv_params_grad, on another stream and without waiting. */
void *fv__params_grad_on(fv_params *p, fv_stream *s);
/* A step that was replayed has left them all with gradients. */
void fv__params_have_grad(fv_params *p);

/* Its values may be computed instead of read: sinusoids. */
bool fv__param_buffer(const fv_tensor *t);
/* Rows of it are looked up, whatever else is done with it. */
void fv__param_table(fv_tensor *t);
/* It was packed for products and is used for nothing else; *in_out: from (K,N). */
bool fv__params_packed_only(const fv_tensor *t, bool *in_out);

/* A packed weight, perhaps packed just now; NULL: it is to be used as stored, in n parts of one
 * shape, (N,K) or (K,N) if *in_out, one below the other. */
const void *fv__weight_data(fv_ctx *c, const fv_tensor *w);
bool fv__weight_is_packed(const fv_tensor *w); /* it is */
int fv__weight_parts(const fv_tensor *w, fv_tensor *const **parts, bool *in_out);

/* Elements [at, at+n) of an allocated parameter as they are, in its dtype: files convert by
 * themselves, piece by piece. */
fv_status fv__params_write(fv_params *p, fv_tensor *t, int64_t at, const void *host, int64_t n,
                           fv_err *e);
fv_status fv__params_read(fv_params *p, const fv_tensor *t, int64_t at, void *host, int64_t n,
                          fv_err *e);

#endif
