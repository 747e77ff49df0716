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

#include "store/scan.h"

typedef struct walk {
    fv_scan scan;
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

static int by_place(const void *a, const void *b, void *user)
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

uint64_t fv__st_bytes(const fv_st_entry *t)
{
    uint64_t n = 1; /* wraps only where an axis of length 0 follows, or came before */
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->d[i];
    return n * (uint64_t)fv__kinds[t->kind].bits / 8;
}

/* Always false, as fv__scan_fail. */
static bool bad(walk *w, fv_raw name, const char *what)
{
    if (!w->scan.st)
        w->scan.st = fv_fail(w->scan.e, FV_EFORMAT, "%s: tensor \"%.*s\": %s", w->scan.path,
                             FV_RAW_SHOWN(name), what);
    return false;
}

/* Keeps a string in the plan's text and returns its offset. */
static size_t keep(walk *w, fv_raw r)
{
    size_t at = w->text;
    w->text += w->p->text ? fv__raw_decode(w->p->text + at, r) + 1 : r.n + 1;
    return at;
}

static bool shape(walk *w, fv_raw name, fv_st_entry *t)
{
    uint64_t v;
    t->rank = 0;
    if (!fv__scan_accept(&w->scan, '[')) return false;
    for (bool first = true; fv__scan_more(&w->scan, ']', first); first = false) {
        if (!fv__scan_u64(&w->scan, &v)) return false;
        if (t->rank == FV_MAX_DIM) return bad(w, name, "more than six axes");
        if (v > INT64_MAX) return bad(w, name, "an axis beyond 63 bits");
        t->d[t->rank++] = (int64_t)v;
    }
    return !w->scan.st;
}

static bool dtype(walk *w, fv_raw name, fv_st_entry *t)
{
    fv_raw word;
    if (!fv__scan_string(&w->scan, &word)) return false;
    t->kind = (uint8_t)fv__kind_named(word.s, word.n);
    return t->kind < FV_KINDS || bad(w, name, "its dtype is none of the format");
}

/* Size by shape and dtype against the span of the offsets, without overflow. */
static bool check_span(walk *w, fv_raw name, const fv_st_entry *t, const uint64_t span[2])
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

static bool offsets(fv_scan *s, uint64_t span[2])
{
    return fv__scan_accept(s, '[') && fv__scan_u64(s, &span[0]) && fv__scan_accept(s, ',') &&
           fv__scan_u64(s, &span[1]) && fv__scan_accept(s, ']');
}

static bool tensor(walk *w, fv_raw name)
{
    enum { DTYPE = 1, SHAPE = 2, SPAN = 4 };
    fv_scan *s = &w->scan;
    fv_st_entry t = {0};
    uint64_t span[2] = {0, 0};
    int seen = 0;
    fv_raw key;
    if (!fv__scan_accept(s, '{')) return false;
    for (bool first = true; fv__scan_more(s, '}', first); first = false) {
        if (!fv__scan_string(s, &key) || !fv__scan_accept(s, ':')) return false;
        int is = fv__raw_is(key, "dtype")          ? DTYPE
                 : fv__raw_is(key, "shape")        ? SHAPE
                 : fv__raw_is(key, "data_offsets") ? SPAN
                                                   : 0;
        if (!is) return bad(w, name, "a key other than dtype, shape and data_offsets");
        if (seen & is) return bad(w, name, "a key stands twice");
        seen |= is;
        bool ok = is == DTYPE   ? dtype(w, name, &t)
                  : is == SHAPE ? shape(w, name, &t)
                                : offsets(s, span);
        if (!ok) return false;
    }
    if (!s->st && seen != (DTYPE | SHAPE | SPAN))
        bad(w, name, "dtype, shape or data_offsets is missing");
    if (s->st || !check_span(w, name, &t, span)) return false;
    t.begin = w->base + span[0];
    t.name = (uint32_t)keep(w, name);
    if (w->p->entry) w->p->entry[w->count] = t;
    w->count++;
    return true;
}

/* ---- the header ---- */

/* Kept behind all names in the text: wherever it stands in the header, it is walked last. */
static bool metadata(walk *w)
{
    fv_raw key, value;
    if (!fv__scan_accept(&w->scan, '{')) return false;
    for (bool first = true; fv__scan_more(&w->scan, '}', first); first = false) {
        if (!fv__scan_string(&w->scan, &key) || !fv__scan_accept(&w->scan, ':') ||
            !fv__scan_string(&w->scan, &value))
            return false;
        keep(w, key);
        keep(w, value);
    }
    return !w->scan.st;
}

static fv_status walk_header(walk *w)
{
    fv_scan *s = &w->scan;
    fv_raw name;
    const char *meta = NULL;
    s->at = s->start + 8;
    w->count = 0;
    w->text = 0;
    if (s->at == s->end || *s->at != '{') fv__scan_fail(s, "the header does not begin with '{'");
    fv__scan_accept(s, '{');
    for (bool first = true; fv__scan_more(s, '}', first); first = false) {
        if (!fv__scan_string(s, &name) || !fv__scan_accept(s, ':')) break;
        if (!fv__raw_is(name, "__metadata__")) {
            if (!tensor(w, name)) break;
            continue;
        }
        if (meta) fv__scan_fail(s, "__metadata__ stands twice");
        meta = s->at;
        if (!fv__scan_skip(s, 1)) break;
    }
    if (!fv__scan_end(s)) return s->st;
    w->p->meta = w->text;
    if (meta) {
        s->at = meta;
        metadata(w);
    }
    return s->st;
}

/* Names must differ, and the spans follow one another from the beginning of the data to its end. */
static fv_status check_cover(walk *w)
{
    fv_st_plan *p = w->p;
    uint64_t at = w->base;
    fv__heapsort(p->entry, p->count, sizeof *p->entry, by_place, NULL);
    for (uint32_t i = 0; i < p->count; i++) {
        const fv_st_entry *t = &p->entry[i];
        if (t->begin != at)
            return fv_fail(w->scan.e, FV_EFORMAT, "%s: tensor \"%.120s\": %s before its data",
                           w->scan.path, p->text + t->name,
                           t->begin > at ? "a hole" : "an overlap with the tensor");
        at += fv__st_bytes(t);
    }
    if (at != w->base + w->bytes)
        return fv_fail(w->scan.e, FV_EFORMAT, "%s: %llu bytes at the end belong to no tensor",
                       w->scan.path, (unsigned long long)(w->base + w->bytes - at));
    fv__heapsort(p->entry, p->count, sizeof *p->entry, by_name, p);
    for (uint32_t i = 1; i < p->count; i++)
        if (!by_name(&p->entry[i - 1], &p->entry[i], p))
            return fv_fail(w->scan.e, FV_EFORMAT, "%s: tensor \"%.120s\" stands twice",
                           w->scan.path, p->text + p->entry[i].name);
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
    if (!key) return fv_fail(w->scan.e, FV_ENOMEM, "%s: no memory for its metadata", w->scan.path);
    for (size_t at = p->meta; at < w->text; at += strlen(p->text + at) + 1) {
        key[i++] = (uint32_t)at;
        at += strlen(p->text + at) + 1;
    }
    fv__heapsort(key, n, sizeof *key, by_text, p->text);
    for (i = 1; i < n && !st; i++)
        if (!by_text(&key[i - 1], &key[i], p->text))
            st = fv_fail(w->scan.e, FV_EFORMAT, "%s: metadata \"%.120s\" stands twice",
                         w->scan.path, p->text + key[i]);
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
    const char *path = w->scan.path;
    if (size < 8)
        return fv_fail(w->scan.e, FV_EFORMAT, "%s: %zu bytes are too few for a safetensors file",
                       path, size);
    uint64_t len = fv__st_header_len(data);
    if (len > FV_ST_MAX_HEADER)
        return fv_fail(w->scan.e, FV_EFORMAT, "%s: a header of %llu bytes; safetensors allows %d",
                       path, (unsigned long long)len, FV_ST_MAX_HEADER);
    if (len > size - 8)
        return fv_fail(w->scan.e, FV_EFORMAT, "%s: a header of %llu bytes in a file of %zu", path,
                       (unsigned long long)len, size);
    w->scan.start = data;
    w->scan.end = data + 8 + len;
    w->base = 8 + (size_t)len;
    w->bytes = size - w->base;
    return FV_OK;
}

fv_status fv__st_plan(fv_st_plan *p, const fv_env *env, const char *head, size_t n, size_t size,
                      const char *path, fv_err *e)
{
    *p = (fv_st_plan){.env = env};
    walk w = {.scan = {.path = path, .e = e}, .p = p};
    fv_status st = frame(&w, head, size);
    if (!st && w.base > n) st = fv_fail(e, FV_EFORMAT, "%s: its header is cut short", path);
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
