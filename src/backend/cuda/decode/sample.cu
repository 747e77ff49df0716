/* sample.cu - the next token of each row, chosen on the device: greedy (sample.h), or sampled with
 * temperature, top_k, top_p and min_p as on the CPU; and moving rows of the KV caches.
 *
 * Sampling takes one block per row.  top_k and top_p keep the tokens above some score; that
 * threshold is found by bisection over the scores (as ordered integers), counting the tokens or
 * their probability above it.  Up to FIT survivors are sorted and sampled from, best first, in the
 * CPU's order of summation.  With more survivors, a second bisection finds the token whose
 * cumulative probability reaches the random number.  Without top_k, top_p and min_p the cumulative
 * sum runs in token order.  Sorting the whole vocabulary would cost more than ~30 passes over it.
 */
#include "sample.h"

namespace
{

#define THREADS_ROW 1024
#define FIT 2048 /* most tokens to sort */

/* A token and its score; -inf: none.  Ties go to the lower token. */
struct candidate {
    float score;
    int token;
};
__device__ inline bool before(candidate a, candidate b)
{
    return a.score > b.score || (a.score == b.score && a.token < b.token);
}

/* Allreduce over all THREADS_ROW threads: 32 warps, then the 32 warp results in every warp. */
template <class N, class F> __device__ inline N block_join(N v, F f)
{
    static_assert(THREADS_ROW == 32 * 32, "one warp result per lane");
    __shared__ N part[32];
    v = warp_allreduce(v, f);
    __syncthreads(); /* an earlier call may still be reading part */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_allreduce(part[threadIdx.x % 32], f);
}

/* How a row is drawn: by the settings of all, or by its own. */
struct settings {
    float temperature, top_p, min_p;
    int64_t top_k;
    uint64_t seed, number;
    __device__ settings(const fv_sample &a, int64_t i)
        : temperature(a.temperature), top_p(a.top_p), min_p(a.min_p), top_k(a.top_k), seed(a.seed),
          number((uint64_t)(a.number ? a.number[i] : i))
    {
        if (!a.row) return;
        const fv_sample_row &own = a.row[i];
        temperature = own.temperature, top_p = own.top_p, min_p = own.min_p;
        top_k = own.top_k, seed = own.seed, number = (uint64_t)own.number;
    }
};

/* Scores are logits with banned tokens at -inf; weight is what softmax would divide by its sum,
 * which is never needed: thresholds are shares of the sum of weights. */
template <class T> struct row {
    const fv_sample &a;
    int64_t i;
    const T *logits;
    bool may_end;
    settings how;
    float top; /* the best allowed score */

    __device__ float score(int64_t v) const
    {
        return mask_banned(a, i, may_end, v, to_float(logits[v]));
    }
    __device__ float weight(float score) const { return expf((score - top) / how.temperature); }

    /* Number, or total weight, of the tokens whose score is at least `key`. */
    __device__ double above(unsigned key, bool weigh) const
    {
        double sum = 0;
        for (int64_t v = threadIdx.x; v < a.V; v += THREADS_ROW) {
            float x = score(v);
            if (ordered(x) >= key && x != -INFINITY) sum += weigh ? (double)weight(x) : 1;
        }
        return block_join(sum, sum_op());
    }
    /* Bisection: the greatest key with at least `much` at or above it. */
    __device__ unsigned cut(double much, bool weigh) const
    {
        /* invariant: enough lies above low; above high perhaps */
        unsigned low = ordered(-INFINITY), high = ordered(top);
        while (low < high) {
            unsigned mid = low + (high - low + 1) / 2;
            double have = above(mid, weigh);
            if (have == much) return mid;
            if (have > much)
                low = mid;
            else
                high = mid - 1;
        }
        return low;
    }
};

/* In token order: thread t sums the t-th piece of the row; u lies in one of the pieces.
 * Sums in f64: with 50,000 terms the order of f32 additions would decide which token u falls on. */
template <class T> __device__ int sample_from_all(const row<T> &r, double u)
{
    __shared__ double piece[THREADS_ROW];
    __shared__ int sampled;
    int64_t each = ceil_div(r.a.V, THREADS_ROW), from = threadIdx.x * each,
            to = from + each < r.a.V ? from + each : r.a.V;
    double sum = 0, before_it = 0, all = 0;
    for (int64_t v = from; v < to; v++) sum += (double)r.weight(r.score(v));
    piece[threadIdx.x] = sum;
    if (threadIdx.x == 0) sampled = (int)r.a.V - 1;
    __syncthreads();
    for (int t = 0; t < THREADS_ROW; t++) {
        if (t == (int)threadIdx.x) before_it = all;
        all += piece[t];
    }
    double run = before_it;
    if (before_it <= u * all && before_it + sum > u * all)
        for (int64_t v = from; v < to; v++)
            if ((run += (double)r.weight(r.score(v))) > u * all) {
                atomicMin(&sampled, (int)v);
                break;
            }
    __syncthreads();
    return sampled;
}

/* Too many to sort: bisection for the score where the cumulative weight reaches u; of equal scores
 * the lowest token. */
template <class T> __device__ int sample_by_weight(const row<T> &r, unsigned least, double u)
{
    double all = r.above(least, true);
    unsigned key = r.cut(u * all > 0 ? u * all : 1e-300, true);
    unsigned long long best = 0;
    for (int64_t v = threadIdx.x; v < r.a.V; v += THREADS_ROW) {
        float x = r.score(v);
        if (ordered(x) == key && rated(x, (int)v) > best) best = rated(x, (int)v);
    }
    return token_of(block_join(best, greatest()));
}

/* Sorts the tokens at or above `least` (rank by counting), applies top_p, then min_p, and samples.
 */
template <class T>
/* The final loop is one thread's, in the order of the CPU: few terms, and the same token on
 * both. */
__device__ int sample_from_best(const row<T> &r, unsigned least, double share_of, double u)
{
    __shared__ candidate part_result[FIT];
    __shared__ float weight[FIT];
    __shared__ int n, sampled;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < r.a.V; v += THREADS_ROW) {
        float x = r.score(v);
        if (ordered(x) < least || x == -INFINITY) continue;
        int at = atomicAdd(&n, 1);
        if (at < FIT) part_result[at] = {x, (int)v};
    }
    __syncthreads();
    if (n > FIT) return sample_by_weight(r, least, u);
    candidate mine[FIT / THREADS_ROW];
    int rank[FIT / THREADS_ROW];
    for (int e = 0; e < FIT / THREADS_ROW; e++) {
        int i = (int)threadIdx.x + e * THREADS_ROW;
        rank[e] = 0;
        if (i >= n) continue;
        mine[e] = part_result[i];
        for (int j = 0; j < n; j++) rank[e] += before(part_result[j], mine[e]);
    }
    __syncthreads();
    for (int e = 0; e < FIT / THREADS_ROW; e++) {
        if ((int)threadIdx.x + e * THREADS_ROW >= n) continue;
        part_result[rank[e]] = mine[e];
        weight[rank[e]] = r.weight(mine[e].score);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0, run = 0, kept = 0;
        int m = n;
        for (int i = 0; i < n; i++) sum += (double)weight[i];
        if (r.how.top_p < 1) {
            double much = (double)r.how.top_p * (share_of > 0 ? share_of : sum);
            for (m = 0; m < n && (m == 0 || kept < much); m++) kept += (double)weight[m];
        }
        while (m > 1 && r.how.min_p > 0 && weight[m - 1] < r.how.min_p * weight[0]) m--;
        for (int i = (sum = 0, 0); i < m; i++) sum += (double)weight[i];
        sampled = part_result[m - 1].token;
        for (int i = 0; i < m; i++)
            if ((run += (double)weight[i]) > u * sum) {
                sampled = part_result[i].token;
                break;
            }
    }
    __syncthreads();
    return sampled;
}

/* The CPU's random number for this sequence and step: Philox keyed by seed, sequence and token
 * count, so that the result does not depend on the batch. */
template <class T> __device__ int sample_token(const row<T> &r, int made)
{
    const settings &how = r.how;
    uint32_t w[4];
    philox(w, how.seed, how.number, (uint64_t)made, 0);
    double u = ((double)w[0] + 0.5) * 0x1p-32;
    if (how.top_k > 0 && how.top_k < r.a.V)
        return sample_from_best(r, r.cut((double)how.top_k, false), 0, u);
    if (how.top_p < 1) {
        double all = r.above(0, true);
        return sample_from_best(r, r.cut((double)how.top_p * all, true), all, u);
    }
    if (how.min_p > 0)
        return sample_from_best(r, ordered(r.top + how.temperature * logf(how.min_p) - 1e-3f), 0,
                                u);
    return sample_from_all(r, u);
}

/* ---- kernels ---- */

template <class T>
__global__ void __launch_bounds__(THREADS) sample_parts(const __grid_constant__ sample_job c)
{
    pdl_launch_dependents();
    pdl_wait();
    sample_part<T>(c, blockIdx.x / (unsigned)c.parts, (int)(blockIdx.x % (unsigned)c.parts));
}

/* Block i samples for row i. */
template <class T>
__global__ void __launch_bounds__(THREADS_ROW) sample_rows(const __grid_constant__ sample_job c)
{
    pdl_launch_dependents();
    pdl_wait();
    const fv_sample &a = c.a;
    int64_t i = blockIdx.x;
    part_result f = merge_parts(c, i);
    candidate best = {0, token_of(f.best)};
    progress is(a, i);
    if (!is.given(a, &best.token)) {
        row<T> r = {a, i, (const T *)a.logits + i * a.V, is.may_end(), settings(a, i), 0};
        r.top = r.score(best.token);
        /* no finite score, or a greedy row among others: keep the argmax */
        if (isfinite(r.top) && (!a.row || a.row[i].do_sample))
            best.token = sample_token(r, is.made);
        best.score = to_float(r.logits[best.token]) - (f.most + logf(f.sum));
    }
    __syncthreads(); /* all threads have read the row's state */
    if (threadIdx.x == 0) commit_token(a, i, is, best.token, best.score);
}

template <class T> bool sample(fv_stream *s, const fv_sample *a)
{
    if (a->V < 1 || a->V > INT32_MAX || a->rows > TICKETS) return false;
    sample_job c = {*a, NULL, device_of(s)->tickets, (int)ceil_div(a->V, SAMPLE_COLUMNS)};
    if (!(c.part_result = alloc_scratch<part_result>(s, a->rows * c.parts))) return true;
    bool early = a->rows <= PDL_MAX_ROWS;
    launch_pdl(s, "sample", early, sample_parts<T>, dim3((unsigned)(a->rows * c.parts)), THREADS, 0,
               c);
    if (a->do_sample)
        launch_pdl(s, "sample", early, sample_rows<T>, dim3((unsigned)a->rows), THREADS_ROW, 0, c);
    return true;
}

/* ---- moving rows of the KV caches: through scratch, so that moves may overlap ---- */

/* Copies the moved ranges of all caches to `aside` (caches, moves, longest) in 16-byte vectors, or
 * back from there. */
void copy_moves(fv_stream *s, const fv_cache_rows *cache, int64_t n_caches, const fv_cache_move *m,
                int64_t n_moves, uint4 *aside, int64_t longest, bool back)
{
    each(s, "move_rows", n_caches * n_moves * longest, [=] __device__(int64_t i) {
        int64_t pack = i % longest, which = i / longest % n_moves;
        const fv_cache_rows c = cache[i / longest / n_moves];
        const fv_cache_move v = m[which];
        size_t at = (size_t)v.first * c.token + (size_t)pack * 16;
        if (at >= (size_t)v.end * c.token) return;
        if (back)
            *(uint4 *)((char *)c.data + (size_t)v.to * c.row + at) = aside[i];
        else
            aside[i] = *(const uint4 *)((const char *)c.data + (size_t)v.from * c.row + at);
    });
}

void move_rows(fv_stream *s, const fv_cache_rows *cache, int64_t n_caches, const fv_cache_move *m,
               int64_t n)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n_caches; k++) {
            int64_t packs = (int64_t)((size_t)(m[i].end - m[i].first) * cache[k].token) / 16;
            longest = packs > longest ? packs : longest;
        }
    if (!longest) return;
    size_t caches = ((size_t)n_caches * sizeof *cache + 255) / 256 * 256,
           moves = ((size_t)n * sizeof *m + 255) / 256 * 256;
    char *block = alloc_scratch<char>(s, (int64_t)(caches + moves) + n_caches * n * longest * 16);
    if (!block) return;
    s->dev->backend->upload(s, block, cache, (size_t)n_caches * sizeof *cache);
    s->dev->backend->upload(s, block + caches, m, (size_t)n * sizeof *m);
    for (int back = 0; back < 2; back++)
        copy_moves(s, (const fv_cache_rows *)block, n_caches,
                   (const fv_cache_move *)(block + caches), n, (uint4 *)(block + caches + moves),
                   longest, back);
}
} // namespace

template <class T> void fv_cuda_sample(fv_kernels *k)
{
    k->sample = sample<T>;
    k->move_rows = move_rows;
}
FOR_ALL_DTYPES(fv_cuda_sample)
