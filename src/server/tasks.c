/* tasks.c - what models with a head of their own are asked: classify, tag, answer, fill, rerank.
 *
 * A route reads its fields, runs the task on the engine's thread, and writes a list with one entry
 * for each text.  Tasks put texts of like length into one batch themselves, so a request with many
 * texts is the way to have a batch; requests of several clients are not put together, since a
 * batch of an encoder is done within a step's time anyway. */
#include <stdlib.h>
#include <string.h>

#include "media.h"

#define BAD "invalid_request_error"

/* What every task does in the thread of the connection: fields checked, the engine found, the work
 * queued. */
static void begin(sv_request *r, const char *const *keys, sv_work_fn *fn)
{
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, fn);
}

static void finish(sv_request *r, sv_text *t)
{
    sv_put(t, "]}\n");
    sv_answer(r, 200, NULL, t);
}

/* ---- labels ---- */

typedef struct scored {
    float score;
    int i;
} scored;

/* Equal scores stay in the order of the labels: qsort alone would not. */
static int best_first(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->i - y->i;
}

/* `by` is scratch of as many entries as the model has labels. */
static void write_labels(sv_text *t, const fv_task *task, const float *score, scored *by,
                         int64_t top)
{
    int n = fv_task_labels(task);
    for (int i = 0; i < n; i++) by[i] = (scored){score[i], i};
    qsort(by, (size_t)n, sizeof *by, best_first);
    sv_open(t, '{');
    sv_key(t, "labels");
    sv_open(t, '[');
    for (int i = 0; i < n && i < top; i++) {
        sv_open(t, '{');
        sv_string_at(t, "label", fv_task_label(task, by[i].i));
        sv_real_at(t, "score", (double)by[i].score);
        sv_close(t, '}');
    }
    sv_close(t, ']');
    sv_close(t, '}');
}

/* Scores are by softmax or sigmoid, as the model was trained (fv_task_many). */
static void classify(sv_engine *g, sv_request *r)
{
    int64_t n, top = 1 << 20;
    fv_err e;
    if (g->media && !strcmp(g->media, "classify")) {
        sv_see_images(g, r);
        return;
    }
    fv_task *task = sv_engine_task(g, r, FV_JOB_CLASSIFY);
    if (!task || !sv_get_int(r, "top", 1, 1 << 20, &top)) return;
    fv_text *texts = sv_read_texts(r, "input", true, &n);
    if (!texts) return;
    int64_t labels = fv_task_labels(task);
    float *score = malloc((size_t)(n * labels) * sizeof *score);
    scored *by = malloc((size_t)labels * sizeof *by);
    if (!score || !by) fv_fail(&e, FV_ENOMEM, "out of memory");
    if (!score || !by || fv_task_classify(task, texts, n, score, &e)) {
        sv_refuse_error(r, &e);
    } else {
        sv_text t = {0};
        sv_begin_list(&t, g, "data");
        for (int64_t i = 0; i < n; i++) write_labels(&t, task, score + i * labels, by, top);
        finish(r, &t);
    }
    free(by);
    free(score);
    free(texts);
}

void sv_classify(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "top", NULL};
    begin(r, keys, classify);
}

/* ---- relevance ---- */

/* One number for a document: a model of one label gives it, of two the second one's. */
static void write_ranking(sv_text *t, const fv_text *texts, const float *logits, int64_t n,
                          int64_t labels, int64_t top, bool with_text, scored *by)
{
    for (int64_t i = 0; i < n; i++) by[i] = (scored){logits[i * labels + labels - 1], (int)i};
    qsort(by, (size_t)n, sizeof *by, best_first);
    for (int64_t i = 0; i < n && i < top; i++) {
        sv_open(t, '{');
        sv_int_at(t, "index", by[i].i);
        sv_real_at(t, "relevance_score", (double)by[i].score);
        if (with_text) {
            sv_key(t, "document");
            sv_open(t, '{');
            sv_key(t, "text");
            sv_string(t, texts[by[i].i].pair, texts[by[i].i].pair_n);
            sv_close(t, '}');
        }
        sv_close(t, '}');
    }
}

/* A cross-encoder: query and document are one input, and the score is the logit of relevance, the
 * only one or the second of two. All documents go through the model together. */
static void rerank(sv_engine *g, sv_request *r)
{
    int64_t n, top = 1 << 20;
    const char *query = NULL;
    size_t len = 0;
    bool with_text = false;
    fv_err e;
    fv_task *task = sv_engine_task(g, r, FV_JOB_CLASSIFY);
    if (!task || !sv_get_int(r, "top_n", 1, 1 << 20, &top) ||
        !sv_get_text(r, "query", &query, &len) || !sv_get_bool(r, "return_documents", &with_text))
        return;
    if (!query || fv_task_labels(task) > 2) {
        sv_refuse(r, 400, BAD, query ? "model" : "query",
                  "a query, documents, and a model of one or two labels are needed");
        return;
    }
    fv_text *texts = sv_read_texts(r, "documents", false, &n);
    if (!texts) return;
    for (int64_t i = 0; i < n; i++)
        texts[i] = (fv_text){.s = query, .n = len, .pair = texts[i].s, .pair_n = texts[i].n};
    int64_t labels = fv_task_labels(task);
    float *logits = malloc((size_t)(n * labels) * sizeof *logits);
    scored *by = malloc((size_t)n * sizeof *by);
    if (!logits || !by) fv_fail(&e, FV_ENOMEM, "out of memory");
    if (!logits || !by || fv_task_classify(task, texts, n, logits, &e)) {
        sv_refuse_error(r, &e);
    } else {
        sv_text t = {0};
        sv_begin_list(&t, g, "results");
        write_ranking(&t, texts, logits, n, labels, top, with_text, by);
        finish(r, &t);
    }
    free(by);
    free(logits);
    free(texts);
}

void sv_rerank(sv_request *r)
{
    static const char *const keys[] = {"model", "query", "documents", "top_n", "return_documents",
                                       NULL};
    begin(r, keys, rerank);
}

/* ---- spans ---- */

/* Entities come in the order of texts and positions, so one walk shares them out. */
static void tag(sv_engine *g, sv_request *r)
{
    int64_t n, found = 0, at = 0;
    const char *join = "first";
    fv_entity *e = NULL;
    fv_err err;
    fv_task *task = sv_engine_task(g, r, FV_JOB_TAG);
    if (!task || !sv_get_text(r, "join", &join, NULL)) return;
    bool simple = !strcmp(join, "simple");
    if (!simple && strcmp(join, "first")) {
        sv_refuse(r, 400, BAD, "join", "join: first or simple");
        return;
    }
    fv_text *texts = sv_read_texts(r, "input", false, &n);
    if (!texts) return;
    if (fv_task_tag(task, texts, n, simple ? FV_JOIN_SIMPLE : FV_JOIN_FIRST, &e, &found, &err)) {
        sv_refuse_error(r, &err);
    } else {
        sv_text t = {0};
        sv_begin_list(&t, g, "data");
        for (int64_t i = 0; i < n; i++) {
            sv_put(&t, i ? ",{\"entities\":[" : "{\"entities\":[");
            for (; at < found && e[at].text == i; at++) {
                sv_open(&t, '{');
                sv_string_at(&t, "label", e[at].label);
                sv_key(&t, "text");
                sv_string(&t, e[at].s, e[at].n);
                sv_int_at(&t, "from", e[at].from);
                sv_int_at(&t, "to", e[at].to);
                sv_real_at(&t, "score", (double)e[at].score);
                sv_close(&t, '}');
            }
            sv_put(&t, "]}");
        }
        finish(r, &t);
    }
    free(texts);
}

void sv_tag(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "join", NULL};
    begin(r, keys, tag);
}

static bool read_question(sv_request *r, fv_text *text, fv_answer_opt *o)
{
    if (!sv_get_text(r, "question", &text->s, &text->n) ||
        !sv_get_text(r, "context", &text->pair, &text->pair_n) ||
        !sv_get_int(r, "top", 1, 64, &o->k) || !sv_get_bool(r, "or_none", &o->or_none) ||
        !sv_get_int(r, "max_answer_tokens", 1, 512, &o->longest))
        return false;
    if (text->s && text->pair) return true;
    sv_refuse(r, 400, BAD, text->s ? "context" : "question", "a question and a context are needed");
    return false;
}

/* Spans point into the context that was sent; from and to count characters, as Python slices do. */
static void answer(sv_engine *g, sv_request *r)
{
    fv_text text = {0};
    fv_answer_opt o = {0};
    fv_answer *found;
    int64_t n;
    fv_err e;
    fv_task *task = sv_engine_task(g, r, FV_JOB_ANSWER);
    if (!task || !read_question(r, &text, &o)) return;
    if (fv_task_answer(task, &text, 1, o, &found, &n, &e)) {
        sv_refuse_error(r, &e);
        return;
    }
    sv_text t = {0};
    sv_begin_list(&t, g, "answers");
    for (int64_t i = 0; i < n; i++) {
        sv_open(&t, '{');
        sv_key(&t, "text");
        sv_string(&t, found[i].s ? found[i].s : "", found[i].n);
        sv_int_at(&t, "from", found[i].from);
        sv_int_at(&t, "to", found[i].to);
        sv_real_at(&t, "score", (double)found[i].score);
        sv_close(&t, '}');
    }
    finish(r, &t);
}

void sv_answer_question(sv_request *r)
{
    static const char *const keys[] = {"model",   "question",          "context", "top",
                                       "or_none", "max_answer_tokens", NULL};
    begin(r, keys, answer);
}

/* ---- masks ---- */

/* The text with the mask replaced is decoded for each candidate, since how a word piece joins its
 * neighbours is the tokenizer's business. */
static void write_fill(sv_text *t, fv_task *task, const fv_mask_found *m, int64_t k)
{
    const fv_tok *tok = fv_task_tok(task);
    sv_open(t, '{');
    sv_int_at(t, "token", m->token);
    sv_key(t, "words");
    sv_open(t, '[');
    for (int64_t i = 0; i < k; i++) {
        const char *word = fv_tok_token(tok, m->top[i].id);
        int64_t n;
        char *text = NULL;
        size_t len = 0;
        const int32_t *ids = fv_task_filled(task, m, m->top[i].id, &n);
        sv_open(t, '{');
        sv_int_at(t, "id", m->top[i].id);
        sv_string_at(t, "token", word ? word : "");
        sv_real_at(t, "score", (double)m->top[i].score);
        if (!fv_tok_decode(tok, &text, &len, ids, n, true, NULL)) {
            sv_key(t, "text");
            sv_string(t, text, len);
            fv_tok_free_text(tok, text, len);
        }
        sv_close(t, '}');
    }
    sv_close(t, ']');
    sv_close(t, '}');
}

/* Masks come in the order of texts and positions; a text may have several, each filled by itself.
 */
static void fill(sv_engine *g, sv_request *r)
{
    int64_t n, found, at = 0, top = 5;
    fv_mask_found *m;
    fv_err e;
    fv_task *task = sv_engine_task(g, r, FV_JOB_FILL);
    if (!task || !sv_get_int(r, "top", 1, 100, &top)) return;
    fv_text *texts = sv_read_texts(r, "input", false, &n);
    if (!texts) return;
    if (top > fv_tok_size(fv_task_tok(task))) top = fv_tok_size(fv_task_tok(task));
    if (fv_task_fill(task, texts, n, top, &m, &found, &e)) {
        sv_refuse_error(r, &e);
    } else {
        sv_text t = {0};
        sv_begin_list(&t, g, "data");
        for (int64_t i = 0; i < n; i++) {
            sv_put(&t, i ? ",{\"masks\":[" : "{\"masks\":[");
            for (; at < found && m[at].text == i; at++) write_fill(&t, task, &m[at], top);
            sv_put(&t, "]}");
        }
        finish(r, &t);
    }
    free(texts);
}

void sv_fill(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "top", NULL};
    begin(r, keys, fill);
}
