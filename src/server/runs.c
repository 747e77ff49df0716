/* runs.c - /v1/runs: trainings in the directory that --runs names, as they go on.
 *
 * A run is a folder with the train.jsonl that `fovea train` writes.  The file is read anew for each
 * request, its last MOST bytes from the beginning of a line on: a page that follows a run asks
 * again every few seconds, and nothing has to be kept between two requests. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core.h"

enum { MOST = 4 << 20 };

/* The name comes from a URL: no folder above, none below, nothing hidden. */
static bool run_path(char *out, size_t n, const sv_server *s, const char *name)
{
    int k = snprintf(out, n, "%s/%s/train.jsonl", s->opt.runs, name);
    return name[0] && name[0] != '.' && !strchr(name, '/') && k > 0 && (size_t)k < n;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* A directory is a run where it has a train.jsonl; `updated` tells which of them go on. */
void sv_runs(sv_request *r)
{
    const sv_server *s = r->server;
    struct dirent **list = NULL;
    char path[4096];
    struct stat file;
    sv_text t = {0};
    int n = s->opt.runs ? scandir(s->opt.runs, &list, NULL, by_name) : 0;
    sv_put(&t, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        if (run_path(path, sizeof path, s, name) && !stat(path, &file)) {
            sv_open(&t, '{');
            sv_string_at(&t, "id", name);
            sv_int_at(&t, "updated", (int64_t)file.st_mtime);
            sv_int_at(&t, "bytes", (int64_t)file.st_size);
            sv_close(&t, '}');
        }
        free(list[i]);
    }
    free(list);
    sv_put(&t, "]}\n");
    sv_answer(r, 200, NULL, &t);
}

/* Lines that are whole JSON objects, joined by commas; a line that is still being written is left
 * for the next time. */
static void put_lines(sv_text *t, char *text, size_t n)
{
    bool first = true;
    for (char *line = text, *end; (end = memchr(line, '\n', n - (size_t)(line - text)));
         line = end + 1) {
        *end = 0;
        json_t *j = json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(j)) {
            if (!first) sv_put(t, ",");
            sv_add(t, line, (size_t)(end - line));
            first = false;
        }
        json_decref(j);
    }
}

/* The last MOST bytes: a run of weeks has a long log, and the page draws its end. */
void sv_run_named(sv_request *r)
{
    const char *name = r->path + strlen("/v1/runs/");
    char path[4096];
    FILE *f = r->server->opt.runs && run_path(path, sizeof path, r->server, name)
                  ? fopen(path, "rb")
                  : NULL;
    if (!f) {
        sv_refuse(r, 404, "invalid_request_error", NULL, "there is no run %s", name);
        return;
    }
    sv_text t = {0};
    char *text = malloc(MOST);
    long size = fseek(f, 0, SEEK_END) ? 0 : ftell(f), from = size > MOST ? size - MOST : 0;
    size_t n = text && !fseek(f, from, SEEK_SET) ? fread(text, 1, MOST, f) : 0;
    char *start = text, *line = from && n ? memchr(text, '\n', n) : NULL;
    if (line) start = line + 1; /* the first one is cut */
    fclose(f);
    sv_open(&t, '{');
    sv_string_at(&t, "id", name);
    sv_key(&t, "lines");
    sv_open(&t, '[');
    if (text) put_lines(&t, start, n - (size_t)(start - text));
    sv_close(&t, ']');
    sv_put_checkpoints(&t, r->server, name);
    sv_put(&t, "}\n");
    t.failed |= !text;
    free(text);
    sv_answer(r, 200, NULL, &t);
}
