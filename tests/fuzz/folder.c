/* folder.c - a directory in memory as the library's files: path "m/NAME". */
#include "folder.h"

#include <errno.h>
#include <string.h>

static bytes content(const folder *v, int i)
{
    return i == MAX_FILES ? (bytes){0} : i == v->spoiled ? v->instead : v->s->content[i];
}

static int find_file(const folder *v, const char *path)
{
    const char *name = strncmp(path, "m/", 2) ? path : path + 2;
    for (int i = 0; i < v->s->n; i++)
        if (!strcmp(v->s->file[i], name)) return i;
    return -1;
}

static int open_read(void *self, const char *path)
{
    folder *v = self;
    /* the directory itself is opened too */
    int i = strcmp(path, "m") ? find_file(v, path) : MAX_FILES, fd = 0;
    if (i < 0) return -ENOENT;
    while (fd < 32 && v->file[fd]) fd++;
    if (fd == 32) return -EMFILE;
    v->file[fd] = i + 1;
    v->at[fd] = 0;
    v->opened++;
    return fd;
}

static int64_t read_some(void *self, int fd, void *buf, size_t n)
{
    folder *v = self;
    bytes b = content(v, v->file[fd] - 1);
    if (n > b.n - v->at[fd]) n = b.n - v->at[fd];
    memcpy(buf, b.s + v->at[fd], n);
    v->at[fd] += n;
    return (int64_t)n;
}

static int64_t size_of(void *self, int fd)
{
    int i = ((folder *)self)->file[fd] - 1;
    return i == MAX_FILES ? -EISDIR : (int64_t)content(self, i).n;
}

static const void *map(void *self, int fd, size_t n)
{
    return n ? content(self, ((folder *)self)->file[fd] - 1).s : NULL;
}
static void unmap(void *self, const void *p, size_t n) { (void)self, (void)p, (void)n; }

static int close_file(void *self, int fd)
{
    ((folder *)self)->file[fd] = 0;
    ((folder *)self)->opened--;
    return 0;
}

static int list_dir(void *self, const char *path, fv_name_fn *each, void *user)
{
    folder *v = self;
    if (strcmp(path, "m")) return -ENOENT;
    for (int i = 0; i < v->s->n; i++) each(user, v->s->file[i]);
    return 0;
}

static int no_path(void *self, const char *path) { return (void)self, (void)path, -EROFS; }
static int no_rename(void *self, const char *a, const char *b)
{
    return (void)self, (void)a, (void)b, -EROFS;
}
static int64_t no_write(void *self, int fd, const void *p, size_t n)
{
    return (void)self, (void)fd, (void)p, (void)n, -EROFS;
}
static int no_sync(void *self, int fd) { return (void)self, (void)fd, -EROFS; }

fv_io folder_io(folder *f)
{
    return (fv_io){.open_read = open_read,
                   .open_write = no_path,
                   .read = read_some,
                   .write = no_write,
                   .size = size_of,
                   .map = map,
                   .unmap = unmap,
                   .sync = no_sync,
                   .close = close_file,
                   .rename = no_rename,
                   .unlink = no_path,
                   .mkdir = no_path,
                   .sync_dir = no_path,
                   .rmdir = no_path,
                   .list = list_dir,
                   .self = f};
}

size_t folder_size(const folder *f)
{
    size_t n = 0;
    for (int i = 0; i < f->s->n; i++) n += content(f, i).n;
    return n;
}
