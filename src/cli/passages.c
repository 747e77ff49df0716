/* passages.c - the files of a folder cut into passages, and those nearest to a question.
 *
 * A passage is what an encoder sees well at once: paragraphs are joined up to some hundred words,
 * longer ones are cut between words. */
#include "passages.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LONGEST 1000 /* bytes */

static bool add(cli_passages *p, const char *file, const char *s, size_t n, int64_t from)
{
    if (p->n == p->capacity) {
        int64_t capacity = p->capacity * 2 + 64;
        cli_passage *more = realloc(p->at, (size_t)capacity * sizeof *more);
        if (!more) return false;
        p->at = more;
        p->capacity = capacity;
    }
    p->at[p->n++] = (cli_passage){.file = file, .text = {.s = s, .n = n}, .from = from};
    return true;
}

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

static bool split(cli_passages *p, const char *file, const char *s, size_t n)
{
    int64_t chars = 0;
    for (size_t at = 0; at < n;) {
        if (blank(s[at])) {
            at++, chars++;
            continue;
        }
        size_t len = passage_end(s + at, n - at), used = len;
        while (used && blank(s[at + used - 1])) used--;
        if (!add(p, file, s + at, used, chars)) return false;
        for (size_t i = at; i < at + len; i++) chars += (s[i] & 0xC0) != 0x80;
        at += len;
    }
    return true;
}

static int plain(const struct dirent *f) { return f->d_name[0] != '.'; }

static int read_file(const cli *c, cli_passages *p, const char *dir, const char *name)
{
    struct stat st;
    size_t len = strlen(dir) + strlen(name) + 2;
    char *path = malloc(len);
    if (!path) return cli_fail(c, "out of memory");
    snprintf(path, len, "%s/%s", dir, name);
    if (stat(path, &st) || !S_ISREG(st.st_mode)) {
        free(path);
        return CLI_OK;
    }
    p->names[p->n_files] = path;
    cli_bytes *b = &p->files[p->n_files++];
    int code = cli_read_all(c, path, b);
    if (code == CLI_OK && !split(p, path, b->s, b->n)) code = cli_fail(c, "out of memory");
    return code;
}

int cli_read_passages(const cli *c, const char *dir, cli_passages *out)
{
    struct dirent **list;
    *out = (cli_passages){0};
    int n = scandir(dir, &list, plain, alphasort), code = CLI_OK;
    if (n < 0) return cli_fail(c, "%s: not a folder that can be read", dir);
    out->files = calloc((size_t)n + 1, sizeof *out->files);
    out->names = calloc((size_t)n + 1, sizeof *out->names);
    if (!out->files || !out->names) code = cli_fail(c, "out of memory");
    for (int i = 0; i < n; i++) {
        if (code == CLI_OK) code = read_file(c, out, dir, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    if (code == CLI_OK && !out->n) code = cli_fail(c, "%s: no text in it", dir);
    return code;
}

void cli_free_passages(cli_passages *p)
{
    for (int64_t i = 0; i < p->n_files; i++) {
        free(p->files[i].s);
        free(p->names[i]);
    }
    free(p->files);
    free(p->names);
    free(p->at);
}

/* ---- the nearest ---- */

/* Keeps the `most` with the largest products, largest first. */
static void search(const float *question, const float *vectors, int64_t n, int64_t width,
                   int64_t most, int64_t *nearest)
{
    double best[64];
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        double product = 0;
        for (int64_t j = 0; j < width; j++)
            product += (double)question[j] * (double)vectors[i * width + j];
        int64_t at = have < most ? have++ : most;
        if (at == most && !(product > best[--at])) continue;
        for (; at > 0 && product > best[at - 1]; at--)
            best[at] = best[at - 1], nearest[at] = nearest[at - 1];
        best[at] = product;
        nearest[at] = i;
    }
}

int cli_nearest_passages(const cli *c, fv_task *embedder, const cli_passages *p,
                         const fv_text *questions, int64_t n, int64_t most, int64_t *nearest)
{
    int64_t width = fv_task_width(embedder);
    float *vectors = calloc((size_t)((p->n + n) * width), sizeof *vectors),
          *asked = vectors ? vectors + p->n * width : NULL;
    fv_text *texts = calloc((size_t)p->n, sizeof *texts);
    fv_err e = {.text = "out of memory"};
    int code = CLI_OK;
    if (most > 64 || most > p->n)
        code = cli_fail(c, "%lld passages were asked for, there are %lld", (long long)most,
                        (long long)p->n);
    for (int64_t i = 0; texts && i < p->n; i++) texts[i] = p->at[i].text;
    if (code == CLI_OK && (!vectors || !texts ||
                           fv_task_embed(embedder, texts, p->n, (fv_embed_opt){0}, vectors, &e) ||
                           fv_task_embed(embedder, questions, n, (fv_embed_opt){0}, asked, &e)))
        code = cli_error(c, &e);
    for (int64_t i = 0; code == CLI_OK && i < n; i++)
        search(asked + i * width, vectors, p->n, width, most, nearest + i * most);
    free(texts);
    free(vectors);
    return code;
}
