/* eval_tag.c - entities as conlleval counts them, on a file of CoNLL columns.
 *
 * Sentences come as words (CoNLL's columns) and the model labels each word by its first piece.
 * conlleval's rules decide what an entity is: B- begins one, so does I- behind another type or
 * behind O, which is how IOB1 and IOB2 are read alike. */
#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_tagged *text;
    fv_entities found;
} work;

/* Compares sentence i; result: the labels that the model gave its words. */
static fv_status count(void *user, int64_t i, const void *result, size_t bytes, fv_err *e)
{
    work *w = user;
    const int32_t *labels = result;
    const char *const *word, *const *tag;
    fv_buf *b = &w->r->predictions;
    int64_t line, n = fv_tagged_sentence(w->text, i, &word, &tag, &line);
    size_t size = (size_t)(n + 1) * sizeof(char *);
    const char **given = fv__alloc(&w->r->env, size);
    (void)bytes;
    if (!given) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t k = 0; k < n; k++) given[k] = labels[k] < 0 ? "O" : w->task->label[labels[k]];
    fv_entities_add(&w->found, tag, given, n);
    for (int64_t k = 0; k < n; k++) fv__buf_fmt(b, "%s %s %s\n", word[k], tag[k], given[k]);
    fv__buf_str(b, "\n");
    fv__free(&w->r->env, given, size);
    return FV_OK;
}

/* Words come cut already: a sentence is not joined and split again, so tags stay with their words.
 */
static fv_status run_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    int64_t words = 0, line;
    const char *const *tag;
    const fv_env *env = &w->r->env;
    fv__sentence *s = fv__alloc(env, (size_t)n * sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n; words += s[i++].n)
        s[i].n = fv_tagged_sentence(w->text, from + i, &s[i].word, &tag, &line);
    size_t bytes = (size_t)(words + 1) * sizeof(int32_t);
    int32_t *labels = fv__alloc(env, bytes);
    fv_status st = labels ? fv__task_tag_words(w->task, s, n, labels, e)
                          : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0, at = 0; !st && i < n; at += s[i++].n)
        fv__eval_give(out, labels + at, (size_t)s[i].n * sizeof *labels);
    fv__free(env, labels, bytes);
    fv__free(env, s, (size_t)n * sizeof *s);
    return st;
}

static double word_accuracy(const fv_entities *x)
{
    return 100 * (double)x->right_words / (double)x->words;
}

/* Entities are counted as conlleval does: right are type and both ends; accuracy is by word. */
static void put_json(const work *w)
{
    const fv_entities *x = &w->found;
    fv_buf *b = &w->r->out;
    fv__json_begin(b, '{');
    fv__eval_match_json(b, x->all);
    fv__json_text_at(b, "task", "tag", 3);
    fv__json_int_at(b, "records", fv_tagged_count(w->text));
    fv__json_int_at(b, "words", x->words);
    fv__json_number_at(b, "accuracy", word_accuracy(x));
    fv__json_key(b, "types");
    fv__json_begin(b, '[');
    for (int i = 0; i < x->n; i++) {
        fv__json_begin(b, '{');
        fv__eval_match_json(b, x->type[i].match);
        fv__json_text_at(b, "type", x->type[i].name, strlen(x->type[i].name));
        fv__json_end(b, '}');
    }
    fv__buf_str(b, "]}\n");
}

static void put_plain(const work *w)
{
    const fv_entities *x = &w->found;
    fv_buf *b = &w->r->out;
    int width = 8;
    for (int i = 0; i < x->n; i++)
        width = (int)strlen(x->type[i].name) > width ? (int)strlen(x->type[i].name) : width;
    fv__buf_fmt(b, "%-*s %9.2f  of %lld words in %lld sentences\n", width, "accuracy",
                word_accuracy(x), (long long)x->words, (long long)fv_tagged_count(w->text));
    fv__eval_row(b, NULL, width, (fv_match){0});
    fv__eval_row(b, "entities", width, x->all);
    for (int i = 0; i < x->n; i++) fv__eval_row(b, x->type[i].name, width, x->type[i].match);
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    fv_data_report report = {0};
    work w = {.r = r};
    if (!r->opt->file) return fv_fail(e, FV_EUSAGE, "a file of words with their tags is needed");
    fv_records from = fv__eval_records(r);
    fv_status st = fv__eval_encoder(r, &w.task, FV_JOB_TAG, e);
    if (!st) st = fv_tagged_open(&w.text, &r->env, &from, &report, e);
    if (!st)
        st = fv__eval_slices(r, fv_tagged_count(w.text), &(fv_slices){run_slice, count, 0}, &w, e);
    if (!st && r->opt->json)
        put_json(&w);
    else if (!st)
        put_plain(&w);
    fv_tagged_close(w.text);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_TAG, FV_HEAD_BASE};
const fv_task_eval fv__eval_tag = {.name = "tag", .heads = heads, .run = run};
