/* classify.c - fovea classify: labels of texts. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "texts.h"

typedef struct classify_values {
    cli_model model;
    int64_t top;
    double threshold;
    bool json;
} classify_values;

static const classify_values defaults = {.top = 1, .threshold = 0.5};

static const cli_option options[] = {
    CLI_MODEL(classify_values),
    CLI_INT(classify_values, top, 'k', "top", "N", 0, 1 << 20, "labels to print for each text, likeliest first; 0: all"),
    CLI_REAL(classify_values, threshold, 0, "threshold", "P", 0, 1,
             "where several labels may hold at once: print those of at least this probability"),
    CLI_FLAG(classify_values, json, 0, "json", "one JSON object a line, with all labels"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'what a film' | fovea classify -m distilbert-sst2", "the likeliest label and its probability"},
    {"fovea classify -m roberta-mnli --top 0 pairs.tsv", "two texts a line with a tab between them; all labels"},
    {"fovea classify -m toxicity --json < comments.txt", "for scripts"},
    {0},
};

typedef struct scored {
    int label;
    float score;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->label - y->label;
}

static int print_json(const cli *c, const fv_task *t, const fv_text *x, const scored *s)
{
    json_t *labels = json_array();
    for (int i = 0; i < fv_task_labels(t); i++)
        json_array_append_new(
            labels, json_pack("{s:s, s:o}", "label", fv_task_label(t, s[i].label), "score", cli_json_number((double)s[i].score)));
    json_t *o = json_pack("{s:s%, s:o}", "text", x->s, x->n, "labels", labels);
    if (o && x->pair) json_object_set_new(o, "pair", json_stringn(x->pair, x->pair_n));
    return cli_print_json(c, o);
}

static void print_plain(const classify_values *v, const fv_task *t, const scored *s)
{
    int64_t top = v->top && v->top < fv_task_labels(t) ? v->top : fv_task_labels(t), n = 0;
    bool many = fv_task_many(t);
    for (int i = 0; i < (many ? fv_task_labels(t) : top); i++) {
        if (many && (double)s[i].score < v->threshold) continue;
        printf("%s%s %.6f", n++ ? "\t" : "", fv_task_label(t, s[i].label), (double)s[i].score);
    }
    printf("\n");
}

static int print(const cli *c, const classify_values *v, const fv_task *t, const cli_texts *texts, const float *scores)
{
    int labels = fv_task_labels(t), code = CLI_OK;
    scored *s = calloc((size_t)labels, sizeof *s);
    if (!s) return cli_fail(c, "out of memory");
    for (int64_t i = 0; i < texts->n && code == CLI_OK; i++) {
        for (int k = 0; k < labels; k++) s[k] = (scored){k, scores[i * labels + k]};
        qsort(s, (size_t)labels, sizeof *s, by_score);
        if (v->json)
            code = print_json(c, t, &texts->at[i], s);
        else
            print_plain(v, t, s);
    }
    free(s);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const classify_values *v = values;
    cli_task t;
    cli_texts texts = {0};
    float *scores = NULL;
    fv_err e;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_CLASSIFY);
    if (code == CLI_OK) code = cli_read_texts(c, n ? operand[0] : NULL, true, &texts);
    if (code == CLI_OK) {
        scores = calloc((size_t)texts.n * (size_t)fv_task_labels(t.task), sizeof *scores);
        if (!scores)
            code = cli_fail(c, "out of memory");
        else if (fv_task_classify(t.task, texts.at, texts.n, scores, &e))
            code = cli_error(c, &e);
        else
            code = print(c, v, t.task, &texts, scores);
    }
    free(scores);
    cli_free_texts(&texts);
    cli_close_task(&t);
    return code;
}

const cli_command classify_command = {
    .name = "classify",
    .summary = "labels of texts",
    .about =
        "Reads lines and prints the label of each with its probability.  A line with a tab in it is a pair of texts.  Labels "
        "are config.json's id2label.  Probabilities exclude each other (softmax) unless problem_type says that several "
        "labels may hold at once; a regression's value is printed as it is.  Texts longer than the model sees are cut.",
    .options = options,
    .size = sizeof(classify_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
