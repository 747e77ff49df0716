/* align.c - which head of the cross-attention reads most like a word alignment.
 *
 * Nobody tells a head what to do, and many look at the end of the sentence or everywhere at once.
 * Two measures tell those that align, without any aligned text: rows are sure (the mean over rows
 * of the greatest weight), and nothing of the source is left out (the mean over columns of the
 * greatest weight).  A head that stares at one token is sure but covers nothing; one that looks
 * everywhere covers a little of all and is never sure. */
#include <math.h>

#include "see.h"

/* Special tokens by their spelling, as figures show them muted. */
static bool special(const char *t)
{
    size_t n = t ? strlen(t) : 0;
    return n > 2 && ((t[0] == '<' && t[n - 1] == '>') || (t[0] == '[' && t[n - 1] == ']'));
}

/* Special tokens have no counterpart, so they do not count on either side; unless there is nothing
 * else. */
static double score_of(const fv_see *s, const float *w, float *best)
{
    fv_see_shape shape = fv_see_shape_of(s, FV_SEE_CROSS);
    int64_t rows = shape.rows, cols = shape.cols, n_rows = 0, n_cols = 0;
    double sure = 0, cover = 0;
    for (int64_t j = 0; j < cols; j++) best[j] = 0;
    for (int64_t i = 0; i < rows; i++) {
        float most = 0;
        if (rows > 1 && special(fv_see_row(s, FV_SEE_CROSS, i))) continue;
        for (int64_t j = 0; j < cols; j++) {
            float v = w[i * cols + j];
            most = v > most ? v : most;
            best[j] = v > best[j] ? v : best[j];
        }
        sure += (double)most;
        n_rows++;
    }
    for (int64_t j = 0; j < cols; j++) {
        if (cols > 1 && special(fv_see_col(s, FV_SEE_CROSS, j))) continue;
        cover += (double)best[j];
        n_cols++;
    }
    return n_rows && n_cols ? sqrt(sure / (double)n_rows * (cover / (double)n_cols)) : 0;
}

/* Every head of the cross-attention is scored from its exact weights; ties go to the lowest layer
 * and head, so the choice repeats. */
fv_status fv_see_alignment(fv_see *s, fv_see_pick *best, double *score, fv_err *e)
{
    fv_see_pick p = {.kind = FV_SEE_CROSS};
    fv_status st = fv__see_check(s, p, e);
    if (st) return st;
    const fv_see_map *m = &s->map[FV_SEE_CROSS];
    size_t bytes = (size_t)((m->rows + 1) * m->cols) * sizeof(float);
    float *w = fv__alloc(s->env, bytes);
    double most = -1;
    if (!w) return fv_fail(e, FV_ENOMEM, "alignment: out of memory");
    *best = p;
    for (p.layer = 0; !st && p.layer < m->layers; p.layer++)
        for (p.head = 0; !st && p.head < m->heads; p.head++) {
            st = fv_see_weights(s, p, 0, m->rows, w, e);
            double here = st ? 0 : score_of(s, w, w + m->rows * m->cols);
            if (here > most) most = here, *best = p;
        }
    fv__free(s->env, w, bytes);
    if (score) *score = most;
    return st;
}
