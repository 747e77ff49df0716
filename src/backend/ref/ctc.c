/* ctc.c - connectionist temporal classification (Graves et al. 2006): minus the log-likelihood of
 * the labels over all ways to spread them over the frames.
 *
 * A frame says a label or the blank; what is said several times in a row counts once, and blanks
 * are dropped.  States s = 0 .. 2U are the labels with a blank around each: e(s) is the blank where
 * s is even, else labels[(s-1)/2].  alpha(t,s) is the log of the probability of saying e(0) .. e(s)
 * in frames 0 .. t, the last of them e(s). */
#include "backend/ref/lattice.h"

/* One sequence of the batch: T frames and S = 2U + 1 states; V, width: the strides of lp and of
 * alpha. */
typedef struct {
    const void *lp;
    const int32_t *labels;
    int64_t T, S, V, width;
    int64_t lp_at, alpha_at; /* frame 0 */
    int32_t blank;
} chain;

static int32_t said(const chain *g, int64_t s) { return s % 2 ? g->labels[s / 2] : g->blank; }

static acc lp_of(const chain *g, int64_t t, int64_t s)
{
    return ld(g->lp, g->lp_at + t * g->V + said(g, s));
}

/* The blank between two different labels may be left out. */
static bool skips(const chain *g, int64_t s)
{
    return s % 2 && s >= 2 && said(g, s) != said(g, s - 2);
}

static bool chain_of(fv_stream *s, chain *g, const void *lp, const int32_t *labels,
                     const int32_t *tlen, const int32_t *ulen, int64_t b, int64_t T, int64_t U,
                     int64_t V, int32_t blank)
{
    int64_t width = 2 * U + 1;
    *g = (chain){.lp = lp,
                 .labels = labels + b * U,
                 .T = tlen[b],
                 .S = 2 * (int64_t)ulen[b] + 1,
                 .V = V,
                 .width = width,
                 .lp_at = b * T * V,
                 .alpha_at = b * T * width,
                 .blank = blank};
    return lattice_fits(s, "ctc", b, tlen[b], g->labels, ulen[b], T, U, V, blank);
}

/*    alpha(t,s) = lp(t,e(s)) + log_add(alpha(t-1,s), alpha(t-1,s-1), alpha(t-1,s-2) where it skips)
 *    loss = -log_add(alpha(T-1,2U), alpha(T-1,2U-1))              lp (B,T,V), O(T U) a sequence
 *
 * Infinite where the labels do not fit into the frames. */
static void ctc(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
                const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U,
                int64_t V, int32_t blank)
{
    for (int64_t b = 0; b < B; b++) {
        chain g;
        if (!chain_of(s, &g, lp, labels, tlen, ulen, b, T, U, V, blank)) return;
        for (int64_t t = 0; t < g.T; t++)
            for (int64_t k = 0; k < g.S; k++) {
                int64_t at = g.alpha_at + t * g.width + k, was = at - g.width;
                acc sum = !t && k < 2 ? 0 : -INFINITY;
                if (t) sum = lds(alpha, was);
                if (t && k >= 1) sum = log_add(sum, lds(alpha, was - 1));
                if (t && skips(&g, k)) sum = log_add(sum, lds(alpha, was - 2));
                sts(alpha, at, sum + lp_of(&g, t, k));
            }
        int64_t end = g.alpha_at + (g.T - 1) * g.width + g.S - 1;
        acc sum = lds(alpha, end);
        if (g.S > 1) sum = log_add(sum, lds(alpha, end - 1));
        sts(loss, b, -sum);
    }
}

/* beta(s) of frame t, the log of the probability of what follows it, from that of frame t + 1; in
 * place, from the first state on: each needs its own and later ones only. */
static void beta_step(const chain *g, int64_t t, acc *beta)
{
    for (int64_t k = 0; k < g->S; k++) {
        if (t == g->T - 1) {
            beta[k] = k >= g->S - 2 ? 0 : -INFINITY;
            continue;
        }
        acc sum = beta[k] + lp_of(g, t + 1, k);
        if (k + 1 < g->S) sum = log_add(sum, beta[k + 1] + lp_of(g, t + 1, k + 1));
        if (k + 2 < g->S && skips(g, k + 2))
            sum = log_add(sum, beta[k + 2] + lp_of(g, t + 1, k + 2));
        beta[k] = sum;
    }
}

/* loss = -log sum over all ways of the product of their lp:  d loss / d lp(t,v) is minus the share
 * of the ways that say v in frame t,  sum over e(s) = v of exp(alpha(t,s) + beta(t,s) + loss). */
static void ctc_bwd(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
                    const fv_stat *alpha, const void *lp, const int32_t *labels,
                    const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U,
                    int64_t V, int32_t blank)
{
    if (!dlp.data) return;
    acc *row = fv_stream_scratch(s, (size_t)(V + 2 * U + 1) * sizeof *row);
    if (!row) return;
    acc *beta = row + V;
    for (int64_t b = 0; b < B; b++) {
        chain g;
        if (!chain_of(s, &g, lp, labels, tlen, ulen, b, T, U, V, blank)) return;
        acc all = lds(loss, b), d = lds(dloss, b);
        for (int64_t t = T - 1; t >= 0; t--) {
            for (int64_t v = 0; v < V; v++) row[v] = 0;
            if (t < g.T) beta_step(&g, t, beta);
            /* no way at all: there is nothing to learn from the sequence */
            for (int64_t k = 0; t < g.T && all < INFINITY && k < g.S; k++)
                row[said(&g, k)] += EXP(lds(alpha, g.alpha_at + t * g.width + k) + beta[k] + all);
            for (int64_t v = 0; v < V; v++)
                sink_store(dlp, g.lp_at + t * V + v, row[v] > 0 ? -d * row[v] : 0);
        }
    }
}

void REF(ctc)(fv_kernels *k);
void REF(ctc)(fv_kernels *k)
{
    k->ctc = ctc;
    k->ctc_bwd = ctc_bwd;
}
