/* decode.cu - attention of one query per sequence (decode.h): as a kernel of its own, or as an
 * op of the decode megakernel. */
#include "decode.h"
#include "dispatch.h"

namespace
{

template <class T, int L, int W>
__global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode(const __grid_constant__ decode_job<T> j)
{
    __shared__ float record[decode_floats];
    pdl_launch_dependents();
    pdl_wait();
    decode_attend<T, L, W>(j, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z, record,
                           global_io<T>());
}

/* One query uses one block per head, far fewer than there are SMs at small batches: so keys are
 * split into parts, and the last block of a head to finish (a ticket counter) adds the parts in
 * order.  Up to two blocks an SM; a batch that fills the GPU is not split. */
template <class T, int L, int W = 16 / sizeof(T) * L>
bool start(fv_stream *s, const attn_params<T> &attn)
{
    const device *d = device_of(s);
    int64_t heads = attn.a.B * attn.a.H, parts = ceil_div(attn.a.Tk, PART_KEYS),
            scratch = 2 * d->sm_count / heads;
    if (parts > scratch) parts = scratch;
    if (parts > MAX_PARTS) parts = MAX_PARTS;
    if (parts < 1 || heads > TICKETS) parts = 1;
    decode_job<T> j = {attn, NULL, d->tickets, (int)parts, false};
    if (parts > 1 && !(j.sums = alloc_scratch<float>(s, heads * parts * (attn.a.Wv + 2))))
        return true;
    if constexpr (kind<T>::dtype != FV_F16)
        if (fv_cuda_defer(s, j)) return true;
    dim3 grid((unsigned)parts, (unsigned)attn.a.H, (unsigned)attn.a.B);
    launch_pdl(s, "attention", attn.a.B <= PDL_MAX_ROWS, attention_decode<T, L, W>, grid,
               DECODE_THREADS, 0, j);
    return true;
}

} // namespace

/* False: not a case for this kernel. */
template <class T> bool fv_cuda_attention_decode(fv_stream *s, const fv_attn_args *a)
{
    constexpr int V = 16 / sizeof(T);
    if (a->Tq != 1 || a->Wk != a->Wv || a->dropout > 0 || a->B > 65535 || !a->B) return false;
    attn_params<T> attn = make_params<T>(s, a);
    if (!attn.vector_q || !attn.vector_k || !attn.vector_v) return false;
    switch (a->Wk / V) {
    case 4: return start<T, 4>(s, attn);
    case 8: return start<T, 8>(s, attn);
    case 16: return start<T, 16>(s, attn);
    case 32: return start<T, 32>(s, attn);
    }
    if (a->Wk == 80) return start<T, 128 / V, 80>(s, attn);
    if (a->Wk == 96) return start<T, 128 / V, 96>(s, attn);
    return false;
}
template bool fv_cuda_attention_decode<float>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_decode<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_decode<f16>(fv_stream *, const fv_attn_args *);
