/* explain_image.c - an image or a sound instead of a text: its patches, or its frames, are the
 * tokens that are blanked.
 *
 * Ids are the numbers of tokens, and that of a blanked one is -1: so occlusion, curves and
 * baselines, which change ids, know nothing of images.  A blanked patch has the value 0 in every
 * channel, which is the mean of the data wherever a processor subtracts it; a blanked frame, whose
 * features have no such zero, is the mean of the sound's frames.  Erasing tokens instead
 * (ViT would take fewer) lost: the model was never trained on holes, and families with windows
 * could not follow.
 *
 * On the page the image is a BMP file inside: a format of 54 bytes and the pixels, which every
 * browser shows, where a PNG in memory would need a writer of its own. */
#include <math.h>
#include <stdio.h>

#include "explain.h"
#include "fovea/author/audio.h"
#include "fovea/author/op.h"
#include "fovea/author/processor.h"
#include "fovea/author/tensor.h"

/* ---- tokens ---- */

static fv_see_in looked_at(const fv_explainer *x)
{
    return (fv_see_in){.image = x->text, .dir = fv_dir_path(x->dir)};
}

fv_see_in fv__explain_seen(const fv_explainer *x)
{
    if (x->sees) return looked_at(x);
    return (fv_see_in){.source = x->ids, .n_source = x->now.n, .types = x->types};
}

/* Names of the tokens, and which of them are patches, as `fovea see` has them: one pass tells. */
fv_status fv__explain_open_image(fv_explainer *x, const char *path, int64_t *n, fv_err *e)
{
    fv_see *s = NULL;
    if (strlen(path) >= sizeof x->text)
        return fv_fail(e, FV_EARG, "%s: the path is too long", path);
    snprintf(x->text, sizeof x->text, "%s", path);
    fv_see_in in = looked_at(x);
    fv_status st = fv__see_image_open(&x->image, &x->env, x->model, &in, e);
    if (!st) st = fv_see_run(&s, x->dev, x->model, in, e);
    if (st) return st;
    const fv_see_axis *row = &s->map[FV_SEE_ENCODER].row;
    *n = row->n;
    x->axis = (fv_see_axis){.n = row->n, .grid = row->grid};
    bool frames = x->image->seconds <= 0 || row->grid.wide == x->image->shape.d[0];
    if (!row->grid.high || !row->text || !frames)
        st = fv_fail(e, FV_EMISSING, "%s: tokens of %s are neither patches of an image nor frames",
                     path, fv_model_head(x->model));
    if (!st) x->axis.text = fv__alloc(&x->env, (size_t)row->n * sizeof *x->axis.text);
    bool ok = st || x->axis.text;
    for (int64_t i = 0; !st && ok && i < row->n; i++)
        ok = (x->axis.text[i] = fv__strdup(&x->env, row->text[i])) != NULL;
    fv_see_free(s);
    return ok ? st : fv_fail(e, FV_ENOMEM, "explain: out of memory");
}

void fv__explain_image_tokens(fv_explainer *x, uint8_t *special)
{
    const fv_see_grid *g = &x->axis.grid;
    for (int64_t t = 0; t < x->now.n; t++) {
        x->ids[t] = (int32_t)t;
        special[t] = t < g->at || t >= g->at + g->high * g->wide;
    }
}

/* ---- a pass ---- */

/* Patch `at` of (C,H,W) to 0. */
static void blank_patch(const fv_explainer *x, float *pixels, int64_t at)
{
    const fv_see_image *im = x->image;
    const fv_see_grid *g = &x->axis.grid;
    int64_t size = im->patch, W = im->shown.width, H = im->shown.height;
    int64_t y0 = at / g->wide * size, x0 = at % g->wide * size;
    for (int64_t c = 0; c < im->channels; c++)
        for (int64_t y = y0; y < y0 + size; y++)
            memset(pixels + (c * H + y) * W + x0, 0, (size_t)size * sizeof *pixels);
}

/* Frame `at` of (T,features) to the mean of all. */
static void blank_frame(const fv_see_image *im, float *frames, int64_t at)
{
    int64_t T = im->shape.d[0], wide = im->shape.d[1];
    for (int64_t k = 0; k < wide; k++) {
        double sum = 0;
        for (int64_t t = 0; t < T; t++) sum += (double)im->pixels[t * wide + k];
        frames[at * wide + k] = (float)(sum / (double)T);
    }
}

/* pixel_values (rows,C,H,W), or the frames (rows,T,features) of a sound: what is at hand with the
 * patches blanked that ids (rows,n) say. */
void fv__explain_put_input(fv_explainer *x, const int32_t *ids, int64_t rows, fv_items *in)
{
    const fv_see_image *im = x->image;
    const fv_see_grid *g = &x->axis.grid;
    int64_t n = x->now.n, each = im->seconds > 0 ? im->shape.d[0] * im->shape.d[1]
                                                 : (int64_t)(im->bytes / sizeof(float));
    size_t bytes = (size_t)(rows * each) * sizeof(float);
    float *all = fv__alloc(&x->env, bytes);
    bool sound = im->seconds > 0;
    if (!all) {
        fv_raise(x->ctx, FV_ENOMEM, "explain: out of memory");
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        float *row = all + r * each;
        memcpy(row, im->pixels, (size_t)each * sizeof *row);
        for (int64_t i = 0; i < g->high * g->wide; i++) {
            if (ids[r * n + g->at + i] != x->blank) continue;
            if (sound)
                blank_frame(im, row, i);
            else
                blank_patch(x, row, i);
        }
    }
    fv_shape shape = sound ? FV_SHAPE(rows, im->shape.d[0], im->shape.d[1])
                           : FV_SHAPE(rows, im->channels, im->shown.height, im->shown.width);
    fv_items_put(in, sound ? fv_processor_sound_input(im->processor) : "pixel_values",
                 fv_floats(x->ctx, all, shape));
    fv__free(&x->env, all, bytes);
}

/* ---- the page ---- */

static void put_base64(fv_buf *b, const uint8_t *s, int64_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int64_t i = 0; i < n; i += 3) {
        int64_t left = n - i;
        unsigned v = (unsigned)s[i] << 16;
        if (left > 1) v |= (unsigned)s[i + 1] << 8;
        if (left > 2) v |= s[i + 2];
        char out[4] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63]};
        if (left < 3) out[3] = '=';
        if (left < 2) out[2] = '=';
        fv__buf_add(b, out, 4);
    }
}

static void put_little(uint8_t *out, uint32_t x)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(x >> (8 * i));
}

/* 24 bits a pixel, blue first, the lowest row first, rows filled up to a multiple of four bytes. */
static void put_bmp(const fv_explainer *x, fv_buf *b)
{
    const fv_image *im = &x->image->shown;
    int64_t row = (3 * (int64_t)im->width + 3) / 4 * 4, size = 54 + row * im->height;
    uint8_t *file = fv__alloc(&x->env, (size_t)size);
    if (!file) {
        b->failed = true;
        return;
    }
    memset(file, 0, (size_t)size);
    file[0] = 'B', file[1] = 'M';
    put_little(file + 2, (uint32_t)size);
    put_little(file + 10, 54); /* where the pixels begin */
    put_little(file + 14, 40); /* bytes of the header that follows */
    put_little(file + 18, (uint32_t)im->width);
    put_little(file + 22, (uint32_t)im->height);
    file[26] = 1, file[28] = 24; /* planes, bits */
    for (int64_t y = 0; y < im->height; y++)
        for (int64_t i = 0; i < im->width; i++)
            for (int k = 0; k < 3; k++)
                file[54 + (im->height - 1 - y) * row + 3 * i + k] =
                    im->data[(y * im->width + i) * 3 + 2 - k];
    put_base64(b, file, size);
    fv__free(&x->env, file, (size_t)size);
}

/* A sound is a strip, an image a square. */
enum { HEIGHT = 200, STRIP = 640 };
static int width_of(const fv_explainer *x) { return x->image->seconds > 0 ? STRIP : HEIGHT; }

/* The image once for all methods, and over it the patches in the colours of one. */
void fv__explain_put_image(const fv_explainer *x, fv_buf *b)
{
    fv__buf_fmt(b,
                "<svg width=0 height=0 style=\"position:absolute\"><defs>"
                "<image id=seen width=%d height=%d preserveAspectRatio=none "
                "style=\"image-rendering:pixelated\" href=\"data:image/bmp;base64,",
                width_of(x), HEIGHT);
    put_bmp(x, b);
    fv__buf_str(b, "\"/></defs></svg>\n");
}

static float least_of(const float *x, int64_t n)
{
    float least = x[0];
    for (int64_t i = 1; i < n; i++)
        if (x[i] < least) least = x[i];
    return least;
}

void fv__explain_put_patches(const fv_explainer *x, fv_buf *b, const float *score, double most)
{
    const fv_see_grid *g = &x->axis.grid;
    double w = width_of(x) / (double)g->wide, h = HEIGHT / (double)g->high,
           least = (double)least_of(score + g->at, g->high * g->wide);
    if (least < 0 || least >= most) least = 0; /* of shares what all patches have says nothing */
    fv__buf_fmt(b, "<svg width=%d height=%d><use href=\"#seen\"/>", width_of(x), HEIGHT);
    for (int64_t i = 0; i < g->high * g->wide; i++) {
        double v = (double)score[g->at + i],
               share = most > 0 ? (fabs(v) - least) / (most - least) : 0;
        if (share < 0.01) continue;
        fv__buf_fmt(b,
                    "<rect x=%.2f y=%.2f width=%.2f height=%.2f fill=\"%s\" "
                    "fill-opacity=%.3f><title>%s: %.4f</title></rect>",
                    (double)(i % g->wide) * w, (double)(i / g->wide) * h, w, h,
                    v < 0 ? "#4285f4" : "#f58220", 0.8 * share, x->now.token[g->at + i], v);
    }
    fv__buf_str(b, "</svg>");
}
