/* corpus.c - texts as numbers of words, the most frequent first, and the subwords of words.
 *
 * Texts are read once: words get numbers as they come, and are numbered anew when all are counted,
 * by their frequency, so that rare words are the end of every table and can be cut off there.
 *
 * Subwords are rows behind those of the words, one for each of a number of buckets; n-grams that
 * share a bucket share its row, as in fastText: a table of all n-grams of a language would be
 * larger than the words' own. */
#include <stdlib.h>

#include "vectors/vectors.h"

typedef struct counted {
    int64_t count;
    int32_t id; /* in order of appearance */
} counted;

/* Frequent words first; of equal counts the one that was read first, so that numbers do not depend
 * on the sort. */
static int most_first(const void *a, const void *b)
{
    const counted *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The text as numbers in order of appearance, and how often each word comes. */
typedef struct reading {
    fv__corpus *c;
    fv_labels words;
    counted *count;
    size_t count_bytes;
    bool lowercase;
    fv_err *e;
} reading;

static fv_status no_memory(const reading *r)
{
    return fv_fail(r->e, FV_ENOMEM, "vectors: out of memory");
}

/* The text is one array of word numbers; -1 ends a line, which no window crosses. */
static fv_status push(reading *r, int32_t id)
{
    fv__corpus *c = r->c;
    void *p = c->text;
    bool ok = fv__grow(c->env, &p, &c->text_bytes, (size_t)(c->n + 1) * sizeof *c->text);
    c->text = p;
    if (!ok) return no_memory(r);
    c->text[c->n++] = id;
    return FV_OK;
}

/* Numbered as they come; renumber sorts them once all counts are known. */
static fv_status add_word(reading *r, const char *s, size_t n)
{
    char small[256];
    int32_t id;
    if (r->lowercase && n <= sizeof small) {
        for (size_t i = 0; i < n; i++)
            small[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] - 'A' + 'a' : s[i]);
        s = small;
    }
    fv_status st = fv_labels_add(&r->words, &id, s, n, r->e);
    if (st) return st;
    void *p = r->count;
    size_t had = r->count_bytes;
    bool ok = fv__grow(r->c->env, &p, &r->count_bytes, (size_t)(id + 1) * sizeof *r->count);
    r->count = p;
    if (!ok) return no_memory(r);
    if (r->count_bytes > had) memset((char *)p + had, 0, r->count_bytes - had);
    r->count[id].id = id;
    r->count[id].count++;
    return push(r, id);
}

/* Words are separated by blanks. */
static fv_status add_line(reading *r, const char *line, size_t n)
{
    fv_status st = FV_OK;
    for (size_t i = 0, from; !st && i < n; i++) {
        while (i < n && strchr(" \t\r\v\f", line[i])) i++;
        from = i;
        while (i < n && !strchr(" \t\r\v\f", line[i])) i++;
        if (i > from) st = add_word(r, line + from, i - from);
    }
    return st ? st : push(r, -1);
}

static fv_status add_file(reading *r, const char *path)
{
    fv_textfile *t;
    fv_status st = fv_textfile_open(&t, r->c->env, path, r->e);
    if (st) return st;
    for (int64_t i = 0; !st && i < fv_textfile_count(t); i++) {
        size_t n;
        const char *line = fv_textfile_line(t, i, &n);
        st = add_line(r, line, n);
    }
    fv_textfile_close(t);
    return st;
}

/* Numbers by frequency; rare words are taken out of the text, as if they had not been there. */
static fv_status renumber(reading *r, int64_t least)
{
    fv__corpus *c = r->c;
    int32_t seen = r->words.n;
    size_t to_bytes = (size_t)(seen + 1) * sizeof(int32_t);
    int32_t *to = fv__alloc(c->env, to_bytes);
    if (!to) return no_memory(r);
    if (seen) qsort(r->count, (size_t)seen, sizeof *r->count, most_first);
    int32_t kept = 0;
    while (kept < seen && r->count[kept].count >= least) kept++;
    c->count_bytes = (size_t)(kept + 1) * sizeof *c->count;
    c->count = fv__alloc(c->env, c->count_bytes);
    fv_status st = c->count ? FV_OK : no_memory(r);
    for (int32_t i = 0; i < seen; i++) to[i] = -2;
    for (int32_t i = 0; !st && i < kept; i++) {
        int32_t id;
        const char *name = r->words.name[r->count[i].id];
        st = fv_labels_add(&c->words, &id, name, strlen(name), r->e);
        c->count[i] = r->count[i].count;
        to[r->count[i].id] = i;
    }
    int64_t n = 0;
    for (int64_t i = 0; !st && i < c->n; i++) {
        int32_t id = c->text[i] < 0 ? -1 : to[c->text[i]];
        if (id == -2) continue;
        c->text[n++] = id;
        c->kept += id >= 0;
    }
    c->n = n;
    fv__free(c->env, to, to_bytes);
    return st;
}

/* Words that occur fewer than `least` times are left out of the text, not replaced: windows reach
 * over them. */
fv_status fv__corpus_open(fv__corpus *c, const fv_env *env, const char *const *files, int n,
                          int64_t least, bool lowercase, fv_err *e)
{
    *c = (fv__corpus){.env = env, .words = {.env = env}};
    reading r = {.c = c, .words = {.env = env}, .lowercase = lowercase, .e = e};
    fv_status st = FV_OK;
    for (int i = 0; !st && i < n; i++) st = add_file(&r, files[i]);
    if (!st) st = renumber(&r, least);
    if (!st && c->words.n < 2)
        st = fv_fail(e, FV_EFORMAT, "%s: fewer than two words occur %lld times or more",
                     n ? files[0] : "no file", (long long)least);
    fv__free(env, r.count, r.count_bytes);
    fv_labels_free(&r.words);
    return st;
}

void fv__corpus_close(fv__corpus *c)
{
    fv_labels_free(&c->words);
    fv__free(c->env, c->count, c->count_bytes);
    fv__free(c->env, c->text, c->text_bytes);
    *c = (fv__corpus){.env = c->env};
}

/* ---- subwords, as fastText has them ---- */

/* FNV-1a of the bytes, each taken as signed, as fastText's files were made. */
static uint32_t hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint32_t)(int8_t)s[i]) * 16777619u;
    return h;
}

typedef struct making {
    const fv_env *env;
    fv__subwords *s;
    int64_t n; /* of rows */
    fv_err *e;
} making;

static fv_status add_row(making *m, int64_t row)
{
    void *p = m->s->rows;
    bool ok = fv__grow(m->env, &p, &m->s->rows_bytes, (size_t)(m->n + 1) * sizeof *m->s->rows);
    m->s->rows = p;
    if (!ok) return fv_fail(m->e, FV_ENOMEM, "vectors: out of memory for subwords");
    m->s->rows[m->n++] = (int32_t)row;
    return FV_OK;
}

static bool begins_letter(char c) { return (c & 0xC0) != 0x80; }

/* Runs of least to most letters of <word>; a bracket alone is none. */
static fv_status add_subwords(making *m, const char *word, int64_t n_words, int64_t least,
                              int64_t most, int64_t buckets)
{
    fv_buf b = {.env = m->env};
    fv_status st = FV_OK;
    fv__buf_fmt(&b, "<%s>", word);
    if (b.failed) st = fv_fail(m->e, FV_ENOMEM, "vectors: out of memory for subwords");
    for (size_t i = 0; !st && i < b.len; i++) {
        int64_t letters = 0;
        if (!begins_letter(b.data[i])) continue;
        for (size_t j = i; !st && j < b.len && letters < most;) {
            do j++;
            while (j < b.len && !begins_letter(b.data[j]));
            letters++;
            bool bracket = letters == 1 && (i == 0 || j == b.len);
            if (letters >= least && !bracket)
                st = add_row(m, n_words + hash(b.data + i, j - i) % (uint64_t)buckets);
        }
    }
    fv__buf_free(&b);
    return st;
}

/* fastText: the n-grams of <word>, each hashed into one of the buckets; the lists of all words lie
 * in one array. */
fv_status fv__subwords_make(fv__subwords *s, const fv_env *env, const fv_labels *words,
                            int64_t least, int64_t most, int64_t buckets, fv_err *e)
{
    making m = {.env = env, .s = s, .e = e};
    *s = (fv__subwords){.start_bytes = (size_t)(words->n + 1) * sizeof *s->start};
    s->start = fv__alloc(env, s->start_bytes);
    fv_status st = s->start ? FV_OK : fv_fail(e, FV_ENOMEM, "vectors: out of memory for subwords");
    for (int32_t i = 0; !st && i < words->n; i++) {
        st = add_row(&m, i);
        if (!st && least) st = add_subwords(&m, words->name[i], words->n, least, most, buckets);
        s->start[i + 1] = m.n;
    }
    return st;
}

void fv__subwords_free(fv__subwords *s, const fv_env *env)
{
    fv__free(env, s->start, s->start_bytes);
    fv__free(env, s->rows, s->rows_bytes);
}
