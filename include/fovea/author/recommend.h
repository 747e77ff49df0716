/* recommend.h - recommendations with a trained model: the items that may follow a history, and how
 * good they are on items that were left out.  A recommender belongs to one thread. */
#ifndef FOVEA_AUTHOR_RECOMMEND_H
#define FOVEA_AUTHOR_RECOMMEND_H

#include "fovea/author/events.h"
#include "fovea/model.h"

typedef struct fv_recommender fv_recommender;

/* dir: a model of items (SasRecModel, Bert4RecModel); others are refused. */
FV_API fv_status fv_recommender_open(fv_recommender **out, fv_device *d, const char *dir,
                                     fv_model_opt opt, fv_err *e);
FV_API void fv_recommender_close(fv_recommender *r); /* NULL is allowed */
/* The items of the model by name: a closed list, for fv_events_open and for fv_labels_find. */
FV_API fv_labels *fv_recommender_items(fv_recommender *r);

typedef struct fv_recommended {
    int32_t item;
    float score;
} fv_recommended;

/* The k best items behind a history of n, best first, none of which is in it; fewer where there are
 * no more: *found of them.  looked (n), or NULL: how much attention the last position paid to each
 * item of the history, the exact weights of the last layer, mean over its heads (0 for items before
 * those that the model reads). */
FV_API fv_status fv_recommender_run(fv_recommender *r, const int32_t *history, int64_t n, int64_t k,
                                    fv_recommended *out, int64_t *found, float *looked, fv_err *e);

/* Means over users, at 5, 10 and 20: whether the right item is that near the top, 1 / log2(1 +
 * rank), 1 / rank. */
typedef struct fv_ranking {
    int64_t users;
    double hr[3], ndcg[3], mrr[3];
} fv_ranking;

/* What ranks: the model, how often items stand in the training part, and items that the same users
 * had: the sum over the history of the cosine of two items' sets of users (item neighbours). */
enum { FV_RANKED_MODEL, FV_RANKED_POPULAR, FV_RANKED_NEIGHBOURS, FV_RANKED };

typedef struct fv_ranking_opt {
    bool valid; /* the item before the last is to be found; else the last */
    int64_t
        sampled; /* against so many items that are drawn evenly of those that the user never had, as
                        the first papers rank; 0: against all that it has not had before */
    uint64_t seed; /* of drawing */
} fv_ranking_opt;

/* Of each user one item is ranked; users with fewer than two items have none.  out (FV_RANKED). */
FV_API fv_status fv_recommender_evaluate(fv_recommender *r, const fv_events *v, fv_ranking_opt opt,
                                         fv_ranking *out, fv_err *e);

#endif
