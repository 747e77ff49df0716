/* options.c - the block of options that files of src/train declare for themselves.
 *
 * The structs lie behind one another in the order of the list, each at a multiple of the strictest
 * alignment, so that a table's offsets hold in the block as they do in the file's own struct. */
#include "train/options.h"

#include <stdalign.h>
#include <stddef.h>
#include <string.h>

#define X(file) extern const fv__own_keys fv__own_##file;
#include "own_keys_files.h"
#undef X

static const fv__own_keys *const all[] = {
#define X(file) &fv__own_##file,
#include "own_keys_files.h"
#undef X
    NULL,
};

const fv__own_keys *fv__own_keys_at(int i) { return all[i]; }

const fv_field *fv__own_find(const char *section, const char *key, const fv__own_keys **of)
{
    for (int i = 0; all[i]; i++)
        for (const fv_field *f = all[i]->table; f->name && !strcmp(all[i]->section, section); f++)
            if (!strcmp(f->name, key)) return *of = all[i], f;
    return NULL;
}

static size_t padded(size_t n)
{
    size_t a = alignof(max_align_t);
    return (n + a - 1) / a * a;
}

size_t fv__own_bytes(void)
{
    size_t n = 0;
    for (int i = 0; all[i]; i++) n += padded(all[i]->size);
    return n;
}

void *fv__own_part(const void *block, const fv__own_keys *k)
{
    char *at = (char *)block;
    for (int i = 0; all[i] != k; i++) at += padded(all[i]->size);
    return at;
}

void fv__own_default(void *block)
{
    for (int i = 0; all[i]; i++) fv_fields_default(fv__own_part(block, all[i]), all[i]->table);
}

void fv__own_get(void *out, const fv__own_keys *k, const void *block)
{
    if (block)
        memcpy(out, fv__own_part(block, k), k->size);
    else
        fv_fields_default(out, k->table);
}
