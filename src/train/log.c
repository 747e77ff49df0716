/* log.c - train.jsonl, the TensorBoard event file and curve.svg: three views of one list of
 * entries.
 *
 * Both files are rewritten when a run begins or resumes, without the entries behind the
 * checkpoint it resumes from, and then appended to.  They are replaced by renaming: a crash
 * leaves the old file or the new one.  (Truncating in place was the alternative: a crash could
 * then leave a file that is neither.) */
#include "train/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/json/tree.h"

/* A file that grows, after it has replaced an older one. */
typedef struct journal {
    const fv_env *env;
    int fd; /* -1: closed */
    char path[FV_PATH];
} journal;

struct fv__log {
    const fv_env *env;
    char dir[FV_PATH];
    journal lines, events;
    fv__entry *entry;
    size_t n, capacity;
};

/* ---- journals ---- */

static fv_status failed(const journal *j, const char *what, int64_t rc, fv_err *e)
{
    return fv_fail(e, FV_EIO, "%s: cannot %s: %s", j->path, what, strerror((int)-rc));
}

/* Appended at once: what a run has said is in the file when it is killed. */
static fv_status journal_add(journal *j, const fv_buf *b, fv_err *e)
{
    const fv_io *io = fv__io(j->env);
    if (b->failed) return fv_fail(e, FV_ENOMEM, "%s: out of memory", j->path);
    for (size_t at = 0; at < b->len;) {
        int64_t n = io->write(io->self, j->fd, b->data + at, b->len - at);
        if (n <= 0) return failed(j, "write", n ? n : -EIO, e);
        at += (size_t)n;
    }
    return FV_OK;
}

/* Writes what the file starts with under a random name beside it, then renames it; fd stays open
 * on it, which fv__out_commit would close. */
static fv_status journal_open(journal *j, const fv_env *env, const char *dir, const char *name,
                              const fv_buf *start, fv_err *e)
{
    const fv_io *io = fv__io(env);
    fv_out out;
    *j = (journal){.env = env, .fd = -1};
    int n = snprintf(j->path, sizeof j->path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof j->path)
        return fv_fail(e, FV_EARG, "%.100s...: the path is too long", dir);
    if (start->failed) return fv_fail(e, FV_ENOMEM, "%s: out of memory", j->path);
    fv_status st = fv__out_open(&out, env, j->path, e);
    if (st) return st;
    fv__out_add(&out, start->data, start->len);
    int rc = out.rc ? out.rc : io->sync(io->self, out.fd);
    if (!rc && !out.in_place) rc = io->rename(io->self, out.tmp, out.path);
    if (!rc) {
        j->fd = out.fd;
        return FV_OK;
    }
    fv__out_abandon(&out);
    return failed(j, "replace", rc, e);
}

static void journal_close(journal *j)
{
    const fv_io *io = fv__io(j->env);
    if (j->fd >= 0 && *j->path) io->close(io->self, j->fd);
    j->fd = -1;
}

/* ---- one entry, in both languages ---- */

/* JSON has no NaN: what is not there is left out. */
static void number(fv_buf *b, const char *key, double value)
{
    if (isfinite(value)) fv__buf_fmt(b, ", \"%s\": %.9g", key, value);
}

/* Numbers that are not finite have no place in JSON: their keys are left out. */
static void as_line(fv_buf *b, const fv__entry *x, const char *metric)
{
    fv__buf_fmt(b, "{\"event\": \"%s\", \"step\": %lld, \"epoch\": %lld",
                x->valid ? "valid" : "train", (long long)x->step, (long long)x->epoch);
    number(b, x->valid ? "valid_loss" : "loss", x->loss);
    number(b, "lr", x->lr);
    number(b, "norm", x->norm);
    number(b, "tokens_per_s", x->rate);
    number(b, "wait", x->wait);
    if (x->ranks > 1) {
        fv__buf_fmt(b, ", \"ranks\": %lld", (long long)x->ranks);
        number(b, "comm", x->comm);
        number(b, "overlap", x->overlap);
    }
    if (isfinite(x->metric))
        fv__buf_fmt(b, ", \"metric\": \"%s\", \"value\": %.9g", metric ? metric : "metric",
                    x->metric);
    fv__buf_fmt(b, ", \"time\": %.3f}\n", x->time);
}

static void scalar(fv_buf *b, const fv__entry *x, const char *tag, double value)
{
    if (isfinite(value)) fv__event_scalar(b, x->time, x->step, tag, value);
}

/* Tags of TensorBoard: train/loss, valid/loss, valid/<metric>, ... */
static void as_events(fv_buf *b, const fv__entry *x, const char *metric)
{
    char tag[64];
    snprintf(tag, sizeof tag, "valid/%.40s", metric ? metric : "metric");
    scalar(b, x, x->valid ? "valid/loss" : "train/loss", x->loss);
    scalar(b, x, "train/lr", x->lr);
    scalar(b, x, "train/norm", x->norm);
    scalar(b, x, "train/tokens_per_s", x->rate);
    scalar(b, x, "train/wait", x->wait);
    if (x->ranks > 1) scalar(b, x, "train/comm", x->comm);
    scalar(b, x, tag, x->metric);
}

/* ---- reading an older log ---- */

static double member(const fv__jnode *o, const char *key)
{
    const fv__jnode *v = fv__jnode_get(o, key);
    return fv__jnode_number(v) ? v->x : (double)NAN;
}

static const char *text_member(const fv__jnode *o, const char *key)
{
    const fv__jnode *v = fv__jnode_get(o, key);
    return fv__jnode_is(v, FV__J_TEXT) ? v->text : NULL;
}

/* 0 where it is missing. */
static int64_t whole_member(const fv__jnode *o, const char *key)
{
    const fv__jnode *v = fv__jnode_get(o, key);
    return fv__jnode_is(v, FV__J_INT) ? v->i : 0;
}

/* Entries stay in memory for the curve. */
static bool keep(fv__log *l, fv__entry x)
{
    void *p = l->entry;
    if (!fv__grow(l->env, &p, &l->capacity, (l->n + 1) * sizeof *l->entry)) return false;
    l->entry = p;
    l->entry[l->n++] = x;
    return true;
}

/* Keeps the entry of one line and writes it to both files again, where it is not behind step.  A
 * line that a crash cut short is skipped. */
static bool read_line(fv__log *l, const char *s, size_t n, int64_t step, fv_buf *lines,
                      fv_buf *events)
{
    fv__jtree tree = {.pool = {.env = l->env}};
    fv_status st = fv__jtree_parse(&tree, s, n, "train.jsonl", 8, NULL);
    const fv__jnode *o = st ? NULL : tree.root;
    const char *event = text_member(o, "event"), *metric = text_member(o, "metric");
    bool ok = st != FV_ENOMEM;
    if (event && whole_member(o, "step") <= step) {
        bool valid = !strcmp(event, "valid");
        fv__entry x = {.step = whole_member(o, "step"),
                       .epoch = whole_member(o, "epoch"),
                       .valid = valid,
                       .loss = member(o, valid ? "valid_loss" : "loss"),
                       .metric = member(o, "value"),
                       .lr = member(o, "lr"),
                       .norm = member(o, "norm"),
                       .rate = member(o, "tokens_per_s"),
                       .wait = member(o, "wait"),
                       .ranks = whole_member(o, "ranks"),
                       .comm = member(o, "comm"),
                       .overlap = member(o, "overlap"),
                       .time = member(o, "time")};
        ok = keep(l, x);
        as_line(lines, &x, metric);
        as_events(events, &x, metric);
    }
    fv__jtree_free(&tree);
    return ok;
}

/* The entries of an earlier part of the run; only whole lines count. */
static fv_status read_old(fv__log *l, int64_t step, fv_buf *lines, fv_buf *events, fv_err *e)
{
    char path[FV_PATH + 16];
    fv_file f;
    snprintf(path, sizeof path, "%s/train.jsonl", l->dir);
    if (step < 0 || !fv__file_exists(l->env, path)) return FV_OK;
    fv_status st = fv__file_open(&f, l->env, path, e);
    bool ok = true;
    for (size_t i = 0; !st && ok && i < f.size;) {
        const char *end = memchr(f.data + i, '\n', f.size - i);
        if (!end) break;
        ok = read_line(l, f.data + i, (size_t)(end - f.data) - i, step, lines, events);
        i = (size_t)(end - f.data) + 1;
    }
    if (!st) fv__file_close(&f);
    return ok ? st : fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
}

/* ---- the log ---- */

static double wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A resumed run rewrites both files up to its checkpoint: what came after it will come again. */
fv_status fv__log_open(fv__log **out, const fv_env *env, const char *dir, int64_t step, fv_err *e)
{
    fv__log *l = *out = fv__alloc(env, sizeof *l);
    if (!l) return fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    fv_buf lines = {.env = env}, events = {.env = env};
    l->env = env;
    l->lines.fd = l->events.fd = -1;
    if (strlen(dir) + 64 > sizeof l->dir)
        return fv_fail(e, FV_EARG, "%.100s...: the path is too long", dir);
    memcpy(l->dir, dir, strlen(dir) + 1);
    fv__event_version(&events, wall_clock());
    fv_status st = read_old(l, step, &lines, &events, e);
    if (!st) st = journal_open(&l->lines, env, dir, "train.jsonl", &lines, e);
    if (!st) st = journal_open(&l->events, env, dir, "events.out.tfevents.fovea", &events, e);
    fv__buf_free(&lines);
    fv__buf_free(&events);
    return st;
}

void fv__log_close(fv__log *l)
{
    if (!l) return;
    journal_close(&l->lines);
    journal_close(&l->events);
    fv__free(l->env, l->entry, l->capacity);
    fv__free(l->env, l, sizeof *l);
}

/* Written at once, without sync: a crash may lose the last lines, which a resumed run writes
 * again. */
fv_status fv__log_add(fv__log *l, const fv__entry *entry, const char *metric, fv_err *e)
{
    fv__entry x = *entry;
    fv_buf line = {.env = l->env}, event = {.env = l->env};
    x.time = wall_clock();
    as_line(&line, &x, metric);
    as_events(&event, &x, metric);
    fv_status st = keep(l, x) ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", l->lines.path);
    if (!st) st = journal_add(&l->lines, &line, e);
    if (!st) st = journal_add(&l->events, &event, e);
    fv__buf_free(&line);
    fv__buf_free(&event);
    return st;
}

fv_status fv__log_draw(fv__log *l, fv_err *e)
{
    char path[FV_PATH + 16];
    fv_buf b = {.env = l->env};
    snprintf(path, sizeof path, "%s/curve.svg", l->dir);
    fv__curve(&b, l->entry, l->n);
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(l->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
