/* params.h - the inside of fv_params, for the files that declare, fill and pack them. */
#ifndef FV_CORE_PARAMS_H
#define FV_CORE_PARAMS_H

#include "adapter.h"
#include "core.h"
#include "fovea/author/params.h"

/* Of a weight, the part that one of several ranks holds (tensor parallel): its share of each of
 * `pieces` runs along an axis, such as q, k and v of one weight.
 *
 *     FV__COLUMNS   outputs are divided:  y_r = x W_r',  each rank has columns of y
 *     FV__ROWS      inputs are divided:   y = sum over r of x_r W_r',  an all-reduce */
typedef enum fv__split_kind { FV__WHOLE = 0, FV__COLUMNS, FV__ROWS } fv__split_kind;
typedef struct fv__split {
    fv__split_kind kind;
    int axis, pieces;
    int64_t piece[3]; /* of the whole weight */
} fv__split;

/* Whoever has the numbers of parameters that are not in memory as a whole: weights that ranks share
 * (train/sharded.c).  What reads such a parameter calls fetch before, which puts all its numbers
 * where they belong, and release afterwards; an op that does not is refused when it is recorded. */
typedef struct fv_entry fv_entry;
typedef struct fv__param_store {
    fv_status (*fetch)(void *user, fv_entry *t, fv_err *e);
    void (*release)(void *user, fv_entry *t);
    void *user;
} fv__param_store;

struct fv_entry {
    fv_tensor tensor;
    fv_init init;
    int64_t offset; /* elements into the flat block */
    bool borrowed;  /* its data is somebody else's and only read */
    /* of borrowed data, where it is not the parameters' own: 16 bits, or (N, row) bytes; else
     * FV_F32 */
    fv_dtype stored;
    bool table;           /* rows of it are looked up */
    bool product, in_out; /* fv_params_pack was asked for it, from (K,N) */
    bool frozen;          /* never trained: in the block without gradients */
    fv_dtype rows;        /* frozen: held as such blocks (blocks.h); FV_F32: as numbers */
    int uses;             /* nodes of the tape that read it and have not run backwards */
    bool added;           /* an adapter's own, which no file of the base model has */
    fv_linear_kind linear;
    fv_part_end end;
    fv__split split;              /* what this rank holds of it */
    struct fv_comm *ranks;        /* whom it is divided among; NULL: it is whole */
    fv_adapter *adapter;          /* what changes the linear map of this weight, or NULL */
    const fv__param_store *store; /* NULL: it is in memory */
    int fetched;                  /* fetches that have not been released */
    char name[];
};

/* Around whatever reads t, a parameter or not; nothing where it is in memory.  false: the failure
 * is in c. */
bool fv__param_fetch(fv_ctx *c, const fv_tensor *t);
fv_status fv__param_fetch_now(const fv_tensor *t, fv_err *e);
void fv__param_release(const fv_tensor *t);

struct fv_params {
    fv_env env;
    fv_device *dev;
    fv_stream stream;
    fv_entry **list;
    size_t n, capacity;
    int64_t elements; /* of the flat block */
    fv_dtype dtype;
    void *data;
    void *grad;
    int64_t frozen_elements; /* of the block of frozen parameters */
    void *frozen;            /* NULL where there are none */
    void *rows;              /* of those held as blocks, likewise */
    size_t rows_bytes;
    fv_arena layers; /* fv_params_scratch */
    fv_arena packed; /* fv_params_pack */
    fv_data_owner owner;
    struct fv_comm *ranks; /* layers that can be are divided among them; NULL: none is */
    /* each declares some of the layers; NULL: all are declared.  in_stages: the family knows */
    struct fv_comm *stages;
    bool in_stages;
    char scope[64]; /* in front of the names that are declared */
    fv_err err;     /* of a declaration */
};

/* Names declared from now on are below `scope`, "encoder." or "": parameters of a model inside
 * another's. */
void fv__params_scope(fv_params *p, const char *scope);
/* Divides what was declared last (t; NULL is left alone) among the ranks of p: its shape becomes
 * this rank's. */
void fv__param_split(fv_params *p, fv_tensor *t, const fv__split *s);
/* Where element 0 of run i of this rank's part stands in the whole, run after run; how many
 * elements it has.  False: there is no run i. */
bool fv__split_run(const fv_entry *t, int64_t i, int64_t *at, int64_t *n);
fv_shape fv__split_whole(const fv_entry *t); /* the shape of the whole weight */
/* The packed forms of a and b (n,k), which are made next in this order, lie side by side, where a
 * device's rows do: one product can read both. */
void fv__params_side_by_side(fv_params *p, const fv_tensor *a, const fv_tensor *b, fv_dtype dtype);
/* 1 + t in memory that lives as long as p; NULL: none, or without values. */
fv_tensor *fv__params_plus_one(fv_params *p, const fv_tensor *t);
/* Makes a failure stick, as those of declaring do. */
void fv__params_fail(fv_params *p, const fv_err *e);

/* What fv_params_pack gives.  Where the file holds it as it is wanted it waits: data is NULL until
 * it is packed (weight.c). */
typedef struct fv_weight {
    fv_tensor tensor;
    void *packed_data; /* where it is packed */
    fv_params *params;
    int uses; /* so far, while it waits */
    int n;
    bool in_out;
    fv_tensor *part[]; /* n, one below the other */
} fv_weight;

/* Lays w[0..n) out at `to`, for y; false: no memory for joining them. */
bool fv__params_pack_weight(fv_params *p, fv_stream *s, fv_tensor *y, void *to, fv_tensor *const *w,
                            int n, bool in_out);

#endif
