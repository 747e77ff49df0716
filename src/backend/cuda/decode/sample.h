/* sample.h - greedy choice: the most probable allowed token of each row and its log-probability.
 *
 * One block per part of a row finds the best allowed token, the max of all logits and the sum of
 * exp(logit - max).  The last block of a row to finish merges the parts in order.  Parts depend on
 * the vocabulary alone, so a score has the same bits on every GPU. */
#ifndef FV_CUDA_DECODE_SAMPLE_H
#define FV_CUDA_DECODE_SAMPLE_H

#include "backend/cuda/device/cuda.h"

#define SAMPLE_COLUMNS 2048 /* per part */

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
__device__ inline float score_of(unsigned long long rated)
{
    unsigned b = (unsigned)(rated >> 32);
    return __uint_as_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
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
    constexpr int SOME = 4; /* loaded together: one trip to L2 */
    int old[SOME];
#pragma unroll
    for (int p = 0; p < SOME; p++)
        if (p < a.n_positions) old[p] = a.position[p * a.rows + i];
#pragma unroll
    for (int p = 0; p < SOME; p++)
        if (p < a.n_positions) a.position[p * a.rows + i] = old[p] + 1;
    for (int64_t p = SOME; p < a.n_positions; p++) a.position[p * a.rows + i]++;
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

/* Merges what the lanes have, to all of them. */
__device__ inline part_result merge_lanes(part_result f)
{
    float most = warp_allreduce(f.most, greatest());
    f.sum = warp_allreduce(f.most == -INFINITY ? 0 : f.sum * expf(f.most - most), sum_op());
    f.most = most;
    f.best = warp_allreduce(f.best, greatest());
    return f;
}

/* One block, one part, a few logits for each thread in registers; the result in the first warp. */
template <class T>
__device__ inline part_result scan_part(const fv_sample &a, int64_t i, int part, bool may_end)
{
    constexpr int EACH = SAMPLE_COLUMNS / THREADS, WARPS = THREADS / 32;
    __shared__ part_result of_warp[WARPS];
    const T *logits = (const T *)a.logits + i * a.V;
    int V = (int)a.V, first = part * SAMPLE_COLUMNS + (int)threadIdx.x, lane = threadIdx.x % 32;
    float x[EACH];
    part_result f = {0, -INFINITY, 0};
    bool rules = a.token_flags || a.row;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        x[e] = first + e * THREADS < V ? to_float(logits[first + e * THREADS]) : -INFINITY;
        f.most = fmaxf(f.most, x[e]);
    }
#pragma unroll
    for (int e = 0; e < EACH && !rules; e++) {
        int v = first + e * THREADS;
        unsigned long long c = v < V ? rated(x[e], v) : 0;
        f.best = c > f.best ? c : f.best;
    }
#pragma unroll 1 /* EACH copies of the rules are 25 KB, which a kernel this short would wait for */
    for (int v = first; v < V && v < first + SAMPLE_COLUMNS && rules; v += THREADS) {
        unsigned long long c = rated(mask_banned(a, i, may_end, v, to_float(logits[v])), v);
        f.best = c > f.best ? c : f.best;
    }
#pragma unroll
    for (int e = 0; e < EACH && f.most != -INFINITY; e++) f.sum += expf(x[e] - f.most);
    f = merge_lanes(f);
    if (lane == 0) of_warp[threadIdx.x / 32] = f;
    __syncthreads();
    return merge_lanes(lane < WARPS ? of_warp[lane] : part_result{0, -INFINITY, 0});
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
    return merge_lanes(f);
}

/* Whether all other parts of the row are stored; what they stored may then be read. */
__device__ inline bool is_last_part(const sample_job &c, int64_t i)
{
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(c.ticket + i)
                 : "memory");
    if (before != (unsigned)c.parts - 1) return false;
    c.ticket[i] = 0;
    return true;
}

/* One part of row i; the last one to finish commits the greedy token, unless sampling follows. */
template <class T> __device__ inline void sample_part(const sample_job &c, int64_t i, int part)
{
    const fv_sample &a = c.a;
    progress is(a, i);
    part_result f = scan_part<T>(a, i, part, is.may_end());
    if (threadIdx.x >= 32) return;
    int last = 0;
    if (threadIdx.x == 0) {
        c.part_result[i * c.parts + part] = f;
        last = !a.do_sample && is_last_part(c, i);
    }
    if (!__shfl_sync(~0u, last, 0)) return;
    __syncwarp(); /* the first lane has seen the other parts: all may read them */
    f = merge_parts(c, i);
    if (threadIdx.x) return;
    int token = token_of(f.best);
    float score = score_of(f.best);
    if (score == -INFINITY) score = to_float(((const T *)a.logits)[i * a.V + token]); /* banned */
    score = is.given(a, &token) ? 0 : score - (f.most + logf(f.sum));
    commit_token(a, i, is, token, score);
}

#endif
