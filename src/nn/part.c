/* part.c - what the layers share. */
#include "nn/part.h"

#include <stdio.h>
#include <string.h>

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

fv_init fv__weight(float std)
{
    return std > 0 ? (fv_init){.kind = FV_INIT_NORMAL, .scale = std} : (fv_init){.kind = FV_INIT_XAVIER, .scale = 1};
}

#define PIECE 512

static void upload(fv_ctx *c, fv_tensor *x, int64_t from, const void *host, int64_t n)
{
    fv_stream *s = fv_ctx_stream(c);
    size_t size = fv_dtype_size(x->dtype);
    s->dev->backend->upload(s, (char *)x->data + (size_t)from * size, host, (size_t)n * size);
}

fv_tensor *fv__table(fv_ctx *c, fv_shape s, float (*value)(const void *user, int64_t i), const void *user)
{
    float piece[PIECE];
    fv_tensor *x = fv_new(c, FV_F32, s);
    for (int64_t from = 0, n = x ? fv_len(x) : 0; from < n; from += PIECE) {
        int64_t len = n - from < PIECE ? n - from : PIECE;
        for (int64_t i = 0; i < len; i++) piece[i] = value(user, from + i);
        upload(c, x, from, piece, len);
    }
    return x;
}

fv_tensor *fv__int_table(fv_ctx *c, fv_shape s, int32_t (*value)(const void *user, int64_t i), const void *user)
{
    int32_t piece[PIECE];
    fv_tensor *x = fv_new(c, FV_I32, s);
    for (int64_t from = 0, n = x ? fv_len(x) : 0; from < n; from += PIECE) {
        int64_t len = n - from < PIECE ? n - from : PIECE;
        for (int64_t i = 0; i < len; i++) piece[i] = value(user, from + i);
        upload(c, x, from, piece, len);
    }
    return x;
}
