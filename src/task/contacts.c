/* contacts.c - the task of predicting which residues of a protein touch, from attention alone.
 *
 * With a[m] the map of head m of all layers, without the rows and columns of the special tokens
 * around the sequence (Rao et al. 2021):
 *
 *     s = a[m] + a[m]';   s -= (row sums of s) (column sums of s) / (sum of s)       APC
 *     p = sigmoid(b + sum over m of w[m] s)
 *
 * The average product correction takes away what a residue pays to all others alike.  Maps are
 * taken one at a time as they pass the tap: all of them at once would be layers x heads x L x L. */
#include <math.h>
#include <stdlib.h>

#include "fovea/author/family.h"
#include "task_pipeline.h"

typedef struct contacts_options {
    int64_t top, apart;
    float threshold;
    bool matrix;
} contacts_options;

static const fv_field options[] = {
    FV_INT(contacts_options, top, 0, 0, 1 << 20,
           "contacts for each sequence, likeliest first; 0: as many as it has residues"),
    FV_INT(contacts_options, apart, 1, 6, 1 << 20,
           "residues from one to the other, at least: neighbours always touch"),
    FV_FLOAT(contacts_options, threshold, 0, 0, 1, "probability of a contact, at least"),
    FV_BOOL(contacts_options, matrix, false, "with --json: the probabilities of all pairs"),
    {0}};

/* What the task keeps, and one sequence while its maps pass. */
typedef struct contact_head {
    const fv_env *env;
    float *w, bias; /* (heads of all layers) */
    int64_t n;
    int64_t T, seen;    /* tokens of the sequence; maps that have passed */
    float *map;         /* (T,T) */
    double *sum, *rows; /* (L,L) with L = T - 2; (L) */
    size_t bytes[3];    /* of these three */
} contact_head;

/* ---- the head ---- */

/* Adds w times the corrected map. */
static void add_map(contact_head *h, double w)
{
    int64_t T = h->T, L = T - 2;
    double all = 0;
    for (int64_t i = 0; i < L; i++) {
        h->rows[i] = 0;
        for (int64_t j = 0; j < L; j++)
            h->rows[i] += (double)h->map[(i + 1) * T + j + 1] + (double)h->map[(j + 1) * T + i + 1];
        all += h->rows[i];
    }
    if (!(all > 0)) return; /* nothing was attended to but the special tokens */
    for (int64_t i = 0; i < L; i++)
        for (int64_t j = 0; j < L; j++) {
            double s = (double)h->map[(i + 1) * T + j + 1] + (double)h->map[(j + 1) * T + i + 1];
            h->sum[i * L + j] += w * (s - h->rows[i] * h->rows[j] / all);
        }
}

/* Heads come layer after layer; the regression has a weight for each, in that order. A map is added
 * and dropped: 20 layers of 20 heads over 500 residues would be 400 MB. */
static void tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    contact_head *h = user;
    (void)name;
    if (strcmp(site, "attention") != 0 || !what) return;
    fv_shape s = fv_attn_view_shape(what);
    if (s.d[2] != h->T || s.d[3] != h->T) return;
    for (int64_t i = 0; i < s.d[1] && h->seen < h->n; i++) {
        if (fv_attn_view_weights(c, what, 0, i, 0, h->T, h->map)) return;
        add_map(h, (double)h->w[h->seen++]);
    }
}

/* T tokens are L = T - 2 residues: the first and the last are special and have no contacts. */
static fv_status reserve(contact_head *h, int64_t T, fv_err *e)
{
    int64_t L = T - 2;
    void *block[3] = {h->map, h->sum, h->rows};
    size_t want[3] = {(size_t)(T * T) * sizeof *h->map, (size_t)(L * L) * sizeof *h->sum,
                      (size_t)L * sizeof *h->rows};
    bool fits = true;
    for (int i = 0; i < 3; i++) fits = fv__grow(h->env, &block[i], &h->bytes[i], want[i]) && fits;
    h->map = block[0];
    h->sum = block[1];
    h->rows = block[2];
    if (!fits)
        return fv_fail(e, FV_ENOMEM, "contacts: out of memory for %lld residues", (long long)L);
    memset(h->sum, 0, want[1]);
    h->T = T;
    h->seen = 0;
    return FV_OK;
}

/* Leaves the probabilities of all pairs in h->sum. */
static fv_status predict(fv_task *t, contact_head *h, const fv_seq *s, fv_err *e)
{
    if (s->n < 3) return fv_fail(e, FV_EARG, "a sequence without residues has no contacts");
    fv_items in = {0}, out = {0};
    fv_status st = reserve(h, s->n, e);
    if (st) return st;
    fv_ctx_reset(t->ctx, 0);
    fv_items_put(&in, "input_ids", fv_ints(t->ctx, s->ids, FV_SHAPE(1, s->n)));
    fv_ctx_set_tap(t->ctx, tap, h);
    fv_model_forward(t->ctx, t->model, &in, &out);
    fv_ctx_set_tap(t->ctx, NULL, NULL);
    if (fv_ctx_status(t->ctx))
        return fv_fail(e, fv_ctx_err(t->ctx)->code, "%s", fv_ctx_err(t->ctx)->text);
    if (h->seen != h->n)
        return fv_fail(e, FV_EFORMAT, "the contact head reads %lld attention maps, not %lld",
                       (long long)h->n, (long long)h->seen);
    int64_t L = s->n - 2;
    for (int64_t i = 0; i < L * L; i++) h->sum[i] = 1 / (1 + exp(-(h->sum[i] + (double)h->bias)));
    return FV_OK;
}

/* ---- the task ---- */

/* The head is a logistic regression that ESM trained on few proteins: its weights are parameters of
 * the model, read to the host, where the sum is made. */
static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__open_encoder(p, FV_JOB_EMBED, e);
    if (!st) st = fv__pipeline_self(p, sizeof(contact_head), e);
    if (st) return st;
    contact_head *h = p->self;
    h->env = &p->env;
    fv_params *params = fv_model_params(p->task->model);
    fv_tensor *w = fv_params_find(params, "contact_head.regression.weight"),
              *b = fv_params_find(params, "contact_head.regression.bias");
    if (!w || !b || fv_len(b) != 1)
        return fv_fail(e, FV_EARG, "%s: %s has no contact head; EsmModel has", p->opt.model,
                       fv_model_head(p->task->model));
    h->n = fv_len(w);
    h->w = fv__alloc(h->env, (size_t)h->n * sizeof *h->w);
    if (!h->w) return fv_fail(e, FV_ENOMEM, "contacts: out of memory");
    st = fv_params_get(params, w, h->w, h->n, e);
    return st ? st : fv_params_get(params, b, &h->bias, 1, e);
}

static void close_task(fv_pipeline *p)
{
    contact_head *h = p->self;
    if (!h) return;
    fv__free(h->env, h->w, (size_t)h->n * sizeof *h->w);
    fv__free(h->env, h->map, h->bytes[0]);
    fv__free(h->env, h->sum, h->bytes[1]);
    fv__free(h->env, h->rows, h->bytes[2]);
}

typedef struct pair {
    double p;
    int64_t i, j;
} pair;

/* Of equals the one that stands first in the sequence, so that the order is one. */
static int likeliest_first(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->i != y->i ? (x->i > y->i) - (x->i < y->i) : (x->j > y->j) - (x->j < y->j);
}

/* Pairs i < j that are wanted, likeliest first; *n of them. */
static pair *find_pairs(fv_task *t, const contact_head *h, const contacts_options *o, int64_t *n,
                        fv_err *e)
{
    int64_t L = h->T - 2;
    pair *all = fv__task_claim(t, (size_t)(L * L / 2 + 1) * sizeof *all, e);
    *n = 0;
    for (int64_t i = 0; all && i < L; i++)
        for (int64_t j = i + o->apart; j < L; j++)
            if (h->sum[i * L + j] >= (double)o->threshold)
                all[(*n)++] = (pair){h->sum[i * L + j], i, j};
    if (all) qsort(all, (size_t)*n, sizeof *all, likeliest_first);
    return all;
}

static void put_matrix(fv_buf *b, const contact_head *h)
{
    int64_t L = h->T - 2;
    fv__json_key(b, "probabilities");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < L; i++) {
        fv__json_begin(b, '[');
        for (int64_t j = 0; j < L; j++) fv__json_put_number(b, h->sum[i * L + j]);
        fv__json_end(b, ']');
    }
    fv__json_end(b, ']');
}

/* Residues count from 1, as biologists do. */
static void put_pair(fv_pipeline *p, const pair *x)
{
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        fv__buf_fmt(b, "%lld\t%lld\t%lld\t%.4f\n", (long long)(p->first + p->done),
                    (long long)x->i + 1, (long long)x->j + 1, x->p);
        return;
    }
    fv__json_begin(b, '{');
    fv__json_int_at(b, "i", x->i + 1);
    fv__json_int_at(b, "j", x->j + 1);
    fv__json_number_at(b, "probability", x->p);
    fv__json_end(b, '}');
}

/* One sequence at a time: the maps of a batch would not fit, and a padded map would have to be cut.
 * As many pairs as there are residues unless told, the field's "top L". */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    contact_head *h = p->self;
    const contacts_options *o = p->options;
    fv_status st = FV_OK;
    for (int64_t k = 0; k < n && !st; k++) {
        fv_seq *s;
        fv__task_begin(p->task);
        st = fv__task_encode_all(p->task, &s, &in[k], 1, e);
        if (!st) st = predict(p->task, h, s, e);
        int64_t found = 0, most = o->top ? o->top : h->T - 2;
        pair *pairs = st ? NULL : find_pairs(p->task, h, o, &found, e);
        if (!pairs) return st ? st : FV_ENOMEM;
        if (p->opt.json) {
            fv__json_begin(&p->out, '{');
            fv__json_int_at(&p->out, "residues", h->T - 2);
            if (o->matrix) put_matrix(&p->out, h);
            fv__json_key(&p->out, "contacts");
            fv__json_begin(&p->out, '[');
        }
        for (int64_t i = 0; i < found && i < most; i++) put_pair(p, &pairs[i]);
        if (p->opt.json) fv__buf_str(&p->out, "]}\n");
        st = fv__task_emit(p, e);
    }
    return st;
}

static const fv_task_example examples[] = {
    {"fovea contacts -m esm2_t6_8M_UR50D proteins.fasta", "sequence, residues, probability"},
    {"fovea contacts -m esm2_t6_8M_UR50D --text MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ --top 5",
     "the five likeliest of one sequence"},
    {"fovea contacts -m esm2_t6_8M_UR50D --json --matrix proteins.fasta", "all pairs, for scripts"},
    {0}};

const fv_task_kind fv__contacts_task = {
    .name = "contacts",
    .summary = "predict which residues of a protein touch",
    .about = "Reads sequences of amino acids, a line each or as FASTA, and prints for each the "
             "pairs of residues (counted from 1) that the model's contact head finds likeliest to "
             "touch: a logistic regression on the attention maps of all heads, made symmetric and "
             "corrected for what each residue has in common with all (APC).",
    .examples = examples,
    .options = options,
    .size = sizeof(contacts_options),
    .open = open_task,
    .run = run,
    .close = close_task};
