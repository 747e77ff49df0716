/* answer_passages.c - the files of a folder cut into passages, and those nearest to a question.
 *
 * A passage is what an encoder sees well at once: paragraphs are joined up to some hundred words,
 * longer ones are cut between words.
 *
 * With an embedder vectors of all passages are kept, (n,width) floats: a folder of 10,000 passages
 * is 30 MB at a width of 768.  Without one passages are ranked by BM25, which needs no model and
 * finds names and rare words that a small embedder has never seen. */
#include <stdio.h>

#include "fovea/author/words.h"
#include "task_pipeline.h"

#define LONGEST 1000 /* bytes of a passage */

/* A file that was read; a list, so that names and texts stay where they are. */
typedef struct fv_passage_file {
    struct fv_passage_file *next;
    fv_textfile *text;
    char path[FV_PATH];
} fv_passage_file;

/* ---- passages ---- */

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The end of the passage that begins at s: behind a paragraph if one ends in reach, else between
 * two words. */
static size_t passage_end(const char *s, size_t n)
{
    if (n <= LONGEST) return n;
    size_t word = LONGEST;
    for (size_t i = LONGEST; i > LONGEST / 4; i--)
        if (s[i] == '\n' && s[i - 1] == '\n') return i;
    while (word && !blank(s[word])) word--;
    if (word) return word;
    /* one endless word: at least no half character */
    for (word = LONGEST; (s[word] & 0xC0) == 0x80;) word--;
    return word;
}

/* Views into the file's text: nothing is copied. `from` counts characters before the passage, so
 * that answers can say where they stand in the file. */
static void split(fv_passages *p, const char *file, const char *s, size_t n)
{
    int64_t chars = 0;
    for (size_t at = 0; at < n;) {
        if (blank(s[at])) {
            at++, chars++;
            continue;
        }
        size_t len = passage_end(s + at, n - at), used = len;
        while (used && blank(s[at + used - 1])) used--;
        fv_passage x = {.file = file, .text = {.s = s + at, .n = used}, .from = chars};
        fv__buf_add(&p->at, &x, sizeof x);
        for (size_t i = at; i < at + len; i++) chars += (s[i] & 0xC0) != 0x80;
        at += len;
    }
    p->n = (int64_t)(p->at.len / sizeof(fv_passage));
}

/* ---- files ---- */

/* The file is in the list before it is opened, so that closing finds it whatever happens. */
static fv_status read_file(void *user, const char *path, fv_err *e)
{
    fv_passages *p = user;
    fv_err why;
    fv_passage_file *f = fv__alloc(p->env, sizeof *f);
    if (!f) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    snprintf(f->path, sizeof f->path, "%s", path);
    f->next = p->files;
    p->files = f;
    if (fv_textfile_open(&f->text, p->env, f->path, &why)) {
        /* one that may not be read is passed over; a damaged file is not */
        return why.code == FV_EIO ? FV_OK : fv_fail(e, why.code, "%s", why.text);
    }
    size_t n, bad;
    const char *s = fv_textfile_all(f->text, &n);
    bad = fv__utf8_check(s, n);
    if (bad < n) return fv_fail(e, FV_EFORMAT, "%s: not UTF-8 at byte %zu", f->path, bad + 1);
    split(p, f->path, s, n);
    return p->at.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", f->path) : FV_OK;
}

/* Every passage is a document of the collection that BM25 ranks. */
static fv_status count_words(fv_passages *p, fv_err *e)
{
    const fv_passage *all = (const fv_passage *)(void *)p->at.data;
    fv_status st = fv_words_new(&p->words, p->env, (fv_words_opt){0}, e);
    for (int64_t i = 0; i < p->n && !st; i++)
        st = fv_words_add(p->words, all[i].text.s, all[i].text.n, e);
    return st ? st : fv_words_end(p->words, e);
}

/* All passages are embedded once, when the task is opened; a question then costs one embedding and
 * a product with (n,width). */
fv_status fv__passages_open(fv_passages *p, const fv_env *env, const char *dir, fv_task *embedder,
                            fv_err *e)
{
    *p = (fv_passages){.env = env, .at.env = env, .width = embedder ? fv_task_width(embedder) : 0};
    fv_status st = fv__each_file(env, dir, read_file, p, e);
    if (!st && !p->n) st = fv_fail(e, FV_EARG, "%s: no text in it", dir);
    if (st) return st;
    if (!embedder) return count_words(p, e);
    const fv_passage *all = (const fv_passage *)(void *)p->at.data;
    size_t bytes = (size_t)p->n * sizeof(fv_text);
    fv_text *texts = fv__alloc(env, bytes);
    p->vector_bytes = (size_t)(p->n * p->width) * sizeof(float);
    p->vectors = fv__alloc(env, p->vector_bytes);
    if (!texts || !p->vectors) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    for (int64_t i = 0; i < p->n && !st; i++) texts[i] = all[i].text;
    if (!st) st = fv_task_embed(embedder, texts, p->n, (fv_embed_opt){0}, p->vectors, e);
    fv__free(env, texts, bytes);
    return st;
}

void fv__passages_close(fv_passages *p)
{
    for (fv_passage_file *f = p->files, *next; f; f = next) {
        next = f->next;
        fv_textfile_close(f->text);
        fv__free(p->env, f, sizeof *f);
    }
    fv__free(p->env, p->vectors, p->vector_bytes);
    fv_words_free(p->words);
    fv__buf_free(&p->at);
    *p = (fv_passages){0};
}

/* ---- the nearest ---- */

/* The best so far, best first; of equal ones the first to come. */
typedef struct best_list {
    double score[64];
    int64_t *at; /* their passages */
    int64_t n, most;
} best_list;

static void offer(best_list *l, double score, int64_t i)
{
    int64_t at = l->n < l->most ? l->n++ : l->most;
    if (at == l->most && !(score > l->score[--at])) return;
    for (; at > 0 && score > l->score[at - 1]; at--)
        l->score[at] = l->score[at - 1], l->at[at] = l->at[at - 1];
    l->score[at] = score;
    l->at[at] = i;
}

/* Vectors have length 1, so products are cosines. */
static void by_vectors(const fv_passages *p, const float *question, best_list *l)
{
    for (int64_t i = 0; i < p->n; i++) {
        double product = 0;
        for (int64_t j = 0; j < p->width; j++)
            product += (double)question[j] * (double)p->vectors[i * p->width + j];
        offer(l, product, i);
    }
}

/* Lucene's formula: its weights of words are positive in a folder of any size, where Okapi's are
 * not for words of more than half of the passages.  scores (n) */
static fv_status by_words(const fv_passages *p, const fv_text *question, double *scores,
                          best_list *l, fv_err *e)
{
    fv_bm25_opt how = {.formula = FV_BM25_LUCENE};
    fv_status st = fv_words_bm25(p->words, question->s, question->n, how, scores, e);
    for (int64_t i = 0; i < p->n && !st; i++) offer(l, scores[i], i);
    return st;
}

/* An exact search: a folder has thousands of passages, not the millions that an index pays for. */
fv_status fv__passages_nearest(const fv_passages *p, fv_task *embedder, const fv_text *questions,
                               int64_t n, int64_t most, int64_t *nearest, fv_err *e)
{
    size_t bytes = embedder ? (size_t)(n * p->width) * sizeof(float)
                            : (size_t)p->n * sizeof(double);
    void *work = fv__alloc(p->env, bytes);
    if (!work) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = FV_OK;
    if (embedder) st = fv_task_embed(embedder, questions, n, (fv_embed_opt){0}, work, e);
    for (int64_t i = 0; i < n && !st; i++) {
        best_list l = {.at = nearest + i * most, .most = most};
        if (embedder)
            by_vectors(p, (const float *)work + i * p->width, &l);
        else
            st = by_words(p, &questions[i], work, &l, e);
    }
    fv__free(p->env, work, bytes);
    return st;
}
