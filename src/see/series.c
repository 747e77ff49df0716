/* series.c - the time series that a model reads, as an image: the line of one channel, with the
 * patches side by side as strips of full height.
 *
 * So everything that shows attention over an image or a sound shows it over a series.  Patches may
 * overlap: patch i is drawn around its middle, as wide as the step from one to the next, and named
 * after its first moment.  Channels never see each other in PatchTST; they are rows of its batch,
 * and one of them is shown. */
#include <math.h>
#include <stdio.h>

#include "see.h"
#include "fovea/author/family.h"
#include "fovea/author/series.h"

enum { HIGH = 240, WIDEST = 1600, MARGIN = 16 /* above the greatest value and below the least */ };

bool fv__see_reads_series(const fv_model *m)
{
    return fv_family_takes(fv_model_family(m), "past_values");
}

/* The line through n values, `step` floats apart: straight between two of them.  Each column
 * of pixels is filled from where the line enters to where it leaves. */
static fv_status draw(fv_see_image *im, const float *x, int64_t n, int64_t step, fv_err *e)
{
    int each = n < WIDEST ? (int)(WIDEST / n) : 1, wide = (int)n * each;
    double low = INFINITY, high = -INFINITY, before = 0;
    for (int64_t i = 0; i < n * step; i += step) {
        double v = (double)x[i];
        if (v < low) low = v;
        if (v > high) high = v;
    }
    fv_status st = fv_image_new(&im->shown, im->env, wide, HIGH, 3, e);
    if (st) return st;
    memset(im->shown.data, 255, (size_t)wide * HIGH * 3);
    for (int px = 0; px < wide; px++) {
        int64_t i = px / each, next = i + 1 < n ? i + 1 : i;
        double t = (double)(px % each) / each,
               v = (1 - t) * (double)x[i * step] + t * (double)x[next * step],
               y = MARGIN + (HIGH - 2 * MARGIN) * (high > low ? (high - v) / (high - low) : 0.5);
        double from = fmin(px ? before : y, y) - 1, to = fmax(px ? before : y, y) + 1;
        for (int at = (int)from; at <= (int)to; at++) {
            uint8_t *p = im->shown.data + 3 * ((size_t)at * (size_t)wide + (size_t)px);
            p[0] = 32, p[1] = 60, p[2] = 110;
        }
        before = y;
    }
    return FV_OK;
}

/* What config.json says of the patches. */
typedef struct patches {
    int64_t context, length, step, n, channels;
} patches;

static patches patches_of(const fv_see_image *im)
{
    patches p = {.context = fv__see_setting(im->dir, "context_length"),
                 .length = fv__see_setting(im->dir, "patch_length"),
                 .step = fv__see_setting(im->dir, "patch_stride"),
                 .channels = fv__see_setting(im->dir, "num_input_channels")};
    if (p.length < 1) p.length = 1; /* transformers' defaults */
    if (p.step < 1) p.step = 1;
    p.n = p.context < p.length ? 0 : (p.context - p.length) / p.step + 1;
    return p;
}

/* The series must be the one that the model knows, column by column. */
static fv_status check(const fv_see_image *im, const fv_series *s, patches p, int channel,
                       fv_err *e)
{
    int known = fv_processor_columns(im->processor);
    if (!p.n) return fv_fail(e, FV_EMISSING, "%s: this model reads no patches", im->name);
    if (fv_series_channels(s) != p.channels)
        return fv_fail(e, FV_EARG, "%s has %d columns, but the model %lld", im->name,
                       fv_series_channels(s), (long long)p.channels);
    for (int i = 0; i < known && i < fv_series_channels(s); i++)
        if (strcmp(fv_series_name(s, i), fv_processor_column(im->processor, i)) != 0)
            return fv_fail(e, FV_EARG, "column %d of %s is %s, but the model's is %s", i + 1,
                           im->name, fv_series_name(s, i), fv_processor_column(im->processor, i));
    if (fv_series_count(s) < p.context)
        return fv_fail(e, FV_EARG, "%s has %lld time steps, but the model reads %lld", im->name,
                       (long long)fv_series_count(s), (long long)p.context);
    if (channel < 0 || channel > p.channels)
        return fv_fail(e, FV_EARG, "channel %d: the series has %lld, counted from 1", channel,
                       (long long)p.channels);
    return FV_OK;
}

/* Dates of full minutes are shown without seconds. */
static void shorten(char (*date)[40], int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (strlen(date[i]) != 19 || strcmp(date[i] + 16, ":00") != 0) return;
    for (int64_t i = 0; i < n; i++) date[i][16] = 0;
}

/* The last window: its picture, its numbers as the model reads them, and a date for each patch. */
static fv_status take_window(fv_see_image *im, const fv_series *s, patches p, fv_err *e)
{
    int64_t first = fv_series_count(s) - p.context, C = p.channels;
    const float *x = fv_series_values(s) + first * C;
    /* values at the beginning that fill no patch are left out, and half of what overlaps */
    int64_t from = p.context - p.length - (p.n - 1) * p.step,
            middle = from + (p.length - p.step) / 2, shown = p.n * p.step;
    if (middle < 0) middle = 0;
    if (middle + shown > p.context) shown = p.context - middle;
    im->bytes = (size_t)(p.context * C) * sizeof(float);
    im->pixels = fv__alloc(im->env, im->bytes);
    im->date = fv__alloc(im->env, (size_t)p.n * sizeof *im->date);
    if (!im->pixels || !im->date) return fv_fail(e, FV_ENOMEM, "%s: out of memory", im->name);
    im->dates = p.n;
    im->seconds = (double)shown;
    im->shape = FV_SHAPE(p.context, C);
    memcpy(im->pixels, x, im->bytes);
    fv_processor_normalise(im->processor, im->pixels, p.context);
    for (int64_t i = 0; i < p.n; i++)
        fv_series_date(s, first + from + i * p.step, im->date[i], sizeof im->date[i]);
    shorten(im->date, p.n);
    return draw(im, x + middle * C + im->channel, shown, C, e);
}

fv_status fv__see_series_open(fv_see_image *im, const char *path, int channel, fv_err *e)
{
    fv_series *s = NULL;
    fv_series_opt from = {.file = path};
    const char *slash = strrchr(path, '/');
    patches p = patches_of(im);
    snprintf(im->name, sizeof im->name, "%s", slash ? slash + 1 : path);
    fv_status st = fv_processor_open(&im->processor, im->env, NULL, fv_dir_path(im->dir), e);
    if (!st) st = fv_series_open(&s, im->env, &from, e);
    if (!st) st = check(im, s, p, channel, e);
    im->channel = channel ? channel - 1 : p.channels - 1;
    if (!st) st = take_window(im, s, p, e);
    fv_series_close(s);
    return st;
}

void fv__see_put_series(fv_ctx *c, const fv_see_image *im, fv_items *items)
{
    fv_shape s = FV_SHAPE(1, im->shape.d[0], im->shape.d[1]);
    fv_items_put(items, "past_values", fv_floats(c, im->pixels, s));
}
