/* kind.c - which kind of attention a name stands for.
 *
 * All that src/see knows about the roles of attentions is here: two questions, answered from the
 * names that attentions have in published checkpoints.  Once a family's table says what each
 * attention is for, these two functions read that table and nothing else in this folder changes. */
#include "see/see.h"

static const char *const kind_names[] = {"encoder", "decoder", "cross"};

const char *fv_see_kind_name(fv_see_kind k)
{
    return (unsigned)k < FV_SEE_KINDS ? kind_names[k] : "?";
}

static bool names_cross(const char *name) { return !strcmp(fv_attention_kind(name), "cross"); }

fv_see_kind fv__see_kind(const char *name, bool causal)
{
    if (names_cross(name)) return FV_SEE_CROSS;
    if (strstr(name, "decoder")) return FV_SEE_DECODER;
    if (strstr(name, "encoder")) return FV_SEE_ENCODER;
    return causal ? FV_SEE_DECODER : FV_SEE_ENCODER;
}

bool fv_see_takes_pair(const fv_model *m)
{
    const fv_params *p = fv_model_params(m);
    for (int i = 0; i < fv_params_count(p); i++)
        if (names_cross(fv_params_at(p, i)->name)) return true;
    return false;
}
