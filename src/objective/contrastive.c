/* contrastive.c - the objective of models that see and read: an image and its text near one
 * another, apart from the others of the batch.
 *
 * Records are those of a table whose first field names an image and whose second is its text.  The
 * loss is the family's (CLIP: cross entropy both ways over the batch, SigLIP: of each pair), so a
 * batch is more than a sum of its examples: larger ones teach more, and parts of an accumulated
 * batch do not see each other.  The metric is how often a text finds its own image among those of
 * its batch; `fovea eval` has recall over all of them.
 *
 * Images with one text (the same thing drawn in two styles) are one example, of which every epoch
 * shows one image at random: in one batch they would be wrong answers to each other's text.
 * Weighting all of them as right answers was the alternative; it would be another loss than CLIP's.
 *
 * With image_weight an example has two images in a batch instead, another one of its text where it
 * has some or another view of its only one, and the loss gets a second part that brings these near
 * one another,
 *
 *     loss = family's loss + image_weight (CE(a b' / t) + CE(b a' / t)) / 2,    t = 0.07,
 *
 * a and b being the unit vectors of the first and of the second images (SimCLR's idea, Chen et al.
 * 2020; drawing styles then are one more thing that an image is known in spite of).
 *
 * With joint_augment these two are a pair of their own beside the image of the text: both are
 * changed alike, by permuted channels, quarter turns and a part of another pair, to what no text
 * names.  Few pairs are soon known by heart; these are new in every epoch, and what a style does to
 * all of them is what is left to learn.  Transformed images as classes of their own are the idea of
 * Lee et al. 2020 (arXiv:1910.05872).
 *
 * Few captions are soon known by heart.  Where the table has key words as well (more_field), a text
 * in training is every other time a random half of these instead, alone or behind the caption, so
 * that words are met in many company.  With `drop` tokens of a text are replaced by the unknown
 * one: a name that one image alone has would else be all that its text is known by, and what it
 * shares with others (animal, flag) would teach nothing about those that were never seen.  With
 * words as tokens, a new name then is what has been dropped before.
 *
 * With text_overlap a part of each answer goes to the images whose texts have words in common
 * (part/shared_words.c),
 *
 *     loss = (1 - o) family's loss + o (SE(T) + SE(T')) / 2,   SE(T) = -share . log softmax(T),
 *
 * T being the logits of texts against images.  One right answer in a batch pushes a rabbit away
 * from the text of a hare as far as from that of a lorry; words that many emoji have (animal, pet)
 * are what an emoji that was never seen is found by. */
#include <stdlib.h>

#include "base/base.h"
#include "data/dice.h"
#include "data/feed_parts.h"
#include "data/masking.h"
#include "data/pixels.h"
#include "data/ragged.h"
#include "fovea/author/family.h"
#include "fovea/author/objective.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"
#include "fovea/author/tok.h"
#include "objective/part/contrast.h"
#include "objective/part/shared_words.h"

typedef struct options {
    fv__new_steps steps;
    fv__augment augment;
    int64_t cache;
    float image_weight, joint_augment, drop, text_overlap;
    char images[512], where[200], valid_where[200], more_field[64];
} options;

/* texts of an image; streams of Philox */
enum { VARIANTS = 16, DICE_WORDS = 22, DICE_TEXT = 23, DICE_IMAGE = 24, DICE_PART = 25 };

typedef struct paired {
    fv__pixels pixels;
    const fv_env *env;
    fv_feed_opt task;
    float image_weight, joint_augment, drop, text_overlap;
    fv__shared_words
        overlap;      /* of the texts and key words of image i, where text_overlap is wanted */
    fv__ragged text;  /* of image i from row i * variants on */
    int variants;     /* 1: the text alone */
    int64_t max_len;  /* tokens of a text: longer ones are cut, with the end token at their end */
    fv_images *words; /* while texts are read: the same images with their key words, or NULL */
    int64_t tokens;   /* of the texts themselves */
    /* images by text: example g has those of order[start[g]] to order[start[g + 1] - 1] */
    int32_t *order, *start;
    int64_t groups;
    size_t order_bytes;
} paired;

static fv_images_opt source(const options *o, const fv_records *from, bool evaluation)
{
    const char *where = evaluation && *o->valid_where ? o->valid_where : o->where;
    return fv__images_source(from, o->images, where);
}

/* Texts of the images that are trained on, by one field: those of held-out rows shall teach
 * nothing, the vocabulary neither. */
static fv_status field_texts(const fv_env *env, const options *o, const fv_records *from,
                             fv_text_fn *each, void *user, fv_err *e)
{
    fv_images_opt where = source(o, from, false);
    return fv__images_texts(env, &where, each, user, e);
}

static fv_status texts(const fv_env *env, const void *own, const fv_records *from, fv_text_fn *each,
                       void *user, fv_err *e)
{
    const options *o = own;
    fv_records other = *from;
    fv_status st = field_texts(env, o, from, each, user, e);
    other.field[1] = o->more_field;
    return st || !*o->more_field ? st : field_texts(env, o, &other, each, user, e);
}

/* The words of s, which has | between them, each kept with a chance of a half; at least one.  Every
 * other variant has the caption before them. */
static void choose_words(fv_buf *out, const char *caption, const char *s, int64_t image,
                         int variant)
{
    fv_data_rng fixed = {.seed = (uint64_t)variant};
    fv__dice d = fv__dice_of(fixed, DICE_WORDS, image);
    int n = 1;
    for (const char *at = s; *at; at++) n += *at == '|';
    int sure = fv__dice_below(&d, n), i = 0;
    out->len = 0;
    if (variant % 2) fv__buf_str(out, caption);
    for (size_t len; len = strcspn(s, "|"), i < n; s += len + (s[len] != 0), i++) {
        if (i != sure && fv__dice_below(&d, 2)) continue;
        if (out->len) fv__buf_str(out, " ");
        fv__buf_add(out, s, len);
    }
}

static fv_status add_text(paired *p, fv_encoding *enc, const char *s, fv_err *e)
{
    fv_tok_opts how = {.specials = true, .max_len = p->max_len};
    fv_status st = fv_tok_encode(enc, s, strlen(s), how, e);
    if (!st && !fv__ragged_add(&p->text, enc->ids, enc->n))
        st = fv_fail(e, FV_ENOMEM, "out of memory for the texts");
    return st;
}

/* The other texts of image i. */
static fv_status add_variants(paired *p, fv_encoding *enc, int64_t i, fv_err *e)
{
    fv_buf b = {.env = p->env};
    fv_status st = FV_OK;
    for (int k = 1; !st && k < p->variants; k++) {
        choose_words(&b, fv_images_text(p->pixels.images, i), fv_images_text(p->words, i), i, k);
        st = b.failed ? fv_fail(e, FV_ENOMEM, "out of memory for the texts")
                      : add_text(p, enc, b.data ? b.data : "", e);
    }
    fv__buf_free(&b);
    return st;
}

/* The images of the feed again, with the texts of another field. */
static fv_status open_words(fv_images **out, const paired *p, const options *o,
                            const fv_records *from, fv_err *e)
{
    fv_data_report unread = {0};
    fv_records other = *from;
    other.field[1] = o->more_field;
    fv_images_opt where = source(o, &other, false);
    fv_status st = fv_images_open(out, p->env, &where, &unread, e);
    if (!st && fv_images_count(*out) != fv_images_count(p->pixels.images))
        st = fv_fail(e, FV_EFORMAT, "%s: some rows have no \"%s\"", from->file, o->more_field);
    return st;
}

/* The words of image i, caption and all key words, for what it shares with others. */
static fv_status add_bag(paired *p, fv_encoding *enc, const char *s, int64_t i, fv_err *e)
{
    fv_buf b = {.env = p->env};
    fv__buf_str(&b, s);
    if (p->words) {
        fv__buf_str(&b, " ");
        fv__buf_str(&b, fv_images_text(p->words, i));
        for (size_t k = 0; k < b.len; k++)
            if (b.data[k] == '|') b.data[k] = ' ';
    }
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "out of memory for the texts")
                            : fv_tok_encode(enc, b.data, b.len, (fv_tok_opts){0}, e);
    int32_t unknown = fv_tok_unknown(p->task.tok);
    if (!st && !fv__shared_words_add(&p->overlap, enc->ids, enc->n, unknown))
        st = fv_fail(e, FV_ENOMEM, "out of memory for the texts");
    fv__buf_free(&b);
    return st;
}

static fv_status add_texts(void *user, fv_encoding *enc, const char *s, int64_t i, fv_err *e)
{
    paired *p = user;
    fv_status st = add_text(p, enc, s, e);
    p->tokens += enc->n;
    if (!st && p->text_overlap > 0) st = add_bag(p, enc, s, i, e);
    return st || !p->words ? st : add_variants(p, enc, i, e);
}

/* ---- images of one text ---- */

static int by_text(const void *a, const void *b, void *user)
{
    const paired *p = user;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    int order = strcmp(fv_images_text(p->pixels.images, x), fv_images_text(p->pixels.images, y));
    return order ? order : (x > y) - (x < y);
}

static fv_status group(paired *p, fv_err *e)
{
    int64_t n = fv_images_count(p->pixels.images);
    p->order_bytes = (size_t)(2 * n + 1) * sizeof *p->order;
    p->order = fv__alloc(p->env, p->order_bytes);
    if (!p->order)
        return fv_fail(e, FV_ENOMEM, "out of memory for the order of %lld images", (long long)n);
    p->start = p->order + n;
    for (int32_t i = 0; i < n; i++) p->order[i] = i;
    qsort_r(p->order, (size_t)n, sizeof *p->order, by_text, p);
    for (int32_t i = 0; i < n; i++)
        if (!i || strcmp(fv_images_text(p->pixels.images, p->order[i]),
                         fv_images_text(p->pixels.images, p->order[i - 1])) != 0)
            p->start[p->groups++] = i;
    p->start[p->groups] = (int32_t)n;
    return FV_OK;
}

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const paired *)self)->groups;
}

/* The image that stands for an example in this epoch; an evaluation takes the first. */
static int32_t image_of(const paired *p, int32_t example, fv_data_rng how, int32_t *other)
{
    int32_t from = p->start[example], n = p->start[example + 1] - from, at = 0;
    fv__dice d = fv__dice_of(how, DICE_IMAGE, example);
    if (how.epoch >= 0 && n > 1) at = fv__dice_below(&d, n);
    *other = p->order[from + (n > 1 ? (at + 1 + fv__dice_below(&d, n - 1)) % n : at)];
    return p->order[from + at];
}

/* ---- batches ---- */

/* Two images of an example, and two of another one in the same order, from which a part may
 * come. */
static fv__pair pair_of(const paired *p, int32_t example, fv_data_rng how)
{
    fv__dice d = fv__dice_of(how, DICE_PART, example);
    fv__pair pair = {.example = example};
    int32_t another = fv__dice_below(&d, (int)p->groups), from = p->start[example],
            n = p->start[example + 1] - from, other_n = p->start[another + 1] - p->start[another];
    pair.image[0] = image_of(p, example, how, &pair.image[1]);
    for (int k = 0; k < 2; k++) {
        int32_t at = 0; /* styles stand in the same order everywhere */
        while (at + 1 < n && p->order[from + at] != pair.image[k]) at++;
        pair.part[k] = p->order[p->start[another] + at % other_n];
    }
    return pair;
}

static fv_status put_pairs(const paired *p, fv_batch *out, const int32_t *rows, int64_t n,
                           fv_data_rng how, fv_err *e)
{
    size_t bytes = (size_t)n * sizeof(fv__pair);
    fv__pair *pairs = fv__alloc(p->env, bytes);
    if (!pairs) return fv_fail(e, FV_ENOMEM, "out of memory for a batch");
    for (int64_t i = 0; i < n; i++) pairs[i] = pair_of(p, rows[i], how);
    fv_status st = fv__pixels_put_pairs(&p->pixels, out, "other_pixel_values", pairs, n,
                                        p->joint_augment, how, e);
    fv__free(p->env, pairs, bytes);
    return st;
}

/* other_pixel_values, and view_of (n): the row of the first images that each second one belongs to.
 * (n,C,H,W), the first being pixel_values; with joint_augment (2n,C,H,W), both. */
static fv_status put_views(const paired *p, fv_batch *out, const int32_t *rows,
                           const int32_t *second, int64_t n, fv_data_rng how, fv_err *e)
{
    fv_status st = p->joint_augment > 0 ? put_pairs(p, out, rows, n, how, e)
                                        : fv__pixels_put_view(&p->pixels, out, "other_pixel_values",
                                                              second, n, how, e);
    int32_t *of = st ? NULL : fv_batch_put(out, "view_of", FV_I32, FV_SHAPE(n));
    for (int32_t i = 0; of && i < n; i++) of[i] = i;
    return st;
}

/* pixel_values (n,C,H,W), input_ids and attention_mask (n,T); where images are held against each
 * other also what put_views adds, and text_overlap (n,n) where texts are. */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const paired *p = self;
    size_t bytes = (size_t)n * 3 * sizeof(int32_t);
    int32_t *image = fv__alloc(p->env, bytes), *text = image + n, *second = text + n;
    if (!image) return fv_fail(e, FV_ENOMEM, "out of memory for a batch");
    for (int64_t i = 0; i < n; i++) {
        fv__dice d = fv__dice_of(how, DICE_TEXT, rows[i]);
        bool other = p->variants > 1 && how.epoch >= 0 && fv__dice_below(&d, 2);
        image[i] = image_of(p, rows[i], how, &second[i]);
        text[i] = image[i] * p->variants + (other ? 1 + fv__dice_below(&d, p->variants - 1) : 0);
    }
    fv_status st = fv__pixels_put(&p->pixels, out, image, n, how, e);
    int ids = out->n;
    if (!st) fv__ragged_put(&p->text, out, text, n, p->task.pad);
    if (!st && !out->err.code) fv__batch_drop(&out->part[ids], &p->task, p->drop, rows, how);
    if (!st && p->image_weight > 0 && how.epoch >= 0)
        st = put_views(p, out, rows, second, n, how, e);
    if (!st && p->text_overlap > 0 && how.epoch >= 0) {
        float *share = fv_batch_put(out, "text_overlap", FV_F32, FV_SHAPE(n, n));
        if (share) fv__shared_words_put(&p->overlap, share, image, n);
    }
    fv__free(p->env, image, bytes);
    if (st) return st;
    if (out->err.code) return fv_fail(e, out->err.code, "%s", out->err.text);
    out->labels = (double)n;
    return FV_OK;
}

/* The family's loss, and those between images and between texts; an evaluation has the first
 * alone. */
static void forward(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                    fv_items *out)
{
    const paired *p = self;
    fv_items first = *in;
    fv_tensor *other = fv_items_get(in, "other_pixel_values"),
              *share = fv_items_get(in, "text_overlap");
    first.n = 0;
    for (int i = 0; i < in->n; i++)
        if (in->at[i].value != other && in->at[i].value != share &&
            strcmp(in->at[i].name, "view_of") != 0)
            fv_items_put(&first, in->at[i].name, in->at[i].value);
    fv_model_forward(c, m, &first, out);
    fv_tensor *loss = fv_items_get(out, "loss"), *all = loss;
    if (!loss || (!other && !share)) return;
    if (share) {
        fv_tensor *both = fv__overlap_loss(c, fv_items_get(out, "logits_per_text"), share, in);
        all = fv_add(c, fv_scale(c, all, 1 - p->text_overlap),
                     fv_scale(c, both, 0.5f * p->text_overlap));
    }
    if (other) {
        fv_tensor *both = fv__view_loss(c, m, fv_items_get(out, "image_embeds"), other, in);
        all = fv_add(c, all, fv_scale(c, both, 0.5f * p->image_weight));
    }
    for (int i = 0; i < out->n; i++)
        if (out->at[i].value == loss) out->at[i].value = all;
}

/* Whether the greatest of row i of logits_per_text stands at i. */
static fv_status count_correct(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of)
{
    const fv_env *env = ((const paired *)self)->env;
    const fv_tensor *logits = fv_items_get(out, "logits_per_text");
    int64_t n = b->part[0].shape.d[0];
    size_t bytes = (size_t)(n * n) * sizeof(float);
    float *x = logits ? fv__alloc(env, bytes) : NULL;
    fv_status st = x ? fv_read(c, logits, x, n * n) : FV_ENOMEM;
    for (int64_t i = 0; !st && i < n; i++) {
        int64_t best = 0;
        for (int64_t k = 1; k < n; k++)
            if (x[i * n + k] > x[i * n + best]) best = k;
        *hits += best == i;
        *of += 1;
    }
    fv__free(env, x, bytes);
    return st;
}

static void close_feed(void *self)
{
    paired *p = self;
    const fv_env *env = p->env;
    fv__pixels_close(&p->pixels);
    fv__ragged_free(&p->text);
    fv__shared_words_free(&p->overlap);
    fv__free(p->env, p->order, p->order_bytes);
    fv__free(env, p, sizeof *p);
}

static const fv_feed feed = {.metric = "recall@1 in the batch",
                             .count = count,
                             .size = fv__size_alike,
                             .make = make,
                             .count_correct = count_correct,
                             .close = close_feed};

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    const options *o = t->options;
    *out = (fv_feed){0};
    if (!t->tok)
        return fv_fail(e, FV_EARG, "%s: the model has no tokenizer beside its image processor",
                       from->file);
    paired *p = fv__alloc(t->env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    bool more = *o->more_field && !t->evaluation;
    *p = (paired){.env = t->env,
                  .task = *t,
                  .text = {.env = t->env},
                  .overlap = {.env = t->env},
                  .text_overlap = t->evaluation ? 0 : o->text_overlap,
                  .image_weight = o->image_weight,
                  .joint_augment = o->joint_augment,
                  .drop = o->drop,
                  .variants = more ? VARIANTS : 1,
                  .max_len = from->max_len ? from->max_len : 512};
    fv_images_opt where = source(o, from, t->evaluation);
    fv_status st = fv__pixels_open_source(&p->pixels, t, &where, &o->augment, o->cache, report, e);
    if (!st && more) st = open_words(&p->words, p, o, from, e);
    if (!st) st = fv__pixels_texts(&p->pixels, t->tok, add_texts, p, e);
    report->tokens[0] += p->tokens;
    fv_images_close(p->words);
    p->words = NULL;
    if (!st && p->text_overlap > 0 && !fv__shared_words_weigh(&p->overlap, fv_tok_size(t->tok)))
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    if (!st) st = group(p, e);
    st = fv__feed_give(out, &feed, p, st);
    if (!st && (o->image_weight > 0 || o->text_overlap > 0)) out->forward = forward;
    return st;
}

static fv_status make_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const options *o = own;
    fv_images_opt where = source(o, from, false);
    return fv__pixels_processor_of(out, env, &o->steps, &where, tok, e);
}

static const fv_field keys[] = {
    FV__PIXELS_KEYS(options),
    FV__IMAGES_KEYS(options),
    FV_TEXT(options, more_field, "",
            "field with key words, | between: in training every other text is a random half of "
            "them, alone or behind the caption"),
    FV_FLOAT(options, drop, 0, 0, 0.9,
             "share of a text's tokens that training replaces by the unknown one"),
    FV_FLOAT(options, image_weight, 0, 0, 100,
             "weight of a loss that brings two images of a text near one another, or two views of "
             "its only one; 0: none"),
    FV_FLOAT(options, joint_augment, 0, 0, 1,
             "chance by which both images of image_weight are changed alike to what no text names: "
             "colours, quarter turns, a part of others; 0: they are as those of texts are"),
    FV_FLOAT(options, text_overlap, 0, 0, 1,
             "part of each answer that goes to images whose texts have words in common, by those "
             "words; 0: none"),
    FV_TEXT(options, valid_where, "", "those that are evaluated on; empty: as where"),
    {0},
};
static const char *const loss_inputs[] = {"pixel_values", "input_ids", NULL};
/* CLIP's: its pooling looks for the end token. */
static const char *const specials[] = {"<|startoftext|>", "<|endoftext|>", "<unk>", NULL};

const fv_objective fv__objective_contrastive = {
    .name = "contrastive",
    .help = "images and their texts near one another",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "image",
    .specials = specials,
    .before = "<|startoftext|>",
    .after = "<|endoftext|>",
    .texts = texts,
    .make_processor = make_processor,
    .head = FV_HEAD_CONTRASTIVE,
    .loss_inputs = loss_inputs,
    .open = open_feed,
};
