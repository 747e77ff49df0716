/* edits.c - word and character error rates: the fewest edits between a text and its reference.
 *
 *     cost[i][j] = min(cost[i-1][j-1] + (said[i] != written[j]),      right or substituted
 *                      cost[i-1][j] + 1,                              deleted
 *                      cost[i][j-1] + 1)                              inserted
 *
 * Rows of the table are enough for the counts, which each cell carries with it, so a transcript of
 * hours costs memory for one row; the whole table, a byte a cell, is kept only where the alignment
 * is asked for.  Equal costs are decided in the order above, in both. */
#include <limits.h>

#include <utf8proc.h>

#include "base/base.h"
#include "fovea/author/metric.h"
#include "metric/ngram.h"

#define MOST_CELLS ((size_t)1 << 28) /* of a table that is kept */

/* ---- words and characters ---- */

/* Tokens of a text: runs of code points, from[i] .. from[i] + len[i]. */
typedef struct tokens {
    fv_symbols text, from, len;
} tokens;

static void tokens_free(tokens *t)
{
    fv__symbols_free(&t->text);
    fv__symbols_free(&t->from);
    fv__symbols_free(&t->len);
}

static bool is_mark(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_SO;
}

static bool is_letter(const fv_symbols *s, size_t i)
{
    return i < s->n && !is_mark(s->at[i]) && !fv__is_blank(s->at[i]);
}

/* Punctuation becomes a blank, but not the apostrophe of don't. */
static void make_plain(fv_symbols *s)
{
    uint32_t before = ' ';
    for (size_t i = 0; i < s->n; i++) {
        uint32_t c = s->at[i] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)s->at[i]);
        bool joins = (c == '\'' || c == 0x2019) && before != ' ' && is_letter(s, i + 1);
        if (joins) s->at[i] = '\'';
        if (is_mark(c) && !joins) s->at[i] = ' ';
        before = s->at[i];
    }
}

static void add_token(tokens *t, size_t from, size_t to)
{
    fv__symbols_add(&t->from, (uint32_t)from);
    fv__symbols_add(&t->len, (uint32_t)(to - from));
}

/* Of characters: one blank between words, none at the ends. */
static void split(tokens *t, const char *text, fv_edit_opt opt)
{
    fv_symbols *s = &t->text;
    fv__symbols_text(s, text, strlen(text));
    if (opt.plain) make_plain(s);
    for (size_t i = 0, from = 0; i <= s->n; i++) {
        if (i < s->n && !fv__is_blank(s->at[i])) continue;
        if (i > from && !opt.chars) add_token(t, from, i);
        if (i > from && opt.chars && t->from.n) add_token(t, from - 1, from);
        for (size_t k = from; opt.chars && k < i; k++) add_token(t, k, k + 1);
        from = i + 1;
    }
}

static bool same(const tokens *a, size_t i, const tokens *b, size_t j)
{
    uint32_t n = a->len.at[i];
    const uint32_t *x = a->text.at + a->from.at[i], *y = b->text.at + b->from.at[j];
    if (n != b->len.at[j]) return false;
    return (n == 1 && fv__is_blank(*x) && fv__is_blank(*y)) || !memcmp(x, y, n * sizeof *x);
}

/* ---- the table ---- */

typedef struct cell {
    uint32_t cost, substituted, deleted, inserted;
} cell;

/* The cell from those above, to the left, and the corner between; *way: how it was reached. */
static cell step(cell corner, cell above, cell left, bool equal, char *way)
{
    cell best = corner;
    *way = equal ? '=' : 'S';
    if (!equal) best.cost++, best.substituted++;
    if (above.cost + 1 < best.cost) {
        best = above;
        best.cost++, best.deleted++;
        *way = 'D';
    }
    if (left.cost + 1 < best.cost) {
        best = left;
        best.cost++, best.inserted++;
        *way = 'I';
    }
    return best;
}

/* ways: NULL, or (said + 1, written + 1). */
static cell fill(const tokens *said, const tokens *written, cell *row, char *ways)
{
    size_t n = said->from.n, m = written->from.n;
    char way;
    for (size_t j = 0; j <= m; j++) {
        row[j] = (cell){.cost = (uint32_t)j, .inserted = (uint32_t)j};
        if (ways) ways[j] = 'I';
    }
    for (size_t i = 1; i <= n; i++) {
        cell corner = row[0];
        row[0] = (cell){.cost = (uint32_t)i, .deleted = (uint32_t)i};
        if (ways) ways[i * (m + 1)] = 'D';
        for (size_t j = 1; j <= m; j++) {
            cell above = row[j];
            row[j] = step(corner, above, row[j - 1], same(said, i - 1, written, j - 1), &way);
            corner = above;
            if (ways) ways[i * (m + 1) + j] = way;
        }
    }
    return row[m];
}

/* ---- the alignment ---- */

static const char *token_text(const tokens *t, size_t i, fv_buf *b)
{
    b->len = 0;
    for (uint32_t k = 0; k < t->len.at[i]; k++) {
        utf8proc_uint8_t out[4];
        utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)t->text.at[t->from.at[i] + k],
                                                  out);
        if (n > 0) fv__buf_add(b, out, (size_t)n);
    }
    return b->data ? b->data : "";
}

/* Back from the end: the ways taken, written over the beginning of the table in reverse; then
 * forward. */
static void show(const tokens *said, const tokens *written, char *ways, const fv_env *env,
                 fv_edit_fn *fn, void *user)
{
    size_t i = said->from.n, j = written->from.n, m = j, n = 0;
    fv_buf path = {.env = env}, a = {.env = env}, b = {.env = env};
    while (i || j) {
        char way = ways[i * (m + 1) + j];
        fv__buf_add(&path, &way, 1);
        i -= way != 'I';
        j -= way != 'D';
        n++;
    }
    for (i = j = 0; n-- > 0 && !path.failed;) {
        char way = path.data[n];
        fn(user, way, way == 'I' ? "" : token_text(said, i, &a),
           way == 'D' ? "" : token_text(written, j, &b));
        i += way != 'I';
        j += way != 'D';
    }
    fv__buf_free(&path);
    fv__buf_free(&a);
    fv__buf_free(&b);
}

static fv_status compare(fv_edits *x, const tokens *said, const tokens *written, const fv_env *env,
                         fv_edit_fn *fn, void *user, fv_err *e)
{
    size_t n = said->from.n + 1, m = written->from.n + 1;
    if (n >= INT_MAX || m >= INT_MAX || (fn && n > MOST_CELLS / m))
        return fv_fail(e, FV_EARG, "edits: %zu and %zu words are too many to be aligned", n, m);
    size_t bytes = m * sizeof(cell), table = fn ? n * m : 0;
    cell *row = fv__alloc(env, bytes);
    char *ways = table ? fv__alloc(env, table) : NULL;
    fv_status st = FV_OK;
    if (!row || (table && !ways)) st = fv_fail(e, FV_ENOMEM, "edits: out of memory");
    if (!st) {
        cell end = fill(said, written, row, ways);
        x->substituted += end.substituted;
        x->deleted += end.deleted;
        x->inserted += end.inserted;
        x->right += (int64_t)said->from.n - end.substituted - end.deleted;
    }
    if (!st && fn) show(said, written, ways, env, fn, user);
    fv__free(env, row, bytes);
    fv__free(env, ways, table);
    return st;
}

fv_status fv_edits_add(fv_edits *x, const fv_env *env, const char *text, const char *reference,
                       fv_edit_opt opt, fv_edit_fn *fn, void *user, fv_err *e)
{
    tokens said = {{.env = env}, {.env = env}, {.env = env}}, written = said;
    split(&said, reference, opt);
    split(&written, text, opt);
    bool failed = said.text.failed || said.from.failed || said.len.failed || written.text.failed ||
                  written.from.failed || written.len.failed;
    fv_status st = failed ? fv_fail(e, FV_ENOMEM, "edits: out of memory")
                          : compare(x, &said, &written, env, fn, user, e);
    tokens_free(&said);
    tokens_free(&written);
    return st;
}

double fv_error_rate(fv_edits x)
{
    int64_t said = x.right + x.substituted + x.deleted,
            wrong = x.substituted + x.deleted + x.inserted;
    return said ? 100 * (double)wrong / (double)said : 0;
}
