/* prefix_cache.h - keys and values of sequences that were read, for prompts that begin alike. */
#ifndef FV_PREFIX_CACHE_H
#define FV_PREFIX_CACHE_H

#include "model/session.h"

#define FV_PREFIX_BLOCK 16 /* tokens that are kept and found together */

typedef struct fv_prefix_block {
    int32_t ids[FV_PREFIX_BLOCK];
    uint64_t serial;      /* names the block; never used twice */
    uint64_t parent;      /* the block before it in its sequence; of the first see root_of */
    int64_t used;         /* the clock when it was last found */
    void *data;           /* its keys and values, in device memory, where rows do not share them */
    int32_t next;         /* in its bucket, or among the free ones; -1: none */
    int32_t older, newer; /* in the order of their last use, once it was used; -1: none */
} fv_prefix_block;

typedef struct fv_prefix_cache {
    fv_env env;
    int64_t budget; /* bytes; 0: nothing is kept */
    fv_prefix_block *block;
    int32_t *bucket;
    int64_t n, room; /* blocks that hold something, and that may */
    size_t each;     /* bytes of a block's keys and values */
    uint64_t serial;
    int64_t clock;
    int64_t begun; /* the clock when storing began: what it has used since does not give way */
    int32_t free;
    int32_t oldest, newest; /* of those that hold something */
    bool shares; /* blocks are the session's (model/session_share.c), under the same numbers */
    bool off;    /* no memory, or the model's keys depend on more than the tokens before them */
} fv_prefix_cache;

/* model: whose keys and values they are, by its number.
 *
 * Puts the longest kept beginning of ids, at most `most` tokens, into an empty row; how many. */
int64_t fv__prefix_load(fv_prefix_cache *p, fv_ctx *c, fv_session *s, int model, int64_t row,
                        const int32_t *ids, int64_t most);
/* Keeps the first n tokens of a row, whole blocks of them, as far as the budget goes.  A row that
 * goes on shares what is kept of it. */
void fv__prefix_store(fv_prefix_cache *p, fv_ctx *c, fv_session *s, int model, int64_t row,
                      const int32_t *ids, int64_t n, bool goes_on);
int64_t fv__prefix_bytes(const fv_prefix_cache *p);
void fv__prefix_free(fv_prefix_cache *p, fv_device *d);

#endif
