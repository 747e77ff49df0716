/* gather.cu - rows of a table by id, and the sum of rows back into the table.
 *
 * Backward sorts the places by id (a stable sort, so places of one id stay in order); then one
 * block adds up the rows of each id and rounds once.  Atomic additions would save the sort and lose
 * the promise that a run repeats. */
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/device/cuda.h"

/* ---- y[i] = table[ids[i]] ---- */

template <class T, class E> struct rows_by_id {
    static constexpr int wide = 16 / sizeof(T);
    T *y;
    const E *table;
    const int32_t *ids;
    int64_t vocab, d;
    fault *bad;
    template <int V> __device__ void at(int64_t i) const
    {
        int64_t index = i / d, id = ids[index];
        float v[V] = {};
        if (id >= 0 && id < vocab)
            load(v, table, id * d + i % d);
        else if (i % d == 0)
            report_fault(bad, index, id, vocab);
        store(y, i, v);
    }
};

template <class T, class E>
static void rows_from(fv_stream *s, void *y, const void *table, const int32_t *ids, int64_t n,
                      int64_t vocab, int64_t d)
{
    bool wide = d % (16 / (int64_t)sizeof(T)) == 0 && aligned(y, table);
    each(s, "gather", n * d, wide,
         rows_by_id<T, E>{(T *)y, (const E *)table, ids, vocab, d, faults_of(s) + FAULT_GATHER});
}

template <class T>
static void gather(fv_stream *s, void *y, const void *table, fv_dtype tt, const int32_t *ids,
                   int64_t n, int64_t vocab, int64_t d)
{
    switch (tt) {
    case FV_F32: rows_from<T, float>(s, y, table, ids, n, vocab, d); break;
    case FV_BF16: rows_from<T, bf16>(s, y, table, ids, n, vocab, d); break;
    case FV_F16: rows_from<T, f16>(s, y, table, ids, n, vocab, d); break;
    default: device_of(s)->host.fail(s, FV_EMISSING, "gather: cuda reads no table of %d", (int)tt);
    }
}

/* ---- dtable[ids[i]] += dy[i] ---- */

/* Places that have no gradient get the key `vocab`, behind all others. */
struct keys_of_places {
    static constexpr int wide = 1;
    int32_t *key, *index;
    const int32_t *ids;
    int64_t vocab;
    int32_t skip;
    fault *bad;
    template <int V> __device__ void at(int64_t i) const
    {
        int32_t id = ids[i];
        bool inside = id >= 0 && id < vocab;
        if (!inside) report_fault(bad, i, id, vocab);
        key[i] = inside && id != skip ? id : (int32_t)vocab;
        index[i] = (int32_t)i;
    }
};

/* Block i adds up the run of equal keys that begins at i; all other blocks have nothing to do. */
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
        for (; p + 4 <= end; p += 4) { /* four rows under way at once, added in order */
#pragma unroll
            for (int u = 0; u < 4; u++) load(v[u], dy, index[p + u] * d + c);
#pragma unroll
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int j = 0; j < V; j++) sum[j] += v[u][j];
        }
        for (; p < end; p++) {
            load(v[0], dy, index[p] * d + c);
#pragma unroll
            for (int j = 0; j < V; j++) sum[j] += v[0][j];
        }
        sink_store(dtable, id * d + c, sum);
    }
}

/* The library tells some refusals by its answer alone. */
static void unsorted(fv_stream *s, cudaError_t rc)
{
    device_of(s)->host.fail(s, FV_EDEVICE, "gather_bwd: the device refused to sort the ids: %s",
                            cudaGetErrorString(rc));
}

static int or_bits(int64_t n)
{
    int bits = 1;
    while (n >> bits) bits++;
    return bits;
}

template <class T>
static void gather_bwd(fv_stream *s, fv_sink dtable, const void *dy, const int32_t *ids, int64_t n,
                       int64_t vocab, int64_t d, int32_t skip)
{
    constexpr int V = 16 / sizeof(T);
    if (!dtable.data) return;
    size_t size = dtable.dtype == FV_F32 ? 4 : sizeof(T), temp = 0;
    if (!dtable.add) s->dev->backend->zero(s, dtable.data, (size_t)(vocab * d) * size);
    if (!n) return;
    int32_t *none = NULL;
    cudaSetDevice(device_of(s)->number); /* whose size decides */
    cudaError_t rc = cub::DeviceRadixSort::SortPairs(NULL, temp, none, none, none, none, (int)n, 0,
                                                     or_bits(vocab));
    char *block = rc == cudaSuccess ? alloc_scratch<char>(s, (int64_t)temp + 256 +
                                                                 4 * n * (int64_t)sizeof(int32_t))
                                    : NULL;
    if (rc != cudaSuccess) unsorted(s, rc);
    if (!block) return;
    int32_t *key = (int32_t *)(block + (temp + 255) / 256 * 256), *index = key + n,
            *sorted = index + n, *order = sorted + n;
    each(s, "gather_bwd", n, false,
         keys_of_places{key, index, ids, vocab, skip, faults_of(s) + FAULT_GATHER_BWD});
    if (s->err.code) return;
    rc = cub::DeviceRadixSort::SortPairs(block, temp, key, sorted, index, order, (int)n, 0,
                                         or_bits(vocab), stream_of(s));
    fv_cuda_check_launch(s, "gather_bwd");
    if (rc != cudaSuccess) unsorted(s, rc);
    if (d % V == 0 && aligned(dtable.data, dy))
        launch(s, "gather_bwd", sum_of_run<T, V>, dim3((unsigned)n), row_threads(d / V), 0,
               to<T>(dtable), (const T *)dy, sorted, order, n, vocab, d);
    else
        launch(s, "gather_bwd", sum_of_run<T, 1>, dim3((unsigned)n), row_threads(d), 0,
               to<T>(dtable), (const T *)dy, sorted, order, n, vocab, d);
}

template <class T> void fv_cuda_gather(fv_kernels *k)
{
    k->gather = gather<T>;
    k->gather_bwd = gather_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_gather)
