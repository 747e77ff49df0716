/* beside.c - how the model generates: generation_config.json beside its weights.
 *
 * A model that was fine-tuned generates as its source does: the source's generation_config.json is
 * written back or, where it has none, the keys of its config.json that transformers reads in its
 * place.  The recipe's [generate] changes only the keys it gives. */
#include <stdio.h>

#include "fovea/author/family.h"
#include "store/json.h"
#include "train/recipe/keys.h"

/* Keys of an older config.json that say how to generate. */
static const char *const legacy[] = {"num_beams",           "max_length",
                                     "min_length",          "length_penalty",
                                     "early_stopping",      "no_repeat_ngram_size",
                                     "bos_token_id",        "eos_token_id",
                                     "pad_token_id",        "decoder_start_token_id",
                                     "forced_bos_token_id", "forced_eos_token_id",
                                     "bad_words_ids",       NULL};

static fv_status set_int(fv_json *j, const char *key, int32_t value, fv_err *e)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    return value >= 0 ? fv_json_set(j, key, text, e) : FV_OK;
}

/* A key of [generate] as JSON; early_stopping is true, false or "never". */
static fv_status set_key(const fv_recipe *r, fv_json *j, const char *key, fv_err *e)
{
    char value[64], text[80];
    fv_fields_get(&r->generate, fv_gen_fields, key, value, sizeof value);
    bool word = !strcmp(value, "never");
    snprintf(text, sizeof text, "%s%s%s", word ? "\"" : "", value, word ? "\"" : "");
    return fv_json_set(j, key, text, e);
}

/* The keys of [generate] that the recipe gives a value. */
static fv_status set_given(const fv_recipe *r, fv_json *j, fv_err *e)
{
    fv_status st = FV_OK;
    for (const fv_field *f = fv_gen_fields; !st && f->name; f++)
        if (fv__recipe_given(r, "generate", f->name)) st = set_key(r, j, f->name, e);
    return st;
}

/* Settings of generation that older files keep in config.json. */
static fv_status copy_legacy(fv_json *j, const fv_json *config, const fv_env *env, fv_err *e)
{
    fv_status st = FV_OK;
    for (const char *const *key = legacy; !st && *key; key++) {
        if (!fv_json_has(config, *key)) continue;
        fv_buf value = {.env = env};
        fv__jnode_print(&value, fv__json_at(config, *key), -1);
        st = value.failed ? fv_fail(e, FV_ENOMEM, "generation_config.json: out of memory")
                          : fv_json_set(j, *key, value.data, e);
        fv__buf_free(&value);
    }
    return st;
}

/* Of a new model: how the recipe generates, and the ids it was trained with. */
static fv_status set_new(const fv__beside *b, fv_json *j, fv_err *e)
{
    static const char *const keys[] = {"num_beams", "max_length", "length_penalty",
                                       "early_stopping"};
    const fv__input *in = b->in;
    fv_status st = FV_OK;
    for (int i = 0; !st && i < 4; i++) st = set_key(b->r, j, keys[i], e);
    if (!st) st = set_int(j, "pad_token_id", in->pad, e);
    if (!st) st = set_int(j, "eos_token_id", in->eos, e);
    if (!st && fv_model_has_cross(b->model)) {
        char text[40];
        snprintf(text, sizeof text, "[[%d]]", in->pad);
        st = set_int(j, "decoder_start_token_id", in->start, e);
        if (!st) st = fv_json_set(j, "bad_words_ids", text, e);
    }
    return st;
}

/* The source's file with the recipe's keys over it, or a new one. */
static fv_status write_generation(const fv__beside *b, const char *path, fv_err *e)
{
    char source[FV_PATH];
    const fv_env *env = b->in->env;
    fv_dir *dir = NULL;
    fv_json *j = NULL;
    fv_status st = b->from ? fv_dir_open(&dir, env, b->from, e) : FV_OK;
    if (st) return st;
    bool there = dir && fv_dir_file(dir, "generation_config.json", source, sizeof source);
    st = there ? fv_json_open(&j, env, source, e) : fv_json_parse(&j, env, "{}", path, e);
    if (!st && dir && !there) st = copy_legacy(j, fv_dir_config(dir), env, e);
    if (!st && !dir) st = set_new(b, j, e);
    if (!st) st = set_given(b->r, j, e);
    if (!st) st = fv_json_save(j, path, e);
    fv_json_close(j);
    fv_dir_close(dir);
    return st;
}

fv_status fv__beside_write(void *user, const char *dir, fv_err *e)
{
    const fv__beside *b = user;
    char path[FV_PATH];
    bool generates = fv_model_family(b->model)->step && b->in->eos >= 0 &&
                     fv__recipe_objective(b->r)->generates;
    fv__recipe_path(path, dir, "generation_config.json");
    return generates ? write_generation(b, path, e) : FV_OK;
}

/* As the written file will say, so that BLEU in training is that of the model afterwards. */
fv_status fv__beside_generation(const fv__beside *b, fv_gen_opt *out, fv_gen_config **owner,
                                fv_err *e)
{
    const fv_recipe *r = b->r;
    const fv__input *in = b->in;
    *owner = NULL;
    *out = r->generate;
    if (!b->from) {
        out->start = in->start;
        out->pad = in->pad;
        out->eos = in->eos;
        out->forced_eos = -1;
        out->banned = &in->pad;
        out->n_banned = 1;
        return FV_OK;
    }
    fv_status st = fv_gen_config_open(owner, in->env, b->from, NULL, e);
    if (!st) *out = *fv_gen_config_options(*owner);
    for (const fv_field *f = fv_gen_fields; !st && f->name; f++) {
        char value[64];
        if (!fv__recipe_given(r, "generate", f->name)) continue;
        fv_fields_get(&r->generate, fv_gen_fields, f->name, value, sizeof value);
        st = fv_fields_set(out, fv_gen_fields, f->name, value, e);
    }
    if (st) return st;
    if (out->start < 0) out->start = in->start;
    if (out->pad < 0) out->pad = in->pad;
    if (out->eos < 0) out->eos = in->eos;
    return FV_OK;
}
