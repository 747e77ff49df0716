/* jpeg.c - JPEG files by libjpeg-turbo.
 *
 * libjpeg reports errors by a function that must not return.  It jumps back to `read_pixels`, which
 * holds no resources: all of them are in the struct of the caller, who releases them either way.
 * Data that ends early is an error (the library would fill up with grey); progressive files may
 * have at most 100 scans, as each goes over all of the image again. */
#ifdef HAVE_IMAGE
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

#include "media/image/decode.h"

enum {
    MOST_SCANS = 100,
    /* a block of 64 pixels takes a bit at least; arithmetic coding could do with less, and such
     * a file is refused */
    PIXELS_PER_BYTE = 1024,
};

typedef struct reading {
    struct jpeg_error_mgr errors; /* first, so that cinfo->err is this struct */
    struct jpeg_decompress_struct cinfo;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char why[JMSG_LENGTH_MAX];
    fv__coded *file;
    fv_status st; /* of our own checks */
} reading;

/* libjpeg reports by calling this, which must not return: the only longjmp of the library, together
 * with libpng's, and neither crosses a frame of ours that owns anything. */
static void on_error(j_common_ptr c)
{
    reading *r = (reading *)(void *)c->err;
    c->err->format_message(c, r->why);
    longjmp(r->failed, 1);
}

static void on_message(j_common_ptr c, int level)
{
    if (level == -1 && c->err->msg_code == JWRN_JPEG_EOF) on_error(c);
}

/* A progressive file of thousands of empty scans would decode for hours. */
static void on_progress(j_common_ptr c)
{
    reading *r = (reading *)(void *)c->err;
    if (r->cinfo.input_scan_number <= MOST_SCANS) return;
    snprintf(r->why, sizeof r->why, "more than %d scans", MOST_SCANS);
    longjmp(r->failed, 1);
}

/* EXIF's segment is APP1 and begins with "Exif" and two zeros. */
static int orientation_of(const struct jpeg_decompress_struct *c)
{
    for (jpeg_saved_marker_ptr m = c->marker_list; m; m = m->next)
        if (m->data_length > 6 && !memcmp(m->data, "Exif\0\0", 6))
            return fv__exif_orientation(m->data + 6, m->data_length - 6);
    return 0;
}

/* The header, and room for what it says. */
static bool begin(reading *r)
{
    struct jpeg_decompress_struct *c = &r->cinfo;
    fv__coded *f = r->file;
    jpeg_mem_src(c, f->bytes, f->n);
    jpeg_save_markers(c, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(c, TRUE);
    f->orientation = orientation_of(c);
    if (c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK)
        r->st = fv_fail(f->e, FV_EFORMAT,
                        "%s: a JPEG file in CMYK, the colours of print; convert it to RGB",
                        f->name);
    else
        r->st = fv__coded_alloc(f, c->image_width, c->image_height,
                                c->jpeg_color_space == JCS_GRAYSCALE ? 1 : 3, PIXELS_PER_BYTE);
    c->out_color_space = c->jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    return !r->st;
}

/* False: our own check failed, or the library's, which says why. */
static bool read_pixels(reading *r)
{
    struct jpeg_decompress_struct *c = &r->cinfo;
    if (setjmp(r->failed)) return false;
    jpeg_create_decompress(c);
    c->progress = &r->progress;
    /* six bytes a pixel are a progressive file's coefficients */
    c->mem->max_memory_to_use = (long)FV_IMAGE_MOST_PIXELS * 8;
    if (!begin(r)) return false;
    jpeg_start_decompress(c);
    fv_image *out = r->file->out;
    size_t row = (size_t)out->width * (size_t)out->channels;
    while (c->output_scanline < c->output_height) {
        JSAMPROW rows[8];
        JDIMENSION left = c->output_height - c->output_scanline, n = left < 8 ? left : 8;
        for (JDIMENSION i = 0; i < n; i++) rows[i] = out->data + (c->output_scanline + i) * row;
        jpeg_read_scanlines(c, rows, n);
    }
    jpeg_finish_decompress(c);
    return true;
}

/* The state is on the heap, because locals that change after setjmp are undefined after longjmp. */
fv_status fv__jpeg_decode(fv__coded *f)
{
    reading *r = fv__alloc(f->env, sizeof *r);
    if (!r) return fv_fail(f->e, FV_ENOMEM, "%s: out of memory", f->name);
    r->file = f;
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->progress.progress_monitor = on_progress;
    fv_status st = FV_OK;
    if (!read_pixels(r))
        st = r->st ? r->st : fv_fail(f->e, FV_EFORMAT, "%s: damaged JPEG: %s", f->name, r->why);
    jpeg_destroy_decompress(&r->cinfo);
    fv__free(f->env, r, sizeof *r);
    return st;
}
#endif
