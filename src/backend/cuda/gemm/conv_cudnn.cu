/* conv_cudnn.cu - the three products of a convolution by cuDNN.
 *
 *     map    = filter * image           forward
 *     image  = filter' * map            data gradient
 *     filter = sum over the batch of map * image'    filter gradient
 *
 * cuDNN reads the image in place (implicit GEMM), where im2col first writes it out once for every
 * pixel of the kernel: nine times for 3 x 3.  The filter gradient sums over images inside one
 * kernel; as one product an image it filled 9 of 132 SMs for a SAGAN of 128 channels.
 *
 * Only engines whose bits repeat are taken, and for f32 none that rounds inputs to TF32: f32 is f32
 * here, as in gemm.cu.  A shape without such an engine stays with im2col and gemm. */
#include <cstring>

#include "backend/cuda/device/cudnn.h"

#if HAVE_CUDNN

namespace
{
enum { IMAGE = 1, FILTER, MAP }; /* unique ids of the tensors */

struct conv_key {
    fv_conv_geom g;
    int64_t maps, groups;
    int kind, dtype, out; /* out: dtype of the result */
};

cudnnDataType_t type_of(int t)
{
    if (t == FV_F32) return CUDNN_DATA_FLOAT;
    return t == FV_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

void describe(dnn_graph *g, const conv_key *k)
{
    const fv_conv_geom &c = k->g;
    auto type = [&](fv_conv_kind of) { return type_of(k->kind == of ? k->out : k->dtype); };
    g->exact = true;
    g->f32 = k->dtype == FV_F32;
    dnn_convolution(g, (fv_conv_kind)k->kind, &c,
                    dnn_tensor(g, IMAGE, type(FV_CONV_IMAGE),
                               dnn_dense(c.batch, c.channels, c.h, c.w)),
                    dnn_tensor(g, FILTER, type(FV_CONV_FILTER),
                               dnn_dense(k->maps, c.channels / k->groups, c.kh, c.kw)),
                    dnn_tensor(g, MAP, type(FV_CONV_MAP), dnn_dense(c.batch, k->maps, c.oh, c.ow)));
}

/* Of {image, filter, map}, the one that is computed. */
int result_of(int kind)
{
    if (kind == FV_CONV_MAP) return 2;
    return kind == FV_CONV_FILTER;
}

int64_t result_len(fv_conv_kind which, const fv_conv_args *a)
{
    const fv_conv_geom &c = a->g;
    const int64_t len[] = {c.batch * c.channels * c.h * c.w,
                           a->maps * (c.channels / a->groups) * c.kh * c.kw,
                           c.batch * a->maps * c.oh * c.ow};
    return len[result_of(which)];
}

/* Writes to out, of dtype k->out.  False: no engine, nothing was written. */
bool run(fv_stream *s, dnn_state *f, const conv_key *k, const fv_conv_args *a, void *out)
{
    std::lock_guard<std::mutex> hold(f->lock);
    dnn_plan *p = dnn_plan_for(f, k, describe);
    char *work = p ? alloc_scratch<char>(s, p->work) : NULL;
    if (!work) return false;
    const int64_t uid[] = {IMAGE, FILTER, MAP};
    void *data[] = {(void *)a->image, (void *)a->filter, (void *)a->map};
    data[result_of(k->kind)] = out;
    return dnn_run(s, f, p, "conv", 3, uid, data, work);
}

template <class T> bool conv(fv_stream *s, fv_conv_kind which, const fv_conv_args *a)
{
    dnn_state *f = s->err.code ? NULL : dnn_of(s);
    if (!f || !aligned(a->image, a->filter, a->map, a->out.data)) return false;
    conv_key key;
    memset(&key, 0, sizeof key);
    key.g = a->g, key.maps = a->maps, key.groups = a->groups;
    key.kind = which, key.dtype = kind<T>::dtype, key.out = a->out.dtype;
    if (!a->out.add && run(s, f, &key, a, a->out.data)) return true;

    /* cuDNN adds to nothing, and few engines have another dtype for the result than for inputs */
    if (!a->out.add && key.out == key.dtype) return false;
    key.out = key.dtype;
    int64_t n = result_len(which, a);
    T *part = alloc_scratch<T>(s, n);
    if (!part || !run(s, f, &key, a, part)) return false;
    s->dev->k[key.dtype]->cast(s, a->out, part, n);
    return true;
}
} // namespace

template <class T> void fv_cuda_conv_cudnn(fv_kernels *k) { k->conv = conv<T>; }
#else
template <class T> void fv_cuda_conv_cudnn(fv_kernels *) {}
#endif
FOR_ALL_DTYPES(fv_cuda_conv_cudnn)
