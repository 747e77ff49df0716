/* pool.c - a list of chunks from which tokenizers take their tables and strings.
 *
 * Tables that live and die together with their owner: one call frees them all, and no table needs
 * its size kept.  Nothing is ever given back singly.  Memory is cleared, 16-byte aligned. */
#include "pool.h"

#define CHUNK 4096
#define ROUND(n) (((n) + 15) & ~(size_t)15)

struct fv__chunk {
    struct fv__chunk *next;
    size_t size, used; /* of the whole chunk, this header included */
};

void *fv__pool_alloc(fv__pool *p, size_t size)
{
    size_t head = ROUND(sizeof(struct fv__chunk));
    if (size > SIZE_MAX / 2) return NULL;
    size = ROUND(size + !size);
    struct fv__chunk *c = p->chunks;
    if (!c || c->size - c->used < size) {
        size_t want = size + head > CHUNK / 4 ? size + head : CHUNK;
        struct fv__chunk *fresh = fv__alloc(p->env, want);
        if (!fresh) return NULL;
        fresh->size = want;
        fresh->used = head;
        /* A chunk made to measure goes behind the open one, which keeps its free space in use. */
        bool keep = c && want - head - size < c->size - c->used;
        fresh->next = keep ? c->next : c;
        if (keep)
            c->next = fresh;
        else
            p->chunks = fresh;
        c = fresh;
    }
    void *out = (char *)c + c->used;
    c->used += size;
    return out;
}

void *fv__pool_array(fv__pool *p, size_t n, size_t size)
{
    size_t bytes;
    return fv__mul_size(&bytes, n, size) ? fv__pool_alloc(p, bytes) : NULL;
}

bool fv__pool_str(fv__pool *p, fv__str *out, const char *s, size_t n)
{
    char *copy = fv__pool_alloc(p, n + 1);
    if (!copy) return false;
    if (n) memcpy(copy, s, n);
    *out = (fv__str){copy, n};
    return true;
}

void fv__pool_free(fv__pool *p)
{
    for (struct fv__chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        fv__free(p->env, c, c->size);
    }
    p->chunks = NULL;
}
