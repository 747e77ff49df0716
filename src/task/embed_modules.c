/* embed_modules.c - what a directory of sentence-transformers says about vectors: pooling, dense
 * layers behind it, their length, and the prompt before each text.
 *
 * modules.json lists the modules in the order in which they run: a Transformer, which is the model
 * itself, one Pooling, any number of Dense, Normalize at the end.  What stands there and is not
 * understood is refused by name: vectors of another pooling look like vectors. */
#include <stdio.h>

#include "task.h"

/* modules.json is an array; ours are objects. */
static fv_status open_modules(fv_json **out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    fv_buf text = {.env = env};
    fv_status st = fv__file_open(&f, env, path, e);
    if (st) return st;
    fv__buf_str(&text, "{\"modules\":");
    fv__buf_add(&text, f.data, f.size);
    fv__buf_str(&text, "}");
    fv__file_close(&f);
    st = text.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                     : fv_json_parse(out, env, text.data, path, e);
    fv__buf_free(&text);
    return st;
}

static const struct {
    const char *flag, *word;
    fv_pool pool;
} modes[] = {{"pooling_mode_mean_tokens", "mean", FV_POOL_MEAN},
             {"pooling_mode_cls_token", "cls", FV_POOL_CLS},
             {"pooling_mode_max_tokens", "max", FV_POOL_MAX},
             {"pooling_mode_lasttoken", "lasttoken", FV_POOL_LAST},
             {"pooling_mode_weightedmean_tokens", "weightedmean", FV_POOL_WEIGHTED},
             {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", FV_POOL_ROOT}};
enum { N_MODES = sizeof modes / sizeof *modes };

/* folder/name, which must be there: its path. */
static fv_status file_of(const fv_task *t, const char *folder, const char *name, char *path,
                         fv_err *e)
{
    char inside[256];
    snprintf(inside, sizeof inside, "%.200s/%s", folder, name);
    if (fv_dir_file(t->dir, inside, path, FV_PATH)) return FV_OK;
    return fv_fail(e, FV_EIO, "modules.json: there is no %s", inside);
}

/* ---- pooling ---- */

/* sentence-transformers writes a flag for each mode, newer ones a word; exactly one may be on,
 * because two are concatenated there, which is refused here. */
static fv_status read_pooling(fv_task *t, const char *folder, fv_err *e)
{
    char path[FV_PATH];
    fv_json *j;
    fv_status st = file_of(t, folder, "config.json", path, e);
    if (!st) st = fv_json_open(&j, &t->env, path, e);
    if (st) return st;
    int found = 0;
    bool with_prompt = true;
    const char *word = fv_json_text(j, "pooling_mode"), *key;
    for (int i = 0; i < N_MODES; i++) {
        bool on = word && !strcmp(word, modes[i].word);
        fv_json_bool(j, modes[i].flag, &on);
        if (on) t->pool = modes[i].pool;
        found += on;
    }
    for (int i = 0; (key = fv_json_key(j, "", i)); i++) { /* modes there are besides */
        bool on = false, known = false;
        for (int k = 0; k < N_MODES; k++) known |= !strcmp(key, modes[k].flag);
        if (!known && !strncmp(key, "pooling_mode_", 13) && fv_json_bool(j, key, &on) && on)
            found += 2;
    }
    fv_json_bool(j, "include_prompt", &with_prompt);
    fv_json_close(j);
    if (!with_prompt && t->prompt)
        return fv_fail(e, FV_EMISSING,
                       "%s: include_prompt false beside a default_prompt_name is not implemented",
                       path);
    if (found == 1) return FV_OK;
    return fv_fail(e, FV_EFORMAT,
                   "%s: expected one pooling mode of mean, cls, max, lasttoken, weightedmean and "
                   "mean_sqrt_len_tokens",
                   path);
}

/* ---- dense layers ---- */

static fv_status read_array(fv_task *t, const fv_st *file, const char *name, fv_shape shape,
                            float **out, fv_err *e)
{
    fv_st_info found;
    fv_status st = fv_st_find(file, name, &found, e);
    if (st) return st;
    if (!fv_shape_same(found.shape, shape))
        return fv_fail(e, FV_ESHAPE, "%s: not of the shape that in_features and out_features say",
                       name);
    *out = fv__arena_alloc(&t->names, (size_t)found.count * sizeof **out);
    if (!*out) return fv_fail(e, FV_ENOMEM, "out of memory for %s", name);
    return fv_st_read(file, &found, *out, FV_F32, found.count, e);
}

/* The activation by the last part of its Python name. */
static fv_status read_activation(const fv_json *j, const char *path, fv_dense *d, fv_err *e)
{
    const char *name = fv_json_text(j, "activation_function"), *last;
    last = name ? strrchr(name, '.') : NULL;
    last = last ? last + 1 : name ? name : "Tanh";
    d->tanh = !strcmp(last, "Tanh");
    if (d->tanh || !strcmp(last, "Identity")) return FV_OK;
    return fv_fail(e, FV_EMISSING, "%s: activation_function %s is not implemented", path, last);
}

/* The layer must act on the sentence's vector, not on tokens: what stands before it is the pooling.
 */
static fv_status read_dense_config(fv_task *t, const char *path, fv_dense *d, bool *bias, fv_err *e)
{
    double in = 0, out = 0;
    fv_json *j;
    fv_status st = fv_json_open(&j, &t->env, path, e);
    if (st) return st;
    *bias = true;
    fv_json_number(j, "in_features", &in);
    fv_json_number(j, "out_features", &out);
    fv_json_bool(j, "bias", bias);
    st = read_activation(j, path, d, e);
    const char *of = fv_json_text(j, "module_input_name");
    if (!st && of && strcmp(of, "sentence_embedding"))
        st = fv_fail(e, FV_EMISSING, "%s: a dense layer on %s is not implemented", path, of);
    fv_json_close(j);
    if (!st && !(in >= 1 && in <= 1 << 20 && out >= 1 && out <= 1 << 20))
        st = fv_fail(e, FV_EFORMAT, "%s: in_features and out_features are no widths", path);
    d->in = (int64_t)in;
    d->out = (int64_t)out;
    return st;
}

static fv_status read_dense(fv_task *t, const char *folder, fv_err *e)
{
    char path[FV_PATH];
    bool bias;
    fv_st *file;
    fv_dense *d = fv__arena_alloc(&t->names, sizeof *d), **end = &t->dense;
    if (!d) return fv_fail(e, FV_ENOMEM, "out of memory for a dense layer");
    *d = (fv_dense){0};
    fv_status st = file_of(t, folder, "config.json", path, e);
    if (!st) st = read_dense_config(t, path, d, &bias, e);
    if (!st && d->in != fv_task_width(t))
        st = fv_fail(e, FV_ESHAPE, "%s: in_features is %lld, and vectors have %lld numbers", path,
                     (long long)d->in, (long long)fv_task_width(t));
    if (!st) st = file_of(t, folder, "model.safetensors", path, e);
    if (st) return st;
    st = fv_st_open(&file, &t->env, path, e);
    if (st) return st;
    st = read_array(t, file, "linear.weight", FV_SHAPE(d->out, d->in), &d->w, e);
    if (!st && bias) st = read_array(t, file, "linear.bias", FV_SHAPE(d->out), &d->b, e);
    fv_st_close(file);
    while (*end) end = &(*end)->next;
    if (!st) *end = d;
    return st;
}

/* ---- modules.json ---- */

/* By the last part of the class's name: packages moved their modules. Dense layers stand before the
 * normalisation, which is why they are refused behind it. */
static fv_status read_module(fv_task *t, const char *type, const char *folder, const char *path,
                             fv_err *e)
{
    const char *last = strrchr(type, '.');
    last = last ? last + 1 : type;
    if (!strcmp(last, "Pooling")) return read_pooling(t, folder, e);
    if (!strcmp(last, "Dense") && t->not_normal) return read_dense(t, folder, e);
    if (!strcmp(last, "Transformer") && !*folder) return FV_OK;
    if (strcmp(last, "Normalize"))
        return fv_fail(e, FV_EMISSING, "%s: a module of type %s in \"%s\" is not implemented here",
                       path, last, folder);
    t->not_normal = false;
    return FV_OK;
}

/* The prompt that encode() puts before each text where none is asked for: that of
 * default_prompt_name. */
static fv_status read_prompt(fv_task *t, fv_err *e)
{
    char path[FV_PATH], at[256];
    fv_json *j;
    if (!fv_dir_file(t->dir, "config_sentence_transformers.json", path, sizeof path)) return FV_OK;
    fv_status st = fv_json_open(&j, &t->env, path, e);
    if (st) return st;
    const char *name = fv_json_text(j, "default_prompt_name"), *prompt = NULL;
    if (name) {
        snprintf(at, sizeof at, "prompts.%.200s", name);
        prompt = fv_json_text(j, at);
        if (!prompt)
            st = fv_fail(e, FV_EFORMAT, "%s: default_prompt_name \"%s\" is none of its prompts",
                         path, name);
    }
    size_t n = prompt ? strlen(prompt) : 0;
    char *kept = n ? fv__arena_alloc(&t->names, n + 1) : NULL;
    if (n && !kept) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    if (kept) t->prompt = memcpy(kept, prompt, n + 1);
    fv_json_close(j);
    return st;
}

/* A directory without modules.json is a plain encoder: mean of the tokens, length 1. */
fv_status fv__task_read_modules(fv_task *t, fv_err *e)
{
    char path[FV_PATH], at[48];
    fv_json *j;
    fv_status st = read_prompt(t, e);
    if (st || !fv_dir_file(t->dir, "modules.json", path, sizeof path)) return st;
    st = open_modules(&j, &t->env, path, e);
    if (st) return st;
    t->not_normal = true;
    for (int i = 0; !st && i < fv_json_count(j, "modules"); i++) {
        snprintf(at, sizeof at, "modules.%d.type", i);
        const char *type = fv_json_text(j, at);
        snprintf(at, sizeof at, "modules.%d.path", i);
        const char *folder = fv_json_text(j, at);
        st = read_module(t, type ? type : "", folder ? folder : "", path, e);
    }
    fv_json_close(j);
    return st;
}
