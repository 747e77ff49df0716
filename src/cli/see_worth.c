/* see_worth.c - what each head is worth to a text, as text and as JSON.
 *
 * The model runs once as it is and once for each head, whose output is replaced by zeros: the exact
 * question, at the price of as many forward passes as there are heads.  Gradients of the loss with
 * respect to a gate on each head would need one pass, and answer for small changes only. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "see.h"

/* Heads of a kind in all its layers, 0 where the kind is not wanted. */
static int64_t heads_of(const see_worth *w, const fv_see *s, int kind, int64_t *heads)
{
    fv_see_shape shape = fv_see_shape_of(s, (fv_see_kind)kind);
    *heads = shape.heads;
    return w->kind < 0 || w->kind == kind ? shape.layers * shape.heads : 0;
}

fv_status see_ablate(see_worth *w, fv_device *d, fv_model *m, const fv_see *s, fv_see_in in,
                     fv_err *e)
{
    int64_t n = 0, heads;
    for (int k = 0; k < FV_SEE_KINDS; k++) n += heads_of(w, s, k, &heads);
    double *to = w->change = malloc((size_t)(n + 1) * sizeof *to);
    if (!to) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_see_ablate(d, m, in, (fv_see_pick){.layer = FV_SEE_ALL}, &w->loss, e);
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; !st && i < all; i++, to++) {
            fv_see_pick head = {(fv_see_kind)k, i / heads, i % heads, false};
            st = fv_see_ablate(d, m, in, head, to, e);
            *to -= w->loss;
        }
    }
    return st;
}

static void print_json(const see_worth *w, const fv_see *s)
{
    cli_json j = {0};
    const double *from = w->change;
    int64_t heads;
    cli_json_put(&j, "{s:f, s:[", "loss", w->loss, "heads");
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; i < all; i++)
            cli_json_put(&j, "{s:s, s:I, s:I, s:f}", "kind", fv_see_kind_name((fv_see_kind)k),
                         "layer", i / heads, "head", i % heads, "change", *from++);
    }
    cli_json_put(&j, "]}");
    cli_json_end();
}

/* A row for each layer, a column for each head. */
void see_print_worth(const see_worth *w, const fv_see *s, bool json)
{
    const double *from = w->change;
    int64_t heads;
    if (json) {
        print_json(w, s);
        return;
    }
    printf("Loss of a token: %.4f.  Change when a head adds nothing:\n", w->loss);
    for (int k = 0; k < FV_SEE_KINDS; k++) {
        int64_t all = heads_of(w, s, k, &heads);
        for (int64_t i = 0; i < all; i++) {
            if (i % heads == 0)
                printf("  %-8s layer %-3lld", fv_see_kind_name((fv_see_kind)k),
                       (long long)(i / heads));
            printf(i % heads == heads - 1 ? " %+8.4f\n" : " %+8.4f", *from++);
        }
    }
}
