/* augment_ops.c - the operations of RandAugment and of colour jitter, as PIL defines them, on 8
 * bits.
 *
 * Most of them send each level of a channel to another: they fill a table of 256 and apply it. */
#include <math.h>
#include <string.h>

#include "data/augment.h"

static uint8_t clip(double x) { return (uint8_t)(x <= 0 ? 0 : x >= 255 ? 255 : x + 0.5); }

static size_t pixels(const fv_image *im) { return (size_t)im->width * (size_t)im->height; }

/* Channel c through a table. */
static void apply(fv_image *im, int c, const uint8_t table[256])
{
    size_t ch = (size_t)im->channels, n = pixels(im) * ch;
    for (size_t i = (size_t)c; i < n; i += ch) im->data[i] = table[im->data[i]];
}

/* Operations on levels are tables of 256 entries: the arithmetic is done once a level, not once a
 * pixel. */
static void apply_all(fv_image *im, const uint8_t table[256])
{
    size_t n = pixels(im) * (size_t)im->channels;
    for (size_t i = 0; i < n; i++) im->data[i] = table[im->data[i]];
}

/* ITU-R 601 in 16-bit fixed point, as Pillow's convert("L") rounds it. */
static uint8_t grey_of(const uint8_t *p, int channels)
{
    if (channels == 1) return p[0];
    return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
}

/* ---- geometry ---- */

/* 16 bits behind the point: a step along a row is two additions. */
void fv__image_affine(fv_image *to, const fv_image *from, const double m[6], const uint8_t fill[3])
{
    int w = from->width, h = from->height, ch = from->channels;
    double cx = (w - 1) * 0.5, cy = (h - 1) * 0.5, one = 65536;
    int64_t dx = llround(m[0] * one), dy = llround(m[3] * one);
    uint8_t *out = to->data;
    for (int y = 0; y < h; y++) {
        double ry = y - cy;
        int64_t sx = llround((m[0] * -cx + m[1] * ry + m[2] + cx) * one);
        int64_t sy = llround((m[3] * -cx + m[4] * ry + m[5] + cy) * one);
        for (int x = 0; x < w; x++, sx += dx, sy += dy, out += ch) {
            int64_t ix = sx >> 16, iy = sy >> 16;
            if (ix < 0 || iy < 0 || ix >= w || iy >= h) {
                memcpy(out, fill, (size_t)ch);
                continue;
            }
            int64_t right = ix + 1 < w, below = iy + 1 < h;
            uint32_t fx = (uint32_t)(sx >> 8) & 255, fy = (uint32_t)(sy >> 8) & 255;
            const uint8_t *p = from->data + (iy * w + ix) * ch, *q = p + below * w * ch;
            for (int c = 0; c < ch; c++) {
                uint32_t a = p[c] * (256 - fx) + p[right * ch + c] * fx,
                         b = q[c] * (256 - fx) + q[right * ch + c] * fx;
                out[c] = (uint8_t)((a * (256 - fy) + b * fy + 32768) >> 16);
            }
        }
    }
}

/* ---- blends ---- */

void fv__image_brightness(fv_image *im, double factor)
{
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = clip(i * factor);
    apply_all(im, table);
}

/* Around the mean grey of the whole image, rounded to a level as Pillow has it. */
void fv__image_contrast(fv_image *im, double factor)
{
    uint8_t table[256];
    uint64_t sum = 0;
    size_t n = pixels(im);
    for (size_t i = 0; i < n; i++)
        sum += grey_of(im->data + i * (size_t)im->channels, im->channels);
    double mean = floor((double)sum / (double)n + 0.5);
    for (int i = 0; i < 256; i++) table[i] = clip(mean + (i - mean) * factor);
    apply_all(im, table);
}

void fv__image_saturation(fv_image *im, double factor)
{
    if (im->channels != 3) return;
    size_t n = pixels(im);
    for (size_t i = 0; i < n; i++) {
        uint8_t *p = im->data + 3 * i;
        int grey = grey_of(p, 3);
        for (int c = 0; c < 3; c++) p[c] = clip(grey + (p[c] - grey) * factor);
    }
}

/* The smoothed copy has 1/13 of each neighbour and 5/13 of the pixel itself; the edge stays. */
void fv__image_sharpness(fv_image *im, fv_image *other, double factor)
{
    int w = im->width, h = im->height, ch = im->channels, row = w * ch;
    memcpy(other->data, im->data, pixels(im) * (size_t)ch);
    for (int y = 1; y + 1 < h; y++)
        for (int x = ch; x + ch < row; x++) {
            const uint8_t *p = other->data + (size_t)y * (size_t)row + x;
            int sum = p[-row - ch] + p[-row] + p[-row + ch] + p[-ch] + 5 * p[0] + p[ch] +
                      p[row - ch] + p[row] + p[row + ch];
            double smooth = floor(sum / 13.0 + 0.5);
            im->data[(size_t)y * (size_t)row + (size_t)x] = clip(smooth + (p[0] - smooth) * factor);
        }
}

/* ---- hue ---- */

/* Hue in sixths of the circle, saturation and value in 0..1. */
static void to_hsv(const uint8_t *p, double hsv[3])
{
    double r = p[0] / 255., g = p[1] / 255., b = p[2] / 255.;
    double most = fmax(r, fmax(g, b)), least = fmin(r, fmin(g, b)), d = most - least;
    hsv[0] = 0;
    hsv[1] = most > 0 ? d / most : 0;
    hsv[2] = most;
    if (d <= 0) return;
    if (most == r)
        hsv[0] = (g - b) / d;
    else
        hsv[0] = most == g ? 2 + (b - r) / d : 4 + (r - g) / d;
}

/* HSV to RGB in one formula: with k = (n + h) mod 6, f(n) = v - v s max(0, min(k, 4 - k, 1)), n
 * being 5 for red, 3 for green and 1 for blue. */
static double channel_of(const double hsv[3], double n)
{
    double k = n + hsv[0] + 12;
    while (k >= 6) k -= 6; /* exact, as fmod is, which takes most of the time of a turn */
    return hsv[2] * (1 - hsv[1] * fmax(0, fmin(fmin(k, 4 - k), 1)));
}

/* turns: 1 is once around the colour circle; h counts sixths of it. */
void fv__image_hue(fv_image *im, double turns)
{
    if (im->channels != 3) return;
    size_t n = pixels(im);
    for (size_t i = 0; i < n; i++) {
        uint8_t *p = im->data + 3 * i;
        double hsv[3];
        to_hsv(p, hsv);
        hsv[0] += 6 * turns;
        p[0] = clip(255 * channel_of(hsv, 5));
        p[1] = clip(255 * channel_of(hsv, 3));
        p[2] = clip(255 * channel_of(hsv, 1));
    }
}

/* ---- levels ---- */

/* Keeps the highest bits of a level. */
void fv__image_posterize(fv_image *im, int bits)
{
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i & ~((1 << (8 - bits)) - 1));
    apply_all(im, table);
}

/* Inverts what is at least as bright as the threshold. */
void fv__image_solarize(fv_image *im, int threshold)
{
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < threshold ? i : 255 - i);
    apply_all(im, table);
}

static void histogram(const fv_image *im, int c, int64_t count[256])
{
    size_t ch = (size_t)im->channels, n = pixels(im) * ch;
    memset(count, 0, 256 * sizeof *count);
    for (size_t i = (size_t)c; i < n; i += ch) count[im->data[i]]++;
}

/* Each channel by itself is stretched to 0..255; one of a single level stays. */
void fv__image_autocontrast(fv_image *im)
{
    int64_t count[256];
    for (int c = 0; c < im->channels; c++) {
        uint8_t table[256];
        int low = 0, high = 255;
        histogram(im, c, count);
        while (low < 255 && !count[low]) low++;
        while (high > 0 && !count[high]) high--;
        if (high <= low) continue;
        for (int i = 0; i < 256; i++) table[i] = clip(floor((i - low) * 255.0 / (high - low)));
        apply(im, c, table);
    }
}

/* Level i goes to the share of pixels below it, in steps of which the brightest level has none. */
void fv__image_equalize(fv_image *im)
{
    int64_t count[256];
    for (int c = 0; c < im->channels; c++) {
        uint8_t table[256];
        int last = 255;
        histogram(im, c, count);
        while (last > 0 && !count[last]) last--;
        int64_t step = ((int64_t)pixels(im) - count[last]) / 255, sum = step / 2;
        if (!step) continue;
        for (int i = 0; i < 256; i++) {
            table[i] = clip((double)(sum / step));
            sum += count[i];
        }
        apply(im, c, table);
    }
}
