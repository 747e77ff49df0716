/* next_item.c - the objective of recommendation: the item that a user turns to next.
 *
 * Leave-one-out: of each user the last item is for the test, the one before it for validation, all
 * before these for training, where every position predicts the item behind it.  Three losses:
 *
 *     softmax   -log softmax over all items of the right one
 *     sampled   the same over the right one and K others, drawn evenly
 *     bce       -log s(right) - sum_k log(1 - s(other_k)), s the sigmoid (the SASRec paper, K = 1)
 *
 * With mask > 0 items of the history are hidden instead, and found from both sides (BERT4Rec, Sun
 * et al. 2019): every one with that probability, and one at least; in a tenth of the rows the last
 * one alone, which is what is asked in the end.  Where it is evaluated the mask stands behind the
 * history. Its id is the number of items.
 *
 * Items that are drawn are none of the user's training part; what is held out must not be known,
 * and so may be drawn.  With replace > 0 that share of the items of a training history are others,
 * drawn evenly (stochastic shared embeddings, Wu et al. 2019): no pair of items is relied on alone.
 *
 * The metric is NDCG@10 with full ranking: the rank of the right item among all that the user has
 * not had before; with rank_among, among so many that are drawn, as the first papers have it. */
#include <math.h>

#include "base/base.h"
#include "data/dice.h"
#include "data/labels.h"
#include "fovea/author/events.h"
#include "fovea/author/objective.h"
#include "model/series.h"

enum { SOFTMAX, SAMPLED, BCE };
static const char *const losses[] = {"softmax", "sampled", "bce", NULL};
enum { VALID, TEST };
static const char *const parts[] = {"valid", "test", NULL};
/* DICE_ITEMS: a Philox stream of its own beside those of data/dice.h */
enum { DICE_ITEMS = 11, DICE_MASK = 12, DICE_REPLACED = 15, DICE_RANKED = 16 };
enum { TRIES = 100, BEST = 10 };
#define LAST_ALONE 0.1 /* of rows with masks: only the last item is hidden */

typedef struct options {
    int layout, loss, evaluate;
    /* longest: items that the model reads, its max_position_embeddings */
    int64_t longest, negatives;
    int64_t rank_among; /* 0: all */
    float mask;         /* 0: each position predicts the item behind it */
    float replace;      /* share of what is read in training */
} options;

typedef struct histories {
    const fv_env *env;
    options opt;
    fv_events *events;
    /* indices of users in events, since users with too few items are left out */
    int32_t *user; /* those with enough items */
    size_t user_bytes;
    /* users kept; size of the catalogue, which is the model's vocabulary */
    int64_t n, items;
    bool evaluation;
} histories;

/* What is read of a user, and, where it is evaluated, the item to be found: *n items up to it. */
static const int32_t *history(const histories *h, int64_t row, int64_t *n)
{
    const int32_t *all = fv_events_items(h->events, h->user[row], n);
    *n -= h->evaluation && h->opt.evaluate == TEST ? 0 : 1; /* the test's */
    *n -= h->evaluation ? 0 : 1;                            /* and the validation's */
    return all;
}

/* Whether the model scores the right item and some that are drawn, in place of all. */
static bool scores_drawn(const histories *h)
{
    return h->evaluation ? h->opt.rank_among > 0 : h->opt.loss != SOFTMAX;
}

/* ---- batches ---- */

/* Linear: a history has tens of items, and a set would have to be built for each row. */
static bool has(const int32_t *x, int64_t n, int32_t item)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] == item) return true;
    return false;
}

/* An item that is not among those of the user; after many tries any. */
static int32_t draw(const histories *h, fv__dice *d, const int32_t *had, int64_t n)
{
    int32_t item = 0;
    for (int i = 0; i < TRIES; i++) {
        item = fv__dice_below(d, (int)h->items);
        if (!has(had, n, item)) break;
    }
    return item;
}

/* How many items are drawn beside a right one. */
static int64_t drawn(const histories *h)
{
    return h->evaluation ? h->opt.rank_among : h->opt.negatives;
}

/* candidates (n,T,1+K): the right item, then others; counted (n,T): 1 where there is one.  T is 1
 * where it is evaluated. */
static fv_status put_candidates(const histories *h, fv_batch *out, const int32_t *rows, int64_t n,
                                int64_t T, fv_data_rng how, fv_err *e)
{
    int64_t K = drawn(h) + 1;
    int32_t *to = fv_batch_put(out, "candidates", FV_I32, FV_SHAPE(n, T, K));
    float *counted = fv_batch_put(out, "counted", FV_F32, FV_SHAPE(n, T));
    if (!counted) return fv_fail(e, out->err.code, "%s", out->err.text);
    /* looked up here: the batch may move its buffers when a part is added */
    const int32_t *label = fv__batch_ints(out, "labels");
    to = (int32_t *)(uintptr_t)fv__batch_ints(out, "candidates");
    for (int64_t i = 0; i < n; i++) {
        int64_t had;
        const int32_t *items = history(h, rows[i], &had);
        fv__dice d = fv__dice_of(how, h->evaluation ? DICE_RANKED : DICE_ITEMS, rows[i]);
        for (int64_t t = 0; t < T; t++) {
            bool right = label[i * T + t] >= 0;
            int32_t *at = to + (i * T + t) * K;
            counted[i * T + t] = right;
            at[0] = right ? label[i * T + t] : 0;
            for (int64_t k = 1; k < K; k++) at[k] = right ? draw(h, &d, items, had) : 0;
        }
    }
    return FV_OK;
}

/* Other items in place of some; labels stay what they are. */
static void replace(const histories *h, int32_t *ids, int64_t n, fv__dice *d)
{
    for (int64_t t = 0; t < n; t++) {
        bool other = fv__dice_unit(d) < (double)h->opt.replace;
        if (other) ids[t] = fv__dice_below(d, (int)h->items);
    }
}

/* The newest `read` items of a training history, some of them hidden. */
static void hide(const histories *h, int32_t *ids, int32_t *label, const int32_t *x, int64_t read,
                 int64_t T, fv__dice *d)
{
    bool last_alone = fv__dice_unit(d) < LAST_ALONE;
    int64_t forced = last_alone ? read - 1 : fv__dice_below(d, (int)read);
    for (int64_t t = 0; t < T; t++) {
        bool drawn = t < read && fv__dice_unit(d) < (double)h->opt.mask && !last_alone,
             hidden = drawn || t == forced;
        ids[t] = hidden ? (int32_t)h->items : t < read ? x[t] : 0;
        label[t] = hidden ? x[t] : -100;
    }
}

/* The same for masked items: attention goes both ways, so padding is masked out too. */
static fv_status make_masked(const histories *h, fv_batch *out, const int32_t *rows, int64_t n,
                             fv_data_rng how, fv_err *e)
{
    int64_t T = 1, len, known = h->evaluation; /* the mask stands at the last position */
    for (int64_t i = 0; i < n; i++) {
        history(h, rows[i], &len);
        T = len > T ? len : T;
    }
    if (T > h->opt.longest) T = h->opt.longest;
    fv_shape s = known ? FV_SHAPE(n) : FV_SHAPE(n, T);
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T));
    uint8_t *seen = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, T));
    int32_t *label = fv_batch_put(out, "labels", FV_I32, s),
            *last = known ? fv_batch_put(out, "last_positions", FV_I32, s) : NULL;
    if (!seen || !label || (known && !last)) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *x = history(h, rows[i], &len);
        int64_t read = len < T ? len : T;
        fv__dice d = fv__dice_of(how, DICE_MASK, rows[i]);
        x += len - read;
        for (int64_t t = 0; t < T; t++) seen[i * T + t] = t < read;
        if (known) {
            for (int64_t t = 0; t < T; t++) ids[i * T + t] = t < read - 1 ? x[t] : 0;
            ids[i * T + read - 1] = (int32_t)h->items;
            label[i] = x[read - 1], last[i] = (int32_t)(i * T + read - 1);
        } else {
            hide(h, ids + i * T, label + i * T, x, read, T, &d);
        }
        out->tokens += (double)read;
        for (int64_t t = 0; t < (known ? 1 : T); t++) out->labels += known || label[i * T + t] >= 0;
    }
    return FV_OK;
}

/* input_ids and labels (n,T); where it is evaluated labels and last_positions (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const histories *h = self;
    int64_t T = 1, len;
    if (h->opt.mask > 0) return make_masked(h, out, rows, n, how, e);
    for (int64_t i = 0; i < n; i++) {
        history(h, rows[i], &len);
        T = len - 1 > T ? len - 1 : T;
    }
    if (T > h->opt.longest) T = h->opt.longest;
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T));
    fv_shape s = h->evaluation ? FV_SHAPE(n) : FV_SHAPE(n, T);
    int32_t *label = fv_batch_put(out, "labels", FV_I32, s),
            *last = h->evaluation ? fv_batch_put(out, "last_positions", FV_I32, s) : NULL;
    if (!label || (h->evaluation && !last)) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *x = history(h, rows[i], &len);
        /* the newest items are kept: what is cut off is the beginning of the history */
        int64_t read = len - 1 < T ? len - 1 : T, from = len - 1 - read;
        for (int64_t t = 0; t < T; t++) ids[i * T + t] = t < read ? x[from + t] : 0;
        fv__dice d = fv__dice_of(how, DICE_REPLACED, rows[i]);
        if (!last && h->opt.replace > 0) replace(h, ids + i * T, read, &d);
        for (int64_t t = 0; !last && t < T; t++)
            label[i * T + t] = t < read ? x[from + t + 1] : -100;
        /* the logits of one position are wanted: an index into the (n*T) rows of hidden states */
        if (last) label[i] = x[len - 1], last[i] = (int32_t)(i * T + read - 1);
        out->tokens += (double)read;
        out->labels += last ? 1 : (double)read;
    }
    return scores_drawn(h) ? put_candidates(h, out, rows, n, last ? 1 : T, how, e) : FV_OK;
}

/* ---- losses with drawn items ---- */

/* -log softmax(scores)_0, and softplus(-score_0) + sum_k softplus(score_k), for each position. */
static fv_tensor *sampled_loss(fv_ctx *c, fv_tensor *scores, int kind)
{
    int64_t K = fv_dim(scores, -1);
    fv_shape s = FV_SHAPE(fv_dim(scores, 0), fv_dim(scores, 1));
    if (kind == SAMPLED)
        return fv_scale(c, fv_reshape(c, fv_slice(c, fv_log_softmax(c, scores), 2, 0, 1), s), -1);
    fv_tensor *right = fv_reshape(c, fv_slice(c, scores, 2, 0, 1), s),
              *others = fv_sum(c, fv_softplus(c, fv_slice(c, scores, 2, 1, K)), 2);
    return fv_add(c, fv_softplus(c, fv_scale(c, right, -1)), others);
}

static void forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                    fv_items *out)
{
    const histories *h = self;
    fv_items plain = {0};
    fv_items_put(&plain, "input_ids", fv_items_get(in, "input_ids"));
    fv_items_put(&plain, "candidates", fv_items_get(in, "candidates"));
    fv_items_put(&plain, "last_positions", fv_items_get(in, "last_positions"));
    fv_model_forward(c, m, &plain, out);
    /* (n,T,1+K): the model scores candidates only, not all V items, which is the point of
     * sampling */
    int kind = h->evaluation ? SAMPLED : h->opt.loss;
    fv_tensor *loss = sampled_loss(c, fv_items_get(out, "logits"), kind);
    loss = fv_mul(c, loss, fv_items_get(in, "counted"));
    fv_items_put(out, "loss", fv__per_label(c, fv_sum_all(c, loss), in));
}

/* ---- ranking ---- */

/* The rank of the right item, from 1, among all that the user has not had.  Ties count for it: an
 * equal score does not raise its rank. */
static int64_t full_rank(float *score, int64_t V, int32_t right, const int32_t *had, int64_t n)
{
    int64_t rank = 1;
    /* the target stays, if it is repeated */
    for (int64_t t = 0; t < n; t++)
        if (had[t] != right && had[t] < V) score[had[t]] = -INFINITY;
    for (int64_t j = 0; j < V; j++) rank += score[j] > score[right];
    return rank;
}

/* ...and among candidates, of which it is the first. */
static int64_t drawn_rank(const float *score, int64_t n)
{
    int64_t rank = 1;
    for (int64_t i = 1; i < n; i++) rank += score[i] > score[0];
    return rank;
}

/* Adds 1 / log2(1 + rank) where the rank is at most 10. */
static fv_status count_ndcg(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                            double *hits, double *of)
{
    const histories *h = self;
    const fv_tensor *logits = fv_items_get(out, "logits");
    const int32_t *label = fv__batch_ints(b, "labels"), *ids = fv__batch_ints(b, "input_ids"),
                  *last = fv__batch_ints(b, "last_positions");
    int64_t n = fv_dim(logits, 0), V = fv_cols(logits), T = b->part[0].shape.d[1];
    size_t bytes = (size_t)(n * V) * sizeof(float);
    float *host = fv__alloc(h->env, bytes);
    if (!host) return FV_ENOMEM;
    fv_status st = fv_read(c, logits, host, n * V);
    for (int64_t i = 0; !st && i < n; i++) {
        int64_t read = last[i] + 1 - i * T,
                rank = scores_drawn(h) ? drawn_rank(host + i * V, V)
                                       : full_rank(host + i * V, V, label[i], ids + i * T, read);
        *hits += rank <= BEST ? 1 / log2(1 + (double)rank) : 0;
    }
    *of += (double)n;
    fv__free(h->env, host, bytes);
    return st;
}

/* ---- the feed ---- */

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const histories *)self)->n;
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    const histories *h = self;
    history(h, i, source);
    if (*source > h->opt.longest) *source = h->opt.longest;
    *target = 0;
}

static void close_feed(void *self)
{
    histories *h = self;
    const fv_env *env = h->env;
    fv_events_close(h->events);
    fv__free(env, h->user, h->user_bytes);
    fv__free(env, h, sizeof *h);
}

/* Users of whom at least one item can be predicted. */
static fv_status choose(histories *h, const char *file, fv_data_report *report, fv_err *e)
{
    int64_t users = fv_events_users(h->events), len;
    h->user_bytes = (size_t)users * sizeof *h->user;
    if (!(h->user = fv__alloc(h->env, h->user_bytes)))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    report->records = users;
    for (int64_t u = 0; u < users; u++) {
        h->user[h->n] = (int32_t)u;
        /* history() subtracts the held-out items, so training needs users with at least four */
        history(h, h->n, &len);
        if (len < 2) continue;
        report->tokens[0] += len - 1;
        h->n++;
    }
    report->kept = h->n;
    report->too_long = 0;
    report->empty = users - h->n;
    return h->n ? FV_OK : fv_fail(e, FV_EFORMAT, "%s: no user has items enough", file);
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    histories *h = fv__alloc(t->env, sizeof *h);
    if (!h) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    h->env = t->env;
    h->opt = *(const options *)t->options;
    h->evaluation = t->evaluation;
    fv_events_opt how = {.file = from->file,
                         .layout = (fv_events_layout)h->opt.layout,
                         .header = from->header,
                         .items = t->labels};
    fv_status st = FV_OK;
    if (h->opt.mask > 0 && h->opt.loss != SOFTMAX)
        st = fv_fail(e, FV_EARG, "mask: hidden items are scored among all; item_loss = softmax");
    if (h->opt.mask > 0 && h->opt.rank_among)
        st = fv_fail(e, FV_EARG, "mask: hidden items are ranked among all; rank_among = 0");
    if (!st) st = fv_events_open(&h->events, t->env, &how, e);
    if (!st) st = choose(h, from->file, report, e);
    h->items = t->labels->n;
    if (st)
        close_feed(h);
    else
        *out = (fv_feed){.self = h,
                         .metric = h->evaluation ? "NDCG@10" : NULL,
                         .count = count,
                         .size = size,
                         .make = make,
                         .count_correct = h->evaluation ? count_ndcg : NULL,
                         .forward = scores_drawn(h) ? forward : NULL,
                         .close = close_feed};
    return st;
}

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    (void)p;
    return strcmp(key, "max_position_embeddings") ? -1 : ((const options *)own)->longest;
}

static const fv_field keys[] = {
    FV_CHOICE(options, layout, FV_EVENTS_ROWS, fv_events_layouts,
              "user, item and time on each line, or a user with all its items"),
    FV_INT(options, longest, 1, 50, 1 << 16, "items of a user that are read: the last ones"),
    FV_CHOICE_KEY("item_loss", options, loss, SOFTMAX, losses,
                  "over all items, or with drawn ones"),
    FV_INT(options, negatives, 1, 1, 4096, "items that are drawn beside each right one"),
    FV_FLOAT(options, replace, 0, 0, 0.9,
             "share of the items that are read in training which others stand for"),
    FV_INT(options, rank_among, 0, 0, 1 << 20,
           "the metric ranks among so many drawn items; 0: among all", FV_ON_RESUME),
    FV_FLOAT(options, mask, 0, 0, 0.9,
             "share of items that are hidden and to be found (bert4rec); 0: the next item is"),
    FV_CHOICE(options, evaluate, VALID, parts, "which item of a user is to be found", FV_ON_RESUME),
    {0},
};
static const char *const loss_inputs[] = {"input_ids", "labels", NULL};

const fv_objective fv__objective_next_item = {
    .name = "next_item",
    .help = "the item that a user turns to next",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "none",
    .config_value = config_value,
    .head = FV_HEAD_NEXT_ITEM,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
