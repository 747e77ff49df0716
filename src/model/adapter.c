/* adapter.c - an adapter's settings, the linear maps they name, and its parameters.
 *
 * Names are resolved as PEFT does it: a list matches a module whose whole name, or whose last
 * parts, it holds; a pattern must match the whole name; what is excluded is left out; layers may be
 * given by number.  A name that PEFT would match with something else than a linear map (an
 * embedding, a convolution) is an error here rather than an adapter that is silently smaller. */
#include "model/adapter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/blocks.h"
#include "core/core.h"
#include "store/store.h"
#include "fovea/author/params.h"

static const char *const types[] = {"",         "LORA",          "IA3",        "PROMPT_TUNING",
                                    "P_TUNING", "PREFIX_TUNING", "BOTTLENECK", NULL};
static const char *const prompt_inits[] = {"RANDOM", "SAMPLE_VOCAB", "TEXT", NULL};
static const char *const encoders[] = {"MLP", "LSTM", NULL};
static const char *const biases[] = {"none", "all", "lora_only", NULL};
enum { BIAS_NONE, BIAS_ALL, BIAS_LORA };

const fv_field fv_adapter_fields[] = {
    FV_CHOICE(fv_adapter_opt, peft_type, FV_PEFT_NONE, types,
              "what is trained while the model stays as it is; empty: no adapter"),
    FV_INT(fv_adapter_opt, r, 1, 8, 4096, "rank of LoRA's matrices"),
    FV_FLOAT(fv_adapter_opt, lora_alpha, 1e-6, 8, 1e6, "their product is multiplied by this / r"),
    FV_FLOAT(fv_adapter_opt, lora_dropout, 0, 0, 0.99, "dropout on what LoRA reads"),
    FV_BOOL(fv_adapter_opt, use_rslora, false, "divide lora_alpha by the square root of r instead"),
    FV_BOOL(fv_adapter_opt, use_dora, false, "DoRA: directions by LoRA, magnitudes apart"),
    FV_BOOL(fv_adapter_opt, fan_in_fan_out, false, "PEFT's note that weights are stored (in,out)"),
    FV_CHOICE(fv_adapter_opt, bias, BIAS_NONE, biases, "biases of the model that are trained"),
    FV_WORDS(fv_adapter_opt, target_modules,
             "linear maps to adapt: names or ends of names; empty: PEFT's choice for the family"),
    FV_TEXT(fv_adapter_opt, target_regex, "", "instead: a pattern of their whole names"),
    FV_WORDS(fv_adapter_opt, exclude_modules, "linear maps to leave out"),
    FV_WORDS(fv_adapter_opt, feedforward_modules, "IA3: targets whose input is scaled"),
    FV_WORDS(fv_adapter_opt, modules_to_save, "parts of the model that are trained whole"),
    FV_WORDS(fv_adapter_opt, layers_to_transform, "numbers of the layers to adapt; empty: all"),
    FV_INT(fv_adapter_opt, num_virtual_tokens, 1, 20, 4096, "virtual tokens of prompts"),
    FV_INT(fv_adapter_opt, num_transformer_submodules, 0, 0, 2, "PEFT's count of stacks; 0: found"),
    FV_INT(fv_adapter_opt, token_dim, 0, 0, 1 << 20, "width of virtual tokens; 0: the model's"),
    FV_INT(fv_adapter_opt, num_layers, 0, 0, 4096, "layers with a prefix; 0: all"),
    FV_INT(fv_adapter_opt, num_attention_heads, 0, 0, 4096, "heads of a prefix; 0: the model's"),
    FV_CHOICE(fv_adapter_opt, prompt_tuning_init, 0, prompt_inits, "first values of a prompt"),
    FV_TEXT(fv_adapter_opt, prompt_tuning_init_text, "", "TEXT: the tokens it begins as"),
    FV_TEXT(fv_adapter_opt, tokenizer_name_or_path, "", "PEFT's note of their tokenizer"),
    FV_INT(fv_adapter_opt, encoder_hidden_size, 0, 0, 1 << 20,
           "width of the network that makes virtual tokens; 0: the model's"),
    FV_CHOICE(fv_adapter_opt, encoder_reparameterization_type, 0, encoders, "which: MLP"),
    FV_BOOL(fv_adapter_opt, prefix_projection, false, "make a prefix by such a network"),
    FV_BOOL(fv_adapter_opt, mh_adapter, true, "BOTTLENECK: behind the attention of each layer"),
    FV_BOOL(fv_adapter_opt, output_adapter, true, "BOTTLENECK: behind the MLP of each layer"),
    FV_FLOAT(fv_adapter_opt, reduction_factor, 1e-3, 16, 1e6,
             "BOTTLENECK: the layer's width divided by its own"),
    FV_CHOICE(fv_adapter_opt, non_linearity, 0, fv__bottleneck_acts, "BOTTLENECK: activation"),
    FV_FLOAT(fv_adapter_opt, scaling, 1e-6, 1, 1e6, "BOTTLENECK: of what it adds"),
    FV_TEXT(fv_adapter_opt, task_type, "", "PEFT's name of the task"),
    FV_TEXT(fv_adapter_opt, base_model_name_or_path, "", "the model it was trained on"),
    {0},
};

/* PEFT's default targets. */
static const struct {
    const char *type, *lora, *ia3, *feedforward;
} defaults[] = {
    {"albert", "query value", NULL, NULL},
    {"bart", "q_proj v_proj", "k_proj v_proj fc2", "fc2"},
    {"bert", "query value", "key value output.dense", "output.dense"},
    {"deberta-v2", "query_proj value_proj", "key_proj value_proj output.dense", "output.dense"},
    {"distilbert", "q_lin v_lin", NULL, NULL},
    {"electra", "query value", NULL, NULL},
    {"esm", "query value", NULL, NULL},
    {"gemma", "q_proj v_proj", NULL, NULL},
    {"gemma3_text", "q_proj v_proj", NULL, NULL},
    {"gpt2", "c_attn", "c_attn mlp.c_proj", "mlp.c_proj"},
    {"gpt_neox", "query_key_value", "query_key_value dense_4h_to_h", "dense_4h_to_h"},
    {"llama", "q_proj v_proj", "k_proj v_proj down_proj", "down_proj"},
    {"marian", "q_proj v_proj", NULL, NULL},
    {"mistral", "q_proj v_proj", "k_proj v_proj down_proj", "down_proj"},
    {"mt5", "q v", "k v wi_1", "wi_1"},
    {"opt", "q_proj v_proj", "q_proj k_proj fc2", "fc2"},
    {"phi3", "qkv_proj", NULL, NULL},
    {"qwen2", "q_proj v_proj", "k_proj v_proj down_proj", "down_proj"},
    {"qwen3", "q_proj v_proj", NULL, NULL},
    {"roberta", "query value", "key value output.dense", "output.dense"},
    {"t5", "q v", "k v wo", "wo"},
    {"vit", "query value", NULL, NULL},
};

/* LoRA: alpha / r; rsLoRA: alpha / sqrt(r), which keeps the size of what is added the same for
 * every rank. */
float fv__adapter_scale(const fv_adapter_opt *opt)
{
    double r = opt->use_rslora ? sqrt((double)opt->r) : (double)opt->r;
    return (float)((double)opt->lora_alpha / r);
}

/* ---- names ---- */

/* The next word of a list with blanks between; false at the end. */
static bool next_word(const char **at, const char **word, size_t *n)
{
    *at += strspn(*at, " ");
    *word = *at;
    *n = strcspn(*at, " ");
    *at += *n;
    return *n > 0;
}

/* name, or its end behind a dot, is one of the list. */
static bool in_list(const char *list, const char *name)
{
    const char *word;
    size_t n, len = strlen(name);
    while (next_word(&list, &word, &n)) {
        if (n > len || memcmp(name + len - n, word, n)) continue;
        if (n == len || name[len - n - 1] == '.') return true;
    }
    return false;
}

/* A parameter of a module whose name ends so; PEFT compares ends without a look at dots here. */
static bool in_module(const char *list, const char *param)
{
    const char *word;
    size_t n;
    while (next_word(&list, &word, &n))
        for (const char *dot = strchr(param, '.'); dot; dot = strchr(dot + 1, '.'))
            if ((size_t)(dot - param) >= n && !memcmp(dot - n, word, n)) return true;
    return false;
}

/* The number of the layer: the last part of the name that is one, with parts on both sides. */
static long layer_of(const char *module)
{
    long layer = -1;
    for (const char *dot = strchr(module, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *end;
        long n = strtol(dot + 1, &end, 10);
        if (end > dot + 1 && *end == '.') layer = n;
    }
    return layer;
}

/* An empty list means all layers, as in PEFT. */
static bool in_layers(const char *list, const char *module)
{
    const char *word;
    size_t n;
    long layer = layer_of(module);
    if (!*list) return true;
    while (next_word(&list, &word, &n))
        if (layer >= 0 && strtol(word, NULL, 10) == layer) return true;
    return false;
}

/* A compiled target_modules that is a regular expression; code NULL: a list of names is used. */
typedef struct pattern {
    pcre2_code *code;
    pcre2_match_data *found;
    pcre2_match_context *limits;
} pattern;

/* The whole name by a pattern; a match that would take too long is none. */
static bool matches(const pattern *p, const char *name)
{
    return pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0,
                       PCRE2_ANCHORED | PCRE2_ENDANCHORED, p->found, p->limits) > 0;
}

static fv_status compile(pattern *p, const char *text, fv_err *e)
{
    int code;
    PCRE2_SIZE at;
    *p = (pattern){0};
    if (!*text) return FV_OK;
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    if (!p->code)
        return fv_fail(e, FV_EARG, "adapter: target pattern \"%.200s\" fails at byte %zu", text,
                       (size_t)at);
    p->found = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->found || !p->limits) return fv_fail(e, FV_ENOMEM, "adapter: out of memory");
    /* the file's pattern meets every name of the model: PCRE2's own limit is a second for each */
    pcre2_set_match_limit(p->limits, 20000);
    pcre2_set_heap_limit(p->limits, 8192);
    return FV_OK;
}

static void release(pattern *p)
{
    pcre2_match_context_free(p->limits);
    pcre2_match_data_free(p->found);
    pcre2_code_free(p->code);
}

/* PEFT's order: targets by name or pattern, then what is excluded, then the layers that are
 * chosen. */
static bool is_target(const fv_adapter_opt *opt, const pattern *regex, const char *module)
{
    bool named = regex->code ? matches(regex, module) : in_list(opt->target_modules, module);
    return named && !in_list(opt->exclude_modules, module) &&
           in_layers(opt->layers_to_transform, module);
}

/* A bottleneck's maps go by their part of a layer unless they are named. */
static bool chosen(const fv_adapter_opt *opt, const pattern *regex, const fv_tensor *w,
                   const char *module)
{
    if (!fv__bottleneck_by_part(opt)) return is_target(opt, regex, module);
    return fv__bottleneck_behind(opt, w) && !in_list(opt->exclude_modules, module) &&
           in_layers(opt->layers_to_transform, module);
}

/* ---- targets ---- */

/* PEFT has usual targets for a model_type; a family that it does not know must name its own. */
static fv_status default_targets(fv_adapter_opt *opt, const char *type, fv_err *e)
{
    bool ia3 = opt->peft_type == FV_PEFT_IA3;
    if (*opt->target_modules || *opt->target_regex || fv__bottleneck_by_part(opt)) return FV_OK;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        const char *list = ia3 ? defaults[i].ia3 : defaults[i].lora;
        if (strcmp(defaults[i].type, type) || !list) continue;
        snprintf(opt->target_modules, sizeof opt->target_modules, "%s", list);
        if (ia3 && !*opt->feedforward_modules)
            snprintf(opt->feedforward_modules, sizeof opt->feedforward_modules, "%s",
                     defaults[i].feedforward);
        return FV_OK;
    }
    return fv_fail(e, FV_EARG, "adapter: no target_modules are given, and %s has no usual ones",
                   type);
}

/* "a.b.query.weight" -> "a.b.query"; false for what is no weight. */
static bool module_of(char *out, size_t n, const char *param)
{
    size_t len = strlen(param), cut = strlen(".weight");
    if (len <= cut || len - cut >= n || strcmp(param + len - cut, ".weight")) return false;
    snprintf(out, n, "%.*s", (int)(len - cut), param);
    return true;
}

/* Tables are changed by LoRA alone.  Of learnt positions families read slices, which have no
 * adapter. */
static bool table_target(const fv_adapter_opt *opt, const fv_tensor *w, const char *module)
{
    return opt->peft_type == FV_PEFT_LORA && !opt->use_dora && fv__param_is_table(w) &&
           w->shape.n == 2 && !in_list("embed_positions", module);
}

/* What PEFT would adapt too, or refuse: convolutions, norms; and tables but by LoRA. */
static fv_status not_linear(const fv_tensor *t, const char *module, fv_err *e)
{
    return fv_fail(e, FV_EMISSING,
                   "adapter: %s is among the targets, and %s; only linear maps are adapted", module,
                   t->shape.n == 2 ? "is no linear map of this family" : "has no two axes");
}

/* Calls each with every linear map that is adapted, in the order of declaration: names, sizes and
 * how the weight is stored.  None found is an error: an adapter that changes nothing is a mistake
 * in the recipe. */
fv_status fv__adapter_targets(fv_params *p, const fv_adapter_opt *opt, const char *type,
                              fv__target_fn *each, void *user, fv_err *e)
{
    pattern regex;
    int n = 0, params = fv_params_count(p);
    fv_status st = compile(&regex, opt->target_regex, e);
    for (int i = 0; !st && i < params; i++) {
        fv_tensor *w = fv_params_at(p, i);
        fv__target t = {.w = w};
        if (fv__param_added(w) || !module_of(t.module, sizeof t.module, w->name) ||
            !chosen(opt, &regex, w, t.module))
            continue;
        fv_linear_kind kind = fv__param_linear(w);
        t.table = kind == FV_LINEAR_NONE && table_target(opt, w, t.module);
        if (kind == FV_LINEAR_NONE && !t.table) {
            st = not_linear(w, t.module, e);
            continue;
        }
        t.in_out = kind == FV_LINEAR_IN_OUT || t.table;
        t.in = w->shape.d[!t.in_out];
        t.out = w->shape.d[t.in_out];
        t.before = opt->peft_type == FV_PEFT_IA3 && in_list(opt->feedforward_modules, t.module);
        st = each(user, &t, e);
        n++;
    }
    release(&regex);
    if (!st && !n && fv__bottleneck_by_part(opt))
        st =
            fv_fail(e, FV_EARG,
                    "adapter: no attention or MLP of %s that bottlenecks stand behind (mh_adapter, "
                    "output_adapter): name target_modules",
                    type);
    else if (!st && !n)
        st = fv_fail(e, FV_EARG, "adapter: no linear map of %s is called %s", type,
                     *opt->target_regex ? opt->target_regex : opt->target_modules);
    return st;
}

fv_status fv__adapter_tables(fv_params *p, const fv_adapter_opt *opt, fv__target_fn *each,
                             void *user, fv_err *e)
{
    pattern regex;
    fv_status st = FV_OK;
    int params = fv_params_count(p);
    if (opt->peft_type != FV_PEFT_LORA || compile(&regex, opt->target_regex, NULL)) return FV_OK;
    for (int i = 0; !st && i < params; i++) {
        fv_tensor *w = fv_params_at(p, i);
        fv__target t = {.w = w, .table = true, .in_out = true};
        if (fv__param_added(w) || !module_of(t.module, sizeof t.module, w->name) ||
            !is_target(opt, &regex, t.module) || fv__param_linear(w) ||
            !table_target(opt, w, t.module))
            continue;
        t.in = w->shape.d[0];
        t.out = w->shape.d[1];
        st = each(user, &t, e);
    }
    release(&regex);
    return st;
}

/* ---- parameters ---- */

static bool file_has(const fv_st *file, const char *part)
{
    for (int i = 0; i < fv_st_count(file); i++)
        if (strstr(fv_st_at(file, i).name, part)) return true;
    return false;
}

static bool declares(const fv_params *p, const char *part)
{
    for (int i = 0; i < fv_params_count(p); i++)
        if (strstr(fv_params_at(p, i)->name, part)) return true;
    return false;
}

/* Heads that no pre-trained model has are trained with the adapter, and so is what else stands
 * between the layers and the labels where the base has none: a masked language model has no
 * pooler. */
void fv__adapter_default_saved(fv_adapter_opt *opt, const fv_params *p, fv_head_job job,
                               const fv_st *file)
{
    static const char *const between[] = {"pooler", "pre_classifier", NULL};
    char *list = opt->modules_to_save;
    size_t n = sizeof opt->modules_to_save;
    if (*list) return;
    if (job == FV_HEAD_ANSWER) snprintf(list, n, "qa_outputs");
    if (job != FV_HEAD_CLASSIFY && job != FV_HEAD_TAG) return;
    snprintf(list, n, "classifier score");
    for (int i = 0; file && between[i] && job == FV_HEAD_CLASSIFY; i++) {
        if (file_has(file, between[i]) || !declares(p, between[i])) continue;
        size_t at = strlen(list);
        snprintf(list + at, n - at, " %s", between[i]);
    }
}

static bool is_bias(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && !strcmp(name + n - 5, ".bias");
}

/* Everything but what is trained whole: modules_to_save, and biases where they are asked for. */
static void freeze_base(fv_params *p, const fv_adapter_opt *opt, const pattern *regex)
{
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        char module[256];
        bool bias = is_bias(t->name), trained = in_module(opt->modules_to_save, t->name);
        if (bias && opt->bias == BIAS_ALL) trained = true;
        if (bias && opt->bias == BIAS_LORA) {
            snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - 5), t->name);
            trained = trained || is_target(opt, regex, module);
        }
        if (!trained) fv__param_freeze(t);
    }
}

/* What declare_one needs of its caller. */
typedef struct declaring {
    fv_params *p;
    fv_adapter_opt *opt;
} declaring;

/* A parameter of the adapter, under PEFT's name; saved with it and not with the model. */
fv_tensor *fv__adapter_param(fv_params *p, fv_init init, fv_shape s, const char *module,
                             const char *name)
{
    fv_tensor *t = fv_param(p, init, s, FV__PEFT_PREFIX "%s.%s", module, name);
    if (t) fv__param_mark_added(t);
    return t;
}

/* A begins as torch.nn.Linear's weight does (uniform within 1 / sqrt(in)), B as zero: the model
 * computes what it did before.  IA3 begins as one. */
static fv_status declare_one(void *user, const fv__target *t, fv_err *e)
{
    const declaring *d = user;
    fv_adapter_opt *o = d->opt;
    if (t->in_out && !t->table)
        o->fan_in_fan_out = true; /* PEFT's note of how such weights are stored */
    fv_adapter *a = fv_params_scratch(d->p, sizeof *a);
    if (!a) return fv_params_status(d->p, e);
    fv_init zero = {.kind = FV_INIT_ZERO}, one = {.kind = FV_INIT_ONE},
            uniform = {.kind = FV_INIT_UNIFORM, .scale = (float)(1 / sqrt((double)t->in))};
    *a = (fv_adapter){.scale = fv__adapter_scale(o), .dropout = o->lora_dropout};
    if (o->peft_type == FV_PEFT_BOTTLENECK) {
        fv__bottleneck_declare(a, d->p, o, t);
    } else if (o->peft_type == FV_PEFT_IA3) {
        a->before = t->before;
        a->l = fv__adapter_param(d->p, one, t->before ? FV_SHAPE(1, t->in) : FV_SHAPE(t->out, 1),
                                 t->module, "ia3_l");
    } else if (t->table) { /* here A begins as zero, and B as torch.nn.init.normal_ */
        fv_init normal = {.kind = FV_INIT_NORMAL, .scale = 1};
        a->table = true;
        a->a = fv__adapter_param(d->p, zero, FV_SHAPE(o->r, t->in), t->module, "lora_embedding_A");
        a->b = fv__adapter_param(d->p, normal, FV_SHAPE(t->out, o->r), t->module,
                                 "lora_embedding_B");
    } else {
        a->a = fv__adapter_param(d->p, uniform, FV_SHAPE(o->r, t->in), t->module, "lora_A.weight");
        a->b = fv__adapter_param(d->p, zero, FV_SHAPE(t->out, o->r), t->module, "lora_B.weight");
        if (o->use_dora)
            a->magnitude = fv__adapter_param(d->p, one, FV_SHAPE(t->out), t->module,
                                             "lora_magnitude_vector");
    }
    fv__param_adapt(t->w, a);
    return fv_params_status(d->p, e);
}

static fv_status hang_table(void *user, const fv__target *t, fv_err *e)
{
    if (fv__param_table_adapter(t->w))
        return fv_fail(e, FV_EARG, "adapter: another one changes %s already", t->module);
    return declare_one(user, t, e);
}

fv_status fv__adapter_hang_tables(fv_params *p, fv_adapter_opt *opt, fv_err *e)
{
    return fv__adapter_tables(p, opt, hang_table, &(declaring){.p = p, .opt = opt}, e);
}

fv_status fv__adapter_hang(fv_params *p, fv_adapter_opt *opt, const char *type, fv_err *e)
{
    return fv__adapter_targets(p, opt, type, declare_one, &(declaring){.p = p, .opt = opt}, e);
}

void fv__adapter_freeze(fv_params *p, const fv_adapter_opt *opt)
{
    freeze_base(p, opt, &(pattern){0});
}

/* The base is frozen first, so that what is added afterwards is what is trained. */
fv_status fv__adapter_declare(fv_params *p, fv_adapter_opt *opt, const char *type, fv_err *e)
{
    pattern regex;
    fv_status st = default_targets(opt, type, e);
    if (!st) st = compile(&regex, opt->target_regex, e);
    if (st) return st;
    freeze_base(p, opt, &regex);
    release(&regex);
    return fv__adapter_hang(p, opt, type, e);
}

fv_status fv__adapter_hold_base(fv_params *p, bool adapted, const fv_device *d,
                                const fv_model_opt *opt, fv_err *e)
{
    if (!opt->train || fv_dtype_size(opt->weights)) return FV_OK;
    if (!adapted)
        return fv_fail(e, FV_EARG, "weights of %s can be trained only through an adapter",
                       fv_dtype_name(opt->weights));
    if (opt->weights == FV_I8 || !fv__blocks_supported(d, opt->dtype))
        return fv_fail(e, FV_EMISSING,
                       "an adapter is trained above weights of q8 or q4, on the cpu in f32: not of "
                       "%s in %s",
                       fv_dtype_name(opt->weights), fv_dtype_name(opt->dtype));
    /* the first stays as it is: whoever asks in what a model computes asks it */
    for (int i = 1; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        if (fv__param_frozen(t) && fv__param_linear(t)) fv__param_hold_as(t, opt->weights);
    }
    return FV_OK;
}
