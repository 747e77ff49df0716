/* pairs.c - parallel sentences as token ids: read from two files, a table or memory, each encoded once. */
#include <stdio.h>

#include <jansson.h>

#include "base/base.h"
#include "fovea/data.h"

#define DEFAULT_MAX_LEN 512

/* Ids of all sentences of one side, one after another. */
typedef struct side {
    int32_t *ids;
    int64_t *at; /* where each begins, and one more */
    size_t ids_bytes, at_bytes;
    int64_t n_ids;
} side;

struct fv_pairs {
    const fv_env *env;
    side side[2];
    int64_t n;
};

typedef struct span {
    const char *s;
    size_t n;
} span;

/* A reading under way. */
typedef struct reading {
    fv_pairs *p;
    fv_encoding *enc;
    fv_pairs_opt opt;
    fv_pairs_report *report;
    fv_err *e;
    int noted;
} reading;

static fv_status no_memory(reading *r) { return fv_fail(r->e, FV_ENOMEM, "pairs: out of memory after %lld", (long long)r->p->n); }

static void note(reading *r, const char *name, int64_t line, const char *why, long long number)
{
    if (r->noted == 3) return;
    char *out = r->report->first[r->noted++];
    int n = snprintf(out, sizeof r->report->first[0], "%.80s:%lld: ", name, (long long)line);
    if (n > 0 && (size_t)n < sizeof r->report->first[0]) snprintf(out + n, sizeof r->report->first[0] - (size_t)n, why, number);
}

static bool grow(const fv_env *env, side *s, int64_t ids, int64_t n)
{
    void *a = s->ids, *b = s->at;
    bool ok = fv__grow(env, &a, &s->ids_bytes, (size_t)(s->n_ids + ids) * sizeof *s->ids);
    s->ids = a;
    ok = fv__grow(env, &b, &s->at_bytes, (size_t)(n + 2) * sizeof *s->at) && ok;
    s->at = b;
    return ok;
}

/* Encodes one side behind what is there; the pair counts only once both have been added. */
static fv_status encode(reading *r, int which, span text, int64_t *len)
{
    side *s = &r->p->side[which];
    fv_tok_opts how = {.specials = r->opt.eos < 0, .as_target = which == 1};
    fv_status st = fv_tok_encode(r->enc, text.s, text.n, how, r->e);
    if (st) return st;
    *len = r->enc->n + (r->opt.eos >= 0);
    if (!grow(r->p->env, s, *len, r->p->n)) return no_memory(r);
    memcpy(s->ids + s->n_ids, r->enc->ids, (size_t)r->enc->n * sizeof *s->ids);
    if (r->opt.eos >= 0) s->ids[s->n_ids + r->enc->n] = r->opt.eos;
    return FV_OK;
}

static bool blank(span t)
{
    for (size_t i = 0; i < t.n; i++)
        if (!strchr(" \t", t.s[i])) return false;
    return true;
}

/* One pair; name and line say where it stood. */
static fv_status add(reading *r, span source, span target, const char *const name[2], int64_t line)
{
    const span text[2] = {source, target};
    int64_t len[2], most = r->opt.max_len ? r->opt.max_len : DEFAULT_MAX_LEN;
    r->report->lines++;
    for (int i = 0; i < 2; i++) {
        size_t bad = fv__utf8_check(text[i].s, text[i].n);
        if (bad < text[i].n) {
            r->report->malformed++;
            note(r, name[i], line, "not UTF-8 at byte %lld", (long long)bad + 1);
            return FV_OK;
        }
        if (blank(text[i])) {
            r->report->empty++;
            note(r, name[i], line, "empty", 0);
            return FV_OK;
        }
        fv_status st = encode(r, i, text[i], &len[i]);
        if (st) return st;
        if (len[i] > most) {
            r->report->too_long++;
            note(r, name[i], line, "too long: %lld tokens", (long long)len[i]);
            return FV_OK;
        }
    }
    for (int i = 0; i < 2; i++) {
        side *s = &r->p->side[i];
        s->n_ids += len[i];
        s->at[r->p->n + 1] = s->n_ids;
    }
    r->p->n++;
    r->report->kept++;
    r->report->source_tokens += len[0];
    r->report->target_tokens += len[1];
    return FV_OK;
}

static bool enough(const reading *r) { return r->opt.most && r->p->n >= r->opt.most; }

static fv_status read_two(reading *r, const fv_text *a, const fv_text *b)
{
    if (fv_text_count(a) != fv_text_count(b))
        return fv_fail(r->e, FV_EFORMAT, "%s has %lld lines and %s has %lld: they must be parallel", r->opt.source,
                       (long long)fv_text_count(a), r->opt.target, (long long)fv_text_count(b));
    const char *const name[2] = {r->opt.source, r->opt.target};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < fv_text_count(a) && !enough(r); i++) {
        span s, t;
        s.s = fv_text_line(a, i, &s.n);
        t.s = fv_text_line(b, i, &t.n);
        st = add(r, s, t, name, i + 1);
    }
    return st;
}

static fv_status read_json_line(reading *r, span line, int64_t number)
{
    const char *const name[2] = {r->opt.source, r->opt.source}, *const field[2] = {r->opt.source_field, r->opt.target_field};
    json_error_t err;
    json_t *o = json_loadb(line.s, line.n, JSON_REJECT_DUPLICATES, &err);
    if (!o) return fv_fail(r->e, FV_EFORMAT, "%s:%lld: not JSON: %s", r->opt.source, (long long)number, err.text);
    span text[2];
    fv_status st = FV_OK;
    for (int i = 0; !st && i < 2; i++) {
        const json_t *v = json_object_get(o, field[i]);
        if (!json_is_string(v)) {
            st = fv_fail(r->e, FV_EFORMAT, "%s:%lld: no text called \"%s\"", r->opt.source, (long long)number, field[i]);
            break;
        }
        text[i] = (span){json_string_value(v), json_string_length(v)};
    }
    if (!st) st = add(r, text[0], text[1], name, number);
    json_decref(o);
    return st;
}

static fv_status read_table(reading *r, const fv_text *t)
{
    const char *const name[2] = {r->opt.source, r->opt.source};
    bool json = r->opt.source_field && r->opt.target_field;
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < fv_text_count(t) && !enough(r); i++) {
        span line;
        line.s = fv_text_line(t, i, &line.n);
        if (json) {
            st = read_json_line(r, line, i + 1);
            continue;
        }
        const char *tab = memchr(line.s, '\t', line.n);
        if (!tab || memchr(tab + 1, '\t', line.n - (size_t)(tab + 1 - line.s)))
            return fv_fail(r->e, FV_EFORMAT, "%s:%lld: expected two fields with one tab between them", r->opt.source,
                           (long long)i + 1);
        st = add(r, (span){line.s, (size_t)(tab - line.s)}, (span){tab + 1, line.n - (size_t)(tab + 1 - line.s)}, name, i + 1);
    }
    return st;
}

/* ---- opening ---- */

static fv_status begin(reading *r, fv_pairs **out, const fv_env *env, const fv_tok *tok)
{
    *r->report = (fv_pairs_report){0};
    r->p = *out = fv__alloc(env, sizeof *r->p);
    if (!r->p) return fv_fail(r->e, FV_ENOMEM, "pairs: out of memory");
    r->p->env = env;
    for (int i = 0; i < 2; i++)
        if (!grow(env, &r->p->side[i], 1, 0)) return no_memory(r);
    return fv_encoding_new(&r->enc, tok, r->e);
}

static fv_status end(reading *r, fv_pairs **out, fv_status st)
{
    fv_encoding_free(r->enc);
    if (!st && !r->p->n)
        st = fv_fail(r->e, FV_EFORMAT, "%s: none of %lld pairs can be used%s%s", r->opt.source ? r->opt.source : "pairs",
                     (long long)r->report->lines, r->noted ? "; the first: " : "", r->noted ? r->report->first[0] : "");
    if (st) {
        fv_pairs_close(*out);
        *out = NULL;
    }
    return st;
}

fv_status fv_pairs_open(fv_pairs **out, const fv_env *env, const fv_tok *tok, fv_pairs_opt opt, fv_pairs_report *report,
                        fv_err *e)
{
    fv_pairs_report unread;
    reading r = {.opt = opt, .report = report ? report : &unread, .e = e};
    fv_text *a = NULL, *b = NULL;
    fv_status st = begin(&r, out, env, tok);
    if (!st) st = fv_text_open(&a, env, opt.source, e);
    if (!st && opt.target) st = fv_text_open(&b, env, opt.target, e);
    if (!st) st = opt.target ? read_two(&r, a, b) : read_table(&r, a);
    fv_text_close(a);
    fv_text_close(b);
    return end(&r, out, st);
}

fv_status fv_pairs_make(fv_pairs **out, const fv_env *env, const fv_tok *tok, const char *const *source,
                        const char *const *target, int64_t n, fv_pairs_opt opt, fv_pairs_report *report, fv_err *e)
{
    static const char *const name[2] = {"source", "target"};
    fv_pairs_report unread;
    reading r = {.opt = opt, .report = report ? report : &unread, .e = e};
    fv_status st = begin(&r, out, env, tok);
    for (int64_t i = 0; !st && i < n && !enough(&r); i++)
        st = add(&r, (span){source[i], strlen(source[i])}, (span){target[i], strlen(target[i])}, name, i + 1);
    return end(&r, out, st);
}

void fv_pairs_close(fv_pairs *p)
{
    if (!p) return;
    for (int i = 0; i < 2; i++) {
        fv__free(p->env, p->side[i].ids, p->side[i].ids_bytes);
        fv__free(p->env, p->side[i].at, p->side[i].at_bytes);
    }
    fv__free(p->env, p, sizeof *p);
}

int64_t fv_pairs_count(const fv_pairs *p) { return p->n; }

static const int32_t *ids_of(const side *s, int64_t i, int64_t *n)
{
    *n = s->at[i + 1] - s->at[i];
    return s->ids + s->at[i];
}

const int32_t *fv_pairs_source(const fv_pairs *p, int64_t i, int64_t *n) { return ids_of(&p->side[0], i, n); }
const int32_t *fv_pairs_target(const fv_pairs *p, int64_t i, int64_t *n) { return ids_of(&p->side[1], i, n); }
