/* image.c - pictures in memory: room for them, channels, crops, mirrors. */
#include "fovea/author/image.h"

#include "base/base.h"

/* Memory that suffices is used again, so that a loop over images allocates for the largest alone.
 */
fv_status fv_image_new(fv_image *out, const fv_env *env, int width, int height, int channels,
                       fv_err *e)
{
    if (width < 1 || height < 1 || (int64_t)width * height > FV_IMAGE_MOST_PIXELS)
        return fv_fail(e, FV_EARG, "an image of %d x %d pixels: 1 to %lld are possible", width,
                       height, (long long)FV_IMAGE_MOST_PIXELS);
    size_t bytes = (size_t)width * (size_t)height * (size_t)channels;
    if (bytes > out->bytes) {
        uint8_t *data = fv__alloc_raw(env, bytes);
        if (!data)
            return fv_fail(e, FV_ENOMEM, "out of memory for an image of %d x %d pixels", width,
                           height);
        fv_image_free(out);
        *out = (fv_image){.env = env, .data = data, .bytes = bytes};
    }
    out->width = width;
    out->height = height;
    out->channels = channels;
    return FV_OK;
}

void fv_image_free(fv_image *im)
{
    fv__free(im->env, im->data, im->bytes);
    *im = (fv_image){0};
}

/* ---- channels ---- */

/* Weights of 16 bits, as Pillow has them. */
static uint8_t luma(const uint8_t *p)
{
    return (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
}

/* From the first pixel on where pixels shrink; the caller has made room where they grow and goes
 * from the last. */
static void convert_pixel(uint8_t *to, int n, const uint8_t *from, int had)
{
    uint8_t p[4] = {from[0], from[had > 1 ? 1 : 0], from[had > 1 ? 2 : 0], 255};
    if (had == 4) p[3] = from[3];
    if (n == 1)
        to[0] = had == 1 ? p[0] : luma(p);
    else
        memcpy(to, p, (size_t)n);
}

/* In place where pixels become smaller: the target never overtakes the source. */
fv_status fv_image_convert(fv_image *im, int channels, fv_err *e)
{
    int had = im->channels;
    size_t n = (size_t)im->width * (size_t)im->height;
    if (had == channels) return FV_OK;
    if (channels != 1 && channels != 3 && channels != 4)
        return fv_fail(e, FV_EARG, "an image of %d channels: 1, 3 and 4 are possible", channels);
    if (channels < had) {
        for (size_t i = 0; i < n; i++)
            convert_pixel(im->data + i * (size_t)channels, channels, im->data + i * (size_t)had,
                          had);
        im->channels = channels;
        return FV_OK;
    }
    fv_image wider = {0};
    fv_status st = fv_image_new(&wider, im->env, im->width, im->height, channels, e);
    if (st) return st;
    for (size_t i = 0; i < n; i++)
        convert_pixel(wider.data + i * (size_t)channels, channels, im->data + i * (size_t)had, had);
    fv_image_free(im);
    *im = wider;
    return FV_OK;
}

/* ---- geometry ---- */

/* The window may reach beyond the image; what is outside is 0, as torchvision pads. */
fv_status fv_image_crop(fv_image *out, const fv_image *in, fv_window w, fv_err *e)
{
    fv_status st = fv_image_new(out, in->env, w.width, w.height, in->channels, e);
    if (st) return st;
    /* columns of the window that the image has: [from, to) */
    int64_t from = w.x < 0 ? -(int64_t)w.x : 0, to = (int64_t)in->width - w.x;
    if (to > w.width) to = w.width;
    size_t ch = (size_t)in->channels, row = (size_t)w.width * ch;
    for (int y = 0; y < w.height; y++) {
        uint8_t *line = out->data + (size_t)y * row;
        int64_t sy = (int64_t)y + w.y;
        if (sy < 0 || sy >= in->height || to <= from) {
            memset(line, 0, row);
            continue;
        }
        const uint8_t *source = in->data + (size_t)(sy * in->width + w.x + from) * ch;
        memset(line, 0, (size_t)from * ch);
        memcpy(line + (size_t)from * ch, source, (size_t)(to - from) * ch);
        memset(line + (size_t)to * ch, 0, (size_t)(w.width - to) * ch);
    }
    return FV_OK;
}

void fv_image_mirror(fv_image *im)
{
    size_t ch = (size_t)im->channels;
    for (int y = 0; y < im->height; y++) {
        uint8_t *a = im->data + (size_t)y * (size_t)im->width * ch,
                *b = a + (size_t)(im->width - 1) * ch;
        for (; a < b; a += ch, b -= ch)
            for (size_t c = 0; c < ch; c++) {
                uint8_t t = a[c];
                a[c] = b[c];
                b[c] = t;
            }
    }
}
