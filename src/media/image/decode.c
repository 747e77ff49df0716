/* decode.c - PNG and JPEG files: told apart by their first bytes, limited, turned upright.
 *
 * No header is believed.  An image has at most FV_IMAGE_MOST_PIXELS, and no more than its bytes can
 * hold at the best compression the format knows, so that a file of a hundred bytes cannot ask for
 * gigabytes; the decoders set limits to what the libraries allocate themselves. */
#include "media/image/decode.h"

#define MOST_BYTES ((size_t)1 << 30) /* of a file */

/* Before a pixel is decoded: a header of a few bytes may claim any size (a decompression bomb), so
 * sizes are held against a limit and against what that many bytes can hold at best. */
fv_status fv__coded_alloc(const fv__coded *f, int64_t width, int64_t height, int channels,
                          int64_t most_pixels_per_byte)
{
    int64_t pixels;
    if (width < 1 || height < 1 || width > FV_IMAGE_MOST_PIXELS || height > FV_IMAGE_MOST_PIXELS ||
        !fv__mul_i64(&pixels, width, height) || pixels > FV_IMAGE_MOST_PIXELS)
        return fv_fail(f->e, FV_EFORMAT, "%s: %lld x %lld pixels: at most %lld are decoded",
                       f->name, (long long)width, (long long)height,
                       (long long)FV_IMAGE_MOST_PIXELS);
    if (pixels / most_pixels_per_byte > (int64_t)f->n)
        return fv_fail(f->e, FV_EFORMAT, "%s: %zu bytes cannot hold %lld x %lld pixels", f->name,
                       f->n, (long long)width, (long long)height);
    return fv_image_new(f->out, f->env, (int)width, (int)height, channels, f->e);
}

#ifndef HAVE_IMAGE
fv_status fv__png_decode(fv__coded *f)
{
    return fv_fail(f->e, FV_EMISSING, "%s: this build reads no images (FOVEA_IMAGE=OFF)", f->name);
}

fv_status fv__jpeg_decode(fv__coded *f) { return fv__png_decode(f); }

fv_status fv_image_save(const fv_image *im, const char *path, fv_err *e)
{
    (void)im;
    return fv_fail(e, FV_EMISSING, "%s: this build writes no images (FOVEA_IMAGE=OFF)", path);
}
#endif

/* By the first bytes, never by the name; turned upright as EXIF says, as Pillow's exif_transpose
 * does. */
fv_status fv_image_decode(fv_image *out, const fv_env *env, const void *bytes, size_t n,
                          const char *name, fv_err *e)
{
    static const uint8_t png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'},
                         jpeg[3] = {0xff, 0xd8, 0xff};
    fv__coded f = {.env = env, .bytes = bytes, .n = n, .name = name, .out = out, .e = e};
    fv_status st;
    if (n >= sizeof png && !memcmp(bytes, png, sizeof png))
        st = fv__png_decode(&f);
    else if (n >= sizeof jpeg && !memcmp(bytes, jpeg, sizeof jpeg))
        st = fv__jpeg_decode(&f);
    else
        return fv_fail(e, FV_EFORMAT, "%s: neither a PNG nor a JPEG file", name);
    return st ? st : fv__exif_apply(out, f.orientation, e);
}

fv_status fv_image_open(fv_image *out, const fv_env *env, const char *path, fv_err *e)
{
    fv_file f;
    fv_status st = fv__file_read(&f, env, path, MOST_BYTES, e);
    if (st) return st;
    st = fv_image_decode(out, env, f.data, f.size, path, e);
    fv__file_close(&f);
    return st;
}
