/* eval_classify.c - accuracy and F1 of labels, on a file of texts with their labels or on labelled
 * images, as training reads them; of images also how often the right label is among the first
 * five.
 *
 * The data are read as a recipe reads them (fv_table, fv_images), so a model is judged by the
 * same records that training calls a validation set. Malformed and empty records are refused: a
 * figure over fewer records than the file has would not be comparable.
 *
 * All figures come from one confusion matrix of int64 counts, rows the right label and columns
 * the given one; percentages are made when printing. */
#include <stdlib.h>

#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_table *rows;    /* of texts; NULL: images are judged */
    fv_images *images; /* likewise */
    fv_labels gold;    /* their labels */
    int64_t in_top5;
    fv_arena memory;
    int labels;     /* that are told apart */
    char **name;    /* of each: the model's own, as far as label_until lets them be read */
    int *part_of;   /* which of them each label of the model belongs to */
    float *sum;     /* the score of each */
    int64_t *table; /* (labels,labels): which was to be given, which was */
} work;

/* Labels of the model that read alike are one: a model that knows NUM:date and NUM:count is judged
 * by NUM as well. */
static fv_status make_labels(work *w, fv_err *e)
{
    size_t n = (size_t)w->task->labels;
    const char *until = w->r->opt->label_until ? w->r->opt->label_until : "";
    w->name = fv__arena_alloc(&w->memory, n * sizeof *w->name);
    w->part_of = fv__arena_alloc(&w->memory, n * sizeof *w->part_of);
    w->sum = fv__arena_alloc(&w->memory, n * sizeof *w->sum);
    w->table = fv__arena_alloc(&w->memory, n * n * sizeof *w->table);
    bool ok = w->name && w->part_of && w->sum && w->table;
    if (ok) memset(w->table, 0, n * n * sizeof *w->table);
    for (size_t i = 0; ok && i < n; i++) {
        const char *label = w->task->label[i];
        /* Up to the first of the characters given, e.g. ":" for TREC's coarse labels. */
        size_t len = strcspn(label, until);
        int k = 0;
        while (k < w->labels && (strncmp(w->name[k], label, len) || w->name[k][len])) k++;
        w->part_of[i] = k;
        if (k < w->labels) continue;
        char *copy = w->name[w->labels++] = fv__arena_alloc(&w->memory, len + 1);
        ok = copy != NULL;
        if (ok) memcpy(copy, label, len), copy[len] = 0;
    }
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory for %zu labels", n);
}

static int64_t records(const work *w)
{
    return w->images ? fv_images_count(w->images) : fv_table_count(w->rows);
}

/* The label of record i as the data name it. */
static const char *gold_name(const work *w, int64_t i, size_t *n)
{
    if (!w->images) return fv_table_text(w->rows, i, 1, n);
    const char *name = w->gold.name[fv_images_label(w->images, i)];
    *n = strlen(name);
    return name;
}

/* The number of the label of record i: its name, or the number that the model has for it. */
static fv_status gold_label(const work *w, int64_t i, int *out, fv_err *e)
{
    size_t n;
    const char *name = gold_name(w, i, &n);
    if (w->r->opt->label_until) n = strcspn(name, w->r->opt->label_until);
    for (*out = 0; *out < w->labels; ++*out)
        if (strlen(w->name[*out]) == n && !memcmp(w->name[*out], name, n)) return FV_OK;
    char *end;
    /* Files of published sets often hold the number instead of the name. */
    long number = strtol(name, &end, 10);
    bool known = n && end == name + n && number >= 0 && number < w->task->labels;
    if (known) *out = w->part_of[number];
    if (known) return FV_OK;
    return fv_fail(e, FV_EFORMAT,
                   "%s:%lld: the label \"%.*s\" is none of the model's %d, the first of which is "
                   "\"%s\"",
                   w->r->opt->file, (long long)(w->images ? i + 1 : fv_table_line(w->rows, i)),
                   (int)(n < 80 ? n : 80), name, w->labels, w->name[0]);
}

/* table (labels,labels) counts gold by given; everything that is reported follows from it. */
static fv_status count(void *user, int64_t i, const void *result, size_t bytes, fv_err *e)
{
    work *w = user;
    const float *scores = result;
    int gold, given = 0;
    (void)bytes;
    fv_status st = gold_label(w, i, &gold, e);
    if (st) return st;
    memset(w->sum, 0, (size_t)w->labels * sizeof *w->sum);
    /* Probabilities of joined labels add up. */
    for (int k = 0; k < w->task->labels; k++) w->sum[w->part_of[k]] += scores[k];
    int above = 0;
    for (int k = 0; k < w->labels; k++) {
        if (w->sum[k] > w->sum[given]) given = k;
        /* Rank by counting what is better: labels of equal score do not push the right one out. */
        above += w->sum[k] > w->sum[gold];
    }
    w->in_top5 += above < 5;
    w->table[gold * w->labels + given]++;
    /* One line a record, in the order of the file. */
    fv__buf_fmt(&w->r->predictions, "%s\t%.6f\n", w->name[given], (double)w->sum[given]);
    return FV_OK;
}

static fv_status run_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    int64_t width = w->task->labels;
    size_t bytes = (size_t)n * (sizeof(fv_text) + (size_t)width * sizeof(float));
    fv_text *texts = fv__alloc(&w->r->env, bytes);
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    float *scores = (float *)(void *)(texts + n);
    /* Column 0 is the text, 1 its label. */
    for (int64_t i = 0; i < n; i++) texts[i].s = fv_table_text(w->rows, from + i, 0, &texts[i].n);
    fv_status st = fv_task_classify(w->task, texts, n, scores, e);
    for (int64_t i = 0; !st && i < n; i++)
        fv__eval_give(out, scores + i * width, (size_t)width * sizeof *scores);
    fv__free(&w->r->env, texts, bytes);
    return st;
}

static fv_status run_images(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    int64_t width = w->task->labels;
    size_t bytes = (size_t)(n * width) * sizeof(float);
    float *scores = fv__alloc(&w->r->env, bytes);
    if (!scores) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv__task_classify_set(w->task, w->images, from, n, scores, e);
    for (int64_t i = 0; !st && i < n; i++)
        fv__eval_give(out, scores + i * width, (size_t)width * sizeof *scores);
    fv__free(&w->r->env, scores, bytes);
    return st;
}

static double top5(const work *w) { return 100.0 * (double)w->in_top5 / (double)records(w); }

/* Rows of the confusion matrix are the right labels, columns what was given, as in scikit-learn. */
static void put_json(const work *w)
{
    fv_buf *b = &w->r->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "classify", 8);
    fv__json_int_at(b, "records", records(w));
    fv__json_number_at(b, "accuracy", fv_accuracy(w->table, w->labels));
    if (w->images && w->labels > 5) fv__json_number_at(b, "top5_accuracy", top5(w));
    fv__json_number_at(b, "macro_f1", fv_macro_f1(w->table, w->labels));
    fv__json_key(b, "labels");
    fv__json_begin(b, '[');
    for (int i = 0; i < w->labels; i++) {
        fv__json_begin(b, '{');
        fv__eval_match_json(b, fv_label_match(w->table, w->labels, i));
        fv__json_text_at(b, "label", w->name[i], strlen(w->name[i]));
        fv__json_end(b, '}');
    }
    fv__json_end(b, ']');
    fv__json_key(b, "confusion");
    fv__json_begin(b, '[');
    for (int i = 0; i < w->labels; i++) {
        fv__json_begin(b, '[');
        for (int k = 0; k < w->labels; k++) fv__json_put_int(b, w->table[i * w->labels + k]);
        fv__json_end(b, ']');
    }
    fv__buf_str(b, "]}\n");
}

static void put_plain(const work *w)
{
    fv_buf *b = &w->r->out;
    int width = 8;
    for (int i = 0; i < w->labels; i++) {
        int n = (int)strlen(w->name[i]);
        width = n > width ? n : width;
    }
    fv__buf_fmt(b, "%-*s %9.2f  of %lld records\n", width, "accuracy",
                fv_accuracy(w->table, w->labels), (long long)records(w));
    if (w->images && w->labels > 5) fv__buf_fmt(b, "%-*s %9.2f\n", width, "top 5", top5(w));
    fv__buf_fmt(b, "%-*s %9.2f\n", width, "macro F1", fv_macro_f1(w->table, w->labels));
    fv__eval_row(b, NULL, width, (fv_match){0});
    for (int i = 0; i < w->labels; i++)
        fv__eval_row(b, w->name[i], width, fv_label_match(w->table, w->labels, i));
}

/* Gold labels are an open list while the file is read; make_labels then finds the model's own among
 * them, joined where --label-until cuts both. */
static fv_status judge(work *w, fv_err *e)
{
    fv_data_report report = {0};
    fv_records from = fv__eval_records(w->r);
    fv_status st = fv__eval_encoder(w->r, &w->task, FV_JOB_CLASSIFY, e);
    if (st) return st;
    /* Accuracy needs exactly one right label for each record. */
    if (fv_task_many(w->task) || w->task->labels < 2)
        return fv_fail(e, FV_EARG,
                       "%s: its labels do not exclude each other, so there is no one right label",
                       w->r->opt->model);
    w->gold.env = &w->r->env;
    fv_images_opt where = {.from = from,
                           .images = w->r->opt->images,
                           .where = w->r->opt->where,
                           .labels = &w->gold};
    if (fv__task_sees(w->task))
        st = fv_images_open(&w->images, &w->r->env, &where, &report, e);
    else
        st = fv_table_open(&w->rows, &w->r->env, &from, 2, &report, e);
    if (!st) st = make_labels(w, e);
    fv_slices how = {w->images ? run_images : run_slice, count, 0};
    return st ? st : fv__eval_slices(w->r, records(w), &how, w, e);
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r, .memory.env = &r->env};
    if (!r->opt->file)
        return fv_fail(e, FV_EUSAGE,
                       "a file with texts and their labels is needed, or labelled images");
    fv_status st = judge(&w, e);
    if (!st && r->opt->json)
        put_json(&w);
    else if (!st)
        put_plain(&w);
    fv__arena_free(&w.memory);
    fv_table_close(w.rows);
    fv_images_close(w.images);
    fv_labels_free(&w.gold);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_CLASSIFY, FV_HEAD_BASE};
const fv_task_eval fv__eval_classify = {.name = "classify", .heads = heads, .run = run};
