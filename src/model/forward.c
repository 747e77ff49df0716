/* forward.c - a batch through a model: what every family's forward pass may rely on.  Inputs that
 * are needed are there, positions are given for each row, and virtual tokens of an adapter stand in
 * front of the others. */
#include "core/core.h"
#include "fovea/author/family.h"
#include "model/prompt.h"

/* position_ids (1,T) stand for all rows of input_ids (B,T), as in transformers. */
static void spread_positions(fv_ctx *c, fv_items *in)
{
    const fv_tensor *ids = fv_items_get(in, "input_ids");
    for (int i = 0; ids && i < in->n; i++) {
        fv_tensor *pos = in->at[i].value, *all;
        if (strcmp(in->at[i].name, "position_ids") || !pos || pos->shape.n != 2 ||
            fv_dim(pos, 0) != 1 || ids->shape.n != 2 || fv_dim(ids, 0) == 1)
            continue;
        if (!(all = fv_new(c, pos->dtype, FV_SHAPE(fv_dim(ids, 0), fv_dim(pos, 1))))) return;
        size_t row = fv__tensor_bytes(pos->dtype, fv_dim(pos, 1));
        for (int64_t b = 0; b < fv_dim(ids, 0); b++)
            c->dev->backend->move(fv_ctx_stream(c), (char *)all->data + (size_t)b * row, pos->data,
                                  row);
        in->at[i].value = all;
    }
}

void fv_model_forward(fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out)
{
    fv_items given = *in;
    const fv_family *f = fv_model_family(m);
    const char *type = f->type;
    fv_items_check(c, in, "inputs", type);
    for (const fv_input *i = f->inputs; i->name; i++)
        if (i->needed && !fv_items_get(in, i->name) && !fv__failed(c))
            fv_raise(c, FV_EARG, "%s: %s is missing", type, i->name);
    if (!fv__failed(c)) spread_positions(c, &given);
    if (!fv__failed(c)) fv__prompt_enter(c, fv__model_virtual(m), f, fv_model_job(m), &given);
    if (!fv__failed(c)) f->forward(c, fv_model_self(m), &given, out);
    fv__prompt_leave(c, out);
    fv_items_check(c, out, "outputs", type);
}
