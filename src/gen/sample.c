/* sample.c - the next token: logits processors, greedy choice and sampling on the host.
 *
 * Orders and ties are transformers': processors in the order of its list, the first of equal
 * scores, warpers in the order temperature, top-k, top-p, min-p, typical-p.  Sampling sorts only
 * what can still be chosen: top-k and top-p collect their candidates first, since sorting a
 * vocabulary for every token would cost more than a small model's step. */
#include "gen/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fovea/author/op.h"

/* ---- logits processors ---- */

/* repetition_penalty: positive scores are divided, negative ones multiplied, so that both become
 * less likely.  From the scores before it, so that a token that occurs twice is penalised once. */
static void penalise(float *score, fv_prefix f, float by, float *was)
{
    for (int64_t i = 0; i < f.n; i++) was[i] = score[f.ids[i]];
    for (int64_t i = 0; i < f.n; i++) score[f.ids[i]] = was[i] < 0 ? was[i] * by : was[i] / by;
}

/* no_repeat_ngram_size: wherever the last size-1 tokens occurred before, the token that followed
 * them is banned. */
static void ban_repeated_ngrams(float *score, fv_prefix f, int64_t size)
{
    const int32_t *tail = f.ids + f.n - (size - 1);
    for (int64_t i = 0; i + size <= f.n; i++)
        if (!memcmp(f.ids + i, tail, (size_t)(size - 1) * sizeof *tail))
            score[f.ids[i + size - 1]] = -INFINITY;
}

static void ban_bad_words(float *score, int64_t V, fv_prefix f, const fv_gen_opt *o)
{
    const int32_t *w = o->bad_words, *end = w + o->n_bad_words;
    for (int64_t n; w < end; w += n + 1) {
        for (n = 0; w + n < end && w[n] >= 0; n++) {}
        bool before = n > 0 && n - 1 <= f.n &&
                      !memcmp(w, f.ids + f.n - (n - 1), (size_t)(n - 1) * sizeof *w);
        if (before && w[n - 1] < V) score[w[n - 1]] = -INFINITY;
    }
}

/* encoder_no_repeat_ngram_size: wherever the last size-1 tokens occur in the source, the token that
 * follows them there is banned. */
static void ban_source_ngrams(float *score, int64_t V, fv_prefix f, int64_t size)
{
    const int32_t *source = f.source ? f.source : f.ids, *tail = f.ids + f.n - (size - 1);
    int64_t n = f.source ? f.n_source : f.prompt;
    for (int64_t i = 0; i + size <= n; i++) {
        int32_t next = source[i + size - 1]; /* of a vocabulary that may be another */
        if (next < V && !memcmp(source + i, tail, (size_t)(size - 1) * sizeof *tail))
            score[next] = -INFINITY;
    }
}

/* sequence_bias: all runs are compared with the same tokens, and biases of one token add up. */
static void add_biases(float *score, int64_t V, fv_prefix f, const fv_gen_opt *o)
{
    const int32_t *w = o->biased, *end = w + o->n_biased;
    const float *bias = o->bias;
    for (int64_t n; w < end; w += n + 1, bias++) {
        for (n = 0; w + n < end && w[n] >= 0; n++) {}
        bool before = n > 0 && n - 1 <= f.n &&
                      !memcmp(w, f.ids + f.n - (n - 1), (size_t)(n - 1) * sizeof *w);
        if (before && w[n - 1] < V) score[w[n - 1]] += *bias;
    }
}

/* Where the first token that is generated stands: behind one that is forced. */
static bool at_begin(const fv_gen_opt *o, fv_prefix f)
{
    return f.n == f.prompt + (f.prompt == 1 && o->forced_bos >= 0);
}

static bool too_early(const fv_gen_opt *o, fv_prefix f)
{
    return f.n < o->min_length || f.n - f.prompt < o->min_new_tokens;
}

static void ban_eos(float *score, const fv_gen_opt *o)
{
    if (o->eos >= 0) score[o->eos] = -INFINITY;
    for (int i = 0; i < o->n_ends; i++) score[o->ends[i]] = -INFINITY;
}

static void force(float *score, int64_t V, int32_t token)
{
    for (int64_t i = 0; i < V; i++) score[i] = i == token ? 0 : -INFINITY;
}

void fv__process_logits(float *score, int64_t V, fv_prefix f, const fv_gen_opt *o, float *scratch)
{
    int32_t forced = fv__forced_token(o, f);
    if (o->n_biased > 0) add_biases(score, V, f, o);
    if (o->repetition_penalty != 1) penalise(score, f, o->repetition_penalty, scratch);
    if (o->no_repeat_ngram_size > 0 && f.n + 1 >= o->no_repeat_ngram_size)
        ban_repeated_ngrams(score, f, o->no_repeat_ngram_size);
    if (o->encoder_no_repeat_ngram_size > 0 && f.n + 1 >= o->encoder_no_repeat_ngram_size)
        ban_source_ngrams(score, V, f, o->encoder_no_repeat_ngram_size);
    if (o->n_bad_words > 0) ban_bad_words(score, V, f, o);
    for (int i = 0; i < o->n_banned; i++) score[o->banned[i]] = -INFINITY;
    for (int i = 0; i < o->n_begin_banned && at_begin(o, f); i++)
        score[o->begin_banned[i]] = -INFINITY;
    if (too_early(o, f)) ban_eos(score, o);
    if (o->logits) o->logits(o->logits_user, score, V, f.ids, f.n);
    if (forced >= 0) force(score, V, forced);
}

int32_t fv__forced_token(const fv_gen_opt *o, fv_prefix f)
{
    if (o->forced_eos >= 0 && f.n == f.most - 1) return o->forced_eos;
    return o->forced_bos >= 0 && f.n == 1 ? o->forced_bos : -1;
}

bool fv__token_is_banned(const fv_gen_opt *o, fv_prefix f, int32_t token)
{
    int32_t forced = fv__forced_token(o, f);
    if (forced >= 0) return token != forced;
    if (fv__token_is_eos(token, o) && too_early(o, f)) return true;
    for (int i = 0; i < o->n_banned; i++)
        if (o->banned[i] == token) return true;
    for (int i = 0; i < o->n_begin_banned && at_begin(o, f); i++)
        if (o->begin_banned[i] == token) return true;
    return false;
}

bool fv__token_is_eos(int32_t token, const fv_gen_opt *o)
{
    bool ends = token == o->eos;
    for (int i = 0; i < o->n_ends && !ends; i++) ends = token == o->ends[i];
    return ends;
}

/* ---- greedy ---- */

#define ABREAST 16

/* The greatest score; independent lanes, so that the compiler vectorises the reduction. */
static float greatest(const float *score, int64_t V)
{
    float lane[ABREAST];
    int64_t i = 0;
    for (int k = 0; k < ABREAST; k++) lane[k] = -INFINITY;
    for (; i + ABREAST <= V; i += ABREAST)
        for (int k = 0; k < ABREAST; k++) lane[k] = score[i + k] > lane[k] ? score[i + k] : lane[k];
    for (; i < V; i++) lane[0] = score[i] > lane[0] ? score[i] : lane[0];
    for (int k = 1; k < ABREAST; k++) lane[0] = lane[k] > lane[0] ? lane[k] : lane[0];
    return lane[0];
}

double fv__log_sum_exp(const float *score, int64_t V)
{
    float top = greatest(score, V);
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += (double)expf(score[v] - top);
    return (double)top + log(sum);
}

void fv__log_softmax_row(float *score, int64_t V)
{
    double all = fv__log_sum_exp(score, V);
    for (int64_t v = 0; v < V; v++) score[v] = (float)((double)score[v] - all);
}

void fv__top_k(fv_candidate *out, int64_t k, const float *score, int64_t V)
{
    int64_t n = 0, i = 0;
    if (k == 1) { /* the usual case: find the value, then its index */
        float top = greatest(score, V);
        while (i < V - 1 && score[i] != top) i++;
        out[0] = (fv_candidate){score[i], (int32_t)i};
        return;
    }
    for (; i < V; i++) {
        if (n == k && !(score[i] > out[n - 1].score)) continue;
        int64_t at = n < k ? n++ : n - 1;
        for (; at > 0 && score[i] > out[at - 1].score; at--) out[at] = out[at - 1];
        out[at] = (fv_candidate){score[i], (int32_t)i};
    }
}

/* ---- sampling ---- */

static int best_first(const void *a, const void *b)
{
    const fv_candidate *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* All tokens with at least this score, in the order of their ids; branchless. */
static int64_t collect(fv_candidate *c, const float *score, int64_t V, float least)
{
    int64_t n = 0;
    for (int64_t i = 0; i < V; i++) {
        c[n] = (fv_candidate){score[i], (int32_t)i};
        n += score[i] >= least;
    }
    return n;
}

/* Replaces scores by softmax weights, exp((score - top) / temperature), not yet normalised;
 * returns their sum. */
static double softmax_weights(fv_candidate *c, int64_t n, float top, float heat)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)(c[i].score = expf((c[i].score - top) / heat));
    return sum;
}

/* top_k: the k best and, as in transformers, all that tie with the last of them. */
static int64_t collect_best(fv_candidate *c, const float *score, int64_t V, int64_t k)
{
    fv__top_k(c, k, score, V);
    return collect(c, score, V, c[k - 1].score);
}

/* Candidates of top_p: tokens that hold at least `share` of the probability, without sorting the
 * vocabulary.  The score threshold is lowered until the tokens above it hold enough. */
static int64_t collect_share(fv_candidate *c, double *all, const float *score, int64_t V, float top,
                             float heat, float share)
{
    *all = 0;
    for (int64_t i = 0; i < V; i++) *all += (double)expf((score[i] - top) / heat);
    for (float below = 8 * heat; below < 1e6f; below *= 2) {
        double held = 0;
        int64_t n = collect(c, score, V, top - below);
        for (int64_t i = 0; i < n; i++) held += (double)expf((c[i].score - top) / heat);
        if (held >= (double)share * *all) return n;
    }
    return collect(c, score, V, -INFINITY);
}

/* The number of leading weights that sum to at least `much`; at least `least`. */
static int64_t holding(const fv_candidate *c, int64_t n, double much, int64_t least)
{
    double held = 0;
    int64_t kept = 0;
    for (; kept < n && (kept < least || held < much); kept++) held += (double)c[kept].score;
    return kept;
}

/* The smallest run whose surprise is nearest to the expected one and which holds the share: c
 * moves to its start. */
static int64_t typical(fv_candidate **c, int64_t n, double share, int64_t least)
{
    const fv_candidate *w = *c;
    double sum = 0, expected = 0, held = 0;
    int64_t from = 0;
    while (n > 1 && w[n - 1].score <= 0) n--; /* a weight of 0 has no surprisal */
    for (int64_t i = 0; i < n; i++) sum += (double)w[i].score;
    for (int64_t i = 0; i < n; i++)
        expected -= (double)w[i].score / sum * log((double)w[i].score / sum);
    while (from < n && -log((double)w[from].score / sum) < expected) from++;
    int64_t to = from; /* the range grows from the entropy outwards */
    while ((held < share * sum || to - from < least) && to - from < n) {
        double left = from > 0 ? expected + log((double)w[from - 1].score / sum) : INFINITY;
        double right = to < n ? -log((double)w[to].score / sum) - expected : INFINITY;
        held += (double)(left <= right ? w[--from] : w[to++]).score;
    }
    *c += from;
    return to - from;
}

static int32_t sample_index(const fv_candidate *c, int64_t n, double u)
{
    double sum = 0, run = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)c[i].score;
    for (int64_t i = 0; i < n; i++)
        if ((run += (double)c[i].score) > u * sum) return c[i].token;
    return c[n - 1].token;
}

int64_t fv__sample_from(fv_candidate **out, const float *score, int64_t V, const fv_gen_opt *o,
                        int64_t least, fv_candidate *c)
{
    float top = greatest(score, V), heat = o->temperature;
    int64_t k = o->top_k > least ? o->top_k : least;
    bool some = o->top_k > 0 && k < V, part = o->top_p < 1;
    double all = 0;
    *out = c;
    int64_t n = some   ? collect_best(c, score, V, k)
                : part ? collect_share(c, &all, score, V, top, heat, o->top_p)
                       : collect(c, score, V, -INFINITY);
    if (!n) return 0; /* NaN scores: there are no weights to draw by */
    if (some || part || o->min_p > 0 || o->typical_p < 1)
        qsort(c, (size_t)n, sizeof *c, best_first);
    double sum = softmax_weights(c, n, top, heat);
    if (part) n = holding(c, n, (double)o->top_p * (some ? sum : all), least);
    while (n > least && o->min_p > 0 && c[n - 1].score < o->min_p * c[0].score) n--;
    if (o->typical_p < 1) n = typical(out, n, (double)o->typical_p, least);
    return n;
}

int32_t fv__sample_token(const float *score, int64_t V, const fv_gen_opt *o, double u,
                         fv_candidate *c)
{
    fv_candidate *from;
    int64_t n = fv__sample_from(&from, score, V, o, 1, c);
    if (n) return sample_index(from, n, u);
    fv__top_k(c, 1, score, V);
    return c[0].token;
}

int32_t fv__choose_token(float *logits, int64_t V, fv_prefix f, const fv_gen_opt *o, int64_t number,
                         float *scratch, fv_candidate *candidates)
{
    fv__process_logits(logits, V, f, o, scratch);
    if (o->do_sample) {
        uint32_t w[4];
        fv_philox(w, (uint64_t)o->seed, (uint64_t)number, (uint64_t)(f.n - f.prompt), 0);
        return fv__sample_token(logits, V, o, ((double)w[0] + 0.5) * 0x1p-32, candidates);
    }
    if (o->renormalize_logits) fv__log_softmax_row(logits, V);
    fv__top_k(candidates, 1, logits, V);
    return candidates[0].token;
}

/* log(weight / sum of weights) of a token among those that a draw could have given. */
static float drawn_score(const float *logits, int64_t V, const fv_gen_opt *o, int32_t token,
                         fv_candidate *candidates)
{
    fv_candidate *from;
    int64_t n = fv__sample_from(&from, logits, V, o, 1, candidates);
    double sum = 0, own = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)from[i].score;
        if (from[i].token == token) own = (double)from[i].score;
    }
    return own > 0 ? (float)log(own / sum) : -INFINITY;
}

/* Where probabilities are renormalised, those of what the rules leave add up to 1: greedy choice
 * has its logits as such log-probabilities already. */
fv_candidate fv__next_token(float *logits, int64_t V, fv_prefix f, const fv_gen_opt *o,
                            int64_t number, float *scratch, fv_candidate *candidates)
{
    double all = o->renormalize_logits ? 0 : fv__log_sum_exp(logits, V);
    fv_candidate best = {0};
    best.token = fv__choose_token(logits, V, f, o, number, scratch, candidates);
    float score = logits[best.token];
    if (o->renormalize_logits && o->do_sample)
        score = drawn_score(logits, V, o, best.token, candidates);
    best.score = isfinite(score) ? (float)((double)score - all) : 0;
    return best;
}
