/* reader.c - walking a JSON document that was checked, in place; see reader.h.
 *
 * A value is an offset into the checked text, an iterator two offsets: no tree is built, and a
 * tokenizer.json of 10 MB costs no memory but its own.  tree.c is for files that are changed. */
#include <math.h>
#include <stdio.h>

#include "base/decimal.h"
#include "reader.h"
#include "text.h"

/* ---- walking ---- */

static size_t skip_string(const fv__json *j, size_t at)
{
    for (at++; at < j->n && j->s[at] != '"'; at++)
        if (j->s[at] == '\\') at++;
    return at < j->n ? at + 1 : j->n;
}

/* Numbers and words end where punctuation, a string or space begins. */
static bool in_word(char c)
{
    return c == '+' || c == '-' || c == '.' || (c >= '0' && c <= '9') ||
           ((c | 32) >= 'a' && (c | 32) <= 'z');
}

static size_t skip_word(const fv__json *j, size_t at)
{
    while (at < j->n && in_word(j->s[at])) at++;
    return at;
}

/* Brackets are only counted, never matched: the document was checked, so they do match. */
static size_t skip_value(const fv__json *j, size_t at)
{
    int depth = 0;
    if (in_word(j->s[at])) return skip_word(j, at);
    for (int i = 0; i < j->n_large; i++)
        if (j->large[i].at == at) return j->large[i].end;
    do {
        char c = j->s[at];
        if (c == '"') {
            at = skip_string(j, at);
        } else if (in_word(c)) {
            at = skip_word(j, at);
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            at++;
        }
    } while (depth && at < j->n);
    return at;
}

char fv__json_kind(fv__jval v)
{
    char k = v.j->s[v.at];
    return k == '-' || (k >= '0' && k <= '9') ? '0' : k;
}

fv__jiter fv__json_iter(fv__jval v)
{
    char k = fv__json_kind(v);
    return (fv__jiter){.j = v.j,
                       .at = k == '{' || k == '[' ? v.at + 1 : v.j->n,
                       .object = k == '{',
                       .index = -1};
}

/* O(size of the member before): the end of a value is found when it is left, not when it is
 * reached. */
bool fv__json_next(fv__jiter *it)
{
    const fv__json *j = it->j;
    size_t at = it->index < 0 ? it->at : skip_value(j, it->value);
    at = fv__json_space(j, at);
    if (at >= j->n || j->s[at] == '}' || j->s[at] == ']') return false;
    if (j->s[at] == ',') at = fv__json_space(j, at + 1);
    if (it->object) {
        it->key = at + 1;
        at = skip_string(j, at);
        it->key_end = at - 1;
        at = fv__json_space(j, fv__json_space(j, at) + 1);
    }
    it->value = at;
    it->index++;
    return true;
}

int64_t fv__json_count(fv__jval v)
{
    int64_t n = 0;
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) n++;
    return n;
}

/* path ("model.vocab[3]") is made for messages; loops over large containers do without. */
fv__jval fv__json_item(fv__jval parent, const fv__jiter *it)
{
    fv__jval v = {.j = it->j, .at = it->value};
    if (it->object)
        snprintf(v.path, sizeof v.path, "%.60s.%.*s", parent.path,
                 (int)(it->key_end - it->key < 30 ? it->key_end - it->key : 30),
                 it->j->s + it->key);
    else
        snprintf(v.path, sizeof v.path, "%.70s[%lld]", parent.path, (long long)it->index);
    return v;
}

size_t fv__json_size(fv__jval v) { return skip_value(v.j, v.at) - v.at; }

fv__str fv__json_raw(fv__jval v)
{
    size_t end = skip_string(v.j, v.at) - 1;
    return (fv__str){v.j->s + v.at + 1, end - v.at - 1};
}

size_t fv__json_unescape(char *dst, const char *raw, size_t n)
{
    char *out = dst;
    for (size_t i = 0; i < n;) {
        if (raw[i] != '\\') {
            *out++ = raw[i++];
            continue;
        }
        char k = raw[i + 1];
        i += 2;
        if (k != 'u') {
            *out++ = k == 'b'   ? '\b'
                     : k == 'f' ? '\f'
                     : k == 'n' ? '\n'
                     : k == 'r' ? '\r'
                     : k == 't' ? '\t'
                                : k;
            continue;
        }
        uint32_t cp = (uint32_t)fv__json_hex4(raw + i);
        i += 4;
        if (cp >= 0xD800 && cp <= 0xDBFF) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)fv__json_hex4(raw + i + 2) - 0xDC00);
            i += 6;
        }
        out += fv__utf8_put(out, cp);
    }
    return (size_t)(out - dst);
}

/* ---- objects ---- */

/* For objects with a known set of members, at most FV__JSON_MEMBERS; duplicates are refused
 * here. Vocabularies are walked with the iterator instead. */
fv_status fv__json_object(fv__jobj *o, fv__jval v, fv_err *e)
{
    o->self = v;
    o->n = 0;
    if (fv__json_kind(v) != '{') return fv__json_bad(v, e, "an object was expected");
    for (fv__jiter it = fv__json_iter(v); fv__json_next(&it);) {
        size_t n = it.key_end - it.key;
        if (o->n == FV__JSON_MEMBERS)
            return fv__json_bad(v, e, "more than %d members", FV__JSON_MEMBERS);
        for (int i = 0; i < o->n; i++)
            if (o->m[i].key_end - o->m[i].key == n &&
                !memcmp(v.j->s + o->m[i].key, v.j->s + it.key, n))
                return fv__json_bad(v, e, "\"%.*s\" is there twice", (int)(n < 80 ? n : 80),
                                    v.j->s + it.key);
        o->m[o->n].key = it.key;
        o->m[o->n].key_end = it.key_end;
        o->m[o->n].value = it.value;
        o->m[o->n++].used = false;
    }
    return FV_OK;
}

bool fv__json_get(fv__jval *v, fv__jobj *o, const char *key)
{
    const fv__json *j = o->self.j;
    size_t n = strlen(key);
    for (int i = 0; i < o->n; i++) {
        if (o->m[i].key_end - o->m[i].key != n || memcmp(j->s + o->m[i].key, key, n)) continue;
        o->m[i].used = true;
        *v = (fv__jval){.j = j, .at = o->m[i].value};
        snprintf(v->path, sizeof v->path, "%.60s%s%.32s", o->self.path, *o->self.path ? "." : "",
                 key);
        return true;
    }
    return false;
}

/* A member that nobody asked for is refused: a setting that would be ignored changes results
 * silently. */
fv_status fv__json_done(const fv__jobj *o, fv_err *e)
{
    for (int i = 0; i < o->n; i++) {
        if (o->m[i].used) continue;
        size_t n = o->m[i].key_end - o->m[i].key;
        return fv__json_bad(o->self, e, "\"%.*s\" is not known here", (int)(n < 80 ? n : 80),
                            o->self.j->s + o->m[i].key);
    }
    return FV_OK;
}

static fv_status missing(fv__jobj *o, const char *key, bool must, fv_err *e)
{
    return must ? fv__json_bad(o->self, e, "\"%s\" is missing", key) : FV_OK;
}

fv_status fv__json_bool(bool *out, fv__jobj *o, const char *key, bool must, fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    char k = fv__json_kind(v);
    if (k != 't' && k != 'f') return fv__json_bad(v, e, "true or false was expected");
    *out = k == 't';
    return FV_OK;
}

fv_status fv__json_int(int64_t *out, fv__jobj *o, const char *key, int64_t least, int64_t most,
                       bool must, fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    return fv__json_to_int(out, v, least, most, e);
}

fv_status fv__json_str(fv__str *out, fv__pool *p, fv__jobj *o, const char *key, bool must,
                       fv_err *e)
{
    fv__jval v;
    if (!fv__json_get(&v, o, key) || fv__json_null(v)) return missing(o, key, must, e);
    return fv__json_to_str(out, p, v, e);
}

/* ---- values ---- */

/* The number that begins there, if it is a whole one; counted downwards from 0, as INT64_MIN has no
 * positive twin. */
static bool whole(int64_t *out, const fv__json *j, size_t at)
{
    const char *s = j->s + at, *end = j->s + j->n;
    bool minus = *s == '-', ok = true;
    int64_t x = 0;
    for (s += minus; s < end && in_word(*s) && ok; s++) {
        bool digit = *s >= '0' && *s <= '9';
        ok = digit && !__builtin_mul_overflow(x, 10, &x) &&
             !__builtin_sub_overflow(x, *s - '0', &x);
    }
    if (ok && !minus) ok = !__builtin_sub_overflow(0, x, &x);
    *out = ok ? x : 0;
    return ok;
}

bool fv__json_whole(int64_t *out, fv__jval v) { return whole(out, v.j, v.at); }

int64_t fv__json_id(const fv__jiter *it)
{
    int64_t x;
    return whole(&x, it->j, it->value) && x >= 0 && x <= INT32_MAX / 4 ? x : -1;
}

fv_status fv__json_to_int(int64_t *out, fv__jval v, int64_t least, int64_t most, fv_err *e)
{
    int64_t x;
    if (fv__json_kind(v) != '0') return fv__json_bad(v, e, "a number was expected");
    if (!whole(&x, v.j, v.at))
        return fv__json_bad(v, e, "a whole number from %lld to %lld was expected", (long long)least,
                            (long long)most);
    if (x < least || x > most)
        return fv__json_bad(v, e, "%lld is not in %lld to %lld", (long long)x, (long long)least,
                            (long long)most);
    *out = x;
    return FV_OK;
}

/* A number of a thousand digits is one still: what lies beyond the buffer is only the exponent's
 * business, and is refused. */
bool fv__json_real(double *out, fv__jval v)
{
    char buf[512];
    size_t n = fv__json_size(v);
    if (n >= sizeof buf) return false;
    memcpy(buf, v.j->s + v.at, n);
    buf[n] = 0;
    *out = fv__strtod(buf, NULL);
    return isfinite(*out);
}

fv_status fv__json_to_double(double *out, fv__jval v, fv_err *e)
{
    if (fv__json_kind(v) != '0') return fv__json_bad(v, e, "a number was expected");
    return fv__json_real(out, v) ? FV_OK : fv__json_bad(v, e, "the number is too large");
}

fv_status fv__json_to_str(fv__str *out, fv__pool *p, fv__jval v, fv_err *e)
{
    if (fv__json_kind(v) != '"') return fv__json_bad(v, e, "a string was expected");
    fv__str raw = fv__json_raw(v);
    char *s = fv__pool_alloc(p, raw.n + 1);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", v.j->file);
    *out = (fv__str){s, fv__json_unescape(s, raw.s, raw.n)};
    return FV_OK;
}
