/* feed_parts.c - counts and sizes of the usual examples, and the end of opening a feed.
 *
 * A feed is a table of functions over what an objective keeps (author/feed.h): how many examples,
 * what each costs, how a batch is made. Objectives whose examples are rows of ids, or all alike,
 * take these. */
#include "data/feed_parts.h"

#include "data/labels.h"

const char *const fv__encoder_specials[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>", NULL};
const char *const fv__labels_alone[] = {"labels", NULL};

int64_t fv__text_rows_count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const fv__text_rows *)self)->text.n;
}

/* For planning: a batch costs its longest row times its rows. */
void fv__text_rows_size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    fv__ragged_row(&((const fv__text_rows *)self)->text, i, source);
    *target = 0;
}

/* All examples cost the same: batches are cut by count, and shuffling is all that is planned. */
void fv__size_alike(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    (void)self, (void)i;
    *source = 1;
    *target = 0;
}

fv_status fv__count_correct_labels(const void *self, fv_ctx *c, const fv_batch *b,
                                   const fv_items *out, double *hits, double *of)
{
    (void)self;
    return fv__count_correct_rows(c, out, fv__batch_ints(b, "labels"), b->part[0].shape.d[0], hits,
                                  of);
}

/* The end of every objective's open: the feed goes out, or what was built of it is closed. */
fv_status fv__feed_give(fv_feed *out, const fv_feed *feed, void *self, fv_status st)
{
    *out = (fv_feed){0};
    if (st) {
        feed->close(self);
        return st;
    }
    *out = *feed;
    out->self = self;
    return FV_OK;
}
