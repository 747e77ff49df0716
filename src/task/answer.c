/* answer.c - the task answer: questions on lines, answers from a context or from the passages
 * of a folder that are nearest to the question.
 *
 *     question -> (context | its nearest passages) -> pairs -> spans with scores -> best of all
 *
 * With --docs retrieval comes first (answer_passages.c: by BM25, or by vectors of all passages) and
 * reading second; the score that is printed is the reader's alone. Offsets are in characters of the
 * file, so passages add where they begin. */
#include <stdlib.h>

#include "task_pipeline.h"

typedef struct answer_options {
    char context[FV_PATH], docs[FV_PATH], embedder[FV_PATH];
    int64_t passages, top, window, stride, longest;
    bool or_none;
} answer_options;

static const fv_field options[] = {
    FV_TEXT(answer_options, context, "", "FILE: the text that holds the answers"),
    FV_TEXT(answer_options, docs, "",
            "DIR: instead a folder of texts; the passages nearest to a question are read"),
    FV_TEXT(answer_options, embedder, "",
            "DIR: with --docs a model that compares questions and passages; without it BM25 does"),
    FV_INT(answer_options, passages, 1, 5, 64, "with --docs: passages to read for a question"),
    FV_INT(answer_options, top, 1, 1, 1000, "answers to a question, best first"),
    FV_INT(answer_options, window, 0, 0, 1 << 20,
           "tokens read at once, the question included; 0: 384 or fewer"),
    FV_INT(answer_options, stride, 0, 0, 1 << 20,
           "tokens that windows share; 0: half of one, at most 128"),
    FV_INT(answer_options, longest, 1, 15, 1000, "tokens of an answer, at most"),
    FV_BOOL(answer_options, or_none, false,
            "the text may hold no answer (models trained on SQuAD 2)"),
    {0}};

/* Owned by the pipeline and closed with it; the embedder is a second model on the same device. */
typedef struct sources {
    fv_textfile *context;
    fv_task *embedder;
    fv_passages passages;
} sources;

/* Where answers are looked for: one text, or a folder of which the nearest passages are read. */
static fv_status check(fv_pipeline *p, fv_err *e)
{
    const answer_options *o = p->options;
    /* Exactly one of the two. */
    if (!o->context[0] == !o->docs[0])
        return fv_fail(e, FV_EUSAGE, "where to look is needed: --context FILE or --docs DIR");
    if (o->embedder[0] && !o->docs[0])
        return fv_fail(e, FV_EUSAGE, "embedder: it finds passages of a folder: --docs DIR");
    return FV_OK;
}

/* Either one context for all questions, or a folder whose passages are found by BM25 or by an
 * embedder: two models then, the reader and the retriever. */
static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const answer_options *o = p->options;
    fv_model_opt opt = {.weights = p->opt.weights, .widen = p->opt.widen};
    fv_status st = fv__pipeline_self(p, sizeof(sources), e);
    if (!st) st = fv__open_encoder(p, FV_JOB_ANSWER, e);
    sources *s = p->self;
    /* bf16 weights are computed in bf16, as the reader's are. */
    if (opt.weights == FV_BF16) opt.dtype = FV_BF16;
    if (!st && o->context[0]) return fv_textfile_open(&s->context, &p->env, o->context, e);
    if (!st && o->embedder[0])
        st = fv_task_open(&s->embedder, p->dev, o->embedder, FV_JOB_EMBED, opt, e);
    return st ? st : fv__passages_open(&s->passages, &p->env, o->docs, s->embedder, e);
}

static void close_task(fv_pipeline *p)
{
    sources *s = p->self;
    if (!s) return;
    fv_textfile_close(s->context);
    fv__passages_close(&s->passages);
    fv_task_close(s->embedder);
}

/* ---- answers ---- */

/* An answer with the file it is from; NULL: the context. */
typedef struct located {
    fv_answer answer;
    const char *file;
} located;

/* Stable is not needed: scores of equal answers print alike. */
static int by_question_and_score(const void *a, const void *b)
{
    const fv_answer *x = &((const located *)a)->answer, *y = &((const located *)b)->answer;
    if (x->text != y->text) return x->text < y->text ? -1 : 1;
    return (x->score < y->score) - (x->score > y->score);
}

/* start and end count characters of the context or the file, as transformers' pipeline does. */
static void put_answer(fv_buf *b, const located *x, bool json)
{
    const fv_answer *a = &x->answer;
    if (!json) {
        fv__buf_fmt(b, "%.6f\t%lld\t%lld\t", (double)a->score, (long long)a->from,
                    (long long)a->to);
        fv__put_flat(b, a->s, a->n);
        fv__buf_fmt(b, "%s%s\n", x->file ? "\t" : "", x->file ? x->file : "");
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "answer", a->s, a->n);
    fv__json_number_at(b, "score", (double)a->score);
    fv__json_int_at(b, "start", a->from);
    fv__json_int_at(b, "end", a->to);
    if (x->file) fv__json_text_at(b, "file", x->file, strlen(x->file));
    fv__json_end(b, '}');
}

static fv_status put_all(fv_pipeline *p, const fv_text *in, int64_t n, const located *x,
                         int64_t n_found, fv_err *e)
{
    const answer_options *o = p->options;
    fv_status st = FV_OK;
    for (int64_t i = 0, at = 0; i < n && !st; i++) {
        if (p->opt.json) {
            fv__json_begin(&p->out, '{');
            fv__json_text_at(&p->out, "question", in[i].s, in[i].n);
            fv__json_key(&p->out, "answers");
            fv__json_begin(&p->out, '[');
        } else if (o->top > 1 && p->first + p->done > 1) {
            fv__buf_str(&p->out, "\n"); /* between questions that have several answers */
        }
        /* Answers are sorted by question, and those beyond --top are passed over. */
        for (int64_t k = 0; at < n_found && x[at].answer.text == i; at++, k++)
            if (k < o->top) put_answer(&p->out, &x[at], p->opt.json);
        if (p->opt.json) fv__buf_str(&p->out, "]}\n");
        st = fv__task_emit(p, e);
    }
    return st;
}

/* ---- where to look ---- */

/* n * each pairs of a question and what may hold its answer. */
typedef struct asked {
    fv_text *texts;
    int64_t *nearest; /* the passage of each; NULL: the context */
    int64_t n, each;
} asked;

/* Each question beside each of its passages: the model reads pairs. */
static fv_status pair_up(fv_pipeline *p, asked *a, const fv_text *in, int64_t n, fv_err *e)
{
    sources *s = p->self;
    const fv_passage *all = (const fv_passage *)(void *)s->passages.at.data;
    fv_status st = FV_OK;
    if (a->nearest)
        st = fv__passages_nearest(&s->passages, s->embedder, in, n, a->each, a->nearest, e);
    for (int64_t i = 0; i < a->n && !st; i++) {
        fv_text *x = &a->texts[i];
        *x = in[i / a->each];
        if (a->nearest)
            x->pair = all[a->nearest[i]].text.s, x->pair_n = all[a->nearest[i]].text.n;
        else
            x->pair = fv_textfile_all(s->context, &x->pair_n);
    }
    return st;
}

/* Answers of all passages of a question compete; the best of them are kept. */
static fv_status find(fv_pipeline *p, const asked *a, const fv_text *in, int64_t n, fv_err *e)
{
    const answer_options *o = p->options;
    const sources *s = p->self;
    const fv_passage *all = (const fv_passage *)(void *)s->passages.at.data;
    fv_answer_opt how = {.k = o->top,
                         .longest = o->longest,
                         .window = o->window,
                         .stride = o->stride,
                         .or_none = o->or_none};
    fv_answer *found;
    int64_t n_found;
    fv_status st = fv_task_answer(p->task, a->texts, a->n, how, &found, &n_found, e);
    if (st) return st;
    located *x = fv__task_claim(p->task, (size_t)(n_found + 1) * sizeof *x, e);
    if (!x) return FV_ENOMEM;
    for (int64_t i = 0; i < n_found; i++) {
        const fv_passage *from = a->nearest ? &all[a->nearest[found[i].text]] : NULL;
        x[i] = (located){.answer = found[i], .file = from ? from->file : NULL};
        /* From the number of the pair to the number of the question. */
        x[i].answer.text /= a->each;
        x[i].answer.from += from ? from->from : 0;
        x[i].answer.to += from ? from->from : 0;
    }
    qsort(x, (size_t)n_found, sizeof *x, by_question_and_score);
    return put_all(p, in, n, x, n_found, e);
}

/* Every question is paired with each of its passages; the reader sees all pairs of a batch
 * together, and the best answers of a question are chosen from all of its passages. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const answer_options *o = p->options;
    const sources *s = p->self;
    asked a = {.each = 1};
    /* A folder may hold fewer passages than are asked for. */
    if (!s->context) a.each = o->passages < s->passages.n ? o->passages : s->passages.n;
    a.n = n * a.each;
    size_t bytes = (size_t)a.n * (sizeof *a.texts + sizeof *a.nearest);
    a.texts = fv__alloc(&p->env, bytes);
    if (!a.texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    if (!s->context) a.nearest = (int64_t *)(void *)(a.texts + a.n);
    fv_status st = pair_up(p, &a, in, n, e);
    if (!st) st = find(p, &a, in, n, e);
    fv__free(&p->env, a.texts, bytes);
    return st;
}

static const fv_task_example examples[] = {
    {"echo 'Who wrote it?' | fovea answer -m bert-squad -c book.txt",
     "score, from, to, answer; books are read window by window"},
    {"fovea answer -m bert-squad --docs notes < questions.txt",
     "from the passages of a folder that BM25 ranks first"},
    {"fovea answer -m bert-squad --docs notes --embedder all-MiniLM-L6-v2 < questions.txt",
     "from those whose vectors are nearest to the question's"},
    {0}};

const fv_task_kind fv__answer_task = {
    .name = "answer",
    .summary = "answer questions from a text or a folder of texts",
    .about = "Reads questions, one a line, and prints for each the span of the context that "
             "answers it best: its score, where it stands (in characters) and its words.  A "
             "context may be of any length: it is read in windows that overlap.  Where several "
             "answers are asked for, an empty line stands between two questions.\n\n"
             "With --docs the files of a folder are cut into passages, those nearest to the "
             "question are found by BM25 or by their vectors (--embedder, a model as for \"fovea "
             "embed\"), and the best answer of these is printed with its file.",
    .examples = examples,
    .options = options,
    .size = sizeof(answer_options),
    .batch = 16,
    .check = check,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_answer};
