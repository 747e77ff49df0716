/* series_plot.c - history and forecast as a picture: a panel for each channel, written as SVG text,
 * as the curve of a training run is, so that no drawing library is needed.
 *
 * SVG by hand: the picture has lines, labels and a band, and a build without cairo should have it,
 * too. One panel a channel, its axis scaled to its own values; the forecast goes on in another
 * colour. */
#include <math.h>

#include "base/base.h"
#include "fovea/author/forecast.h"

enum { WIDTH = 860, PANEL = 150, LEFT = 70, RIGHT = 20, TOP = 26, BOTTOM = 34, MOST_PANELS = 64 };

typedef struct plot {
    const fv_series *s;
    const float *future, *low, *high;
    int64_t horizon, history, channels;
} plot;

/* A channel's values and where they stand in the picture. */
typedef struct panel {
    const plot *p;
    int64_t channel;
    double least, most, top;
} panel;

/* History and forecast are one line to the axes: i counts on behind the last known moment. */
static double value(const plot *p, int64_t channel, int64_t i)
{
    const float *x = fv_series_values(p->s);
    int64_t C = p->channels, from = fv_series_count(p->s) - p->history;
    return (double)(i < p->history ? x[(from + i) * C + channel]
                                   : p->future[(i - p->history) * C + channel]);
}

/* The lower or upper end of the interval at distance h. */
static double edge(const plot *p, int64_t channel, int64_t h, const float *by)
{
    int64_t at = h * p->channels + channel;
    return (double)p->future[at] + (double)by[at];
}

/* Moments are evenly spaced, as they are in the file. */
static double across(const plot *p, int64_t i)
{
    double n = (double)(p->history + p->horizon - 1);
    return LEFT + (double)i / (n > 0 ? n : 1) * (WIDTH - LEFT - RIGHT);
}
static double down(const panel *a, double y)
{
    return a->top + (a->most - y) / (a->most - a->least) * (PANEL - TOP);
}

/* The vertical range holds history, forecast and interval; a constant channel gets one of height
 * 1. */
static void extent(panel *a)
{
    const plot *p = a->p;
    a->least = INFINITY;
    a->most = -INFINITY;
    for (int64_t i = 0; i < p->history + p->horizon; i++) {
        double y = value(p, a->channel, i), low = y, high = y;
        if (i >= p->history && p->low) {
            low = edge(p, a->channel, i - p->history, p->low);
            high = edge(p, a->channel, i - p->history, p->high);
        }
        a->least = fmin(a->least, fmin(y, low));
        a->most = fmax(a->most, fmax(y, high));
    }
    if (!(a->most > a->least)) a->most = a->least + 1;
}

/* The interval as one polygon: along its lower edge and back along the upper. */
static void band(fv_buf *b, const panel *a)
{
    const plot *p = a->p;
    fv__buf_str(b, "<polygon fill=\"#b4451f\" fill-opacity=\"0.18\" points=\"");
    for (int64_t h = 0; h < p->horizon; h++)
        fv__buf_fmt(b, "%.1f,%.1f ", across(p, p->history + h),
                    down(a, edge(p, a->channel, h, p->low)));
    for (int64_t h = p->horizon - 1; h >= 0; h--)
        fv__buf_fmt(b, "%.1f,%.1f ", across(p, p->history + h),
                    down(a, edge(p, a->channel, h, p->high)));
    fv__buf_str(b, "\"/>\n");
}

static void line(fv_buf *b, const panel *a, int64_t from, int64_t to, const char *colour)
{
    fv__buf_fmt(b, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
    for (int64_t i = from; i < to; i++)
        fv__buf_fmt(b, "%.1f,%.1f ", across(a->p, i), down(a, value(a->p, a->channel, i)));
    fv__buf_str(b, "\"/>\n");
}

/* A text of the file, with what XML reserves replaced. */
static void escaped(fv_buf *b, const char *s)
{
    for (; *s; s++)
        if (*s == '<')
            fv__buf_str(b, "&lt;");
        else if (*s == '&')
            fv__buf_str(b, "&amp;");
        else
            fv__buf_add(b, s, 1);
}

/* Grid lines at the least, the middle and the greatest value; the forecast begins at the last
 * known one, so that the lines meet. */
static void draw_panel(fv_buf *b, const panel *a)
{
    const plot *p = a->p;
    fv__buf_fmt(b, "<text x=\"%d\" y=\"%.1f\" font-weight=\"bold\">", LEFT, a->top - 8);
    escaped(b, fv_series_name(p->s, (int)a->channel));
    fv__buf_str(b, "</text>\n");
    for (int i = 0; i < 3; i++) {
        double y = a->least + (a->most - a->least) * i / 2;
        fv__buf_fmt(b,
                    "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                    LEFT, WIDTH - RIGHT, down(a, y), down(a, y), LEFT - 6, down(a, y) + 4, y);
    }
    if (p->low) band(b, a);
    line(b, a, 0, p->history, "#3b6ea8");
    line(b, a, p->history ? p->history - 1 : 0, p->history + p->horizon, "#b4451f");
}

/* The dates of the first moment, of the last one known and of the last one forecast. */
static void draw_dates(fv_buf *b, const plot *p, int y)
{
    int64_t n = fv_series_count(p->s), at[] = {0, p->history - 1, p->history + p->horizon - 1};
    static const char *const anchor[] = {"start", "middle", "end"};
    for (int i = 0; i < 3; i++) {
        char date[40];
        fv_series_date(p->s, n - p->history + at[i], date, sizeof date);
        fv__buf_fmt(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", across(p, at[i]),
                    y, anchor[i], date);
    }
}

fv_status fv_forecast_plot(const fv_series *s, const float *future, int64_t horizon,
                           const float *low, const float *high, int64_t history, const char *path,
                           fv_err *e)
{
    int64_t n = fv_series_count(s), C = fv_series_channels(s);
    if (history < 1 || history > n) history = n;
    plot p = {s, future, low && high ? low : NULL, high, horizon, history, C};
    int64_t shown = C < MOST_PANELS ? C : MOST_PANELS;
    int height = (int)shown * PANEL + BOTTOM;
    fv_buf b = {0};
    fv__buf_fmt(&b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                WIDTH, height, WIDTH, height);
    for (int64_t k = 0; k < shown; k++) {
        panel a = {.p = &p, .channel = k, .top = (double)(k * PANEL + TOP)};
        extent(&a);
        draw_panel(&b, &a);
    }
    draw_dates(&b, &p, height - 12);
    fv__buf_str(&b, "</svg>\n");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(NULL, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
