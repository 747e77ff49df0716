/* arena.c - bump allocation in chunks that stay.
 *
 *    chunks[0]                chunks[1]             chunks[2] (of the largest step so far)
 *    [used|used|used|gap]     [used|used|   free]   [                 free             ]
 *                                        ^ at = 1, used
 *
 * Allocation is a comparison and an addition; there is no header and no free.  What does not fit
 * the rest of a chunk moves on to the next and leaves a gap: the price of addresses that never
 * change. */
#include "core.h"

#define ALIGN 64
#define MIN_CHUNK ((size_t)1 << 20)
#define MAX_SPARE_CAPACITY                                                                         \
    ((size_t)256 << 20) /* a chunk is at most this much larger than asked for */

static void *chunk_alloc(fv_arena *a, size_t bytes)
{
    return a->dev ? a->dev->backend->alloc(a->dev, bytes) : fv__alloc(a->env, bytes);
}

static void chunk_free(fv_arena *a, fv_chunk k)
{
    if (a->dev)
        a->dev->backend->release(a->dev, k.data, k.size);
    else
        fv__free(a->env, k.data, k.size);
}

/* Chunks grow with what is held already, so their number stays small whatever the model.
 * Half of the total again each time, so at most a third is spare. Where the generous size is
 * refused the exact one is tried before giving up. */
static bool add_chunk(fv_arena *a, size_t bytes)
{
    void *array = a->chunks;
    if (!fv__grow(a->env, &array, &a->capacity, (a->n + 1) * sizeof *a->chunks)) return false;
    a->chunks = array;
    size_t size = a->total / 2 < MAX_SPARE_CAPACITY ? a->total / 2 : MAX_SPARE_CAPACITY;
    if (size < MIN_CHUNK) size = MIN_CHUNK;
    if (size < bytes) size = bytes;
    void *data = chunk_alloc(a, size);
    if (!data && size > bytes) data = chunk_alloc(a, size = bytes);
    if (!data) return false;
    a->chunks[a->n++] = (fv_chunk){data, size};
    a->total += size;
    return true;
}

bool fv__arena_reserve(fv_arena *a, size_t bytes)
{
    while (a->at < a->n && a->chunks[a->at].size - a->used < bytes) a->at++, a->used = 0;
    return a->at < a->n || add_chunk(a, bytes);
}

void *fv__arena_alloc(fv_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGN) return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!bytes) bytes = ALIGN; /* every tensor has an address of its own */
    if (!fv__arena_reserve(a, bytes)) return NULL;
    char *p = a->chunks[a->at].data + a->used;
    a->used += bytes;
    return p;
}

void fv__arena_rewind(fv_arena *a, fv_mark m)
{
    a->at = m.chunk;
    a->used = m.used;
}

/* Asked by address, so that it holds for memory that never came from this arena: parameters,
 * constants. */
bool fv__arena_before(const fv_arena *a, const void *p, fv_mark m)
{
    for (size_t i = m.chunk; i < a->n; i++) {
        const char *from = a->chunks[i].data + (i == m.chunk ? m.used : 0);
        if ((const char *)p >= from && (const char *)p < a->chunks[i].data + a->chunks[i].size)
            return false;
    }
    return true;
}

void fv__arena_free(fv_arena *a)
{
    for (size_t i = 0; i < a->n; i++) chunk_free(a, a->chunks[i]);
    fv__free(a->env, a->chunks, a->capacity);
    *a = (fv_arena){.dev = a->dev, .env = a->env};
}
