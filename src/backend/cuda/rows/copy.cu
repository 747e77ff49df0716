/* copy.cu - strided copies, fills and dtype conversion. */
#include "backend/cuda/device/cuda.h"

namespace
{

/* ---- y[w.y] (+)= x[w.a] ---- */

template <class T> struct strided {
    sink<T> y;
    const T *x;
    fv_walk w;
    template <int V> __device__ void at(int64_t i) const
    {
        offsets o = locate(w, i);
        sink_put(y, o.y, to_float(x[o.a]));
    }
};

/* 16-byte vectors, where the last axis of both sides is contiguous; the walk is in vectors. */
struct dense {
    uint4 *y;
    const uint4 *x;
    fv_walk w;
    template <int V> __device__ void at(int64_t i) const
    {
        offsets o = locate(w, i);
        y[o.y] = x[o.a];
    }
};

template <class T> void copy(fv_stream *s, fv_sink y, const void *x, const fv_walk *w)
{
    if (!y.data) return;
    fv_walk packs = *w;
    if (!y.add && y.dtype == kind<T>::dtype && aligned(y.data, x) &&
        walk_vectorise(&packs, 16 / sizeof(T), false))
        each(s, "copy", walk_len(packs), dense{(uint4 *)y.data, (const uint4 *)x, packs});
    else
        each(s, "copy", walk_len(*w), strided<T>{to<T>(y), (const T *)x, *w});
}

/* ---- fill ---- */

template <class T> struct same {
    static constexpr int wide = 16 / sizeof(T);
    T *y;
    float value;
    template <int V> __device__ void at(int64_t i) const
    {
        float v[V];
        for (int j = 0; j < V; j++) v[j] = value;
        store(y, i, v);
    }
};

template <class T> void fill(fv_stream *s, void *y, float value, int64_t n)
{
    each(s, "fill", n, aligned(y), same<T>{(T *)y, value});
}

/* ---- conversion ---- */

template <class E> __device__ inline E narrow(double v) { return from_float<E>((float)v); }
template <> __device__ inline double narrow<double>(double v) { return v; }
__device__ inline double widen(double v) { return v; }
template <class E> __device__ inline double widen(E v) { return (double)to_float(v); }

/* y (+)= x.  Via f64 only where a side is f64; every other pair converts through f32 exactly. */
template <class E, class T> struct convert {
    static constexpr int wide = 4;
    E *y;
    const T *x;
    bool add;
    template <int V> __device__ void at(int64_t i) const
    {
        pack<T, V> in = *(const pack<T, V> *)(x + i);
        pack<E, V> out;
        if (add) out = *(const pack<E, V> *)(y + i);
        for (int j = 0; j < V; j++) {
            if constexpr (sizeof(E) == 8 || sizeof(T) == 8)
                out.v[j] = narrow<E>(widen(in.v[j]) + (add ? widen(out.v[j]) : 0.0));
            else
                out.v[j] = from_float<E>(add ? to_float(in.v[j]) + to_float(out.v[j])
                                             : to_float(in.v[j]));
        }
        *(pack<E, V> *)(y + i) = out;
    }
};

template <class T> void cast(fv_stream *s, fv_sink y, const void *x, int64_t n)
{
    if (!y.data) return;
    bool can = aligned(y.data, x);
    const T *in = (const T *)x;
    switch (y.dtype) {
    case FV_F64: each(s, "cast", n, can, convert<double, T>{(double *)y.data, in, y.add}); break;
    case FV_BF16: each(s, "cast", n, can, convert<bf16, T>{(bf16 *)y.data, in, y.add}); break;
    case FV_F16: each(s, "cast", n, can, convert<f16, T>{(f16 *)y.data, in, y.add}); break;
    default: each(s, "cast", n, can, convert<float, T>{(float *)y.data, in, y.add}); break;
    }
}
} // namespace

template <class T> void fv_cuda_copy(fv_kernels *k)
{
    k->copy = copy<T>;
    k->fill = fill<T>;
    k->cast = cast<T>;
}
FOR_ALL_DTYPES(fv_cuda_copy)

void fv_cuda_double(fv_kernels *k) { k->cast = cast<double>; }
