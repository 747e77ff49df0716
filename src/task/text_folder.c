/* text_folder.c - the files of a folder, for tasks that read all of them: in order of their names,
 * so that a result does not depend on the file system. */
#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

typedef struct listing {
    const fv_env *env;
    fv_buf names; /* char * */
    bool failed;
} listing;

/* Hidden files are not data: editors and file systems leave them everywhere. */
static void add_name(void *user, const char *name)
{
    listing *l = user;
    char *copy = name[0] == '.' ? NULL : fv__strdup(l->env, name);
    if (name[0] == '.') return;
    l->failed |= !copy;
    if (copy) fv__buf_add(&l->names, &copy, sizeof copy);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Folders inside the folder are passed over, and devices, which might never end. */
static fv_status take_file(const fv_env *env, const char *dir, const char *name, fv__file_fn *each,
                           void *user, fv_err *e)
{
    char path[FV_PATH];
    fv_path_kind kind;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return fv_fail(e, FV_EARG, "%s: the path of a file in it is too long", dir);
    fv_status st = fv__path_kind(&kind, env, path, e);
    return st || kind != FV_PATH_FILE ? st : each(user, path, e);
}

/* Names are all known before the first file is read: a folder that changes meanwhile gives what it
 * held at the start, or an error. */
fv_status fv__each_file(const fv_env *env, const char *dir, fv__file_fn *each, void *user,
                        fv_err *e)
{
    const fv_io *io = fv__io(env);
    listing l = {.env = env, .names.env = env};
    fv_status st = FV_OK;
    if (io->list(io->self, dir, add_name, &l) < 0)
        st = fv_fail(e, FV_EIO, "%s: not a folder that can be read", dir);
    if (!st && (l.failed || l.names.failed)) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", dir);
    size_t n = l.names.len / sizeof(char *);
    char **names = (char **)(void *)l.names.data;
    if (n) qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        if (!st) st = take_file(env, dir, names[i], each, user, e);
        fv__free(env, names[i], strlen(names[i]) + 1);
    }
    fv__buf_free(&l.names);
    return st;
}
