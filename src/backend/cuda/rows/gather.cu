/* gather.cu - embedding lookup y[i] = table[ids[i]], and its gradient.
 *
 * The backward sorts positions by id (a stable radix sort, so positions of one id stay in order);
 * then one block per id sums its rows in f32 and rounds once.  Atomic additions would save the sort
 * but lose determinism. */
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/device/cuda.h"

namespace
{

/* ---- y[i] = table[ids[i]] ---- */

template <class T, class E>
void rows_from(fv_stream *s, void *y, const void *table, const int32_t *ids, int64_t n,
               int64_t vocab, int64_t d)
{
    bool wide = d % vec<T> == 0 && aligned(y, table);
    fault *bad = faults_of(s) + FAULT_GATHER;
    each_vec<vec<T>>(s, "gather", n * d, wide, [=] __device__(auto w, int64_t i) {
        int64_t index = i / d, id = ids[index];
        float v[decltype(w)::value] = {};
        if (id >= 0 && id < vocab)
            load(v, (const E *)table, id * d + i % d);
        else if (i % d == 0)
            report_fault(bad, index, id, vocab);
        store((T *)y, i, v);
    });
}

template <class T>
void gather(fv_stream *s, void *y, const void *table, fv_dtype tt, const int32_t *ids, int64_t n,
            int64_t vocab, int64_t d)
{
    switch (tt) {
    case FV_F32: rows_from<T, float>(s, y, table, ids, n, vocab, d); break;
    case FV_BF16: rows_from<T, bf16>(s, y, table, ids, n, vocab, d); break;
    case FV_F16: rows_from<T, f16>(s, y, table, ids, n, vocab, d); break;
    default: device_of(s)->host.fail(s, FV_EMISSING, "gather: cuda reads no table of %d", (int)tt);
    }
}

/* ---- dtable[ids[i]] += dy[i] ---- */

/* Block i sums the run of equal keys that starts at sorted position i; a block inside a run exits.
 * Finding the runs first would cost another pass and a sync for their number. */
template <class T, int V>
__global__ void sum_of_run(sink<T> dtable, const T *dy, const int32_t *key, const int32_t *index,
                           int64_t n, int64_t vocab, int64_t d)
{
    int64_t i = blockIdx.x, end = i + 1;
    int32_t id = key[i];
    if (id == vocab || (i && key[i - 1] == id)) return;
    while (end < n && key[end] == id) end++;
    for (int64_t c = threadIdx.x * V; c < d; c += blockDim.x * V) {
        float sum[V] = {}, v[4][V];
        int64_t p = i;
        for (; p + 4 <= end; p += 4) { /* four loads in flight, added in order */
            for (int u = 0; u < 4; u++) load(v[u], dy, index[p + u] * d + c);
            for (int u = 0; u < 4; u++)
                for (int j = 0; j < V; j++) sum[j] += v[u][j];
        }
        for (; p < end; p++) {
            load(v[0], dy, index[p] * d + c);
            for (int j = 0; j < V; j++) sum[j] += v[0][j];
        }
        sink_store(dtable, id * d + c, sum);
    }
}

/* cub reports some launch failures by its return code alone. */
void fail_sort(fv_stream *s, cudaError_t rc)
{
    device_of(s)->host.fail(s, FV_EDEVICE, "gather_bwd: the device refused to sort the ids: %s",
                            cudaGetErrorString(rc));
}

/* The sort looks at so many bits of a key only: 16 for a vocabulary of 50,257, half of a full
 * sort. */
int bit_width(int64_t n)
{
    int bits = 1;
    while (n >> bits) bits++;
    return bits;
}

/* dtable[id] (+)= sum of dy[i] over positions i with ids[i] = id; `skip` (padding) has none. */
template <class T>
void gather_bwd(fv_stream *s, fv_sink dtable, const void *dy, const int32_t *ids, int64_t n,
                int64_t vocab, int64_t d, int32_t skip)
{
    if (!dtable.data) return;
    size_t size = dtable.dtype == FV_F32 ? 4 : sizeof(T), temp = 0;
    if (!dtable.add) s->dev->backend->zero(s, dtable.data, (size_t)(vocab * d) * size);
    if (!n) return;
    int32_t *none = NULL;
    cudaSetDevice(device_of(s)->number); /* the temporary size depends on the device */
    cudaError_t rc = cub::DeviceRadixSort::SortPairs(NULL, temp, none, none, none, none, (int)n, 0,
                                                     bit_width(vocab));
    char *block = rc == cudaSuccess ? alloc_scratch<char>(s, (int64_t)temp + 256 +
                                                                 4 * n * (int64_t)sizeof(int32_t))
                                    : NULL;
    if (rc != cudaSuccess) fail_sort(s, rc);
    if (!block) return;
    int32_t *key = (int32_t *)(block + (temp + 255) / 256 * 256), *index = key + n,
            *sorted = index + n, *order = sorted + n;
    fault *bad = faults_of(s) + FAULT_GATHER_BWD;
    /* sort keys: the id, or `vocab` (last) for positions without a gradient */
    each(s, "gather_bwd", n, [=] __device__(int64_t i) {
        int32_t id = ids[i];
        bool inside = id >= 0 && id < vocab;
        if (!inside) report_fault(bad, i, id, vocab);
        key[i] = inside && id != skip ? id : (int32_t)vocab;
        index[i] = (int32_t)i;
    });
    if (s->err.code) return;
    rc = cub::DeviceRadixSort::SortPairs(block, temp, key, sorted, index, order, (int)n, 0,
                                         bit_width(vocab), stream_of(s));
    fv_cuda_check_launch(s, "gather_bwd");
    if (rc != cudaSuccess) fail_sort(s, rc);
    with_width<T>(d % vec<T> == 0 && aligned(dtable.data, dy), [&](auto w) {
        constexpr int V = decltype(w)::value;
        launch(s, "gather_bwd", sum_of_run<T, V>, dim3((unsigned)n), row_threads(d / V), 0,
               to<T>(dtable), (const T *)dy, sorted, order, n, vocab, d);
    });
}
} // namespace

template <class T> void fv_cuda_gather(fv_kernels *k)
{
    k->gather = gather<T>;
    k->gather_bwd = gather_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_gather)
