/* backend.h - what a backend provides: memory, streams and tables of kernels.  For authors of
 * backends.
 *
 * A kernel is a plain function over raw pointers and sizes: it has never heard of tensors, shapes
 * or tapes, it checks nothing (the op did) and returns nothing.  There is one flat table per
 * backend and float dtype; in the table of dtype T every `void *` float argument holds T unless its
 * comment says otherwise.  A kernel that a backend lacks is NULL: the op turns that into a message.
 *
 * Kernels run in order on a stream and may return before they are done.  A kernel that cannot go on
 * (no workspace, an id out of range) calls fv_stream_fail, and the context picks that up.
 *
 * The same bits come out whatever the thread count and whatever else is in the batch: no kernel may
 * let the split among threads, or a row's neighbours, change the order in which that row's values
 * are added. */
#ifndef FOVEA_AUTHOR_BACKEND_H
#define FOVEA_AUTHOR_BACKEND_H

#include "fovea/author/kernels.h"

/* ---- devices and streams ---- */

typedef struct fv_backend {
    const char *name;
    void *(*alloc)(fv_device *d, size_t bytes); /* 64-byte aligned, not cleared; NULL: none left */
    void (*release)(fv_device *d, void *p, size_t bytes);
    fv_status (*stream_open)(fv_stream *s, fv_err *e);
    void (*stream_close)(fv_stream *s);
    /* host memory may change after return */
    void (*upload)(fv_stream *s, void *dst, const void *host, size_t bytes);
    void (*download)(fv_stream *s, void *host, const void *src, size_t bytes); /* waits */
    /* on the device; may overlap */
    void (*move)(fv_stream *s, void *dst, const void *src, size_t bytes);
    void (*zero)(fv_stream *s, void *dst, size_t bytes);
    void (*sync)(fv_stream *s);
    void (*close)(fv_device *d);

    /* ---- NULL where there is no such thing ---- */
    /* Memory that follows its use, by the page.  reserve gives addresses of whole pages, released
     * like others; NULL: there are none.  A page has memory of its own once commit has named a byte
     * of it, and on the host once one was written; until then kernels may touch it, and what they
     * find there are numbers.  commit: false where no memory is left; pages that had none are
     * zeroed.  discard gives the memory of whole pages within these bytes back, and what was there
     * is lost; of memory that alloc gave, only the host's.  Neither while a kernel runs that
     * touches those pages. */
    size_t (*page_size)(fv_device *d); /* bytes; 0: this device has no such memory */
    void *(*reserve)(fv_device *d, size_t bytes);
    bool (*commit)(fv_device *d, void *p, size_t bytes);
    void (*discard)(fv_device *d, void *p, size_t bytes);
    void (*memory)(fv_device *d, size_t *left, size_t *all); /* bytes */
    /* What the stream is given from capture to captured is kept instead of run.  captured gives it,
     * or NULL if something among it cannot be repeated (a wait, a copy from or to the host); replay
     * runs it with the numbers memory then holds. */
    bool (*capture)(fv_stream *s);
    void *(*captured)(fv_stream *s);
    void (*replay)(fv_stream *s, void *captured_graph);
    void (*free_graph)(fv_device *d, void *captured_graph);
    /* says which kernel is used when, a line each, at most `most`; returns how many there are.
     * NULL: no choice is made */
    int (*choices)(const fv_device *d, char (*lines)[160], int most);
} fv_backend;

struct fv_device {
    const fv_backend *backend;
    const fv_kernels *k[FV_FLOATS]; /* by dtype; NULL: this device does not compute in it */
    int threads;
    const char *level;
    fv_env env;
    void *impl;
    uint64_t contexts; /* made so far */
};

/* A stream belongs to one context.  work is memory for kernels, kept between calls and grown by
 * fv_stream_scratch. */
struct fv_stream {
    fv_device *dev;
    int threads;
    void *scratch;
    size_t scratch_bytes;
    fv_err err; /* first failure */
    void *impl;
};

/* At least bytes of 64-byte aligned scratch, valid until the next call of this on the same stream;
 * NULL (and a failed stream) if there is none.  Contents are undefined. */
FV_API void *fv_stream_scratch(fv_stream *s, size_t bytes);
FV_API void fv_stream_fail(fv_stream *s, fv_status code, const char *fmt, ...) FV_PRINTF(3, 4);

/* Bytes of n values of a quantised dtype as a file holds them (docs/formats.md); n * fv_dtype_size
 * for the others. */
FV_API size_t fv_dtype_row(fv_dtype t, int64_t n);

/* ---- random numbers ----
 * Philox4x32-10: four words at counter i of the sequence (seed, site, step). */
static inline void fv_philox(uint32_t out[4], uint64_t seed, uint64_t site, uint64_t step,
                             uint64_t i)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32) ^ (uint32_t)(step >> 32),
             c2 = (uint32_t)step, c3 = (uint32_t)site;
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Element e is kept when word e%4 at position e/4 is at least this: a drop rate of p. */
static inline uint32_t fv_drop_threshold(float p)
{
    double t = (double)p * 4294967296.0;
    return t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

#endif
