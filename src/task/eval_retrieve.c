/* eval_retrieve.c - images and texts in one space: how often a text finds its image among all of
 * them, and an image its text (recall at 1, 5 and 10).
 *
 * Between two values of a field (--between style) images of one text also find one another: an
 * image of one style looks for its text's image among all of another style.
 *
 * Images of one text are all right for it: a text has found its image when any of them is among the
 * first.  Likewise equal texts are one.
 *
 * With two fields as texts (--target-field caption,tags) a text is the first with the second behind
 * it, in which | stands between key words; images of one caption still belong together. */
#include <stdio.h>
#include <stdlib.h>

#include "task_pipeline.h"

enum { CUTS = 3 };
static const int cuts[CUTS] = {1, 5, 10};

typedef struct work {
    fv_eval_run *r;
    fv_task *task;
    fv_images *set, *kinds; /* the same rows with the field of --between as text, or NULL */
    fv_images *more;        /* ...and with the second field of --target-field, or NULL */
    int64_t n, width;
    float *image, *text; /* (n,width), of length 1 */
    size_t bytes;
    int64_t *group; /* the first record with the same text */
    size_t group_bytes;
    double recall[3][CUTS]; /* text to image, image to text, image to image of another kind */
} work;

static fv_status keep_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    float *to = *(float **)user + i * width;
    (void)s, (void)e;
    memcpy(to, out[0], (size_t)width * sizeof *to);
    return FV_OK;
}

/* Caption i with its key words, a blank between each, and a zero byte behind. */
static void put_text(const work *w, fv_buf *b, int64_t i)
{
    fv__buf_str(b, fv_images_text(w->set, i));
    fv__buf_str(b, " ");
    for (const char *s = fv_images_text(w->more, i); *s; s++)
        fv__buf_add(b, *s == '|' ? " " : s, 1);
    fv__buf_add(b, "", 1);
}

/* The texts of n records; b owns those that are put together. */
static fv_status slice_texts(const work *w, fv_text *texts, int64_t from, int64_t n, fv_buf *b,
                             fv_err *e)
{
    for (int64_t i = 0; w->more && i < n; i++) put_text(w, b, from + i);
    if (b->failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    const char *next = b->data;
    for (int64_t i = 0; i < n; i++) {
        texts[i].s = w->more ? next : fv_images_text(w->set, from + i);
        texts[i].n = strlen(texts[i].s);
        if (w->more) next += texts[i].n + 1;
    }
    return FV_OK;
}

/* Both towers, slice by slice: the vectors of the image and of its text. */
static fv_status embed_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    int64_t width = w->width;
    size_t row = (size_t)width * sizeof(float), bytes = (size_t)n * sizeof(fv_text) + 2 * row;
    bytes += 2 * (size_t)n * row;
    fv_text *texts = fv__alloc(&w->r->env, bytes);
    fv_buf b = {.env = &w->r->env};
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    float *images = (float *)(void *)(texts + n), *text = images + n * width,
          *both = text + n * width;
    fv_wanted image = {.names = {"image_embeds"}, .fn = keep_row, .user = &images};
    fv__task_begin(w->task);
    fv_status st = fv__task_run_set(w->task, w->set, from, n, &image, e);
    if (!st) st = slice_texts(w, texts, from, n, &b, e);
    if (!st) st = fv_task_embed(w->task, texts, n, (fv_embed_opt){0}, text, e);
    for (int64_t i = 0; !st && i < n; i++) {
        memcpy(both, images + i * width, row);
        memcpy(both + width, text + i * width, row);
        fv__eval_give(out, both, 2 * row);
    }
    fv__buf_free(&b);
    fv__free(&w->r->env, texts, bytes);
    return st;
}

/* Into (n,width) each: n is thousands, so that all similarities can be computed exactly. */
static fv_status keep_vectors(void *user, int64_t i, const void *result, size_t bytes, fv_err *e)
{
    work *w = user;
    (void)e;
    memcpy(w->image + i * w->width, result, bytes / 2);
    memcpy(w->text + i * w->width, (const char *)result + bytes / 2, bytes / 2);
    return FV_OK;
}

/* ---- recall ---- */

/* Equal texts stand together, in the order of the file among themselves. */
static int by_text(const void *a, const void *b, void *user)
{
    const work *w = user;
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int order = strcmp(fv_images_text(w->set, x), fv_images_text(w->set, y));
    return order ? order : (x > y) - (x < y);
}

/* Images of one text are equally right for it: group[i] is the first image with the text of image
 * i. */
static fv_status find_groups(work *w, fv_err *e)
{
    w->group_bytes = (size_t)w->n * 2 * sizeof *w->group;
    w->group = fv__alloc(&w->r->env, w->group_bytes);
    if (!w->group) return fv_fail(e, FV_ENOMEM, "out of memory");
    int64_t *order = w->group + w->n, first = 0;
    for (int64_t i = 0; i < w->n; i++) order[i] = i;
    qsort_r(order, (size_t)w->n, sizeof *order, by_text, w);
    for (int64_t i = 0; i < w->n; i++) {
        if (!i || strcmp(fv_images_text(w->set, order[i]), fv_images_text(w->set, order[i - 1])))
            first = order[i];
        w->group[order[i]] = first;
    }
    return FV_OK;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* How many of others are nearer to the query than the nearest of its own group. */
static int64_t rank_of(const work *w, const float *query, int64_t group, const float *others,
                       bool distinct)
{
    float best = -2;
    int64_t above = 0;
    for (int64_t k = 0; k < w->n; k++)
        if (w->group[k] == group) {
            float x = dot(query, others + k * w->width, w->width);
            best = x > best ? x : best;
        }
    for (int64_t k = 0; k < w->n; k++) {
        if (w->group[k] == group || (distinct && w->group[k] != k)) continue;
        above += dot(query, others + k * w->width, w->width) > best;
    }
    return above;
}

/* Of each image, among those of another kind: how many are nearer than the one of its text.  Images
 * whose text no other kind has are left out. */
static void count_between(work *w)
{
    double asked = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const float *query = w->image + i * w->width;
        const char *kind = fv_images_text(w->kinds, i);
        float best = -2;
        int64_t above = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t k = 0; k < w->n; k++) {
                bool same = w->group[k] == w->group[i];
                if (!strcmp(fv_images_text(w->kinds, k), kind) || same != !pass) continue;
                float x = dot(query, w->image + k * w->width, w->width);
                if (same)
                    best = x > best ? x : best;
                else
                    above += x > best;
            }
        if (best < -1.5F) continue;
        asked++;
        for (int c = 0; c < CUTS; c++) w->recall[2][c] += above < cuts[c];
    }
    for (int c = 0; c < CUTS; c++) w->recall[2][c] *= asked > 0 ? 100 / asked : 0;
}

/* Texts are asked once each, images all. */
static void count_recall(work *w)
{
    double texts = 0;
    for (int64_t i = 0; i < w->n; i++) {
        bool first = w->group[i] == i;
        int64_t back = rank_of(w, w->image + i * w->width, w->group[i], w->text, true);
        int64_t forth = first ? rank_of(w, w->text + i * w->width, i, w->image, false) : -1;
        texts += first;
        for (int c = 0; c < CUTS; c++) {
            w->recall[0][c] += first && forth < cuts[c];
            w->recall[1][c] += back < cuts[c];
        }
    }
    for (int c = 0; c < CUTS; c++) {
        w->recall[0][c] *= 100 / texts;
        w->recall[1][c] *= 100 / (double)w->n;
    }
}

/* ---- the report ---- */

/* Recall at k: the share of queries that have a right result among the k best. */
static void put(const work *w)
{
    static const char *const ways[] = {"text_to_image", "image_to_text", "image_to_image"};
    static const char *const words[] = {"text to image", "image to text", "image to image"};
    int n = w->kinds ? 3 : 2;
    fv_buf *b = &w->r->out;
    if (!w->r->opt->json) {
        fv__buf_fmt(b, "%-16s %9s %9s %9s  of %lld images\n", "recall", "at 1", "at 5", "at 10",
                    (long long)w->n);
        for (int i = 0; i < n; i++)
            fv__buf_fmt(b, "%-16s %9.2f %9.2f %9.2f\n", words[i], w->recall[i][0], w->recall[i][1],
                        w->recall[i][2]);
        return;
    }
    fv__json_begin(b, '{');
    fv__json_text_at(b, "task", "retrieve", 8);
    fv__json_int_at(b, "images", w->n);
    for (int i = 0; i < n; i++) {
        fv__json_key(b, ways[i]);
        fv__json_begin(b, '{');
        fv__json_number_at(b, "recall@1", w->recall[i][0]);
        fv__json_number_at(b, "recall@5", w->recall[i][1]);
        fv__json_number_at(b, "recall@10", w->recall[i][2]);
        fv__json_end(b, '}');
    }
    fv__buf_str(b, "}\n");
}

/* The same rows with another field as text. */
static fv_status open_field(const work *w, fv_images **out, fv_images_opt where, const char *field,
                            fv_err *e)
{
    fv_data_report report = {0};
    where.from.field[1] = field;
    fv_status st = fv_images_open(out, &w->r->env, &where, &report, e);
    if (!st && fv_images_count(*out) != fv_images_count(w->set))
        st = fv_fail(e, FV_EFORMAT, "%s: some rows have no \"%s\"", w->r->opt->file, field);
    return st;
}

/* "caption,keywords" as the target field: the texts of both are joined as the query. */
static fv_status open_all(work *w, fv_err *e)
{
    char first[FV_PATH];
    fv_data_report report = {0};
    fv_images_opt where = {.from = fv__eval_records(w->r),
                           .images = w->r->opt->images,
                           .where = w->r->opt->where};
    const char *fields = w->r->opt->target_field, *comma = fields ? strchr(fields, ',') : NULL;
    fv_status st = fv__eval_encoder(w->r, &w->task, FV_JOB_CONTRAST, e);
    if (comma) {
        snprintf(first, sizeof first, "%.*s", (int)(comma - fields), fields);
        where.from.field[1] = first;
    }
    if (!st) st = fv_images_open(&w->set, &w->r->env, &where, &report, e);
    if (st) return st;
    if (!fv_images_text(w->set, 0))
        return fv_fail(e, FV_EFORMAT, "%s: images without texts; a table must name both",
                       w->r->opt->file);
    if (comma) st = open_field(w, &w->more, where, comma + 1, e);
    if (!st && w->r->opt->between) st = open_field(w, &w->kinds, where, w->r->opt->between, e);
    if (st) return st;
    w->n = fv_images_count(w->set);
    w->width = fv_task_width(w->task);
    w->bytes = (size_t)(w->n * w->width) * sizeof(float);
    w->image = fv__alloc(&w->r->env, w->bytes);
    w->text = fv__alloc(&w->r->env, w->bytes);
    return w->image && w->text ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory for the vectors");
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r};
    if (!r->opt->file) return fv_fail(e, FV_EUSAGE, "a table of images and their texts is needed");
    fv_status st = open_all(&w, e);
    if (!st) st = fv__eval_slices(r, w.n, &(fv_slices){embed_slice, keep_vectors, 0}, &w, e);
    if (!st) st = find_groups(&w, e);
    if (!st) count_recall(&w);
    if (!st && w.kinds) count_between(&w);
    if (!st) put(&w);
    fv__free(&r->env, w.image, w.bytes);
    fv__free(&r->env, w.text, w.bytes);
    fv__free(&r->env, w.group, w.group_bytes);
    fv_images_close(w.set);
    fv_images_close(w.kinds);
    fv_images_close(w.more);
    fv_task_close(w.task);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_CONTRASTIVE, FV_HEAD_BASE};
const fv_task_eval fv__eval_retrieve = {.name = "retrieve",
                                        .heads = heads,
                                        .no_predictions = true,
                                        .run = run};
