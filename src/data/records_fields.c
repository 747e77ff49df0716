/* records_fields.c - the fields of a line: of tables with tabs, of CSV (RFC 4180), of JSON objects.
 *
 * Fields of a table are spans of the file as it is mapped; only a field with doubled quotes is
 * copied.  In CSV a quote counts where a field begins with it; whether a row is complete is a
 * matter of parity, because a quote inside is written twice. */
#include <stdlib.h>

#include "base/json/tree.h"
#include "data/records.h"

/* Quotes mean something in CSV alone (RFC 4180), and only where a field begins with one: within it
 * commas are text, and a doubled quote leaves and enters it again. */
int fv__fields_split(fv__span line, char separator, fv__span out[FV__MAX_COLUMNS])
{
    int n = 0;
    for (const char *at = line.s, *end = line.s + line.n; n < FV__MAX_COLUMNS;) {
        const char *stop = at;
        bool quotes = separator == ',' && at < end && *at == '"', inside = false;
        if (quotes) {
            for (; stop < end && (inside || *stop != separator); stop++) inside ^= *stop == '"';
        } else {
            stop = memchr(at, separator, (size_t)(end - at));
        }
        if (!stop) stop = end;
        out[n++] = (fv__span){at, (size_t)(stop - at)};
        if (stop == end) break;
        at = stop + 1;
    }
    return n;
}

/* Without its quotes, doubled ones made single; copied into b only where there are any. */
fv__span fv__field_unquoted(fv__span field, fv_buf *b)
{
    if (field.n < 2 || field.s[0] != '"' || field.s[field.n - 1] != '"') return field;
    fv__span inner = {field.s + 1, field.n - 2};
    if (!memchr(inner.s, '"', inner.n)) return inner;
    b->len = 0;
    for (size_t i = 0; i < inner.n; i++) {
        fv__buf_add(b, inner.s + i, 1);
        if (inner.s[i] == '"' && i + 1 < inner.n && inner.s[i + 1] == '"') i++;
    }
    return (fv__span){b->data ? b->data : "", b->len};
}

/* A row goes on while a quote is open. *next is -1 where the file ends inside of one. */
fv__span fv__csv_row(const fv_textfile *t, int64_t i, int64_t *next)
{
    fv__span row = {NULL, 0};
    bool open = false;
    for (int64_t k = i; k < fv_textfile_count(t); k++) {
        size_t n;
        const char *line = fv_textfile_line(t, k, &n);
        for (size_t j = 0; j < n; j++) open ^= line[j] == '"';
        if (!row.s) row.s = line;
        row.n = (size_t)(line + n - row.s); /* lines stand one behind the other in memory */
        *next = k + 1;
        if (!open) return row;
    }
    *next = -1;
    return row;
}

/* One step of a path: the key or [index] at its beginning; *rest: what is behind it. */
static const fv__jnode *step(const fv__jnode *at, const char *path, const char **rest)
{
    char key[128];
    if (*path == '[') {
        char *end;
        long i = strtol(path + 1, &end, 10);
        bool good = end > path + 1 && *end == ']' && fv__jnode_is(at, FV__J_ARRAY);
        *rest = good ? end + 1 : "";
        return good && i >= 0 && i < at->n ? at->kid[i] : NULL;
    }
    path += *path == '.';
    size_t n = strcspn(path, ".[");
    if (!n || n >= sizeof key || !fv__jnode_is(at, FV__J_OBJECT)) return NULL;
    memcpy(key, path, n);
    key[n] = 0;
    *rest = path + n;
    return fv__jnode_get(at, key);
}

/* "a.b[0]": a key that has dots itself is tried first, as it stands. */
const fv__jnode *fv__json_field(const fv__jnode *at, const char *path)
{
    const fv__jnode *whole = fv__jnode_is(at, FV__J_OBJECT) ? fv__jnode_get(at, path) : NULL;
    if (whole) return whole;
    while (at && *path) at = step(at, path, &path);
    return at;
}
