/* adapter_dir.c - directories of adapters as PEFT writes them, and adapters folded into weights.
 *
 *     adapter_config.json         the settings, under PEFT's names
 *     adapter_model.safetensors   base_model.model.<module>.lora_A.weight, .lora_B.weight, ...; and
 *                                 the parameters of the base model that were trained with it
 *
 * Folding changes the base weights so that the model computes with them what it would with the
 * adapter: LoRA adds scale B A, DoRA sets new row norms, IA3 scales rows or columns.  Sums are
 * taken in f64 and rounded once. */
#include "model/adapter.h"

#include <math.h>
#include <stdio.h>

#include "base/hub.h"
#include "core/core.h"
#include "store/json.h"
#include "store/store.h"

/* ---- settings ---- */

/* Keys of PEFT's configurations that change what is computed, with the one value that does not;
 * all others are notes. */
static const fv_key_rule rules[] = {
    {"alora_invocation_tokens", "null"},
    {"alpha_pattern", "{}"},
    {"arrow_config", "null"},
    {"auto_mapping", NULL},
    {"inference_mode", NULL},
    {"corda_config", "null"},
    {"eva_config", "null"},
    {"init_ia3_weights", NULL},
    {"init_lora_weights", NULL},
    {"kasa_config", "null"},
    {"layer_replication", "null"},
    {"layers_pattern", "null"},
    {"lora_bias", "false"},
    {"loftq_config", NULL},
    {"lora_ga_config", "null"},
    {"megatron_config", NULL},
    {"monteclora_config", "null"},
    {"peft_version", NULL},
    {"qalora_group_size", NULL},
    {"rank_pattern", "{}"},
    {"revision", NULL},
    {"target_parameters", "null"},
    {"trainable_token_indices", "null"},
    {"use_bdlora", "null"},
    {"use_qalora", "false"},
    {"velora_config", "null"},
    {"*", NULL},
    {NULL, NULL},
};

/* target_modules may also be a pattern; layers_to_transform one number. */
static fv_status normalise(fv_json *j, char *regex, size_t n, fv_err *e)
{
    const char *pattern = fv_json_text(j, "target_modules");
    double layer;
    char text[64];
    fv_status st = FV_OK;
    if (pattern) {
        if (strlen(pattern) >= n)
            return fv_fail(e, FV_EFORMAT, "%s: target_modules is too long", j->name);
        snprintf(regex, n, "%s", pattern);
        st = fv_json_set(j, "target_modules", "[]", e);
    }
    int layers = fv_json_count(j, "layers_to_transform");
    fv_buf list = {.env = j->env};
    fv__buf_str(&list, "[");
    if (fv_json_number(j, "layers_to_transform", &layer)) {
        fv__buf_fmt(&list, "\"%.0f\"", layer);
    }
    for (int i = 0; i < layers; i++) {
        snprintf(text, sizeof text, "layers_to_transform.%d", i);
        if (fv_json_number(j, text, &layer)) fv__buf_fmt(&list, "%s\"%.0f\"", i ? "," : "", layer);
    }
    fv__buf_str(&list, "]");
    if (!st && list.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", j->name);
    if (!st && fv_json_has(j, "layers_to_transform"))
        st = fv_json_set(j, "layers_to_transform", list.data, e);
    fv__buf_free(&list);
    return st;
}

static fv_status check_type(const fv_json *j, fv_err *e)
{
    const char *type = fv_json_text(j, "peft_type");
    if (type && (!strcmp(type, "LORA") || !strcmp(type, "IA3"))) return FV_OK;
    return fv_fail(e, FV_EMISSING, "%s: peft_type \"%.40s\" is not implemented; LORA and IA3 are",
                   j->name, type ? type : "");
}

fv_status fv_adapter_read(fv_adapter_opt *out, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH], regex[sizeof out->target_regex] = "";
    fv_json *j = NULL;
    const fv_key_rule *lists[] = {rules, NULL};
    fv_status st = fv__store_path(path, dir, "adapter_config.json", e);
    if (!st && !fv__file_exists(env, path))
        st = fv_fail(e, FV_EIO,
                     "%s: no adapter_config.json in it, so not the directory of an "
                     "adapter",
                     dir);
    if (!st) st = fv_json_open(&j, env, path, e);
    if (!st) st = check_type(j, e);
    if (!st) st = normalise(j, regex, sizeof regex, e);
    if (!st) st = fv_fields_read(out, fv_adapter_fields, j, "", lists, e);
    if (!st) memcpy(out->target_regex, regex, sizeof regex);
    fv_json_close(j);
    return st;
}

/* Keys that only the one kind of adapter has; PEFT refuses keys that a kind does not know. */
static const char *const of_lora[] = {"r",        "lora_alpha", "lora_dropout",        "use_rslora",
                                      "use_dora", "bias",       "layers_to_transform", NULL};

static bool listed(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name)) list++;
    return *list;
}

/* What is written: not the keys of the other kind, nor lists and texts that are empty, which PEFT
 * has as null. */
static bool written(const fv_adapter_opt *opt, const fv_field *f)
{
    bool text = f->type == FV_FIELD_TEXT || f->type == FV_FIELD_WORDS;
    if (text && !*((const char *)opt + f->offset)) return false;
    if (!strcmp(f->name, "target_regex")) return false;
    if (!strcmp(f->name, "feedforward_modules")) return opt->peft_type == FV_PEFT_IA3;
    return opt->peft_type == FV_PEFT_LORA || !listed(of_lora, f->name);
}

/* Layers are numbers in PEFT's file. */
static fv_status write_layers(const fv_adapter_opt *opt, fv_json *j, fv_err *e)
{
    fv_buf list = {.env = j->env};
    fv_status st = FV_OK;
    if (!*opt->layers_to_transform) return FV_OK;
    fv__buf_str(&list, "[");
    for (const char *c = opt->layers_to_transform; *c; c++)
        fv__buf_fmt(&list, "%c", *c == ' ' ? ',' : *c);
    fv__buf_str(&list, "]");
    st = list.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", j->name)
                     : fv_json_set(j, "layers_to_transform", list.data, e);
    fv__buf_free(&list);
    return st;
}

static fv_status write_settings(const fv_adapter_opt *opt, const fv_env *env, const char *dir,
                                fv_err *e)
{
    char path[FV_PATH];
    fv_json *j = NULL;
    fv_buf quoted = {.env = env};
    fv_field table[32] = {0};
    int n = 0;
    for (const fv_field *f = fv_adapter_fields; f->name && n < 31; f++)
        if (written(opt, f)) table[n++] = *f;
    fv_status st = fv__store_path(path, dir, "adapter_config.json", e);
    if (!st) st = fv_json_parse(&j, env, "{\"inference_mode\": true}", path, e);
    if (!st) st = fv_fields_write(opt, table, j, e);
    if (!st) st = write_layers(opt, j, e);
    if (!st && *opt->target_regex) { /* in PEFT's file the one key holds either */
        fv__jtree t = {.pool = {.env = env}};
        fv__jnode *text = fv__jnode_text(&t, opt->target_regex, strlen(opt->target_regex));
        if (text) fv__jnode_print(&quoted, text, -1);
        st = !text || quoted.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                                    : fv_json_set(j, "target_modules", quoted.data, e);
        fv__jtree_free(&t);
    }
    fv__buf_free(&quoted);
    if (!st) st = fv_json_save(j, path, e);
    fv_json_close(j);
    return st;
}

/* ---- trained parameters ---- */

static fv_status weights_path(char path[FV_PATH], const char *dir, fv_err *e)
{
    return fv__store_path(path, dir, "adapter_model.safetensors", e);
}

fv_status fv__adapter_save(fv_params *p, const fv_adapter_opt *opt, const fv_env *env,
                           const char *dir, fv_dtype dtype, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = weights_path(path, dir, e);
    if (!st) st = fv__params_save_trained(p, env, path, dtype, FV__PEFT_PREFIX, e);
    return st ? st : write_settings(opt, env, dir, e);
}

/* Biases of adapted maps are below the layer that the adapter wraps; with bias = "all" PEFT saves
 * those of modules_to_save several times. */
static const fv_tie endings[] = {{".bias", ".base_layer.bias"}, {NULL, NULL}};
static const char *const copies[] = {"*.modules_to_save.*", "*.original_module.*", NULL};

fv_status fv__adapter_load(fv_params *p, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = weights_path(path, dir, e);
    fv_load_opt how = {.prefix = FV__PEFT_PREFIX,
                       .endings = endings,
                       .ignore = copies,
                       .trained = true};
    return st ? st : fv_params_load(p, env, path, how, e);
}

/* ---- folding ---- */

typedef struct folding {
    fv_params *p;
    const fv_env *env;
    const fv_adapter_opt *opt;
    fv_st *file;
    const char *path;
    double weight;
    int used; /* tensors of the file */
} folding;

/* A tensor of the file as floats, to be freed; *shape as it is stored. */
static fv_status read(folding *f, const char *module, const char *name, fv_shape want, float **out,
                      fv_err *e)
{
    char full[600];
    fv_st_info info;
    *out = NULL;
    snprintf(full, sizeof full, FV__PEFT_PREFIX "%s.%s", module, name);
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

static double norm_of(const double *row, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += row[i] * row[i];
    return sqrt(sum);
}

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

static fv_status fold_one(void *user, const fv__target *t, fv_err *e)
{
    folding *f = user;
    int64_t n = fv_len(t->w);
    size_t bytes = (size_t)n * sizeof(float);
    float *w = fv__alloc(f->env, bytes);
    fv_status st = w ? fv_params_get(f->p, t->w, w, n, e)
                     : fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path);
    if (!st) st = f->opt->peft_type == FV_PEFT_IA3 ? fold_ia3(f, t, w, e) : fold_lora(f, t, w, e);
    if (!st) st = fv_params_set(f->p, t->w, w, n, e);
    fv__free(f->env, w, bytes);
    return st;
}

/* The values that a parameter of the base was given with the adapter. */
static bool find_saved(const folding *f, const char *param, fv_st_info *out)
{
    char name[600];
    size_t n = strlen(param), cut = strlen(".bias");
    snprintf(name, sizeof name, FV__PEFT_PREFIX "%s", param);
    if (!fv_st_find(f->file, name, out, NULL)) return true;
    if (n <= cut || strcmp(param + n - cut, ".bias")) return false;
    snprintf(name, sizeof name, FV__PEFT_PREFIX "%.*s.base_layer.bias", (int)(n - cut), param);
    return !fv_st_find(f->file, name, out, NULL);
}

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

static fv_status check_needed(const folding *f, const fv_buf *needed, fv_err *e)
{
    fv_st_info info;
    for (size_t at = 0; needed && at < needed->len; at += strlen(needed->data + at) + 1)
        if (!find_saved(f, needed->data + at, &info))
            return fv_fail(e, FV_EFORMAT, "%s: neither the base model nor the adapter has %s",
                           f->path, needed->data + at);
    return FV_OK;
}

bool fv__adapter_is_dir(const fv_dir *d)
{
    char path[FV_PATH];
    return fv_dir_file(d, "adapter_config.json", path, sizeof path) &&
           !fv_dir_file(d, "model.safetensors", path, sizeof path) &&
           !fv_dir_file(d, "model.safetensors.index.json", path, sizeof path);
}

fv_status fv__adapter_base(char out[FV_PATH], const fv_env *env, const char *dir, fv_err *e)
{
    fv_adapter_opt opt;
    char found[FV_PATH];
    fv_status st = fv_adapter_read(&opt, env, dir, e);
    if (st) return st;
    const char *base = opt.base_model_name_or_path;
    if (!*base)
        return fv_fail(e, FV_EFORMAT, "%s/adapter_config.json: base_model_name_or_path is missing",
                       dir);
    bool here = !fv__hub_find(found, env, base, NULL) && fv__is_dir(env, found);
    if (!here && *base != '/') {
        st = fv__store_path(found, dir, base, e);
        here = !st && fv__is_dir(env, found);
    }
    if (!here)
        return fv_fail(e, FV_EIO,
                       "%s: its base model %s is not here; give the base with -m and this "
                       "directory with --adapter",
                       dir, base);
    snprintf(out, FV_PATH, "%s", found);
    return FV_OK;
}

fv_status fv__adapter_fold(fv_params *p, const fv_env *env, const fv_adapter_use *use,
                           const char *type, const fv_buf *needed, fv_err *e)
{
    char path[FV_PATH];
    fv_adapter_opt opt;
    folding f = {.p = p, .env = env, .opt = &opt, .path = path};
    f.weight = use->weight != 0 ? (double)use->weight : 1;
    fv_status st = fv_adapter_read(&opt, env, use->dir, e);
    if (!st) st = weights_path(path, use->dir, e);
    if (!st && f.weight != 1 && (opt.use_dora || opt.peft_type != FV_PEFT_LORA))
        st = fv_fail(e, FV_EARG, "%s: only LoRA without DoRA can be weighted", use->dir);
    if (!st && !*opt.target_modules && !*opt.target_regex)
        st = fv_fail(e, FV_EFORMAT, "%s/adapter_config.json: target_modules is missing", use->dir);
    if (!st) st = fv_st_open(&f.file, env, path, e);
    if (!st) st = fv__adapter_targets(p, &opt, type, fold_one, &f, e);
    if (!st) st = check_needed(&f, needed, e);
    if (!st) st = replace_saved(&f, e);
    if (!st && f.used < fv_st_count(f.file))
        st = fv_fail(e, FV_EFORMAT, "%s: %d of its %d tensors belong to nothing in this model",
                     path, fv_st_count(f.file) - f.used, fv_st_count(f.file));
    fv_st_close(f.file);
    return st;
}
