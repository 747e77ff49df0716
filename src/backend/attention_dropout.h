/* attention_dropout.h - which weights of attention dropout takes: the same on every backend.
 *
 * A weight has 16 bits of the sequence.  It is dropped where they are less than
 * fv__dropout_threshold(p), and kept weights are divided by the share that is kept, so that p
 * counts to a 65,536th and sums are right on average whatever it is.
 *
 * One draw, seven rounds of Philox4x32, serves eight weights of a head: rows i, i + 8 by keys j, j
 * + 1, j + 8, j + 9, where i and j are less than 8 beyond a multiple of 16 and j is even.  A thread
 * has these of 16 rows and columns of a product on tensor cores, so that none draws more than it
 * needs; eight keys of one row would have to go round among four threads, and among eight in the
 * gradient of keys. */
#ifndef FV_ATTENTION_DROPOUT_H
#define FV_ATTENTION_DROPOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define FV__HOST_DEVICE __host__ __device__
#else
#define FV__HOST_DEVICE
#endif

/* The position of the draw: its upper half for row i of head `head` (b * H + h), its lower half for
 * key j. */
static inline FV__HOST_DEVICE uint32_t fv__philox_row_index(uint32_t head, uint32_t Tq, uint32_t i)
{
    return head * ((Tq + 15) / 16 * 8) + i / 16 * 8 + i % 8;
}
static inline FV__HOST_DEVICE uint32_t fv__philox_key_index(uint32_t j)
{
    return j / 16 * 4 + j % 8 / 2;
}

/* The word that has the bits of key j; those of row i are its upper half where i % 16 >= 8, else
 * its lower half. */
static inline FV__HOST_DEVICE int fv__philox_word(uint32_t j)
{
    return (int)(j % 2 * 2 + j / 8 % 2);
}

/* The four words of a draw.  Other random numbers here take ten rounds (fv_philox); seven are the
 * fewest that pass every test of BigCrush (Salmon et al., "Parallel random numbers: as easy as 1,
 * 2, 3", 2011), and these are most of what dropout costs. */
#define FV__PHILOX_ROUNDS 7
typedef struct {
    uint32_t k[FV__PHILOX_ROUNDS][2];
} fv__philox_round_keys; /* what each round mixes in, of one seed */

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

/* Rows and keys meet in the third round: what the first two make of either is worked out apart,
 * once for all that it serves. */
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

/* The third round and those behind it. */
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
