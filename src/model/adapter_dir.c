/* adapter_dir.c - directories of adapters as PEFT writes them.
 *
 *     adapter_config.json         the settings, under PEFT's names
 *     adapter_model.safetensors   base_model.model.<module>.lora_A.weight, .lora_B.weight, ...; and
 *                                 the parameters of the base model that were trained with it
 */
#include "fovea/author/adapter.h"
#include "model/adapter.h"

#include <stdio.h>

#include "base/hub.h"
#include "core/core.h"
#include "core/params.h"
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

/* Other kinds of PEFT are refused by name. */
static fv_status check_type(const fv_json *j, fv_err *e)
{
    const char *type = fv_json_text(j, "peft_type");
    static const char *const known[] = {"LORA",     "IA3",           "PROMPT_TUNING",
                                        "P_TUNING", "PREFIX_TUNING", "BOTTLENECK",
                                        NULL};
    for (int i = 0; type && known[i]; i++)
        if (!strcmp(type, known[i])) return FV_OK;
    return fv_fail(e, FV_EMISSING,
                   "%s: peft_type \"%.40s\" is not implemented; LORA, IA3, PROMPT_TUNING, "
                   "P_TUNING, PREFIX_TUNING and BOTTLENECK are",
                   j->name, type ? type : "");
}

/* adapter_config.json as PEFT writes it; keys that change what is computed and are not here are
 * refused. */
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

/* Keys of several kinds of adapters; PEFT refuses keys that a kind does not know. */
#define OF(peft) (1u << (peft))
enum {
    LORA = OF(FV_PEFT_LORA),
    IA3 = OF(FV_PEFT_IA3),
    PROMPT = OF(FV_PEFT_PROMPT),
    P_TUNING = OF(FV_PEFT_P_TUNING),
    PREFIX = OF(FV_PEFT_PREFIX),
    BOTTLENECK = OF(FV_PEFT_BOTTLENECK),
    VIRTUAL = PROMPT | P_TUNING | PREFIX
};
static const struct {
    const char *name;
    unsigned kinds;
} keys_of[] = {
    {"r", LORA},
    {"lora_alpha", LORA},
    {"lora_dropout", LORA},
    {"use_rslora", LORA},
    {"use_dora", LORA},
    {"bias", LORA},
    {"layers_to_transform", LORA | BOTTLENECK},
    {"fan_in_fan_out", LORA | IA3},
    {"target_modules", LORA | IA3 | BOTTLENECK},
    {"target_regex", 0}, /* PEFT has it in target_modules */
    {"exclude_modules", LORA | IA3 | BOTTLENECK},
    {"feedforward_modules", IA3},
    {"num_virtual_tokens", VIRTUAL},
    {"num_transformer_submodules", VIRTUAL},
    {"token_dim", VIRTUAL},
    {"num_layers", VIRTUAL},
    {"num_attention_heads", VIRTUAL},
    {"prompt_tuning_init", PROMPT},
    {"prompt_tuning_init_text", PROMPT},
    {"tokenizer_name_or_path", PROMPT},
    {"encoder_hidden_size", P_TUNING | PREFIX},
    {"encoder_reparameterization_type", P_TUNING},
    {"prefix_projection", PREFIX},
    {"mh_adapter", BOTTLENECK},
    {"output_adapter", BOTTLENECK},
    {"reduction_factor", BOTTLENECK},
    {"non_linearity", BOTTLENECK},
    {"scaling", BOTTLENECK},
};

/* What is written: not the keys of other kinds, nor lists and texts that are empty, nor numbers
 * that are not known, which PEFT has as null. */
static bool written(const fv_adapter_opt *opt, const fv_field *f)
{
    bool text = f->type == FV_FIELD_TEXT || f->type == FV_FIELD_WORDS;
    if (text && !*((const char *)opt + f->offset)) return false;
    for (size_t i = 0; i < sizeof keys_of / sizeof *keys_of; i++) {
        if (strcmp(keys_of[i].name, f->name)) continue;
        bool number = f->type == FV_FIELD_INT && (keys_of[i].kinds & VIRTUAL),
             known = !number || *(const int *)((const char *)opt + f->offset);
        return known && (keys_of[i].kinds & OF((unsigned)opt->peft_type));
    }
    return true;
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

/* What PEFT opens: inference_mode, and of our keys those that its class has. */
static fv_status write_settings(const fv_adapter_opt *opt, const fv_env *env, const char *dir,
                                fv_err *e)
{
    char path[FV_PATH];
    fv_json *j = NULL;
    fv_buf quoted = {.env = env};
    fv_field table[48] = {0};
    int n = 0;
    for (const fv_field *f = fv_adapter_fields; f->name && n < 47; f++)
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

/* What a network made of virtual tokens, and the base model's parameters that were trained beside
 * them, under PEFT's names. */
static fv_status save_computed(fv_params *p, const fv__virtual *v, const fv_env *env,
                               const char *path, fv_dtype dtype, fv_err *e)
{
    enum { MOST = 64 };
    fv_st_item item[MOST];
    char name[MOST][300];
    float *host[MOST] = {NULL};
    int64_t rows, cols;
    int n = 1;
    fv_status st = fv__prompt_read(v, p->dev, &host[0], &rows, &cols, e);
    item[0] = (fv_st_item){.name = FV__PROMPT_EMBEDDINGS, .shape = FV_SHAPE(rows, cols)};
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        if (fv__param_frozen(t) || fv__param_added(t)) continue;
        if (n == MOST) {
            st = fv_fail(e, FV_EARG, "%s: more than %d parameters beside virtual tokens", path,
                         MOST - 1);
            break;
        }
        snprintf(name[n], sizeof name[n], FV__PROMPT_PREFIX "%s", t->name);
        item[n] = (fv_st_item){.name = name[n], .shape = t->shape};
        host[n] = fv__alloc(env, (size_t)fv_len(t) * sizeof(float));
        st = host[n] ? fv_params_get(p, t, host[n], fv_len(t), e)
                     : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
        n++;
    }
    for (int i = 0; i < n; i++) {
        item[i].dtype = dtype;
        item[i].from = FV_F32;
        item[i].data = host[i];
    }
    if (!st) st = fv_st_save(env, path, item, n, (fv_st_save_opt){0}, e);
    fv__free(env, host[0], (size_t)(rows * cols) * sizeof(float) + 1);
    for (int i = 1; i < n; i++)
        fv__free(env, host[i], (size_t)fv_shape_len(item[i].shape) * sizeof(float));
    return st;
}

/* Virtual tokens that a network makes: PEFT keeps what came out of it, a run that is resumed needs
 * the network itself. */
static fv_status save_virtual(fv_params *p, const fv__virtual *v, const fv_env *env,
                              const char *dir, const char *path, fv_dtype dtype, fv_err *e)
{
    char network[FV_PATH];
    if (!v->layers) return fv__params_save_trained(p, env, path, dtype, FV__PROMPT_PREFIX, e);
    fv_status st = fv__store_path(network, dir, FV__PROMPT_ENCODER, e);
    if (!st) st = fv__params_save_trained(p, env, network, dtype, FV__PROMPT_PREFIX, e);
    return st ? st : save_computed(p, v, env, path, dtype, e);
}

/* adapter_config.json is written last: a directory without it is none. */
fv_status fv__adapter_save(fv_params *p, const fv_adapter_opt *opt, const fv__virtual *v,
                           const fv_env *env, const char *dir, fv_dtype dtype, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = weights_path(path, dir, e);
    if (!st)
        st = fv__peft_is_virtual(opt->peft_type)
                 ? save_virtual(p, v, env, dir, path, dtype, e)
                 : fv__params_save_trained(p, env, path, dtype, FV__PEFT_PREFIX, e);
    return st ? st : write_settings(opt, env, dir, e);
}

/* Biases of adapted maps are below the layer that the adapter wraps; with bias = "all" PEFT saves
 * those of modules_to_save several times. */
static const fv_tie endings[] = {{".bias", ".base_layer.bias"}, {NULL, NULL}};
static const char *const copies[] = {"*.modules_to_save.*", "*.original_module.*",
                                     "*.base_layer.weight", NULL};

fv_status fv__adapter_load(fv_params *p, const fv__virtual *v, const fv_env *env, const char *dir,
                           fv_err *e)
{
    char path[FV_PATH];
    fv_status st = v->layers ? fv__store_path(path, dir, FV__PROMPT_ENCODER, e)
                             : weights_path(path, dir, e);
    fv_load_opt how = {.prefix = v->n ? FV__PROMPT_PREFIX : FV__PEFT_PREFIX,
                       .endings = endings,
                       .ignore = copies,
                       .trained = true};
    if (!st && v->layers && !fv__file_exists(env, path))
        st = fv_fail(e, FV_EMISSING,
                     "%s: it holds what a network made, and not the network (" FV__PROMPT_ENCODER
                     "), so it cannot be trained on",
                     dir);
    return st ? st : fv_params_load(p, env, path, how, e);
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
