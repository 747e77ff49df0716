/* quantise.c - a copy of a model's directory with other weights: those of its products in 8 or 4
 * bits, or all as floats.
 *
 * Which parameters are weights of products the family says by laying them out: a model is opened to
 * serve, and what was packed and is not looked up as well is written as rows of blocks.  Everything
 * else keeps its dtype.  A float dtype is for all. */
#include <math.h>
#include <stdio.h>

#include "core/core.h"
#include "fovea/model.h"
#include "model/copy.h"
#include "store/store.h"

typedef struct writing {
    fv_params *p;
    const fv_env *env;
    fv_dtype weights;
    const char *now; /* the parameter that rows holds */
    uint8_t *rows;
    float *numbers;
    size_t capacity, floats;
} writing;

/* All rows of one weight, (N,K) or (K,N), into w->rows. */
static fv_status quantise(writing *w, const fv_tensor *t, bool in_out, fv_err *e)
{
    int64_t n = t->shape.d[in_out], k = t->shape.d[!in_out];
    size_t row = fv_dtype_row(w->weights, k), bytes = (size_t)n * row,
           floats = (size_t)(n * k + k) * sizeof(float);
    w->now = NULL;
    if (bytes > w->capacity && !fv__grow(w->env, (void **)&w->rows, &w->capacity, bytes))
        return fv_fail(e, FV_ENOMEM, "out of memory");
    if (floats > w->floats && !fv__grow(w->env, (void **)&w->numbers, &w->floats, floats))
        return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_params_get(w->p, t, w->numbers, n * k, e);
    float *transposed = w->numbers + n * k;
    for (int64_t i = 0; !st && i < n; i++) {
        for (int64_t j = 0; j < k; j++) transposed[j] = w->numbers[in_out ? j * n + i : i * k + j];
        fv__quantise_row(w->rows + (size_t)i * row, w->weights, transposed, k);
    }
    if (!st) w->now = t->name;
    return st;
}

/* The writer asks for bytes; a weight is quantised whole when its first byte is wanted, and kept
 * until the next. */
static fv_status fetch(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                       fv_err *e)
{
    writing *w = user;
    const fv_tensor *t = fv_params_find(w->p, item->name);
    bool in_out;
    if (item->dtype != FV_U8 || !fv__params_packed_only(t, &in_out))
        return fv__params_read(w->p, t, at, out, n, e);
    fv_status st = w->now == t->name ? FV_OK : quantise(w, t, in_out, e);
    if (!st) memcpy(out, w->rows + at, (size_t)n);
    return st;
}

static bool in_blocks(fv_dtype weights) { return !fv_dtype_size(weights); }

/* What is finite must stay so, which f16 alone does not promise. */
static fv_status check_range(fv_model *m, const fv_env *env, fv_dtype weights, fv_err *e)
{
    writing w = {.p = fv_model_params(m), .env = env};
    fv_status st = FV_OK;
    for (int i = 0; weights == FV_F16 && !st && i < fv_params_count(w.p); i++) {
        const fv_tensor *t = fv_params_at(w.p, i);
        int64_t n = fv_len(t);
        bool capacity = fv__grow(env, (void **)&w.numbers, &w.floats,
                                 (size_t)n * sizeof *w.numbers);
        st = capacity ? fv_params_get(w.p, t, w.numbers, n, e)
                      : fv_fail(e, FV_ENOMEM, "out of memory");
        for (int64_t j = 0; !st && j < n; j++)
            if (isfinite(w.numbers[j]) && fabsf(w.numbers[j]) >= 65520)
                st = fv_fail(e, FV_EARG, "%s: %g is beyond the range of f16; bf16 has that of f32",
                             t->name, (double)w.numbers[j]);
    }
    fv__free(env, w.numbers, w.floats);
    return st;
}

/* The dtype a parameter has in the file it came from. */
static fv_dtype as_before(const fv_st *file, const char *name)
{
    fv_st_info found = {.dtype_name = fv_st_count(file) ? fv_st_at(file, 0).dtype_name : "f32"};
    fv_dtype t = FV_F32;
    fv_st_find(file, name, &found, NULL);
    return fv_dtype_parse(&t, found.dtype_name) && t < FV_FLOATS ? t : FV_F32;
}

static fv_status write_weights(fv_model *m, const fv_env *env, const fv_st *file, const char *path,
                               fv_dtype weights, fv_quantised *out, fv_err *e)
{
    writing w = {.p = fv_model_params(m), .env = env, .weights = weights};
    bool blocks = in_blocks(weights);
    const char *const meta[][2] = {{"format", "pt"},
                                   {blocks ? "fovea.weights" : NULL,
                                    blocks ? fv_dtype_name(weights) : NULL},
                                   {NULL, NULL}};
    int n = fv_params_count(w.p);
    fv_st_item *items = fv__alloc(env, (size_t)n * sizeof *items);
    if (!items) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int i = 0; i < n; i++) {
        const fv_tensor *t = fv_params_at(w.p, i);
        bool in_out, product = blocks && fv__params_packed_only(t, &in_out);
        fv_dtype old = as_before(file, t->name), other = blocks ? old : weights;
        uint64_t before = (uint64_t)fv_len(t) * fv_dtype_size(old),
                 after = (uint64_t)fv_len(t) * fv_dtype_size(other);
        items[i] =
            (fv_st_item){.name = t->name, .dtype = other, .shape = t->shape, .from = t->dtype};
        if (product) {
            int64_t row = (int64_t)fv_dtype_row(weights, t->shape.d[!in_out]);
            items[i] = (fv_st_item){.name = t->name,
                                    .dtype = FV_U8,
                                    .shape = FV_SHAPE(t->shape.d[in_out], row),
                                    .from = FV_U8};
            after = (uint64_t)(t->shape.d[in_out] * row);
        }
        *(product || !blocks ? &out->weights : &out->others) += 1;
        out->before += before;
        out->after += after;
    }
    fv_status st = fv_st_save(env, path, items, n,
                              (fv_st_save_opt){.meta = meta, .fetch = fetch, .user = &w}, e);
    fv__free(env, items, (size_t)n * sizeof *items);
    fv__free(env, w.rows, w.capacity);
    fv__free(env, w.numbers, w.floats);
    return st;
}

/* ---- the rest of the directory ---- */

/* Everything of the source's config.json stays; quantization_config says how the weights are
 * stored. */
static fv_status write_config(const fv_env *env, const char *from, const char *to, fv_dtype weights,
                              fv_err *e)
{
    char path[FV_PATH], value[128];
    fv_json *j = NULL;
    fv_status st = fv__store_path(path, from, "config.json", e);
    if (!st) st = fv_json_open(&j, env, path, e);
    snprintf(value, sizeof value, "{\"quant_method\": \"fovea\", \"weights\": \"%s\"}",
             fv_dtype_name(weights));
    if (!st)
        st = in_blocks(weights) ? fv_json_set(j, "quantization_config", value, e)
                                : fv__config_dtype(j, weights, e);
    if (!st) st = fv__store_path(path, to, "config.json", e);
    if (!st) st = fv_json_save(j, path, e);
    fv_json_close(j);
    return st;
}

/* Into a new directory; nothing is written before the source has been opened and its numbers
 * fit. */
fv_status fv_model_quantize(fv_device *d, const char *from, const char *to, fv_dtype weights,
                            fv_quantised *out, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    char path[FV_PATH];
    fv_model *m = NULL;
    fv_st *file = NULL;
    *out = (fv_quantised){0};
    bool floats = weights == FV_F32 || weights == FV_BF16 || weights == FV_F16;
    if ((unsigned)weights >= FV_DTYPES || (!floats && !in_blocks(weights)))
        return fv_fail(e, FV_EDTYPE, "quantize: %s is not one of q8, q4, int8, bf16, f16, f32",
                       fv_dtype_name(weights));
    fv_model_opt how = {.serve = !floats, .weights = floats ? FV_F32 : weights};
    fv_status st = fv__store_path(path, to, "model.safetensors", e);
    if (!st && fv__file_exists(env, path)) st = fv_fail(e, FV_EIO, "%s: is already there", path);
    if (!st) st = fv_model_open(&m, d, from, how, e);
    if (!st) st = fv_st_open(&file, env, from, e);
    if (!st && fv_st_meta(file, "fovea.weights"))
        st = fv_fail(e, FV_ESTATE, "%s: its weights are quantised already", from);
    if (!st) st = check_range(m, env, weights, e);
    if (!st) st = fv__dir_make(env, to, e);
    if (!st) st = fv__copy_beside(env, from, to, e);
    if (!st) st = write_weights(m, env, file, path, weights, out, e);
    if (!st) st = write_config(env, from, to, weights, e);
    fv_st_close(file);
    fv_model_free(m);
    return st;
}
