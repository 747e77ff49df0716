/* adapter_fold.c - finished adapters put to use: folded into the weights of the base.
 *
 * Folding changes the base weights so that the model computes with them what it would with the
 * adapter: LoRA adds scale B A, DoRA sets new row norms, IA3 scales rows or columns.  Sums are
 * taken in f64 and rounded once.  Virtual tokens and bottlenecks cannot be folded: they stay beside
 * the model. */
#include <math.h>
#include <stdio.h>

#include "fovea/author/adapter.h"
#include "core/core.h"
#include "model/adapter.h"
#include "store/store.h"

/* One adapter that is folded into a model's parameters, on the host: W' = W + weight * dW. */
typedef struct folding {
    fv_params *p;
    const fv_env *env;
    const fv_adapter_opt *opt;
    fv_st *file;
    const char *path;
    double weight;
    const char *prefix; /* of the base model's names */
    int used;           /* tensors of the file */
} folding;

/* A tensor of the file as floats, to be freed; *shape as it is stored. */
static fv_status read_tensor(folding *f, const char *full, fv_shape want, float **out, fv_err *e)
{
    fv_st_info info;
    *out = NULL;
    fv_status st = fv_st_find(f->file, full, &info, e);
    if (st) return st;
    fv_tensor stored = {.shape = info.shape}, expected = {.shape = want};
    if (!fv_shape_same(info.shape, want))
        return fv_fail(e, FV_ESHAPE, "%s: %s is %s, expected %s", f->path, full,
                       strchr(fv_desc(&stored).s, '('), strchr(fv_desc(&expected).s, '('));
    *out = fv__alloc(f->env, (size_t)info.count * sizeof(float));
    f->used++;
    return *out ? fv_st_read(f->file, &info, *out, FV_F32, info.count, e)
                : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
}

/* A tensor of PEFT's file by module and name: base_model.model.<module>.<name>. */
static fv_status read(folding *f, const char *module, const char *name, fv_shape want, float **out,
                      fv_err *e)
{
    char full[600];
    snprintf(full, sizeof full, FV__PEFT_PREFIX "%s.%s", module, name);
    return read_tensor(f, full, want, out, e);
}

/* Row o of W (in numbers) + weight scale B[o] A, in f64. */
static void lora_row(const folding *f, const fv__target *t, const float *w, const float *a,
                     const float *b, int64_t o, double *row)
{
    int64_t r = f->opt->r;
    double scale = f->weight * (double)fv__adapter_scale(f->opt);
    for (int64_t i = 0; i < t->in; i++) row[i] = 0;
    for (int64_t k = 0; k < r; k++)
        for (int64_t i = 0; i < t->in; i++)
            row[i] += (double)b[o * r + k] * (double)a[k * t->in + i];
    for (int64_t i = 0; i < t->in; i++)
        row[i] = (double)w[t->in_out ? i * t->out + o : o * t->in + i] + scale * row[i];
}

/* Of a row, as DoRA divides by it: in f64, as it is computed once and used for ever. */
static double norm_of(const double *row, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += row[i] * row[i];
    return sqrt(sum);
}

/* W + scale B A, row by row of the output; with DoRA each row is then scaled to its trained
 * length, m / |row|. */
static fv_status fold_lora(folding *f, const fv__target *t, float *w, fv_err *e)
{
    float *a = NULL, *b = NULL, *m = NULL;
    size_t row_bytes = (size_t)t->in * sizeof(double);
    double *row = fv__alloc(f->env, row_bytes);
    fv_status st = row ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
    if (!st) st = read(f, t->module, "lora_A.weight", FV_SHAPE(f->opt->r, t->in), &a, e);
    if (!st) st = read(f, t->module, "lora_B.weight", FV_SHAPE(t->out, f->opt->r), &b, e);
    if (!st && f->opt->use_dora)
        st = read(f, t->module, "lora_magnitude_vector", FV_SHAPE(t->out), &m, e);
    for (int64_t o = 0; !st && o < t->out; o++) {
        lora_row(f, t, w, a, b, o, row);
        double by = m ? (double)m[o] / norm_of(row, t->in) : 1;
        for (int64_t i = 0; i < t->in; i++)
            w[t->in_out ? i * t->out + o : o * t->in + i] = (float)(by * row[i]);
    }
    fv__free(f->env, row, row_bytes);
    fv__free(f->env, a, (size_t)(f->opt->r * t->in) * sizeof *a);
    fv__free(f->env, b, (size_t)(f->opt->r * t->out) * sizeof *b);
    fv__free(f->env, m, (size_t)t->out * sizeof *m);
    return st;
}

/* y * l scales the bias too. */
static fv_status scale_bias(folding *f, const fv__target *t, const float *l, fv_err *e)
{
    char name[300];
    snprintf(name, sizeof name, "%s.bias", t->module);
    fv_tensor *bias = fv_params_find(f->p, name);
    size_t bytes = (size_t)t->out * sizeof(float);
    float *x = bias ? fv__alloc(f->env, bytes) : NULL;
    if (!bias) return FV_OK;
    fv_status st = x ? fv_params_get(f->p, bias, x, t->out, e)
                     : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
    for (int64_t o = 0; !st && o < t->out; o++) x[o] *= l[o];
    if (!st) st = fv_params_set(f->p, bias, x, t->out, e);
    fv__free(f->env, x, bytes);
    return st;
}

/* IA3 multiplies what enters a product (columns of W) or what leaves it (rows and the bias). */
static fv_status fold_ia3(folding *f, const fv__target *t, float *w, fv_err *e)
{
    float *l;
    fv_status st = read(f, t->module, "ia3_l", t->before ? FV_SHAPE(1, t->in) : FV_SHAPE(t->out, 1),
                        &l, e);
    for (int64_t o = 0; !st && o < t->out; o++)
        for (int64_t i = 0; i < t->in; i++)
            w[t->in_out ? i * t->out + o : o * t->in + i] *= l[t->before ? i : o];
    if (!st && !t->before) st = scale_bias(f, t, l, e);
    fv__free(f->env, l, (size_t)(t->before ? t->in : t->out) * sizeof *l);
    return st;
}

/* Parameters that were declared for a bottleneck, or for a table's LoRA, take the file's values. */
static fv_status fill_one(void *user, const fv__target *t, fv_err *e)
{
    folding *f = user;
    fv_adapter *a = t->table ? fv__param_table_adapter(t->w) : fv__param_adapter(t->w);
    fv_tensor *small[] = {a->down, a->down_b, a->up, a->up_b}, *rank[] = {a->a, a->b}, **of = small;
    fv_status st = FV_OK;
    if (t->table) of = rank, a->scale = (float)(f->weight * (double)a->scale);
    for (int i = 0; !st && i < (t->table ? 2 : 4); i++) {
        float *x;
        size_t bytes = (size_t)fv_len(of[i]) * sizeof *x;
        st = read_tensor(f, of[i]->name, of[i]->shape, &x, e);
        if (!st) st = fv_params_set(f->p, of[i], x, fv_len(of[i]), e);
        fv__free(f->env, x, bytes);
    }
    return st;
}

/* Reads a weight back from wherever it lies, changes it on the host and puts it back. */
static fv_status fold_one(void *user, const fv__target *t, fv_err *e)
{
    folding *f = user;
    int64_t n = fv_len(t->w);
    size_t bytes = (size_t)n * sizeof(float);
    if (t->table) return fill_one(user, t, e);
    float *w = fv__alloc(f->env, bytes);
    fv_status st = w ? fv_params_get(f->p, t->w, w, n, e)
                     : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
    if (!st) st = f->opt->peft_type == FV_PEFT_IA3 ? fold_ia3(f, t, w, e) : fold_lora(f, t, w, e);
    if (!st) st = fv_params_set(f->p, t->w, w, n, e);
    fv__free(f->env, w, bytes);
    return st;
}

/* PEFT also saves the table that a LoRA changes, as it is in the base. */
static bool find_table(const folding *f, const char *param, fv_st_info *out)
{
    char name[600];
    size_t n = strlen(param), cut = strlen(".weight");
    if (n <= cut || strcmp(param + n - cut, ".weight")) return false;
    snprintf(name, sizeof name, "%s%.*s.base_layer.weight", f->prefix, (int)(n - cut), param);
    return !fv_st_find(f->file, name, out, NULL);
}

/* The values that a parameter of the base was given with the adapter. */
static bool find_saved(const folding *f, const char *param, fv_st_info *out)
{
    char name[600];
    size_t n = strlen(param), cut = strlen(".bias");
    snprintf(name, sizeof name, "%s%s", f->prefix, param);
    if (!fv_st_find(f->file, name, out, NULL)) return true;
    if (n > cut && !strcmp(param + n - cut, ".bias")) {
        snprintf(name, sizeof name, "%s%.*s.base_layer.bias", f->prefix, (int)(n - cut), param);
        return !fv_st_find(f->file, name, out, NULL);
    }
    return find_table(f, param, out);
}

/* PEFT keeps modules_to_save twice; neither copy is a tensor that nobody knows. */
static int count_copies(const fv_st *s)
{
    int n = 0;
    for (int i = 0; i < fv_st_count(s); i++) {
        const char *name = fv_st_at(s, i).name;
        n += strstr(name, ".modules_to_save.") || strstr(name, ".original_module.");
    }
    return n;
}

/* Parameters of the base that were trained with the adapter take its values. */
static fv_status replace_saved(folding *f, fv_err *e)
{
    fv_status st = FV_OK;
    f->used += count_copies(f->file);
    for (int i = 0; !st && i < fv_params_count(f->p); i++) {
        fv_tensor *t = fv_params_at(f->p, i);
        fv_st_info info;
        if (!find_saved(f, t->name, &info)) continue;
        if (f->weight != 1)
            return fv_fail(e, FV_EARG,
                           "%s: it replaces %s, so it can be used whole only, without a weight",
                           f->path, t->name);
        size_t bytes = (size_t)info.count * sizeof(float);
        float *x = fv__alloc(f->env, bytes);
        st = x ? fv_st_read(f->file, &info, x, FV_F32, info.count, e)
               : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
        if (!st) st = fv_params_set(f->p, t, x, info.count, e);
        fv__free(f->env, x, bytes);
        f->used++;
    }
    return st;
}

/* What the base lacks (a new classifier) must be among what the adapter brings. */
static fv_status check_needed(const folding *f, const fv_buf *needed, fv_err *e)
{
    fv_st_info info;
    for (size_t at = 0; needed && at < needed->len; at += strlen(needed->data + at) + 1)
        if (!find_saved(f, needed->data + at, &info))
            return fv_fail(e, FV_EFORMAT, "%s: neither the base model nor the adapter has %s",
                           f->path, needed->data + at);
    return FV_OK;
}

/* Every tensor of the file must have been used: one that is left over is a module that this family
 * does not have, and silence about it would be another model. */
static fv_status fold_into(fv_params *p, const fv_env *env, const fv_adapter_use *use,
                           const char *type, const fv_buf *needed, fv_err *e)
{
    char path[FV_PATH];
    fv_adapter_opt opt;
    folding f = {.p = p, .env = env, .opt = &opt, .path = path, .prefix = FV__PEFT_PREFIX};
    f.weight = use->weight != 0 ? (double)use->weight : 1;
    fv_status st = fv_adapter_read(&opt, env, use->dir, e);
    if (!st) st = fv__store_path(path, use->dir, "adapter_model.safetensors", e);
    if (!st && f.weight != 1 && (opt.use_dora || opt.peft_type != FV_PEFT_LORA))
        st = fv_fail(e, FV_EARG, "%s: only LoRA without DoRA can be weighted", use->dir);
    bool beside = !st && opt.peft_type == FV_PEFT_BOTTLENECK;
    if (!st && !*opt.target_modules && !*opt.target_regex && !beside)
        st = fv_fail(e, FV_EFORMAT, "%s/adapter_config.json: target_modules is missing", use->dir);
    if (!st) st = fv_st_open(&f.file, env, path, e);
    if (!st) st = fv__adapter_targets(p, &opt, type, beside ? fill_one : fold_one, &f, e);
    if (!st) st = check_needed(&f, needed, e);
    if (!st) st = replace_saved(&f, e);
    if (!st && f.used < fv_st_count(f.file))
        st = fv_fail(e, FV_EFORMAT, "%s: %d of its %d tensors belong to nothing in this model",
                     path, fv_st_count(f.file) - f.used, fv_st_count(f.file));
    fv_st_close(f.file);
    return st;
}

static fv_status fill(fv_params *p, const fv__virtual *v, const fv_env *env,
                      const fv_adapter_use *use, const fv_buf *needed, fv_err *e)
{
    char path[FV_PATH];
    fv_adapter_opt opt;
    folding f = {.p = p, .env = env, .opt = &opt, .path = path, .prefix = FV__PROMPT_PREFIX};
    float *rows = NULL;
    size_t bytes = (size_t)fv_len(v->table) * sizeof *rows;
    f.weight = use->weight != 0 ? (double)use->weight : 1;
    fv_status st = fv_adapter_read(&opt, env, use->dir, e);
    if (!st && f.weight != 1)
        st = fv_fail(e, FV_EARG, "%s: virtual tokens cannot be weighted", use->dir);
    if (!st) st = fv__store_path(path, use->dir, "adapter_model.safetensors", e);
    if (!st) st = fv_st_open(&f.file, env, path, e);
    if (!st) st = read_tensor(&f, FV__PROMPT_EMBEDDINGS, v->table->shape, &rows, e);
    if (!st) st = fv_params_set(p, v->table, rows, fv_len(v->table), e);
    if (!st) st = check_needed(&f, needed, e);
    if (!st) st = replace_saved(&f, e);
    if (!st && f.used < fv_st_count(f.file))
        st = fv_fail(e, FV_EFORMAT, "%s: %d of its %d tensors belong to nothing in this model",
                     path, fv_st_count(f.file) - f.used, fv_st_count(f.file));
    fv__free(env, rows, bytes);
    fv_st_close(f.file);
    return st;
}

fv_status fv__adapters_fold(fv_params *p, const fv__virtual *v, const fv_env *env,
                            fv_adapter_list list, const char *type, const fv_buf *needed, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < list.n; i++) {
        fv_adapter_opt one;
        st = fv_adapter_read(&one, env, list.at[i].dir, e);
        if (st) return st;
        st = fv__peft_is_virtual(one.peft_type)
                 ? fill(p, v, env, &list.at[i], i ? NULL : needed, e)
                 : fold_into(p, env, &list.at[i], type, i ? NULL : needed, e);
    }
    return st;
}

fv_status fv__adapters_declare(fv__virtual *v, fv_params *p, const fv__prompt_base *base,
                               const fv_env *env, fv_adapter_list list, fv_err *e)
{
    fv_status st = FV_OK;
    for (int i = 0; !st && i < list.n; i++) {
        fv_adapter_opt one;
        st = fv_adapter_read(&one, env, list.at[i].dir, e);
        if (!st) st = fv__adapter_hang_tables(p, &one, e);
        if (!st && one.peft_type == FV_PEFT_BOTTLENECK) {
            if (fv__params_have_bottleneck(p))
                return fv_fail(e, FV_EARG, "%s: there are bottlenecks already, of another adapter",
                               list.at[i].dir);
            st = fv__adapter_hang(p, &one, base->type, e);
        }
        if (st || !fv__peft_is_virtual(one.peft_type)) continue;
        if (v->n)
            return fv_fail(e, FV_EARG, "%s: there are virtual tokens already, of another adapter",
                           list.at[i].dir);
        st = fv__prompt_declare(v, p, &one, base, false, e);
    }
    return st;
}
