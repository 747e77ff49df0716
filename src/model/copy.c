/* copy.c - a model's directory, or what stands beside its weights, copied into another. */
#include "model/copy.h"

#include "store/store.h"

typedef struct copying {
    const fv_env *env;
    const char *from, *to;
    int depth;
    bool weights; /* these and the configuration, too */
    fv_status st;
    fv_err *e;
} copying;

static void copy_name(void *user, const char *name);

static fv_status copy_all(copying c)
{
    const fv_io *io = fv__io(c.env);
    if (io->list(io->self, c.from, copy_name, &c))
        return fv_fail(c.e, FV_EIO, "%s: cannot be listed", c.from);
    return c.st;
}

static bool beside(const copying *c, const char *name)
{
    if (strstr(name, ".safetensors") || fv__ends_with(name, ".bin")) return false;
    return c->depth || (strcmp(name, "config.json") && strcmp(name, "adapter_config.json"));
}

/* Files, and folders such as 1_Pooling. */
static void copy_name(void *user, const char *name)
{
    copying *c = user;
    char from[FV_PATH], to[FV_PATH];
    fv_file f;
    if (c->st || name[0] == '.' || !(c->weights || beside(c, name))) return;
    c->st = fv__store_path(from, c->from, name, c->e);
    if (!c->st) c->st = fv__store_path(to, c->to, name, c->e);
    if (c->st) return;
    if (fv__is_dir(c->env, from)) {
        if (c->depth < 2) c->st = fv__dir_make(c->env, to, c->e);
        copying below = {c->env, from, to, c->depth + 1, c->weights, FV_OK, c->e};
        if (!c->st && c->depth < 2) c->st = copy_all(below);
        return;
    }
    c->st = fv__file_open(&f, c->env, from, c->e);
    if (c->st) return;
    c->st = fv__file_write(c->env, to, f.data, f.size, c->e);
    fv__file_close(&f);
}

fv_status fv__copy_beside(const fv_env *env, const char *from, const char *to, fv_err *e)
{
    return copy_all((copying){.env = env, .from = from, .to = to, .e = e});
}

fv_status fv__copy_dir(const fv_env *env, const char *from, const char *to, fv_err *e)
{
    fv_status st = fv__dir_make(env, to, e);
    return st ? st
              : copy_all((copying){.env = env, .from = from, .to = to, .weights = true, .e = e});
}
