/* beam.cu - one step of beam search on the device; the host reads back only which sources have
 * finished.
 *
 * Three kernels:
 * 1. best_of_rows: the best continuations of each beam; a block per part of the vocabulary.  Each
 *    thread holds the best of its tokens; the block takes the best of those, and only the thread it
 *    came from scans again.
 * 2. select_beams: one block per source merges the candidates of its beams, ends and keeps
 *    hypotheses as gen/beam.c does on the host, and records each beam's parent.
 * 3. move_beams: reorders the KV caches without a second buffer.  A thread holds the same bytes of
 *    all beams of a source, reads all, then writes.  Beams with a common prefix copy only what
 *    follows it. */
#include "sample.h"

#include <climits>

namespace
{

/* Block sizes of the three kernels; tokens per part of a row, and the most parts.  Parts depend on
 * the vocabulary alone, so a score has the same bits on every GPU and in every batch. */
enum { ROW = 256, SOURCE = 128, MOVE = 256, PART = 4096, PARTS = 16 };
#define NEVER_WINS (-1.0e9f)

/* ---- candidates of each row ---- */

/* Softmax statistics of a part: max and sum of exp(score - max). */
struct weight {
    float most, sum;
};

typedef unsigned long long rating; /* sample.h: orderable (score, token); 0: none */
__device__ inline float score_of(rating r)
{
    unsigned b = (unsigned)(r >> 32);
    return __uint_as_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}

/* Max over the block, to all threads. */
__device__ inline rating best_of_block(rating r)
{
    __shared__ rating part[ROW / 32];
    for (int by = 16; by; by /= 2) r = max(r, __shfl_xor_sync(~0u, r, by));
    __syncthreads(); /* an earlier call may still be reading part */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = r;
    __syncthreads();
    r = part[0];
    for (int w = 1; w < ROW / 32; w++) r = max(r, part[w]);
    return r;
}

/* Tokens [from, to) of a row.  out: tokens that must not come, by rule or because the minimum
 * length is not reached. */
template <class T> struct part_of_row {
    const T *logits;
    const uint8_t *token_flags;
    int64_t from, to;
    bool may_end;
    __device__ bool out(int64_t v) const
    {
        int kind = token_flags[v];
        return kind & FV_TOKEN_BANNED || (kind & FV_TOKEN_EOS && !may_end);
    }
    /* The best of this thread's tokens that ranks below `before`. */
    __device__ rating best(rating before) const
    {
        rating best = 0;
#pragma unroll 4
        for (int64_t v = from + threadIdx.x; v < to; v += ROW) {
            rating r = out(v) ? 0 : rated(to_float(logits[v]), (int)v);
            if (r < before) best = max(best, r);
        }
        return best;
    }
    __device__ weight softmax_stat(bool renormalize) const
    {
        float most = -INFINITY, sum = 0;
        for (int64_t v = from + threadIdx.x; v < to; v += ROW)
            if (!renormalize || !out(v)) most = fmaxf(most, to_float(logits[v]));
        most = block_allreduce(most, max_op());
        for (int64_t v = from + threadIdx.x; v < to && most != -INFINITY; v += ROW)
            if (!renormalize || !out(v)) sum += expf(to_float(logits[v]) - most);
        return {most, block_allreduce(sum, sum_op())};
    }
};

/* Block (part, row). */
template <class T>
__global__ void __launch_bounds__(ROW)
    best_of_rows(const __grid_constant__ fv_beams a, weight *weights, rating *best)
{
    int64_t row = blockIdx.y, i = a.source[row / a.K], part = row * gridDim.x + blockIdx.x;
    int64_t each = ceil_div(a.V, gridDim.x), from = blockIdx.x * each,
            to = from + each < a.V ? from + each : a.V;
    if (a.over[i]) return;
    part_of_row<T> r = {(const T *)a.logits + row * a.V, a.token_flags, from, to,
                        a.made[i] >= a.min_new[i]};
    weight w = r.softmax_stat(a.renormalize);
    if (threadIdx.x == 0) weights[part] = w;
    rating mine = r.best(~0ull);
    for (int64_t j = 0; j < a.wide; j++) {
        rating top = best_of_block(mine);
        if (threadIdx.x == 0) best[part * a.wide + j] = top;
        if (mine == top && top) mine = r.best(top);
    }
}

/* ---- beams of each source ---- */

/* A candidate: a beam and its next token. */
struct option {
    float total, logit;
    int beam, token; /* beam -1: none */
};

/* Order of candidates: total score, then beam, then logit, then token. */
__device__ inline bool before(const option &x, const option &y)
{
    if (x.beam < 0 || y.beam < 0) return x.beam >= 0 && y.beam < 0;
    if (x.total != y.total) return x.total > y.total;
    if (x.beam != y.beam) return x.beam < y.beam;
    return x.logit != y.logit ? x.logit > y.logit : x.token < y.token;
}

__device__ inline option first_of(option x, option y) { return before(y, x) ? y : x; }

__device__ inline option first_of_block(option o)
{
    __shared__ option part[SOURCE / 32];
    for (int by = 16; by; by /= 2) {
        option other = {__shfl_xor_sync(~0u, o.total, by), __shfl_xor_sync(~0u, o.logit, by),
                        __shfl_xor_sync(~0u, o.beam, by), __shfl_xor_sync(~0u, o.token, by)};
        o = first_of(o, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = o;
    __syncthreads();
    o = part[0];
    for (int w = 1; w < SOURCE / 32; w++) o = first_of(o, part[w]);
    return o;
}

/* State of a source in smem: its beams, candidates (best first) and finished hypotheses.
 * About 3 KB of shared memory a source; FV_BEAMS_MAX bounds K. */
struct table {
    /* log-sum-exp of a beam's logits is most + all */
    float score[FV_BEAMS_MAX], most[FV_BEAMS_MAX], all[FV_BEAMS_MAX];
    option options[FV_BEAMS_MAX_CANDIDATES], kept[FV_BEAMS_MAX];
    bool ends[FV_BEAMS_MAX_CANDIDATES];
    fv_ended done[FV_BEAMS_MAX];
    int common[FV_BEAMS_MAX * FV_BEAMS_MAX];
    bool over;
};

/* The best of this thread's share of best (K,parts,wide) that ranks below `last`. */
__device__ inline option next_option(const table &t, const rating *best, int K, int each,
                                     const option &last)
{
    option first = {0, 0, -1, 0};
    for (int c = (int)threadIdx.x; c < K * each; c += SOURCE) {
        rating r = best[c];
        int k = c / each;
        float logit = score_of(r);
        if (!r || logit == -INFINITY) continue;
        option o = {t.score[k] + (logit - t.most[k] - t.all[k]), logit, k, token_of(r)};
        if (last.beam < 0 || before(last, o)) first = first_of(first, o);
    }
    return first;
}

/* Sorts the best `wide` candidates into t.options; returns how many there are. */
__device__ inline int order_options(table &t, const rating *best, int K, int each, int wide)
{
    option none = {0, 0, -1, 0}, mine = next_option(t, best, K, each, none);
    for (int n = 0; n < wide; n++) {
        option top = first_of_block(mine);
        if (top.beam < 0) return n;
        if (threadIdx.x == 0) t.options[n] = top;
        if (mine.beam == top.beam && mine.token == top.token)
            mine = next_option(t, best, K, each, top);
    }
    return wide;
}

/* Inserts h into the K best finished hypotheses, best first; of equals the older stays. */
__device__ inline void finish(fv_ended *done, int K, fv_ended h)
{
    if (!(h.score > done[K - 1].score)) return;
    int k = K - 1;
    for (; k > 0 && h.score > done[k - 1].score; k--) done[k] = done[k - 1];
    done[k] = h;
}

/* One thread: which of n candidates end, which continue, and whether the source has finished. */
__device__ inline void go_on(const fv_beams &a, table &t, int n, int made, int last)
{
    int K = (int)a.K, have = 0;
    const fv_ended *worst = &t.done[K - 1]; /* filled last */
    double scale = a.penalty[made + 1], hope = a.penalty[a.hopeful ? last + 1 : made + 1];
    bool full = a.early && worst->made >= 0;
    for (int j = 0; j < n && j < K && !full; j++) {
        const option &o = t.options[j];
        if (t.ends[j]) finish(t.done, K, {(float)((double)o.total / scale), made, o.beam, o.token});
    }
    for (int j = 0; j < n && have < K; j++)
        if (!t.ends[j]) t.kept[have++] = t.options[j];
    t.over = !have; /* every candidate ended: the length limit */
    /* fewer candidates than beams: the rest copy the first, with a score that never wins */
    for (; have < K; have++) {
        t.kept[have] = have ? t.kept[0] : option{0, 0, 0, a.pad};
        t.kept[have].total = NEVER_WINS;
    }
    bool beaten = !((float)((double)t.kept[0].total / hope) > worst->score);
    t.over = t.over || beaten || (a.early && worst->made >= 0);
}

/* Reordering of a beam's caches: its parent, and the range of positions to copy. */
struct move {
    int from, first, end;
};

/* Block p: the p-th active source.  Steps: load the source's state; merge the parts' softmax
 * statistics; sort candidates (or take the forced token); one thread decides (go_on); update
 * common prefixes, tokens, parents, scores and positions; write the moves for the third kernel. */
__global__ void __launch_bounds__(SOURCE)
    select_beams(const __grid_constant__ fv_beams a, const weight *weights, const rating *best,
                 int parts, move *moves)
{
    __shared__ table t;
    int K = (int)a.K, k = (int)threadIdx.x, each = parts * (int)a.wide, n = K;
    int64_t p = blockIdx.x, i = a.source[p], rows = a.sources * K;
    if (k < K) moves[p * K + k] = {k, 0, 0};
    if (a.over[i]) return;
    int made = a.made[i], last = a.max_new[i], len = a.position[p * K] + 1;
    bool is_first = a.forced_first >= 0 && made == 0, is_last = a.forced_last >= 0 && made == last;
    if (k < K) {
        const weight *w = weights + (p * K + k) * parts;
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < parts; j++) most = fmaxf(most, w[j].most);
        for (int j = 0; j < parts; j++) sum += w[j].sum > 0 ? w[j].sum * expf(w[j].most - most) : 0;
        t.most[k] = most;
        t.all[k] = logf(sum);
        t.score[k] = a.score[i * K + k];
        t.done[k] = a.done[i * K + k];
    }
    for (int c = k; c < K * K; c += SOURCE) t.common[c] = a.common[i * K * K + c];
    __syncthreads();
    if (!is_first && !is_last)
        n = order_options(t, best + p * K * each, K, each, (int)a.wide);
    else if (k < K)
        t.options[k] = {t.score[k], 0, k, is_last ? a.forced_last : a.forced_first};
    __syncthreads();
    if (k < n) t.ends[k] = made >= last || a.token_flags[t.options[k].token] & FV_TOKEN_EOS;
    __syncthreads();
    if (k == 0) go_on(a, t, n, made, last);
    __syncthreads();
    for (int c = k; c < K * K; c += SOURCE) {
        int x = t.kept[c / K].beam, y = t.kept[c % K].beam;
        a.common[i * K * K + c] = x == y ? len : t.common[x * K + y];
    }
    if (k == 0) {
        a.made[i] = made + 1;
        a.over[i] = t.over;
    }
    if (k >= K) return;
    const option &o = t.kept[k];
    int64_t at = ((int64_t)made * a.all + i) * K + k;
    a.tokens[at] = a.token[p * K + k] = o.token;
    a.parents[at] = o.beam;
    a.score[i * K + k] = o.total;
    a.done[i * K + k] = t.done[k];
    for (int64_t q = 0; q < a.n_positions; q++) a.position[q * rows + p * K + k]++;
    moves[p * K + k] = {o.beam, t.common[k * K + o.beam], len};
}

/* ---- KV caches ---- */

/* P: the vector a thread moves.
 * All reads of a thread come before its writes, and no other thread touches those bytes: a
 * permutation in place, cycles included. */
template <int M, class P>
__device__ inline void move_packs(const fv_cache_rows &c, const move *m, int K, int first)
{
    char *rows = (char *)c.data + (size_t)blockIdx.z * K * c.row;
    int64_t packs = (int64_t)(c.token / sizeof(P)), end = m[0].end * packs;
    for (int64_t i = first * packs + blockIdx.x * MOVE + threadIdx.x; i < end;
         i += gridDim.x * MOVE) {
        int t = (int)(i / packs);
        P v[M];
        for (int k = 0; k < M; k++)
            if (k < K && m[k].from != k && t >= m[k].first)
                v[k] = ((const P *)(rows + (size_t)m[k].from * c.row))[i];
        for (int k = 0; k < M; k++)
            if (k < K && m[k].from != k && t >= m[k].first)
                ((P *)(rows + (size_t)k * c.row))[i] = v[k];
    }
}

/* Block (chunk, cache, source), for up to M beams. */
template <int M>
__global__ void __launch_bounds__(MOVE)
    move_beams(const __grid_constant__ fv_beams a, const move *moves)
{
    __shared__ move m[M];
    int K = (int)a.K, first = INT_MAX;
    if ((int)threadIdx.x < K) m[threadIdx.x] = moves[blockIdx.z * K + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < K; k++)
        if (m[k].from != k && m[k].first < first) first = m[k].first;
    if (first >= m[0].end) return;
    const fv_cache_rows c = a.cache[blockIdx.y];
    if (c.token % sizeof(uint4) == 0)
        move_packs<M, uint4>(c, m, K, first);
    else
        move_packs<M, uint16_t>(c, m, K, first); /* any 16-bit type */
}

/* Scratch: ratings, softmax statistics, moves. */
template <class T> void beams(fv_stream *s, const fv_beams *a)
{
    int64_t rows = a->sources * a->K, parts = ceil_div(a->V, PART);
    if (parts > PARTS) parts = PARTS;
    int64_t n_weights = rows * parts, n_best = n_weights * a->wide;
    char *block = alloc_scratch<char>(s, n_weights * (int64_t)sizeof(weight) + n_best * 8 +
                                             rows * (int64_t)sizeof(move));
    if (!block) return;
    rating *b = (rating *)block;
    weight *w = (weight *)(b + n_best);
    move *m = (move *)(w + n_weights);
    launch(s, "beams", best_of_rows<T>, dim3((unsigned)parts, (unsigned)rows), ROW, 0, *a, w, b);
    launch(s, "beams", select_beams, dim3((unsigned)a->sources), SOURCE, 0, *a, w, b, (int)parts,
           m);
    dim3 grid(4, (unsigned)a->n_caches, (unsigned)a->sources);
    if (a->K <= 4)
        launch(s, "beams", move_beams<4>, grid, MOVE, 0, *a, m);
    else if (a->K <= 8)
        launch(s, "beams", move_beams<8>, grid, MOVE, 0, *a, m);
    else
        launch(s, "beams", move_beams<FV_BEAMS_MAX>, grid, MOVE, 0, *a, m);
}
} // namespace

template <class T> void fv_cuda_beam(fv_kernels *k) { k->beams = beams<T>; }
FOR_ALL_DTYPES(fv_cuda_beam)
