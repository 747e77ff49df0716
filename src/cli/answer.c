/* answer.c - fovea answer: answers to questions, found as spans of a text or of the files of a
 * folder. */
#include <stdio.h>
#include <stdlib.h>

#include "json.h"
#include "passages.h"

typedef struct answer_values {
    cli_model model;
    const char *context, *docs, *embedder;
    int64_t top, passages, window, stride, longest;
    bool or_none, json;
} answer_values;

static const answer_values defaults = {.top = 1, .passages = 5, .longest = 15};

static const cli_option options[] = {
    CLI_MODEL(answer_values),
    CLI_FILE(answer_values, context, 'c', "context", "FILE", "the text that holds the answers"),
    CLI_DIR(answer_values, docs, 'd', "docs", "DIR",
            "instead: a folder of texts; the passages nearest to a question are read"),
    CLI_DIR(answer_values, embedder, 'e', "embedder", "DIR",
            "with --docs: the model that compares questions and passages"),
    CLI_INT(answer_values, passages, 0, "passages", "N", 1, 64,
            "with --docs: passages to read for a question"),
    CLI_INT(answer_values, top, 'k', "top", "N", 1, 1000, "answers to a question, best first"),
    CLI_INT(answer_values, window, 0, "window", "N", 0, 1 << 20,
            "tokens read at once, the question included; 0: 384 or fewer"),
    CLI_INT(answer_values, stride, 0, "stride", "N", 0, 1 << 20,
            "tokens that windows share; 0: half of one, at most 128"),
    CLI_INT(answer_values, longest, 0, "longest", "N", 1, 1000, "tokens of an answer, at most"),
    CLI_FLAG(answer_values, or_none, 0, "or-none",
             "the text may hold no answer (models trained on SQuAD 2)"),
    CLI_FLAG(answer_values, json, 0, "json", "one JSON object a line: question and answers"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'Who wrote it?' | fovea answer -m bert-squad -c book.txt",
     "score, from, to, answer; books are read window by window"},
    {"fovea answer -m bert-squad -d notes -e all-MiniLM-L6-v2 < questions.txt",
     "from the passages nearest to each question"},
    {0},
};

/* An answer with the file it is from; NULL: the context. */
typedef struct located {
    fv_answer answer;
    const char *file;
} located;

static int by_question_and_score(const void *a, const void *b)
{
    const fv_answer *x = &((const located *)a)->answer, *y = &((const located *)b)->answer;
    if (x->text != y->text) return x->text < y->text ? -1 : 1;
    return (x->score < y->score) - (x->score > y->score);
}

static fv_answer_opt how(const answer_values *v)
{
    return (fv_answer_opt){.k = v->top,
                           .longest = v->longest,
                           .window = v->window,
                           .stride = v->stride,
                           .or_none = v->or_none};
}

/* texts: pairs of question and what may hold the answer; each of them stands for a question and a
 * passage. */
typedef struct asked {
    fv_text *texts;
    const cli_passage **passage; /* of each; NULL: the context */
    int64_t n, each;             /* so many of them to a question */
} asked;

static int ask(const cli *c, fv_task *t, const answer_values *v, const asked *a, located **out,
               int64_t *n)
{
    fv_answer *found;
    fv_err e;
    if (fv_task_answer(t, a->texts, a->n, how(v), &found, n, &e)) return cli_error(c, &e);
    *out = calloc((size_t)*n + 1, sizeof **out);
    if (!*out) return cli_fail(c, "out of memory");
    for (int64_t i = 0; i < *n; i++) {
        const cli_passage *p = a->passage ? a->passage[found[i].text] : NULL;
        located *x = &(*out)[i];
        x->answer = found[i];
        x->answer.text /= a->each;
        if (!p) continue;
        x->file = p->file;
        x->answer.from += p->from;
        x->answer.to += p->from;
    }
    qsort(*out, (size_t)*n, sizeof **out, by_question_and_score);
    return CLI_OK;
}

static void print_plain(const located *x)
{
    const fv_answer *a = &x->answer;
    printf("%.6f\t%lld\t%lld\t", (double)a->score, (long long)a->from, (long long)a->to);
    cli_print_flat(a->s, a->n);
    printf("%s%s\n", x->file ? "\t" : "", x->file ? x->file : "");
}

static json_t *answer_json(const located *x)
{
    const fv_answer *a = &x->answer;
    json_t *o = json_pack("{s:s%, s:o, s:I, s:I}", "answer", a->s, a->n, "score",
                          cli_json_number((double)a->score), "start", (json_int_t)a->from, "end",
                          (json_int_t)a->to);
    if (o && x->file) json_object_set_new(o, "file", json_string(x->file));
    return o;
}

static int print(const cli *c, const answer_values *v, const cli_texts *questions, const located *x,
                 int64_t n)
{
    int code = CLI_OK;
    for (int64_t i = 0, at = 0; i < questions->n && code == CLI_OK; i++) {
        json_t *list = json_array();
        for (int64_t k = 0; at < n && x[at].answer.text == i; at++, k++) {
            if (k >= v->top) continue;
            if (v->json)
                json_array_append_new(list, answer_json(&x[at]));
            else
                print_plain(&x[at]);
        }
        if (v->json)
            code = cli_print_json(c, json_pack("{s:s%, s:o}", "question", questions->at[i].s,
                                               questions->at[i].n, "answers", list));
        else
            json_decref(list);
    }
    return code;
}

/* ---- where to look ---- */

static int from_context(const cli *c, const cli_texts *questions, const cli_bytes *context,
                        asked *out)
{
    *out = (asked){.texts = calloc((size_t)questions->n, sizeof *out->texts),
                   .n = questions->n,
                   .each = 1};
    if (!out->texts) return cli_fail(c, "out of memory");
    for (int64_t i = 0; i < questions->n; i++) {
        out->texts[i] = questions->at[i];
        out->texts[i].pair = context->s;
        out->texts[i].pair_n = context->n;
    }
    return CLI_OK;
}

static int from_docs(const cli *c, const answer_values *v, const cli_texts *questions,
                     const cli_passages *p, asked *out)
{
    cli_model model = v->model;
    cli_task embedder = {0};
    model.dir = v->embedder;
    *out = (asked){.each = v->passages < p->n ? v->passages : p->n};
    out->n = questions->n * out->each;
    out->texts = calloc((size_t)out->n, sizeof *out->texts);
    out->passage = calloc((size_t)out->n, sizeof *out->passage);
    int64_t *nearest = calloc((size_t)out->n, sizeof *nearest);
    int code = out->texts && out->passage && nearest ? CLI_OK : cli_fail(c, "out of memory");
    if (code == CLI_OK) code = cli_open_task(c, &embedder, &model, FV_JOB_EMBED);
    if (code == CLI_OK)
        code = cli_nearest_passages(c, embedder.task, p, questions->at, questions->n, out->each,
                                    nearest);
    for (int64_t i = 0; code == CLI_OK && i < out->n; i++) {
        out->passage[i] = &p->at[nearest[i]];
        out->texts[i] = questions->at[i / out->each];
        out->texts[i].pair = out->passage[i]->text.s;
        out->texts[i].pair_n = out->passage[i]->text.n;
    }
    free(nearest);
    cli_close_task(&embedder);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const answer_values *v = values;
    cli_task t = {0};
    cli_texts questions = {0};
    cli_bytes context = {0};
    cli_passages passages = {0};
    asked a = {0};
    located *found = NULL;
    int64_t n_found = 0;
    if (!v->context == !v->docs)
        return cli_usage(c, "where to look is needed: --context FILE or --docs DIR");
    if (v->docs && !v->embedder)
        return cli_usage(c, "--docs needs a model that compares texts: --embedder DIR");
    int code = cli_open_task(c, &t, &v->model, FV_JOB_ANSWER);
    if (code == CLI_OK && v->context) code = cli_read_all(c, v->context, &context);
    if (code == CLI_OK && v->docs) code = cli_read_passages(c, v->docs, &passages);
    if (code == CLI_OK) code = cli_read_texts(c, n ? operand[0] : NULL, 0, &questions);
    if (code == CLI_OK)
        code = v->docs ? from_docs(c, v, &questions, &passages, &a)
                       : from_context(c, &questions, &context, &a);
    if (code == CLI_OK) code = ask(c, t.task, v, &a, &found, &n_found);
    if (code == CLI_OK) code = print(c, v, &questions, found, n_found);
    free(found);
    free(a.texts);
    free(a.passage);
    free(context.s);
    cli_free_passages(&passages);
    cli_free_texts(&questions);
    cli_close_task(&t);
    return code;
}

const cli_command answer_command = {
    .name = "answer",
    .summary = "answers to questions, from a text or a folder of texts",
    .about = "Reads questions, one a line, and prints for each the span of the context that "
             "answers it best: its score, where it "
             "stands (in characters) and its words.  A context may be of any length: it is read in "
             "windows that overlap.\n\n"
             "With --docs the files of a folder are cut into passages, those nearest to the "
             "question are found by their "
             "vectors (--embedder, a model as for \"fovea embed\"), and the best answer of these "
             "is printed with its file.",
    .options = options,
    .size = sizeof(answer_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
