/* open.c - models of any family: made or opened, run, saved.
 *
 * Opening a directory, in this order, each step with its own sentence where it fails:
 *
 *     config.json    -> family (model_type) -> head (architectures, or the task's) -> its keys
 *     declare        the family names its parameters with shapes and first values; nothing is
 *                    allocated yet, so --dry-run and wrong shapes cost no memory
 *     adapters       declared beside the weights they change
 *     load           from safetensors by name, in the dtype that is asked for; a model that serves
 *                    reads them where the file is mapped
 *     pack           with .serve, products get their weights in the layout of the device's kernels
 *
 * A new model is the same without a file.  Saving writes the names of the file back. */
#include <stdio.h>

#include "fovea/author/adapter.h"
#include "fovea/author/comm.h"
#include "fovea/author/parallel.h"
#include "core/collect.h"
#include "core/core.h"
#include "core/params.h"
#include "fovea/author/params.h"
#include "model/adapter.h"
#include "model/registry.h"
#include "store/json.h"
#include "store/store.h"

#define MAX_HEADS 64     /* of a family, that a message can suggest */
#define MAX_FAMILIES 256 /* likewise, of this build */

/* ---- models ---- */

struct fv_model {
    fv_env env;
    const fv_family *family;
    const fv_family_head *head;
    fv_json *json; /* config.json as it was, to be saved with what we do not know kept */
    void *config, *self;
    fv_params *params;
    fv_dtype dtype, weights; /* of activations, and of the weights of products */
    fv_comm *ranks;          /* whom its weights are divided among; NULL: they are whole */
    fv_comm *stages;         /* whom its layers are divided among; NULL: all are here */
    bool adapted;            /* an adapter is trained on it */
    fv_adapter_opt adapter;
    fv__virtual prompt; /* virtual tokens of an adapter, new or in use */
};

void fv_model_free(fv_model *m)
{
    if (!m) return;
    fv_env env = m->env;
    fv_params_free(m->params);
    fv_json_close(m->json);
    if (m->family) {
        fv__free(&env, m->config, m->family->config_size);
        fv__free(&env, m->self, m->family->size);
    }
    fv__free(&env, m, sizeof *m);
}

/* The family that was given, else the one of this build with the file's model_type. */
static fv_status choose_family(fv_model *m, const fv_family *given, const char *name, fv_err *e)
{
    const char *type = fv_config_type(m->json), *known[MAX_FAMILIES + 1] = {NULL};
    for (int i = 0; i < MAX_FAMILIES && fv_family_at(i); i++) known[i] = fv_family_at(i)->type;
    if (!type) return fv_fail(e, FV_EFORMAT, "%s: model_type is missing", name);
    m->family = given ? given : fv_family_find(type);
    if (given && !fv__family_serves(given, type)) {
        m->family = NULL; /* nothing of its is allocated yet */
        return fv_fail(e, FV_EARG, "%s: model_type is \"%s\", and the family given is %s", name,
                       type, given->type);
    }
    if (m->family) return FV_OK;
    const char *suggestion = fv__closest(type, known);
    return fv_fail(e, FV_EMISSING, "%s: model_type \"%s\" is not a family of this build%s%s", name,
                   type, suggestion ? "; the nearest is " : "", suggestion ? suggestion : "");
}

/* The head asked for, else the one the file names, else the first that fits the model_type. */
static fv_status choose_head(fv_model *m, const char *wanted, const char *name, fv_err *e)
{
    const fv_family *f = m->family;
    const char *named = wanted ? wanted : fv_json_text(m->json, "architectures.0"),
               *type = fv_json_text(m->json, "model_type"), *known[MAX_HEADS + 1] = {NULL};
    for (const fv_family_head *h = f->heads; !named && h->name; h++)
        if (!h->type || (type && !strcmp(h->type, type))) named = h->name;
    if (!named) named = f->heads[0].name;
    m->head = fv_family_head_find(f, named);
    if (m->head) return FV_OK;
    for (int i = 0; i < MAX_HEADS && f->heads[i].name; i++) known[i] = f->heads[i].name;
    const char *suggestion = fv__closest(named, known);
    return fv_fail(e, FV_EMISSING, "%s: %s has no head \"%s\"; the nearest is %s", name, f->type,
                   named, suggestion ? suggestion : f->heads[0].name);
}

/* A model of several parts becomes the one that the family has: configuration and head. */
static fv_status take_part(fv_model *m, const char *name, fv_err *e)
{
    const char *part = m->family->part;
    const fv_family_head *h = m->family->heads;
    if (!part || fv_json_count(m->json, part) < 0) return FV_OK;
    while (h->name && (h->type || h->job != m->head->job)) h++;
    if (!h->name)
        return fv_fail(e, FV_EMISSING, "%s: %s has no head of its %s for \"%s\"", name,
                       m->family->type, part, m->head->name);
    fv_buf text = {.env = &m->env};
    fv_json *own = NULL;
    char heads[256];
    snprintf(heads, sizeof heads, "[\"%s\"]", h->name);
    fv__jnode_print(&text, fv__json_at(m->json, part), 0);
    fv_status st = text.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", name)
                               : fv_json_parse(&own, &m->env, text.data, name, e);
    if (!st) st = fv_json_set(own, "architectures", heads, e);
    fv__buf_free(&text);
    if (st) {
        fv_json_close(own);
        return st;
    }
    fv_json_close(m->json);
    m->json = own;
    m->head = h;
    return FV_OK;
}

/* transformers counts labels by their names; a family that has labels has a field num_labels. */
static fv_status count_labels(fv_model *m, const char *name, fv_err *e)
{
    char value[16];
    int n = fv_json_count(m->json, "id2label");
    if (n <= 0 ||
        fv_fields_get(m->config, m->family->config, "num_labels", value, sizeof value) < 0)
        return FV_OK;
    for (int i = 0; i < n; i++) {
        char key[32];
        snprintf(key, sizeof key, "id2label.%d", i);
        if (!fv_json_has(m->json, key))
            return fv_fail(e, FV_EFORMAT, "%s: id2label has %d names, but none for %d", name, n, i);
    }
    snprintf(value, sizeof value, "%d", n);
    return fv_fields_set(m->config, m->family->config, "num_labels", value, e);
}

/* How the file holds the weights of products, if not as floats.  What others call quantised is not
 * read. */
static fv_status stored_as(fv_model *m, fv_device *d, fv_model_opt *opt, fv_dtype *rows,
                           const char *dir, fv_err *e)
{
    const char *method = fv_json_text(m->json, "quantization_config.quant_method"),
               *weights = fv_json_text(m->json, "quantization_config.weights");
    *rows = FV_F32;
    if (!fv_json_has(m->json, "quantization_config")) return FV_OK;
    if (!method || strcmp(method, "fovea") || !weights || !fv_dtype_parse(rows, weights) ||
        fv_dtype_size(*rows))
        return fv_fail(e, FV_EMISSING,
                       "%s: config.json: weights quantised by \"%s\" (quantization_config."
                       "quant_method) are not read: expected floats, or what fovea quantize writes",
                       dir, method ? method : "");
    bool here = *rows != FV_I8 || fv__device_is_host(d);
    if (!opt->serve || !here)
        return fv_fail(e, FV_EMISSING, "%s: its weights are stored as %s: %s", dir, weights,
                       here ? "such a model can be run, but not trained"
                            : "such a model can be run on the cpu alone");
    if (opt->weights != FV_F32 && opt->weights != *rows)
        return fv_fail(e, FV_EDTYPE, "%s: its weights are stored as %s, not %s", dir, weights,
                       fv_dtype_name(opt->weights));
    opt->weights = *rows;
    return FV_OK;
}

/* A directory to open: a model's, or an adapter's with that of the model it was trained on. */
typedef struct source {
    const char *dir;
    fv_dir *files, *base; /* base: NULL where dir has the weights itself */
    fv_st *weights;
    fv_adapter_use use[FV__MAX_ADAPTERS + 1];
    fv_buf fresh; /* names of parameters that the base lacks, each ending in NUL */
} source;

static void close_source(source *s)
{
    fv_st_close(s->weights);
    fv_dir_close(s->base);
    fv_dir_close(s->files);
    fv__buf_free(&s->fresh);
}

/* What is wrong with the weights is said before anything is built.  The adapter of an adapter's
 * directory is put in front of those that were given. */
static fv_status open_source(source *s, const fv_env *env, fv_model_opt *opt, fv_err *e)
{
    char base[FV_PATH];
    s->fresh.env = env;
    fv_status st = fv_dir_open(&s->files, env, s->dir, e);
    if (!st && fv__adapter_is_dir(s->files)) {
        st = fv__adapter_base(base, env, fv_dir_path(s->files), e);
        if (!st) st = fv_dir_open(&s->base, env, base, e);
        if (!st && opt->train)
            st = fv_fail(e, FV_EARG, "%s: an adapter's directory is used as it is; train on %s",
                         s->dir, base);
        if (!st && opt->adapters.n > FV__MAX_ADAPTERS)
            st = fv_fail(e, FV_EARG, "more than %d adapters", FV__MAX_ADAPTERS);
        if (st) return st;
        s->use[0] = (fv_adapter_use){.dir = fv_dir_path(s->files)};
        for (int i = 0; i < opt->adapters.n; i++) s->use[i + 1] = opt->adapters.at[i];
        opt->adapters = (fv_adapter_list){.at = s->use, .n = opt->adapters.n + 1};
    }
    return st ? st : fv_dir_weights(s->base ? s->base : s->files, &s->weights, e);
}

/* Virtual tokens of adapters in use, or a new adapter on a model that is to be trained. */
static fv_status declare_adapters(fv_model *m, fv_model_opt opt, const fv_st *file, fv_err *e)
{
    fv__prompt_base base = {m->family, m->head, m->config, fv_config_type(m->json)};
    fv_status st = fv__adapters_declare(&m->prompt, m->params, &base, &m->env, opt.adapters, e);
    if (st || !opt.adapter || opt.adapter->peft_type == FV_PEFT_NONE) return st;
    if (!opt.train)
        return fv_fail(e, FV_EARG, "adapter: a new one needs a model that is opened to be trained");
    if (opt.adapters.n)
        return fv_fail(e, FV_EARG,
                       "adapter: it is trained on the base alone; fold others in first");
    m->adapter = *opt.adapter;
    m->adapted = true;
    fv__adapter_default_saved(&m->adapter, m->params, m->head->job, file);
    if (!fv__peft_is_virtual(m->adapter.peft_type))
        return fv__adapter_declare(m->params, &m->adapter, base.type, e);
    return fv__prompt_declare(&m->prompt, m->params, &m->adapter, &base, true, e);
}

/* From m->json to declared parameters. */
static fv_status build(fv_model *m, fv_model_opt opt, const fv_st *file, const char *name,
                       fv_err *e)
{
    fv_status st = choose_family(m, opt.family, name, e);
    if (!st) st = choose_head(m, opt.head, name, e);
    if (!st) st = take_part(m, name, e);
    if (st) return st;
    const fv_family *f = m->family;
    m->config = fv__alloc(&m->env, f->config_size);
    m->self = fv__alloc(&m->env, f->size);
    if (!m->config || !m->self) return fv_fail(e, FV_ENOMEM, "%s: out of memory", name);

    const fv_key_rule *rules[] = {fv_keys_common, f->rules, NULL};
    fv_err inner;
    st = fv_fields_read(m->config, f->config, m->json, "", rules, e);
    if (!st) st = count_labels(m, name, e);
    if (!st && f->check && (st = f->check(m->config, &inner)))
        fv_fail(e, st, "%s: %s", name, inner.text);
    if (!st) st = fv_params_new(&m->params, &m->env, e);
    if (st) return st;
    m->params->ranks = m->ranks;
    m->params->stages = m->stages;
    f->declare(m->self, &(fv_setup){.params = m->params,
                                    .config = m->config,
                                    .head = m->head,
                                    .file = file,
                                    .json = m->json});
    return declare_adapters(m, opt, file, e);
}

static void note_fresh(void *user, const char *name, bool is_fresh)
{
    if (is_fresh) fv__buf_add(user, name, strlen(name) + 1);
}

/* Gives the parameters the values of a file.  A model that serves reads them where the file is
 * mapped; one that may change, by training or by an adapter, has memory of its own. */
static fv_status load(fv_model *m, fv_device *d, fv_model_opt opt, fv_dtype rows, source *s,
                      fv_err *e)
{
    static const char *const any[] = {"*", NULL};
    const char *dir = fv_dir_path(s->base ? s->base : s->files);
    fv_load_opt how = m->family->load ? m->family->load(m->self) : (fv_load_opt){0};
    how.rows = rows;
    how.half = !m->ranks;            /* parts of weights are products as they are */
    if (m->stages) how.ignore = any; /* other stages have the rest of the file */
    if (s->base) how.fresh = how.ignore = any, how.on_skipped = note_fresh, how.user = &s->fresh;
    if (opt.serve && !opt.adapters.n) return fv_params_map(m->params, d, opt.dtype, dir, how, e);
    /* else a configuration could ask for any amount of memory */
    fv_status st = fv__params_fit(m->params, &m->env, dir, how, e);
    s->fresh.len = 0; /* they are noted again */
    if (!st) st = fv_params_alloc(m->params, d, opt.dtype, opt.train, e);
    if (!st && m->adapted) st = fv_params_randomize(m->params, 0, e);
    return st ? st : fv_params_load(m->params, &m->env, dir, how, e);
}

/* Lays the weights of products out as opt.weights; what is used as it is (embeddings apart) is
 * widened to the activations' dtype. */
static fv_status pack(fv_model *m, fv_model_opt opt, fv_err *e)
{
    m->dtype = opt.dtype;
    m->weights = opt.serve ? opt.weights : opt.dtype;
    if (!opt.serve || m->ranks) return FV_OK;
    if (m->weights == FV_F32 && !opt.widen && m->family->pack)
        m->weights = fv__params_stored(m->params);
    if (m->family->pack)
        m->family->pack(m->self, m->params, m->weights);
    else if (m->weights != opt.dtype)
        return fv_fail(e, FV_EMISSING, "the family %s has no layout of its weights as %s",
                       m->family->type, fv_dtype_name(m->weights));
    return fv__params_widen(m->params, e);
}

fv_status fv__model_ready(fv_model *m, fv_err *e)
{
    fv_status st = m->family->ready ? m->family->ready(m->self, m->params, e) : FV_OK;
    return st || !m->adapted ? st : fv__adapter_ready(m->params, &m->env, e);
}

static fv_status start(fv_model **out, fv_device *d, fv_err *e)
{
    fv_model *m = *out = fv__alloc(fv_device_env(d), sizeof *m);
    if (!m) return fv_fail(e, FV_ENOMEM, "model: out of memory");
    m->env = *fv_device_env(d);
    return FV_OK;
}

static fv_status finish(fv_model **out, fv_status st)
{
    if (st && *out) fv_comm_abort(fv_model_ranks(*out), "its part of a model cannot be opened");
    if (st) fv_model_free(*out), *out = NULL;
    return st;
}

/* What a model that ranks share cannot be. */
static fv_status check_ranks(const fv_model *m, const fv_model_opt *opt, fv_dtype rows,
                             const char *dir, fv_err *e)
{
    const char *type = fv_config_type(m->json), *why = NULL;
    const fv_family *f = opt->family ? opt->family : type ? fv_family_find(type) : NULL;
    if (!m->ranks && !m->stages) return FV_OK;
    if (m->ranks && (rows || (opt->serve && opt->weights != FV_F32)))
        why = "its weights are not floats";
    else if (opt->adapters.n || (opt->adapter && opt->adapter->peft_type != FV_PEFT_NONE))
        why = "it has an adapter";
    else if (f && !f->step)
        why = "its family does not generate";
    else if (m->stages && opt->train)
        why = "stages of layers are for inference, not for training";
    return why ? fv_fail(e, FV_EMISSING, "%s: cannot be divided among ranks: %s", dir, why) : FV_OK;
}

fv_status fv_model_new(fv_model **out, fv_device *d, const char *config, fv_model_opt opt,
                       uint64_t seed, fv_err *e)
{
    return fv_model_new_ranks(out, d, config, opt, seed, NULL, e);
}

fv_status fv_model_new_ranks(fv_model **out, fv_device *d, const char *config, fv_model_opt opt,
                             uint64_t seed, fv_comm *c, fv_err *e)
{
    fv_dir *files = NULL;
    fv_st *weights = NULL;
    fv_status st = start(out, d, e);
    fv_model *m = *out;
    if (!st && fv_comm_size(c) > 1) m->ranks = c;
    if (!st && opt.from) st = fv_dir_open(&files, &m->env, opt.from, e);
    if (!st && opt.from) st = fv_dir_weights(files, &weights, e);
    if (!st) st = fv_json_parse(&m->json, &m->env, config, "config", e);
    if (!st) st = check_ranks(m, &opt, FV_F32, "config", e);
    if (!st) st = build(m, opt, weights, "config", e);
    if (!st) st = fv__adapter_hold_base(m->params, m->adapted, d, &opt, e);
    if (!st) st = fv_params_alloc(m->params, d, opt.dtype, opt.train, e);
    if (!st) st = fv_params_randomize(m->params, seed, e);
    if (!st) st = fv__model_ready(m, e);
    if (!st) st = pack(m, opt, e);
    fv_st_close(weights);
    fv_dir_close(files);
    return finish(out, st);
}

fv_status fv_model_open(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt, fv_err *e)
{
    return fv_model_open_ranks(out, d, dir, opt, NULL, e);
}

/* What the declarations came to, before shapes that do not fit the file. */
static fv_status check_shares(const fv_model *m, const char *dir, fv_err *e)
{
    fv_status st = m->ranks || m->stages ? fv_params_status(m->params, e) : FV_OK;
    if (!st && m->stages && !m->params->in_stages)
        st = fv_fail(e, FV_EMISSING, "%s: the layers of %s cannot be divided among ranks", dir,
                     m->family->type);
    return st;
}

static fv_status open_shared(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt,
                             fv_comm *ranks, fv_comm *stages, fv_err *e)
{
    char path[FV_PATH];
    source s = {.dir = dir};
    fv_dtype rows = FV_F32;
    fv_status st = start(out, d, e);
    fv_model *m = *out;
    if (!st && fv_comm_size(ranks) > 1) m->ranks = ranks;
    if (!st && fv_comm_size(stages) > 1) m->stages = stages;
    if (!st) st = open_source(&s, &m->env, &opt, e);
    if (!st && !fv_dir_file(s.files, "config.json", path, sizeof path))
        st = fv_fail(e, FV_EIO, "%s: has no config.json", dir);
    if (!st) st = fv_json_open(&m->json, &m->env, path, e);
    if (!st && opt.serve && opt.train)
        st = fv_fail(e, FV_EARG, "%s: a model that serves is not trained", dir);
    if (!st) st = stored_as(m, d, &opt, &rows, dir, e);
    if (!st && rows && opt.adapters.n)
        st = fv_fail(e, FV_EMISSING,
                     "%s: its weights are quantised; fold the adapter into the "
                     "float model and quantise that",
                     dir);
    if (!st) st = check_ranks(m, &opt, rows, dir, e);
    if (!st) st = build(m, opt, s.weights, path, e);
    if (!st) st = check_shares(m, dir, e);
    if (!st) st = load(m, d, opt, rows, &s, e);
    if (!st) /* what the base lacks (the head of another task) must come with the adapter */
        st = fv__adapters_fold(m->params, &m->prompt, &m->env, opt.adapters,
                               fv_config_type(m->json), &s.fresh, e);
    if (!st) st = fv__model_ready(m, e);
    if (!st) st = pack(m, opt, e);
    close_source(&s);
    return finish(out, st);
}

fv_status fv_model_open_ranks(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt,
                              fv_comm *c, fv_err *e)
{
    return open_shared(out, d, dir, opt, c, NULL, e);
}

fv_status fv_model_open_stages(fv_model **out, fv_device *d, const char *dir, fv_model_opt opt,
                               fv_comm *c, fv_err *e)
{
    return open_shared(out, d, dir, opt, NULL, c, e);
}

static fv_status save(fv_model *m, const char *dir, fv_dtype dtype, fv_err *e)
{
    char path[4096], value[256];
    if (snprintf(path, sizeof path, "%s/model.safetensors", dir) >= (int)sizeof path)
        return fv_fail(e, FV_EARG, "%.100s...: the path is too long", dir);
    fv_status st = fv__dir_make(&m->env, dir, e);
    if (!st && m->adapted)
        st = fv__adapter_save(m->params, &m->adapter, &m->prompt, &m->env, dir, dtype, e);
    if (!st && !m->adapted) st = fv_params_save(m->params, &m->env, path, dtype, 0, e);
    if (!st) st = fv_fields_write(m->config, m->family->config, m->json, e);
    snprintf(value, sizeof value, "[\"%s\"]", m->head->name);
    if (!st) st = fv_json_set(m->json, "architectures", value, e);
    if (!st) st = fv__config_dtype(m->json, dtype, e);
    snprintf(path, sizeof path, "%s/config.json", dir);
    return st ? st : fv_json_save(m->json, path, e);
}

/* Rank 0 writes, and the others give it their parts. */
fv_status fv_model_save(fv_model *m, const char *dir, fv_dtype dtype, fv_err *e)
{
    fv_err lost;
    if (m->stages) return fv_fail(e, FV_EMISSING, "%s: pipeline stages are not saved", dir);
    if (!m->ranks) return save(m, dir, dtype, e);
    fv__collector x = {.params = m->params, .size = fv_dtype_size(m->params->dtype)};
    bool writes = !fv_comm_rank(m->ranks);
    fv_status st = writes ? save(m, dir, dtype, e) : fv__collect_serve(&x, e);
    if (writes && fv__collect_end(m->params, &lost) && !st)
        st = fv_fail(e, lost.code, "%s", lost.text);
    fv__collect_free(&x);
    return fv_comm_agree(m->ranks, st, e);
}

fv_status fv_model_load(fv_model *m, const char *dir, fv_err *e)
{
    if (m->adapted) return fv__adapter_load(m->params, &m->prompt, &m->env, dir, e);
    fv_load_opt how = m->family->load ? m->family->load(m->self) : (fv_load_opt){0};
    return fv_params_load(m->params, &m->env, dir, how, e);
}

fv_comm *fv_model_ranks(const fv_model *m) { return m->ranks ? m->ranks : m->stages; }

const fv_adapter_opt *fv_model_adapter(const fv_model *m)
{
    return m->adapted ? &m->adapter : NULL;
}
const fv_family *fv_model_family(const fv_model *m) { return m->family; }
const char *fv_model_head(const fv_model *m) { return m->head->name; }
fv_head_job fv_model_job(const fv_model *m) { return m->head->job; }
bool fv_model_takes(const fv_model *m, const char *input)
{
    return fv_family_takes(m->family, input);
}

bool fv_model_has_cross(const fv_model *m)
{
    return !m->head->encoder_only && (fv_family_takes(m->family, "decoder_input_ids") ||
                                      fv_family_takes(m->family, "decoder_input_values"));
}
int64_t fv_model_context(const fv_model *m)
{
    return m->family->context ? m->family->context(m->self) - fv__prompt_length(&m->prompt) : 0;
}
const fv__virtual *fv__model_virtual(const fv_model *m) { return &m->prompt; }
const void *fv_model_config(const fv_model *m) { return m->config; }
fv_params *fv_model_params(const fv_model *m) { return m->params; }
fv_dtype fv_model_dtype(const fv_model *m) { return m->dtype; }
fv_dtype fv_model_weights(const fv_model *m) { return m->weights; }
const void *fv_model_self(const fv_model *m) { return m->self; }
