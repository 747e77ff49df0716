/* flow.c - attention flow: how much can go from a prediction down to each token of the text.
 *
 * Abnar and Zuidema (2020): the layers are a network.  Node (l,i) is token i above layer l; from
 * (l+1,i) to (l,j) goes an edge of capacity ((A + I) / 2)[i][j], A the mean of the heads of layer
 * l.  The score of a token is the greatest flow from where the prediction reads to (0,j) alone.
 *
 * Greatest flows by Dinic (1970): shortest augmenting paths, whole levels at a time.  The network
 * is dense between layers, so capacities are matrices and there are no edge lists; flow that was
 * sent down an edge is capacity back up.  One flow for each token: time grows with layers times
 * the fourth power of the length in the worst case, which is why long texts are refused.  (Push
 * and relabel was the alternative: no faster on layers this shallow, and harder to check.) */
#include "see.h"

typedef struct net {
    int64_t layers, n;
    const float *cap; /* (layers,n,n): down from (l+1,i) to (l,j) */
    double *sent;     /* (layers,n,n) */
    const double *top;
    double *used;                  /* (n): of what top lets in */
    int32_t *level, *next, *queue; /* ((layers+1) n) */
    int64_t sink;
} net;

static const double LEAST = 1e-9; /* capacities are f32: less is rounding */

static double down(const net *g, int64_t l, int64_t i, int64_t j)
{
    int64_t at = (l * g->n + i) * g->n + j;
    return (double)g->cap[at] - g->sent[at];
}

static double up(const net *g, int64_t l, int64_t i, int64_t j)
{
    return g->sent[(l * g->n + i) * g->n + j];
}

/* Capacity from node (l,i) to its k-th neighbour: the n below, then the n above. */
static double open_to(const net *g, int64_t l, int64_t i, int64_t k, int64_t *to)
{
    bool above = k >= g->n;
    int64_t j = above ? k - g->n : k;
    *to = (above ? l + 1 : l - 1) * g->n + j;
    if (above) return l < g->layers ? up(g, l, j, i) : 0;
    return l > 0 ? down(g, l - 1, i, j) : 0;
}

/* Levels by breadth first from what top still lets in; false where the sink is not reached. */
static bool find_levels(net *g)
{
    int64_t all = (g->layers + 1) * g->n, head = 0, tail = 0, to;
    for (int64_t v = 0; v < all; v++) g->level[v] = -1, g->next[v] = 0;
    for (int64_t i = 0; i < g->n; i++)
        if (g->top[i] - g->used[i] > LEAST) {
            g->level[g->layers * g->n + i] = 0;
            g->queue[tail++] = (int32_t)(g->layers * g->n + i);
        }
    while (head < tail) {
        int64_t v = g->queue[head++], l = v / g->n, i = v % g->n;
        for (int64_t k = 0; k < 2 * g->n; k++) {
            if (open_to(g, l, i, k, &to) <= LEAST || g->level[to] >= 0) continue;
            g->level[to] = g->level[v] + 1;
            g->queue[tail++] = (int32_t)to;
        }
    }
    return g->level[g->sink] >= 0;
}

/* Sends up to `most` from node v to the sink along rising levels; how much got there. */
static double push(net *g, int64_t v, double most)
{
    int64_t l = v / g->n, i = v % g->n, to;
    double left = most;
    if (v == g->sink) return most;
    for (; g->next[v] < 2 * g->n; g->next[v]++) {
        int64_t k = g->next[v];
        double room = open_to(g, l, i, k, &to);
        if (room <= LEAST || g->level[to] != g->level[v] + 1) continue;
        double got = push(g, to, room < left ? room : left);
        bool above = k >= g->n;
        int64_t below = above ? l : l - 1, from = above ? k - g->n : i, into = above ? i : k;
        g->sent[(below * g->n + from) * g->n + into] += above ? -got : got;
        left -= got;
        if (left <= LEAST) break; /* this neighbour may take more: next stays at it */
    }
    return most - left;
}

static double greatest(net *g)
{
    double sum = 0;
    memset(g->sent, 0, (size_t)(g->layers * g->n * g->n) * sizeof *g->sent);
    memset(g->used, 0, (size_t)g->n * sizeof *g->used);
    while (find_levels(g))
        for (int64_t i = 0; i < g->n; i++) {
            double room = g->top[i] - g->used[i];
            if (room <= LEAST) continue;
            double got = push(g, g->layers * g->n + i, room);
            g->used[i] += got;
            sum += got;
        }
    return sum;
}

fv_status fv__explain_flow(const fv_env *env, const float *cap, int64_t layers, int64_t n,
                           const double *top, float *out, fv_err *e)
{
    net g = {.layers = layers, .n = n, .cap = cap, .top = top};
    int64_t nodes = (layers + 1) * n;
    size_t doubles = (size_t)(layers * n * n + n) * sizeof(double),
           ints = (size_t)(3 * nodes) * sizeof(int32_t);
    g.sent = fv__alloc(env, doubles);
    g.level = fv__alloc(env, ints);
    fv_status st = g.sent && g.level ? FV_OK : fv_fail(e, FV_ENOMEM, "flow: out of memory");
    if (!st) g.used = g.sent + layers * n * n, g.next = g.level + nodes, g.queue = g.next + nodes;
    for (int64_t j = 0; !st && j < n; j++) {
        g.sink = j;
        out[j] = (float)greatest(&g);
    }
    fv__free(env, g.sent, doubles);
    fv__free(env, g.level, ints);
    return st;
}

fv_status fv__see_capacities(fv_see *s, fv_see_kind k, int64_t layers, float *out, float *scratch,
                             fv_err *e)
{
    const fv_see_map *m = &s->map[k];
    fv_status st = FV_OK;
    for (int64_t l = 0; !st && l < layers; l++) {
        float *a = out + l * m->rows * m->cols;
        st = fv__see_layer_rows(s, k, l, FV_SEE_ALL, 0, m->rows, a, scratch, e);
        for (int64_t i = 0; !st && i < m->rows; i++) {
            float sum = 1;
            for (int64_t j = 0; j < m->cols; j++) sum += a[i * m->cols + j];
            a[i * m->cols + i] += 1;
            for (int64_t j = 0; j < m->cols; j++) a[i * m->cols + j] /= sum;
        }
    }
    return st;
}

/* One flow for each row and token: what enters above is 1, at the row. */
fv_status fv__see_flow(fv_see *s, fv_see_kind k, int64_t layer, int64_t from, int64_t to,
                       float *out, fv_err *e)
{
    int64_t n = s->map[k].rows, layers = layer + 1;
    if (k == FV_SEE_CROSS || n != s->map[k].cols)
        return fv_fail(e, FV_EARG, "flow goes through self-attention, layer by layer");
    if (n > FV_SEE_FLOW)
        return fv_fail(e, FV_EARG, "flow: the text has %lld tokens, at most %d are taken",
                       (long long)n, FV_SEE_FLOW);
    size_t bytes = (size_t)((layers + 1) * n * n) * sizeof(float),
           tops = (size_t)n * sizeof(double);
    float *cap = fv__alloc(s->env, bytes);
    double *top = fv__alloc(s->env, tops);
    fv_status st = cap && top ? FV_OK : fv_fail(e, FV_ENOMEM, "flow: out of memory");
    if (!st) st = fv__see_capacities(s, k, layers, cap, cap + layers * n * n, e);
    for (int64_t i = from; !st && i < to; i++) {
        for (int64_t j = 0; j < n; j++) top[j] = j == i;
        st = fv__explain_flow(s->env, cap, layers, n, top, out + (i - from) * n, e);
    }
    fv__free(s->env, cap, bytes);
    fv__free(s->env, top, tops);
    return st;
}
