/* state.c - what a continual run keeps from update to update, on the device and in checkpoints. */
#include "fovea/author/backend.h"
#include "fovea/author/params.h"
#include "train/continual/continual.h"

bool fv__continual_quadratic(const fv__continual *s)
{
    int m = s->opt.method;
    return m == FV__METHOD_EWC || m == FV__METHOD_ONLINE_EWC || m == FV__METHOD_SI;
}

fv_status fv__continual_failed(const fv_ctx *c, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
}

/* ---- memory ---- */

/* Arrays as large as the model are only kept by the methods that need them. */
static bool uses(const fv__continual *s, int flat)
{
    if (flat == FV__FLAT_REFERENCE) return s->opt.method == FV__METHOD_AGEM;
    if (flat >= FV__FLAT_PATH) return s->opt.method == FV__METHOD_SI;
    return fv__continual_quadratic(s);
}

/* Not of a context: it lives on the device as long as the run. */
fv_tensor fv__flat(void *data, int64_t n)
{
    return (fv_tensor){.data = data, .shape = FV_SHAPE(n), .dtype = FV_F32};
}

void fv__flat_set(fv_ctx *c, fv_tensor *to, const fv_tensor *x)
{
    if (x && to->data)
        c->dev->backend->move(fv_ctx_stream(c), to->data, x->data,
                              (size_t)fv_len(to) * sizeof(float));
}

void fv__continual_release(fv__continual *s)
{
    for (int i = 0; i < FV__FLATS; i++)
        if (s->flat[i].data)
            s->dev->backend->release(s->dev, s->flat[i].data, (size_t)s->n_flat * sizeof(float));
    if (s->old.data) s->dev->backend->release(s->dev, s->old.data, s->old_bytes);
    if (s->own.data)
        s->dev->backend->release(s->dev, s->own.data, (size_t)fv_len(&s->own) * sizeof(float));
}

/* Device memory for all arrays of the method, once; SI begins with the parameters as they are. */
fv_status fv__continual_reserve(fv__continual *s, const fv_model *m, fv_err *e)
{
    fv_params *p = fv_model_params(m);
    fv_ctx *c = NULL;
    fv_tensor x = fv__flat(fv_params_data(p, &s->n_flat), s->n_flat);
    x.shape.d[0] = s->n_flat;
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    for (int i = 0; !st && i < FV__FLATS; i++) {
        size_t bytes = (size_t)s->n_flat * sizeof(float);
        if (!uses(s, i)) continue;
        s->flat[i] = fv__flat(s->dev->backend->alloc(s->dev, bytes), s->n_flat);
        if (!s->flat[i].data) {
            st = fv_fail(e, FV_ENOMEM, "continual: out of memory");
        } else {
            s->dev->backend->zero(fv_ctx_stream(c), s->flat[i].data, bytes);
            if (i == FV__FLAT_BEFORE || i == FV__FLAT_START) fv__flat_set(c, &s->flat[i], &x);
        }
    }
    if (!st && s->opt.method == FV__METHOD_LWF) {
        s->old_bytes = (size_t)(s->n_rows[0] * s->n_labels) * sizeof(float);
        s->old = (fv_tensor){.shape = FV_SHAPE(s->n_rows[0], s->n_labels), .dtype = FV_F32};
        s->old.data = s->dev->backend->alloc(s->dev, s->old_bytes);
        if (!s->old.data) st = fv_fail(e, FV_ENOMEM, "continual: out of memory");
        if (!st) s->dev->backend->zero(fv_ctx_stream(c), s->old.data, s->old_bytes);
    }
    if (!st && fv_ctx_status(c)) st = fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    fv_ctx_free(c);
    return st;
}

/* ---- checkpoints ---- */

static const char *const names[FV__FLATS] = {"curvature", "pull",  "path",     "gradient",
                                             "before",    "start", "reference"};

enum { ARRAYS = FV__FLATS + 2 };

/* All arrays with their names; the matrix last. */
static int list(const fv__continual *s, fv_tensor of[ARRAYS], const char **name)
{
    int n = 0;
    for (int i = 0; i < FV__FLATS; i++)
        if (s->flat[i].data) of[n] = s->flat[i], name[n++] = names[i];
    if (s->old.data) of[n] = s->old, name[n++] = "old_scores";
    if (s->own.data) of[n] = s->own, name[n++] = "adapters";
    return n;
}

/* One safetensors file beside the optimiser's state: a resumed run must remember the same. */
fv_status fv__continual_save(const void *self, const fv_env *env, const char *path, fv_err *e)
{
    const fv__continual *s = self;
    fv_tensor of[ARRAYS];
    const char *name[ARRAYS];
    fv_st_item item[ARRAYS + 2];
    int n = list(s, of, name);
    float done = (float)s->done;
    fv_ctx *c = NULL;
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    for (int i = 0; i < n; i++)
        item[i] = (fv_st_item){.name = name[i], .shape = of[i].shape, .dtype = FV_F32};
    for (int i = 0; !st && i < n; i++) {
        float *host = fv__alloc(env, (size_t)fv_len(&of[i]) * sizeof *host);
        item[i].data = host;
        if (!host)
            st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
        else if (fv_read(c, &of[i], host, fv_len(&of[i])))
            st = fv__continual_failed(c, e);
    }
    item[n] = (fv_st_item){.name = "accuracy",
                           .shape = FV_SHAPE(FV__MAX_TASKS + 1, FV__MAX_TASKS),
                           .data = s->accuracy};
    item[n + 1] = (fv_st_item){.name = "done", .shape = FV_SHAPE(1), .data = &done};
    if (!st) st = fv_st_save(env, path, item, n + 2, (fv_st_save_opt){0}, e);
    for (int i = 0; i < n; i++)
        fv__free(env, (void *)(uintptr_t)item[i].data, (size_t)fv_len(&of[i]) * sizeof(float));
    fv_ctx_free(c);
    return st;
}

static fv_status load_one(fv_st *file, const char *name, float *host, int64_t n, fv_err *e)
{
    fv_st_info info;
    fv_status st = fv_st_find(file, name, &info, e);
    return st ? st : fv_st_read(file, &info, host, FV_F32, n, e);
}

/* The arrays are reserved already, so names and sizes of the file are checked against them. */
fv_status fv__continual_load(void *self, const fv_env *env, const char *path, fv_err *e)
{
    fv__continual *s = self;
    fv_tensor of[ARRAYS];
    const char *name[ARRAYS];
    int n = list(s, of, name);
    float done = 0;
    fv_ctx *c = NULL;
    fv_st *file = NULL;
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    if (!st) st = fv_st_open(&file, env, path, e);
    for (int i = 0; !st && i < n; i++) {
        size_t bytes = (size_t)fv_len(&of[i]) * sizeof(float);
        float *host = fv__alloc(env, bytes);
        st = host ? load_one(file, name[i], host, fv_len(&of[i]), e)
                  : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
        if (!st && fv_write(c, &of[i], host, fv_len(&of[i]))) st = fv__continual_failed(c, e);
        fv__free(env, host, bytes);
    }
    if (!st)
        st = load_one(file, "accuracy", &s->accuracy[0][0],
                      (int64_t)(FV__MAX_TASKS + 1) * FV__MAX_TASKS, e);
    if (!st) st = load_one(file, "done", &done, 1, e);
    s->done = (int)done;
    fv_st_close(file);
    fv_ctx_free(c);
    return st;
}
