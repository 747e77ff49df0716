/* keys.c - the keys of a recipe: one table entry each, with range, default, meaning and whether a
 * resumed run may change it.  --help-keys prints them.
 *
 * [train] and [generate] have their tables where their options are defined, and further ones in the
 * files that read them (train/options.h); keys of [model] are the family's, and an objective adds
 * its own to [data]. */
#include <stdio.h>

#include "fovea/author/family.h"
#include "train/recipe/keys.h"

static const char *const kinds[] = {"byte_bpe", "bpe", "wordpiece", "unigram", "word", NULL};

/* Numbers of the objectives, as the build lists them: the default is one of them. */
enum {
#define X(file) OBJECTIVE_##file,
#include "objective_files.h"
#undef X
};

const fv_field fv_data_fields[] = {
    FV_CHOICE(fv_data_opt, objective, OBJECTIVE_seq2seq, fv_objective_names,
              "what the model is trained to do"),
    FV_TEXT(fv_data_opt, dir, "", "directory of the files; they may also be given with their path",
            FV_ON_RESUME),
    FV_TEXT(fv_data_opt, train, "", "file to train on, plain or gzip"),
    FV_TEXT(fv_data_opt, train_target, "", "its targets, line by line; empty: train is a table"),
    FV_TEXT(fv_data_opt, valid, "", "file to evaluate on; empty: none"),
    FV_TEXT(fv_data_opt, valid_target, "", "its targets"),
    FV_CHOICE(fv_data_opt, format, 0, fv_formats, "of the files; auto goes by their names"),
    FV_TEXT(fv_data_opt, source_field, "",
            "field with the text: a name, or a number from 1 in a table"),
    FV_TEXT(fv_data_opt, target_field, "", "field with the target or label"),
    FV_BOOL(fv_data_opt, header, false, "the first line of a table only names its columns"),
    FV_BOOL(fv_data_opt, latin1, false, "files are ISO-8859-1, not UTF-8"),
    FV_CHOICE(fv_data_opt, malformed, FV_DROP, fv_policies,
              "records that are not UTF-8 (cut is drop)"),
    FV_CHOICE(fv_data_opt, empty, FV_DROP, fv_policies, "records with an empty text (cut is drop)"),
    FV_CHOICE(fv_data_opt, too_long, FV_DROP, fv_policies, "records with more than max_len tokens"),
    FV_INT(fv_data_opt, max_len, 4, 512, 1 << 20, "tokens of a text, special ones included"),
    FV_INT(fv_data_opt, max_train, 0, 0, 1e9, "records to train on; 0: all"),
    FV_INT(fv_data_opt, max_valid, 0, 0, 1e9, "records to evaluate on; 0: all"),
    FV_FLOAT(fv_data_opt, hold_out, 0, 0, 0.9,
             "share of the training file's end that is evaluated on instead, where valid is empty"),
    {0},
};

const fv_field fv_tokenizer_fields[] = {
    FV_TEXT(fv_tokenizer_opt, from, "",
            "directory or file of a tokenizer; empty: that of [model] from, or one is trained"),
    FV_CHOICE(fv_tokenizer_opt, kind, FV_TOK_BPE, kinds, "algorithm of one that is trained"),
    FV_INT(fv_tokenizer_opt, vocab, 8, 8000, 1 << 24,
           "size of its vocabulary, special tokens included"),
    FV_INT(fv_tokenizer_opt, min_count, 1, 2, 1e9, "how often a pair or piece must occur"),
    FV_BOOL(fv_tokenizer_opt, lowercase, false, "lower-case all text"),
    FV_BOOL(fv_tokenizer_opt, nfkc, false, "normalise all text by NFKC"),
    {0},
};

const fv__section fv__sections[] = {
    {"data", fv_data_fields, offsetof(fv_recipe, data)},
    {"tokenizer", fv_tokenizer_fields, offsetof(fv_recipe, tokenizer)},
    {"train", fv_train_fields, offsetof(fv_recipe, train)},
    {"generate", fv_gen_fields, offsetof(fv_recipe, generate)},
    {"adapter", fv_adapter_fields, offsetof(fv_recipe, adapter)},
    {"distill", NULL, 0},
    {"continual", fv__continual_fields, offsetof(fv_recipe, continual)},
    {0},
};

const fv_field *fv__field_find(const fv_field *table, const char *key)
{
    for (; table && table->name; table++)
        if (!strcmp(table->name, key)) return table;
    return NULL;
}

const fv_objective *fv__objective_with(const char *key)
{
    const fv_objective *o;
    for (int i = 0; (o = fv_objective_at(i)); i++)
        if (fv__field_find(o->keys, key)) return o;
    return NULL;
}

/* ---- help ---- */

static void help_model(const fv_family *f, void (*line)(void *user, const char *text), void *user)
{
    line(user, "[model]");
    line(user, "model_type               family; then keys of its config.json, see --help-keys "
               "--family NAME");
    line(user, "architecture             head: one of the family's; by default the first that fits "
               "the objective");
    line(user, "from                     directory of a model to fine-tune, instead of model_type");
    line(user,
         "vectors                  file of word vectors that embeddings begin as (fovea vectors)");
    line(user,
         "vectors_into             parameter that gets them; the first that fits unless given");
    line(user,
         "encoder.from             directory whose parameters half of a new model begins with: a");
    line(user, "decoder.from             captioner's encoder that was trained as CLIP's");
    if (f) fv_fields_help(f->config, line, user);
}

/* Every objective with the keys it adds. */
static void help_objectives(void (*line)(void *user, const char *text), void *user)
{
    const fv_objective *o;
    for (int i = 0; (o = fv_objective_at(i)); i++) {
        char text[200];
        snprintf(text, sizeof text, "[data] with objective = %s: %s", o->name, o->help);
        line(user, "");
        line(user, text);
        if (o->keys) fv_fields_help(o->keys, line, user);
    }
}

bool fv_recipe_help(const char *type, void (*line)(void *user, const char *text), void *user)
{
    const fv_family *f = type ? fv_family_find(type) : NULL;
    if (type && !f) return false;
    help_model(f, line, user);
    for (const fv__section *s = fv__sections; s->name; s++) {
        char name[32];
        snprintf(name, sizeof name, "[%s]", s->name);
        line(user, "");
        line(user, name);
        if (s->table) fv_fields_help(s->table, line, user);
        const fv__own_keys *k;
        for (int i = 0; (k = fv__own_keys_at(i)); i++)
            if (!strcmp(k->section, s->name)) fv_fields_help(k->table, line, user);
        if (s->table == fv_data_fields) help_objectives(line, user);
    }
    return true;
}
