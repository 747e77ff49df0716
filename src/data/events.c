/* events.c - events by user and time: read as rows or as sequences, then sorted by user.
 *
 * Events are kept in one array in the order of the file.  A counting sort by user, which is stable,
 * puts those of each user together; only where the file has times is each user sorted by them. */
#include "fovea/author/events.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/decimal.h"
#include "base/pool.h"
#include "data/labels.h"

const char *const fv_events_layouts[] = {"rows", "sequences", NULL};

typedef struct event {
    double time;
    int64_t at; /* in the file, so that equal times keep their order */
    int32_t user, item;
} event;

struct fv_events {
    const fv_env *env;
    fv_labels users;
    event *event;
    size_t event_bytes;
    int64_t n;
    int32_t *item;  /* (n): those of the first user, then of the next */
    int64_t *start; /* (users + 1) */
    size_t item_bytes, start_bytes;
    bool timed;
};

typedef struct reading {
    fv_events *v;
    const fv_events_opt *opt;
    int64_t line; /* from 1 */
    fv_err *e;
} reading;

/* The next field of a line; false at its end.  Neighbouring blanks are one separator. */
static bool next_field(const char **at, const char *end, fv__str *out)
{
    const char *s = *at;
    while (s < end && strchr(" \t,;", *s)) s++;
    out->s = s;
    while (s < end && !strchr(" \t,;", *s)) s++;
    out->n = (size_t)(s - out->s);
    *at = s;
    return out->n > 0;
}

/* Events are kept in the order of the file (`at`) until sort; items get numbers in order of first
 * appearance, or must be known where the model's list is closed. */
static fv_status add(const reading *r, int32_t user, const fv__str *item, double time)
{
    fv_events *v = r->v;
    void *p = v->event;
    int32_t id;
    fv_status st = fv__label(r->opt->items, &id, r->opt->file, r->line, item->s, item->n, r->e);
    if (st) return st;
    bool ok = fv__grow(v->env, &p, &v->event_bytes, (size_t)(v->n + 1) * sizeof *v->event);
    v->event = p;
    if (!ok) return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->opt->file);
    v->event[v->n] = (event){time, v->n, user, id};
    v->n++;
    return FV_OK;
}

static fv_status read_time(const reading *r, const fv__str *f, double *out)
{
    char text[64], *end;
    snprintf(text, sizeof text, "%.*s", (int)(f->n < 60 ? f->n : 60), f->s);
    *out = fv__strtod(text, &end);
    if (end == text || *end || !isfinite(*out))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: \"%.40s\" is no time (a number)", r->opt->file,
                       (long long)r->line, text);
    return FV_OK;
}

/* "user item [time]", or in the other layout "user item item ...". A line of blanks is skipped. Too
 * many fields are refused: they are most often a file of the other layout. */
static fv_status read_line(reading *r, const char *line, size_t n)
{
    const char *at = line, *end = line + n;
    fv__str user, item, more;
    int32_t id;
    double time = 0;
    if (!next_field(&at, end, &user)) return FV_OK;
    fv_status st = fv_labels_add(&r->v->users, &id, user.s, user.n, r->e);
    if (!st && !next_field(&at, end, &item))
        st = fv_fail(r->e, FV_EFORMAT, "%s:%lld: a user without an item", r->opt->file,
                     (long long)r->line);
    if (st) return st;
    if (r->opt->layout == FV_EVENTS_SEQUENCES) {
        do st = add(r, id, &item, 0);
        while (!st && next_field(&at, end, &item));
        return st;
    }
    if (next_field(&at, end, &more)) {
        st = read_time(r, &more, &time);
        r->v->timed = true;
    }
    if (!st && next_field(&at, end, &more))
        st = fv_fail(r->e, FV_EFORMAT,
                     "%s:%lld: more than user, item and time; layout = sequences reads a user's "
                     "items from one line",
                     r->opt->file, (long long)r->line);
    return st ? st : add(r, id, &item, time);
}

/* Equal times stay in the order of the file, as stable sorts of other tools leave them. */
static int by_time(const void *a, const void *b)
{
    const event *x = a, *y = b;
    if (x->user != y->user) return x->user < y->user ? -1 : 1;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* A counting sort by user into item/start (compressed rows): items of user u are item[start[u]] ..
 * item[start[u + 1]]. */
static fv_status sort(fv_events *v, const char *file, fv_err *e)
{
    v->item_bytes = (size_t)v->n * sizeof *v->item;
    v->start_bytes = (size_t)(v->users.n + 1) * sizeof *v->start;
    v->item = fv__alloc(v->env, v->item_bytes);
    v->start = fv__alloc(v->env, v->start_bytes);
    if (!v->item || !v->start) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    if (v->timed) qsort(v->event, (size_t)v->n, sizeof *v->event, by_time);
    for (int64_t i = 0; i < v->n; i++) v->start[v->event[i].user + 1]++;
    for (int32_t u = 0; u < v->users.n; u++) v->start[u + 1] += v->start[u];
    /* start[u] moves to where user u + 1 begins while its items are placed, and back again */
    for (int64_t i = 0; i < v->n; i++) v->item[v->start[v->event[i].user]++] = v->event[i].item;
    for (int32_t u = v->users.n; u > 0; u--) v->start[u] = v->start[u - 1];
    v->start[0] = 0;
    return FV_OK;
}

/* The events themselves, 24 bytes each, are freed once items stand by user: 4 bytes each remain. */
fv_status fv_events_open(fv_events **out, const fv_env *env, const fv_events_opt *opt, fv_err *e)
{
    fv_textfile *t = NULL;
    fv_events *v = *out = fv__alloc(env, sizeof *v);
    if (!v) return fv_fail(e, FV_ENOMEM, "%s: out of memory", opt->file);
    v->env = v->users.env = env;
    reading r = {v, opt, 1, e};
    fv_status st = fv_textfile_open(&t, env, opt->file, e);
    for (int64_t i = 0, lines = st ? 0 : fv_textfile_count(t); !st && i < lines; i++, r.line++) {
        size_t n;
        const char *line = fv_textfile_line(t, i, &n);
        if (i || !opt->header) st = read_line(&r, line, n);
    }
    fv_textfile_close(t);
    if (!st && !v->n) st = fv_fail(e, FV_EFORMAT, "%s: there is no event", opt->file);
    if (!st) st = sort(v, opt->file, e);
    fv__free(env, v->event, v->event_bytes);
    v->event = NULL;
    v->event_bytes = 0;
    if (st) {
        fv_events_close(v);
        *out = NULL;
    }
    return st;
}

void fv_events_close(fv_events *v)
{
    if (!v) return;
    fv_labels_free(&v->users);
    fv__free(v->env, v->item, v->item_bytes);
    fv__free(v->env, v->start, v->start_bytes);
    fv__free(v->env, v, sizeof *v);
}

int64_t fv_events_users(const fv_events *v) { return v->users.n; }
const char *fv_events_user(const fv_events *v, int64_t user) { return v->users.name[user]; }
int64_t fv_events_find(const fv_events *v, const char *user)
{
    return fv_labels_find(&v->users, user, strlen(user));
}
const int32_t *fv_events_items(const fv_events *v, int64_t user, int64_t *n)
{
    *n = v->start[user + 1] - v->start[user];
    return v->item + v->start[user];
}
