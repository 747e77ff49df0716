/* adaptive.c - adaptive embeddings and the adaptive softmax. */
#include "model/adaptive.h"

#include <stdio.h>

#include "core/core.h"
#include "nn/part.h"
#include "ops/adapted.h"

/* Cutoffs rise, and the rarest cluster keeps a width of at least one. */
fv_status fv__adaptive_check(const fv__adaptive_opt *o, fv_err *e)
{
    int before = 0;
    int64_t width = o->d_embed;
    for (int i = 0; i < o->cutoffs.n; i++) {
        if (o->cutoffs.at[i] <= before || o->cutoffs.at[i] >= o->vocab)
            return fv_fail(e, FV_EFORMAT,
                           "cutoffs: %d, expected numbers that rise and are below vocab_size, %lld",
                           o->cutoffs.at[i], (long long)o->vocab);
        before = o->cutoffs.at[i];
        width /= o->div_val;
    }
    if (width < 1)
        return fv_fail(e, FV_EFORMAT,
                       "d_embed %lld divided by div_val %d for each of %d cutoffs leaves nothing",
                       (long long)o->d_embed, o->div_val, o->cutoffs.n);
    return FV_OK;
}

/* ---- parameters ---- */

static char *name_of(fv_params *p, const char *format, int i)
{
    char *s = fv_params_scratch(p, 64);
    if (s) snprintf(s, 64, format, i);
    return s;
}

/* A file has tied weights under both names, or under the second. */
static void tie(fv__adaptive *a, fv_params *p, int *n, const char *name, const char *same_as, int i)
{
    char *x = name_of(p, name, i), *y = name_of(p, same_as, i);
    if (x && y && a->ties) a->ties[(*n)++] = (fv_tie){x, y};
}

/* Rarer words have narrower rows (d_embed / div_val^i) and a projection to the model's width. */
static void tables_init(fv_params *p, fv__adaptive *a, const char *below)
{
    const fv__adaptive_opt *o = &a->opt;
    int64_t width = o->d_embed;
    for (int i = 0; i < a->n_tables; i++, width /= o->div_val) {
        fv__cluster *t = &a->at[i];
        fv_emb table;
        fv_emb_init(p, &table, a->n_tables == 1 ? o->vocab : t->to - t->from, width, o->std,
                    "%sword_emb.emb_layers.%d", below, i);
        t->table = table.table;
        if (o->div_val > 1 || o->d_embed != o->width)
            t->proj = fv_param(p, fv__weight(o->proj_std), FV_SHAPE(o->width, width),
                               "%sword_emb.emb_projs.%d", below, i);
    }
}

/* Tied: the output weight is the input table, and the projection too where they are shared. */
static void scores_init(fv_params *p, fv__adaptive *a, int i, int64_t width, int *ties)
{
    const fv__adaptive_opt *o = &a->opt;
    fv__cluster *t = &a->at[i];
    int64_t rows = fv_dim(t->table, 0);
    t->out = t->table;
    if (o->tied)
        tie(a, p, ties, "crit.out_layers.%d.weight", "transformer.word_emb.emb_layers.%d.weight",
            i);
    else
        t->out = fv_param(p, fv__weight(o->std), FV_SHAPE(rows, width), "crit.out_layers.%d.weight",
                          i);
    t->out_bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(rows),
                           "crit.out_layers.%d.bias", i);
    t->out_proj = t->proj;
    if (t->proj && i && o->share)
        tie(a, p, ties, "crit.out_projs.%d", "transformer.word_emb.emb_projs.%d", i);
    else if (t->proj)
        t->out_proj = fv_param(p, fv__weight(o->proj_std), FV_SHAPE(o->width, width),
                               "crit.out_projs.%d", i);
}

void fv__adaptive_init(fv_params *p, fv__adaptive *a, fv__adaptive_opt opt, const char *below,
                       bool scored)
{
    *a = (fv__adaptive){.opt = opt, .n = opt.cutoffs.n + 1};
    a->n_tables = opt.div_val > 1 ? a->n : 1;
    for (int i = 0; i < a->n; i++) {
        a->at[i].from = i ? opt.cutoffs.at[i - 1] : 0;
        a->at[i].to = i < opt.cutoffs.n ? opt.cutoffs.at[i] : opt.vocab;
    }
    tables_init(p, a, below);
    if (!scored) return;
    int64_t width = opt.d_embed;
    int ties = 0;
    a->ties = fv_params_scratch(p, (2 * FV__MAX_CLUSTERS + 1) * sizeof *a->ties);
    if (a->n > 1) {
        a->weight = fv_param(p, fv__weight(opt.std), FV_SHAPE(a->n - 1, opt.d_embed),
                             "crit.cluster_weight");
        a->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(a->n - 1),
                           "crit.cluster_bias");
    }
    for (int i = 0; i < a->n_tables; i++, width /= opt.div_val) scores_init(p, a, i, width, &ties);
}

/* A weight of several clusters is cut, and that of the first gets rows behind it: these stay as
 * they are. */
void fv__adaptive_pack(fv_params *p, fv__adaptive *a, fv_dtype dtype)
{
    for (int i = a->n > 1; i < a->n_tables; i++) a->at[i].out = fv__packed(p, a->at[i].out, dtype);
}

/* ---- forward ---- */

/* Where clusters have tables of their own all tokens' vectors are made first, and looked up then:
 * one gather instead of one a cluster, each with ids that begin at its cluster. */
fv_tensor *fv__adaptive_embed(fv_ctx *c, const fv__adaptive *a, fv_tensor *ids)
{
    fv_tensor *rows[FV__MAX_CLUSTERS];
    if (a->n_tables == 1) {
        const fv__cluster *t = &a->at[0];
        fv_tensor *x = fv__table_rows(c, t->table, ids, -1, 0, 0);
        return t->proj ? fv_linear(c, x, t->proj, NULL, FV_ACT_NONE) : x;
    }
    for (int i = 0; i < a->n_tables; i++)
        rows[i] = fv_linear(c, fv_cast(c, a->at[i].table, c->dtype), a->at[i].proj, NULL,
                            FV_ACT_NONE);
    return fv_gather(c, fv_concat(c, rows, a->n_tables, 0), ids, -1);
}

/* Those of cluster i, where one tensor has the rows of all. */
static fv_tensor *rows_of(fv_ctx *c, const fv__adaptive *a, fv_tensor *all, int i)
{
    if (a->n_tables > 1 || a->n == 1) return all;
    return fv_slice(c, all, 0, a->at[i].from, a->at[i].to);
}

static fv_tensor *with(fv_ctx *c, fv_tensor *x, fv_tensor *more)
{
    fv_tensor *both[] = {fv_cast(c, x, c->dtype), fv_cast(c, more, c->dtype)};
    return fv_concat(c, both, 2, 0);
}

/* Log-probabilities of all words: log P(cluster) + log P(word | cluster), the first cluster's words
 * beside the cluster tokens. */
fv_tensor *fv__adaptive_scores(fv_ctx *c, const fv__adaptive *a, fv_tensor *x)
{
    fv_tensor *all[FV__MAX_CLUSTERS], *head = NULL;
    int64_t first = a->at[0].to;
    for (int i = 0; i < a->n; i++) {
        const fv__cluster *t = &a->at[a->n_tables > 1 ? i : 0];
        fv_tensor *w = rows_of(c, a, t->out, i), *b = rows_of(c, a, t->out_bias, i), *h = x;
        if (t->out_proj) h = fv_linear_in_out(c, x, t->out_proj, NULL, FV_ACT_NONE);
        if (a->n == 1) return fv_linear(c, h, w, b, FV_ACT_NONE);
        if (i == 0) w = with(c, w, a->weight), b = with(c, b, a->bias);
        if (w && !w->packed) w = fv_cast(c, w, c->dtype); /* a mapped table may be bf16 */
        all[i] = fv_log_softmax(c, fv_linear(c, h, w, b, FV_ACT_NONE));
        if (i == 0) {
            head = all[0];
            all[0] = fv_slice(c, head, -1, 0, first);
        } else {
            all[i] = fv_add(c, all[i], fv_slice(c, head, -1, first + i - 1, first + i));
        }
    }
    return fv_concat(c, all, a->n, -1);
}
