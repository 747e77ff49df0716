/* curve.c - the losses of a run as a figure, curve.svg.  It is a few polylines: written as text, so
 * that the trainer needs no drawing library. */
#include <math.h>

#include "train/log.h"

enum { WIDTH = 860, HEIGHT = 460, LEFT = 64, RIGHT = 20, TOP = 24, BOTTOM = 52 };

typedef struct axis {
    double low, high, step;
    double from, to; /* in the picture */
} axis;

/* About five ticks at 1, 2 or 5 times a power of ten, from below the data to above. */
static axis make_axis(double low, double high, double from, double to)
{
    if (!(high > low)) high = low + 1;
    double rough = (high - low) / 5, unit = pow(10, floor(log10(rough))), r = rough / unit;
    double step = unit * (r <= 1 ? 1 : r <= 2 ? 2 : r <= 5 ? 5 : 10);
    return (axis){floor(low / step) * step, ceil(high / step) * step, step, from, to};
}

/* Data to pixels; the vertical axis has from > to. */
static double axis_to_pixel(const axis *a, double x)
{
    return a->from + (x - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* The ends of the data; false where there are none. */
static bool extent(const fv__entry *x, size_t n, double *low, double *high, int64_t *last)
{
    *low = INFINITY;
    *high = -INFINITY;
    *last = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i].loss)) continue;
        if (x[i].loss < *low) *low = x[i].loss;
        if (x[i].loss > *high) *high = x[i].loss;
        if (x[i].step > *last) *last = x[i].step;
    }
    return *high >= *low;
}

/* One polyline through the training or validation losses. */
static void line(fv_buf *b, const fv__entry *x, size_t n, bool valid, const axis *h, const axis *v,
                 const char *style)
{
    fv__buf_fmt(b, "<polyline %s points=\"", style);
    for (size_t i = 0; i < n; i++)
        if (x[i].valid == valid && isfinite(x[i].loss))
            fv__buf_fmt(b, "%.1f,%.1f ", axis_to_pixel(h, (double)x[i].step),
                        axis_to_pixel(v, x[i].loss));
    fv__buf_str(b, "\"/>\n");
}

/* Validation losses, with the number as a tooltip. */
static void dots(fv_buf *b, const fv__entry *x, size_t n, const axis *h, const axis *v)
{
    for (size_t i = 0; i < n; i++)
        if (x[i].valid && isfinite(x[i].loss))
            fv__buf_fmt(b,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#b4451f\"><title>update "
                        "%lld: %.4f</title></circle>\n",
                        axis_to_pixel(h, (double)x[i].step), axis_to_pixel(v, x[i].loss),
                        (long long)x[i].step, x[i].loss);
}

/* Lines and numbers at the ticks of both axes. */
static void grid(fv_buf *b, const axis *h, const axis *v)
{
    for (double y = v->low; y <= v->high + v->step / 2; y += v->step)
        fv__buf_fmt(b,
                    "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                    LEFT, WIDTH - RIGHT, axis_to_pixel(v, y), axis_to_pixel(v, y), LEFT - 8,
                    axis_to_pixel(v, y) + 4, round(y / v->step) * v->step);
    for (double x = h->low; x <= h->high + h->step / 2; x += h->step)
        fv__buf_fmt(b,
                    "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#e3e3e3\"/>"
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                    axis_to_pixel(h, x), axis_to_pixel(h, x), TOP, HEIGHT - BOTTOM,
                    axis_to_pixel(h, x), HEIGHT - BOTTOM + 18, round(x / h->step) * h->step);
    fv__buf_fmt(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">updates</text>\n",
                (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12);
}

static void legend(fv_buf *b)
{
    int x = WIDTH - RIGHT - 230;
    fv__buf_fmt(b,
                "<rect x=\"%d\" y=\"%d\" width=\"222\" height=\"26\" fill=\"#ffffff\" "
                "fill-opacity=\"0.85\"/>"
                "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#3b6ea8\" "
                "stroke-width=\"2\"/><text x=\"%d\" y=\"%d\">"
                "training loss</text>"
                "<circle cx=\"%d\" cy=\"%d\" r=\"3\" fill=\"#b4451f\"/><text x=\"%d\" "
                "y=\"%d\">validation</text>\n",
                x, TOP + 4, x + 8, x + 32, TOP + 17, TOP + 17, x + 38, TOP + 21, x + 140, TOP + 17,
                x + 150, TOP + 21);
}

/* An SVG of plain paths, which every browser draws and no library is needed for. */
void fv__curve(fv_buf *b, const fv__entry *x, size_t n)
{
    double low, high;
    int64_t last;
    fv__buf_fmt(b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                "font-family=\"sans-serif\" font-size=\"12\" "
                "fill=\"#333\">\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                WIDTH, HEIGHT, WIDTH, HEIGHT);
    if (extent(x, n, &low, &high, &last)) {
        axis h = make_axis(0, (double)last, LEFT, WIDTH - RIGHT),
             v = make_axis(low, high, HEIGHT - BOTTOM, TOP);
        grid(b, &h, &v);
        line(b, x, n, false, &h, &v, "fill=\"none\" stroke=\"#3b6ea8\" stroke-width=\"1.5\"");
        line(b, x, n, true, &h, &v,
             "fill=\"none\" stroke=\"#b4451f\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"");
        dots(b, x, n, &h, &v);
        legend(b);
    }
    fv__buf_str(b, "</svg>\n");
}
