/* ids.cu - integer kernels on token ids: shift by positions, position ids, index of a token.
 * Scans along a row take one warp per row and a ballot per 32 tokens. */
#include "backend/cuda/device/cuda.h"

namespace
{

#define WARPS 4 /* per block */

/* y[t] = x[t + by], or edge outside the row; then `from` is replaced by `to` */
void shift(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols, int64_t by,
           int32_t edge, int32_t from, int32_t to)
{
    each(s, "shift", rows * cols, [=] __device__(int64_t i) {
        int64_t t = i % cols + by;
        int32_t v = t >= 0 && t < cols ? x[i + by] : edge;
        y[i] = v == from ? to : v;
    });
}

/* y[t] = first + the number of earlier tokens that are not `skip`; padding itself gets `skip`
 * ballot & lanes below me, counted: an exclusive scan of 32 flags in two instructions. */
__global__ void count_rows(int32_t *y, const int32_t *x, int64_t rows, int64_t cols, int32_t first,
                           int32_t skip)
{
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    for (int64_t from = 0, n = 0; from < cols; from += 32) {
        int64_t i = row * cols + from + lane;
        bool inside = from + lane < cols, counts = inside && !(x && x[i] == skip);
        unsigned all = __ballot_sync(~0u, counts);
        if (inside) y[i] = counts ? first + (int32_t)(n + __popc(all & ((1u << lane) - 1))) : skip;
        n += __popc(all);
    }
}

void positions(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
               int32_t first, int32_t skip)
{
    launch(s, "positions", count_rows, dim3((unsigned)ceil_div(rows, WARPS)), 32 * WARPS, 0, y, x,
           rows, cols, first, skip);
}

/* y[row] = index into x of the token that `what` describes, or the row's first: chunks of 32 from
 * the end, later finds replacing earlier ones where the first counts */
__global__ void find_in_rows(int32_t *y, const int32_t *x, int64_t rows, int64_t cols, int32_t id,
                             fv_find what)
{
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, found = 0;
    if (row >= rows) return;
    int32_t most = INT32_MIN;
    for (int64_t from = (cols - 1) / 32 * 32; from >= 0; from -= 32) {
        bool inside = from + lane < cols;
        int32_t v = inside ? x[row * cols + from + lane] : INT32_MIN;
        bool is = inside && (v == id) == (what != FV_FIND_LAST_OTHER);
        if (what == FV_FIND_LARGEST) {
            int32_t here = __reduce_max_sync(~0u, v);
            is = inside && v == here && here >= most;
            if (here > most) most = here;
        }
        unsigned all = __ballot_sync(~0u, is);
        if (!all) continue;
        bool last = what == FV_FIND_LAST || what == FV_FIND_LAST_OTHER;
        found = from + (last ? 31 - __clz(all) : __ffs(all) - 1);
        if (last) break;
    }
    if (lane == 0) y[row] = (int32_t)(row * cols + found);
}

void find_index(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols, int32_t id,
                fv_find what)
{
    launch(s, "find_index", find_in_rows, dim3((unsigned)ceil_div(rows, WARPS)), 32 * WARPS, 0, y,
           x, rows, cols, id, what);
}
} // namespace

template <class T> void fv_cuda_ids(fv_kernels *k)
{
    k->shift = shift;
    k->positions = positions;
    k->find_index = find_index;
}
FOR_ALL_DTYPES(fv_cuda_ids)
