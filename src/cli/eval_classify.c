/* eval_classify.c - accuracy and F1 of labels, on a file of texts with their labels. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
    const cli *c;
    const eval_values *v;
    const char *file;
    cli_task model;
    fv_table *rows;
    int labels;     /* that are told apart */
    char **name;    /* of each: the model's own, as far as --label-until lets them be read */
    int *part_of;   /* which of them each label of the model belongs to */
    float *sum;     /* room for the score of each */
    int64_t *table; /* (labels,labels): which was to be given, which was */
    FILE *predictions;
} work;

/* Labels of the model that read alike are one: a model that knows NUM:date and NUM:count is judged
 * by NUM as well. */
static int make_labels(work *w)
{
    const fv_task *t = w->model.task;
    int n = fv_task_labels(t);
    w->labels = 0;
    w->name = calloc((size_t)n, sizeof *w->name);
    w->part_of = calloc((size_t)n, sizeof *w->part_of);
    w->sum = calloc((size_t)n, sizeof *w->sum);
    w->table = calloc((size_t)n * (size_t)n, sizeof *w->table);
    bool ok = w->name && w->part_of && w->sum && w->table;
    for (int i = 0; ok && i < n; i++) {
        const char *label = fv_task_label(t, i);
        size_t len = strcspn(label, w->v->label_until ? w->v->label_until : "");
        int k = 0;
        while (k < w->labels && (strncmp(w->name[k], label, len) || w->name[k][len])) k++;
        if (k == w->labels) ok = (w->name[w->labels++] = strndup(label, len)) != NULL;
        w->part_of[i] = k;
    }
    return ok ? CLI_OK : cli_fail(w->c, "out of memory");
}

/* The number of the label of record i: its name, or the number that the model has for it. */
static int gold_label(const work *w, int64_t i, int *out)
{
    size_t n;
    const char *name = fv_table_text(w->rows, i, 1, &n);
    if (w->v->label_until) n = strcspn(name, w->v->label_until);
    for (*out = 0; *out < w->labels; ++*out)
        if (strlen(w->name[*out]) == n && !memcmp(w->name[*out], name, n)) return CLI_OK;
    char *end;
    long number = strtol(name, &end, 10);
    bool known = n && end == name + n && number >= 0 && number < fv_task_labels(w->model.task);
    if (known) *out = w->part_of[number];
    return known ? CLI_OK
                 : cli_fail(w->c,
                            "%s:%lld: the label \"%.*s\" is none of the model's %d, the first of "
                            "which is \"%s\"",
                            w->file, (long long)fv_table_line(w->rows, i), (int)(n < 80 ? n : 80),
                            name, w->labels, w->name[0]);
}

static int count(work *w, int64_t i, const float *scores)
{
    int gold, given = 0;
    int code = gold_label(w, i, &gold);
    if (code != CLI_OK) return code;
    memset(w->sum, 0, (size_t)w->labels * sizeof *w->sum);
    for (int k = 0; k < fv_task_labels(w->model.task); k++) w->sum[w->part_of[k]] += scores[k];
    for (int k = 1; k < w->labels; k++) given = w->sum[k] > w->sum[given] ? k : given;
    w->table[gold * w->labels + given]++;
    if (w->predictions)
        fprintf(w->predictions, "%s\t%.6f\n", w->name[given], (double)w->sum[given]);
    return CLI_OK;
}

static int run_slice(void *user, int64_t from, int64_t n)
{
    work *w = user;
    fv_err e;
    int64_t width = fv_task_labels(w->model.task);
    fv_text *texts = calloc((size_t)n, sizeof *texts);
    float *scores = calloc((size_t)(n * width), sizeof *scores);
    int code = texts && scores ? CLI_OK : cli_fail(w->c, "out of memory");
    for (int64_t i = 0; code == CLI_OK && i < n; i++)
        texts[i].s = fv_table_text(w->rows, from + i, 0, &texts[i].n);
    if (code == CLI_OK && fv_task_classify(w->model.task, texts, n, scores, &e))
        code = cli_error(w->c, &e);
    for (int64_t i = 0; code == CLI_OK && i < n; i++) code = count(w, from + i, scores + i * width);
    free(texts);
    free(scores);
    return code;
}

static int print_json(const work *w)
{
    json_t *labels = json_array(), *table = json_array();
    for (int i = 0; i < w->labels; i++) {
        json_t *row = json_array(), *one = eval_match_json(fv_label_match(w->table, w->labels, i));
        json_object_set_new(one, "label", json_string(w->name[i]));
        json_array_append_new(labels, one);
        for (int k = 0; k < w->labels; k++)
            json_array_append_new(row, json_integer(w->table[i * w->labels + k]));
        json_array_append_new(table, row);
    }
    return cli_print_json(w->c, json_pack("{s:s, s:I, s:f, s:f, s:o, s:o}", "task", "classify",
                                          "records", (json_int_t)fv_table_count(w->rows),
                                          "accuracy", fv_accuracy(w->table, w->labels), "macro_f1",
                                          fv_macro_f1(w->table, w->labels), "labels", labels,
                                          "confusion", table));
}

static void print_plain(const work *w)
{
    int width = 8;
    for (int i = 0; i < w->labels; i++) {
        int n = (int)strlen(w->name[i]);
        width = n > width ? n : width;
    }
    printf("%-*s %9.2f  of %lld records\n", width, "accuracy", fv_accuracy(w->table, w->labels),
           (long long)fv_table_count(w->rows));
    printf("%-*s %9.2f\n", width, "macro F1", fv_macro_f1(w->table, w->labels));
    eval_row(NULL, width, (fv_match){0});
    for (int i = 0; i < w->labels; i++)
        eval_row(w->name[i], width, fv_label_match(w->table, w->labels, i));
}

static int open_all(work *w)
{
    fv_err e;
    fv_data_report report = {0};
    fv_records from = eval_records(w->v, w->file);
    int code = cli_open_task(w->c, &w->model, &w->v->model, FV_JOB_CLASSIFY);
    if (code != CLI_OK) return code;
    if (fv_task_many(w->model.task) || fv_task_labels(w->model.task) < 2)
        return cli_fail(w->c,
                        "%s: its labels do not exclude each other, so there is no one right label",
                        w->v->model.dir);
    if (fv_table_open(&w->rows, NULL, &from, 2, &report, &e)) return cli_error(w->c, &e);
    code = make_labels(w);
    return code == CLI_OK ? eval_open_predictions(w->c, w->v, &w->predictions) : code;
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    work w = {.c = c, .v = v, .file = file};
    if (!file) return cli_usage(c, "a file with texts and their labels is needed");
    int code = open_all(&w);
    if (code == CLI_OK) code = eval_in_slices(v, fv_table_count(w.rows), run_slice, &w);
    code = eval_close_predictions(c, v, w.predictions, code);
    if (code == CLI_OK && v->json)
        code = print_json(&w);
    else if (code == CLI_OK)
        print_plain(&w);
    for (int i = 0; i < w.labels; i++) free(w.name[i]);
    free(w.name), free(w.part_of), free(w.sum), free(w.table);
    fv_table_close(w.rows);
    cli_close_task(&w.model);
    return code;
}

static const char *const heads[] = {"ForSequenceClassification", NULL};
const eval_kind eval_classify = {.name = "classify", .heads = heads, .run = run};
