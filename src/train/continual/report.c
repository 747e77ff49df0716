/* report.c - what a continual run came to: the matrix of accuracies, and three numbers of it.
 *
 * With R[i][j] the accuracy on task j after task i, b[j] that before training, T tasks:
 *
 *     average accuracy   mean over j of R[T][j]
 *     forgetting         mean over j < T of max over i < T of R[i][j], less R[T][j]
 *     forward transfer   mean over j > 1 of R[j-1][j] - b[j]  (Lopez-Paz, Ranzato) */
#include <math.h>
#include <stdio.h>

#include "train/continual/continual.h"

typedef struct figures {
    double average, forgetting, transfer;
} figures;

static figures figures_of(const fv__continual *s)
{
    figures f = {0};
    int T = s->done;
    for (int j = 0; j < T; j++) {
        double best = -INFINITY, end = (double)s->accuracy[T][j];
        f.average += end / T;
        for (int i = 1; i < T; i++) best = fmax(best, (double)s->accuracy[i][j]);
        if (T > 1 && j < T - 1) f.forgetting += (best - end) / (T - 1);
        if (j) f.transfer += ((double)s->accuracy[j][j] - (double)s->accuracy[0][j]) / (T - 1);
    }
    return f;
}

static void write_json(fv_buf *b, const fv__continual *s, const figures *f)
{
    fv__buf_str(b, "{\n  \"tasks\": [");
    for (int t = 0; t < s->n_tasks; t++) fv__buf_fmt(b, "%s\"%s\"", t ? ", " : "", s->task[t].name);
    fv__buf_str(b, "],\n  \"matrix\": [");
    for (int i = 0; i <= s->done; i++) {
        fv__buf_fmt(b, "%s[", i ? ",\n    " : "\n    ");
        for (int t = 0; t < s->n_tasks; t++)
            fv__buf_fmt(b, "%s%.6f", t ? ", " : "", (double)s->accuracy[i][t]);
        fv__buf_str(b, "]");
    }
    fv__buf_fmt(b,
                "\n  ],\n  \"average_accuracy\": %.6f,\n  \"forgetting\": %.6f,\n"
                "  \"forward_transfer\": %.6f\n}\n",
                f->average, f->forgetting, f->transfer);
}

enum { CELL = 46, LEFT = 130, TOP = 60 };

/* A square for each number, darker where it is greater. */
static void write_svg(fv_buf *b, const fv__continual *s, const figures *f)
{
    int w = LEFT + CELL * s->n_tasks + 20, h = TOP + CELL * (s->done + 1) + 40;
    if (w < 420) w = 420;
    fv__buf_fmt(b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                "<text x=\"10\" y=\"20\">accuracy in %% on each task (columns) after each (rows)"
                "</text>\n",
                w, h);
    for (int t = 0; t < s->n_tasks; t++)
        fv__buf_fmt(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                    LEFT + CELL * t + CELL / 2, TOP - 8, t + 1);
    for (int i = 0; i <= s->done; i++) {
        int y = TOP + CELL * i;
        if (i)
            fv__buf_fmt(b, "<text x=\"10\" y=\"%d\">%d  %s</text>\n", y + CELL / 2 + 4, i,
                        s->task[i - 1].name);
        else
            fv__buf_fmt(b, "<text x=\"10\" y=\"%d\">before</text>\n", y + CELL / 2 + 4);
        for (int t = 0; t < s->n_tasks; t++) {
            double x = (double)s->accuracy[i][t];
            int shade = (int)(255 - 200 * (x > 0 ? x : 0));
            fv__buf_fmt(b,
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                        "fill=\"rgb(%d,%d,255)\"/><text x=\"%d\" y=\"%d\" "
                        "text-anchor=\"middle\" fill=\"%s\">%.1f</text>\n",
                        LEFT + CELL * t, y, CELL - 2, CELL - 2, shade, shade,
                        LEFT + CELL * t + CELL / 2 - 1, y + CELL / 2 + 4,
                        x > 0.6 ? "white" : "black", 100 * x);
        }
    }
    fv__buf_fmt(b,
                "<text x=\"10\" y=\"%d\">average accuracy %.2f, forgetting %.2f, forward "
                "transfer %.2f</text>\n</svg>\n",
                h - 14, 100 * f->average, 100 * f->forgetting, 100 * f->transfer);
}

static void print_table(const fv__continual *s, const figures *f,
                        void (*line)(void *user, const char *text), void *user)
{
    char text[160 + 8 * FV__MAX_TASKS];
    for (int i = 0; line && i <= s->done; i++) {
        int n = snprintf(text, 120, "%-16.16s", i ? s->task[i - 1].name : "before");
        for (int t = 0; t < s->n_tasks; t++)
            n += snprintf(text + n, sizeof text - (size_t)n, " %6.2f",
                          100 * (double)s->accuracy[i][t]);
        line(user, text);
    }
    snprintf(text, sizeof text, "average accuracy %.2f, forgetting %.2f, forward transfer %.2f",
             100 * f->average, 100 * f->forgetting, 100 * f->transfer);
    if (line) line(user, text);
}

fv_status fv__continual_report(const fv_feed *train, const char *dir,
                               void (*line)(void *user, const char *text), void *user, fv_err *e)
{
    const fv__continual *s = train->self;
    fv_buf json = {.env = s->env}, svg = {.env = s->env};
    char path[FV_PATH];
    figures f = figures_of(s);
    if (!s->done) return FV_OK;
    write_json(&json, s, &f);
    write_svg(&svg, s, &f);
    fv_status st = json.failed || svg.failed ? fv_fail(e, FV_ENOMEM, "continual: out of memory")
                                             : FV_OK;
    snprintf(path, sizeof path, "%s/continual.json", dir);
    if (!st) st = fv__file_write(s->env, path, json.data, json.len, e);
    snprintf(path, sizeof path, "%s/continual.svg", dir);
    if (!st) st = fv__file_write(s->env, path, svg.data, svg.len, e);
    if (!st) print_table(s, &f, line, user);
    fv__buf_free(&json);
    fv__buf_free(&svg);
    return st;
}
