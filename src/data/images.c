/* images.c - images or sounds with labels or texts: folders, archives, IDX files, tables.
 *
 * What is kept of an image is where it stands; it is decoded when it is asked for.  Folders and
 * archives are read alike (tree.h), so a data set can stay packed.
 *
 * An item is 32 bytes whatever the image: a million of them are listed before one is decoded.
 * Labels of folders are their names, in order of path; of IDX files they are in a file beside; of
 * tables they are a field, or the field is a text. A thinned or divided set takes images evenly
 * spread over the whole, because folders are sorted by class and a prefix would be one class. */
#include <stdio.h>
#include <stdlib.h>

#include "data/idx.h"
#include "data/labels.h"
#include "data/tree.h"
#include "fovea/author/data.h"
#include "store/store.h"

typedef struct item {
    int64_t at;       /* of the IDX file or the tree; -1: name is a path of its own */
    const char *name; /* of a table */
    const char *text;
    int32_t label, group;
} item;

struct fv_images {
    const fv_env *env;
    fv__idx idx;
    fv__tree tree;
    bool in_idx; /* where the images are; else in the tree, or at paths of a table */
    fv_table *table;
    char path[FV_PATH]; /* of what was opened */
    char root[FV_PATH]; /* of paths in a table */
    fv_labels groups;   /* their names */
    item *at;
    size_t bytes;
    int64_t n;
};

/* ---- choosing ---- */

/* Whether record i of all belongs to the part.  The fractions of multiples of the golden ratio are
 * spread evenly over any run of records. */
static bool in_part(const fv_records *r, int64_t i)
{
    if (r->part[0] == 0 && r->part[1] == 0) return true;
    double x = (double)i * 0.61803398874989485;
    x -= (double)(int64_t)x;
    return x >= r->part[0] && x < r->part[1];
}

/* At most `most`, evenly spaced. */
static void thin(fv_images *m, int64_t most)
{
    if (!most || most >= m->n) return;
    for (int64_t i = 0; i < most; i++) m->at[i] = m->at[i * m->n / most];
    m->n = most;
}

static fv_status add(fv_images *m, item x, fv_data_report *report, fv_err *e)
{
    void *p = m->at;
    if (!fv__grow(m->env, &p, &m->bytes, (size_t)(m->n + 1) * sizeof *m->at))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory after %lld images", m->path,
                       (long long)m->n);
    m->at = p;
    m->at[m->n++] = x;
    report->kept++;
    return FV_OK;
}

/* ---- IDX ---- */

/* What MNIST and its like have: grey images, or colours in the last axis. */
static fv_status check_pixels(const fv__idx *x, const char *path, fv_err *e)
{
    bool grey = x->n == 3, colour = x->n == 4 && (x->shape[3] == 3 || x->shape[3] == 1);
    if ((grey || colour) && x->shape[1] * x->shape[2] <= FV_IMAGE_MOST_PIXELS &&
        x->shape[1] <= 1 << 20 && x->shape[2] <= 1 << 20)
        return FV_OK;
    return fv_fail(e, FV_EFORMAT, "%s: expected images as (N,height,width) or (N,height,width,3)",
                   path);
}

/* "train-images-idx3-ubyte.gz" has its labels in "train-labels-idx1-ubyte.gz". */
static bool labels_path(char out[FV_PATH], const fv_records *from)
{
    if (from->beside) return snprintf(out, FV_PATH, "%s", from->beside) < FV_PATH;
    const char *at = strstr(from->file, "images-idx");
    if (!at) return false;
    return snprintf(out, FV_PATH, "%.*slabels-idx1%s", (int)(at - from->file), from->file,
                    at + 11) < FV_PATH;
}

/* Label i is named "i", whichever comes first in the file; *of gets the number of each image's. */
static fv_status number_labels(fv_labels *labels, const fv__idx *x, const char *path,
                               int32_t of[256], fv_err *e)
{
    int most = 0;
    fv_status st = FV_OK;
    for (int64_t i = 0; i < x->shape[0]; i++)
        if (x->data[i] > most) most = x->data[i];
    for (int k = 0; !st && k <= most; k++) {
        char name[8];
        int len = snprintf(name, sizeof name, "%d", k);
        st = fv__label(labels, &of[k], path, 0, name, (size_t)len, e);
    }
    return st;
}

/* `of` maps a byte of the label file to the number of its label. */
static fv_status open_labels(const fv_images *m, const fv_images_opt *o, fv__idx *x,
                             int32_t of[256], fv_err *e)
{
    char path[FV_PATH];
    if (!labels_path(path, &o->from))
        return fv_fail(e, FV_EARG, "%s: which file has its labels?", m->path);
    fv_status st = fv__idx_open(x, m->env, path, e);
    if (!st && (x->n != 1 || x->shape[0] != m->idx.shape[0]))
        st = fv_fail(e, FV_EFORMAT, "%s: expected %lld labels", path, (long long)m->idx.shape[0]);
    return st ? st : number_labels(o->labels, x, path, of, e);
}

/* Labels of an IDX file are bytes; they are numbered as they first appear, like those of every
 * other format. */
static fv_status open_idx(fv_images *m, const fv_images_opt *o, fv_data_report *report, fv_err *e)
{
    fv__idx labels = {0};
    int32_t of[256] = {0};
    fv_status st = fv__idx_open(&m->idx, m->env, m->path, e);
    m->in_idx = true;
    if (!st) st = check_pixels(&m->idx, m->path, e);
    if (!st && o->labels) st = open_labels(m, o, &labels, of, e);
    for (int64_t i = 0; !st && i < m->idx.shape[0]; i++) {
        report->records++;
        if (in_part(&o->from, i))
            st = add(m, (item){.at = i, .label = labels.data ? of[labels.data[i]] : -1}, report, e);
    }
    fv__idx_close(&labels);
    return st;
}

/* ---- folders and archives ---- */

/* By the ending: what else lies in a folder (a README, Thumbs.db) is passed over. */
static bool is_listed(const char *name, bool sounds)
{
    static const char *const images[] = {".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", NULL},
                             *const clips[] = {".wav",  ".flac", ".ogg", ".mp3", ".WAV",
                                               ".FLAC", ".OGG",  ".MP3", NULL};
    for (const char *const *x = sounds ? clips : images; *x; x++)
        if (fv__ends_with(name, *x)) return true;
    return false;
}

/* The folder that a file stands in is its label. */
static fv_status folder_label(const fv_images *m, fv_labels *labels, const char *name, int32_t *id,
                              fv_err *e)
{
    const char *slash = strrchr(name, '/'), *from = slash;
    if (!slash)
        return fv_fail(e, FV_EFORMAT, "%s/%s: stands in no folder that names its label", m->path,
                       name);
    while (from > name && from[-1] != '/') from--;
    return fv__label(labels, id, m->path, 0, from, (size_t)(slash - from), e);
}

/* A folder or an archive: the folder that an image stands in is its label. */
static fv_status open_tree(fv_images *m, const fv_images_opt *o, fv_data_report *report, fv_err *e)
{
    fv_status st = fv__tree_open(&m->tree, m->env, m->path, e);
    int64_t images = 0;
    for (int64_t i = 0; !st && i < m->tree.n; i++) {
        item x = {.at = i, .label = -1};
        if (!is_listed(m->tree.file[i].name, o->sounds)) continue;
        report->records++;
        if (o->labels) st = folder_label(m, o->labels, m->tree.file[i].name, &x.label, e);
        if (!st && in_part(&o->from, images++)) st = add(m, x, report, e);
    }
    return st;
}

/* ---- tables ---- */

/* The table with which rows are chosen: its first text is compared with the wanted value. */
static fv_status open_where(fv_table **out, char value[200], const fv_images *m,
                            const fv_images_opt *o, fv_err *e)
{
    char field[100];
    fv_data_report unread = {0};
    fv_records from = o->from;
    const char *equals = strchr(o->where, '=');
    if (!equals || equals == o->where || (size_t)(equals - o->where) >= sizeof field)
        return fv_fail(e, FV_EARG, "where \"%.80s\": expected field=value", o->where);
    snprintf(field, sizeof field, "%.*s", (int)(equals - o->where), o->where);
    snprintf(value, 200, "%s", equals + 1);
    from.field[0] = field;
    from.field[1] = NULL;
    from.part[0] = from.part[1] = 0;
    from.most = 0;
    return fv_table_open(out, m->env, &from, 1, &unread, e);
}

/* The rows of one more field, matched to those of the table by their lines: a row that lacks the
 * field has the group 0. */
typedef struct grouping {
    fv_table *rows;
    fv_labels *names;
    int64_t at;
} grouping;

/* The table is read once more for the group's column alone: fv_table holds two texts a row. */
static fv_status open_group(grouping *g, fv_images *m, const fv_images_opt *o, fv_err *e)
{
    fv_data_report unread = {0};
    fv_records from = o->from;
    *g = (grouping){.names = &m->groups};
    m->groups.env = m->env;
    if (!o->group) return FV_OK;
    from.field[0] = o->group;
    from.field[1] = NULL;
    from.part[0] = from.part[1] = 0;
    from.most = 0;
    return fv_table_open(&g->rows, m->env, &from, 1, &unread, e);
}

/* Both readings go down the file, so lines are matched by a merge; a row that the second reading
 * skipped is in group 0. */
static fv_status group_of(grouping *g, int64_t line, int32_t *out, fv_err *e)
{
    size_t n;
    *out = 0;
    if (!g->rows) return FV_OK;
    while (g->at < fv_table_count(g->rows) && fv_table_line(g->rows, g->at) < line) g->at++;
    if (g->at >= fv_table_count(g->rows) || fv_table_line(g->rows, g->at) != line) return FV_OK;
    const char *name = fv_table_text(g->rows, g->at, 0, &n);
    return fv_labels_add(g->names, out, name, n, e);
}

/* Where an image that a table names is found. */
static fv_status find_image(const fv_images *m, const char *name, int64_t line, item *x, fv_err *e)
{
    x->at = -1;
    x->name = name;
    if (m->in_idx) {
        char *end;
        long long at = strtoll(name, &end, 10);
        if (*name && !*end && at >= 0 && at < m->idx.shape[0])
            x->at = at;
        else
            return fv_fail(e, FV_EFORMAT, "%s:%lld: \"%.60s\" is no number of an image, 0 to %lld",
                           m->path, (long long)line, name, (long long)m->idx.shape[0] - 1);
    } else if (m->tree.n) {
        x->at = fv__tree_find(&m->tree, name);
        if (x->at < 0)
            return fv_fail(e, FV_EFORMAT, "%s:%lld: %s has no file \"%.80s\"", m->path,
                           (long long)line, m->tree.root, name);
    }
    return FV_OK;
}

/* What a relative path is relative to: the folder of the table. */
static fv_status open_source(fv_images *m, const fv_images_opt *o, fv_err *e)
{
    char path[FV_PATH];
    fv__dir_of(m->root, m->path);
    if (!o->images) return FV_OK;
    bool whole = *o->images == '/';
    snprintf(path, sizeof path, "%.2000s%s%.2000s", whole ? "" : m->root, whole ? "" : "/",
             o->images);
    if (!fv__idx_is(path)) return fv__tree_open(&m->tree, m->env, path, e);
    m->in_idx = true;
    fv_status st = fv__idx_open(&m->idx, m->env, path, e);
    return st ? st : check_pixels(&m->idx, path, e);
}

/* The whole table is read, then rows and parts are chosen: parts count the chosen rows, so that a
 * condition changes which images there are and not where a part ends. */
static fv_status open_table(fv_images *m, const fv_images_opt *o, fv_data_report *report, fv_err *e)
{
    fv_records all = o->from;
    fv_table *where = NULL;
    fv_data_report rows = {0};
    grouping groups = {0};
    char value[200];
    int64_t at = 0, chosen = 0;
    all.part[0] = all.part[1] = 0;
    all.most = 0;
    fv_status st = open_source(m, o, e);
    if (!st) st = fv_table_open(&m->table, m->env, &all, 2, &rows, e);
    if (!st && o->where) st = open_where(&where, value, m, o, e);
    if (!st) st = open_group(&groups, m, o, e);
    for (int64_t i = 0; !st && i < fv_table_count(m->table); i++) {
        size_t n;
        int64_t line = fv_table_line(m->table, i);
        while (where && at < fv_table_count(where) && fv_table_line(where, at) < line) at++;
        if (where && (at >= fv_table_count(where) || fv_table_line(where, at) != line ||
                      strcmp(fv_table_text(where, at, 0, &n), value) != 0))
            continue;
        report->records++;
        if (!in_part(&o->from, chosen++)) continue;
        item x = {.label = -1, .text = fv_table_text(m->table, i, 1, &n)};
        if (o->labels) st = fv__label(o->labels, &x.label, m->path, line, x.text, n, e);
        if (!st) st = find_image(m, fv_table_text(m->table, i, 0, &n), line, &x, e);
        if (!st) st = group_of(&groups, line, &x.group, e);
        if (!st) st = add(m, x, report, e);
    }
    fv_table_close(where);
    fv_table_close(groups.rows);
    report->empty += rows.empty;
    report->malformed += rows.malformed;
    return st;
}

/* ---- the whole ---- */

/* A format that was given means a table whatever the name is. */
static bool is_table(const fv_images_opt *o)
{
    static const char *const endings[] = {".tsv", ".jsonl", ".ndjson", ".tsv.gz", ".jsonl.gz"};
    for (int i = 0; i < 5; i++)
        if (fv__ends_with(o->from.file, endings[i])) return true;
    return o->from.format != FV_FORMAT_AUTO;
}

/* Three sources behind one interface: an IDX file, a table that names files, or a folder (or
 * archive) whose subfolders are labels. */
fv_status fv_images_open(fv_images **out, const fv_env *env, const fv_images_opt *o,
                         fv_data_report *report, fv_err *e)
{
    fv_images *m = *out = fv__alloc(env, sizeof *m);
    if (!m) return fv_fail(e, FV_ENOMEM, "%s: out of memory", o->from.file);
    m->env = env;
    snprintf(m->path, sizeof m->path, "%s", o->from.file);
    fv_status st;
    if (fv__idx_is(m->path))
        st = open_idx(m, o, report, e);
    else if (is_table(o))
        st = open_table(m, o, report, e);
    else
        st = open_tree(m, o, report, e);
    if (!st) thin(m, o->from.most);
    report->kept = m->n;
    if (!st && !m->n)
        st = fv_fail(e, FV_EFORMAT, "%s: there is no %s in it", m->path,
                     o->sounds ? "sound (.wav, .flac, .ogg, .mp3)" : "image (.png, .jpg, .jpeg)");
    if (st) {
        fv_images_close(m);
        *out = NULL;
    }
    return st;
}

void fv_images_close(fv_images *m)
{
    if (!m) return;
    fv__idx_close(&m->idx);
    fv__tree_close(&m->tree);
    fv_table_close(m->table);
    fv_labels_free(&m->groups);
    fv__free(m->env, m->at, m->bytes);
    fv__free(m->env, m, sizeof *m);
}

int64_t fv_images_count(const fv_images *m) { return m->n; }
int32_t fv_images_label(const fv_images *m, int64_t i) { return m->at[i].label; }
int32_t fv_images_group(const fv_images *m, int64_t i) { return m->at[i].group; }
const char *fv_images_group_name(const fv_images *m, int32_t group)
{
    return group >= 0 && group < m->groups.n ? m->groups.name[group] : NULL;
}
const char *fv_images_text(const fv_images *m, int64_t i) { return m->at[i].text; }

void fv_images_name(const fv_images *m, int64_t i, char *out, size_t n)
{
    const item *x = &m->at[i];
    if (m->in_idx)
        snprintf(out, n, "%.150s[%lld]", m->path, (long long)x->at);
    else
        snprintf(out, n, "%s", x->at >= 0 ? m->tree.file[x->at].name : x->name);
}

/* (n,height,width) or (n,height,width,channels), bytes: an IDX image needs no decoding. */
static fv_status get_raw(const fv_images *m, int64_t at, fv_image *out, fv_err *e)
{
    const fv__idx *x = &m->idx;
    int channels = x->n == 4 ? (int)x->shape[3] : 1;
    fv_status st = fv_image_new(out, m->env, (int)x->shape[2], (int)x->shape[1], channels, e);
    size_t bytes = (size_t)(x->shape[1] * x->shape[2] * channels);
    if (!st) memcpy(out->data, x->data + (size_t)at * bytes, bytes);
    return st;
}

/* The path of an image that a table names, relative to the table's folder. */
static void path_of(const fv_images *m, const item *x, char name[FV_PATH])
{
    bool whole = *x->name == '/';
    snprintf(name, FV_PATH, "%.2000s%s%.2000s", whole ? "" : m->root, whole ? "" : "/", x->name);
}

fv_status fv_images_clip(const fv_images *m, int64_t i, fv_clip *out, fv_err *e)
{
    char name[FV_PATH];
    const item *x = &m->at[i];
    fv_file f;
    if (m->in_idx) return fv_fail(e, FV_EARG, "%s: an IDX file holds no sounds", m->path);
    if (x->at < 0) {
        path_of(m, x, name);
        return fv_clip_open(out, m->env, name, e);
    }
    fv_status st = fv__tree_read(&m->tree, x->at, &f, name, e);
    if (st) return st;
    st = fv_clip_decode(out, m->env, f.data, f.size, name, e);
    fv__file_close(&f);
    return st;
}

/* Decoded anew each time: an epoch of decoded images would not fit memory, and decoding runs in
 * the loader's thread. */
fv_status fv_images_get(const fv_images *m, int64_t i, fv_image *out, fv_err *e)
{
    char name[FV_PATH];
    const item *x = &m->at[i];
    fv_file f;
    if (m->in_idx) return get_raw(m, x->at, out, e);
    if (x->at < 0) {
        path_of(m, x, name);
        return fv_image_open(out, m->env, name, e);
    }
    fv_status st = fv__tree_read(&m->tree, x->at, &f, name, e);
    if (st) return st;
    st = fv_image_decode(out, m->env, f.data, f.size, name, e);
    fv__file_close(&f);
    return st;
}
