/* memfs.c - the file system in memory. */
#include "memfs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES 64

typedef struct content {
    char *data;
    size_t n;
} content;
typedef struct entry {
    char name[128];
    memfs_node *node;
} entry;
typedef struct listing {
    entry e[NAMES];
    int n;
} listing;

struct memfs_node {
    memfs_node *next; /* of all ever made */
    bool dir;
    content seen, synced;
    listing *names, *synced_names;
};

/* ---- nodes ---- */

static memfs_node *new_node(memfs *fs, bool dir)
{
    memfs_node *n = calloc(1, sizeof *n);
    n->dir = dir;
    n->next = fs->nodes;
    fs->nodes = n;
    if (dir) {
        n->names = calloc(1, sizeof *n->names);
        n->synced_names = calloc(1, sizeof *n->synced_names);
    }
    return n;
}

static void copy(content *to, const content *from)
{
    free(to->data);
    to->data = malloc(from->n + 1);
    if (from->n) memcpy(to->data, from->data, from->n);
    to->n = from->n;
}

static entry *lookup(listing *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->e[i].name, name)) return &l->e[i];
    return NULL;
}

/* The directory that holds path, and path's last part. */
static memfs_node *parent(const memfs *fs, const char *path, char last[128])
{
    memfs_node *dir = fs->root;
    for (;;) {
        while (*path == '/') path++;
        size_t n = strcspn(path, "/");
        snprintf(last, 128, "%.*s", (int)n, path);
        path += n;
        while (*path == '/') path++;
        if (!*path) return dir;
        entry *e = dir->dir ? lookup(dir->names, last) : NULL;
        if (!e) return NULL;
        dir = e->node;
    }
}

static entry *find(const memfs *fs, const char *path)
{
    char last[128];
    memfs_node *dir = parent(fs, path, last);
    return dir && dir->dir ? lookup(dir->names, last) : NULL;
}

static void link_node(memfs_node *dir, const char *name, memfs_node *node)
{
    entry *e = lookup(dir->names, name);
    if (!e) e = &dir->names->e[dir->names->n++];
    if (e->name != name) snprintf(e->name, sizeof e->name, "%.*s", (int)sizeof e->name - 1, name);
    e->node = node;
}

static void unlink_entry(memfs_node *dir, entry *e) { *e = dir->names->e[--dir->names->n]; }

/* ---- calls that may fail ---- */

static int trouble(memfs *fs)
{
    fs->calls++;
    if (fs->fail_at && fs->calls == fs->fail_at) return -EIO;
    return fs->crash_at && fs->calls >= fs->crash_at ? -EIO : 0;
}

static int open_node(memfs *fs, memfs_node *node)
{
    for (int fd = 0; fd < 16; fd++)
        if (!fs->open[fd]) {
            fs->open[fd] = node;
            fs->at[fd] = 0;
            fs->opened++;
            return fd;
        }
    return -EMFILE;
}

static int mem_open_read(void *self, const char *path)
{
    int rc = trouble(self);
    entry *e = find(self, path);
    memfs *fs = self;
    return rc                             ? rc
           : !*path || !strcmp(path, "/") ? open_node(fs, fs->root)
           : e                            ? open_node(fs, e->node)
                                          : -ENOENT;
}

static int mem_open_write(void *self, const char *path)
{
    int rc = trouble(self);
    char last[128];
    memfs_node *dir = parent(self, path, last);
    if (rc) return rc;
    if (!dir) return -ENOENT;
    entry *e = lookup(dir->names, last);
    if (e && e->node->dir) return -EISDIR;
    memfs_node *node = e ? e->node : new_node(self, false);
    if (!e) link_node(dir, last, node);
    node->seen.n = 0;
    return open_node(self, node);
}

static int64_t mem_read(void *self, int fd, void *buf, size_t n)
{
    memfs *fs = self;
    int rc = trouble(fs);
    content *c = &fs->open[fd]->seen;
    if (rc) return rc;
    if (n > c->n - fs->at[fd]) n = c->n - fs->at[fd];
    if (n) memcpy(buf, c->data + fs->at[fd], n);
    fs->at[fd] += n;
    return (int64_t)n;
}

static int64_t mem_write(void *self, int fd, const void *buf, size_t n)
{
    memfs *fs = self;
    int rc = trouble(fs);
    content *c = &fs->open[fd]->seen;
    if (rc && fs->calls != fs->crash_at) return rc;
    if (rc) n /= 2;
    c->data = realloc(c->data, c->n + n + 1);
    if (n) memcpy(c->data + c->n, buf, n);
    c->n += n;
    return rc ? rc : (int64_t)n;
}

static int64_t mem_size(void *self, int fd)
{
    memfs *fs = self;
    int rc = trouble(fs);
    return rc ? rc : fs->open[fd]->dir ? -EISDIR : (int64_t)fs->open[fd]->seen.n;
}

/* A copy of exactly that size: reading past its end is seen by the sanitizer. */
static const void *mem_map(void *self, int fd, size_t n)
{
    memfs *fs = self;
    if (trouble(fs)) return NULL;
    void *p = malloc(n);
    memcpy(p, fs->open[fd]->seen.data, n);
    fs->maps++;
    return p;
}

static void mem_unmap(void *self, const void *p, size_t n)
{
    (void)n;
    ((memfs *)self)->maps--;
    free((void *)(uintptr_t)p);
}

static int mem_sync(void *self, int fd)
{
    memfs *fs = self;
    int rc = trouble(fs);
    if (!rc) copy(&fs->open[fd]->synced, &fs->open[fd]->seen);
    return rc;
}

static int mem_close(void *self, int fd)
{
    memfs *fs = self;
    fs->open[fd] = NULL;
    fs->opened--;
    return trouble(fs);
}

static int mem_rename(void *self, const char *from, const char *to)
{
    int rc = trouble(self);
    char a[128], b[128];
    memfs_node *da = parent(self, from, a), *db = parent(self, to, b);
    entry *e = da ? lookup(da->names, a) : NULL;
    if (rc) return rc;
    if (!e || !db) return -ENOENT;
    memfs_node *node = e->node;
    entry *old = lookup(db->names, b);
    if (old && old->node->dir && (!node->dir || old->node->names->n))
        return node->dir ? -ENOTEMPTY : -EISDIR;
    if (old && !old->node->dir && node->dir) return -ENOTDIR;
    unlink_entry(da, e);
    link_node(db, b, node);
    return 0;
}

static int remove_entry(memfs *fs, const char *path, bool dir)
{
    int rc = trouble(fs);
    char last[128];
    memfs_node *above = parent(fs, path, last);
    entry *e = find(fs, path);
    if (rc) return rc;
    if (!e) return -ENOENT;
    if (e->node->dir != dir) return dir ? -ENOTDIR : -EISDIR;
    if (dir && e->node->names->n) return -ENOTEMPTY;
    unlink_entry(above, e);
    return 0;
}

static int mem_unlink(void *self, const char *path) { return remove_entry(self, path, false); }
static int mem_rmdir(void *self, const char *path) { return remove_entry(self, path, true); }

static int mem_mkdir(void *self, const char *path)
{
    int rc = trouble(self);
    char last[128];
    memfs_node *dir = parent(self, path, last);
    if (rc) return rc;
    if (!dir) return -ENOENT;
    if (lookup(dir->names, last)) return -EEXIST;
    link_node(dir, last, new_node(self, true));
    return 0;
}

static memfs_node *dir_at(memfs *fs, const char *path)
{
    entry *e = find(fs, path);
    memfs_node *node = *path && strcmp(path, "/") && strcmp(path, ".") ? (e ? e->node : NULL)
                                                                       : fs->root;
    return node && node->dir ? node : NULL;
}

static int mem_sync_dir(void *self, const char *path)
{
    int rc = trouble(self);
    memfs_node *dir = dir_at(self, path);
    if (rc) return rc;
    if (!dir) return -ENOENT;
    *dir->synced_names = *dir->names;
    return 0;
}

static int mem_list(void *self, const char *path, fv_name_fn *each, void *user)
{
    int rc = trouble(self);
    memfs_node *dir = dir_at(self, path);
    if (rc) return rc;
    if (!dir) return -ENOENT;
    for (int i = 0; i < dir->names->n; i++) each(user, dir->names->e[i].name);
    return 0;
}

/* ---- for tests ---- */

void memfs_init(memfs *fs)
{
    *fs = (memfs){.io = {mem_open_read, mem_open_write, mem_read, mem_write, mem_size, mem_map,
                         mem_unmap, mem_sync, mem_close, mem_rename, mem_unlink, mem_mkdir,
                         mem_sync_dir, mem_rmdir, mem_list, .kind = NULL}};
    fs->io.self = fs;
    fs->root = new_node(fs, true);
}

void memfs_free(memfs *fs)
{
    for (memfs_node *n = fs->nodes, *next; n; n = next) {
        next = n->next;
        free(n->seen.data);
        free(n->synced.data);
        free(n->names);
        free(n->synced_names);
        free(n);
    }
    fs->nodes = fs->root = NULL;
}

void memfs_crash(memfs *fs, bool keep_names, bool keep_data)
{
    for (memfs_node *n = fs->nodes; n; n = n->next) {
        if (!n->dir) {
            if (keep_data)
                copy(&n->synced, &n->seen);
            else
                copy(&n->seen, &n->synced);
        } else if (keep_names) {
            *n->synced_names = *n->names;
        } else {
            *n->names = *n->synced_names;
        }
    }
    memset(fs->open, 0, sizeof fs->open);
    fs->calls = fs->fail_at = fs->crash_at = fs->opened = 0;
}

void memfs_put(memfs *fs, const char *path, const void *data, size_t n)
{
    char part[256], last[128];
    for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(s - path), path);
        if (!find(fs, part))
            link_node(parent(fs, part, last), strrchr(part, '/') ? strrchr(part, '/') + 1 : part,
                      new_node(fs, true));
    }
    memfs_node *dir = parent(fs, path, last);
    entry *e = lookup(dir->names, last);
    memfs_node *node = e ? e->node : new_node(fs, false);
    copy(&node->seen, &(content){(char *)(uintptr_t)data, n});
    copy(&node->synced, &node->seen);
    link_node(dir, last, node);
    for (memfs_node *d = fs->nodes; d; d = d->next)
        if (d->dir) *d->synced_names = *d->names;
}

const char *memfs_get(const memfs *fs, const char *path, size_t *n)
{
    entry *e = find(fs, path);
    if (!e || e->node->dir) return NULL;
    if (n) *n = e->node->seen.n;
    return e->node->seen.data ? e->node->seen.data : "";
}

bool memfs_has(const memfs *fs, const char *path) { return find(fs, path) != NULL; }
