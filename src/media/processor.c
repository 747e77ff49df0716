/* processor.c - processors of any kind: found by name or by their files, opened, saved.
 *
 * The list of kinds is made from src/media/processor by the build. */
#include "fovea/author/processor.h"

#include <stdio.h>

#include "base/base.h"

#define X(file) extern const fv_processor_type fv__processor_##file;
#include "processor_files.h"
#undef X

static const fv_processor_type *const types[] = {
#define X(file) &fv__processor_##file,
#include "processor_files.h"
#undef X
};
enum { COUNT = sizeof types / sizeof *types };

struct fv_processor {
    fv_env env;
    const fv_processor_type *type;
    void *self;
};

/* The environment is copied: a processor outlives the call that opened it and must not point into
 * the caller's. */
fv_status fv_processor_new(fv_processor **out, const fv_env *env, const fv_processor_type *type,
                           fv_err *e)
{
    fv_processor *p = *out = fv__alloc(env, sizeof *p);
    if (p && env) p->env = *env;
    void *self = p ? fv__alloc(env, type->size) : NULL;
    if (!self) {
        fv__free(env, p, sizeof *p);
        *out = NULL;
        return fv_fail(e, FV_ENOMEM, "processor: out of memory");
    }
    p->type = type;
    p->self = self;
    return FV_OK;
}

void fv_processor_close(fv_processor *p)
{
    if (!p) return;
    fv_env env = p->env;
    p->type->close(p->self);
    fv__free(&env, p->self, p->type->size);
    fv__free(&env, p, sizeof *p);
}

/* Asked for a type, a processor may answer with the one inside it: an image processor with its
 * tokenizer. */
void *fv_processor_self(const fv_processor *p, const fv_processor_type *type)
{
    if (p && p->type != type && p->type->inside) p = p->type->inside(p->self);
    return p && p->type == type ? p->self : NULL;
}

const char *fv_processor_kind(const fv_processor *p) { return p->type->name; }

static const fv_processor_type *find(const char *kind)
{
    for (int i = 0; i < COUNT; i++)
        if (!strcmp(types[i]->name, kind)) return types[i];
    return NULL;
}

/* preprocessor_config.json or, where it is not there, a processor_config.json, in which newer
 * versions of transformers put what two kinds share; NULL: neither. */
static fv_status open_config(fv_json **out, const fv_env *env, const char *path, fv_err *e)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    char file[FV_PATH];
    *out = NULL;
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        if (fv__file_exists(env, file)) return fv_json_open(out, env, file, e);
    }
    return FV_OK;
}

/* The kind whose files are at path; "none" where there are none. */
static fv_status recognise(const fv_processor_type **out, const fv_env *env, const char *path,
                           fv_err *e)
{
    fv_json *j;
    fv_status st = open_config(&j, env, path, e);
    *out = find("none");
    for (int i = 0; !st && i < COUNT; i++)
        if (types[i]->recognise(env, path, j)) *out = types[i];
    fv_json_close(j);
    return st;
}

/* Names the nearest kind. */
static fv_status unknown(const char *kind, fv_err *e)
{
    const char *names[COUNT + 1] = {NULL};
    for (int i = 0; i < COUNT; i++) names[i] = types[i]->name;
    const char *suggestion = fv__closest(kind, names);
    return fv_fail(e, FV_EARG, "there is no processor \"%.60s\"%s%s", kind,
                   suggestion ? "; the nearest is " : "", suggestion ? suggestion : "");
}

/* kind NULL: recognised by the files of the directory. */
fv_status fv_processor_open(fv_processor **out, const fv_env *env, const char *kind,
                            const char *path, fv_err *e)
{
    const fv_processor_type *type = kind ? find(kind) : NULL;
    *out = NULL;
    if (kind && !type) return unknown(kind, e);
    fv_status st = kind ? FV_OK : recognise(&type, env, path, e);
    if (!st) st = fv_processor_new(out, env, type, e);
    if (!st) st = type->open((*out)->self, env ? &(*out)->env : NULL, path, e);
    if (st) {
        fv_processor_close(*out);
        *out = NULL;
    }
    return st;
}

fv_status fv_processor_save(const fv_processor *p, const char *dir, fv_err *e)
{
    return p->type->save(p->self, dir, e);
}
