/* decode.cu - attention of one query in each sequence by a kernel of its own, or as an op of a
 * program. */
#include "decode.h"
#include "dispatch.h"

template <class T, int L>
__global__ void __launch_bounds__(DECODE_THREADS)
    attention_one_part(const __grid_constant__ decode_job<T> j)
{
    __shared__ float record[decode_floats];
    pdl_launch_dependents();
    pdl_wait();
    decode_attend<T, L>(j, (int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z, record,
                        global_io<T>());
}

template <class T, int L> static bool start(fv_stream *s, const job<T> &o)
{
    const device *d = device_of(s);
    int64_t heads = o.a.B * o.a.H, parts = ceil_div(o.a.Tk, PART_KEYS),
            spare = 2 * d->sm_count / heads;
    if (parts > spare) parts = spare;
    parts = parts < 1 || heads > TICKETS ? 1 : parts > MAX_PARTS ? MAX_PARTS : parts;
    decode_job<T> j = {o, NULL, d->tickets, (int)parts, false};
    if (parts > 1 && !(j.sums = alloc_scratch<float>(s, heads * parts * (o.a.Wv + 2)))) return true;
    if constexpr (kind<T>::dtype != FV_F16)
        if (fv_cuda_defer(s, j)) return true;
    dim3 grid((unsigned)parts, (unsigned)o.a.H, (unsigned)o.a.B);
    launch_pdl(s, "attention", o.a.B <= PDL_MAX_ROWS, attention_one_part<T, L>, grid,
               DECODE_THREADS, 0, j);
    return true;
}

/* False where this is another case. */
template <class T> bool fv_cuda_attention_decode(fv_stream *s, const fv_attn_args *a)
{
    constexpr int V = 16 / sizeof(T);
    if (a->Tq != 1 || a->Wk != a->Wv || a->dropout > 0 || a->B > 65535 || !a->B) return false;
    job<T> o = prepare<T>(s, a);
    if (!o.vector_q || !o.vector_k || !o.vector_v) return false;
    switch (a->Wk / V) {
    case 4: return start<T, 4>(s, o);
    case 8: return start<T, 8>(s, o);
    case 16: return start<T, 16>(s, o);
    case 32: return start<T, 32>(s, o);
    }
    return false;
}
template bool fv_cuda_attention_decode<float>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_decode<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_decode<f16>(fv_stream *, const fv_attn_args *);
