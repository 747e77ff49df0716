/* series_text.c - one time series in a text: numbers, channel by channel.
 *
 *     0.12,0.5,-0.3            one channel
 *     1 2 3:4 5 6              two
 *
 * A record of the usual files (a field of a table, a line) is such a text, so series with labels
 * need no format of their own. */
#include <math.h>

#include "base/base.h"
#include "base/decimal.h"
#include "fovea/author/series.h"

enum { NUMBER = 64 }; /* bytes of a number, at most */

/* What is left of a text. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void skip_blanks(cursor *c)
{
    while (c->at < c->end && blank(*c->at)) c->at++;
}

static bool is_missing(const char *s)
{
    static const char *const words[] = {"", "?", "nan", "NaN", "NAN", "NA", "null"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(s, words[i])) return true;
    return false;
}

/* The next number of a channel; *more is false behind the last one, where the channel ends. */
static fv_status next_number(cursor *c, float *x, bool *more, fv_err *e)
{
    char text[NUMBER], *end;
    size_t n = 0;
    skip_blanks(c);
    for (; c->at < c->end && !blank(*c->at) && *c->at != ',' && *c->at != ':'; c->at++)
        if (n + 1 < sizeof text) text[n++] = *c->at;
    text[n] = 0;
    skip_blanks(c);
    *more = c->at < c->end && *c->at != ':';
    if (*more && *c->at == ',') c->at++;
    *x = (float)fv__strtod(text, &end);
    if (is_missing(text))
        *x = NAN;
    else if (*end || !isfinite(*x))
        return fv_fail(e, FV_EFORMAT, "\"%.40s\" is no number", text);
    return FV_OK;
}

/* Numbers of one channel; x NULL: they are only counted, else (n,stride) gets them. */
static fv_status read_channel(cursor *c, float *x, int64_t stride, int64_t *n, fv_err *e)
{
    float value;
    fv_status st = FV_OK;
    *n = 0;
    for (bool more = true; !st && more; ++*n) {
        st = next_number(c, &value, &more, e);
        if (x) x[*n * stride] = value;
    }
    return st;
}

fv_status fv_series_measure(const char *text, size_t n, int64_t *steps, int64_t *channels,
                            fv_err *e)
{
    cursor c = {text, text + n};
    int64_t len;
    *steps = *channels = 0;
    skip_blanks(&c);
    if (c.at == c.end) return fv_fail(e, FV_EFORMAT, "a series without numbers");
    for (bool more = true; more; ++*channels) {
        fv_status st = read_channel(&c, NULL, 0, &len, e);
        if (st) return st;
        if (*channels && len != *steps)
            return fv_fail(e, FV_EFORMAT, "channel %lld has %lld numbers, those before it %lld",
                           (long long)*channels + 1, (long long)len, (long long)*steps);
        *steps = len;
        more = c.at < c.end;
        c.at += more; /* the colon */
    }
    return FV_OK;
}

/* Marks what is missing, and gives it the mean of the others; 0 where there are none. */
static void fill_missing(float *x, uint8_t *observed, int64_t steps, int64_t channels, int64_t k)
{
    double sum = 0, n = 0;
    for (int64_t t = 0; t < steps; t++) {
        bool seen = !isnan(x[t * channels + k]);
        observed[t * channels + k] = seen;
        if (seen) sum += (double)x[t * channels + k], n++;
    }
    for (int64_t t = 0; t < steps; t++)
        if (!observed[t * channels + k]) x[t * channels + k] = n > 0 ? (float)(sum / n) : 0;
}

fv_status fv_series_parse(float *x, uint8_t *observed, int64_t steps, int64_t channels,
                          const char *text, size_t n, fv_err *e)
{
    int64_t len, has;
    fv_status st = fv_series_measure(text, n, &len, &has, e);
    if (st) return st;
    if (has != channels)
        return fv_fail(e, FV_EFORMAT, "a series of %lld channels, expected %lld", (long long)has,
                       (long long)channels);
    if (len > steps)
        return fv_fail(e, FV_EFORMAT, "a series of %lld time steps, at most %lld are read",
                       (long long)len, (long long)steps);
    cursor c = {text, text + n};
    for (int64_t k = 0; !st && k < channels; k++, c.at++) {
        for (int64_t t = 0; t < steps - len; t++) x[t * channels + k] = NAN;
        st = read_channel(&c, x + (steps - len) * channels + k, channels, &has, e);
        fill_missing(x, observed, steps, channels, k);
    }
    return st;
}
