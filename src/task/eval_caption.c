/* eval_caption.c - captions against those that people wrote: exact match, BLEU, chrF; beside them
 * what the nearest image of other rows is called (--baseline).
 *
 * The baseline knows no model: of each image it takes the text of the image whose pixels, fitted
 * alike, differ least in square.  A captioner that only remembers its training images does not beat
 * it. */
#include "task_pipeline.h"

typedef struct work {
    fv_eval_run *r;
    fv_writer writer;
    fv_processor *processor;
    fv_images *set, *others; /* those that are judged; those of the baseline, or NULL */
    fv_eval_texts wanted, made, nearest;
} work;

typedef struct scores {
    double exact;
    fv_bleu bleu;
    fv_chrf chrf;
} scores;

/* ---- the baseline ---- */

/* Every image of a set fitted, one after another; all have one size. */
static fv_status fit_all(const work *w, const fv_images *set, uint8_t **out, size_t *bytes,
                         size_t *each, fv_err *e)
{
    fv_image raw = {0}, fit = {0};
    int64_t n = fv_images_count(set);
    fv_status st = FV_OK;
    *out = NULL;
    for (int64_t i = 0; !st && i < n; i++) {
        st = fv_images_get(set, i, &raw, e);
        if (!st) st = fv_processor_image_fit(w->processor, &fit, &raw, e);
        size_t size = st ? 0 : (size_t)fit.channels * (size_t)fit.height * (size_t)fit.width;
        if (!st && !*out) {
            *each = size;
            *bytes = size * (size_t)n;
            *out = fv__alloc(&w->r->env, *bytes);
            if (!*out) st = fv_fail(e, FV_ENOMEM, "out of memory for %lld images", (long long)n);
        }
        if (!st && size != *each)
            st = fv_fail(e, FV_ESHAPE, "--baseline needs images that are fitted to one size");
        if (!st) memcpy(*out + (size_t)i * size, fit.data, size);
    }
    fv_image_free(&raw);
    fv_image_free(&fit);
    return st;
}

/* Exact in integers; left as soon as it is not the least. */
static int64_t distance(const uint8_t *a, const uint8_t *b, size_t n, int64_t least)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n && sum < least; i += 256) {
        int32_t part = 0;
        for (size_t k = i; k < i + 256 && k < n; k++) {
            int32_t d = (int32_t)a[k] - (int32_t)b[k];
            part += d * d;
        }
        sum += part;
    }
    return sum;
}

/* The baseline asks whether the model describes or remembers: each image gets the text of the image
 * of the other part that is nearest in pixels, and a model that does not beat that has learnt
 * nothing about content. O(n m) distances that stop once they exceed the least so far. */
static fv_status find_nearest(work *w, fv_err *e)
{
    uint8_t *mine = NULL, *theirs = NULL;
    size_t bytes = 0, other_bytes = 0, each = 0, other = 0;
    int64_t n = fv_images_count(w->set), m = fv_images_count(w->others);
    fv_status st = fit_all(w, w->set, &mine, &bytes, &each, e);
    if (!st) st = fit_all(w, w->others, &theirs, &other_bytes, &other, e);
    if (!st && each != other)
        st = fv_fail(e, FV_ESHAPE, "--baseline needs images that are fitted to one size");
    if (!st) st = fv__eval_texts_new(&w->nearest, &w->r->env, n, e);
    for (int64_t i = 0; !st && i < n; i++) {
        int64_t best = 0, least = INT64_MAX;
        for (int64_t k = 0; k < m; k++) {
            int64_t d = distance(mine + (size_t)i * each, theirs + (size_t)k * each, each, least);
            if (d < least) least = d, best = k;
        }
        const char *s = fv_images_text(w->others, best);
        st = fv__eval_texts_add(&w->nearest, s, strlen(s), e);
    }
    fv__free(&w->r->env, mine, bytes);
    fv__free(&w->r->env, theirs, other_bytes);
    return st;
}

/* ---- the model ---- */

/* A slice of the images, which captions count from 0. */
typedef struct slice {
    work *w;
    int64_t from;
    fv_buf *out;
} slice;

static fv_status get(void *user, int64_t i, fv_image *raw, fv_err *e)
{
    const slice *s = user;
    return fv_images_get(s->w->set, s->from + i, raw, e);
}

static fv_status each(void *user, int64_t i, const char *text, size_t n, const fv_hyp *h, fv_err *e)
{
    (void)i, (void)h, (void)e;
    fv__eval_give(((slice *)user)->out, text, n);
    return FV_OK;
}

static fv_status write_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    work *w = user;
    slice s = {w, from, out};
    fv__captions c = {.env = &w->r->env,
                      .writer = &w->writer,
                      .processor = w->processor,
                      .get = get,
                      .each = each,
                      .user = &s};
    return fv__captions_write(&c, n, e);
}

static fv_status take(void *user, int64_t i, const void *result, size_t n, fv_err *e)
{
    work *w = user;
    (void)i;
    fv__put_flat(&w->r->predictions, result, n);
    fv__buf_str(&w->r->predictions, "\n");
    return fv__eval_texts_add(&w->made, result, n, e);
}

static fv_status write_all(work *w, fv_err *e)
{
    int64_t n = fv_images_count(w->set);
    fv_status st = fv__eval_texts_new(&w->made, &w->r->env, n, e);
    return st ? st : fv__eval_slices(w->r, n, &(fv_slices){write_slice, take, 0}, w, e);
}

/* ---- the report ---- */

/* Exact match by bytes; BLEU with the tokens of mteval-v13a and chrF2, as sacreBLEU has them. */
static fv_status judge(const work *w, const fv_eval_texts *made, scores *out, fv_err *e)
{
    const char *const *given = (const char *const *)made->at;
    const char *const *wanted = (const char *const *)w->wanted.at;
    fv_bleu_opt how = {FV_BLEU_13A, w->r->opt->lowercase};
    int64_t same = 0;
    for (int64_t i = 0; i < made->n; i++) same += !strcmp(given[i], wanted[i]);
    out->exact = 100 * (double)same / (double)made->n;
    fv_status st = fv_bleu_score(&out->bleu, &w->r->env, given, wanted, made->n, how, e);
    return st ? st : fv_chrf_score(&out->chrf, &w->r->env, given, wanted, made->n, e);
}

static void put(const work *w, const char *name, const char *key, const scores *s)
{
    fv_buf *b = &w->r->out;
    if (!w->r->opt->json) {
        fv__buf_fmt(b, "%-16s %11.2f %9.2f %9.2f\n", name, s->exact, s->bleu.score, s->chrf.score);
        return;
    }
    fv__json_key(b, key);
    fv__json_begin(b, '{');
    fv__json_number_at(b, "exact_match", s->exact);
    fv__json_number_at(b, "bleu", s->bleu.score);
    fv__json_number_at(b, "chrf", s->chrf.score);
    fv__json_end(b, '}');
}

static fv_status report(const work *w, fv_err *e)
{
    fv_buf *b = &w->r->out;
    scores model, baseline;
    fv_status st = judge(w, &w->made, &model, e);
    if (!st && w->others) st = judge(w, &w->nearest, &baseline, e);
    if (st) return st;
    if (w->r->opt->json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "task", "caption", 7);
        fv__json_int_at(b, "images", w->made.n);
    } else {
        fv__buf_fmt(b, "%-16s %11s %9s %9s  of %lld images, %s\n", "", "exact match", "BLEU",
                    "chrF2", (long long)w->made.n, model.bleu.signature);
    }
    put(w, "model", "model", &model);
    if (w->others) put(w, "nearest image", "nearest", &baseline);
    if (w->r->opt->json) fv__buf_str(b, "}\n");
    return FV_OK;
}

/* ---- the whole ---- */

/* `where` divides one table into what is evaluated and what the baseline looks into. */
static fv_status open_set(work *w, fv_images **out, const char *where, fv_err *e)
{
    fv_data_report unread = {0};
    fv_images_opt o = {.from = fv__eval_records(w->r), .images = w->r->opt->images, .where = where};
    fv_status st = fv_images_open(out, &w->r->env, &o, &unread, e);
    if (st || fv_images_text(*out, 0)) return st;
    return fv_fail(e, FV_EFORMAT, "%s: images without texts; a table must name both",
                   w->r->opt->file);
}

/* 48 new tokens where neither the model nor the settings say: a caption is a sentence. */
static fv_status open_all(work *w, fv_err *e)
{
    const fv_eval_opt *o = w->r->opt;
    if (!o->file) return fv_fail(e, FV_EUSAGE, "a table of images and their texts is needed");
    if (!o->model) return fv_fail(e, FV_EUSAGE, "a model is needed: -m DIR");
    fv_status st = fv_writer_open(&w->writer, w->r->dev, o->model,
                                  (fv_writer_opt){.weights = o->weights,
                                                  .widen = o->widen,
                                                  .adapters = o->adapters,
                                                  .settings = o->settings,
                                                  .n_settings = o->n_settings,
                                                  .new_tokens = 48},
                                  e);
    if (!st && o->beam) w->writer.gen.num_beams = o->beam;
    if (!st) st = fv__captions_open(&w->processor, &w->writer, &w->r->env, e);
    if (!st) st = open_set(w, &w->set, o->where, e);
    if (!st && o->baseline) st = open_set(w, &w->others, o->baseline, e);
    if (!st) st = fv__eval_texts_new(&w->wanted, &w->r->env, fv_images_count(w->set), e);
    for (int64_t i = 0; !st && i < fv_images_count(w->set); i++) {
        const char *s = fv_images_text(w->set, i);
        st = fv__eval_texts_add(&w->wanted, s, strlen(s), e);
    }
    return st;
}

static fv_status run(fv_eval_run *r, fv_err *e)
{
    work w = {.r = r};
    fv_status st = open_all(&w, e);
    if (!st) st = write_all(&w, e);
    if (!st && w.others) st = find_nearest(&w, e);
    if (!st) st = report(&w, e);
    fv__eval_texts_free(&w.wanted);
    fv__eval_texts_free(&w.made);
    fv__eval_texts_free(&w.nearest);
    fv_images_close(w.set);
    fv_images_close(w.others);
    fv_processor_close(w.processor);
    fv_writer_close(&w.writer);
    return st;
}

static const fv_head_job heads[] = {FV_HEAD_SEQ2SEQ, FV_HEAD_BASE};
const fv_task_eval fv__eval_caption = {.name = "caption", .heads = heads, .sees = true, .run = run};
