/* rnnt.c - the transducer loss: minus the log-likelihood of the labels over all monotonic
 * alignments.
 *
 * A path runs over the grid (t,u) from (0,0): a blank moves to t+1, label u moves to u+1, and the
 * last step is the blank at (tlen-1, ulen).  alpha(t,u) is the log of the probability of arriving
 * at (t,u), beta(t,u) of getting from there to the end, both by log-sum-exp, so that no product of
 * many probabilities is ever formed. */
#include "backend/ref/lattice.h"

/* One sequence of the batch. */
typedef struct {
    const void *lp;
    const int32_t *labels;
    /* T frames and U labels of this sequence; U1, V: the strides of the memory */
    int64_t T, U, U1, V;
    int64_t base; /* grid point (0,0) in (B,T,U1) */
    int32_t blank;
} grid;

static int64_t point(const grid *g, int64_t t, int64_t u) { return g->base + t * g->U1 + u; }
static int64_t blank_at(const grid *g, int64_t t, int64_t u)
{
    return point(g, t, u) * g->V + g->blank;
}
static int64_t label_at(const grid *g, int64_t t, int64_t u)
{
    return point(g, t, u) * g->V + g->labels[u];
}

static bool grid_of(fv_stream *s, grid *g, const void *lp, const int32_t *labels,
                    const int32_t *tlen, const int32_t *ulen, int64_t b, int64_t T, int64_t U1,
                    int64_t V, int32_t blank)
{
    *g = (grid){lp, labels + b * (U1 - 1), tlen[b], ulen[b], U1, V, b * T * U1, blank};
    return lattice_fits(s, "rnnt", b, tlen[b], g->labels, ulen[b], T, U1 - 1, V, blank);
}

/*    alpha(t,u) = log_add(alpha(t-1,u) + blank(t-1,u), alpha(t,u-1) + label(t,u-1))
 *    loss = -(alpha(T-1,U) + blank(T-1,U))                      lp (B,T,U+1,V), O(T U) a sequence
 */
static void rnnt(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
                 const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U1,
                 int64_t V, int32_t blank)
{
    for (int64_t b = 0; b < B; b++) {
        grid g;
        if (!grid_of(s, &g, lp, labels, tlen, ulen, b, T, U1, V, blank)) return;
        for (int64_t t = 0; t < g.T; t++)
            for (int64_t u = 0; u <= g.U; u++) {
                acc by_blank = t ? lds(alpha, point(&g, t - 1, u)) + ld(lp, blank_at(&g, t - 1, u))
                                 : -INFINITY;
                acc by_label = u ? lds(alpha, point(&g, t, u - 1)) + ld(lp, label_at(&g, t, u - 1))
                                 : -INFINITY;
                sts(alpha, point(&g, t, u), t || u ? log_add(by_blank, by_label) : 0);
            }
        sts(loss, b, -lds(alpha, point(&g, g.T - 1, g.U)) - ld(lp, blank_at(&g, g.T - 1, g.U)));
    }
}

/* d loss / d lp of a step = -exp(alpha before + lp + beta after + loss): the share of all paths
 * that take it.  Walks the grid from its end; beta holds row t+1 until row t overwrites it. */
static void sequence_bwd(fv_sink dlp, acc d, acc loss, const fv_stat *alpha, const grid *g,
                         acc *beta)
{
    for (int64_t t = g->T - 1; t >= 0; t--)
        for (int64_t u = g->U; u >= 0; u--) {
            bool end = t == g->T - 1 && u == g->U;
            acc before = lds(alpha, point(g, t, u)) + loss;
            acc down = end ? 0 : t < g->T - 1 ? beta[u] : -INFINITY;
            acc by_blank = ld(g->lp, blank_at(g, t, u)) + down;
            acc by_label = u < g->U ? ld(g->lp, label_at(g, t, u)) + beta[u + 1] : -INFINITY;
            if (by_blank > -INFINITY)
                sink_store(dlp, blank_at(g, t, u), -d * EXP(before + by_blank));
            if (by_label > -INFINITY)
                sink_store(dlp, label_at(g, t, u), -d * EXP(before + by_label));
            beta[u] = log_add(by_blank, by_label);
        }
}

static void rnnt_bwd(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
                     const fv_stat *alpha, const void *lp, const int32_t *labels,
                     const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U1,
                     int64_t V, int32_t blank)
{
    if (!dlp.data) return;
    acc *beta = fv_stream_scratch(s, (size_t)U1 * sizeof *beta);
    if (!beta) return;
    if (!dlp.add) /* steps that no path takes, and all beyond the lengths */
        for (int64_t i = 0; i < B * T * U1 * V; i++) sink_store(dlp, i, 0);
    for (int64_t b = 0; b < B; b++) {
        grid g;
        if (!grid_of(s, &g, lp, labels, tlen, ulen, b, T, U1, V, blank)) return;
        sequence_bwd(dlp, lds(dloss, b), lds(loss, b), alpha, &g, beta);
    }
}

void REF(rnnt)(fv_kernels *k);
void REF(rnnt)(fv_kernels *k)
{
    k->rnnt = rnnt;
    k->rnnt_bwd = rnnt_bwd;
}
