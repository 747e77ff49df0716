/* checkpoint_find.c - which checkpoint to go on from: the newest one that verifies. */
#include <stdio.h>

#include "checkpoint.h"
#include "store.h"

/* The greatest step below `below` among the names, or -1. */
static int64_t next_step(const fv_buf *names, int64_t below)
{
    int64_t best = -1;
    for (size_t at = 0; at < names->len; at += strlen(names->data + at) + 1) {
        bool part;
        int64_t step = fv__ckpt_step(names->data + at, &part);
        if (!part && step > best && step < below) best = step;
    }
    return best;
}

fv_status fv_ckpt_find(fv_ckpt_found *out, const fv_env *env, const char *root, const char *config,
                       void (*broken)(void *user, const char *dir, const char *why), void *user,
                       fv_err *e)
{
    fv_buf names = {.env = env};
    *out = (fv_ckpt_found){.step = -1};
    fv_path_kind kind;
    fv_status st = fv__path_kind(&kind, env, root, e);
    if (st || kind == FV_PATH_ABSENT) return st;
    st = fv__ckpt_names(&names, root, e);
    for (int64_t step = INT64_MAX; !st && (step = next_step(&names, step)) >= 0;) {
        char dir[FV_PATH], name[64];
        fv_err why = {0};
        snprintf(name, sizeof name, "step-%lld", (long long)step);
        st = fv__store_path(dir, root, name, e);
        if (!st && strlen(dir) >= sizeof out->dir)
            st = fv_fail(e, FV_EIO, "%.200s...: path too long", dir);
        if (st) break;
        fv_status bad = fv__ckpt_verify(env, dir, step, config, &why);
        /* A checkpoint that cannot be looked at is not a bad one: going on from an older one, or
         * from nothing, would throw work away. */
        if (bad == FV_ENOMEM || bad == FV_EIO) {
            st = fv_fail(e, bad, "%s", why.text);
            break;
        }
        if (bad && broken) broken(user, dir, why.text);
        if (bad) continue;
        out->step = step;
        memcpy(out->dir, dir, strlen(dir) + 1);
        break;
    }
    fv__buf_free(&names);
    return st;
}
