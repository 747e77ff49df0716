/* text.c - the lines of a text file, plain or gzip.
 *
 * The file is mapped, or unpacked into memory where its first bytes are gzip's; one pass finds
 * where each line begins, so that line i is found without reading those before it. */
#include "base/base.h"
#include "data/plain.h"
#include "fovea/author/data.h"

struct fv_textfile {
    const fv_env *env;
    fv__plain file;
    const char *data;
    size_t size;
    size_t *at; /* where each line begins, and one more: the end */
    size_t n, bytes;
};

/* Notes that a line begins at this byte. */
static bool mark(fv_textfile *t, size_t at)
{
    void *p = t->at;
    if (!fv__grow(t->env, &p, &t->bytes, (t->n + 1) * sizeof *t->at)) return false;
    t->at = p;
    t->at[t->n++] = at;
    return true;
}

/* One entry more than there are lines: the end of the file. */
static fv_status find_lines(fv_textfile *t, const char *path, fv_err *e)
{
    bool ok = true;
    for (size_t i = 0; ok && i < t->size;) {
        ok = mark(t, i);
        const char *end = memchr(t->data + i, '\n', t->size - i);
        i = end ? (size_t)(end - t->data) + 1 : t->size;
    }
    ok = ok && mark(t, t->size);
    return ok ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory for its lines", path);
}

/* Mapped where it is plain and large, so a corpus larger than memory can be read; lines are found
 * once and kept as offsets. */
fv_status fv_textfile_open(fv_textfile **out, const fv_env *env, const char *path, fv_err *e)
{
    fv_textfile *t = *out = fv__alloc(env, sizeof *t);
    if (!t) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    t->env = env;
    fv_status st = fv__plain_open(&t->file, env, path, e);
    t->data = t->file.data;
    t->size = t->file.size;
    if (!st && t->size >= 3 && !memcmp(t->data, "\xEF\xBB\xBF", 3)) {
        t->data += 3; /* a byte-order mark is no text */
        t->size -= 3;
    }
    if (!st) st = find_lines(t, path, e);
    if (st) {
        fv_textfile_close(t);
        *out = NULL;
    }
    return st;
}

void fv_textfile_close(fv_textfile *t)
{
    if (!t) return;
    fv__plain_close(&t->file);
    fv__free(t->env, t->at, t->bytes);
    fv__free(t->env, t, sizeof *t);
}

const char *fv_textfile_all(const fv_textfile *t, size_t *len)
{
    *len = t->size;
    return t->data;
}

int64_t fv_textfile_count(const fv_textfile *t) { return (int64_t)t->n - 1; }

/* Without its end, \n or \r\n; not NUL-terminated. */
const char *fv_textfile_line(const fv_textfile *t, int64_t i, size_t *len)
{
    const char *from = t->data + t->at[i], *to = t->data + t->at[i + 1];
    if (to > from && to[-1] == '\n') to--;
    if (to > from && to[-1] == '\r') to--;
    *len = (size_t)(to - from);
    return from;
}
