/* pack.h - weights of products packed once, for parameters that have their values and will not
 * change. */
#ifndef FOVEA_PACK_H
#define FOVEA_PACK_H

#include "fovea/tensor.h"

/* w[0..n) of one shape, (N,K) or (K,N) if in_out, one below the other as one packed tensor (nN,K)
 * of dtype (f32, bf16, q8, q4) that lives as long as p.  NULL on failure, which sticks to p
 * (fv_params_status), as where the device has no such layout: fv_params_packs says so. */
FV_API fv_tensor *fv_params_pack(fv_params *p, fv_tensor *const *w, int n, fv_dtype dtype,
                                 bool in_out);
FV_API bool fv_params_packs(const fv_params *p, fv_dtype dtype);
/* n vectors one behind the other (their biases); zeros for NULL, and NULL if all are. */
FV_API fv_tensor *fv_params_join(fv_params *p, fv_tensor *const *t, int n);
/* The first failure of declaring, joining or packing. */
FV_API fv_status fv_params_status(const fv_params *p, fv_err *e);
/* Read where a file is mapped (fv_params_map): it cannot be changed. */
FV_API bool fv_params_borrowed(const fv_tensor *t);

#endif
