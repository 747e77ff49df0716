/* sample.h - the likeliest token of each row and its log-probability.
 *
 * A warp looks at a part of a row: at the best that may come, the greatest of all and the sum of
 * exp(score - that).  The warp that comes last joins the parts in order.  Parts are cut by the
 * vocabulary alone: a score has the same bits on every chip. */
#ifndef FV_CUDA_DECODE_SAMPLE_H
#define FV_CUDA_DECODE_SAMPLE_H

#include "backend/cuda/device/cuda.h"

#define SAMPLE_COLUMNS 1024 /* of a part */

struct plus {
    template <class N> __device__ N operator()(N a, N b) const { return a + b; }
};
struct greatest {
    template <class N> __device__ N operator()(N a, N b) const { return a > b ? a : b; }
};

template <class N, class F> __device__ inline N warp_join(N v, F f)
{
    for (int o = 16; o; o /= 2) v = f(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* Floats as integers in the same order. */
__device__ inline unsigned ordered(float x)
{
    unsigned b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* A token and its score as one number: the better, the greater; of equal ones the lower token
 * is. */
__device__ inline unsigned long long rated(float score, int token)
{
    return (unsigned long long)ordered(score) << 32 | (0xffffffffu - (unsigned)token);
}
__device__ inline int token_of(unsigned long long rated)
{
    return (int)(0xffffffffu - (unsigned)rated);
}

/* ---- rules ---- */

/* How far a row is, read before anything is known about its scores. */
struct progress {
    int made, min_new, max_new;
    bool over;
    __device__ progress(const fv_sample &a, int64_t i)
        : made(a.made[i]), min_new(a.min_new ? a.min_new[i] : 0),
          max_new(a.max_new ? a.max_new[i] : INT32_MAX), over(a.ended[i])
    {
    }
    __device__ bool may_end() const { return made >= min_new; }
    /* Whether the token that comes is known, whatever the scores are. */
    __device__ bool given(const fv_sample &a, int *token) const
    {
        bool at_last = a.forced_last >= 0 && made == max_new,
             at_first = a.forced_first >= 0 && made == 0;
        if (over || at_last || at_first)
            *token = over ? a.pad : at_last ? a.forced_last : a.forced_first;
        return over || at_last || at_first;
    }
};

__device__ inline float mask_banned(const fv_sample &a, bool may_end, int64_t v, float score)
{
    int kind = a.token_flags ? a.token_flags[v] : 0;
    return kind & FV_TOKEN_BANNED || (kind & FV_TOKEN_EOS && !may_end) ? -INFINITY : score;
}

/* Row i goes on with this token: by one thread, when all others have read what they need. */
__device__ inline void commit_token(const fv_sample &a, int64_t i, const progress &is, int token,
                                    float score)
{
    int64_t at = is.made % a.log * a.rows + i;
    a.tokens[at] = a.token[i] = token;
    a.scores[at] = score;
    a.made[i] = is.made + 1;
    if (is.over) return;
    for (int64_t p = 0; p < a.n_positions; p++) a.position[p * a.rows + i]++;
    a.ended[i] = is.made >= is.max_new || (a.token_flags && a.token_flags[token] & FV_TOKEN_EOS);
}

/* ---- parts ---- */

/* best: that may come; most: of all, ruled out or not; sum: of exp(score - most). */
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

template <class T>
__device__ inline part_result scan_part(const fv_sample &a, int64_t i, int part, bool may_end)
{
    constexpr int EACH = SAMPLE_COLUMNS / 32;
    const T *logits = (const T *)a.logits + i * a.V;
    int V = (int)a.V, first = part * SAMPLE_COLUMNS + (int)threadIdx.x % 32;
    float x[EACH];
    part_result f = {0, -INFINITY, 0};
#pragma unroll
    for (int e = 0; e < EACH; e++)
        x[e] = first + e * 32 < V ? to_float(logits[first + e * 32]) : -INFINITY;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int v = first + e * 32;
        if (v >= V) break;
        unsigned long long c = rated(a.token_flags ? mask_banned(a, may_end, v, x[e]) : x[e], v);
        f.most = fmaxf(f.most, x[e]);
        f.best = c > f.best ? c : f.best;
    }
    f.most = warp_join(f.most, greatest());
    f.best = warp_join(f.best, greatest());
    if (f.most == -INFINITY) return f;
#pragma unroll
    for (int e = 0; e < EACH; e++) f.sum += expf(x[e] - f.most);
    f.sum = warp_join(f.sum, plus());
    return f;
}

/* Of all parts of a row, to all threads of the warp. */
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
    float most = warp_join(f.most, greatest());
    f.sum = warp_join(f.most == -INFINITY ? 0 : f.sum * expf(f.most - most), plus());
    f.most = most;
    f.best = warp_join(f.best, greatest());
    return f;
}

/* A part of row i; if it is the last of its row and nothing is drawn, the choice. */
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
