/* pick.c - the next token. */
#include <math.h>
#include <stdlib.h>

#include "gen/pick.h"

/* Positive scores are divided, negative ones multiplied: both become less likely. */
static void penalise(float *score, const int32_t *so_far, int64_t n, float by)
{
    for (int64_t i = 0; i < n; i++) {
        bool again = false;
        for (int64_t j = 0; j < i && !again; j++) again = so_far[j] == so_far[i];
        if (again) continue;
        float *s = &score[so_far[i]];
        *s = *s < 0 ? *s * by : *s / by;
    }
}

bool fv__pick_forced(const fv_gen_opt *o, int64_t n) { return o->forced_eos >= 0 && n == o->max_length - 1; }

bool fv__pick_ruled_out(const fv_gen_opt *o, int64_t n, int32_t token)
{
    if (fv__pick_forced(o, n)) return token != o->forced_eos;
    if (token == o->eos && n < o->min_length) return true;
    for (int i = 0; i < o->n_banned; i++)
        if (o->banned[i] == token) return true;
    return false;
}

void fv__pick_rules(float *score, int64_t V, const int32_t *so_far, int64_t n, const fv_gen_opt *o)
{
    if (o->repetition_penalty != 1) penalise(score, so_far, n, o->repetition_penalty);
    for (int i = 0; i < o->n_banned; i++) score[o->banned[i]] = -INFINITY;
    if (n < o->min_length && o->eos >= 0) score[o->eos] = -INFINITY;
    if (fv__pick_forced(o, n))
        for (int64_t i = 0; i < V; i++) score[i] = i == o->forced_eos ? 0 : -INFINITY;
}

double fv__pick_log_sum(const float *score, int64_t V)
{
    double sum = 0, most = -INFINITY;
    for (int64_t v = 0; v < V; v++)
        if ((double)score[v] > most) most = (double)score[v];
    for (int64_t v = 0; v < V; v++) sum += exp((double)score[v] - most);
    return most + log(sum);
}

void fv__pick_renormalise(float *score, int64_t V)
{
    double all = fv__pick_log_sum(score, V);
    for (int64_t v = 0; v < V; v++) score[v] = (float)((double)score[v] - all);
}

void fv__pick_best(fv_pick *out, int64_t k, const float *score, int64_t V)
{
    int64_t n = 0;
    for (int64_t i = 0; i < V; i++) {
        if (n == k && !(score[i] > out[n - 1].score)) continue;
        int64_t at = n < k ? n++ : n - 1;
        for (; at > 0 && score[i] > out[at - 1].score; at--) out[at] = out[at - 1];
        out[at] = (fv_pick){score[i], (int32_t)i};
    }
}

static int best_first(const void *a, const void *b)
{
    const fv_pick *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

int32_t fv__pick_sample(const float *score, int64_t V, const fv_gen_opt *o, double u, fv_pick *c)
{
    for (int64_t i = 0; i < V; i++) c[i] = (fv_pick){score[i] / o->temperature, (int32_t)i};
    qsort(c, (size_t)V, sizeof *c, best_first);
    int64_t n = o->top_k > 0 && o->top_k < V ? o->top_k : V;
    while (n < V && n > 0 && c[n].score == c[n - 1].score) n++; /* all that tie with the last are kept */

    double sum = 0, part = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)(c[i].score - c[0].score));
    int64_t kept = 0;
    for (; kept < n && (kept == 0 || part < (double)o->top_p * sum); kept++) part += exp((double)(c[kept].score - c[0].score));
    double at = u * part, run = 0;
    for (int64_t i = 0; i < kept; i++) {
        run += exp((double)(c[i].score - c[0].score));
        if (run > at) return c[i].token;
    }
    return c[kept - 1].token;
}
