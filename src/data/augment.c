/* augment.c - images changed at random while a model is trained on them.
 *
 * All random numbers of an example come from its own dice, in a fixed order: what happens to it
 * depends on the seed, the epoch and its number, not on its batch or on threads.  Only mixing looks
 * at two images; it is done when a batch is together, by dice of the pair's first. */
#include "data/augment.h"

#include <math.h>
#include <string.h>

/* ---- geometry ---- */

/* An operation writes `other`; what was worked on becomes scratch of the next, so two images serve
 * any number of operations. */
static void exchange_images(fv_image *im, fv_image *other)
{
    fv_image t = *im;
    *im = *other;
    *other = t;
}

static fv_status affine(fv_image *im, fv_image *other, const double m[6], const uint8_t fill[3],
                        fv_err *e)
{
    fv_status st = fv_image_new(other, im->env, im->width, im->height, im->channels, e);
    if (st) return st;
    fv__image_affine(other, im, m, fill);
    exchange_images(im, other);
    return FV_OK;
}

/* By whole pixels, as a crop of the padded image. */
static fv_status shift(fv_image *im, fv_image *other, int most, const uint8_t fill[3], fv__dice *d,
                       fv_err *e)
{
    int dx = fv__dice_below(d, 2 * most + 1) - most, dy = fv__dice_below(d, 2 * most + 1) - most;
    if (!dx && !dy) return FV_OK;
    fv_status st = fv_image_new(other, im->env, im->width, im->height, im->channels, e);
    if (st) return st;
    size_t ch = (size_t)im->channels;
    for (int y = 0; y < im->height; y++)
        for (int x = 0; x < im->width; x++) {
            int sx = x + dx, sy = y + dy;
            bool inside = sx >= 0 && sy >= 0 && sx < im->width && sy < im->height;
            const uint8_t *from = inside ? im->data + (size_t)(sy * im->width + sx) * ch : fill;
            memcpy(other->data + (size_t)(y * im->width + x) * ch, from, ch);
        }
    exchange_images(im, other);
    return FV_OK;
}

/* A part of the image, stretched over all of it: each side between 1 - zoom and all, anywhere. */
static fv_status zoom(fv_image *im, fv_image *other, double most, const uint8_t fill[3],
                      fv__dice *d, fv_err *e)
{
    double w = 1 - fv__dice_unit(d) * most, h = 1 - fv__dice_unit(d) * most;
    double x = fv__dice_signed(d, (1 - w) / 2) * (im->width - 1),
           y = fv__dice_signed(d, (1 - h) / 2) * (im->height - 1);
    return affine(im, other, (const double[6]){w, 0, x, 0, h, y}, fill, e);
}

/* ---- RandAugment (Cubuk et al. 2020), with the ranges of torchvision ---- */

enum {
    IDENTITY,
    SHEAR_X,
    SHEAR_Y,
    TRANSLATE_X,
    TRANSLATE_Y,
    ROTATE,
    BRIGHTNESS,
    SATURATION,
    CONTRAST,
    SHARPNESS,
    POSTERIZE,
    SOLARIZE,
    AUTOCONTRAST,
    EQUALIZE,
    OPERATIONS
};

/* m: the strength in 0..1; sign: 1 or -1. */
static fv_status geometric(int op, fv_image *im, fv_image *other, double m, int sign,
                           const uint8_t fill[3], fv_err *e)
{
    double t[6] = {1, 0, 0, 0, 1, 0}, angle = sign * m * M_PI / 6;
    if (op == SHEAR_X) t[1] = sign * m * 0.3;
    if (op == SHEAR_Y) t[3] = sign * m * 0.3;
    if (op == TRANSLATE_X) t[2] = sign * floor(m * 150 / 331 * im->width);
    if (op == TRANSLATE_Y) t[5] = sign * floor(m * 150 / 331 * im->height);
    if (op == ROTATE) {
        t[0] = t[4] = cos(angle);
        t[1] = sin(angle);
        t[3] = -sin(angle);
    }
    return affine(im, other, t, fill, e);
}

/* RandAugment's operations (Cubuk et al. 2020) with torchvision's ranges: the magnitude is 0 to 30,
 * m its share of the greatest. The sign is drawn for every operation, also where it has none, so
 * that a sequence of draws does not depend on which operations came before. */
static fv_status operate(int op, fv_image *im, fv_image *other, int magnitude,
                         const uint8_t fill[3], fv__dice *d, fv_err *e)
{
    double m = magnitude / 30.;
    int sign = fv__dice_word(d) & 1 ? 1 : -1;
    double factor = 1 + sign * m * 0.9;
    if (op >= SHEAR_X && op <= ROTATE) return geometric(op, im, other, m, sign, fill, e);
    fv_status st = FV_OK;
    switch (op) {
    case BRIGHTNESS: fv__image_brightness(im, factor); break;
    case SATURATION: fv__image_saturation(im, factor); break;
    case CONTRAST: fv__image_contrast(im, factor); break;
    case SHARPNESS:
        st = fv_image_new(other, im->env, im->width, im->height, im->channels, e);
        if (!st) fv__image_sharpness(im, other, factor);
        break;
    case POSTERIZE: fv__image_posterize(im, 8 - (int)floor(magnitude / 7.5 + 0.5)); break;
    case SOLARIZE: fv__image_solarize(im, 256 - (int)(m * 256)); break;
    case AUTOCONTRAST: fv__image_autocontrast(im); break;
    case EQUALIZE: fv__image_equalize(im); break;
    default: break;
    }
    return st;
}

/* ---- colour jitter, erasing ---- */

/* In a fixed order; torchvision draws the order too, which changes little and would cost the
 * repeatability of a single factor. */
static void jitter(const fv__augment *a, fv_image *im, fv__dice *d)
{
    if (a->brightness > 0) fv__image_brightness(im, 1 + fv__dice_signed(d, (double)a->brightness));
    if (a->contrast > 0) fv__image_contrast(im, 1 + fv__dice_signed(d, (double)a->contrast));
    if (a->saturation > 0) fv__image_saturation(im, 1 + fv__dice_signed(d, (double)a->saturation));
    if (a->hue > 0) fv__image_hue(im, fv__dice_signed(d, (double)a->hue));
}

/* A rectangle of 2 to 33 % of the image, its sides between 0.3 and 1 / 0.3 of one another (Zhong et
 * al. 2020); after ten that do not fit, none. */
static void erase(fv_image *im, const uint8_t fill[3], fv__dice *d)
{
    double area = (double)im->width * im->height;
    for (int i = 0; i < 10; i++) {
        double part = (0.02 + 0.31 * fv__dice_unit(d)) * area,
               ratio = exp(fv__dice_signed(d, log(1 / 0.3)));
        int h = (int)(sqrt(part * ratio) + 0.5), w = (int)(sqrt(part / ratio) + 0.5);
        if (h < 1 || w < 1 || h > im->height || w > im->width) continue;
        int y0 = fv__dice_below(d, im->height - h + 1), x0 = fv__dice_below(d, im->width - w + 1);
        for (int y = y0; y < y0 + h; y++)
            for (int x = x0; x < x0 + w; x++)
                memcpy(im->data + (size_t)(y * im->width + x) * (size_t)im->channels, fill,
                       (size_t)im->channels);
        return;
    }
}

/* im is changed in place, other is scratch that is kept between calls. Erasing comes last: colours
 * of the patch are the processor's mean and must not be jittered. */
fv_status fv__augment_image(const fv__augment *a, fv_image *im, fv_image *other,
                            const uint8_t fill[3], fv__dice *d, fv_err *e)
{
    fv_status st = FV_OK;
    if (a->flip && (fv__dice_word(d) & 1)) fv_image_mirror(im);
    if (a->shift) st = shift(im, other, a->shift, fill, d, e);
    if (!st && a->zoom > 0) st = zoom(im, other, (double)a->zoom, fill, d, e);
    for (int i = 0; !st && i < a->rand_augment; i++)
        st = operate(fv__dice_below(d, OPERATIONS), im, other, a->magnitude, fill, d, e);
    if (st) return st;
    jitter(a, im, d);
    if (a->erase > 0 && fv__dice_unit(d) < (double)a->erase) erase(im, fill, d);
    return FV_OK;
}

/* ---- pairs changed alike ---- */

/* All numbers are drawn whatever happens, so that one change does not move the others. */
fv__joint fv__joint_of(double share, int width, int height, fv__dice *d)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    bool cut = fv__dice_unit(d) < share, colours = fv__dice_unit(d) < share,
         turn = fv__dice_unit(d) < share;
    fv__joint j = {.width = width / 4 + fv__dice_below(d, width / 2 + 1),
                   .height = height / 4 + fv__dice_below(d, height / 2 + 1)};
    j.x = fv__dice_below(d, width - j.width + 1);
    j.y = fv__dice_below(d, height - j.height + 1);
    const int *order = orders[colours ? fv__dice_below(d, 6) : 0];
    memcpy(j.order, order, sizeof j.order);
    int quarters = fv__dice_below(d, 4);
    bool mirror = fv__dice_word(d) & 1;
    if (!cut) j.width = 0;
    if (turn) j.turns = width == height ? quarters : quarters / 2 * 2;
    j.mirror = turn && mirror;
    return j;
}

static void paste(fv_image *im, const fv_image *part, const fv__joint *j)
{
    size_t ch = (size_t)im->channels, row = (size_t)im->width * ch;
    for (int y = j->y; y < j->y + j->height; y++) {
        size_t at = (size_t)y * row + (size_t)j->x * ch;
        memcpy(im->data + at, part->data + at, (size_t)j->width * ch);
    }
}

static void reorder(fv_image *im, const int order[3])
{
    size_t n = (size_t)im->width * (size_t)im->height;
    for (size_t i = 0; im->channels == 3 && i < n; i++) {
        uint8_t *p = im->data + 3 * i, was[3] = {p[0], p[1], p[2]};
        for (int c = 0; c < 3; c++) p[c] = was[order[c]];
    }
}

fv_status fv__joint_apply(const fv__joint *j, fv_image *im, fv_image *other, const fv_image *part,
                          fv_err *e)
{
    /* where the pixel to the right, and the one below, come from */
    static const double to[4][4] = {{1, 0, 0, 1}, {0, -1, 1, 0}, {-1, 0, 0, -1}, {0, 1, -1, 0}};
    static const uint8_t none[3] = {0};
    const double *t = to[j->turns];
    if (part && j->width) paste(im, part, j);
    reorder(im, j->order);
    if (j->mirror) fv_image_mirror(im);
    if (!j->turns) return FV_OK;
    return affine(im, other, (const double[6]){t[0], t[1], 0, t[2], t[3], 0}, none, e);
}

/* ---- mixing ---- */

/* Box and Muller's; u is in (0,1], so the logarithm is finite. */
static double normal(fv__dice *d)
{
    double u = 1 - fv__dice_unit(d), v = fv__dice_unit(d);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Marsaglia and Tsang's method; below 1 by way of alpha + 1. */
static double gamma_of(double alpha, fv__dice *d)
{
    double boost = 1;
    if (alpha < 1) {
        boost = pow(1 - fv__dice_unit(d), 1 / alpha);
        alpha += 1;
    }
    double k = alpha - 1 / 3., c = 1 / sqrt(9 * k);
    for (int i = 0; i < 64; i++) {
        double x = normal(d), v = 1 + c * x, u = 1 - fv__dice_unit(d);
        v = v * v * v;
        if (v > 0 && log(u) < 0.5 * x * x + k - k * v + k * log(v)) return boost * k * v;
    }
    return boost * k;
}

/* Beta(alpha,alpha) = A / (A + B) of two Gamma(alpha); where both underflow, as they do for a tiny
 * alpha, a half. */
static double beta_of(double alpha, fv__dice *d)
{
    double a = gamma_of(alpha, d), b = gamma_of(alpha, d);
    return a + b > 0 ? a / (a + b) : 0.5;
}

/* p and q both keep `share` of themselves. */
static void blend(float *p, float *q, int64_t n, float share)
{
    for (int64_t i = 0; i < n; i++) {
        float a = p[i], b = q[i];
        p[i] = share * a + (1 - share) * b;
        q[i] = share * b + (1 - share) * a;
    }
}

/* p and q exchange a rectangle of about 1 - share of their area; returns what is really left. */
static double exchange(float *p, float *q, int64_t channels, int64_t h, int64_t w, double share,
                       fv__dice *d)
{
    double side = sqrt(1 - share);
    int64_t rh = (int64_t)((double)h * side), rw = (int64_t)((double)w * side);
    int64_t cy = fv__dice_below(d, (int)h), cx = fv__dice_below(d, (int)w);
    int64_t y0 = cy - rh / 2, y1 = y0 + rh, x0 = cx - rw / 2, x1 = x0 + rw;
    if (y0 < 0) y0 = 0;
    if (x0 < 0) x0 = 0;
    if (y1 > h) y1 = h;
    if (x1 > w) x1 = w;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = y0; y < y1; y++)
            for (int64_t x = x0; x < x1; x++) {
                int64_t i = (c * h + y) * w + x;
                float t = p[i];
                p[i] = q[i];
                q[i] = t;
            }
    return 1 - (double)((y1 - y0) * (x1 - x0)) / (double)(h * w);
}

/* Image i is mixed with image n - 1 - i, both ways, so a batch holds every image once in each role;
 * share (n) is how much of a row is its own, and the loss weighs the labels of both by it. The
 * middle of an odd batch stays as it is. */
void fv__augment_mix(const fv__augment *a, float *x, float *share, const int32_t *rows, int64_t n,
                     int64_t channels, int64_t height, int64_t width, fv_data_rng rng)
{
    int64_t size = channels * height * width;
    for (int64_t i = 0; i < n; i++) share[i] = 1;
    for (int64_t i = 0; i < n / 2; i++) {
        fv__dice d = fv__dice_of(rng, FV__DICE_MIX, rows[i]);
        float *p = x + i * size, *q = x + (n - 1 - i) * size;
        bool cut = a->cutmix > 0 && (!(a->mixup > 0) || (fv__dice_word(&d) & 1));
        double left = beta_of((double)(cut ? a->cutmix : a->mixup), &d);
        if (cut)
            left = exchange(p, q, channels, height, width, left, &d);
        else
            blend(p, q, size, (float)left);
        share[i] = share[n - 1 - i] = (float)left;
    }
}
