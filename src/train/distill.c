/* distill.c - learning from a teacher (Hinton et al. 2015), and from what passes inside it
 * (TinyBERT, Jiao et al. 2020).
 *
 *     loss = (1 - alpha) CE(scores, labels) + alpha T^2 KL(teacher's scores / T, scores / T)
 *            + hidden * mean over layers of the distance of hidden states
 *            + attention * mean over layers of the squared distance of attention maps
 *
 * Layer i of n is compared with the teacher's layer of the same depth, i N / n.  Hidden states of
 * one width are compared by their squared distance.  Of two widths TinyBERT learns a projection,
 * which would be parameters that no model's file has; here the cosines between the tokens of a text
 * are compared instead (relational distillation, Park et al. 2019), which need none.  Maps of
 * different numbers of heads are compared as their means over heads.
 *
 * The teacher runs in the same context; it has no gradients, so what it computes are constants.
 *
 * Without a teacher a model may teach itself (R-Drop, Liang et al. 2021): each row of a batch
 * passes twice, with dropout masks p and q of its own, and both are drawn together, with gradients:
 *
 *     loss = (CE_p + CE_q) / 2 + consistency / 4 * (KL(p||q) + KL(q||p))
 *
 * which is half the paper's loss with alpha = consistency: a learning rate means what it means
 * without, and an optimiser that divides by the gradient's size makes no difference of the half.
 *
 * The batch is doubled, its rows one behind the other, and passes once: two passes are twice as
 * many kernels of half the size, which a small model on a GPU waits for.  What is dropped for a
 * whole batch is the same in both halves: weights (dropconnect), kinds of words
 * (dropout_embedding). */
#include "train/distill.h"

#include "base/base.h"
#include "core/core.h"
#include "fovea/author/family.h"
#include "fovea/author/ops.h"
#include "fovea/author/train.h"
#include "model/part.h"
#include "ops/attention.h"
#include "train/options.h"

typedef struct options {
    char teacher[512];
    float alpha, temperature, hidden, attention, consistency;
} options;

static const fv_field fields[] = {
    FV_TEXT(options, teacher, "", "directory of the model that teaches; empty: none"),
    FV_FLOAT(options, alpha, 0, 0.5, 1, "share of the teacher's scores in the loss"),
    FV_FLOAT(options, temperature, 0.01, 2, 100, "of both sides' scores"),
    FV_FLOAT(options, hidden, 0, 0, 1e6, "weight of the hidden states"),
    FV_FLOAT(options, attention, 0, 0, 1e6, "weight of the attention maps"),
    FV_FLOAT(options, consistency, 0, 0, 1e3,
             "no teacher: weight of the divergence of two passes with dropout (R-Drop)"),
    {0},
};

const fv__own_keys fv__own_distill = {"distill", fields, sizeof(options)};

enum { MOST = 130 }; /* layers, and the embeddings before them */

typedef struct distill {
    const fv_env *env;
    options opt;
    fv_feed inner;
    fv_model *teacher; /* or NULL: the model itself, with another dropout mask */
    fv_head_job job;   /* of the teacher, or of the objective */
} distill;

/* What passes in a pass. */
typedef struct passing {
    fv_tensor *hidden[MOST], *map[MOST];
    int n_hidden, n_map;
    fv_tensor *key_bias; /* (B,1,1,T), or NULL */
    bool want_hidden, want_map;
} passing;

/* ---- batches ---- */

static int64_t count(const void *self, int64_t epoch)
{
    const fv_feed *f = &((const distill *)self)->inner;
    return f->count(f->self, epoch);
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const fv_feed *f = &((const distill *)self)->inner;
    f->size(f->self, i, source, target);
}

/* scored_labels (..): labels of the scores they stand beside, which of a causal model are those of
 * the next token; scored (..): 1 where they count; key_bias (B,T): 0 for tokens, -1e9 for
 * padding. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const distill *s = self;
    fv_status st = s->inner.make(s->inner.self, out, rows, n, how, e);
    const fv_batch_part *labels = st ? NULL : fv_batch_get(out, "labels");
    if (st) return st;
    if (!labels || labels->dtype != FV_I32)
        return fv_fail(e, FV_EMISSING, "[distill]: the objective has no labels of classes");
    const fv_batch_part *ids = fv_batch_get(out, "input_ids");
    fv_shape shape = labels->shape;
    int64_t T = shape.n > 1 ? shape.d[1] : 1; /* of labels, which may go one beyond the tokens */
    if (s->job == FV_HEAD_CAUSAL_LM && ids && ids->shape.n == 2) shape = ids->shape;
    int64_t all = fv_shape_len(shape), wide = shape.n > 1 ? shape.d[1] : 1;
    int32_t *to = fv_batch_put(out, "scored_labels", FV_I32, shape);
    float *scored = fv_batch_put(out, "scored", FV_F32, shape);
    if (!scored) return fv_fail(e, out->err.code, "%s", out->err.text);
    const int32_t *from = fv_batch_get(out, "labels")->data;
    for (int64_t i = 0; i < all; i++) {
        int64_t next = i % wide + 1, row = i / wide;
        to[i] = from[i];
        if (s->job == FV_HEAD_CAUSAL_LM) to[i] = next < T ? from[row * T + next] : -100;
        scored[i] = to[i] != -100;
    }
    const fv_batch_part *mask = fv_batch_get(out, "attention_mask");
    if (s->opt.attention == 0 || !mask || mask->dtype != FV_U8 || mask->shape.n != 2) return FV_OK;
    shape = mask->shape;
    float *bias = fv_batch_put(out, "key_bias", FV_F32, shape);
    if (!bias) return fv_fail(e, out->err.code, "%s", out->err.text);
    const uint8_t *seen = fv_batch_get(out, "attention_mask")->data;
    for (int64_t i = 0; i < fv_shape_len(shape); i++) bias[i] = seen[i] ? 0 : -1e9f;
    return FV_OK;
}

static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const fv_feed *f = &((const distill *)self)->inner;
    return f->count_correct(f->self, c, b, out, hits, of);
}

/* ---- inside a pass ---- */

/* (B,T,H W) -> (B,H,T,W) */
static fv_tensor *heads_of(fv_ctx *c, fv_tensor *x, int64_t H)
{
    x = fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), H, fv_cols(x) / H));
    return fv_permute(c, x, (const int[]){0, 2, 1, 3});
}

/* softmax(scale q k' + bias), (B,H,T,T), with gradient: the operator itself keeps none of it. */
static fv_tensor *map_of(fv_ctx *c, const fv_attn_view *v, fv_tensor *key_bias)
{
    fv__attn_inputs a = fv__attn_view_inputs(c, v);
    if (a.n_head != a.n_kv_head || fv_attn_view_role(v) != FV_ATTN_SELF)
        return fv_raise(c, FV_EMISSING,
                        "[distill] attention: maps of encoders with keys for each head only");
    fv_tensor *y = fv_matmul(c, heads_of(c, a.q, a.n_head), heads_of(c, a.k, a.n_head),
                             (fv_mm){.tb = true, .alpha = a.scale});
    return fv_softmax(c, key_bias ? fv_add(c, y, key_bias) : y);
}

/* Hidden states and maps of one of the two models, as they pass. */
static void tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    passing *p = user;
    (void)name;
    if (!what) return;
    if (p->want_hidden && !strcmp(site, "hidden") && p->n_hidden < MOST)
        p->hidden[p->n_hidden++] = (fv_tensor *)(uintptr_t)what;
    if (p->want_map && !strcmp(site, "attention") && p->n_map < MOST) {
        fv_tap_fn *fn = c->tap;
        c->tap = NULL;
        p->map[p->n_map++] = map_of(c, what, p->key_bias);
        c->tap = fn;
    }
}

/* The scores of one of the two, and what passed. */
static fv_tensor *look(const distill *s, fv_ctx *c, const fv_model *m, const fv_items *in,
                       fv_items *out, passing *p)
{
    static const char *const apart[] = {"labels", "scored_labels", "scored", "key_bias", NULL};
    fv_items plain = *in;
    fv_tap_fn *fn = c->tap;
    void *user = c->tap_user;
    fv_tensor *bias = fv_items_get(in, "key_bias");
    plain.n = 0;
    for (int i = 0; i < in->n; i++) {
        int k = 0;
        while (apart[k] && strcmp(apart[k], in->at[i].name)) k++;
        if (!apart[k]) plain.at[plain.n++] = in->at[i];
    }
    *p = (passing){.want_hidden = s->opt.hidden > 0, .want_map = s->opt.attention > 0};
    if (bias)
        p->key_bias = fv_reshape(c, fv_cast(c, bias, c->dtype),
                                 FV_SHAPE(fv_dim(bias, 0), 1, 1, fv_dim(bias, 1)));
    if (p->want_hidden || p->want_map) fv_ctx_set_tap(c, tap, p);
    if (s->inner.pass)
        s->inner.pass(s->inner.self, c, m, &plain, out);
    else
        fv_model_forward(c, m, &plain, out);
    fv_ctx_set_tap(c, fn, user);
    return fv_items_get(out, "logits");
}

/* ---- distances ---- */

/* Cosines between the tokens of each text, (B,T,T). */
static fv_tensor *cosines(fv_ctx *c, fv_tensor *x)
{
    fv_tensor *length = fv_sqrt(c, fv_affine(c, fv_sum(c, fv_square(c, x), 2), 1, 1e-12f));
    fv_tensor *unit = fv_div(c, x, fv_reshape(c, length, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), 1)));
    return fv_matmul(c, unit, unit, (fv_mm){.tb = true});
}

/* Of one width directly, of two by the cosines between tokens. */
static fv_tensor *hidden_distance(fv_ctx *c, fv_tensor *x, fv_tensor *t)
{
    if (!x || !t || fv_cols(x) == fv_cols(t)) return fv_mse(c, x, t);
    return fv_mse(c, cosines(c, x), cosines(c, t));
}

/* (B,H,T,T) -> (B,T,T) */
static fv_tensor *mean_head(fv_ctx *c, fv_tensor *x)
{
    return fv_scale(c, fv_sum(c, x, 1), 1 / (float)fv_dim(x, 1));
}

/* Heads one by one where both have as many, else their means. */
static fv_tensor *map_distance(fv_ctx *c, fv_tensor *x, fv_tensor *t)
{
    if (!x || !t) return NULL;
    bool same = fv_dim(x, 1) == fv_dim(t, 1);
    /* a map has T numbers a row that sum to 1: the sum over a row does not shrink with T */
    float T = (float)fv_cols(x);
    return fv_scale(c, fv_mse(c, same ? x : mean_head(c, x), same ? t : mean_head(c, t)), T);
}

typedef fv_tensor *distance(fv_ctx *c, fv_tensor *x, fv_tensor *t);

/* The mean over layers of the distance to the teacher's of the same depth.  embeddings: the first
 * is before all layers, and goes with the teacher's. */
static fv_tensor *over_layers(fv_ctx *c, fv_tensor *const *x, int n, fv_tensor *const *t, int N,
                              bool embeddings, distance *of)
{
    fv_tensor *sum = NULL;
    if (!n || !N)
        return fv_raise(c, FV_EMISSING, "[distill]: one of the models shows nothing of its layers");
    for (int i = 0; i < n; i++) {
        int at = embeddings ? i * (N - 1) / (n > 1 ? n - 1 : 1) : (i + 1) * N / n - 1;
        fv_tensor *d = of(c, x[i], t[at]);
        sum = i ? fv_add(c, sum, d) : d;
    }
    return fv_scale(c, sum, 1 / (float)n);
}

/* T^2 times the sum over the rows that count of the cross entropy between both, which differs from
 * KL by a constant. */
static fv_tensor *soft_loss(const distill *s, fv_ctx *c, fv_tensor *x, fv_tensor *t,
                            const fv_items *in)
{
    float T = s->opt.temperature;
    if (!x || !t) return NULL;
    if (!fv_shape_same(x->shape, t->shape))
        return fv_raise(c, FV_ESHAPE,
                        "[distill] teacher: its scores are %s, and the student's %s: another "
                        "vocabulary, or other labels",
                        fv_desc(t).s, fv_desc(x).s);
    fv_tensor *p = fv_softmax(c, fv_scale(c, t, 1 / T)),
              *q = fv_log_softmax(c, fv_scale(c, x, 1 / T)),
              *rows = fv_sum(c, fv_mul(c, p, q), x->shape.n - 1);
    rows = fv_mul(c, rows, fv_cast(c, fv_items_get(in, "scored"), x->dtype));
    return fv_scale(c, fv_sum_all(c, rows), -T * T);
}

/* R-Drop: all arrays of a batch have its rows first. */
static fv_items twice(fv_ctx *c, const fv_items *in)
{
    fv_items both = *in;
    for (int i = 0; i < in->n; i++)
        both.at[i].value = fv_concat(c, (fv_tensor *[]){in->at[i].value, in->at[i].value}, 2, 0);
    return both;
}

/* Rows of the batch are counted once (in->n_labels, per_label), so that the sum of both losses is
 * twice their mean.  The divergence is computed in f32, whatever the dtype of the scores. */
static void forward_twice(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                          fv_items *out)
{
    const distill *s = self;
    passing none;
    fv_items both = twice(c, in);
    fv_tensor *x = look(s, c, m, &both, out, &none), *scored = fv_items_get(in, "scored");
    if (!x || !scored) return;
    fv_shape halves = {.n = scored->shape.n + 2, .d = {2}};
    for (int i = 0; i < scored->shape.n; i++) halves.d[i + 1] = scored->shape.d[i];
    halves.d[halves.n - 1] = fv_cols(x);
    fv_tensor *loss = fv_loss_tokens(c, x, fv_items_get(&both, "scored_labels"), in);
    fv_tensor *apart = fv_symmetric_kl(c, fv_reshape(c, x, halves));
    if (apart) apart = fv_sum_all(c, fv_mul(c, apart, fv_cast(c, scored, apart->dtype)));
    fv_items_put(out, "loss",
                 fv_add(c, fv_scale(c, loss, 0.5f),
                        fv_scale(c, fv__per_label(c, apart, in), s->opt.consistency / 4)));
}

/* The teacher runs second, in the same context and without dropout. */
static void forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                    fv_items *out)
{
    const distill *s = self;
    const options *o = &s->opt;
    passing *own = fv__step_memory(c, sizeof *own), *other = fv__step_memory(c, sizeof *other);
    if (!own || !other) return;
    fv_tensor *x = look(s, c, m, in, out, own);
    fv_tensor *loss = fv_loss_tokens(c, x, fv_items_get(in, "scored_labels"), in);
    bool record = c->record, train = c->train;
    if (!record) { /* evaluated as any other */
        fv_items_put(out, "loss", loss);
        return;
    }
    fv_items from_teacher = {0};
    c->train = false;
    /* a pass that is not recorded uses memory of its layers again, and what passed would be lost */
    c->record = o->hidden > 0 || o->attention > 0;
    fv_tensor *t = look(s, c, s->teacher, in, &from_teacher, other);
    c->record = record;
    c->train = train;
    fv_tensor *soft = fv__per_label(c, soft_loss(s, c, x, t, in), in);
    loss = fv_add(c, fv_scale(c, loss, 1 - o->alpha), fv_scale(c, soft, o->alpha));
    if (o->hidden > 0) {
        fv_tensor *d = over_layers(c, own->hidden, own->n_hidden, other->hidden, other->n_hidden,
                                   true, hidden_distance);
        loss = fv_add(c, loss, fv_scale(c, d, o->hidden));
    }
    if (o->attention > 0) {
        fv_tensor *d = over_layers(c, own->map, own->n_map, other->map, other->n_map, false,
                                   map_distance);
        loss = fv_add(c, loss, fv_scale(c, d, o->attention));
    }
    fv_items_put(out, "loss", loss);
}

/* ---- what the objective carries ---- */

static fv_status prepare(void *self, const fv_model *m, fv_device *d, fv_err *e)
{
    const fv_feed *f = &((const distill *)self)->inner;
    return f->prepare(f->self, m, d, e);
}

static fv_status save_state(const void *self, const fv_env *env, const char *path, fv_err *e)
{
    const fv_feed *f = &((const distill *)self)->inner;
    return f->save_state(f->self, env, path, e);
}

static fv_status load_state(void *self, const fv_env *env, const char *path, fv_err *e)
{
    const fv_feed *f = &((const distill *)self)->inner;
    return f->load_state(f->self, env, path, e);
}

/* ---- opening and closing ---- */

static void close_feed(void *self)
{
    distill *s = self;
    fv_model_free(s->teacher);
    fv_feed_close(&s->inner);
    fv__free(s->env, s, sizeof *s);
}

/* Whether a model for this job gives scores of classes, one row for each label. */
static bool gives_scores(fv_head_job job)
{
    return job == FV_HEAD_CLASSIFY || job == FV_HEAD_TAG || job == FV_HEAD_CAUSAL_LM ||
           job == FV_HEAD_MASKED_LM || job == FV_HEAD_SEQ2SEQ;
}

fv_status fv__distill_wrap(fv_feed *f, const fv_train_opt *train, fv_head_job job, fv_device *d,
                           fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    options o;
    fv__own_get(&o, &fv__own_distill, train->own);
    bool alone = o.consistency > 0;
    if (!*o.teacher && !alone) return FV_OK;
    if (*o.teacher && alone)
        return fv_fail(e, FV_EARG, "a model has a teacher or consistency with itself, not both");
    if (f->forward)
        return fv_fail(e, FV_EMISSING,
                       "[distill]: this objective has a loss of its own, which has no teacher");
    if (f->pass && !alone)
        return fv_fail(e, FV_EMISSING, "[distill]: a teacher has no memory of the batches before");
    if (alone && !gives_scores(job))
        return fv_fail(e, FV_EMISSING, "consistency: the objective has no scores of classes");
    distill *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "distill: out of memory");
    *s = (distill){.env = env, .opt = o, .inner = *f, .job = job};
    *f = (fv_feed){.self = s,
                   .metric = s->inner.metric,
                   .ordered = s->inner.ordered,
                   .count = count,
                   .size = size,
                   .make = make,
                   .count_correct = s->inner.count_correct ? count_correct : NULL,
                   .forward = alone ? forward_twice : forward,
                   .prepare = s->inner.prepare ? prepare : NULL,
                   .save_state = s->inner.save_state ? save_state : NULL,
                   .load_state = s->inner.load_state ? load_state : NULL,
                   .close = close_feed};
    if (alone) return FV_OK;
    fv_model_opt how = {.dtype = fv_train_dtype(train)};
    fv_status st = fv_model_open(&s->teacher, d, o.teacher, how, e);
    if (!st) s->job = fv_model_job(s->teacher);
    if (!st && (!gives_scores(s->job) || s->job == FV_HEAD_SEQ2SEQ))
        st = fv_fail(e, FV_EMISSING, "%s: %s gives no scores that a student could learn from",
                     o.teacher, fv_model_head(s->teacher));
    return st;
}
