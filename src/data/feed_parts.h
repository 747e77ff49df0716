/* feed_parts.h - what feeds of different objectives have in common: examples that are one text each
 * or all of one size, labels of rows, and the end of opening one. */
#ifndef FV_FEED_PARTS_H
#define FV_FEED_PARTS_H

#include "data/ragged.h"
#include "fovea/author/data.h"

/* A feed whose examples are encoded texts begins with this. */
typedef struct fv__text_rows {
    const fv_env *env;
    fv__ragged text;
} fv__text_rows;

/* fv_feed.count and fv_feed.size of such a feed. */
int64_t fv__text_rows_count(const void *self, int64_t epoch);
void fv__text_rows_size(const void *self, int64_t i, int64_t *source, int64_t *target);

/* fv_feed.size where all examples are alike (images, clips, windows): batch_rows decides. */
void fv__size_alike(const void *self, int64_t i, int64_t *source, int64_t *target);

/* fv_feed.count_correct where "logits" has a row for each of "labels" (n). */
fv_status fv__count_correct_labels(const void *self, fv_ctx *c, const fv_batch *b,
                                   const fv_items *out, double *hits, double *of);

/* The end of an objective's open: *out is the feed with self, or, where st says that it failed, is
 * empty and self is closed.  Returns st. */
fv_status fv__feed_give(fv_feed *out, const fv_feed *feed, void *self, fv_status st);

/* Entries of an objective on texts for encoders, whose tokenizer has BERT's kinds of special
 * tokens; and the loss inputs of most. */
extern const char *const fv__encoder_specials[], *const fv__labels_alone[];
#define FV__ENCODER_TEXTS                                                                          \
    .processor = "tokenizer", .specials = fv__encoder_specials, .before = "<s>", .after = "</s>"
/* ...and of one on running text for decoders. */
#define FV__CAUSAL_TEXTS                                                                           \
    .processor = "tokenizer", .texts = fv_texts_first, .head = FV_HEAD_CAUSAL_LM,                  \
    .loss_inputs = fv__labels_alone, .generates = true

#endif
