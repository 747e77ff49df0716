/* registry.c - families and heads by name.
 *
 * The list of families is made from src/models by the build: a file x.c defines `const fv_family
 * fv__family_x`, and nothing else has to know about it. */
#include "model/registry.h"

#include <string.h>

#include "fovea/store.h"

#define X(file) extern const fv_family fv__family_##file;
#include "model_files.h"
#undef X

static const fv_family *const families[] = {
#define X(file) &fv__family_##file,
#include "model_files.h"
#undef X
};
#define N_FAMILIES ((int)(sizeof families / sizeof *families))

const fv_family *fv_family_at(int i) { return i >= 0 && i < N_FAMILIES ? families[i] : NULL; }

bool fv__family_serves(const fv_family *f, const char *type)
{
    bool found = !strcmp(f->type, type);
    for (const char *const *also = f->also; !found && also && *also; also++)
        found = !strcmp(*also, type);
    return found;
}

const fv_family *fv_family_find(const char *type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (fv__family_serves(families[i], type)) return families[i];
    return NULL;
}

const fv_family_head *fv_family_head_find(const fv_family *f, const char *name)
{
    for (const fv_family_head *h = f->heads; h->name; h++)
        if (!strcmp(h->name, name)) return h;
    return NULL;
}

const char *fv_family_base(const fv_family *f, const char *name)
{
    const fv_family_head *h = fv_family_head_find(f, name);
    if (h) return h->base ? h->base : h->name;
    for (h = f->heads; h->name; h++)
        if (h->job == FV_HEAD_BASE) return h->name;
    return NULL;
}

bool fv_family_takes(const fv_family *f, const char *name)
{
    for (const fv_input *i = f->inputs; i->name; i++)
        if (!strcmp(i->name, name)) return true;
    return false;
}

/* Files from before 2020 have no model_type: what they were made by is in architectures, and where
 * that is missing too, the keys are those of BERT or of GPT-2, which were all there was. */
const char *fv_config_type(const fv_json *j)
{
    const char *type = fv_json_text(j, "model_type"), *made_by = fv_json_text(j, "architectures.0");
    if (type) return type;
    for (int i = 0; made_by && i < N_FAMILIES; i++)
        if (fv_family_head_find(families[i], made_by)) return families[i]->type;
    if (made_by) return NULL;
    if (fv_json_has(j, "hidden_size") && fv_json_has(j, "type_vocab_size")) return "bert";
    return fv_json_has(j, "n_embd") && fv_json_has(j, "n_ctx") ? "gpt2" : NULL;
}
