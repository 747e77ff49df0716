/* checkpoints.c - checkpoints of the trainings that --runs shows, asked like any other model.
 *
 * "runs/NAME/step-400" where a request names its model is that checkpoint of the run NAME: so what
 * a training has learnt by then, its text and its attention, comes from the routes that every model
 * has, and the page draws a training over time.  Nothing is asked of the training itself, whose
 * program may be another.
 *
 * A checkpoint is opened by the first request that names it, on the thread of that request, and
 * stays open until SHOWN others have been asked for: a page goes from one to the next. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

#define PREFIX "runs/"

/* The number behind "step-"; -1: that is no name of a checkpoint (one that is being written has
 * another). */
static int64_t step_of(const char *name)
{
    const char *digits = name + strlen("step-");
    size_t n = strncmp(name, "step-", strlen("step-")) ? 0 : strspn(digits, "0123456789");
    return n && n < 16 && !digits[n] ? strtoll(digits, NULL, 10) : -1;
}

/* The directory of a checkpoint, which has a manifest once it is whole.  Names come from requests:
 * each is one folder, and not a hidden one. */
static bool find(char *out, size_t n, const sv_server *s, const char *run, size_t run_len,
                 const char *step)
{
    char manifest[4096];
    if (!run_len || run[0] == '.' || memchr(run, '/', run_len) || step_of(step) < 0) return false;
    int k = snprintf(out, n, "%s/%.*s/checkpoints/%s", s->opt.runs, (int)run_len, run, step);
    if (k < 0 || (size_t)k >= n) return false;
    k = snprintf(manifest, sizeof manifest, "%s/MANIFEST.json", out);
    return k > 0 && (size_t)k < sizeof manifest && !access(manifest, R_OK);
}

static int by_step(const struct dirent **a, const struct dirent **b)
{
    int64_t x = step_of((*a)->d_name), y = step_of((*b)->d_name);
    return (x > y) - (x < y);
}

void sv_put_checkpoints(sv_text *t, const sv_server *s, const char *run)
{
    char path[4096];
    struct dirent **list = NULL;
    int n = snprintf(path, sizeof path, "%s/%s/checkpoints", s->opt.runs, run);
    n = n > 0 && (size_t)n < sizeof path ? scandir(path, &list, NULL, by_step) : 0;
    sv_key(t, "checkpoints");
    sv_open(t, '[');
    for (int i = 0; i < n; i++) {
        if (find(path, sizeof path, s, run, strlen(run), list[i]->d_name))
            sv_int(t, step_of(list[i]->d_name));
        free(list[i]);
    }
    free(list);
    sv_close(t, ']');
}

/* The open one of that name, else the one that has been open for longest gives way. */
static fv_status take(sv_server *s, sv_engine **out, const char *name, const char *dir, fv_err *e)
{
    for (int i = 0; i < SV_SHOWN; i++)
        if (s->shown[i] && !strcmp(s->shown[i]->name, name)) *out = s->shown[i];
    if (*out) {
        sv_engine_hold(*out);
        return FV_OK;
    }
    fv_status st = sv_engine_open(out, s, name, dir, e);
    if (st) return st;
    sv_engine_hold(*out);
    if (s->shown[s->next_shown]) sv_engine_drop(s->shown[s->next_shown]);
    s->shown[s->next_shown] = *out;
    s->next_shown = (s->next_shown + 1) % SV_SHOWN;
    return FV_OK;
}

bool sv_is_checkpoint(const sv_server *s, const char *name)
{
    return s->opt.runs && name && !strncmp(name, PREFIX, strlen(PREFIX));
}

fv_status sv_checkpoint_engine(sv_server *s, sv_engine **out, const char *name, fv_err *e)
{
    char dir[3072];
    const char *run = name + strlen(PREFIX), *slash = strchr(run, '/');
    *out = NULL;
    if (!slash || !find(dir, sizeof dir, s, run, (size_t)(slash - run), slash + 1))
        return fv_fail(e, FV_EARG, "%.200s: there is no such checkpoint", name);
    pthread_mutex_lock(&s->shown_lock); /* one is opened at a time, and once */
    fv_status st = take(s, out, name, dir, e);
    pthread_mutex_unlock(&s->shown_lock);
    return st;
}

void sv_checkpoints_close(sv_server *s)
{
    for (int i = 0; i < SV_SHOWN; i++)
        if (s->shown[i]) sv_engine_drop(s->shown[i]);
}
