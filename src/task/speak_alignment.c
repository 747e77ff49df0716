/* speak_alignment.c - where each step of a voice looked in the text, as a picture.
 *
 * A column for each step of the decoder, a row for each token from the top; above it the
 * spectrogram that the steps made, low bands at the bottom.  The head that is drawn is the one
 * nearest to a diagonal, of all layers: a voice that reads its text has one, one that babbles has
 * none.  SVG written as text, as transcribe_lattice.c's. */
#include "task/speak_alignment.h"

#include <math.h>

#include "base/base.h"
#include "task_pipeline.h"

enum {
    COLUMN = 12,
    ROW = 18,
    LEFT = 70,
    TOP = 34,
    MEL_HEIGHT = 96,
    GAP = 12,
    FOOT = 30,
    SHADES = 8
};

typedef struct picture {
    const fv_said *said;
    const float *map; /* (steps,tokens) */
    fv_buf *b;
} picture;

static void put_cell(const picture *p, double x, double y, double w, double h, double shade,
                     const char *colour)
{
    if (shade < 0.01) return;
    fv__buf_fmt(p->b,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\" "
                "opacity=\"%.2f\"/>\n",
                x, y, w, h, colour, shade > 1 ? 1 : shade);
}

/* Frames as columns, brightness between the quietest and the loudest number. */
static void put_spectrogram(const picture *p)
{
    const fv_said *s = p->said;
    double least = INFINITY, most = -INFINITY,
           width = (double)COLUMN * (double)s->steps / (double)s->frames,
           height = (double)MEL_HEIGHT / (double)s->mels;
    for (int64_t i = 0; i < s->frames * s->mels; i++) {
        double x = (double)s->mel[i];
        if (x < least) least = x;
        if (x > most) most = x;
    }
    double range = most > least ? most - least : 1;
    /* a path for each shade, in which neighbours of one band are one rectangle */
    for (int shade = 1; shade < SHADES; shade++) {
        fv__buf_fmt(p->b, "<path fill=\"#1b4965\" opacity=\"%.2f\" d=\"",
                    (double)shade / (SHADES - 1));
        for (int64_t m = 0; m < s->mels; m++)
            for (int64_t t = 0, run; t < s->frames; t += run) {
                for (run = 0; t + run < s->frames; run++)
                    if ((int)(((double)s->mel[(t + run) * s->mels + m] - least) / range *
                                  (SHADES - 1) +
                              0.5) != shade)
                        break;
                if (run)
                    fv__buf_fmt(p->b, "M%.0f %.1fh%.0fv%.1fh-%.0f", LEFT + width * (double)t,
                                TOP + MEL_HEIGHT - height * (double)(m + 1), width * (double)run,
                                height, width * (double)run);
                else
                    run = 1;
            }
        fv__buf_str(p->b, "\"/>\n");
    }
}

static void put_map(const picture *p)
{
    const fv_said *s = p->said;
    for (int64_t t = 0; t < s->steps; t++)
        for (int64_t k = 0; k < s->tokens; k++)
            put_cell(p, LEFT + COLUMN * (double)t, TOP + MEL_HEIGHT + GAP + ROW * (double)k,
                     COLUMN - 1, ROW - 1, (double)p->map[t * s->tokens + k], "#d1495b");
}

static void put_tokens(const picture *p, const fv_tok *tok, const int32_t *ids)
{
    for (int64_t k = 0; k < p->said->tokens; k++) {
        const char *s = fv_tok_token(tok, ids[k]);
        fv__buf_fmt(p->b, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">", LEFT - 6,
                    TOP + MEL_HEIGHT + GAP + ROW * (double)k + ROW - 5);
        fv__put_xml(p->b, s ? s : "");
        fv__buf_str(p->b, "</text>\n");
    }
}

fv_status fv__save_alignment(const fv_env *env, const char *path, const fv_said *said,
                             const fv_tok *tok, const int32_t *ids, fv_err *e)
{
    int64_t best = 0;
    double diagonal = fv_said_diagonality(said, &best);
    fv_buf b = {.env = env};
    picture p = {said, said->attention + best * said->steps * said->tokens, &b};
    double width = LEFT + COLUMN * (double)said->steps + 12,
           height = TOP + MEL_HEIGHT + GAP + ROW * (double)said->tokens + FOOT;
    /* the caption is wider than a short clip */
    if (width < 420) width = 420;
    fv__buf_fmt(&b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                "<text x=\"%d\" y=\"20\">layer %lld, head %lld: diagonality %.3f, %s</text>\n",
                width, height, LEFT, (long long)(best / said->heads + 1),
                (long long)(best % said->heads + 1), diagonal,
                diagonal > 0.85 ? "along the text" : "not along the text");
    put_spectrogram(&p);
    put_map(&p);
    put_tokens(&p, tok, ids);
    fv__buf_fmt(&b, "<text x=\"%d\" y=\"%.0f\">steps of the decoder</text>\n</svg>\n", LEFT,
                height - 10);
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}
