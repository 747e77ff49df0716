/* plan.c - the rules of the safetensors format.
 *
 * A file is: header length (u64), header (JSON), data.  The header maps names to dtype, shape and
 * data_offsets, and "__metadata__" to strings.  Checked here, before anyone looks at a tensor: the
 * length fits and is at most 100 MB; the header begins with '{', is strict UTF-8 JSON without
 * duplicate names and is followed by blanks only; dtypes are known; sizes do not overflow and equal
 * the span of their offsets; together the spans cover the data exactly, without holes or overlaps.
 *
 * The header is walked twice: to count, then to fill, so memory is allocated once and only for what
 * is really there. */
#include "safetensors.h"

#include <stdio.h>

#include "base/json/reader.h"

/*    [ u64 length ][ {"name": {"dtype", "shape", "data_offsets": [b, e]}, ..} ][ data ... ]
 *                  ^ header.s                                                    ^ base
 *
 * The plan that comes out holds names, kinds, shapes and absolute offsets, all verified; readers
 * trust it and check nothing again. */
typedef struct walk {
    fv__json header;
    fv__jval root;
    fv_err *e;
    fv_status st;  /* the first failure */
    fv_st_plan *p; /* entry and text are NULL while counting */
    uint32_t count;
    size_t text;        /* used, or while counting an upper bound */
    size_t base, bytes; /* where the data begins in the file, and its length */
} walk;

/* ---- heapsort ---- */

static void swap(char *a, char *b, size_t width)
{
    for (size_t i = 0; i < width; i++) {
        char t = a[i];
        a[i] = b[i];
        b[i] = t;
    }
}

/* Not qsort: its order of equal elements and its worst case depend on the C library, and glibc's
 * allocates.  O(n log n) for any input, in place; a crafted header cannot make it quadratic. */
void fv__heapsort(void *base, size_t n, size_t width,
                  int (*order)(const void *, const void *, void *), void *user)
{
    char *x = base;
    for (size_t half = n / 2, end = n; end > 1;) {
        size_t root = 0;
        if (half)
            root = --half; /* building the heap */
        else
            swap(x, x + --end * width, width); /* taking its largest out */
        for (size_t child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && order(x + child * width, x + (child + 1) * width, user) < 0)
                child++;
            if (order(x + root * width, x + child * width, user) >= 0) break;
            swap(x + root * width, x + child * width, width);
        }
    }
}

/* In the order of the data, so that gaps and overlaps show between neighbours. */
static int by_offset(const void *a, const void *b, void *user)
{
    (void)user;
    const fv_st_entry *x = a, *y = b;
    uint64_t nx = fv__st_bytes(x), ny = fv__st_bytes(y);
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : (nx > ny) - (nx < ny);
}

static int by_name(const void *a, const void *b, void *user)
{
    const fv_st_plan *p = user;
    return strcmp(p->text + ((const fv_st_entry *)a)->name,
                  p->text + ((const fv_st_entry *)b)->name);
}

/* ---- one entry ---- */

/* Sizes were checked for overflow once (check_span), so this multiplies without looking. */
uint64_t fv__st_bytes(const fv_st_entry *t)
{
    uint64_t n = 1; /* wraps only where an axis of length 0 follows, or came before */
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->d[i];
    return n * (uint64_t)fv__kinds[t->kind].bits / 8;
}

/* As much of a name as belongs into a message. */
static int shown(fv__str s)
{
    size_t n = s.n < 120 ? s.n : 120;
    while (n && n < s.n && ((unsigned char)s.s[n] & 0xC0) == 0x80) n--;
    return (int)n;
}

/* Always false. */
static bool bad(walk *w, fv__str name, const char *what)
{
    if (!w->st)
        w->st = fv_fail(w->e, FV_EFORMAT, "%s: tensor \"%.*s\": %s", w->header.file, shown(name),
                        name.s, what);
    return false;
}

static bool bad_at(walk *w, size_t at, const char *what)
{
    if (!w->st) w->st = fv__json_bad_at((fv__jval){.j = &w->header, .at = at}, w->e, "%s", what);
    return false;
}

static fv__jval value_of(const fv__jiter *it) { return (fv__jval){.j = it->j, .at = it->value}; }

static fv__str key_of(const fv__jiter *it)
{
    return (fv__str){it->j->s + it->key, it->key_end - it->key};
}

static bool is(fv__str raw, const char *word)
{
    char text[128];
    if (!memchr(raw.s, '\\', raw.n)) return fv__str_is(raw, word);
    if (raw.n >= sizeof text) return false;
    return fv__str_is((fv__str){text, fv__json_unescape(text, raw.s, raw.n)}, word);
}

/* Keeps a string in the plan's text and returns its offset; while counting, its escapes are counted
 * as they stand, which is more than it will take. */
static size_t keep(walk *w, fv__str raw)
{
    size_t at = w->text, n = raw.n;
    if (w->p->text) {
        n = fv__json_unescape(w->p->text + at, raw.s, raw.n);
        w->p->text[at + n] = 0;
        if (memchr(w->p->text + at, 0, n)) bad(w, raw, "a string with \\u0000 in it");
    }
    w->text += n + 1;
    return at;
}

/* The number is written with digits alone, so that nothing of it is lost. */
static bool u64(walk *w, fv__str name, fv__jval v, uint64_t *out)
{
    const char *s = v.j->s + v.at, *end = s + fv__json_size(v);
    *out = 0;
    for (; s < end; s++)
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(*s - '0'), out))
            return bad(w, name, "an integer of 64 bits that is not negative was expected");
    return true;
}

static bool shape(walk *w, fv__str name, fv__jval v, fv_st_entry *t)
{
    uint64_t d;
    t->rank = 0;
    if (fv__json_kind(v) != '[') return bad(w, name, "its shape is not a list");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        if (!u64(w, name, value_of(&it), &d)) return false;
        if (t->rank == FV_MAX_DIM) return bad(w, name, "more than six axes");
        if (d > INT64_MAX) return bad(w, name, "an axis beyond 63 bits");
        t->d[t->rank++] = (int64_t)d;
    }
    return true;
}

static bool dtype(walk *w, fv__str name, fv__jval v, fv_st_entry *t)
{
    if (fv__json_kind(v) != '"') return bad(w, name, "its dtype is not a string");
    fv__str word = fv__json_raw(v);
    t->kind = (uint8_t)fv__kind_named(word.s, word.n);
    return t->kind < FV_KINDS || bad(w, name, "its dtype is none of the format");
}

/* Size by shape and dtype against the span of the offsets, without overflow.
 * Three ways to say how large a tensor is, shape times dtype, end minus begin, and the file's
 * own length: all must agree. */
static bool check_span(walk *w, fv__str name, const fv_st_entry *t, const uint64_t span[2])
{
    int64_t n;
    uint64_t bytes;
    fv_shape s = fv__st_shape(t);
    if (!fv__shape_count(&n, &s) || !fv__kind_bytes(&bytes, t->kind, (uint64_t)n))
        return bad(w, name, "its size overflows or ends inside a byte");
    if (span[1] < span[0] || span[1] > w->bytes)
        return bad(w, name, "its data_offsets are not inside the data");
    return bytes == span[1] - span[0] ||
           bad(w, name, "its shape and dtype do not give the size its data_offsets give");
}

static bool offsets(walk *w, fv__str name, fv__jval v, uint64_t span[2])
{
    int n = 0;
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it); n++)
        if (n == 2 || !u64(w, name, value_of(&it), &span[n])) break;
    return n == 2 && fv__json_kind(v) == '[' && fv__json_count(v) == 2
               ? true
               : bad(w, name, "its data_offsets are not two integers");
}

static bool tensor(walk *w, fv__str name, fv__jval v)
{
    enum { DTYPE = 1, SHAPE = 2, SPAN = 4 };
    fv_st_entry t = {0};
    uint64_t span[2] = {0, 0};
    int seen = 0;
    if (fv__json_kind(v) != '{') return bad(w, name, "an object was expected");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        fv__str key = key_of(&it);
        int which = is(key, "dtype")          ? DTYPE
                    : is(key, "shape")        ? SHAPE
                    : is(key, "data_offsets") ? SPAN
                                              : 0;
        if (!which) return bad(w, name, "a key other than dtype, shape and data_offsets");
        if (seen & which) return bad(w, name, "a key stands twice");
        seen |= which;
        bool ok = which == DTYPE   ? dtype(w, name, value_of(&it), &t)
                  : which == SHAPE ? shape(w, name, value_of(&it), &t)
                                   : offsets(w, name, value_of(&it), span);
        if (!ok) return false;
    }
    if (seen != (DTYPE | SHAPE | SPAN))
        return bad(w, name, "dtype, shape or data_offsets is missing");
    if (!check_span(w, name, &t, span)) return false;
    t.begin = w->base + span[0];
    t.name = (uint32_t)keep(w, name);
    if (w->p->entry) w->p->entry[w->count] = t;
    w->count++;
    return !w->st;
}

/* ---- the header ---- */

/* Kept behind all names in the text: wherever it stands in the header, it is walked last. */
static bool metadata(walk *w, fv__jval v)
{
    if (fv__json_kind(v) != '{') return bad_at(w, v.at, "__metadata__: an object was expected");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        if (fv__json_kind(value_of(&it)) != '"')
            return bad_at(w, it.value, "__metadata__: a string was expected");
        keep(w, key_of(&it));
        keep(w, fv__json_raw(value_of(&it)));
    }
    return !w->st;
}

static fv_status walk_header(walk *w)
{
    fv__jval meta = {0};
    w->count = 0;
    w->text = 0;
    for (fv__jiter it = fv__json_iter(w->root); fv__json_next(&it);) {
        if (!is(key_of(&it), "__metadata__")) {
            if (!tensor(w, key_of(&it), value_of(&it))) return w->st;
            continue;
        }
        if (meta.j) bad_at(w, it.key, "__metadata__ stands twice");
        meta = value_of(&it);
    }
    w->p->meta = w->text;
    if (!w->st && meta.j) metadata(w, meta);
    return w->st;
}

/* The grammar is checked once; what was checked is walked twice. */
static fv_status open_header(walk *w)
{
    if (!w->header.n || *w->header.s != '{') bad_at(w, 0, "the header does not begin with '{'");
    return w->st ? w->st : fv__json_open(&w->root, &w->header, w->e);
}

/* Names must differ, and the spans follow one another from the beginning of the data to its end.
 * Without holes nothing can hide in a file, and without overlaps no tensor can be read as
 * another. */
static fv_status check_cover(walk *w)
{
    fv_st_plan *p = w->p;
    uint64_t at = w->base;
    fv__heapsort(p->entry, p->count, sizeof *p->entry, by_offset, NULL);
    for (uint32_t i = 0; i < p->count; i++) {
        const fv_st_entry *t = &p->entry[i];
        if (t->begin != at)
            return fv_fail(w->e, FV_EFORMAT, "%s: tensor \"%.120s\": %s before its data",
                           w->header.file, p->text + t->name,
                           t->begin > at ? "a hole" : "an overlap with the tensor");
        at += fv__st_bytes(t);
    }
    if (at != w->base + w->bytes)
        return fv_fail(w->e, FV_EFORMAT, "%s: %llu bytes at the end belong to no tensor",
                       w->header.file, (unsigned long long)(w->base + w->bytes - at));
    fv__heapsort(p->entry, p->count, sizeof *p->entry, by_name, p);
    for (uint32_t i = 1; i < p->count; i++)
        if (!by_name(&p->entry[i - 1], &p->entry[i], p))
            return fv_fail(w->e, FV_EFORMAT, "%s: tensor \"%.120s\" stands twice", w->header.file,
                           p->text + p->entry[i].name);
    return FV_OK;
}

/* ---- the file ---- */

static int by_text(const void *a, const void *b, void *user)
{
    return strcmp((const char *)user + *(const uint32_t *)a,
                  (const char *)user + *(const uint32_t *)b);
}

/* Keys of the metadata must differ too. */
static fv_status check_metadata(walk *w)
{
    const fv_st_plan *p = w->p;
    size_t n = 0, i = 0;
    fv_status st = FV_OK;
    for (size_t at = p->meta; at < w->text; at += strlen(p->text + at) + 1) n++;
    n /= 2;
    if (n < 2) return FV_OK;
    uint32_t *key = fv__alloc(p->env, n * sizeof *key);
    if (!key) return fv_fail(w->e, FV_ENOMEM, "%s: no memory for its metadata", w->header.file);
    for (size_t at = p->meta; at < w->text; at += strlen(p->text + at) + 1) {
        key[i++] = (uint32_t)at;
        at += strlen(p->text + at) + 1;
    }
    fv__heapsort(key, n, sizeof *key, by_text, p->text);
    for (i = 1; i < n && !st; i++)
        if (!by_text(&key[i - 1], &key[i], p->text))
            st = fv_fail(w->e, FV_EFORMAT, "%s: metadata \"%.120s\" stands twice", w->header.file,
                         p->text + key[i]);
    fv__free(p->env, key, n * sizeof *key);
    return st;
}

uint64_t fv__st_header_len(const char *data)
{
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--) len = len << 8 | (unsigned char)data[i];
    return len;
}

/* Where header and data lie. */
static fv_status frame(walk *w, const char *data, size_t size)
{
    const char *path = w->header.file;
    if (size < 8)
        return fv_fail(w->e, FV_EFORMAT, "%s: %zu bytes are too few for a safetensors file", path,
                       size);
    uint64_t len = fv__st_header_len(data);
    if (len > FV_ST_MAX_HEADER)
        return fv_fail(w->e, FV_EFORMAT, "%s: a header of %llu bytes; safetensors allows %d", path,
                       (unsigned long long)len, FV_ST_MAX_HEADER);
    if (len > size - 8)
        return fv_fail(w->e, FV_EFORMAT, "%s: a header of %llu bytes in a file of %zu", path,
                       (unsigned long long)len, size);
    w->header.s = data + 8;
    w->header.n = (size_t)len;
    w->base = 8 + (size_t)len;
    w->bytes = size - w->base;
    return FV_OK;
}

fv_status fv__st_plan(fv_st_plan *p, const fv_env *env, const char *head, size_t n, size_t size,
                      const char *path, fv_err *e)
{
    *p = (fv_st_plan){.env = env};
    walk w = {.header = {.file = path}, .e = e, .p = p};
    fv_status st = frame(&w, head, size);
    if (!st && w.base > n) st = fv_fail(e, FV_EFORMAT, "%s: its header is cut short", path);
    if (!st) st = open_header(&w);
    if (!st) st = walk_header(&w);
    if (!st && w.text) {
        p->text_size = w.text;
        p->count = w.count;
        p->text = fv__alloc(env, p->text_size);
        p->entry = fv__alloc(env, p->count * sizeof *p->entry);
        if (!p->text || (p->count && !p->entry))
            st = fv_fail(e, FV_ENOMEM, "%s: no memory for %u tensor descriptions", path, w.count);
        if (!st) st = walk_header(&w);
    }
    if (!st) st = check_cover(&w);
    if (!st) st = check_metadata(&w);
    p->meta_end = w.text;
    if (st) fv__st_plan_free(p);
    return st;
}

void fv__st_plan_free(fv_st_plan *p)
{
    fv__free(p->env, p->entry, p->count * sizeof *p->entry);
    fv__free(p->env, p->text, p->text_size);
    *p = (fv_st_plan){.env = p->env};
}

const fv_st_entry *fv__st_plan_find(const fv_st_plan *p, const char *name)
{
    uint32_t from = 0, to = p->count;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        int order = strcmp(name, p->text + p->entry[mid].name);
        if (!order) return &p->entry[mid];
        if (order < 0)
            to = mid;
        else
            from = mid + 1;
    }
    return NULL;
}
