/* tasks.c - the tasks of a continual run: their examples, their labels, what is remembered of them,
 * and batches.
 *
 * A task is a group of labels ("0,1"; a name that ends in ':' stands for all labels that begin so),
 * or a permutation of the pixels.  All choices (permutations, memories, what is drawn from them)
 * come from counters: a batch is a function of seed and epoch, and a resumed run makes the same. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/author/backend.h"
#include "fovea/author/ops.h"
#include "train/continual/continual.h"

static const char *const methods[] = {"none", "joint",  "ewc",  "online_ewc", "si",
                                      "lwf",  "replay", "agem", "adapters",   NULL};
static const char *const scenarios[] = {"task", "domain", "class", NULL};
static const char *const buffers[] = {"balanced", "reservoir", NULL};
enum { BALANCED, RESERVOIR };

const fv_field fv__continual_fields[] = {
    FV_WORDS(fv__continual_opt, tasks,
             "the tasks in order, each its labels (\"0,1 2,3\") or their beginning (\"trec:\")"),
    FV_INT(fv__continual_opt, permute, 0, 0, FV__MAX_TASKS,
           "instead: so many tasks, each with its own permutation of the pixels"),
    FV_INT(fv__continual_opt, epochs, 1, 1, 100000, "epochs of each task"),
    FV_CHOICE(fv__continual_opt, method, 0, methods, "what is done against forgetting"),
    FV_CHOICE(fv__continual_opt, scenario, 0, scenarios,
              "what is known when the model is asked: the task, or which labels there are"),
    FV_FLOAT(fv__continual_opt, strength, 0, 100, 1e12, "of the penalty (ewc, si) or of lwf"),
    FV_FLOAT(fv__continual_opt, gamma, 0, 1, 1, "online_ewc: what older tasks keep"),
    FV_FLOAT(fv__continual_opt, xi, 1e-12, 0.1, 1e6, "si: added to the squared distance"),
    FV_FLOAT(fv__continual_opt, temperature, 0.01, 2, 100, "lwf: of both sides' scores"),
    FV_INT(fv__continual_opt, fisher_samples, 1, 500, 1e9, "ewc: examples of each task"),
    FV_INT(fv__continual_opt, memory, 1, 2000, 1e9, "replay, agem: examples remembered in all"),
    FV_CHOICE(fv__continual_opt, buffer, BALANCED, buffers,
              "which: as many of each label, or each example with the same chance"),
    {0},
};

bool fv__continual_wanted(const fv__continual_opt *o) { return *o->tasks || o->permute; }

int fv__continual_task_of(const fv__continual *s, int64_t epoch)
{
    int64_t t = epoch < 0 ? 0 : epoch / s->opt.epochs;
    return (int)(t < s->n_tasks ? t : s->n_tasks - 1);
}

static bool remembers(const fv__continual *s)
{
    return s->opt.method == FV__METHOD_REPLAY || s->opt.method == FV__METHOD_AGEM;
}

/* ---- tasks ---- */

/* Numbers 0 .. n-1 in an order of their own (Fisher and Yates). */
static void shuffle(int32_t *x, int64_t n, uint64_t seed, uint64_t site)
{
    for (int64_t i = 0; i < n; i++) x[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t w[4];
        fv_philox(w, seed, site, 0, (uint64_t)i);
        int64_t k = (int64_t)((((uint64_t)w[0] << 32) | w[1]) % (uint64_t)(i + 1));
        int32_t swap = x[i];
        x[i] = x[k];
        x[k] = swap;
    }
}

/* word: names with commas between; one that ends in ':' is the beginning of names. */
static bool names_label(const char *word, size_t n, const char *label)
{
    for (size_t at = 0; at < n;) {
        size_t len = 0;
        while (at + len < n && word[at + len] != ',') len++;
        bool begins = len && word[at + len - 1] == ':';
        if (!strncmp(label, word + at, len) && (begins || !label[len])) return true;
        at += len + 1;
    }
    return false;
}

static fv_status by_labels(fv__continual *s, const fv_labels *labels, fv_err *e)
{
    const char *at = s->opt.tasks;
    for (size_t n; at += strspn(at, " "), (n = strcspn(at, " ")) > 0; at += n) {
        fv__task *t = &s->task[s->n_tasks];
        int32_t hits = 0;
        if (s->n_tasks == FV__MAX_TASKS)
            return fv_fail(e, FV_EARG, "[continual] tasks: more than %d", FV__MAX_TASKS);
        snprintf(t->name, sizeof t->name, "%.*s", (int)n, at);
        t->mask = fv__alloc(s->env, (size_t)s->n_labels);
        t->rank = fv__alloc(s->env, (size_t)s->n_labels * sizeof *t->rank);
        s->n_tasks++;
        if (!t->mask || !t->rank) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
        for (int32_t i = 0; i < s->n_labels; i++) {
            t->mask[i] = names_label(at, n, labels->name[i]);
            t->rank[i] = hits;
            hits += t->mask[i];
        }
        if (!hits) return fv_fail(e, FV_EARG, "[continual] tasks: no label is called %s", t->name);
    }
    return FV_OK;
}

static fv_status by_pixels(fv__continual *s, fv_err *e)
{
    for (int i = 0; i < s->opt.permute; i++) {
        fv__task *t = &s->task[s->n_tasks++];
        snprintf(t->name, sizeof t->name, "permutation %d", i + 1);
        t->mask = fv__alloc(s->env, (size_t)s->n_labels);
        t->rank = fv__alloc(s->env, (size_t)s->n_labels * sizeof *t->rank);
        if (i) t->shuffled = fv__alloc(s->env, (size_t)s->pixels * sizeof *t->shuffled);
        if (!t->mask || !t->rank || (i && !t->shuffled))
            return fv_fail(e, FV_ENOMEM, "continual: out of memory");
        memset(t->mask, 1, (size_t)s->n_labels);
        for (int32_t k = 0; k < s->n_labels; k++) t->rank[k] = k;
        /* the first task has its pixels where they are */
        if (i) shuffle(t->shuffled, s->pixels, 0x9d31, (uint64_t)i);
    }
    return FV_OK;
}

/* ---- examples ---- */

enum { AT_ONCE = 64 };

/* Labels of all rows of one of the feeds, by making them; pixels: floats of an image, or 0. */
static fv_status labels_of(fv__continual *s, int which, int32_t **out, int64_t *n, fv_err *e)
{
    const fv_feed *f = &s->inner[which];
    fv_batch b = {.env = s->env};
    fv_status st = FV_OK;
    *n = f->count(f->self, -1);
    *out = fv__alloc(s->env, (size_t)*n * sizeof **out + 1);
    if (!*out) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
    for (int64_t i = 0; !st && i < *n; i += AT_ONCE) {
        int32_t rows[AT_ONCE];
        int64_t k = *n - i < AT_ONCE ? *n - i : AT_ONCE;
        for (int64_t j = 0; j < k; j++) {
            int64_t source, target;
            rows[j] = (int32_t)(i + j);
            f->size(f->self, rows[j], &source, &target);
            if (source > s->longest) s->longest = source;
        }
        fv_batch_clear(&b);
        st = f->make(f->self, &b, rows, k, (fv_data_rng){.epoch = -1}, e);
        const fv_batch_part *labels = st ? NULL : fv_batch_get(&b, "labels"),
                            *pixels = st ? NULL : fv_batch_get(&b, "pixel_values");
        if (!st && (!labels || labels->dtype != FV_I32 || labels->shape.n != 1))
            st = fv_fail(e, FV_EARG, "[continual]: the objective has no label for each example");
        if (!st) memcpy(*out + i, labels->data, (size_t)k * sizeof **out);
        if (!st && pixels) s->pixels = fv_shape_len(pixels->shape) / k;
    }
    fv_batch_free(&b);
    return st;
}

static fv_status take_examples(fv__continual *s, int which, const int32_t *label, int64_t n,
                               fv_err *e)
{
    for (int t = 0; t < s->n_tasks; t++) {
        fv__example *of = fv__alloc(s->env, (size_t)n * sizeof *of + 1);
        int64_t found = 0;
        if (!of) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
        for (int64_t i = 0; i < n; i++)
            if (label[i] >= 0 && s->task[t].mask[label[i]])
                of[found++] = (fv__example){t, (int32_t)i};
        if (which)
            s->task[t].valid = of, s->task[t].n_valid = found;
        else
            s->task[t].train = of, s->task[t].n_train = found;
        if (!found)
            return fv_fail(e, FV_EARG, "[continual] task %s: no example to %s", s->task[t].name,
                           which ? "evaluate on" : "train on");
    }
    return FV_OK;
}

/* ---- memories ---- */

/* Each example that came so far is kept with the same chance (algorithm R). */
static void reservoir(const fv__continual *s, fv__example *kept, int64_t *n, int64_t *seen,
                      const fv__task *t)
{
    for (int64_t i = 0; i < t->n_train; i++, ++*seen) {
        uint32_t w[4];
        fv_philox(w, s->seed, 0x4d454d, 0, (uint64_t)*seen);
        uint64_t k = (((uint64_t)w[0] << 32) | w[1]) % (uint64_t)(*seen + 1);
        if (*n < s->opt.memory)
            kept[(*n)++] = t->train[i];
        else if (k < (uint64_t)s->opt.memory)
            kept[k] = t->train[i];
    }
}

/* As many of each label of each task so far, taken evenly. */
static void balanced(const fv__continual *s, fv__example *kept, int64_t *n, int tasks,
                     const int32_t *label)
{
    int64_t kinds = 0;
    *n = 0;
    for (int t = 0; t < tasks; t++)
        for (int32_t l = 0; l < s->n_labels; l++) kinds += s->task[t].mask[l];
    for (int t = 0; t < tasks; t++)
        for (int32_t l = 0; l < s->n_labels; l++) {
            int64_t all = 0, at = 0, want = s->opt.memory / kinds;
            for (int64_t i = 0; i < s->task[t].n_train; i++)
                all += label[s->task[t].train[i].row] == l;
            if (want > all) want = all;
            for (int64_t i = 0, k = 0; i < s->task[t].n_train && k < want; i++) {
                if (label[s->task[t].train[i].row] != l) continue;
                if (at++ * want / all < k) continue;
                kept[(*n)++] = s->task[t].train[i];
                k++;
            }
        }
}

static fv_status remember(fv__continual *s, const int32_t *label, fv_err *e)
{
    int64_t n = 0, seen = 0;
    size_t bytes = (size_t)s->opt.memory * sizeof(fv__example);
    fv__example *now = fv__alloc(s->env, bytes);
    for (int t = 0; now && t < s->n_tasks; t++) {
        if (s->opt.buffer == RESERVOIR)
            reservoir(s, now, &n, &seen, &s->task[t]);
        else
            balanced(s, now, &n, t + 1, label);
        s->memory[t + 1] = fv__alloc(s->env, bytes);
        if (!s->memory[t + 1]) break;
        memcpy(s->memory[t + 1], now, (size_t)n * sizeof *now);
        s->n_memory[t + 1] = n;
    }
    bool ok = now && s->memory[s->n_tasks];
    fv__free(s->env, now, bytes);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "continual: out of memory");
}

/* ---- batches ---- */

static void permute(const fv__continual *s, fv_batch *b, const fv__example *of, int64_t n,
                    float *scratch)
{
    const fv_batch_part *p = fv_batch_get(b, "pixel_values");
    for (int64_t i = 0; p && i < n; i++) {
        const int32_t *to = s->task[of[i].task].shuffled;
        float *x = (float *)p->data + i * s->pixels;
        if (!to) continue;
        memcpy(scratch, x, (size_t)s->pixels * sizeof *x);
        for (int64_t k = 0; k < s->pixels; k++) x[k] = scratch[to[k]];
    }
}

/* Whether a score takes part: of its own task, or of all tasks that count as known. */
static bool takes_part(const fv__continual *s, int task, int seen, int32_t label)
{
    if (s->opt.scenario == FV__SCENARIO_TASK) return s->task[task].mask[label];
    bool any = false;
    for (int t = 0; t < seen; t++) {
        if (s->opt.scenario == FV__SCENARIO_CLASS) any = any || s->task[t].mask[label];
        /* labels of all tasks are numbered within the task */
        for (int32_t l = 0; s->opt.scenario == FV__SCENARIO_DOMAIN && l < s->n_labels; l++)
            any = any || (s->task[t].mask[l] && s->task[t].rank[l] == label);
    }
    return any;
}

/* logit_bias and old_bias (n,labels): 0 for what takes part now, and what did before this task;
 * old_share (n): whether there was any; example (n): the rows; labels as the scenario has them. */
static fv_status decorate(const fv__continual *s, fv_batch *b, const fv__example *of, int64_t n,
                          int seen, fv_err *e)
{
    int64_t L = s->n_labels;
    float *now = fv_batch_put(b, "logit_bias", FV_F32, FV_SHAPE(n, L)),
          *old = fv_batch_put(b, "old_bias", FV_F32, FV_SHAPE(n, L)),
          *share = fv_batch_put(b, "old_share", FV_F32, FV_SHAPE(n));
    int32_t *example = fv_batch_put(b, "example", FV_I32, FV_SHAPE(n));
    const fv_batch_part *labels = fv_batch_get(b, "labels");
    if (!example) return fv_fail(e, b->err.code, "%s", b->err.text);
    int32_t *label = labels->data;
    for (int64_t i = 0; i < n; i++) {
        int t = of[i].task;
        example[i] = of[i].row;
        share[i] = t > 0;
        for (int32_t l = 0; l < L; l++) {
            bool before = false;
            for (int k = 0; k < t; k++) before = before || takes_part(s, k, t, l);
            now[i * L + l] = takes_part(s, t, seen, l) ? 0 : -1e9f;
            old[i * L + l] = before || !t ? 0 : -1e9f;
        }
        if (s->opt.scenario == FV__SCENARIO_DOMAIN) label[i] = s->task[t].rank[label[i]];
    }
    return FV_OK;
}

fv_status fv__continual_make(const fv__continual *s, int which, fv_batch *out,
                             const fv__example *of, int64_t n, int seen, fv_data_rng how, fv_err *e)
{
    const fv_feed *f = &s->inner[which];
    size_t bytes = (size_t)n * sizeof(int32_t) + (size_t)s->pixels * sizeof(float);
    float *scratch = fv__alloc(s->env, bytes + 1);
    int32_t *rows = (int32_t *)(scratch ? scratch + s->pixels : NULL);
    if (!scratch) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
    for (int64_t i = 0; i < n; i++) rows[i] = of[i].row;
    fv_status st = f->make(f->self, out, rows, n, how, e);
    if (!st) permute(s, out, of, n, scratch);
    if (!st) st = decorate(s, out, of, n, seen, e);
    fv__free(s->env, scratch, bytes + 1);
    return st;
}

/* The examples of an epoch, and as many remembered ones behind them: half of a batch is old, as in
 * experience replay (Chaudhry et al. 2019), so that the memory weighs the same however small it is.
 * Which are drawn goes by epoch and first row, not by a state: batches are made by several threads,
 * in any order.  With A-GEM they are told apart by a part of their own, since their loss is the
 * constraint and not a term of the sum. */
static fv_status make_train(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                            fv_data_rng how, fv_err *e)
{
    const fv__continual *s = self;
    int t = fv__continual_task_of(s, how.epoch);
    bool joint = s->opt.method == FV__METHOD_JOINT;
    int64_t more = remembers(s) && s->n_memory[t] ? n : 0;
    size_t bytes = (size_t)(n + more) * sizeof(fv__example);
    fv__example *of = fv__alloc(s->env, bytes);
    if (!of) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
    for (int64_t i = 0; i < n; i++) {
        int64_t at = rows[i];
        int own = t;
        if (joint)
            for (own = 0; at >= s->task[own].n_train; own++) at -= s->task[own].n_train;
        of[i] = s->task[own].train[at];
    }
    for (int64_t i = 0; i < more; i++) {
        uint32_t w[4];
        fv_philox(w, s->seed, 0x7265706c, (uint64_t)how.epoch,
                  ((uint64_t)rows[0] << 20) + (uint64_t)i);
        of[n + i] = s->memory[t][w[0] % (uint64_t)s->n_memory[t]];
    }
    fv_status st = fv__continual_make(s, 0, out, of, n + more, joint ? s->n_tasks : t + 1, how, e);
    fv__free(s->env, of, bytes);
    if (!st && s->opt.method == FV__METHOD_AGEM) {
        out->labels = (double)n; /* the remembered ones have a loss of their own */
        int32_t *of_memory = fv_batch_put(out, "remembered", FV_I32, FV_SHAPE(more + 1));
        if (!of_memory) return fv_fail(e, out->err.code, "%s", out->err.text);
        memset(of_memory, 0, (size_t)(more + 1) * sizeof *of_memory);
    }
    return st;
}

static int64_t count_train(const void *self, int64_t epoch)
{
    const fv__continual *s = self;
    int64_t all = 0;
    if (s->opt.method != FV__METHOD_JOINT) return s->task[fv__continual_task_of(s, epoch)].n_train;
    for (int t = 0; t < s->n_tasks; t++) all += s->task[t].n_train;
    return all;
}

/* Which example a number stands for depends on the epoch: all count as the longest. */
static void size_train(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    (void)i;
    *source = ((const fv__continual *)self)->longest;
    *target = 0;
}

/* All tasks, each asked as its scenario has it. */
static int64_t count_valid(const void *self, int64_t epoch)
{
    const fv__continual *s = self;
    int64_t n = 0;
    (void)epoch;
    for (int t = 0; t < s->n_tasks; t++) n += s->task[t].n_valid;
    return n;
}

/* Rows count through the tasks one after the other; which task a row is of follows from its number,
 * so that the matrix of accuracies needs no second pass. */
static fv_status make_valid(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                            fv_data_rng how, fv_err *e)
{
    const fv__continual *s = self;
    size_t bytes = (size_t)n * sizeof(fv__example);
    fv__example *of = fv__alloc(s->env, bytes);
    if (!of) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
    for (int64_t i = 0; i < n; i++) {
        int64_t at = rows[i];
        int t = 0;
        for (; at >= s->task[t].n_valid; t++) at -= s->task[t].n_valid;
        of[i] = s->task[t].valid[at];
    }
    fv_status st = fv__continual_make(s, 1, out, of, n, s->n_tasks, how, e);
    fv__free(s->env, of, bytes);
    return st;
}

static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const fv_feed *f = &((const fv__continual *)self)->inner[1];
    return f->count_correct(f->self, c, b, out, hits, of);
}

/* ---- opening and closing ---- */

static void no_close(void *self) { (void)self; } /* the training feed owns what both use */

void fv__continual_close(void *self)
{
    fv__continual *s = self;
    const fv_env *env = s->env;
    fv__continual_release(s);
    for (int t = 0; t < s->n_tasks; t++) {
        fv__task *k = &s->task[t];
        fv__free(env, k->mask, (size_t)s->n_labels);
        fv__free(env, k->rank, (size_t)s->n_labels * sizeof *k->rank);
        fv__free(env, k->shuffled, (size_t)s->pixels * sizeof *k->shuffled);
        fv__free(env, k->train, (size_t)s->n_rows[0] * sizeof *k->train + 1);
        fv__free(env, k->valid, (size_t)s->n_rows[1] * sizeof *k->valid + 1);
        fv__free(env, s->memory[t + 1], (size_t)s->opt.memory * sizeof(fv__example));
    }
    fv_feed_close(&s->inner[0]);
    fv_feed_close(&s->inner[1]);
    fv__free(env, s, sizeof *s);
}

/* Labels of all rows are read once, by making batches of them: the feeds below know no other way to
 * ask what an example is, and any objective can then be a task. */
static fv_status open_tasks(fv__continual *s, const fv_labels *labels, fv_err *e)
{
    int32_t *label[2] = {NULL, NULL};
    int64_t n[2] = {0, 0};
    fv_status st = labels_of(s, 0, &label[0], &n[0], e);
    if (!st) st = labels_of(s, 1, &label[1], &n[1], e);
    s->n_rows[0] = n[0], s->n_rows[1] = n[1];
    if (!st && s->opt.permute && !s->pixels)
        st = fv_fail(e, FV_EARG, "[continual] permute: the examples have no pixels");
    if (!st) st = s->opt.permute ? by_pixels(s, e) : by_labels(s, labels, e);
    if (!st) st = take_examples(s, 0, label[0], n[0], e);
    if (!st) st = take_examples(s, 1, label[1], n[1], e);
    if (!st && remembers(s)) st = remember(s, label[0], e);
    for (int i = 0; i < 2; i++) fv__free(s->env, label[i], (size_t)n[i] * sizeof *label[i] + 1);
    return st;
}

/* The feeds of a plain run are put inside: trainer, loader and checkpoints see two feeds as ever,
 * and a run of many tasks is one run with one order of updates. */
fv_status fv__continual_wrap(fv_feed *train, fv_feed *valid, const fv__continual_opt *o,
                             const fv_env *env, const fv_labels *labels, uint64_t seed, fv_err *e)
{
    if (!valid->self || !valid->count_correct)
        return fv_fail(e, FV_EARG, "[continual]: validation data with an accuracy are needed");
    if (*o->tasks && o->permute)
        return fv_fail(e, FV_EARG, "[continual]: tasks and permute: one of them is enough");
    fv__continual *s = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "continual: out of memory");
    *s = (fv__continual){.env = env, .opt = *o, .seed = seed, .n_labels = labels->n};
    s->inner[0] = *train;
    s->inner[1] = *valid;
    *train = (fv_feed){.self = s,
                       .metric = valid->metric,
                       .count = count_train,
                       .size = size_train,
                       .make = make_train,
                       .count_correct = count_correct,
                       .forward = fv__continual_forward,
                       .prepare = fv__continual_prepare,
                       .end_epoch = fv__continual_end_epoch,
                       .adjust = fv__continual_adjust,
                       .save_state = fv__continual_save,
                       .load_state = fv__continual_load,
                       .close = fv__continual_close};
    *valid = (fv_feed){.self = s,
                       .metric = s->inner[1].metric,
                       .count = count_valid,
                       .size = size_train,
                       .make = make_valid,
                       .count_correct = count_correct,
                       .forward = fv__continual_forward,
                       .close = no_close};
    return open_tasks(s, labels, e);
}

fv_status fv__continual_updates(const fv_feed *train, const fv_env *env, int64_t tokens,
                                int64_t rows, int64_t accumulate, uint64_t seed, int64_t *out,
                                fv_err *e)
{
    const fv__continual *s = train->self;
    fv_status st = FV_OK;
    *out = 0;
    for (int t = 0; !st && t < s->n_tasks; t++) {
        fv_plan *plan = NULL;
        fv_plan_opt how = {tokens, rows, {seed, (int64_t)t * s->opt.epochs}};
        st = fv_plan_make(&plan, env, train, how, e);
        if (!st) *out += s->opt.epochs * ((fv_plan_count(plan) + accumulate - 1) / accumulate);
        fv_plan_free(plan);
    }
    return st;
}
