/* unpack.c - files that may be compressed with gzip: vocabularies are often kept that way. */
#include <stdio.h>
#include <zlib.h>

#include "unpack.h"

#define MOST ((size_t)256 << 20) /* a vocabulary of a million tokens takes 40 MB */

static voidpf lib_alloc(voidpf env, uInt n, uInt size)
{
    size_t bytes;
    if (!fv__mul_size(&bytes, n, size) || !fv__add_size(&bytes, bytes, 16)) return NULL;
    size_t *p = fv__alloc(env, bytes);
    if (!p) return NULL;
    *p = bytes;
    return (char *)p + 16;
}

static void lib_free(voidpf env, voidpf block)
{
    size_t *p = (size_t *)(void *)((char *)block - 16);
    fv__free(env, p, *p);
}

/* Inflates all members of in, one after another as gzip allows, into out, whose buffer doubles as
 * text arrives: its size never comes from the file.  Returns zlib's last word.
 * Two bounds on what comes out: `most` in all, and a ratio to what went in. */
static int inflate_members(z_stream *z, const fv_file *in, fv_file *out, size_t most, bool *bomb)
{
    void *data = NULL;
    size_t left = in->size;
    int rc = Z_OK;
    z->next_in = (Bytef *)(uintptr_t)in->data;
    while (rc == Z_OK) {
        if (!z->avail_in) {
            z->avail_in = left > (1u << 30) ? 1u << 30 : (uInt)left;
            left -= z->avail_in;
        }
        if (!fv__grow(in->env, &data, &out->cap, out->size + 4096)) {
            rc = Z_MEM_ERROR;
            break;
        }
        size_t capacity = out->cap - out->size < 1u << 24 ? out->cap - out->size : 1u << 24;
        z->next_out = (Bytef *)data + out->size;
        z->avail_out = (uInt)capacity;
        rc = inflate(z, Z_NO_FLUSH);
        out->size += capacity - z->avail_out;
        *bomb = out->size > most || !fv__may_inflate(in->size, out->size);
        if (*bomb) break;
        if (rc == Z_STREAM_END && (z->avail_in || left)) rc = inflateReset(z);
    }
    out->data = data;
    return rc;
}

bool fv__is_gzip(const fv_file *f)
{
    return f->size > 2 && (unsigned char)f->data[0] == 0x1F && (unsigned char)f->data[1] == 0x8B;
}

fv_status fv__inflate_file(fv_file *f, const char *path, size_t most, fv_err *e)
{
    z_stream z = {.zalloc = lib_alloc, .zfree = lib_free, .opaque = (void *)(uintptr_t)f->env};
    fv_file out = {.env = f->env};
    bool bomb = false;
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK)
        return fv_fail(e, FV_ENOMEM, "%s: out of memory while unpacking", path);
    int rc = inflate_members(&z, f, &out, most, &bomb);
    inflateEnd(&z);
    if (rc == Z_STREAM_END && !bomb) {
        fv__file_close(f);
        *f = out;
        return FV_OK;
    }
    fv__free(f->env, (void *)(uintptr_t)out.data, out.cap);
    if (rc == Z_MEM_ERROR)
        return fv_fail(e, FV_ENOMEM, "%s: out of memory after %zu unpacked bytes", path, out.size);
    if (bomb)
        return fv_fail(e, FV_EFORMAT, "%s: %zu bytes unpack to more than %zu, which is refused",
                       path, f->size, out.size);
    return fv_fail(e, FV_EFORMAT, "%s: gzip data is damaged or ends early after %zu unpacked bytes",
                   path, out.size);
}

bool fv__packed_exists(const fv_env *env, const char *path)
{
    char gz[4200];
    if (fv__file_exists(env, path)) return true;
    return (size_t)snprintf(gz, sizeof gz, "%s.gz", path) < sizeof gz && fv__file_exists(env, gz);
}

fv_status fv__unpack(fv_file *f, const fv_env *env, const char *path, fv_err *e)
{
    char gz[4200];
    bool plain = fv__file_exists(env, path) ||
                 (size_t)snprintf(gz, sizeof gz, "%s.gz", path) >= sizeof gz ||
                 !fv__file_exists(env, gz);
    fv_status st = fv__file_read(f, env, plain ? path : gz, MOST, e);
    if (st != FV_OK) return st;
    if (fv__is_gzip(f) && (st = fv__inflate_file(f, plain ? path : gz, MOST, e)) != FV_OK)
        fv__file_close(f);
    return st;
}
