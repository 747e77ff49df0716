/* batchnorm.cu - batch norm of x (outer,channels,inner): per-channel statistics, forward and
 * backward; one block per channel, as large as blocks are: there are few channels and long sums. */
#include "backend/cuda/device/cuda.h"

namespace
{

#define CHANNEL_THREADS 1024

/* Element i of the block's channel.
 * A channel is `outer` runs of `inner` elements; a block reads them as one sequence of outer *
 * inner, fewer than 2^32: a division of 64 bits would cost more than the element. */
struct layout {
    uint32_t outer, inner;
    int64_t channels;
    __device__ int64_t at(uint32_t i) const
    {
        return (i / inner * channels + blockIdx.x) * inner + i % inner;
    }
    __device__ uint32_t count() const { return outer * inner; }
};

/* False, and an error of the stream: a channel has too many elements. */
bool layout_of(fv_stream *s, layout *l, int64_t outer, int64_t channels, int64_t inner)
{
    *l = {(uint32_t)outer, (uint32_t)inner, channels};
    if (outer * inner <= UINT32_MAX - CHANNEL_THREADS) return true;
    device_of(s)->host.fail(s, FV_ESHAPE, "batchnorm: cuda takes channels of up to 2^32 elements");
    return false;
}

/* mean = sum(x) / n,  var = sum((x - mean)^2) / n, in two passes: the one-pass formula cancels */
template <class T>
__global__ void __launch_bounds__(CHANNEL_THREADS)
    stats_channel(float *mean, float *var, const T *x, layout l)
{
    float m = 0, v = 0;
    for (uint32_t i = threadIdx.x; i < l.count(); i += blockDim.x) m += to_float(x[l.at(i)]);
    m = block_allreduce(m, sum_op()) / (float)l.count();
    for (uint32_t i = threadIdx.x; i < l.count(); i += blockDim.x) {
        float d = to_float(x[l.at(i)]) - m;
        v += d * d;
    }
    v = block_allreduce(v, sum_op()) / (float)l.count();
    if (threadIdx.x == 0) mean[blockIdx.x] = m, var[blockIdx.x] = v;
}

template <class T>
void batchnorm_stats(fv_stream *s, fv_stat *mean, fv_stat *var, const void *x, int64_t outer,
                     int64_t channels, int64_t inner)
{
    layout l;
    if (!layout_of(s, &l, outer, channels, inner)) return;
    launch(s, "batchnorm_stats", stats_channel<T>, dim3((unsigned)channels), CHANNEL_THREADS, 0,
           (float *)mean, (float *)var, (const T *)x, l);
}

/* y = gain * (x - mean) / sqrt(var + eps) + bias; one block per run of `inner` elements, which have
 * the channel's numbers in common. */
template <class T>
__global__ void normalise_run(T *y, const T *x, const float *mean, const float *var, const T *gain,
                              const T *bias, int64_t channels, int64_t inner, float eps)
{
    int64_t ch = blockIdx.x % channels, from = blockIdx.x * inner;
    float m = mean[ch], scale = (gain ? to_float(gain[ch]) : 1) / sqrtf(var[ch] + eps),
          shift = bias ? to_float(bias[ch]) : 0;
    for (int64_t i = threadIdx.x; i < inner; i += blockDim.x)
        y[from + i] = from_float<T>((to_float(x[from + i]) - m) * scale + shift);
}

template <class T>
void batchnorm(fv_stream *s, void *y, const void *x, const fv_stat *mean, const fv_stat *var,
               const void *gain, const void *bias, int64_t outer, int64_t channels, int64_t inner,
               float eps)
{
    launch(s, "batchnorm", normalise_run<T>, dim3((unsigned)(outer * channels)), row_threads(inner),
           0, (T *)y, (const T *)x, (const float *)mean, (const float *)var, (const T *)gain,
           (const T *)bias, channels, inner, eps);
}

/* Gradient of y = gain * n + bias, n = (x - mean) * rstd, sums over a channel:
 *   dgain = sum(dy * n),  dbias = sum(dy),  dx = gain * rstd * (dy - mean(dy) - n * mean(dy * n));
 * batch false: the statistics were running averages, constants, and the two means drop out. */
template <class T>
__global__ void __launch_bounds__(CHANNEL_THREADS)
    bwd_channel(sink<T> dx, sink<T> dgain, sink<T> dbias, const T *dy, const T *x,
                const float *mean, const float *var, const T *gain, layout l, float eps, bool batch)
{
    int64_t ch = blockIdx.x;
    float m = mean[ch], rstd = 1 / sqrtf(var[ch] + eps), dg = 0, db = 0;
    for (uint32_t i = threadIdx.x; i < l.count(); i += blockDim.x) {
        int64_t at = l.at(i);
        dg += to_float(dy[at]) * (to_float(x[at]) - m) * rstd;
        db += to_float(dy[at]);
    }
    dg = block_allreduce(dg, sum_op());
    db = block_allreduce(db, sum_op());
    if (threadIdx.x == 0 && dgain.p) sink_put(dgain, ch, dg);
    if (threadIdx.x == 0 && dbias.p) sink_put(dbias, ch, db);
    if (!dx.p) return;
    float scale = (gain ? to_float(gain[ch]) : 1) * rstd, count = (float)l.count();
    float d_mean = batch ? db / count : 0, dn_mean = batch ? dg / count : 0;
    for (uint32_t i = threadIdx.x; i < l.count(); i += blockDim.x) {
        int64_t at = l.at(i);
        sink_put(dx, at,
                 scale * (to_float(dy[at]) - d_mean - (to_float(x[at]) - m) * rstd * dn_mean));
    }
}

template <class T>
void batchnorm_bwd(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                   const void *x, const fv_stat *mean, const fv_stat *var, const void *gain,
                   int64_t outer, int64_t channels, int64_t inner, float eps, bool batch)
{
    layout l;
    if (!layout_of(s, &l, outer, channels, inner)) return;
    launch(s, "batchnorm_bwd", bwd_channel<T>, dim3((unsigned)channels), CHANNEL_THREADS, 0,
           to<T>(dx), to<T>(dgain), to<T>(dbias), (const T *)dy, (const T *)x, (const float *)mean,
           (const float *)var, (const T *)gain, l, eps, batch);
}
} // namespace

template <class T> void fv_cuda_batchnorm(fv_kernels *k)
{
    k->batchnorm_stats = batchnorm_stats<T>;
    k->batchnorm = batchnorm<T>;
    k->batchnorm_bwd = batchnorm_bwd<T>;
}
FOR_ALL_DTYPES(fv_cuda_batchnorm)
