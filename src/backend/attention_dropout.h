/* attention_dropout.h - the dropout mask of attention weights: the same bits on every backend.
 *
 * Each weight has 16 random bits.  It is dropped where they are below fv__dropout_threshold(p),
 * and weights that are kept are divided by fv__keep_probability(p): p is rounded to a multiple
 * of 1/65536, and the expectation is exact for the rounded p.
 *
 * One Philox4x32-7 block gives 128 bits, for eight weights of a head: queries i, i + 8 by keys
 * j, j + 1, j + 8, j + 9, where i % 16 < 8, j % 16 < 8 and j is even.  These are what one thread
 * holds of a 16 x 16 tile of mma accumulators, so no thread generates bits it does not use.  The
 * obvious alternative, eight keys of one query, would exchange words among four threads, and
 * among eight in the gradient of keys. */
#ifndef FV_ATTENTION_DROPOUT_H
#define FV_ATTENTION_DROPOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define FV__HOST_DEVICE __host__ __device__
#else
#define FV__HOST_DEVICE
#endif

/* The counter of a block: its row half for query i of head `head` = b * H + h, its key half for
 * key j. */
static inline FV__HOST_DEVICE uint32_t fv__philox_row_index(uint32_t head, uint32_t Tq, uint32_t i)
{
    return head * ((Tq + 15) / 16 * 8) + i / 16 * 8 + i % 8;
}
static inline FV__HOST_DEVICE uint32_t fv__philox_key_index(uint32_t j)
{
    return j / 16 * 4 + j % 8 / 2;
}

/* Which of the four words has the bits of key j; query i uses the upper half of it where i % 16
 * >= 8, else the lower half. */
static inline FV__HOST_DEVICE int fv__philox_word(uint32_t j)
{
    return (int)(j % 2 * 2 + j / 8 % 2);
}

/* Seven rounds, not the ten of fv_philox: the fewest that pass BigCrush (Salmon et al.,
 * "Parallel random numbers: as easy as 1, 2, 3", 2011).  They are most of the cost of dropout. */
#define FV__PHILOX_ROUNDS 7
typedef struct {
    uint32_t k[FV__PHILOX_ROUNDS][2];
} fv__philox_round_keys; /* the key schedule of one seed */

static inline fv__philox_round_keys fv__philox_schedule(uint64_t seed)
{
    fv__philox_round_keys keys;
    for (uint32_t r = 0; r < FV__PHILOX_ROUNDS; r++) {
        keys.k[r][0] = (uint32_t)seed + r * 0x9E3779B9u;
        keys.k[r][1] = (uint32_t)(seed >> 32) + r * 0xBB67AE85u;
    }
    return keys;
}

#define FV__PHILOX_M0 0xD2511F53u
#define FV__PHILOX_M1 0xCD9E8D57u

/* Row and key counters do not mix before the third round: the first two rounds of either half
 * are computed once, for all blocks that share it. */
typedef struct {
    uint32_t high, low;
} fv__philox_row_part;
typedef struct {
    uint32_t mixed, c0, c2, c3;
} fv__philox_key_part;

static inline FV__HOST_DEVICE fv__philox_row_part
fv__philox_start_row(const fv__philox_round_keys *keys, uint64_t step, uint32_t row)
{
    uint32_t c0 = (uint32_t)((uint64_t)FV__PHILOX_M1 * (uint32_t)step >> 32) ^ row ^
                  (uint32_t)(step >> 32) ^ keys->k[0][0];
    uint64_t p0 = (uint64_t)FV__PHILOX_M0 * c0;
    fv__philox_row_part r = {(uint32_t)(p0 >> 32), (uint32_t)p0};
    return r;
}

static inline FV__HOST_DEVICE fv__philox_key_part
fv__philox_start_key(const fv__philox_round_keys *keys, uint64_t site, uint64_t step, uint32_t key)
{
    uint64_t first = (uint64_t)FV__PHILOX_M0 * key;
    uint64_t p1 = (uint64_t)FV__PHILOX_M1 *
                  ((uint32_t)(first >> 32) ^ (uint32_t)site ^ keys->k[0][1]);
    uint32_t c0 = (uint32_t)(p1 >> 32) ^ FV__PHILOX_M1 * (uint32_t)step ^ keys->k[1][0];
    uint64_t p0 = (uint64_t)FV__PHILOX_M0 * c0;
    fv__philox_key_part k = {(uint32_t)first ^ keys->k[1][1], (uint32_t)p1 ^ keys->k[2][0],
                             (uint32_t)(p0 >> 32) ^ keys->k[2][1], (uint32_t)p0};
    return k;
}

/* Rounds three to seven. */
static inline FV__HOST_DEVICE void fv__philox_finish(uint32_t out[4],
                                                     const fv__philox_round_keys *keys,
                                                     fv__philox_row_part row,
                                                     fv__philox_key_part key)
{
    uint64_t mixed = (uint64_t)FV__PHILOX_M1 * (row.high ^ key.mixed);
    uint32_t c0 = (uint32_t)(mixed >> 32) ^ key.c0, c1 = (uint32_t)mixed, c2 = row.low ^ key.c2,
             c3 = key.c3;
    for (int r = 3; r < FV__PHILOX_ROUNDS; r++) {
        uint64_t p0 = (uint64_t)FV__PHILOX_M0 * c0, p1 = (uint64_t)FV__PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ keys->k[r][0];
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ keys->k[r][1];
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static inline FV__HOST_DEVICE void fv__philox7(uint32_t out[4], const fv__philox_round_keys *keys,
                                               uint64_t site, uint64_t step, uint32_t row,
                                               uint32_t key)
{
    fv__philox_finish(out, keys, fv__philox_start_row(keys, step, row),
                      fv__philox_start_key(keys, site, step, key));
}

/* 65535 at most: a rate close to 1 still keeps one weight in 65536, and 1 / keep stays finite. */
static inline uint32_t fv__dropout_threshold(float p)
{
    uint32_t below = (uint32_t)(p * 65536 + 0.5f);
    return below < 65535 ? below : 65535;
}
static inline double fv__keep_probability(float p)
{
    return 1 - fv__dropout_threshold(p) / 65536.0;
}

#endif
