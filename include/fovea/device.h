/* device.h - where tensors live and kernels run. */
#ifndef FOVEA_DEVICE_H
#define FOVEA_DEVICE_H

#include "fovea/env.h"

typedef struct fv_device fv_device;

typedef enum fv_dtype {
    FV_F32 = 0,
    FV_F64,  /* the reference arithmetic: slow, used to check the others */
    FV_BF16, /* stored in 16 bits, added up in f32 */
    FV_F16,
    FV_I32, /* ids and positions */
    FV_U8,  /* masks: 1 takes part, 0 does not */
    FV_Q8,  /* int8 weights, one f32 scale for each 32 along the inner axis; packed only */
    FV_Q4,  /* 4-bit weights, likewise; packed only */
    /* int8 weights, one f32 scale for each row of at most 4096: faster and coarser than FV_Q8;
     * packed only */
    FV_I8,
    FV_DTYPES
} fv_dtype;

#define FV_MAX_DIM 6 /* axes of a tensor */
#define FV_FLOATS 4  /* the first four dtypes have kernel tables */

/* Activations.  Up to FV_QUICK_GELU a product computes them as it stores its result; those behind
 * it are made of other ops. */
typedef enum fv_act {
    FV_ACT_NONE = 0,
    FV_RELU,
    FV_GELU,      /* x * Phi(x), by erf */
    FV_GELU_TANH, /* its tanh approximation (GPT-2) */
    FV_SILU,
    FV_TANH,
    FV_SIGMOID,
    FV_QUICK_GELU, /* x * sigmoid(1.702 x), as OpenAI's CLIP has it */
    FV_IDENTITY,   /* x: what FV_ACT_NONE is where that does not stand for a default */
    FV_LEAKY_RELU, /* with the slope 0.01 */
    FV_RELU6,      /* relu, at most 6 */
    FV_RELU2,      /* relu(x)^2 */
    FV_HARDSWISH,  /* x relu6(x + 3) / 6 */
    FV_MISH,       /* x tanh(softplus(x)) */
    FV_SQRT_SOFTPLUS,
    FV_GELU_10, /* gelu within -10 .. 10 */
    FV_LAPLACE  /* Phi((x - mu) / sigma), mu = sqrt(1/2), sigma = sqrt(1/(4 pi)): MEGA's */
} fv_act;

typedef struct fv_device_opt {
    int threads; /* 0: all cores this process may use */
    /* CPU only: "generic", "neon", "avx2", ...; NULL: $FOVEA_CPU, else the best there is */
    const char *level;
    const fv_env *env; /* must outlive the device; NULL: defaults */
} fv_device_opt;

/* Opens "cpu", which NULL means too, or, where built, "cuda" and "cuda:N".  A device may be shared
 * by threads.  The work of all contexts of one CUDA device follows one another; with $FOVEA_CUDA
 * the backend's file can be named. */
FV_API fv_status fv_device_open(fv_device **out, const char *name, fv_device_opt opt, fv_err *e);
FV_API void fv_device_close(fv_device *d); /* NULL is allowed */

FV_API const char *fv_device_name(const fv_device *d);  /* "cpu" */
FV_API const char *fv_device_level(const fv_device *d); /* "neon+bf16+i8mm", "avx512", "sm_90" */
FV_API int fv_device_threads(const fv_device *d);

/* CPU levels this build has and this machine can run, best first: writes at most `most` names,
 * returns how many. */
FV_API int fv_cpu_levels(const char **out, int most);

/* A line on each CUDA device ("NVIDIA H200, sm_90, 139.8 GiB"), at most `most`; returns how many
 * there are, or -1 with the reason: no backend in this build, no driver, no device. */
FV_API int fv_cuda_devices(char (*lines)[128], int most, fv_err *e);

/* "f32", "bf16", ...; bytes of one element (0 for packed dtypes).  fv_dtype_parse is false for an
 * unknown word. */
FV_API const char *fv_dtype_name(fv_dtype t);
FV_API size_t fv_dtype_size(fv_dtype t);
FV_API bool fv_dtype_parse(fv_dtype *out, const char *name);

#endif
