/* series.c - time series from a table: dates, and columns of numbers.
 *
 * The table is read whole: a row of floats for each moment.  What is missing stands there as NaN
 * until all of the file is read, because a value may be filled from the one behind it. */
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "base/decimal.h"
#include "fovea/author/data.h"
#include "fovea/author/series.h"

enum { NAME = 64, FIELD = 128, MAX_FIELDS = 4096 };

const char *const fv_missing_words[] = {"refuse", "previous", "linear", NULL};

struct fv_series {
    const fv_env *env;
    char (*name)[NAME]; /* of the channels */
    int *field;         /* of the table, for each channel */
    size_t name_bytes, field_bytes;
    int channels, date_field, fields;
    char separator;
    float *x; /* (n,channels) */
    double *time;
    size_t x_bytes, time_bytes;
    int64_t n, filled;
    bool dated; /* times are seconds of the calendar, else plain numbers */
};

typedef struct reading {
    fv_series *s;
    const fv_series_opt *opt;
    int64_t line; /* from 1 */
    fv_err *e;
} reading;

/* ---- dates ---- */

/* Days since 1970-01-01 of the proleptic Gregorian calendar, years counted from March (Hinnant). */
static int64_t days_of(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400, year = y - era * 400,
            day = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + year * 365 + year / 4 - year / 100 + day - 719468;
}

/* Days since 1970 to a date of the Gregorian calendar, counted in eras of 400 years that begin on
 * March 1st, so that the leap day is the last of a year. */
static void date_of(int64_t days, int *y, int *m, int *d)
{
    days += 719468;
    int64_t era = (days >= 0 ? days : days - 146096) / 146097, day = days - era * 146097,
            year = (day - day / 1460 + day / 36524 - day / 146096) / 365,
            rest = day - (365 * year + year / 4 - year / 100), month = (5 * rest + 2) / 153;
    *d = (int)(rest - (153 * month + 2) / 5 + 1);
    *m = (int)(month < 10 ? month + 3 : month - 9);
    *y = (int)(year + era * 400 + (*m <= 2));
}

/* Seconds since 1970, or a plain number; false: neither. */
static bool parse_time(const char *s, double *out, bool *dated)
{
    int y, m, d, used = 0, h = 0, min = 0;
    double sec = 0;
    char *end;
    *dated = sscanf(s, "%4d-%2d-%2d%n", &y, &m, &d, &used) == 3 ||
             sscanf(s, "%4d/%2d/%2d%n", &y, &m, &d, &used) == 3;
    if (!*dated) {
        *out = fv__strtod(s, &end);
        return end != s && !*end && isfinite(*out);
    }
    s += used;
    if (*s == ' ' || *s == 'T') {
        if (sscanf(++s, "%2d:%2d%n", &h, &min, &used) != 2) return false;
        s += used;
        if (*s == ':') {
            sec = fv__strtod(s + 1, &end);
            s = end;
        }
    }
    s += *s == 'Z';
    *out = ((double)days_of(y, m, d) * 24 + h) * 3600 + min * 60 + sec;
    bool clock = h >= 0 && h < 24 && min >= 0 && min < 60 && sec >= 0 && sec < 61;
    return !*s && m >= 1 && m <= 12 && d >= 1 && d <= 31 && clock;
}

/* ---- fields ---- */

/* Copies the next field of a line without quotes and blanks around it; false at the end.  One that
 * is too long is cut: no number or date is. */
static bool next_field(const char **at, const char *end, char separator, char out[FIELD])
{
    const char *s = *at;
    size_t n = 0;
    if (s > end) return false;
    bool quoted = s < end && *s == '"';
    for (s += quoted; s < end && (quoted ? *s != '"' : *s != separator); s++)
        if (n + 1 < FIELD && (n || *s != ' ')) out[n++] = *s;
    while (s < end && *s != separator) s++;
    while (n && out[n - 1] == ' ') n--;
    out[n] = 0;
    *at = s + 1;
    return true;
}

static char separator_of(const char *s, size_t n)
{
    return memchr(s, '\t', n) ? '\t' : memchr(s, ';', n) && !memchr(s, ',', n) ? ';' : ',';
}

/* Whether `name` is among the words of a list with commas between them. */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = list; s; s = strchr(s, ',')) {
        s += *s == ',';
        s += strspn(s, " ");
        size_t len = strcspn(s, ",");
        while (len && s[len - 1] == ' ') len--;
        if (len == n && !memcmp(s, name, n)) return true;
    }
    return false;
}

static fv_status no_memory(const reading *r)
{
    return fv_fail(r->e, FV_ENOMEM, "%s: out of memory", r->opt->file);
}

/* Names are kept as they are: a model is given its columns by name. */
static fv_status add_channel(reading *r, const char *name, int field)
{
    fv_series *s = r->s;
    size_t len = strlen(name);
    void *names = s->name, *fields = s->field;
    if (len >= NAME)
        return fv_fail(r->e, FV_EFORMAT,
                       "%s: the column \"%.20s...\" has a name of %zu bytes, at most %d",
                       r->opt->file, name, len, NAME - 1);
    bool ok = fv__grow(s->env, &names, &s->name_bytes, (size_t)(s->channels + 1) * NAME) &&
              fv__grow(s->env, &fields, &s->field_bytes,
                       (size_t)(s->channels + 1) * sizeof *s->field);
    s->name = names;
    s->field = fields;
    if (!ok) return no_memory(r);
    memcpy(s->name[s->channels], name, len + 1);
    s->field[s->channels++] = field;
    return FV_OK;
}

/* The first line: which column is the date, which are channels. */
static fv_status read_header(reading *r, const char *line, size_t n)
{
    fv_series *s = r->s;
    const fv_series_opt *o = r->opt;
    const char *date = o->date ? o->date : "", *columns = o->columns ? o->columns : "";
    char name[FIELD];
    if (n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) line += 3, n -= 3;
    const char *at = line, *end = line + n;
    s->separator = separator_of(line, n);
    s->date_field = *date ? -1 : 0;
    fv_status st = FV_OK;
    for (; !st && s->fields < MAX_FIELDS && next_field(&at, end, s->separator, name); s->fields++) {
        bool is_date = *date ? !strcmp(name, date) : s->fields == 0;
        if (is_date) s->date_field = s->fields;
        if (!is_date && (!*columns || listed(columns, name))) st = add_channel(r, name, s->fields);
    }
    if (!st && s->date_field < 0)
        st = fv_fail(r->e, FV_EFORMAT, "%s: no column is called \"%.60s\", which is to be the date",
                     o->file, date);
    int wanted = *columns ? 1 : 0;
    for (const char *c = columns; (c = strchr(c, ',')); c++) wanted++;
    if (!st && wanted && s->channels != wanted)
        st = fv_fail(r->e, FV_EFORMAT, "%s: has %d of the %d columns \"%.80s\"", o->file,
                     s->channels, wanted, columns);
    if (!st && !s->channels)
        st = fv_fail(r->e, FV_EFORMAT, "%s: line 1 names no column beside the date", o->file);
    return st;
}

/* What pandas reads as a missing number, of what files in the field have. */
static bool is_missing(const char *s)
{
    static const char *const words[] = {"", "nan", "NaN", "NAN", "NA", "N/A", "null", "NULL"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(s, words[i])) return true;
    return false;
}

/* ---- rows ---- */

/* Dates or plain numbers, but not both in one file; each after the one before. */
static fv_status read_date(reading *r, const char *text)
{
    fv_series *s = r->s;
    bool dated;
    double *t = &s->time[s->n];
    if (!parse_time(text, t, &dated) || (s->n && dated != s->dated))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: \"%.40s\" is no date (2016-07-01 13:00:00)",
                       r->opt->file, (long long)r->line, text);
    s->dated = dated;
    if (s->n && !(*t > t[-1]))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: %.40s is not after the date before it",
                       r->opt->file, (long long)r->line, text);
    return FV_OK;
}

/* A gap is NaN until fill() has seen what is behind it. */
static fv_status read_value(reading *r, int channel, const char *text)
{
    fv_series *s = r->s;
    float *x = &s->x[s->n * s->channels + channel];
    char *end;
    *x = (float)fv__strtod(text, &end);
    if (is_missing(text)) {
        *x = NAN;
        s->filled++;
        if (r->opt->missing != FV_MISSING_REFUSE) return FV_OK;
        return fv_fail(r->e, FV_EFORMAT,
                       "%s:%lld: column %s is missing (missing = previous or linear fills it)",
                       r->opt->file, (long long)r->line, s->name[channel]);
    }
    if (end == text || *end || !isfinite(*x))
        return fv_fail(r->e, FV_EFORMAT, "%s:%lld: column %s: \"%.40s\" is no number", r->opt->file,
                       (long long)r->line, s->name[channel], text);
    return FV_OK;
}

/* Columns that were not asked for are passed over, but counted: a row of another width is a broken
 * file. */
static fv_status read_row(reading *r, const char *line, size_t n)
{
    fv_series *s = r->s;
    const char *at = line, *end = line + n;
    char text[FIELD];
    void *x = s->x, *time = s->time;
    int channel = 0, field = 0;
    bool ok = fv__grow(s->env, &x, &s->x_bytes,
                       (size_t)(s->n + 1) * (size_t)s->channels * sizeof *s->x) &&
              fv__grow(s->env, &time, &s->time_bytes, (size_t)(s->n + 1) * sizeof *s->time);
    s->x = x;
    s->time = time;
    if (!ok) return no_memory(r);
    fv_status st = FV_OK;
    for (; !st && next_field(&at, end, s->separator, text); field++) {
        if (field == s->date_field) st = read_date(r, text);
        if (!st && channel < s->channels && field == s->field[channel])
            st = read_value(r, channel++, text);
    }
    if (!st && field != s->fields)
        st = fv_fail(r->e, FV_EFORMAT, "%s:%lld: %d fields, expected %d", r->opt->file,
                     (long long)r->line, field, s->fields);
    s->n++;
    return st;
}

/* Values of one channel between known ones at a and b; -1 or n: there is none on that side. */
static void fill_gap(fv_series *s, int channel, int64_t a, int64_t b, bool linear)
{
    float *x = s->x + channel;
    int64_t C = s->channels;
    for (int64_t i = a + 1; i < b; i++) {
        double from = (double)x[(a < 0 ? b : a) * C], to = b < s->n ? (double)x[b * C] : from;
        double t = a < 0 || b == s->n ? 0 : (s->time[i] - s->time[a]) / (s->time[b] - s->time[a]);
        x[i * C] = (float)(linear ? from + t * (to - from) : from);
    }
}

/* Gaps between two values, and those at the ends, channel by channel; i == n closes the last one.
 */
static fv_status fill(reading *r)
{
    fv_series *s = r->s;
    for (int k = 0; k < s->channels && s->filled; k++) {
        int64_t last = -1;
        for (int64_t i = 0; i <= s->n; i++) {
            if (i < s->n && isnan(s->x[i * s->channels + k])) continue;
            if (i == s->n && last < 0)
                return fv_fail(r->e, FV_EFORMAT, "%s: column %s has no value", r->opt->file,
                               s->name[k]);
            fill_gap(s, k, last, i, r->opt->missing == FV_MISSING_LINEAR);
            last = i;
        }
    }
    return FV_OK;
}

/* The first line that is not empty names the columns; missing values are filled when all rows are
 * known. */
fv_status fv_series_open(fv_series **out, const fv_env *env, const fv_series_opt *opt, fv_err *e)
{
    fv_textfile *t = NULL;
    fv_series *s = *out = fv__alloc(env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", opt->file);
    s->env = env;
    reading r = {s, opt, 1, e};
    fv_status st = fv_textfile_open(&t, env, opt->file, e);
    for (int64_t i = 0, lines = st ? 0 : fv_textfile_count(t); !st && i < lines; i++, r.line++) {
        size_t n;
        const char *line = fv_textfile_line(t, i, &n);
        if (n) st = s->fields ? read_row(&r, line, n) : read_header(&r, line, n);
    }
    fv_textfile_close(t);
    if (!st && !s->n) st = fv_fail(e, FV_EFORMAT, "%s: there is no row of numbers", opt->file);
    if (!st) st = fill(&r);
    if (st) {
        fv_series_close(s);
        *out = NULL;
    }
    return st;
}

void fv_series_close(fv_series *s)
{
    if (!s) return;
    fv__free(s->env, s->name, s->name_bytes);
    fv__free(s->env, s->field, s->field_bytes);
    fv__free(s->env, s->x, s->x_bytes);
    fv__free(s->env, s->time, s->time_bytes);
    fv__free(s->env, s, sizeof *s);
}

int64_t fv_series_count(const fv_series *s) { return s->n; }
int fv_series_channels(const fv_series *s) { return s->channels; }
int64_t fv_series_filled(const fv_series *s) { return s->filled; }
const float *fv_series_values(const fv_series *s) { return s->x; }
const char *fv_series_name(const fv_series *s, int channel)
{
    return channel >= 0 && channel < s->channels ? s->name[channel] : NULL;
}

/* Behind the end the last distance is repeated: that is where forecasts lie. */
void fv_series_date(const fv_series *s, int64_t i, char *out, size_t n)
{
    double step = s->n > 1 ? s->time[s->n - 1] - s->time[s->n - 2] : 1;
    double t = i < s->n ? s->time[i] : s->time[s->n - 1] + (double)(i - s->n + 1) * step;
    int y, m, d;
    if (!s->dated) {
        snprintf(out, n, "%s", fv__digits(t, false).s);
        return;
    }
    int64_t sec = (int64_t)floor(t), days = (sec >= 0 ? sec : sec - 86399) / 86400;
    sec -= days * 86400;
    date_of(days, &y, &m, &d);
    snprintf(out, n, "%04d-%02d-%02d %02d:%02d:%02d", y % 10000, m, d, (int)(sec / 3600),
             (int)(sec / 60 % 60), (int)(sec % 60));
}
