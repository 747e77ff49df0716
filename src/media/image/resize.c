/* resize.c - images at another size, with Pillow's levels.
 *
 * Two passes of weighted sums with 22 bits after the point, each rounded to 8 bits:
 *
 *     h[y,i] = clip((2^21 + sum_k w_k x[y, from_i + k]) >> 22),   out[j,i] = the same of h along y
 *
 * The vertical pass has the same weights all along a row, so it is a loop over vectors as it
 * stands. The horizontal one is not: neighbouring outputs have different weights.  So it takes 16
 * rows at a time and turns them, by blocks of 16 x 16 bytes, into columns; a vector then is one
 * value of 16 rows.  Shuffling the bytes of one row into place instead needs other code for every
 * number of channels and taps. */
#include "media/image/resize.h"

enum { LANES = 16, ROUND = 1 << (FV__TAP_BITS - 1) };

/* Without 32-bit products, as in the first x86_64, sums of vectors are slow; the loader of the
 * system chooses between two versions.  Not under a sanitizer: gcc instruments the ifunc
 * resolver, which runs before the sanitizer is initialised. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define VECTORS
#endif

/* ---- vectors of 16 bytes, little-endian ---- */

typedef uint8_t bytes16 __attribute__((vector_size(LANES)));
typedef int16_t words8 __attribute__((vector_size(LANES)));
typedef int32_t ints4 __attribute__((vector_size(LANES)));

/* Halves of two vectors, byte by byte and word by word in turn. */
static inline bytes16 zip_low(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline bytes16 zip_high(bytes16 a, bytes16 b)
{
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
}

/* Bytes that stand in words, four and four: beside zeros they are ints. */
static inline ints4 ints_low(words8 a)
{
    return (ints4)__builtin_shufflevector(a, (words8){0}, 0, 8, 1, 9, 2, 10, 3, 11);
}

static inline ints4 ints_high(words8 a)
{
    return (ints4)__builtin_shufflevector(a, (words8){0}, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* Rounded sums as levels of 0 to 255, one in each int. */
static inline ints4 levels(ints4 sum)
{
    ints4 v = sum >> FV__TAP_BITS;
    v &= v > 0;
    ints4 over = v > 255;
    return (v & ~over) | (over & 255);
}

/* The lower half of each int, and of each word. */
static inline words8 to_words(ints4 a, ints4 b)
{
    return __builtin_shufflevector((words8)a, (words8)b, 0, 2, 4, 6, 8, 10, 12, 14);
}

static inline bytes16 to_bytes(words8 a, words8 b)
{
    return __builtin_shufflevector((bytes16)a, (bytes16)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                   22, 24, 26, 28, 30);
}

static inline uint8_t level(int32_t sum)
{
    int32_t v = sum >> FV__TAP_BITS;
    v = v < 0 ? 0 : v;
    return (uint8_t)(v > 255 ? 255 : v);
}

/* y[i] = the sum over k of w[k] x[k * step + i], for LANES values side by side. */
static inline void weighted(uint8_t *restrict y, const uint8_t *restrict x, size_t step,
                            const int32_t *restrict w, int n)
{
    const ints4 half = {ROUND, ROUND, ROUND, ROUND};
    ints4 s0 = half, s1 = half, s2 = half, s3 = half;
    for (int k = 0; k < n; k++, x += step) {
        bytes16 a;
        memcpy(&a, x, LANES);
        words8 low = (words8)zip_low(a, (bytes16){0}), high = (words8)zip_high(a, (bytes16){0});
        s0 += ints_low(low) * w[k];
        s1 += ints_high(low) * w[k];
        s2 += ints_low(high) * w[k];
        s3 += ints_high(high) * w[k];
    }
    bytes16 to = to_bytes(to_words(levels(s0), levels(s1)), to_words(levels(s2), levels(s3)));
    memcpy(y, &to, LANES);
}

/* ---- blocks of 16 x 16 bytes, rows to columns ---- */

/* Four rounds of zipping row i with row i + 8: each moves one bit of the row's number into the
 * column's. */
static inline void transpose(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step)
{
    bytes16 a[LANES], b[LANES];
    for (int i = 0; i < LANES; i++) memcpy(&a[i], from + (size_t)i * from_step, LANES);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = zip_low(a[i], a[i + 8]);
            b[2 * i + 1] = zip_high(a[i], a[i + 8]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < LANES; i++) memcpy(to + (size_t)i * to_step, &a[i], LANES);
}

/* rows x n bytes to n x LANES: whole blocks, then what is left one by one.  Rows that are missing
 * repeat the last. */
static void to_columns(uint8_t *to, const uint8_t *from, size_t step, int rows, size_t n)
{
    size_t whole = rows == LANES ? n / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES) transpose(to + i * LANES, LANES, from + i, step);
    for (size_t i = whole; i < n; i++)
        for (int r = 0; r < LANES; r++)
            to[i * LANES + (size_t)r] = from[(size_t)(r < rows ? r : rows - 1) * step + i];
}

static void to_rows(uint8_t *to, size_t step, const uint8_t *from, int rows, size_t n)
{
    size_t whole = rows == LANES ? n / LANES * LANES : 0;
    for (size_t i = 0; i < whole; i += LANES) transpose(to + i, step, from + i * LANES, LANES);
    for (size_t i = whole; i < n; i++)
        for (int r = 0; r < rows; r++) to[(size_t)r * step + i] = from[i * LANES + (size_t)r];
}

/* ---- the passes ---- */

/* Every sum of one block of columns. */
VECTORS static void sum_columns(uint8_t *to, const uint8_t *from, const fv__taps *t,
                                size_t channels)
{
    for (int i = 0; i < t->out; i++)
        for (size_t c = 0; c < channels; c++)
            weighted(to + ((size_t)i * channels + c) * LANES,
                     from + ((size_t)t->from[i] * channels + c) * LANES, channels * LANES,
                     t->weight + (size_t)i * (size_t)t->most, t->n[i]);
}

/* `rows` rows of `width` pixels, each to t->out pixels. */
static fv_status horizontal(const fv_env *env, uint8_t *out, const uint8_t *in, size_t width,
                            size_t channels, const fv__taps *t, int rows, fv_err *e)
{
    size_t row = width * channels, to_row = (size_t)t->out * channels,
           bytes = (row + to_row) * LANES;
    uint8_t *columns = fv__alloc_raw(env, bytes);
    if (!columns) return fv_fail(e, FV_ENOMEM, "out of memory to resize an image");
    uint8_t *sums = columns + row * LANES;
    for (int y = 0; y < rows; y += LANES) {
        int n = rows - y < LANES ? rows - y : LANES;
        to_columns(columns, in + (size_t)y * row, row, n, row);
        sum_columns(sums, columns, t, channels);
        to_rows(out + (size_t)y * to_row, to_row, sums, n, to_row);
    }
    fv__free(env, columns, bytes);
    return FV_OK;
}

/* One row of the result from the rows above and below it. */
VECTORS static void sum_rows(uint8_t *to, const uint8_t *from, size_t row, const int32_t *w, int n)
{
    size_t i = 0;
    for (; i + LANES <= row; i += LANES) weighted(to + i, from + i, row, w, n);
    for (; i < row; i++) {
        int32_t sum = ROUND;
        for (int k = 0; k < n; k++) sum += w[k] * from[(size_t)k * row + i];
        to[i] = level(sum);
    }
}

/* t->out rows of `row` bytes from rows of which the first here is row `first` of the image. */
static void vertical(uint8_t *out, const uint8_t *in, size_t row, int first, const fv__taps *t)
{
    for (int y = 0; y < t->out; y++)
        sum_rows(out + (size_t)y * row, in + (size_t)(t->from[y] - first) * row, row,
                 t->weight + (size_t)y * (size_t)t->most, t->n[y]);
}

static void nearest(fv_image *out, const fv_image *in, const fv__taps *x, const fv__taps *y)
{
    size_t ch = (size_t)in->channels;
    uint8_t *to = out->data;
    for (int j = 0; j < y->out; j++) {
        const uint8_t *line = in->data + (size_t)y->from[j] * (size_t)in->width * ch;
        for (int i = 0; i < x->out; i++, to += ch) memcpy(to, line + (size_t)x->from[i] * ch, ch);
    }
}

/* Both passes with room for what lies between them.  The rounding there makes their order visible,
 * by one level at most: the columns go first where the height shrinks by more than twice as many
 * pixels as the width.  So it is in Pillow from version 13 on; before, the rows were always
 * first. */
static fv_status both(fv_image *out, const fv_image *in, const fv__taps *x, const fv__taps *y,
                      bool columns_first, fv_err *e)
{
    size_t ch = (size_t)in->channels, row = (size_t)in->width * ch;
    int first = y->from[0], last = 0;
    for (int j = 0; j < y->out; j++)
        if (y->from[j] + y->n[j] > last) last = y->from[j] + y->n[j];
    int rows = last - first;
    const uint8_t *from = in->data + (size_t)first * row;
    size_t bytes = columns_first ? (size_t)y->out * row : (size_t)rows * (size_t)out->width * ch;
    uint8_t *middle = fv__alloc_raw(in->env, bytes);
    if (!middle) return fv_fail(e, FV_ENOMEM, "out of memory to resize an image");
    fv_status st = FV_OK;
    if (columns_first) {
        vertical(middle, from, row, first, y);
        st = horizontal(in->env, out->data, middle, (size_t)in->width, ch, x, y->out, e);
    } else {
        st = horizontal(in->env, middle, from, (size_t)in->width, ch, x, rows, e);
        if (!st) vertical(out->data, middle, (size_t)out->width * ch, first, y);
    }
    fv__free(in->env, middle, bytes);
    return st;
}

/* A pass that changes nothing is left out. */
static fv_status filtered(fv_image *out, const fv_image *in, int width, int height, fv_window w,
                          const fv__taps *x, const fv__taps *y, fv_err *e)
{
    size_t ch = (size_t)in->channels, row = (size_t)in->width * ch;
    if (width == in->width && w.width == width) {
        vertical(out->data, in->data, row, 0, y);
        return FV_OK;
    }
    if (height == in->height)
        return horizontal(in->env, out->data, in->data + (size_t)w.y * row, (size_t)in->width, ch,
                          x, w.height, e);
    bool columns_first = height < in->height && in->height - height > 2 * (in->width - width);
    return both(out, in, x, y, columns_first, e);
}

fv_status fv_image_resize(fv_image *out, const fv_image *in, int width, int height, fv_resample how,
                          fv_window w, fv_err *e)
{
    if (!w.width) w = (fv_window){0, 0, width, height};
    if (width < 1 || height < 1 || (int64_t)width * height > FV_IMAGE_MOST_PIXELS || w.x < 0 ||
        w.y < 0 || w.width > width - w.x || w.height > height - w.y)
        return fv_fail(e, FV_EARG, "an image cannot be resized to %d x %d pixels", width, height);
    if (width == in->width && height == in->height) return fv_image_crop(out, in, w, e);
    fv__taps x = {0}, y = {0};
    fv_status st = fv_image_new(out, in->env, w.width, w.height, in->channels, e);
    if (!st) st = fv__taps_make(&x, in->env, in->width, width, w.x, w.width, how, e);
    if (!st) st = fv__taps_make(&y, in->env, in->height, height, w.y, w.height, how, e);
    if (!st && how == FV_NEAREST)
        nearest(out, in, &x, &y);
    else if (!st)
        st = filtered(out, in, width, height, w, &x, &y, e);
    fv__taps_free(&x, in->env);
    fv__taps_free(&y, in->env);
    return st;
}
