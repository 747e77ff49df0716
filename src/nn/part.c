/* part.c - what the layers share: paths of parameters, first values, constants made on the host.
 *
 * Constants (rotary frequencies, buckets, positions) are filled in pieces on the stack and
 * uploaded, so that no step allocates host memory; where they depend on a few bytes alone the
 * context keeps them under these bytes as a key, and later steps upload nothing. */
#include "nn/part.h"

#include <stdio.h>
#include <string.h>

#include "core/core.h"

fv_path fv__path(const char *fmt, va_list ap)
{
    fv_path p;
    vsnprintf(p.s, sizeof p.s, fmt, ap);
    return p;
}

fv_path fv__below(const fv_path *path, const char *name, const char *otherwise)
{
    fv_path p = *path;
    size_t n = strlen(p.s);
    if (!name) name = otherwise;
    if (*name) snprintf(p.s + n, sizeof p.s - n, "%s%s", n ? "." : "", name);
    return p;
}

int fv__names(const char *names)
{
    int n = 0;
    for (const char *s = names; *s; s += strspn(s, " "), n++) s += strcspn(s, " ");
    return n;
}

fv_path fv__named(const fv_path *path, const char *names, int i)
{
    fv_path p = *path;
    size_t n = strlen(p.s);
    for (; i > 0; i--) names += strcspn(names, " ") + 1;
    snprintf(p.s + n, sizeof p.s - n, "%s%.*s", n ? "." : "", (int)strcspn(names, " "), names);
    return p;
}

fv_init fv__weight(float std)
{
    return std > 0 ? (fv_init){.kind = FV_INIT_NORMAL, .scale = std}
                   : (fv_init){.kind = FV_INIT_XAVIER, .scale = 1};
}

#define PIECE 16384  /* bytes that are uploaded at once */
#define MAX_KEY 1024 /* bytes */

/* Where a table is written, or has been. */
static fv_tensor *buffer_for(fv_ctx *c, fv_dtype t, fv_shape s, fv_fill_fn *fill, const void *user,
                             size_t bytes, bool *fresh)
{
    unsigned char key[sizeof fill + MAX_KEY];
    fv_tensor *x = NULL;
    if (bytes && bytes <= MAX_KEY) {
        memcpy(key, &fill, sizeof fill);
        memcpy(key + sizeof fill, user, bytes);
        x = fv__constant(c, key, sizeof fill + bytes, t, s, fresh);
    }
    if (x) return x;
    *fresh = true;
    return fv_new(c, t, s);
}

fv_tensor *fv__table(fv_ctx *c, fv_dtype t, fv_shape s, fv_fill_fn *fill, const void *user,
                     size_t bytes)
{
    _Alignas(8) unsigned char piece[PIECE];
    bool fresh;
    fv_stream *on = fv_ctx_stream(c);
    fv_tensor *x = buffer_for(c, t, s, fill, user, bytes, &fresh);
    size_t size = fv_dtype_size(t);
    int64_t n = x && fresh ? fv_len(x) : 0, most = (int64_t)(PIECE / size);
    for (int64_t from = 0; from < n; from += most) {
        int64_t len = n - from < most ? n - from : most;
        fill(piece, user, from, len);
        on->dev->backend->upload(on, (char *)x->data + (size_t)from * size, piece,
                                 (size_t)len * size);
    }
    return x;
}
