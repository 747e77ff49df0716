/* unpack.c - files that may be compressed with gzip: vocabularies are often kept that way. */
#include <stdio.h>
#include <zlib.h>

#include "unpack.h"

/* A vocabulary of a million tokens takes 40 MB.  Data that is not made to hurt shrinks to a tenth
 * by gzip, seldom to a thirtieth; a file of zeros shrinks to a thousandth. */
#define MOST ((size_t)1 << 30)
#define MOST_RATIO 200
#define FREE ((size_t)1 << 20) /* so much is inflated whatever the ratio */

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

/* Inflates f in place.  The buffer doubles as text arrives: its size never comes from the file. */
static fv_status inflate_file(fv_file *f, const char *path, fv_err *e)
{
    z_stream z = {.zalloc = lib_alloc, .zfree = lib_free, .opaque = (void *)(uintptr_t)f->env};
    fv_file out = {.env = f->env};
    void *data = NULL;
    bool bomb = false;
    int rc = f->size < UINT32_MAX ? inflateInit2(&z, 16 + MAX_WBITS) : Z_MEM_ERROR;
    if (rc != Z_OK) return fv_fail(e, FV_ENOMEM, "%s: out of memory while unpacking", path);
    z.next_in = (Bytef *)(uintptr_t)f->data;
    z.avail_in = (uInt)f->size;
    while (rc == Z_OK) {
        if (!fv__grow(f->env, &data, &out.cap, out.size + 4096)) {
            rc = Z_MEM_ERROR;
            break;
        }
        size_t capacity = out.cap - out.size < 1u << 30 ? out.cap - out.size : 1u << 30;
        z.next_out = (Bytef *)data + out.size;
        z.avail_out = (uInt)capacity;
        rc = inflate(&z, Z_NO_FLUSH);
        out.size += capacity - z.avail_out;
        bomb = out.size > FREE && (out.size > MOST || out.size / MOST_RATIO > f->size);
        if (rc == Z_BUF_ERROR || bomb) break; /* the file ends too early, or never */
    }
    bool whole = rc == Z_STREAM_END && !z.avail_in && !bomb;
    inflateEnd(&z);
    if (!whole) {
        fv__free(f->env, data, out.cap);
        if (rc == Z_MEM_ERROR)
            return fv_fail(e, FV_ENOMEM, "%s: out of memory while unpacking", path);
        if (bomb)
            return fv_fail(e, FV_EFORMAT, "%s: %zu bytes unpack to more than %zu, which is refused",
                           path, f->size, out.size);
        return fv_fail(e, FV_EFORMAT, "%s: the gzip data is damaged", path);
    }
    fv__file_close(f);
    out.data = data;
    *f = out;
    return FV_OK;
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
    bool packed = f->size > 2 && (unsigned char)f->data[0] == 0x1F &&
                  (unsigned char)f->data[1] == 0x8B;
    if (packed && (st = inflate_file(f, plain ? path : gz, e)) != FV_OK) fv__file_close(f);
    return st;
}
