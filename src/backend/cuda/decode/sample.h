/* sample.h - greedy choice: the most probable allowed token of each row and its log-probability.
 *
 * One warp per part of a row finds the best allowed token, the max of all logits and the sum of
 * exp(logit - max).  The last warp of a row to finish merges the parts in order.  Parts depend on
 * the vocabulary alone, so a score has the same bits on every GPU. */
#ifndef FV_CUDA_DECODE_SAMPLE_H
#define FV_CUDA_DECODE_SAMPLE_H

#include "backend/cuda/device/cuda.h"

#define SAMPLE_COLUMNS 1024 /* per part */

struct greatest { /* of any type; NaN does not propagate */
    template <class N> __device__ N operator()(N a, N b) const { return a > b ? a : b; }
};

/* Maps floats to unsigned integers of the same order. */
__device__ inline unsigned ordered(float x)
{
    unsigned b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* Score and token in one orderable word: greater is better; of equal scores the lower token. */
__device__ inline unsigned long long rated(float score, int token)
{
    return (unsigned long long)ordered(score) << 32 | (0xffffffffu - (unsigned)token);
}
__device__ inline int token_of(unsigned long long rated)
{
    return (int)(0xffffffffu - (unsigned)rated);
}

/* ---- rules ---- */

/* Generation state of a row, loaded ahead of its logits. */
struct progress {
    int made, min_new, max_new;
    bool over;
    __device__ progress(const fv_sample &a, int64_t i)
        : made(a.row ? a.row[i].made : a.made[i]), min_new(a.min_new ? a.min_new[i] : 0),
          max_new(a.max_new ? a.max_new[i] : INT32_MAX), over(a.row ? false : a.ended[i])
    {
    }
    __device__ bool may_end() const { return made >= min_new; }
    /* Whether the next token is forced: padding after the end, a forced first or last token. */
    __device__ bool given(const fv_sample &a, int *token) const
    {
        bool at_last = a.forced_last >= 0 && made == max_new,
             at_first = a.forced_first >= 0 && made == 0;
        if (over || at_last || at_first)
            *token = over ? a.pad : at_last ? a.forced_last : a.forced_first;
        return over || at_last || at_first;
    }
};

/* The score, or -inf for a banned token and for an end token before the minimum length.  Where rows
 * have settings of their own, the host has listed what this one may not choose. */
__device__ inline float mask_banned(const fv_sample &a, int64_t i, bool may_end, int64_t v,
                                    float score)
{
    for (int k = 0; a.row && k < a.row[i].n_banned; k++)
        if (a.row[i].banned[k] == v) return -INFINITY;
    int kind = a.token_flags ? a.token_flags[v] : 0;
    return kind & FV_TOKEN_BANNED || (kind & FV_TOKEN_EOS && !may_end) ? -INFINITY : score;
}

/* Appends the token to row i and advances its positions: one thread, after all others have read the
 * row's state. */
__device__ inline void commit_token(const fv_sample &a, int64_t i, const progress &is, int token,
                                    float score)
{
    if (a.row) { /* the host counts, and feeds the token back */
        a.tokens[i] = token;
        a.scores[i] = score;
        return;
    }
    int64_t at = is.made % a.log * a.rows + i;
    a.tokens[at] = a.token[i] = token;
    a.scores[at] = score;
    a.made[i] = is.made + 1;
    if (is.over) return;
    for (int64_t p = 0; p < a.n_positions; p++) a.position[p * a.rows + i]++;
    a.ended[i] = is.made >= is.max_new || (a.token_flags && a.token_flags[token] & FV_TOKEN_EOS);
}

/* ---- parts ---- */

/* best: among allowed tokens; most and sum of exp(logit - most): over all, for the log-prob. */
struct part_result {
    unsigned long long best;
    float most, sum;
};

struct sample_job {
    fv_sample a;
    struct part_result *part_result; /* (rows,parts) */
    unsigned *ticket;
    int parts;
};

/* One warp, one part: 32 logits per lane in registers, so they are read once for both passes. */
template <class T>
__device__ inline part_result scan_part(const fv_sample &a, int64_t i, int part, bool may_end)
{
    constexpr int EACH = SAMPLE_COLUMNS / 32;
    const T *logits = (const T *)a.logits + i * a.V;
    int V = (int)a.V, first = part * SAMPLE_COLUMNS + (int)threadIdx.x % 32;
    float x[EACH];
    part_result f = {0, -INFINITY, 0};
    for (int e = 0; e < EACH; e++)
        x[e] = first + e * 32 < V ? to_float(logits[first + e * 32]) : -INFINITY;
    for (int e = 0; e < EACH; e++) {
        int v = first + e * 32;
        if (v >= V) break;
        bool rules = a.token_flags || a.row;
        unsigned long long c = rated(rules ? mask_banned(a, i, may_end, v, x[e]) : x[e], v);
        f.most = fmaxf(f.most, x[e]);
        f.best = c > f.best ? c : f.best;
    }
    f.most = warp_allreduce(f.most, greatest());
    f.best = warp_allreduce(f.best, greatest());
    if (f.most == -INFINITY) return f;
    for (int e = 0; e < EACH; e++) f.sum += expf(x[e] - f.most);
    f.sum = warp_allreduce(f.sum, sum_op());
    return f;
}

/* Merges all parts of a row, to all lanes. */
__device__ inline part_result merge_parts(const sample_job &c, int64_t i)
{
    const part_result *of = c.part_result + i * c.parts;
    part_result f = {0, -INFINITY, 0};
    for (int p = (int)threadIdx.x % 32; p < c.parts; p += 32) {
        part_result o = {__ldcg(&of[p].best), __ldcg(&of[p].most), __ldcg(&of[p].sum)};
        float most = fmaxf(f.most, o.most);
        if (most != -INFINITY) f.sum = f.sum * expf(f.most - most) + o.sum * expf(o.most - most);
        f.most = most;
        f.best = o.best > f.best ? o.best : f.best;
    }
    float most = warp_allreduce(f.most, greatest());
    f.sum = warp_allreduce(f.most == -INFINITY ? 0 : f.sum * expf(f.most - most), sum_op());
    f.most = most;
    f.best = warp_allreduce(f.best, greatest());
    return f;
}

/* One part of row i; the last one to finish commits the greedy token, unless sampling follows. */
template <class T> __device__ inline void sample_part(const sample_job &c, int64_t i, int part)
{
    const fv_sample &a = c.a;
    progress is(a, i);
    part_result f = scan_part<T>(a, i, part, is.may_end());
    int last = 0;
    if (threadIdx.x % 32 == 0) {
        c.part_result[i * c.parts + part] = f;
        __threadfence();
        last = !a.do_sample && atomicAdd(&c.ticket[i], 1u) == (unsigned)c.parts - 1;
        if (last) c.ticket[i] = 0;
        __threadfence();
    }
    if (!__shfl_sync(~0u, last, 0)) return;
    f = merge_parts(c, i);
    if (threadIdx.x % 32) return;
    int token = token_of(f.best);
    float score = is.given(a, &token)
                      ? 0
                      : to_float(((const T *)a.logits)[i * a.V + token]) - (f.most + logf(f.sum));
    commit_token(a, i, is, token, score);
}

#endif
