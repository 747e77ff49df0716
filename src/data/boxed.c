/* boxed.c - images with boxes around what is in them: Pascal VOC's folders and COCO's files.
 *
 * VOC has an XML file for each image (voc.c) and lists of names in ImageSets/Main; COCO has one
 * JSON file with images, annotations and categories apart. Both become the same: an image of the
 * tree and a range of boxes, corners in pixels from 0, half open. VOC counts pixels from 1 and
 * includes the last; COCO gives x, y, width and height. Labels are named, never by COCO's
 * category_id, which has holes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json/tree.h"
#include "data/labels.h"
#include "data/tree.h"
#include "data/voc.h"
#include "fovea/author/data.h"
#include "store/store.h"

typedef struct item {
    int64_t file; /* of the tree */
    int64_t from, n;
} item;

struct fv_boxed {
    const fv_env *env;
    fv__tree tree;
    item *at;
    size_t at_bytes;
    int64_t n;
    fv_box *box;
    size_t box_bytes;
    int64_t boxes;
    fv_labels *labels;
};

/* Boxes of all images stand in one array; an image has the range that was added while it was the
 * last one. */
static fv_status add_box(fv_boxed *b, fv_box x, fv_err *e)
{
    void *p = b->box;
    if (!fv__grow(b->env, &p, &b->box_bytes, (size_t)(b->boxes + 1) * sizeof *b->box))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory for its boxes", b->tree.root);
    b->box = p;
    b->box[b->boxes++] = x;
    b->at[b->n - 1].n++;
    return FV_OK;
}

/* Boxes of an image stand one behind the other from `from` on: they are added while it is the last
 * image. */
static fv_status add_image(fv_boxed *b, int64_t file, fv_err *e)
{
    void *p = b->at;
    if (!fv__grow(b->env, &p, &b->at_bytes, (size_t)(b->n + 1) * sizeof *b->at))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory for its images", b->tree.root);
    b->at = p;
    b->at[b->n++] = (item){.file = file, .from = b->boxes};
    return FV_OK;
}

/* A box without area says nothing, and its shares could not be divided by it. */
static fv_status add_corners(fv_boxed *b, const char *path, const char *name, double x0, double y0,
                             double x1, double y1, bool difficult, fv_err *e)
{
    int32_t label;
    fv_status st = fv__label(b->labels, &label, path, 0, name, strlen(name), e);
    if (st || !(x1 > x0 && y1 > y0)) return st;
    return add_box(b, (fv_box){(float)x0, (float)y0, (float)x1, (float)y1, label, difficult}, e);
}

/* ---- Pascal VOC ---- */

typedef struct placing {
    fv_boxed *b;
    const char *path;
} placing;

static fv_status add_object(void *user, const fv__voc_object *o, fv_err *e)
{
    const placing *p = user;
    /* pixels are counted from 1, and the last one belongs to the box */
    return add_corners(p->b, p->path, o->name, o->x0 - 1, o->y0 - 1, o->x1, o->y1, o->difficult, e);
}

/* The image of an annotation, in the folder beside it; -1: it is not there. */
static int64_t find_image(const fv_boxed *b, const char *prefix, const char *stem)
{
    static const char *const endings[] = {".jpg", ".png", ".jpeg"};
    char name[FV_PATH];
    int64_t at = -1;
    for (int i = 0; i < 3 && at < 0; i++) {
        snprintf(name, sizeof name, "%.1500sJPEGImages/%.500s%s", prefix, stem, endings[i]);
        at = fv__tree_find(&b->tree, name);
    }
    return at;
}

/* An image without its annotation is left out, an annotation without its image is an error: a file
 * is missing. */
static fv_status add_annotation(fv_boxed *b, const char *prefix, const char *stem, int64_t xml,
                                fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    placing p = {b, path};
    int64_t image = find_image(b, prefix, stem);
    fv_status st = fv__tree_read(&b->tree, xml, &f, path, e);
    if (st) return st;
    if (image < 0)
        st = fv_fail(e, FV_EFORMAT, "%s: there is no image %s.jpg in JPEGImages", path, stem);
    if (!st) st = add_image(b, image, e);
    if (!st) st = fv__voc_parse(f.data, f.size, path, add_object, &p, e);
    fv__file_close(&f);
    return st;
}

/* Every image that a line of the split's file names; a number may stand behind the name. */
static fv_status add_split(fv_boxed *b, const char *prefix, const char *split, fv_err *e)
{
    char name[FV_PATH], path[FV_PATH], stem[256];
    fv_file f;
    snprintf(name, sizeof name, "%.1500sImageSets/Main/%.200s.txt", prefix, split);
    int64_t at = fv__tree_find(&b->tree, name);
    if (at < 0) return fv_fail(e, FV_EARG, "%s: there is no %s in it", b->tree.root, name);
    fv_status st = fv__tree_read(&b->tree, at, &f, path, e);
    if (st) return st;
    for (size_t i = 0; !st && i < f.size;) {
        size_t end = i, len = 0;
        while (end < f.size && f.data[end] != '\n') end++;
        while (len < end - i && !strchr(" \t\r", f.data[i + len])) len++;
        snprintf(stem, sizeof stem, "%.*s", (int)(len < 255 ? len : 255), f.data + i);
        i = end + 1;
        if (!*stem) continue;
        snprintf(name, sizeof name, "%.1500sAnnotations/%.255s.xml", prefix, stem);
        at = fv__tree_find(&b->tree, name);
        st = at < 0 ? fv_fail(e, FV_EFORMAT, "%s: there is no %s", path, name)
                    : add_annotation(b, prefix, stem, at, e);
    }
    fv__file_close(&f);
    return st;
}

/* Without a split: every annotation there is, in order of its name. */
static fv_status add_all(fv_boxed *b, const char *prefix, fv_err *e)
{
    size_t len = strlen(prefix);
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < b->tree.n; i++) {
        const char *name = b->tree.file[i].name;
        char stem[256];
        if (strncmp(name, prefix, len) || strncmp(name + len, "Annotations/", 12)) continue;
        size_t n = strlen(name + len + 12);
        if (n < 5 || n >= 250 || strcmp(name + len + 12 + n - 4, ".xml")) continue;
        snprintf(stem, sizeof stem, "%.*s", (int)(n - 4), name + len + 12);
        st = add_annotation(b, prefix, stem, i, e);
    }
    return st;
}

/* What stands before "Annotations/" in the first path that has it. */
static bool find_prefix(const fv_boxed *b, char out[FV_PATH])
{
    for (int64_t i = 0; i < b->tree.n; i++) {
        const char *name = b->tree.file[i].name, *at = strstr(name, "Annotations/");
        if (!at || (at > name && at[-1] != '/')) continue;
        snprintf(out, FV_PATH, "%.*s", (int)(at - name), name);
        return true;
    }
    return false;
}

/* ---- COCO ---- */

static const char *text_of(const fv__jnode *o, const char *key)
{
    const fv__jnode *v = fv__jnode_get(o, key);
    return fv__jnode_is(v, FV__J_TEXT) ? v->text : NULL;
}

static bool number_of(const fv__jnode *o, const char *key, double *out)
{
    const fv__jnode *v = fv__jnode_get(o, key);
    if (fv__jnode_number(v)) *out = v->x;
    return fv__jnode_number(v);
}

/* The member of a list whose "id" it is, or NULL. */
static const fv__jnode *by_id(const fv__jnode *list, double id)
{
    double x;
    for (int i = 0; list && i < list->n; i++)
        if (number_of(list->kid[i], "id", &x) && x == id) return list->kid[i];
    return NULL;
}

/* bbox: left, top, width, height. */
static fv_status add_coco_box(fv_boxed *b, const fv__jnode *a, const fv__jnode *categories,
                              const char *path, fv_err *e)
{
    const fv__jnode *box = fv__jnode_get(a, "bbox");
    double id = 0, crowd = 0, x[4];
    number_of(a, "category_id", &id);
    number_of(a, "iscrowd", &crowd);
    const fv__jnode *category = by_id(categories, id);
    const char *name = category ? text_of(category, "name") : NULL;
    bool ok = name && fv__jnode_is(box, FV__J_ARRAY) && box->n == 4;
    for (int i = 0; ok && i < 4; i++) {
        ok = fv__jnode_number(box->kid[i]);
        x[i] = ok ? box->kid[i]->x : 0;
        ok = ok && x[i] >= -1e6 && x[i] <= 1e6;
    }
    if (!ok)
        return fv_fail(e, FV_EFORMAT, "%s: an annotation without a category or a bbox of 4 numbers",
                       path);
    return add_corners(b, path, name, x[0], x[1], x[0] + x[2], x[1] + x[3], crowd != 0, e);
}

/* COCO names files without their folder; the first whose last part is that name. */
static int64_t coco_file(const fv_boxed *b, const char *name)
{
    int64_t at = fv__tree_find(&b->tree, name);
    for (int64_t i = 0; at < 0 && i < b->tree.n; i++) {
        const char *path = b->tree.file[i].name;
        size_t n = strlen(path), m = strlen(name);
        if (n > m && path[n - m - 1] == '/' && !strcmp(path + n - m, name)) at = i;
    }
    return at;
}

/* An annotation and the image it belongs to; sorted by that, then as they stand in the file. */
typedef struct belonging {
    double image;
    int at;
} belonging;

/* Within an image in the order of the file: qsort is not stable. */
static int by_image(const void *a, const void *b)
{
    const belonging *x = a, *y = b;
    if (x->image != y->image) return x->image < y->image ? -1 : 1;
    return x->at - y->at;
}

/* One image with its annotations, which stand together in `of`. */
static fv_status add_coco_image(fv_boxed *b, const fv__jnode *root, const fv__jnode *image,
                                const belonging *of, int n, const char *path, fv_err *e)
{
    const char *name = text_of(image, "file_name");
    const fv__jnode *all = fv__jnode_get(root, "annotations"),
                    *categories = fv__jnode_get(root, "categories");
    double id = -1;
    int from = 0, to = n;
    int64_t file = name ? coco_file(b, name) : -1;
    if (file < 0)
        return fv_fail(e, FV_EFORMAT, "%s: there is no image \"%.100s\"", path, name ? name : "");
    number_of(image, "id", &id);
    while (from < to) {
        int mid = (from + to) / 2;
        if (of[mid].image < id)
            from = mid + 1;
        else
            to = mid;
    }
    fv_status st = add_image(b, file, e);
    for (; !st && from < n && of[from].image == id; from++)
        st = add_coco_box(b, all->kid[of[from].at], categories, path, e);
    return st;
}

/* COCO lists annotations in any order and images apart from them; sorted by image_id, those of an
 * image are found by one binary search instead of a walk over all. */
static fv_status add_coco(fv_boxed *b, const fv__jnode *root, const char *path, fv_err *e)
{
    const fv__jnode *images = fv__jnode_get(root, "images"),
                    *all = fv__jnode_get(root, "annotations"),
                    *categories = fv__jnode_get(root, "categories");
    if (!fv__jnode_is(images, FV__J_ARRAY) || !fv__jnode_is(all, FV__J_ARRAY) ||
        !fv__jnode_is(categories, FV__J_ARRAY))
        return fv_fail(e, FV_EFORMAT, "%s: expected lists images, annotations and categories",
                       path);
    size_t bytes = (size_t)(all->n + 1) * sizeof(belonging);
    belonging *of = fv__alloc(b->env, bytes);
    if (!of) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    for (int k = 0; k < all->n; k++) {
        of[k] = (belonging){-1, k};
        number_of(all->kid[k], "image_id", &of[k].image);
    }
    qsort(of, (size_t)all->n, sizeof *of, by_image);
    fv_status st = FV_OK;
    for (int i = 0; !st && i < images->n; i++)
        st = add_coco_image(b, root, images->kid[i], of, all->n, path, e);
    fv__free(b->env, of, bytes);
    return st;
}

/* The parsed file is only needed while boxes are copied out of it. */
static fv_status open_coco(fv_boxed *b, int64_t file, fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    fv__jtree t = {.pool = {.env = b->env}};
    fv_status st = fv__tree_read(&b->tree, file, &f, path, e);
    if (st) return st;
    st = fv__jtree_parse(&t, f.data, f.size, path, 32, e);
    if (!st) st = add_coco(b, t.root, path, e);
    fv__jtree_free(&t);
    fv__file_close(&f);
    return st;
}

/* ---- the whole ---- */

/* A .json file as split is COCO; else the folders of Pascal VOC are looked for, at any depth. */
static fv_status open_all(fv_boxed *b, const fv_boxed_opt *o, fv_err *e)
{
    char prefix[FV_PATH];
    fv_status st = fv__tree_open(&b->tree, b->env, o->path, e);
    if (st) return st;
    if (o->split && fv__ends_with(o->split, ".json")) {
        int64_t at = coco_file(b, o->split);
        return at < 0 ? fv_fail(e, FV_EARG, "%s: there is no %s in it", o->path, o->split)
                      : open_coco(b, at, e);
    }
    if (!find_prefix(b, prefix))
        return fv_fail(
            e, FV_EFORMAT,
            "%s: neither Annotations/X.xml of Pascal VOC, nor is a .json file of COCO named",
            o->path);
    return o->split ? add_split(b, prefix, o->split, e) : add_all(b, prefix, e);
}

/* Fewer images than there are: evenly spaced ones, since neighbours in such sets are often alike.
 */
fv_status fv_boxed_open(fv_boxed **out, const fv_env *env, const fv_boxed_opt *o, fv_err *e)
{
    fv_boxed *b = *out = fv__alloc(env, sizeof *b);
    if (!b) return fv_fail(e, FV_ENOMEM, "%s: out of memory", o->path);
    b->env = env;
    b->labels = o->labels;
    fv_status st = open_all(b, o, e);
    if (!st && !b->n) st = fv_fail(e, FV_EFORMAT, "%s: there is no annotated image", o->path);
    if (!st && o->most && o->most < b->n) {
        for (int64_t i = 0; i < o->most; i++) b->at[i] = b->at[i * b->n / o->most];
        b->n = o->most;
    }
    if (st) {
        fv_boxed_close(b);
        *out = NULL;
    }
    return st;
}

void fv_boxed_close(fv_boxed *b)
{
    if (!b) return;
    fv__tree_close(&b->tree);
    fv__free(b->env, b->at, b->at_bytes);
    fv__free(b->env, b->box, b->box_bytes);
    fv__free(b->env, b, sizeof *b);
}

int64_t fv_boxed_count(const fv_boxed *b) { return b->n; }

const fv_box *fv_boxed_boxes(const fv_boxed *b, int64_t i, int64_t *n)
{
    *n = b->at[i].n;
    return b->box + b->at[i].from;
}

const char *fv_boxed_name(const fv_boxed *b, int64_t i) { return b->tree.file[b->at[i].file].name; }

fv_status fv_boxed_get(const fv_boxed *b, int64_t i, fv_image *out, fv_err *e)
{
    char path[FV_PATH];
    fv_file f;
    fv_status st = fv__tree_read(&b->tree, b->at[i].file, &f, path, e);
    if (st) return st;
    st = fv_image_decode(out, b->env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}
