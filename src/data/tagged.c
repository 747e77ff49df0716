/* tagged.c - words with tags: CoNLL's columns, the word first and its tag last, an empty line
 * after a sentence.
 *
 * The shared task of 2003 tags in IOB1, where B- stands only between two entities of one kind. 
 * Models are trained on IOB2, where every entity begins with B-; what a tag becomes depends on
 * the one before it alone, so files in IOB2 stay as they are. */
#include "data/records.h"

typedef struct sentence {
    int64_t first, n; /* words */
    int64_t line;
} sentence;

struct fv_tagged {
    const fv_env *env;
    fv_buf all;               /* every word and its tag, each with a NUL behind it */
    const char **word, **tag; /* into all, once everything is read */
    size_t word_bytes, tag_bytes;
    int64_t n_words;
    sentence *sentence;
    size_t sentence_bytes;
    int64_t n, skipped; /* sentences that are wanted, and those before them in the file */
    fv__span before;    /* tag of the word before, in the file; empty at the start of a sentence */
};

static fv_status no_memory(const fv__reading *rd)
{
    return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

/* Empty lines may follow each other; a sentence without words is none. */
static fv_status end_sentence(fv__reading *rd, fv_tagged *t, int64_t line)
{
    const sentence *last = t->n ? &t->sentence[t->n - 1] : NULL;
    int64_t first = last ? last->first + last->n : 0;
    t->before = (fv__span){"", 0};
    if (first == t->n_words) return FV_OK;
    void *p = t->sentence;
    if (!fv__grow(t->env, &p, &t->sentence_bytes, (size_t)(t->n + 1) * sizeof *t->sentence))
        return no_memory(rd);
    t->sentence = p;
    t->sentence[t->n++] = (sentence){first, t->n_words - first, line};
    rd->report->records++;
    return FV_OK;
}

/* I-X that follows no X begins an entity. */
static bool begins(const fv_tagged *t, fv__span tag)
{
    if (tag.n < 2 || memcmp(tag.s, "I-", 2)) return false;
    bool inside = t->before.n == tag.n && t->before.s[0] != 'O' &&
                  !memcmp(t->before.s + 2, tag.s + 2, tag.n - 2);
    return !inside;
}

/* The tag is written as IOB2 while it is copied. */
static fv_status add_word(fv__reading *rd, fv_tagged *t, fv__span word, fv__span tag)
{
    bool b = begins(t, tag);
    fv__buf_add(&t->all, word.s, word.n);
    fv__buf_add(&t->all, "", 1);
    fv__buf_add(&t->all, b ? "B" : tag.s, 1);
    fv__buf_add(&t->all, tag.s + 1, tag.n - 1);
    fv__buf_add(&t->all, "", 1);
    t->before = tag;
    t->n_words++;
    return t->all.failed ? no_memory(rd) : FV_OK;
}

/* Columns are separated by tabs, or by blanks where there are none. */
static fv_status read_line(fv__reading *rd, fv_tagged *t, fv__span line, int64_t number)
{
    const char *first = memchr(line.s, ' ', line.n), *last = memrchr(line.s, ' ', line.n);
    const char *first_tab = memchr(line.s, '\t', line.n), *last_tab = memrchr(line.s, '\t', line.n);
    if (first_tab) first = first_tab, last = last_tab;
    size_t bad = fv__utf8_check(line.s, line.n);
    if (bad < line.n || memchr(line.s, 0, line.n)) {
        if (rd->from->malformed == FV_REFUSE)
            return fv_fail(rd->e, FV_EFORMAT, "%s:%lld: not UTF-8 at byte %zu", rd->from->file,
                           (long long)number, bad + 1);
        rd->report->malformed++;
        fv__records_note(rd, rd->from->file, number, "not UTF-8 at byte %zu", bad + 1);
        return FV_OK;
    }
    if (!first || first == line.s || last + 1 == line.s + line.n)
        return fv_fail(rd->e, FV_EFORMAT, "%s:%lld: expected a word, a blank and a tag",
                       rd->from->file, (long long)number);
    fv__span word = {line.s, (size_t)(first - line.s)},
             tag = {last + 1, (size_t)(line.s + line.n - last - 1)};
    return add_word(rd, t, word, tag);
}

/* CoNLL's columns: a word a line, an empty line or -DOCSTART- behind a sentence; the last one needs
 * none. */
static fv_status read_all(fv__reading *rd, fv_tagged *t)
{
    fv_textfile *file;
    fv_status st = fv_textfile_open(&file, rd->env, rd->from->file, rd->e);
    if (st) return st;
    for (int64_t i = 0; !st && i < fv_textfile_count(file); i++) {
        fv__span line;
        line.s = fv_textfile_line(file, i, &line.n);
        bool start = line.n >= 10 && !memcmp(line.s, "-DOCSTART-", 10);
        st = start || !line.n ? end_sentence(rd, t, i) : read_line(rd, t, line, i + 1);
    }
    if (!st) st = end_sentence(rd, t, fv_textfile_count(file));
    fv_textfile_close(file);
    return st;
}

/* The text no longer moves: where each word and tag is. */
static fv_status find_words(fv__reading *rd, fv_tagged *t)
{
    t->word_bytes = t->tag_bytes = (size_t)t->n_words * sizeof *t->word;
    t->word = fv__alloc(t->env, t->word_bytes);
    t->tag = fv__alloc(t->env, t->tag_bytes);
    if (!t->word || !t->tag) return no_memory(rd);
    const char *at = t->all.data;
    for (int64_t i = 0; i < t->n_words; i++) {
        t->word[i] = at;
        t->tag[i] = at += strlen(at) + 1;
        at += strlen(at) + 1;
    }
    return FV_OK;
}

/* A share of the data is a share of its sentences, which are known only now; those before it stay
 * in memory and are skipped. */
fv_status fv_tagged_open(fv_tagged **out, const fv_env *env, const fv_records *from,
                         fv_data_report *report, fv_err *e)
{
    fv_tagged *t = *out = fv__alloc(env, sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *t = (fv_tagged){.env = env, .all = {.env = env}};
    fv__reading rd = {.env = env, .from = from, .n_texts = 1, .report = report, .e = e};
    fv_status st = read_all(&rd, t);
    if (!st && !t->n) st = fv_fail(e, FV_EFORMAT, "%s: no sentence can be used", from->file);
    if (!st) st = find_words(&rd, t);
    if (!st) {
        int64_t last;
        fv__records_part(from, t->n, &t->skipped, &last);
        report->records -= t->n - (last - t->skipped);
        t->n = last - t->skipped;
    }
    if (st) {
        fv_tagged_close(t);
        *out = NULL;
    }
    return st;
}

void fv_tagged_close(fv_tagged *t)
{
    if (!t) return;
    const fv_env *env = t->env;
    fv__buf_free(&t->all);
    fv__free(env, t->word, t->word_bytes);
    fv__free(env, t->tag, t->tag_bytes);
    fv__free(env, t->sentence, t->sentence_bytes);
    fv__free(env, t, sizeof *t);
}

int64_t fv_tagged_count(const fv_tagged *t) { return t->n; }

/* Words and tags stand in two arrays of pointers into one buffer, sentence after sentence. */
int64_t fv_tagged_sentence(const fv_tagged *t, int64_t i, const char *const **word,
                           const char *const **tag, int64_t *line)
{
    const sentence *s = &t->sentence[t->skipped + i];
    *word = t->word + s->first;
    *tag = t->tag + s->first;
    *line = s->line;
    return s->n;
}
