/* safetensors.h - the plan of a safetensors file: what its header says, once it has been
 * checked. */
#ifndef FV_STORE_SAFETENSORS_H
#define FV_STORE_SAFETENSORS_H

#include "fovea/store.h"
#include "store/array.h"

#define FV_ST_MAX_HEADER 100000000 /* the format's own bound */

/* One tensor, in 64 bytes: the shortest header text of one has 51, so a plan stays below twice the
 * file. */
typedef struct fv_st_entry {
    uint64_t begin; /* in the file */
    uint32_t name;  /* offset in text */
    uint16_t shard;
    uint8_t kind, rank;
    int64_t d[FV_MAX_DIM];
} fv_st_entry;

typedef struct fv_st_plan {
    const fv_env *env;
    fv_st_entry *entry; /* in order of names */
    uint32_t count;
    char *text; /* names, then metadata as key, value, key, value; each ends in NUL */
    size_t text_size, meta, meta_end; /* metadata lies in between */
} fv_st_plan;

/* The length of the header, which the first eight bytes give. */
uint64_t fv__st_header_len(const char *data);
/* Checks a file of `size` bytes by its first n, which hold its header, and describes it.  Nobody
 * else may change them meanwhile.  On failure *p is empty; the message begins with path. */
fv_status fv__st_plan(fv_st_plan *p, const fv_env *env, const char *head, size_t n, size_t size,
                      const char *path, fv_err *e);
void fv__st_plan_free(fv_st_plan *p);

static inline fv_shape fv__st_shape(const fv_st_entry *t)
{
    fv_shape s = {.n = t->rank};
    for (int i = 0; i < t->rank; i++) s.d[i] = t->d[i];
    return s;
}

/* Bytes of the data of a tensor whose shape was checked. */
uint64_t fv__st_bytes(const fv_st_entry *t);

/* The entry of that name, or NULL. */
const fv_st_entry *fv__st_plan_find(const fv_st_plan *p, const char *name);

/* In place, without memory, n log n whatever the input: file contents choose the order. */
void fv__heapsort(void *base, size_t n, size_t width,
                  int (*order)(const void *a, const void *b, void *user), void *user);

#endif
