/* masked_images.c - images with a label for each pixel: pairs of files with one name in two
 * folders.
 *
 * A pixel's label is its grey level in the mask. Levels are found in the files and numbered in
 * order, so that masks of 0 and 255 and masks of 0, 1, 2 are read alike. Colours as in VOC's
 * palettes are not: they would need a table that no file has. */
#include "data/masked_images.h"

#include <stdio.h>
#include <stdlib.h>

#include "data/labels.h"

/* Where the folder's files begin in a path: "x/image/3.png" -> "3.png"; NULL: it is not in it. */
static const char *below(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    for (const char *p = strstr(path, folder); p; p = strstr(p + 1, folder))
        if ((p == path || p[-1] == '/') && p[n] == '/') return p + n + 1;
    return NULL;
}

/* Whether the number that a file is named by lies in "from-to". */
static bool chosen(const char *stem, const char *names)
{
    char *end;
    long number = strtol(stem, &end, 10), from, to;
    if (!*names) return true;
    if (end == stem || *end != '.') return false;
    from = strtol(names, &end, 10);
    to = *end == '-' ? strtol(end + 1, NULL, 10) : from;
    return number >= from && number <= to;
}

static fv_status add(fv__masked *m, int64_t image, int64_t mask, fv_err *e)
{
    void *p = m->at;
    if (!fv__grow(m->env, &p, &m->bytes, (size_t)(m->n + 1) * sizeof *m->at))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", m->tree.root);
    m->at = p;
    m->at[m->n][0] = image;
    m->at[m->n++][1] = mask;
    return FV_OK;
}

/* "images/X.png" goes with "masks/X.png", at any depth: the folder's name is replaced in the path.
 * An image without its mask is an error, not a smaller data set. */
static fv_status find_pairs(fv__masked *m, const fv__masked_opt *o, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < m->tree.n; i++) {
        const char *path = m->tree.file[i].name, *stem = below(path, o->images);
        char mask[FV_PATH];
        if (!stem || !chosen(stem, o->names)) continue;
        size_t before = (size_t)(stem - path) - strlen(o->images) - 1;
        snprintf(mask, sizeof mask, "%.*s%.200s/%.1500s", (int)before, path, o->masks, stem);
        int64_t at = fv__tree_find(&m->tree, mask);
        st = at < 0 ? fv_fail(e, FV_EFORMAT, "%s/%s: there is no %s", m->tree.root, path, mask)
                    : add(m, i, at, e);
    }
    if (!st && !m->n)
        st = fv_fail(e, FV_EFORMAT, "%s: there is no %s/X.png with a %s/X.png", m->tree.root,
                     o->images, o->masks);
    return st;
}

static fv_status decode(const fv__masked *m, int64_t file, fv_image *out, fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    fv_status st = fv__tree_read(&m->tree, file, &f, path, e);
    if (st) return st;
    st = fv_image_decode(out, m->env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}

/* The levels that occur, each named by its number. */
static fv_status find_levels(fv__masked *m, fv_labels *labels, fv_err *e)
{
    bool occurs[256] = {false};
    fv_image mask = {0};
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < m->n; i++) {
        st = decode(m, m->at[i][1], &mask, e);
        if (!st) st = fv_image_convert(&mask, 1, e);
        for (int64_t k = 0; !st && k < (int64_t)mask.width * mask.height; k++)
            occurs[mask.data[k]] = true;
    }
    fv_image_free(&mask);
    for (int level = 0; level < 256; level++) {
        char name[8];
        m->of_level[level] = -1;
        int n = snprintf(name, sizeof name, "%d", level);
        if (!st && occurs[level])
            st = fv__label(labels, &m->of_level[level], m->tree.root, 0, name, (size_t)n, e);
    }
    return st;
}

fv_status fv__masked_open(fv__masked *m, const fv_env *env, const fv__masked_opt *o, fv_err *e)
{
    *m = (fv__masked){.env = env};
    fv_status st = fv__tree_open(&m->tree, env, o->path, e);
    if (!st) st = find_pairs(m, o, e);
    return st ? st : find_levels(m, o->labels, e);
}

void fv__masked_close(fv__masked *m)
{
    fv__tree_close(&m->tree);
    fv__free(m->env, m->at, m->bytes);
}

const char *fv__masked_name(const fv__masked *m, int64_t i)
{
    return m->tree.file[m->at[i][0]].name;
}

/* The mask's grey levels are its labels, numbered by find_levels. */
fv_status fv__masked_get(const fv__masked *m, int64_t i, fv_image *image, fv_image *mask, fv_err *e)
{
    fv_status st = decode(m, m->at[i][0], image, e);
    if (!st) st = decode(m, m->at[i][1], mask, e);
    if (!st) st = fv_image_convert(mask, 1, e);
    if (!st && (image->width != mask->width || image->height != mask->height))
        st = fv_fail(e, FV_EFORMAT, "%s: %d x %d pixels, its mask %d x %d", fv__masked_name(m, i),
                     image->width, image->height, mask->width, mask->height);
    return st;
}
