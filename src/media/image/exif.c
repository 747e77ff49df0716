/* exif.c - which way up a photograph is: EXIF's orientation, read and undone. */
#include "media/image/decode.h"

static unsigned get(const uint8_t *p, int bytes, bool big)
{
    unsigned v = 0;
    for (int i = 0; i < bytes; i++) v |= (unsigned)p[i] << 8 * (big ? bytes - 1 - i : i);
    return v;
}

/* The header names the byte order and where the first directory stands; an entry has 12 bytes: tag,
 * type (3: 16 bits), count, value. */
int fv__exif_orientation(const uint8_t *tiff, size_t n)
{
    if (n < 14 || (memcmp(tiff, "II*\0", 4) && memcmp(tiff, "MM\0*", 4))) return 0;
    bool big = *tiff == 'M';
    size_t at = get(tiff + 4, 4, big);
    if (at > n - 2) return 0;
    size_t entries = get(tiff + at, 2, big);
    for (at += 2; entries-- && at + 12 <= n; at += 12) {
        const uint8_t *entry = tiff + at;
        if (get(entry, 2, big) != 0x0112 || get(entry + 2, 2, big) != 3) continue;
        unsigned value = get(entry + 8, 2, big);
        return value >= 1 && value <= 8 ? (int)value : 0;
    }
    return 0;
}

/* Pixel (x,y) of the upright image is pixel (sx,sy) of the stored one.  2 mirrored; 3 turned by
 * 180; 4 upside down; 5 transposed; 6 turned by 90 clockwise to be upright; 7 transposed along the
 * other diagonal; 8 turned by 270. */
static void source_of(int orientation, int x, int y, int w, int h, int *sx, int *sy)
{
    bool swapped = orientation >= 5;
    int a = swapped ? y : x, b = swapped ? x : y;
    bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    *sx = flip_x ? w - 1 - a : a;
    *sy = flip_y ? h - 1 - b : b;
}

/* Orientations 2 to 8 are the mirror images and quarter turns of a rectangle; from 5 on width and
 * height are exchanged. */
fv_status fv__exif_apply(fv_image *im, int orientation, fv_err *e)
{
    if (orientation < 2) return FV_OK;
    int w = im->width, h = im->height;
    bool swapped = orientation >= 5;
    size_t ch = (size_t)im->channels;
    fv_image up = {0};
    fv_status st = fv_image_new(&up, im->env, swapped ? h : w, swapped ? w : h, im->channels, e);
    if (st) return st;
    for (int y = 0; y < up.height; y++)
        for (int x = 0; x < up.width; x++) {
            int sx, sy;
            source_of(orientation, x, y, w, h, &sx, &sy);
            memcpy(up.data + ((size_t)y * (size_t)up.width + (size_t)x) * ch,
                   im->data + ((size_t)sy * (size_t)w + (size_t)sx) * ch, ch);
        }
    fv_image_free(im);
    *im = up;
    return FV_OK;
}
