/* dice.h - random numbers for one example: a function of the seed, the epoch and the example. */
#ifndef FV_DATA_DICE_H
#define FV_DATA_DICE_H

#include "fovea/author/backend.h"
#include "fovea/author/feed.h"

/* Streams of Philox; plan.c has 0 and 1. */
enum {
    FV__DICE_AUGMENT = 7,
    FV__DICE_MIX = 8,
    FV__DICE_SPEECH = 9,
    FV__DICE_NOISE = 10,
    FV__DICE_JOINT = 15,
    FV__DICE_VIEW = 16
};

typedef struct fv__dice {
    fv_data_rng rng;
    uint64_t site, at; /* the next block of four words */
    uint32_t word[4];
    int used;
} fv__dice;

/* An example has 2^20 counters of its own, four words each: dice of two examples never share a
 * number, whatever is drawn. */
static inline fv__dice fv__dice_of(fv_data_rng rng, uint64_t site, int64_t example)
{
    return (fv__dice){.rng = rng, .site = site, .at = (uint64_t)example << 20, .used = 4};
}

static inline uint32_t fv__dice_word(fv__dice *d)
{
    if (d->used == 4) {
        fv_philox(d->word, d->rng.seed, d->site, (uint64_t)d->rng.epoch, d->at++);
        d->used = 0;
    }
    return d->word[d->used++];
}

/* In [0,1). */
static inline double fv__dice_unit(fv__dice *d) { return fv__dice_word(d) / 4294967296.0; }

/* In [-most, most). */
static inline double fv__dice_signed(fv__dice *d, double most)
{
    return (2 * fv__dice_unit(d) - 1) * most;
}

/* One of 0 .. n - 1. */
static inline int fv__dice_below(fv__dice *d, int n)
{
    return (int)((uint64_t)fv__dice_word(d) * (uint64_t)n >> 32);
}

#endif
