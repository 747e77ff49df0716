/* classify.c - fovea classify: labels of texts. */
#include <stdio.h>
#include <stdlib.h>

#include "classify.h"
#include "json.h"

static const classify_values defaults = {.top = 1,
                                         .threshold = 0.5,
                                         .hypothesis = "This example is {}.",
                                         .prompt = "Text: {}\\nLabel:"};

static const cli_option options[] = {
    CLI_MODEL(classify_values),
    CLI_INT(classify_values, top, 'k', "top", "N", 0, 1 << 20,
            "labels to print for each text, likeliest first; 0: all"),
    CLI_REAL(classify_values, threshold, 0, "threshold", "P", 0, 1,
             "where several labels may hold at once: print those of at least this probability"),
    CLI_TEXT(classify_values, labels, 'l', "labels", "A,B,C",
             "labels of your own, for a model for inference (by entailment) or a language model "
             "(by likelihood)"),
    CLI_TEXT(classify_values, hypothesis, 0, "hypothesis", "TEXT",
             "with --labels: what entailment is asked of, {} being a label"),
    CLI_TEXT(classify_values, prompt, 0, "prompt", "TEXT",
             "with --labels: what a language model reads, {} being the text"),
    CLI_FILE(classify_values, examples, 0, "examples", "FILE",
             "with --labels: solved examples for the prompt, text and label a line with a tab "
             "between them"),
    CLI_FLAG(classify_values, many, 0, "many",
             "with --labels and a model for inference: several may hold at once"),
    CLI_FLAG(classify_values, json, 0, "json", "one JSON object a line, with all labels"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'what a film' | fovea classify -m distilbert-sst2",
     "the likeliest label and its probability"},
    {"fovea classify -m roberta-mnli --top 0 pairs.tsv",
     "two texts a line with a tab between them; all labels"},
    {"fovea classify -m toxicity --json < comments.txt", "for scripts"},
    {"fovea classify -m bart-large-mnli --labels sport,politics,science news.txt",
     "labels nobody trained it on"},
    {"fovea classify -m gpt2 --labels positive,negative --examples solved.tsv reviews.txt",
     "by likelihood, after a few examples"},
    {0},
};

typedef struct scored {
    int label;
    float score;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : x->label - y->label;
}

/* What was scored, however it was. */
typedef struct scores {
    const char *const *label;
    int n;
    bool many;    /* they do not exclude each other */
    float *score; /* (texts,n) */
} scores;

static int print_json(const cli *c, const scores *r, const fv_text *x, const scored *s)
{
    json_t *labels = json_array();
    for (int i = 0; i < r->n; i++)
        json_array_append_new(labels, json_pack("{s:s, s:o}", "label", r->label[s[i].label],
                                                "score", cli_json_number((double)s[i].score)));
    json_t *o = json_pack("{s:s%, s:o}", "text", x->s, x->n, "labels", labels);
    if (o && x->pair) json_object_set_new(o, "pair", json_stringn(x->pair, x->pair_n));
    return cli_print_json(c, o);
}

static void print_plain(const classify_values *v, const scores *r, const scored *s)
{
    int64_t top = v->top && v->top < r->n ? v->top : r->n, n = 0;
    for (int i = 0; i < (r->many ? r->n : top); i++) {
        if (r->many && (double)s[i].score < v->threshold) continue;
        printf("%s%s %.6f", n++ ? "\t" : "", r->label[s[i].label], (double)s[i].score);
    }
    printf("\n");
}

static int print(const cli *c, const classify_values *v, const scores *r, const cli_texts *texts)
{
    int code = CLI_OK;
    scored *s = calloc((size_t)r->n, sizeof *s);
    if (!s) return cli_fail(c, "out of memory");
    for (int64_t i = 0; i < texts->n && code == CLI_OK; i++) {
        for (int k = 0; k < r->n; k++) s[k] = (scored){k, r->score[i * r->n + k]};
        qsort(s, (size_t)r->n, sizeof *s, by_score);
        if (v->json)
            code = print_json(c, r, &texts->at[i], s);
        else
            print_plain(v, r, s);
    }
    free(s);
    return code;
}

/* By the labels that the model was trained on. */
static int with_its_labels(const cli *c, const classify_values *v, const cli_texts *texts)
{
    cli_task t;
    fv_err e;
    scores r = {0};
    const char **names = NULL;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_CLASSIFY);
    if (code == CLI_OK) {
        r.n = fv_task_labels(t.task);
        r.many = fv_task_many(t.task);
        r.score = calloc((size_t)texts->n * (size_t)r.n, sizeof *r.score);
        r.label = names = calloc((size_t)r.n, sizeof *names);
        if (!r.score || !names) code = cli_fail(c, "out of memory");
    }
    for (int i = 0; code == CLI_OK && i < r.n; i++) names[i] = fv_task_label(t.task, i);
    if (code == CLI_OK && fv_task_classify(t.task, texts->at, texts->n, r.score, &e))
        code = cli_error(c, &e);
    if (code == CLI_OK) code = print(c, v, &r, texts);
    free(names);
    free(r.score);
    cli_close_task(&t);
    return code;
}

static int with_given_labels(const cli *c, const classify_values *v, const cli_texts *texts)
{
    label_list labels;
    scores r = {.many = v->many};
    int code = read_labels(c, v->labels, &labels);
    if (code == CLI_OK) {
        r.label = labels.at;
        r.n = labels.n;
        r.score = calloc((size_t)texts->n * (size_t)r.n, sizeof *r.score);
        code = r.score ? score_labels(c, v, texts, &labels, r.score) : cli_fail(c, "out of memory");
    }
    if (code == CLI_OK) code = print(c, v, &r, texts);
    free(r.score);
    free_labels(&labels);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const classify_values *v = values;
    cli_texts texts = {0};
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    int code = cli_read_texts(c, n ? operand[0] : NULL, v->labels ? 0 : CLI_PAIRS, &texts);
    if (code == CLI_OK) code = (v->labels ? with_given_labels : with_its_labels)(c, v, &texts);
    cli_free_texts(&texts);
    return code;
}

const cli_command classify_command = {
    .name = "classify",
    .summary = "labels of texts",
    .about = "Reads lines and prints the label of each with its probability.  A line with a tab in "
             "it is a pair of texts.  Labels "
             "are config.json's id2label.  Probabilities exclude each other (softmax) unless "
             "problem_type says that several "
             "labels may hold at once; a regression's value is printed as it is.  Texts longer "
             "than the model sees are cut.\n\n"
             "With --labels the model need not know them.  One trained for inference (MNLI) is "
             "asked whether \"This example is "
             "LABEL.\" follows from the text, as transformers' zero-shot pipeline does; a language "
             "model is asked how likely it is "
             "to write LABEL behind a prompt, which --examples begins with some that are solved; "
             "one that fills masks is asked for "
             "each "
             "token of LABEL there.",
    .options = options,
    .size = sizeof(classify_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
