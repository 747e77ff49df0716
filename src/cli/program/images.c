/* images.c - images and sounds that are named on the command line: files, and all of a folder. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/cli.h"

/* "-" is standard input to a command of sounds. */
static bool is_stream(const cli *c, const char *path)
{
    return ((const fv_task_kind *)c->command->more)->sound && !strcmp(path, "-");
}

static bool is_image(const char *path)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".wav", ".flac", ".ogg", ".mp3"};
    size_t n = strlen(path);
    for (int i = 0; i < 7; i++) {
        size_t m = strlen(endings[i]);
        if (n > m && !strcasecmp(path + n - m, endings[i])) return true;
    }
    return false;
}

static bool is_folder(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISDIR(s.st_mode);
}

static bool add(cli_images *m, const char *dir, const char *name)
{
    char **grown = realloc(m->path, (size_t)(m->n + 1) * sizeof *grown);
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (grown) m->path = grown;
    if (!grown || !path) {
        free(path);
        return false;
    }
    snprintf(path, size, "%s%s%s", dir, *dir && dir[strlen(dir) - 1] != '/' ? "/" : "", name);
    m->path[m->n++] = path;
    return true;
}

/* Where it is a folder, it is added. */
static bool add_clip(cli_images *m, const char *dir, const char *name)
{
    bool ok = add(m, dir, name);
    if (!ok || is_folder(m->path[m->n - 1])) return ok;
    free(m->path[--m->n]);
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* In order of their names: what a folder gives must not depend on the file system. */
static bool add_folder(cli_images *m, const char *path)
{
    int from = m->n;
    DIR *d = opendir(path);
    bool ok = true;
    if (!d) return add(m, "", path); /* reading it will say why */
    for (struct dirent *x; ok && (x = readdir(d));)
        if (is_image(x->d_name)) ok = add(m, path, x->d_name);
    rewinddir(d);
    bool found = m->n > from;
    /* without images, folders in it: each is a clip to a model of video */
    for (struct dirent *x; ok && !found && (x = readdir(d));)
        if (x->d_name[0] != '.') ok = add_clip(m, path, x->d_name);
    closedir(d);
    if (m->n > from) qsort(m->path + from, (size_t)(m->n - from), sizeof *m->path, by_name);
    return ok;
}

/* All operands or none: a mixture of images and texts is taken for texts, and the task says what
 * is wrong. */
int cli_find_images(const cli *c, cli_images *out, int n, char **operand)
{
    bool ok = true;
    *out = (cli_images){0};
    if (((const fv_task_kind *)c->command->more)->files) { /* all of them, or standard input */
        for (int i = 0; ok && i < (n ? n : 1); i++) ok = add(out, "", n ? operand[i] : "-");
        return ok ? CLI_OK : cli_fail(c, "out of memory for the names of files");
    }
    for (int i = 0; i < n; i++)
        if (!is_image(operand[i]) && !is_folder(operand[i]) && !is_stream(c, operand[i]))
            return CLI_OK;
    for (int i = 0; ok && i < n; i++) {
        if (operand[i][0] && is_folder(operand[i]))
            ok = add_folder(out, operand[i]);
        else
            ok = add(out, "", operand[i]);
    }
    if (!ok) return cli_fail(c, "out of memory for the names of images");
    if (n && !out->n) return cli_fail(c, "%s: there is no image or sound in it", operand[0]);
    return CLI_OK;
}

void cli_free_images(cli_images *m)
{
    for (int i = 0; i < m->n; i++) free(m->path[i]);
    free(m->path);
    *m = (cli_images){0};
}
