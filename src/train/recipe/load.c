/* load.c - parameters that a recipe's model begins with: those of a directory ([model] from), or,
 * of a new model with two halves, those of another model for one of them (encoder.from). */
#include <stdio.h>

#include "core/adapter.h"
#include "model/adapter.h"
#include "store/store.h"
#include "train/recipe/keys.h"
#include "fovea/author/checkpoint.h"
#include "fovea/author/family.h"
#include "fovea/author/train.h"

/* Parameters that only the file or only the model has: the first few names, and how many. */
typedef struct apart {
    fv_buf names[2]; /* those of the file, and those of the model */
    int n[2];
} apart;

/* fv_params_load calls this with a name that the file (or, is_fresh, the model) has alone. */
static void on_skipped(void *user, const char *name, bool is_fresh)
{
    apart *a = user;
    fv_buf *b = &a->names[is_fresh];
    if (++a->n[is_fresh] <= 8) fv__buf_fmt(b, "%s%.80s", b->len ? ", " : "", name);
}

static void report_apart(const fv__messages *m, const char *what, const apart *a, bool is_fresh)
{
    if (!a->n[is_fresh]) return;
    char more[32] = "";
    if (a->n[is_fresh] > 8) snprintf(more, sizeof more, " and %d more", a->n[is_fresh] - 8);
    fv__message(m, "%s: %s%s", what, a->names[is_fresh].data ? a->names[is_fresh].data : "", more);
}

/* With another head than the directory's, or of one half of the model (`half`: what its parameters
 * are called there), parameters that the directory lacks are new and those that only it has are
 * left out; both are reported. */
static fv_status load(fv_model *model, const fv_env *env, const char *from, bool other_head,
                      const fv_tie *half, const fv__messages *m, fv_err *e)
{
    static const char *const any[] = {"*", NULL};
    fv_params *p = fv_model_params(model);
    const fv_family *f = fv_model_family(model);
    fv_load_opt how = f->load ? f->load(fv_model_self(model)) : (fv_load_opt){0};
    if (half) how = (fv_load_opt){.ties = half};
    apart a = {.names = {{.env = env}, {.env = env}}};
    if (other_head || half) {
        how.fresh = how.ignore = any;
        how.on_skipped = on_skipped;
        how.user = &a;
    }
    fv_status st = fv_params_load(p, env, from, how, e);
    int n = 0;
    for (int i = 0; i < fv_params_count(p); i++) n += !fv__param_added(fv_params_at(p, i));
    if (!st && a.n[1] == n) st = fv_fail(e, FV_EFORMAT, "%s: has no parameter of this model", from);
    if (!st) {
        fv__message(m, "%d of %d parameters come from %s", n - a.n[1], n, from);
        report_apart(m, "  new", &a, true);
        report_apart(m, "  left out", &a, false);
    }
    fv__buf_free(&a.names[0]);
    fv__buf_free(&a.names[1]);
    return st ? st : fv__model_ready(model, e);
}

fv_status fv__recipe_load(fv_model *model, const fv_env *env, const char *from, bool other_head,
                          const fv__messages *m, fv_err *e)
{
    return load(model, env, from, other_head, NULL, m, e);
}

/* ---- halves of a new model ---- */

/* What stands before the names of a half's parameters in a file: "encoder.norm.bias" of the model
 * may be "vision_model.norm.bias" there.  The one under which most of them are found; a file has
 * few names that end as the half's first does, so each is tried. */
static size_t find_scope(char out[FV_PATH], const fv_params *p, const char *half, const fv_st *file)
{
    size_t len = strlen(half), most = 0;
    const char *first = NULL;
    for (int i = 0; i < fv_params_count(p) && !first; i++)
        if (!strncmp(fv_params_at(p, i)->name, half, len)) first = fv_params_at(p, i)->name + len;
    for (int k = 0; first && k < fv_st_count(file); k++) {
        const char *name = fv_st_at(file, k).name;
        if (!fv__ends_with(name, first)) continue;
        size_t n = strlen(name) - strlen(first), found = 0;
        for (int i = 0; i < fv_params_count(p); i++) {
            char path[FV_PATH];
            fv_st_info info;
            const char *own = fv_params_at(p, i)->name;
            if (strncmp(own, half, len)) continue;
            snprintf(path, sizeof path, "%.*s%.1000s", (int)(n < 1000 ? n : 1000), name, own + len);
            found += !fv_st_find(file, path, &info, NULL);
        }
        if (found <= most) continue;
        most = found;
        snprintf(out, FV_PATH, "%.*s", (int)(n < 1000 ? n : 1000), name);
    }
    return most;
}

/* One half ("encoder.") from a directory. */
static fv_status load_half(fv_model *model, const fv_env *env, const char *half, const char *from,
                           const fv__messages *m, fv_err *e)
{
    const fv_params *p = fv_model_params(model);
    int n = fv_params_count(p), k = 0;
    size_t bytes = (size_t)(n + 1) * sizeof(fv_tie), len = strlen(half);
    char scope[FV_PATH] = "";
    fv_st *file;
    fv_status st = fv_st_open(&file, env, from, e);
    if (st) return st;
    if (!find_scope(scope, p, half, file))
        st = fv_fail(e, FV_EFORMAT, "%s: has no parameter of this model's %.*s", from, (int)len - 1,
                     half);
    fv_tie *ties = fv__alloc(env, bytes);
    fv_buf names = {.env = env};
    for (int i = 0; i < n; i++)
        if (!strncmp(fv_params_at(p, i)->name, half, len)) {
            fv__buf_fmt(&names, "%s%s", scope, fv_params_at(p, i)->name + len);
            fv__buf_add(&names, "", 1);
        }
    if (!st && (!ties || names.failed)) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from);
    const char *at = names.data;
    for (int i = 0; !st && i < n; i++) {
        if (strncmp(fv_params_at(p, i)->name, half, len)) continue;
        ties[k++] = (fv_tie){fv_params_at(p, i)->name, at};
        at += strlen(at) + 1;
    }
    if (!st) st = load(model, env, from, true, ties, m, e);
    fv__free(env, ties, bytes);
    fv__buf_free(&names);
    fv_st_close(file);
    return st;
}

/* encoder.from and decoder.from. */
fv_status fv__recipe_halves(fv_model *model, const fv_recipe *r, const fv__input *in,
                            const fv__messages *m, fv_err *e)
{
    static const char *const key[] = {"encoder.from", "decoder.from"};
    static const char *const half[] = {"encoder.", "decoder."};
    fv_status st = FV_OK;
    for (int i = 0; i < 2 && !st; i++) {
        const char *from = fv__late_get(&r->model, key[i]);
        char where[40];
        if (!from || !*from) continue;
        snprintf(where, sizeof where, "[model] %s", key[i]);
        st = fv__recipe_prefix_error(r, where, load_half(model, in->env, half[i], from, m, e), e);
    }
    return st;
}
