/* copy.c - what stands beside a model's weights, copied into another directory. */
#include "model/copy.h"

#include "store/store.h"

typedef struct copying {
    const fv_env *env;
    const char *from, *to;
    int depth;
    fv_status st;
    fv_err *e;
} copying;

static void copy_name(void *user, const char *name);

static fv_status copy_all(const fv_env *env, const char *from, const char *to, int depth, fv_err *e)
{
    const fv_io *io = fv__io(env);
    copying c = {env, from, to, depth, FV_OK, e};
    if (io->list(io->self, from, copy_name, &c))
        return fv_fail(e, FV_EIO, "%s: cannot be listed", from);
    return c.st;
}

/* Tokenizer, generation_config.json, and whatever else is no weight; folders too, such as
 * 1_Pooling. */
static void copy_name(void *user, const char *name)
{
    copying *c = user;
    char from[FV_PATH], to[FV_PATH];
    fv_file f;
    if (c->st || name[0] == '.' || strstr(name, ".safetensors") || fv__ends_with(name, ".bin"))
        return;
    if (!c->depth && (!strcmp(name, "config.json") || !strcmp(name, "adapter_config.json"))) return;
    c->st = fv__store_path(from, c->from, name, c->e);
    if (!c->st) c->st = fv__store_path(to, c->to, name, c->e);
    if (c->st) return;
    if (fv__is_dir(c->env, from)) {
        if (c->depth < 2) c->st = fv__dir_make(c->env, to, c->e);
        if (!c->st && c->depth < 2) c->st = copy_all(c->env, from, to, c->depth + 1, c->e);
        return;
    }
    c->st = fv__file_open(&f, c->env, from, c->e);
    if (c->st) return;
    c->st = fv__file_write(c->env, to, f.data, f.size, c->e);
    fv__file_close(&f);
}

fv_status fv__copy_beside(const fv_env *env, const char *from, const char *to, fv_err *e)
{
    return copy_all(env, from, to, 0, e);
}
