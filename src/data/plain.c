/* plain.c - the whole content of a file, unpacked where its first bytes are gzip's. */
#include "data/plain.h"

#include "tok/open/unpack.h"

#define MOST_UNPACKED ((size_t)16 << 30)

/* gzip is known by its first bytes, not by the name; what it unpacks to is bounded. */
fv_status fv__plain_open(fv__plain *p, const fv_env *env, const char *path, fv_err *e)
{
    *p = (fv__plain){0};
    fv_status st = fv__file_open(&p->file, env, path, e);
    if (!st && fv__is_gzip(&p->file)) st = fv__inflate_file(&p->file, path, MOST_UNPACKED, e);
    p->data = p->file.data;
    p->size = p->file.size;
    return st;
}

void fv__plain_close(fv__plain *p) { fv__file_close(&p->file); }
