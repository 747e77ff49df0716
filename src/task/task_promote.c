/* task_promote.c - a model in use and its successors: versions in a directory, and the one that
 * counts.
 *
 *     DIR/v1, DIR/v2, ..   directories of models or adapters, never changed once they are there
 *     DIR/CURRENT          the version in use; the one before; what was measured: a line each
 *
 * A candidate is evaluated beside the version in use, and taken only where it is not worse: it is
 * copied to vN.tmp, which is renamed, and then CURRENT is replaced in one rename.  Whatever
 * happens on the way, DIR names a whole version.  fv__hub_find follows CURRENT, so DIR is a
 * model's directory to every command; a server watches that one file.  (A symbolic link was the
 * alternative; it has no room for the version before, and not every file system has links.) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fovea/pipeline.h"
#include "base/hub.h"
#include "model/copy.h"
#include "store/json.h"
#include "store/store.h"
#include "task_pipeline.h"

typedef struct state {
    char version[64], previous[64];
} state;

/* ---- CURRENT ---- */

/* A name that does not fit is cut; no version is called so, and it will not be found. */
static void take_line(char out[64], const char **at, const char *end)
{
    size_t n = 0;
    for (; *at < end && **at != '\n'; ++*at)
        if (n + 1 < 64) out[n++] = **at;
    out[n] = 0;
    if (*at < end) ++*at;
}

/* CURRENT: the version in use, the one before it, and the metric, a line each. No file: nothing is
 * in use yet. */
static fv_status read_state(state *s, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    *s = (state){0};
    fv_status st = fv__store_path(path, dir, FV_CURRENT, e);
    if (st || !fv__file_exists(env, path)) return st;
    st = fv__file_read(&f, env, path, 4096, e);
    if (st) return st;
    const char *at = f.data, *end = at + f.size;
    take_line(s->version, &at, end);
    take_line(s->previous, &at, end);
    fv__file_close(&f);
    return *s->version ? FV_OK : fv_fail(e, FV_EFORMAT, "%s: names no version", path);
}

/* Written beside it and renamed: a reader gets the old or the new one, whole. */
static fv_status write_state(const state *s, const char *metric, double value, const fv_env *env,
                             const char *dir, fv_err *e)
{
    char path[FV_PATH], text[512];
    int n = snprintf(text, sizeof text, "%s\n%s\n", s->version, s->previous);
    if (metric && isfinite(value))
        n += snprintf(text + n, sizeof text - (size_t)n, "%.64s %.9g\n", metric, value);
    fv_status st = fv__store_path(path, dir, FV_CURRENT, e);
    return st ? st : fv__file_write(env, path, text, (size_t)n, e);
}

/* ---- versions ---- */

/* Numbers of versions are never used twice, not even of one that was given up half way (.tmp):
 * something may still have it open. */
static void greatest(void *user, const char *name)
{
    long *most = user;
    char *end;
    long n = name[0] == 'v' ? strtol(name + 1, &end, 10) : 0;
    if (n > *most && name[0] == 'v' && (!*end || !strcmp(end, ".tmp"))) *most = n;
}

/* The candidate as the next version; its name into `out`. */
static fv_status add_version(char out[64], const fv_env *env, const char *dir, const char *from,
                             fv_err *e)
{
    const fv_io *io = fv__io(env);
    char to[FV_PATH], part[FV_PATH], name[80];
    long most = 0;
    fv_status st = fv__dir_make(env, dir, e);
    if (!st && io->list(io->self, dir, greatest, &most))
        st = fv_fail(e, FV_EIO, "%s: cannot be listed", dir);
    snprintf(out, 64, "v%ld", most + 1);
    snprintf(name, sizeof name, "%s.tmp", out);
    if (!st) st = fv__store_path(part, dir, name, e);
    if (!st) st = fv__store_path(to, dir, out, e);
    if (!st) st = fv__copy_dir(env, from, part, e);
    if (!st && io->rename(io->self, part, to))
        st = fv_fail(e, FV_EIO, "%s: cannot be renamed to %s", part, out);
    return st;
}

/* ---- evaluation ---- */

static bool keep_report(void *user, const fv_task_result *r)
{
    fv__buf_add(user, r->text, r->n);
    return true;
}

/* The metric of one model on the evaluation set. */
static fv_status judge(double *out, fv_device *d, const fv_promote_opt *o, const char *model,
                       fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    fv_eval_opt how = o->eval;
    fv_buf report = {.env = env};
    fv_json *j = NULL;
    how.model = model;
    how.json = true;
    fv_status st = fv_eval(d, &how, keep_report, &report, e);
    fv__buf_add(&report, "", 1);
    if (!st && report.failed) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", model);
    if (!st) st = fv_json_parse(&j, env, report.data, "the evaluation", e);
    if (!st && !fv_json_number(j, o->metric, out))
        st = fv_fail(e, FV_EARG, "%s: its evaluation has no %s", model, o->metric);
    fv_json_close(j);
    fv__buf_free(&report);
    return st;
}

/* Nothing is copied or removed: two versions are exchanged, so going back twice is where one was.
 */
static fv_status go_back(const fv_promote_opt *o, const fv_env *env, const state *was,
                         fv_promoted *out, fv_err *e)
{
    if (!*was->version || !*was->previous)
        return fv_fail(e, FV_ESTATE, "%s: there is no version before this one", o->dir);
    state s = {0};
    memcpy(s.version, was->previous, sizeof s.version);
    memcpy(s.previous, was->version, sizeof s.previous);
    fv_status st = write_state(&s, NULL, 0, env, o->dir, e);
    if (st) return st;
    memcpy(out->version, s.version, sizeof out->version);
    memcpy(out->previous, s.previous, sizeof out->previous);
    out->taken = true;
    return FV_OK;
}

/* Under a lock on the directory: two promotions at once would compare with the same version and the
 * second would overrule the first unseen. */
fv_status fv_promote(fv_device *d, const fv_promote_opt *o, fv_promoted *out, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    state was, s = {0};
    *out = (fv_promoted){.candidate = NAN, .current = NAN};
    int lock = -1;
    fv_status st = fv__dir_make(env, o->dir, e);
    if (!st) st = fv__dir_lock(&lock, env, o->dir, e);
    if (!st) st = read_state(&was, env, o->dir, e);
    if (!st && o->back) st = go_back(o, env, &was, out, e);
    if (!st && !o->back) {
        st = judge(&out->candidate, d, o, o->candidate, e);
        if (!st && *was.version) st = judge(&out->current, d, o, o->dir, e);
        double gain = o->less ? out->current - out->candidate : out->candidate - out->current;
        out->taken = !st && (!*was.version || gain >= -o->margin);
        memcpy(out->previous, was.version, sizeof out->previous);
        memcpy(out->version, was.version, sizeof out->version);
        if (out->taken) {
            st = add_version(s.version, env, o->dir, o->candidate, e);
            memcpy(s.previous, was.version, sizeof s.previous);
            if (!st) st = write_state(&s, o->metric, out->candidate, env, o->dir, e);
            memcpy(out->version, s.version, sizeof out->version);
        }
    }
    fv__dir_unlock(&lock, env);
    return st;
}
