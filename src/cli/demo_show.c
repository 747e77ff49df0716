/* demo_show.c - the last act of the demonstration: its attention, in words and in pictures. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"
#include "fovea/see.h"

static fv_status save(fv_see *s, const char *dir, const char *name, fv_see_opt o, fv_err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return fv_see_save(s, NULL, path, o, e);
}

/* "pommes <- apples": for each token written, the one it looked at most. */
static fv_status print_words(fv_see *s, fv_see_pick p, fv_err *e)
{
    fv_see_shape shape = fv_see_shape_of(s, FV_SEE_CROSS);
    int64_t rows = shape.rows, cols = shape.cols;
    float *w = malloc((size_t)(rows * cols) * sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_see_weights(s, p, 0, rows, w, e);
    if (!st)
        printf("\nWhere it looked while it wrote that (cross-attention, layer %d, head %d):\n\n ",
               (int)p.layer, (int)p.head);
    for (int64_t i = 0; !st && i < rows - 1; i++) { /* the last is the end token */
        int64_t best = 0;
        for (int64_t j = 1; j < cols; j++)
            if (w[i * cols + j] > w[i * cols + best]) best = j;
        printf(" %s\u2190%s", fv_see_row(s, FV_SEE_CROSS, i), fv_see_col(s, FV_SEE_CROSS, best));
    }
    if (!st) printf("\n");
    free(w);
    return st;
}

/* What was written and how to open it: a path that can be pasted into a browser. */
static void print_dispatch(const char *dir, bool pictures)
{
    char whole[PATH_MAX];
    if (!realpath(dir, whole)) snprintf(whole, sizeof whole, "%s", dir);
    printf("\nIts attention, to look at:\n\n");
    if (pictures) {
        printf("  %s/alignment.svg (and .png)  which word came from which\n", dir);
        printf("  %s/heads.svg                 every layer and head\n", dir);
    } else {
        printf("  (no pictures: this build is made without cairo)\n");
    }
    printf("  %s/attention.html            a page to explore; open it in a browser:\n", dir);
    printf("    xdg-open %s/attention.html   or   file://%s/attention.html\n", dir, whole);
    printf("\nOther sentences:  fovea see -m %s/model --source 'We want to buy three red apples.' "
           "-o look.html\n",
           dir);
}

fv_status demo_show(const demo_scene *d, fv_err *e)
{
    char text[400], note[160];
    double score;
    fv_see *s;
    fv_see_opt o = {0};
    fv_see_in in = {.tok = d->tok,
                    .source = d->source,
                    .n_source = d->n_source,
                    .target = d->target,
                    .n_target = d->n_target};
    in.start = d->start;
    fv_status st = fv_see_run(&s, d->dev, d->model, in, e);
    if (st) return st;
    st = fv_see_alignment(s, &o.pick, &score, e);
    snprintf(text, sizeof text, "%s \u2192 %s", d->en, d->fr);
    snprintf(note, sizeof note,
             "Cross-attention, layer %d, head %d: the head that aligns best (score %.2f).",
             (int)o.pick.layer, (int)o.pick.head, score);
    fv_see_opt align = {.pick = o.pick, .view = FV_VIEW_ALIGNMENT, .text = text, .note = note};
    fv_see_opt grid = {.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false},
                       .view = FV_VIEW_GRID,
                       .text = text};
    fv_see_opt page = {.pick = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false},
                       .start = &o.pick,
                       .every_kind = true,
                       .text = text};
    if (!st) st = print_words(s, o.pick, e);
    if (!st) st = save(s, d->dir, "attention.html", page, e);
    bool pictures = false;
    if (!st) {
        st = save(s, d->dir, "alignment.svg", align, e);
        pictures = !st;
        if (st == FV_EMISSING) st = FV_OK; /* a build without cairo */
    }
    if (!st && pictures) st = save(s, d->dir, "alignment.png", align, e);
    if (!st && pictures) st = save(s, d->dir, "heads.svg", grid, e);
    if (!st) print_dispatch(d->dir, pictures);
    fv_see_free(s);
    return st;
}
