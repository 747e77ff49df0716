/* tensor_map.cu - encodes tensor maps, the descriptors that TMA reads: 16-bit or f32 elements,
 * boxes of at most 128 bytes along the innermost axis, the 128-byte swizzle, zeros out of
 * bounds.
 *
 * cuTensorMapEncodeTiled is a call of the driver.  It is looked up at run time, so that the
 * backend does not link libcuda and loads on machines without a driver. */
#include "sm90.h"

bool fv_cuda_tensor_map_nd(CUtensorMap *m, const void *x, fv_dtype t, int axes,
                           const cuuint64_t *dim, const cuuint64_t *step, const cuuint32_t *box)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static const encode_fn encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found);
        return found == cudaDriverEntryPointSuccess ? (encode_fn)f : (encode_fn)NULL;
    }();
    const cuuint32_t element_step[] = {1, 1, 1, 1, 1};
    CUtensorMapDataType type = t == FV_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                               : t == FV_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    return encode && !encode(m, type, (cuuint32_t)axes, (void *)x, dim, step, box, element_step,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

bool fv_cuda_tensor_map(CUtensorMap *m, const void *x, fv_dtype t, int64_t B, int64_t T, int64_t H,
                        int64_t W, int64_t row, int64_t batch, int rows)
{
    const cuuint64_t dim[] = {(cuuint64_t)W, (cuuint64_t)H, (cuuint64_t)T, (cuuint64_t)B};
    const cuuint64_t step[] = {(cuuint64_t)W * 2, (cuuint64_t)row * 2,
                               (cuuint64_t)(B > 1 ? batch : T * row) * 2};
    const cuuint32_t box[] = {PANEL, 1, (cuuint32_t)rows, 1};
    return fv_cuda_tensor_map_nd(m, x, t, 4, dim, step, box);
}

bool fv_cuda_tensor_map_qkv(qkv_tensor_maps *m, const fv_attn_args *a, fv_dtype t, int queries,
                            int keys)
{
    return fv_cuda_tensor_map(&m->q, a->q, t, a->B, a->Tq, a->H, a->Wk, a->q_row, a->q_batch,
                              queries) &&
           fv_cuda_tensor_map(&m->k, a->k, t, a->B, a->Tk, a->G, a->Wk, a->k_row, a->k_batch,
                              keys) &&
           fv_cuda_tensor_map(&m->v, a->v, t, a->B, a->Tk, a->G, a->Wv, a->v_row, a->v_batch, keys);
}
