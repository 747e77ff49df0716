/* plain.c - the whole content of a file, unpacked where its first bytes are gzip's. */
#include "data/plain.h"

#include <zlib.h>

#define MOST_UNPACKED ((size_t)16 << 30)

static bool is_gzip(const fv_file *f)
{
    return f->size > 2 && (unsigned char)f->data[0] == 0x1f && (unsigned char)f->data[1] == 0x8b;
}

/* Members one after another, as gzip allows; anything else behind them is refused. */
static int inflate_all(fv__plain *p, z_stream *z)
{
    char chunk[65536];
    size_t left = p->file.size;
    int rc = Z_OK;
    z->next_in = (Bytef *)(uintptr_t)p->file.data;
    do {
        if (!z->avail_in) {
            z->avail_in = left > (1u << 30) ? 1u << 30 : (uInt)left;
            left -= z->avail_in;
        }
        z->next_out = (Bytef *)chunk;
        z->avail_out = sizeof chunk;
        rc = inflate(z, Z_NO_FLUSH);
        fv__buf_add(&p->unpacked, chunk, sizeof chunk - z->avail_out);
        if (rc == Z_STREAM_END && (z->avail_in || left)) rc = inflateReset(z);
    } while (rc == Z_OK && !p->unpacked.failed && p->unpacked.len <= MOST_UNPACKED &&
             (z->avail_in || left || !z->avail_out));
    return rc;
}

static fv_status unpack(fv__plain *p, const char *path, fv_err *e)
{
    z_stream z = {0};
    if (inflateInit2(&z, 15 + 16) != Z_OK) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    int rc = inflate_all(p, &z);
    inflateEnd(&z);
    if (p->unpacked.failed)
        return fv_fail(e, FV_ENOMEM, "%s: out of memory after %zu unpacked bytes", path,
                       p->unpacked.len);
    if (p->unpacked.len > MOST_UNPACKED)
        return fv_fail(e, FV_EFORMAT, "%s: more than %zu bytes when unpacked", path, MOST_UNPACKED);
    if (rc != Z_STREAM_END)
        return fv_fail(e, FV_EFORMAT,
                       "%s: gzip data is damaged or ends early after %zu unpacked bytes", path,
                       p->unpacked.len);
    p->data = p->unpacked.data ? p->unpacked.data : "";
    p->size = p->unpacked.len;
    return FV_OK;
}

fv_status fv__plain_open(fv__plain *p, const fv_env *env, const char *path, fv_err *e)
{
    *p = (fv__plain){.unpacked = {.env = env}};
    fv_status st = fv__file_open(&p->file, env, path, e);
    p->data = p->file.data;
    p->size = p->file.size;
    return !st && is_gzip(&p->file) ? unpack(p, path, e) : st;
}

void fv__plain_close(fv__plain *p)
{
    fv__file_close(&p->file);
    fv__buf_free(&p->unpacked);
}
