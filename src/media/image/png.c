/* png.c - PNG files by libpng, in and out.
 *
 * As in jpeg.c, the library's errors jump back to a function that holds no resources. */
#ifdef HAVE_IMAGE
#include <setjmp.h>
#include <stdio.h>

#include <png.h>

#include "media/image/decode.h"

enum {
    DEFLATE_RATIO = 1032, /* of the best case */
    MOST_SIDE = 1 << 20,  /* pixels */
    SIGNATURE = 8,        /* bytes before the first chunk */
    CHUNK_FRAME = 12,     /* bytes of a chunk besides its content */
};

typedef struct work {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    char why[200];
    fv__coded *file; /* that is read */
    size_t at;
    fv_buf *to; /* what is written */
    png_bytepp rows;
    size_t rows_bytes;
    fv_status st; /* of our own checks */
} work;

static void on_error(png_structp p, png_const_charp why)
{
    work *w = png_get_error_ptr(p);
    snprintf(w->why, sizeof w->why, "%s", why);
    longjmp(w->failed, 1);
}

static void on_warning(png_structp p, png_const_charp why) { (void)p, (void)why; }

/* ---- reading ---- */

static void read_bytes(png_structp p, png_bytep out, size_t n)
{
    work *w = png_get_io_ptr(p);
    if (n > w->file->n - w->at) png_error(p, "the file ends early");
    memcpy(out, w->file->bytes + w->at, n);
    w->at += n;
}

/* The steps that lead to 8 bits of grey, RGB or RGBA; returns the channels. */
static int set_transforms(png_structp p, png_infop info)
{
    int type = png_get_color_type(p, info), depth = png_get_bit_depth(p, info);
    bool transparent = png_get_valid(p, info, PNG_INFO_tRNS) != 0;
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(p);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(p);
    if (transparent) png_set_tRNS_to_alpha(p);
    if (depth == 16) png_set_strip_16(p);
    bool alpha = transparent || (type & PNG_COLOR_MASK_ALPHA);
    if (alpha && !(type & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(p);
    if (alpha) return 4;
    return type & PNG_COLOR_MASK_COLOR ? 3 : 1;
}

/* A pixel needs `bits` of what deflate unpacks, so a byte holds at most so many. */
static int64_t pixels_per_byte(png_structp p, png_infop info)
{
    int bits = png_get_bit_depth(p, info) * png_get_channels(p, info);
    return DEFLATE_RATIO * 8 / (bits > 0 ? bits : 1) + 1;
}

/* Of the chunks that an image can do without libpng reads transparency alone: comments, profiles
 * and the like are skipped and take no memory.  It reserves what the length of such a chunk says,
 * up to 2 GiB, and a limit to that is a warning only. */
static void set_limits(png_structp p)
{
    png_set_user_limits(p, MOST_SIDE, MOST_SIDE);
    png_set_keep_unknown_chunks(p, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
}

/* EXIF's orientation: the file is in memory, so its chunks (length, four letters, bytes, check sum)
 * can be gone through without libpng.  0: there is none. */
static int orientation_of(const fv__coded *f)
{
    for (size_t at = SIGNATURE, len; at + CHUNK_FRAME <= f->n; at += CHUNK_FRAME + len) {
        const uint8_t *chunk = f->bytes + at;
        len = png_get_uint_32(chunk);
        if (len > f->n - at - CHUNK_FRAME) return 0;
        if (!memcmp(chunk + 4, "eXIf", 4)) return fv__exif_orientation(chunk + 8, len);
    }
    return 0;
}

/* libpng's limits are set before the header is read; rows are decoded straight into the image. */
static bool read_pixels(work *w)
{
    if (setjmp(w->failed)) return false;
    png_structp p = w->png;
    fv__coded *f = w->file;
    png_set_read_fn(p, w, read_bytes);
    set_limits(p);
    png_read_info(p, w->info);
    int channels = set_transforms(p, w->info);
    png_set_interlace_handling(p);
    w->st = fv__coded_alloc(f, png_get_image_width(p, w->info), png_get_image_height(p, w->info),
                            channels, pixels_per_byte(p, w->info));
    if (w->st) return false;
    png_read_update_info(p, w->info);
    size_t row = (size_t)f->out->width * (size_t)channels, height = (size_t)f->out->height;
    if (png_get_rowbytes(p, w->info) != row) png_error(p, "rows of another length than the header");
    w->rows_bytes = height * sizeof *w->rows;
    if (!(w->rows = fv__alloc_raw(f->env, w->rows_bytes))) png_error(p, "out of memory");
    for (size_t y = 0; y < height; y++) w->rows[y] = f->out->data + y * row;
    png_read_image(p, w->rows);
    png_read_end(p, w->info);
    f->orientation = orientation_of(f);
    return true;
}

fv_status fv__png_decode(fv__coded *f)
{
    work w = {.file = f};
    w.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &w, on_error, on_warning);
    w.info = w.png ? png_create_info_struct(w.png) : NULL;
    fv_status st = FV_OK;
    if (!w.info)
        st = fv_fail(f->e, FV_ENOMEM, "%s: out of memory", f->name);
    else if (!read_pixels(&w))
        st = w.st ? w.st : fv_fail(f->e, FV_EFORMAT, "%s: damaged PNG: %s", f->name, w.why);
    png_destroy_read_struct(&w.png, &w.info, NULL);
    fv__free(f->env, w.rows, w.rows_bytes);
    return st;
}

/* ---- writing ---- */

static void write_bytes(png_structp p, png_bytep bytes, size_t n)
{
    work *w = png_get_io_ptr(p);
    fv__buf_add(w->to, bytes, n);
    if (w->to->failed) png_error(p, "out of memory");
}

static void flush(png_structp p) { (void)p; }

static bool write_pixels(work *w, const fv_image *im)
{
    if (setjmp(w->failed)) return false;
    int type = im->channels == 1   ? PNG_COLOR_TYPE_GRAY
               : im->channels == 3 ? PNG_COLOR_TYPE_RGB
                                   : PNG_COLOR_TYPE_RGB_ALPHA;
    png_set_write_fn(w->png, w, write_bytes, flush);
    png_set_IHDR(w->png, w->info, (png_uint_32)im->width, (png_uint_32)im->height, 8, type,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(w->png, w->info);
    size_t row = (size_t)im->width * (size_t)im->channels;
    for (int y = 0; y < im->height; y++) png_write_row(w->png, im->data + (size_t)y * row);
    png_write_end(w->png, w->info);
    return true;
}

/* Encoded in memory and written whole, so that a full disk leaves no half picture. */
fv_status fv_image_save(const fv_image *im, const char *path, fv_err *e)
{
    fv_buf to = {.env = im->env};
    work w = {.to = &to};
    w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w, on_error, on_warning);
    w.info = w.png ? png_create_info_struct(w.png) : NULL;
    fv_status st = FV_OK;
    if (!w.info)
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    else if (!write_pixels(&w, im))
        st = fv_fail(e, FV_EIO, "%s: cannot be written as PNG: %s", path, w.why);
    png_destroy_write_struct(&w.png, &w.info);
    if (!st) st = fv__file_write(im->env, path, to.data, to.len, e);
    fv__buf_free(&to);
    return st;
}
#endif
